//! Why something of the lab could not be done.

use commensal_host::HostError;
use commensal_reconcile::ReconcileError;
use std::error::Error;

/// Why something of the lab could not be done: a sentence, and the one below it. Nobody acts on which reason it is, so
/// whoever finds one says it; where somebody does, there is an enum.
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

    /// The same sentences.
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
