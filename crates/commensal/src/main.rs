//! The `commensal` program: reads the command line, wires sensors, core, drivers and lab together, prints.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    commensal::cli::main()
}
