//! Workload policies: each has conditions on queries, and actions that the server executes for a query that meets all
//! conditions.
//!
//! Most messages of refusals are those of Apache Doris, mistakes included, because its test suite
//! (`test_workload_sched_policy`) expects them.

use super::Catalog;
use super::names::check_name;
use super::outcome::{CatalogError, Done, refuse};
use crate::property::DEFAULT_COMPUTE_GROUP;
use crate::statement::{ActionText, ConditionText, NewPolicy, Properties};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

/// The metric that a condition tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// The user's name.
    Username,
    /// How long the query has been running, in milliseconds.
    QueryTime,
    /// Rows that the query has read.
    ScanRows,
    /// Bytes that the query has read.
    ScanBytes,
    /// Bytes that the query has read from remote stores; they are included in `ScanBytes`.
    RemoteScanBytes,
    /// Bytes of memory that the query has allocated.
    MemoryBytes,
}

impl Metric {
    const ALL: [(Metric, &str, &str); 6] = [
        (Metric::Username, "username", "username"),
        (Metric::QueryTime, "query_time", "query time"),
        (Metric::ScanRows, "be_scan_rows", "scan rows"),
        (Metric::ScanBytes, "be_scan_bytes", "scan bytes"),
        (Metric::RemoteScanBytes, "be_scan_bytes_from_remote_storage", "remote scan bytes"),
        (Metric::MemoryBytes, "query_be_memory_bytes", "query be memory bytes"),
    ];

    fn words(self) -> &'static str {
        Metric::ALL.iter().find(|(metric, ..)| *metric == self).map_or("", |(.., words)| words)
    }
}

/// Formats the metric's name in statements.
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Metric::ALL.iter().find(|(metric, ..)| metric == self).map_or("", |(_, name, _)| name))
    }
}

/// The operator that compares a metric with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `=`.
    Equal,
}

impl Operator {
    const ALL: [(Operator, &str); 5] = [
        (Operator::Greater, ">"),
        (Operator::GreaterOrEqual, ">="),
        (Operator::Less, "<"),
        (Operator::LessOrEqual, "<="),
        (Operator::Equal, "="),
    ];

    fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Operator::Greater => left > right,
            Operator::GreaterOrEqual => left >= right,
            Operator::Less => left < right,
            Operator::LessOrEqual => left <= right,
            Operator::Equal => left == right,
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Operator::ALL.iter().find(|(operator, _)| operator == self).map_or("", |(_, sign)| sign))
    }
}

/// A condition. It is stored as its metric, operator and value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[String; 3]", into = "[String; 3]")]
pub enum Condition {
    /// The query belongs to this user.
    User(String),
    /// The value of the metric, compared with this number, meets the operator.
    Number(Metric, Operator, u64),
}

/// Formats the condition like Doris: `query_time > 10`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::User(name) => write!(f, "username = {name}"),
            Condition::Number(metric, operator, value) => write!(f, "{metric} {operator} {value}"),
        }
    }
}

impl From<Condition> for [String; 3] {
    fn from(condition: Condition) -> [String; 3] {
        match condition {
            Condition::User(name) => ["username".to_owned(), "=".to_owned(), name],
            Condition::Number(metric, operator, value) => {
                [metric.to_string(), operator.to_string(), value.to_string()]
            }
        }
    }
}

impl TryFrom<[String; 3]> for Condition {
    type Error = CatalogError;

    fn try_from([metric, operator, value]: [String; 3]) -> Result<Condition, CatalogError> {
        condition(&metric, &operator, &value)
    }
}

/// An action. It is stored as its name and, for most actions, an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub enum Action {
    /// The query is cancelled.
    Cancel,
    /// A session variable is set.
    SetVariable {
        /// Name of the variable, in lower case.
        name: String,
        /// New value of the variable.
        value: String,
    },
    /// The query is moved to another group.
    Move(String),
}

/// Formats the action like Doris: `set_session_variable "workload_group=normal"`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Cancel => f.write_str("cancel_query"),
            Action::SetVariable { name, value } => write!(f, "set_session_variable \"{name}={value}\""),
            Action::Move(group) => write!(f, "move_query_to_group \"{group}\""),
        }
    }
}

impl From<Action> for Vec<String> {
    fn from(action: Action) -> Vec<String> {
        match action {
            Action::Cancel => vec!["cancel_query".to_owned()],
            Action::SetVariable { name, value } => {
                vec!["set_session_variable".to_owned(), format!("{name}={value}")]
            }
            Action::Move(group) => vec!["move_query_to_group".to_owned(), group],
        }
    }
}

impl TryFrom<Vec<String>> for Action {
    type Error = CatalogError;

    fn try_from(words: Vec<String>) -> Result<Action, CatalogError> {
        let mut words = words.into_iter();
        action(&words.next().unwrap_or_default(), words.next().as_deref())
    }
}

/// Metrics of a query that policies test.
#[derive(Debug, Clone, Copy)]
pub struct Metrics<'q> {
    /// The user.
    pub user: &'q str,
    /// The group that the query runs in.
    pub group: &'q str,
    /// How long the query has been running, in milliseconds.
    pub query_time_ms: u64,
    /// Rows read.
    pub scan_rows: u64,
    /// Bytes read.
    pub scan_bytes: u64,
    /// Bytes read from remote stores.
    pub remote_scan_bytes: u64,
    /// Bytes of memory allocated.
    pub memory_bytes: u64,
}

impl Metrics<'_> {
    fn number(&self, metric: Metric) -> u64 {
        match metric {
            Metric::Username => 0,
            Metric::QueryTime => self.query_time_ms,
            Metric::ScanRows => self.scan_rows,
            Metric::ScanBytes => self.scan_bytes,
            Metric::RemoteScanBytes => self.remote_scan_bytes,
            Metric::MemoryBytes => self.memory_bytes,
        }
    }
}

/// A policy; this is also the form in which it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// The policy's number, which is never reused.
    pub id: u64,
    /// The policy's name, which is the key under which the other fields are stored.
    #[serde(skip)]
    pub name: String,
    /// Version of the policy, which grows by one with every change.
    pub version: u64,
    /// Whether the policy is enabled.
    pub enabled: bool,
    /// Priority from 0 to 100. Among the policies that apply to a query, the policy with the highest priority wins.
    pub priority: u8,
    /// The group whose queries the policy applies to; `None` means all groups.
    #[serde(rename = "workload-group", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Conditions. A query must meet all of them.
    pub conditions: Vec<Condition>,
    /// Actions. The server executes all of them.
    pub actions: Vec<Action>,
}

impl Policy {
    /// Whether a query meets all conditions.
    #[must_use]
    pub fn matches(&self, query: &Metrics<'_>) -> bool {
        let holds = |condition: &Condition| match condition {
            Condition::User(name) => name == query.user,
            Condition::Number(metric, operator, value) => operator.holds(query.number(*metric), *value),
        };
        let for_group = self.group.as_deref().is_none_or(|group| group == query.group);
        self.enabled && for_group && self.conditions.iter().all(holds)
    }

    /// Returns the message for the user of a query that this policy cancels, with the metrics that matched.
    #[must_use]
    pub fn cancel_text(&self, query_id: &str, query: &Metrics<'_>) -> String {
        let figure = |condition: &Condition| match condition {
            Condition::User(name) => format!("username: {name}"),
            Condition::Number(metric, operator, value) => {
                format!("{metric}: {}({operator} {value})", query.number(*metric))
            }
        };
        let figures: Vec<String> = self.conditions.iter().map(figure).collect();
        format!(
            "query {query_id} cancelled by workload policy: {}, id:{}, {}",
            self.name,
            self.id,
            figures.join(", ")
        )
    }

    pub(super) fn names_group(&self, group: &str) -> bool {
        let moves = |action: &Action| matches!(action, Action::Move(to) if to == group);
        self.group.as_deref() == Some(group) || self.actions.iter().any(moves)
    }

    fn cancels(&self) -> bool {
        self.actions.contains(&Action::Cancel)
    }

    fn moves(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Move(_)))
    }

    /// Validates and sets the given properties.
    pub(super) fn set(&mut self, catalog: &Catalog, given: &Properties) -> Result<(), CatalogError> {
        let known = ["enabled", "priority", "workload_group"];
        let illegal: Vec<&str> =
            given.keys().map(String::as_str).filter(|key| !known.contains(key)).collect();
        if !illegal.is_empty() {
            return refuse(format!("illegal policy properties {}", illegal.join(",")));
        }
        if let Some(enabled) = given.get("enabled") {
            self.enabled = enabled.parse().or_else(|_| {
                refuse("invalid enabled property value, it can only true or false with lower case")
            })?;
        }
        if let Some(priority) = given.get("priority") {
            let Ok(number) = priority.parse::<i64>() else {
                return refuse(format!(
                    "invalid priority property value, it must be a number, input value={priority}"
                ));
            };
            let number = u8::try_from(number).ok().filter(|number| *number <= 100);
            self.priority =
                number.map_or_else(|| refuse("policy's priority can only between 0 ~ 100"), Ok)?;
        }
        if let Some(group) = given.get("workload_group") {
            self.group = if group.is_empty() { None } else { Some(catalog.policy_group(group)?) };
        }
        Ok(())
    }
}

impl Catalog {
    /// Returns the policies to apply to a query: at most one policy that cancels or moves the query, and at most one
    /// policy that only sets variables. In each case the policy with the highest priority is chosen. If a policy that
    /// moves and one that cancels have equal priority, the one that cancels wins; otherwise the older of two policies
    /// with equal priority wins.
    #[must_use]
    pub fn firing(&self, query: &Metrics<'_>) -> Vec<&Policy> {
        let highest = |kind: fn(&Policy) -> bool| {
            let matching = self.policies.values().filter(|policy| kind(policy) && policy.matches(query));
            matching.max_by_key(|policy| (policy.priority, Reverse(policy.id)))
        };
        let ends = match (highest(Policy::moves), highest(Policy::cancels)) {
            (Some(moving), Some(cancelling)) if moving.priority > cancelling.priority => Some(moving),
            (moving, cancelling) => cancelling.or(moving),
        };
        ends.into_iter().chain(highest(|policy| !policy.moves() && !policy.cancels())).collect()
    }

    pub(super) fn create_policy(&mut self, new: &NewPolicy) -> Result<Done, CatalogError> {
        check_name(&new.name)?;
        let mut policy = self.built_policy(new)?;
        policy.set(self, &new.properties)?;
        if self.policies.contains_key(&new.name) {
            let text = format!("workload schedule policy {} already exists ", new.name);
            return if new.if_not_exists { Ok(Done::nothing()) } else { refuse(text) };
        }
        let most = self.config.workload_max_policy_num;
        if self.policies.len() >= most {
            return refuse(format!("workload scheduler policy num can not exceed {most}"));
        }
        policy.id = self.new_id();
        self.policies.insert(new.name.clone(), policy);
        Ok(Done::changed())
    }

    /// Builds a policy with its conditions and actions, without its id and properties.
    pub(super) fn built_policy(&self, new: &NewPolicy) -> Result<Policy, CatalogError> {
        let of_text = |text: &ConditionText| condition(&text.metric, text.operator, &text.value);
        let conditions = new.conditions.iter().map(of_text).collect::<Result<Vec<_>, _>>()?;
        self.check_conditions(&conditions)?;
        let of_text = |text: &ActionText| match action(&text.action, text.argument.as_deref())? {
            Action::Move(group) if !self.groups.contains_key(&group) => refuse(no_group(&group)),
            action => Ok(action),
        };
        let actions = new.actions.iter().map(of_text).collect::<Result<Vec<_>, _>>()?;
        self.check_actions(&actions, &conditions)?;
        let name = new.name.clone();
        Ok(Policy { id: 0, name, version: 0, conditions, actions, enabled: true, priority: 0, group: None })
    }

    pub(super) fn check_conditions(&self, conditions: &[Condition]) -> Result<(), CatalogError> {
        if conditions.is_empty() {
            return refuse("At least one condition needs to be specified");
        }
        let most = self.config.workload_max_condition_num_in_policy;
        if conditions.len() > most {
            return refuse(format!("condition num in a policy can not exceed {most}"));
        }
        Ok(())
    }

    pub(super) fn check_actions(
        &self,
        actions: &[Action],
        conditions: &[Condition],
    ) -> Result<(), CatalogError> {
        if actions.is_empty() {
            return refuse("At least one action needs to be specified");
        }
        let most = self.config.workload_max_action_num_in_policy;
        if actions.len() > most {
            return refuse(format!("action num in one policy can not exceed {most}"));
        }
        conflicts(actions, conditions)
    }

    pub(super) fn alter_policy(&mut self, name: &str, given: &Properties) -> Result<Done, CatalogError> {
        let Some(policy) = self.policies.get(name) else {
            return refuse(format!("can not find workload schedule policy {name}"));
        };
        let mut policy = policy.clone();
        policy.set(self, given)?;
        policy.version += 1;
        self.policies.insert(name.to_owned(), policy);
        Ok(Done::changed())
    }

    pub(super) fn drop_policy(&mut self, name: &str, if_exists: bool) -> Result<Done, CatalogError> {
        if self.policies.remove(name).is_some() {
            return Ok(Done::changed());
        }
        if if_exists {
            Ok(Done::nothing())
        } else {
            refuse(format!("workload schedule policy {name} not exists"))
        }
    }

    /// Parses `group` or `compute_group.group`, the forms that the property allows.
    fn policy_group(&self, named: &str) -> Result<String, CatalogError> {
        let (compute_group, name) = named.rsplit_once('.').unwrap_or((DEFAULT_COMPUTE_GROUP, named));
        let unknown = || CatalogError::Refused(format!("unknown workload group {named}"));
        let group = self.groups.get(name).ok_or_else(unknown)?;
        let fits = !named.contains('.') || group.properties.compute_group == compute_group.to_lowercase();
        if fits { Ok(name.to_owned()) } else { Err(unknown()) }
    }
}

fn no_group(group: &str) -> String {
    format!("can not find workload group {group} when set workload sched policy")
}

/// Parses an action as written in a statement. The catalogue checks separately whether the group that the action names
/// exists.
fn action(action: &str, argument: Option<&str>) -> Result<Action, CatalogError> {
    match (action, argument) {
        ("cancel_query", None) => Ok(Action::Cancel),
        ("cancel_query", Some(_)) => refuse("cancel_query takes no argument"),
        ("set_session_variable", argument) => {
            let parts: Vec<&str> = argument.unwrap_or_default().split('=').map(str::trim).collect();
            match parts[..] {
                [name, value] if !name.is_empty() && !value.is_empty() => {
                    Ok(Action::SetVariable { name: name.to_lowercase(), value: value.to_owned() })
                }
                _ => refuse("illegal arguments, it should be like set_session_variable \"xxx=xxx\""),
            }
        }
        ("move_query_to_group", Some(group)) => Ok(Action::Move(group.to_owned())),
        ("move_query_to_group", None) => refuse(no_group("")),
        (other, _) => refuse(format!("invalid action type {other}")),
    }
}

/// Parses a condition as written in a statement.
fn condition(metric: &str, operator: &str, value: &str) -> Result<Condition, CatalogError> {
    let Some((metric, ..)) = Metric::ALL.into_iter().find(|(_, name, _)| *name == metric) else {
        return refuse(format!("invalid metric name:{metric}"));
    };
    let Some((operator, _)) = Operator::ALL.into_iter().find(|(_, sign)| *sign == operator) else {
        return refuse(format!("invalid compare operator {operator}"));
    };
    if metric == Metric::Username {
        if operator != Operator::Equal {
            return refuse("username only support EQUAL operator");
        }
        return Ok(Condition::User(value.to_owned()));
    }
    let number = value.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    match number {
        Some(number) => Ok(Condition::Number(metric, operator, number)),
        None => refuse(format!("invalid {} value: {value}, it requires >= 0", metric.words())),
    }
}

/// Refuses actions that exclude each other. Refuses conditions that cannot be combined with an action that sets a
/// session variable.
fn conflicts(actions: &[Action], conditions: &[Condition]) -> Result<(), CatalogError> {
    let mut variables = BTreeSet::new();
    let (mut cancel, mut moving) = (0, 0);
    for action in actions {
        match action {
            Action::SetVariable { name, .. } if !variables.insert(name.as_str()) => {
                return refuse(format!("duplicate set_session_variable action args one policy, {name}"));
            }
            Action::SetVariable { .. } => {}
            Action::Cancel => cancel += 1,
            Action::Move(_) => moving += 1,
        }
    }
    if cancel > 1 || moving > 1 {
        return refuse("duplicate action in one policy");
    }
    if cancel > 0 && moving > 0 {
        return refuse("CANCEL_QUERY and MOVE_QUERY_TO_GROUP can not exist in one policy at same time");
    }
    if variables.is_empty() {
        return Ok(());
    }
    if cancel + moving > 0 {
        return refuse(
            "one policy can not contains fe and be action, FE action list is [SET_SESSION_VARIABLE], BE action list is \
             [MOVE_QUERY_TO_GROUP, CANCEL_QUERY]",
        );
    }
    if conditions.iter().any(|condition| matches!(condition, Condition::Number(..))) {
        return refuse("action and metric must run in FE together or run in BE together");
    }
    Ok(())
}
