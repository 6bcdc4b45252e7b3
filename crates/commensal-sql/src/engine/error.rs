//! Errors of statements, distinguished by what the user can do about them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// There is no such database.
    Database,
    /// There is no such table.
    Table,
    /// There is no such column.
    Column,
    /// Several tables have such a column.
    Ambiguous,
    /// Two tables have this name or alias.
    Alias,
    /// There is no such function.
    Function,
    /// An aggregate function stands where there is no group.
    GroupFunction,
    /// There is no such variable.
    Variable,
    /// There is no such connection.
    Thread,
}

/// The reason why a statement failed. Messages are for the user and contain no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The statement cannot be parsed.
    #[error("{0}")]
    Syntax(String),
    /// A name does not exist, or is used in a wrong way, and MySQL has an error number for that.
    #[error("{1}")]
    Name(Problem, String),
    /// Another object does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The user lacks a privilege.
    #[error("{0}")]
    Denied(String),
    /// A query or connection of another user cannot be killed.
    #[error("You are not owner of thread {0}")]
    NotOwner(String),
    /// The session is read-only, and the statement writes.
    #[error("Cannot execute statement in a READ ONLY transaction.")]
    ReadOnly,
    /// A rule of the catalogue is violated: validation, sums, objects that cannot be dropped.
    #[error("{0}")]
    Rule(String),
    /// The group's queue is full.
    #[error("query waiting queue is full, queue length={0}")]
    QueueFull(u32),
    /// The wait in the queue timed out. The space at the end of the message is in Doris' message, too.
    #[error("query queue timeout, timeout: {} ms ", .0.as_millis())]
    QueueTimeout(Duration),
    /// The session requests more slots than the group has.
    #[error(
        "query slot count {asked} should be smaller than workload group's max concurrency {most} and > 0"
    )]
    Slots {
        /// Slots that the session requests.
        asked: u32,
        /// The group's `max_concurrency`.
        most: u32,
    },
    /// Cancelled because memory was short; the message contains the amounts.
    #[error("{0}")]
    Memory(String),
    /// Cancelled by KILL, or because the client disconnected.
    #[error("query is cancelled")]
    Cancelled,
    /// Cancelled by a policy.
    #[error("{0}")]
    Policy(String),
    /// Cancelled because it ran longer than the session's time limit.
    #[error("query timeout, timeout: {} s, set query_timeout to change it", .0.as_secs())]
    Timeout(Duration),
    /// Cancelled because it took longer than `max_execution_time`.
    #[error("Query execution was interrupted, maximum statement execution time exceeded")]
    ExecutionTime,
    /// An error of the query engine.
    #[error("{0}")]
    Engine(String),
    /// A feature that this server does not support.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// Returns MySQL's error for a database that does not exist.
    #[must_use]
    pub fn unknown_database(name: &str) -> Error {
        Error::Name(Problem::Database, format!("Unknown database '{name}'"))
    }
}

impl From<datafusion::error::DataFusionError> for Error {
    fn from(error: datafusion::error::DataFusionError) -> Error {
        use datafusion::error::DataFusionError;
        match error.find_root() {
            DataFusionError::SQL(error, _) => Error::Syntax(error.to_string()),
            DataFusionError::ResourcesExhausted(text) => {
                Error::Memory(text.strip_prefix("Resources exhausted: ").unwrap_or(text).to_owned())
            }
            other @ DataFusionError::NotImplemented(_) => Error::Unsupported(other.strip_backtrace()),
            other => Error::Engine(other.strip_backtrace()),
        }
    }
}

/// Creates an error about a folder or file, as readable text.
pub fn cannot(what: &str, path: &Path, error: &dyn fmt::Display) -> Error {
    Error::Engine(format!("cannot {what} {}: {error}", path.display()))
}
