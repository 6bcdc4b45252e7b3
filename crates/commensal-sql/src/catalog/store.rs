//! Converts the catalogue to the contents of two files, and parses both files.
//!
//! Groups are stored in a file in the format of `groups.d` (the directory of commensal's group definitions), so that
//! `commensal plan` and the agent read the same limits. That file is edited, not rewritten: comments and keys that SQL
//! does not know are preserved. A second file, SQL's own, stores the data that only SQL needs. If the two files
//! disagree, the groups file wins, because people edit it.
//!
//! The caller writes the groups file first and then SQL's own file, each atomically. A crash between the two writes
//! affects only the statement that the server has not yet acknowledged. A group that is missing in SQL's own file is
//! new, and gets defaults for the properties stored there. A group that is missing in the groups file was dropped.

use super::{Action, Catalog, Config, Grants, GroupDefinition, Policy, Role, User};
use crate::property::spec::cpu_words;
use crate::property::{GroupProperties, OnlySql, exact};
use crate::statement::{Properties, UserName};
use commensal_core::config;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::limit::{CPU_MAX, CPU_WEIGHT, IO_READ, LimitId, MEMORY_MAX};
use commensal_core::text::line_and_column;
use commensal_core::units::{BytesPerS, MemoryAmount, Ppm};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use toml::Spanned;
use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

/// Format version that this version of the program writes.
const FORMAT: u32 = 1;
/// First lines of SQL's own file.
const HEADER: &str = "# Written by commensal-sql, and read when it starts: group properties that groups.d cannot \
                      express,\n# policies, users and roles. All other group properties are in groups.d.\n";

/// A file that cannot be parsed, or content that cannot be serialized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct StoreError {
    /// `file:line:column`.
    pub at: String,
    /// The problem.
    pub problem: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SqlFile {
    format: u32,
    next_id: u64,
    changes: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    config: Properties,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    default_workload_group: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    max_user_connections: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    group: BTreeMap<String, Spanned<StoredGroup>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    policy: BTreeMap<String, Spanned<Policy>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    role: BTreeMap<String, Spanned<Role>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    user: Vec<Spanned<User>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StoredGroup {
    id: u64,
    version: u64,
    #[serde(default)]
    sql: OnlySql,
}

impl Catalog {
    /// Parses both files. `groups` and `sql` each give a file's name (for messages) and its content; empty content
    /// means that the file does not exist yet. The returned messages describe repairs that were needed because a person
    /// has removed entries from the groups file.
    ///
    /// # Errors
    /// [`StoreError`] with the line if the content is damaged or has unknown keys.
    pub fn load(
        groups: (&str, &str),
        sql: (&str, &str),
        memory_base: Ppm,
    ) -> Result<(Catalog, Vec<String>), StoreError> {
        let specs = specs(groups.0, groups.1)?;
        let mut reader =
            Reader { file: sql.0, text: sql.1, catalog: Catalog::new(memory_base), notes: Vec::new() };
        let stored = if sql.1.trim().is_empty() { None } else { Some(reader.sql_file()?) };
        reader.catalog.groups.clear();
        if stored.is_none() {
            reader.catalog.next_id = super::FIRST_ID;
        }
        reader.groups(&specs, stored.as_ref())?;
        if let Some(stored) = stored {
            reader.rest(stored)?;
        }
        reader.catalog.complete();
        Ok((reader.catalog, reader.notes))
    }

    /// Returns the content of SQL's own file.
    ///
    /// # Errors
    /// [`StoreError`] if the content cannot be serialized as TOML.
    pub fn sql_toml(&self) -> Result<String, StoreError> {
        let default = Config::default().entries();
        let changed = self.config.entries().into_iter().filter(|entry| !default.contains(entry));
        let file = SqlFile {
            format: FORMAT,
            next_id: self.next_id,
            changes: self.changes,
            config: changed.map(|(key, value)| (key.to_owned(), value)).collect(),
            default_workload_group: self.default_groups.clone(),
            max_user_connections: self.max_connections.clone(),
            group: self
                .groups
                .iter()
                .map(|(name, group)| (name.clone(), spanned(stored_group(group))))
                .collect(),
            policy: self.policies.clone().into_iter().map(|(name, policy)| (name, spanned(policy))).collect(),
            role: self.roles.clone().into_iter().map(|(name, role)| (name, spanned(role))).collect(),
            user: self.users.values().cloned().map(spanned).collect(),
        };
        let text = toml::to_string(&file);
        let text =
            text.map_err(|error| StoreError { at: "SQL's own file".to_owned(), problem: error.to_string() })?;
        Ok(format!("{HEADER}{text}"))
    }

    /// Returns the new content of the groups file: `before`, updated to the current groups. Only entries that
    /// differ are changed.
    ///
    /// # Errors
    /// [`StoreError`] if `before` is not a valid groups file.
    pub fn groups_toml(&self, file: &str, before: &str) -> Result<String, StoreError> {
        let old: BTreeMap<String, GroupSpec> =
            specs(file, before)?.into_iter().map(|spec| (spec.name.to_string(), spec)).collect();
        let mut document: DocumentMut = before.parse().map_err(|error: toml_edit::TomlError| {
            place(file, before, error.span(), error.message().to_owned())
        })?;
        let root = document.entry("group").or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let Some(tables) = root.as_table_like_mut() else {
            return Err(place(file, before, None, "\"group\" must be a table of groups".to_owned()));
        };
        let gone: Vec<String> = tables
            .iter()
            .map(|(name, _)| name.to_owned())
            .filter(|name| !self.groups.contains_key(name))
            .collect();
        for name in gone {
            tables.remove(&name);
        }
        for (name, group) in &self.groups {
            let table = tables.entry(name).or_insert_with(|| Item::Table(Table::new()));
            if let Some(table) = table.as_table_like_mut() {
                let spec = group.properties.spec(group.name.clone(), self.memory_base);
                write_group(table, old.get(name), &spec);
            }
        }
        Ok(document.to_string())
    }
}

/// The limits of a worker process that the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Whether the kernel enforces the group's CPU limit (`enable_cpu_hard_limit`).
    pub cpu: bool,
    /// Memory limit of the whole process, in bytes.
    pub memory: Option<u64>,
}

impl Catalog {
    /// Returns a groups file that contains only one group, for the cgroup of the group's worker process. The file has
    /// the group's entry from `groups` (the content of the groups file) without the limits that the server and the
    /// worker enforce themselves (queue, reads). It has no rules for members, because the worker is the only member.
    /// Returns `None` if the group does not exist.
    ///
    /// # Errors
    /// [`StoreError`] if `groups` is not a valid groups file.
    pub fn worker_toml(
        &self,
        name: &str,
        groups: &str,
        limits: Kernel,
    ) -> Result<Option<String>, StoreError> {
        let file = "groups file";
        let mut document: DocumentMut =
            self.groups_toml(file, groups)?.parse().map_err(|error: toml_edit::TomlError| {
                place(file, groups, error.span(), error.message().to_owned())
            })?;
        let tables = document.get_mut("group").and_then(Item::as_table_like_mut);
        let Some(table) = tables.and_then(|tables| tables.remove(name)) else { return Ok(None) };
        let mut table = table;
        if let Some(table) = table.as_table_like_mut() {
            for key in ["queue", "remote", "match"] {
                table.remove(key);
            }
            set_path(table, &["io", "read"], None);
            if !limits.cpu {
                set_path(table, &["cpu", "max"], None);
            }
            set_path(table, &["memory", "max"], limits.memory.map(|bytes| Value::from(exact(bytes))));
            set_path(table, &["memory", "on-exceed"], None);
        }
        let mut alone = DocumentMut::new();
        let mut all = Table::new();
        all.set_implicit(true);
        all.insert(name, table);
        alone.insert("group", Item::Table(all));
        Ok(Some(alone.to_string()))
    }
}

/// Parses the groups in a groups file; there are none if it has only blank and comment lines.
fn specs(file: &str, text: &str) -> Result<Vec<GroupSpec>, StoreError> {
    let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(blank) {
        return Ok(Vec::new());
    }
    config::parse(file, text).map_err(|errors| {
        let at = errors.first().map(|error| error.at.to_string()).unwrap_or_default();
        let problems: Vec<String> = errors.iter().map(|error| error.message.clone()).collect();
        StoreError { at, problem: problems.join("; ") }
    })
}

/// Updates a group's entry in the groups file: writes only the keys whose values differ between `old` and `new`.
fn write_group(table: &mut dyn TableLike, old: Option<&GroupSpec>, new: &GroupSpec) {
    let mut set = |path: &[&str], same: bool, value: Option<Value>| {
        if !same {
            set_path(table, path, value);
        }
    };
    let text = |text: String| Value::from(text);
    let number = |number: u32| Value::from(i64::from(number));
    set(&["class"], old.is_some_and(|old| old.class == new.class), Some(text(new.class.to_string())));
    let same = |id: LimitId| old.is_some_and(|old| old.limits.amount(id) == new.limits.amount(id));
    let weight = new.limits.get(CPU_WEIGHT).map(|weight| number(u32::from(weight.v2())));
    set(&["cpu", "weight"], same(LimitId::CpuWeight), weight);
    let cpu_max = new.limits.get(CPU_MAX).map(|amount| text(cpu_words(amount)));
    set(&["cpu", "max"], same(LimitId::CpuMax), cpu_max);
    let memory = new.limits.get(MEMORY_MAX).map(|amount| match amount {
        MemoryAmount::OfMachine(share) => text(share.to_string()),
        MemoryAmount::Bytes(size) => text(exact(size.0)),
    });
    // If a person has chosen an action in the file, the action is kept as long as the group has a memory limit.
    let limited = new.limits.has(MEMORY_MAX);
    let chosen = old.is_some_and(|old| old.on_exceed.is_some() == limited);
    let on_exceed = limited.then(|| text("kill-largest".to_owned()));
    set(&["memory", "max"], same(LimitId::MemoryMax), memory);
    set(&["memory", "on-exceed"], chosen, on_exceed);
    let rate = |limit: BytesPerS| text(format!("{}/s", exact(limit.0)));
    set(&["io", "read"], same(LimitId::IoRead), new.limits.get(IO_READ).map(rate));
    let remote = new.remote_read.map(rate);
    set(&["remote", "read"], old.is_some_and(|old| old.remote_read == new.remote_read), remote);
    let same = old.is_some_and(|old| old.queue == new.queue);
    let queue = new.queue;
    set(&["queue", "max-concurrency"], same, queue.map(|queue| number(queue.max_concurrency)));
    let size = queue.map(|queue| queue.max_size).filter(|size| *size != u32::MAX);
    set(&["queue", "max-size"], same, size.map(number));
    let timeout = queue.and_then(|queue| queue.timeout).map(|timeout| text(timeout.to_string()));
    set(&["queue", "timeout"], same, timeout);
}

/// Sets the value at a dotted path, in whichever TOML form the file has the path. If `value` is `None`, removes the
/// key, and the tables that become empty because of this.
fn set_path(table: &mut dyn TableLike, path: &[&str], value: Option<Value>) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        match (value, table.get_mut(first).and_then(Item::as_value_mut)) {
            // Keeps the whitespace and the comment around the old value.
            (Some(value), Some(there)) => {
                let decor = there.decor().clone();
                *there = value;
                *there.decor_mut() = decor;
            }
            (Some(value), None) => {
                table.insert(first, Item::Value(value));
            }
            (None, _) => {
                table.remove(first);
            }
        }
        return;
    }
    if !table.contains_key(first) {
        if value.is_none() {
            return;
        }
        let mut inner = Table::new();
        inner.set_dotted(true);
        table.insert(first, Item::Table(inner));
    }
    let Some(inner) = table.get_mut(first).and_then(Item::as_table_like_mut) else { return };
    set_path(inner, rest, value);
    if inner.is_empty() {
        table.remove(first);
    }
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn stored_group(group: &GroupDefinition) -> StoredGroup {
    StoredGroup { id: group.id, version: group.version, sql: group.properties.only_sql() }
}

/// Creates an error that reports a position in a file.
fn place(file: &str, text: &str, span: Option<Range<usize>>, problem: String) -> StoreError {
    let (line, column) = line_and_column(text, span.unwrap_or(0..0).start);
    StoreError { at: format!("{file}:{line}:{column}"), problem }
}

struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    catalog: Catalog,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn error<T>(&self, span: Range<usize>, problem: String) -> Result<T, StoreError> {
        Err(place(self.file, self.text, Some(span), problem))
    }

    fn sql_file(&self) -> Result<SqlFile, StoreError> {
        let file: SqlFile = toml::from_str(self.text)
            .map_err(|error| place(self.file, self.text, error.span(), error.message().to_owned()))?;
        if file.format != FORMAT {
            let problem =
                format!("the file has format {}, but this version reads format {FORMAT}", file.format);
            return self.error(0..0, problem);
        }
        Ok(file)
    }

    /// Builds the groups from the groups file and SQL's own file.
    fn groups(&mut self, specs: &[GroupSpec], stored: Option<&SqlFile>) -> Result<(), StoreError> {
        let known = |name: &str| stored.and_then(|file| file.group.get(name));
        if let Some(file) = stored {
            self.catalog.next_id = file.next_id;
            self.catalog.changes = file.changes;
            let mut ids = BTreeSet::new();
            for group in file.group.values() {
                self.id(group.get_ref().id, group.span(), &mut ids)?;
            }
            for policy in file.policy.values() {
                self.id(policy.get_ref().id, policy.span(), &mut ids)?;
            }
            for (name, group) in &file.group {
                let gone = specs.iter().all(|spec| spec.name.as_str() != name);
                if gone && name == super::NORMAL {
                    self.always_there(group.get_ref());
                } else if gone {
                    self.notes.push(format!(
                        "workload group {name} is no longer in the groups file and is dropped"
                    ));
                }
            }
        }
        for spec in specs {
            let name = spec.name.as_str();
            let nothing = OnlySql::default();
            let (id, version, only) = match known(name).map(Spanned::get_ref) {
                Some(group) => (group.id, group.version, &group.sql),
                None => (self.catalog.new_id(), 0, &nothing),
            };
            let properties = GroupProperties::from_parts(spec, only, self.catalog.memory_base);
            let group = GroupDefinition { id, name: spec.name.clone(), version, properties };
            self.catalog.groups.insert(name.to_owned(), group);
        }
        Ok(())
    }

    /// Restores the group `normal` without limits and with its number, if a person has removed the group from the
    /// groups file.
    fn always_there(&mut self, stored: &StoredGroup) {
        let Ok(name) = GroupName::new(super::NORMAL) else { return };
        let properties = GroupProperties::default();
        let group = GroupDefinition { id: stored.id, name, version: stored.version + 1, properties };
        self.catalog.groups.insert(super::NORMAL.to_owned(), group);
        self.notes
            .push("workload group normal is no longer in the groups file and has no limits now".to_owned());
    }

    /// Refuses an id that occurs twice.
    fn id(&mut self, id: u64, span: Range<usize>, ids: &mut BTreeSet<u64>) -> Result<(), StoreError> {
        if !ids.insert(id) {
            return self.error(span, format!("the id {id} occurs twice"));
        }
        self.catalog.next_id = self.catalog.next_id.max(id.saturating_add(1));
        Ok(())
    }

    /// Parses everything except groups.
    fn rest(&mut self, file: SqlFile) -> Result<(), StoreError> {
        if !file.config.is_empty() {
            let altered = self.catalog.config.altered(&file.config);
            self.catalog.config = altered.or_else(|error| self.error(0..0, error.to_string()))?.0;
        }
        for (name, policy) in file.policy {
            self.policy(name, policy)?;
        }
        for (name, role) in file.role {
            let mut role = role.into_inner();
            self.keep_known(&mut role.grants);
            self.catalog.roles.insert(name, role);
        }
        for user in file.user {
            self.user(user)?;
        }
        self.catalog.max_connections = file.max_user_connections;
        for (user, group) in file.default_workload_group {
            if self.catalog.groups.contains_key(&group) {
                self.catalog.default_groups.insert(user, group);
            } else {
                self.notes.push(format!(
                    "user {user} has lost the default workload group {group}, which no longer exists"
                ));
            }
        }
        Ok(())
    }

    fn policy(&mut self, name: String, stored: Spanned<Policy>) -> Result<(), StoreError> {
        let (span, mut policy) = (stored.span(), stored.into_inner());
        policy.name.clone_from(&name);
        let moves_to = policy.actions.iter().find_map(|action| match action {
            Action::Move(group) => Some(group),
            _ => None,
        });
        let needed = moves_to.into_iter().chain(&policy.group);
        if let Some(gone) = needed.into_iter().find(|group| !self.catalog.groups.contains_key(*group)) {
            // Without its group, the policy would apply to every query.
            self.notes.push(format!(
                "workload policy {name} is dropped, because its workload group {gone} no longer exists"
            ));
            return Ok(());
        }
        let checked = self.catalog.check_conditions(&policy.conditions);
        let checked = checked.and_then(|()| self.catalog.check_actions(&policy.actions, &policy.conditions));
        if let Err(error) = checked {
            return self.error(span, error.to_string());
        }
        if policy.priority > 100 {
            return self.error(span, "policy's priority can only between 0 ~ 100".to_owned());
        }
        self.catalog.policies.insert(name, policy);
        Ok(())
    }

    /// Removes privileges on groups that no longer exist.
    fn keep_known(&self, grants: &mut Grants) {
        grants.groups.retain(|group| group == "%" || self.catalog.groups.contains_key(group));
    }

    fn user(&mut self, stored: Spanned<User>) -> Result<(), StoreError> {
        let (span, mut user) = (stored.span(), stored.into_inner());
        if let Some(role) = user.roles.iter().find(|role| !self.catalog.roles.contains_key(*role)) {
            return self.error(span, format!("there is no role {role}"));
        }
        self.keep_known(&mut user.grants);
        let name = UserName { name: user.name.clone(), host: user.host.clone() };
        self.catalog.users.insert(name, user);
        Ok(())
    }
}
