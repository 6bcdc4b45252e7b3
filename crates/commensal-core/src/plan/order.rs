//! From wanted values to steps in a legal order.
//!
//! ```text
//! 1 structure     create groups and enable controllers, from the top
//! 2 un-idle       cpu.idle 1 -> 0, because a weight cannot be written before
//! 3 widen         limits that must stay within the parent's, from the top
//! 4 free          everything whose order does not matter
//! 5 tighten       limits that must stay within the parent's, from the bottom
//! 6 idle          cpu.idle 0 -> 1, because a weight cannot be written after
//! 7 remove        our empty groups, from the bottom
//! ```
//! A set that is neither wider nor narrower (CPUs 0-1 to 2-3) is first widened to both, then tightened.

use super::wants::Draft;
use super::{Action, Step};
use crate::actual::{ActualState, Place};
use crate::knob::{KnobId, Order, Value};
use crate::topology::Device;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Structure,
    UnIdle,
    Widen,
    Free,
    Tighten,
    Idle,
    Remove,
}

/// Position of a step: phase, depth (from the top or the bottom), then names, so that the order is the
/// same every time.
type Key = (Phase, isize, u8, Place, Option<KnobId>, Option<Device>);

pub(super) fn steps(draft: &Draft<'_>, actual: &ActualState) -> Vec<Step> {
    let mut keyed: Vec<(Key, Step)> = Vec::new();
    let depth = |place: &Place| isize::try_from(place.path.depth()).unwrap_or(isize::MAX);
    for (place, why) in &draft.creates {
        let step = Step { place: place.clone(), action: Action::Create, why: why.clone() };
        keyed.push(((Phase::Structure, depth(place), 0, place.clone(), None, None), step));
    }
    for ((place, controller), why) in &draft.enables {
        let step = Step { place: place.clone(), action: Action::Enable(*controller), why: why.clone() };
        keyed.push(((Phase::Structure, depth(place), 1, place.clone(), None, None), step));
    }
    for ((place, knob, device), want) in &draft.wants {
        let from = current(actual, place, *knob, *device);
        let version = actual.hierarchies.get(place.hierarchy).map(|hierarchy| hierarchy.version);
        let file = version.and_then(|version| knob.row().file(version));
        if from == want.value || file.is_some_and(|file| file.holds(&from, &want.value)) {
            continue;
        }
        if *knob == KnobId::CpuIdle && want.value == Value::Number(1) {
            keyed.extend(keep_weight(actual, place, depth(place)));
        }
        for (phase, from, to) in moves(*knob, from, want.value.clone()) {
            let level = if phase == Phase::Tighten { -depth(place) } else { depth(place) };
            let action = Action::Write { knob: *knob, device: *device, from, to };
            let step = Step { place: place.clone(), action, why: want.why.clone() };
            keyed.push(((phase, level, 0, place.clone(), Some(*knob), *device), step));
        }
    }
    for place in &draft.removes {
        let why = "ours, empty and no longer wanted".to_owned();
        let step = Step { place: place.clone(), action: Action::Remove, why };
        keyed.push(((Phase::Remove, -depth(place), 0, place.clone(), None, None), step));
    }
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.into_iter().map(|(_, step)| step).collect()
}

/// Wanted by nobody but the journal, and already as they were.
pub(super) fn settled(draft: &Draft<'_>, actual: &ActualState) -> Vec<(Place, KnobId, Option<Device>)> {
    let of_journal = draft.wants.iter().filter(|(key, want)| {
        let back = current(actual, &key.0, key.1, key.2) == want.value;
        back && want.group.is_none() && actual.ours.originals.contains_key(key)
    });
    of_journal.map(|(key, _)| key.clone()).collect()
}

/// The value now; for a group that does not exist yet, what the kernel will give it.
fn current(actual: &ActualState, place: &Place, knob: KnobId, device: Option<Device>) -> Value {
    let found = actual.cgroups.get(place).and_then(|cgroup| cgroup.values.get(&(knob, device)));
    if let Some(value) = found {
        return value.clone();
    }
    if device.is_some() {
        return Value::NoLimit;
    }
    let file =
        actual.hierarchies.get(place.hierarchy).and_then(|hierarchy| knob.row().file(hierarchy.version));
    file.and_then(|file| file.parse(file.default, None).ok()).unwrap_or(Value::NoLimit)
}

/// `cpu.idle` = 1 forgets the weight: when it is cleared the kernel starts from its default. So a weight that
/// is not the default is first set to it, as a step of its own, which undo and the journal know how to turn
/// round.
fn keep_weight(actual: &ActualState, place: &Place, depth: isize) -> Option<(Key, Step)> {
    let file = KnobId::CpuWeight.row().file(actual.hierarchies.get(place.hierarchy)?.version)?;
    let from = actual.cgroups.get(place)?.values.get(&(KnobId::CpuWeight, None))?.clone();
    let to = file.parse(file.default, None).ok().filter(|default| *default != from)?;
    let action = Action::Write { knob: KnobId::CpuWeight, device: None, from, to };
    let why = "cpu.idle forgets the weight; put on record first, so that it can be put back".to_owned();
    let key = (Phase::Idle, depth, 0, place.clone(), Some(KnobId::CpuWeight), None);
    Some((key, Step { place: place.clone(), action, why }))
}

/// The writes that take a knob from one value to another, each with its phase.
fn moves(knob: KnobId, from: Value, to: Value) -> Vec<(Phase, Value, Value)> {
    match knob.row().order {
        Order::Idle if to == Value::Number(1) => vec![(Phase::Idle, from, to)],
        Order::Idle => vec![(Phase::UnIdle, from, to)],
        Order::WithinParent => match (&from, &to) {
            (Value::List(old), Value::List(new)) if !old.is_subset(new) && !new.is_subset(old) => {
                let both = Value::List(old.union(new));
                vec![(Phase::Widen, from, both.clone()), (Phase::Tighten, both, to)]
            }
            _ if wider(&from, &to) => vec![(Phase::Widen, from, to)],
            _ => vec![(Phase::Tighten, from, to)],
        },
        Order::Free | Order::NotWhileIdle | Order::AtLeast(_) => vec![(Phase::Free, from, to)],
    }
}

fn wider(from: &Value, to: &Value) -> bool {
    match (from, to) {
        (_, Value::NoLimit) => true,
        (Value::NoLimit, _) => false,
        (Value::Number(from), Value::Number(to)) => from < to,
        (Value::List(from), Value::List(to)) => from.is_subset(to),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Value {
        Value::List(text.parse().unwrap())
    }

    #[test]
    fn a_sideways_set_goes_through_both() {
        let writes = moves(KnobId::CpusetCpus, set("0-1"), set("1-2"));
        let want = [(Phase::Widen, set("0-1"), set("0-2")), (Phase::Tighten, set("0-2"), set("1-2"))];
        assert_eq!(writes, want);
        assert_eq!(moves(KnobId::CpusetCpus, set(""), set("1")).len(), 1);
    }

    #[test]
    fn no_limit_is_the_widest() {
        assert!(wider(&Value::Number(5), &Value::NoLimit));
        assert!(!wider(&Value::NoLimit, &Value::Number(5)));
        assert!(wider(&Value::Number(5), &Value::Number(6)));
    }
}
