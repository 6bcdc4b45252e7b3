//! Why a testbed cannot be built or changed.

use commensal_host::HostError;
use commensal_reconcile::{Failure, ReconcileError};
use commensal_sensors::SensorError;

/// Why a run could not take place or had to end.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// Creating or configuring the run's cgroups failed.
    #[error(transparent)]
    Reconcile(#[from] ReconcileError),
    /// A system call failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A step of the plan was refused.
    #[error("{}", refused(.0))]
    Refused(Box<Failure>),
    /// Two runs at once would measure each other.
    #[error("another lab run is using this machine (it holds {0}); two at once would measure each other")]
    Busy(String),
    /// Two runs with different state directories would disturb each other, too.
    #[error(
        "another lab run is using this machine: process {pid}{command}; two at once would measure each other: wait for it, or \
         end it with kill -INT {pid}"
    )]
    Claimed {
        /// Pid of the other run; 0 when it is in another pid namespace.
        pid: i32,
        /// Its command line in brackets; empty when unknown.
        command: String,
    },
    /// Offline work that already runs must be frozen in some blocks, and cannot be.
    #[error("{0} cannot be frozen for the blocks without offline work: {1}")]
    Pause(String, String),
    /// The guard, which thaws frozen work if this program dies, could not be started.
    #[error("the guard that lets frozen work go on cannot be started: {0}")]
    Guard(String),
    /// The arm's scheduler is not active.
    #[error("the scheduler of the arm is not in force: {0}")]
    Scheduler(String),
    /// Planning our own cgroups failed: a bug.
    #[error("the run's own groups cannot be planned: {0}")]
    Plan(String),
}

impl From<SensorError> for TestbedError {
    fn from(error: SensorError) -> TestbedError {
        TestbedError::Reconcile(error.into())
    }
}

pub(super) fn refused(failure: &Failure) -> String {
    let left = match failure.left.is_empty() {
        true => "everything done before was taken back".to_owned(),
        false => format!("could not be taken back: {}", failure.left.join("; ")),
    };
    format!("step {} was refused: {}\n  {}\n  {left}", failure.step + 1, failure.description, failure.refusal)
}
