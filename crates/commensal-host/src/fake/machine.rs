//! The state of the kernel in memory: groups, processes, files, locks, and the faults that tests have set. The other
//! files of `fake/` contain the rules by which the state changes.

use super::opening::Opening;
use super::parse::Answer;
use super::running::Running;
use crate::open::{judge, other_kind};
use crate::{Result, Scheduling, Signal, SpawnSpec};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::ownership::{FileRole, Ownership};
use commensal_core::topology::Device;
use commensal_core::vendor::{QosLevels, Switch};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

/// One control group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) tree: usize,
    pub(super) name: String,
    pub(super) parent: Option<u64>,
    pub(super) children: BTreeMap<String, u64>,
    /// Text by file name; `None` if it is computed when read.
    pub(super) files: BTreeMap<String, Option<String>>,
    /// v2: controllers enabled for the children.
    pub(super) enabled: BTreeSet<Controller>,
    /// Memory that the group itself uses, without its children, in bytes.
    pub(super) usage: u64,
    /// Whether the group belongs to user 1000.
    pub(super) given: bool,
    /// Extended attributes.
    pub(super) attributes: BTreeMap<String, String>,
}

/// One mounted hierarchy.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) mount: PathBuf,
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    pub(super) root: u64,
    /// Files that this kernel's groups have, if a fixture defines them.
    pub(super) known: Option<BTreeSet<String>>,
}

/// A service that responds to requests on a local socket, or lets them time out.
pub(super) struct Service(pub(super) Box<dyn Answering>);

/// Responds to a request; `None` makes the request time out. Each copy of a machine has a separate instance.
pub(super) trait Answering: FnMut(&str) -> Option<String> + Send {
    fn copied(&self) -> Box<dyn Answering>;
}

impl<F: FnMut(&str) -> Option<String> + Clone + Send + 'static> Answering for F {
    fn copied(&self) -> Box<dyn Answering> {
        Box::new(self.clone())
    }
}

impl Clone for Service {
    fn clone(&self) -> Service {
        Service((*self.0).copied())
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Service")
    }
}

/// Everything that survives a restart of the host's process.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) kernel: FakeKernel,
    /// Mounted hierarchies.
    pub(super) trees: Vec<Tree>,
    /// Cgroups by inode.
    pub(super) groups: BTreeMap<u64, Group>,
    /// All files that belong to no cgroup.
    pub(super) plain: PlainFiles,
    pub(super) programs: Programs,
    pub(super) sockets: Sockets,
    pub(super) processes: BTreeMap<u32, Proc>,
    /// Inode of the root of the cgroup namespace in each hierarchy, in the order of the trees; empty for the initial
    /// namespace.
    pub(super) namespace: Vec<u64>,
    pub(super) numbers: Numbers,
    pub(super) faults: Faults,
    pub(super) log: CallLog,
    /// Number of restarts of the agent; operations of a host that was created before a restart fail.
    pub(super) life: u32,
    /// Time since the boot.
    pub(super) uptime: Duration,
}

/// Record of the calls of all hosts.
#[derive(Debug, Clone, Default)]
pub(super) struct CallLog {
    pub(super) mutations: Vec<Mutation>,
    /// Number of calls on all hosts of this machine.
    pub(super) calls: Cell<u64>,
}

/// The hardware and its load, and what the kernel supports.
#[derive(Debug, Clone)]
pub(super) struct FakeKernel {
    /// The CPUs that are online.
    pub(super) cpus: CpuSet,
    /// The CPUs that are or can come online.
    pub(super) possible: CpuSet,
    /// Whether online work uses every CPU all the time.
    pub(super) online_is_busy: bool,
    pub(super) nodes: CpuSet,
    pub(super) devices: BTreeSet<Device>,
    /// Control files that the kernel does not have.
    pub(super) lacking: BTreeSet<String>,
    pub(super) vendor: Option<VendorKernel>,
    /// Core scheduling: `None` if the kernel lacks it, `Some(false)` without SMT.
    pub(super) core_sched: Option<bool>,
}

/// Files that belong to no cgroup.
#[derive(Debug, Clone, Default)]
pub(super) struct PlainFiles {
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) folders: BTreeSet<PathBuf>,
    /// Paths that are not regular files, with a description of their type.
    pub(super) odd: BTreeMap<PathBuf, &'static str>,
    /// Sizes in bytes of state files that seem larger than their text.
    pub(super) sizes: BTreeMap<PathBuf, u64>,
    /// Files and directories that do not belong to root, or that others may write.
    pub(super) owners: BTreeMap<PathBuf, Ownership>,
    pub(super) locks: BTreeMap<PathBuf, Holder>,
}

impl PlainFiles {
    /// Returns the files in and below the directory, and the file of this path itself. Paths are sorted by component,
    /// so the files in a directory are adjacent.
    pub(super) fn below<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.files
            .range(folder.to_owned()..)
            .map(|(path, _)| path)
            .take_while(move |path| path.starts_with(folder))
    }

    /// Fails if the directory of this path does not exist.
    pub(super) fn folder_of(&self, path: &Path) -> Answer<()> {
        let folder = path.parent().ok_or(Errno::ENOENT)?;
        let known = self.folders.contains(folder) || self.below(folder).next().is_some();
        if known { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Checks owner and mode of a state or configuration file and of all directories above it, as the real host does
    /// when guarded. With `as_file`, also checks that it is a regular file.
    pub(super) fn trusted(&self, path: &Path, as_file: bool, euid: u32) -> Result<()> {
        if let Some(kind) = self.odd.get(path).filter(|_| as_file) {
            return Err(other_kind(path, kind, Errno::EINVAL));
        }
        for (index, one) in path.ancestors().enumerate() {
            let Some(found) = self.owners.get(one) else { continue };
            judge(one, *found, if index == 0 { FileRole::Own } else { FileRole::Above }, euid)?;
        }
        Ok(())
    }
}

/// Programs that do not behave in the default way.
#[derive(Debug, Clone, Default)]
pub(super) struct Programs {
    /// Programs that do not exist.
    pub(super) missing: BTreeSet<PathBuf>,
    /// Output of the programs that print something.
    pub(super) outputs: BTreeMap<PathBuf, String>,
}

/// Local sockets.
#[derive(Debug, Clone, Default)]
pub(super) struct Sockets {
    /// Responses, by socket and prefix of the request.
    pub(super) answers: BTreeMap<(PathBuf, String), String>,
    /// Services that compute their responses.
    pub(super) services: BTreeMap<PathBuf, Service>,
}

/// The numbers that the kernel assigned last, such as inodes and PIDs.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    inode: u64,
    pid: u32,
    cookie: u64,
    /// Start time of a process (clock ticks since boot).
    ticks: u64,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers { inode: 1, pid: 50_000, cookie: 0, ticks: 1_000 }
    }
}

impl Numbers {
    pub(super) fn inode(&mut self) -> u64 {
        self.inode += 1;
        self.inode
    }

    pub(super) fn pid(&mut self) -> u32 {
        self.pid += 1;
        self.pid
    }

    pub(super) fn cookie(&mut self) -> u64 {
        self.cookie += 1;
        self.cookie
    }

    pub(super) fn start_ticks(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }
}

/// One change of the machine that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// Cgroups: `write`, `create`, `remove`, `rename`. Processes and threads: `start`, `signal`, `cookie`, `affinity`,
    /// `policy`. Kernel settings: `set`. State files: `create`, `append`, `replace`, `rename`, `forget` (removal).
    pub operation: &'static str,
    /// The file, group, process or threads.
    pub path: String,
    /// The value written.
    pub value: String,
}

/// A fault of one operation on one file, group, thread or socket; see [`FakeHost::trouble`](super::FakeHost::trouble).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// `create`, `remove`, `rename`, `write`, `set`, `cookie` or `policy` as in [`Mutation`]; `ask` for a request to a
    /// socket; `open`, `open child`, `list`, `attribute` or `attributes` for reading a group; `read` for any file.
    pub operation: &'static str,
    /// The file, group, thread or socket, as in [`Mutation`]; ignored if the operation is `cookie`.
    pub path: String,
    /// If set, the fault occurs only if this value is written or, for `ask`, is part of the request.
    pub value: Option<String>,
    /// The effect of the fault.
    pub effect: Effect,
    /// Whether the fault occurs every time, not only the first time.
    pub lasts: bool,
}

/// The effect of a fault on an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The operation fails with this error.
    Fails(Errno),
    /// A write takes effect but returns this error. Every other operation takes effect and does not fail.
    FailsAfter(Errno),
    /// The operation succeeds but changes nothing. Groups are nevertheless created, removed and renamed.
    Ignored,
    /// A write to a control file writes this value instead, and fails if the value is invalid. For all other operations
    /// this effect is the same as `Ignored`.
    Takes(String),
}

/// The faults that are set.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// A fault of one operation, and how often it has occurred.
    pub(super) trouble: (Option<Trouble>, u32),
    /// How often that fault occurs, unless it lasts.
    pub(super) trouble_times: u32,
    /// Number of mutations up to and including the one that fails, and its error.
    pub(super) fail: Option<(u32, Errno)>,
    /// Number of successful mutations until all changes of cgroups fail, and their error.
    pub(super) refuse: Option<(u32, Errno)>,
    /// A file whose writes fail in every group (`""`: groups cannot be created or removed), and the error.
    pub(super) closed: Option<(String, Errno)>,
    /// Number of successful mutations left before the crash.
    pub(super) crash: Option<u32>,
    pub(super) crashed: bool,
    pub(super) read_only: bool,
    pub(super) unprivileged: bool,
    pub(super) state_full: bool,
    /// Whether groups cannot store extended attributes, as in old kernels.
    pub(super) no_attributes: bool,
    /// A file, and the value that its next write stores instead.
    pub(super) instead: Option<(String, String)>,
    pub(super) processes: ProcessFaults,
}

/// Events that happen to processes at an unfavourable moment.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessFaults {
    /// Processes that start a thread during the next assignment of cookies.
    pub(super) threads_appear: Vec<u32>,
    /// A process that exits just before the next write of its PID, with the groups and attributes of the process that
    /// then gets the PID.
    pub(super) reuse: Option<(u32, Vec<String>, FakeLooks)>,
    /// A process that starts a child before the next move.
    pub(super) forks: Option<u32>,
    /// A process that begins to exit, and how many moments before and after a write of its PID pass before.
    pub(super) exits: Option<(u32, u32)>,
    /// Processes that have begun to exit (`PF_EXITING`), and how many reads of a process list they are still found in.
    pub(super) exiting: BTreeMap<u32, u32>,
    /// A process that starts a child and exits after a process list that contains it was read, and how many times this
    /// repeats.
    pub(super) hands_over: Option<(u32, u32)>,
}

/// The holder of a file's lock.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) opening: Weak<Opening>,
    /// Whether the process that took the lock has exited; children may still hold it.
    pub(super) orphaned: bool,
}

/// A process of the machine.
#[derive(Debug, Clone)]
pub(super) struct Proc {
    pub(super) start_ticks: u64,
    /// Inode of the first thread's group in each hierarchy, in the order of the trees.
    pub(super) groups: Vec<u64>,
    /// The same for each thread that is not in the groups of the first thread.
    pub(super) apart: BTreeMap<u32, Vec<u64>>,
    pub(super) spec: Option<SpawnSpec>,
    pub(super) running: Running,
    pub(super) ignores_sigterm: bool,
    pub(super) signals: Vec<Signal>,
    /// Scheduling attributes of the threads that do not have the default ones.
    pub(super) scheduling: BTreeMap<u32, Scheduling>,
    /// Whether the process's code wants a CPU all the time.
    pub(super) wants_cpu: bool,
    /// CPU time that the process's code has used, in clock ticks.
    pub(super) user_ticks: u64,
    /// Exit status of the process's handler for signals that ask it to end, if it has a handler.
    pub(super) handler: Option<i32>,
    /// Whether such a signal has arrived and the handler has not run yet.
    pub(super) asked_to_end: bool,
    /// CPU time used by computing (ns); see [`FakeHost::run`](super::FakeHost::run).
    pub(super) run_ns: u64,
    /// Core-scheduling cookie by thread; the first thread's TID is the PID.
    pub(super) threads: BTreeMap<u32, u64>,
    /// Attributes shown in `/proc`.
    pub(super) looks: FakeLooks,
}

/// Attributes of a process shown in `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeLooks {
    /// Path of the executable; empty for a kernel thread.
    pub exe: String,
    /// The command line; if empty, it is the program's name.
    pub cmdline: String,
    /// User ID.
    pub uid: u32,
    /// PID of the parent.
    pub parent: u32,
    /// Process group; 0 means a group with its own PID.
    pub pgrp: u32,
}

impl Default for FakeLooks {
    fn default() -> FakeLooks {
        FakeLooks { exe: "/bin/fake".to_owned(), cmdline: String::new(), uid: 0, parent: 1, pgrp: 0 }
    }
}

impl Proc {
    pub(super) fn cookie(&self, tid: u32) -> Option<u64> {
        self.threads.get(&tid).copied().filter(|_| self.running.exit().is_none())
    }

    pub(super) fn set_cookie(&mut self, tid: u32, cookie: u64) {
        self.threads.insert(tid, cookie);
    }

    /// Returns the inodes of a thread's groups, in the order of the trees.
    pub(super) fn groups_of(&self, tid: u32) -> &[u64] {
        self.apart.get(&tid).unwrap_or(&self.groups)
    }

    /// Puts one thread into a group of this tree.
    pub(super) fn put_thread(&mut self, pid: u32, tid: u32, (tree, inode): (usize, u64)) {
        let mut all: BTreeMap<u32, Vec<u64>> =
            self.threads.keys().map(|tid| (*tid, self.groups_of(*tid).to_vec())).collect();
        if let Some(at) = all.get_mut(&tid).and_then(|groups| groups.get_mut(tree)) {
            *at = inode;
        }
        self.groups = all.remove(&pid).unwrap_or_default();
        all.retain(|_, groups| *groups != self.groups);
        self.apart = all;
    }

    pub(super) fn scheduling(&self, tid: u32) -> Scheduling {
        self.scheduling.get(&tid).copied().unwrap_or_default()
    }

    /// Gives all threads these attributes.
    pub(super) fn schedule_all(&mut self, to: Scheduling) {
        self.scheduling = self.threads.keys().map(|tid| (*tid, to)).collect();
    }

    pub(super) fn cookies(&self) -> impl Iterator<Item = u64> + '_ {
        self.threads.values().copied().filter(|_| self.running.exit().is_none())
    }
}

/// The vendor kernel that a fake machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VendorKernel {
    /// `cpu.qos_level` and `memory.qos_level`.
    OpenEuler {
        /// Whether the levels are -2 to 2 instead of -1 and 0.
        five_levels: bool,
    },
    /// `cpu.bvt_warp_ns` and `cpu.identity`.
    Anolis {
        /// Whether there is a machine-wide switch; without it Group Identity is always on.
        switch: bool,
    },
    /// `cpu.priority`, and a `cpu.identity` of -1 to 1.
    Anolis66,
}

impl VendorKernel {
    /// openEuler 22.03: two levels, irreversible.
    pub const OPENEULER: VendorKernel = VendorKernel::OpenEuler { five_levels: false };
    /// openEuler with `CONFIG_QOS_SCHED_MULTILEVEL`: five levels, each irreversible except 0.
    pub const OPENEULER_FIVE: VendorKernel = VendorKernel::OpenEuler { five_levels: true };
    /// Alibaba Cloud Linux 3.
    pub const ANOLIS: VendorKernel = VendorKernel::Anolis { switch: true };

    /// The vendor's name in the knob table.
    pub(super) fn name(self) -> &'static str {
        match self {
            VendorKernel::OpenEuler { .. } => "openEuler",
            VendorKernel::Anolis { .. } => "Anolis/Alibaba",
            VendorKernel::Anolis66 => "Anolis 6.6",
        }
    }

    pub(super) fn release(self) -> &'static str {
        match self {
            VendorKernel::OpenEuler { .. } => "5.10.0-60.18.0.50.oe2203.x86_64",
            VendorKernel::Anolis { .. } => "5.10.134-16.1.al8.x86_64",
            VendorKernel::Anolis66 => "6.6.71-3.an23.x86_64",
        }
    }

    /// Other sysctls of the vendor kernel, with their defaults.
    pub(super) fn settings(self) -> &'static [(&'static str, &'static str)] {
        const ALL: [(&str, &str); 3] = [
            ("/proc/sys/kernel/qos_overload_detect_period_ms", "5000\n"),
            ("/proc/sys/kernel/qos_offline_wait_interval_ms", "100\n"),
            (QosLevels::WEIGHTS, "1\t10\t100\t1000\t10000\n"),
        ];
        match self {
            VendorKernel::OpenEuler { five_levels: true } => &ALL,
            VendorKernel::OpenEuler { five_levels: false } => &ALL[..2],
            VendorKernel::Anolis { .. } | VendorKernel::Anolis66 => &[],
        }
    }

    pub(super) fn switch(self) -> Option<Switch> {
        match self {
            VendorKernel::OpenEuler { .. } => Some(Switch::MemcgQos),
            VendorKernel::Anolis { switch } => switch.then_some(Switch::GroupIdentity),
            VendorKernel::Anolis66 => None,
        }
    }
}
