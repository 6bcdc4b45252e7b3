//! The error type of the testbed, that is, of the part of a run that creates and changes cgroups.

use super::guard::at_work;
use crate::error::LabError;
use commensal_host::{Host, HostError};
use commensal_reconcile::{Failure, ReconcileError};
use commensal_sensors::SensorError;
use std::path::Path;

/// An error that prevents a run or ends it early.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The sched_ext scheduler that an arm (a condition of the run) needs is not loaded.
    #[error("the scheduler of the arm is not in force: {0}")]
    Scheduler(String),
    /// Any other error.
    #[error(transparent)]
    Other(LabError),
}

impl TestbedError {
    pub(super) fn new(message: impl Into<String>) -> TestbedError {
        TestbedError::Other(LabError::new(message))
    }

    /// Returns the error for a lock of this state directory that another run holds, because two simultaneous runs would
    /// disturb each other, or that the guard of an earlier run holds while it cleans up.
    #[must_use]
    pub fn busy(host: &mut dyn Host, lock: &Path) -> TestbedError {
        let (guard, lock) = (at_work(host, lock.parent().unwrap_or(lock)), lock.display());
        TestbedError::new(match guard {
            Some(pid) => format!(
                "the guard of an earlier lab run is still cleaning up (process {pid} holds {lock}); it ends within a \
                 minute: wait for it"
            ),
            None => format!(
                "another lab run is using this machine (it holds {lock}); two runs would disturb each other's measurements: wait for it"
            ),
        })
    }

    /// Returns the error for a change that the kernel refused.
    #[must_use]
    pub fn refused(failure: &Failure) -> TestbedError {
        let left = match failure.left.is_empty() {
            true => "all earlier steps were undone".to_owned(),
            false => format!("these changes could not be undone: {}", failure.left.join("; ")),
        };
        TestbedError::new(format!(
            "step {} was refused: {}\n  {}\n  {left}",
            failure.step + 1,
            failure.description,
            failure.refusal
        ))
    }

    /// Returns the error for cgroups of the run that could not be planned, which is a bug.
    #[must_use]
    pub fn plan(why: String) -> TestbedError {
        TestbedError::new(format!("the cgroups of the run cannot be planned: {why}"))
    }
}

impl From<ReconcileError> for TestbedError {
    fn from(error: ReconcileError) -> TestbedError {
        TestbedError::Other(error.into())
    }
}

impl From<HostError> for TestbedError {
    fn from(error: HostError) -> TestbedError {
        TestbedError::Other(error.into())
    }
}

impl From<SensorError> for TestbedError {
    fn from(error: SensorError) -> TestbedError {
        // The message has the words of the same error in a plan.
        ReconcileError::from(error).into()
    }
}
