//! Pins single threads to CPUs, such as the vCPU threads of a VM. The undo journal gets a thread's previous affinity
//! first.

use super::kind::{Facts, Kind, Rank};
use crate::journal::{Affinity, Journal, JournalError, Mounts, Record};
use crate::restore::{Left, Undo, Undone};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::SCHED_NORMAL;
use commensal_core::text::visible;
use commensal_host::{Host, HostError};
use commensal_sensors::inherited::Inherited;
use commensal_sensors::processes::start_ticks;
use std::path::Path;

/// Pins a thread to these CPUs. Returns `false` if it was already pinned to them.
///
/// # Errors
/// Returns an error when the thread does not exist, its cpuset has none of the CPUs, or the journal cannot be written.
pub fn pin_thread(
    host: &mut dyn Host,
    tid: u32,
    cpus: &CpuSet,
    journal: &mut Journal,
) -> Result<bool, JournalError> {
    let (Some(start_ticks), Some(before)) = (start_ticks(host, tid), allowed(host, tid)) else {
        let object = format!("thread {tid}");
        return Err(HostError { operation: "find", object, value: None, errno: Errno::ESRCH }.into());
    };
    if before.parse::<CpuSet>().is_ok_and(|before| before == *cpus) {
        return Ok(false);
    }
    let record = Record::Affinity(Affinity { tid, start_ticks, cpus: before });
    if !journal.has(&record) {
        journal.append(host, &[record])?;
    }
    host.set_affinity(tid, cpus)?;
    Ok(true)
}

/// Gives this process, and so the children that it starts from now on, what a free shell would have given them: all CPUs
/// and the normal scheduling policy. Returns a sentence for everything that stays limited: a cpuset, a quota, a nice value.
pub fn as_from_a_free_shell(host: &mut dyn Host) -> Vec<String> {
    let inherited = Inherited::read(host);
    if inherited.limits().is_empty() {
        return Vec::new();
    }
    let own = Path::new("/proc/self/task");
    let threads = host.list(own).unwrap_or_default();
    for tid in threads.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // The kernel refuses CPUs outside the cpuset, and a policy that this user may not set; what stays is reported.
        let _ = host.set_affinity(tid, &inherited.online);
        if inherited.policy != SCHED_NORMAL {
            let _ = host.set_policy(tid, SCHED_NORMAL);
        }
    }
    Inherited::read(host).limits()
}

impl Kind for Affinity {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Threads, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("thread {} could use CPUs {}", self.tid, visible(&self.cpus))
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let fits = self.cpus.parse::<CpuSet>().is_ok_and(|cpus| !cpus.is_empty());
        (!fits).then(|| format!("{:?} is not a list of CPUs", self.cpus))
    }

    fn subject(&self) -> Option<Record> {
        Some(Record::Affinity(Affinity { cpus: String::new(), ..*self }))
    }

    fn undo(&self, host: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        let Affinity { tid, start_ticks: started, cpus } = self;
        if start_ticks(host, *tid) != Some(*started) {
            return Ok(None);
        }
        // Cannot fail: the journal line is complete, and its value was read from the kernel.
        let set = cpus.parse().unwrap_or_default();
        match host.set_affinity(*tid, &set) {
            Ok(()) => Ok(Some(format!("thread {tid} may run on CPUs {cpus} again"))),
            Err(error) if error.errno == Errno::ESRCH => Ok(None),
            Err(error) => Err(Left::Failed(error)),
        }
    }
}

/// Returns the CPUs that a thread may use (`Cpus_allowed_list` of proc_pid_status(5)).
fn allowed(host: &dyn Host, tid: u32) -> Option<String> {
    let status = host.read_file(Path::new(&format!("/proc/{tid}/status"))).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:")?.trim().to_owned()))
}
