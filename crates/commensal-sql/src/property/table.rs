//! Every property of a group, one row for each of its names. Parsing, setting, showing, storing and messages are all
//! generated from these rows.
//!
//! ```text
//! PROPERTIES(…) ── row.set ──► GroupProperties ── row.shown ──► SHOW WORKLOAD GROUPS, information_schema.workload_groups
//!                                └─ [= type] ──► OnlySql ──► SQL's own file
//! ```
//! A row is `"name" => field by parser [field] { … }`. The brackets declare the field, where this name declares it: `=
//! type` is stored in SQL's own file under its name, unless it has the type's default; `field: type = default` also
//! exists in `groups.d` and is built in `spec`. Rules between properties are in `check`.

use super::set;
use super::values::{
    DEFAULT_COMPUTE_GROUP, Limit, MemoryLimit, Named, SlotPolicy, SqlQueue, UNLIMITED, cpu_text, percent,
};
use crate::statement::Properties;
use commensal_core::group::Class;
use commensal_core::units::{CpuAmount, Ppm};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What enforces a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcedBy {
    /// The choice between the server and a worker process.
    Worker,
    /// Threads and CPU tokens of the group, or its cgroup.
    Cpu,
    /// The group's memory accounting.
    Memory,
    /// The group's queue.
    Queue,
    /// The rate limiters of its reads.
    Reads,
    /// The checks of sums when a group is defined.
    Catalog,
    /// Nothing: the property is only stored and shown.
    Nothing,
}

/// How a property is shown, which is also the type of its column.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// A whole number; -1 is "not set".
    Number(fn(&GroupProperties) -> i64),
    /// A text.
    Text(fn(&GroupProperties) -> String),
}

/// A shown value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Number(number) => number.fmt(f),
            Cell::Text(text) => f.write_str(text),
        }
    }
}

/// One name of a property.
#[derive(Debug)]
pub struct PropertyRow {
    /// The name in statements and as a title of SHOW; in upper case, the name of the column.
    pub name: &'static str,
    /// Parses and sets the value, or returns Doris' error message.
    pub(super) set: fn(&mut GroupProperties, &str, &str) -> Result<(), String>,
    /// The newer name of the same thing.
    pub twin: Option<&'static str>,
    /// How it is shown.
    pub shown: Shown,
    /// Its place among the columns of `information_schema.workload_groups`, if it has one.
    pub column: Option<u8>,
    /// Its place among the columns of `SHOW WORKLOAD GROUPS`, if it has one.
    pub show: Option<u8>,
    /// What enforces it.
    pub enforced_by: EnforcedBy,
}

const PLAIN: PropertyRow = PropertyRow {
    name: "",
    set: |_, _, _| Ok(()),
    twin: None,
    shown: Shown::Text(|_| String::new()),
    column: None,
    show: None,
    enforced_by: EnforcedBy::Nothing,
};

macro_rules! properties {
    ($($name:literal => $place:ident by $parse:path [
        $(= $kept:ty, $kept_doc:literal)? $($field:ident: $type:ty = $default:expr, $doc:literal)?
    ] { $($key:ident: $value:expr),* $(,)? })*) => {
        /// The properties of a workload group, each with its value. `None` is "not limited" or "the default".
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct GroupProperties {
            $($(#[doc = $kept_doc] pub $place: $kept,)? $(#[doc = $doc] pub $field: $type,)?)*
        }

        impl Default for GroupProperties {
            fn default() -> Self {
                GroupProperties { $($($place: <$kept>::default(),)? $($field: $default,)?)* }
            }
        }

        /// Every name of a property, in the order in which Doris validates them.
        pub static ROWS: &[PropertyRow] = &[$(PropertyRow {
            name: $name,
            set: |properties, name, value| {
                properties.$place = $parse(name, value)?;
                Ok(())
            },
            $($key: $value,)*
            ..PLAIN
        }),*];

        /// The properties of a group that only SQL has. Shares are in parts per million.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct OnlySql {
            /// The compute group, unless it is the default one.
            #[serde(skip_serializing_if = "is_default")]
            pub compute_group: Option<String>,
            /// Limits that were written with their old names: `cpu_hard_limit`, `memory_limit`, `tag`.
            #[serde(skip_serializing_if = "is_default")]
            pub old_names: Vec<String>,
            /// `min_cpu_percent`.
            #[serde(skip_serializing_if = "is_default")]
            pub min_cpu_ppm: u64,
            /// The CPU hard limit of an online group, which must not be enforced by the kernel.
            #[serde(skip_serializing_if = "is_default")]
            pub cpu_max: Option<String>,
            /// `min_memory_percent`.
            #[serde(skip_serializing_if = "is_default")]
            pub min_memory_ppm: u64,
            /// A soft memory limit, as a share of the memory base.
            #[serde(skip_serializing_if = "is_default")]
            pub memory_soft_ppm: Option<u64>,
            /// A soft memory limit, as a size in bytes.
            #[serde(skip_serializing_if = "is_default")]
            pub memory_soft_bytes: Option<u64>,
            /// Queue settings that `groups.d` cannot express: zero concurrency, or a bounded queue without a
            /// concurrency limit.
            #[serde(skip_serializing_if = "is_default")]
            pub queue: Option<SqlQueue>,
            $($(#[doc = $kept_doc] #[serde(skip_serializing_if = "is_default")] pub $place: $kept,)?)*
        }

        impl GroupProperties {
            /// The fields that are stored unchanged.
            pub(super) fn kept(&self) -> OnlySql {
                OnlySql { $($($place: { let kept: $kept = self.$place; kept },)?)* ..OnlySql::default() }
            }

            /// Default properties with the stored fields.
            pub(super) fn of_kept(only: &OnlySql) -> GroupProperties {
                GroupProperties {
                    $($($place: { let kept: $kept = only.$place; kept },)?)*
                    ..GroupProperties::default()
                }
            }
        }
    };
}

properties! {
    "class" => class by set::class [class: Class = Class::Online, "Its side."] {
        shown: Shown::Text(|own| own.class.to_string()), column: Some(24), enforced_by: EnforcedBy::Worker,
    }
    "cpu_share" => cpu_share by set::cpu_share [= Option<u32>, "CPU soft share, 1024 being everybody's default."] {
        shown: Shown::Number(|own| optional(own.cpu_share)), column: Some(2), enforced_by: EnforcedBy::Cpu,
    }
    "cpu_hard_limit" => max_cpu by set::cpu_hard_limit [max_cpu: Option<Limit<CpuAmount>> = None, "CPU hard limit."] {
        twin: Some("max_cpu_percent"), shown: Shown::Text(|own| cpu(own, "-1")), column: Some(8), enforced_by: EnforcedBy::Cpu,
    }
    "memory_limit" => max_memory by set::memory_limit [max_memory: Option<Limit<MemoryLimit>> = None, "Memory limit."] {
        twin: Some("max_memory_percent"), shown: Shown::Text(|own| memory(own, "-1")), column: Some(3), enforced_by: EnforcedBy::Memory,
    }
    "enable_memory_overcommit" => enable_memory_overcommit by set::overcommit [
        = Option<bool>, "Whether the memory limit is soft, when that was said."
    ] { shown: Shown::Text(|own| own.overcommits().to_string()), column: Some(4), enforced_by: EnforcedBy::Memory }
    "min_cpu_percent" => min_cpu by set::min_percent [min_cpu: Ppm = Ppm(0), "CPU that it gets when all want some."] {
        shown: Shown::Text(|own| percent(own.min_cpu)), column: Some(18), show: Some(2), enforced_by: EnforcedBy::Cpu,
    }
    "max_cpu_percent" => max_cpu by set::max_cpu_percent [] {
        shown: Shown::Text(|own| cpu(own, "100%")), column: Some(19), show: Some(3), enforced_by: EnforcedBy::Cpu,
    }
    "max_memory_percent" => max_memory by set::max_memory_percent [] {
        shown: Shown::Text(|own| memory(own, "100%")), column: Some(21), show: Some(5), enforced_by: EnforcedBy::Memory,
    }
    "min_memory_percent" => min_memory by set::min_percent [
        min_memory: Ppm = Ppm(0), "Memory that is meant for it; the sum over a compute group is checked."
    ] { shown: Shown::Text(|own| percent(own.min_memory)), column: Some(20), show: Some(4), enforced_by: EnforcedBy::Nothing }
    "write_buffer_ratio" => write_buffer_ratio by set::write_buffer_ratio [
        = Option<u32>, "Percent of memory for what is being written."
    ] {
        shown: Shown::Text(|own| format!("{}%", own.write_buffer_ratio.unwrap_or(GroupProperties::WRITE_BUFFER_RATIO))),
        column: Some(22), show: Some(17), enforced_by: EnforcedBy::Nothing,
    }
    "slot_memory_policy" => slot_memory_policy by set::slot_policy [= SlotPolicy, "How memory is divided among queries."] {
        shown: Shown::Text(|own| own.slot_memory_policy.to_string()), column: Some(23), show: Some(18), enforced_by: EnforcedBy::Memory,
    }
    "scan_thread_num" => scan_thread_num by set::threads [= Option<u32>, "Threads of local scans."] {
        shown: Shown::Number(|own| optional(own.scan_thread_num)), column: Some(9), show: Some(9), enforced_by: EnforcedBy::Nothing,
    }
    "max_remote_scan_thread_num" => max_remote_scan_thread_num by set::threads [
        = Option<u32>, "Most threads of remote scans; set together with the least."
    ] {
        shown: Shown::Number(|own| optional(own.max_remote_scan_thread_num)), column: Some(10), show: Some(10),
        enforced_by: EnforcedBy::Nothing,
    }
    "min_remote_scan_thread_num" => min_remote_scan_thread_num by set::threads [
        = Option<u32>, "Least threads of remote scans."
    ] {
        shown: Shown::Number(|own| optional(own.min_remote_scan_thread_num)), column: Some(11), show: Some(11),
        enforced_by: EnforcedBy::Nothing,
    }
    "max_concurrency" => max_concurrency by set::queue [max_concurrency: u32 = UNLIMITED, "Queries at once."] {
        shown: Shown::Number(|own| i64::from(own.max_concurrency)), column: Some(5), show: Some(6), enforced_by: EnforcedBy::Queue,
    }
    "max_queue_size" => max_queue_size by set::queue [max_queue_size: u32 = 0, "Queries that wait."] {
        shown: Shown::Number(|own| i64::from(own.max_queue_size)), column: Some(6), show: Some(7), enforced_by: EnforcedBy::Queue,
    }
    "queue_timeout" => queue_timeout_ms by set::queue [
        queue_timeout_ms: u32 = 0, "Longest wait in milliseconds; 0 leaves it to the query's own time limit."
    ] { shown: Shown::Number(|own| i64::from(own.queue_timeout_ms)), column: Some(7), show: Some(8), enforced_by: EnforcedBy::Queue }
    "spill_threshold_low_watermark" => memory_low_watermark by set::watermark [
        = Option<u32>, "Percent of the memory limit above which no other query begins."
    ] { twin: Some("memory_low_watermark"), enforced_by: EnforcedBy::Memory }
    "spill_threshold_high_watermark" => memory_high_watermark by set::watermark [
        = Option<u32>, "Percent of the memory limit above which queries spill."
    ] { twin: Some("memory_high_watermark"), enforced_by: EnforcedBy::Memory }
    "memory_low_watermark" => memory_low_watermark by set::watermark [] {
        shown: Shown::Text(|own| format!("{}%", own.watermarks().0)), column: Some(12), show: Some(12), enforced_by: EnforcedBy::Memory,
    }
    "memory_high_watermark" => memory_high_watermark by set::watermark [] {
        shown: Shown::Text(|own| format!("{}%", own.watermarks().1)), column: Some(13), show: Some(13), enforced_by: EnforcedBy::Memory,
    }
    "read_bytes_per_second" => read_bytes_per_second by set::rate [
        read_bytes_per_second: Option<u64> = None, "Local reads, bytes per second."
    ] {
        shown: Shown::Number(|own| optional(own.read_bytes_per_second)), column: Some(16), show: Some(15), enforced_by: EnforcedBy::Reads,
    }
    "remote_read_bytes_per_second" => remote_read_bytes_per_second by set::rate [
        remote_read_bytes_per_second: Option<u64> = None, "Remote reads, bytes per second."
    ] {
        shown: Shown::Number(|own| optional(own.remote_read_bytes_per_second)), column: Some(17), show: Some(16),
        enforced_by: EnforcedBy::Reads,
    }
    "tag" => compute_group by set::compute_group [
        compute_group_named: Named = Named::New, "Whether the compute group was written as `tag`."
    ] {
        twin: Some("compute_group"), shown: Shown::Text(|own| match own.compute_group_named {
            Named::Old => own.compute_group.clone(),
            Named::New => String::new(),
        }), column: Some(14), enforced_by: EnforcedBy::Catalog,
    }
    "compute_group" => compute_group by set::compute_group [
        compute_group: String = DEFAULT_COMPUTE_GROUP.to_owned(), "Percents are added up among groups of the same one."
    ] { shown: Shown::Text(|own| own.compute_group.clone()), column: Some(15), show: Some(14), enforced_by: EnforcedBy::Catalog }
}

impl GroupProperties {
    /// Percent of the memory limit above which queries spill, by default (Doris 4.0).
    pub const LOW_WATERMARK: u32 = 75;
    /// Percent of the memory limit above which queries wait, by default (Doris 4.0).
    pub const HIGH_WATERMARK: u32 = 85;
    /// Percent of memory for write buffers, by default (Doris 3.1 and later).
    pub const WRITE_BUFFER_RATIO: u32 = 20;

    /// Whether the memory limit is soft: kept only while the process is short of memory.
    #[must_use]
    pub fn overcommits(&self) -> bool {
        let by_name = self.max_memory.is_some_and(|limit| limit.named == Named::Old);
        self.enable_memory_overcommit.unwrap_or(by_name || self.max_memory.is_none())
    }

    /// The low and the high watermark, in percent of the memory limit.
    #[must_use]
    pub fn watermarks(&self) -> (u32, u32) {
        let low = self.memory_low_watermark.unwrap_or(GroupProperties::LOW_WATERMARK);
        (low, self.memory_high_watermark.unwrap_or(GroupProperties::HIGH_WATERMARK))
    }
}

impl PropertyRow {
    /// The shown value.
    #[must_use]
    pub fn cell(&self, of: &GroupProperties) -> Cell {
        match self.shown {
            Shown::Number(number) => Cell::Number(number(of)),
            Shown::Text(text) => Cell::Text(text(of)),
        }
    }
}

/// The columns of a list, ordered by their positions.
fn in_order(place: fn(&PropertyRow) -> Option<u8>) -> Vec<&'static PropertyRow> {
    let mut rows: Vec<&PropertyRow> = ROWS.iter().filter(|row| place(row).is_some()).collect();
    rows.sort_by_key(|row| place(row));
    rows
}

/// The columns of `information_schema.workload_groups`.
#[must_use]
pub fn columns() -> Vec<&'static PropertyRow> {
    in_order(|row| row.column)
}

/// The columns of `SHOW WORKLOAD GROUPS`.
#[must_use]
pub fn shown() -> Vec<&'static PropertyRow> {
    in_order(|row| row.show)
}

/// Warnings about given properties that are not enforced.
#[must_use]
pub fn not_enforced(given: &Properties) -> Vec<String> {
    let idle =
        ROWS.iter().filter(|row| row.enforced_by == EnforcedBy::Nothing && given.contains_key(row.name));
    idle.map(|row| format!("{} is stored and shown, and not enforced", row.name)).collect()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn optional<N: TryInto<i64>>(value: Option<N>) -> i64 {
    value.map_or(-1, |number| number.try_into().unwrap_or(i64::MAX))
}

fn cpu(own: &GroupProperties, unset: &str) -> String {
    own.max_cpu.map_or_else(|| unset.to_owned(), |limit| cpu_text(limit.amount))
}

fn memory(own: &GroupProperties, unset: &str) -> String {
    own.max_memory.map_or_else(|| unset.to_owned(), |limit| limit.amount.to_string())
}
