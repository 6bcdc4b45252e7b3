//! The probe: attributes the waits of a service's threads to the tasks that held the CPU meanwhile.
//!
//! Latency percentiles on a busy machine are noise; scheduling is not. For every microsecond that a thread waited in a
//! run queue the kernel knows which task had the CPU. A BPF program adds that up ([`probe`]), without a stream of
//! events and without a change to the machine; [`figures`] explains the sums. Without BPF there is only run delay
//! ([`unattributed`]), which says how long threads waited but not because of which task.
//!
//! What the probe can and cannot show: it proves that work made others wait, not that it did no harm. Work that got no
//! CPU at all can still make a third party hold the CPU longer, so the total wait is compared as well, in pairs of
//! blocks. Its verdict survives noise; its magnitude depends on the other tasks on the CPU. Steal time is charged to
//! the task that was on the CPU; the work of a kernel thread is charged to the kernel.
#![forbid(unsafe_code)]

mod commands;
pub mod exposition;
pub mod figures;
pub mod histogram;
pub mod mirror;
pub mod names;
pub mod preflight;
pub mod probe;
pub mod report;
pub mod unattributed;
pub mod verdict;

pub use figures::{Command, Culprit, Figures, Kind, Thread};
pub use histogram::Histogram;
pub use probe::WaitProbe;
pub use report::{Labels, Report};
pub use verdict::{Bounds, Verdict};

/// A target of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A cgroup of the CPU controller's hierarchy and everything below it, by cgroup ID (the inode of its directory).
    /// If targets are nested, the innermost one counts.
    Cgroup(u64),
    /// One process with all its threads, not its children.
    Process(u32),
}

/// The targets of the probe, and its options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Targets whose waits are measured: at most 255.
    pub online: Vec<Subject>,
    /// Offline targets, whose share of the waits is counted separately.
    pub offline: Vec<Subject>,
    /// Whether the cgroup IDs are of the unified hierarchy, as they are where v1 has no CPU controller.
    pub unified: bool,
    /// Whether to compare each wait with the kernel's figure.
    pub verify: bool,
    /// Whether to distinguish interrupts from the tasks that they interrupt.
    pub interrupts: bool,
    /// Tell the processes of who is neither online nor offline apart, by command and user. Costs a little where somebody waits
    /// behind them, and wants [`WaitProbe::gather`] about once a second.
    pub commands: bool,
    /// How many culprits are told apart, per subject and kind; more go into one sum [4096].
    pub room: Option<u32>,
}

/// Why the probe cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum BlameError {
    /// The kernel lacks features that the probe's programs need.
    #[error("the kernel {0} is older than 5.12, which the probe needs")]
    TooOld(String),
    /// The kernel has no type information (BTF).
    #[error(
        "this kernel has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF), and the probe needs to know its structures"
    )]
    NoBtf,
    /// Loading is not permitted.
    #[error(
        "the kernel lets this process load no BPF program: {0}; it needs root, or the capabilities CAP_BPF and CAP_PERFMON"
    )]
    Forbidden(String),
    /// Too many targets.
    #[error("{0} subjects are too many: the probe tells 255 apart; name a common parent")]
    TooMany(usize),
    /// Another error of the kernel or the loader.
    #[error("{what}: {because}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The error.
        because: String,
    },
}
