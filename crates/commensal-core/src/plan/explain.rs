//! The plan as readable text, which `commensal plan` prints and the golden tests compare.

use super::Plan;
use super::step::{Action, Step, Unmet};
use crate::actual::{ActualState, SCHEDULER};
use std::fmt::Write;

impl Step {
    /// Describes the step on one line: the change, the cgroup and the values.
    #[must_use]
    pub fn describe(&self, actual: &ActualState) -> String {
        let place = actual.show(&self.place);
        match &self.action {
            Action::Create => format!("create   {place}"),
            Action::Remove => format!("remove   {place}"),
            Action::Enable(controller) => format!("enable   {place}  +{controller} for its children"),
            Action::Disable(controller) => format!("disable  {place}  -{controller} for its children"),
            Action::Irreversible { from, to, .. } => {
                format!("write    {place}  {}  {from} -> {to}  (irreversible)", self.file(actual))
            }
            Action::Recreate { from, to, .. } => {
                format!(
                    "recreate {place}  {}  {from} -> {to}  (members move to a fresh group)",
                    self.file(actual)
                )
            }
            Action::Switch { switch, from, to } => format!("switch   {switch}  {from} -> {to}"),
            Action::Move(movement) => {
                let from = movement.from.values().next().map(ToString::to_string).unwrap_or_default();
                format!("move     {place}  process {} from {from}", movement.name)
            }
            Action::Order { from, to } => {
                format!("order    {SCHEDULER}  {} -> {}", from.describe(), to.describe())
            }
            Action::Cookie { give: true } => format!("cookie   {place}  one for all its threads"),
            Action::Cookie { give: false } => format!("cookie   {place}  none for its threads"),
            Action::Write { knob, device, from, to } => {
                let device = device.map(|device| format!(" [{device}]")).unwrap_or_default();
                let (from, to) = (knob.shown(from), knob.shown(to));
                format!("write    {place}  {}{device}  {from} -> {to}", self.file(actual))
            }
        }
    }

    /// Name of the kernel file that the step writes; `?` for a step that writes no kernel file.
    #[must_use]
    pub fn file(&self, actual: &ActualState) -> &'static str {
        let version = actual.hierarchies.get(self.place.hierarchy).map(|hierarchy| hierarchy.version);
        let file = self.action.written().zip(version).and_then(|(one, version)| one.knob.row().file(version));
        file.map_or("?", |file| file.name)
    }
}

impl Unmet {
    /// Describes the request, why it cannot be met and how to change that, on three lines.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "unmet    group {}: {}\n         because {}\n         try: {}",
            self.group, self.what, self.because, self.try_this
        )
    }
}

impl Plan {
    /// Describes the whole plan.
    #[must_use]
    pub fn describe(&self, actual: &ActualState) -> String {
        let mut text = String::new();
        let width =
            self.steps.iter().map(|step| step.describe(actual).chars().count()).max().unwrap_or(0).min(76);
        for (index, step) in self.steps.iter().enumerate() {
            let _ = writeln!(text, "{:>4}  {:<width$}  # {}", index + 1, step.describe(actual), step.why);
        }
        if self.steps.is_empty() {
            text.push_str("nothing to do\n");
        }
        for unmet in &self.unmet {
            let _ = writeln!(text, "{}", unmet.describe());
        }
        for note in &self.notes {
            let _ = writeln!(text, "note     {note}");
        }
        text
    }
}
