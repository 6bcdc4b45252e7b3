//! Processes as plain data: signals, how one ended, and the scheduling that one is given.

use crate::cpuset::CpuSet;

/// A signal by its Linux number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(pub i32);

#[allow(missing_docs, reason = "signal(7)")]
impl Signal {
    /// Nothing is sent; only whether the process is there is answered.
    pub const NONE: Signal = Signal(0);
    pub const INT: Signal = Signal(2);
    pub const KILL: Signal = Signal(9);
    pub const TERM: Signal = Signal(15);
    pub const USR2: Signal = Signal(12);
}

/// A core-scheduling cookie (Documentation/admin-guide/hw-vuln/core-scheduling.rst): threads with different ones
/// never share a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cookie {
    /// One that nobody has yet.
    New,
    /// The one that this thread has.
    Of(u32),
    /// None: what every thread has that nobody gave one.
    None,
}

/// Scheduling that a child gives itself before its program starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `SCHED_IDLE`.
    pub idle: bool,
    /// `SCHED_FIFO` with this priority.
    pub fifo: Option<i32>,
    /// nice level.
    pub nice: Option<i32>,
    /// CPUs it may use.
    pub cpus: Option<CpuSet>,
    /// Core-scheduling cookie; unset, the child has its parent's.
    pub cookie: Option<Cookie>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// What a shell would report: the code, or 128 + n.
    #[must_use]
    pub fn status(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }
}
