//! The record of the scheduler's process. It identifies the process even if the process no longer responds.

use commensal_host::Host;
use commensal_reconcile::journal;
use commensal_sensors::machine;
use std::path::{Path, PathBuf};

/// The process that changed the policy of threads since the last boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// PID of the process.
    pub pid: u32,
    /// Whether the process still runs.
    pub runs: bool,
}

/// Path of the record.
pub fn path(state: &Path) -> PathBuf {
    state.join(format!("{}.journal", journal::SCHED))
}

/// Reads the record. `None` when there is no record, or when the record is from an earlier boot, whose threads no
/// longer exist.
pub fn of(host: &mut dyn Host, state: &Path) -> Option<Recorded> {
    let text = journal::load(host, &path(state)).ok().flatten()?;
    let contents = journal::parse(&text);
    let owner = contents.owner()?;
    if owner.boot_id != machine::boot_id(host).unwrap_or_default() {
        return None;
    }
    Some(Recorded { pid: owner.pid, runs: owner.runs(host) })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;
    use commensal_reconcile::journal::{Owner, Record, line};

    /// Records this process as the scheduler's.
    pub fn keep(host: &mut FakeHost, state: &Path, pid: u32, start_ticks: u64) {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let owner = Owner { kind: journal::SCHED.to_owned(), pid, start_ticks, boot_id };
        host.state_dir(state).unwrap();
        let lines = [Record::Owner(owner), Record::Scheduling].map(|record| line(&record)).concat();
        host.state_replace(&path(state), &lines).unwrap();
    }

    #[test]
    fn who_it_was_is_known_until_the_next_boot() {
        let mut host = FakeHost::v2(2, 1 << 30);
        let state = Path::new("/var/lib/commensal");
        assert_eq!(of(&mut host, state), None);
        let pid = host.add_process(&[]);
        let start_ticks = host.process(pid).unwrap().start_ticks;
        keep(&mut host, state, pid, start_ticks);
        assert_eq!(of(&mut host, state), Some(Recorded { pid, runs: true }));
        host.reuse_pid(pid, &[]);
        assert_eq!(of(&mut host, state), Some(Recorded { pid, runs: false }));
        host.set_file("/proc/sys/kernel/random/boot_id", "another\n");
        assert_eq!(of(&mut host, state), None);
    }
}
