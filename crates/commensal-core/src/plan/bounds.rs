//! Limits that in cgroup v1 must be within the parent's limits. If a wanted value conflicts with a parent or a child
//! that belongs to no workload group, the plan reports it as unmet, because commensal must not widen that parent or
//! narrow that child.
//!
//! v1 compares a quota with the nearest limited ancestor and descendant by share (quota / period,
//! `tg_cfs_schedulable_down`, kernel/sched/core.c), and a cpuset with its parent and children
//! (`validate_change`, kernel/cgroup/cpuset-v1.c). v2 has neither rule.

use super::draft::{Report, Want, Wants};
use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::desired::DesiredState;
use crate::knob::{KnobId, KnobOrder, Value, Version};
use std::collections::BTreeSet;

/// Drops wanted values that cannot be set, until the remaining ones are consistent, and reports them.
pub(super) fn drop_impossible(
    wants: &mut Wants,
    desired: &DesiredState,
    actual: &ActualState,
    report: &mut Report,
) {
    loop {
        let planned = Planned { wants, actual };
        let found = wants.iter().find_map(|((place, knob, device), want)| {
            let version = actual.hierarchies[place.hierarchy].version;
            let bounded = version == Version::V1 && knob.row().order == KnobOrder::WithinParent;
            let because = bounded.then(|| planned.conflict(place, *knob, want)).flatten()?;
            let mut try_this = "claim that group too, or choose a limit that fits it".to_owned();
            if let Some(remedy) = planned.remedy(place, *knob, want, desired) {
                try_this = format!("{remedy}; or {try_this}");
            }
            Some((place.clone(), *knob, *device, because, try_this))
        });
        let Some((place, knob, device, because, try_this)) = found else { break };
        if let Some(want) = wants.remove(&(place.clone(), knob, device)) {
            let what = format!("{knob} of {}", place.path);
            report.unmet_for(&want, what, because, &try_this);
        }
    }
    fit_bursts(wants, desired, actual, report);
}

/// Adjusts bursts to quotas: the kernel accepts no burst above the quota and no quota below the current burst (EINVAL,
/// `tg_set_cfs_bandwidth`). If a group wants a quota, this function lowers the burst to the quota. If the quota stays
/// unchanged, the function drops a requested burst above the quota.
fn fit_bursts(wants: &mut Wants, desired: &DesiredState, actual: &ActualState, report: &mut Report) {
    let about = |knob: KnobId| matches!(knob, KnobId::CpuMax | KnobId::CpuBurst);
    let places: BTreeSet<CgroupRef> =
        wants.keys().filter(|(_, knob, _)| about(*knob)).map(|(place, ..)| place.clone()).collect();
    for place in places {
        let planned = Planned { wants, actual };
        let Some(Value::Number(most)) = planned.value(&place, KnobId::CpuMax) else { continue };
        let Some(burst) = planned.burst(&place, desired).filter(|burst| *burst > most) else { continue };
        let key = (place.clone(), KnobId::CpuBurst, None);
        let asked = wants.remove(&key);
        let quota = wants.get(&(place.clone(), KnobId::CpuMax, None)).map(|quota| quota.group.clone());
        match (quota, asked) {
            (Some(group), asked) => {
                let why = match &asked {
                    Some(asked) => format!("{}, and no more than the quota of {most} us", asked.why),
                    None => format!("the burst of {burst} us is above the quota, which the kernel refuses"),
                };
                report.notes.extend(asked.map(|_| format!("group {why}")));
                wants.insert(key, Want { value: Value::Number(most), why, group });
            }
            (None, Some(asked)) => {
                let because =
                    format!("the quota there stays {most} us, and the kernel accepts no burst above it");
                let what = format!("{} of {}", KnobId::CpuBurst, place.path);
                report.unmet_for(&asked, what, because, "choose a shorter burst");
            }
            (None, None) => {}
        }
    }
}

/// The values of knobs after the plan.
#[derive(Clone, Copy)]
struct Planned<'p> {
    wants: &'p Wants,
    actual: &'p ActualState,
}

impl Planned<'_> {
    /// The value of a knob: the wanted or the unchanged one.
    fn value(&self, place: &CgroupRef, knob: KnobId) -> Option<Value> {
        let wanted = self.wants.get(&(place.clone(), knob, None)).map(|want| &want.value);
        wanted.or_else(|| self.actual.cgroups.get(place)?.values.get(&(knob, None))).cloned()
    }

    /// The quota's period after the plan (us).
    fn period(&self, place: &CgroupRef) -> i128 {
        match self.value(place, KnobId::CpuPeriod) {
            Some(Value::Number(period)) => i128::from(period).max(1),
            _ => 100_000,
        }
    }

    /// The burst: the wanted, the restored or the unchanged one. `None` if it is unknown. In a group that commensal
    /// created, a burst that no group wants returns to 0, for which the function also returns `None`.
    fn burst(&self, place: &CgroupRef, desired: &DesiredState) -> Option<i64> {
        let key = (place.clone(), KnobId::CpuBurst, None);
        let own = [&desired.offline_parent, &desired.online_parent]
            .iter()
            .any(|parent| parent.contains(&place.path));
        let found = || self.actual.cgroups.get(place)?.values.get(&(KnobId::CpuBurst, None));
        let back = || self.actual.ours.originals.get(&key).or_else(|| found().filter(|_| !own));
        match self.wants.get(&key).map(|want| &want.value).or_else(back) {
            Some(Value::Number(us)) => Some(*us),
            _ => None,
        }
    }

    /// Why the value cannot be set, as readable text; `None` if it can.
    fn conflict(&self, place: &CgroupRef, knob: KnobId, want: &Want) -> Option<String> {
        for path in place.path.ancestors().into_iter().rev() {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            let Some(bound) = self.value(&above, knob) else { continue };
            if limits(&bound) {
                if !self.within(place, &want.value, &above, &bound) {
                    return Some(format!(
                        "{} above it has {bound}, which cgroup v1 does not let it exceed",
                        above.path
                    ));
                }
                break;
            }
        }
        self.actual.below(place).find_map(|(child, _)| {
            let value = self.value(child, knob).filter(limits)?;
            let fits = self.within(child, &value, place, &want.value);
            (!fits).then(|| {
                format!(
                    "{} below it has {value}, and cgroup v1 does not let a parent go under that",
                    child.path
                )
            })
        })
    }

    /// The commands that give the cpusets above `place` the CPUs that they lack although they are online: v1 takes a CPU that
    /// goes offline out of every cpuset, and puts it back into the root's only.
    fn remedy(&self, place: &CgroupRef, knob: KnobId, want: &Want, desired: &DesiredState) -> Option<String> {
        let Value::List(wanted) = &want.value else { return None };
        if knob != KnobId::CpusetCpus || !wanted.is_subset(&desired.cpus) {
            return None;
        }
        let give = |path: CgroupPath| {
            let above = CgroupRef { hierarchy: place.hierarchy, path };
            let Some(Value::List(has)) = self.value(&above, knob) else { return None };
            let lacks = above.path.depth() > 0 && !wanted.is_subset(&has);
            let directory = self.actual.directory(&above);
            lacks.then(|| format!("echo {} > {directory}/cpuset.cpus", has.union(wanted)))
        };
        let all: Vec<String> = place.path.ancestors().into_iter().filter_map(give).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether `value` of the inner cgroup is within `bound`, the value of the outer one.
    fn within(&self, inner: &CgroupRef, value: &Value, outer: &CgroupRef, bound: &Value) -> bool {
        match (value, bound) {
            (_, Value::NoLimit) | (Value::NoLimit, _) => true,
            (Value::List(inner), Value::List(outer)) => inner.is_subset(outer),
            // quota / inner period <= limit / outer period, without division.
            (Value::Number(quota), Value::Number(limit)) => {
                i128::from(*quota) * self.period(outer) <= i128::from(*limit) * self.period(inner)
            }
            _ => true,
        }
    }
}

/// Whether the value is a limit; an empty cpuset or an unlimited quota is not.
fn limits(value: &Value) -> bool {
    match value {
        Value::NoLimit => false,
        Value::List(set) => !set.is_empty(),
        _ => true,
    }
}
