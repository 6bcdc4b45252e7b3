//! What goes wrong with a statement, by what its user can do about it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Why a statement did not give its result. Texts are for the user and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The statement cannot be read.
    #[error("{0}")]
    Syntax(String),
    /// A table, database or variable that is not there.
    #[error("{0}")]
    Unknown(String),
    /// The user may not.
    #[error("{0}")]
    Denied(String),
    /// A rule of the catalogue: validation, sums, what may not be dropped.
    #[error("{0}")]
    Rule(String),
    /// The group's queue is full.
    #[error("query waiting queue is full, queue length={0}")]
    QueueFull(u32),
    /// Waited too long. The blank at the end is Doris's.
    #[error("query queue timeout, timeout: {} ms ", .0.as_millis())]
    QueueTimeout(Duration),
    /// More slots than the group has.
    #[error(
        "query slot count {asked} should be smaller than workload group's max concurrency {most} and > 0"
    )]
    Slots {
        /// Slots that the session asks for.
        asked: u32,
        /// The group's `max_concurrency`.
        most: u32,
    },
    /// Ended because memory was short, with the numbers.
    #[error("{0}")]
    Memory(String),
    /// Ended by KILL, or because its client went away.
    #[error("query is cancelled")]
    Cancelled,
    /// Ended by a policy.
    #[error("{0}")]
    Policy(String),
    /// Ran longer than its session allows.
    #[error("query timeout, timeout: {} s, set query_timeout to change it", .0.as_secs())]
    Timeout(Duration),
    /// What the engine said.
    #[error("{0}")]
    Engine(String),
    /// Something that this server does not do.
    #[error("{0}")]
    Unsupported(String),
}

impl From<datafusion::error::DataFusionError> for Error {
    fn from(error: datafusion::error::DataFusionError) -> Error {
        use datafusion::error::DataFusionError;
        match error.find_root() {
            DataFusionError::SQL(error, _) => Error::Syntax(error.to_string()),
            DataFusionError::ResourcesExhausted(text) => {
                Error::Memory(text.strip_prefix("Resources exhausted: ").unwrap_or(text).to_owned())
            }
            other => Error::Engine(other.strip_backtrace()),
        }
    }
}

/// A problem with a folder or file, in words.
pub fn cannot(what: &str, path: &Path, error: &dyn fmt::Display) -> Error {
    Error::Engine(format!("cannot {what} {}: {error}", path.display()))
}
