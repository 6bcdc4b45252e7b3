//! Moves processes into the cgroup of the group that selects them, and back to their original cgroups when no group
//! selects them any more.

use super::draft::Draft;
use super::step::Movement;
use crate::actual::CgroupRef;
use crate::desired::DesiredGroup;
use crate::member::ProcessFact;
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

    /// Moves processes that no group selects any more back to their original cgroups. A process is moved only if these
    /// cgroups still exist and the process is still where it was moved to.
    pub(super) fn move_back(&mut self) {
        if self.desired.alone {
            return;
        }
        let wanted: BTreeSet<_> =
            self.desired.groups.iter().flat_map(|group| &group.processes).map(|one| one.id).collect();
        let facts = facts(self.actual.processes.iter());
        for (id, moved) in self.actual.ours.moved.iter().filter(|(id, _)| !wanted.contains(*id)) {
            let Some(fact) = facts.get(id) else { continue };
            let (mut from, mut to) = (BTreeMap::new(), BTreeMap::new());
            for (hierarchy, put) in &moved.to {
                let now = fact.places.get(hierarchy).filter(|now| put.contains(now));
                match (now, moved.from.get(hierarchy)) {
                    (Some(now), Some(before)) if now != before => {
                        from.insert(*hierarchy, now.clone());
                        to.insert(*hierarchy, before.clone());
                    }
                    (Some(_), None) => self.report.note(format!(
                        "process {} is no longer matched, but the cgroup that it came from is gone, so it stays in {put}",
                        fact.name()
                    )),
                    _ => {}
                }
            }
            if !to.is_empty() {
                let why = "no longer matched: back to its original cgroup".to_owned();
                let (name, by) = (fact.name(), String::new());
                self.moves.push((Movement { process: *id, name, by, from, to }, why));
            }
        }
    }
}

fn facts<'f>(
    processes: impl Iterator<Item = &'f ProcessFact>,
) -> BTreeMap<crate::member::ProcessId, &'f ProcessFact> {
    processes.map(|process| (process.id, process)).collect()
}
