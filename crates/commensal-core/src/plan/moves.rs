//! Moves processes into the cgroup of the group that selects them, and back to their original cgroups when no group
//! selects them any more.

use super::draft::Draft;
use super::step::{Movement, Unmet};
use crate::actual::{CgroupPath, CgroupRef, Hierarchy, Ours};
use crate::desired::DesiredGroup;
use crate::group::{GroupName, of_cgroup};
use crate::member::{MovedFrom, ProcessFact, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of cgroups named in one message.
const NAMED: usize = 3;

impl Draft<'_> {
    /// Moves the group's processes into the group's cgroup, in every hierarchy in which that cgroup exists or will be
    /// created. A process whose threads are in several cgroups stays, because the threads would lose these cgroups.
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
                if self.will_exist(&target) && !own.contains(path) && !self.has_left(fact, &target) {
                    from.insert(*hierarchy, path.clone());
                    to.insert(*hierarchy, own.clone());
                }
            }
            if to.is_empty() {
                continue;
            }
            let mut apart = self.actual.apart.get(&wanted.id).into_iter().flatten();
            if let Some((hierarchy, paths)) = apart.find(|(hierarchy, _)| to.contains_key(hierarchy)) {
                let label = self.actual.hierarchies.get(*hierarchy).map(Hierarchy::label).unwrap_or_default();
                let (because, try_this) = several_cgroups(&label, paths);
                self.report.unmet(group, format!("process {}", wanted.name), because, &try_this);
                continue;
            }
            let why = format!("group {}: {}", group.name, wanted.by);
            let (name, by) = (wanted.name.clone(), wanted.by.clone());
            self.moves.push((Movement { process: wanted.id, name, by, from, to, home: false }, why));
        }
    }

    /// Whether the process has left this v1 cpuset without commensal, which `bring_home` deals with.
    fn has_left(&self, fact: &ProcessFact, target: &CgroupRef) -> bool {
        let put = |moved: &MovedFrom| moved.done && moved.to.contains_key(&target.hierarchy);
        Some(target.hierarchy) == self.actual.v1_cpuset()
            && (self.actual.ours.moved.get(&fact.id).is_some_and(put)
                || self.is_moved_by_kernel(&fact.places, target))
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
                let home = CgroupRef { hierarchy: *hierarchy, path: put.clone() };
                let evicted = Some(*hierarchy) == self.actual.v1_cpuset()
                    && self.is_moved_by_kernel(&fact.places, &home);
                let now = fact.places.get(hierarchy).filter(|now| put.contains(now) || evicted);
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
                self.moves.push((Movement { process: fact.id, name, by, from, to, home: false }, why));
            }
        }
    }
}

/// Why a process with threads in several cgroups is not moved, and which cgroup to match instead.
fn several_cgroups(hierarchy: &str, paths: &BTreeSet<CgroupPath>) -> (String, String) {
    let named: Vec<String> = paths.iter().take(NAMED).map(ToString::to_string).collect();
    let more = paths.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let because = format!(
        "its threads are in several cgroups ({hierarchy}: {}{more}), and a move would put all of them into one",
        named.join(", ")
    );
    let above = paths.first().map(CgroupPath::ancestors).unwrap_or_default();
    let nearest_first = paths.first().into_iter().chain(above.iter().rev());
    let mut common = nearest_first.filter(|above| paths.iter().all(|path| above.contains(path)));
    let try_this = match common.next().filter(|common| common.depth() > 0) {
        Some(common) => {
            format!("match the cgroup that contains them: match = [{}]", of_cgroup(common.as_str()))
        }
        None => "match these cgroups instead of the process".to_owned(),
    };
    (because, try_this)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_cgroup_that_contains_all_threads() {
        for (paths, want) in [
            (&["/vm/emulator", "/vm/vcpu0"][..], "/vm"),
            (&["/vm", "/vm/vcpu0"], "/vm"),
            (&["/a/vm/libvirt/emulator", "/a/vm/libvirt/vcpu0", "/a/vm/vcpu1/x"], "/a/vm"),
            (&["/vm", "/vm0"], ""),
            (&["/", "/vm"], ""),
        ] {
            let paths = paths.iter().map(|path| CgroupPath::new(path)).collect();
            let (_, try_this) = several_cgroups("cpu", &paths);
            let want = match want {
                "" => "match these cgroups instead of the process".to_owned(),
                want => {
                    format!("match the cgroup that contains them: match = [{{ cgroup = \"{want}\" }}]")
                }
            };
            assert_eq!(try_this, want, "{paths:?}");
        }
    }
}
