//! The files of a queue: their paths, their contents, and which of them belong to live jobs.

use super::Job;
use commensal_core::admission::{Hold, Number};
use commensal_core::errno::Errno;
use commensal_core::group::GroupName;
use commensal_host::{Host, HostError, LockFile, SMALL_STATE_FILE_MOST};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of a group's queue in the state directory.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
}

/// Contents of the file `held`.
#[derive(Debug, Serialize, Deserialize)]
struct Closed {
    reason: String,
    since_ns: u64,
    until_ns: u64,
}

impl Folder {
    pub(super) fn of(state_dir: &Path, group: &GroupName) -> Folder {
        Folder { path: state_dir.join("queue").join(group.as_str()) }
    }

    pub(super) fn waiting(&self) -> PathBuf {
        self.path.join("waiting")
    }

    pub(super) fn running(&self) -> PathBuf {
        self.path.join("running")
    }

    /// Path of the queue's lock. The file is outside the watched directory, so that taking the lock causes no event.
    /// Group names contain no dot, so the file cannot be another queue's directory.
    pub(super) fn mutex(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    pub(super) fn held_file(&self) -> PathBuf {
        self.path.join("held")
    }

    pub(super) fn make(&self, host: &mut dyn Host) -> Result<(), HostError> {
        host.state_dir(&self.waiting())?;
        host.state_dir(&self.running())
    }

    /// Returns the numbers of the files in a directory, ascending. Other files are ignored; a missing directory counts
    /// as empty.
    pub(super) fn numbers(&self, host: &dyn Host, folder: &Path) -> Result<Vec<Number>, HostError> {
        match host.list(folder) {
            Ok(names) => Ok(names.iter().filter_map(|name| Number::parse(name)).collect()),
            Err(error) if error.errno == Errno::ENOENT => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the numbers of the files whose lock is held, ascending.
    pub(super) fn living(&self, host: &dyn Host, folder: &Path) -> Result<Vec<Number>, HostError> {
        let mut living = Vec::new();
        for number in self.numbers(host, folder)? {
            if is_alive(host, folder, number)? {
                living.push(number);
            }
        }
        Ok(living)
    }

    /// Returns the live jobs of a directory, with their details.
    pub(super) fn jobs(&self, host: &mut dyn Host, folder: &Path) -> Result<Vec<Job>, HostError> {
        let living = self.living(host, folder)?;
        let read = |number: Number| {
            let text = host.state_read_within(&folder.join(number.to_string()), SMALL_STATE_FILE_MOST);
            Job::parse(number, &text.ok().flatten().unwrap_or_default())
        };
        Ok(living.into_iter().map(read).collect())
    }

    /// Returns the hold in the file `held`, expired or not. Invalid contents are ignored, because they must not close a
    /// queue forever.
    pub(super) fn hold(&self, host: &mut dyn Host) -> Result<Option<Hold>, HostError> {
        let text = host.state_read_within(&self.held_file(), SMALL_STATE_FILE_MOST)?;
        let closed: Option<Closed> = text.and_then(|text| serde_json::from_str(&text).ok());
        Ok(closed.map(|closed| Hold {
            reason: closed.reason,
            since_ns: closed.since_ns,
            until_ns: closed.until_ns,
        }))
    }

    /// Returns the reason why the queue is closed now; `None` if it is open.
    pub(super) fn held(&self, host: &mut dyn Host, now_ns: u64) -> Result<Option<String>, HostError> {
        Ok(self.hold(host)?.filter(|hold| hold.left(now_ns).is_some()).map(|hold| hold.reason))
    }

    pub(super) fn write_hold(&self, host: &mut dyn Host, hold: &Hold) -> Result<(), HostError> {
        let closed = Closed { reason: hold.reason.clone(), since_ns: hold.since_ns, until_ns: hold.until_ns };
        host.state_replace(&self.held_file(), &line(&closed))
    }
}

/// Whether a file's lock is held.
pub(super) fn is_alive(host: &dyn Host, folder: &Path, number: Number) -> Result<bool, HostError> {
    Ok(ticket(host, folder, number)?.is_some_and(|file| file.is_held()))
}

/// Opens the file of a number; `None` if it does not exist or is not a regular file.
pub(super) fn ticket(host: &dyn Host, folder: &Path, number: Number) -> Result<Option<LockFile>, HostError> {
    match host.state_lock_file(&folder.join(number.to_string())) {
        Err(error) if error.is_no_file() => Ok(None),
        found => found,
    }
}

impl Job {
    /// Returns the line for the job's file. The file gets one line when it is created, and a second line with the
    /// command's PID when the PID is known.
    pub(super) fn text(&self) -> String {
        line(self)
    }

    /// Parses the last valid line. Without a valid line, only the time of arrival is known, from the file's number.
    fn parse(number: Number, text: &str) -> Job {
        let last = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        last.unwrap_or(Job { arrived_ns: number.0, ..Job::default() })
    }
}

fn line(value: &impl Serialize) -> String {
    // Cannot fail for plain structs of numbers and text.
    commensal_core::text::json(value).unwrap_or_default() + "\n"
}

pub(super) fn now_ns(host: &dyn Host) -> u64 {
    nanos(host.boot_time())
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
