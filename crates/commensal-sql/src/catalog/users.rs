//! Data about users and roles, and the check whether their privileges allow an access.

use super::password::PasswordHash;
use crate::statement::UserName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Every table of every database of every catalogue.
pub(super) const EVERYTHING: [&str; 3] = ["*", "*", "*"];

/// Every workload group.
pub(super) const EVERY_GROUP: &str = "%";

/// A privilege on tables, or on everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Privilege {
    /// All privileges. A statement can grant this privilege only on everything.
    Admin,
    /// Reading.
    Select,
    /// Writing.
    Load,
}

impl Privilege {
    const ALL: [Privilege; 3] = [Privilege::Admin, Privilege::Select, Privilege::Load];

    /// Parses the name of a privilege such as `SELECT_PRIV`, in any case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Privilege> {
        Privilege::ALL.into_iter().find(|privilege| privilege.to_string().eq_ignore_ascii_case(name))
    }
}

/// Formats the privilege like Doris.
impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Privilege::Admin => "Admin_priv",
            Privilege::Select => "Select_priv",
            Privilege::Load => "Load_priv",
        })
    }
}

/// The privileges of a user or role. The catalogue stores them in this form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Grants {
    /// Groups that may be used; `%` means all groups.
    #[serde(rename = "usage", skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<String>,
    /// Privileges by catalogue, database and table; `*` means all. Stored as lists of these three names followed by the
    /// privileges.
    #[serde(
        serialize_with = "write_objects",
        deserialize_with = "read_objects",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub objects: BTreeMap<[String; 3], BTreeSet<Privilege>>,
}

fn write_objects<S: Serializer>(
    objects: &BTreeMap<[String; 3], BTreeSet<Privilege>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(objects.iter().map(|(object, privileges)| -> Vec<String> {
        object.iter().cloned().chain(privileges.iter().map(ToString::to_string)).collect()
    }))
}

fn read_objects<'d, D: Deserializer<'d>>(
    from: D,
) -> Result<BTreeMap<[String; 3], BTreeSet<Privilege>>, D::Error> {
    let mut grants = Grants::default();
    for words in Vec::<Vec<String>>::deserialize(from)? {
        let [catalog, database, table, privileges @ ..] = &words[..] else {
            return Err(D::Error::custom("objects holds catalogue, database, table and privileges"));
        };
        let object = [catalog, database, table].map(Clone::clone);
        for name in privileges {
            let privilege = Privilege::parse(name);
            let known = privilege.ok_or_else(|| D::Error::custom(format!("there is no privilege {name}")))?;
            grants.add_privilege(&object, known);
        }
    }
    Ok(grants.objects)
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

/// A user. The catalogue stores users in this form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct User {
    /// The user's name.
    pub name: String,
    /// Host pattern.
    pub host: String,
    /// The password's hash; `None` means an empty password.
    #[serde(rename = "password-hash", skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordHash>,
    /// Whether connections must use TLS.
    #[serde(rename = "require-tls", default, skip_serializing_if = "std::ops::Not::not")]
    pub tls: bool,
    /// Roles.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
    /// Privileges granted to the user directly.
    #[serde(default)]
    pub grants: Grants,
}

impl User {
    /// Creates a user without password, roles and privileges.
    #[must_use]
    pub fn new(name: &UserName) -> User {
        User {
            name: name.name.clone(),
            host: name.host.clone(),
            password: None,
            tls: false,
            roles: BTreeSet::new(),
            grants: Grants::default(),
        }
    }

    /// Whether the user has a password that is known only as the hash for `mysql_native_password`.
    #[must_use]
    pub fn is_native_only(&self) -> bool {
        self.password.as_ref().is_some_and(|hash| hash.sha2().is_none())
    }
}

/// A role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Role {
    /// Privileges that users get with this role.
    pub grants: Grants,
}
