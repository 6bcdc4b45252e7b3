//! The record of every test that was run: one line of JSON per test in `target/ci/run.jsonl`, from which rates of failure
//! and times can be computed.

use super::process::Done;
use anyhow::Context;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// The open record.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    commit: String,
}

impl Ledger {
    /// Opens the record in the target directory.
    pub fn open() -> anyhow::Result<Ledger> {
        let path = folder()?.join("run.jsonl");
        let file = File::options().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        Ok(Ledger { file, commit: commit() })
    }

    /// Adds a test. `stolen` is the time that the hypervisor took from all CPUs meanwhile, in s.
    pub fn add(&mut self, title: &str, done: &Done, stolen: f64) -> anyhow::Result<()> {
        let (package, test) = title.split_once(' ').unwrap_or(("", title));
        let line = json!({
            "at": humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            "commit": self.commit, "package": package, "test": test,
            "outcome": done.failure.as_deref().unwrap_or("passed"),
            "wall_s": done.took.as_secs_f64(), "cpu_s": done.cpu_s,
            "steal_s": stolen, "pressure_avg10": pressure(),
        });
        writeln!(self.file, "{line}").context("write the record of tests")
    }
}

/// The folder of the records, in the target directory.
pub fn folder() -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let folder = target.map_or_else(|| crate::tree::root().join("target"), PathBuf::from).join("ci");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// The commit, with `+` if the tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(crate::tree::root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    let clean =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    if clean { head } else { format!("{head}+") }
}

/// Time that the hypervisor has taken from all CPUs since the boot, in s.
pub fn stolen() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    ticks.unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Part of the last ten seconds in which a task waited for a CPU, in percent; `None` if the kernel does not tell.
fn pressure() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    text.lines().next()?.split("avg10=").nth(1)?.split(' ').next()?.parse().ok()
}
