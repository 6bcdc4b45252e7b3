//! Finds the agent of a state directory. The agent holds a lock file as long as it runs, and records its PID and start
//! time in a second file.

use commensal_host::{Host, HostError, Process, SMALL_STATE_FILE_MOST};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Identity of the agent's process, which the next agent reads from the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// PID.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
}

/// The lock file that the agent of a state directory holds.
#[must_use]
pub fn lock_path(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.lock")
}

fn process_path(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.json")
}

/// Checks whether an agent manages this state directory: `None` if no agent does, otherwise the agent's PID if it is
/// known.
///
/// # Errors
/// Returns an error if the state directory cannot be used.
pub fn running(host: &mut dyn Host, state_dir: &Path) -> Result<Option<Option<u32>>, HostError> {
    let path = lock_path(state_dir);
    match host.state_read_within(&path, SMALL_STATE_FILE_MOST) {
        // The lock is a regular file; anything else means that no agent holds it.
        Err(error) if error.is_no_file() => return Ok(None),
        read => {
            if read?.is_none() || host.state_lock(&path)?.is_some() {
                return Ok(None);
            }
        }
    }
    Ok(Some(recorded(host, state_dir)?.map(|agent| agent.pid)))
}

/// Returns whether the agent of a state directory is running. Tests whether its lock is held, without trying to take
/// the lock.
pub(crate) fn lives(host: &dyn Host, state_dir: &str) -> bool {
    let lock = host.state_lock_file(&lock_path(Path::new(state_dir)));
    lock.ok().flatten().is_some_and(|lock| lock.is_held())
}

/// Reads the identity of the agent that runs, or of the last agent that ran; `None` if there is no valid record.
///
/// # Errors
/// Returns an error if the record cannot be read.
pub fn recorded(host: &mut dyn Host, state_dir: &Path) -> Result<Option<AgentProcess>, HostError> {
    let text = host.state_read_within(&process_path(state_dir), SMALL_STATE_FILE_MOST)?.unwrap_or_default();
    Ok(serde_json::from_str(&text).ok())
}

/// Records this process as the agent. The caller holds the agent's lock.
///
/// # Errors
/// Returns an error if the record cannot be written.
pub fn record(host: &mut dyn Host, state_dir: &Path, own: &Process) -> Result<(), HostError> {
    let agent = AgentProcess { pid: own.pid, start_ticks: own.start_ticks };
    let text = commensal_core::text::json(&agent).unwrap_or_default();
    host.state_replace(&process_path(state_dir), &text)
}
