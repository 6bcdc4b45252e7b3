//! The probe: attributes the time that a service's threads wait for a CPU to the tasks that hold the CPU meanwhile.
//!
//! Latency percentiles are noisy on a busy machine; waits for a CPU are not. For every microsecond that a thread waits
//! in a run queue, the kernel knows which task has the CPU. A BPF program sums up these waits by task ([`probe`]). It
//! sends no stream of events to user space and changes nothing on the machine; [`figures`] documents the sums. Without
//! BPF there is only run delay ([`unattributed`]): it shows how long threads waited, but not which tasks held the CPU.
//!
//! The probe can show that offline work made other threads wait. It cannot show that offline work did no harm: even
//! offline work that got no CPU can make a third program hold a CPU longer. Experiments therefore also compare the
//! total wait with and without isolation. Noise does not change the probe's verdict, but the amount of wait that it
//! attributes to a task depends on the other tasks on the CPU. Steal time is charged to the task that was on the CPU;
//! the work of a kernel thread is charged to the kernel.
#![forbid(unsafe_code)]

pub mod clients;
mod commands;
pub mod exposition;
pub mod figures;
pub mod histogram;
pub mod mirror;
pub mod names;
pub mod preflight;
pub mod probe;
pub mod report;
pub mod surroundings;
pub mod unattributed;
pub mod verdict;

use commensal_core::member::ProcessId;
pub use figures::{Command, Culprit, Figures, Kind, Thread};
pub use histogram::Histogram;
pub use probe::{RaisedAlarm, WaitProbe};
pub use report::{Labels, Report};
pub use surroundings::Surroundings;
pub use verdict::{Bounds, Verdict};

/// A target of the probe: the cgroup or processes whose threads the probe observes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Cgroups of the CPU controller's hierarchy and everything below them, by their cgroup IDs (the inodes of their
    /// directories). If targets are nested, a task belongs to the innermost one.
    Cgroups(Vec<u64>),
    /// Processes with all their threads and descendants, also those that are started during the measurement. The PIDs are
    /// those of this process's PID namespace. If targets are nested, a process belongs to the nearest of its ancestors.
    Processes(Vec<ProcessId>),
}

impl Subject {
    /// The IDs of the target's cgroups.
    #[must_use]
    pub fn cgroups(&self) -> &[u64] {
        match self {
            Subject::Cgroups(ids) => ids,
            Subject::Processes(_) => &[],
        }
    }

    /// The target's processes, without their descendants.
    #[must_use]
    pub fn processes(&self) -> &[ProcessId] {
        match self {
            Subject::Cgroups(_) => &[],
            Subject::Processes(ids) => ids,
        }
    }
}

/// The targets of the probe, and its options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Targets whose waits are measured; at most 255.
    pub online: Vec<Subject>,
    /// Offline targets. The probe counts separately the waits that they cause.
    pub offline: Vec<Subject>,
    /// Whether the cgroup IDs are those of the unified hierarchy (v2), because no v1 hierarchy has the CPU controller.
    pub unified: bool,
    /// Whether to compare each wait with the kernel's own measurement.
    pub verify: bool,
    /// Whether to distinguish interrupts from the tasks that they interrupt.
    pub interrupts: bool,
    /// Whether to sum up waits by command and user for processes that are neither online nor offline. This has a small
    /// cost when a thread waits for such a process, and requires a call of [`WaitProbe::gather`] about once a second.
    pub commands: bool,
    /// Whether to tell the tasks that held the CPU apart by target instead of by cgroup, so that their number is bounded.
    pub by_target: bool,
    /// Maximum number of entries in the maps of culprits, the cgroups that held the CPU during waits (default: 4096).
    /// Waits whose culprit does not fit are only summed up ([`figures::Counters::full_ns`]).
    pub max_culprits: Option<u32>,
}

/// An error that prevents the use of the probe.
#[derive(Debug, thiserror::Error)]
pub enum BlameError {
    /// The kernel is too old for the probe's programs.
    #[error("the kernel {0} is older than 5.12, which the probe needs")]
    TooOld(String),
    /// The kernel has no type information (BTF).
    #[error(
        "this kernel has no type information (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF), which the probe needs"
    )]
    NoBtf,
    /// This process may not load BPF programs.
    #[error(
        "the kernel does not let this process load BPF programs: {0}; it needs root, or the capabilities CAP_BPF and CAP_PERFMON"
    )]
    Forbidden(String),
    /// There are too many targets.
    #[error("{0} targets are too many: the probe distinguishes at most 255; name a common parent cgroup")]
    TooMany(usize),
    /// The targets are too many processes.
    #[error("{0} processes are too many: the probe finds at most {most}; name a cgroup that contains them", most = probe::MOST_PROCESSES)]
    TooManyProcesses(usize),
    /// A target has ended.
    #[error("process {0} ended before the measurement began")]
    Ended(ProcessId),
    /// A target runs, but the kernel's task iterator leaves it out.
    #[error("the kernel does not show process {0} to BPF programs, although the process runs")]
    Hidden(ProcessId),
    /// Another error of the kernel or the loader.
    #[error("{what}: {because}")]
    Refused {
        /// The operation that failed.
        what: &'static str,
        /// The error.
        because: String,
    },
}

impl BlameError {
    /// Whether these targets cannot be measured in any other way, either.
    #[must_use]
    pub fn is_about_targets(&self) -> bool {
        matches!(self, BlameError::TooMany(_) | BlameError::TooManyProcesses(_) | BlameError::Ended(_))
    }
}
