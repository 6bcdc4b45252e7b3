//! Restores levels (`cpu.qos_level`, which cannot be raised again) by replacing the group with a fresh one, and
//! completes interrupted replacements.
//!
//! The journal gets a record before a group is replaced, and the new inodes right after. After a crash at any point,
//! the next restore finds the old group, or the old and the fresh group, or the fresh group under the old name.

use super::outcome::{Left, Undone};
use super::proof;
use super::undo::Undo;
use crate::drivers::{level, recreate};
use crate::hand;
use crate::journal::{self, Contents, Creating, Original, Record, Recreating, Target};
use commensal_core::knob::KnobId;
use commensal_core::text;
use commensal_host::{Host, HostError, below};
use std::collections::BTreeSet;
use std::path::Path;

/// Replacements that were not completed.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// The replacements that failed, and the errors.
    pub stuck: Vec<(Target, HostError)>,
    /// Messages about replacements without a mark (the proof that commensal began them), which are not continued.
    pub denied: BTreeSet<String>,
    /// Whether records of other programs' groups were dropped because the groups no longer exist, and the file still
    /// has these records.
    pub dropped: bool,
}

/// Completes every replacement that was begun.
pub(super) fn finish(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    owners: &BTreeSet<String>,
    done: &mut Vec<String>,
) -> Unfinished {
    // One target for each path: completing the replacement of a group updates the records of all groups at or below its
    // path.
    let mut open: Vec<Target> = Vec::new();
    let mut paths: BTreeSet<(String, String)> = BTreeSet::new();
    let mut unfinished = Unfinished::default();
    for record in &mut contents.records {
        let target = match record {
            Record::Recreating(Recreating(target)) => Some(target.clone()),
            Record::Original(one) if is_half_done(host, one) => Some(one.group.clone()),
            _ => None,
        };
        let Some(target) = target else { continue };
        if is_gone(host, &target) {
            settle(record);
            unfinished.dropped = true;
        } else if paths.insert((target.mount.clone(), target.path.clone())) {
            open.push(target);
        }
    }
    for target in open {
        match again(host, journal, contents, owners, &target) {
            Ok(line) => done.push(line),
            Err(Left::Failed(error)) => unfinished.stuck.push((target, error)),
            Err(Left::Busy(line) | Left::Denied(line)) => drop(unfinished.denied.insert(line)),
            Err(Left::Waits) => {}
        }
    }
    unfinished
}

/// Completes one replacement; returns a message about it.
pub(super) fn again(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    owners: &BTreeSet<String>,
    target: &Target,
) -> Result<String, Left> {
    // If the group is replaced already, only the records change. The mark may have been removed with the old group.
    if !replaced(host, target) {
        proof::of_recreation(host, owners, target)?;
        let kept = level::kept(&contents.records);
        recreate::recreate(host, &target.mount, &target.path, &kept)?;
    }
    over(host, journal, contents, target)?;
    Ok(format!("{} is a fresh group with the same settings and members", target.shown()))
}

/// Whether the group of this original is half replaced, so that groups at or below its path cannot be found by inode.
pub(crate) fn is_half_done(host: &mut dyn Host, Original { group, knob, .. }: &Original) -> bool {
    *knob == KnobId::CpuQosLevel.to_string() && recreate::is_begun(host, &group.mount, &group.path)
}

/// Returns the level of the parent group, if that is not 0: a new group inherits it, so a fresh group would have that
/// level as well.
pub(crate) fn level_above(host: &mut dyn Host, group: &Target) -> Option<i64> {
    let (above, _) = group.path.rsplit_once('/')?;
    let dir = host.open(&below(Path::new(&group.mount), above)).ok()?;
    let level = level::of(host, dir);
    host.close(dir);
    level.filter(|level| *level != 0)
}

/// Restores a level that the kernel does not allow to be raised: moves the members to a fresh group.
pub(crate) fn restore_by_recreating(
    host: &mut dyn Host,
    undo: &mut Undo<'_>,
    (group, file, value): (&Target, &str, &str),
) -> Undone {
    proof::of_recreation(host, undo.owners, group)?;
    let shown = text::path(&group.place().join(file));
    let held = level_above(host, group).map(|level| {
        format!("{shown} cannot be {value} again: the group above has level {level}, which every group below it has")
    });
    // A replacement that was begun is completed in any case, because its members may be in two groups.
    if let Some(line) = &held
        && !recreate::is_begun(host, &group.mount, &group.path)
    {
        return Err(Left::Busy(line.clone()));
    }
    let record = journal::line(&Record::Recreating(Recreating(group.clone())));
    let kept = level::kept(&undo.contents.records);
    host.state_append(undo.journal, &record)?;
    recreate::recreate(host, &group.mount, &group.path, &kept)?;
    over(host, undo.journal, undo.contents, group)?;
    match held {
        Some(line) => Err(Left::Busy(line)),
        None => {
            Ok(Some(format!("{shown} is {value} again, in a fresh group with the same settings and members")))
        }
    }
}

/// Whether a fresh group has the name already, so that only the records must be updated. Signs are another inode, or a
/// level that needs no replacement (the group was replaced together with its parent).
fn replaced(host: &mut dyn Host, target: &Target) -> bool {
    let Ok(dir) = host.open(&target.place()) else { return false };
    let file = KnobId::CpuQosLevel.row().v1.map(|file| file.name).unwrap_or_default();
    let is_raised = host.read(dir, file).is_ok_and(|level| level.trim() == "0");
    host.close(dir);
    (is_raised || dir.inode != target.inode) && !recreate::is_begun(host, &target.mount, &target.path)
}

/// Whether neither the group nor a fresh one exists any more: another program removed them, and there is nothing to
/// replace.
fn is_gone(host: &mut dyn Host, target: &Target) -> bool {
    match host.open(&target.place()) {
        Ok(dir) => {
            host.close(dir);
            false
        }
        Err(error) => hand::is_gone(&error) && !recreate::is_begun(host, &target.mount, &target.path),
    }
}

/// Changes a record of a replacement into one that needs no further work. The record is not removed, so that the other
/// records keep their indices.
fn settle(record: &mut Record) {
    if let Record::Recreating(Recreating(target)) = record {
        let path = format!("{}{}", target.path, recreate::ASIDE);
        *record = Record::Creating(Creating { mount: target.mount.clone(), path });
    }
}

/// Updates the records of the group and of groups below it to the inodes of the groups that have their paths now.
fn over(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    target: &Target,
) -> Result<(), HostError> {
    let inside = format!("{}/", target.path);
    for group in contents.records.iter_mut().flat_map(Record::groups_mut) {
        let replaced =
            group.mount == target.mount && (group.path == target.path || group.path.starts_with(&inside));
        if replaced && let Ok(dir) = host.open(&group.place()) {
            group.inode = dir.inode;
            host.close(dir);
        }
    }
    for record in &mut contents.records {
        let is_it = matches!(record, Record::Recreating(Recreating(one)) if one.mount == target.mount && one.path == target.path);
        if is_it {
            settle(record);
        }
    }
    // The damaged lines have to be saved before the journal is rewritten.
    if contents.damaged.is_empty() {
        let text: String = contents.records.iter().map(journal::line).collect();
        host.state_replace(journal, &text)?;
    }
    Ok(())
}
