//! Members that are not in their v1 cpuset. The kernel moves the tasks of a cpuset whose last CPU goes offline to the
//! nearest ancestor with CPUs and memory nodes, in that hierarchy only, and moves none back (cgroup-v1/cpusets.rst). A plan
//! moves members of commensal's own groups home; of others, and of a process that somebody else has moved, it says how.

use super::draft::Draft;
use super::step::Movement;
use crate::actual::{CgroupPath, CgroupRef};
use crate::desired::{DesiredGroup, Member};
use crate::knob::{KnobId, Value};
use crate::limit::CPU_SET;
use crate::member::Stray;
use std::collections::BTreeMap;

/// Maximum number of processes named in one message.
const NAMED: usize = 3;

impl Draft<'_> {
    /// Moves members home, and reports those that stay where they are.
    pub(super) fn bring_home(&mut self) {
        let (actual, desired) = (self.actual, self.desired);
        let Some(hierarchy) = actual.v1_cpuset() else { return };
        let mut stay: BTreeMap<(&CgroupPath, &CgroupPath), Vec<&Stray>> = BTreeMap::new();
        for stray in &actual.strays {
            let of = |group: &'_ DesiredGroup| group.members.iter().any(|member| member.path == stray.member);
            let Some(group) = desired.groups.iter().find(|group| of(group)) else { continue };
            let home = CgroupRef { hierarchy, path: stray.member.clone() };
            let own = group.members.iter().any(|member| member.own && member.path == stray.member);
            let Some(now) = stray.places.get(&hierarchy).filter(|_| !desired.kept.contains(&home)) else {
                continue;
            };
            let by_kernel = self.is_moved_by_kernel(&stray.places, &home);
            let wanted = group.processes.iter().any(|one| one.id == stray.process);
            if wanted && !by_kernel && !self.was_put(stray, hierarchy) {
                // It is moved with its record, like the first time.
                continue;
            }
            let fresh = self.structure.creates.contains_key(&home);
            if own && (by_kernel || fresh) && self.takes_processes(&home) {
                let why = match by_kernel {
                    true => format!(
                        "group {}: the kernel moved it to {now} when a cpuset had no CPU online",
                        group.name
                    ),
                    false => format!("group {}: its cpuset is new", group.name),
                };
                let movement = Movement {
                    process: stray.process,
                    name: stray.name.clone(),
                    by: why.clone(),
                    from: [(hierarchy, now.clone())].into(),
                    to: [(hierarchy, home.path)].into(),
                    home: true,
                };
                self.moves.push((movement, why));
            } else if by_kernel || (own && self.will_exist(&home)) {
                stay.entry((&stray.member, now)).or_default().push(stray);
            }
        }
        for ((member, now), strays) in stay {
            self.report_away(hierarchy, (member, now), &strays);
        }
    }

    /// Whether commensal has moved the process into a cpuset, according to its journal.
    fn was_put(&self, stray: &Stray, cpuset: usize) -> bool {
        let moved = self.actual.ours.moved.get(&stray.process);
        moved.is_some_and(|moved| moved.done && moved.to.contains_key(&cpuset))
    }

    /// Whether it was the kernel that moved a process with these cgroups out of the cpuset `home`: the process is in the
    /// nearest ancestor that has CPUs and nodes, and in the group of the same path in every other hierarchy that has one.
    pub(super) fn is_moved_by_kernel(&self, places: &BTreeMap<usize, CgroupPath>, home: &CgroupRef) -> bool {
        let actual = self.actual;
        let holds = |hierarchy: usize| {
            let same = CgroupRef { hierarchy, path: home.path.clone() };
            hierarchy == home.hierarchy
                || !actual.cgroups.contains_key(&same)
                || places.get(&hierarchy).is_some_and(|now| home.path.contains(now))
        };
        let usable = |path: &CgroupPath| {
            let place = CgroupRef { hierarchy: home.hierarchy, path: path.clone() };
            let value = |knob| actual.cgroups.get(&place)?.values.get(&(knob, None));
            let empty = |knob| matches!(value(knob), Some(Value::List(set)) if set.is_empty());
            path.depth() == 0 || ![KnobId::CpusetCpus, KnobId::CpusetMems].into_iter().any(empty)
        };
        let nearest = home.path.ancestors().into_iter().rev().find(usable);
        actual.cgroups.contains_key(home)
            && (0..actual.hierarchies.len()).all(holds)
            && places.get(&home.hierarchy) == nearest.as_ref()
    }

    /// Whether the cpuset has CPUs and nodes after the plan, without which no process can enter it.
    fn takes_processes(&self, home: &CgroupRef) -> bool {
        let has = |knob| {
            let wanted = self.wants.get(&(home.clone(), knob, None)).map(|want| &want.value);
            let value = wanted.or_else(|| self.actual.cgroups.get(home)?.values.get(&(knob, None)));
            matches!(value, Some(Value::List(set)) if !set.is_empty())
        };
        [KnobId::CpusetCpus, KnobId::CpusetMems].into_iter().all(has)
    }

    fn report_away(
        &mut self,
        hierarchy: usize,
        (member, now): (&CgroupPath, &CgroupPath),
        strays: &[&Stray],
    ) {
        let find = |group: &&DesiredGroup| group.members.iter().any(|one: &Member| one.path == *member);
        let Some(group) = self.desired.groups.iter().find(find) else { return };
        let named: Vec<&str> = strays.iter().take(NAMED).map(|stray| stray.name.as_str()).collect();
        let more = match strays.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let home = CgroupRef { hierarchy, path: member.clone() };
        let by_kernel = strays.iter().all(|stray| self.is_moved_by_kernel(&stray.places, &home));
        let who = match by_kernel {
            true => "the kernel moved it there when a CPU went offline, and does not move it back",
            false => {
                "it was there before the group had CPUs of its own, or another program has moved it there"
            }
        };
        let set = group.limits.get(CPU_SET).map(|set| format!("cpu.set = {set} for ")).unwrap_or_default();
        let what = format!("{set}process {}{more}", named.join(", "));
        let because = format!("it is in {now} of the cpuset hierarchy instead of {member}: {who}");
        let pids: Vec<String> = strays.iter().map(|stray| stray.process.to_string()).collect();
        let try_this = format!(
            "for pid in {}; do echo $pid > {}/cgroup.procs; done",
            pids.join(" "),
            self.actual.directory(&home)
        );
        self.report.unmet_knob(group, (KnobId::CpusetCpus, what), because, &try_this);
    }
}
