//! The draft of a plan: each planner adds the values of kernel settings (knobs) that its groups want.

use super::step::{Movement, Unmet};
use crate::actual::{ActualState, Capabilities, CgroupRef, SettingRef};
use crate::class::Mechanism;
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::GroupName;
use crate::knob::{Controller, KnobId, Value};
use crate::scheduler::Order;
use crate::topology::Device;
use crate::vendor::Switch;
use std::collections::{BTreeMap, BTreeSet};

/// A value that a planner wants, with the reason.
#[derive(Debug, Clone)]
pub(super) struct Want {
    pub value: Value,
    pub why: String,
    /// The group that requested the value; `None` if the plan restores an original value.
    pub group: Option<GroupName>,
}

/// The values that are wanted so far.
pub(super) type Wants = BTreeMap<SettingRef, Want>;

/// Everything that the planners have wanted so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub desired: &'a DesiredState,
    pub actual: &'a ActualState,
    pub caps: &'a Capabilities,
    pub structure: Structure,
    pub wants: Wants,
    /// New values of machine-wide switches, with the reasons.
    pub switches: BTreeMap<Switch, (i64, String)>,
    pub cookies: CookieChanges,
    /// Processes to move, with the reasons.
    pub moves: Vec<(Movement, String)>,
    pub scheduler: SchedulerOrders,
    /// Why Group Identity cannot be used although the kernel has it; `None` if it can.
    pub identity: Option<String>,
    /// The mechanism that makes each offline group yield.
    pub mechanisms: BTreeMap<(GroupName, CgroupRef), Mechanism>,
    pub report: Report,
}

/// Changes of the cgroup tree, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Structure {
    /// Cgroups to create.
    pub creates: BTreeMap<CgroupRef, String>,
    /// Controllers to enable for the children of a cgroup.
    pub enables: BTreeMap<(CgroupRef, Controller), String>,
    /// Cgroups to remove.
    pub removes: BTreeSet<CgroupRef>,
}

/// Core-scheduling cookies.
#[derive(Debug, Default)]
pub(super) struct CookieChanges {
    /// Cgroups whose threads get a cookie (true) or lose theirs (false), with the reason.
    pub changes: BTreeMap<CgroupRef, (bool, String)>,
    /// Groups whose new tasks must get the group's cookie when they start.
    pub groups: BTreeSet<GroupName>,
    /// Cgroups that still need the cookie of an earlier plan.
    pub kept: BTreeSet<CgroupRef>,
}

impl CookieChanges {
    /// Whether the cgroup needs its cookie, or is about to get one.
    pub fn are_wanted(&self, place: &CgroupRef) -> bool {
        self.changes.contains_key(place) || self.kept.contains(place)
    }
}

/// Orders for the sched_ext scheduler.
#[derive(Debug)]
pub(super) struct SchedulerOrders {
    /// Whether the scheduler is the best mechanism here; without it there are no orders.
    pub is_best: bool,
    /// The new orders, by the cgroup's directory.
    pub orders: BTreeMap<String, Order>,
    /// The cgroups that this plan covers.
    pub mentioned: BTreeSet<String>,
}

/// Messages to the user about the plan.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub unmet: Vec<Unmet>,
    pub declined: BTreeMap<(GroupName, KnobId), String>,
    pub notes: Vec<String>,
}

/// A setting for a cgroup path, before its hierarchy is determined.
pub(super) struct Setting {
    pub knob: KnobId,
    pub device: Option<Device>,
    pub value: Value,
    pub why: String,
}

impl Setting {
    pub fn new(knob: KnobId, value: Value, why: String) -> Setting {
        Setting { knob, device: None, value, why }
    }
}

impl<'a> Draft<'a> {
    pub fn new(
        desired: &'a DesiredState,
        actual: &'a ActualState,
        caps: &'a Capabilities,
        (identity, is_best): (Option<String>, bool),
    ) -> Draft<'a> {
        let (orders, mentioned) = (BTreeMap::new(), BTreeSet::new());
        Draft {
            desired,
            actual,
            caps,
            structure: Structure::default(),
            wants: Wants::new(),
            switches: BTreeMap::new(),
            cookies: CookieChanges::default(),
            moves: Vec::new(),
            scheduler: SchedulerOrders { is_best, orders, mentioned },
            identity,
            mechanisms: BTreeMap::new(),
            report: Report::default(),
        }
    }

    /// Whether the cgroup exists or is created by the plan.
    pub fn will_exist(&self, place: &CgroupRef) -> bool {
        self.structure.creates.contains_key(place) || self.actual.cgroups.contains_key(place)
    }

    /// Whether `cpu.qos_level` cannot be raised again after it was lowered.
    pub fn irreversible(&self) -> bool {
        self.caps.qos.is_some()
    }
}

impl Report {
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub fn unmet(&mut self, group: &DesiredGroup, what: String, because: String, try_this: &str) {
        self.unmet.push(Unmet { group: group.name.clone(), what, because, try_this: try_this.to_owned() });
    }

    /// Like `unmet`, for a knob; if a controller chose the value, it is recorded in `declined` instead.
    pub fn unmet_knob(
        &mut self,
        group: &DesiredGroup,
        (knob, what): (KnobId, String),
        because: String,
        try_this: &str,
    ) {
        match group.chosen.contains(&knob) {
            true => drop(self.declined.insert((group.name.clone(), knob), because)),
            false => self.unmet(group, what, because, try_this),
        }
    }

    /// Reports a wanted value that had to be dropped: as unmet if a group requested it, otherwise as a note.
    pub fn unmet_for(&mut self, want: &Want, what: String, because: String, try_this: &str) {
        match &want.group {
            Some(group) => {
                self.unmet.push(Unmet { group: group.clone(), what, because, try_this: try_this.to_owned() });
            }
            None => self.notes.push(format!("{what} stays as it is: {because}")),
        }
    }
}
