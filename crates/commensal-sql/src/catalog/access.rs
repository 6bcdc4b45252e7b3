//! Functions that change and look up users, roles and their privileges.

use super::Catalog;
use super::names::{NORMAL, ROOT, check_name, is_like};
use super::outcome::{CatalogError, Done, missing, refuse};
use super::password::{Hash, stored};
use super::users::{EVERY_GROUP, EVERYTHING, Grants, Privilege, Role, User};
use crate::statement::{Grant, Granted, Grantee, Properties, Secret, UserChange, UserName};
use datafusion::arrow::compute::kernels::comparison::ilike;
use std::collections::BTreeSet;
use std::hint::black_box;

/// The only property of a user, besides the connection maximum, that has an effect here.
const DEFAULT_GROUP: &str = "default_workload_group";
const MAX_CONNECTIONS: &str = "max_user_connections";

impl Catalog {
    /// Returns all users.
    pub fn users(&self) -> impl Iterator<Item = (&UserName, &User)> {
        self.users.iter()
    }

    /// Returns all roles with their names.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &Role)> {
        self.roles.iter().map(|(name, role)| (name.as_str(), role))
    }

    /// Returns the user that a login as `name` from `host` uses: the user with exactly this host, otherwise the user
    /// with the most specific host pattern that matches. Hosts are compared case-insensitively.
    #[must_use]
    pub fn login(&self, name: &str, host: &str) -> Option<(&UserName, &User)> {
        let first = UserName { name: name.to_owned(), host: String::new() };
        let mut named = self.users.range(first..).take_while(|(user, _)| user.name == name).peekable();
        if named.peek().is_none() {
            // Does as much work for an unknown name as for an existing one, so that the duration of a login does not
            // reveal whether the name exists.
            black_box(is_like(ilike, black_box("%"), host));
        }
        let matching = named.filter(|(user, _)| is_like(ilike, &user.host, host));
        matching.max_by_key(|(user, _)| {
            (user.host.eq_ignore_ascii_case(host), user.host.chars().filter(|c| *c != '%').count())
        })
    }

    /// Returns two numbers of users: those whose password is known only as the hash for `mysql_native_password`, and
    /// all users.
    #[must_use]
    pub fn native_only_users(&self) -> (usize, usize) {
        (self.users.values().filter(|user| user.is_native_only()).count(), self.users.len())
    }

    /// Returns the `default_workload_group` of a user.
    #[must_use]
    pub fn default_group(&self, user: &str) -> Option<&str> {
        self.default_groups.get(user).map(String::as_str)
    }

    /// Returns the maximum number of simultaneous connections of a user; `None` means the server's maximum.
    #[must_use]
    pub fn max_connections(&self, user: &str) -> Option<u32> {
        self.max_connections.get(user).copied()
    }

    /// Returns all grants of a user: the grants to the user and the grants to the user's roles.
    fn grants_of(&self, user: &UserName) -> impl Iterator<Item = &Grants> {
        let user = self.users.get(user);
        let roles = user.into_iter().flat_map(|user| &user.roles).filter_map(|role| self.roles.get(role));
        user.map(|user| &user.grants).into_iter().chain(roles.map(|role| &role.grants))
    }

    /// Whether a user has a privilege on `catalogue.database.table`.
    #[must_use]
    pub fn may(&self, user: &UserName, privilege: Privilege, object: [&str; 3]) -> bool {
        self.grants_of(user).any(|grants| grants.allows(privilege, object))
    }

    /// Whether a user has all privileges.
    #[must_use]
    pub fn is_admin(&self, user: &UserName) -> bool {
        self.may(user, Privilege::Admin, EVERYTHING)
    }

    /// Whether a user may run queries in a group. Every user may run them in `normal`.
    #[must_use]
    pub fn may_use(&self, user: &UserName, group: &str) -> bool {
        let granted = || self.grants_of(user).any(|grants| grants.allows_group(group));
        (group == NORMAL && self.users.contains_key(user)) || granted() || self.is_admin(user)
    }

    pub(super) fn require_admin(&self, user: &UserName) -> Result<(), CatalogError> {
        if self.is_admin(user) {
            return Ok(());
        }
        Err(CatalogError::Denied(
            "Access denied; you need (at least one of) the (ADMIN) privilege(s) for this operation"
                .to_owned(),
        ))
    }

    pub(super) fn change_user(&mut self, change: &UserChange, hash: Hash<'_>) -> Result<Done, CatalogError> {
        let there = self.users.contains_key(&change.user);
        if there == change.create {
            return match (change.lenient, there) {
                (true, _) => Ok(Done::nothing()),
                (false, true) => refuse(format!("User {} already exist", change.user)),
                (false, false) => refuse(format!("User {} does not exist", change.user)),
            };
        }
        check_name(&change.user.name)?;
        if let Some(role) = change.role.as_ref().filter(|role| !self.roles.contains_key(*role)) {
            return refuse(format!("Role: {role} does not exist"));
        }
        let password = change.password.as_ref().map(|password| stored(password, hash)).transpose()?;
        let user = self.users.entry(change.user.clone()).or_insert_with(|| User::new(&change.user));
        if let Some(password) = password {
            user.password = password;
        }
        if let Some(tls) = change.tls {
            user.tls = tls;
        }
        if let Some(role) = &change.role {
            user.roles = BTreeSet::from([role.clone()]);
        }
        Ok(Done::changed())
    }

    pub(super) fn drop_user(&mut self, user: &UserName, if_exists: bool) -> Result<Done, CatalogError> {
        if user.name == ROOT {
            return refuse(format!("Can not drop user {ROOT}: one user with all privileges must remain"));
        }
        if self.users.remove(user).is_none() {
            return if if_exists {
                Ok(Done::nothing())
            } else {
                refuse(format!("User {user} does not exist"))
            };
        }
        if self.users.keys().all(|other| other.name != user.name) {
            self.default_groups.remove(&user.name);
            self.max_connections.remove(&user.name);
        }
        Ok(Done::changed())
    }

    pub(super) fn set_password(
        &mut self,
        user: &UserName,
        password: &Secret,
        hash: Hash<'_>,
    ) -> Result<Done, CatalogError> {
        let password = stored(password, hash)?;
        let Some(there) = self.users.get_mut(user) else {
            return refuse(format!("User {user} does not exist"));
        };
        there.password = password;
        Ok(Done::changed())
    }

    pub(super) fn create_role(&mut self, name: &str, if_not_exists: bool) -> Result<Done, CatalogError> {
        check_name(name)?;
        if self.roles.contains_key(name) {
            return if if_not_exists {
                Ok(Done::nothing())
            } else {
                refuse(format!("Role {name} already exist"))
            };
        }
        self.roles.insert(name.to_owned(), Role::default());
        Ok(Done::changed())
    }

    pub(super) fn drop_role(&mut self, name: &str, if_exists: bool) -> Result<Done, CatalogError> {
        if self.roles.remove(name).is_none() {
            return if if_exists {
                Ok(Done::nothing())
            } else {
                refuse(format!("Role {name} does not exist"))
            };
        }
        for user in self.users.values_mut() {
            user.roles.remove(name);
        }
        Ok(Done::changed())
    }

    pub(super) fn set_property(&mut self, user: &str, properties: &Properties) -> Result<Done, CatalogError> {
        if self.users.keys().all(|known| known.name != user) {
            return refuse(format!("User {user} does not exist"));
        }
        for (key, value) in properties {
            if key == MAX_CONNECTIONS {
                self.set_max_connections(user, value)?;
            } else if key != DEFAULT_GROUP {
                return refuse(format!(
                    "Unknown user property({key}); supported are {DEFAULT_GROUP} and {MAX_CONNECTIONS}"
                ));
            } else if value.is_empty() {
                self.default_groups.remove(user);
            } else if self.groups.contains_key(value) {
                self.default_groups.insert(user.to_owned(), value.clone());
            } else {
                return refuse(format!("workload group {value} not exists"));
            }
        }
        Ok(Done::changed())
    }

    fn set_max_connections(&mut self, user: &str, value: &str) -> Result<(), CatalogError> {
        if value.is_empty() {
            self.max_connections.remove(user);
            return Ok(());
        }
        // Doris' message and range.
        match value.parse() {
            Ok(most @ 1..=10_000) => {
                self.max_connections.insert(user.to_owned(), most);
                Ok(())
            }
            Ok(_) => refuse(format!("{MAX_CONNECTIONS} is not valid, must be between 1 and 10000")),
            Err(_) => refuse(format!("{MAX_CONNECTIONS} is not number")),
        }
    }

    pub(super) fn grant(&mut self, grant: &Grant) -> Result<Done, CatalogError> {
        match &grant.what {
            Granted::Group(group) => {
                // Privileges on a dropped group may still be revoked.
                if !grant.revoke && group != EVERY_GROUP && !self.groups.contains_key(group) {
                    return refuse(missing(group, None));
                }
                let groups = &mut self.grants_mut(&grant.grantee)?.groups;
                if grant.revoke {
                    groups.remove(group);
                } else {
                    groups.insert(group.clone());
                }
            }
            Granted::Objects { privileges, object } => {
                let privileges = known_privileges(privileges, object)?;
                if grant.revoke && grant.grantee == Grantee::User(UserName::anywhere(ROOT)) {
                    return refuse(format!(
                        "Can not revoke privileges from {ROOT}: one user with all privileges must remain"
                    ));
                }
                let grants = self.grants_mut(&grant.grantee)?;
                for privilege in privileges {
                    if !grant.revoke {
                        grants.add_privilege(object, privilege);
                    } else if let Some(given) = grants.objects.get_mut(object) {
                        given.remove(&privilege);
                    }
                }
                grants.objects.retain(|_, given| !given.is_empty());
            }
            Granted::Roles(roles) => self.grant_roles(roles, grant)?,
        }
        Ok(Done::changed())
    }

    fn grant_roles(&mut self, roles: &[String], grant: &Grant) -> Result<(), CatalogError> {
        if let Some(role) = roles.iter().find(|role| !self.roles.contains_key(*role)) {
            return refuse(format!("Role: {role} does not exist"));
        }
        let Grantee::User(name) = &grant.grantee else { return refuse("Can not grant a role to a role") };
        let Some(user) = self.users.get_mut(name) else {
            return refuse(format!("User {name} does not exist"));
        };
        for role in roles {
            if grant.revoke {
                user.roles.remove(role);
            } else {
                user.roles.insert(role.clone());
            }
        }
        Ok(())
    }

    fn grants_mut(&mut self, grantee: &Grantee) -> Result<&mut Grants, CatalogError> {
        match grantee {
            Grantee::User(name) => match self.users.get_mut(name) {
                Some(user) => Ok(&mut user.grants),
                None => refuse(format!("User {name} does not exist")),
            },
            Grantee::Role(name) => match self.roles.get_mut(name) {
                Some(role) => Ok(&mut role.grants),
                None => refuse(format!("Role: {name} does not exist")),
            },
        }
    }
}

fn known_privileges(names: &[String], object: &[String; 3]) -> Result<Vec<Privilege>, CatalogError> {
    let mut privileges = Vec::new();
    for name in names {
        let Some(privilege) = Privilege::parse(name) else {
            return refuse(format!(
                "privilege {name} is not supported; supported are ADMIN_PRIV, SELECT_PRIV, LOAD_PRIV, and USAGE_PRIV \
                 ON WORKLOAD GROUP"
            ));
        };
        if privilege == Privilege::Admin && object.iter().any(|part| part != "*") {
            return refuse("ADMIN_PRIV can only be granted or revoked on *.*.*");
        }
        privileges.push(privilege);
    }
    Ok(privileges)
}
