//! Policies of threads: those of offline groups are `SCHED_EXT` while the scheduler is loaded, and get their own back.
//!
//! On record are threads whose own policy is not the normal one, and once that any thread was switched at all: what
//! they have started since inherits `SCHED_EXT`, and has the normal policy when all is over.

use crate::journal::{Journal, JournalError, Record};
use commensal_core::errno::Errno;
use commensal_core::process::Stat;
use commensal_host::{Host, HostError};
use std::path::Path;

/// `SCHED_NORMAL` of sched(7).
pub const NORMAL: i32 = 0;
/// `SCHED_EXT`, which rustix and libc do not know yet.
pub const EXT: i32 = 7;
/// `SCHED_BATCH` and `SCHED_IDLE`: those without a priority, besides the normal one.
pub(crate) const PLAIN: [i32; 2] = [3, 5];

/// Who a thread is, and its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadLook {
    /// Process that started it, or its process's.
    pub parent: u32,
    /// Clock ticks since boot: with the number, who it is.
    pub start_ticks: u64,
    /// Its policy.
    pub policy: i32,
}

impl ThreadLook {
    /// Whether the scheduler may have it: not those with a real-time or deadline policy.
    #[must_use]
    pub fn plain(&self) -> bool {
        self.policy == NORMAL || self.policy == EXT || PLAIN.contains(&self.policy)
    }
}

/// Reads the thread's own `stat`, `None` when there is no such thread. The one of the process has sums over all threads, which
/// takes the kernel as long as there are threads.
#[must_use]
pub fn look(host: &dyn Host, tid: u32) -> Option<ThreadLook> {
    parse(&host.read_file(Path::new(&format!("/proc/{tid}/task/{tid}/stat"))).ok()?)
}

fn parse(stat: &str) -> Option<ThreadLook> {
    let stat = Stat::parse(stat)?;
    Some(ThreadLook { parent: stat.parent()?, start_ticks: stat.start_ticks()?, policy: stat.policy()? })
}

/// Puts on record that threads are about to be switched, and which of these have a policy of their own.
///
/// # Errors
/// When the journal cannot be kept; then no thread may be switched.
pub fn record(
    host: &mut dyn Host,
    threads: &[(u32, ThreadLook)],
    journal: &mut Journal,
) -> Result<(), JournalError> {
    let own = threads.iter().filter(|(_, look)| look.policy != NORMAL).map(|(tid, look)| Record::Policy {
        tid: *tid,
        start_ticks: look.start_ticks,
        policy: look.policy,
    });
    let wanted = std::iter::once(Record::Scheduling).chain(own);
    let records: Vec<Record> = wanted.filter(|record| !journal.has(record)).collect();
    journal.append(host, &records)
}

/// Every thread that is `SCHED_EXT` is normal again; those on record follow by themselves.
pub(crate) fn all_back(host: &mut dyn Host) -> Result<Option<String>, HostError> {
    let mut count = 0;
    for pid in numbers(&host.list(Path::new("/proc"))?) {
        let tasks = host.list(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default();
        for tid in numbers(&tasks) {
            if look(host, tid).is_some_and(|look| look.policy == EXT) {
                count += usize::from(set(host, tid, NORMAL)?);
            }
        }
    }
    Ok((count > 0).then(|| format!("{count} threads have their own scheduling policy again")))
}

/// Gives a thread on record its policy; `None` when it has ended, or has got another one meanwhile.
pub(crate) fn put_back(
    host: &mut dyn Host,
    (tid, started): (u32, u64),
    policy: i32,
) -> Result<Option<String>, HostError> {
    match look(host, tid) {
        Some(now) if now.start_ticks == started && [NORMAL, EXT].contains(&now.policy) => {}
        _ => return Ok(None),
    }
    Ok(set(host, tid, policy)?.then(|| format!("thread {tid} has scheduling policy {policy} again")))
}

/// Sets it; `false` when the thread has ended.
///
/// # Errors
/// What the kernel says.
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
