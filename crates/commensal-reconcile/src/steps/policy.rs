//! Scheduling policies of threads. Threads of offline groups are `SCHED_EXT` while commensal's sched_ext scheduler is
//! loaded, and get their original policy back when it is unloaded.
//!
//! The journal has one record per thread whose original policy is not the normal one (`SCHED_OTHER`). One more record
//! says that threads were switched to `SCHED_EXT`: threads that they start later inherit this policy, have no record,
//! and get the normal policy when the scheduler is unloaded.

use super::kind::{Facts, Kind, Rank};
use crate::journal::{Journal, JournalError, Mounts, Policy, Record};
use crate::restore::{Undo, Undone};
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_EXT, SCHED_NORMAL, SCHED_PLAIN, Stat};
use commensal_host::{Host, HostError};
use std::path::Path;

/// A thread's identity and policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadLook {
    /// PID of the parent process.
    pub parent: u32,
    /// Start time in clock ticks since boot; together with the TID it identifies the thread.
    pub start_ticks: u64,
    /// Scheduling policy.
    pub policy: i32,
}

impl ThreadLook {
    /// Whether the scheduler may schedule the thread: it may if the thread has no real-time or deadline policy.
    #[must_use]
    pub fn plain(&self) -> bool {
        self.policy == SCHED_NORMAL || self.policy == SCHED_EXT || SCHED_PLAIN.contains(&self.policy)
    }
}

/// Reads the thread's own `stat`; `None` if the thread does not exist. The `stat` of the process is not read, because
/// the kernel sums over all threads for it, in time proportional to their number.
#[must_use]
pub fn look(host: &dyn Host, tid: u32) -> Option<ThreadLook> {
    parse(&host.read_file(Path::new(&format!("/proc/{tid}/task/{tid}/stat"))).ok()?)
}

fn parse(stat: &str) -> Option<ThreadLook> {
    let stat = Stat::parse(stat)?;
    Some(ThreadLook { parent: stat.parent()?, start_ticks: stat.start_ticks()?, policy: stat.policy()? })
}

/// Journals that threads are about to be switched to `SCHED_EXT`, and the policies of the threads whose policy is not
/// the normal one.
///
/// # Errors
/// Returns an error when the journal cannot be written; then no thread may be switched.
pub fn record(
    host: &mut dyn Host,
    threads: &[(u32, ThreadLook)],
    journal: &mut Journal,
) -> Result<(), JournalError> {
    let own = threads.iter().filter(|(_, look)| look.policy != SCHED_NORMAL).map(|(tid, look)| {
        Record::Policy(Policy { tid: *tid, start_ticks: look.start_ticks, policy: look.policy })
    });
    let wanted = std::iter::once(Record::Scheduling).chain(own);
    let records: Vec<Record> = wanted.filter(|record| !journal.has(record)).collect();
    journal.append(host, &records)
}

/// The record that threads became `SCHED_EXT`. Undoing it gives every `SCHED_EXT` thread the normal policy; journalled
/// threads get their original policy separately, later.
pub(super) struct AllThreads;

impl Kind for AllThreads {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        "threads became SCHED_EXT".to_owned()
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        None
    }

    fn undo(&self, host: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        let mut count = 0;
        for pid in numbers(&host.list(Path::new("/proc"))?) {
            let tasks = host.list(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default();
            for tid in numbers(&tasks) {
                if look(host, tid).is_some_and(|look| look.policy == SCHED_EXT) {
                    count += usize::from(set(host, tid, SCHED_NORMAL)?);
                }
            }
        }
        Ok((count > 0).then(|| format!("{count} threads have their own scheduling policy again")))
    }
}

impl Kind for Policy {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Threads, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("thread {} had scheduling policy {}", self.tid, self.policy)
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let fits = [SCHED_NORMAL, SCHED_EXT].contains(&self.policy) || SCHED_PLAIN.contains(&self.policy);
        (!fits).then(|| format!("commensal never replaces scheduling policy {} of a thread", self.policy))
    }

    fn subject(&self) -> Option<Record> {
        Some(Record::Policy(Policy { policy: 0, ..*self }))
    }

    /// Restores the thread's policy, unless the thread has exited, or has another policy than `SCHED_EXT` or the normal
    /// one by now.
    fn undo(&self, host: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        let Policy { tid, start_ticks, policy } = *self;
        match look(host, tid) {
            Some(now)
                if now.start_ticks == start_ticks && [SCHED_NORMAL, SCHED_EXT].contains(&now.policy) => {}
            _ => return Ok(None),
        }
        let is_set = set(host, tid, policy)?;
        Ok(is_set.then(|| format!("thread {tid} has scheduling policy {policy} again")))
    }
}

/// Sets a thread's policy; returns `false` if the thread has exited.
///
/// # Errors
/// Returns the kernel's error.
pub fn set(host: &mut dyn Host, tid: u32, policy: i32) -> Result<bool, HostError> {
    match host.set_policy(tid, policy) {
        Ok(()) => Ok(true),
        Err(error) if error.errno == Errno::ESRCH => Ok(false),
        Err(error) => Err(error),
    }
}

fn numbers(names: &[String]) -> Vec<u32> {
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_a_thread_is() {
        let middle = "0 ".repeat(17);
        let after = "0 ".repeat(18);
        let stat = format!("12 (a) b c) R 7 {middle}4711 {after}5 0 0\n");
        let look = parse(&stat).unwrap();
        assert_eq!(look, ThreadLook { parent: 7, start_ticks: 4711, policy: 5 });
        assert!(look.plain() && !ThreadLook { policy: 1, ..look }.plain());
        assert_eq!(parse("12 (sh) R 7"), None);
    }
}
