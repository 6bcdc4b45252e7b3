//! Sets levels (`cpu.qos_level` of openEuler's kernel), and undoes them. The kernel does not allow a level to be raised
//! again, so undoing a level moves the members to a fresh group that replaces the old one.
//!
//! The journal gets a record before a group is replaced, and the new inodes right after. After a crash at any point, the
//! next restore finds the old group, or the old and the fresh group, or the fresh group under the old name.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Applied, Refusal, Work, host_error};
use crate::drivers::{level, members, recreate};
use crate::hand;
use crate::journal::{
    self, Contents, Created, Creating, Journal, Mounts, Original, Record, Recreating, Target, fits,
};
use crate::restore::{Left, Undo, Undone, proof, target};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::knob::{KnobId, Value};
use commensal_core::text;
use commensal_host::{Host, HostError, below};
use std::collections::BTreeSet;
use std::path::Path;

impl Work<'_> {
    /// Writes a level, after recording the scheduling attributes that the kernel will change in the members. At a level
    /// above 0 a thread may have any attributes, so this function restores them at once.
    pub(super) fn set_level(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        self.record_members(place, journal)?;
        let written = self.write(place, (knob, None), to);
        // Uses what the file reads now, because the kernel may have changed the written value.
        let dir = self.dir(place)?;
        if level::of(self.host, dir).is_some_and(|now| now > 0) {
            for member in journal.of_members() {
                // Attributes that the kernel refuses now are tried again at the end of the plan, which then reports a
                // refusal.
                let _ = level::put_back(self.host, &self.actual.hierarchies, &member);
            }
        }
        written
    }

    /// Moves the members to a fresh group. The journal gets a record first, so that an interrupted replacement can be
    /// completed later.
    pub(super) fn recreate(
        &mut self,
        place: &CgroupRef,
        knob: KnobId,
        to: &Value,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let (mount, target) = (self.mount(place), self.target(place, dir));
        journal.append(self.host, &[Record::Recreating(Recreating(target))])?;
        // Open directories of the group and of groups below it will be those of removed groups.
        let stale = self
            .dirs
            .keys()
            .filter(|open| open.hierarchy == place.hierarchy && place.path.contains(&open.path));
        for open in stale.cloned().collect::<Vec<_>>() {
            if let Some(dir) = self.dirs.remove(&open) {
                self.host.close(dir);
            }
        }
        let recreated = recreate::recreate(self.host, &mount, place.path.as_str(), &self.kept)
            .map_err(|error| host_error(error, Some(knob)))?;
        for group in &recreated {
            let place = CgroupRef { hierarchy: place.hierarchy, path: CgroupPath::new(&group.path) };
            self.recreated.insert(place, group.new);
        }
        journal.recreated(self.host, &mount, &recreated)?;
        let file = self.file(place, knob)?;
        let dir = self.dir(place)?;
        let read = self.host.read(dir, file.name).map_err(|error| host_error(error, Some(knob)))?;
        let (place, want, read) = (self.actual.show(place), to.to_string(), read.trim().to_owned());
        if read != want {
            return Err(Refusal::ReadBack { place, file: file.name, want, read });
        }
        self.outcome.applied.push(Applied { place, file: file.name, want, read });
        Ok(())
    }
}

impl Kind for Recreating {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Values, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("{} is about to be replaced by a fresh group", self.0.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::place(&self.0)
    }

    /// `restore` completes replacements apart from other records ([`Undo::is_stuck`]), and reports there what it could not
    /// complete.
    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        Err(Left::Waits)
    }
}

/// Replacements that were not completed.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// The replacements that failed, and the errors.
    pub stuck: Vec<(Target, HostError)>,
    /// Messages about replacements without a mark (the proof that commensal began them), which are not continued.
    pub denied: BTreeSet<String>,
    /// Whether records of other programs' groups were dropped because the groups no longer exist, and the file still
    /// has these records.
    pub dropped: bool,
}

/// Completes every replacement that was begun.
pub(crate) fn finish(
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
pub(crate) fn again(
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
    journal::store(host, journal, contents)
}

/// Replaces every group that commensal created, that is below level 0 and that contains processes, by a fresh group at
/// level 0: below it, they might get no CPU time while online work is busy, not even to handle the signal that asks them to
/// end. Groups whose replacement failed and may be incomplete are stuck then.
pub(crate) fn raise(host: &mut dyn Host, undo: &mut Undo<'_>) {
    let created = undo.contents.records.iter().filter_map(|record| match record {
        Record::Created(Created(target)) => Some(target.clone()),
        _ => None,
    });
    let mut groups: Vec<Target> = created.collect();
    groups.sort_by_key(|group| group.path.matches('/').count());
    let mut raised: Vec<Target> = Vec::new();
    for group in groups {
        let is_above = |one: &Target| {
            one.mount == group.mount
                && group.path.strip_prefix(&one.path).is_some_and(|rest| rest.starts_with('/'))
        };
        // A group is replaced together with all groups below it.
        if raised.iter().any(is_above) {
            continue;
        }
        let Ok(Some(dir)) = target::open(host, &group) else { continue };
        let stays = level::of(host, dir).is_some_and(|level| level < 0) && members::others(host, dir);
        host.close(dir);
        if !stays {
            continue;
        }
        match restore_by_recreating(host, undo, (&group, commensal_sensors::level::FILE, "0")) {
            Ok(Some(line)) => {
                let why = "below level 0 they might get no CPU time and could never exit";
                undo.result.done.push(format!("{line}, because {why}"));
            }
            // The reason is reported later, when the group cannot be removed.
            Ok(None) | Err(Left::Busy(_) | Left::Denied(_) | Left::Waits) => {}
            Err(Left::Failed(error)) => undo.stuck.push((group.clone(), error.to_string())),
        }
        raised.push(group);
    }
}
