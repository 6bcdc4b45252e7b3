//! The `commensal` program: parses the command line, runs the command, and prints the results.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    commensal::cli::main()
}
