//! Measurements of the sensors, as plain data. A value that the machine does not provide is `None`, never 0.

use crate::topology::Device;
use std::collections::BTreeMap;

/// CPU time of the whole machine since boot, in microseconds. The kernel includes `guest` time in `user` (proc(5)), so
/// the sums here do not add it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCpu {
    /// Time in user mode, including niced processes.
    pub user_us: u64,
    /// Time in kernel mode, including interrupts.
    pub system_us: u64,
    /// Idle time, including the time in which a CPU is idle while I/O is outstanding.
    pub idle_us: u64,
    /// Time taken by the hypervisor for other guests; `None` on a kernel that does not count it.
    pub steal_us: Option<u64>,
}

impl MachineCpu {
    /// The sum of user and kernel time.
    #[must_use]
    pub fn busy_us(&self) -> u64 {
        self.user_us + self.system_us
    }

    /// The time since `before`; if a counter is lower than before, the difference counts as 0.
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

/// Pressure stall totals of one resource, in microseconds (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which at least one task waited for the resource.
    pub some_us: u64,
    /// Time in which all non-idle tasks waited for the resource at the same time; `None` if the kernel does not report
    /// it.
    pub full_us: Option<u64>,
}

/// Pressure stall totals of the machine or of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressures {
    /// CPU pressure.
    pub cpu: Option<Pressure>,
    /// Memory pressure.
    pub memory: Option<Pressure>,
    /// I/O pressure.
    pub io: Option<Pressure>,
}

/// I/O of a group on one device since the group was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub write_bytes: u64,
    /// Number of read operations; `None` if the kernel does not count them.
    pub reads: Option<u64>,
    /// Number of write operations; `None` if the kernel does not count them.
    pub writes: Option<u64>,
}

/// The kernel's out-of-memory counters of a group since the group was created. v1 counts each cgroup by itself, so a
/// cgroup below that was removed no longer counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Number of processes in and below the group that the kernel's OOM killer killed, whether a group or the whole
    /// machine was out of memory; v1 counts them since Linux 4.13.
    pub kills: Option<u64>,
    /// How often the group reached its own hard limit. v2 counts only the times when the kernel could reclaim nothing
    /// more, v1 counts every time.
    pub limit_hits: Option<u64>,
    /// How often cgroups below the group reached hard limits of their own. On kernels before Linux 5.2, v2 cannot tell
    /// these from `limit_hits`, and this is `None`.
    pub limit_hits_below: Option<u64>,
}

/// Resource use of a group since it was created, and its current memory and tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// CPU time (us).
    pub cpu_us: Option<u64>,
    /// Number of quota periods in which the group wanted to run.
    pub nr_periods: Option<u64>,
    /// Number of quota periods in which the group was throttled.
    pub nr_throttled: Option<u64>,
    /// Time for which the group was throttled, summed over CPUs (us).
    pub throttled_us: Option<u64>,
    /// Current memory, including page cache (bytes).
    pub memory_bytes: Option<u64>,
    /// Number of processes in and below the group that the kernel's OOM killer killed.
    pub oom_kills: Option<u64>,
    /// Current number of tasks.
    pub tasks: Option<u64>,
    /// I/O by device.
    pub io: Option<BTreeMap<Device, DiskUse>>,
    /// Pressure stall totals; only v2 reports them for groups.
    pub pressure: Pressures,
}
