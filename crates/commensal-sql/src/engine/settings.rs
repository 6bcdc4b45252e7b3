//! The settings in force for a group, converted to the units in which they are enforced (CPUs, bytes, nice values).
//! They are plain values, because the server also sends them to a worker process.

use crate::property::{SlotPolicy, UNLIMITED};
use commensal_core::units::BytesPerS;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Effective settings of a group, in the units of enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// CPU hard limit in millionths of a CPU.
    pub cpu_max: Option<u64>,
    /// Memory rules.
    pub memory: Rules,
    /// Queue limits.
    pub queue: QueueLimits,
    /// Limit of reads from local files.
    pub local_read: Option<BytesPerS>,
    /// Limit of reads from remote stores.
    pub remote_read: Option<BytesPerS>,
    /// Nice value of the group's threads. It determines the group's share of the CPU when groups compete.
    pub nice: i8,
    /// Whether the group's queries run in a worker process, if the server can start it.
    pub worker: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cpu_max: None,
            memory: Rules::NONE,
            queue: QueueLimits::NONE,
            local_read: None,
            remote_read: None,
            nice: 0,
            worker: false,
        }
    }
}

/// Memory rules of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Memory limit in bytes; `None` means no limit.
    pub limit: Option<usize>,
    /// Whether the limit is hard, so that queries are cancelled whenever the group exceeds the limit. A soft limit is
    /// enforced only while the process is short of memory.
    pub hard: bool,
    /// Percentage of the limit above which no further query starts.
    pub low_watermark: u8,
    /// Percentage of the limit above which operators spill.
    pub high_watermark: u8,
    /// How the limit is divided among the group's queries.
    pub slots: SlotPolicy,
    /// Number of slots in the group (`max_concurrency`).
    pub all_slots: u32,
}

impl Rules {
    /// No limit.
    pub const NONE: Rules = Rules {
        limit: None,
        hard: false,
        low_watermark: 75,
        high_watermark: 85,
        slots: SlotPolicy::None,
        all_slots: UNLIMITED,
    };

    pub(super) fn hard_limit(&self) -> Option<usize> {
        self.limit.filter(|_| self.hard)
    }

    pub(super) fn spill_above(&self) -> Option<usize> {
        let high = |limit: usize| (limit as u128 * u128::from(self.high_watermark) / 100) as usize;
        self.hard_limit().map(high)
    }

    /// Returns the share of the memory, in bytes, for a query with `slots` slots (units of concurrency) while `in_use`
    /// slots are in use. `None` if memory is not divided by slots.
    pub(super) fn slot_share(&self, slots: u32, in_use: u32) -> Option<usize> {
        let of = match self.slots {
            SlotPolicy::None => return None,
            SlotPolicy::Fixed => self.all_slots,
            SlotPolicy::Dynamic => in_use,
        };
        let part = |bytes: usize| bytes as u128 * u128::from(slots) / u128::from(of.max(slots).max(1));
        self.spill_above().map(|bytes| usize::try_from(part(bytes)).unwrap_or(bytes))
    }
}

/// Limits of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Maximum number of slots in use.
    pub max_concurrency: u32,
    /// Maximum number of waiting queries.
    pub max_queue_size: u32,
    /// Maximum waiting time. Without this value, the query's time limit applies.
    pub timeout: Option<Duration>,
}

impl QueueLimits {
    /// No limit: each query starts immediately.
    pub const NONE: QueueLimits =
        QueueLimits { max_concurrency: i32::MAX as u32, max_queue_size: 0, timeout: None };
}
