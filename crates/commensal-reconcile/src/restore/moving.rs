//! Moves processes back to their original cgroups, with their descendants.
//!
//! All processes that are in a group now are moved, including those without a record. A process with a record moves to
//! the cgroup in the record. Any other process moves to the cgroup recorded for its nearest ancestor with a record, or
//! for a process of the same process group (the kernel does not reuse a process group's ID while the group has
//! members). If the original cgroup was removed, the process stays, and so do its present group and its record.

use super::outcome::{Left, Restored};
use super::proof;
use super::undo::Undo;
use crate::drivers::level::{self, Kept};
use crate::drivers::members;
use crate::drivers::processes::{Origins, alive, identity, write_pid};
use crate::hand::is_gone;
use crate::journal::{Created, Moving, Record, Target};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::member::ProcessId;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError};
use commensal_sensors::mounts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of passes over a group whose processes keep forking.
const LOOKS: u32 = 100;

/// Maximum number of attempts to move a process that another program moves back.
const TRIES: u32 = 3;

/// Moves processes back. Returns the indices in `contents` of the records that remain. Records of moves without a mark
/// (the proof that commensal moved the process) remain as well, with a message in `denied`.
pub(super) fn back(host: &mut dyn Host, undo: &mut Undo<'_>) -> BTreeSet<usize> {
    let (contents, result) = (&*undo.contents, &mut *undo.result);
    let mut origins = Origins::default();
    let mut groups: BTreeSet<&Target> = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for (index, record) in contents.records.iter().enumerate() {
        let Record::Moving(Moving { to, .. }) = record else { continue };
        match proof::of_move(host, undo.owners, record) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(left) => {
                kept.insert(index);
                match left {
                    Left::Busy(line) => result.left.push(line),
                    Left::Failed(error) => result.failed.push(error.to_string()),
                    Left::Denied(line) => drop(undo.denied.insert(line)),
                    Left::Waits => {}
                }
                continue;
            }
        }
        origins.add(record);
        groups.extend(to);
    }
    // The kernel moves the tasks of a v1 cpuset whose last CPU goes offline to an ancestor.
    let created = contents.records.iter().filter_map(|record| match record {
        Record::Created(Created(target)) => Some(target),
        _ => None,
    });
    let above = |one: &&Target| {
        groups.iter().any(|group| {
            group.mount == one.mount && CgroupPath::new(&one.path).contains(&CgroupPath::new(&group.path))
        })
    };
    let above: Vec<&Target> = created.filter(above).collect();
    groups.extend(above);
    let mut failed = BTreeSet::new();
    let hierarchies = mounts::hierarchies(host).unwrap_or_default();
    for group in groups {
        let Ok(dir) = host.open(&group.place()) else { continue };
        if dir.inode == group.inode {
            let kept = level::kept(&contents.records);
            empty(host, (group, dir), (&origins, &kept, &hierarchies), result, &mut failed);
        }
        host.close(dir);
    }
    let stands = |record: &Record| record.process().is_some_and(|process| failed.contains(&process));
    let standing = contents.records.iter().enumerate().filter(|(_, record)| stands(record));
    kept.extend(standing.map(|(index, _)| index));
    kept
}

fn empty(
    host: &mut dyn Host,
    (group, dir): (&Target, Dir),
    (origins, kept, hierarchies): (&Origins, &Kept, &[Hierarchy]),
    result: &mut Restored,
    failed: &mut BTreeSet<ProcessId>,
) {
    let mut moved: BTreeMap<ProcessId, (String, u32)> = BTreeMap::new();
    let mut stuck: BTreeSet<u32> = BTreeSet::new();
    let low = level::of(host, dir).is_some_and(|level| level < 0);
    for _ in 0..LOOKS {
        let inside = members::pids(host, dir).unwrap_or_default();
        // A process that was moved or has exited since the list was read may have started others, so the list is read
        // again.
        let mut again = false;
        for pid in inside.into_iter().filter(|pid| *pid != std::process::id()) {
            if stuck.contains(&pid) {
                continue;
            }
            let Some((start_ticks, ..)) = identity(host, pid) else {
                again = true;
                continue;
            };
            let process = ProcessId { pid, start_ticks };
            let Some((recorded, target)) = origins.home_of(host, process, &group.mount) else {
                again |= identity(host, pid).is_none();
                continue;
            };
            if moved.get(&process).is_some_and(|(_, times)| *times >= TRIES) {
                moved.remove(&process);
                stuck.insert(pid);
                failed.insert(recorded);
                let (from, to) = (&group.path, &target.path);
                result.failed.push(format!(
                    "process {pid} was moved to {to} {TRIES} times and is in {from} again: another program moves it"
                ));
                continue;
            }
            match put(host, process, (group, target), (hierarchies, low.then_some(kept))) {
                Ok(true) => {
                    again = true;
                    moved.entry(process).or_insert_with(|| (target.path.clone(), 0)).1 += 1;
                }
                Ok(false) => {
                    stuck.insert(pid);
                    failed.insert(recorded);
                    let (from, to) = (text::visible(&group.path), text::visible(&target.path));
                    result.left.push(format!(
                        "process {pid} stays in {from}: {to}, where it came from, was removed; write its PID to cgroup.procs \
                         of another cgroup, or end it"
                    ));
                }
                Err(error) if error.errno == Errno::ESRCH => again = true,
                Err(error) => {
                    stuck.insert(pid);
                    failed.insert(recorded);
                    result.failed.push(error.to_string());
                }
            }
        }
        if !again {
            break;
        }
    }
    let shown = group.shown();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (to, _) in moved.into_values() {
        *counts.entry(to).or_default() += 1;
    }
    result.done.extend(counts.into_iter().map(|(to, count)| {
        let processes = if count == 1 { "process" } else { "processes" };
        format!("{count} {processes} of {shown} back in {to}")
    }));
}

/// Moves the process if the target group is still the same one; returns whether it was moved. `low` is set if the
/// process leaves a group below level 0 (`cpu.qos_level`), and contains the recorded attributes of threads.
fn put(
    host: &mut dyn Host,
    process: ProcessId,
    (group, target): (&Target, &Target),
    (hierarchies, low): (&[Hierarchy], Option<&Kept>),
) -> Result<bool, HostError> {
    let dir = match host.open(&target.place()) {
        Err(error) if is_gone(&error) => return Ok(false),
        opened => opened?,
    };
    let same = dir.inode == target.inode;
    let written = match same {
        // This comes before the move, because processes that have left the group are not examined again.
        true => leave(host, process, dir, low)
            .and_then(|()| write_number(host, process, (hierarchies, group), dir)),
        false => Ok(()),
    };
    host.close(dir);
    written.map(|()| same)
}

/// Gives the threads of a process the normal policy, if they leave a group below level 0 and their new group is not
/// below level 0.
fn leave(host: &mut dyn Host, process: ProcessId, to: Dir, low: Option<&Kept>) -> Result<(), HostError> {
    match low {
        Some(kept) if level::of(host, to).is_none_or(|level| level >= 0) => {
            let tasks = host.list(Path::new(&format!("/proc/{}/task", process.pid))).unwrap_or_default();
            level::make_normal(host, tasks.iter().filter_map(|tid| tid.parse().ok()), kept)
        }
        _ => Ok(()),
    }
}

/// Moves a process out of a group by its PID. If the PID was reused since the list was read, nothing is written
/// (`ESRCH`); if it was reused during the write, that is reported as an error (`EBUSY`).
fn write_number(
    host: &mut dyn Host,
    process: ProcessId,
    (hierarchies, group): (&[Hierarchy], &Target),
    dir: Dir,
) -> Result<(), HostError> {
    let held = host.process(process.pid)?;
    let object = format!("pid {}", process.pid);
    let gone = HostError { operation: "move", object, value: None, errno: Errno::ESRCH };
    if held.start_ticks != process.start_ticks || !alive(host, &held) {
        return Err(gone);
    }
    let hierarchy = hierarchies.iter().position(|one| one.mount == group.mount).unwrap_or(usize::MAX);
    write_pid(host, process.pid, (hierarchies, hierarchy), (&CgroupPath::new(&group.path), dir))?;
    match alive(host, &held) || identity(host, process.pid).is_none() {
        true => Ok(()),
        false => {
            Err(HostError { operation: "move no other process instead of", errno: Errno::EBUSY, ..gone })
        }
    }
}
