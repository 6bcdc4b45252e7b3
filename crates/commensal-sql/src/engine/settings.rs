//! Effective settings of a group, in the units that are enforced: plain values, which the server also sends to a worker
//! process.

use crate::property::{SlotPolicy, UNLIMITED};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Effective settings of a group, in the units that are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// CPU hard limit in millionths of a CPU.
    pub cpu_max: Option<u64>,
    /// Memory rules.
    pub memory: Rules,
    /// Queue limits.
    pub queue: QueueLimits,
    /// Limit of reads from local files, bytes per second.
    pub local_read: Option<u64>,
    /// Limit of reads from remote stores, bytes per second.
    pub remote_read: Option<u64>,
    /// Nice value of its threads: its soft share of the CPU among the groups.
    pub nice: i8,
    /// Whether its queries run in a worker process, if one can be started.
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
    /// Memory limit in bytes; `None` is no limit.
    pub limit: Option<usize>,
    /// Whether queries are ended when the limit is exceeded, or only when the process is short of memory.
    pub hard: bool,
    /// Percent of the limit above which no further query starts.
    pub low_watermark: u8,
    /// Percent of the limit above which operators spill.
    pub high_watermark: u8,
    /// How the limit is divided among queries.
    pub slots: SlotPolicy,
    /// Number of slots (`max_concurrency`).
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

    /// Share of the memory for a query with `slots` slots while `in_use` are in use, if memory is divided by slots.
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
    /// Maximum waiting time; without one, the query's time limit applies.
    pub timeout: Option<Duration>,
}

impl QueueLimits {
    /// No limit: each query starts at once.
    pub const NONE: QueueLimits =
        QueueLimits { max_concurrency: i32::MAX as u32, max_queue_size: 0, timeout: None };
}
