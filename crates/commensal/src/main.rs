//! The `commensal` program: reads the command line, wires sensors, core, drivers and lab together, prints.

use std::process::ExitCode;

fn main() -> ExitCode {
    commensal::cli::main()
}
