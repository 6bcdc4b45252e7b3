//! Finds the cgroup that freezes a process.

use crate::processes::places;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_host::{Host, below};
use std::path::Path;

/// The files that freeze a cgroup, v2 and v1, and what they contain while it is not frozen.
pub const FILES: [(&str, &str); 2] = [("cgroup.freeze", "0"), ("freezer.state", "THAWED")];

/// A cgroup that freezes the processes in and below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frozen {
    /// Mount point of the hierarchy.
    pub mount: String,
    /// The cgroup.
    pub path: CgroupPath,
    /// The file that freezes it.
    pub file: &'static str,
    /// What to write to the file to thaw it.
    pub thawed: &'static str,
}

/// Returns the topmost frozen cgroup of those that contain a process, in the first hierarchy that has one. To thaw a
/// cgroup below it has no effect (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst,
/// `cgroup.freeze`).
pub fn frozen_by(host: &mut dyn Host, pid: u32, hierarchies: &[Hierarchy]) -> Option<Frozen> {
    let freezers = freezers_of(host, pid, hierarchies);
    frozen_of(host, &freezers)
}

/// A cgroup that can be frozen: the mount point of its hierarchy, and its path.
pub type Freezer = (String, CgroupPath);

/// Returns the cgroups that can freeze a process, the topmost of each hierarchy first.
pub fn freezers_of(host: &dyn Host, pid: u32, hierarchies: &[Hierarchy]) -> Vec<Freezer> {
    let can_freeze =
        |one: &&Hierarchy| one.version == Version::V2 || one.controllers.contains(&Controller::Freezer);
    let places = places(host, Path::new(&format!("/proc/{pid}/cgroup")), hierarchies).into_iter();
    let each = places.filter_map(|(index, place)| Some((hierarchies.get(index).filter(can_freeze)?, place)));
    each.flat_map(|(hierarchy, place)| {
        place.ancestors().into_iter().chain([place]).map(|path| (hierarchy.mount.clone(), path))
    })
    .collect()
}

/// Returns the first of these cgroups that is frozen.
pub fn frozen_of(host: &mut dyn Host, freezers: &[Freezer]) -> Option<Frozen> {
    freezers.iter().find_map(|(mount, path)| {
        let dir = host.open(&below(Path::new(mount), path.as_str())).ok()?;
        let is =
            |(file, thawed): &(&str, &str)| host.read(dir, file).is_ok_and(|state| state.trim() != *thawed);
        let found = FILES.into_iter().find(is);
        host.close(dir);
        found.map(|(file, thawed)| Frozen { mount: mount.clone(), path: path.clone(), file, thawed })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::hierarchies;
    use commensal_host::fake::FakeHost;

    /// Kinds of machines x the cgroups that are frozen: the topmost one counts, also if those below are frozen as well.
    #[test]
    fn the_topmost_frozen_cgroup_counts() {
        const GROUPS: [&str; 3] = ["/a", "/a/b", "/a/b/c"];
        for make in [FakeHost::v1, FakeHost::v1_comounted, FakeHost::v2, FakeHost::hybrid] {
            for frozen in 0..8_usize {
                let fake = make(2, 1 << 30);
                let mut host = fake.another();
                let found = hierarchies(&mut host).unwrap();
                let mount = |name: &str| {
                    found.iter().find(|one| one.mount.ends_with(name)).map(|one| one.mount.clone())
                };
                let mount = mount("/freezer").unwrap_or_else(|| "/sys/fs/cgroup".to_owned());
                for group in GROUPS {
                    let (above, name) = group.rsplit_once('/').unwrap();
                    let above = host.open(&below(Path::new(&mount), above)).unwrap();
                    host.mkdir(above, name).unwrap();
                }
                let pid = fake.add_process(&[&format!("{mount}/a/b/c")]);
                assert_eq!(frozen_by(&mut host, pid, &found), None);
                for (index, group) in
                    GROUPS.iter().enumerate().filter(|(index, _)| frozen & (1 << index) != 0)
                {
                    let dir = host.open(&below(Path::new(&mount), group)).unwrap();
                    let done = host.write(dir, "freezer.state", "FROZEN");
                    done.or_else(|_| host.write(dir, "cgroup.freeze", "1"))
                        .unwrap_or_else(|_| panic!("{index}"));
                }
                let top = GROUPS.iter().enumerate().find(|(index, _)| frozen & (1 << index) != 0);
                let by = frozen_by(&mut host, pid, &found).map(|one| (one.mount, one.path.to_string()));
                assert_eq!(by, top.map(|(_, group)| (mount.clone(), (*group).to_owned())), "{frozen}");
            }
        }
    }
}
