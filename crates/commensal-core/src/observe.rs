//! What sensors measured, as plain data. A source that the machine does not have is `None`, never 0.

use crate::topology::Device;
use std::collections::BTreeMap;

/// CPU time of the whole machine since boot, in microseconds. `guest` time is part of `user` in the
/// kernel's own accounting and is not added again (proc(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCpu {
    /// User mode, nice levels included.
    pub user_us: u64,
    /// Kernel mode, interrupts included.
    pub system_us: u64,
    /// Idle, also while waiting for I/O (waiting is not work).
    pub idle_us: u64,
    /// Time taken by the hypervisor for other guests; `None` on a kernel that does not count it.
    pub steal_us: Option<u64>,
}

impl MachineCpu {
    /// User and kernel time.
    #[must_use]
    pub fn busy_us(&self) -> u64 {
        self.user_us + self.system_us
    }

    /// The time since `before`; a counter that went back counts as 0.
    #[must_use]
    pub fn since(&self, before: &MachineCpu) -> MachineCpu {
        MachineCpu {
            user_us: self.user_us.saturating_sub(before.user_us),
            system_us: self.system_us.saturating_sub(before.system_us),
            idle_us: self.idle_us.saturating_sub(before.idle_us),
            steal_us: self.steal_us.zip(before.steal_us).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// One resource's pressure stall totals, in microseconds (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which at least one task waited.
    pub some_us: u64,
    /// Time in which all non-idle tasks waited; `None` where the kernel has no such line.
    pub full_us: Option<u64>,
}

/// Pressure of the machine or of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressures {
    /// CPU.
    pub cpu: Option<Pressure>,
    /// Memory.
    pub memory: Option<Pressure>,
    /// Block I/O.
    pub io: Option<Pressure>,
}

/// I/O of a group on one device since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub write_bytes: u64,
    /// Read operations, where counted.
    pub reads: Option<u64>,
    /// Write operations, where counted.
    pub writes: Option<u64>,
}

/// The kernel's out-of-memory counters of a group, since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Processes that the kernel's OOM killer killed, in whatever group; v1 counts since Linux 4.13.
    pub kills: Option<u64>,
    /// How often the group reached its hard limit: v2 counts when nothing more could be reclaimed, v1 every time.
    pub limit_hits: Option<u64>,
}

/// A group's use since its creation, and its current memory and tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// CPU time, us.
    pub cpu_us: Option<u64>,
    /// Quota periods in which the group wanted to run.
    pub nr_periods: Option<u64>,
    /// Periods in which the quota was used up.
    pub nr_throttled: Option<u64>,
    /// Time that the quota stopped the group on its CPUs, us.
    pub throttled_us: Option<u64>,
    /// Memory held now, page cache included, bytes.
    pub memory_bytes: Option<u64>,
    /// Processes that the kernel's OOM killer killed.
    pub oom_kills: Option<u64>,
    /// Current number of tasks.
    pub tasks: Option<u64>,
    /// I/O by device.
    pub io: Option<BTreeMap<Device, DiskUse>>,
    /// Pressure, where the hierarchy has it (v2).
    pub pressure: Pressures,
}
