//! Why a run ends early.

use crate::error::LabError;
use crate::loadgen::LoadError;
use crate::site::TestbedError;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The service did not become ready.
    #[error("the online service did not start: {0}")]
    Service(String),
    /// A command of the experiment failed.
    #[error("{command:?} ended with status {status}{said}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: i32,
        /// The end of its output.
        said: String,
    },
    /// Anything else.
    #[error(transparent)]
    Other(LabError),
}

impl RunError {
    pub(super) fn new(message: impl Into<String>) -> RunError {
        RunError::Other(LabError::new(message))
    }

    /// The user asked to stop.
    pub(super) fn stopped() -> RunError {
        RunError::new("stopped before the end")
    }

    pub(super) fn load(error: LoadError) -> RunError {
        match error {
            LoadError::Stopped => RunError::stopped(),
            other => RunError::Other(LabError::of("the load generator failed", &other)),
        }
    }

    pub(super) fn counter(error: std::io::Error) -> RunError {
        RunError::Other(LabError::of("the offline work cannot be counted", &error))
    }

    pub(super) fn latencies(error: LabError) -> RunError {
        RunError::Other(LabError::of("the latencies cannot be recorded", &error))
    }

    pub(super) fn port(port: u16, error: std::io::Error) -> RunError {
        let words = format!(
            "port {port} on 127.0.0.1 is already in use, or cannot be had: stop its owner, choose another port, or 0 for any \
             free one"
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
