//! Limits that cgroup v1 keeps within the parent's, against groups that nobody claims: a wanted value
//! that a parent or a child of somebody else's contradicts is `unmet`, because widening the one or
//! narrowing the other is not ours to do.
//!
//! v1 compares a quota with the nearest limited ancestor and descendant by share (quota / period,
//! `tg_cfs_schedulable_down`, kernel/sched/core.c), and a cpuset with its parent and children
//! (`validate_change`, kernel/cgroup/cpuset-v1.c). v2 has neither rule.

use super::wants::{Draft, Want};
use crate::actual::Place;
use crate::knob::{KnobId, Order, Value, Version};

/// Drops wanted values that cannot be, until the rest fit together.
pub(super) fn drop_impossible(draft: &mut Draft<'_>) {
    loop {
        let found = draft.wants.iter().find_map(|((place, knob, device), want)| {
            let version = draft.actual.hierarchies[place.hierarchy].version;
            let bounded = version == Version::V1 && knob.row().order == Order::WithinParent;
            let because = bounded.then(|| conflict(draft, place, *knob, want)).flatten()?;
            Some((place.clone(), *knob, *device, because))
        });
        let Some((place, knob, device, because)) = found else { break };
        if let Some(want) = draft.wants.remove(&(place.clone(), knob, device)) {
            let what = format!("{knob} of {}", place.path);
            draft.unmet_for(&want, what, because, "claim that group too, or choose a limit that fits it");
        }
    }
    // A quota that was dropped leaves the one that is there, and the kernel takes no burst above it.
    let bursts = draft.wants.iter().filter(|((_, knob, _), _)| *knob == KnobId::CpuBurst);
    let above: Vec<(Place, Value)> = bursts
        .filter_map(|((place, _, _), want)| {
            let quota = value_of(draft, place, KnobId::CpuMax)?;
            let (Value::Number(burst), Value::Number(most)) = (&want.value, &quota) else { return None };
            (burst > most).then(|| (place.clone(), quota))
        })
        .collect();
    for (place, quota) in above {
        if let Some(want) = draft.wants.remove(&(place.clone(), KnobId::CpuBurst, None)) {
            let what = format!("{} of {}", KnobId::CpuBurst, place.path);
            let because = format!("the quota there stays {quota} us, and the kernel takes no burst above it");
            draft.unmet_for(&want, what, because, "choose a shorter burst");
        }
    }
}

/// What stands against the value, in words.
fn conflict(draft: &Draft<'_>, place: &Place, knob: KnobId, want: &Want) -> Option<String> {
    let actual = draft.actual;
    for path in place.path.ancestors().into_iter().rev() {
        let above = Place { hierarchy: place.hierarchy, path };
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

/// The value that the place will have: wanted, or as it is.
fn value_of(draft: &Draft<'_>, place: &Place, knob: KnobId) -> Option<Value> {
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

fn within(draft: &Draft<'_>, inner: &Place, value: &Value, outer: &Place, bound: &Value) -> bool {
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

fn period(draft: &Draft<'_>, place: &Place) -> i128 {
    match value_of(draft, place, KnobId::CpuPeriod) {
        Some(Value::Number(period)) => i128::from(period).max(1),
        _ => 100_000,
    }
}
