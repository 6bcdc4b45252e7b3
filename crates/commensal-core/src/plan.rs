//! The plan: which kernel settings (knobs) to write, in which order and why, and which requests this machine cannot
//! meet.
//!
//! `plan(desired, actual, capabilities)` is pure, total and deterministic. The plan is data: the drivers execute it
//! without any choices of their own, and `commensal plan` prints it. Planning is idempotent: after a plan has been
//! applied, the next plan has no steps. After any prefix of the steps the machine is in a valid state, because a plan
//! widens limits from parents to children and tightens them from children to parents. If the kernel cannot meet a
//! request, the plan lists it in `unmet` with the reason. This is not an error, and no request is dropped silently.

mod bounds;
mod draft;
mod explain;
mod moves;
mod order;
mod safe_settings;
mod scheduling;
mod share;
mod step;
mod strays;
mod systemd;
mod vendor;
mod wants;
mod yielding;

use crate::actual::{ActualState, Capabilities, CgroupRef, SettingRef};
use crate::class::{Mechanism, TaskPolicy, offline_task_policy};
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::{Class, GroupName};
use crate::knob::{Controller, KnobId};
use crate::limit::CPU_SET;
use std::collections::{BTreeMap, BTreeSet};
pub use step::{Action, Movement, Step, Unmet, WrittenSetting};

/// The steps to reach the desired state, and the requests that cannot be met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in the order of execution.
    pub steps: Vec<Step>,
    /// Requests that this machine cannot meet.
    pub unmet: Vec<Unmet>,
    /// Values that a controller of the agent chose and that cannot be set on this machine, with the reasons. They are
    /// not in `unmet`, because the user did not request them.
    pub declined: BTreeMap<(GroupName, KnobId), String>,
    /// Journal records that can be dropped after the steps. (The journal records original values for undo.) Some
    /// records belong to knobs that already have their original values. The others belong to identities
    /// (`cpu.bvt_warp_ns`) that a cgroup copied from its parent.
    pub settled: Vec<SettingRef>,
    /// Knobs that already have the values that groups want, so that no step writes them.
    pub held: Vec<SettingRef>,
    /// Knobs that do not have the values that groups want. Steps write them; other steps only undo.
    pub missing: Vec<SettingRef>,
    /// Notes for the user, such as values that were rounded, a weaker mechanism, or groups that the plan leaves
    /// unchanged.
    pub notes: Vec<String>,
    /// The mechanism that makes each offline group yield to online groups, by group and by the cgroup to which it
    /// applies.
    pub mechanisms: BTreeMap<(GroupName, CgroupRef), Mechanism>,
    /// Groups whose new tasks must get the group's core-scheduling cookie when they start.
    pub cookies: BTreeSet<GroupName>,
    /// Scheduling policies of the tasks of groups for which commensal can write no cgroup, by group.
    pub task_policies: BTreeMap<GroupName, TaskPolicy>,
}

pub use safe_settings::{SafeSetting, safe_settings};
pub use vendor::identity_obstacle;

/// Computes the plan that changes the actual state to the desired state.
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
        if let Some(obstacle) = actual.tenancy.obstacle.as_ref().filter(|_| none) {
            let own = |group: &&DesiredGroup| group.members.iter().any(|member| member.own);
            for group in desired.groups.iter().filter(own) {
                without_cgroups(group, obstacle, &mut plan);
            }
        }
        drafted(desired, actual, caps, |draft| {
            plan.steps = order::steps(draft, actual);
            plan.settled = order::settled(&draft.wants, actual);
            (plan.held, plan.missing) = order::wanted(draft, actual);
            plan.unmet.append(&mut draft.report.unmet);
            plan.declined.append(&mut draft.report.declined);
            plan.notes.append(&mut draft.report.notes);
            plan.mechanisms.append(&mut draft.mechanisms);
            plan.cookies.append(&mut draft.cookies.groups);
        });
    }
    plan.unmet.sort();
    plan.unmet.dedup();
    plan.notes.sort();
    plan.notes.dedup();
    plan
}

/// Runs all planners, makes the values that they want consistent, and passes the draft of the plan to `read`.
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
    bounds::drop_impossible(&mut draft.wants, desired, actual, &mut draft.report);
    read(&mut draft)
}

/// Instructions to get a delegated cgroup from systemd.
const DELEGATE: &str = "start it in a unit of its own that systemd delegates: systemd-run --scope -p Delegate=yes \
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
        try_this: if obstacle.contains("--cgroup-root") {
            "create that cgroup, or choose one that exists".to_owned()
        } else if obstacle.contains("systemd") {
            DELEGATE.to_owned()
        } else {
            "run as root and outside a container, or in a cgroup that was delegated to your user".to_owned()
        },
    });
}

impl Plan {
    /// Whether the plan has no steps, because the machine is in the desired state as far as it can be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps that create groups and enable controllers, which always come first.
    #[must_use]
    pub fn structure(&self) -> &[Step] {
        structure(&self.steps)
    }

    /// The steps that follow the steps of [`Plan::structure`].
    #[must_use]
    pub fn settings(&self) -> &[Step] {
        &self.steps[self.structure().len()..]
    }

    /// Whether a step does what a group wants, such as a limit; other steps undo what no group wants any more, or only
    /// prepare for other steps.
    #[must_use]
    pub fn is_wanted(&self, step: &Step) -> bool {
        if let Some(one) = step.action.written() {
            return self.missing.contains(&(step.place.clone(), one.knob, one.device));
        }
        match &step.action {
            Action::Create | Action::Order { .. } => true,
            Action::Switch { to, .. } => *to != 0,
            Action::Cookie { give } => *give,
            Action::Move(movement) => !movement.by.is_empty(),
            _ => false,
        }
    }

    /// Whether the plan enforces the class of every offline group on all members of that group.
    #[must_use]
    pub fn yields(&self, desired: &DesiredState) -> bool {
        let mut offline = desired.groups.iter().filter(|group| group.class == Class::Offline);
        offline.all(|group| {
            let class = format!("class {}", group.class);
            let is_unmet = |one: &Unmet| one.group == group.name && one.what.starts_with(&class);
            self.mechanisms.keys().any(|(name, _)| *name == group.name) && !self.unmet.iter().any(is_unmet)
        })
    }
}

/// Returns the steps at the beginning that create groups and enable controllers.
#[must_use]
pub fn structure(steps: &[Step]) -> &[Step] {
    let end = steps.iter().position(|step| !matches!(step.action, Action::Create | Action::Enable(_)));
    &steps[..end.unwrap_or(steps.len())]
}

/// Returns the steps that undo `steps`: each step inverted, in reverse order. After every prefix of the undo steps, the
/// machine is in a valid state, because it also had this state after a prefix of `steps`.
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
