//! Table of all properties of a group, with one row for each name of a property. The code that parses, sets, shows and
//! stores properties, and that writes messages about them, is generated from these rows.
//!
//! ```text
//! PROPERTIES(…) ── row.set ──► GroupProperties ── row.shown ──► SHOW WORKLOAD GROUPS, information_schema.workload_groups
//!                                └─ [= type] ──► OnlySql ──► SQL's own file
//! ```
//! A row is `"name" => field by parser [field] { … }`. The brackets declare the field, in only one of the rows that
//! share it. `= type` declares a field that is stored in SQL's own file under the field's name, unless it has the
//! type's default. `field: type = default` declares a field that also exists in `groups.d` and is built in `spec`.
//! Rules between properties are in `check`.

use super::set;
use super::values::{
    DEFAULT_COMPUTE_GROUP, Limit, MemoryLimit, Named, SlotPolicy, SqlQueue, UNLIMITED, cpu_text, percent,
};
use crate::statement::Properties;
use commensal_core::group::Class;
use commensal_core::units::{BytesPerS, CpuAmount, Ppm};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The component that enforces a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcedBy {
    /// The decision whether queries run in the server or in a worker process.
    Worker,
    /// Threads and CPU tokens of the group, or its cgroup.
    Cpu,
    /// The group's memory accounting.
    Memory,
    /// The group's queue.
    Queue,
    /// The rate limiters of its reads.
    Reads,
    /// The checks of sums over groups, when a group is defined.
    Catalog,
    /// Nothing: the property is only stored and shown.
    Nothing,
}

/// How a property is shown; this is also the type of its column.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// A whole number; -1 means "not set".
    Number(fn(&GroupProperties) -> i64),
    /// A string.
    Text(fn(&GroupProperties) -> String),
}

/// A shown value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A whole number.
    Number(i64),
    /// A string.
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
    /// The name in statements and column titles of SHOW; in upper case, the name of the column in `information_schema`.
    pub name: &'static str,
    /// Parses and sets the value, or returns Doris' error message.
    pub(super) set: fn(&mut GroupProperties, &str, &str) -> Result<(), String>,
    /// The newer name of the same property.
    pub twin: Option<&'static str>,
    /// How the property is shown.
    pub shown: Shown,
    /// Position among the columns of `information_schema.workload_groups`, if it has one.
    pub column: Option<u8>,
    /// Position among the columns of `SHOW WORKLOAD GROUPS`, if it has one.
    pub show: Option<u8>,
    /// The component that enforces the property.
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
        /// The properties of a workload group. `None` means "not limited" or "the default".
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

        /// The properties of a group that only SQL stores. Shares are in parts per million.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct OnlySql {
            /// The compute group, unless it is the default one.
            #[serde(skip_serializing_if = "is_default")]
            pub compute_group: Option<String>,
            /// Which properties were written with their old names: `cpu_hard_limit`, `memory_limit`, `tag`.
            #[serde(skip_serializing_if = "is_default")]
            pub old_names: Vec<String>,
            /// `min_cpu_percent`.
            #[serde(skip_serializing_if = "is_default")]
            pub min_cpu_ppm: u64,
            /// The CPU hard limit of an online group, which the kernel must not enforce.
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
            /// Queue settings that `groups.d` cannot express: a concurrency limit that is missing, zero or above a
            /// million, or a queue length above a million.
            #[serde(skip_serializing_if = "is_default")]
            pub queue: Option<SqlQueue>,
            $($(#[doc = $kept_doc] #[serde(skip_serializing_if = "is_default")] pub $place: $kept,)?)*
        }

        impl GroupProperties {
            /// Returns the fields that are stored unchanged.
            pub(super) fn kept(&self) -> OnlySql {
                OnlySql { $($($place: { let kept: $kept = self.$place; kept },)?)* ..OnlySql::default() }
            }

            /// Returns default properties with the stored fields filled in.
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
    "class" => class by set::class [
        class: Class = Class::Online,
        "Whether queries run inside the server (online), or in a worker process (offline) if one can be \
         started."
    ] {
        shown: Shown::Text(|own| own.class.to_string()), column: Some(24), enforced_by: EnforcedBy::Worker,
    }
    "cpu_share" => cpu_share by set::cpu_share [
        = Option<u32>,
        "CPU weight among all groups, on the scale of cgroup v1, where 1024 is the default; without effect \
         if `min_cpu` is set."
    ] {
        shown: Shown::Number(|own| optional(own.cpu_share)), column: Some(2), enforced_by: EnforcedBy::Cpu,
    }
    "cpu_hard_limit" => max_cpu by set::cpu_hard_limit [
        max_cpu: Option<Limit<CpuAmount>> = None,
        "CPU hard limit: a share of the machine's CPUs, or a number of CPUs."
    ] {
        twin: Some("max_cpu_percent"), shown: Shown::Text(|own| cpu(own, "-1")), column: Some(8), enforced_by: EnforcedBy::Cpu,
    }
    "memory_limit" => max_memory by set::memory_limit [
        max_memory: Option<Limit<MemoryLimit>> = None,
        "Memory limit, hard or soft: a share of the memory base, or a size."
    ] {
        twin: Some("max_memory_percent"), shown: Shown::Text(|own| memory(own, "-1")), column: Some(3), enforced_by: EnforcedBy::Memory,
    }
    "enable_memory_overcommit" => enable_memory_overcommit by set::overcommit [
        = Option<bool>,
        "Whether the memory limit is soft; if not set, a limit written as `memory_limit` is, and any other \
         is not."
    ] { shown: Shown::Text(|own| own.overcommits().to_string()), column: Some(4), enforced_by: EnforcedBy::Memory }
    "min_cpu_percent" => min_cpu by set::min_percent [
        min_cpu: Ppm = Ppm(0),
        "CPU weight among all groups, where 1 % is the default; no CPU time is set aside for it. The sum \
         over a compute group is checked."
    ] {
        shown: Shown::Text(|own| percent(own.min_cpu)), column: Some(18), show: Some(2), enforced_by: EnforcedBy::Cpu,
    }
    "max_cpu_percent" => max_cpu by set::max_cpu_percent [] {
        shown: Shown::Text(|own| cpu(own, "100%")), column: Some(19), show: Some(3), enforced_by: EnforcedBy::Cpu,
    }
    "max_memory_percent" => max_memory by set::max_memory_percent [] {
        shown: Shown::Text(|own| memory(own, "100%")), column: Some(21), show: Some(5), enforced_by: EnforcedBy::Memory,
    }
    "min_memory_percent" => min_memory by set::min_percent [
        min_memory: Ppm = Ppm(0), "Share of the memory base. Only the sum over a compute group is checked."
    ] { shown: Shown::Text(|own| percent(own.min_memory)), column: Some(20), show: Some(4), enforced_by: EnforcedBy::Nothing }
    "write_buffer_ratio" => write_buffer_ratio by set::write_buffer_ratio [
        = Option<u32>, "Percentage of memory for write buffers; without effect."
    ] {
        shown: Shown::Text(|own| format!("{}%", own.write_buffer_ratio.unwrap_or(GroupProperties::WRITE_BUFFER_RATIO))),
        column: Some(22), show: Some(17), enforced_by: EnforcedBy::Nothing,
    }
    "slot_memory_policy" => slot_memory_policy by set::slot_policy [
        = SlotPolicy, "How a hard memory limit is divided among the group's queries."
    ] {
        shown: Shown::Text(|own| own.slot_memory_policy.to_string()), column: Some(23), show: Some(18), enforced_by: EnforcedBy::Memory,
    }
    "scan_thread_num" => scan_thread_num by set::threads [
        = Option<u32>, "Number of threads for local scans; without effect."
    ] {
        shown: Shown::Number(|own| optional(own.scan_thread_num)), column: Some(9), show: Some(9), enforced_by: EnforcedBy::Nothing,
    }
    "max_remote_scan_thread_num" => max_remote_scan_thread_num by set::threads [
        = Option<u32>,
        "Maximum number of threads for remote scans, set together with the minimum; without effect."
    ] {
        shown: Shown::Number(|own| optional(own.max_remote_scan_thread_num)), column: Some(10), show: Some(10),
        enforced_by: EnforcedBy::Nothing,
    }
    "min_remote_scan_thread_num" => min_remote_scan_thread_num by set::threads [
        = Option<u32>,
        "Minimum number of threads for remote scans, set together with the maximum; without effect."
    ] {
        shown: Shown::Number(|own| optional(own.min_remote_scan_thread_num)), column: Some(11), show: Some(11),
        enforced_by: EnforcedBy::Nothing,
    }
    "max_concurrency" => max_concurrency by set::queue [
        max_concurrency: u32 = UNLIMITED,
        "Number of slots. A query takes one, or as many as its session asks for (`query_slot_count`)."
    ] {
        shown: Shown::Number(|own| i64::from(own.max_concurrency)), column: Some(5), show: Some(6), enforced_by: EnforcedBy::Queue,
    }
    "max_queue_size" => max_queue_size by set::queue [
        max_queue_size: u32 = 0, "Maximum number of waiting queries."
    ] {
        shown: Shown::Number(|own| i64::from(own.max_queue_size)), column: Some(6), show: Some(7), enforced_by: EnforcedBy::Queue,
    }
    "queue_timeout" => queue_timeout_ms by set::queue [
        queue_timeout_ms: u32 = 0,
        "Maximum waiting time in milliseconds, 0 for none. A query waits no longer than its own time limit \
         in any case."
    ] { shown: Shown::Number(|own| i64::from(own.queue_timeout_ms)), column: Some(7), show: Some(8), enforced_by: EnforcedBy::Queue }
    "spill_threshold_low_watermark" => memory_low_watermark by set::watermark [
        = Option<u32>,
        "Percentage of a hard memory limit from which no further query starts, unless none is running."
    ] { twin: Some("memory_low_watermark"), enforced_by: EnforcedBy::Memory }
    "spill_threshold_high_watermark" => memory_high_watermark by set::watermark [
        = Option<u32>, "Percentage of a hard memory limit above which operators that can spill must spill."
    ] { twin: Some("memory_high_watermark"), enforced_by: EnforcedBy::Memory }
    "memory_low_watermark" => memory_low_watermark by set::watermark [] {
        shown: Shown::Text(|own| format!("{}%", own.watermarks().0)), column: Some(12), show: Some(12), enforced_by: EnforcedBy::Memory,
    }
    "memory_high_watermark" => memory_high_watermark by set::watermark [] {
        shown: Shown::Text(|own| format!("{}%", own.watermarks().1)), column: Some(13), show: Some(13), enforced_by: EnforcedBy::Memory,
    }
    "read_bytes_per_second" => read_bytes_per_second by set::rate [
        read_bytes_per_second: Option<BytesPerS> = None, "Limit of reads from each local device."
    ] {
        shown: Shown::Number(|own| rate(own.read_bytes_per_second)), column: Some(16), show: Some(15), enforced_by: EnforcedBy::Reads,
    }
    "remote_read_bytes_per_second" => remote_read_bytes_per_second by set::rate [
        remote_read_bytes_per_second: Option<BytesPerS> = None, "Limit of reads from each remote store."
    ] {
        shown: Shown::Number(|own| rate(own.remote_read_bytes_per_second)), column: Some(17), show: Some(16),
        enforced_by: EnforcedBy::Reads,
    }
    "tag" => compute_group by set::compute_group [
        compute_group_named: Named = Named::New,
        "Whether the compute group was written as `tag` or as `compute_group`, for messages and columns."
    ] {
        twin: Some("compute_group"), shown: Shown::Text(|own| match own.compute_group_named {
            Named::Old => own.compute_group.clone(),
            Named::New => String::new(),
        }), column: Some(14), enforced_by: EnforcedBy::Catalog,
    }
    "compute_group" => compute_group by set::compute_group [
        compute_group: String = DEFAULT_COMPUTE_GROUP.to_owned(),
        "Name of the compute group. Sums of limits and the number of groups are checked within each."
    ] { shown: Shown::Text(|own| own.compute_group.clone()), column: Some(15), show: Some(14), enforced_by: EnforcedBy::Catalog }
}

impl GroupProperties {
    /// Default of the percentage of a hard memory limit from which no further query starts. The number is Doris 4.0's.
    pub const LOW_WATERMARK: u32 = 75;
    /// Default of the percentage of a hard memory limit above which operators must spill. The number is Doris 4.0's.
    pub const HIGH_WATERMARK: u32 = 85;
    /// Default percentage of memory for write buffers (Doris 3.1 and later).
    pub const WRITE_BUFFER_RATIO: u32 = 20;

    /// Whether the memory limit is soft, that is, enforced only while the process is short of memory.
    #[must_use]
    pub fn overcommits(&self) -> bool {
        let by_name = self.max_memory.is_some_and(|limit| limit.named == Named::Old);
        self.enable_memory_overcommit.unwrap_or(by_name || self.max_memory.is_none())
    }

    /// Returns the low and the high watermark, in percent of the memory limit.
    #[must_use]
    pub fn watermarks(&self) -> (u32, u32) {
        let low = self.memory_low_watermark.unwrap_or(GroupProperties::LOW_WATERMARK);
        (low, self.memory_high_watermark.unwrap_or(GroupProperties::HIGH_WATERMARK))
    }
}

impl PropertyRow {
    /// Returns the value to show.
    #[must_use]
    pub fn cell(&self, of: &GroupProperties) -> Cell {
        match self.shown {
            Shown::Number(number) => Cell::Number(number(of)),
            Shown::Text(text) => Cell::Text(text(of)),
        }
    }
}

/// Returns the rows that have a position in a list, in the order of their positions.
fn in_order(place: fn(&PropertyRow) -> Option<u8>) -> Vec<&'static PropertyRow> {
    let mut rows: Vec<&PropertyRow> = ROWS.iter().filter(|row| place(row).is_some()).collect();
    rows.sort_by_key(|row| place(row));
    rows
}

/// Returns the columns of `information_schema.workload_groups`.
#[must_use]
pub fn columns() -> Vec<&'static PropertyRow> {
    in_order(|row| row.column)
}

/// Returns the columns of `SHOW WORKLOAD GROUPS`.
#[must_use]
pub fn shown() -> Vec<&'static PropertyRow> {
    in_order(|row| row.show)
}

/// Returns warnings about given properties that are not enforced.
#[must_use]
pub fn not_enforced(given: &Properties) -> Vec<String> {
    let idle =
        ROWS.iter().filter(|row| row.enforced_by == EnforcedBy::Nothing && given.contains_key(row.name));
    idle.map(|row| format!("{} is stored and shown, but not enforced", row.name)).collect()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn optional<N: TryInto<i64>>(value: Option<N>) -> i64 {
    value.map_or(-1, |number| number.try_into().unwrap_or(i64::MAX))
}

/// Returns a rate in bytes per second.
fn rate(value: Option<BytesPerS>) -> i64 {
    optional(value.map(|rate| rate.0))
}

fn cpu(own: &GroupProperties, unset: &str) -> String {
    own.max_cpu.map_or_else(|| unset.to_owned(), |limit| cpu_text(limit.amount))
}

fn memory(own: &GroupProperties, unset: &str) -> String {
    own.max_memory.map_or_else(|| unset.to_owned(), |limit| limit.amount.to_string())
}
