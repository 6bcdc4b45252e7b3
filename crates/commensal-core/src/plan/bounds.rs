//! Limits that cgroup v1 keeps within the parent's: a wanted value that conflicts with a parent or a child that belongs
//! to no group is `unmet`, because commensal must not widen the one or narrow the other.
//!
//! v1 compares a quota with the nearest limited ancestor and descendant by share (quota / period,
//! `tg_cfs_schedulable_down`, kernel/sched/core.c), and a cpuset with its parent and children
//! (`validate_change`, kernel/cgroup/cpuset-v1.c). v2 has neither rule.

use super::draft::{Draft, Want};
use crate::actual::CgroupRef;
use crate::knob::{KnobId, KnobOrder, Value, Version};
use std::collections::BTreeSet;

/// Drops wanted values that cannot be set, until the rest are consistent.
pub(super) fn drop_impossible(draft: &mut Draft<'_>) {
    loop {
        let found = draft.wants.iter().find_map(|((place, knob, device), want)| {
            let version = draft.actual.hierarchies[place.hierarchy].version;
            let bounded = version == Version::V1 && knob.row().order == KnobOrder::WithinParent;
            let because = bounded.then(|| conflict(draft, place, *knob, want)).flatten()?;
            Some((place.clone(), *knob, *device, because))
        });
        let Some((place, knob, device, because)) = found else { break };
        if let Some(want) = draft.wants.remove(&(place.clone(), knob, device)) {
            let what = format!("{knob} of {}", place.path);
            draft.unmet_for(&want, what, because, "claim that group too, or choose a limit that fits it");
        }
    }
    fit_bursts(draft);
}

/// The kernel accepts no burst above the quota, and no quota below the current burst (EINVAL, `tg_set_cfs_bandwidth`).
/// If a quota is wanted, the burst is lowered to it; if the quota stays, a requested burst above it is dropped.
fn fit_bursts(draft: &mut Draft<'_>) {
    let about = |knob: KnobId| matches!(knob, KnobId::CpuMax | KnobId::CpuBurst);
    let places: BTreeSet<CgroupRef> =
        draft.wants.keys().filter(|(_, knob, _)| about(*knob)).map(|(place, ..)| place.clone()).collect();
    for place in places {
        let Some(Value::Number(most)) = value_of(draft, &place, KnobId::CpuMax) else { continue };
        let Some(burst) = burst_to_come(draft, &place).filter(|burst| *burst > most) else { continue };
        let key = (place.clone(), KnobId::CpuBurst, None);
        let asked = draft.wants.remove(&key);
        let quota = draft.wants.get(&(place.clone(), KnobId::CpuMax, None)).map(|quota| quota.group.clone());
        match (quota, asked) {
            (Some(group), asked) => {
                let why = match &asked {
                    Some(asked) => format!("{}, and no more than the quota of {most} us", asked.why),
                    None => format!("the burst of {burst} us is above the quota, which the kernel refuses"),
                };
                draft.notes.extend(asked.map(|_| format!("group {why}")));
                draft.wants.insert(key, Want { value: Value::Number(most), why, group });
            }
            (None, Some(asked)) => {
                let because =
                    format!("the quota there stays {most} us, and the kernel takes no burst above it");
                let what = format!("{} of {}", KnobId::CpuBurst, place.path);
                draft.unmet_for(&asked, what, because, "choose a shorter burst");
            }
            (None, None) => {}
        }
    }
}

/// The burst after the plan: wanted, restored, or unchanged. In a group that commensal created, an unwanted burst goes
/// back to 0.
fn burst_to_come(draft: &Draft<'_>, place: &CgroupRef) -> Option<i64> {
    let key = (place.clone(), KnobId::CpuBurst, None);
    let desired = draft.desired;
    let own =
        [&desired.offline_parent, &desired.online_parent].iter().any(|parent| parent.contains(&place.path));
    let found = || draft.actual.cgroups.get(place)?.values.get(&(KnobId::CpuBurst, None));
    let back = || draft.actual.ours.originals.get(&key).or_else(|| found().filter(|_| !own));
    match draft.wants.get(&key).map(|want| &want.value).or_else(back) {
        Some(Value::Number(us)) => Some(*us),
        _ => None,
    }
}

/// Why the value cannot be set, in words.
fn conflict(draft: &Draft<'_>, place: &CgroupRef, knob: KnobId, want: &Want) -> Option<String> {
    let actual = draft.actual;
    for path in place.path.ancestors().into_iter().rev() {
        let above = CgroupRef { hierarchy: place.hierarchy, path };
        let Some(bound) = value_of(draft, &above, knob) else { continue };
        if limits(&bound) {
            if !within(draft, place, &want.value, &above, &bound) {
                return Some(format!(
                    "{} above it has {bound}, which cgroup v1 does not let it exceed",
                    above.path
                ));
            }
            break;
        }
    }
    actual.below(place).find_map(|(child, _)| {
        let value = value_of(draft, child, knob).filter(limits)?;
        let fits = within(draft, child, &value, place, &want.value);
        (!fits).then(|| {
            format!("{} below it has {value}, and cgroup v1 does not let a parent go under that", child.path)
        })
    })
}

/// The value after the plan: wanted, or unchanged.
fn value_of(draft: &Draft<'_>, place: &CgroupRef, knob: KnobId) -> Option<Value> {
    let wanted = draft.wants.get(&(place.clone(), knob, None)).map(|want| &want.value);
    wanted.or_else(|| draft.actual.cgroups.get(place)?.values.get(&(knob, None))).cloned()
}

/// Whether the value limits anything: an unset cpuset or quota does not.
fn limits(value: &Value) -> bool {
    match value {
        Value::NoLimit => false,
        Value::List(set) => !set.is_empty(),
        _ => true,
    }
}

fn within(draft: &Draft<'_>, inner: &CgroupRef, value: &Value, outer: &CgroupRef, bound: &Value) -> bool {
    match (value, bound) {
        (_, Value::NoLimit) | (Value::NoLimit, _) => true,
        (Value::List(inner), Value::List(outer)) => inner.is_subset(outer),
        // inner / inner period <= outer / outer period, without division.
        (Value::Number(quota), Value::Number(limit)) => {
            i128::from(*quota) * period(draft, outer) <= i128::from(*limit) * period(draft, inner)
        }
        _ => true,
    }
}

fn period(draft: &Draft<'_>, place: &CgroupRef) -> i128 {
    match value_of(draft, place, KnobId::CpuPeriod) {
        Some(Value::Number(period)) => i128::from(period).max(1),
        _ => 100_000,
    }
}
