//! The error type of a run.

use crate::error::LabError;
use crate::loadgen::LoadError;
use crate::site::TestbedError;

/// The reason why a run failed or stopped early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The service did not start, or did not respond as expected.
    #[error("the online service did not start: {0}")]
    Service(String),
    /// A command of the experiment failed.
    #[error("{command:?} exited with status {status}{said}")]
    Command {
        /// The command line.
        command: String,
        /// Exit status of the command.
        status: i32,
        /// The last part of the command's output.
        said: String,
    },
    /// Any other error.
    #[error(transparent)]
    Other(LabError),
}

impl RunError {
    pub(super) fn new(message: impl Into<String>) -> RunError {
        RunError::Other(LabError::new(message))
    }

    /// Returns the error for a run that the user stopped.
    pub(super) fn stopped() -> RunError {
        RunError::new("the run was stopped before its end")
    }

    pub(super) fn load(error: LoadError) -> RunError {
        match error {
            LoadError::Stopped => RunError::stopped(),
            other => RunError::Other(LabError::of("the load generator failed", &other)),
        }
    }

    pub(super) fn counter(error: std::io::Error) -> RunError {
        RunError::Other(LabError::of("the amount of offline work cannot be read", &error))
    }

    pub(super) fn latencies(error: LabError) -> RunError {
        RunError::Other(LabError::of("the latencies cannot be recorded", &error))
    }

    pub(super) fn port(port: u16, error: std::io::Error) -> RunError {
        let words = format!(
            "cannot listen on port {port} of 127.0.0.1, which may be in use: stop its owner, or choose another port (0 selects \
             any free port)"
        );
        RunError::Other(LabError::of(words, &error))
    }
}

impl From<TestbedError> for RunError {
    fn from(error: TestbedError) -> RunError {
        RunError::Other(LabError::copied(&error))
    }
}

impl From<commensal_host::HostError> for RunError {
    fn from(error: commensal_host::HostError) -> RunError {
        RunError::Other(error.into())
    }
}
