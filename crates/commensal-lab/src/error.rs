//! The error type of the lab.

use commensal_host::HostError;
use commensal_reconcile::ReconcileError;
use std::error::Error;

/// An error of the lab: a message and the chain of its causes. Callers only print this error; an error to which callers
/// react has an enum of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LabError {
    message: String,
    source: Option<Box<LabError>>,
}

impl LabError {
    pub(crate) fn new(message: impl Into<String>) -> LabError {
        LabError { message: message.into(), source: None }
    }

    pub(crate) fn of(message: impl Into<String>, source: &dyn Error) -> LabError {
        LabError { message: message.into(), source: Some(Box::new(LabError::copied(source))) }
    }

    /// Copies the messages of an error and of its causes into a new error.
    pub(crate) fn copied(error: &dyn Error) -> LabError {
        let source = error.source().map(|source| Box::new(LabError::copied(source)));
        LabError { message: error.to_string(), source }
    }
}

impl From<HostError> for LabError {
    fn from(error: HostError) -> LabError {
        LabError::copied(&error)
    }
}

impl From<ReconcileError> for LabError {
    fn from(error: ReconcileError) -> LabError {
        LabError::copied(&error)
    }
}
