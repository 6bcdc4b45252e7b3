//! The one check: what a person runs before a change and what CI runs after it.

use crate::{generate, root, tidy};
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs all steps and closes with `N passed, N failed, N skipped`.
pub fn run(long: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    step("format");
    cargo(&["fmt", "--all", "--check"])?;
    step("lints");
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])?;
    step("tidy");
    let problems = tidy::problems(&root())?;
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    step("generated files");
    generate::run(&root(), true)?;
    step("tests");
    let mut tally = tests(long)?;
    if long {
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

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO")).args(args).current_dir(root()).status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// `test: reason`
    skipped: Vec<String>,
    /// Rows of the conformance script by reason.
    rows: BTreeMap<String, usize>,
}

impl Tally {
    fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result:") {
            let count = |word: &str| {
                let before = rest.split(word).next().unwrap_or_default();
                before
                    .split_whitespace()
                    .next_back()
                    .and_then(|number| number.parse::<usize>().ok())
                    .unwrap_or(0)
            };
            self.passed += count(" passed");
            self.failed += count(" failed");
        } else if let Some(rest) = line.strip_prefix("skipped: ") {
            self.skipped.push(rest.to_owned());
        } else if let Some(rest) = line.strip_prefix("row skipped: ") {
            let reason = rest.rsplit(": ").next().unwrap_or(rest).to_owned();
            *self.rows.entry(reason).or_default() += 1;
        }
    }

    fn long_run(&mut self, status: Option<i32>) {
        // Every verdict is a result; only trouble is a failure.
        match status {
            Some(0 | 1 | 3 | 4) => self.passed += 1,
            _ => self.failed += 1,
        }
    }

    fn print(&self, started: Instant) {
        println!();
        for (reason, count) in &self.rows {
            println!("conformance rows not run on this kernel: {count} ({reason})");
        }
        for skip in &self.skipped {
            println!("skipped: {skip}");
        }
        println!("{} s", started.elapsed().as_secs());
        // A skipped test has returned early, and the harness has counted it as passed.
        let passed = self.passed.saturating_sub(self.skipped.len());
        println!("{passed} passed, {} failed, {} skipped", self.failed, self.skipped.len());
    }
}

/// Runs every test; passes the output on without what passed tests printed, and counts.
fn tests(long: bool) -> anyhow::Result<Tally> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast", "--", "--show-output"]);
    if long {
        command.env("PROPTEST_CASES", "2000");
    }
    let mut child = command.current_dir(root()).stdout(Stdio::piped()).spawn().context("cargo test")?;
    let output = child.stdout.take().context("the output of cargo test")?;
    let mut tally = Tally::default();
    let mut quiet = false;
    for line in BufReader::new(output).lines() {
        let line = line?;
        match line.as_str() {
            "successes:" => quiet = true,
            "failures:" => quiet = false,
            _ => {}
        }
        quiet &= !line.starts_with("test result:");
        tally.line(&line);
        if !quiet {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        // A test binary that did not build or died counts as well.
        tally.failed = 1;
    }
    Ok(tally)
}

fn quickstart() -> anyhow::Result<Option<i32>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--release", "--quiet", "--package", "commensal", "--", "lab", "run", "quickstart"]);
    command.args(["--rounds", "12", "--out"]).arg(root().join("target/run.json"));
    Ok(command.current_dir(root()).status()?.code())
}
