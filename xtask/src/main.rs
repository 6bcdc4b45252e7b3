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
mod tree;
mod vm;

use anyhow::bail;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tree::root;

/// Development tasks.
#[derive(Debug, Parser)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the gate, which every change must pass: format, tidy, generated files, lints, `cargo xtask test`.
    Ci {
        /// Also check the oldest compiler and licences, and run all tests and the long ones.
        #[arg(long)]
        long: bool,
    },
    /// Run the deterministic tests of the default members on the running kernel, in some minutes; or all tests.
    Test(test::Args),
    /// Check one crate in seconds: format, lints, its tests and those of crates that rely on it.
    Check(check::Args),
    /// Check the rules of the tree that the compiler does not check.
    Tidy,
    /// List the promises, and the tests that verify them.
    Promises,
    /// Write the knob reference and the compiled BPF programs; with --out, the additional files of a package.
    Gen {
        /// What to write [default: everything; the BPF programs only if their compiler is installed].
        #[arg(value_enum)]
        part: Option<generate::Part>,
        /// Only report whether the files are up to date.
        #[arg(long)]
        check: bool,
        /// Write man pages, completions and JSON Schemas into this folder.
        #[arg(long, value_name = "DIR", conflicts_with_all = ["part", "check"])]
        out: Option<PathBuf>,
    },
    /// Measure the performance, and compare it with its goals, as ratios within one run.
    Bench {
        /// What to measure [default: everything].
        #[arg(value_enum)]
        parts: Vec<bench::Part>,
    },
    /// Run agents for a long time under random events and failures, and check for leaks. Needs root.
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
