//! How an agent is run, and what is asked of it while it runs.

use commensal_host::Waker;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What stays in force when the agent is asked to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExit {
    /// The safe state: offline work stays held back, no limit is left on online work.
    #[default]
    Safe,
    /// All settings, unchanged.
    Keep,
    /// No settings: every original value is restored.
    Restore,
}

/// Options of the agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Groups file or directory.
    pub config: PathBuf,
    /// Length of a tick.
    pub interval: Duration,
    /// How long the agent may be silent before the guard acts; `None` means no guard.
    pub lease: Option<Duration>,
    /// Whether the probe may be loaded.
    pub probe: bool,
    /// What stays in force at exit.
    pub on_exit: OnExit,
    /// Whether to replace a running agent.
    pub takeover: bool,
    /// Path of this program, which is also started as the guard.
    pub program: PathBuf,
    /// Version, for the snapshot.
    pub version: String,
    /// Whether the agent may run beside another commensal with another state directory.
    pub beside_others: bool,
    /// TCP address at which metrics are served, read-only.
    pub metrics: Option<SocketAddr>,
    /// The socket that a group may look at it over.
    pub share: Option<Share>,
}

/// A socket for a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Where.
    pub path: PathBuf,
    /// The group's number.
    pub group: u32,
    /// Whether somebody asked for it: then there is no agent without it.
    pub insisted: bool,
}

/// Requests made by signals.
#[derive(Debug)]
pub struct Flags {
    /// What ends the loop's wait; a request rings it.
    pub waker: Waker,
    /// Exit.
    pub stop: Arc<AtomicBool>,
    /// Read the groups again.
    pub reload: Arc<AtomicBool>,
    /// Make room for another agent and leave all settings unchanged.
    pub hand_over: Arc<AtomicBool>,
}

impl Flags {
    /// No requests.
    ///
    /// # Errors
    /// `EMFILE` when there are too many open files.
    pub fn new() -> std::io::Result<Flags> {
        let no = || Arc::new(AtomicBool::new(false));
        Ok(Flags { waker: Waker::new()?, stop: no(), reload: no(), hand_over: no() })
    }
}
