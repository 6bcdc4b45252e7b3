//! Outcome of a statement: either the catalogue executed it, perhaps with warnings, or refused it.

use crate::property::{DEFAULT_COMPUTE_GROUP, PropertyError};

/// The reason why a statement is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The statement conflicts with existing definitions.
    #[error("{0}")]
    Refused(String),
    /// The user lacks the privilege (MySQL's error 1227).
    #[error("{0}")]
    Denied(String),
    /// A property of a group is out of its range.
    #[error(transparent)]
    Property(#[from] PropertyError),
}

pub(super) fn refuse<T>(text: impl Into<String>) -> Result<T, CatalogError> {
    Err(CatalogError::Refused(text.into()))
}

/// Result of an executed statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Whether something changed and must be stored.
    pub changed: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Done {
    pub(super) fn nothing() -> Done {
        Done::default()
    }

    pub(super) fn changed() -> Done {
        Done { changed: true, warnings: Vec::new() }
    }
}

/// Returns the message that a group does not exist.
pub(super) fn missing(name: &str, compute_group: Option<&str>) -> String {
    let compute_group = compute_group.unwrap_or(DEFAULT_COMPUTE_GROUP);
    format!("Can not find workload group {name} in compute group {compute_group}.")
}
