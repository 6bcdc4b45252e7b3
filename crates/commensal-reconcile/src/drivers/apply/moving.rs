//! Moves processes: in every hierarchy or in none, and never a process that reused the PID.
//!
//! The kernel moves a PID, not a process. So a pidfd of the process is held, its start time is compared, and it is
//! checked before and after each write: if it was alive both times, the PID was its own in between. If it had exited
//! afterwards, the PID may have been reused; a process that was moved by mistake goes back to its parent's group,
//! because that is where it was born.

use super::{Refusal, Work, host_error};
use crate::journal::{Journal, JournalError, Record, Target};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::errno::Errno;
use commensal_core::member::ProcessId;
use commensal_core::plan::{Action, Movement, Step};
use commensal_core::process::Stat;
use commensal_host::{Dir, Host, Process, Signal};
use commensal_sensors::processes::places;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Result of the move of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MoveOutcome {
    /// The process was moved.
    Moved,
    /// The process has exited.
    Gone,
    /// The process was not moved, for this reason; the flag says whether it is in its old group in every hierarchy.
    Stayed(String, bool),
}

/// Result of one write.
enum Written {
    Arrived,
    Gone,
    Refused(String),
}

/// Start time, parent and process group of a process that can still be moved.
pub(crate) fn identity(host: &dyn Host, pid: u32) -> Option<(u64, u32, u32)> {
    let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    (!stat.has_ended()).then_some((stat.start_ticks()?, stat.parent()?, stat.number(5)?))
}

/// Whether the process of this pidfd is still running.
pub(crate) fn alive(host: &mut dyn Host, held: &Process) -> bool {
    host.signal(held, Signal::NONE).is_ok()
}

/// Whether the process is running and has the same identity.
pub(crate) fn is(host: &dyn Host, process: ProcessId) -> bool {
    identity(host, process.pid).is_some_and(|(start_ticks, ..)| start_ticks == process.start_ticks)
}

impl Work<'_> {
    /// Journals the current groups of the processes that are about to be moved into commensal groups.
    pub(super) fn announce(&mut self, steps: &[Step], journal: &mut Journal) -> Result<(), JournalError> {
        self.known = journal.processes();
        let mut records = Vec::new();
        for movement in steps.iter().filter_map(into_ours) {
            let Some((start_ticks, _, pgrp)) = identity(self.host, movement.process.pid) else { continue };
            if start_ticks != movement.process.start_ticks {
                continue;
            }
            let record = Record::Moving {
                pid: movement.process.pid,
                start_ticks,
                pgrp,
                by: movement.by.clone(),
                from: self.targets(&movement.from),
                to: self.targets(&movement.to),
            };
            records.extend(Some(record).filter(|record| !journal.has(record)));
        }
        journal.append(self.host, &records)
    }

    /// The groups' current identities, without those that are gone.
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
        let fate = self.shift(movement)?;
        if let MoveOutcome::Stayed(because, _) = &fate {
            self.outcome.stayed.push(format!("process {} stays where it is: {because}", movement.name));
        }
        self.fates.insert(movement.process, fate);
        Ok(())
    }

    fn shift(&mut self, movement: &Movement) -> Result<MoveOutcome, Refusal> {
        let mut done: Vec<(usize, CgroupPath)> = Vec::new();
        let held = self.host.process(movement.process.pid);
        let Some(held) = held.ok().filter(|held| held.start_ticks == movement.process.start_ticks) else {
            return Ok(MoveOutcome::Gone);
        };
        for (hierarchy, to) in &movement.to {
            let Some(from) = movement.from.get(hierarchy) else { continue };
            if !alive(self.host, &held) {
                return Ok(MoveOutcome::Gone);
            }
            let now = self.whereabouts(movement.process.pid).remove(hierarchy).unwrap_or_default();
            if to.contains(&now) {
                continue;
            }
            if now != *from {
                let because = format!("somebody else has moved it to {now} meanwhile");
                return Ok(self.put_back(&held, &done, because));
            }
            let place = CgroupRef { hierarchy: *hierarchy, path: to.clone() };
            let dir = match self.dir(&place) {
                Ok(dir) => dir,
                // Groups of commensal are under the plan's control; others may vanish at any time.
                Err(Refusal::Vanished { place }) if movement.by.is_empty() => {
                    return Ok(self.put_back(&held, &done, format!("{place} is gone")));
                }
                Err(refusal) => return Err(refusal),
            };
            let written = match self.write_number(&held, *hierarchy, dir, to) {
                Ok(written) => written,
                Err(refusal) => {
                    // What was moved goes back also when the group is gone; and a number that is for a group which is gone may be
                    // said of one that is there.
                    let fate = self.put_back(&held, &done, refusal.to_string());
                    let whole = matches!(fate, MoveOutcome::Stayed(_, true));
                    return if whole && !self.is_there(&place) { Err(refusal) } else { Ok(fate) };
                }
            };
            match written {
                Written::Arrived => done.push((*hierarchy, from.clone())),
                Written::Gone => return Ok(MoveOutcome::Gone),
                Written::Refused(because) => return Ok(self.put_back(&held, &done, because)),
            }
        }
        Ok(MoveOutcome::Moved)
    }

    fn write_number(
        &mut self,
        process: &Process,
        hierarchy: usize,
        dir: Dir,
        to: &CgroupPath,
    ) -> Result<Written, Refusal> {
        match self.host.write(dir, "cgroup.procs", &process.pid.to_string()) {
            Ok(()) => {}
            Err(error) if error.errno == Errno::ESRCH && !alive(self.host, process) => {
                return Ok(Written::Gone);
            }
            Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT) => {
                return Err(host_error(error, None));
            }
            Err(error) => return Ok(Written::Refused(error.to_string())),
        }
        if !alive(self.host, process) {
            self.stranger(process.pid, hierarchy, to);
            return Ok(Written::Gone);
        }
        let now = self.whereabouts(process.pid).remove(&hierarchy);
        Ok(match now {
            Some(now) if to.contains(&now) => Written::Arrived,
            Some(now) => {
                Written::Refused(format!("it was moved and is in {now} again: somebody else moves it"))
            }
            None => Written::Gone,
        })
    }

    /// The PID was reused, before the write or after: the process that has it now must be in its parent's group.
    fn stranger(&mut self, pid: u32, hierarchy: usize, to: &CgroupPath) {
        let Some((_, parent, _)) = identity(self.host, pid) else { return };
        let now = self.whereabouts(pid).remove(&hierarchy);
        let home = self.whereabouts(parent).remove(&hierarchy);
        let (Some(now), Some(home)) = (now, home) else { return };
        if !to.contains(&now) || to.contains(&home) {
            return;
        }
        let back = self.dir(&CgroupRef { hierarchy, path: home.clone() }).and_then(|dir| {
            let written = self.host.write(dir, "cgroup.procs", &pid.to_string());
            written.map_err(|error| host_error(error, None))
        });
        let said = match back {
            Ok(()) => format!("went to {home}, where its parent is"),
            Err(refusal) => format!("could not be put to {home}, where its parent is: {refusal}"),
        };
        self.outcome.stayed.push(format!(
            "process {} ended while it was moved, and another one has its number: that one {said}",
            pid
        ));
    }

    /// Moves a process back in all hierarchies after a failure in one.
    fn put_back(&mut self, held: &Process, done: &[(usize, CgroupPath)], because: String) -> MoveOutcome {
        let mut whole = true;
        for (hierarchy, from) in done {
            let place = CgroupRef { hierarchy: *hierarchy, path: from.clone() };
            let back = match self.dir(&place) {
                Ok(dir) => self.write_number(held, *hierarchy, dir, from),
                Err(refusal) => Err(refusal),
            };
            whole &= matches!(back, Ok(Written::Arrived | Written::Gone));
        }
        match whole {
            true => MoveOutcome::Stayed(because, true),
            false => MoveOutcome::Stayed(
                format!("{because}; in some hierarchies it was moved and could not be put back"),
                false,
            ),
        }
    }

    fn whereabouts(&self, pid: u32) -> BTreeMap<usize, CgroupPath> {
        places(self.host, Path::new(&format!("/proc/{pid}/cgroup")), &self.actual.hierarchies)
    }

    /// Updates the journal: completed moves are recorded as done; processes that stayed, exited or are back are
    /// removed.
    pub(super) fn settle_moves(&mut self, steps: &[Step], journal: &mut Journal) -> Result<(), JournalError> {
        if self.fates.is_empty() {
            return Ok(());
        }
        let mut done = Vec::new();
        let mut back = BTreeSet::new();
        for step in steps {
            let Action::Move(movement) = &step.action else { continue };
            let ProcessId { pid, start_ticks } = movement.process;
            match self.fates.get(&movement.process) {
                Some(MoveOutcome::Moved) if movement.by.is_empty() => drop(back.insert(movement.process)),
                Some(MoveOutcome::Moved) => done.push(Record::Moved { pid, start_ticks }),
                _ => {}
            }
        }
        journal.append(self.host, &done)?;
        let fates = std::mem::take(&mut self.fates);
        let gone: BTreeSet<ProcessId> =
            journal.processes().into_iter().filter(|process| !is(self.host, *process)).collect();
        let known = std::mem::take(&mut self.known);
        journal.forget(self.host, |_, record| {
            record.process().is_some_and(|process| {
                let stayed = matches!(fates.get(&process), Some(MoveOutcome::Stayed(_, true)));
                (stayed && !known.contains(&process)) || back.contains(&process) || gone.contains(&process)
            })
        })
    }
}

/// The movement, if the step moves a process into a commensal group.
fn into_ours(step: &Step) -> Option<&Movement> {
    match &step.action {
        Action::Move(movement) if !movement.by.is_empty() => Some(movement),
        _ => None,
    }
}
