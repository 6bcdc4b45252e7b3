//! What the kernel in memory holds: groups, processes, files, locks, and the faults that are set. What it does is in the
//! other files, each a part of the rules.

use super::opening::Opening;
use super::running::Running;
use crate::{Signal, SpawnSpec};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::ownership::Ownership;
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

/// One control group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) tree: usize,
    pub(super) name: String,
    pub(super) parent: Option<u64>,
    pub(super) children: BTreeMap<String, u64>,
    /// Text by file name; `None` is computed when read.
    pub(super) files: BTreeMap<String, Option<String>>,
    /// v2: controllers enabled for the children.
    pub(super) enabled: BTreeSet<Controller>,
    /// Bytes that the group itself holds, without its children.
    pub(super) usage: u64,
    /// Whether it belongs to user 1000.
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

/// A service that answers every request at a local socket, or stays silent.
pub(super) struct Service(pub(super) Box<dyn Answering>);

/// Answers a request; `None` closes the connection. Each copy of a machine has a separate one.
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
    pub(super) trees: Vec<Tree>,
    pub(super) groups: BTreeMap<u64, Group>,
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) folders: BTreeSet<PathBuf>,
    /// Paths that are not regular files, with a description of their type.
    pub(super) odd: BTreeMap<PathBuf, &'static str>,
    /// Files and directories that do not belong to root, or that others may write.
    pub(super) owners: BTreeMap<PathBuf, Ownership>,
    pub(super) locks: BTreeMap<PathBuf, Holder>,
    pub(super) processes: BTreeMap<u32, Proc>,
    pub(super) cpus: CpuSet,
    pub(super) nodes: CpuSet,
    pub(super) devices: BTreeSet<Device>,
    pub(super) missing: BTreeSet<PathBuf>,
    /// Control files that the kernel does not have.
    pub(super) lacking: BTreeSet<String>,
    pub(super) outputs: BTreeMap<PathBuf, String>,
    /// Answers of local sockets, by prefix of the request.
    pub(super) answers: BTreeMap<(PathBuf, String), String>,
    /// Services on local sockets.
    pub(super) services: BTreeMap<PathBuf, Service>,
    pub(super) vendor: Option<VendorKernel>,
    /// Core scheduling: `None` if the kernel lacks it, `Some(false)` without SMT.
    pub(super) core_sched: Option<bool>,
    pub(super) next_cookie: u64,
    pub(super) faults: Faults,
    pub(super) mutations: Vec<Mutation>,
    /// Number of restarts of the agent; hosts from before a restart are dead.
    pub(super) life: u32,
    pub(super) next_inode: u64,
    pub(super) next_pid: u32,
    pub(super) ticks: u64,
    /// Time since the boot.
    pub(super) uptime: Duration,
}

/// One change of the machine that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// `write`, `create`, `remove`, `start`, `signal`, `append`, `replace`, `rename` or `forget` (a state file).
    pub operation: &'static str,
    /// File, group or process.
    pub path: String,
    /// The value written.
    pub value: String,
}

/// One operation on one file, group or socket that does not go as it should; see [`FakeHost::trouble`](super::FakeHost::trouble).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// As in [`Mutation`]; `ask` for a request, `open`, `open child`, `list`, `read`, `attribute` and `attributes` for a group.
    pub operation: &'static str,
    /// As in [`Mutation`]; of a cookie, whichever threads it is for.
    pub path: String,
    /// Only when this is written, or is part of the request.
    pub value: Option<String>,
    /// What comes of it.
    pub effect: Effect,
    /// Not only the first time.
    pub lasts: bool,
}

/// What comes of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It fails.
    Fails(Errno),
    /// It succeeds, and nothing has changed. Groups are made, removed and renamed all the same.
    Ignored,
    /// A write succeeds with another value, or fails if that is none. Everything else is ignored.
    Takes(String),
}

/// The faults that are set.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// One operation that does not go as it should, and how often that was so.
    pub(super) trouble: (Option<Trouble>, u32),
    /// Successful mutations until (and including) the one that fails, and how it fails.
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
    /// Processes that start a thread during the next assignment of cookies.
    pub(super) threads_appear: Vec<u32>,
    /// A process that exits before the next write of its PID, and the groups and attributes of the process that gets
    /// its PID.
    pub(super) reuse: Option<(u32, Vec<String>, FakeLooks)>,
    /// A process that starts a child before the next move.
    pub(super) forks: Option<u32>,
    /// A process that starts a child and exits after a list with it was read, and how many times this repeats.
    pub(super) hands_over: Option<(u32, u32)>,
}

/// The holder of a file's lock.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) opening: Weak<Opening>,
    /// Whether the process that took it has died; children may still hold it.
    pub(super) orphaned: bool,
}

/// A process of the machine.
#[derive(Debug, Clone)]
pub(super) struct Proc {
    pub(super) start_ticks: u64,
    /// Inode of the process's group in each hierarchy, in the order of the trees.
    pub(super) groups: Vec<u64>,
    pub(super) spec: Option<SpawnSpec>,
    pub(super) running: Running,
    pub(super) ignores_sigterm: bool,
    pub(super) signals: Vec<Signal>,
    /// Scheduling policy of sched(7): 0 is normal, 5 `SCHED_IDLE`.
    pub(super) policy: i32,
    /// Core-scheduling cookie by thread; the first thread's TID is the PID.
    pub(super) threads: BTreeMap<u32, u64>,
    /// Attributes shown in `/proc`.
    pub(super) looks: FakeLooks,
}

/// Attributes of a process shown in `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeLooks {
    /// Path of its executable; empty for a kernel thread.
    pub exe: String,
    /// Its arguments; the program's name if empty.
    pub cmdline: String,
    /// User ID.
    pub uid: u32,
    /// PID of its parent.
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
        /// Whether an offline group may become online again.
        reversible: bool,
    },
    /// `cpu.bvt_warp_ns` and `cpu.identity`.
    Anolis {
        /// Whether there is a machine-wide switch; without it Group Identity is always on.
        switch: bool,
    },
}

impl VendorKernel {
    /// openEuler 22.03: two levels, irreversible.
    pub const OPENEULER: VendorKernel = VendorKernel::OpenEuler { five_levels: false, reversible: false };
    /// Alibaba Cloud Linux 3.
    pub const ANOLIS: VendorKernel = VendorKernel::Anolis { switch: true };

    /// The name in the knob table.
    pub(super) fn name(self) -> &'static str {
        match self {
            VendorKernel::OpenEuler { .. } => "openEuler",
            VendorKernel::Anolis { .. } => "Anolis/Alibaba",
        }
    }

    pub(super) fn release(self) -> &'static str {
        match self {
            VendorKernel::OpenEuler { .. } => "5.10.0-60.18.0.50.oe2203.x86_64",
            VendorKernel::Anolis { .. } => "5.10.134-16.1.al8.x86_64",
        }
    }

    pub(super) fn switch(self) -> Option<Switch> {
        match self {
            VendorKernel::OpenEuler { .. } => Some(Switch::MemcgQos),
            VendorKernel::Anolis { switch } => switch.then_some(Switch::GroupIdentity),
        }
    }
}
