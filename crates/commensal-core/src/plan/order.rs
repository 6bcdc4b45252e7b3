//! Converts the wanted values to steps in a valid order.
//!
//! ```text
//! 1 structure     create groups and enable controllers, from the top
//! 2 apart         remove cookies: the kernel excludes core scheduling while Group Identity is on
//!   on            turn on machine-wide switches: turning one on clears the values that it governs
//! 3 first         clear the class: cpu.idle 1 -> 0, before which a weight cannot be written
//!   release       release exclusive CPUs that go to a sibling, from the bottom
//! 4 widen         widen limits that must stay within the parent's, from the top
//! 5 free          write settings that need no order
//! 6 tighten       tighten limits that must stay within the parent's, from the bottom
//!   set aside     make CPUs of a sibling exclusive, from the top: the kernel refuses to take all of a sibling's CPUs
//! 7 last          set the class: cpu.idle 0 -> 1, after which a weight cannot be written
//!   move          move processes into groups, which have all their limits by now
//! 8 order         send orders to the sched_ext scheduler, after the settings that apply without it
//!   recreate      recreate groups to change an irreversible knob again, and turn off switches
//! 9 together      give cookies, which the kernel refuses while Group Identity is on
//!   remove        remove empty groups that commensal created, from the bottom
//! ```
//! A CPU set that becomes neither wider nor narrower (0-1 to 2-3) is first widened to the union, then tightened.

use super::draft::{Draft, Wants};
use super::step::{Action, Movement, Step};
use crate::actual::{ActualState, CgroupPath, CgroupRef, SettingRef};
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

/// Sort key of a step: its phase, the depth (negative for an order from the bottom), and then names, so that the order
/// is deterministic.
type SortKey = (Phase, isize, u8, CgroupRef, Option<KnobId>, Option<Device>);

fn depth(place: &CgroupRef) -> isize {
    isize::try_from(place.path.depth()).unwrap_or(isize::MAX)
}

pub(super) fn steps(draft: &Draft<'_>, actual: &ActualState) -> Vec<Step> {
    let mut keyed: Vec<(SortKey, Step)> = Vec::new();
    for (place, why) in &draft.structure.creates {
        let step = Step { place: place.clone(), action: Action::Create, why: why.clone() };
        keyed.push(((Phase::Structure, depth(place), 0, place.clone(), None, None), step));
    }
    for ((place, controller), why) in &draft.structure.enables {
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
    for (place, (give, why)) in &draft.cookies.changes {
        let phase = if *give { Phase::Together } else { Phase::Apart };
        let step = Step { place: place.clone(), action: Action::Cookie { give: *give }, why: why.clone() };
        keyed.push(((phase, depth(place), 1, place.clone(), None, None), step));
    }
    keyed.extend(movements(&draft.moves));
    if let Some((from, to, why)) = draft.new_orders() {
        let hierarchy = actual.hierarchy_of(Controller::Cpu).unwrap_or(0);
        let place = CgroupRef { hierarchy, path: CgroupPath::root() };
        let step = Step { place: place.clone(), action: Action::Order { from, to }, why };
        keyed.push(((Phase::KnobOrder, 0, 0, place, None, None), step));
    }
    for place in &draft.structure.removes {
        let why = "commensal's own, empty and no longer needed".to_owned();
        let step = Step { place: place.clone(), action: Action::Remove, why };
        keyed.push(((Phase::Remove, -depth(place), 0, place.clone(), None, None), step));
    }
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    keyed.into_iter().map(|(_, step)| step).collect()
}

/// The steps that write knobs.
fn writes(draft: &Draft<'_>, actual: &ActualState) -> Vec<(SortKey, Step)> {
    let mut keyed: Vec<(SortKey, Step)> = Vec::new();
    for ((place, knob, device), want) in &draft.wants {
        let from = before(draft, actual, (place, *knob, *device));
        if *knob == KnobId::CpusetPartition
            && let Some(writes) = begun_again(&draft.wants, actual, place, &from, &want.value)
        {
            for (phase, from, to) in writes {
                let level = if phase == Phase::First { -depth(place) } else { depth(place) };
                let action = Action::Write { knob: *knob, device: None, from, to };
                let step = Step { place: place.clone(), action, why: want.why.clone() };
                keyed.push(((phase, level, 0, place.clone(), Some(*knob), None), step));
            }
            continue;
        }
        if holds(actual, place, *knob, (&from, &want.value)) {
            continue;
        }
        if *knob == KnobId::CpuIdle && want.value == Value::Number(1) {
            keyed.extend(keep_weight(actual, place, depth(place)));
        }
        if *knob == KnobId::CpuQosLevel && draft.irreversible() {
            for (nth, (phase, action)) in (0u8..).zip(irreversible(*knob, from, want.value.clone())) {
                let step = Step { place: place.clone(), action, why: want.why.clone() };
                keyed.push(((phase, depth(place), nth, place.clone(), Some(*knob), None), step));
            }
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

/// The value of a knob before its step: turning on the switch that the knob needs has cleared the knob by then.
fn before(
    draft: &Draft<'_>,
    actual: &ActualState,
    (place, knob, device): (&CgroupRef, KnobId, Option<Device>),
) -> Value {
    let cleared = Switch::of(knob).is_some_and(|switch| {
        actual.switches.get(&switch) == Some(&0) && draft.switches.contains_key(&switch)
    });
    match cleared {
        true => Value::Number(0),
        false => current(actual, place, knob, device),
    }
}

/// Whether the file has the wanted value already, when it shows the value `found`.
fn holds(actual: &ActualState, place: &CgroupRef, knob: KnobId, (found, wanted): (&Value, &Value)) -> bool {
    let version = actual.hierarchies.get(place.hierarchy).map(|hierarchy| hierarchy.version);
    let file = version.and_then(|version| knob.row().file(version));
    found == wanted || file.is_some_and(|file| file.holds(found, wanted))
}

/// The knobs for which groups want a value: those that have it, and those that do not.
pub(super) fn wanted(draft: &Draft<'_>, actual: &ActualState) -> (Vec<SettingRef>, Vec<SettingRef>) {
    let wanted = draft.wants.iter().filter(|(_, want)| want.group.is_some()).map(|(key, _)| key.clone());
    wanted.partition(|key| {
        let (place, knob, device) = key;
        let found = before(draft, actual, (place, *knob, *device));
        draft.wants.get(key).is_some_and(|want| holds(actual, place, *knob, (&found, &want.value)))
    })
}

/// The steps that move processes, in the order of their groups.
fn movements(moves: &[(Movement, String)]) -> impl Iterator<Item = (SortKey, Step)> {
    moves.iter().enumerate().filter_map(|(index, (movement, why))| {
        let place = movement.place()?;
        let step = Step { place: place.clone(), action: Action::Move(movement.clone()), why: why.clone() };
        let nth = isize::try_from(index).unwrap_or(isize::MAX);
        Some(((Phase::Move, nth, 0, place, None, None), step))
    })
}

/// Journal records to drop: knobs that no group wants and that already have their original values, and identities that
/// were only copied from a parent and must not be restored.
pub(super) fn settled(wants: &Wants, actual: &ActualState) -> Vec<SettingRef> {
    let of_journal = wants.iter().filter(|(key, want)| {
        let back = current(actual, &key.0, key.1, key.2) == want.value;
        let settled = match actual.ours.originals.contains_key(key) {
            true => back,
            false => key.1 == KnobId::CpuBvtWarpNs && !actual.ours.created.contains(&key.0),
        };
        want.group.is_none() && settled
    });
    of_journal.map(|(key, _)| key.clone()).collect()
}

/// The current value of a knob; the kernel's default if the group does not exist yet.
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

/// The step that resets a weight before `cpu.idle` is set to 1; `None` if the weight is the default or unknown. Setting
/// `cpu.idle` discards the weight, and clearing it restores only the kernel's default. With a separate step the journal
/// records the weight, so that undo can restore it.
fn keep_weight(actual: &ActualState, place: &CgroupRef, depth: isize) -> Option<(SortKey, Step)> {
    let file = KnobId::CpuWeight.row().file(actual.hierarchies.get(place.hierarchy)?.version)?;
    let from = actual.cgroups.get(place)?.values.get(&(KnobId::CpuWeight, None))?.clone();
    let to = file.parse(file.default, None).ok().filter(|default| *default != from)?;
    let action = Action::Write { knob: KnobId::CpuWeight, device: None, from, to };
    let why = "cpu.idle discards the weight; reset first, so that the journal records it".to_owned();
    let key = (Phase::Last, depth, 0, place.clone(), Some(KnobId::CpuWeight), None);
    Some((key, Step { place: place.clone(), action, why }))
}

/// The writes (phase, old value, new value) that change a knob from one value to another.
fn moves(knob: KnobId, from: Value, to: Value) -> Vec<(Phase, Value, Value)> {
    match knob.row().order {
        // Restores the kernel's default, which is 0 or `member`.
        KnobOrder::Last if to == Value::Number(0) || to == Value::Word("member".to_owned()) => {
            vec![(Phase::First, from, to)]
        }
        KnobOrder::Last => vec![(Phase::Last, from, to)],
        // Two siblings must not have the same exclusive CPUs, so all siblings first release the CPUs that they lose.
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

/// The writes that turn a partition off first and on last; `None` if that is not necessary. A partition that loses all
/// its CPUs, even for a moment, becomes invalid and stays invalid even if it gets other CPUs later (measured on 7.2).
/// So a partition is turned off while all of its CPUs are replaced, and an invalid one is turned off and on again.
fn begun_again(
    wants: &Wants,
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
            (current(actual, place, KnobId::CpusetCpusExclusive, None), &wants.get(&key)?.value)
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

/// The changes of a knob that the kernel allows to be changed only once. From 0: an irreversible write. Back to 0: the
/// group is recreated. From one level to another: the group is recreated, then an irreversible write follows.
fn irreversible(knob: KnobId, from: Value, to: Value) -> Vec<(Phase, Action)> {
    let none = Value::Number(0);
    if from == none {
        return vec![(Phase::Last, Action::Irreversible { knob, from, to })];
    }
    let mut changes = vec![(Phase::Recreate, Action::Recreate { knob, from, to: none.clone() })];
    if to != none {
        changes.push((Phase::Recreate, Action::Irreversible { knob, from: none, to }));
    }
    changes
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
    fn from_one_final_level_to_another_goes_through_a_fresh_group() {
        let changes = |from, to| {
            let changes = irreversible(KnobId::CpuQosLevel, Value::Number(from), Value::Number(to));
            let name = |action: &Action| matches!(action, Action::Recreate { .. });
            changes.iter().map(|(phase, action)| (*phase, name(action))).collect::<Vec<_>>()
        };
        assert_eq!(changes(0, -1), [(Phase::Last, false)]);
        assert_eq!(changes(0, 2), [(Phase::Last, false)]);
        assert_eq!(changes(2, 0), [(Phase::Recreate, true)]);
        assert_eq!(changes(-1, 2), [(Phase::Recreate, true), (Phase::Recreate, false)]);
    }

    #[test]
    fn no_limit_is_the_widest() {
        assert!(wider(&Value::Number(5), &Value::NoLimit));
        assert!(!wider(&Value::NoLimit, &Value::Number(5)));
        assert!(wider(&Value::Number(5), &Value::Number(6)));
    }
}
