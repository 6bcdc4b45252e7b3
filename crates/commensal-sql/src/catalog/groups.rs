//! Workload groups: creates, alters and drops them, and chooses the group of a query.

use super::names::NORMAL;
use super::outcome::{CatalogError, Done, missing, refuse};
use super::{Catalog, GroupDefinition};
use crate::property::{self, GroupProperties};
use crate::statement::{GroupRef, Properties, UserName};
use commensal_core::group::GroupName;
use commensal_core::units::CpuAmount;

impl Catalog {
    pub(super) fn create_group(
        &mut self,
        named: &GroupRef,
        if_not_exists: bool,
        given: &Properties,
    ) -> Result<Done, CatalogError> {
        let mut properties = GroupProperties::new(given)?;
        if let Some(compute_group) = &named.compute_group {
            let stated = given.contains_key("compute_group") || given.contains_key("tag");
            if stated && properties.compute_group != compute_group.to_lowercase() {
                let other = &properties.compute_group;
                return refuse(format!(
                    "FOR {compute_group} contradicts the compute group {other} in the properties"
                ));
            }
            if !stated {
                let stated = Properties::from([("compute_group".to_owned(), compute_group.clone())]);
                properties = properties.altered(&stated)?;
            }
        }
        if let Some(there) = self.groups.get(&named.name) {
            if if_not_exists {
                return Ok(Done::nothing());
            }
            let compute_group = &there.properties.compute_group;
            return refuse(format!(
                "Compute group {compute_group} already has workload group {}.",
                named.name
            ));
        }
        let name = GroupName::new(&named.name).map_err(CatalogError::Refused)?;
        property::sums(&properties, self.groups.values().map(|group| &group.properties))?;
        let compute_group = &properties.compute_group;
        let members =
            self.groups.values().filter(|group| group.properties.compute_group == *compute_group).count();
        let most = self.config.workload_group_max_num;
        if members >= most {
            return refuse(format!(
                "Workload group number in Compute Group {compute_group} can not exceed {most}"
            ));
        }
        let others = self.groups.values().map(|group| &group.properties);
        let mut warnings = property::not_enforced(given);
        warnings.extend(property::hard_limits_fill(&properties, others));
        let id = self.new_id();
        self.groups.insert(named.name.clone(), GroupDefinition { id, name, version: 0, properties });
        Ok(Done { changed: true, warnings })
    }

    pub(super) fn alter_group(&mut self, named: &GroupRef, given: &Properties) -> Result<Done, CatalogError> {
        if given.is_empty() {
            return refuse("Alter workload group should contain at least one property");
        }
        let properties = self.named(named)?.properties.altered(given)?;
        let others = || {
            self.groups.iter().filter(|(name, _)| **name != named.name).map(|(_, group)| &group.properties)
        };
        property::sums(&properties, others())?;
        let mut warnings = property::not_enforced(given);
        warnings.extend(property::hard_limits_fill(&properties, others()));
        if let Some(group) = self.groups.get_mut(&named.name) {
            group.properties = properties;
            group.version += 1;
        }
        Ok(Done { changed: true, warnings })
    }

    pub(super) fn drop_group(&mut self, named: &GroupRef, if_exists: bool) -> Result<Done, CatalogError> {
        let name = &named.name;
        if name == NORMAL {
            return refuse(format!("Dropping workload group {name} is not allowed."));
        }
        if let Some((user, _)) = self.default_groups.iter().find(|(_, group)| *group == name) {
            return refuse(format!(
                "Workload group {name} is set for user {user}, you can reset the user's property(eg, set property for \
                 {user} 'default_workload_group'='xxx'; ), then you can drop the group."
            ));
        }
        if self.policies.values().any(|policy| policy.names_group(name)) {
            return refuse(format!("Workload group {name} can't be dropped, because it has related policy"));
        }
        match self.named(named) {
            Err(_) if if_exists => return Ok(Done::nothing()),
            found => found?,
        };
        self.groups.remove(name);
        let users = self.users.values_mut().map(|user| &mut user.grants);
        for grants in users.chain(self.roles.values_mut().map(|role| &mut role.grants)) {
            grants.groups.remove(name);
        }
        Ok(Done::changed())
    }

    /// Returns the group that a statement names.
    fn named(&self, named: &GroupRef) -> Result<&GroupDefinition, CatalogError> {
        let asked = named.compute_group.as_ref().map(|name| name.to_lowercase());
        let group = self.groups.get(&named.name);
        let fits = |group: &&GroupDefinition| {
            asked.as_ref().is_none_or(|asked| group.properties.compute_group == *asked)
        };
        match group.filter(fits) {
            Some(group) => Ok(group),
            None => refuse(missing(&named.name, asked.as_deref())),
        }
    }

    /// Returns the group of a query: the group that the session names, otherwise the user's default group, otherwise
    /// `normal`. The privilege to use the group is checked here, when a query runs, not when the session variable is
    /// set.
    ///
    /// # Errors
    /// [`CatalogError::Denied`] if the user lacks the privilege, [`CatalogError::Refused`] if the group does not exist.
    pub fn group_of(&self, session: Option<&str>, user: &UserName) -> Result<&GroupDefinition, CatalogError> {
        let session = session.filter(|name| !name.is_empty());
        let default = || self.default_groups.get(&user.name).map(String::as_str);
        let name = session.or_else(default).unwrap_or(NORMAL);
        if !self.may_use(user, name) {
            return Err(CatalogError::Denied(format!(
                "Access denied; you need (at least one of) the USAGE/ADMIN privilege(s) to use workload group '{name}'. \
                 User: {user}"
            )));
        }
        self.groups.get(name).map_or_else(|| refuse(missing(name, None)), Ok)
    }

    /// Returns the CPU hard limit to enforce for a group; `None` if the group has no such limit or if hard limits are
    /// disabled.
    #[must_use]
    pub fn cpu_hard_limit(&self, group: &GroupDefinition) -> Option<CpuAmount> {
        group.properties.max_cpu.map(|limit| limit.amount).filter(|_| self.config.enable_cpu_hard_limit)
    }
}
