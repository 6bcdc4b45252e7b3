//! Tells what is in force while no agent runs: a plan for the groups is what is not. Pure.

use crate::explain::lists;
use crate::sense::Sample;
use crate::snapshot::{Group, Snapshot, Unmet};
use crate::{status, view};
use commensal_core::plan::{Action, Step};
use commensal_core::text::visible;
use commensal_core::topology::Machine;
use commensal_reconcile::Planned;
use serde::Serialize;
use std::fmt::Write as _;

/// The groups, and what they want that is not in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadBack {
    /// The groups, without measurements.
    pub groups: Vec<Group>,
    /// Wanted settings and members that are not in force, as readable text.
    pub not_in_force: Vec<String>,
    /// Requested settings that this machine cannot have.
    pub unmet: Vec<Unmet>,
}

/// Compares the groups of a plan with the machine.
#[must_use]
pub fn of(machine: &Machine, planned: &Planned) -> ReadBack {
    let Snapshot { groups, unmet, .. } =
        view::of(machine, Some(planned), &view::fixed(planned), &Sample::default());
    let wanted = planned.plan.steps.iter().filter(|step| planned.plan.is_wanted(step));
    ReadBack { groups, not_in_force: wanted.map(|step| missing(step, planned)).collect(), unmet }
}

fn missing(step: &Step, planned: &Planned) -> String {
    if let Some(one) = step.action.written() {
        let (place, file) = (planned.actual.show(&step.place), step.file(&planned.actual));
        let (want, found) = (one.knob.shown(one.to), one.knob.shown(one.from));
        return format!("{place} {file}: {want} wanted, {found} found ({})", step.why);
    }
    match &step.action {
        Action::Create => format!("{} does not exist ({})", planned.actual.show(&step.place), step.why),
        _ => format!("{} ({})", step.describe(&planned.actual), step.why),
    }
}

impl ReadBack {
    /// Whether everything that the groups want is in force.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_in_force.is_empty() && self.unmet.is_empty()
    }

    /// What is not in force, a line each.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let missing = self.not_in_force.iter().cloned();
        missing.chain(self.unmet.iter().map(status::unmet)).collect()
    }

    /// The comparison as text for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        status::groups(&mut out, &self.groups, &[]);
        if !self.not_in_force.is_empty() {
            out.push_str("\nnot in force\n");
        }
        for line in &self.not_in_force {
            let _ = writeln!(out, "  {}", visible(line));
        }
        lists(&mut out, &self.unmet, &[], &[]);
        out
    }
}
