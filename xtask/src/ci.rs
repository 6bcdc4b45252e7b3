//! The complete check, which developers run before a change and CI runs after it.

use crate::tree::{SQL, root, step};
use crate::{artifact, devtools, features, objects, test, tidy};
use anyhow::{Context, bail};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Runs all steps, the quickest first, and finishes with `N passed, N failed, N skipped`. Every step is deterministic. With
/// `long` it also runs the steps that are not, or that need more than every machine has.
pub fn run(long: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    step("format");
    cargo(&["fmt", "--all", "--check"])?;
    step("tidy");
    let problems = tidy::problems(&root())?;
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    objects::run(&root(), true, false)?;
    step("lints");
    lints()?;
    step("generated files");
    devtools::run(&["gen", "--check"])?;
    let package = tempfile::tempdir()?;
    devtools::run(&["gen", "--out", &package.path().display().to_string()])?;
    let tally = if long {
        step("oldest compiler");
        oldest_compiler()?;
        step("licences");
        licences()?;
        test::all_and_long()?
    } else {
        let mut tally = test::gate(&[])?;
        tally.add(test::workspace(&[])?);
        tally
    };
    tally.print(started);
    tally.result()
}

fn lints() -> anyhow::Result<()> {
    let mut args = vec!["clippy", "--workspace", "--exclude", SQL, "--all-targets", "--all-features"];
    args.extend(features::without_scheduler());
    args.extend(["--", "-D", "warnings"]);
    cargo(&args)?;
    artifact::lint_sql()
}

/// Checks the default members with the compiler version of `rust-version`.
fn oldest_compiler() -> anyhow::Result<()> {
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml"))?.parse()?;
    let version = manifest["workspace"]["package"]["rust-version"].as_str().context("no rust-version")?;
    let version = format!("{version}.0");
    let there = Command::new("rustup").args(["run", &version, "cargo", "--version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: oldest compiler: not installed; rustup toolchain install {version} --profile minimal"
        );
        return Ok(());
    }
    // A separate target directory, so that the build of the current compiler is kept.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let status = Command::new("rustup")
        .args(["run", &version, "cargo", "check", "--quiet"])
        .env("CARGO_TARGET_DIR", target.join("oldest"))
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .current_dir(root())
        .status()
        .context("rustup")?;
    if !status.success() {
        bail!("Rust {version}, the rust-version of Cargo.toml, does not compile the default members");
    }
    println!("Rust {version} compiles the default members");
    Ok(())
}

/// Checks licences and banned packages of all dependencies (deny.toml).
fn licences() -> anyhow::Result<()> {
    let there =
        crate::tree::cargo().args(["deny", "--version"]).output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: licences: there is no cargo-deny (cargo install --locked cargo-deny@0.20.2)");
        return Ok(());
    }
    cargo(&["deny", "--log-level", "error", "check", "bans", "licenses", "sources"])
}

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let status = crate::tree::cargo().args(args).current_dir(root()).status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
