//! Development tasks: `cargo xtask ci | test | check | tidy | promises | gen | bench | soak | vm`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a development tool works on the source tree directly")]

mod artifact;
mod bench;
mod check;
mod ci;
mod features;
mod generate;
mod interrupt;
mod objects;
mod promises;
mod runner;
mod soak;
mod stage;
mod tally;
mod test;
mod tidy;
mod vm;

use anyhow::bail;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Development tasks.
#[derive(Debug, Parser)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything that must hold before a change lands: format, lints, tidy, generated files, `test --all`.
    Ci {
        /// The long runs as well: many property cases, a whole quickstart.
        #[arg(long)]
        long: bool,
    },
    /// Run the tests of the default members on the running kernel, in some minutes; or all that there are.
    Test(test::Args),
    /// Check one crate in seconds: format, lints, its tests and those of others that rely on it.
    Check(check::Args),
    /// Rules of the tree that no compiler checks.
    Tidy,
    /// List what is promised, and the tests that hold it.
    Promises,
    /// Write the knob reference and the compiled BPF programs; with --out what a package has beside the program.
    Gen {
        /// What to write [default: everything; the BPF programs where their compiler is].
        #[arg(value_enum)]
        part: Option<generate::Part>,
        /// Only say whether they are up to date.
        #[arg(long)]
        check: bool,
        /// Write man pages, completions and JSON Schemas into this folder.
        #[arg(long, value_name = "DIR", conflicts_with_all = ["part", "check"])]
        out: Option<PathBuf>,
    },
    /// Measure what DESIGN promises, as ratios within one run.
    Bench {
        /// What to measure [default: everything].
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
    },
    /// Run agents for long under everything that may happen to them, and look what they lose. Needs root.
    Soak(soak::Args),
    /// Run the kernel tests, or a command, on kernels in virtual machines.
    Vm(vm::Args),
}

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    match Xtask::parse().task {
        Task::Ci { long } => ci::run(long)?,
        Task::Test(args) => test::run(&args)?,
        Task::Check(args) => check::run(&args)?,
        Task::Tidy => {
            let problems = tidy::problems(&root())?;
            if !problems.is_empty() {
                bail!("{}", problems.join("\n"));
            }
        }
        Task::Promises => print!("{}", promises::Promises::read(&root(), &tidy::sources(&root())?)?.list()),
        Task::Gen { out: Some(out), .. } => generate::package(&out)?,
        Task::Gen { part, check, .. } => generate::run(&root(), part, check)?,
        Task::Bench { parts } => bench::run(&parts)?,
        Task::Soak(args) => soak::run(&args)?,
        Task::Vm(args) => return vm::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Cargo as a person's shell starts it. `cargo run` has told this program which package it is, and build scripts look at
/// that (ring's asks to be run again when it changes): after it everything above ring would be built anew, in each clone.
fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "OUT_DIR" {
            command.env_remove(&name);
        }
    }
    command
}

/// The top of the source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}
