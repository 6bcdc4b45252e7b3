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
    /// The file, group or process on which the operation failed.
    pub object: String,
    /// The value to be written, if any.
    pub value: Option<String>,
    /// The kernel's error number.
    pub errno: Errno,
}

impl HostError {
    /// Whether the error is that a state file's path leads to something other than a regular file (a directory, a pipe
    /// or a link), or to a file with a second hard link.
    #[must_use]
    pub fn is_no_file(&self) -> bool {
        self.operation == AS_A_FILE
    }

    /// Whether the error is that a socket is not trusted: the process that listens on it may belong to another user, or
    /// its path is a symbolic link.
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

/// The operation named in the error for a state file that is not a regular file, or has a second hard link.
pub(crate) const AS_A_FILE: &str = "use as a state file";

/// The operation named in the error for a socket that is not trusted, because another user may be listening on it.
pub(crate) const BELIEVE: &str = "trust";

pub(crate) fn fail(
    operation: &'static str,
    object: String,
    value: Option<&str>,
    errno: rustix::io::Errno,
) -> HostError {
    HostError { operation, object, value: value.map(str::to_owned), errno: Errno(errno.raw_os_error()) }
}

/// Returns the error for a state file that has more bytes than `most`.
pub(crate) fn too_large(path: &Path, size: u64, most: u64) -> HostError {
    let path = spelling::of_path(path);
    let object = format!("{path}, which has {size} bytes and may have at most {most} (move it away)");
    HostError { operation: "read", object, value: None, errno: Errno::EFBIG }
}

pub(crate) fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: spelling::of_path(path), value: None, errno }
}
