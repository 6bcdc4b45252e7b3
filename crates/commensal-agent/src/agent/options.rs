//! Options of an agent, and requests to it while it runs.

use commensal_host::Waker;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The settings that stay in force when the agent is asked to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExit {
    /// The safe state: offline work stays limited, online work has no limits.
    #[default]
    Safe,
    /// All settings, unchanged.
    Keep,
    /// None: every original value is restored.
    Restore,
}

/// Options of the agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Groups file or directory.
    pub config: PathBuf,
    /// Interval between two ticks.
    pub interval: Duration,
    /// Time without a keep-alive from the agent after which the guard acts; `None` means no guard.
    pub lease: Option<Duration>,
    /// Whether the probe may be loaded.
    pub probe: bool,
    /// The settings that stay in force at exit.
    pub on_exit: OnExit,
    /// Whether to replace a running agent.
    pub replace: bool,
    /// Path of this program, which is also started as the guard.
    pub program: PathBuf,
    /// Version of this program, as shown in the snapshot.
    pub version: String,
    /// Whether the agent may run although another instance of commensal, with another state directory, manages cgroups.
    pub beside_others: bool,
    /// TCP address at which metrics are served, read-only.
    pub metrics: Option<SocketAddr>,
    /// The socket over which a group may read the agent's state.
    pub share: Option<Share>,
}

/// A socket that a group may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Path of the socket.
    pub path: PathBuf,
    /// GID of the group.
    pub group: u32,
    /// Whether the user requested this socket explicitly: if so, the agent does not start without it.
    pub insisted: bool,
}

/// Requests that signal handlers make to the agent's loop.
#[derive(Debug)]
pub struct Flags {
    /// Wakes the loop, so that it notices a request immediately.
    pub waker: Waker,
    /// Request to exit.
    pub stop: Arc<AtomicBool>,
    /// Request to read the groups again.
    pub reload: Arc<AtomicBool>,
    /// Request to exit because another agent replaces this one, and to leave all settings unchanged.
    pub hand_over: Arc<AtomicBool>,
}

impl Flags {
    /// Creates flags without requests.
    ///
    /// # Errors
    /// Returns `EMFILE` if too many files are open.
    pub fn new() -> std::io::Result<Flags> {
        let no = || Arc::new(AtomicBool::new(false));
        Ok(Flags { waker: Waker::new()?, stop: no(), reload: no(), hand_over: no() })
    }
}
