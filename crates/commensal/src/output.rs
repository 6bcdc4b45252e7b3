//! Standard output and standard error of the whole program: [`println!`] and the related macros are redefined here.
//!
//! If the reader closes the pipe, as in `commensal queue | head -1`, that is not an error: the rest of the output is
//! discarded, and the command still runs to its end and returns its own exit status. (The standard macros would panic.
//! SIGPIPE, which kills most programs in this case, could leave an `apply` half done, or kill an agent whose log reader
//! has exited.) Any other write error, such as a full disk, is reported at the end, and the exit status is then that of
//! an error. Errors on standard error are ignored.
//!
//! Control characters and invisible characters are escaped ([`printable`]), because names and error messages may come
//! from untrusted sources. Only [`paint`] passes this program's own colour codes through.

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

/// Writes `text` to standard output without escaping. Its control characters must be this program's own.
pub fn paint(text: &str) {
    note(|| std::io::stdout().lock().write_all(text.as_bytes()));
}

/// Flushes standard output.
pub fn flush() {
    note(|| std::io::stdout().lock().flush());
}

/// Flushes standard output, and returns the first error of a write to it. A pipe that the reader closed is not an
/// error.
///
/// # Errors
/// The first write failed.
pub fn end() -> std::io::Result<()> {
    flush();
    let failed = FAILED.lock().ok().and_then(|mut failed| failed.take());
    match failed.filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Runs `write` if no earlier write has failed, and stores its error.
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
