//! What the machine has now: hierarchies, cgroups with their knob values, and what the machine and its kernel can do.
//!
//! Sensors fill these in; nothing here reads a file. A value that could not be read is absent.

use crate::errno::Errno;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::member::{ContainerFact, MovedFrom, ProcessFact, ProcessId};
use crate::scheduler::Scheduler;
use crate::spelling;
use crate::text::visible;
use crate::topology::Device;
use crate::vendor::{QosLevels, Switch};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The directory of cgroup `path` in the hierarchy mounted at `mount`: `/a/b` under `/sys/fs/cgroup` is
/// `/sys/fs/cgroup/a/b`.
#[must_use]
pub fn below(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// Values of a cgroup's knobs, in the order of their keys. There are thousands of these with a few values each, for which a tree's
/// nodes would take three times the memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnobValues(Vec<(KnobKey, Value)>);

impl KnobValues {
    fn find(&self, key: &KnobKey) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }

    /// The value of a knob.
    #[must_use]
    pub fn get(&self, key: &KnobKey) -> Option<&Value> {
        self.find(key).ok().map(|index| &self.0[index].1)
    }

    /// Sets the value of a knob; returns the one before.
    pub fn insert(&mut self, key: KnobKey, value: Value) -> Option<Value> {
        match self.find(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index].1, value)),
            Err(index) => {
                self.0.reserve_exact(1);
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// All of them.
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

/// A cgroup's path below the root of its hierarchy: `/`, `/a`, `/a/b`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Normalises: one leading slash, none trailing or doubled.
    #[must_use]
    pub fn new(path: &str) -> CgroupPath {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        CgroupPath(format!("/{}", parts.join("/")))
    }

    /// The root.
    #[must_use]
    pub fn root() -> CgroupPath {
        CgroupPath::new("/")
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Path components from the top.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// 0 for the root.
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

    /// A child of this group.
    #[must_use]
    pub fn child(&self, name: &str) -> CgroupPath {
        CgroupPath::new(&format!("{}/{name}", self.0))
    }

    /// All groups above this one, root first.
    #[must_use]
    pub fn ancestors(&self) -> Vec<CgroupPath> {
        let mut above: Vec<CgroupPath> = std::iter::successors(self.parent(), CgroupPath::parent).collect();
        above.reverse();
        above
    }

    /// Whether `other` is this group or below it.
    #[must_use]
    pub fn contains(&self, other: &CgroupPath) -> bool {
        other.0 == self.0
            || self.0 == "/"
            || other.0.strip_prefix(&self.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The systemd unit that the group is or lies in: the longest prefix of the path whose every component is named
    /// like a unit that has a cgroup. `None` for the root, and when the first component is not a unit (`/docker/x`).
    #[must_use]
    pub fn unit(&self) -> Option<CgroupPath> {
        const KINDS: [&str; 6] = [".slice", ".service", ".scope", ".mount", ".socket", ".swap"];
        let is_unit = |part: &&str| KINDS.iter().any(|kind| part.ends_with(kind));
        let parts: Vec<&str> = self.parts().take_while(is_unit).collect();
        (!parts.is_empty()).then(|| CgroupPath::new(&parts.join("/")))
    }

    /// The ancestor of `self` (or `self`) that the kernel's scheduler compares with the matching ancestor of `other`:
    /// the child of their lowest common ancestor. `None` when one group contains the other.
    #[must_use]
    pub fn entity_against(&self, other: &CgroupPath) -> Option<CgroupPath> {
        let parts: Vec<&str> = self.parts().take(self.depth_against(other)?).collect();
        Some(CgroupPath::new(&parts.join("/")))
    }

    /// Number of path components of [`CgroupPath::entity_against`].
    #[must_use]
    pub fn depth_against(&self, other: &CgroupPath) -> Option<usize> {
        if self.contains(other) || other.contains(self) {
            return None;
        }
        Some(self.parts().zip(other.parts()).take_while(|(a, b)| a == b).count() + 1)
    }
}

impl Default for CgroupPath {
    fn default() -> CgroupPath {
        CgroupPath::root()
    }
}

/// For people, with [`visible`]; [`CgroupPath::as_str`] is the path itself.
impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(&self.0))
    }
}

/// One mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Interface version.
    pub version: Version,
    /// Mount point.
    pub mount: String,
    /// Controllers bound to the hierarchy; for v2, those that the root offers.
    pub controllers: BTreeSet<Controller>,
}

impl Hierarchy {
    /// The hierarchy whose groups divide the CPU among threads: the one with the cpu controller, or the unified one
    /// where none has it.
    #[must_use]
    pub fn of_threads(all: &[Hierarchy]) -> Option<&Hierarchy> {
        let with_cpu = |one: &&Hierarchy| one.controllers.contains(&Controller::Cpu);
        all.iter().find(with_cpu).or_else(|| all.iter().find(|one| one.version == Version::V2))
    }

    /// A short name: the v1 controllers, or `v2`.
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

/// A cgroup in one hierarchy: index into [`ActualState::hierarchies`], and path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupRef {
    /// Index of the hierarchy.
    pub hierarchy: usize,
    /// Path in it.
    pub path: CgroupPath,
}

/// A knob of one cgroup, and the device if the knob is per device.
pub type KnobKey = (KnobId, Option<Device>);

/// One cgroup as read from the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Inode of the cgroup's directory; together with the hierarchy it identifies the cgroup.
    pub inode: u64,
    /// Knob values that could be read, as the kernel has them.
    pub values: KnobValues,
    /// v2: controllers that the group enables for its children.
    pub subtree: BTreeSet<Controller>,
    /// Whether the group itself holds processes (those of its children do not count).
    pub populated: bool,
    /// Whether the group's manager has delegated the subtree (systemd's `Delegate=yes`).
    pub delegated: bool,
    /// Core-scheduling cookies of the threads in and below the group; `None` when they were not read.
    pub cookies: Option<Cookies>,
}

/// Who else manages the tree of the unified hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Manager {
    /// Nobody.
    #[default]
    Nobody,
    /// systemd: it is the only writer of the groups of its units and of the root, except below units with
    /// `Delegate=yes` (systemd's CGROUP_DELEGATION.md).
    Systemd,
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

/// What commensal did to the machine earlier and has not undone, from the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// Groups that commensal created.
    pub created: BTreeSet<CgroupRef>,
    /// Original values of knobs that commensal wrote in groups that it did not create.
    pub originals: BTreeMap<(CgroupRef, KnobId, Option<Device>), Value>,
    /// Original values of machine-wide switches that commensal changed.
    pub switches: BTreeMap<Switch, i64>,
    /// Groups not created by commensal whose threads it gave a core-scheduling cookie.
    pub cookies: BTreeSet<CgroupRef>,
    /// Processes that commensal moved into cgroups that it created.
    pub moved: BTreeMap<ProcessId, MovedFrom>,
}

/// The machine's cgroups now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActualState {
    /// Mounted hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// Cgroups by hierarchy and path.
    pub cgroups: BTreeMap<CgroupRef, Cgroup>,
    /// Files that are there and could not be read this time, with the errors: what they say is not known.
    pub unread: Vec<String>,
    /// Who else manages the unified hierarchy.
    pub manager: Manager,
    /// The group below which commensal creates its groups: the root, or a group that was delegated to it.
    pub base: CgroupPath,
    /// Why commensal cannot create groups in the unified hierarchy although it can write to existing ones.
    pub own_obstacle: Option<String>,
    /// Hierarchies in which no group can be made at all.
    pub closed: BTreeSet<usize>,
    /// Cgroups that this process is in.
    pub here: BTreeSet<CgroupRef>,
    /// Whether this user can write only below [`ActualState::base`].
    pub confined: bool,
    /// Machine-wide switches of this kernel.
    pub switches: BTreeMap<Switch, i64>,
    /// Running containers.
    pub containers: Vec<ContainerFact>,
    /// Why the container engine could not be queried, if some match needs it.
    pub engine_obstacle: Option<String>,
    /// Processes that some match selects, their children, and those that were moved; without commensal's processes and
    /// kernel threads.
    pub processes: Vec<ProcessFact>,
    /// The sched_ext scheduler; `None` when its state was not read.
    pub scheduler: Option<Scheduler>,
    /// What commensal created or changed earlier.
    pub ours: Ours,
}

impl ActualState {
    /// The hierarchy that has `controller`.
    #[must_use]
    pub fn hierarchy_of(&self, controller: Controller) -> Option<usize> {
        self.hierarchies.iter().position(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    /// Every path that exists in some hierarchy.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<&CgroupPath> {
        self.cgroups.keys().map(|place| &place.path).collect()
    }

    /// The groups below `place`, in its hierarchy, with their state.
    pub fn below(&self, place: &CgroupRef) -> impl Iterator<Item = (&CgroupRef, &Cgroup)> {
        // With the slash, siblings such as `/a-b` of `/a` lie outside the range.
        let prefix = format!("{}/", place.path.0.trim_end_matches('/'));
        let first = CgroupRef { hierarchy: place.hierarchy, path: CgroupPath(prefix.clone()) };
        let hierarchy = place.hierarchy;
        let inside =
            move |other: &CgroupRef| other.hierarchy == hierarchy && other.path.0.starts_with(&prefix);
        self.cgroups
            .range(first..)
            .take_while(move |(other, _)| inside(other))
            .filter(|(other, _)| other.path.0 != "/")
    }

    /// The systemd unit that manages this group and has not delegated it (the root for the root); `None` where
    /// commensal may write. Only the unified hierarchy has a single-writer rule. Below a delegated unit another program
    /// manages the groups, such as a container's systemd; only a user's systemd follows the same rule there.
    #[must_use]
    pub fn managed_by(&self, place: &CgroupRef) -> Option<CgroupPath> {
        let version = self.hierarchies.get(place.hierarchy)?.version;
        if self.manager != Manager::Systemd || version != Version::V2 {
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
        let unified = self.hierarchies.get(hierarchy).is_some_and(|one| one.version == Version::V2);
        let managed = unified && self.own_obstacle.is_some();
        !managed && !self.closed.contains(&hierarchy)
    }

    /// The group's directory.
    #[must_use]
    pub fn directory(&self, place: &CgroupRef) -> String {
        let mount = self.hierarchies.get(place.hierarchy).map(|one| one.mount.as_str()).unwrap_or_default();
        spelling::of_path(&below(Path::new(mount), place.path.as_str()))
    }

    /// Whether the scheduler's guard has frozen the group.
    #[must_use]
    pub fn frozen_by_scheduler(&self, place: &CgroupRef) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| scheduler.has_frozen(&self.directory(place)))
    }

    /// `cpu:/etl`, `v2:/etl`, for people.
    #[must_use]
    pub fn show(&self, place: &CgroupRef) -> String {
        visible(&self.name(place)).into_owned()
    }

    /// The same for programs.
    #[must_use]
    pub fn name(&self, place: &CgroupRef) -> String {
        let label = self.hierarchies.get(place.hierarchy).map(Hierarchy::label).unwrap_or_default();
        format!("{label}:{}", place.path.as_str())
    }
}

/// Whether a feature works here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Tested: a value was written and read back.
    Yes,
    /// Should work, but was not tested: a test would have changed something that commensal does not own.
    Untried {
        /// What a test would have had to change.
        because: String,
    },
    /// The kernel does not have it.
    No {
        /// Why, in words.
        because: String,
    },
    /// The kernel has it but refused the test.
    Refused {
        /// Error number of the refusal.
        errno: Errno,
        /// Why, in words.
        because: String,
    },
}

impl Support {
    /// The reason why it does not work; `None` when it does.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Support::Yes | Support::Untried { .. } => None,
            Support::No { because } => Some(because.clone()),
            Support::Refused { errno, because } => Some(format!("{because} ({errno})")),
        }
    }
}

/// What this machine and this user can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Why cgroups cannot be written at all; `None` when they can.
    pub cgroup_obstacle: Option<String>,
    /// Whether each knob works, tested in a scratch group.
    pub knobs: BTreeMap<(KnobId, Version), Support>,
    /// Other features that were checked: PSI, run delay, sched_ext, core scheduling.
    pub features: BTreeMap<&'static str, Support>,
    /// What `cpu.qos_level` can do; `None` where it does not work.
    pub qos: Option<QosLevels>,
    /// Hierarchies in which no group can be created, although others allow it.
    pub closed: BTreeSet<usize>,
}

/// Name of the feature "core scheduling" in [`Capabilities::features`].
pub const CORE_SCHED: &str = "core scheduling";
/// Name of the feature "openEuler's SMT expulsion" in [`Capabilities::features`].
pub const QOS_SMT_EXPEL: &str = "qos_level SMT expulsion";
/// Name of the feature "originals on the cgroups" in [`Capabilities::features`]: whether cgroups keep attributes of root's.
pub const MARKS: &str = "originals on the cgroups";
/// Name of the feature "SMT" in [`Capabilities::features`].
pub const SMT: &str = "smt";
/// Name of the feature "sched_ext" in [`Capabilities::features`]: whether the kernel has it.
pub const SCHED_EXT: &str = "sched_ext";
/// Name of the feature "a scheduler of ours is loaded" in [`Capabilities::features`].
pub const SCHEDULER: &str = "sched_ext scheduler";

impl Capabilities {
    /// Every knob of the table works except vendors' knobs: for tests and golden plans.
    #[must_use]
    pub fn everything() -> Capabilities {
        let rows = crate::knob::TABLE.iter().filter(|knob| knob.vendor.is_none());
        let keys = rows.flat_map(|knob| [(knob.id, Version::V1), (knob.id, Version::V2)]);
        let supported = keys.filter(|(knob, version)| knob.row().file(*version).is_some());
        Capabilities { knobs: supported.map(|key| (key, Support::Yes)).collect(), ..Capabilities::default() }
    }

    /// Why a feature cannot be used; `None` when it can.
    #[must_use]
    pub fn feature_obstacle(&self, name: &str) -> Option<String> {
        match self.features.get(name) {
            Some(support) => support.obstacle(),
            None => Some(format!("{name} was not looked for here")),
        }
    }

    /// Why `knob` cannot be used in a hierarchy of `version`; `None` when it can.
    #[must_use]
    pub fn obstacle(&self, knob: KnobId, version: Version) -> Option<String> {
        match self.knobs.get(&(knob, version)) {
            Some(support) => support.obstacle(),
            None if knob.row().file(version).is_none() => Some(format!("cgroup {version} has no {knob}")),
            None if knob.row().vendor.is_some() => {
                let kernel = knob.row().vendor.map_or("a vendor", |vendor| vendor.kernel);
                Some(format!("not a kernel of {kernel}"))
            }
            None => Some(format!("{knob} was not tried here")),
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

    /// The scheduler compares children of the lowest common ancestor.
    // promise 5
    #[test]
    fn entities_that_are_compared() {
        let against = |a: &str, b: &str| path(a).entity_against(&path(b)).map(|entity| entity.to_string());
        assert_eq!(against("/docker/x", "/system.slice/y"), Some("/docker".to_owned()));
        assert_eq!(against("/docker/x", "/docker/y"), Some("/docker/x".to_owned()));
        assert_eq!(against("/a", "/b/c/d"), Some("/a".to_owned()));
        assert_eq!(against("/a", "/a/b"), None);
    }
}
