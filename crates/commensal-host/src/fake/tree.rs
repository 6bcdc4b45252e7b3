//! The in-memory hierarchies: groups, which files each has, and what a read answers.
//!
//! Which files a group has follows from the knob table plus the short list of files below that are no
//! knobs (statistics, process lists). What a write does is in `rules.rs`.

use super::faults::{Faults, Mutation};
use super::procs::Proc;
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Form, Scope, Status, TABLE, Version};
use commensal_core::topology::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Weak;

pub(super) type Answer<T> = Result<T, Errno>;

/// The kernel's own order of controllers in `cgroup.controllers`.
const V2_ORDER: [Controller; 5] =
    [Controller::Cpuset, Controller::Cpu, Controller::Io, Controller::Memory, Controller::Pids];

/// Files of the table that a usual kernel is built without (6.18: CFQ is gone; uclamp, io.latency and
/// ioprio are configuration).
const NOT_BUILT: [&str; 9] = [
    "cpu.uclamp.min",
    "cpu.uclamp.max",
    "blkio.weight",
    "blkio.weight_device",
    "blkio.leaf_weight",
    "blkio.leaf_weight_device",
    "io.latency",
    "blkio.prio.class",
    "io.prio.class",
];

/// A file that is no knob: its name, what it reads (`None`: computed), and where it exists.
type Plain = (&'static str, Option<&'static str>, Scope);

const NO_PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                           full avg10=0.00 avg60=0.00 avg300=0.00 total=0";

const V1_CORE: &[Plain] = &[
    ("cgroup.clone_children", Some("0"), Scope::All),
    ("cgroup.procs", None, Scope::All),
    ("cgroup.sane_behavior", Some("0"), Scope::RootOnly),
    ("notify_on_release", Some("0"), Scope::All),
    ("release_agent", Some(""), Scope::RootOnly),
    ("tasks", None, Scope::All),
];
const V2_CORE: &[Plain] = &[
    ("cgroup.controllers", None, Scope::All),
    ("cgroup.events", None, Scope::NonRoot),
    ("cgroup.max.depth", Some("max"), Scope::All),
    ("cgroup.max.descendants", Some("max"), Scope::All),
    ("cgroup.pressure", Some("1"), Scope::All),
    ("cgroup.procs", None, Scope::All),
    ("cgroup.stat", Some("nr_descendants 0\nnr_dying_descendants 0"), Scope::All),
    ("cgroup.subtree_control", None, Scope::All),
    ("cgroup.threads", None, Scope::All),
    ("cgroup.type", Some("domain"), Scope::NonRoot),
    ("cpu.pressure", Some(NO_PRESSURE), Scope::All),
    ("cpu.stat", Some("usage_usec 0\nuser_usec 0\nsystem_usec 0\nnice_usec 0"), Scope::All),
    ("io.pressure", Some(NO_PRESSURE), Scope::All),
    ("memory.pressure", Some(NO_PRESSURE), Scope::All),
];

fn plain(version: Version, controller: Controller) -> &'static [Plain] {
    use Controller::{Core, Cpu, Cpuacct, Cpuset, Freezer, Io, Memory, Pids};
    match (version, controller) {
        (Version::V1, Cpu) => &[(
            "cpu.stat",
            Some("nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0"),
            Scope::All,
        )],
        (Version::V1, Cpuacct) => &[
            ("cpuacct.usage", Some("0"), Scope::All),
            ("cpuacct.stat", Some("user 0\nsystem 0"), Scope::All),
            ("cpuacct.usage_percpu", Some("0"), Scope::All),
        ],
        (Version::V1, Cpuset) => {
            &[("cpuset.effective_cpus", None, Scope::All), ("cpuset.effective_mems", None, Scope::All)]
        }
        (Version::V1, Memory) => &[
            ("memory.usage_in_bytes", None, Scope::All),
            ("memory.max_usage_in_bytes", Some("0"), Scope::All),
            ("memory.failcnt", Some("0"), Scope::All),
            ("memory.memsw.usage_in_bytes", None, Scope::All),
            ("memory.stat", Some("cache 0\nrss 0\nswap 0\ninactive_file 0\nactive_file 0"), Scope::All),
        ],
        (Version::V1, Io) => &[
            ("blkio.throttle.io_service_bytes", Some("Total 0"), Scope::All),
            ("blkio.throttle.io_serviced", Some("Total 0"), Scope::All),
        ],
        (Version::V2, Cpuset) => &[
            ("cpuset.cpus.effective", None, Scope::All),
            ("cpuset.mems.effective", None, Scope::All),
            ("cpuset.cpus.isolated", Some(""), Scope::RootOnly),
        ],
        (Version::V2, Memory) => &[
            ("memory.current", None, Scope::NonRoot),
            ("memory.peak", Some("0"), Scope::NonRoot),
            (
                "memory.events",
                Some("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0"),
                Scope::NonRoot,
            ),
            ("memory.stat", Some("anon 0\nfile 0\ninactive_file 0\nactive_file 0"), Scope::All),
            ("memory.swap.current", Some("0"), Scope::NonRoot),
        ],
        (Version::V2, Io) => &[("io.stat", Some(""), Scope::All)],
        (_, Pids) => {
            &[("pids.current", None, Scope::NonRoot), ("pids.events", Some("max 0"), Scope::NonRoot)]
        }
        (Version::V1, Freezer) => &[
            ("freezer.self_freezing", Some("0"), Scope::NonRoot),
            ("freezer.parent_freezing", Some("0"), Scope::NonRoot),
        ],
        (Version::V1, Core) => V1_CORE,
        (Version::V2, Core) => V2_CORE,
        (Version::V2, Cpu | Cpuacct | Freezer) => &[],
    }
}

/// One control group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) tree: usize,
    pub(super) name: String,
    pub(super) parent: Option<u64>,
    pub(super) children: BTreeMap<String, u64>,
    /// Text by file name; `None` is computed when read.
    pub(super) files: BTreeMap<String, Option<String>>,
    /// v2: controllers given to the children.
    pub(super) enabled: BTreeSet<Controller>,
    /// Bytes that the group itself holds, without its children.
    pub(super) usage: u64,
}

/// One mounted hierarchy.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) mount: PathBuf,
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    pub(super) root: u64,
}

/// Everything that outlives the host's process.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) trees: Vec<Tree>,
    pub(super) groups: BTreeMap<u64, Group>,
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) folders: BTreeSet<PathBuf>,
    pub(super) locks: BTreeMap<PathBuf, Weak<()>>,
    pub(super) processes: BTreeMap<u32, Proc>,
    pub(super) cpus: CpuSet,
    pub(super) nodes: CpuSet,
    pub(super) devices: BTreeSet<Device>,
    pub(super) missing: BTreeSet<PathBuf>,
    pub(super) outputs: BTreeMap<PathBuf, String>,
    pub(super) vendor: Option<&'static str>,
    pub(super) faults: Faults,
    pub(super) mutations: Vec<Mutation>,
    /// Which life of the agent this is; a host of an earlier one is dead.
    pub(super) life: u32,
    pub(super) next_inode: u64,
    pub(super) next_pid: u32,
    pub(super) ticks: u64,
}

impl Machine {
    pub(super) fn new(cpus: CpuSet) -> Machine {
        Machine {
            trees: Vec::new(),
            groups: BTreeMap::new(),
            files: BTreeMap::new(),
            folders: BTreeSet::new(),
            locks: BTreeMap::new(),
            processes: BTreeMap::new(),
            cpus,
            nodes: [0].into_iter().collect(),
            devices: BTreeSet::new(),
            missing: BTreeSet::new(),
            outputs: BTreeMap::new(),
            vendor: None,
            faults: Faults::default(),
            mutations: Vec::new(),
            life: 0,
            next_inode: 1,
            next_pid: 50_000,
            ticks: 1_000,
        }
    }

    /// Mounts a hierarchy with an empty root group, or with a fully populated one.
    pub(super) fn mount(&mut self, mount: &str, version: Version, controllers: &[Controller]) -> usize {
        let tree = self.trees.len();
        let root = self.new_inode();
        self.trees.push(Tree { mount: mount.into(), version, controllers: controllers.to_vec(), root });
        self.groups.insert(root, Group { tree, ..Group::default() });
        tree
    }

    pub(super) fn new_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }

    pub(super) fn version(&self, group: &Group) -> Version {
        self.trees[group.tree].version
    }

    pub(super) fn group(&self, inode: u64) -> Answer<&Group> {
        self.groups.get(&inode).ok_or(Errno::ENODEV)
    }

    pub(super) fn group_mut(&mut self, inode: u64) -> Answer<&mut Group> {
        self.groups.get_mut(&inode).ok_or(Errno::ENODEV)
    }

    pub(super) fn parent(&self, group: &Group) -> Option<&Group> {
        group.parent.and_then(|inode| self.groups.get(&inode))
    }

    /// Stored text of a file, empty if there is none.
    pub(super) fn text<'a>(&'a self, group: &'a Group, file: &str) -> &'a str {
        group.files.get(file).and_then(Option::as_deref).unwrap_or_default()
    }

    pub(super) fn store(&mut self, inode: u64, file: &str, text: String) {
        if let Some(group) = self.groups.get_mut(&inode) {
            group.files.insert(file.to_owned(), Some(text));
        }
    }

    /// Controllers whose files the group has.
    pub(super) fn controllers(&self, group: &Group) -> Vec<Controller> {
        let tree = &self.trees[group.tree];
        match (tree.version, self.parent(group)) {
            (Version::V2, Some(parent)) => {
                V2_ORDER.into_iter().filter(|controller| parent.enabled.contains(controller)).collect()
            }
            (Version::V2, None) => {
                V2_ORDER.into_iter().filter(|controller| tree.controllers.contains(controller)).collect()
            }
            (Version::V1, _) => tree.controllers.clone(),
        }
    }

    /// Adds the files of these controllers, with their defaults, to a group.
    pub(super) fn populate(&mut self, inode: u64, controllers: &[Controller]) {
        let Some(group) = self.groups.get(&inode) else { return };
        let (version, root) = (self.version(group), group.parent.is_none());
        let mut files = BTreeMap::new();
        for controller in controllers {
            for (name, text, scope) in plain(version, *controller) {
                if exists(*scope, root) {
                    files.insert((*name).to_owned(), text.map(str::to_owned));
                }
            }
        }
        for knob in TABLE.iter().filter(|knob| controllers.contains(&knob.controller)) {
            let vendor = knob.vendor.as_ref().filter(|vendor| self.vendor == Some(vendor.kernel));
            for file in knob.file(version).into_iter().chain(vendor.map(|vendor| &vendor.file)) {
                if exists(scope_in(version, knob.scope, knob.controller, file.name), root)
                    && !NOT_BUILT.contains(&file.name)
                {
                    files.insert(file.name.to_owned(), Some(file.default.to_owned()));
                }
            }
        }
        // Defaults that the table cannot say in one word.
        for (name, text) in [
            ("blkio.bfq.weight", "100"),
            ("blkio.bfq.weight_device", "default 100"),
            ("io.bfq.weight", "default 100"),
            ("io.weight", "default 100"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0"),
        ] {
            files.entry(name.to_owned()).and_modify(|value| *value = Some(text.to_owned()));
        }
        if root {
            self.root_defaults(&mut files);
        }
        if let Some(group) = self.groups.get_mut(&inode) {
            for (name, text) in files {
                // cpu.stat is there without the controller and outlives it.
                group.files.entry(name).or_insert(text);
            }
        }
    }

    fn root_defaults(&self, files: &mut BTreeMap<String, Option<String>>) {
        let (cpus, nodes) = (self.cpus.to_string(), self.nodes.to_string());
        for (name, text) in [
            ("cpuset.cpus", cpus.as_str()),
            ("cpuset.mems", &nodes),
            ("cpuset.cpu_exclusive", "1"),
            ("cpuset.mem_exclusive", "1"),
            ("cpu.rt_runtime_us", "950000"),
        ] {
            files.entry(name.to_owned()).and_modify(|value| *value = Some(text.to_owned()));
        }
    }

    pub(super) fn mkdir(&mut self, parent: u64, name: &str) -> Answer<u64> {
        let above = self.groups.get(&parent).ok_or(Errno::ENOENT)?;
        if name.contains('\n') {
            return Err(Errno::EINVAL);
        }
        if above.children.contains_key(name) || above.files.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let group =
            Group { tree: above.tree, name: name.to_owned(), parent: Some(parent), ..Group::default() };
        let inode = self.new_inode();
        self.groups.insert(inode, group);
        self.group_mut(parent)?.children.insert(name.to_owned(), inode);
        let mut controllers = self.controllers(self.group(inode)?);
        controllers.push(Controller::Core);
        self.populate(inode, &controllers);
        Ok(inode)
    }

    pub(super) fn rmdir(&mut self, parent: u64, name: &str, expect: u64) -> Answer<()> {
        let above = self.groups.get(&parent).ok_or(Errno::ENOENT)?;
        if above.files.contains_key(name) {
            return Err(if expect == 0 { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        let inode = *above.children.get(name).filter(|inode| **inode == expect).ok_or(Errno::ENOENT)?;
        if !self.group(inode)?.children.is_empty() || !self.members(inode).is_empty() {
            return Err(Errno::EBUSY);
        }
        self.remove(inode);
        Ok(())
    }

    fn remove(&mut self, inode: u64) {
        if let Some(gone) = self.groups.remove(&inode)
            && let Some(above) = gone.parent.and_then(|parent| self.groups.get_mut(&parent))
        {
            above.children.remove(&gone.name);
        }
    }

    /// Somebody else removes a group and all below it, after moving the processes to its parent.
    pub(super) fn vanish(&mut self, inode: u64) {
        let Some(parent) = self.groups.get(&inode).and_then(|group| group.parent) else { return };
        let below = self.subtree(inode);
        for process in self.processes.values_mut() {
            for at in process.groups.iter_mut().filter(|at| below.contains(at)) {
                *at = parent;
            }
        }
        for gone in below.into_iter().rev() {
            self.remove(gone);
        }
    }

    /// The group and everything below it, parents first.
    pub(super) fn subtree(&self, inode: u64) -> Vec<u64> {
        let mut found = vec![inode];
        let mut next = 0;
        while let Some(at) = found.get(next).copied() {
            found.extend(self.groups.get(&at).into_iter().flat_map(|group| group.children.values().copied()));
            next += 1;
        }
        found
    }

    /// Bytes used by the group and everything below it.
    pub(super) fn usage(&self, inode: u64) -> u64 {
        self.subtree(inode).iter().filter_map(|at| self.groups.get(at)).map(|group| group.usage).sum()
    }

    /// Path below the mount, `/` for the root.
    pub(super) fn path(&self, inode: u64) -> String {
        let mut names = Vec::new();
        let mut at = self.groups.get(&inode);
        while let Some(group) = at {
            names.push(group.name.as_str());
            at = self.parent(group);
        }
        names.reverse();
        if names.len() < 2 { "/".to_owned() } else { names.join("/") }
    }

    /// Absolute path of a group.
    pub(super) fn full_path(&self, inode: u64) -> PathBuf {
        let mount = self.groups.get(&inode).map(|group| self.trees[group.tree].mount.clone());
        crate::below(&mount.unwrap_or_default(), &self.path(inode))
    }

    /// The group at an absolute path, with what of the path is left after the last group.
    pub(super) fn locate(&self, path: &Path) -> Option<(u64, PathBuf)> {
        let tree = self
            .trees
            .iter()
            .filter(|tree| path.starts_with(&tree.mount))
            .max_by_key(|tree| tree.mount.components().count())?;
        let mut at = tree.root;
        let mut left = path.strip_prefix(&tree.mount).ok()?.components();
        while let Some(name) = left.clone().next().and_then(|part| part.as_os_str().to_str()) {
            let Some(child) = self.groups.get(&at).and_then(|group| group.children.get(name)) else { break };
            at = *child;
            left.next();
        }
        Some((at, left.as_path().to_owned()))
    }

    pub(super) fn group_at(&self, path: &Path) -> Answer<u64> {
        match self.locate(path) {
            Some((inode, left)) if left.as_os_str().is_empty() => Ok(inode),
            _ => Err(Errno::ENOENT),
        }
    }

    /// What a control file reads, with the kernel's trailing line break.
    pub(super) fn read(&self, inode: u64, file: &str) -> Answer<String> {
        let group = self.group(inode)?;
        let stored = group.files.get(file).ok_or(Errno::ENOENT)?;
        if triggers(self.version(group), file) {
            return Err(Errno::EINVAL);
        }
        let text = match stored {
            Some(text) => text.clone(),
            None => self.computed(inode, group, file),
        };
        let keeps_its_line = file.starts_with("cpuset.") || file.starts_with("cgroup.sub");
        Ok(if text.is_empty() && !keeps_its_line { text } else { text + "\n" })
    }

    fn computed(&self, inode: u64, group: &Group, file: &str) -> String {
        let lines = |pids: Vec<u32>| {
            pids.iter().map(u32::to_string).collect::<Vec<_>>().join("\n")
        };
        let words = |list: Vec<Controller>| {
            list.iter().map(|controller| controller.v2_name()).collect::<Vec<_>>().join(" ")
        };
        match file {
            "cgroup.procs" | "cgroup.threads" | "tasks" => lines(self.members(inode)),
            "cgroup.controllers" => words(self.controllers(group)),
            "cgroup.subtree_control" => {
                words(V2_ORDER.into_iter().filter(|controller| group.enabled.contains(controller)).collect())
            }
            "cgroup.events" => {
                let populated = self.subtree(inode).iter().any(|at| !self.members(*at).is_empty());
                let frozen = self.text(group, "cgroup.freeze") == "1";
                format!("populated {}\nfrozen {}", u8::from(populated), u8::from(frozen))
            }
            "cpuset.cpus.effective" | "cpuset.effective_cpus" => {
                self.effective(group, "cpuset.cpus", &self.cpus).to_string()
            }
            "cpuset.mems.effective" | "cpuset.effective_mems" => {
                self.effective(group, "cpuset.mems", &self.nodes).to_string()
            }
            "pids.current" => {
                self.subtree(inode).iter().map(|at| self.members(*at).len()).sum::<usize>().to_string()
            }
            _ => self.usage(inode).to_string(),
        }
    }

    /// Every file that can be written and keeps a value, by absolute path.
    pub(super) fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for (inode, group) in &self.groups {
            let version = self.version(group);
            let folder = self.full_path(*inode);
            let knob = |name: &str| {
                name == "cgroup.subtree_control"
                    || TABLE.iter().any(|row| {
                        row.file(version).is_some_and(|file| file.name == name && file.form != Form::Trigger)
                            || row.vendor.is_some_and(|vendor| vendor.file.name == name)
                    })
            };
            for name in group.files.keys().filter(|name| knob(name)) {
                let text = self.read(*inode, name).unwrap_or_default();
                all.insert(folder.join(name).display().to_string(), text.trim_end().to_owned());
            }
        }
        all
    }
}

/// Whether a knob's file exists in the root: cgroup v1 has almost all of them there (measured on 6.18;
/// writing them is another matter), v2 has none that is non-root.
fn scope_in(version: Version, scope: Scope, controller: Controller, file: &str) -> Scope {
    let root_has_none = matches!(controller, Controller::Pids | Controller::Freezer)
        || file.starts_with("blkio.bfq");
    match (version, scope) {
        (Version::V1, Scope::NonRoot) if !root_has_none => Scope::All,
        (Version::V2, Scope::All) if controller != Controller::Core => Scope::NonRoot,
        _ => scope,
    }
}

fn exists(scope: Scope, root: bool) -> bool {
    match scope {
        Scope::All => true,
        Scope::NonRoot => !root,
        Scope::RootOnly => root,
    }
}

/// Whether the file only acts; reading it is refused.
pub(super) fn triggers(version: Version, file: &str) -> bool {
    commensal_core::knob::rows_of_file(version, file)
        .any(|knob| knob.file(version).is_some_and(|row| row.form == Form::Trigger))
}

/// Files by controller that commensal writes; the conformance script has to mention each.
#[must_use]
pub fn driven_files(version: Version) -> BTreeSet<&'static str> {
    let driven = TABLE.iter().filter(|knob| knob.status == Status::Driven);
    driven.filter_map(|knob| knob.file(version)).map(|file| file.name).collect()
}
