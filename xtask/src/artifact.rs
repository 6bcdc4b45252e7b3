//! The programs that cargo builds for tests, found in the messages that cargo prints.

use crate::tree::{SQL, root};
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A program that cargo built.
#[derive(Debug, Clone)]
pub struct Artifact {
    pub package: String,
    /// Directory of the package.
    pub folder: PathBuf,
    pub kind: String,
    pub name: String,
    pub is_test: bool,
    pub executable: PathBuf,
}

impl Artifact {
    pub fn read(line: &str) -> Option<Artifact> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        // The format of package_id differs between versions of cargo; the folder's name does not.
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Artifact {
            package: folder.file_name()?.to_str()?.to_owned(),
            kind: text(&message["target"]["kind"][0])?,
            name: text(&message["target"]["name"])?,
            is_test: message["profile"]["test"].as_bool()?,
            executable: PathBuf::from(message["executable"].as_str()?),
            folder,
        })
    }
}

/// Builds the tests of the packages that `which` selects (arguments of cargo), and returns cargo's messages.
pub fn messages(which: &[&str]) -> anyhow::Result<String> {
    messages_in(&root(), None, which)
}

/// Like [`messages`], in another tree and with another target directory.
///
/// Clippy compiles the SQL engine: lints by `cargo clippy` would check its many dependencies before tests compile them, so
/// that a build from nothing took half as long again.
fn messages_in(tree: &Path, target: Option<&Path>, which: &[&str]) -> anyhow::Result<String> {
    let mut command = crate::tree::cargo();
    command.args(["test", "--no-run"]).args(which).arg("--message-format=json");
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let clippy = Path::new(env!("CARGO")).with_file_name("clippy-driver");
    let engine = which.windows(2).any(|pair| pair == ["--package", SQL]);
    if engine && clippy.exists() {
        command.env("RUSTC_WORKSPACE_WRAPPER", clippy);
    }
    let done = command.current_dir(tree).stderr(Stdio::inherit()).output().context("cargo test")?;
    let messages = String::from_utf8_lossy(&done.stdout).into_owned();
    for diagnostic in diagnostics(&messages) {
        eprint!("{diagnostic}");
    }
    if !done.status.success() {
        bail!("the tests do not build");
    }
    Ok(messages)
}

/// Builds the tests of the SQL engine and fails on any warning of the compiler or of clippy. Later builds of the same
/// tests find them built.
pub fn lint_sql() -> anyhow::Result<()> {
    if !Path::new(env!("CARGO")).with_file_name("clippy-driver").exists() {
        bail!("clippy is not installed (rustup component add clippy)");
    }
    match diagnostics(&messages(&["--package", SQL])?).count() {
        0 => Ok(()),
        warnings => bail!("{warnings} warnings in {SQL} or in a package of ours that it uses"),
    }
}

/// What the compiler says about the code, as text.
fn diagnostics(messages: &str) -> impl Iterator<Item = String> {
    messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(message["message"]["rendered"].as_str()?.to_owned())
    })
}

/// Like [`messages`], but returns the test programs.
pub fn tests(which: &[&str]) -> anyhow::Result<Vec<Artifact>> {
    Ok(programs(&messages(which)?))
}

/// Like [`tests`], in another tree and with another target directory.
pub fn tests_in(tree: &Path, target: &Path, which: &[&str]) -> anyhow::Result<Vec<Artifact>> {
    Ok(programs(&messages_in(tree, Some(target), which)?))
}

fn programs(messages: &str) -> Vec<Artifact> {
    messages.lines().filter_map(Artifact::read).filter(|one| one.is_test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_from_other_messages() {
        let lines = [
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"a"},"executable":null}"#,
            r#"{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: unused\n"}}"#,
            "no message at all",
            r#"{"reason":"build-finished","success":true}"#,
        ];
        assert_eq!(diagnostics(&lines.join("\n")).collect::<Vec<_>>(), ["warning: unused\n"]);
    }
}
