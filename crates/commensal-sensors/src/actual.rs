//! Reads the machine's cgroups: first the tree with identities, then the values that a plan needs.

use crate::{SensorError, delegation};
use commensal_core::actual::{ActualState, Cgroup, CgroupPath, CgroupRef, Hierarchy, Manager};
use commensal_core::desired::DesiredState;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Knob, KnobId, KnobStatus, TABLE, Value, Version};
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use commensal_host::{Dir, Host, HostError, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of groups read per hierarchy; with more, reading fails rather than planning silently for a part of
/// the tree.
const MAX_GROUPS: usize = 100_000;

/// Every group of every hierarchy with its inode; no values yet.
///
/// # Errors
/// When a mounted hierarchy cannot be opened, or has more than 100 000 groups.
pub fn tree(host: &mut dyn Host, hierarchies: Vec<Hierarchy>) -> Result<ActualState, SensorError> {
    let mut state = ActualState { hierarchies, ..ActualState::default() };
    for switch in Switch::ALL {
        let text = host.read_file(Path::new(switch.path())).unwrap_or_default();
        state.switches.extend(text.trim().parse().ok().map(|value: i64| (switch, value)));
    }
    for index in 0..state.hierarchies.len() {
        let mount = state.hierarchies[index].mount.clone();
        let root = host.open(Path::new(&mount))?;
        let walked = walk(host, root, index, CgroupPath::root(), &mut state.cgroups);
        host.close(root);
        walked?;
    }
    Ok(state)
}

fn walk(
    host: &mut dyn Host,
    dir: Dir,
    hierarchy: usize,
    path: CgroupPath,
    into: &mut BTreeMap<CgroupRef, Cgroup>,
) -> Result<(), SensorError> {
    if into.len() >= MAX_GROUPS {
        let what = format!("more than {MAX_GROUPS} cgroups");
        return Err(SensorError::Form { file: path.to_string(), what });
    }
    let children = seen(host.children(dir))?.unwrap_or_default();
    into.insert(
        CgroupRef { hierarchy, path: path.clone() },
        Cgroup { inode: dir.inode, ..Cgroup::default() },
    );
    for name in children {
        if let Some(child) = seen(host.open_child(dir, &name))? {
            let walked = walk(host, child, hierarchy, path.child(&name), into);
            host.close(child);
            walked?;
        }
    }
    Ok(())
}

/// What was read of a group, or `None` for one that is not seen: it vanished while the tree was read, which is a normal event, or this
/// user may not see it. Any other error is one: taken for gone, a group that is there would be made again, and those below it would
/// lose their limits.
fn seen<T>(read: commensal_host::Result<T>) -> Result<Option<T>, HostError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) => match error.errno {
            Errno::ENOENT | Errno::ENODEV | Errno::EACCES | Errno::EPERM => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether a file that gave this error is not there for us: no such file, a group that has gone, no permission, or a kernel that does
/// without.
fn is_absent(errno: Errno) -> bool {
    let absent =
        [Errno::ENOENT, Errno::ENODEV, Errno::EACCES, Errno::EPERM, Errno::EINVAL, Errno::EOPNOTSUPP];
    absent.contains(&errno)
}

/// The cgroups whose values a plan for `desired` needs: members, everything above and below them, commensal's parent
/// groups, and groups that it created or changed before.
#[must_use]
pub fn places_of_interest(desired: &DesiredState, actual: &ActualState) -> BTreeSet<CgroupRef> {
    let mut paths: BTreeSet<CgroupPath> =
        [desired.online_parent.clone(), desired.offline_parent.clone(), CgroupPath::root()]
            .into_iter()
            .collect();
    for member in desired.groups.iter().flat_map(|group| &group.members) {
        paths.extend(member.path.ancestors());
        paths.insert(member.path.clone());
    }
    let members: BTreeSet<&CgroupPath> =
        desired.groups.iter().flat_map(|group| group.members.iter().map(|member| &member.path)).collect();
    let mut places: BTreeSet<CgroupRef> =
        actual.cgroups.keys().filter(|place| paths.contains(&place.path)).cloned().collect();
    // Values are inherited or copied from groups not created by commensal that an earlier plan wrote.
    let written: BTreeSet<&CgroupPath> =
        actual.ours.originals.keys().map(|(place, _, _)| &place.path).collect();
    let tops = [&desired.online_parent, &desired.offline_parent];
    let below = |place: &&CgroupRef| {
        let mut above = place.path.ancestors();
        above.retain(|path| path.depth() > 0);
        above.iter().any(|above| members.contains(above) || written.contains(above) || tops.contains(&above))
    };
    places.extend(actual.cgroups.keys().filter(below).cloned());
    // Turning Group Identity on clears the identity of every group, so every one of them matters.
    if actual.switches.get(&Switch::GroupIdentity) == Some(&0) {
        let cpu = actual.hierarchy_of(Controller::Cpu);
        places.extend(actual.cgroups.keys().filter(|place| Some(place.hierarchy) == cpu).cloned());
    }
    let ours = actual.ours.created.iter().chain(actual.ours.originals.keys().map(|(place, _, _)| place));
    places.extend(ours.filter(|place| actual.cgroups.contains_key(*place)).cloned());
    places
}

/// Reads the driven knobs of `places` into `actual`. A group that vanished is removed from it; a file that cannot be
/// read leaves its value absent, and is told as unread if it is there.
///
/// # Errors
/// When a group that is there cannot be opened.
pub fn values(
    host: &mut dyn Host,
    actual: &mut ActualState,
    places: &BTreeSet<CgroupRef>,
    disks: &[Device],
) -> Result<(), SensorError> {
    for place in places {
        let Some(hierarchy) = actual.hierarchies.get(place.hierarchy).cloned() else { continue };
        let opened = host.open(&below(Path::new(&hierarchy.mount), place.path.as_str()));
        let Some(dir) = seen(opened)? else {
            actual.cgroups.remove(place);
            continue;
        };
        let mut found = group(host, dir, &hierarchy, disks, &mut actual.unread);
        if actual.manager == Manager::Systemd && hierarchy.version == Version::V2 {
            found.delegated = delegation::delegated(host, dir);
        }
        host.close(dir);
        actual.cgroups.insert(place.clone(), found);
    }
    Ok(())
}

/// One value of one group, not stored in the state; `Ok(None)` when it cannot be read.
///
/// # Errors
/// When the group is gone.
pub fn value(
    host: &mut dyn Host,
    hierarchy: &Hierarchy,
    path: &CgroupPath,
    knob: KnobId,
) -> Result<Option<Value>, SensorError> {
    let dir = host.open(&below(Path::new(&hierarchy.mount), path.as_str()))?;
    let file = knob.row().file(hierarchy.version).filter(|file| !file.per_device());
    let value = file.and_then(|file| file.parse(&host.read(dir, file.name).ok()?, None).ok());
    host.close(dir);
    Ok(value)
}

fn group(
    host: &mut dyn Host,
    dir: Dir,
    hierarchy: &Hierarchy,
    disks: &[Device],
    unread: &mut Vec<String>,
) -> Cgroup {
    let mut found = Cgroup { inode: dir.inode, ..Cgroup::default() };
    let mut texts: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for row in TABLE.iter().filter(|row| wanted(row) && hierarchy.controllers.contains(&row.controller)) {
        let Some(file) = row.file(hierarchy.version) else { continue };
        let mut read = || match host.read(dir, file.name) {
            Ok(text) => Some(text),
            Err(error) => {
                unread.extend((!is_absent(error.errno)).then(|| error.to_string()));
                None
            }
        };
        let text = texts.entry(file.name).or_insert_with(&mut read);
        let Some(text) = text else { continue };
        if file.per_device() {
            let values = disks
                .iter()
                .filter_map(|disk| Some(((row.id, Some(*disk)), file.parse(text, Some(*disk)).ok()?)));
            found.values.extend(values);
        } else if let Ok(value) = file.parse(text, None) {
            found.values.insert((row.id, None), value);
        }
    }
    if hierarchy.version == Version::V2 {
        let text = host.read(dir, "cgroup.subtree_control").unwrap_or_default();
        found.subtree =
            text.split_whitespace().filter_map(|name| Controller::from_name(name, Version::V2)).collect();
    }
    found.populated = host.read(dir, "cgroup.procs").is_ok_and(|procs| !procs.trim().is_empty());
    found
}

/// Whether commensal writes the knob.
fn wanted(row: &Knob) -> bool {
    matches!(row.status, KnobStatus::Driven)
}
