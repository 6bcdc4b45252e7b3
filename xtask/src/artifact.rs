//! The programs that cargo builds for tests, found in the messages that cargo prints.

use crate::tree::root;
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
fn messages_in(tree: &Path, target: Option<&Path>, which: &[&str]) -> anyhow::Result<String> {
    let mut command = crate::tree::cargo();
    command.args(["test", "--no-run"]).args(which).arg("--message-format=json-render-diagnostics");
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let done = command.current_dir(tree).stderr(Stdio::inherit()).output().context("cargo test")?;
    if !done.status.success() {
        bail!("the tests do not build");
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
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
