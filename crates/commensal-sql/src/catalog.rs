//! The catalogue of all objects that SQL statements define: workload groups, policies (rules that act on running
//! queries), users with their properties, roles, privileges, and the configuration.
//!
//! [`Catalog::execute`] either executes a statement, or refuses it and changes nothing. Rules and messages are those of
//! Apache Doris (`WorkloadGroupMgr`, `WorkloadSchedPolicyMgr`, `UserProperty`), with one exception: dropping a group
//! also removes the privileges on it. In Doris those privileges would apply to a new group with the same name.
//!
//! The machine counts as one Doris backend. So the name of a group is unique on the machine, across all compute groups
//! (Doris' sets of backends).

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

/// The id of the first group. Ids are large, as in Doris, so that a reader does not mistake an id for a count.
const FIRST_ID: u64 = 10_001;

/// A workload group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDefinition {
    /// The group's number, which is never reused.
    pub id: u64,
    /// The group's name.
    pub name: GroupName,
    /// Version of the definition, which grows by one with every change.
    pub version: u64,
    /// The group's properties.
    pub properties: GroupProperties,
}

/// All definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    memory_base: Ppm,
    next_id: u64,
    changes: u64,
    groups: BTreeMap<String, GroupDefinition>,
    policies: BTreeMap<String, Policy>,
    users: BTreeMap<UserName, User>,
    roles: BTreeMap<String, Role>,
    /// `default_workload_group` of users, by the user's name.
    default_groups: BTreeMap<String, String>,
    /// `max_user_connections` of users, by the user's name; users without an entry have the server's maximum.
    max_connections: BTreeMap<String, u32>,
    config: Config,
}

impl Default for Catalog {
    fn default() -> Self {
        Catalog::new(MEMORY_BASE)
    }
}

impl Catalog {
    /// Creates a catalogue with the group `normal` and the user `root`, who has no password. `memory_base` is the share
    /// of the machine's memory that percentages refer to.
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

    /// Adds the built-in group and the built-in user if they are missing.
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

    /// Returns a version that grows with every change, for callers that cache derived data.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns all groups, ordered by name.
    pub fn groups(&self) -> impl Iterator<Item = &GroupDefinition> {
        self.groups.values()
    }

    /// Returns the group with this name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&GroupDefinition> {
        self.groups.get(name)
    }

    /// Returns all policies, ordered by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    /// Returns the values set with `ADMIN SET FRONTEND CONFIG`.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}
