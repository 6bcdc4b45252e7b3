//! Pins single threads to CPUs, such as the vCPU threads of a VM. The undo journal gets a thread's previous affinity
//! first.

use crate::journal::{Journal, JournalError, Record};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::SCHED_NORMAL;
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
    let record = Record::Affinity { tid, start_ticks, cpus: before };
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

/// Restores a thread's affinity; returns `None` if the thread has exited.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn put_back(
    host: &mut dyn Host,
    (tid, started): (u32, u64),
    cpus: &str,
) -> Result<Option<String>, HostError> {
    if start_ticks(host, tid) != Some(started) {
        return Ok(None);
    }
    // Cannot fail: the journal line is complete, and its value was read from the kernel.
    let set = cpus.parse().unwrap_or_default();
    match host.set_affinity(tid, &set) {
        Ok(()) => Ok(Some(format!("thread {tid} may run on CPUs {cpus} again"))),
        Err(error) if error.errno == Errno::ESRCH => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the CPUs that a thread may use (`Cpus_allowed_list` of proc_pid_status(5)).
fn allowed(host: &dyn Host, tid: u32) -> Option<String> {
    let status = host.read_file(Path::new(&format!("/proc/{tid}/status"))).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:")?.trim().to_owned()))
}
