//! Everything wanted so far: the planners write here and are independent of each other.

use super::step::{Movement, Unmet};
use crate::actual::{ActualState, Capabilities, CgroupRef};
use crate::class::Mechanism;
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::GroupName;
use crate::knob::{Controller, KnobId, Value};
use crate::scheduler::Order;
use crate::topology::Device;
use crate::vendor::Switch;
use std::collections::{BTreeMap, BTreeSet};

/// A wanted value and its reason.
#[derive(Debug, Clone)]
pub(super) struct Want {
    pub value: Value,
    pub why: String,
    /// The group that asked; `None` when a value is restored.
    pub group: Option<GroupName>,
}

/// Everything wanted so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub desired: &'a DesiredState,
    pub actual: &'a ActualState,
    pub caps: &'a Capabilities,
    pub creates: BTreeMap<CgroupRef, String>,
    pub enables: BTreeMap<(CgroupRef, Controller), String>,
    pub wants: BTreeMap<(CgroupRef, KnobId, Option<Device>), Want>,
    pub removes: BTreeSet<CgroupRef>,
    /// Machine-wide switches: value and reason.
    pub switches: BTreeMap<Switch, (i64, String)>,
    /// Core-scheduling cookies: whether to give or take one, and the reason.
    pub cookies: BTreeMap<CgroupRef, (bool, String)>,
    /// Groups whose tasks start with a cookie.
    pub cookie_groups: BTreeSet<GroupName>,
    /// Groups that still need the cookie of an earlier plan.
    pub kept_cookies: BTreeSet<CgroupRef>,
    /// Processes to move, and why.
    pub moves: Vec<(Movement, String)>,
    /// Whether the sched_ext scheduler is the best mechanism here, the orders for it, and the cgroups that the plan
    /// covers.
    pub scheduled: bool,
    pub orders: BTreeMap<String, Order>,
    pub mentioned: BTreeSet<String>,
    /// Why Group Identity cannot be used although the kernel has it.
    pub identity: Option<String>,
    pub unmet: Vec<Unmet>,
    pub declined: BTreeMap<(GroupName, KnobId), String>,
    pub notes: Vec<String>,
    pub mechanisms: BTreeMap<(GroupName, CgroupRef), Mechanism>,
}

/// A setting of a cgroup path, before its hierarchy is known.
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
        (identity, scheduled): (Option<String>, bool),
    ) -> Draft<'a> {
        Draft {
            scheduled,
            orders: BTreeMap::new(),
            mentioned: BTreeSet::new(),
            desired,
            actual,
            caps,
            creates: BTreeMap::new(),
            enables: BTreeMap::new(),
            wants: BTreeMap::new(),
            removes: BTreeSet::new(),
            switches: BTreeMap::new(),
            cookies: BTreeMap::new(),
            kept_cookies: BTreeSet::new(),
            cookie_groups: BTreeSet::new(),
            moves: Vec::new(),
            identity,
            unmet: Vec::new(),
            declined: BTreeMap::new(),
            notes: Vec::new(),
            mechanisms: BTreeMap::new(),
        }
    }

    /// Whether `cpu.qos_level` cannot be raised again once it was lowered.
    pub fn irreversible(&self) -> bool {
        self.caps.qos.is_some_and(|qos| !qos.reversible)
    }

    pub fn unmet(&mut self, group: &DesiredGroup, what: String, because: String, try_this: &str) {
        self.unmet.push(Unmet { group: group.name.clone(), what, because, try_this: try_this.to_owned() });
    }

    /// Like `unmet`, for a knob whose value a controller may have chosen.
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

    /// Reports a want that had to be dropped; if no group asked for it, it is only a note.
    pub fn unmet_for(&mut self, want: &Want, what: String, because: String, try_this: &str) {
        match &want.group {
            Some(group) => {
                self.unmet.push(Unmet { group: group.clone(), what, because, try_this: try_this.to_owned() });
            }
            None => self.notes.push(format!("{what} stays as it is: {because}")),
        }
    }
}
