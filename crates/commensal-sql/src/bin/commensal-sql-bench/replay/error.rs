//! Errors that stop a replay.

use crate::client::ClientError;
use commensal_host::HostError;
use datafusion::arrow::error::ArrowError;

/// The reason why a replay was stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The server did not start.
    #[error("the server did not start: {0}")]
    Start(String),
    /// A system call failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A client's statement failed.
    #[error("{0}: no answer")]
    Client(String, #[source] ClientError),
    /// The S3 store on loopback failed.
    #[error("cannot listen on loopback for the S3 store")]
    Bucket(#[source] std::io::Error),
    /// The rows of the store could not be generated.
    #[error("cannot create the object of the S3 store")]
    Rows(#[source] ArrowError),
    /// Nothing was read, finished or used during the measurement.
    #[error("{0}: nothing was measured: give more --seconds or fewer rows")]
    Nothing(&'static str),
}
