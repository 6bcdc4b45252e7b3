//! Moves processes into groups: in every hierarchy or in none, and never another process that has reused the PID.
//!
//! The kernel moves whichever process has a PID at that moment. Therefore this module holds a pidfd of the process,
//! compares its start time, and checks the pidfd before and after each write: if the process was alive both times, no
//! other process had the PID in between. If the process had exited by the second check, another process may have been
//! moved by mistake. That process is moved to its parent's group, because new processes start in the group of their
//! parent.
//!
//! The way back: every process in a recorded group moves to its original cgroup, with or without a record of its own. A
//! process with a record moves to the cgroup in the record. Any other process moves to the cgroup recorded for
//! its nearest ancestor with a record, or for a process of the same process group (the kernel does not reuse a process
//! group's ID while the group has members). If the original cgroup was removed, the process stays, and so do its present
//! group and its record.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{MoveOutcome, Moves, Refusal, Work, host_error};
use crate::drivers::level::{self, Kept};
use crate::drivers::members;
use crate::drivers::processes::{Origins, alive, identity, is, write_pid};
use crate::hand::{self, is_gone};
use crate::journal::{Created, Journal, JournalError, Mounts, Moved, Moving, Record, Target, fits};
use crate::restore::{Restored, Undo, Undone, proof};
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef, Hierarchy, Ours};
use commensal_core::errno::Errno;
use commensal_core::member::ProcessId;
use commensal_core::plan::{Action, Movement, Step};
use commensal_core::text::visible;
use commensal_host::{Dir, Host, HostError, Process};
use commensal_sensors::mounts;
use commensal_sensors::processes::{apart, places};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of passes over a group whose processes keep forking.
const LOOKS: u32 = 100;

/// Maximum number of attempts to move a process that another program moves back.
const TRIES: u32 = 3;

/// A hierarchy in which a process was moved, with its old and new group.
type Shifted = (usize, CgroupPath, CgroupPath);

/// Result of writing the PID to one `cgroup.procs`.
enum Written {
    Arrived,
    Gone,
    Refused(String),
}

impl Work<'_> {
    /// Journals the current groups of the processes that the steps are about to move into commensal's groups.
    pub(crate) fn announce(&mut self, steps: &[Step], journal: &mut Journal) -> Result<(), Refusal> {
        self.moves.known = journal.processes();
        let mut records = Vec::new();
        for movement in steps.iter().filter_map(into_ours) {
            let Some((start_ticks, _, pgrp)) = identity(self.host, movement.process.pid) else { continue };
            if start_ticks != movement.process.start_ticks {
                continue;
            }
            // The plan leaves out such a process; another program may have distributed its threads since.
            let apart = apart(self.host, movement.process.pid, &self.actual.hierarchies);
            if apart.keys().any(|hierarchy| movement.to.contains_key(hierarchy)) {
                self.moves.apart.insert(movement.process);
                continue;
            }
            let record = Record::Moving(Moving {
                pid: movement.process.pid,
                start_ticks,
                pgrp,
                by: movement.by.clone(),
                from: self.targets(&movement.from),
                to: self.targets(&movement.to),
            });
            match journal.has(&record) {
                // A crash after the record was written may have prevented the mark (its copy on the group).
                true => journal.mark(self.host, &record),
                false => records.push(record),
            }
            records.extend(self.of_moved(movement)?);
        }
        self.append(&records, journal)
    }

    /// Returns the groups at these paths with their inodes, without those that no longer exist.
    fn targets(&mut self, paths: &BTreeMap<usize, CgroupPath>) -> Vec<Target> {
        let mut targets = Vec::new();
        for (hierarchy, path) in paths {
            let place = CgroupRef { hierarchy: *hierarchy, path: path.clone() };
            if let Ok(dir) = self.dir(&place) {
                targets.push(self.target(&place, dir));
            }
        }
        targets
    }

    pub(super) fn move_process(&mut self, movement: &Movement) -> Result<(), Refusal> {
        let moved = self.shift(movement)?;
        if let MoveOutcome::Stayed(because, _) = &moved {
            self.outcome.stayed.push(format!("process {} stays where it is: {because}", movement.name));
        }
        self.moves.results.insert(movement.process, moved);
        Ok(())
    }

    fn shift(&mut self, movement: &Movement) -> Result<MoveOutcome, Refusal> {
        let mut done: Vec<Shifted> = Vec::new();
        let held = self.host.process(movement.process.pid);
        let Some(held) = held.ok().filter(|held| held.start_ticks == movement.process.start_ticks) else {
            return Ok(MoveOutcome::Gone);
        };
        if self.moves.apart.contains(&movement.process) {
            return Ok(MoveOutcome::Stayed("its threads are in several cgroups now".to_owned(), true));
        }
        for (hierarchy, to) in &movement.to {
            let Some(from) = movement.from.get(hierarchy) else { continue };
            let now = self.whereabouts(movement.process.pid).remove(hierarchy);
            let Some(now) = now.filter(|_| alive(self.host, &held)) else {
                return Ok(MoveOutcome::Gone);
            };
            if now == *to {
                continue;
            }
            if now != *from {
                let because = format!("another program has moved it to {now} meanwhile");
                return Ok(self.put_back(&held, &done, because));
            }
            let place = CgroupRef { hierarchy: *hierarchy, path: to.clone() };
            let dir = match self.dir(&place) {
                Ok(dir) => dir,
                // The plan controls commensal's groups; groups of other programs may be removed at any time.
                Err(Refusal::Vanished { place }) if movement.by.is_empty() => {
                    return Ok(self.put_back(&held, &done, format!("{place} is gone")));
                }
                Err(refusal) => return Err(refusal),
            };
            let written = match self.write_number(&held, *hierarchy, dir, (from, to)) {
                Ok(written) => written,
                Err(refusal) => {
                    // The process is moved back even if the target group no longer exists. The group itself is checked,
                    // because other causes give the same error number as a missing group.
                    let moved = self.put_back(&held, &done, refusal.to_string());
                    let whole = matches!(moved, MoveOutcome::Stayed(_, true));
                    return if whole && !self.is_there(&place) { Err(refusal) } else { Ok(moved) };
                }
            };
            match written {
                Written::Arrived => done.push((*hierarchy, from.clone(), to.clone())),
                Written::Gone => return Ok(MoveOutcome::Gone),
                Written::Refused(because) => return Ok(self.put_back(&held, &done, because)),
            }
        }
        Ok(MoveOutcome::Moved)
    }

    /// Moves a process. Threads that leave a group below level 0 (`cpu.qos_level`) get the normal policy before the
    /// move, because no later step checks them.
    fn write_number(
        &mut self,
        process: &Process,
        hierarchy: usize,
        dir: Dir,
        (from, to): (&CgroupPath, &CgroupPath),
    ) -> Result<Written, Refusal> {
        let leaving = match self.leaving_low(process.pid, (hierarchy, dir)) {
            Ok(leaving) => leaving,
            Err(refusal) => return Ok(Written::Refused(refusal.to_string())),
        };
        let tids = leaving.iter().map(|(tid, _)| *tid);
        let written = match level::make_normal(self.host, tids, &self.kept) {
            Ok(()) => self.write_normal(process, hierarchy, dir, (from, to)),
            Err(error) => Ok(Written::Refused(error.to_string())),
        };
        if matches!(written, Ok(Written::Refused(_)) | Err(_)) {
            level::make_idle(self.host, &leaving);
        }
        written
    }

    fn write_normal(
        &mut self,
        process: &Process,
        hierarchy: usize,
        dir: Dir,
        (from, to): (&CgroupPath, &CgroupPath),
    ) -> Result<Written, Refusal> {
        let hierarchies = (self.actual.hierarchies.as_slice(), hierarchy);
        match write_pid(self.host, process.pid, hierarchies, (from, dir)) {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESRCH && !alive(self.host, process) => {
                return Ok(Written::Gone);
            }
            Err(error) if is_gone(&error) => {
                return Err(host_error(error, None));
            }
            Err(error) => return Ok(Written::Refused(error.to_string())),
        }
        let now = self.whereabouts(process.pid).remove(&hierarchy);
        if !alive(self.host, process) {
            self.stranger(process.pid, hierarchy, to);
            return Ok(Written::Gone);
        }
        Ok(match now {
            Some(now) if now == *to => Written::Arrived,
            Some(now) => {
                Written::Refused(format!("it was moved, but is now in {now}: another program has moved it"))
            }
            None => Written::Gone,
        })
    }

    /// Handles a PID that another process may have reused before or after the write: if that process was moved by
    /// mistake, moves it to its parent's group.
    fn stranger(&mut self, pid: u32, hierarchy: usize, to: &CgroupPath) {
        let Some((_, parent, _)) = identity(self.host, pid) else { return };
        let now = self.whereabouts(pid).remove(&hierarchy);
        let home = self.whereabouts(parent).remove(&hierarchy);
        let (Some(now), Some(home)) = (now, home) else { return };
        if now != *to || home == *to {
            return;
        }
        let back = self.dir(&CgroupRef { hierarchy, path: home.clone() }).and_then(|dir| {
            let written = self.host.write(dir, "cgroup.procs", &pid.to_string());
            written.map_err(|error| host_error(error, None))
        });
        let said = match back {
            Ok(()) => format!("was moved to {home}, where its parent is"),
            Err(refusal) => format!("could not be moved to {home}, where its parent is: {refusal}"),
        };
        self.outcome.stayed.push(format!(
            "process {} exited while it was moved, and another process got its PID: that process {said}",
            pid
        ));
    }

    /// Moves a process back in all hierarchies after a move failed in one hierarchy.
    fn put_back(&mut self, held: &Process, done: &[Shifted], because: String) -> MoveOutcome {
        let mut whole = true;
        for (hierarchy, from, to) in done {
            let place = CgroupRef { hierarchy: *hierarchy, path: from.clone() };
            let back = match self.dir(&place) {
                Ok(dir) => self.write_number(held, *hierarchy, dir, (to, from)),
                Err(refusal) => Err(refusal),
            };
            whole &= matches!(back, Ok(Written::Arrived | Written::Gone));
        }
        match whole {
            true => MoveOutcome::Stayed(because, true),
            false => MoveOutcome::Stayed(
                format!("{because}; in some hierarchies it was moved, and could not be moved back"),
                false,
            ),
        }
    }

    pub(super) fn whereabouts(&self, pid: u32) -> BTreeMap<usize, CgroupPath> {
        places(self.host, Path::new(&format!("/proc/{pid}/cgroup")), &self.actual.hierarchies)
    }

    /// Returns a message if the process of an undone move is still in one of the groups that it should have left.
    pub(crate) fn not_returned(&self, undone: &Movement) -> Option<String> {
        let now = self.whereabouts(undone.process.pid);
        let (_, still) = undone.from.iter().find(|(hierarchy, from)| now.get(hierarchy) == Some(*from))?;
        let because = match self.moves.results.get(&undone.process) {
            Some(MoveOutcome::Stayed(because, _)) => format!(": {because}"),
            _ => String::new(),
        };
        Some(format!("process {} is still in {still}{because}", undone.name))
    }

    /// Whether a process that was moved back is in its original group in every hierarchy in which it was moved. Where
    /// the original group no longer exists, the process must have left commensal's group.
    fn is_home(&self, process: ProcessId) -> bool {
        let Some(moved) = self.actual.ours.moved.get(&process) else { return true };
        let now = self.whereabouts(process.pid);
        moved.to.iter().all(|(hierarchy, ours)| match (now.get(hierarchy), moved.from.get(hierarchy)) {
            (Some(now), Some(home)) => now == home,
            (Some(now), None) => !ours.contains(now),
            (None, _) => false,
        })
    }

    /// Returns the recorded processes whose records are still needed: a process in a group of commensal's would be moved
    /// back to their original group. It is the recorded process itself or, for example, a child that started there.
    fn needed(&mut self, journal: &Journal) -> BTreeSet<ProcessId> {
        let (mut origins, mut groups) = (Origins::default(), BTreeSet::new());
        for record in journal.moving() {
            origins.add(record);
            if let Record::Moving(Moving { to, .. }) = record {
                groups.extend(to);
            }
        }
        let (mut needed, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for group in groups {
            let Ok(Some(dir)) = hand::open(self.host, group) else { continue };
            let inside = members::pids(self.host, dir).unwrap_or_default();
            self.host.close(dir);
            for pid in inside {
                let Some((start_ticks, ..)) = identity(self.host, pid).filter(|_| !seen.contains(&pid))
                else {
                    continue;
                };
                let process = ProcessId { pid, start_ticks };
                if let Some((recorded, _)) = origins.home_of(self.host, process, &group.mount) {
                    needed.insert(recorded);
                    seen.insert(pid);
                }
            }
        }
        needed
    }

    /// Updates the journal: records completed moves as done, and drops the records of processes that stayed in their
    /// group, have exited or were moved back in every hierarchy, unless a record is still needed.
    pub(crate) fn settle_moves(&mut self, steps: &[Step], journal: &mut Journal) -> Result<(), JournalError> {
        let Moves { results: moves, known, .. } = std::mem::take(&mut self.moves);
        if moves.is_empty() {
            return Ok(());
        }
        let mut done = Vec::new();
        let mut over: BTreeSet<ProcessId> =
            journal.processes().into_iter().filter(|process| !is(self.host, *process)).collect();
        for step in steps {
            let Action::Move(movement) = &step.action else { continue };
            let process = movement.process;
            let ProcessId { pid, start_ticks } = process;
            match moves.get(&process) {
                _ if movement.home => {}
                Some(MoveOutcome::Moved) if !movement.by.is_empty() => {
                    done.push(Record::Moved(Moved { pid, start_ticks }));
                }
                Some(MoveOutcome::Moved) if self.is_home(process) => drop(over.insert(process)),
                _ => {}
            }
        }
        // Moved back earlier, but a child was left.
        let waiting =
            self.actual.ours.moved.iter().filter(|(id, moved)| !moved.done && !moves.contains_key(id));
        over.extend(waiting.map(|(id, _)| *id).filter(|id| self.is_home(*id)));
        journal.append(self.host, &done)?;
        let needed = if over.is_empty() { BTreeSet::new() } else { self.needed(journal) };
        journal.forget(self.host, |_, record| {
            record.process().is_some_and(|process| {
                let stayed = matches!(moves.get(&process), Some(MoveOutcome::Stayed(_, true)));
                // Without the record that it was moved, the process may be moved again.
                let keeps = needed.contains(&process) && matches!(record, Record::Moving(_));
                (stayed && !known.contains(&process)) || (over.contains(&process) && !keeps)
            })
        })
    }
}

/// Returns the movement, if the step moves a process into a commensal group.
fn into_ours(step: &Step) -> Option<&Movement> {
    match &step.action {
        Action::Move(movement) if !movement.by.is_empty() && !movement.home => Some(movement),
        _ => None,
    }
}

impl Kind for Moving {
    fn facts(&self) -> Facts<'_> {
        // `restore` empties the groups of all records together, before it undoes other records of this rank.
        Facts { rank: Rank::Threads, group: None, proof: true }
    }

    fn words(&self) -> String {
        let mut text = format!("process {} was selected by {}", self.pid, visible(&self.by));
        for (word, groups) in [("from", &self.from), ("to", &self.to)] {
            let groups: Vec<String> = groups.iter().map(Target::shown).collect();
            text += &format!(" {word} {}", groups.join(", "));
        }
        text
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        self.from.iter().chain(&self.to).find_map(fits::place)
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((self.to.first()?, format!("moving.{}.{}", self.pid, self.start_ticks)))
    }

    fn claim(&self, actual: &ActualState, ours: &mut Ours) {
        let process = ProcessId { pid: self.pid, start_ticks: self.start_ticks };
        let moved = ours.moved.entry(process).or_default();
        for place in self.from.iter().filter_map(|target| target.find(actual)) {
            moved.from.entry(place.hierarchy).or_insert(place.path);
        }
        let to = self.to.iter().filter_map(|target| target.find(actual));
        moved.to.extend(to.map(|place| (place.hierarchy, place.path)));
        (moved.by, moved.done) = (self.by.clone(), false);
    }

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // `restore` has moved the processes back by then ([`back`]).
        Ok(None)
    }
}

impl Kind for Moved {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Threads, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("process {} was moved", self.pid)
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        None
    }

    fn claim(&self, _: &ActualState, ours: &mut Ours) {
        let process = ProcessId { pid: self.pid, start_ticks: self.start_ticks };
        ours.moved.entry(process).or_default().done = true;
    }

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // See `Moving`.
        Ok(None)
    }
}

/// Moves processes back. Returns the indices in `contents` of the records that remain. Records of moves without a mark
/// (the proof that commensal moved the process) remain as well, with a message in `denied`.
pub(crate) fn back(host: &mut dyn Host, undo: &mut Undo<'_>) -> BTreeSet<usize> {
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
                left.note(result, &mut undo.denied);
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
        let Ok(Some(dir)) = hand::open(host, group) else { continue };
        let kept = level::kept(&contents.records);
        empty(host, (group, dir), (&origins, &kept, &hierarchies), result, &mut failed);
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
                    let (from, to) = (visible(&group.path), visible(&target.path));
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
    let Some(dir) = hand::open(host, target)? else { return Ok(false) };
    // The policy comes before the move, because processes that have left the group are not examined again.
    let written =
        leave(host, process, dir, low).and_then(|()| write_number(host, process, (hierarchies, group), dir));
    host.close(dir);
    written.map(|()| true)
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
