//! A third-party sched_ext scheduler as the policy of an arm (a condition of the run). The run starts the scheduler's
//! program when it switches the policy on, and stops the program when it switches the policy off.

use super::error::TestbedError;
use crate::scheduler::{disable, enable, in_words};
use commensal_core::errno::Errno;
use commensal_host::{Child, Host, HostError, SpawnSpec, Stderr, Stdout};
use commensal_reconcile::Applied;
use commensal_sensors::sched_ext::{Kernel, State};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::sync::Arc;

/// Maximum length of a program's output that an error message quotes (bytes).
const SAID: usize = 600;

/// A third-party scheduler while its program runs.
#[derive(Debug)]
pub(super) struct ArmScheduler {
    child: Child,
    log: Arc<OwnedFd>,
}

impl ArmScheduler {
    /// Starts this program with its arguments and waits until the kernel has loaded its scheduler. Does nothing if
    /// `command` is `None`.
    ///
    /// # Errors
    /// [`TestbedError::Scheduler`] if the scheduler does not load or another one is loaded.
    pub(super) fn start(
        host: &mut dyn Host,
        command: Option<&[String]>,
    ) -> Result<Option<ArmScheduler>, TestbedError> {
        let Some((program, args)) = command.and_then(<[String]>::split_first) else { return Ok(None) };
        let log = log()?;
        let mut spec = args.iter().fold(SpawnSpec::new(program), SpawnSpec::arg);
        (spec.die_with_parent, spec.own_process_group) = (true, true);
        (spec.stdout, spec.stderr) = (Stdout::Fd(log.clone()), Stderr::Stdout);
        let kernel = Kernel::read(host);
        if kernel.busy() {
            return Err(TestbedError::Scheduler(format!(
                "{}, although no scheduler was loaded when the run started",
                kernel.loaded()
            )));
        }
        match enable(host, &spec, &|| false) {
            Ok(child) => Ok(Some(ArmScheduler { child, log })),
            Err(error) => Err(TestbedError::Scheduler(format!("{error}{}", said(&log)))),
        }
    }

    /// Stops the scheduler.
    ///
    /// # Errors
    /// If the scheduler does not unload.
    pub(super) fn stop(mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        disable(host, &mut self.child).map_err(|error| TestbedError::Scheduler(error.to_string()))
    }

    /// Reads the kernel's sched_ext state, to show that a scheduler is loaded; `None` if no scheduler is loaded.
    pub(super) fn read_back(&self, host: &dyn Host) -> Option<Applied> {
        let state = Kernel::read(host).state.filter(|state| *state == State::Enabled)?;
        let (place, want) = ("machine".to_owned(), State::Enabled.to_string());
        Some(Applied { place, file: "sched_ext state", want, read: state.to_string() })
    }

    /// Returns why the scheduler is no longer loaded, or why its program has exited; `None` if the scheduler is still
    /// in force.
    pub(super) fn lost(&mut self, host: &dyn Host) -> Option<String> {
        if let Ok(Some(exit)) = self.child.try_wait() {
            return Some(format!("its program exited {}{}", in_words(&exit), said(&self.log)));
        }
        let kernel = Kernel::read(host);
        let lost = kernel.state != Some(State::Enabled);
        lost.then(|| format!("the kernel unloaded it ({}){}", kernel.loaded(), said(&self.log)))
    }
}

/// Creates an in-memory file for the program's output.
fn log() -> Result<Arc<OwnedFd>, TestbedError> {
    let failed = |errno: rustix::io::Errno| HostError {
        operation: "create",
        object: "a file in memory".to_owned(),
        value: None,
        errno: Errno(errno.raw_os_error()),
    };
    let file = memfd_create("commensal-lab", MemfdFlags::CLOEXEC).map_err(failed)?;
    Ok(Arc::new(file))
}

/// Returns the end of the program's output on one line, formatted to follow an error message.
fn said(log: &Arc<OwnedFd>) -> String {
    let size = rustix::fs::fstat(log.as_ref()).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let mut bytes = vec![0; SAID];
    let read = rustix::io::pread(log.as_ref(), &mut bytes, size.saturating_sub(SAID as u64)).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..read]);
    let words = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" / ");
    if words.is_empty() { String::new() } else { format!("; its last output: {words}") }
}
