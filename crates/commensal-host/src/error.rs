//! An operation that the system refused.

use commensal_core::errno::Errno;
use commensal_core::spelling;
use commensal_core::text::visible;
use std::path::Path;

/// An operation that the system refused: operation, object, value and error number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {}{}: {errno}{}", visible(.object), with_value(.value), in_words(*.errno))]
pub struct HostError {
    /// The operation: `open`, `read`, `write`, `create`, `remove`, `start`, `signal`, …
    pub operation: &'static str,
    /// The file, group or process.
    pub object: String,
    /// The value to be written, if any.
    pub value: Option<String>,
    /// The kernel's error number.
    pub errno: Errno,
}

impl HostError {
    /// Whether the path of a state file is not a regular file: a directory, a pipe, a link.
    #[must_use]
    pub fn is_no_file(&self) -> bool {
        self.operation == AS_A_FILE
    }

    /// Whether somebody else listens where only this user or root may.
    #[must_use]
    pub fn is_disbelief(&self) -> bool {
        self.operation == BELIEVE
    }
}

fn with_value(value: &Option<String>) -> String {
    value.as_ref().map(|value| format!(" <- \"{}\"", visible(value.trim_end()))).unwrap_or_default()
}

fn in_words(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno.0).to_string();
    format!(" ({})", text.split(" (os error").next().unwrap_or_default().to_lowercase())
}

/// Result of a host operation.
pub type Result<T> = std::result::Result<T, HostError>;

/// Operation named in the error for a file that is not a regular one, or has a second hard link.
pub(crate) const AS_A_FILE: &str = "use as a state file";

/// What refuses an answer of somebody else.
pub(crate) const BELIEVE: &str = "believe";

pub(crate) fn fail(
    operation: &'static str,
    object: String,
    value: Option<&str>,
    errno: rustix::io::Errno,
) -> HostError {
    HostError { operation, object, value: value.map(str::to_owned), errno: Errno(errno.raw_os_error()) }
}

pub(crate) fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: spelling::of_path(path), value: None, errno }
}
