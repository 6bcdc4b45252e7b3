//! `commensal` with injected faults (feature `faults`), for the chaos soak test. This program has a different name, so
//! that it cannot be confused with the `commensal` that ships.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    commensal::cli::main()
}
