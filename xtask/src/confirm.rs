//! Gives a name to each failure of a test that is not deterministic: the test is run again on this commit and on its parent,
//! and the counts decide. No rerun turns a failure into a pass.
//!
//! ```text
//! regression      it fails here and not on the parent
//! flaky on both   it fails on both
//! once            it hardly fails again: counted, nothing more
//! machine         the machine gave no CPU time: nothing can be said
//! ```

use crate::artifact::{self, Artifact};
use crate::runner::{self, ledger};
use crate::tally::Tally;
use crate::tree::{self, root};
use anyhow::{Context, bail};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Number of runs on each commit.
const RUNS: usize = 20;
/// Fewest failures of [`RUNS`] that count as failing.
const FAILS: usize = 3;
/// Length of the spin that measures which part of a CPU the machine gives.
const CONTROL: Duration = Duration::from_millis(100);
/// Smallest part of a CPU, as the median of all spins, with which a result counts.
const SHARE: f64 = 0.5;

/// The name of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Regression,
    FlakyOnBoth,
    Once,
    Machine,
}

/// How often a test failed on one commit, and which part of a CPU a spinner got before each run.
#[derive(Debug, Clone, Default)]
struct Runs {
    failed: usize,
    shares: Vec<f64>,
}

impl Runs {
    fn of(program: &Artifact, name: &str) -> anyhow::Result<Runs> {
        let mut runs = Runs::default();
        for _ in 0..RUNS {
            runs.shares.push(share());
            runs.failed += usize::from(runner::once(program, name)?.is_some());
        }
        runs.shares.sort_by(f64::total_cmp);
        Ok(runs)
    }

    /// The median of the shares.
    fn share(&self) -> f64 {
        self.shares.get(self.shares.len() / 2).copied().unwrap_or(1.0)
    }
}

/// Names the failure by the runs on this commit and on its parent; without a parent (a new test) by this commit alone.
fn name(here: &Runs, parent: Option<&Runs>) -> Name {
    let fails = |runs: &Runs| runs.failed >= FAILS;
    if here.share() < SHARE || parent.is_some_and(|runs| runs.share() < SHARE) {
        Name::Machine
    } else if !fails(here) {
        Name::Once
    } else if parent.is_some_and(fails) {
        Name::FlakyOnBoth
    } else {
        Name::Regression
    }
}

/// Runs each failed test again, and prints the names of the failures. `which` are cargo's arguments of the programs. A
/// test for which the machine had no CPU time is no failure any more, but an outcome of its own.
pub fn failures(tally: &mut Tally, programs: &[Artifact], which: &[&str]) -> anyhow::Result<()> {
    if tally.failures().is_empty() {
        return Ok(());
    }
    tree::step(&format!("{RUNS} more runs of each failed test, here and on the parent commit"));
    let parent = Parent::build(which);
    if let Err(error) = &parent {
        println!("the parent commit is not compared: {error:#}");
    }
    let stolen = (Instant::now(), ledger::stolen());
    for title in tally.failures().to_vec() {
        let Some((package, test)) = title.split_once(' ') else { continue };
        let has = |program: &&Artifact| {
            program.package == package
                && runner::names(program).is_ok_and(|names| names.iter().any(|name| name == test))
        };
        let Some(program) = programs.iter().find(has) else { continue };
        let here = Runs::of(program, test)?;
        let before = parent.as_ref().ok().and_then(|parent| parent.programs.iter().find(has));
        let before = before.map(|program| Runs::of(program, test)).transpose()?;
        let told = match name(&here, before.as_ref()) {
            Name::Regression => "regression",
            Name::FlakyOnBoth => "flaky on both",
            Name::Once => "once",
            Name::Machine => {
                tally.undecide(&title);
                "machine gave no CPU"
            }
        };
        let on_parent =
            before.as_ref().map_or("not there".to_owned(), |runs| format!("{} of {RUNS}", runs.failed));
        println!(
            "{told}: {title}: fails here {} of {RUNS}, on the parent {on_parent}; a spinner got {:.0} % of a CPU",
            here.failed,
            here.share() * 100.0
        );
    }
    let per_second = (ledger::stolen() - stolen.1) * 1e3 / stolen.0.elapsed().as_secs_f64();
    println!("the hypervisor took {per_second:.0} ms per second meanwhile");
    Ok(())
}

/// The parent commit's test programs.
struct Parent {
    programs: Vec<Artifact>,
}

impl Parent {
    /// Checks the parent out beside the records, and builds its tests in a target directory of their own: programs of two
    /// commits in one directory would replace each other. With uncommitted changes the parent is the commit itself.
    fn build(which: &[&str]) -> anyhow::Result<Parent> {
        let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        let commit = if changed { "HEAD" } else { "HEAD^" };
        let folder = ledger::folder()?.join("parent");
        let path = folder.display().to_string();
        // It may be another clone's, with the same target directory.
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("remove {path}"))?;
        }
        git(&["worktree", "prune"])?;
        git(&["worktree", "add", "--detach", &path, commit])?;
        let target: PathBuf = ledger::folder()?.join("parent-target");
        let programs = artifact::tests_in(&folder, &target, which);
        let programs = programs.with_context(|| format!("build the tests of {commit}"))?;
        Ok(Parent { programs })
    }
}

fn git(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(args).current_dir(root()).output().context("git")?;
    if !output.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Which part of a CPU a spinner without any limit gets now.
fn share() -> f64 {
    let used = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).map(Duration::from_nanos)
    };
    let (begun, before) = (Instant::now(), used());
    while begun.elapsed() < CONTROL {
        std::hint::spin_loop();
    }
    let (wall, after) = (begun.elapsed(), used());
    let both = before.zip(after);
    both.map_or(1.0, |(before, after)| after.saturating_sub(before).as_secs_f64() / wall.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_decide_the_name() {
        let runs = |failed: usize, share: f64| Runs { failed, shares: vec![share; RUNS] };
        for (here, parent, expected) in [
            (runs(3, 1.0), Some(runs(0, 1.0)), Name::Regression),
            (runs(20, 1.0), Some(runs(2, 1.0)), Name::Regression),
            (runs(20, 1.0), None, Name::Regression),
            (runs(5, 0.9), Some(runs(3, 0.9)), Name::FlakyOnBoth),
            (runs(2, 1.0), Some(runs(0, 1.0)), Name::Once),
            (runs(0, 1.0), Some(runs(9, 1.0)), Name::Once),
            (runs(20, 0.4), Some(runs(0, 1.0)), Name::Machine),
            (runs(20, 1.0), Some(runs(0, 0.4)), Name::Machine),
        ] {
            assert_eq!(name(&here, parent.as_ref()), expected, "{here:?} {parent:?}");
        }
    }
}
