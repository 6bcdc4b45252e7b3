//! The one check: what a person runs before a change and what CI runs after it.

use crate::test::{self, SQL};
use crate::{features, generate, root, tidy};
use anyhow::{Context, bail};
use std::time::Instant;

/// Runs all steps and closes with `N passed, N failed, N skipped`.
pub fn run(long: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    step("format");
    cargo(&["fmt", "--all", "--check"])?;
    step("lints");
    lints(features::of_this_machine())?;
    match features::no_bpf() {
        // The build without it has code of its own, which nothing else here compiles.
        None => lints(&features::WITHOUT_BPF)?,
        Some(why) => println!("without feature bpf, so its tests are skipped: {why}"),
    }
    step("tidy");
    let problems = tidy::problems(&root())?;
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    step("generated files");
    generate::run(&root(), true)?;
    let tally = test::everything(long)?;
    tally.print(started);
    if tally.failed > 0 {
        bail!("{} failed", tally.failed);
    }
    Ok(())
}

pub fn step(name: &str) {
    println!("\n== {name}");
}

fn lints(features: &[&str]) -> anyhow::Result<()> {
    let mut args = vec!["clippy", "--workspace", "--exclude", SQL, "--all-targets"];
    args.extend(features);
    args.extend(["--", "-D", "warnings"]);
    cargo(&args)?;
    cargo(&["clippy", "--package", SQL, "--all-targets", "--", "-D", "warnings"])
}

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let status = crate::cargo().args(args).current_dir(root()).status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
