//! Columns of the tables of `information_schema`, in their order, with the types that Doris gives them.

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 64 bits.
    Bigint,
    /// 32 bits.
    Int,
    /// A floating point number of 64 bits.
    Double,
    /// True or false.
    Boolean,
    /// A text.
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

/// What each group uses now; rates are of the time since the last look.
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

/// What each group reads from each device and each remote store. Doris has such figures in its monitoring only.
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

/// The groups. Behind these columns come those of the properties (Doris' until 3.x, then those of 4.0, then ours), and VERSION.
pub const GROUPS: Table = Table { name: "workload_groups", columns: &[("ID", Bigint), ("NAME", Varchar)] };

/// The queries that run and wait.
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

/// The policies; [`super::PolicyRow`] has their values.
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

/// Who may use which group; [`super::PrivilegeRow`] has the values.
pub const PRIVILEGES: Table = Table {
    name: "workload_group_privileges",
    columns: &[
        ("GRANTEE", Varchar),
        ("WORKLOAD_GROUP_NAME", Varchar),
        ("PRIVILEGE_TYPE", Varchar),
        ("IS_GRANTABLE", Varchar),
    ],
};
