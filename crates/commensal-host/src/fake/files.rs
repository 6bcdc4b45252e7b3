//! The files that a group has: those of the knob table (the table of kernel settings), and a list of files that are not
//! knobs (statistics, process lists).

use super::machine::{Machine, VendorKernel};
use commensal_core::knob::{Controller, Form, KnobId, KnobStatus, Scope, TABLE, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Files of the knob table that a typical kernel lacks (6.18: CFQ was removed; uclamp, io.latency and ioprio are
/// optional).
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

/// A file that is not a knob: its name, its content (`None`: computed when read), and the groups that have it.
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
            ("cpuset.cpus.exclusive.effective", None, Scope::NonRoot),
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

impl Machine {
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
        // In v2, files that need no controller are added with the core files.
        let core = version == Version::V2 && controllers.contains(&Controller::Core);
        let wanted = |one: Controller| controllers.contains(&one) || (core && one.built_in(version));
        for knob in TABLE.iter().filter(|knob| wanted(knob.controller)) {
            let built = knob
                .vendor
                .is_none_or(|vendor| self.kernel.vendor.map(VendorKernel::name) == Some(vendor.kernel))
                || (knob.id == KnobId::CpuIdentity && self.kernel.vendor == Some(VendorKernel::Anolis66));
            let Some(file) = knob.file(version).filter(|_| built && self.has(knob.id)) else { continue };
            if exists(scope_in(version, knob.scope, knob.controller, file.name), root)
                && (!NOT_BUILT.contains(&file.name) || self.is_known(inode, file.name))
            {
                files.insert(file.name.to_owned(), Some(file.default.to_owned()));
            }
        }
        files.retain(|name, _| !self.kernel.lacking.contains(name));
        if let Some(known) = &self.trees[group.tree].known {
            // If no group of the fixture has the controller, the fixture does not show which files the controller has.
            let controller = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
            let told: BTreeSet<String> = known.iter().map(|name| controller(name)).collect();
            files.retain(|name, _| known.contains(name) || !told.contains(&controller(name)));
        }
        // Defaults that the table cannot express.
        for (name, text) in [
            ("blkio.bfq.weight_device", "default 100"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0"),
        ] {
            files.entry(name.to_owned()).and_modify(|value| *value = Some(text.to_owned()));
        }
        if root {
            self.root_defaults(&mut files);
        }
        if let Some(group) = self.groups.get_mut(&inode) {
            for (name, text) in files {
                // cpu.stat exists before the controller is enabled and after it is disabled.
                group.files.entry(name).or_insert(text);
            }
        }
    }

    /// Whether a group of this hierarchy has the file in the fixture.
    fn is_known(&self, inode: u64, file: &str) -> bool {
        let known = self.groups.get(&inode).and_then(|group| self.trees[group.tree].known.as_ref());
        known.is_some_and(|known| known.contains(file))
    }

    /// Whether the kernel has the knob. Vendors' kernels are based on 5.10, which has no `cpu.idle`; Alibaba backported
    /// it in 5.10.134-16.
    fn has(&self, knob: KnobId) -> bool {
        knob != KnobId::CpuIdle || !matches!(self.kernel.vendor, Some(VendorKernel::OpenEuler { .. }))
    }

    fn root_defaults(&self, files: &mut BTreeMap<String, Option<String>>) {
        let (cpus, nodes) = (self.kernel.cpus.to_string(), self.kernel.nodes.to_string());
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
}

/// Returns the groups in which a knob's file exists. In cgroup v1 the root has almost all files (measured on 6.18; some
/// of them cannot be written), in v2 the root has no controller's files.
fn scope_in(version: Version, scope: Scope, controller: Controller, file: &str) -> Scope {
    let root_has_none =
        matches!(controller, Controller::Pids | Controller::Freezer) || file.starts_with("blkio.bfq");
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

/// Whether the file is a trigger: writing it starts an action, and it cannot be read.
pub(super) fn triggers(version: Version, file: &str) -> bool {
    names(version).triggers.contains(file)
}

/// Whether the file keeps the written value.
pub(super) fn keeps(version: Version, file: &str) -> bool {
    file == "cgroup.subtree_control" || names(version).kept.contains(file)
}

/// Names of the knob table's files, by behaviour. Every read needs them, and a search of the table would be too slow.
struct Names {
    triggers: BTreeSet<&'static str>,
    kept: BTreeSet<&'static str>,
}

fn names(version: Version) -> &'static Names {
    static NAMES: LazyLock<[Names; 2]> = LazyLock::new(|| {
        [Version::V1, Version::V2].map(|version| {
            let files = || TABLE.iter().filter_map(|knob| knob.file(version));
            let of = |trigger: bool| {
                files().filter(|file| (file.form == Form::Trigger) == trigger).map(|file| file.name).collect()
            };
            Names { triggers: of(true), kept: of(false) }
        })
    });
    match version {
        Version::V1 => &NAMES[0],
        Version::V2 => &NAMES[1],
    }
}

/// Returns the files that commensal writes in this cgroup version; the conformance script must mention each of them.
#[must_use]
pub fn driven_files(version: Version) -> BTreeSet<&'static str> {
    let driven = TABLE.iter().filter(|knob| knob.status == KnobStatus::Driven);
    let files = driven.filter_map(|knob| knob.file(version)).map(|file| file.name);
    files.filter(|name| !NOT_BUILT.contains(name)).collect()
}
