//! Why a testbed cannot be built or changed.

use crate::error::LabError;
use commensal_host::HostError;
use commensal_reconcile::{Failure, ReconcileError};
use commensal_sensors::SensorError;

/// Why a run could not take place or had to end.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The arm's scheduler is not active.
    #[error("the scheduler of the arm is not in force: {0}")]
    Scheduler(String),
    /// Anything else.
    #[error(transparent)]
    Other(LabError),
}

impl TestbedError {
    pub(super) fn new(message: impl Into<String>) -> TestbedError {
        TestbedError::Other(LabError::new(message))
    }

    /// Two runs at once would measure each other.
    #[must_use]
    pub fn busy(lock: &std::path::Path) -> TestbedError {
        let lock = lock.display();
        TestbedError::new(format!(
            "another lab run is using this machine (it holds {lock}); two at once would measure each other"
        ))
    }

    /// A step of the plan was refused.
    #[must_use]
    pub fn refused(failure: &Failure) -> TestbedError {
        let left = match failure.left.is_empty() {
            true => "everything done before was taken back".to_owned(),
            false => format!("could not be taken back: {}", failure.left.join("; ")),
        };
        TestbedError::new(format!(
            "step {} was refused: {}\n  {}\n  {left}",
            failure.step + 1,
            failure.description,
            failure.refusal
        ))
    }

    /// Planning our own cgroups failed: a bug.
    #[must_use]
    pub fn plan(why: String) -> TestbedError {
        TestbedError::new(format!("the run's own groups cannot be planned: {why}"))
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
        // As plans say it.
        ReconcileError::from(error).into()
    }
}
