//! The error type of this crate.

use commensal_host::HostError;
use commensal_lab::site::TestbedError;
use std::error::Error;

/// An error of this crate: a message, and the message of the cause. The crate has one type for all errors, because
/// callers do not distinguish kinds of errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DensityError {
    message: String,
    source: Option<Box<DensityError>>,
}

impl DensityError {
    pub(crate) fn new(message: impl Into<String>) -> DensityError {
        DensityError { message: message.into(), source: None }
    }

    pub(crate) fn of(message: impl Into<String>, source: &dyn Error) -> DensityError {
        DensityError { message: message.into(), source: Some(Box::new(DensityError::copied(source))) }
    }

    /// Copies the messages of an error and of its causes.
    fn copied(error: &dyn Error) -> DensityError {
        let source = error.source().map(|source| Box::new(DensityError::copied(source)));
        DensityError { message: error.to_string(), source }
    }
}

impl From<HostError> for DensityError {
    fn from(error: HostError) -> DensityError {
        DensityError::copied(&error)
    }
}

impl From<TestbedError> for DensityError {
    fn from(error: TestbedError) -> DensityError {
        DensityError::copied(&error)
    }
}
