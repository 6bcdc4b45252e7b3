//! Standard output and standard error of the whole program: [`println!`] and the related macros are redefined here.
//!
//! A reader that closes the pipe, as in `commensal queue | head -1`, is no error: the rest is not printed, and the
//! command ends normally, with its own exit status. (The standard macros panic then. Death by SIGPIPE, as in most
//! programs, would leave a half-done `apply` behind, or kill an agent that lost its log reader.) Any other failure,
//! such as a full disk, is reported at the end as trouble. Failures of standard error cannot be reported.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;

static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Writes to standard output.
pub fn out(text: Arguments<'_>) {
    note(|| std::io::stdout().lock().write_fmt(text));
}

/// Writes to standard error.
pub fn err(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Flushes standard output.
pub fn flush() {
    note(|| std::io::stdout().lock().flush());
}

/// Flushes standard output, and returns its first error, unless the reader closed it.
///
/// # Errors
/// The first failure of a write.
pub fn end() -> std::io::Result<()> {
    flush();
    let failed = FAILED.lock().ok().and_then(|mut failed| failed.take());
    match failed.filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Writes, unless an earlier write failed.
fn note(write: impl FnOnce() -> std::io::Result<()>) {
    let Ok(mut failed) = FAILED.lock() else { return };
    if failed.is_none() {
        *failed = write().err();
    }
}

/// Like the standard macro, using [`out`].
macro_rules! print {
    ($($text:tt)*) => { $crate::output::out(format_args!($($text)*)) };
}

/// Like the standard macro, using [`out`].
macro_rules! println {
    () => { $crate::output::out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($text)*))) };
}

/// Like the standard macro, using [`err`].
macro_rules! eprintln {
    () => { $crate::output::err(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::err(format_args!("{}\n", format_args!($($text)*))) };
}

/// Like the standard macro, using [`err`].
macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::err(format_args!($($text)*)) };
}
