//! The tests, in two tiers. The first tier runs the deterministic tests of the default members on the running kernel, in
//! minutes, and needs only cargo. The second tier runs all tests, including those that measure time or shares of a CPU and
//! those that need the SQL engine, a browser, containers, the scheduler's programs and kernels in virtual machines.

use crate::tally::{Tally, running_release};
use crate::tree::{SQL, root, step};
use crate::{artifact, features, runner, soak, vm};
use anyhow::{Context, bail};
use std::process::Stdio;
use std::time::Instant;

/// Run the deterministic tests of the default members on the running kernel, in some minutes; or all tests.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run all tests: also those that measure, those of the SQL engine and of xtask, a browser, containers, and kernels
    /// in virtual machines.
    #[arg(long)]
    all: bool,
    /// Run only tests whose names contain one of these; with --all, tests in virtual machines are skipped.
    filters: Vec<String>,
}

/// Tests that run only with `--all`.
const LEFT_OUT: [&str; 2] = [
    "tests of commensal-sql and xtask: they run only with `cargo xtask test --all` (building commensal-sql takes a long time)",
    "kernel tests in VMs: they run only with `cargo xtask test --all`",
];

/// Runs the tests of `commensal-host` again, through the layer that injects faults in the chaos soak.
const WITH_FAULTS: [&str; 4] =
    ["--package", "commensal-host", "--features", "commensal-host/faults,commensal-host/fake"];
/// The first command in README.
const QUICKSTART: &str = "cargo run --release -- lab run quickstart";

/// `cargo xtask test`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let tally = match (args.all, args.filters.is_empty()) {
        (true, true) => everything(false)?,
        (true, false) => of_all_packages(false, &args.filters)?,
        (false, _) => quick(&args.filters)?,
    };
    tally.print(started);
    if tally.failed > 0 {
        bail!("{} failed", tally.failed);
    }
    Ok(())
}

/// Enables the fake host, which only tests need.
const FAKE: [&str; 2] = ["--features", "commensal-host/fake"];

/// Runs the deterministic tests of the default members, which are those of the gate.
pub fn quick(filters: &[String]) -> anyhow::Result<Tally> {
    step("tests of the default members");
    let programs = artifact::tests(&FAKE)?;
    let tally = runner::run(&programs, "default", filters, &[])?;
    let mut tally = tally.on(&here(), None);
    if filters.is_empty() {
        LEFT_OUT.iter().for_each(|what| tally.skip((*what).to_owned()));
    }
    Ok(tally)
}

/// Runs all tests; with `long` also those that take long.
pub fn everything(long: bool) -> anyhow::Result<Tally> {
    let mut tally = of_all_packages(long, &[])?;
    step("`cargo run` starts the program commensal");
    runs_the_program()?;
    step("a minute of chaos");
    soaked(&mut tally, "the chaos soak", &soak::Args::short_chaos());
    step("kernels");
    tally.add(vm::kernels(long)?);
    if long {
        step("a soak of the agent");
        soaked(&mut tally, "the soak of the agent", &soak::Args::of_ci());
        step("a soak with chaos");
        soaked(&mut tally, "the chaos soak", &soak::Args::chaos_of_ci());
        step("a whole quickstart");
        tally.long_run(quickstart()?);
    }
    Ok(tally)
}

fn of_all_packages(long: bool, filters: &[String]) -> anyhow::Result<Tally> {
    let others =
        [&["--workspace", "--exclude", SQL], &features::OF_TESTS[..], features::without_scheduler()].concat();
    let (profile, variables): (_, &[_]) = if long { ("long", &LONG) } else { ("all", &[]) };
    let mut tally = Tally::default();
    let all: [(_, &[_]); 3] = [
        ("tests", &others),
        ("tests of the SQL engine", &["--package", SQL]),
        ("tests of the host with its fault layer", &WITH_FAULTS),
    ];
    for (what, which) in all {
        step(what);
        tally.add(runner::run(&artifact::tests(which)?, profile, filters, variables)?);
    }
    Ok(tally.on(&here(), None))
}

/// Environment variables with which the long tier makes tests do more.
const LONG: [(&str, &str); 4] = [
    ("PROPTEST_CASES", "2000"),
    ("COMMENSAL_SCENARIOS", "6x2"),
    ("COMMENSAL_KILL_ROUNDS", "200"),
    ("COMMENSAL_MOTO", "1"),
];

fn here() -> String {
    format!("machine {}", running_release())
}

fn soaked(tally: &mut Tally, what: &str, args: &soak::Args) {
    if let Some(why) = soak::obstacle() {
        return tally.skip(format!("{what}: {why}"));
    }
    let done = soak::run(args);
    if let Err(error) = &done {
        println!("{error:#}");
    }
    tally.long_run(done.ok().map(|()| 0));
}

/// Checks the command that README recommends first, `cargo run` at the top of the tree. The default members contain a
/// second program, so cargo needs a manifest entry to choose one. The command enables the same features as the tests,
/// so that cargo rebuilds as few dependencies as possible.
fn runs_the_program() -> anyhow::Result<()> {
    let mut command = crate::tree::cargo();
    command.args(["run", "--quiet"]).args(features::OF_TESTS).args(["--", "--version"]);
    let output = command.current_dir(root()).stderr(Stdio::inherit()).output().context("cargo run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted = concat!("commensal ", env!("CARGO_PKG_VERSION"), "\n");
    if !output.status.success() || said != wanted {
        bail!("`cargo run -- --version` at the top of the tree prints {said:?} instead of {wanted:?}");
    }
    print!("{said}");
    Ok(())
}

/// Runs README's first command, with more rounds and another record file, so that a user's record is kept.
fn quickstart() -> anyhow::Result<Option<i32>> {
    let mut command = crate::tree::cargo();
    command.args(QUICKSTART.split(' ').skip(1));
    command.args(["--rounds", "12", "--out"]).arg(root().join("target/run.json"));
    Ok(command.current_dir(root()).status()?.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickstart_is_the_one_that_readme_tells() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.lines().any(|line| line.starts_with(&format!("$ {QUICKSTART} "))));
        assert!(QUICKSTART.starts_with("cargo "));
    }
}
