//! Why a run ends early.

use crate::loadgen::LoadError;
use crate::prometheus::QueryError;
use crate::record::HistogramError;
use crate::site::TestbedError;
use crate::tools::ParseError;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The testbed could not be created or kept.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The load could not be generated.
    #[error("the load generator failed")]
    Load(#[source] LoadError),
    /// The service did not become ready.
    #[error("the online service did not start: {0}")]
    Service(String),
    /// The service or offline work that the experiment attaches to does not exist.
    #[error("{0}")]
    Attached(String),
    /// The offline work could not be counted.
    #[error("the offline work cannot be counted")]
    Counter(#[source] std::io::Error),
    /// The port could not be bound.
    #[error(
        "port {port} on 127.0.0.1 is already in use, or cannot be had: stop its owner, choose another port, or 0 for any free one"
    )]
    Port {
        /// The port asked for.
        port: u16,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// A command of the experiment failed.
    #[error("{command:?} ended with status {status}{said}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: i32,
        /// The end of its output.
        said: String,
    },
    /// The latencies of a block cannot be recorded.
    #[error("the latencies cannot be recorded")]
    Latencies(#[from] HistogramError),
    /// The output of a tool could not be parsed.
    #[error("the load tool's output cannot be read")]
    Tool(#[source] ParseError),
    /// A metric cannot be queried, as found out before the first block.
    #[error("metric: {0}")]
    Query(QueryError),
    /// The record to continue belongs to another run.
    #[error("this record cannot be gone on with: {0}")]
    Resume(String),
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

impl From<commensal_host::HostError> for LabError {
    fn from(error: commensal_host::HostError) -> LabError {
        LabError::Testbed(TestbedError::Host(error))
    }
}
