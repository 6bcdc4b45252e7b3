//! From wanted values to steps in a legal order.
//!
//! ```text
//! 1 structure     create groups and enable controllers, from the top
//! 2 apart         cookies go, because core scheduling excludes a switch
//!   on            machine-wide switches, because turning one on clears what it governs
//! 3 first         what sets a class goes back: cpu.idle 1 -> 0, because a weight cannot be written before
//!   release       CPUs set aside that go to a sibling, from the bottom
//! 4 widen         limits that must stay within the parent's, from the top
//! 5 free          everything whose order does not matter
//! 6 tighten       limits that must stay within the parent's, from the bottom
//!   set aside     CPUs set aside that come from a sibling, from the top: the kernel refuses all of a sibling's CPUs
//! 7 last          what sets a class: cpu.idle 0 -> 1, because a weight cannot be written after
//!   move          processes, into groups that have all their limits by now
//! 8 order         the sched_ext scheduler, when what holds without it is in place
//!   recreate      groups that an irreversible knob has spoilt, and switches off
//! 9 together      cookies come, for the same reason
//!   remove        our empty groups, from the bottom
//! ```
//! A set that is neither wider nor narrower (CPUs 0-1 to 2-3) is first widened to both, then tightened.

use super::draft::Draft;
use super::step::{Action, Step};
use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::knob::{Controller, KnobId, KnobOrder, Value};
use crate::topology::Device;
use crate::vendor::Switch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Structure,
    Apart,
    On,
    First,
    Release,
    Widen,
    Free,
    Tighten,
    SetAside,
    Last,
    Move,
    KnobOrder,
    Recreate,
    Together,
    Remove,
}

/// Sort key of a step: phase, depth (from the top or the bottom), then names, so that the order is deterministic.
type Key = (Phase, isize, u8, CgroupRef, Option<KnobId>, Option<Device>);

fn depth(place: &CgroupRef) -> isize {
    isize::try_from(place.path.depth()).unwrap_or(isize::MAX)
}

pub(super) fn steps(draft: &Draft<'_>, actual: &ActualState) -> Vec<Step> {
    let mut keyed: Vec<(Key, Step)> = Vec::new();
    for (place, why) in &draft.creates {
        let step = Step { place: place.clone(), action: Action::Create, why: why.clone() };
        keyed.push(((Phase::Structure, depth(place), 0, place.clone(), None, None), step));
    }
    for ((place, controller), why) in &draft.enables {
        let step = Step { place: place.clone(), action: Action::Enable(*controller), why: why.clone() };
        keyed.push(((Phase::Structure, depth(place), 1, place.clone(), None, None), step));
    }
    keyed.extend(writes(draft, actual));
    for (switch, (to, why)) in &draft.switches {
        let from = actual.switches.get(switch).copied().unwrap_or(0);
        let hierarchy = actual.hierarchy_of(switch.knob().row().controller).unwrap_or(0);
        let place = CgroupRef { hierarchy, path: CgroupPath::root() };
        if from != *to {
            let phase = if *to == 0 { Phase::Recreate } else { Phase::On };
            let action = Action::Switch { switch: *switch, from, to: *to };
            let step = Step { place: place.clone(), action, why: why.clone() };
            keyed.push(((phase, isize::MAX, *switch as u8, place, None, None), step));
        }
    }
    for (place, (give, why)) in &draft.cookies {
        let phase = if *give { Phase::Together } else { Phase::Apart };
        let step = Step { place: place.clone(), action: Action::Cookie { give: *give }, why: why.clone() };
        keyed.push(((phase, depth(place), 1, place.clone(), None, None), step));
    }
    keyed.extend(movements(draft));
    if let Some((from, to, why)) = draft.new_orders() {
        let hierarchy = actual.hierarchy_of(Controller::Cpu).unwrap_or(0);
        let place = CgroupRef { hierarchy, path: CgroupPath::root() };
        let step = Step { place: place.clone(), action: Action::Order { from, to }, why };
        keyed.push(((Phase::KnobOrder, 0, 0, place, None, None), step));
    }
    for place in &draft.removes {
        let why = "ours, empty and no longer wanted".to_owned();
        let step = Step { place: place.clone(), action: Action::Remove, why };
        keyed.push(((Phase::Remove, -depth(place), 0, place.clone(), None, None), step));
    }
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.into_iter().map(|(_, step)| step).collect()
}

/// The writes of knobs.
fn writes(draft: &Draft<'_>, actual: &ActualState) -> Vec<(Key, Step)> {
    let mut keyed: Vec<(Key, Step)> = Vec::new();
    for ((place, knob, device), want) in &draft.wants {
        // Turning on the switch that the knob needs clears the knob's value.
        let cleared = Switch::of(*knob).is_some_and(|switch| {
            actual.switches.get(&switch) == Some(&0) && draft.switches.contains_key(&switch)
        });
        let from = match cleared {
            true => Value::Number(0),
            false => current(actual, place, *knob, *device),
        };
        let version = actual.hierarchies.get(place.hierarchy).map(|hierarchy| hierarchy.version);
        let file = version.and_then(|version| knob.row().file(version));
        if *knob == KnobId::CpusetPartition
            && let Some(writes) = begun_again(draft, actual, place, &from, &want.value)
        {
            for (phase, from, to) in writes {
                let level = if phase == Phase::First { -depth(place) } else { depth(place) };
                let action = Action::Write { knob: *knob, device: None, from, to };
                let step = Step { place: place.clone(), action, why: want.why.clone() };
                keyed.push(((phase, level, 0, place.clone(), Some(*knob), None), step));
            }
            continue;
        }
        if from == want.value || file.is_some_and(|file| file.holds(&from, &want.value)) {
            continue;
        }
        if *knob == KnobId::CpuIdle && want.value == Value::Number(1) {
            keyed.extend(keep_weight(actual, place, depth(place)));
        }
        if *knob == KnobId::CpuQosLevel && draft.irreversible() {
            let (phase, action) = irreversible(*knob, from, want.value.clone());
            let step = Step { place: place.clone(), action, why: want.why.clone() };
            keyed.push(((phase, depth(place), 0, place.clone(), Some(*knob), None), step));
            continue;
        }
        for (phase, from, to) in moves(*knob, from, want.value.clone()) {
            let bottom_up = matches!(phase, Phase::Tighten | Phase::Release)
                || (phase == Phase::First && *knob == KnobId::CpusetPartition);
            let level = if bottom_up { -depth(place) } else { depth(place) };
            let action = Action::Write { knob: *knob, device: *device, from, to };
            let step = Step { place: place.clone(), action, why: want.why.clone() };
            keyed.push(((phase, level, 0, place.clone(), Some(*knob), *device), step));
        }
    }
    keyed
}

/// The moves of processes, in the order of their groups.
fn movements(draft: &Draft<'_>) -> impl Iterator<Item = (Key, Step)> {
    draft.moves.iter().enumerate().filter_map(|(index, (movement, why))| {
        let place = movement.place()?;
        let step = Step { place: place.clone(), action: Action::Move(movement.clone()), why: why.clone() };
        let nth = isize::try_from(index).unwrap_or(isize::MAX);
        Some(((Phase::Move, nth, 0, place, None, None), step))
    })
}

/// Journal records to drop: values that no group wants and that are back at their originals, and identities that were
/// only copied from a parent and must not be restored.
pub(super) fn settled(draft: &Draft<'_>, actual: &ActualState) -> Vec<(CgroupRef, KnobId, Option<Device>)> {
    let of_journal = draft.wants.iter().filter(|(key, want)| {
        let back = current(actual, &key.0, key.1, key.2) == want.value;
        let settled = match actual.ours.originals.contains_key(key) {
            true => back,
            false => key.1 == KnobId::CpuBvtWarpNs && !actual.ours.created.contains(&key.0),
        };
        want.group.is_none() && settled
    });
    of_journal.map(|(key, _)| key.clone()).collect()
}

/// The current value; for a group that does not exist yet, the kernel's default.
pub(super) fn current(
    actual: &ActualState,
    place: &CgroupRef,
    knob: KnobId,
    device: Option<Device>,
) -> Value {
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

/// Setting `cpu.idle` = 1 discards the weight: when it is cleared the kernel starts from its default. So a weight that
/// is not the default is first set to it in a separate step, which undo and the journal can reverse.
fn keep_weight(actual: &ActualState, place: &CgroupRef, depth: isize) -> Option<(Key, Step)> {
    let file = KnobId::CpuWeight.row().file(actual.hierarchies.get(place.hierarchy)?.version)?;
    let from = actual.cgroups.get(place)?.values.get(&(KnobId::CpuWeight, None))?.clone();
    let to = file.parse(file.default, None).ok().filter(|default| *default != from)?;
    let action = Action::Write { knob: KnobId::CpuWeight, device: None, from, to };
    let why = "cpu.idle forgets the weight; put on record first, so that it can be put back".to_owned();
    let key = (Phase::Last, depth, 0, place.clone(), Some(KnobId::CpuWeight), None);
    Some((key, Step { place: place.clone(), action, why }))
}

/// The writes that change a knob from one value to another, each with its phase.
fn moves(knob: KnobId, from: Value, to: Value) -> Vec<(Phase, Value, Value)> {
    match knob.row().order {
        // Back to the kernel's default, which is 0 or a word that stands for it.
        KnobOrder::Last if to == Value::Number(0) || to == Value::Word("member".to_owned()) => {
            vec![(Phase::First, from, to)]
        }
        KnobOrder::Last => vec![(Phase::Last, from, to)],
        // No two siblings may have the same exclusive CPUs: all of them first release what they lose.
        KnobOrder::WithinParent if knob == KnobId::CpusetCpusExclusive => match (&from, &to) {
            (Value::List(old), Value::List(new)) => {
                let kept: crate::cpuset::CpuSet = old.iter().filter(|cpu| new.contains(*cpu)).collect();
                let kept = Value::List(kept);
                let mut writes = Vec::new();
                if kept != from {
                    writes.push((Phase::Release, from.clone(), kept.clone()));
                }
                if kept != to {
                    writes.push((Phase::SetAside, kept, to));
                }
                writes
            }
            _ => vec![(Phase::Free, from, to)],
        },
        KnobOrder::WithinParent => match (&from, &to) {
            (Value::List(old), Value::List(new)) if !old.is_subset(new) && !new.is_subset(old) => {
                let both = Value::List(old.union(new));
                vec![(Phase::Widen, from, both.clone()), (Phase::Tighten, both, to)]
            }
            _ if wider(&from, &to) => vec![(Phase::Widen, from, to)],
            _ => vec![(Phase::Tighten, from, to)],
        },
        KnobOrder::AroundQuota => {
            let shorter = matches!((&from, &to), (Value::Number(from), Value::Number(to)) if to < from);
            vec![(if shorter { Phase::Last } else { Phase::First }, from, to)]
        }
        KnobOrder::Free | KnobOrder::NotWhileIdle | KnobOrder::AtLeast(_) => vec![(Phase::Free, from, to)],
    }
}

/// A partition that loses all its CPUs, even for a moment, becomes invalid and stays so whatever CPUs it is given later
/// (measured on 7.2). So a partition whose CPUs all change is switched off meanwhile, and an invalid one is switched
/// off and on.
fn begun_again(
    draft: &Draft<'_>,
    actual: &ActualState,
    place: &CgroupRef,
    from: &Value,
    to: &Value,
) -> Option<[(Phase, Value, Value); 2]> {
    let member = Value::Word("member".to_owned());
    if *from == member || *to == member {
        return None;
    }
    let key = (place.clone(), KnobId::CpusetCpusExclusive, None);
    let loses_all = || {
        let (Value::List(old), Value::List(new)) =
            (current(actual, place, KnobId::CpusetCpusExclusive, None), &draft.wants.get(&key)?.value)
        else {
            return None;
        };
        old.iter().all(|cpu| !new.contains(cpu)).then_some(())
    };
    let valid = matches!(from, Value::Word(word) if !word.contains(' '));
    if valid && loses_all().is_none() {
        return None;
    }
    Some([(Phase::First, from.clone(), member.clone()), (Phase::Last, member, to.clone())])
}

/// The step of a knob that can only be lowered, and the step that raises it again.
fn irreversible(knob: KnobId, from: Value, to: Value) -> (Phase, Action) {
    match to < from {
        true => (Phase::Last, Action::Irreversible { knob, from, to }),
        false => (Phase::Recreate, Action::Recreate { knob, from, to }),
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
