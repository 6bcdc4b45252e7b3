//! What a plan consists of: steps, and requests that cannot be met.

use crate::actual::{CgroupPath, CgroupRef};
use crate::group::GroupName;
use crate::knob::{Controller, KnobId, Value};
use crate::member::ProcessId;
use crate::scheduler::Orders;
use crate::topology::Device;
use crate::vendor::Switch;
use std::collections::BTreeMap;

/// One change of one cgroup.
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
        /// New value, as the kernel will read it back.
        to: Value,
    },
    /// Write a knob that cannot be set back: undone by [`Action::Recreate`].
    Irreversible {
        /// The knob.
        knob: KnobId,
        /// Current value.
        from: Value,
        /// New value.
        to: Value,
    },
    /// Restore an irreversible knob: the members move to a fresh group with the same settings, which then takes the old
    /// group's name.
    Recreate {
        /// The knob.
        knob: KnobId,
        /// Current value.
        from: Value,
        /// Value in the fresh group.
        to: Value,
    },
    /// Change a machine-wide switch that knobs of this hierarchy need; the step's place is the hierarchy's root.
    Switch {
        /// The switch.
        switch: Switch,
        /// Current value.
        from: i64,
        /// New value.
        to: i64,
    },
    /// Give all threads in and below the group one new core-scheduling cookie, or take it away.
    Cookie {
        /// True to give, false to take away.
        give: bool,
    },
    /// Send new orders to the sched_ext scheduler; the step's place is the root of the cpu controller's hierarchy.
    Order {
        /// Orders in force now.
        from: Orders,
        /// New orders.
        to: Orders,
    },
    /// Move a process, in every hierarchy at once; the step's place is its new cgroup in the first hierarchy. A process
    /// that has exited, or that is no longer where it was, is skipped.
    Move(Movement),
}

/// The move of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    /// The process.
    pub process: ProcessId,
    /// PID and program, as shown to users.
    pub name: String,
    /// The match that selects it, in words; empty for a move back.
    pub by: String,
    /// Its current cgroups, by hierarchy.
    pub from: BTreeMap<usize, CgroupPath>,
    /// Its new cgroups, in the same hierarchies.
    pub to: BTreeMap<usize, CgroupPath>,
}

impl Movement {
    /// The reverse move.
    #[must_use]
    pub fn back(&self) -> Movement {
        Movement { from: self.to.clone(), to: self.from.clone(), ..self.clone() }
    }

    /// The new cgroup in the first hierarchy.
    #[must_use]
    pub fn place(&self) -> Option<CgroupRef> {
        self.to
            .first_key_value()
            .map(|(hierarchy, path)| CgroupRef { hierarchy: *hierarchy, path: path.clone() })
    }
}

/// One step: the cgroup, the change and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The cgroup.
    pub place: CgroupRef,
    /// The change.
    pub action: Action,
    /// The reason, with the numbers behind it.
    pub why: String,
}

/// A request that cannot be met here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmet {
    /// The group that asked.
    pub group: GroupName,
    /// The request.
    pub what: String,
    /// Why it cannot be met.
    pub because: String,
    /// What would help.
    pub try_this: String,
}
