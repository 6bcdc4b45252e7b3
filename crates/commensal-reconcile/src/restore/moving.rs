//! Moves processes back to their original cgroups, with their descendants.
//!
//! The processes that are in the group now matter, not those that were moved: a recorded process goes to its recorded
//! group; another one goes with its nearest recorded ancestor, or with a recorded process of the same process group,
//! whose ID cannot be reused while it has members. A process whose original cgroup is gone stays, and so does the
//! group.

use super::outcome::Restored;
use crate::drivers::apply::{alive, identity};
use crate::drivers::members;
use crate::journal::{Contents, Record, Target};
use commensal_core::errno::Errno;
use commensal_core::member::ProcessId;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of passes over a group whose processes keep forking.
const LOOKS: u32 = 100;

/// Tries to move one process that is there again each time.
const TRIES: u32 = 3;

/// Parents that are followed upwards.
const GENERATIONS: u32 = 64;

/// The journal's facts about one process.
#[derive(Debug, Default)]
struct Origin {
    pgrp: u32,
    /// By mount point: the first recorded group is the original one.
    from: BTreeMap<String, Target>,
}

/// Moves processes back. Returns the indices in `contents` of the records that remain.
pub(super) fn back(host: &mut dyn Host, contents: &Contents, result: &mut Restored) -> BTreeSet<usize> {
    let mut origins: BTreeMap<ProcessId, Origin> = BTreeMap::new();
    let mut groups: BTreeSet<&Target> = BTreeSet::new();
    for record in &contents.records {
        let Record::Moving { pgrp, from, to, .. } = record else { continue };
        let Some(process) = record.process() else { continue };
        let origin = origins.entry(process).or_default();
        origin.pgrp = *pgrp;
        for target in from {
            origin.from.entry(target.mount.clone()).or_insert_with(|| target.clone());
        }
        groups.extend(to);
    }
    let mut failed = BTreeSet::new();
    for group in groups {
        let Ok(dir) = host.open(&below(Path::new(&group.mount), &group.path)) else { continue };
        if dir.inode == group.inode {
            empty(host, group, dir, &origins, result, &mut failed);
        }
        host.close(dir);
    }
    let stands = |record: &Record| record.process().is_some_and(|process| failed.contains(&process));
    let standing = contents.records.iter().enumerate().filter(|(_, record)| stands(record));
    standing.map(|(index, _)| index).collect()
}

fn empty(
    host: &mut dyn Host,
    group: &Target,
    dir: Dir,
    origins: &BTreeMap<ProcessId, Origin>,
    result: &mut Restored,
    failed: &mut BTreeSet<ProcessId>,
) {
    let mut moved: BTreeMap<ProcessId, (String, u32)> = BTreeMap::new();
    let mut stuck: BTreeSet<u32> = BTreeSet::new();
    for _ in 0..LOOKS {
        let inside = members::pids(host, dir).unwrap_or_default();
        // A process that was moved, or has exited since the list was read, may have started others meanwhile.
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
            let Some(target) = home_of(host, process, &group.mount, origins) else {
                again |= identity(host, pid).is_none();
                continue;
            };
            if moved.get(&process).is_some_and(|(_, times)| *times >= TRIES) {
                moved.remove(&process);
                stuck.insert(pid);
                failed.insert(process);
                let (from, to) = (&group.path, &target.path);
                result.failed.push(format!(
                    "process {pid} was moved to {to} {TRIES} times and is in {from} again: somebody else moves it"
                ));
                continue;
            }
            match put(host, process, target) {
                Ok(true) => {
                    again = true;
                    moved.entry(process).or_insert_with(|| (target.path.clone(), 0)).1 += 1;
                }
                Ok(false) => {
                    stuck.insert(pid);
                    let (from, to) = (text::visible(&group.path), text::visible(&target.path));
                    result
                        .left
                        .push(format!("process {pid} stays in {from}: {to}, where it came from, is gone"));
                }
                Err(error) if error.errno == Errno::ESRCH => again = true,
                Err(error) => {
                    stuck.insert(pid);
                    failed.insert(process);
                    result.failed.push(error.to_string());
                }
            }
        }
        if !again {
            break;
        }
    }
    let shown = text::path(&below(Path::new(&group.mount), &group.path));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (to, _) in moved.into_values() {
        *counts.entry(to).or_default() += 1;
    }
    result.done.extend(counts.into_iter().map(|(to, count)| {
        let processes = if count == 1 { "process" } else { "processes" };
        format!("{count} {processes} of {shown} back in {to}")
    }));
}

/// The original group of the process in this hierarchy, or of its nearest recorded ancestor: a process that was born
/// while its parent was moved had its first group in the new place, where the parent had arrived already.
fn home_of<'o>(
    host: &dyn Host,
    process: ProcessId,
    mount: &str,
    origins: &'o BTreeMap<ProcessId, Origin>,
) -> Option<&'o Target> {
    let mut at = process;
    let mut group = None;
    for _ in 0..GENERATIONS {
        if let Some(home) = origins.get(&at).and_then(|origin| origin.from.get(mount)) {
            return Some(home);
        }
        let Some((_, parent, pgrp)) = identity(host, at.pid) else { break };
        group = group.or(Some(pgrp));
        let Some((start_ticks, ..)) = identity(host, parent).filter(|_| parent > 1) else { break };
        at = ProcessId { pid: parent, start_ticks };
    }
    origins.values().filter(|origin| Some(origin.pgrp) == group).find_map(|origin| origin.from.get(mount))
}

/// Moves the process if the group is still the same one; returns whether it did.
fn put(host: &mut dyn Host, process: ProcessId, target: &Target) -> Result<bool, HostError> {
    let dir = match host.open(&below(Path::new(&target.mount), &target.path)) {
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => return Ok(false),
        opened => opened?,
    };
    let same = dir.inode == target.inode;
    let written = match same {
        true => write_number(host, process, dir),
        false => Ok(()),
    };
    host.close(dir);
    written.map(|()| same)
}

/// A PID that was reused since the list was read is not written; a reuse in the very moment of the write is reported.
fn write_number(host: &mut dyn Host, process: ProcessId, dir: Dir) -> Result<(), HostError> {
    let held = host.process(process.pid)?;
    let object = format!("pid {}", process.pid);
    let gone = HostError { operation: "move", object, value: None, errno: Errno::ESRCH };
    if held.start_ticks != process.start_ticks || !alive(host, &held) {
        return Err(gone);
    }
    host.write(dir, "cgroup.procs", &process.pid.to_string())?;
    match alive(host, &held) || identity(host, process.pid).is_none() {
        true => Ok(()),
        false => Err(HostError { operation: "move only the one that ended of", errno: Errno::EBUSY, ..gone }),
    }
}
