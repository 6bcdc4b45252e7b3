//! Starts `devtools`, the program with the tasks that use commensal's crates.

use crate::tree::{cargo, root};
use anyhow::{Context, bail};
use std::process::ExitStatus;

/// Builds devtools if necessary, runs it with these arguments, and returns its exit status.
pub fn status(args: &[&str]) -> anyhow::Result<ExitStatus> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "devtools", "--"]).args(args).current_dir(root());
    command.status().context("cargo run --package devtools")
}

/// Like [`status`].
///
/// # Errors
/// If devtools fails; it has printed why.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    let status = status(args)?;
    if !status.success() {
        bail!("devtools {} failed", args.join(" "));
    }
    Ok(())
}
