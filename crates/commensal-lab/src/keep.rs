//! What the state directory stores of runs: named baselines, each the record of a run, and the history, one line per
//! run.
//!
//! ```text
//! <state directory>/lab/baselines/NAME.json   a record, replaced as a whole
//! <state directory>/lab/history.jsonl         appended to, on the disk before the run ends
//! <state directory>/lab/history.1.jsonl       what history.jsonl was when it reached its size
//! <state directory>/lab/history.lock          held while a line is written
//! ```

use crate::error::LabError;
use crate::history::{self, Entry};
use crate::record::Run;
use commensal_host::{Host, HostError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size at which the history is rotated, bytes: some thousand runs. One older file is kept.
pub const HISTORY_BYTES: usize = 4 << 20;
/// How long to wait for another run that is writing its line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest name of a baseline.
const LONGEST_NAME: usize = 64;

fn the_known(names: &[String]) -> String {
    if names.is_empty() {
        "there are none: --save-baseline NAME of `commensal lab run` makes one".to_owned()
    } else {
        format!("there are {}", names.join(", "))
    }
}

fn refused(what: &str, path: &Path) -> impl FnOnce(HostError) -> LabError {
    let what = format!("{what} {} (--state-dir names another place)", path.display());
    move |error| LabError::of(what, &error)
}

/// The folder of baselines.
pub fn baselines_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/baselines")
}

/// The file of a baseline.
///
/// # Errors
/// When the name is not allowed.
pub fn baseline_file(state_dir: &Path, name: &str) -> Result<PathBuf, LabError> {
    let plain = |c: char| c.is_ascii_alphanumeric();
    let fine = name.len() <= LONGEST_NAME
        && name.chars().all(|c| plain(c) || matches!(c, '.' | '-' | '_'))
        && name.starts_with(plain);
    if !fine {
        return Err(LabError::new(format!(
            "{name:?} cannot name a baseline: up to {LONGEST_NAME} letters, digits, points, dashes and underscores, the first a \
             letter or a digit"
        )));
    }
    Ok(baselines_dir(state_dir).join(format!("{name}.json")))
}

/// Names of the baselines, sorted.
pub fn baseline_names(host: &dyn Host, state_dir: &Path) -> Vec<String> {
    let names = host.list(&baselines_dir(state_dir)).unwrap_or_default();
    let of = |file: &String| {
        let name = file.strip_suffix(".json")?;
        baseline_file(state_dir, name).is_ok().then(|| name.to_owned())
    };
    let mut names: Vec<String> = names.iter().filter_map(of).collect();
    names.sort();
    names
}

/// Stores a record under a name, replacing the previous one; returns the path of its file.
///
/// # Errors
/// When it cannot be written; the previous baseline of that name is then still there.
pub fn save_baseline(
    host: &mut dyn Host,
    state_dir: &Path,
    name: &str,
    run: &Run,
) -> Result<PathBuf, LabError> {
    let file = baseline_file(state_dir, name)?;
    let folder = baselines_dir(state_dir);
    host.state_dir(&folder).map_err(refused("baselines cannot be kept in", &folder))?;
    let text = run.to_json().map_err(|error| LabError::of("the record cannot be written", &error))?;
    host.state_replace(&file, &text).map_err(refused("the baseline cannot be written to", &file))?;
    Ok(file)
}

/// Reads the record stored under a name.
///
/// # Errors
/// When there is none, or it is no record.
pub fn baseline(host: &mut dyn Host, state_dir: &Path, name: &str) -> Result<Run, LabError> {
    let file = baseline_file(state_dir, name)?;
    let text = host.state_read(&file).map_err(refused("the baseline cannot be read from", &file))?;
    let text = text.ok_or_else(|| unknown(host, state_dir, name))?;
    Run::from_json(text.as_bytes()).map_err(|error| {
        let words = format!(
            "baseline {name:?} is not a record, `commensal lab baseline rm {name}` removes it: {}",
            file.display()
        );
        LabError::of(words, &error)
    })
}

fn unknown(host: &dyn Host, state_dir: &Path, name: &str) -> LabError {
    let (folder, known) = (baselines_dir(state_dir), baseline_names(host, state_dir));
    LabError::new(format!("there is no baseline {name:?} in {}; {}", folder.display(), the_known(&known)))
}

/// Removes a baseline, even if its file is damaged.
///
/// # Errors
/// When there is none, or it stays.
pub fn remove_baseline(host: &mut dyn Host, state_dir: &Path, name: &str) -> Result<(), LabError> {
    let file = baseline_file(state_dir, name)?;
    if !baseline_names(host, state_dir).iter().any(|known| known == name) {
        return Err(unknown(host, state_dir, name));
    }
    host.state_remove(&file).map_err(refused("the baseline cannot be removed from", &file))
}

/// The file of the history.
pub fn history_file(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/history.jsonl")
}

fn earlier_file(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/history.1.jsonl")
}

/// Adds a finished run to the history; the line is on the disk when this returns.
///
/// # Errors
/// When it cannot be written; the history is then as it was.
pub fn remember(host: &mut dyn Host, state_dir: &Path, entry: &Entry) -> Result<(), LabError> {
    let file = history_file(state_dir);
    let folder = state_dir.join("lab");
    host.state_dir(&folder).map_err(refused("the history cannot be kept in", &folder))?;
    let lock = folder.join("history.lock");
    let deadline = Instant::now() + PATIENCE;
    let _held = loop {
        if let Some(held) =
            host.state_lock(&lock).map_err(refused("the history cannot be locked by", &lock))?
        {
            break held;
        }
        if Instant::now() > deadline {
            return Err(LabError::new(format!("another run holds {} for more than 10 s", lock.display())));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let before = host
        .state_read(&file)
        .map_err(refused("the history cannot be read from", &file))?
        .unwrap_or_default();
    let line = entry.line();
    let mut line =
        line.map_err(|error| LabError::of("the run has a figure that cannot be written", &error))?;
    if before.len() + line.len() > HISTORY_BYTES && !before.is_empty() {
        let earlier = earlier_file(state_dir);
        host.state_rename(&file, &earlier).map_err(refused("the history cannot be moved to", &earlier))?;
    } else if !before.is_empty() && !before.ends_with('\n') {
        // A previous writer died in the middle of its line: this ends the torn line, which readers skip.
        line.insert(0, '\n');
    }
    host.state_append(&file, &line).map_err(refused("the run cannot be added to", &file))
}

/// All runs in the history, oldest first, and the lines that were skipped, with reasons.
///
/// # Errors
/// When a file exists but cannot be read.
pub fn remembered(host: &mut dyn Host, state_dir: &Path) -> Result<(Vec<Entry>, Vec<String>), LabError> {
    let (mut entries, mut told) = (Vec::new(), Vec::new());
    for file in [earlier_file(state_dir), history_file(state_dir)] {
        let text = host.state_read(&file).map_err(refused("the history cannot be read from", &file))?;
        let (some, complaints) = history::parse(&file.display().to_string(), &text.unwrap_or_default());
        entries.extend(some);
        told.extend(complaints);
    }
    Ok((entries, told))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests damage files, and look at the documents")]
mod tests {
    use super::*;
    use crate::fixture::concluded;
    use crate::history::tests::entry;
    use commensal_host::LinuxHost;

    /// The error with its causes, as it is printed.
    fn said(error: &LabError) -> String {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            text = format!("{text}: {next}");
            cause = next.source();
        }
        text
    }

    fn place() -> (tempfile::TempDir, LinuxHost) {
        (tempfile::tempdir().unwrap(), LinuxHost::new())
    }

    // promise 49
    #[test]
    fn a_baseline_is_kept_replaced_listed_and_removed() {
        let (dir, mut host) = place();
        let state = dir.path().join("state");
        assert!(baseline_names(&host, &state).is_empty());
        let told = said(&baseline(&mut host, &state, "main").unwrap_err());
        assert!(told.contains("there is no baseline \"main\"") && told.contains("--save-baseline"), "{told}");
        let (a, b) = (concluded(6, [0.0, 0.5, 0.0], 0.01), concluded(8, [0.0, 0.5, 0.0], 0.01));
        save_baseline(&mut host, &state, "main", &a).unwrap();
        save_baseline(&mut host, &state, "v1.2_x", &b).unwrap();
        assert_eq!(baseline(&mut host, &state, "main").unwrap(), a);
        save_baseline(&mut host, &state, "main", &b).unwrap();
        assert_eq!(baseline(&mut host, &state, "main").unwrap(), b);
        assert_eq!(baseline_names(&host, &state), ["main", "v1.2_x"]);
        remove_baseline(&mut host, &state, "main").unwrap();
        let told = said(&remove_baseline(&mut host, &state, "main").unwrap_err());
        assert!(told.contains("there are v1.2_x"), "{told}");
    }

    // promise 49
    #[test]
    fn names_stay_in_the_folder() {
        let state = Path::new("/s");
        for fine in ["a", "main", "v1.2.3", "0-x_y", &"x".repeat(64)] {
            assert_eq!(
                baseline_file(state, fine).unwrap(),
                Path::new(&format!("/s/lab/baselines/{fine}.json"))
            );
        }
        for wrong in ["", ".", "..", "../x", "a/b", "a b", "-x", ".x", "é", "a\n", "a\0", &"x".repeat(65)] {
            let refused = baseline_file(state, wrong).unwrap_err().to_string();
            assert!(refused.contains("cannot name a baseline"), "{refused}");
        }
    }

    // promise 49
    #[test]
    fn a_damaged_baseline_is_told_with_the_way_out() {
        let (dir, mut host) = place();
        let file = save_baseline(&mut host, dir.path(), "main", &concluded(6, [0.0; 3], 0.01)).unwrap();
        let text = std::fs::read(&file).unwrap();
        for bad in [&b""[..], b"{}", &text[..text.len() / 2], b"\xff\xfe"] {
            std::fs::write(&file, bad).unwrap();
            let told = said(&baseline(&mut host, dir.path(), "main").unwrap_err());
            assert!(told.contains("main.json") && told.contains("lab baseline rm main"), "{told}");
        }
        remove_baseline(&mut host, dir.path(), "main").unwrap();
    }

    // promise 49
    #[test]
    fn a_full_disk_leaves_what_was_there() {
        let state = Path::new("/var/lib/commensal");
        let mut host = commensal_host::fake::FakeHost::v2(2, 8 << 30);
        let run = concluded(6, [0.0; 3], 0.01);
        save_baseline(&mut host, state, "main", &run).unwrap();
        remember(&mut host, state, &entry(1, "0.1.0", 0.0)).unwrap();
        host.state_full(true);
        let told = said(&save_baseline(&mut host, state, "main", &concluded(8, [0.0; 3], 0.01)).unwrap_err());
        assert!(
            told.contains("main.json") && told.contains("no space left") && told.contains("--state-dir"),
            "{told}"
        );
        let told = said(&remember(&mut host, state, &entry(2, "0.1.0", 0.0)).unwrap_err());
        assert!(told.contains("history") && told.contains("no space left"), "{told}");
        host.state_full(false);
        assert_eq!(baseline(&mut host, state, "main").unwrap(), run);
        assert_eq!(remembered(&mut host, state).unwrap().0.len(), 1);
    }

    // promise 49
    #[test]
    fn a_torn_line_is_left_out_and_the_next_one_is_whole() {
        let (dir, mut host) = place();
        let lines = [1, 2, 3].map(|day| entry(day, "0.1.0", 0.0));
        remember(&mut host, dir.path(), &lines[0]).unwrap();
        let file = history_file(dir.path());
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str(&lines[1].line().unwrap()[..200]);
        std::fs::write(&file, &text).unwrap();
        let (read, told) = remembered(&mut host, dir.path()).unwrap();
        assert!(read.len() == 1 && told[0].contains("not written to its end"), "{told:?}");
        remember(&mut host, dir.path(), &lines[2]).unwrap();
        let (read, told) = remembered(&mut host, dir.path()).unwrap();
        assert_eq!(read, [lines[0].clone(), lines[2].clone()]);
        assert!(told.len() == 1 && told[0].contains("line 2 is left out"), "{told:?}");
    }

    // promise 49
    #[test]
    fn many_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let state = dir.path();
                scope.spawn(move || {
                    for _ in 0..8 {
                        remember(&mut LinuxHost::new(), state, &entry(writer + 1, "0.1.0", 0.0)).unwrap();
                    }
                });
            }
        });
        let (read, told) = remembered(&mut LinuxHost::new(), dir.path()).unwrap();
        assert_eq!((read.len(), told), (32, Vec::new()));
    }

    // promise 49
    #[test]
    fn the_history_is_bounded_and_keeps_the_part_before() {
        let (dir, mut host) = place();
        let one = entry(1, "0.1.0", 0.0);
        remember(&mut host, dir.path(), &one).unwrap();
        let line = one.line().unwrap();
        let fits = HISTORY_BYTES / line.len();
        std::fs::write(history_file(dir.path()), line.repeat(fits)).unwrap();
        remember(&mut host, dir.path(), &entry(2, "0.1.0", 0.0)).unwrap();
        let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len() as usize);
        assert!(size(history_file(dir.path())) < 2 * line.len() + 64);
        assert!(size(earlier_file(dir.path())) <= HISTORY_BYTES);
        assert_eq!(remembered(&mut host, dir.path()).unwrap().0.len(), fits + 1);
    }
}
