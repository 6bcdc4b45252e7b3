//! The guard, which thaws frozen work when the run that froze it is killed: a separate process that holds the other end
//! of a pipe.
//!
//! A frozen process does not even die of SIGKILL on cgroup v1, and a user's batch job must not stay frozen for ever.

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

/// Number of attempts to restore, and the pause between them: a killed run remains in the process table for a moment.
const TRIES: u32 = 150;
const PAUSE: Duration = Duration::from_millis(200);

/// The guard of a run that freezes work.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// Closed by the kernel when the run dies.
    alive: OwnedFd,
}

impl Guard {
    /// Starts the guard, detached from the run's terminal.
    ///
    /// # Errors
    /// When no pipe or process can be created.
    pub fn start(host: &mut dyn Host, program: &Path, state_dir: &Path) -> Result<Guard, TestbedError> {
        let (read, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| {
            let why = std::io::Error::from(errno);
            TestbedError::new(format!("the guard that lets frozen work go on cannot be started: {why}"))
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

    /// Tells the guard that the run is over, and waits until it has checked for remains.
    ///
    /// # Errors
    /// When it cannot be waited for.
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

/// The guard's main function: waits until the run is over, then restores what dead runs left, unless another run does
/// so.
///
/// # Errors
/// When the state directory or a journal cannot be read.
pub fn keep_watch(host: &mut dyn Host, state_dir: &Path, alive: &mut dyn Read) -> Result<(), TestbedError> {
    // Nothing is written to the pipe: the read returns when the run ends.
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
