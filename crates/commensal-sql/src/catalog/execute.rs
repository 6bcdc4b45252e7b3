//! Carrying statements out: who may, and where each goes.

use super::{Catalog, CatalogError, PasswordHash};
use crate::statement::{Secret, Statement, UserName};

/// A statement that was carried out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Whether anything is different now and has to be stored.
    pub changed: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl Done {
    pub(super) fn nothing() -> Done {
        Done::default()
    }

    pub(super) fn changed() -> Done {
        Done { changed: true, warnings: Vec::new() }
    }
}

/// How a password becomes what is stored.
pub(super) type Hash<'h> = &'h dyn Fn(&str) -> PasswordHash;

impl Catalog {
    /// Carries out what changes the catalogue; `None` for every other statement. `by` is who asks. `hash` makes of a
    /// password what is stored, because passwords themselves never are.
    ///
    /// # Errors
    /// [`CatalogError`]; nothing has changed then.
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

    /// Whether a statement is about who asks and nobody else.
    fn concerns_only(&self, statement: &Statement, by: &UserName) -> bool {
        match statement {
            Statement::SetPassword { user, .. } => user.as_ref().is_none_or(|user| user == by),
            // Nobody raises a limit that was set for them.
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

/// Whether a statement is for the catalogue to carry out.
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

/// A password as it is stored; an empty one is none.
pub(super) fn stored(password: &Secret, hash: Hash<'_>) -> Result<Option<PasswordHash>, CatalogError> {
    match password {
        Secret::Plain(plain) | Secret::Hash(plain) if plain.is_empty() => Ok(None),
        Secret::Plain(plain) => Ok(Some(hash(plain))),
        Secret::Hash(text) => {
            PasswordHash::new(text).map(Some).map_err(|error| CatalogError::Refused(error.to_string()))
        }
    }
}
