//! Scheduling attributes of the threads in groups below level 0 (`cpu.qos_level` of openEuler's kernel, which makes
//! these threads `SCHED_IDLE`). Journals the attributes before the kernel changes them, and restores them when the
//! threads have left all groups below level 0.

use super::{Refusal, Work, host_error};
use crate::drivers::level::{self, Given, Thread};
use crate::journal::{Journal, Record, Target};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::knob::Controller;
use commensal_core::plan::{Action, Movement, Step};
use commensal_core::text;
use commensal_host::{Dir, below};
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
                text::path(&below(Path::new(&target.mount), &target.path)),
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
    pub(super) fn give_back(&mut self, steps: &[Step], journal: &Journal) -> (BTreeSet<Thread>, Vec<String>) {
        let (mut given, mut refused) = (BTreeSet::new(), Vec::new());
        let leaves = |step: &Step| {
            matches!(step.action, Action::Irreversible { .. } | Action::Recreate { .. } | Action::Move(_))
        };
        if !steps.iter().any(leaves) {
            return (given, refused);
        }
        let in_part = journal.recreating().next().is_some();
        for record in journal.of_members() {
            let Record::Member { group, tid, start_ticks, scheduling } = &record else { continue };
            let thread = (*tid, *start_ticks);
            let hierarchies = &self.actual.hierarchies;
            match level::put_back(self.host, hierarchies, &group.mount, thread, scheduling) {
                Ok(Given::Back(_) | Given::Settled) if !in_part => drop(given.insert(thread)),
                Ok(_) => {}
                Err(error) => refused.push(format!("{error}; `commensal restore` tries it again")),
            }
        }
        (given, refused)
    }
}

/// Whether the record is about one of these threads.
pub(super) fn is_member(record: &Record, threads: &BTreeSet<Thread>) -> bool {
    match record {
        Record::Member { tid, start_ticks, .. } => threads.contains(&(*tid, *start_ticks)),
        _ => false,
    }
}
