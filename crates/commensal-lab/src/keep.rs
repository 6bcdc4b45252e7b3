//! The lab's files in the state directory: named baselines and the history. A named baseline is the record (the file
//! with all results) of a run, stored under a name for later comparisons. The history has one line per finished run.
//!
//! ```text
//! <state directory>/lab/baselines/NAME.json   a record, replaced as a whole
//! <state directory>/lab/history.jsonl         one line per run, synced to disk before the run ends
//! <state directory>/lab/history.1.jsonl       the previous history.jsonl, rotated when full
//! <state directory>/lab/history.lock          locked while a line is appended
//! ```

use crate::error::LabError;
use crate::history::{self, Entry};
use crate::record::Run;
use commensal_host::{Host, HostError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size from which the history file is rotated (bytes); it holds some thousand runs. The lab keeps one rotated file.
pub const HISTORY_BYTES: usize = 4 << 20;
/// How long to wait while another run holds the lock to append its line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a baseline's name (bytes).
const LONGEST_NAME: usize = 64;

fn the_known(names: &[String]) -> String {
    if names.is_empty() {
        "none is saved yet: `commensal lab run --save-baseline NAME` saves one".to_owned()
    } else {
        format!("saved baselines: {}", names.join(", "))
    }
}

fn refused(what: &str, path: &Path) -> impl FnOnce(HostError) -> LabError {
    let what = format!("{what} {} (--state-dir selects another directory)", path.display());
    move |error| LabError::of(what, &error)
}

/// Returns the directory of the named baselines.
pub fn baselines_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/baselines")
}

/// Returns the path of the file of a named baseline.
///
/// # Errors
/// If the name is not allowed.
pub fn baseline_file(state_dir: &Path, name: &str) -> Result<PathBuf, LabError> {
    let plain = |c: char| c.is_ascii_alphanumeric();
    let fine = name.len() <= LONGEST_NAME
        && name.chars().all(|c| plain(c) || matches!(c, '.' | '-' | '_'))
        && name.starts_with(plain);
    if !fine {
        return Err(LabError::new(format!(
            "{name:?} cannot name a baseline: use up to {LONGEST_NAME} letters, digits, dots, dashes and underscores, starting \
             with a letter or a digit"
        )));
    }
    Ok(baselines_dir(state_dir).join(format!("{name}.json")))
}

/// Returns the names of all baselines, sorted.
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

/// Stores a record under a name, and replaces the previous baseline of that name; returns the path of the file.
///
/// # Errors
/// If the name is not allowed or the record cannot be written; the previous baseline of that name is then unchanged.
pub fn save_baseline(
    host: &mut dyn Host,
    state_dir: &Path,
    name: &str,
    run: &Run,
) -> Result<PathBuf, LabError> {
    let file = baseline_file(state_dir, name)?;
    let folder = baselines_dir(state_dir);
    host.state_dir(&folder).map_err(refused("baselines cannot be kept in", &folder))?;
    let text =
        run.to_json().map_err(|error| LabError::of("the record cannot be formatted as JSON", &error))?;
    host.state_replace(&file, &text).map_err(refused("the baseline cannot be written to", &file))?;
    Ok(file)
}

/// Reads the record of a named baseline.
///
/// # Errors
/// If there is no baseline of that name, or its file cannot be read or is not a valid record.
pub fn baseline(host: &mut dyn Host, state_dir: &Path, name: &str) -> Result<Run, LabError> {
    let file = baseline_file(state_dir, name)?;
    let text = host.state_read(&file).map_err(refused("the baseline cannot be read from", &file))?;
    let text = text.ok_or_else(|| unknown(host, state_dir, name))?;
    Run::from_json(text.as_bytes()).map_err(|error| {
        let words = format!(
            "baseline {name:?} is not a valid record; `commensal lab baseline rm {name}` removes it: {}",
            file.display()
        );
        LabError::of(words, &error)
    })
}

fn unknown(host: &dyn Host, state_dir: &Path, name: &str) -> LabError {
    let (folder, known) = (baselines_dir(state_dir), baseline_names(host, state_dir));
    LabError::new(format!("there is no baseline {name:?} in {}; {}", folder.display(), the_known(&known)))
}

/// Removes a named baseline, even if its file is damaged.
///
/// # Errors
/// If there is no baseline of that name, or its file cannot be removed.
pub fn remove_baseline(host: &mut dyn Host, state_dir: &Path, name: &str) -> Result<(), LabError> {
    let file = baseline_file(state_dir, name)?;
    if !baseline_names(host, state_dir).iter().any(|known| known == name) {
        return Err(unknown(host, state_dir, name));
    }
    host.state_remove(&file).map_err(refused("the baseline cannot be removed from", &file))
}

/// Returns the path of the current history file.
pub fn history_file(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/history.jsonl")
}

fn earlier_file(state_dir: &Path) -> PathBuf {
    state_dir.join("lab/history.1.jsonl")
}

/// Appends the line of a finished run to the history; the line is on disk when this function returns.
///
/// # Errors
/// If the line cannot be written, or another run holds the lock for more than 10 s. The history then has no new line.
pub fn remember(host: &mut dyn Host, state_dir: &Path, entry: &Entry) -> Result<(), LabError> {
    let file = history_file(state_dir);
    let folder = state_dir.join("lab");
    host.state_dir(&folder).map_err(refused("the history cannot be kept in", &folder))?;
    let lock = folder.join("history.lock");
    let deadline = Instant::now() + PATIENCE;
    let _held = loop {
        if let Some(held) =
            host.state_lock(&lock).map_err(refused("the history cannot be locked with", &lock))?
        {
            break held;
        }
        if Instant::now() > deadline {
            return Err(LabError::new(format!(
                "another run has held {} for more than 10 s, so this run is not in the history",
                lock.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let before = host
        .state_read(&file)
        .map_err(refused("the history cannot be read from", &file))?
        .unwrap_or_default();
    let line = entry.line();
    let mut line =
        line.map_err(|error| LabError::of("the run has a value that cannot be written as JSON", &error))?;
    if before.len() + line.len() > HISTORY_BYTES && !before.is_empty() {
        let earlier = earlier_file(state_dir);
        host.state_rename(&file, &earlier).map_err(refused("the history cannot be moved to", &earlier))?;
    } else if !before.is_empty() && !before.ends_with('\n') {
        // A previous run was killed while it wrote its line. The newline ends that incomplete line, which readers skip.
        line.insert(0, '\n');
    }
    host.state_append(&file, &line).map_err(refused("the run cannot be added to", &file))
}

/// Reads the runs of both history files, oldest first; also returns a message for each line that is not a valid entry.
///
/// # Errors
/// If a file exists but cannot be read.
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

    /// Formats the error and its causes as the program prints them.
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

    // promise 40
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
        assert!(told.contains("saved baselines: v1.2_x"), "{told}");
    }

    // promise 40
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

    // promise 40
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

    // promise 40
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

    // promise 40
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
        assert!(read.len() == 1 && told[0].contains("the last line is incomplete"), "{told:?}");
        remember(&mut host, dir.path(), &lines[2]).unwrap();
        let (read, told) = remembered(&mut host, dir.path()).unwrap();
        assert_eq!(read, [lines[0].clone(), lines[2].clone()]);
        assert!(told.len() == 1 && told[0].contains("line 2 is skipped"), "{told:?}");
    }

    // promise 40
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

    // promise 40
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
