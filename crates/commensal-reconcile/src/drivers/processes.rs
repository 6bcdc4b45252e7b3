//! Identifies running processes, moves their threads, and finds the cgroups that moved processes came from.

use crate::journal::{Moving, Record, Target};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::knob::Version;
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::{Dir, Host, HostError, Process, Signal};
use commensal_sensors::processes::threads;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of passes over a process whose threads keep starting others.
const LOOKS: u32 = 100;

/// Maximum number of ancestors that are searched.
const GENERATIONS: u32 = 64;

/// Returns start time, parent and process group of a process; `None` if it has exited and cannot be moved.
pub(crate) fn identity(host: &dyn Host, pid: u32) -> Option<(u64, u32, u32)> {
    let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    (!stat.has_ended()).then_some((stat.start_ticks()?, stat.parent()?, stat.number(5)?))
}

/// Whether the process of this pidfd is still running.
pub(crate) fn alive(host: &mut dyn Host, held: &Process) -> bool {
    host.signal(held, Signal::NONE).is_ok()
}

/// Whether the process is running and still has the same PID and start time.
pub(crate) fn is(host: &dyn Host, process: ProcessId) -> bool {
    identity(host, process.pid).is_some_and(|(start_ticks, ..)| start_ticks == process.start_ticks)
}

/// Moves a process from a group to another one of the same hierarchy. Threads that are in a third group stay there; the
/// kernel allows that only on v1, so on v2 all threads are moved.
///
/// # Errors
/// Returns the kernel's error; `ESRCH` if the process has exited.
pub(crate) fn write_pid(
    host: &mut dyn Host,
    pid: u32,
    (hierarchies, hierarchy): (&[Hierarchy], usize),
    (from, to): (&CgroupPath, Dir),
) -> Result<(), HostError> {
    // Threads that have not been moved yet may start others.
    for _ in 0..LOOKS {
        let all = match hierarchies.get(hierarchy).map(|one| one.version) {
            Some(Version::V1) => threads(host, pid, hierarchies),
            _ => BTreeMap::new(),
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, places)| places.get(&hierarchy) == Some(from));
        if elsewhere.is_empty() {
            return host.write(to, "cgroup.procs", &pid.to_string());
        }
        if here.is_empty() {
            break;
        }
        for (tid, _) in here {
            match host.write(to, "tasks", &tid.to_string()) {
                Err(error) if error.errno == Errno::ESRCH => {}
                written => written?,
            }
        }
    }
    Ok(())
}

/// The original cgroups of the processes that commensal moved.
#[derive(Debug, Default)]
pub(crate) struct Origins(BTreeMap<ProcessId, Origin>);

/// The journal's facts about one process.
#[derive(Debug, Default)]
struct Origin {
    pgrp: u32,
    /// The original cgroup in each hierarchy, by mount point: the first one recorded.
    from: BTreeMap<String, Target>,
}

impl Origins {
    /// Adds the process of a record, if the record is about a move.
    pub(crate) fn add(&mut self, record: &Record) {
        let (Record::Moving(Moving { pgrp, from, .. }), Some(process)) = (record, record.process()) else {
            return;
        };
        let origin = self.0.entry(process).or_default();
        origin.pgrp = *pgrp;
        for target in from {
            origin.from.entry(target.mount.clone()).or_insert_with(|| target.clone());
        }
    }

    /// Returns the original cgroup, in this hierarchy, of the process, of its nearest recorded ancestor, or of a
    /// recorded process in the same process group; with the recorded process.
    pub(crate) fn home_of(
        &self,
        host: &dyn Host,
        process: ProcessId,
        mount: &str,
    ) -> Option<(ProcessId, &Target)> {
        let home = |of: &ProcessId| Some((*of, self.0.get(of)?.from.get(mount)?));
        let mut at = process;
        let mut group = None;
        for _ in 0..GENERATIONS {
            if let Some(found) = home(&at) {
                return Some(found);
            }
            let Some((_, parent, pgrp)) = identity(host, at.pid) else { break };
            group = group.or(Some(pgrp));
            let Some((start_ticks, ..)) = identity(host, parent).filter(|_| parent > 1) else { break };
            at = ProcessId { pid: parent, start_ticks };
        }
        self.0.iter().filter(|(_, origin)| Some(origin.pgrp) == group).find_map(|(of, _)| home(of))
    }
}
