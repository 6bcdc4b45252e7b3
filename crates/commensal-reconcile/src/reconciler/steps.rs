//! Facts about a step: the setting that it writes, its old and new value, its group, and a description.

use crate::request::Planned;
use commensal_core::actual::{ActualState, Cgroup, CgroupRef};
use commensal_core::drift::SettingKey;
use commensal_core::knob::{KnobId, Value, Version};
use commensal_core::plan::{Action, Step, WrittenSetting};
use commensal_core::scheduler::Orders;
use commensal_core::topology::Device;
use std::collections::BTreeSet;

/// A step that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// The group, if the change does not concern the whole machine.
    pub group: Option<String>,
    /// The cgroup and file that were changed, or a description of another change.
    pub what: String,
    /// Old value.
    pub old: Option<String>,
    /// New value.
    pub new: Option<String>,
    /// The reason for the change.
    pub why: String,
    /// The setting that was written, if the change is one of a setting.
    pub setting: Option<(KnobId, Option<Device>)>,
}

impl Change {
    pub(super) fn new(step: &Step, planned: &Planned) -> Change {
        let path = &step.place.path;
        let members = planned
            .desired
            .groups
            .iter()
            .flat_map(|group| group.members.iter().map(move |member| (&group.name, &member.path)));
        let group =
            members.filter(|(_, member)| member.contains(path)).max_by_key(|(_, member)| member.depth());
        let written = step.action.written();
        let file = key_of(step, &planned.actual).and_then(|key| file_of(&key, &planned.actual));
        let what = match file {
            Some((place, file)) => format!("{} {file}", place.path),
            // A group that was just created is not in the observed state yet.
            None if written.is_some() => format!("{path} {}", step.file(&planned.actual)),
            None => step.describe(&planned.actual),
        };
        Change {
            group: group.map(|(name, _)| name.to_string()),
            what,
            old: written.map(|one| one.knob.shown(one.from)),
            new: written.map(|one| one.knob.shown(one.to)),
            why: step.why.clone(),
            setting: written.map(|one| (one.knob, one.device)),
        }
    }
}

/// Returns the setting that a step changes, and its new value. `None` unless the agent's controllers decide this
/// setting and the step changes nothing else.
pub(super) fn decided(step: &Step) -> Option<((KnobId, Option<Device>), &Value)> {
    const DECIDED: [KnobId; 9] = [
        KnobId::CpusetCpus,
        KnobId::CpuMax,
        KnobId::CpuPeriod,
        KnobId::CpuWeight,
        KnobId::IoReadBps,
        KnobId::IoWriteBps,
        KnobId::IoWeight,
        KnobId::IoBfqWeight,
        KnobId::CgroupFreeze,
    ];
    match &step.action {
        Action::Write { knob, device, to, .. } if DECIDED.contains(knob) => Some(((*knob, *device), to)),
        _ => None,
    }
}

/// Returns the orders that a step sends to the scheduler.
pub(super) fn orders(step: &Step) -> Option<&Orders> {
    match &step.action {
        Action::Order { to, .. } => Some(to),
        _ => None,
    }
}

/// Returns the setting that a step writes, with the group's inode; `None` if it writes none or the group does not
/// exist.
pub(super) fn key_of(step: &Step, actual: &ActualState) -> Option<SettingKey> {
    let WrittenSetting { knob, device, .. } = step.action.written()?;
    let inode = actual.cgroups.get(&step.place)?.inode;
    Some(SettingKey { hierarchy: step.place.hierarchy, inode, knob, device })
}

/// Returns the cgroup of a setting and its kernel file; `None` if the cgroup no longer exists.
pub(super) fn file_of(key: &SettingKey, actual: &ActualState) -> Option<(CgroupRef, String)> {
    let same = |(place, cgroup): &(&CgroupRef, &Cgroup)| {
        place.hierarchy == key.hierarchy && cgroup.inode == key.inode
    };
    let (place, _) = actual.cgroups.iter().find(same)?;
    let version = actual.hierarchies.get(key.hierarchy).map_or(Version::V2, |one| one.version);
    let file = key.knob.row().file(version).map_or_else(|| key.knob.to_string(), |file| file.name.to_owned());
    Some((place.clone(), file))
}

/// Returns all cgroups, by hierarchy and inode.
pub(super) fn inodes(actual: &ActualState) -> BTreeSet<(usize, u64)> {
    actual.cgroups.iter().map(|(place, cgroup)| (place.hierarchy, cgroup.inode)).collect()
}

/// Whether a step concerns a group that existed in every reading so far, or a group that the step itself creates.
pub(super) fn lasts(step: &Step, actual: &ActualState, lasting: Option<&BTreeSet<(usize, u64)>>) -> bool {
    let found = actual.cgroups.get(&step.place).zip(lasting);
    found.is_none_or(|(cgroup, lasting)| lasting.contains(&(step.place.hierarchy, cgroup.inode)))
}

/// Returns the other program that manages a cgroup, judged from the cgroup's path.
pub(super) fn manager_of(actual: &ActualState, place: &CgroupRef) -> Option<String> {
    if let Some(unit) = actual.managed_by(place) {
        return Some(format!("systemd, whose unit {unit} it is"));
    }
    let of = |part: &str| {
        let engine = ["docker", "libpod", "cri-containerd", "crio", "kubepods"];
        engine.into_iter().find(|name| part.starts_with(name))
    };
    let engine = place.path.parts().find_map(of)?;
    Some(format!("a container manager, judging by the name {engine}"))
}
