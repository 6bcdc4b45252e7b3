//! Everything defined through SQL: groups, policies, users with their properties, roles, privileges, and the
//! configuration.
//!
//! [`Catalog::execute`] executes a statement, or refuses it and changes nothing. Rules and messages are those of Apache
//! Doris (`WorkloadGroupMgr`, `WorkloadSchedPolicyMgr`, `UserProperty`), with one exception: dropping a group also
//! removes the privileges on it, while in Doris they apply again to a new group of the same name.
//!
//! The machine is one backend, so a group's name is unique on it, across all compute groups.

mod access;
mod config;
mod execute;
mod groups;
mod names;
mod outcome;
mod password;
mod policy;
mod rows;
mod store;
pub mod tables;
mod users;

use crate::property::{GroupProperties, MEMORY_BASE};
use crate::statement::UserName;
use commensal_core::group::GroupName;
use commensal_core::units::Ppm;
use std::collections::BTreeMap;

pub use config::Config;
pub use names::{LikeKernel, NORMAL, ROOT, is_like};
pub use outcome::{CatalogError, Done};
pub use password::{BadHash, PasswordHash};
pub use policy::{Action, Condition, Metric, Metrics, Operator, Policy};
pub use rows::{GroupRow, PolicyRow, PrivilegeRow, show_groups};
pub use store::{Kernel, StoreError};
pub use users::{Grants, Privilege, Role, User};

/// The id of the first group. Doris' ids look like this, so that they are not taken for counts.
const FIRST_ID: u64 = 10_001;

/// A workload group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDefinition {
    /// Its number, which is never reused.
    pub id: u64,
    /// Its name.
    pub name: GroupName,
    /// Grows by one with every change.
    pub version: u64,
    /// Its properties.
    pub properties: GroupProperties,
}

/// Everything that is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    memory_base: Ppm,
    next_id: u64,
    changes: u64,
    groups: BTreeMap<String, GroupDefinition>,
    policies: BTreeMap<String, Policy>,
    users: BTreeMap<UserName, User>,
    roles: BTreeMap<String, Role>,
    /// `default_workload_group` by the user's name.
    default_groups: BTreeMap<String, String>,
    /// `max_user_connections` by the user's name; users without an entry have the server's maximum.
    max_connections: BTreeMap<String, u32>,
    config: Config,
}

impl Default for Catalog {
    fn default() -> Self {
        Catalog::new(MEMORY_BASE)
    }
}

impl Catalog {
    /// A catalogue with the group `normal` and the user `root`, who has no password. `memory_base` is the share of the
    /// machine's memory that percentages refer to.
    #[must_use]
    pub fn new(memory_base: Ppm) -> Catalog {
        let mut catalog = Catalog {
            memory_base,
            next_id: FIRST_ID,
            changes: 0,
            groups: BTreeMap::new(),
            policies: BTreeMap::new(),
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            default_groups: BTreeMap::new(),
            max_connections: BTreeMap::new(),
            config: Config::default(),
        };
        catalog.complete();
        catalog
    }

    /// Adds the built-in group and user where they are missing.
    fn complete(&mut self) {
        if !self.groups.contains_key(NORMAL)
            && let Ok(name) = GroupName::new(NORMAL)
        {
            let id = self.new_id();
            let properties = GroupProperties::default();
            self.groups.insert(NORMAL.to_owned(), GroupDefinition { id, name, version: 0, properties });
        }
        let root = UserName::anywhere(ROOT);
        let root = self.users.entry(root.clone()).or_insert_with(|| User::new(&root));
        root.grants.add_privilege(&users::EVERYTHING.map(str::to_owned), Privilege::Admin);
    }

    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The share of the machine's memory that percentages refer to.
    #[must_use]
    pub fn memory_base(&self) -> Ppm {
        self.memory_base
    }

    /// Version that grows with every change, for callers that cache derived data.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Every group, by name.
    pub fn groups(&self) -> impl Iterator<Item = &GroupDefinition> {
        self.groups.values()
    }

    /// A group by its name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&GroupDefinition> {
        self.groups.get(name)
    }

    /// Every policy, by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    /// The values set by `ADMIN SET FRONTEND CONFIG`.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}
