//! Errors of statements, distinguished by what the user can do about them.

use datafusion::arrow::error::ArrowError;
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
    /// There is no such table in `information_schema`.
    SystemTable,
    /// Two columns of a derived table have this name.
    Duplicate,
    /// A subquery has more than one column.
    Columns,
    /// A subquery has more than one row.
    Rows,
    /// Queries of a UNION, EXCEPT or INTERSECT have different numbers of columns.
    Widths,
    /// A function does not take so many arguments.
    Parameters,
    /// There is no prepared statement of this name.
    Handler,
    /// A statement has another number of placeholders than there are values.
    Arguments,
    /// The statement is empty.
    Empty,
    /// There is no such character set.
    Letters,
    /// A variable cannot have this value.
    Value,
    /// A variable cannot be set.
    Fixed,
    /// A table that is to be dropped does not exist.
    Dropped,
    /// A time has no fraction of so many digits.
    Precision,
    /// A text is no JSON document.
    JsonText,
    /// A text is no path into a JSON document.
    JsonPath,
    /// A path stands for several values where one is needed.
    JsonWildcard,
    /// A member of a JSON document has no name.
    JsonKey,
    /// The user whose grants are asked for does not exist.
    Grant,
    /// A column is neither grouped by nor in an aggregate function.
    Ungrouped,
    /// A column stands beside an aggregate function in a query without groups.
    Mixed,
    /// A query without duplicates is sorted by what it does not select.
    Unselected,
    /// A text is no regular expression.
    Pattern,
    /// There is no such collation.
    Collation,
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
    /// A number is beyond the range of its type.
    #[error("{0}")]
    Range(String),
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
        let root = error.find_root();
        let text = root.strip_backtrace();
        if let Some(error) = with_number(&text).or_else(|| of_clauses(&text)) {
            return error;
        }
        match root {
            DataFusionError::SQL(error, _) => Error::Syntax(error.to_string()),
            DataFusionError::ResourcesExhausted(text) => {
                Error::Memory(text.strip_prefix("Resources exhausted: ").unwrap_or(text).to_owned())
            }
            DataFusionError::ArrowError(error, _) if let Some(range) = out_of_range(error) => range,
            DataFusionError::External(error) if let Some(ours) = error.downcast_ref::<Error>() => {
                ours.clone()
            }
            other @ DataFusionError::NotImplemented(_) => Error::Unsupported(other.strip_backtrace()),
            other => Error::Engine(other.strip_backtrace()),
        }
    }
}

/// Returns MySQL's error for a message of the planner that is about the statement's form.
fn with_number(text: &str) -> Option<Error> {
    let part = |from: &str, to: &str| Some(text.split_once(from)?.1.split_once(to)?.0.to_owned());
    let (problem, text) = if text.contains("should only return one column") {
        (Problem::Columns, "Operand should contain 1 column(s)".to_owned())
    } else if text.contains("Scalar subquery returned more than one row") {
        (Problem::Rows, "Subquery returns more than 1 row".to_owned())
    } else if text.contains("queries have different number of columns") {
        (Problem::Widths, "The used SELECT statements have a different number of columns".to_owned())
    } else if text.contains("Projections require unique expression names") {
        let first = part("the expression \"", "\" at position")?;
        let name = first.rsplit(" AS ").next().unwrap_or(&first).rsplit('.').next().unwrap_or(&first);
        (Problem::Duplicate, format!("Duplicate column name '{name}'"))
    } else if let Some(call) = part("given name and argument types '", "(")
        && ["arguments but received", "zero argument", "Incorrect parameter count"]
            .iter()
            .any(|count| text.contains(count))
    {
        (Problem::Parameters, format!("Incorrect parameter count in the call to native function '{call}'"))
    } else if let Some((_, name)) = text.split_once("Schema error: No field named ") {
        // Other clauses are resolved before, by `problems`.
        let end = name.find(". ").or_else(|| name.find(".\n")).unwrap_or(name.len());
        let name = name.get(..end).unwrap_or(name).trim_end_matches('.').replace('"', "");
        (Problem::Column, format!("Unknown column '{name}' in 'order clause'"))
    } else {
        return None;
    };
    Some(Error::Name(problem, text))
}

/// Returns MySQL's error for a message about a clause, or a regular expression.
fn of_clauses(text: &str) -> Option<Error> {
    let part = |from: &str, to: &str| Some(text.split_once(from)?.1.split_once(to)?.0.to_owned());
    let (problem, text) = if text.contains("must be in GROUP BY or an aggregate function") {
        let name = part("column \"", "\" must appear")?;
        (Problem::Ungrouped, format!("'{name}' isn't in GROUP BY"))
    } else if text.contains("For SELECT DISTINCT, ORDER BY expressions ") {
        let name = part("ORDER BY expressions ", " must appear")?;
        let text = format!("'{name}' in ORDER BY is not in SELECT list: this is incompatible with DISTINCT");
        (Problem::Unselected, text)
    } else if let Some(place) = part("Order by column out of bounds, specified: ", ",") {
        (Problem::Column, format!("Unknown column '{place}' in 'order clause'"))
    } else if text.contains("Order by index starts at 1") {
        (Problem::Column, "Unknown column '0' in 'order clause'".to_owned())
    } else if let Some(place) = part("Cannot find column with position ", " in SELECT clause") {
        (Problem::Column, format!("Unknown column '{place}' in 'group statement'"))
    } else if text.contains("Regular expression did not compile") || text.contains("regex parse error:") {
        let why = text.split_once("\nerror: ").and_then(|(_, why)| why.lines().next());
        (Problem::Pattern, format!("Got error '{}' from regexp", why.unwrap_or("pattern is too large")))
    } else {
        let limits = ["LIMIT must be >= 0, '", "OFFSET must be >=0, '"];
        let number = limits.into_iter().find_map(|limit| part(limit, "'"))?;
        return Some(Error::Syntax(format!("You have an error in your SQL syntax near '{number}'")));
    };
    Some(Error::Name(problem, text))
}

/// Returns MySQL's error for a result that is beyond the range of its type.
fn out_of_range(error: &ArrowError) -> Option<Error> {
    let of = |kind: &str, value: &str| Error::Range(format!("{kind} value is out of range in '{value}'"));
    match error {
        ArrowError::ArithmeticOverflow(text) => {
            let value = text.strip_prefix("Overflow happened on: ").unwrap_or(text);
            if let Some(value) = value.strip_prefix("BIGINT UNSIGNED ") {
                return Some(of("BIGINT UNSIGNED", value));
            }
            let are_long = value.split(' ').any(|part| part.len() > 3 && part.parse::<i64>().is_err());
            Some(of(if are_long { "DECIMAL" } else { "BIGINT" }, value))
        }
        ArrowError::InvalidArgumentError(text) => text
            .contains("to store in a Decimal128 of precision")
            .then(|| of("DECIMAL", text.split(' ').next().unwrap_or_default())),
        ArrowError::ComputeError(text) => {
            let (_, value) = text.split_once("Int64Array overflow on ")?;
            Some(of("BIGINT", value))
        }
        _ => None,
    }
}

/// Creates an error about a folder or file, as readable text.
pub fn cannot(what: &str, path: &Path, error: &dyn fmt::Display) -> Error {
    Error::Engine(format!("cannot {what} {}: {error}", path.display()))
}
