//! Development tasks that use commensal's crates: generated files, benchmarks, soaks. `cargo xtask gen`, `bench` and
//! `soak` start this program, so that xtask itself is built in seconds.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a development tool works on the source tree directly")]

mod bench;
mod generate;
mod soak;
mod stage;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::tree;

/// Development tasks that use commensal's crates.
#[derive(Debug, Parser)]
struct Devtools {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Write the references of all limits and knobs; with --out the additional files of a package.
    Gen {
        /// Only report whether they are up to date.
        #[arg(long)]
        check: bool,
        /// Write man pages, completions and JSON Schemas into this folder.
        #[arg(long, value_name = "DIR", conflicts_with = "check")]
        out: Option<PathBuf>,
    },
    /// Measure the goals in DESIGN, as ratios within one run.
    Bench {
        /// What to measure [default: everything].
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
    },
    /// Run agents for a long time under everything that may happen to them, and check for leaks. Needs root.
    Soak(soak::Args),
}

/// Exit status of a soak that cannot run on this machine.
const SKIPPED: u8 = xtask::SKIPPED;

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("devtools: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    match Devtools::parse().task {
        Task::Gen { out: Some(out), .. } => generate::package(&out)?,
        Task::Gen { check, .. } => generate::texts(&tree::root(), check)?,
        Task::Bench { parts } => bench::run(&parts)?,
        Task::Soak(args) => {
            if let Some(why) = soak::obstacle() {
                println!("skipped: the soak: {why}");
                return Ok(ExitCode::from(SKIPPED));
            }
            soak::run(&args)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
