//! The orders for commensal's sched_ext scheduler. An order is the scheduler's configuration of one cgroup. The plan
//! sends the orders of all its groups in one step.

use super::draft::Draft;
use crate::actual::{ActualState, Capabilities, CgroupRef, SCHEDULER, SMT, Support};
use crate::class::{Mechanism, ladder};
use crate::desired::{DesiredGroup, Member};
use crate::group::Class;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::limit::{CPU_MAX, CPU_WEIGHT};
use crate::scheduler::{Order, Orders, Quota};
use crate::units::{MicroCpus, Weight};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Maximum number of cgroups named in the step's reason.
const NAMED: usize = 3;

/// The capabilities, updated with the current state of the scheduler, which may have been loaded or unloaded since
/// commensal probed the capabilities.
pub(super) fn with_scheduler<'c>(caps: &'c Capabilities, actual: &ActualState) -> Cow<'c, Capabilities> {
    let now = match &actual.scheduler {
        Some(scheduler) => match &scheduler.obstacle {
            Some(because) => Support::No { because: because.clone() },
            None => Support::Yes,
        },
        None if caps.features.get(SCHEDULER) == Some(&Support::Yes) => {
            Support::No { because: "the scheduler's state has not been read".to_owned() }
        }
        None => return Cow::Borrowed(caps),
    };
    let mut caps = caps.clone();
    caps.features.insert(SCHEDULER, now);
    Cow::Owned(caps)
}

/// Whether the sched_ext scheduler is the best mechanism on this machine.
pub(super) fn is_best(caps: &Capabilities, actual: &ActualState, identity: Option<&str>) -> bool {
    let version = actual.hierarchy_of(Controller::Cpu).map(|index| actual.hierarchies[index].version);
    version.is_some_and(|version| {
        let rungs = ladder(caps, version, identity);
        rungs.iter().find(|rung| rung.obstacle.is_none()).is_some_and(|rung| rung.name == SCHEDULER)
    })
}

impl Draft<'_> {
    /// Adds the order for a member to the orders, if the scheduler is in use.
    pub(super) fn order(&mut self, group: &DesiredGroup, member: &Member) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu).filter(|_| self.scheduler.is_best)
        else {
            return;
        };
        let place = CgroupRef { hierarchy, path: member.path.clone() };
        let cgroup = self.actual.directory(&place);
        self.scheduler.mentioned.insert(cgroup.clone());
        if member.own && self.desired.kept.contains(&place) {
            let before = self.actual.scheduler.as_ref().and_then(|found| found.orders.groups.get(&cgroup));
            self.scheduler.orders.extend(before.map(|order| (cgroup, order.clone())));
            return;
        }
        if group.exposed || !self.will_exist(&place) {
            return;
        }
        let order = match group.class {
            Class::Online => Order { class: Class::Online, expel: false, weight: None, limit: None },
            Class::Offline => Order {
                class: Class::Offline,
                expel: false,
                weight: self.weight(group, &place),
                limit: group.limits.get(CPU_MAX).map(|amount| self.limit(group, member, amount)),
            },
        };
        self.scheduler.orders.insert(cgroup, order);
    }

    /// The weight for the order: the configured one, otherwise the weight that the group had before the inner mechanism
    /// changed it. `None` lets the scheduler read the cgroup's weight.
    fn weight(&self, group: &DesiredGroup, place: &CgroupRef) -> Option<u64> {
        if let Some(weight) = group.limits.get(CPU_WEIGHT) {
            return Some(u64::from(weight.v2()));
        }
        if !self.yields_at(group, place) {
            return None;
        }
        let version = self.actual.hierarchies.get(place.hierarchy)?.version;
        let weight = (place.clone(), KnobId::CpuWeight, None);
        let values = &self.actual.cgroups.get(place)?.values;
        let idle = values.get(&(KnobId::CpuIdle, None)) == Some(&Value::Number(1));
        let before = match self.actual.ours.originals.get(&weight) {
            Some(original) => Some(original),
            // While `cpu.idle` is 1, the file shows a fixed number in place of the weight.
            None if idle => None,
            None => values.get(&(KnobId::CpuWeight, None)),
        };
        let Some(Value::Number(number)) = before else { return None };
        // A group whose `cpu.idle` is cleared gets the kernel's default weight, which the scheduler also assumes for
        // it.
        let default = KnobId::CpuWeight.row().file(version)?.default == number.to_string();
        let number = u64::try_from(*number).ok().filter(|_| !default || self.wants.contains_key(&weight))?;
        Some(match version {
            Version::V1 => u64::from(Weight::from_v1_shares(number).v2()),
            Version::V2 => number,
        })
    }

    fn limit(&self, group: &DesiredGroup, member: &Member, amount: MicroCpus) -> Quota {
        let period_us = amount.period_us(self.usual_period_us(group, member));
        Quota { quota_us: amount.quota_us(period_us), period_us: u64::from(period_us) }
    }

    /// Whether the class of the group is set on exactly this cgroup.
    pub(super) fn yields_at(&self, group: &DesiredGroup, place: &CgroupRef) -> bool {
        self.mechanisms.contains_key(&(group.name.clone(), place.clone()))
    }

    /// The orders in force, the new orders and the reason for the change; `None` if they are equal, or if the scheduler
    /// cannot be used.
    pub(super) fn new_orders(&self) -> Option<(Orders, Orders, String)> {
        let scheduler = self.actual.scheduler.as_ref().filter(|found| found.obstacle.is_none())?;
        let from = scheduler.orders.clone();
        let mut to = Orders { groups: self.scheduler.orders.clone(), ..from.clone() };
        let expelled = |group: &DesiredGroup| {
            group.expel && !group.exposed && self.mechanisms.keys().any(|(name, _)| *name == group.name)
        };
        if self.caps.feature_obstacle(SMT).is_none() && self.desired.groups.iter().any(expelled) {
            to.groups.values_mut().for_each(|order| order.expel = order.class == Class::Online);
        }
        let left = self.left_alone();
        for (cgroup, order) in &from.groups {
            let unmentioned = !self.scheduler.mentioned.contains(cgroup);
            if unmentioned && (self.desired.alone || left.contains(cgroup)) {
                to.groups.insert(cgroup.clone(), order.clone());
            }
        }
        if self.desired.alone {
            // Groups outside this plan may need `expel`, so it must not be turned off here.
            for (cgroup, order) in to.groups.iter_mut().filter(|(_, order)| order.class == Class::Online) {
                order.expel |= from.groups.get(cgroup).is_some_and(|before| before.expel);
            }
        }
        let why = why(&from, &to);
        (from != to).then_some((from, to, why))
    }

    /// Whether an order in force has `expel`, in a plan that covers only some of the groups and therefore keeps it.
    pub(super) fn expelling_in_force(&self) -> bool {
        let in_force = self.actual.scheduler.iter().flat_map(|found| found.orders.groups.values());
        self.desired.alone && in_force.into_iter().any(|order| order.expel)
    }

    /// Directories of the groups created by commensal that this plan does not remove. This includes groups that no
    /// group of the user wants any more but that are still in use.
    fn left_alone(&self) -> BTreeSet<String> {
        let ours = self.actual.ours.created.iter().filter(|place| !self.structure.removes.contains(place));
        ours.map(|place| self.actual.directory(place)).collect()
    }

    /// Drops the thawing of groups that the scheduler's guard has frozen; the guard itself will thaw them.
    pub(super) fn leave_frozen(&mut self) {
        let actual = self.actual;
        self.wants.retain(|(place, knob, _), want| {
            let thaws = *knob == KnobId::CgroupFreeze && want.value == Value::Number(0);
            !(thaws && actual.frozen_by_scheduler(place))
        });
    }

    /// Whether the sched_ext scheduler is the mechanism that makes this group yield to online groups.
    pub(super) fn by_scheduler(&self, group: &DesiredGroup) -> bool {
        self.mechanisms
            .iter()
            .any(|((name, _), mechanism)| *name == group.name && matches!(mechanism, Mechanism::SchedExt(_)))
    }
}

fn why(from: &Orders, to: &Orders) -> String {
    let changes: Vec<String> = from.changes(to).map(|(sign, cgroup)| format!("{sign}{cgroup}")).collect();
    let more = match changes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = changes.into_iter().take(NAMED).collect::<Vec<_>>().join(" ");
    match to.groups.is_empty() {
        true => format!("no longer wanted: {named}{more}"),
        false => format!("offline threads run when no other wants the CPU: {named}{more}"),
    }
}
