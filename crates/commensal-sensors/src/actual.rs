//! Reads the machine's cgroups: first the tree with each cgroup's identity, then the values of the knobs (kernel
//! settings of a cgroup) that a plan needs. In this file a group is a cgroup.

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

/// Maximum number of groups read in all hierarchies together. If there are more, reading fails: a plan for a part of
/// the trees would be silently incomplete.
const MAX_GROUPS: usize = 100_000;

/// Reads all groups of all hierarchies with their inodes, without values.
///
/// # Errors
/// Returns an error when a mounted hierarchy cannot be opened, or the hierarchies have more than 100 000 groups together.
pub fn tree(host: &mut dyn Host, hierarchies: Vec<Hierarchy>) -> Result<ActualState, SensorError> {
    let mut state = ActualState { hierarchies, ..ActualState::default() };
    for switch in Switch::ALL {
        let text = host.read_file(Path::new(switch.path())).unwrap_or_default();
        state.switches.extend(text.trim().parse().ok().map(|value: i64| (switch, value)));
    }
    let mut walk = Walk::default();
    for (index, hierarchy) in state.hierarchies.iter().enumerate() {
        let root = host.open(Path::new(&hierarchy.mount))?;
        let walked = walk.below(host, root, index, CgroupPath::root());
        host.close(root);
        walked?;
    }
    state.cgroups = walk.found.into_iter().collect();
    Ok(state)
}

/// Reads the groups at and below these paths again, and groups above them that are not known yet; all others stay as they are.
/// Returns the groups that were read.
///
/// # Errors
/// Returns an error when a group that exists cannot be opened, or there are more than 100 000 groups.
pub fn tree_again<'p>(
    host: &mut dyn Host,
    state: &mut ActualState,
    paths: impl IntoIterator<Item = &'p CgroupPath> + Clone,
) -> Result<BTreeSet<CgroupRef>, SensorError> {
    let mut read = BTreeSet::new();
    for (index, hierarchy) in state.hierarchies.clone().iter().enumerate() {
        for path in paths.clone() {
            let at = |path: CgroupPath| CgroupRef { hierarchy: index, path };
            let known = |path: &CgroupPath| state.cgroups.contains_key(&at(path.clone()));
            let top = at(path.ancestors().into_iter().find(|above| !known(above)).unwrap_or(path.clone()));
            let below_it: Vec<CgroupRef> = state.below(&top).map(|(place, _)| place.clone()).collect();
            for place in below_it.iter().chain([&top]) {
                state.cgroups.remove(place);
                read.remove(place);
            }
            let opened = host.open(&below(Path::new(&hierarchy.mount), top.path.as_str()));
            let Some(dir) = seen(opened)? else { continue };
            let mut walk = Walk::default();
            let walked = walk.below(host, dir, index, top.path);
            host.close(dir);
            walked?;
            read.extend(walk.found.iter().map(|(place, _)| place.clone()));
            state.cgroups.extend(walk.found);
        }
    }
    Ok(read)
}

/// What a walk through the hierarchies has found.
#[derive(Default)]
struct Walk {
    /// In a vector: a map that is built from all its entries at once takes less memory.
    found: Vec<(CgroupRef, Cgroup)>,
    /// Each path once, because most groups are in every hierarchy.
    paths: BTreeSet<CgroupPath>,
}

impl Walk {
    fn below(
        &mut self,
        host: &mut dyn Host,
        dir: Dir,
        hierarchy: usize,
        path: CgroupPath,
    ) -> Result<(), SensorError> {
        if self.found.len() >= MAX_GROUPS {
            let what = format!("more than {MAX_GROUPS} cgroups");
            return Err(SensorError::Form { file: path.to_string(), what });
        }
        let path = match self.paths.get(&path) {
            Some(known) => known.clone(),
            None => {
                self.paths.insert(path.clone());
                path
            }
        };
        let children = seen(host.children(dir))?.unwrap_or_default();
        self.found.push((
            CgroupRef { hierarchy, path: path.clone() },
            Cgroup { inode: dir.inode, ..Cgroup::default() },
        ));
        for name in children {
            if let Some(child) = seen(host.open_child(dir, &name))? {
                let walked = self.below(host, child, hierarchy, path.child(&name));
                host.close(child);
                walked?;
            }
        }
        Ok(())
    }
}

/// Returns what was read of a group. Returns `None` if the group was removed while the tree was read, which is normal,
/// or if this user may not read it. Returns every other error, because a caller that treated the group as removed would
/// plan to create it again, and the groups below it would lose their limits.
fn seen<T>(read: commensal_host::Result<T>) -> Result<Option<T>, HostError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) => match error.errno {
            Errno::ENOENT | Errno::ENODEV | Errno::EACCES | Errno::EPERM => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether this error means that a file is not available: it does not exist, its group was removed, permission is
/// missing, or the kernel does not support it.
fn is_absent(errno: Errno) -> bool {
    let absent =
        [Errno::ENOENT, Errno::ENODEV, Errno::EACCES, Errno::EPERM, Errno::EINVAL, Errno::EOPNOTSUPP];
    absent.contains(&errno)
}

/// Returns the cgroups whose values a plan for `desired` needs: members, all groups above and below them, commensal's
/// parent groups, and groups that commensal created or changed earlier.
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
    // If an earlier plan wrote values to a group of another program, the groups below it may have inherited or copied
    // them.
    let written: BTreeSet<&CgroupPath> =
        actual.ours.originals.keys().map(|(place, _, _)| &place.path).collect();
    let tops = [&desired.online_parent, &desired.offline_parent];
    let below = |place: &&CgroupRef| {
        let mut above = place.path.ancestors();
        above.retain(|path| path.depth() > 0);
        above.iter().any(|above| members.contains(above) || written.contains(above) || tops.contains(&above))
    };
    places.extend(actual.cgroups.keys().filter(below).cloned());
    // Turning Group Identity on clears the identity of every group, so the plan needs the values of all groups.
    if actual.switches.get(&Switch::GroupIdentity) == Some(&0) {
        let cpu = actual.hierarchy_of(Controller::Cpu);
        places.extend(actual.cgroups.keys().filter(|place| Some(place.hierarchy) == cpu).cloned());
    }
    // A group cannot have level 0 (`cpu.qos_level`) below a group that has another level.
    for (place, ..) in actual.ours.originals.keys().filter(|(_, knob, _)| *knob == KnobId::CpuQosLevel) {
        let above = place.path.ancestors().into_iter();
        let above = above.map(|path| CgroupRef { hierarchy: place.hierarchy, path });
        places.extend(above.filter(|above| actual.cgroups.contains_key(above)));
    }
    let ours = actual.ours.created.iter().chain(actual.ours.originals.keys().map(|(place, _, _)| place));
    places.extend(ours.filter(|place| actual.cgroups.contains_key(*place)).cloned());
    places
}

/// Reads the values of all knobs that a plan needs, for the groups in `places`, into `actual`. A group that has
/// vanished is removed from `actual`. A file that cannot be read leaves its value absent; if it exists, the error is
/// added to `unread`.
///
/// # Errors
/// Returns an error when a group that exists cannot be opened.
pub fn values(
    host: &mut dyn Host,
    actual: &mut ActualState,
    places: &BTreeSet<CgroupRef>,
    disks: &[Device],
) -> Result<(), SensorError> {
    let hierarchies = actual.hierarchies.clone();
    let mut known = BTreeSet::new();
    for place in places {
        let Some(hierarchy) = hierarchies.get(place.hierarchy) else { continue };
        let opened = host.open(&below(Path::new(&hierarchy.mount), place.path.as_str()));
        let Some(dir) = seen(opened)? else {
            actual.cgroups.remove(place);
            continue;
        };
        let mut found = group(host, dir, hierarchy, disks, &mut actual.unread);
        found.values.share(&mut known);
        if actual.tenancy.manager == Manager::Systemd && hierarchy.version == Version::V2 {
            found.delegated = delegation::delegated(host, dir);
        }
        host.close(dir);
        actual.cgroups.insert(place.clone(), found);
    }
    Ok(())
}

/// Reads one value of one group, without storing it in the state; `Ok(None)` if it cannot be read.
///
/// # Errors
/// Returns an error when the group no longer exists.
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

/// Whether a plan needs the knob: commensal writes it, or must know whether another program has written it.
fn wanted(row: &Knob) -> bool {
    matches!(row.status, KnobStatus::Driven) || row.id == KnobId::CpuIdentity
}
