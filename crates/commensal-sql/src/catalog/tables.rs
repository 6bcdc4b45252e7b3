//! Columns of the tables in `information_schema`, in order, with Doris' types.

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A 64-bit integer.
    Bigint,
    /// A 32-bit integer.
    Int,
    /// A floating point number of 64 bits.
    Double,
    /// True or false.
    Boolean,
    /// A string.
    Varchar,
}

/// A table: its name and its columns.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Name in `information_schema`.
    pub name: &'static str,
    /// Names and types.
    pub columns: &'static [(&'static str, Kind)],
}

use Kind::{Bigint, Boolean, Double, Int, Varchar};

/// Current resource usage of each group; rates are averages since the previous measurement.
pub const RESOURCE_USAGE: Table = Table {
    name: "workload_group_resource_usage",
    columns: &[
        ("BE_ID", Bigint),
        ("WORKLOAD_GROUP_ID", Bigint),
        ("MEMORY_USAGE_BYTES", Bigint),
        ("CPU_USAGE_PERCENT", Double),
        ("LOCAL_SCAN_BYTES_PER_SECOND", Bigint),
        ("REMOTE_SCAN_BYTES_PER_SECOND", Bigint),
    ],
};

/// Reads of each group from each device and each remote store. Doris has these values only in its monitoring, not in a
/// table.
pub const READS: Table = Table {
    name: "workload_group_reads",
    columns: &[
        ("WORKLOAD_GROUP_ID", Bigint),
        ("NAME", Varchar),
        ("KIND", Varchar),
        ("SOURCE", Varchar),
        ("LIMIT_BYTES_PER_SECOND", Bigint),
        ("BYTES_PER_SECOND", Bigint),
        ("READ_BYTES", Bigint),
        ("REQUESTS", Bigint),
        ("WAITS", Bigint),
        ("WAIT_TIME_MS", Bigint),
        ("WAITING", Bigint),
    ],
};

/// Workload groups. After these columns follow the columns of the properties (first those of Doris up to 3.x, then
/// those of Doris 4.0, then commensal's own) and VERSION.
pub const GROUPS: Table = Table { name: "workload_groups", columns: &[("ID", Bigint), ("NAME", Varchar)] };

/// Running and waiting queries.
pub const ACTIVE_TASKS: Table = Table {
    name: "backend_active_tasks",
    columns: &[
        ("BE_ID", Bigint),
        ("FE_HOST", Varchar),
        ("WORKLOAD_GROUP_ID", Bigint),
        ("QUERY_ID", Varchar),
        ("TASK_TIME_MS", Bigint),
        ("TASK_CPU_TIME_MS", Bigint),
        ("SCAN_ROWS", Bigint),
        ("SCAN_BYTES", Bigint),
        ("BE_PEAK_MEMORY_BYTES", Bigint),
        ("CURRENT_USED_MEMORY_BYTES", Bigint),
        ("SHUFFLE_SEND_BYTES", Bigint),
        ("SHUFFLE_SEND_ROWS", Bigint),
        ("QUERY_TYPE", Varchar),
        ("SPILL_WRITE_BYTES_TO_LOCAL_STORAGE", Bigint),
        ("SPILL_READ_BYTES_FROM_LOCAL_STORAGE", Bigint),
    ],
};

/// The last queries that took longer than `long_query_time`, and what they waited for. Waits of parallel tasks are added up.
pub const SLOW_QUERIES: Table = Table {
    name: "slow_queries",
    columns: &[
        ("QUERY_ID", Varchar),
        ("USER", Varchar),
        ("WORKLOAD_GROUP", Varchar),
        ("END_TIME", Varchar),
        ("QUERY_TIME_MS", Bigint),
        ("QUEUE_TIME_MS", Bigint),
        ("MEMORY_WAIT_MS", Bigint),
        ("CPU_WAIT_MS", Bigint),
        ("LOCAL_READ_WAIT_MS", Bigint),
        ("REMOTE_READ_WAIT_MS", Bigint),
        ("SLEEP_MS", Bigint),
        ("CPU_TIME_MS", Bigint),
        ("SCAN_ROWS", Bigint),
        ("LOCAL_READ_BYTES", Bigint),
        ("REMOTE_READ_BYTES", Bigint),
        ("PEAK_MEMORY_BYTES", Bigint),
        ("SPILLED_BYTES", Bigint),
        ("ERROR", Varchar),
        ("STATEMENT", Varchar),
    ],
};

/// Workload policies; [`super::PolicyRow`] holds the values.
pub const POLICIES: Table = Table {
    name: "workload_policy",
    columns: &[
        ("ID", Bigint),
        ("NAME", Varchar),
        ("CONDITION", Varchar),
        ("ACTION", Varchar),
        ("PRIORITY", Int),
        ("ENABLED", Boolean),
        ("VERSION", Int),
        ("WORKLOAD_GROUP", Varchar),
    ],
};

/// Users and roles with the groups that they may use; [`super::PrivilegeRow`] holds the values.
pub const PRIVILEGES: Table = Table {
    name: "workload_group_privileges",
    columns: &[
        ("GRANTEE", Varchar),
        ("WORKLOAD_GROUP_NAME", Varchar),
        ("PRIVILEGE_TYPE", Varchar),
        ("IS_GRANTABLE", Varchar),
    ],
};
