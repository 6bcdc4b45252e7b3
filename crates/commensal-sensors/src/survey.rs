//! Everything that a plan is based on: machine, hierarchies, their manager, capabilities.

use crate::containers::{Found, find};
use crate::delegation::{self, Tenancy};
use crate::processes::{Scanner, Wanted, places};
use crate::{SensorError, actual, capability, cookies, machine, mounts};
use commensal_core::actual::{ActualState, CORE_SCHED, Capabilities, CgroupPath, CgroupRef, Hierarchy};
use commensal_core::desired::DesiredState;
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::{Controller, Version};
use commensal_core::topology::{Device, Machine};
use commensal_host::Host;
use std::collections::BTreeSet;
use std::path::Path;

/// Results of a survey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// CPUs, memory, disks.
    pub machine: Machine,
    /// Mounted cgroup hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// The manager of the unified hierarchy, and the parent of commensal's groups.
    pub tenancy: Tenancy,
    /// What works here, found by testing.
    pub caps: Capabilities,
}

/// Surveys the machine and tests knobs in a scratch group called `probe`. The caller holds the lock, if there can be
/// one. `cgroup_root` is the parent of commensal's groups, if the user has chosen one.
///
/// # Errors
/// When `/proc` or `/sys` lack files that every Linux has.
pub fn survey(
    host: &mut dyn Host,
    probe: &str,
    cgroup_root: Option<&CgroupPath>,
) -> Result<Survey, SensorError> {
    let machine = machine::machine(host)?;
    let hierarchies = mounts::hierarchies(host)?;
    let tenancy = delegation::look(host, &hierarchies, cgroup_root);
    let caps = capability::probe(host, &hierarchies, &tenancy, &machine, probe);
    Ok(Survey { machine, hierarchies, tenancy, caps })
}

/// The cgroups of this process.
fn here(host: &dyn Host, found: &ActualState) -> BTreeSet<CgroupRef> {
    let places = places(host, Path::new("/proc/self/cgroup"), &found.hierarchies);
    places.into_iter().map(|(hierarchy, path)| CgroupRef { hierarchy, path }).collect()
}

impl Survey {
    /// The current groups, without values.
    ///
    /// # Errors
    /// When a mounted hierarchy cannot be opened, or has more than 100 000 groups.
    pub fn tree(&self, host: &mut dyn Host) -> Result<ActualState, SensorError> {
        let mut found = actual::tree(host, self.hierarchies.clone())?;
        found.manager = self.tenancy.manager;
        found.base = self.tenancy.base.clone();
        found.own_obstacle.clone_from(&self.tenancy.obstacle);
        found.closed.clone_from(&self.caps.closed);
        let unified = self.hierarchies.iter().any(|one| one.version == Version::V2);
        found.confined = host.euid() != 0 && unified && self.tenancy.base.depth() > 0;
        found.here = here(host, &found);
        Ok(found)
    }

    /// Adds to `found` the containers (from `engines`, or queried now if that is missing) and processes that the groups
    /// match; `found` must already contain what commensal created. `docker_host` is the variable of that name.
    pub fn members(
        &self,
        host: &dyn Host,
        specs: &[GroupSpec],
        engines: Option<&Found>,
        docker_host: Option<&str>,
        found: &mut ActualState,
    ) {
        let asked = match engines {
            Some(engines) => Some(engines.clone()),
            None => find(host, &self.hierarchies, specs, docker_host),
        };
        if let Some(Found { containers, obstacle }) = asked {
            (found.containers, found.engine_obstacle) = (containers, obstacle);
        }
        let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
        let moved = found.ours.moved.keys().copied().collect();
        let wanted = Wanted { matches: &matches, moved: &moved, hierarchies: &self.hierarchies };
        found.processes = Scanner::default().scan(host, &wanted);
    }

    /// Reads the values of all groups of the cpu controller into `found`.
    ///
    /// # Errors
    /// When a group that is there cannot be opened.
    pub fn fill_all(&self, host: &mut dyn Host, found: &mut ActualState) -> Result<(), SensorError> {
        let cpu = found.hierarchy_of(Controller::Cpu);
        let places = found.cgroups.keys().filter(|place| Some(place.hierarchy) == cpu).cloned().collect();
        actual::values(host, found, &places, &[])
    }

    /// Reads into `found` the values that a plan for `desired` needs. Cookies are read only where they may be wanted,
    /// because that takes a system call for every thread.
    ///
    /// # Errors
    /// When a group that is there cannot be opened.
    pub fn fill(
        &self,
        host: &mut dyn Host,
        desired: &DesiredState,
        found: &mut ActualState,
    ) -> Result<(), SensorError> {
        let places = actual::places_of_interest(desired, found);
        let disks: Vec<Device> = self.machine.disks.iter().map(|disk| disk.device).collect();
        actual::values(host, found, &places, &disks)?;
        let cpu =
            found.hierarchy_of(Controller::Cpu).filter(|_| self.caps.feature_obstacle(CORE_SCHED).is_none());
        let Some(hierarchy) = cpu else { return Ok(()) };
        let members = desired.groups.iter().filter(|group| group.expel).flat_map(|group| &group.members);
        let mut places: BTreeSet<CgroupRef> =
            members.map(|member| CgroupRef { hierarchy, path: member.path.clone() }).collect();
        places.extend(found.ours.cookies.iter().cloned());
        cookies::read(host, found, &places);
        Ok(())
    }
}
