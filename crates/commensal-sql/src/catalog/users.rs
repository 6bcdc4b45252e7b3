//! What is known of a user and of a role, and what their privileges allow.

use super::password::PasswordHash;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Every table of every database of every catalogue.
pub(super) const EVERYTHING: [&str; 3] = ["*", "*", "*"];

/// Every workload group.
pub(super) const EVERY_GROUP: &str = "%";

/// A privilege on tables, or on everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Privilege {
    /// All privileges; only granted on everything.
    Admin,
    /// Reading.
    Select,
    /// Writing.
    Load,
}

impl Privilege {
    const ALL: [Privilege; 3] = [Privilege::Admin, Privilege::Select, Privilege::Load];

    /// The privilege with a name such as `SELECT_PRIV`, in any case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Privilege> {
        Privilege::ALL.into_iter().find(|privilege| privilege.to_string().eq_ignore_ascii_case(name))
    }
}

/// As Doris shows it.
impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Privilege::Admin => "Admin_priv",
            Privilege::Select => "Select_priv",
            Privilege::Load => "Load_priv",
        })
    }
}

/// The privileges of a user or role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Groups that may be used; `%` is all.
    pub groups: BTreeSet<String>,
    /// Privileges by catalogue, database and table; `*` is all.
    pub objects: BTreeMap<[String; 3], BTreeSet<Privilege>>,
}

impl Grants {
    pub(super) fn add_privilege(&mut self, object: &[String; 3], privilege: Privilege) {
        self.objects.entry(object.clone()).or_default().insert(privilege);
    }

    pub(super) fn allows(&self, privilege: Privilege, object: [&str; 3]) -> bool {
        let covers = |given: &[String; 3]| {
            given.iter().zip(object).all(|(given, asked)| given == "*" || given == asked)
        };
        self.objects.iter().any(|(given, privileges)| {
            covers(given) && (privileges.contains(&privilege) || privileges.contains(&Privilege::Admin))
        })
    }

    pub(super) fn allows_group(&self, group: &str) -> bool {
        self.groups.contains(group) || self.groups.contains(EVERY_GROUP)
    }
}

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The password's hash; `None` is an empty password.
    pub password: Option<PasswordHash>,
    /// Whether connections must use TLS.
    pub tls: bool,
    /// Roles.
    pub roles: BTreeSet<String>,
    /// Privileges granted to the user directly.
    pub grants: Grants,
}

/// A role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Role {
    /// Privileges of users with this role.
    pub grants: Grants,
}
