//! A third-party scheduler as an arm's policy: its program is started with the policy and ended with it.

use super::Testbed;
use super::error::TestbedError;
use crate::scheduler::{disable, enable, in_words};
use commensal_core::errno::Errno;
use commensal_host::{Child, Host, HostError, SpawnSpec, Stderr, Stdout};
use commensal_reconcile::Applied;
use commensal_sensors::sched_ext::{Kernel, State};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::sync::Arc;

/// Maximum part of a program's output that is quoted, bytes.
const SAID: usize = 600;

/// An active scheduler.
#[derive(Debug)]
pub(super) struct Scheduled {
    child: Child,
    log: Arc<OwnedFd>,
}

impl Testbed {
    /// Starts the scheduler of this policy, if it has one.
    ///
    /// # Errors
    /// [`TestbedError::Scheduler`] when the scheduler does not load.
    pub(super) fn begin_scheduling(
        &mut self,
        host: &mut dyn Host,
        policy: usize,
    ) -> Result<(), TestbedError> {
        let Some(command) = &self.policies[policy].scheduler else { return Ok(()) };
        let Some((program, args)) = command.split_first() else { return Ok(()) };
        let log = log()?;
        let mut spec = args.iter().fold(SpawnSpec::new(program), SpawnSpec::arg);
        (spec.die_with_parent, spec.own_process_group) = (true, true);
        (spec.stdout, spec.stderr) = (Stdout::Fd(log.clone()), Stderr::Stdout);
        let kernel = Kernel::read(host);
        if kernel.busy() {
            return Err(TestbedError::Scheduler(format!(
                "{}, and was not when the run began",
                kernel.loaded()
            )));
        }
        match enable(host, &spec, &|| false) {
            Ok(child) => self.scheduled = Some(Scheduled { child, log }),
            Err(error) => return Err(TestbedError::Scheduler(format!("{error}{}", said(&log)))),
        }
        Ok(())
    }

    /// Ends the active scheduler, if there is one.
    ///
    /// # Errors
    /// When the scheduler does not unload.
    pub(super) fn end_scheduling(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let Some(mut scheduled) = self.scheduled.take() else { return Ok(()) };
        disable(host, &mut scheduled.child).map_err(|error| TestbedError::Scheduler(error.to_string()))
    }

    /// Whether the active scheduler is loaded in the kernel.
    pub(super) fn scheduling_now(&self, host: &dyn Host) -> Option<Applied> {
        let state = Kernel::read(host).state.filter(|state| *state == State::Enabled);
        let (place, want) = ("machine".to_owned(), State::Enabled.to_string());
        state.filter(|_| self.scheduled.is_some()).map(|state| Applied {
            place,
            file: "sched_ext state",
            want,
            read: state.to_string(),
        })
    }

    /// Why the active scheduler was not in force until the end, if so.
    pub fn scheduler_lost(&mut self, host: &dyn Host) -> Option<String> {
        let scheduled = self.scheduled.as_mut()?;
        if let Ok(Some(exit)) = scheduled.child.try_wait() {
            return Some(format!("its program ended {}{}", in_words(&exit), said(&scheduled.log)));
        }
        let kernel = Kernel::read(host);
        let lost = kernel.state != Some(State::Enabled);
        lost.then(|| format!("the kernel took it off ({}){}", kernel.loaded(), said(&scheduled.log)))
    }
}

/// Creates a file in memory for its output.
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

/// The end of its output on one line, phrased as the end of a sentence.
fn said(log: &Arc<OwnedFd>) -> String {
    let size = rustix::fs::fstat(log.as_ref()).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let mut bytes = vec![0; SAID];
    let read = rustix::io::pread(log.as_ref(), &mut bytes, size.saturating_sub(SAID as u64)).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..read]);
    let words = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" / ");
    if words.is_empty() { String::new() } else { format!("; it said: {words}") }
}
