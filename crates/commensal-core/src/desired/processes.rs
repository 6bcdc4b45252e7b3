//! Assigns processes to groups.
//!
//! * A match selects a process and those of its descendants that are still in the cgroup that the process came from.
//!   Children that the process forks after its move start in the group, so earlier children must be moved, too.
//! * If several groups select a process, the first group by name gets the process. commensal does not move a process
//!   that is already a member, either because a group claims its cgroup or because the process was started in a group
//!   that commensal created.
//! * A process that was moved stays in the group until it exits, or until the group no longer has the match that
//!   selected it.
//! * commensal does not move processes of a container or of a systemd unit, processes that another program has moved out
//!   of the group, or processes in a cgroup that cannot be named here; it reports them instead.

use super::{DesiredState, WantedProcess};
use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::group::{GroupName, GroupSpec, Match};
use crate::member::{ProcessFact, ProcessId, in_container};
use std::collections::BTreeMap;

/// Maximum number of processes named in one message.
const NAMED: usize = 3;

/// The group (by index) and the match of each process.
type Owners = BTreeMap<ProcessId, (usize, String)>;

/// Fills in the processes of every group, and the reasons why some processes cannot be moved.
pub(super) fn assign(
    specs: &BTreeMap<&GroupName, &GroupSpec>,
    actual: &ActualState,
    state: &mut DesiredState,
) {
    let mut owners = Owners::new();
    for index in 0..state.groups.len() {
        directly(specs, actual, state, index, &mut owners);
    }
    inherited(actual, &mut owners);
    let mut stay: BTreeMap<(usize, String, String), Vec<String>> = BTreeMap::new();
    for process in &actual.processes {
        let Some((index, by)) = owners.get(&process.id) else { continue };
        let group = &state.groups[*index];
        let Some(own) = group.members.iter().find(|member| member.own).map(|member| member.path.clone())
        else {
            continue;
        };
        if settled_elsewhere(process, actual, state, &own) {
            continue;
        }
        match obstacle(process, actual, state.groups[*index].takeover) {
            Some((because, try_this)) => {
                stay.entry((*index, because, try_this)).or_default().push(process.name());
            }
            None => state.groups[*index].processes.push(WantedProcess {
                id: process.id,
                name: process.name(),
                by: by.clone(),
            }),
        }
    }
    for ((index, because, try_this), mut names) in stay {
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = format!("process {}{more}", names.join(", "));
        state.groups[index].elsewhere.push((what, because, try_this));
    }
}

/// Adds the processes that the group's matches select or selected earlier.
fn directly(
    specs: &BTreeMap<&GroupName, &GroupSpec>,
    actual: &ActualState,
    state: &mut DesiredState,
    index: usize,
    owners: &mut Owners,
) {
    let group = &state.groups[index];
    let Some(spec) = specs.get(&group.name) else { return };
    let own = group.members.iter().find(|member| member.own).map(|member| member.path.clone());
    let mut others: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for one in spec.matches.iter().filter(|one| matches!(one, Match::Process { .. })) {
        let by = one.to_string();
        let mut any = false;
        for process in &actual.processes {
            let moved = actual.ours.moved.get(&process.id);
            let stays = moved.is_some_and(|moved| {
                moved.done && moved.by == by && moved.to.values().any(|to| Some(to) == own.as_ref())
            });
            if !stays && !one.takes_process(process) {
                continue;
            }
            any = true;
            match owners.get(&process.id) {
                Some((first, _)) if *first != index => {
                    others.entry(*first).or_default().push(process.name());
                }
                Some(_) => {}
                None => drop(owners.insert(process.id, (index, by.clone()))),
            }
        }
        if !any {
            state.groups[index].elsewhere.push((
                format!("match {one}"),
                "there is no such process now".to_owned(),
                "start it and apply again, or correct the match".to_owned(),
            ));
        }
    }
    for (first, names) in others {
        let first = state.groups[first].name.clone();
        let what = format!("process {}", names.into_iter().take(NAMED).collect::<Vec<_>>().join(", "));
        let because = format!("group {first} matches it as well, and comes first by name");
        let try_this = "make the matches narrower".to_owned();
        state.groups[index].elsewhere.push((what, because, try_this));
    }
}

/// Adds the descendants of selected processes that are in their parent's cgroup, or in the cgroup in which the parent
/// was before commensal moved it.
fn inherited(actual: &ActualState, owners: &mut Owners) {
    let by_pid: BTreeMap<u32, &ProcessFact> =
        actual.processes.iter().map(|process| (process.id.pid, process)).collect();
    loop {
        let mut more = Owners::new();
        for process in actual.processes.iter().filter(|process| !owners.contains_key(&process.id)) {
            let Some(parent) = by_pid.get(&process.parent) else { continue };
            let Some(owner) = owners.get(&parent.id) else { continue };
            // A parent is never younger than its child; if it seems to be, its PID was reused.
            if parent.id.start_ticks <= process.id.start_ticks && beside(process, parent, actual) {
                more.insert(process.id, owner.clone());
            }
        }
        if more.is_empty() {
            return;
        }
        owners.extend(more);
    }
}

/// Whether the child is in its parent's cgroups, or in the cgroups in which the parent was before commensal moved it.
fn beside(child: &ProcessFact, parent: &ProcessFact, actual: &ActualState) -> bool {
    let before = actual.ours.moved.get(&parent.id).map(|moved| &moved.from);
    child.places.iter().all(|(hierarchy, path)| {
        let now = parent.places.get(hierarchy) == Some(path);
        now || before.and_then(|before| before.get(hierarchy)) == Some(path)
    })
}

/// Whether the process is already a member of another cgroup: one that a group claims, or one that commensal created
/// and in which the process was started.
fn settled_elsewhere(
    process: &ProcessFact,
    actual: &ActualState,
    state: &DesiredState,
    own: &CgroupPath,
) -> bool {
    let claimed = |path: &CgroupPath| {
        let members = state.groups.iter().flat_map(|group| &group.members).filter(|member| !member.own);
        members.into_iter().any(|member| member.path.contains(path))
    };
    let ours = |path: &CgroupPath| {
        let parents = [&state.online_parent, &state.offline_parent];
        parents.iter().any(|parent| parent.contains(path)) && !own.contains(path)
    };
    let moved = actual.ours.moved.contains_key(&process.id);
    process.places.values().any(|path| claimed(path) || (!moved && ours(path)))
}

/// Why the process is not moved, and how to change that; `None` if it is moved.
fn obstacle(process: &ProcessFact, actual: &ActualState, takeover: bool) -> Option<(String, String)> {
    // A process is moved in all hierarchies or in none.
    if let Some(unnamed) = &process.unnamed {
        return Some(unnamed.clone());
    }
    if let Some(path) = process.places.values().find(|path| in_container(path)) {
        return Some((
            format!("it runs in a container ({path}), whose manager counts it there"),
            "match the container with docker-label or docker-name, or its cgroup".to_owned(),
        ));
    }
    let moved = actual.ours.moved.get(&process.id).filter(|moved| moved.done);
    let out = moved.into_iter().flat_map(|moved| &moved.to).find_map(|(hierarchy, to)| {
        let now = process.places.get(hierarchy)?;
        // Above a v1 cpuset it may be because of the kernel, which the plan finds out.
        let above = now.contains(to) && Some(*hierarchy) == actual.v1_cpuset();
        (!to.contains(now) && !above).then_some((to, now))
    });
    if let Some((to, now)) = out {
        return Some((
            format!("another program has since moved it from {to} to {now}; commensal leaves it there"),
            "stop the program that moves it; after `commensal restore`, commensal moves the process again"
                .to_owned(),
        ));
    }
    for (hierarchy, path) in &process.places {
        let place = CgroupRef { hierarchy: *hierarchy, path: path.clone() };
        if let Some(unit) = actual.managed_by(&place).filter(|_| !takeover) {
            let known = matches!(unit.name().rsplit_once('.'), Some((_, "service" | "scope" | "slice")));
            let way = match known {
                true => {
                    let of_unit = Match::Systemd(unit.name().to_owned()).in_file();
                    format!("match = [{of_unit}]; or takeover = true")
                }
                false => "takeover = true moves it nevertheless".to_owned(),
            };
            return Some((format!("systemd manages {unit} and counts it there"), way));
        }
        if actual.confined && !actual.tenancy.base.contains(path) {
            let because =
                format!("it is in {path}, and this user can write only below {}", actual.tenancy.base);
            return Some((because, "ask root to move it".to_owned()));
        }
    }
    None
}
