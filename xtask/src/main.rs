//! Development tasks: `cargo xtask ci | test | stress | check | tidy | promises | gen | dist | bench | soak | vm`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a development tool works on the source tree directly")]

mod artifact;
mod check;
mod ci;
mod confirm;
mod devtools;
mod dist;
mod features;
mod interrupt;
mod noise;
mod objects;
mod promises;
mod runner;
mod stress;
mod tally;
mod test;
mod tidy;
mod vm;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use tree::root;
use xtask::{SKIPPED, tree};

/// Development tasks.
#[derive(Debug, Parser)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the gate, which every change must pass: format, tidy, generated files, lints, and the deterministic tests.
    Ci {
        /// Also check the oldest compiler and licences, and run all tests and the long ones.
        #[arg(long)]
        long: bool,
    },
    /// Run the deterministic tests of the default members on the running kernel, in some minutes; or another tier.
    Test(test::Args),
    /// Run tests many times, beside work that takes the CPUs away from them.
    Stress(stress::Args),
    /// Check one crate in seconds: format, lints, its tests and those of crates that rely on it.
    Check(check::Args),
    /// Check rules of the tree that the compiler does not check.
    Tidy,
    /// List the promises, and the tests that verify them.
    Promises,
    /// Write the knob reference and the compiled BPF programs; with --out the additional files of a package.
    Gen {
        /// What to write [default: everything; the BPF programs where their compiler is].
        #[arg(value_enum)]
        part: Option<Part>,
        /// Only report whether they are up to date.
        #[arg(long)]
        check: bool,
        /// Write man pages, completions and JSON Schemas into this folder.
        #[arg(long, value_name = "DIR", conflicts_with_all = ["part", "check"])]
        out: Option<PathBuf>,
    },
    /// Make the packages of a release: .deb, .rpm, a static tarball and an image, with checksums and lists of crates. Needs nfpm.
    Dist(dist::Args),
    /// Measure the goals in DESIGN, as ratios within one run; `--help` lists the parts.
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run agents for a long time under everything that may happen to them, and check for leaks; `--help` lists the
    /// options. Needs root.
    #[command(disable_help_flag = true)]
    Soak {
        /// Arguments of the soak.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the kernel tests, or a command, on kernels in virtual machines.
    Vm(vm::Args),
    /// Run one test and end everything that it leaves behind.
    #[command(hide = true)]
    Supervise(runner::supervise::Args),
    /// Take CPU time away from everything else.
    #[command(hide = true)]
    Spin(noise::Spin),
}

/// Parts of the generated files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The compiled BPF programs.
    Bpf,
    /// The references of limits and knobs.
    Texts,
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
        Task::Stress(args) => stress::run(&args)?,
        Task::Check(args) => check::run(&args)?,
        Task::Tidy => {
            let problems = tidy::problems(&root())?;
            if !problems.is_empty() {
                bail!("{}", problems.join("\n"));
            }
        }
        Task::Promises => print!("{}", promises::Promises::read(&root(), &tidy::sources(&root())?)?.list()),
        Task::Gen { out: Some(out), .. } => devtools::run(&["gen", "--out", &out.display().to_string()])?,
        Task::Gen { part, check, .. } => generate(part, check)?,
        Task::Dist(args) => dist::run(&args)?,
        Task::Bench { args } => return started("bench", &args),
        Task::Soak { args } => return started("soak", &args),
        Task::Vm(args) => return vm::run(&args),
        Task::Supervise(args) => return runner::supervise::run(&args),
        Task::Spin(spin) => noise::spin(spin),
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(part: Option<Part>, check: bool) -> anyhow::Result<()> {
    if part != Some(Part::Texts) {
        objects::run(&root(), check, part == Some(Part::Bpf))?;
    }
    match (part, check) {
        (Some(Part::Bpf), _) => Ok(()),
        (_, true) => devtools::run(&["gen", "--check"]),
        (_, false) => devtools::run(&["gen"]),
    }
}

/// Runs a task of devtools with these arguments, and passes its exit status on.
fn started(task: &str, args: &[String]) -> anyhow::Result<ExitCode> {
    let args: Vec<&str> = [task].into_iter().chain(args.iter().map(String::as_str)).collect();
    let status = devtools::status(&args)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;
    use commensal_testkit::docs::{Document, Origin, arguments, documents};

    #[test]
    fn every_task_in_the_documents_is_one() {
        let (mut tasks, mut wrong) = (0, Vec::new());
        for line in documents().iter().flat_map(Document::command_lines) {
            for words in line.commands.iter().filter_map(|command| arguments("xtask", command)) {
                tasks += 1;
                match Xtask::try_parse_from([&["xtask".to_owned()], words].concat()) {
                    // Text names tasks without all of their arguments.
                    Err(error)
                        if line.origin == Origin::Text
                            && error.kind() == ErrorKind::MissingRequiredArgument => {}
                    Err(error) => wrong.push(format!("{line}\n{error}")),
                    Ok(_) => {}
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tasks >= 40, "the documents have more: {tasks}");
    }
}
