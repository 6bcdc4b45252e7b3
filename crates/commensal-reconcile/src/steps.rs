//! The kinds of steps: a file for each, with what a step of the kind does, what it records, and what the record means to
//! the journal, to the marks on cgroups, to `apply` and to `restore`.

pub(crate) mod affinity;
mod controller;
mod cookie;
mod group;
mod kind;
mod member;
pub(crate) mod movement;
pub(crate) mod order;
mod owner;
pub mod policy;
pub(crate) mod recreate;
mod switch;
mod value;

use crate::drivers::apply::{Refusal, Work};
use crate::journal::{Journal, Record};
use commensal_core::knob::{KnobId, Value};
use commensal_core::plan::{Action, Step};
pub(crate) use group::empty;
use kind::Kind;
pub(crate) use kind::Rank;
use std::collections::BTreeSet;
use value::Setting;

impl Work<'_> {
    /// Carries out one step.
    pub(crate) fn carry_out(&mut self, step: &Step, journal: &mut Journal) -> Result<(), Refusal> {
        let place = &step.place;
        match &step.action {
            Action::Create => self.create(place, journal),
            Action::Remove => self.remove(place),
            Action::Enable(controller) => self.subtree(place, '+', *controller),
            Action::Disable(controller) => self.subtree(place, '-', *controller),
            Action::Write { knob: KnobId::CgroupFreeze, to: to @ Value::Number(1), .. } => {
                self.stop(place, to, journal)
            }
            Action::Write { knob, device, to, .. } => self.write(place, (*knob, *device), to),
            Action::Irreversible { knob, to, .. } => self.set_level(place, *knob, to, journal),
            Action::Recreate { knob, to, .. } => self.recreate(place, *knob, to, journal),
            Action::Switch { switch, to, .. } => self.switch(*switch, *to),
            Action::Order { to, .. } => self.order(to),
            Action::Move(movement) => self.move_process(movement),
            Action::Cookie { give } => self.cookie(place, *give),
        }
    }

    /// Returns the records that the step alone determines. `settle` passes the inverse of a step that was carried out: its
    /// records are over.
    pub(crate) fn traces(&mut self, step: &Step) -> Vec<Record> {
        let place = &step.place;
        match &step.action {
            Action::Create => vec![self.creating(place)],
            Action::Enable(controller) => Vec::from_iter(self.enabling(place, *controller)),
            Action::Switch { switch, from, .. } => vec![switch::record(*switch, *from)],
            Action::Order { from, to } => self.ordering(place, from, to).collect(),
            Action::Cookie { give: true } => Vec::from_iter(self.cookied(place)),
            other => Vec::from_iter(other.written().and_then(|written| self.original(place, written))),
        }
    }

    /// Returns the records that must be in the journal before the step is carried out. `known` are those of earlier steps,
    /// `seen` the settings that have theirs; with `own`, the step is about what commensal itself has
    /// created. Moves are recorded later.
    pub(crate) fn before(
        &mut self,
        step: &Step,
        (own, seen, known): (bool, &mut BTreeSet<Setting>, &[Record]),
        journal: &Journal,
    ) -> Result<Vec<Record>, Refusal> {
        let mut records = match (&step.action, step.action.written()) {
            (Action::Create, _) => return Ok(self.traces(step)),
            (Action::Recreate { .. }, _) => Vec::new(),
            _ if own => Vec::new(),
            (_, Some(written)) => self.before_write(&step.place, written, seen, journal)?,
            _ => self.traces(step),
        };
        records.retain(|record| {
            if journal.has(record) {
                // A crash after the record was written may have prevented the mark.
                journal.mark(self.host, record);
                return false;
            }
            // Several settings may need the same controller.
            !matches!(record, Record::Enabling(_)) || !known.contains(record)
        });
        Ok(records)
    }
}

impl Record {
    pub(crate) fn kind(&self) -> &dyn Kind {
        match self {
            Record::Owner(one) => one,
            Record::Creating(one) => one,
            Record::Created(one) => one,
            Record::Enabling(one) => one,
            Record::Switching(one) => one,
            Record::Cookied(one) => one,
            Record::Ordering(one) => one,
            Record::Affinity(one) => one,
            Record::Scheduling => &policy::AllThreads,
            Record::Policy(one) => one,
            Record::Member(one) => one,
            Record::Lifting(one) => one,
            Record::Recreating(one) => one,
            Record::Moving(one) => one,
            Record::Moved(one) => one,
            Record::Original(one) => one,
            Record::Safe(one) => one,
        }
    }

    /// Returns the record without its value, if it has one. Of several records of a subject only the first counts, because
    /// it has the original.
    pub(crate) fn subject(&self) -> Record {
        self.kind().subject().unwrap_or_else(|| self.clone())
    }

    /// Describes the record in a sentence for people. Names that other users can choose are escaped.
    #[must_use]
    pub fn in_words(&self) -> String {
        self.kind().words()
    }
}
