//! The parts of a plan: steps, and requests that cannot be met.

use crate::actual::{CgroupPath, CgroupRef};
use crate::group::GroupName;
use crate::knob::{Controller, KnobId, Value};
use crate::member::ProcessId;
use crate::scheduler::Orders;
use crate::topology::Device;
use crate::vendor::Switch;
use std::collections::BTreeMap;

/// A change, usually of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create the group.
    Create,
    /// Remove an empty group that commensal created.
    Remove,
    /// v2: enable a controller for the group's children.
    Enable(Controller),
    /// v2: disable a controller for the group's children.
    Disable(Controller),
    /// Write a knob.
    Write {
        /// The knob.
        knob: KnobId,
        /// The device, if the knob is per device.
        device: Option<Device>,
        /// Current value.
        from: Value,
        /// New value, in the form in which the kernel reads it back.
        to: Value,
    },
    /// Write a knob that the kernel cannot set back; [`Action::Recreate`] undoes this write.
    Irreversible {
        /// The knob.
        knob: KnobId,
        /// Current value.
        from: Value,
        /// New value.
        to: Value,
    },
    /// Restore an irreversible knob: the members are moved to a fresh group with the same settings, which then gets the
    /// name of the old group.
    Recreate {
        /// The knob.
        knob: KnobId,
        /// Current value.
        from: Value,
        /// Value in the fresh group.
        to: Value,
    },
    /// Change a machine-wide switch that knobs of this hierarchy need. The step's `place` is the root of the hierarchy.
    Switch {
        /// The switch.
        switch: Switch,
        /// Current value.
        from: i64,
        /// New value.
        to: i64,
    },
    /// Give all threads in and below the group one new core-scheduling cookie, or remove their cookies.
    Cookie {
        /// True to give a cookie, false to remove it.
        give: bool,
    },
    /// Send new orders to the sched_ext scheduler; the step's `place` is the root of the cpu controller's hierarchy.
    Order {
        /// Orders in force.
        from: Orders,
        /// New orders.
        to: Orders,
    },
    /// Move a process in all hierarchies; the step's `place` is its new cgroup in the first hierarchy. The step has no
    /// effect on a process that has exited or has left its old cgroup.
    Move(Movement),
}

/// A setting that an action writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenSetting<'a> {
    /// The knob.
    pub knob: KnobId,
    /// The device, if the knob is per device.
    pub device: Option<Device>,
    /// Current value.
    pub from: &'a Value,
    /// New value.
    pub to: &'a Value,
}

impl Action {
    /// Returns the setting that the action writes; `None` if it writes none.
    #[must_use]
    pub fn written(&self) -> Option<WrittenSetting<'_>> {
        match self {
            Action::Write { knob, device, from, to } => {
                Some(WrittenSetting { knob: *knob, device: *device, from, to })
            }
            Action::Irreversible { knob, from, to } | Action::Recreate { knob, from, to } => {
                Some(WrittenSetting { knob: *knob, device: None, from, to })
            }
            _ => None,
        }
    }
}

/// The move of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    /// The process.
    pub process: ProcessId,
    /// PID and program, as shown to users.
    pub name: String,
    /// The match that selects the process, as readable text; empty for a move back.
    pub by: String,
    /// Current cgroups of the process, by hierarchy.
    pub from: BTreeMap<usize, CgroupPath>,
    /// New cgroups of the process, in the same hierarchies.
    pub to: BTreeMap<usize, CgroupPath>,
    /// Whether the process is a member already and only lacks a cgroup of its group, such as a cpuset out of which the
    /// kernel has moved it. Such a move is not recorded, because the cgroup that the process leaves is not its own.
    pub home: bool,
}

impl Movement {
    /// The reverse move.
    #[must_use]
    pub fn back(&self) -> Movement {
        Movement { from: self.to.clone(), to: self.from.clone(), ..self.clone() }
    }

    /// The new cgroup in the first hierarchy; `None` if the move has no new cgroup.
    #[must_use]
    pub fn place(&self) -> Option<CgroupRef> {
        self.to
            .first_key_value()
            .map(|(hierarchy, path)| CgroupRef { hierarchy: *hierarchy, path: path.clone() })
    }
}

/// A step of a plan: the cgroup, the change and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The cgroup.
    pub place: CgroupRef,
    /// The change.
    pub action: Action,
    /// The reason, with the numbers that led to it.
    pub why: String,
}

/// A request that cannot be met on this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmet {
    /// The group that made the request.
    pub group: GroupName,
    /// The request.
    pub what: String,
    /// Why this machine cannot meet the request.
    pub because: String,
    /// What the user can do about it.
    pub try_this: String,
}
