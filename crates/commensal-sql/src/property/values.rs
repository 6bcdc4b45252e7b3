//! Value types of properties, and their formatting.

use commensal_core::units::{Bytes, CpuAmount, Ppm};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The compute group of a group that does not name a compute group.
pub const DEFAULT_COMPUTE_GROUP: &str = "default";

/// The largest concurrency limit, which is the default.
pub const UNLIMITED: u32 = i32::MAX as u32;

/// 100 percent.
pub const WHOLE: Ppm = Ppm(1_000_000);

/// Share of the machine's memory that percentages refer to (`mem_limit` in Doris' be.conf).
pub const MEMORY_BASE: Ppm = Ppm(900_000);

/// The reason why a property is refused, as Doris' message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PropertyError(pub String);

/// Whether the statement gave a limit under its old or its new name. The name determines which sums are checked and how
/// the limit is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Named {
    /// `cpu_hard_limit`, `memory_limit`, `tag`.
    Old,
    /// `max_cpu_percent`, `max_memory_percent`, `compute_group`.
    #[default]
    New,
}

/// A memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Share of the memory base, not of the machine.
    OfBase(Ppm),
    /// A size.
    Size(Bytes),
}

/// A limit, and the name under which the statement gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit<T> {
    /// The limit.
    pub amount: T,
    /// Whether the old or the new name was used.
    pub named: Named,
}

/// How a group's memory is divided among its queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotPolicy {
    /// Evenly among running queries. A query may use more than its part while others use less. If memory is short, the
    /// queries above their part are cancelled first.
    #[default]
    None,
    /// In proportion to a query's share of all slots (`max_concurrency`); a query above its share spills.
    Fixed,
    /// In proportion to a query's share of the slots in use; a query above its share spills.
    Dynamic,
}

impl fmt::Display for SlotPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotPolicy::None => "none",
            SlotPolicy::Fixed => "fixed",
            SlotPolicy::Dynamic => "dynamic",
        })
    }
}

/// Formats a percentage like Doris: `20%`, `0.5%`.
#[must_use]
pub fn percent(share: Ppm) -> String {
    share.to_string().replace(' ', "")
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::OfBase(share) => f.write_str(&percent(*share)),
            MemoryLimit::Size(size) => f.write_str(&exact(size.0)),
        }
    }
}

/// Formats a CPU limit like Doris; a number of CPUs, which Doris does not have, is followed by its unit.
#[must_use]
pub fn cpu_text(amount: CpuAmount) -> String {
    match amount {
        CpuAmount::OfMachine(share) => percent(share),
        CpuAmount::Cpus(cpus) => cpus.to_string(),
    }
}

/// A queue with Doris' settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SqlQueue {
    /// `max_concurrency`.
    pub max_concurrency: u32,
    /// `max_queue_size`.
    pub max_size: u32,
    /// `queue_timeout`.
    pub timeout_ms: u32,
}

/// Formats a number of bytes in the largest unit that expresses it exactly.
#[must_use]
pub fn exact(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let found = units.into_iter().find(|(factor, _)| bytes > 0 && bytes.is_multiple_of(*factor));
    found.map_or_else(|| format!("{bytes} B"), |(factor, unit)| format!("{} {unit}", bytes / factor))
}
