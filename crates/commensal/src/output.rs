//! Standard output and standard error of the whole program: [`println!`] and the related macros are redefined here.
//!
//! A reader that goes away, as in `commensal queue | head -1`, is no trouble: what it does not want is not printed, and the
//! verb ends by itself, with its own exit status. (The standard macros panic there. Death by SIGPIPE, what most programs
//! do, would leave a half-done `apply` behind, or an agent without a log reader dead.) Any other failure, such as a full
//! disk, is told at the end, and is trouble. Standard error has nobody to be told about.
//!
//! Nothing goes out with a character that a terminal obeys or nobody sees ([`printable`]): what a name or an error of somebody
//! else says is text. Only [`paint`] lets our own colours through.

use commensal_core::text::printable;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;

static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Writes to standard output.
pub fn out(text: Arguments<'_>) {
    paint(&printable(&text.to_string()));
}

/// Writes to standard error.
pub fn err(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_all(printable(&text.to_string()).as_bytes());
}

/// Writes to standard output what has control characters of ours, and none of others.
pub fn paint(text: &str) {
    note(|| std::io::stdout().lock().write_all(text.as_bytes()));
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
