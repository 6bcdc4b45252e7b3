//! The one check: what a person runs before a change and what CI runs after it.

use crate::tally::{Quiet, Tally, running_release};
use crate::{features, generate, root, soak, tidy, vm};
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

/// Runs all steps and closes with `N passed, N failed, N skipped`.
pub fn run(long: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    step("format");
    cargo(&["fmt", "--all", "--check"])?;
    step("lints");
    lints()?;
    step("tidy");
    let problems = tidy::problems(&root())?;
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    step("licences");
    licences()?;
    step("generated files");
    generate::run(&root(), None, true)?;
    step("tests");
    let mut tally = tests(long)?;
    step("`cargo run` is the program");
    runs_the_program()?;
    step("kernels");
    tally.add(vm::kernels(long)?);
    if long {
        step("a soak of the agent");
        soaked(&mut tally);
        step("a whole quickstart");
        tally.long_run(quickstart()?);
    }
    tally.print(started);
    if tally.failed > 0 {
        bail!("{} failed", tally.failed);
    }
    Ok(())
}

fn step(name: &str) {
    println!("\n== {name}");
}

fn lints() -> anyhow::Result<()> {
    let mut args = vec!["clippy", "--workspace", "--exclude", SQL, "--all-targets", "--all-features"];
    args.extend(features::without_scheduler());
    args.extend(["--", "-D", "warnings"]);
    cargo(&args)?;
    cargo(&["clippy", "--package", SQL, "--all-targets", "--", "-D", "warnings"])
}

/// Licences and unwanted packages of everything that is depended on (deny.toml).
fn licences() -> anyhow::Result<()> {
    let there =
        crate::cargo().args(["deny", "--version"]).output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: licences: there is no cargo-deny (cargo install --locked cargo-deny@0.20.2)");
        return Ok(());
    }
    cargo(&["deny", "--log-level", "error", "check", "bans", "licenses", "sources"])
}

/// The SQL engine is built by itself: together with it the other crates would be built with what its dependencies want
/// of theirs, and not as they are shipped.
pub const SQL: &str = "commensal-sql";
/// As README has it.
const QUICKSTART: &str = "cargo run --release -- lab run quickstart";

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let status = crate::cargo().args(args).current_dir(root()).status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// Runs every test; passes the output on without what passed tests printed, and counts.
fn tests(long: bool) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let others = ["--workspace", "--exclude", SQL, "--all-features"];
    tested(&mut tally, [others.as_slice(), features::without_scheduler()].concat().as_slice(), long)?;
    tested(&mut tally, &["--package", SQL], long)?;
    Ok(tally.on(&format!("machine {}", running_release()), None))
}

/// Runs these tests, and those that failed once more by themselves.
fn tested(all: &mut Tally, which: &[&str], long: bool) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    run_tests(&mut tally, which, &["--show-output"], long)?;
    if let Some(names) = tally.wants_again() {
        println!("\nonce more, by themselves: {}", names.join(", "));
        let mut options = vec!["--show-output", "--test-threads=1", "--exact"];
        options.extend(names.iter().map(String::as_str));
        let mut alone = Tally::default();
        run_tests(&mut alone, which, &options, long)?;
        tally.again(&alone);
    }
    all.add(tally);
    Ok(())
}

fn run_tests(tally: &mut Tally, which: &[&str], options: &[&str], long: bool) -> anyhow::Result<()> {
    let mut command = crate::cargo();
    command.args(["test", "--no-fail-fast"]).args(which).arg("--").args(options);
    if long {
        command.env("PROPTEST_CASES", "2000");
        command.env("COMMENSAL_SCENARIOS", "6x2");
        command.env("COMMENSAL_KILL_ROUNDS", "200");
        command.env("COMMENSAL_MOTO", "1");
    }
    let mut child = command.current_dir(root()).stdout(Stdio::piped()).spawn().context("cargo test")?;
    let output = child.stdout.take().context("the output of cargo test")?;
    let mut quiet = Quiet::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        tally.line(&line);
        if quiet.shows(&line) {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        // A test binary that did not build or died counts as well.
        tally.failed += 1;
    }
    Ok(())
}

fn soaked(tally: &mut Tally) {
    if let Some(why) = soak::obstacle() {
        return tally.skip(format!("the soak of the agent: {why}"));
    }
    let done = soak::run(&soak::Args::of_ci());
    if let Err(error) = &done {
        println!("{error:#}");
    }
    tally.long_run(done.ok().map(|()| 0));
}

/// What README tells everybody to begin with `cargo run` at the top of the tree: with a second program among the default
/// members cargo does not know which one is meant, unless a manifest says so. The features
/// are those of the tests; dependencies that tests want otherwise are built once more for it.
fn runs_the_program() -> anyhow::Result<()> {
    let mut command = crate::cargo();
    command.args(["run", "--quiet"]).args(["--all-features", "--", "--version"]);
    let output = command.current_dir(root()).stderr(Stdio::inherit()).output().context("cargo run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted = concat!("commensal ", env!("CARGO_PKG_VERSION"), "\n");
    if !output.status.success() || said != wanted {
        bail!("`cargo run -- --version` at the top of the tree does not say {wanted:?} but {said:?}");
    }
    print!("{said}");
    Ok(())
}

/// README's first command, with more rounds; the record of somebody's own run stays as it is.
fn quickstart() -> anyhow::Result<Option<i32>> {
    let mut command = crate::cargo();
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
