//! Moves processes into the cgroup of the group that selects them, and back to their original cgroups when no group
//! selects them any more.

use super::draft::Draft;
use super::step::{Movement, Unmet};
use crate::actual::{CgroupPath, CgroupRef, Hierarchy, Ours};
use crate::desired::DesiredGroup;
use crate::group::GroupName;
use crate::member::{MovedFrom, ProcessFact, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

impl Draft<'_> {
    /// Moves the group's processes into the group's cgroup, in every hierarchy in which that cgroup exists or will be
    /// created.
    pub(super) fn move_in(&mut self, group: &DesiredGroup) {
        let Some(own) = group.members.iter().find(|member| member.own).map(|member| member.path.clone())
        else {
            return;
        };
        let facts = facts(self.actual.processes.iter());
        for wanted in &group.processes {
            let Some(fact) = facts.get(&wanted.id) else { continue };
            let (mut from, mut to) = (BTreeMap::new(), BTreeMap::new());
            for (hierarchy, path) in &fact.places {
                let target = CgroupRef { hierarchy: *hierarchy, path: own.clone() };
                if self.will_exist(&target) && !own.contains(path) {
                    from.insert(*hierarchy, path.clone());
                    to.insert(*hierarchy, own.clone());
                }
            }
            if to.is_empty() {
                continue;
            }
            let why = format!("group {}: {}", group.name, wanted.by);
            let (name, by) = (wanted.name.clone(), wanted.by.clone());
            self.moves.push((Movement { process: wanted.id, name, by, from, to }, why));
        }
    }

    /// Moves processes that no group selects any more back to their original cgroups, with the descendants that started
    /// in commensal's group. A process is moved only where the original cgroup still exists and the process is still
    /// where it was moved to.
    pub(super) fn move_back(&mut self) {
        if self.desired.alone {
            return;
        }
        let wanted: BTreeSet<_> =
            self.desired.groups.iter().flat_map(|group| &group.processes).map(|one| one.id).collect();
        let by_pid: BTreeMap<u32, &ProcessFact> =
            self.actual.processes.iter().map(|fact| (fact.id.pid, fact)).collect();
        for fact in self.actual.processes.iter().filter(|fact| !wanted.contains(&fact.id)) {
            let Some((recorded, moved)) = origin(fact, &by_pid, &self.actual.ours) else { continue };
            if wanted.contains(&recorded) {
                continue;
            }
            let (mut from, mut to) = (BTreeMap::new(), BTreeMap::new());
            let mut homeless: BTreeMap<&CgroupPath, Vec<String>> = BTreeMap::new();
            for (hierarchy, put) in &moved.to {
                let now = fact.places.get(hierarchy).filter(|now| put.contains(now));
                match (now, moved.from.get(hierarchy)) {
                    (Some(now), Some(before)) if now != before => {
                        from.insert(*hierarchy, now.clone());
                        to.insert(*hierarchy, before.clone());
                    }
                    (Some(_), None) => {
                        let label = self.actual.hierarchies.get(*hierarchy).map(Hierarchy::label);
                        homeless.entry(put).or_default().extend(label);
                    }
                    _ => {}
                }
            }
            for (put, hierarchies) in homeless {
                let Ok(group) = GroupName::new(put.name()) else { continue };
                self.report.unmet.push(Unmet {
                    group,
                    what: format!("process {} back to its original cgroup", fact.name()),
                    because: format!(
                        "it is no longer matched, but the cgroup that it came from was removed ({}), so it stays in {put}",
                        hierarchies.join(", ")
                    ),
                    try_this: "write its PID to cgroup.procs of another cgroup, or end it".to_owned(),
                });
            }
            if !to.is_empty() {
                let why = "no longer matched: back to its original cgroup".to_owned();
                let (name, by) = (fact.name(), String::new());
                self.moves.push((Movement { process: fact.id, name, by, from, to }, why));
            }
        }
    }
}

/// The process itself or its nearest ancestor that commensal moved, with the record of that move.
fn origin<'a>(
    fact: &'a ProcessFact,
    by_pid: &BTreeMap<u32, &'a ProcessFact>,
    ours: &'a Ours,
) -> Option<(ProcessId, &'a MovedFrom)> {
    // A parent is never younger than its child; if it seems to be, its PID was reused.
    let parent = |child: &&'a ProcessFact| {
        by_pid.get(&child.parent).copied().filter(|parent| parent.id.start_ticks <= child.id.start_ticks)
    };
    let mut line = std::iter::successors(Some(fact), parent).take(by_pid.len());
    line.find_map(|one| ours.moved.get(&one.id).map(|moved| (one.id, moved)))
}

fn facts<'f>(processes: impl Iterator<Item = &'f ProcessFact>) -> BTreeMap<ProcessId, &'f ProcessFact> {
    processes.map(|process| (process.id, process)).collect()
}
