//! The error type of the agent.

use commensal_host::HostError;
use commensal_reconcile::ReconcileError;
use commensal_reconcile::groups_file::LoadError;
use std::error::Error;

/// An error that prevents the agent from starting or continuing: a message and its cause. Callers only print the error,
/// so the type has no variants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AgentError {
    message: String,
    source: Option<Box<AgentError>>,
}

impl AgentError {
    pub(crate) fn new(message: impl Into<String>) -> AgentError {
        AgentError { message: message.into(), source: None }
    }

    pub(crate) fn of(message: impl Into<String>, source: &dyn Error) -> AgentError {
        AgentError { message: message.into(), source: Some(Box::new(AgentError::copied(source))) }
    }

    /// Copies the messages of an error and of all its causes.
    fn copied(error: &dyn Error) -> AgentError {
        let source = error.source().map(|source| Box::new(AgentError::copied(source)));
        AgentError { message: error.to_string(), source }
    }
}

impl From<LoadError> for AgentError {
    fn from(error: LoadError) -> AgentError {
        AgentError::copied(&error)
    }
}

impl From<ReconcileError> for AgentError {
    fn from(error: ReconcileError) -> AgentError {
        AgentError::copied(&error)
    }
}

impl From<HostError> for AgentError {
    fn from(error: HostError) -> AgentError {
        AgentError::copied(&error)
    }
}
