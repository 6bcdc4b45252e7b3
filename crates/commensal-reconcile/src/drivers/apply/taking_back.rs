//! Undoes steps after a refusal, and checks whether a step failed only because its group no longer exists.

use super::{Refusal, Work};
use crate::hand::is_gone;
use crate::journal::{Created, Journal, Record};
use commensal_core::actual::CgroupRef;
use commensal_core::knob::{KnobId, Value};
use commensal_core::plan::{Action, Step, undo};
use commensal_core::topology::Device;
use commensal_host::below;
use std::path::Path;

impl Work<'_> {
    /// Undoes the steps. Returns messages about steps that could not be undone, and records of the groups that had to
    /// be created again.
    pub(super) fn take_back(&mut self, done: &[Step], journal: &mut Journal) -> (Vec<String>, Vec<Record>) {
        let mut left = Vec::new();
        let mut again = Vec::new();
        for step in undo(done) {
            match self.carry_out(&step, journal) {
                Err(refusal) => left.push(format!("{}: {refusal}", step.describe(self.actual))),
                Ok(()) if step.action == Action::Create => {
                    let Some(dir) = self.dirs.get(&step.place).copied() else { continue };
                    again.push(Record::Created(Created(self.target(&step.place, dir))));
                    left.extend(self.fill_again(&step.place));
                }
                Ok(()) => {
                    if let Action::Move(movement) = &step.action {
                        left.extend(self.not_returned(movement));
                    }
                }
            }
        }
        (left, again)
    }

    /// Restores the settings of a group that was removed and created again; returns messages about refused settings.
    /// One setting can block another (the weight of an idle group, a burst above the quota), so refused settings are
    /// retried as long as others succeed.
    fn fill_again(&mut self, place: &CgroupRef) -> Vec<String> {
        let Some(found) = self.actual.cgroups.get(place) else { return Vec::new() };
        let mut waiting: Vec<(KnobId, Option<Device>, &Value)> =
            found.values.iter().map(|((knob, device), value)| (*knob, *device, value)).collect();
        loop {
            let before = waiting.len();
            let mut refused = Vec::new();
            waiting.retain(|(knob, device, value)| match self.write(place, (*knob, *device), value) {
                Ok(()) => false,
                Err(refusal) => {
                    refused.push(format!("{} {knob}: {refusal}", self.actual.show(place)));
                    true
                }
            });
            if waiting.is_empty() || waiting.len() == before {
                return refused;
            }
        }
    }

    /// Whether a step was refused because its group no longer exists. Checks the group itself, because a missing file
    /// or device gives the same error numbers.
    pub(super) fn has_vanished(&mut self, step: &Step, refusal: &Refusal) -> bool {
        let error = match refusal {
            Refusal::Vanished { .. } => return true,
            Refusal::Host { error, .. } => error,
            _ => return false,
        };
        match &step.action {
            _ if !is_gone(error) => false,
            // While a group is replaced by a fresh one, it exists under another name.
            Action::Recreate { .. } => false,
            Action::Create => {
                let parent = step.place.path.parent();
                let hierarchy = step.place.hierarchy;
                parent.is_none_or(|path| !self.is_there(&CgroupRef { hierarchy, path }))
            }
            _ => !self.is_there(&step.place),
        }
    }

    /// Whether the group at this path is the one in the plan, or one that was created since then.
    pub(crate) fn is_there(&mut self, place: &CgroupRef) -> bool {
        let known = self.dirs.get(place).map(|dir| dir.inode).or_else(|| self.recreated.get(place).copied());
        let known = known.or_else(|| self.actual.cgroups.get(place).map(|found| found.inode));
        let path = below(Path::new(&self.mount(place)), place.path.as_str());
        self.host.open(&path).is_ok_and(|dir| {
            self.host.close(dir);
            known == Some(dir.inode)
        })
    }
}
