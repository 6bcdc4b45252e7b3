//! Restores by recreating groups, and completes interrupted replacements.
//!
//! The journal has a record before a group is replaced, and the new inodes right after: whenever a crash happens, the
//! next restore finds the old group, or the fresh one beside it, or the fresh one in its place.

use super::outcome::Left;
use crate::drivers::recreate;
use crate::journal::{self, Contents, Record, Target};
use commensal_core::knob::KnobId;
use commensal_core::text;
use commensal_host::{Host, HostError, below};
use std::path::Path;

/// Completes every replacement that was begun; returns those that failed, and why.
pub(super) fn finish(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    done: &mut Vec<String>,
) -> Vec<(Target, HostError)> {
    let mut open: Vec<Target> = Vec::new();
    for record in &contents.records {
        match record {
            Record::Recreating(target) => open.push(target.clone()),
            Record::Original { group, knob, .. } => {
                let begun = is_half_done(host, group, knob) && !open.contains(group);
                open.extend(begun.then(|| group.clone()));
            }
            _ => {}
        }
    }
    let mut stuck = Vec::new();
    for target in open {
        match again(host, journal, contents, &target) {
            Ok(line) => done.push(line),
            Err(error) => stuck.push((target, error)),
        }
    }
    stuck
}

/// Completes one replacement; returns a description.
pub(super) fn again(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    target: &Target,
) -> Result<String, HostError> {
    if !replaced(host, target) {
        recreate::recreate(host, &target.mount, &target.path)?;
    }
    over(host, journal, contents, target)?;
    let shown = text::path(&below(Path::new(&target.mount), &target.path));
    Ok(format!("{shown} is a fresh group with the same settings and members"))
}

/// Whether the group of this original is half replaced: then groups at or below its path cannot be found by inode.
pub(super) fn is_half_done(host: &mut dyn Host, group: &Target, knob: &str) -> bool {
    knob == KnobId::CpuQosLevel.to_string() && recreate::is_begun(host, &group.mount, &group.path)
}

/// Restores a level that the kernel does not raise again: the members move to a fresh group.
pub(super) fn restore_by_recreating(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    group: &Target,
    file: &str,
    value: &str,
) -> Result<Option<String>, Left> {
    let record = journal::line(&Record::Recreating(group.clone()));
    let recreated = host
        .state_append(journal, &record)
        .and_then(|()| recreate::recreate(host, &group.mount, &group.path))
        .and_then(|_| over(host, journal, contents, group));
    recreated.map_err(Left::Failed)?;
    let shown = text::path(&below(Path::new(&group.mount), &group.path).join(file));
    Ok(Some(format!("{shown} is {value} again, in a fresh group with the same settings and members")))
}

/// Whether another group has the name already, and no fresh one is waiting beside it.
fn replaced(host: &mut dyn Host, target: &Target) -> bool {
    let Ok(dir) = host.open(&below(Path::new(&target.mount), &target.path)) else { return false };
    host.close(dir);
    dir.inode != target.inode && !recreate::is_begun(host, &target.mount, &target.path)
}

/// Applies the records of the group and of those below it to the groups that exist now.
fn over(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    target: &Target,
) -> Result<(), HostError> {
    let inside = format!("{}/", target.path);
    for record in &mut contents.records {
        let (Record::Created(group)
        | Record::Cookied(group)
        | Record::Enabling { group, .. }
        | Record::Original { group, .. }) = record
        else {
            continue;
        };
        let replaced =
            group.mount == target.mount && (group.path == target.path || group.path.starts_with(&inside));
        if replaced && let Ok(dir) = host.open(&below(Path::new(&group.mount), &group.path)) {
            group.inode = dir.inode;
            host.close(dir);
        }
    }
    // The record keeps its index, so that the others keep theirs: a group that was recreated needs nothing more.
    for record in &mut contents.records {
        if *record == Record::Recreating(target.clone()) {
            *record = Record::Creating {
                mount: target.mount.clone(),
                path: format!("{}{}", target.path, recreate::ASIDE),
            };
        }
    }
    // Damaged lines have to be saved first.
    if contents.damaged.is_empty() {
        let text: String = contents.records.iter().map(journal::line).collect();
        host.state_replace(journal, &text)?;
    }
    Ok(())
}
