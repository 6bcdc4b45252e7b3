//! Limits and options of one statement, from the variables of its session. They are plain values, used by queries and
//! by messages to a worker process.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Limits of one query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryLimits {
    /// Slots that the query takes in the queue.
    pub slots: u32,
    /// The query's own memory limit, in bytes. A query that uses less than this has precedence over other queries.
    pub memory: Option<usize>,
    /// Time limit, if any, from the moment when the query starts to run.
    pub timeout: Option<Duration>,
    /// `max_execution_time`: the time limit, if any, from the query's arrival.
    pub execution: Option<Duration>,
    /// `long_query_time`: from which time on the query is listed as slow; `None` never.
    pub slow_after: Option<Duration>,
}

/// How a statement is planned and run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOptions {
    /// The session's current database.
    pub database: String,
    /// Number of partitions that are processed in parallel.
    pub partitions: usize,
    /// Rows in a batch.
    pub batch_size: usize,
    /// Whether rows are only counted, not returned.
    pub dry_run: bool,
    /// Maximum number of rows of a result whose statement has no LIMIT (`sql_select_limit`).
    pub select_limit: Option<u64>,
}
