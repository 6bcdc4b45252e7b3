//! The values that settings must have in the safe state, when no agent runs. The agent computes these values in
//! advance, so that the process that applies the safe state only has to write a list of values and decides nothing.

use super::draft::Draft;
use super::drafted;
use super::order::current;
use super::wants::own_default;
use crate::actual::{ActualState, Capabilities, CgroupRef, SettingRef};
use crate::desired::DesiredState;
use crate::group::Class;
use crate::knob::{KnobId, Value};
use std::collections::BTreeMap;

/// The value of a setting in the safe state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeSetting {
    /// The value.
    pub value: Value,
    /// Whether the setting belongs to an online group; such settings are written first.
    pub online: bool,
}

/// The safe values of all settings that the groups in force (`desired`) or the groups of the safe state (`safe`) want.
/// A setting that `safe` wants gets the value from `safe`; any other setting gets its original value.
#[must_use]
pub fn safe_settings(
    desired: &DesiredState,
    safe: &DesiredState,
    actual: &ActualState,
    caps: &Capabilities,
) -> BTreeMap<SettingRef, SafeSetting> {
    if caps.cgroup_obstacle.is_some() {
        return BTreeMap::new();
    }
    let wants = |desired: &DesiredState| {
        drafted(desired, actual, caps, |draft: &mut Draft<'_>| std::mem::take(&mut draft.wants))
    };
    let (now, then) = (wants(desired), wants(safe));
    let is_online = |place: &CgroupRef| {
        let mut online = desired.groups.iter().filter(|group| group.class == Class::Online);
        online.any(|group| group.members.iter().any(|member| member.path.contains(&place.path)))
    };
    // The kernel discards the weight of a group whose `cpu.idle` is set, so undoing that must also write the weight.
    let weight = |(place, knob, _): &SettingRef| {
        let idle = (place.clone(), KnobId::CpuIdle, None);
        let comes_back = *knob == KnobId::CpuIdle && !then.contains_key(&idle) && !is_idle(actual, place);
        comes_back.then(|| (place.clone(), KnobId::CpuWeight, None))
    };
    let weights: Vec<_> = now.keys().filter_map(weight).collect();
    // The kernel refuses a weight while `cpu.idle` is set.
    let is_refused = |(place, knob, _): &SettingRef| {
        let idle = then.get(&(place.clone(), KnobId::CpuIdle, None));
        *knob == KnobId::CpuWeight && idle.is_some_and(|want| want.value == Value::Number(1))
    };
    let mut settings = BTreeMap::new();
    for key in now.keys().chain(then.keys()).chain(&weights).filter(|key| !is_refused(key)) {
        let value = match then.get(key) {
            Some(want) => Some(want.value.clone()),
            None => before(desired, actual, key),
        };
        if let Some(value) = value {
            settings.insert(key.clone(), SafeSetting { value, online: is_online(&key.0) });
        }
    }
    settings
}

/// Whether `cpu.idle` is 1 now; while it is, the file of the weight shows a fixed number.
fn is_idle(actual: &ActualState, place: &CgroupRef) -> bool {
    let value = actual.cgroups.get(place).and_then(|found| found.values.get(&(KnobId::CpuIdle, None)));
    value == Some(&Value::Number(1))
}

/// The value of the setting before any group wanted it.
fn before(desired: &DesiredState, actual: &ActualState, key: &SettingRef) -> Option<Value> {
    let (place, knob, device) = key;
    if let Some(original) = actual.ours.originals.get(key) {
        return Some(original.clone());
    }
    let own =
        [&desired.offline_parent, &desired.online_parent].iter().any(|parent| parent.contains(&place.path));
    match actual.cgroups.get(place).filter(|_| !own) {
        Some(_) => Some(current(actual, place, *knob, *device)),
        None => {
            let version = actual.hierarchies.get(place.hierarchy)?.version;
            Some(own_default(desired, actual, (place, *knob, knob.row().file(version)?), *device))
        }
    }
}
