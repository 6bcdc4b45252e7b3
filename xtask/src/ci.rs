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
    generate::package(tempfile::tempdir()?.path())?;
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

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let status = crate::cargo().args(args).current_dir(root()).status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
