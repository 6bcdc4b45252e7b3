//! `commensal` with injected faults (feature `faults`), which the chaos soak runs. It has another name than the program that ships, so
//! that neither is ever taken for the other.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    commensal::cli::main()
}
