//! Executes statements: checks the privileges, then dispatches to the function for the statement.

use super::Catalog;
use super::outcome::{CatalogError, Done};
use super::password::{Hash, PasswordHash};
use crate::statement::{Statement, UserName};

impl Catalog {
    /// Executes a statement that changes the catalogue; returns `None` for every other statement. `by` is the current
    /// user. `hash` hashes passwords, because the catalogue never stores them in plain text.
    ///
    /// # Errors
    /// [`CatalogError`]: the statement was refused, and nothing has changed.
    pub fn execute(
        &mut self,
        statement: &Statement,
        by: &UserName,
        hash: &dyn Fn(&str) -> PasswordHash,
    ) -> Result<Option<Done>, CatalogError> {
        if !changes_catalog(statement) {
            return Ok(None);
        }
        if !self.concerns_only(statement, by) {
            self.require_admin(by)?;
        }
        let mut new = self.clone();
        let done = new.change(statement, by, hash)?;
        if done.changed {
            new.changes += 1;
            *self = new;
        }
        Ok(Some(done))
    }

    /// Whether a statement affects only the current user. The user then needs no privilege for the statement.
    fn concerns_only(&self, statement: &Statement, by: &UserName) -> bool {
        match statement {
            Statement::SetPassword { user, .. } => user.as_ref().is_none_or(|user| user == by),
            // Users must not raise limits that an administrator has set for them.
            Statement::SetProperty { user, properties } => {
                user.as_ref().is_none_or(|user| *user == by.name)
                    && !properties.iter().any(|(key, _)| key == "max_user_connections")
            }
            _ => false,
        }
    }

    fn change(&mut self, statement: &Statement, by: &UserName, hash: Hash<'_>) -> Result<Done, CatalogError> {
        match statement {
            Statement::CreateGroup { group, if_not_exists, properties } => {
                self.create_group(group, *if_not_exists, properties)
            }
            Statement::AlterGroup { group, properties } => self.alter_group(group, properties),
            Statement::DropGroup { group, if_exists } => self.drop_group(group, *if_exists),
            Statement::CreatePolicy(policy) => self.create_policy(policy),
            Statement::AlterPolicy { name, properties } => self.alter_policy(name, properties),
            Statement::DropPolicy { name, if_exists } => self.drop_policy(name, *if_exists),
            Statement::Grant(grant) => self.grant(grant),
            Statement::User(change) => self.change_user(change, hash),
            Statement::DropUser { user, if_exists } => self.drop_user(user, *if_exists),
            Statement::SetPassword { user, password } => {
                self.set_password(user.as_ref().unwrap_or(by), password, hash)
            }
            Statement::CreateRole { name, if_not_exists } => self.create_role(name, *if_not_exists),
            Statement::DropRole { name, if_exists } => self.drop_role(name, *if_exists),
            Statement::SetProperty { user, properties } => {
                self.set_property(user.as_deref().unwrap_or(&by.name), properties)
            }
            Statement::AdminSetConfig(given) => {
                let (config, warnings) = self.config.altered(given)?;
                let changed = config != self.config;
                self.config = config;
                Ok(Done { changed, warnings })
            }
            _ => Ok(Done::nothing()),
        }
    }
}

/// Whether the catalogue executes this statement.
fn changes_catalog(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::CreateGroup { .. }
            | Statement::AlterGroup { .. }
            | Statement::DropGroup { .. }
            | Statement::CreatePolicy(_)
            | Statement::AlterPolicy { .. }
            | Statement::DropPolicy { .. }
            | Statement::Grant(_)
            | Statement::User(_)
            | Statement::DropUser { .. }
            | Statement::SetPassword { .. }
            | Statement::CreateRole { .. }
            | Statement::DropRole { .. }
            | Statement::SetProperty { .. }
            | Statement::AdminSetConfig(_)
    )
}
