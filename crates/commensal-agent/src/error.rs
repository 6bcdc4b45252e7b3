//! Why the agent could not start or continue.

use crate::groups_file::LoadError;
use commensal_host::HostError;
use commensal_reconcile::ReconcileError;
use std::error::Error;

/// Why the agent could not start or continue: a sentence, and the one below it. Nobody acts on which reason it is, so whoever
/// finds one says it.
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

    /// The same sentences.
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
