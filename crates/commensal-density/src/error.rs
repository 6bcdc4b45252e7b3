//! Why something of density could not be done.

use commensal_host::HostError;
use commensal_lab::site::TestbedError;
use std::error::Error;

/// Why something of density could not be done: a sentence, and the one below it. Nobody acts on which reason it is, so
/// whoever finds one says it.
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

    /// The same sentences.
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
