//! What holds for a group, in the units that are enforced: plain values, which the server also sends to a worker process.

use crate::property::{SlotPolicy, UNLIMITED};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What holds for a group, in the units that are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// CPU hard limit in millionths of a CPU.
    pub cpu_max: Option<u64>,
    /// Memory.
    pub memory: Rules,
    /// Queue.
    pub queue: QueueLimits,
    /// Bytes per second from local files.
    pub local_read: Option<u64>,
    /// Bytes per second from remote stores.
    pub remote_read: Option<u64>,
    /// Nice value of its threads: its soft share of the CPU among the groups.
    pub nice: i8,
    /// Its queries run in a worker process, where one can be had.
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

/// What a group may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Bytes; `None` is no limit.
    pub limit: Option<usize>,
    /// Whether queries end when the limit is passed, or only when the process is short.
    pub hard: bool,
    /// Percent of the limit above which no other query begins.
    pub low_watermark: u8,
    /// Percent of the limit above which operators spill.
    pub high_watermark: u8,
    /// How the limit is divided among queries.
    pub slots: SlotPolicy,
    /// All slots that there are (`max_concurrency`).
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

    /// What a query with so many of the slots in use may have for itself, if memory goes by slots.
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

/// What a queue allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Slots in use at once.
    pub max_concurrency: u32,
    /// Queries that wait at most.
    pub max_queue_size: u32,
    /// Longest wait; as long as a query may take when there is none.
    pub timeout: Option<Duration>,
}

impl QueueLimits {
    /// No limit: each query begins when it comes.
    pub const NONE: QueueLimits =
        QueueLimits { max_concurrency: i32::MAX as u32, max_queue_size: 0, timeout: None };
}
