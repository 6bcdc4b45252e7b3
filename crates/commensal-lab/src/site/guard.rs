//! The guard: a separate process that thaws frozen work if the run that froze the work is killed. A pipe connects the
//! two; the guard reads end of file from the pipe when the run exits.
//!
//! Without a guard, a user's batch job would stay frozen after the run was killed. On cgroup v1, even SIGKILL cannot
//! end a frozen process.

use super::error::TestbedError;
use commensal_host::{Child, Host, SpawnSpec, Stderr, Stdin, Stdout};
use commensal_reconcile::restore_stale;
use commensal_sensors::machine;
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of attempts to undo a killed run's changes. A pause follows each attempt, because a killed run stays
/// in the process table for a moment.
const TRIES: u32 = 150;
const PAUSE: Duration = Duration::from_millis(200);

/// A running guard, held by a run that freezes work.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// Write end of the pipe; the kernel closes it when the run exits.
    alive: OwnedFd,
}

impl Guard {
    /// Starts the guard as a process outside the run's terminal session.
    ///
    /// # Errors
    /// If the pipe or the process cannot be created.
    pub fn start(host: &mut dyn Host, program: &Path, state_dir: &Path) -> Result<Guard, TestbedError> {
        let (read, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| {
            let why = std::io::Error::from(errno);
            TestbedError::new(format!(
                "the guard, which thaws frozen work if this run is killed, cannot be started: {why}"
            ))
        })?;
        let mut spec = SpawnSpec::new(program).arg("--state-dir").arg(state_dir.as_os_str());
        if !host.is_guarded() {
            spec = spec.arg("--insecure-permissions");
        }
        spec = spec.arg("workload").arg("thaw-guard");
        spec.stdin = Stdin::Fd(Arc::new(read));
        (spec.stdout, spec.stderr) = (Stdout::Null, Stderr::Null);
        (spec.own_session, spec.die_with_parent) = (true, false);
        Ok(Guard { child: host.spawn(&spec)?, alive })
    }

    /// Closes the pipe, so that the guard knows that the run has finished. Then waits up to 1.5 s until the guard has
    /// looked for changes to undo, and has exited.
    ///
    /// # Errors
    /// If waiting for the guard's process fails.
    pub fn end(self) -> Result<(), TestbedError> {
        let Guard { mut child, alive } = self;
        drop(alive);
        for _ in 0..TRIES {
            if child.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(PAUSE / 20);
        }
        Ok(())
    }
}

/// The main function of the guard's process: waits until the run has exited, then undoes the changes that killed runs
/// left behind. While another run holds the lock, the guard only retries, because a run itself undoes such changes when
/// it starts.
///
/// # Errors
/// If the state directory or a journal cannot be read.
pub fn keep_watch(host: &mut dyn Host, state_dir: &Path, alive: &mut dyn Read) -> Result<(), TestbedError> {
    // The run never writes to the pipe, so the read returns only when the run has closed its end.
    let _ = alive.read(&mut [0]);
    let boot_id = machine::boot_id(host).unwrap_or_default();
    for _ in 0..TRIES {
        if let Some(_lock) = host.state_lock(&state_dir.join("lab.lock"))? {
            let restored = restore_stale(host, state_dir, &boot_id)?;
            if restored.left.is_empty() && restored.failed.is_empty() {
                return Ok(());
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
