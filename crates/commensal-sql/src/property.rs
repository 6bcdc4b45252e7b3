//! Properties of a workload group: Apache Doris' two vocabularies, validated, and one truth behind them.
//!
//! The truth has the names of Doris 4.0 (`min_cpu_percent`, `max_cpu_percent`, `min_memory_percent`,
//! `max_memory_percent`). The older names mean the same things and are accepted everywhere: `cpu_hard_limit` is
//! `max_cpu_percent`, `memory_limit` is `max_memory_percent`, `tag` is `compute_group`, `spill_threshold_*_watermark`
//! is `memory_*_watermark`. `cpu_share` is a share of its own; `enable_memory_overcommit` says whether the memory limit
//! is soft, which is the default for a limit that was written as `memory_limit` and not for `max_memory_percent`.
//!
//! **Texts of errors** are those of Doris, of the version whose name was used: 4.0 for the new names and those that
//! both have, 3.x for `cpu_share`, `cpu_hard_limit` and the sums of both limits, 2.1 for `memory_limit`,
//! `enable_memory_overcommit`, `spill_threshold_*`, and for the sums of groups that have a `tag`.
//!
//! **Extensions**: percents may have fractions (kept to a thousandth of a percent), memory limits may be sizes
//! (`'1690MB'`), CPU limits numbers of CPUs (`'2.5 cores'`), rates may have units (`'100 MiB/s'`), and `class` is
//! `online` or `offline`. The default class is online, because a group that runs inside the server shares locks with
//! everybody else in it: its limits are kept cooperatively, never by the kernel. An offline group gets a process of its
//! own, and then the kernel keeps its limits.

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

/// The compute group of who names none.
pub const DEFAULT_COMPUTE_GROUP: &str = "default";
/// The largest number of queries at once, which is the default.
pub const UNLIMITED: u32 = i32::MAX as u32;
/// The whole.
pub const WHOLE: Ppm = Ppm(1_000_000);
/// What percents of memory are of, as a share of the machine's memory (`mem_limit` in Doris' be.conf).
pub const MEMORY_BASE: Ppm = Ppm(900_000);

/// Why a property is refused, in Doris' words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PropertyError(pub String);

/// Which era's name a limit was written with: it decides which sums are checked and how it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Named {
    /// `cpu_hard_limit`, `memory_limit`, `tag`.
    Old,
    /// `max_cpu_percent`, `max_memory_percent`, `compute_group`.
    #[default]
    New,
}

/// A memory limit as SQL means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Share of the memory base, not of the machine.
    OfBase(Ppm),
    /// A size.
    Size(Bytes),
}

/// A limit and the name it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit<T> {
    /// How much.
    pub amount: T,
    /// By which name.
    pub named: Named,
}

/// How a group's memory is divided among its queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotPolicy {
    /// Evenly among those that run; a query may have more while others have less.
    #[default]
    None,
    /// By a query's slots of all that there are (`max_concurrency`); who has more spills.
    Fixed,
    /// By a query's slots of those in use; who has more spills.
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
    /// Percent of memory for what is being written, by default (Doris 3.1 and later).
    pub const WRITE_BUFFER_RATIO: u32 = 20;

    /// A new group's properties.
    ///
    /// # Errors
    /// [`PropertyError`] for the first property that is unknown or out of its range, or when two contradict each other.
    pub fn new(given: &Properties) -> Result<GroupProperties, PropertyError> {
        GroupProperties::default().altered(given)
    }

    /// These properties with some of them changed, and judged as a whole again. A property of one vocabulary replaces
    /// what was said by its other name.
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
