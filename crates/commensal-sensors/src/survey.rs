//! The survey on which a plan is based: machine, cgroup hierarchies, the manager of the unified hierarchy, and
//! capabilities (which mechanisms work).

use crate::containers::find;
use crate::delegation;
use crate::mounts::Mount;
use crate::processes::{Scanner, Wanted, apart, places};
use crate::{SensorError, actual, capability, cookies, machine, mounts, strays, vendor};
use commensal_core::actual::{
    ActualState, CORE_SCHED, Capabilities, CgroupPath, CgroupRef, Hierarchy, Tenancy,
};
use commensal_core::desired::DesiredState;
use commensal_core::group::{GroupSpec, Match};
use commensal_core::knob::{Controller, Version};
use commensal_core::member::{Apart, EngineReport, ProcessFact, ProcessId};
use commensal_core::topology::{Device, Machine};
use commensal_host::{Host, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a survey has found on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// CPUs, memory, disks.
    pub machine: Machine,
    /// Mounted cgroup hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// The manager of the unified hierarchy, and the parent of commensal's groups.
    pub tenancy: Tenancy,
    /// The mechanisms that work here, found by testing them.
    pub caps: Capabilities,
    /// What the tests depend on, besides machine, hierarchies and manager.
    conditions: Conditions,
}

/// What the results of the tests depend on and what can be read without a test.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Conditions {
    /// The cgroup file systems with their options, such as `ro`.
    mounts: Vec<Mount>,
    /// The controllers that the parent of commensal's groups enables in each v2 hierarchy.
    enabled: Vec<String>,
}

impl Conditions {
    fn read(
        host: &dyn Host,
        hierarchies: &[Hierarchy],
        tenancy: &Tenancy,
    ) -> Result<Conditions, SensorError> {
        let unified = hierarchies.iter().filter(|one| one.version == Version::V2);
        let enabled = unified.map(|one| {
            let parent = below(Path::new(&one.mount), tenancy.base.as_str());
            host.read_file(&parent.join("cgroup.subtree_control")).unwrap_or_default()
        });
        Ok(Conditions { mounts: mounts::cgroup_mounts(host)?, enabled: enabled.collect() })
    }
}

/// Surveys the machine and tests knobs in a scratch group called `probe`. The caller must hold the lock of the state
/// directory, if this user can take one. `cgroup_root` is the parent of commensal's groups, if the user has chosen one.
///
/// # Errors
/// Returns an error when `/proc` or `/sys` lack files that every Linux has.
pub fn survey(
    host: &mut dyn Host,
    probe: &str,
    cgroup_root: Option<&CgroupPath>,
) -> Result<Survey, SensorError> {
    let machine = machine::machine(host)?;
    let hierarchies = mounts::hierarchies(host)?;
    let tenancy = delegation::look(host, &hierarchies, cgroup_root);
    let conditions = Conditions::read(host, &hierarchies, &tenancy)?;
    let caps = match lost(&hierarchies) {
        Some(obstacle) => {
            let mut caps = Capabilities { cgroup_obstacle: Some(obstacle), ..Capabilities::default() };
            capability::features(host, &machine, &mut caps);
            caps
        }
        None => capability::probe(host, &hierarchies, &tenancy, &machine, probe),
    };
    Ok(Survey { machine, hierarchies, tenancy, caps, conditions })
}

/// Returns why nothing can be written: a mount shows the root of this process's cgroup namespace and more, but not which
/// of its cgroups that root is, so that this process's own cgroup has no name.
fn lost(hierarchies: &[Hierarchy]) -> Option<String> {
    let lost = hierarchies.iter().find(|one| !one.controllers.is_empty() && one.part.is_lost())?;
    Some(format!(
        "commensal runs in a cgroup namespace of its own, and cannot tell which cgroup of {} is the root of that namespace",
        lost.mount
    ))
}

/// Like [`Survey::members`], without a survey: `hierarchies` are those of `found`.
pub fn members(
    host: &dyn Host,
    hierarchies: &[Hierarchy],
    specs: &[GroupSpec],
    engines: Option<&EngineReport>,
    docker_host: Option<&str>,
    found: &mut ActualState,
) {
    let asked = match engines {
        Some(engines) => Some(engines.clone()),
        None => find(host, hierarchies, specs, docker_host),
    };
    if let Some(asked) = asked {
        found.engines = asked;
    }
    let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
    let moved = found.ours.moved.keys().copied().collect();
    let wanted = Wanted { matches: &matches, moved: &moved, hierarchies };
    found.processes = Scanner::default().scan(host, &wanted);
}

/// Returns the cgroups of this process.
fn here(host: &dyn Host, found: &ActualState) -> BTreeSet<CgroupRef> {
    let places = places(host, Path::new("/proc/self/cgroup"), &found.hierarchies);
    places.into_iter().map(|(hierarchy, path)| CgroupRef { hierarchy, path }).collect()
}

/// Returns the processes that are not in their group yet and whose threads are in several cgroups.
fn of_movable(host: &dyn Host, desired: &DesiredState, found: &ActualState) -> BTreeMap<ProcessId, Apart> {
    let facts: BTreeMap<ProcessId, &ProcessFact> =
        found.processes.iter().map(|fact| (fact.id, fact)).collect();
    let mut all = BTreeMap::new();
    for group in desired.groups.iter().filter(|group| !group.processes.is_empty()) {
        let Some(own) = group.members.iter().find(|member| member.own).map(|member| &member.path) else {
            continue;
        };
        let is_there =
            |hierarchy: usize| found.cgroups.contains_key(&CgroupRef { hierarchy, path: own.clone() });
        let new = !(0..found.hierarchies.len()).any(is_there);
        let outside = |fact: &&&ProcessFact| {
            fact.places.iter().any(|(hierarchy, path)| (new || is_there(*hierarchy)) && !own.contains(path))
        };
        for fact in group.processes.iter().filter_map(|wanted| facts.get(&wanted.id)).filter(outside) {
            let apart = apart(host, fact.id.pid, &found.hierarchies);
            all.extend(Some((fact.id, apart)).filter(|(_, apart)| !apart.is_empty()));
        }
    }
    all
}

impl Survey {
    /// Surveys the machine again without testing knobs, which creates and removes a cgroup in every hierarchy. `None` if
    /// the tests must be repeated, because something has changed on which their results depend, or may depend: a
    /// vendor's switch can be set at any time.
    ///
    /// # Errors
    /// Returns an error when `/proc` or `/sys` lack files that every Linux has.
    pub fn refreshed(
        &self,
        host: &mut dyn Host,
        cgroup_root: Option<&CgroupPath>,
    ) -> Result<Option<Survey>, SensorError> {
        let machine = machine::machine(host)?;
        let hierarchies = mounts::hierarchies(host)?;
        let tenancy = delegation::look(host, &hierarchies, cgroup_root);
        let conditions = Conditions::read(host, &hierarchies, &tenancy)?;
        // Which CPUs are online makes no difference to which mechanisms work.
        let before = (&self.machine.disks, &self.hierarchies, &self.tenancy, &self.conditions);
        let same = (&machine.disks, &hierarchies, &tenancy, &conditions) == before;
        if !same || vendor::has_any_switch(host) {
            return Ok(None);
        }
        let mut caps = self.caps.clone();
        capability::features(host, &machine, &mut caps);
        Ok(Some(Survey { machine, caps, ..self.clone() }))
    }

    /// Reads the current cgroups, without values.
    ///
    /// # Errors
    /// Returns an error when a mounted hierarchy cannot be opened, or has more than 100 000 groups.
    pub fn tree(&self, host: &mut dyn Host) -> Result<ActualState, SensorError> {
        let mut found = actual::tree(host, self.hierarchies.clone())?;
        found.tenancy.clone_from(&self.tenancy);
        found.closed.clone_from(&self.caps.closed);
        found.confined = host.euid() != 0 && self.tenancy.base.depth() > 0;
        found.here = here(host, &found);
        Ok(found)
    }

    /// Reads the cgroups at and below these paths again with their values, and those above them that were not read yet; all
    /// others stay as they are. Returns the cgroups that were read.
    ///
    /// # Errors
    /// Returns an error when a cgroup that exists cannot be opened, or there are more than 100 000 cgroups.
    pub fn look_at<'p>(
        &self,
        host: &mut dyn Host,
        paths: impl IntoIterator<Item = &'p CgroupPath> + Clone,
        found: &mut ActualState,
    ) -> Result<BTreeSet<CgroupRef>, SensorError> {
        let read = actual::tree_again(host, found, paths)?;
        let above = read.iter().flat_map(|place| {
            let above = place.path.ancestors().into_iter();
            above.map(|path| CgroupRef { hierarchy: place.hierarchy, path })
        });
        let unread = |place: &CgroupRef| {
            found.cgroups.get(place).is_some_and(|one| one.values.iter().next().is_none())
        };
        let places = above.filter(unread).chain(read.iter().cloned()).collect();
        self.values(host, &places, found)?;
        Ok(read)
    }

    /// Reads the values of these cgroups into `found`.
    ///
    /// # Errors
    /// Returns an error when a cgroup that exists cannot be opened.
    pub fn values(
        &self,
        host: &mut dyn Host,
        places: &BTreeSet<CgroupRef>,
        found: &mut ActualState,
    ) -> Result<(), SensorError> {
        let disks: Vec<Device> = self.machine.disks.iter().map(|disk| disk.device).collect();
        actual::values(host, found, places, &disks)
    }

    /// Adds to `found` the containers and processes that the groups match. The containers are those in `engines`; if it
    /// is `None`, the engines are queried now. `found` must already contain the cgroups that commensal created.
    /// `docker_host` is the value of the variable `DOCKER_HOST`.
    pub fn members(
        &self,
        host: &dyn Host,
        specs: &[GroupSpec],
        engines: Option<&EngineReport>,
        docker_host: Option<&str>,
        found: &mut ActualState,
    ) {
        members(host, &self.hierarchies, specs, engines, docker_host, found);
    }

    /// Reads the values of all groups of the cpu controller into `found`.
    ///
    /// # Errors
    /// Returns an error when a group that exists cannot be opened.
    pub fn fill_all(&self, host: &mut dyn Host, found: &mut ActualState) -> Result<(), SensorError> {
        let cpu = found.hierarchy_of(Controller::Cpu);
        let places = found.cgroups.keys().filter(|place| Some(place.hierarchy) == cpu).cloned().collect();
        actual::values(host, found, &places, &[])
    }

    /// Reads into `found` the values that a plan for `desired` needs. Reads core-scheduling cookies only for groups
    /// that need or have them, because each thread takes a system call.
    ///
    /// # Errors
    /// Returns an error when a group that exists cannot be opened.
    pub fn fill(
        &self,
        host: &mut dyn Host,
        desired: &DesiredState,
        found: &mut ActualState,
    ) -> Result<(), SensorError> {
        let places = actual::places_of_interest(desired, found);
        self.values(host, &places, found)?;
        found.apart = of_movable(host, desired, found);
        found.strays = strays::find(host, desired, found);
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
