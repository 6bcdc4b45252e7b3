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

use crate::statement::Properties;
use commensal_core::group::Class;
use commensal_core::units::{Bytes, CpuAmount, Ppm};
use std::fmt;

pub use check::{hard_limits_fill, sums};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotPolicy {
    /// Not at all.
    #[default]
    None,
    /// By slots of `max_concurrency`.
    Fixed,
    /// By slots in use.
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

/// Everything that the properties of a group say. `None` is "not limited" or "the default".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupProperties {
    /// Its side.
    pub class: Class,
    /// Percents are added up among groups of the same one.
    pub compute_group: String,
    /// Whether that was written as `tag`.
    pub compute_group_named: Named,
    /// CPU soft share, 1024 being everybody's default.
    pub cpu_share: Option<u32>,
    /// CPU that it gets when all want some.
    pub min_cpu: Ppm,
    /// CPU hard limit.
    pub max_cpu: Option<Limit<CpuAmount>>,
    /// Memory that is not taken from it while others have more than theirs.
    pub min_memory: Ppm,
    /// Memory limit.
    pub max_memory: Option<Limit<MemoryLimit>>,
    /// Whether the memory limit is soft, when that was said.
    pub overcommit: Option<bool>,
    /// Queries at once.
    pub max_concurrency: u32,
    /// Queries that wait.
    pub max_queue_size: u32,
    /// Longest wait in milliseconds; 0 leaves it to the query's own time limit.
    pub queue_timeout_ms: u32,
    /// Threads of local scans.
    pub scan_thread_num: Option<u32>,
    /// Most threads of remote scans; set together with the least.
    pub max_remote_scan_thread_num: Option<u32>,
    /// Least threads of remote scans.
    pub min_remote_scan_thread_num: Option<u32>,
    /// Percent of the memory limit above which queries spill when asked.
    pub low_watermark: Option<u32>,
    /// Percent of the memory limit above which queries wait for memory.
    pub high_watermark: Option<u32>,
    /// Percent of memory for what is being written.
    pub write_buffer_ratio: Option<u32>,
    /// How memory is divided among queries.
    pub slot_memory_policy: SlotPolicy,
    /// Local reads, bytes per second.
    pub read_bytes_per_second: Option<u64>,
    /// Remote reads, bytes per second.
    pub remote_read_bytes_per_second: Option<u64>,
}

impl Default for GroupProperties {
    fn default() -> Self {
        GroupProperties {
            class: Class::Online,
            compute_group: DEFAULT_COMPUTE_GROUP.to_owned(),
            compute_group_named: Named::New,
            cpu_share: None,
            min_cpu: Ppm(0),
            max_cpu: None,
            min_memory: Ppm(0),
            max_memory: None,
            overcommit: None,
            max_concurrency: UNLIMITED,
            max_queue_size: 0,
            queue_timeout_ms: 0,
            scan_thread_num: None,
            max_remote_scan_thread_num: None,
            min_remote_scan_thread_num: None,
            low_watermark: None,
            high_watermark: None,
            write_buffer_ratio: None,
            slot_memory_policy: SlotPolicy::None,
            read_bytes_per_second: None,
            remote_read_bytes_per_second: None,
        }
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
        self.overcommit.unwrap_or(by_name || self.max_memory.is_none())
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
