//! Freezes and thaws groups outside of plans, with a journal record. The scheduler's guard uses this to freeze starving
//! groups.

use crate::hand::is_gone;
use crate::journal::{Journal, JournalError, Original, Record, Target};
use commensal_host::{Host, HostError};
use std::path::Path;

/// The cgroup v2 file that freezes a group; it reads `1` while the group is frozen.
const FILE: &str = "cgroup.freeze";

/// Why a group was not frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// On cgroup v1 the freezer is a separate hierarchy, and the given group is in another one.
    #[error("{0} cannot be frozen: it has no {FILE}")]
    NoFreezer(String),
    /// The journal could not be written, so the group was not frozen.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Journals and freezes the group of this directory. Returns `false` if the group was frozen already: another program
/// froze it and must thaw it. Returns `false` as well if the group does not exist.
///
/// # Errors
/// Returns a [`FreezeError`]; then the group is not frozen.
pub fn freeze(host: &mut dyn Host, path: &str, journal: &mut Journal) -> Result<bool, FreezeError> {
    let group = match host.open(Path::new(path)) {
        Ok(group) => group,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let done = match host.read(group, FILE) {
        Ok(state) if state.trim() == "0" => {
            let record = Record::Original(Original {
                group: Target { mount: path.to_owned(), path: "/".to_owned(), inode: group.inode },
                knob: FILE.to_owned(),
                file: FILE.to_owned(),
                device: None,
                value: "0".to_owned(),
            });
            let kept = if journal.has(&record) { Ok(()) } else { journal.append(host, &[record]) };
            match kept {
                Ok(()) => host.write(group, FILE, "1").map(|()| true).map_err(FreezeError::from),
                Err(error) => Err(error.into()),
            }
        }
        Ok(_) => Ok(false),
        // The file is not there, or the group was removed in between.
        Err(error) if is_gone(&error) => match host.open(Path::new(path)) {
            Ok(again) => {
                host.close(again);
                Err(FreezeError::NoFreezer(path.to_owned()))
            }
            Err(_) => Ok(false),
        },
        Err(error) => Err(error.into()),
    };
    host.close(group);
    done
}

/// Thaws the group of this directory. Does nothing if the group is not frozen or does not exist.
///
/// # Errors
/// Returns the kernel's error.
pub fn thaw(host: &mut dyn Host, path: &str) -> Result<(), HostError> {
    let Ok(group) = host.open(Path::new(path)) else { return Ok(()) };
    let frozen = host.read(group, FILE).is_ok_and(|state| state.trim() == "1");
    let done = if frozen { host.write(group, FILE, "0") } else { Ok(()) };
    host.close(group);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{self, Owner};
    use commensal_host::fake::FakeHost;

    const STATE: &str = "/state";
    const GROUP: &str = "/sys/fs/cgroup/batch";

    fn world() -> (FakeHost, Journal) {
        let mut host = FakeHost::v2(2, 1 << 30);
        let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
        host.mkdir(root, "batch").unwrap();
        let owner = Owner { kind: journal::SCHED.to_owned(), pid: 1, start_ticks: 1, boot_id: String::new() };
        let journal = Journal::open(&mut host, Path::new(STATE), journal::SCHED, owner).unwrap();
        (host, journal)
    }

    fn state(host: &mut FakeHost) -> String {
        let group = host.open(Path::new(GROUP)).unwrap();
        let state = host.read(group, FILE).unwrap();
        host.close(group);
        state.trim().to_owned()
    }

    // promise 54
    #[test]
    fn what_was_frozen_goes_on_and_so_it_does_after_a_crash() {
        let (mut host, mut journal) = world();
        for _ in 0..2 {
            assert!(freeze(&mut host, GROUP, &mut journal).unwrap());
            assert_eq!(state(&mut host), "1");
            // Frozen by another program, so this caller must not thaw it.
            assert!(!freeze(&mut host, GROUP, &mut journal).unwrap());
            thaw(&mut host, GROUP).unwrap();
            thaw(&mut host, GROUP).unwrap();
            assert_eq!(state(&mut host), "0");
        }
        freeze(&mut host, GROUP, &mut journal).unwrap();
        drop(journal);
        let restored = crate::restore_own(&mut host, Path::new(STATE), journal::SCHED).unwrap();
        assert!(restored.failed.is_empty(), "{restored:?}");
        assert_eq!(state(&mut host), "0");
    }

    #[test]
    fn one_that_is_not_there_is_passed_over_and_v1_says_so() {
        let (mut host, mut journal) = world();
        assert!(!freeze(&mut host, "/sys/fs/cgroup/nobody", &mut journal).unwrap());
        thaw(&mut host, "/sys/fs/cgroup/nobody").unwrap();
        let mut old = FakeHost::v1(2, 1 << 30);
        let root = old.open(Path::new("/sys/fs/cgroup/cpu")).unwrap();
        old.mkdir(root, "batch").unwrap();
        let error = freeze(&mut old, "/sys/fs/cgroup/cpu/batch", &mut journal).unwrap_err().to_string();
        assert_eq!(error, "/sys/fs/cgroup/cpu/batch cannot be frozen: it has no cgroup.freeze");
    }

    // promise 54
    #[test]
    fn what_cannot_be_put_on_record_is_not_frozen() {
        let (mut host, mut journal) = world();
        host.state_full(true);
        assert!(matches!(freeze(&mut host, GROUP, &mut journal), Err(FreezeError::Journal(_))));
        host.state_full(false);
        assert_eq!(state(&mut host), "0");
        assert!(freeze(&mut host, GROUP, &mut journal).unwrap());
    }
}
