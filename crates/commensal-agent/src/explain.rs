//! Explains each setting of a group: its value, the rule that applied, and the formula with its inputs filled in. Pure.

use crate::snapshot::{Action, Drift, Explanation, Group, Input, Member, Snapshot, Unmet};
use crate::status::duration;
use commensal_core::text::visible;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The explanation of one group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    /// Time of the snapshot (RFC 3339).
    pub at: String,
    /// Name of the group.
    pub group: String,
    /// `online` or `offline`.
    pub class: String,
    /// The mechanism that makes an offline group yield or protects an online one.
    pub mechanism: Option<String>,
    /// Whether the agent has frozen the group.
    pub frozen: bool,
    /// The group's members.
    pub members: Vec<Member>,
    /// The group's limits.
    pub limits: Vec<Reason>,
    /// Controllers (control loops) that decide for this group or for the whole machine.
    pub controllers: Vec<Reason>,
    /// Why the group's queue admits no job now; `None` if it admits jobs.
    pub queue_held: Option<String>,
    /// Requested settings that cannot be applied.
    pub unmet: Vec<Unmet>,
    /// Knobs of the group's members that another program also writes.
    pub drift: Vec<Drift>,
    /// The last writes and decisions about the group, newest last.
    pub actions: Vec<Action>,
}

/// A value with its reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// Key in the groups file, or name of the controller.
    pub key: String,
    /// The value, with its unit; `None` if the controller sets no value.
    pub value: Option<String>,
    /// The explanation of the value.
    pub why: Explanation,
    /// The formula with its inputs filled in; `None` if there is no formula.
    pub with: Option<String>,
    /// The result of the formula, in the unit of the decided value (such as CPUs, bytes or ms) before its conversion to
    /// the unit of the kernel's file; `None` if there is no valid formula.
    pub derived: Option<f64>,
    /// Why a controller is off; `None` if it is active.
    pub off: Option<String>,
    /// Whether the value applies to the whole machine.
    pub of_machine: bool,
}

/// Explains a group; `None` if there is no group of this name.
#[must_use]
pub fn explain(snapshot: &Snapshot, name: &str) -> Option<Explained> {
    let group = snapshot.groups.iter().find(|group| group.name == name)?;
    let limits = group.limits.iter().map(|limit| Reason {
        key: limit.key.clone(),
        value: Some(limit.value.clone()),
        why: limit.why.clone(),
        with: substituted(&limit.why),
        derived: limit.why.derive(),
        ..Reason::default()
    });
    let controllers =
        snapshot.controllers.iter().filter(|one| one.group.as_deref().is_none_or(|of| of == name)).map(
            |one| Reason {
                key: one.name.clone(),
                value: one.value.clone(),
                why: one.why.clone(),
                with: substituted(&one.why),
                derived: one.why.derive(),
                off: one.off.clone(),
                of_machine: one.group.is_none(),
            },
        );
    let of_group = |action: &&Action| action.group.as_deref() == Some(name);
    Some(Explained {
        at: snapshot.at.clone(),
        group: group.name.clone(),
        class: group.class.clone(),
        mechanism: group.mechanism.clone(),
        frozen: group.frozen,
        members: group.members.to_vec(),
        limits: limits.collect(),
        controllers: controllers.collect(),
        queue_held: group.queue.as_ref().and_then(|queue| queue.held.clone()),
        unmet: snapshot.unmet.iter().filter(|unmet| unmet.group == name).cloned().collect(),
        drift: snapshot.drift.iter().filter(|drift| is_of(group, drift)).cloned().collect(),
        actions: snapshot.actions.iter().filter(of_group).cloned().collect(),
    })
}

/// Whether the knob belongs to a member of the group, or to a cgroup below a member.
pub(crate) fn is_of(group: &Group, drift: &Drift) -> bool {
    group.members.iter().any(|member| {
        let below = drift.path.strip_prefix(&member.path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// The formula with values instead of names; `None` if there is no formula.
#[must_use]
pub fn substituted(why: &Explanation) -> Option<String> {
    if why.formula.is_empty() {
        return None;
    }
    let mut inputs: Vec<&Input> = why.inputs.iter().filter(|input| !input.name.is_empty()).collect();
    // Longest first, so that `online` does not match the beginning of `online_p99`.
    inputs.sort_by_key(|input| std::cmp::Reverse(input.name.len()));
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut rest, mut inside) = (String::new(), why.formula.as_str(), false);
    while let Some(next) = rest.chars().next() {
        let found = inputs.iter().find(|input| {
            let after = rest.strip_prefix(input.name.as_str());
            !inside && after.is_some_and(|after| !after.starts_with(is_part))
        });
        let taken = match found {
            Some(input) => {
                out += &amount(input);
                inside = true;
                input.name.len()
            }
            None => {
                out.push(next);
                inside = is_part(next);
                next.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    Some(out)
}

/// An input's value with its unit.
fn amount(input: &Input) -> String {
    if input.unit == "bytes" && input.value >= 0.0 {
        return commensal_core::units::Bytes(input.value as u64).to_string();
    }
    let number = format!("{:.3}", input.value);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    let number = if number == "-0" { "0" } else { number };
    if input.unit.is_empty() { number.to_owned() } else { format!("{number} {}", input.unit) }
}

impl Explained {
    /// The explanation as text for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mechanism = self.mechanism.as_deref().unwrap_or("no mechanism");
        let frozen = if self.frozen { ", frozen" } else { "" };
        let _ = writeln!(out, "{}: {}, {mechanism}{frozen} ({})", self.group, self.class, self.at);
        for member in &self.members {
            let _ = writeln!(out, "  {} ({})", visible(&member.path), visible(&member.found_by));
        }
        if self.members.is_empty() {
            out += "  no members now\n";
        }
        for limit in &self.limits {
            let value = limit.value.as_deref().unwrap_or("-");
            let _ = writeln!(out, "\n{} = {value}", limit.key);
            reason(&mut out, limit);
        }
        if self.limits.is_empty() {
            out += "\nno limits\n";
        }
        for one in &self.controllers {
            let whole = if one.of_machine { " of the machine" } else { "" };
            if let Some(off) = &one.off {
                let _ = writeln!(out, "\ncontroller {}{whole}: off, {off}", one.key);
                continue;
            }
            let value = one.value.as_deref().unwrap_or("nothing to decide");
            let _ = writeln!(out, "\ncontroller {}{whole}: {value}", one.key);
            reason(&mut out, one);
        }
        if let Some(held) = &self.queue_held {
            let _ = writeln!(out, "\nqueue: held closed: {}", visible(held));
        }
        lists(&mut out, &self.unmet, &self.drift, &self.actions);
        out
    }
}

fn reason(out: &mut String, of: &Reason) {
    let _ = writeln!(out, "  rule     {}", of.why.rule);
    if let Some(with) = &of.with {
        let _ = writeln!(out, "  formula  {}\n  with     {with}", of.why.formula);
    }
    let named = |input: &&Input| !of.why.formula.contains(&input.name);
    for input in of.why.inputs.iter().filter(named) {
        let _ = writeln!(out, "  input    {} = {}", input.name, amount(input));
    }
}

/// Appends unmet requests, drift and actions, each under a heading.
pub(crate) fn lists(out: &mut String, unmet: &[Unmet], drift: &[Drift], actions: &[Action]) {
    if !unmet.is_empty() {
        out.push_str("\nunmet\n");
    }
    for one in unmet {
        let [what, because, way_out] = [&one.what, &one.because, &one.try_this].map(|text| visible(text));
        let _ = writeln!(out, "  {}: {what}: {because}\n    try: {way_out}", one.group);
    }
    if !drift.is_empty() {
        out.push_str("\nalso written by other programs\n");
    }
    for one in drift {
        let by = visible(one.by.as_deref().unwrap_or("somebody"));
        let next = match one.back_off_ms {
            _ if one.back => "in force again".to_owned(),
            Some(0) => "NOT in force; written again at once".to_owned(),
            Some(ms) => format!("NOT in force; written again in {}", duration((ms as f64 / 1e3).ceil())),
            None => "NOT in force; not corrected until the configuration changes".to_owned(),
        };
        let times = if one.times == 1 { "once".to_owned() } else { format!("{} times", one.times) };
        let _ = writeln!(
            out,
            "  {}/{}: {} wanted, {} found {} ago ({times}, by {by}); {next}",
            visible(&one.path),
            one.file,
            visible(&one.want),
            visible(&one.found),
            duration(one.ago_ms as f64 / 1e3)
        );
    }
    if !actions.is_empty() {
        out.push_str("\nlast actions\n");
    }
    for one in actions {
        let _ = writeln!(out, "  {} {}", one.at, action(one));
    }
}

/// Formats an action without its time.
pub(crate) fn action(of: &Action) -> String {
    let value = match (&of.old, &of.new) {
        (Some(old), Some(new)) => format!(" {old} -> {new}"),
        (None, Some(new)) => format!(" -> {new}"),
        (Some(old), None) => format!(" {old} -> gone"),
        (None, None) => String::new(),
    };
    let group = of.group.as_ref().map(|group| format!("{group}: ")).unwrap_or_default();
    visible(&format!("{group}{}{value}: {}", of.what, of.why)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    // promise 28
    #[test]
    fn golden_explain() {
        let snapshot = crate::fixture::snapshot();
        let text: String = ["web", "etl", "report"]
            .into_iter()
            .map(|name| format!("$ commensal explain {name}\n{}", explain(&snapshot, name).unwrap().text()))
            .collect();
        golden::check("explain.txt", &text);
        assert!(explain(&snapshot, "we").is_none());
    }

    // promise 28
    #[test]
    fn inputs_are_put_in_by_whole_names() {
        let check = |formula: &str, expect: &str| {
            let inputs =
                [("a", 1.5, "CPUs"), ("a_b", 80.0, "%"), ("max", -0.0001, ""), ("held", 3e9, "bytes")]
                    .map(|(name, value, unit)| Input { name: name.into(), value, unit: unit.into() });
            let why =
                Explanation { formula: formula.to_owned(), inputs: inputs.into(), ..Explanation::default() };
            assert_eq!(substituted(&why).as_deref().unwrap_or(""), expect);
        };
        check("a * a_b", "1.5 CPUs * 80 %");
        check("max(a, ba, a2, held)", "0(1.5 CPUs, ba, a2, 2.8 GiB)");
        check("é(a)a", "é(1.5 CPUs)1.5 CPUs");
        check("", "");
    }

    #[test]
    fn drift_belongs_to_whole_path_components() {
        let group = Group {
            members: vec![Member { path: "/a".to_owned(), ..Member::default() }].into(),
            ..Group::default()
        };
        let check = |path: &str, expect| {
            assert_eq!(is_of(&group, &Drift { path: path.to_owned(), ..Drift::default() }), expect, "{path}");
        };
        check("/a", true);
        check("/a/b", true);
        check("/ab", false);
        check("/", false);
    }
}
