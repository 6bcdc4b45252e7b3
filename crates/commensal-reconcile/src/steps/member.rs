//! Scheduling attributes of the threads in groups below level 0 (`cpu.qos_level` of openEuler's kernel, which makes
//! these threads `SCHED_IDLE`). Journals the attributes before the kernel changes them, and restores them when the
//! threads have left all groups below level 0.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Refusal, Work, host_error};
use crate::drivers::level::{self, Given, Thread};
use crate::drivers::lifted_group::lower;
use crate::journal::{Journal, Lifting, Member, Mounts, Record, Target, fits};
use crate::restore::{Left, Undo, Undone};
use commensal_core::actual::{CgroupPath, CgroupRef, Hierarchy};
use commensal_core::knob::Controller;
use commensal_core::plan::{Action, Movement, Step};
use commensal_core::text;
use commensal_host::{Dir, Host, Scheduling, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl Work<'_> {
    /// Journals the attributes of all threads in and below a group whose level is about to be set below 0.
    pub(super) fn record_members(&mut self, place: &CgroupRef, journal: &mut Journal) -> Result<(), Refusal> {
        let Ok(dir) = self.dir(place) else { return Ok(()) };
        let tids = level::threads_at_0(self.host, dir).map_err(|error| host_error(error, None))?;
        let target = self.target(place, dir);
        let records = self.of_threads(&target, tids)?;
        self.append(&records, journal)
    }

    /// Writes records to the journal. A thread whose record could not be written counts as unrecorded, so that a later
    /// attempt, or the way back, records it.
    pub(super) fn append(&mut self, records: &[Record], journal: &mut Journal) -> Result<(), Refusal> {
        let written = journal.append(self.host, records);
        self.kept = journal.members();
        Ok(written?)
    }

    /// Returns the records of the threads of a process that is about to be moved, if its new group is below level 0.
    pub(super) fn of_moved(&mut self, movement: &Movement) -> Result<Vec<Record>, Refusal> {
        let Some((place, dir)) = self.low(&movement.to)? else { return Ok(Vec::new()) };
        let target = self.target(&place, dir);
        let tids = self.tasks(movement.process.pid);
        self.of_threads(&target, tids)
    }

    fn of_threads(&mut self, target: &Target, tids: Vec<u32>) -> Result<Vec<Record>, Refusal> {
        let (records, left_out) = level::records(self.host, target, tids, &mut self.kept)
            .map_err(|error| host_error(error, None))?;
        if left_out > 0 {
            self.outcome.told.push(format!(
                "{left_out} threads of {} have scheduling policies that the journal does not record, because it has records of \
                 {} threads already: undo gives these threads SCHED_OTHER",
                target.shown(),
                level::MOST
            ));
        }
        Ok(records)
    }

    /// Returns the threads of a process that are about to leave a group below level 0. The caller must give them the
    /// normal policy.
    pub(super) fn leaving_low(
        &mut self,
        pid: u32,
        (hierarchy, to): (usize, Dir),
    ) -> Result<Vec<Thread>, Refusal> {
        let level =
            commensal_sensors::level::level(self.host, to).map_err(|error| host_error(error, None))?;
        if level.is_none_or(|level| level < 0) {
            return Ok(Vec::new());
        }
        let now = self.whereabouts(pid).remove(&hierarchy).unwrap_or_default();
        if self.low(&[(hierarchy, now)].into())?.is_none() {
            return Ok(Vec::new());
        }
        let tids = self.tasks(pid);
        level::unrecorded(self.host, tids, &self.kept).map_err(|error| host_error(error, None))
    }

    fn tasks(&self, pid: u32) -> Vec<u32> {
        let tasks = self.host.list(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default();
        tasks.iter().filter_map(|tid| tid.parse().ok()).collect()
    }

    /// Returns the group of the cpu hierarchy among `groups`, if its level is below 0.
    fn low(&mut self, groups: &BTreeMap<usize, CgroupPath>) -> Result<Option<(CgroupRef, Dir)>, Refusal> {
        let hierarchy = self.actual.hierarchy_of(Controller::Cpu);
        let path = hierarchy.and_then(|hierarchy| Some((hierarchy, groups.get(&hierarchy)?.clone())));
        let Some((hierarchy, path)) = path else { return Ok(None) };
        let place = CgroupRef { hierarchy, path };
        // A group that no longer exists has no level.
        let Ok(dir) = self.dir(&place) else { return Ok(None) };
        let level =
            commensal_sensors::level::level(self.host, dir).map_err(|error| host_error(error, None))?;
        Ok(level.filter(|level| *level < 0).map(|_| (place, dir)))
    }

    /// Restores the attributes of recorded threads that are no longer in a group below level 0, if these steps, or
    /// undoing them, may have moved threads out of such groups. Returns the threads whose records can be dropped, and
    /// messages about threads for which the kernel refused. The records of the refused threads stay, for `restore`; while
    /// a group is replaced only in part, all stay, because completing that needs them.
    pub(crate) fn give_back(&mut self, steps: &[Step], journal: &Journal) -> (BTreeSet<Thread>, Vec<String>) {
        let (mut given, mut refused) = (BTreeSet::new(), Vec::new());
        let leaves = |step: &Step| {
            matches!(step.action, Action::Irreversible { .. } | Action::Recreate { .. } | Action::Move(_))
        };
        if !steps.iter().any(leaves) {
            return (given, refused);
        }
        let in_part = journal.recreating().next().is_some();
        for member in journal.of_members() {
            match level::put_back(self.host, &self.actual.hierarchies, &member) {
                Ok(Given::Back(_) | Given::Settled) if !in_part => drop(given.insert(member.thread())),
                Ok(_) => {}
                Err(error) => refused.push(format!("{error}; `commensal restore` tries it again")),
            }
        }
        (given, refused)
    }
}

impl Kind for Member {
    fn facts(&self) -> Facts<'_> {
        // A thread keeps SCHED_IDLE as long as it is in a group below level 0.
        Facts { rank: Rank::Threads, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("thread {} of {} had {}", self.tid, self.group.shown(), self.scheduling)
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let scheduling = &self.scheduling;
        fits::place(&self.group)
            .or_else(|| (!scheduling.is_possible()).then(|| format!("no thread has {scheduling}")))
    }

    fn subject(&self) -> Option<Record> {
        // The group may have been replaced since, or the thread moved to another group.
        let group = Target { mount: String::new(), path: String::new(), inode: 0 };
        Some(Record::Member(Member { group, scheduling: Scheduling::default(), ..*self }))
    }

    /// Restores the thread's attributes, unless the thread is in a group below level 0.
    fn finish(&self, host: &mut dyn Host, hierarchies: &[Hierarchy]) -> Undone {
        match level::put_back(host, hierarchies, self)? {
            Given::Back(line) => Ok(Some(line)),
            Given::Settled => Ok(None),
            // The record of the group gives the reason why the thread is still in the group.
            Given::Below => Err(Left::Waits),
        }
    }

    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        self.finish(host, &undo.hierarchies)
    }
}

impl Kind for Lifting {
    fn facts(&self) -> Facts<'_> {
        // Lifted members are moved back before anything is undone.
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        let to = text::path(&below(Path::new(&self.group.mount), &self.to));
        format!("members of {} may be in {to}", self.group.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let Lifting { group, to } = self;
        fits::place(group)
            .or_else(|| fits::cgroup(&group.mount, to))
            .or_else(|| (!group.lifts_to(to)).then(|| format!("{to:?} is not a group for lifted members")))
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.group, "lifting".to_owned()))
    }

    /// Moves the members back. No mark is needed as a proof: the name of the group that contains them now has a prefix that
    /// no other program uses, and the inode of the members' own group.
    fn finish(&self, host: &mut dyn Host, _: &[Hierarchy]) -> Undone {
        lower(host, self)?;
        Ok(None)
    }

    fn undo(&self, _: &mut dyn Host, _: &mut Undo<'_>) -> Undone {
        // `finish` has moved the members back by then.
        Ok(None)
    }
}
