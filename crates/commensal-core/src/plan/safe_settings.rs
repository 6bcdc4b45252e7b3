//! The value that each setting must have when no agent runs any more, computed while one still does: the process that
//! applies the safe state then only has a list of values to write and nothing to decide.

use super::draft::Draft;
use super::drafted;
use super::order::current;
use super::wants::own_default;
use crate::actual::{ActualState, Capabilities, CgroupRef};
use crate::desired::DesiredState;
use crate::group::Class;
use crate::knob::{KnobId, Value};
use crate::topology::Device;
use std::collections::BTreeMap;

/// The value of a setting when no agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeSetting {
    /// The value.
    pub value: Value,
    /// Whether the setting is of an online group: those are written first.
    pub online: bool,
}

/// Every setting that either the groups in force (`desired`) or the safe groups (`safe`) want: with the value that the
/// safe groups want, else the original value.
#[must_use]
pub fn safe_settings(
    desired: &DesiredState,
    safe: &DesiredState,
    actual: &ActualState,
    caps: &Capabilities,
) -> BTreeMap<(CgroupRef, KnobId, Option<Device>), SafeSetting> {
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
    // The kernel discards the weight of a group that becomes idle, so undoing that must also write the weight.
    let weight = |(place, knob, _): &(CgroupRef, KnobId, Option<Device>)| {
        let idle = (place.clone(), KnobId::CpuIdle, None);
        let comes_back = *knob == KnobId::CpuIdle && !then.contains_key(&idle) && !is_idle(actual, place);
        comes_back.then(|| (place.clone(), KnobId::CpuWeight, None))
    };
    let weights: Vec<_> = now.keys().filter_map(weight).collect();
    let mut settings = BTreeMap::new();
    for key in now.keys().chain(then.keys()).chain(&weights) {
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

/// Whether the group is idle now; then its weight reads as a placeholder.
fn is_idle(actual: &ActualState, place: &CgroupRef) -> bool {
    let value = actual.cgroups.get(place).and_then(|found| found.values.get(&(KnobId::CpuIdle, None)));
    value == Some(&Value::Number(1))
}

/// The setting's value before any group wanted it.
fn before(
    desired: &DesiredState,
    actual: &ActualState,
    key: &(CgroupRef, KnobId, Option<Device>),
) -> Option<Value> {
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
            Some(own_default(desired, (*knob, knob.row().file(version)?), version, *device))
        }
    }
}
