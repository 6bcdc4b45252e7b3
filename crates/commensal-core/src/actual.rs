//! The current state of the machine: cgroup hierarchies, cgroups with the values of their knobs, and what the machine
//! and its kernel can do. A knob is a kernel setting of a cgroup ([`crate::knob`]). In this file a group is a cgroup;
//! the groups that the user defines are called workload groups.
//!
//! The sensors (crate `commensal-sensors`) fill in these types; this module reads no files. If a sensor could not read
//! a value, the value is absent.

use crate::errno::Errno;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::member::{Apart, EngineReport, MovedFrom, ProcessFact, ProcessId, Stray};
use crate::namespace::MountedPart;
use crate::scheduler::Scheduler;
use crate::spelling;
use crate::text::visible;
use crate::topology::Device;
use crate::vendor::{QosLevels, Switch};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the directory of cgroup `path` in the hierarchy mounted at `mount`: `/sys/fs/cgroup/a/b` for `/a/b` and
/// `/sys/fs/cgroup`.
#[must_use]
pub fn below(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// Values of a cgroup's knobs, in a vector sorted by key. A machine has thousands of cgroups with a few values each,
/// and most cgroups have the same values. To save memory, cgroups with equal values can share one vector
/// ([`KnobValues::share`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KnobValues(Arc<Vec<(KnobKey, Value)>>);

impl KnobValues {
    /// If `known` contains equal values, shares their memory; otherwise adds these values to `known`.
    pub fn share(&mut self, known: &mut BTreeSet<KnobValues>) {
        match known.get(self) {
            Some(same) => self.0 = Arc::clone(&same.0),
            None => drop(known.insert(self.clone())),
        }
    }

    fn find(&self, key: &KnobKey) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }

    /// The value of a knob; `None` if there is no value for this key.
    #[must_use]
    pub fn get(&self, key: &KnobKey) -> Option<&Value> {
        self.find(key).ok().map(|index| &self.0[index].1)
    }

    /// Sets the value of a knob; returns the previous value.
    pub fn insert(&mut self, key: KnobKey, value: Value) -> Option<Value> {
        match self.find(&key) {
            Ok(index) => Some(std::mem::replace(&mut Arc::make_mut(&mut self.0)[index].1, value)),
            Err(index) => {
                let values = Arc::make_mut(&mut self.0);
                values.reserve_exact(1);
                values.insert(index, (key, value));
                None
            }
        }
    }

    /// All values with their keys, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&KnobKey, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl FromIterator<(KnobKey, Value)> for KnobValues {
    fn from_iter<I: IntoIterator<Item = (KnobKey, Value)>>(values: I) -> KnobValues {
        let mut all = KnobValues::default();
        all.extend(values);
        all
    }
}

impl Extend<(KnobKey, Value)> for KnobValues {
    fn extend<I: IntoIterator<Item = (KnobKey, Value)>>(&mut self, values: I) {
        values.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}

/// A cgroup's path below the root of its hierarchy: `/`, `/a`, `/a/b`. A copy shares the memory of the original,
/// because the same path occurs often: about ten times on a machine with one v1 hierarchy per controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(Arc<str>);

impl CgroupPath {
    /// Creates a normalised path: one leading slash, no trailing or repeated slashes.
    #[must_use]
    pub fn new(path: &str) -> CgroupPath {
        let is_normal = path.starts_with('/') && !path.ends_with('/') && !path.contains("//");
        if is_normal {
            return CgroupPath(path.into());
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        CgroupPath(format!("/{}", parts.join("/")).into())
    }

    /// The root of a hierarchy, `/`.
    #[must_use]
    pub fn root() -> CgroupPath {
        CgroupPath::new("/")
    }

    /// The path as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Path components from the top.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// Number of components; 0 for the root.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.parts().count()
    }

    /// The last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().last().unwrap_or_default()
    }

    /// The parent; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<CgroupPath> {
        let (above, name) = self.0.rsplit_once('/')?;
        (!name.is_empty()).then(|| CgroupPath::new(above))
    }

    /// The path of the child with this name.
    #[must_use]
    pub fn child(&self, name: &str) -> CgroupPath {
        CgroupPath::new(&format!("{}/{name}", self.0))
    }

    /// All ancestors of this group, root first.
    #[must_use]
    pub fn ancestors(&self) -> Vec<CgroupPath> {
        let mut above: Vec<CgroupPath> = std::iter::successors(self.parent(), CgroupPath::parent).collect();
        above.reverse();
        above
    }

    /// Whether `other` is this group or one of its descendants.
    #[must_use]
    pub fn contains(&self, other: &CgroupPath) -> bool {
        other.0 == self.0
            || &*self.0 == "/"
            || other.0.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The path of the systemd unit to which this group belongs: the cgroup of the unit is this group or contains it.
    /// The path of the unit is the longest prefix of the group's path in which every component ends with the suffix of
    /// a unit type that has cgroups (`.slice`, `.service`, …). `None` for the root, and for a path whose first
    /// component is not a unit (`/docker/x`).
    #[must_use]
    pub fn unit(&self) -> Option<CgroupPath> {
        const KINDS: [&str; 6] = [".slice", ".service", ".scope", ".mount", ".socket", ".swap"];
        let is_unit = |part: &&str| KINDS.iter().any(|kind| part.ends_with(kind));
        let parts: Vec<&str> = self.parts().take_while(is_unit).collect();
        (!parts.is_empty()).then(|| CgroupPath::new(&parts.join("/")))
    }

    /// The kernel's scheduler chooses between two groups by comparing two children of their lowest common ancestor.
    /// This function returns the child that is `self` or contains `self`. `None` if one of the two groups contains the
    /// other.
    #[must_use]
    pub fn entity_against(&self, other: &CgroupPath) -> Option<CgroupPath> {
        let parts: Vec<&str> = self.parts().take(self.depth_against(other)?).collect();
        Some(CgroupPath::new(&parts.join("/")))
    }

    /// Number of path components of [`CgroupPath::entity_against`]; `None` if one of the two groups contains the other.
    #[must_use]
    pub fn depth_against(&self, other: &CgroupPath) -> Option<usize> {
        if self.contains(other) || other.contains(self) {
            return None;
        }
        // A slash begins each component of the common ancestor, and the first one that differs.
        let common = self.0.bytes().zip(other.0.bytes()).take_while(|(a, b)| a == b);
        Some(common.filter(|(byte, _)| *byte == b'/').count())
    }
}

/// Lets a caller search a set of paths for a string slice, such as a part of another path, without creating a path.
/// Paths compare like their text, as `Borrow` requires.
impl std::borrow::Borrow<str> for CgroupPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Default for CgroupPath {
    fn default() -> CgroupPath {
        CgroupPath::root()
    }
}

/// Writes the path for messages, with hidden characters escaped ([`visible`]); [`CgroupPath::as_str`] returns the path
/// itself.
impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(&self.0))
    }
}

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Interface version.
    pub version: Version,
    /// Mount point.
    pub mount: String,
    /// Controllers of the hierarchy. v1: the controllers bound to it; v2: the controllers that the root cgroup offers.
    pub controllers: BTreeSet<Controller>,
    /// The part of the hierarchy that is mounted.
    pub part: MountedPart,
}

impl Hierarchy {
    /// The hierarchy that the kernel's scheduler uses to divide CPU time: the hierarchy with the cpu controller. If no
    /// hierarchy has the cpu controller, the unified hierarchy; `None` if that is not mounted either.
    #[must_use]
    pub fn of_threads(all: &[Hierarchy]) -> Option<&Hierarchy> {
        let with_cpu = |one: &&Hierarchy| one.controllers.contains(&Controller::Cpu);
        all.iter().find(with_cpu).or_else(|| all.iter().find(|one| one.version == Version::V2))
    }

    /// Whether this is the unified hierarchy and controllers can be enabled in it; beside v1 hierarchies it may have
    /// none.
    #[must_use]
    pub fn has_v2_controllers(&self) -> bool {
        self.version == Version::V2 && self.controllers.iter().any(|one| !one.built_in(Version::V2))
    }

    /// Short name of the hierarchy: the names of its v1 controllers, separated by commas, or `v2`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.version {
            Version::V2 => "v2".to_owned(),
            Version::V1 => {
                let names: Vec<&str> =
                    self.controllers.iter().map(|controller| controller.v1_name()).collect();
                names.join(",")
            }
        }
    }
}

/// A cgroup, identified by its hierarchy and its path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupRef {
    /// Index of the hierarchy in [`ActualState::hierarchies`].
    pub hierarchy: usize,
    /// Path of the cgroup in that hierarchy.
    pub path: CgroupPath,
}

/// Identifies a value of a cgroup: the knob, and the device if the knob is per device.
pub type KnobKey = (KnobId, Option<Device>);

/// A knob of the cgroup at a path, for one device if the knob is per device. After that cgroup is removed, another
/// cgroup can have the same path; [`crate::drift::SettingKey`] includes the inode and distinguishes the two.
pub type SettingRef = (CgroupRef, KnobId, Option<Device>);

/// The state of a cgroup, as read from the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Inode of the cgroup's directory. Hierarchy and inode together identify the cgroup.
    pub inode: u64,
    /// Values of the knobs that could be read, as the kernel reports them.
    pub values: KnobValues,
    /// v2: controllers that the group enables for its children.
    pub subtree: BTreeSet<Controller>,
    /// Whether processes are in the cgroup itself, not only in its descendants.
    pub populated: bool,
    /// Whether the group's manager has delegated the subtree (systemd's `Delegate=yes`).
    pub delegated: bool,
    /// Core-scheduling cookies of the threads in and below the cgroup; `None` if the sensors did not read them.
    pub cookies: Option<Cookies>,
}

/// The program other than commensal that manages the unified hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Manager {
    /// No other program manages the hierarchy.
    #[default]
    Nobody,
    /// systemd, which claims to be the only writer of the root and of its units' cgroups, except below units with
    /// `Delegate=yes` (systemd's CGROUP_DELEGATION.md).
    Systemd,
}

/// The manager of the unified hierarchy, and where in the hierarchies commensal can create groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenancy {
    /// The program other than commensal that manages the unified hierarchy.
    pub manager: Manager,
    /// The group below which commensal creates its groups in every hierarchy: the root, a group that was delegated to
    /// it, or the one that the user has chosen.
    pub base: CgroupPath,
    /// Why commensal cannot create cgroups although it can write to existing cgroups; `None` if it can create cgroups.
    pub obstacle: Option<String>,
}

impl Tenancy {
    /// Why commensal cannot create cgroups in hierarchies of this version; `None` if it can. A manager manages only the
    /// unified hierarchy, but a chosen group that cannot be used can be used in none.
    #[must_use]
    pub fn obstacle_in(&self, version: Version) -> Option<&str> {
        self.obstacle.as_deref().filter(|_| version == Version::V2 || self.base.depth() > 0)
    }
}

/// Core-scheduling cookies of the threads in and below a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cookies {
    /// The group has no threads.
    Empty,
    /// No thread has a cookie.
    None,
    /// Every thread has the same cookie.
    One,
    /// Some threads have no cookie, or their cookies differ.
    Mixed,
}

/// Changes that commensal made earlier and has not undone, according to its journal, which records original values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// Groups that commensal created.
    pub created: BTreeSet<CgroupRef>,
    /// Original values of knobs that commensal wrote in groups that it did not create.
    pub originals: BTreeMap<SettingRef, Value>,
    /// Original values of machine-wide switches (sysctls that vendors' knobs need) that commensal changed.
    pub switches: BTreeMap<Switch, i64>,
    /// Groups that commensal did not create, but to whose threads it gave a core-scheduling cookie.
    pub cookies: BTreeSet<CgroupRef>,
    /// Processes that commensal moved into cgroups that it created.
    pub moved: BTreeMap<ProcessId, MovedFrom>,
}

/// The current state of the machine's cgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActualState {
    /// Mounted hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// Cgroups by hierarchy and path.
    pub cgroups: BTreeMap<CgroupRef, Cgroup>,
    /// Existing files that the sensors could not read this time, with the errors; the values in them are unknown.
    pub unread: Vec<String>,
    /// The manager of the unified hierarchy, and where in the hierarchy commensal can create groups.
    pub tenancy: Tenancy,
    /// Indices of the hierarchies in which commensal cannot create any cgroup.
    pub closed: BTreeSet<usize>,
    /// Cgroups that contain the calling process.
    pub here: BTreeSet<CgroupRef>,
    /// Whether the calling user can write only below [`Tenancy::base`].
    pub confined: bool,
    /// Values of the machine-wide switches that this kernel has.
    pub switches: BTreeMap<Switch, i64>,
    /// Running containers, if a match (a condition that selects members of a workload group) needs them.
    pub engines: EngineReport,
    /// The processes that a match selects, their descendants, and the processes that commensal moved. commensal's own
    /// processes and kernel threads are left out.
    pub processes: Vec<ProcessFact>,
    /// Those of the processes that a plan may move into a group and whose threads are in several cgroups.
    pub apart: BTreeMap<ProcessId, Apart>,
    /// Processes that are in a member cgroup, but not in its v1 cpuset.
    pub strays: Vec<Stray>,
    /// The sched_ext scheduler; `None` if the sensors did not read its state.
    pub scheduler: Option<Scheduler>,
    /// Changes that commensal made earlier and has not undone.
    pub ours: Ours,
}

impl ActualState {
    /// Index of the hierarchy that has `controller`; `None` if no hierarchy has it.
    #[must_use]
    pub fn hierarchy_of(&self, controller: Controller) -> Option<usize> {
        self.hierarchies.iter().position(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    /// Index of the hierarchy of cpuset, if it is a v1 hierarchy.
    #[must_use]
    pub fn v1_cpuset(&self) -> Option<usize> {
        let index = self.hierarchy_of(Controller::Cpuset)?;
        (self.hierarchies[index].version == Version::V1).then_some(index)
    }

    /// All paths that exist in at least one hierarchy.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<&CgroupPath> {
        self.cgroups.keys().map(|place| &place.path).collect()
    }

    /// All descendants of `place` in its hierarchy, with their state.
    pub fn below(&self, place: &CgroupRef) -> impl Iterator<Item = (&CgroupRef, &Cgroup)> {
        // The trailing slash keeps siblings such as `/a-b` of `/a` out of the range.
        let prefix = format!("{}/", place.path.0.trim_end_matches('/'));
        let first = CgroupRef { hierarchy: place.hierarchy, path: CgroupPath(prefix.as_str().into()) };
        let hierarchy = place.hierarchy;
        let inside =
            move |other: &CgroupRef| other.hierarchy == hierarchy && other.path.0.starts_with(&prefix);
        self.cgroups
            .range(first..)
            .take_while(move |(other, _)| inside(other))
            .filter(|(other, _)| &*other.path.0 != "/")
    }

    /// The systemd unit whose single-writer rule covers this group (`/` for the root itself); `None` if commensal may
    /// write to the cgroup. The rule says that only systemd writes to the cgroups of its units. The rule exists only in
    /// the unified hierarchy. It does not cover cgroups below a delegated unit, because another program manages them,
    /// such as the systemd of a container. It does cover the units of a user's systemd (below `user@UID.service`),
    /// although that service is delegated.
    #[must_use]
    pub fn managed_by(&self, place: &CgroupRef) -> Option<CgroupPath> {
        let version = self.hierarchies.get(place.hierarchy)?.version;
        if self.tenancy.manager != Manager::Systemd || version != Version::V2 {
            return None;
        }
        if place.path.depth() == 0 {
            return Some(CgroupPath::root());
        }
        let unit = place.path.unit()?;
        let mut above = unit.ancestors();
        above.push(unit.clone());
        let handed_over =
            above.into_iter().filter(|path| *path != place.path && path.depth() > 0).any(|path| {
                let delegated = |found: &Cgroup| found.delegated;
                let found = self.cgroups.get(&CgroupRef { hierarchy: place.hierarchy, path: path.clone() });
                found.is_some_and(delegated) && !(path.name().starts_with("user@") && path != unit)
            });
        (!handed_over).then_some(unit)
    }

    /// Whether commensal can create groups in this hierarchy.
    #[must_use]
    pub fn own_possible(&self, hierarchy: usize) -> bool {
        let version = self.hierarchies.get(hierarchy).map(|one| one.version);
        let managed = version.is_some_and(|version| self.tenancy.obstacle_in(version).is_some());
        !managed && !self.closed.contains(&hierarchy)
    }

    /// Path of the group's directory, in the text form of [`spelling`].
    #[must_use]
    pub fn directory(&self, place: &CgroupRef) -> String {
        let mount = self.hierarchies.get(place.hierarchy).map(|one| one.mount.as_str()).unwrap_or_default();
        spelling::of_path(&below(Path::new(mount), place.path.as_str()))
    }

    /// Whether the guard of commensal's sched_ext scheduler, which prevents starvation, has frozen the group.
    #[must_use]
    pub fn frozen_by_scheduler(&self, place: &CgroupRef) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| scheduler.has_frozen(&self.directory(place)))
    }

    /// The hierarchy and path of the group for messages, such as `cpu:/etl` or `v2:/etl`, with hidden characters
    /// escaped.
    #[must_use]
    pub fn show(&self, place: &CgroupRef) -> String {
        visible(&self.name(place)).into_owned()
    }

    /// The hierarchy and path of the group, such as `cpu:/etl` or `v2:/etl`, without escaping.
    #[must_use]
    pub fn name(&self, place: &CgroupRef) -> String {
        let label = self.hierarchies.get(place.hierarchy).map(Hierarchy::label).unwrap_or_default();
        format!("{label}:{}", place.path.as_str())
    }
}

/// Whether a feature works on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Tested: a value was written and read back.
    Yes,
    /// The feature should work, but commensal did not test it: a test would have changed something that commensal does
    /// not own.
    Untried {
        /// Why commensal did not test the feature: the setting that a test would have changed.
        because: String,
    },
    /// The kernel does not have the feature.
    No {
        /// The reason, as readable text.
        because: String,
    },
    /// The kernel has the feature but refused the test.
    Refused {
        /// Error number of the refusal.
        errno: Errno,
        /// The reason, as readable text.
        because: String,
    },
}

impl Support {
    /// The reason why the feature does not work; `None` if a test succeeded, or if there was no test.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Support::Yes | Support::Untried { .. } => None,
            Support::No { because } => Some(because.clone()),
            Support::Refused { errno, because } => Some(format!("{because} ({errno})")),
        }
    }
}

/// The features that this user can use on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Why commensal cannot write any cgroup; `None` if it can write cgroups.
    pub cgroup_obstacle: Option<String>,
    /// Whether each knob works, by knob and cgroup version; commensal tests this in a scratch cgroup.
    pub knobs: BTreeMap<(KnobId, Version), Support>,
    /// Results of the checks of other features, by name: PSI, run delay, sched_ext, core scheduling.
    pub features: BTreeMap<&'static str, Support>,
    /// The levels of `cpu.qos_level`; `None` where the knob does not work.
    pub qos: Option<QosLevels>,
    /// Indices of the hierarchies in which commensal can create no cgroup, although it can in others.
    pub closed: BTreeSet<usize>,
    /// Whether the kernel refused a test for a reason that may be temporary, such as a lack of memory. Then the caller
    /// should repeat the tests soon.
    pub doubtful: bool,
}

/// Name of the feature "core scheduling" in [`Capabilities::features`].
pub const CORE_SCHED: &str = "core scheduling";
/// Name of the feature "qos_level SMT expulsion" in [`Capabilities::features`]: whether openEuler's kernel keeps
/// offline threads off the SMT siblings of CPUs that run online threads.
pub const QOS_SMT_EXPEL: &str = "qos_level SMT expulsion";
/// Name of the feature "originals on the cgroups" in [`Capabilities::features`]: whether cgroup directories can store
/// root's extended attributes (`trusted.*`).
pub const MARKS: &str = "originals on the cgroups";
/// Name of the feature "absolute expulsion" in [`Capabilities::features`]: whether a kernel with Group Identity keeps
/// offline groups off a CPU on which an online group runs (`ID_ABSOLUTE_EXPEL`).
pub const ABSOLUTE_EXPEL: &str = "absolute expulsion";
/// Name of the feature "cpu.priority" in [`Capabilities::features`]. Only kernels that have `cpu.priority` in place of
/// `cpu.bvt_warp_ns` (Anolis 6.6) have this entry; commensal does not write that file.
pub const CPU_PRIORITY: &str = "cpu.priority";
/// Name of the feature "SMT" in [`Capabilities::features`].
pub const SMT: &str = "smt";
/// Name of the feature "sched_ext" in [`Capabilities::features`]: whether the kernel can load sched_ext schedulers.
pub const SCHED_EXT: &str = "sched_ext";
/// Name of the feature "sched_ext scheduler" in [`Capabilities::features`]: whether commensal's scheduler is loaded.
pub const SCHEDULER: &str = "sched_ext scheduler";

impl Capabilities {
    /// Capabilities with which every knob except vendors' knobs works. Tests use these capabilities to compare plans
    /// with stored plans.
    #[must_use]
    pub fn everything() -> Capabilities {
        let rows = crate::knob::TABLE.iter().filter(|knob| knob.vendor.is_none());
        let keys = rows.flat_map(|knob| [(knob.id, Version::V1), (knob.id, Version::V2)]);
        let supported = keys.filter(|(knob, version)| knob.row().file(*version).is_some());
        Capabilities { knobs: supported.map(|key| (key, Support::Yes)).collect(), ..Capabilities::default() }
    }

    /// Why a feature cannot be used; `None` if it can.
    #[must_use]
    pub fn feature_obstacle(&self, name: &str) -> Option<String> {
        match self.features.get(name) {
            Some(support) => support.obstacle(),
            None => Some(format!("{name} was not checked on this machine")),
        }
    }

    /// Why `knob` cannot be used in a hierarchy of `version`; `None` if it can.
    #[must_use]
    pub fn obstacle(&self, knob: KnobId, version: Version) -> Option<String> {
        match self.knobs.get(&(knob, version)) {
            Some(support) => support.obstacle(),
            None if knob.row().file(version).is_none() => Some(format!("cgroup {version} has no {knob}")),
            None if knob.row().vendor.is_some() => {
                let kernel = knob.row().vendor.map_or("a vendor", |vendor| vendor.kernel);
                Some(format!("this is not a kernel of {kernel}"))
            }
            None => Some(format!("{knob} was not tested on this machine")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::new(text)
    }

    #[test]
    fn paths_are_normal() {
        assert_eq!(path("a//b/").as_str(), "/a/b");
        assert_eq!(path("/").depth(), 0);
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(CgroupPath::root()));
        assert_eq!(CgroupPath::root().parent(), None);
        assert_eq!(path("/a/b").ancestors(), [CgroupPath::root(), path("/a")]);
        assert!(path("/a").contains(&path("/a/b")) && !path("/a").contains(&path("/ab")));
    }

    #[test]
    fn groups_below_a_place() {
        let mut actual = ActualState::default();
        for text in ["/", "/a", "/a-b", "/a/b", "/a/b/c", "/ab", "/b"] {
            actual.cgroups.insert(CgroupRef { hierarchy: 0, path: path(text) }, Cgroup::default());
            actual.cgroups.insert(CgroupRef { hierarchy: 1, path: path(text) }, Cgroup::default());
        }
        let below = |text: &str| -> Vec<String> {
            let place = CgroupRef { hierarchy: 0, path: path(text) };
            actual.below(&place).map(|(place, _)| place.path.to_string()).collect()
        };
        assert_eq!(below("/a"), ["/a/b", "/a/b/c"]);
        assert_eq!(below("/").len(), 6);
        assert!(below("/b").is_empty());
    }

    /// The scheduler compares the children of the lowest common ancestor of two groups.
    // promise 5
    #[test]
    fn entities_that_are_compared() {
        let against = |a: &str, b: &str| path(a).entity_against(&path(b)).map(|entity| entity.to_string());
        assert_eq!(against("/docker/x", "/system.slice/y"), Some("/docker".to_owned()));
        assert_eq!(against("/docker/x", "/docker/y"), Some("/docker/x".to_owned()));
        assert_eq!(against("/a", "/b/c/d"), Some("/a".to_owned()));
        assert_eq!(against("/a", "/a/b"), None);
        let all = ["/", "/a", "/a-b", "/ab", "/a/b", "/a-b/c", "/a/bc", "/a/b/c", "/a/b/d", "/b", "/b/a/b"]
            .map(path);
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
            let common = one.parts().zip(other.parts()).take_while(|(a, b)| a == b).count();
            let apart = !one.contains(other) && !other.contains(one);
            assert_eq!(one.depth_against(other), apart.then_some(common + 1), "{one} {other}");
        }
    }
}
