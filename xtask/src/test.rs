//! The tests, by tier: those of the default members that are deterministic, in minutes and with nothing but cargo; or all that
//! there are, with those that measure, the SQL engine, a browser, containers, the scheduler's programs and kernels in virtual
//! machines.

use crate::tally::{Tally, running_release};
use crate::tree::{SQL, root, step};
use crate::{artifact, features, runner, soak, vm};
use anyhow::{Context, bail};
use std::process::Stdio;
use std::time::Instant;

/// Run the deterministic tests of the default members on the running kernel, in some minutes; or all tests.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// All tests: also those that measure, those of the SQL engine and of xtask, a browser, containers, and kernels in virtual machines.
    #[arg(long)]
    all: bool,
    /// Only tests whose names contain one of these; with --all those in virtual machines are skipped.
    filters: Vec<String>,
}

/// Tests that only `--all` runs.
const LEFT_OUT: [&str; 2] = [
    "commensal-sql and xtask: their tests run with `cargo xtask test --all` (DataFusion is built for them)",
    "kernel tests in VMs: they run with `cargo xtask test --all`",
];

/// The host's own tests once more, through the layer that the chaos soak injects faults with.
const WITH_FAULTS: [&str; 4] =
    ["--package", "commensal-host", "--features", "commensal-host/faults,commensal-host/fake"];
/// As in README.
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

/// The fake host, which only tests need. The scheduler's programs are left out, since they need clang.
const FAKE: [&str; 2] = ["--features", "commensal-host/fake"];

/// The deterministic tests of the default members: what the gate runs.
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

/// All tests; with `long` including those that take long.
pub fn everything(long: bool) -> anyhow::Result<Tally> {
    let mut tally = of_all_packages(long, &[])?;
    step("`cargo run` is the program");
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

/// Settings with which the long tier makes tests do more.
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

/// Checks the command that README recommends first, `cargo run` at the top of the tree: with a second program among the
/// default members cargo needs a manifest entry to choose one. The features are those of the tests; dependencies with
/// other features are built once more for it.
fn runs_the_program() -> anyhow::Result<()> {
    let mut command = crate::tree::cargo();
    command.args(["run", "--quiet"]).args(features::OF_TESTS).args(["--", "--version"]);
    let output = command.current_dir(root()).stderr(Stdio::inherit()).output().context("cargo run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted = concat!("commensal ", env!("CARGO_PKG_VERSION"), "\n");
    if !output.status.success() || said != wanted {
        bail!("`cargo run -- --version` at the top of the tree does not say {wanted:?} but {said:?}");
    }
    print!("{said}");
    Ok(())
}

/// README's first command, with more rounds; an existing record of a user is kept.
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
