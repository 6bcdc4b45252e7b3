//! The plan: what to write, in which order and why, and what this machine cannot provide.
//!
//! `plan(desired, actual, capabilities)` is pure, total and deterministic. Its result is data: the drivers carry it out
//! without any choices, `commensal plan` prints it. Applying a plan and planning again yields no steps. After any
//! prefix of the steps the machine is in a legal state, because parents are widened first and children tightened first.
//! What the kernel cannot do is listed in `unmet` with its reason: it is neither an error nor silently dropped.

mod bounds;
mod draft;
mod explain;
mod moves;
mod order;
mod safe_settings;
mod scheduling;
mod share;
mod step;
mod systemd;
mod vendor;
mod wants;
mod yielding;

use crate::actual::{ActualState, Capabilities, CgroupRef};
use crate::class::{Mechanism, TaskPolicy, offline_task_policy};
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::{Class, GroupName};
use crate::knob::{Controller, KnobId};
use crate::limit::CPU_SET;
use crate::topology::Device;
use std::collections::{BTreeMap, BTreeSet};
pub use step::{Action, Movement, Step, Unmet};

/// The steps in order, and the requests that cannot be met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Requests that this machine cannot meet.
    pub unmet: Vec<Unmet>,
    /// Values chosen by a controller that this machine cannot have, with the reason: no promise is broken by them.
    pub declined: BTreeMap<(GroupName, KnobId), String>,
    /// Journal records that can be dropped once the steps are done: values that are back at their originals already,
    /// and identities that were only copied from a parent group.
    pub settled: Vec<(CgroupRef, KnobId, Option<Device>)>,
    /// Notes for the user: roundings, weaker mechanisms, groups left alone.
    pub notes: Vec<String>,
    /// The mechanism that makes each offline group yield, by group and cgroup.
    pub mechanisms: BTreeMap<(GroupName, CgroupRef), Mechanism>,
    /// Groups whose tasks start with the group's core-scheduling cookie.
    pub cookies: BTreeSet<GroupName>,
    /// How tasks of a group are started when cgroups cannot be written.
    pub task_policies: BTreeMap<GroupName, TaskPolicy>,
}

pub use safe_settings::{SafeSetting, safe_settings};
pub use vendor::identity_obstacle;

/// Computes the plan.
#[must_use]
pub fn plan(desired: &DesiredState, actual: &ActualState, caps: &Capabilities) -> Plan {
    let mut plan = Plan::default();
    for group in &desired.groups {
        for (one, path, why) in &group.left_out {
            plan.notes.push(format!("group {}: match {one} leaves out {path}: {why}", group.name));
        }
        for (what, because, try_this) in &group.elsewhere {
            plan.unmet.push(Unmet {
                group: group.name.clone(),
                what: what.clone(),
                because: because.clone(),
                try_this: try_this.clone(),
            });
        }
    }
    if let Some(obstacle) = &caps.cgroup_obstacle {
        for group in &desired.groups {
            without_cgroups(group, obstacle, &mut plan);
        }
    } else {
        let cpu = actual.hierarchy_of(Controller::Cpu);
        let none = cpu.is_none_or(|cpu| !actual.own_possible(cpu));
        if let Some(obstacle) = actual.own_obstacle.as_ref().filter(|_| none) {
            let own = |group: &&DesiredGroup| group.members.iter().any(|member| member.own);
            for group in desired.groups.iter().filter(own) {
                without_cgroups(group, obstacle, &mut plan);
            }
        }
        drafted(desired, actual, caps, |draft| {
            plan.steps = order::steps(draft, actual);
            plan.settled = order::settled(draft, actual);
            plan.unmet.append(&mut draft.unmet);
            plan.declined.append(&mut draft.declined);
            plan.notes.append(&mut draft.notes);
            plan.mechanisms.append(&mut draft.mechanisms);
            plan.cookies.append(&mut draft.cookie_groups);
        });
    }
    plan.unmet.sort();
    plan.unmet.dedup();
    plan.notes.sort();
    plan.notes.dedup();
    plan
}

/// Everything that the planners want, made consistent.
fn drafted<R>(
    desired: &DesiredState,
    actual: &ActualState,
    caps: &Capabilities,
    read: impl FnOnce(&mut draft::Draft<'_>) -> R,
) -> R {
    let caps = scheduling::with_scheduler(caps, actual);
    let identity = identity_obstacle(Some(desired), actual);
    let scheduled = scheduling::is_best(&caps, actual, identity.as_deref());
    let mut draft = draft::Draft::new(desired, actual, &caps, (identity, scheduled));
    draft.collect();
    bounds::drop_impossible(&mut draft);
    read(&mut draft)
}

/// How to get a delegated cgroup from systemd.
const DELEGATE: &str = "start it in a unit of its own that systemd hands over: systemd-run --scope -p Delegate=yes \
                        commensal … (as a user: systemd-run --user --scope …); or, as root, insist with --cgroup-root /";

fn without_cgroups(group: &DesiredGroup, obstacle: &str, plan: &mut Plan) {
    if group.class == Class::Offline {
        let policy = offline_task_policy(obstacle, group.limits.get(CPU_SET));
        plan.notes.push(format!("group {}: {}", group.name, policy.weak.clone().unwrap_or_default()));
        plan.task_policies.insert(group.name.clone(), policy);
    }
    plan.unmet.push(Unmet {
        group: group.name.clone(),
        what: format!("class {} and limits", group.class),
        because: obstacle.to_owned(),
        try_this: match obstacle.contains("systemd") {
            true => DELEGATE.to_owned(),
            false => {
                "run as root, outside a container, or below a cgroup that was delegated to you".to_owned()
            }
        },
    });
}

impl Plan {
    /// Whether the machine is in the desired state already, as far as it can be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps that create groups and enable controllers: always the first ones.
    #[must_use]
    pub fn structure(&self) -> &[Step] {
        let end =
            self.steps.iter().position(|step| !matches!(step.action, Action::Create | Action::Enable(_)));
        &self.steps[..end.unwrap_or(self.steps.len())]
    }

    /// The steps after [`Plan::structure`].
    #[must_use]
    pub fn settings(&self) -> &[Step] {
        &self.steps[self.structure().len()..]
    }
}

/// The steps that undo `steps`: in reverse order, each inverted. After every prefix of them the machine is in a state
/// that a prefix of `steps` had, so each is as legal.
#[must_use]
pub fn undo(steps: &[Step]) -> Vec<Step> {
    let turn = |step: &Step| Step {
        place: match &step.action {
            Action::Move(movement) => movement.back().place().unwrap_or_else(|| step.place.clone()),
            _ => step.place.clone(),
        },
        action: match &step.action {
            Action::Create => Action::Remove,
            Action::Remove => Action::Create,
            Action::Enable(controller) => Action::Disable(*controller),
            Action::Disable(controller) => Action::Enable(*controller),
            Action::Write { knob, device, from, to } => {
                Action::Write { knob: *knob, device: *device, from: to.clone(), to: from.clone() }
            }
            Action::Irreversible { knob, from, to } => {
                Action::Recreate { knob: *knob, from: to.clone(), to: from.clone() }
            }
            Action::Recreate { knob, from, to } => {
                Action::Irreversible { knob: *knob, from: to.clone(), to: from.clone() }
            }
            Action::Switch { switch, from, to } => Action::Switch { switch: *switch, from: *to, to: *from },
            Action::Cookie { give } => Action::Cookie { give: !give },
            Action::Order { from, to } => Action::Order { from: to.clone(), to: from.clone() },
            Action::Move(movement) => Action::Move(movement.back()),
        },
        why: "undo".to_owned(),
    };
    steps.iter().rev().map(turn).collect()
}
