//! The probe: who held the CPU while threads of a service waited for it.
//!
//! Latency percentiles on a busy machine are noise; scheduling is not. For every microsecond that a thread waited in a
//! run queue the kernel knows which task had the CPU. A BPF program adds that up ([`probe`]), without a
//! stream of events and without a change to the machine; [`figures`] says what the sums mean; without BPF there is run
//! delay alone ([`unattributed`]), which says how long and not because of whom.
//!
//! What it can and cannot say: it proves that work made others wait, not that it did no harm. Work that got no CPU at all can still make a third party's
//! work hold it longer, so the total wait is compared as well, in pairs of blocks. Its verdict survives noise, its
//! magnitude moves with the company on the CPU. Stolen time is the occupant's; what a kernel thread does for somebody is
//! the kernel's.
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

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A cgroup of the CPU controller's hierarchy and everything below it, by its number (the inode of its directory;
    /// the nearest group with a number counts).
    Cgroup(u64),
    /// One process with all its threads, not its children.
    Process(u32),
}

/// What the probe is to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Whose waits: at most 255.
    pub online: Vec<Subject>,
    /// Whose share of the waits is counted apart.
    pub offline: Vec<Subject>,
    /// Whether the numbers are of the unified hierarchy, which is so where v1 has no CPU controller.
    pub unified: bool,
    /// Compare each wait with the kernel's own figure.
    pub verify: bool,
    /// Tell interrupts from the tasks that they interrupt.
    pub interrupts: bool,
    /// Tell the processes of who is neither online nor offline apart, by command and user. Costs a little where somebody waits
    /// behind them, and wants [`WaitProbe::gather`] about once a second.
    pub commands: bool,
    /// How many culprits are told apart, per subject and kind; more go into one sum [4096].
    pub room: Option<u32>,
}

/// Why there is no probe.
#[derive(Debug, thiserror::Error)]
pub enum BlameError {
    /// The kernel lacks what its programs need.
    #[error("the kernel {0} is older than 5.12, which the probe needs")]
    TooOld(String),
    /// The kernel has no description of itself.
    #[error(
        "this kernel has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF), and the probe needs to know its structures"
    )]
    NoBtf,
    /// Not allowed.
    #[error(
        "the kernel lets this process load no BPF program: {0}; it needs root, or the capabilities CAP_BPF and CAP_PERFMON"
    )]
    Forbidden(String),
    /// Too much to look at.
    #[error("{0} subjects are too many: the probe tells 255 apart; name a common parent")]
    TooMany(usize),
    /// Anything else that the kernel or the loader says.
    #[error("{what}: {because}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// What was answered.
        because: String,
    },
}
