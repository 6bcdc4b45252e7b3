//! Finds processes of members that are not in the member's cpuset (v1). The kernel moves the tasks of a cpuset out of it when
//! its last CPU goes offline, and moves none back (`remove_tasks_in_empty_cpuset`, kernel/cgroup/cpuset-v1.c).

use crate::processes::places_of;
use commensal_core::actual::{ActualState, CgroupRef};
use commensal_core::desired::DesiredState;
use commensal_core::limit::CPU_SET;
use commensal_core::member::{ProcessId, Stray};
use commensal_core::process::Stat;
use commensal_core::text::visible;
use commensal_host::{Host, below};
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the strays of all members with a CPU set, and of the members that commensal created and that have a cpuset.
pub(crate) fn find(host: &mut dyn Host, desired: &DesiredState, found: &ActualState) -> Vec<Stray> {
    let Some(cpuset) = found.v1_cpuset() else { return Vec::new() };
    let mut strays = Vec::new();
    for group in &desired.groups {
        for member in &group.members {
            let at = |hierarchy| CgroupRef { hierarchy, path: member.path.clone() };
            let limited = group.limits.each.has(CPU_SET);
            if !(limited || member.own && found.cgroups.contains_key(&at(cpuset))) {
                continue;
            }
            let others = (0..found.hierarchies.len()).filter(|index| *index != cpuset);
            let Some(other) = others.map(at).find(|place| found.cgroups.contains_key(place)) else {
                continue;
            };
            let (all, inside) = (pids(host, found, &other), pids(host, found, &at(cpuset)));
            for pid in all.difference(&inside) {
                let Some((process, name, cgroups)) = look(host, *pid) else { continue };
                let places = places_of(host, &cgroups, &found.hierarchies);
                // It may have exited, or moved since the lists were read.
                let strayed = places.get(&cpuset).is_some_and(|now| !member.path.contains(now));
                if strayed && places.get(&other.hierarchy).is_some_and(|now| member.path.contains(now)) {
                    strays.push(Stray { process, name, member: member.path.clone(), places });
                }
            }
        }
    }
    strays
}

/// Returns the processes in and below a cgroup.
fn pids(host: &mut dyn Host, found: &ActualState, place: &CgroupRef) -> BTreeSet<u32> {
    let Some(hierarchy) = found.hierarchies.get(place.hierarchy) else { return BTreeSet::new() };
    let below_it = found.below(place).map(|(place, _)| &place.path);
    let mut pids = BTreeSet::new();
    for path in std::iter::once(&place.path).chain(below_it) {
        let Ok(dir) = host.open(&below(Path::new(&hierarchy.mount), path.as_str())) else { continue };
        let text = host.read(dir, "cgroup.procs").unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0));
        host.close(dir);
    }
    pids
}

/// Returns a process's identity, its name, and its `/proc/PID/cgroup`; `None` if it has exited.
fn look(host: &dyn Host, pid: u32) -> Option<(ProcessId, String, String)> {
    let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}"))).ok();
    let text = read("stat")?;
    let stat = Stat::parse(&text)?;
    let process = ProcessId { pid, start_ticks: stat.start_ticks().filter(|_| !stat.has_ended())? };
    let comm = read("comm").unwrap_or_default();
    Some((process, format!("{pid} ({})", visible(comm.trim_end())), read("cgroup")?))
}
