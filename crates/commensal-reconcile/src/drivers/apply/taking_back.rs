//! Undoes steps after a refusal, and checks whether a step failed only because its group no longer exists.

use super::{Refusal, Work};
use crate::hand::is_gone;
use crate::journal::{Created, Journal, Record};
use crate::runner::as_far_as_possible;
use commensal_core::actual::CgroupRef;
use commensal_core::plan::{Action, Step, undo};
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
    fn fill_again(&mut self, place: &CgroupRef) -> Vec<String> {
        let (actual, shown) = (self.actual, self.actual.show(place));
        let Some(found) = actual.cgroups.get(place) else { return Vec::new() };
        let refused = as_far_as_possible(found.values.iter().collect(), |(setting, value)| {
            self.write(place, **setting, value)
        });
        refused.into_iter().map(|(((knob, _), _), refusal)| format!("{shown} {knob}: {refusal}")).collect()
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
