//! Rows of SHOW statements and of the tables in `information_schema`. A user gets only the rows that the user may see.

use super::{Catalog, GroupDefinition, NORMAL};
use crate::property::{self, Cell, GroupProperties};
use crate::statement::UserName;

/// A group with the values of its properties ([`crate::property::ROWS`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRow {
    /// ID.
    pub id: i64,
    /// NAME.
    pub name: String,
    /// VERSION. Doris does not have this column.
    pub version: i64,
    properties: GroupProperties,
}

/// Converts a number to the column's type, which is always large enough.
fn number<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the column titles of `SHOW WORKLOAD GROUPS`, as in Doris 4.0 and in the order of [`GroupRow::shown`].
#[must_use]
pub fn show_groups() -> Vec<&'static str> {
    let properties = property::shown().into_iter().map(|row| row.name);
    ["Id", "Name"].into_iter().chain(properties).chain(["running_query_num", "waiting_query_num"]).collect()
}

impl GroupRow {
    fn of(group: &GroupDefinition) -> GroupRow {
        GroupRow {
            id: number(group.id),
            name: group.name.to_string(),
            version: number(group.version),
            properties: group.properties.clone(),
        }
    }

    /// Returns the value that is shown for a property.
    #[must_use]
    pub fn cell(&self, row: &property::PropertyRow) -> Cell {
        row.cell(&self.properties)
    }

    /// Returns the cells of `SHOW WORKLOAD GROUPS`, given the numbers of running and waiting queries of the group.
    #[must_use]
    pub fn shown(&self, running: usize, waiting: usize) -> Vec<String> {
        let properties = property::shown().into_iter().map(|row| self.cell(row).to_string());
        let head = [self.id.to_string(), self.name.clone()];
        head.into_iter().chain(properties).chain([running.to_string(), waiting.to_string()]).collect()
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
    /// WORKLOAD_GROUP; empty means all groups.
    pub workload_group: String,
}

/// A privilege in the columns of `workload_group_privileges`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrivilegeRow {
    /// GRANTEE: `'u'@'%'`, or a role's name.
    pub grantee: String,
    /// WORKLOAD_GROUP_NAME; `%` means all groups.
    pub workload_group_name: String,
    /// PRIVILEGE_TYPE: always `Usage_priv`.
    pub privilege_type: &'static str,
    /// IS_GRANTABLE: always `NO`.
    pub is_grantable: &'static str,
}

impl Catalog {
    /// Returns the groups that a user may use, ordered by name.
    #[must_use]
    pub fn group_rows(&self, user: &UserName) -> Vec<GroupRow> {
        let usable = self.groups.values().filter(|group| self.may_use(user, group.name.as_str()));
        usable.map(GroupRow::of).collect()
    }

    /// Returns the policies. A user who is not allowed to change policies gets no rows.
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

    /// Returns users and roles with the groups that they may use. A user who is not allowed to grant this use gets only
    /// the rows about the user and the user's roles.
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
}
