//! Properties of a workload group: Apache Doris' two vocabularies, validated, and one internal form behind both.
//!
//! The internal form has the names of Doris 4.0 (`min_cpu_percent`, `max_cpu_percent`, `min_memory_percent`,
//! `max_memory_percent`). The older names mean the same and are accepted everywhere: `cpu_hard_limit` is
//! `max_cpu_percent`, `memory_limit` is `max_memory_percent`, `tag` is `compute_group`, `spill_threshold_*_watermark`
//! is `memory_*_watermark`. `cpu_share` is a separate property. `enable_memory_overcommit` says whether the memory
//! limit is soft, which is the default for a limit written as `memory_limit`, but not for `max_memory_percent`.
//!
//! **Error messages** are those of the Doris version whose name was used: 4.0 for the new names and those that both
//! have, 3.x for `cpu_share`, `cpu_hard_limit` and the sums of both limits, 2.1 for `memory_limit`,
//! `enable_memory_overcommit`, `spill_threshold_*`, and for the sums of groups that have a `tag`.
//!
//! **Extensions**: percents may have fractions (kept to a thousandth of a percent), memory limits may be sizes
//! (`'1690MB'`), CPU limits numbers of CPUs (`'2.5 cores'`), rates may have units (`'100 MiB/s'`), and `class` is
//! `online` or `offline`. The default class is online, because a group that runs inside the server shares locks with
//! all others in it: its limits are enforced cooperatively, never by the kernel. An offline group gets a process of its
//! own, whose limits the kernel enforces.

mod check;
mod set;
pub mod spec;
mod table;

use crate::statement::Properties;
use commensal_core::units::{Bytes, CpuAmount, Ppm};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use check::{hard_limits_fill, sums};
pub use table::{
    Cell, EnforcedBy, GroupProperties, OnlySql, PropertyRow, ROWS, Shown, columns, not_enforced, shown,
};

/// The compute group when none is named.
pub const DEFAULT_COMPUTE_GROUP: &str = "default";
/// The largest concurrency limit, which is the default.
pub const UNLIMITED: u32 = i32::MAX as u32;
/// 100 percent.
pub const WHOLE: Ppm = Ppm(1_000_000);
/// Share of the machine's memory that percentages refer to (`mem_limit` in Doris' be.conf).
pub const MEMORY_BASE: Ppm = Ppm(900_000);

/// Why a property is refused, in Doris' words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PropertyError(pub String);

/// Whether a limit was written with its old or new name: it decides which sums are checked and how it is shown.
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

/// A limit and the name that it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit<T> {
    /// The limit.
    pub amount: T,
    /// Old or new name.
    pub named: Named,
}

/// How a group's memory is divided among its queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotPolicy {
    /// Evenly among running queries; a query may use more while others use less.
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

impl GroupProperties {
    /// Percent of the memory limit above which queries spill, by default (Doris 4.0).
    pub const LOW_WATERMARK: u32 = 75;
    /// Percent of the memory limit above which queries wait, by default (Doris 4.0).
    pub const HIGH_WATERMARK: u32 = 85;
    /// Percent of memory for write buffers, by default (Doris 3.1 and later).
    pub const WRITE_BUFFER_RATIO: u32 = 20;

    /// Builds the properties of a new group.
    ///
    /// # Errors
    /// [`PropertyError`] for the first property that is unknown or out of its range, or when two contradict each other.
    pub fn new(given: &Properties) -> Result<GroupProperties, PropertyError> {
        GroupProperties::default().altered(given)
    }

    /// These properties with some of them changed, validated again as a whole. A property of one vocabulary replaces
    /// the value set by its other name.
    ///
    /// # Errors
    /// As [`GroupProperties::new`].
    pub fn altered(&self, given: &Properties) -> Result<GroupProperties, PropertyError> {
        let mut new = self.clone();
        set::all(&mut new, given)?;
        check::one(&new, given)?;
        Ok(new)
    }

    /// Whether the memory limit is soft: kept only while the process is short of memory.
    #[must_use]
    pub fn overcommits(&self) -> bool {
        let by_name = self.max_memory.is_some_and(|limit| limit.named == Named::Old);
        self.enable_memory_overcommit.unwrap_or(by_name || self.max_memory.is_none())
    }
}

/// A percent as Doris shows it: `20%`, `0.5%`.
#[must_use]
pub fn percent(share: Ppm) -> String {
    share.to_string().replace(' ', "")
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::OfBase(share) => f.write_str(&percent(*share)),
            MemoryLimit::Size(size) => f.write_str(&spec::exact(size.0)),
        }
    }
}

/// A CPU limit as Doris shows it, or in CPUs.
#[must_use]
pub fn cpu_text(amount: CpuAmount) -> String {
    match amount {
        CpuAmount::OfMachine(share) => percent(share),
        CpuAmount::Cpus(cpus) => cpus.to_string(),
    }
}

#[cfg(test)]
mod tests;
