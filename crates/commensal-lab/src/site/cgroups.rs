//! The cgroups of a run. A run has one cgroup for each side, that is, for each role that a process can have; the cgroup
//! has one path in all cgroup hierarchies.

use commensal_core::actual::CgroupPath;
use commensal_host::{Host, below};
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{Survey, mounts};
use std::path::Path;

/// The role of a process in the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The online service.
    Online,
    /// The offline batch work.
    Offline,
    /// A program that generates load. The run treats it as online, but records its CPU use separately from the
    /// service's.
    Client,
    /// Warm threads: threads in the idle scheduling class that keep every CPU from idling. The run treats them as
    /// offline, but records their CPU use separately from the batch work's.
    Warm,
}

/// The cgroups of all sides, indexed by [`Side`].
#[derive(Debug)]
pub(super) struct SideCgroups {
    paths: [CgroupPath; 4],
    dirs: [GroupDirs; 4],
}

impl SideCgroups {
    /// Opens the cgroups; `paths` has one path for each side.
    pub(super) fn open(host: &mut dyn Host, survey: &Survey, paths: [CgroupPath; 4]) -> SideCgroups {
        let dirs = open(host, survey, &paths);
        SideCgroups { paths, dirs }
    }

    /// Opens the cgroups again, after the run has recreated them under their old names.
    pub(super) fn open_again(&mut self, host: &mut dyn Host, survey: &Survey) {
        let dirs = open(host, survey, &self.paths);
        std::mem::replace(&mut self.dirs, dirs).into_iter().for_each(|dir| dir.close(host));
    }

    pub(super) fn path(&self, side: Side) -> &CgroupPath {
        &self.paths[side as usize]
    }

    pub(super) fn dirs(&self, side: Side) -> &GroupDirs {
        &self.dirs[side as usize]
    }

    /// Closes the cgroups; returns their paths.
    pub(super) fn close(self, host: &mut dyn Host) -> [CgroupPath; 4] {
        self.dirs.into_iter().for_each(|dir| dir.close(host));
        self.paths
    }
}

/// Opens the cgroups of all sides in every hierarchy; the result is empty if the run cannot have its own cgroups.
fn open(host: &mut dyn Host, survey: &Survey, paths: &[CgroupPath; 4]) -> [GroupDirs; 4] {
    let possible = survey.caps.cgroup_obstacle.is_none() && survey.tenancy.obstacle.is_none();
    let hierarchies = if possible { survey.hierarchies.as_slice() } else { &[] };
    [0, 1, 2, 3].map(|side| GroupDirs::open(host, hierarchies, &paths[side]))
}

/// Removes empty cgroups with the run's names, also from hierarchies where the run itself created none. A container
/// engine creates them there: if one of the run's cgroups is the parent of a container, the engine creates that parent
/// in every hierarchy. The names contain the run's pid, so only this run uses them.
pub(super) fn sweep(host: &mut dyn Host, paths: &[CgroupPath; 4], prefix: &str) {
    let parents = paths.iter().filter_map(CgroupPath::parent);
    let all = paths.iter().cloned().chain(parents);
    let all: Vec<CgroupPath> = all.filter(|path| path.parts().any(|part| part.starts_with(prefix))).collect();
    for mounts::Mount { mount, .. } in mounts::cgroup_mounts(host).unwrap_or_default() {
        for path in &all {
            let Some(above) = path.parent() else { continue };
            let Ok(dir) = host.open(&below(Path::new(&mount), above.as_str())) else { continue };
            if let Ok(group) = host.open_child(dir, path.name()) {
                // A cgroup that is not empty needs no report here, because the run has already tried to remove the
                // cgroups in its journal.
                let _ = host.rmdir(dir, path.name(), group.inode);
                host.close(group);
            }
            host.close(dir);
        }
    }
}
