//! What SHOW and the tables of `information_schema` tell, for who asks.

use super::{Catalog, GroupDefinition, NORMAL, Privilege};
use crate::property::{GroupProperties, Named, cpu_text, percent};
use crate::statement::UserName;
use commensal_core::group::Class;
use std::collections::BTreeSet;

/// Titles of `SHOW WORKLOAD GROUPS`, as in Doris 4.0; [`GroupRow::shown`] is in their order.
pub const SHOW_GROUPS: [&str; 21] = [
    "Id",
    "Name",
    "min_cpu_percent",
    "max_cpu_percent",
    "min_memory_percent",
    "max_memory_percent",
    "max_concurrency",
    "max_queue_size",
    "queue_timeout",
    "scan_thread_num",
    "max_remote_scan_thread_num",
    "min_remote_scan_thread_num",
    "memory_low_watermark",
    "memory_high_watermark",
    "compute_group",
    "read_bytes_per_second",
    "remote_read_bytes_per_second",
    "write_buffer_ratio",
    "slot_memory_policy",
    "running_query_num",
    "waiting_query_num",
];

/// A group in the columns of all versions of Doris. -1 is "not set".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRow {
    /// ID.
    pub id: i64,
    /// NAME.
    pub name: String,
    /// CPU_SHARE (until 3.x).
    pub cpu_share: i64,
    /// MEMORY_LIMIT (until 3.x): `10%`, a size, or `-1`.
    pub memory_limit: String,
    /// ENABLE_MEMORY_OVERCOMMIT (until 3.x): `true` or `false`.
    pub enable_memory_overcommit: String,
    /// CPU_HARD_LIMIT (until 3.x): `20%`, a number of CPUs, or `-1`.
    pub cpu_hard_limit: String,
    /// TAG (until 3.0).
    pub tag: String,
    /// MIN_CPU_PERCENT (4.0): `0%`.
    pub min_cpu_percent: String,
    /// MAX_CPU_PERCENT (4.0).
    pub max_cpu_percent: String,
    /// MIN_MEMORY_PERCENT (4.0).
    pub min_memory_percent: String,
    /// MAX_MEMORY_PERCENT (4.0).
    pub max_memory_percent: String,
    /// MAX_CONCURRENCY.
    pub max_concurrency: i64,
    /// MAX_QUEUE_SIZE.
    pub max_queue_size: i64,
    /// QUEUE_TIMEOUT, in milliseconds.
    pub queue_timeout: i64,
    /// SCAN_THREAD_NUM.
    pub scan_thread_num: i64,
    /// MAX_REMOTE_SCAN_THREAD_NUM.
    pub max_remote_scan_thread_num: i64,
    /// MIN_REMOTE_SCAN_THREAD_NUM.
    pub min_remote_scan_thread_num: i64,
    /// MEMORY_LOW_WATERMARK: `75%`.
    pub memory_low_watermark: String,
    /// MEMORY_HIGH_WATERMARK.
    pub memory_high_watermark: String,
    /// COMPUTE_GROUP.
    pub compute_group: String,
    /// READ_BYTES_PER_SECOND.
    pub read_bytes_per_second: i64,
    /// REMOTE_READ_BYTES_PER_SECOND.
    pub remote_read_bytes_per_second: i64,
    /// WRITE_BUFFER_RATIO: `20%`.
    pub write_buffer_ratio: String,
    /// SLOT_MEMORY_POLICY.
    pub slot_memory_policy: String,
    /// CLASS, which is ours: `online` or `offline`.
    pub class: Class,
    /// VERSION, which is ours.
    pub version: i64,
}

/// A number of the database's type; nothing here comes near its end.
fn number<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

fn optional<N: TryInto<i64>>(value: Option<N>) -> i64 {
    value.map_or(-1, number)
}

impl GroupRow {
    fn of(group: &GroupDefinition) -> GroupRow {
        let properties = &group.properties;
        let (cpu, memory) =
            (properties.max_cpu.map(|limit| limit.amount), properties.max_memory.map(|limit| limit.amount));
        let whole = || "100%".to_owned();
        let unset = || "-1".to_owned();
        let (low, high) = properties.watermarks();
        let ratio = properties.write_buffer_ratio.unwrap_or(GroupProperties::WRITE_BUFFER_RATIO);
        let tagged = properties.compute_group_named == Named::Old;
        GroupRow {
            id: number(group.id),
            name: group.name.to_string(),
            cpu_share: optional(properties.cpu_share),
            memory_limit: memory.map_or_else(unset, |limit| limit.to_string()),
            enable_memory_overcommit: properties.overcommits().to_string(),
            cpu_hard_limit: cpu.map_or_else(unset, cpu_text),
            tag: if tagged { properties.compute_group.clone() } else { String::new() },
            min_cpu_percent: percent(properties.min_cpu),
            max_cpu_percent: cpu.map_or_else(whole, cpu_text),
            min_memory_percent: percent(properties.min_memory),
            max_memory_percent: memory.map_or_else(whole, |limit| limit.to_string()),
            max_concurrency: number(properties.max_concurrency),
            max_queue_size: number(properties.max_queue_size),
            queue_timeout: number(properties.queue_timeout_ms),
            scan_thread_num: optional(properties.scan_thread_num),
            max_remote_scan_thread_num: optional(properties.max_remote_scan_thread_num),
            min_remote_scan_thread_num: optional(properties.min_remote_scan_thread_num),
            memory_low_watermark: format!("{low}%"),
            memory_high_watermark: format!("{high}%"),
            compute_group: properties.compute_group.clone(),
            read_bytes_per_second: optional(properties.read_bytes_per_second),
            remote_read_bytes_per_second: optional(properties.remote_read_bytes_per_second),
            write_buffer_ratio: format!("{ratio}%"),
            slot_memory_policy: properties.slot_memory_policy.to_string(),
            class: properties.class,
            version: number(group.version),
        }
    }

    /// The cells of `SHOW WORKLOAD GROUPS`, with the queries that run and wait in the group.
    #[must_use]
    pub fn shown(&self, running: usize, waiting: usize) -> [String; SHOW_GROUPS.len()] {
        [
            self.id.to_string(),
            self.name.clone(),
            self.min_cpu_percent.clone(),
            self.max_cpu_percent.clone(),
            self.min_memory_percent.clone(),
            self.max_memory_percent.clone(),
            self.max_concurrency.to_string(),
            self.max_queue_size.to_string(),
            self.queue_timeout.to_string(),
            self.scan_thread_num.to_string(),
            self.max_remote_scan_thread_num.to_string(),
            self.min_remote_scan_thread_num.to_string(),
            self.memory_low_watermark.clone(),
            self.memory_high_watermark.clone(),
            self.compute_group.clone(),
            self.read_bytes_per_second.to_string(),
            self.remote_read_bytes_per_second.to_string(),
            self.write_buffer_ratio.clone(),
            self.slot_memory_policy.clone(),
            running.to_string(),
            waiting.to_string(),
        ]
    }
}

/// A policy in the columns of `workload_policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// ID.
    pub id: i64,
    /// NAME.
    pub name: String,
    /// CONDITION: `query_time > 10;be_scan_rows > 1`.
    pub condition: String,
    /// ACTION.
    pub action: String,
    /// PRIORITY.
    pub priority: i32,
    /// ENABLED.
    pub enabled: bool,
    /// VERSION.
    pub version: i32,
    /// WORKLOAD_GROUP; empty is all.
    pub workload_group: String,
}

/// A privilege in the columns of `workload_group_privileges`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrivilegeRow {
    /// GRANTEE: `'u'@'%'`, or a role's name.
    pub grantee: String,
    /// WORKLOAD_GROUP_NAME; `%` is all.
    pub workload_group_name: String,
    /// PRIVILEGE_TYPE: always `Usage_priv`.
    pub privilege_type: &'static str,
    /// IS_GRANTABLE: always `NO`.
    pub is_grantable: &'static str,
}

impl Catalog {
    /// The groups that a user may use, by name.
    #[must_use]
    pub fn group_rows(&self, user: &UserName) -> Vec<GroupRow> {
        let usable = self.groups.values().filter(|group| self.may_use(user, group.name.as_str()));
        usable.map(GroupRow::of).collect()
    }

    /// The policies; a user who may not change them sees none.
    #[must_use]
    pub fn policy_rows(&self, user: &UserName) -> Vec<PolicyRow> {
        if !self.is_admin(user) {
            return Vec::new();
        }
        let joined = |texts: Vec<String>| texts.join(";");
        let row = |policy: &super::Policy| PolicyRow {
            id: number(policy.id),
            name: policy.name.clone(),
            condition: joined(policy.conditions.iter().map(ToString::to_string).collect()),
            action: joined(policy.actions.iter().map(ToString::to_string).collect()),
            priority: i32::from(policy.priority),
            enabled: policy.enabled,
            version: i32::try_from(policy.version).unwrap_or(i32::MAX),
            workload_group: policy.group.clone().unwrap_or_default(),
        };
        self.policies.values().map(row).collect()
    }

    /// Who may use which group; a user who may not change that sees only what concerns the user and the user's roles.
    #[must_use]
    pub fn privilege_rows(&self, asking: &UserName) -> Vec<PrivilegeRow> {
        let all = self.is_admin(asking);
        let row = |grantee: &str, group: &str| PrivilegeRow {
            grantee: grantee.to_owned(),
            workload_group_name: group.to_owned(),
            privilege_type: "Usage_priv",
            is_grantable: "NO",
        };
        let mut rows = Vec::new();
        for (name, user) in self.users.iter().filter(|(name, _)| all || *name == asking) {
            let grantee = name.to_string();
            let granted = user.grants.groups.iter().map(String::as_str).filter(|group| *group != NORMAL);
            rows.extend(granted.chain([NORMAL]).map(|group| row(&grantee, group)));
        }
        let own = self.users.get(asking);
        for (name, role) in &self.roles {
            if all || own.is_some_and(|user| user.roles.contains(name)) {
                rows.extend(role.grants.groups.iter().map(|group| row(name, group)));
            }
        }
        rows.sort();
        rows
    }

    /// What a user has been given, as the statements that would give it again: first the roles, then by object.
    #[must_use]
    pub fn grants_shown(&self, user: &UserName) -> Vec<String> {
        let Some(found) = self.users.get(user) else { return Vec::new() };
        let role = |role: &String| format!("GRANT '{role}' TO {user}");
        let object = |(object, privileges): (&[String; 3], &BTreeSet<Privilege>)| {
            let names: Vec<String> = privileges.iter().map(|name| name.to_string().to_uppercase()).collect();
            let part = |part: &String| if part == "*" { part.clone() } else { format!("`{part}`") };
            let parts: Vec<String> = object.iter().map(part).collect();
            format!("GRANT {} ON {} TO {user}", names.join(", "), parts.join("."))
        };
        let group = |group: &String| format!("GRANT USAGE_PRIV ON WORKLOAD GROUP '{group}' TO {user}");
        let grants = &found.grants;
        let shown = found.roles.iter().map(role).chain(grants.objects.iter().map(object));
        shown.chain(grants.groups.iter().map(group)).collect()
    }
}
