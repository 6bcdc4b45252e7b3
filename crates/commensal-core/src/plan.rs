//! The plan: what to write, in which order and why, and what cannot be had here.
//!
//! `plan(desired, actual, capabilities)` is pure, total and deterministic. Its result is data: the
//! drivers carry it out without a choice of their own, `commensal plan` prints it. Applying a plan and
//! planning again yields no steps; after any prefix of the steps the machine is legal, because parents
//! are widened first and children tightened first; what the kernel cannot do is in `unmet` with its
//! reason, never an error and never silence.

mod bounds;
mod draft;
mod explain;
mod moves;
mod order;
mod safe_settings;
mod scheduling;
mod share;
mod systemd;
mod vendor;
mod wants;
mod yielding;

use crate::actual::{ActualState, Capabilities, CgroupPath, CgroupRef};
use crate::class::{Mechanism, TaskPolicy, offline_task_policy};
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::{Class, GroupName};
use crate::knob::{Controller, KnobId, Value};
use crate::limit::CPU_SET;
use crate::member::ProcessId;
use crate::scheduler::Orders;
use crate::topology::Device;
use crate::vendor::Switch;
use std::collections::{BTreeMap, BTreeSet};

/// One change of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create the group.
    Create,
    /// Remove the group, which is ours and empty.
    Remove,
    /// v2: enable a controller for the group's children.
    Enable(Controller),
    /// v2: disable it again.
    Disable(Controller),
    /// Write a knob.
    Write {
        /// Which.
        knob: KnobId,
        /// For which device, if it is per device.
        device: Option<Device>,
        /// What it holds now.
        from: Value,
        /// What it will hold, as the kernel will read it back.
        to: Value,
    },
    /// Write a knob that the kernel does not let back: undone by [`Action::Recreate`].
    Irreversible {
        /// Which.
        knob: KnobId,
        /// What it holds now.
        from: Value,
        /// What it will hold.
        to: Value,
    },
    /// Give an irreversible knob its old value back: the members move to a fresh group with the same settings, which
    /// then takes the old one's name.
    Recreate {
        /// Which.
        knob: KnobId,
        /// What it holds now.
        from: Value,
        /// What the fresh group will hold.
        to: Value,
    },
    /// Change a machine-wide switch that knobs of this hierarchy need; the place is the hierarchy's root.
    Switch {
        /// Which.
        switch: Switch,
        /// What it is now.
        from: i64,
        /// What it will be.
        to: i64,
    },
    /// Give every thread of the group and below it one core-scheduling cookie of its own, or take it away.
    Cookie {
        /// Give or take away.
        give: bool,
    },
    /// Tell the sched_ext scheduler what its owner wants from now on; the place is the root of the cpu controller's hierarchy.
    Order {
        /// What is in force now.
        from: Orders,
        /// What will be.
        to: Orders,
    },
    /// Move a process, in every hierarchy at once; the place is where it goes in the first of them. One that has ended, or
    /// that is no longer where it was, is passed over.
    Move(Movement),
}

/// A process on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    /// Which.
    pub process: ProcessId,
    /// Its number and program, for people.
    pub name: String,
    /// The match that takes it, in words; empty on the way back.
    pub by: String,
    /// Where it is, by hierarchy.
    pub from: BTreeMap<usize, CgroupPath>,
    /// Where it goes, in the same hierarchies.
    pub to: BTreeMap<usize, CgroupPath>,
}

impl Movement {
    /// The same, back.
    #[must_use]
    pub fn back(&self) -> Movement {
        Movement { from: self.to.clone(), to: self.from.clone(), ..self.clone() }
    }

    /// Where it goes in the first hierarchy.
    #[must_use]
    pub fn place(&self) -> Option<CgroupRef> {
        self.to
            .first_key_value()
            .map(|(hierarchy, path)| CgroupRef { hierarchy: *hierarchy, path: path.clone() })
    }
}

/// One step: where, what, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The cgroup.
    pub place: CgroupRef,
    /// The change.
    pub action: Action,
    /// The reason, with the numbers it came from.
    pub why: String,
}

/// Something that was asked for and cannot be done here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmet {
    /// The group that asked.
    pub group: GroupName,
    /// What it asked for.
    pub what: String,
    /// Why it cannot be.
    pub because: String,
    /// What would help.
    pub try_this: String,
}

/// What to do, in order, and what cannot be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What this machine cannot give.
    pub unmet: Vec<Unmet>,
    /// What a controller chose and this machine cannot give, with the reason: no promise is broken by it.
    pub declined: BTreeMap<(GroupName, KnobId), String>,
    /// Off the record once the steps are done: values that are back at what they were already, and identities that were only
    /// copied from a group above.
    pub settled: Vec<(CgroupRef, KnobId, Option<Device>)>,
    /// Worth knowing: roundings, weaker mechanisms, groups left alone.
    pub notes: Vec<String>,
    /// How each offline group is made to yield, by group and cgroup.
    pub mechanisms: BTreeMap<(GroupName, CgroupRef), Mechanism>,
    /// Groups whose tasks start with the group's core-scheduling cookie.
    pub cookies: BTreeSet<GroupName>,
    /// How tasks of a group are started when cgroups cannot be written.
    pub task_policies: BTreeMap<GroupName, TaskPolicy>,
}

pub use safe_settings::{SafeSetting, safe_settings};
pub use vendor::identity_obstacle;

/// Plans.
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

/// Everything that the planners want, fitted together.
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
    /// Whether the machine already is as wanted, as far as it can be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps that make groups and enable controllers: always the first ones.
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

/// The steps that take `steps` back: reversed, each turned round. After every prefix of them the
/// machine is in a state that a prefix of `steps` had, so each is as legal.
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
