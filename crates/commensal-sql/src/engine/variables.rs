//! Session variables: commensal-sql's own, variables of Doris that have an effect here, and variables that MySQL
//! clients set or read but that have no effect here.

use super::error::{Error, Problem};
use super::mysql_variables;
use super::terms::{PlanOptions, QueryLimits};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Type of a variable's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Switch,
    /// A switch that reads back as 0 or 1.
    Bit,
    Number,
    /// Seconds, with a fraction.
    Seconds,
    /// A variable that MySQL clients set: any value is accepted, without effect.
    Ignored,
    Fixed,
}

/// Version that the server reports to clients. Clients choose the features that they use by this version.
pub const VERSION: &str = "8.0.33-commensal";

/// Name, default value, type.
const KNOWN: [(&str, &str, Kind); 51] = [
    // Variables of workload groups.
    ("workload_group", "", Kind::Text),
    ("bypass_workload_group", "false", Kind::Switch),
    ("query_slot_count", "1", Kind::Number),
    ("query_timeout", "900", Kind::Number),
    // Memory in bytes: a query that uses less has precedence over other queries of its group; 0 means its fair share.
    ("exec_mem_limit", "0", Kind::Number),
    ("dry_run_query", "false", Kind::Switch),
    ("parallel_pipeline_task_num", "0", Kind::Number),
    ("batch_size", "8192", Kind::Number),
    // Variables of MySQL.
    ("autocommit", "1", Kind::Bit),
    ("auto_increment_increment", "1", Kind::Ignored),
    ("auto_increment_offset", "1", Kind::Ignored),
    ("character_set_client", "utf8mb4", Kind::Ignored),
    ("character_set_connection", "utf8mb4", Kind::Ignored),
    ("character_set_database", "utf8mb4", Kind::Ignored),
    ("character_set_results", "utf8mb4", Kind::Ignored),
    ("character_set_server", "utf8mb4", Kind::Ignored),
    ("collation_connection", "utf8mb4_general_ci", Kind::Ignored),
    ("collation_database", "utf8mb4_general_ci", Kind::Ignored),
    ("collation_server", "utf8mb4_general_ci", Kind::Ignored),
    ("names", "utf8mb4", Kind::Ignored),
    ("foreign_key_checks", "1", Kind::Ignored),
    ("group_concat_max_len", "1024", Kind::Ignored),
    ("init_connect", "", Kind::Ignored),
    ("interactive_timeout", "28800", Kind::Ignored),
    // In seconds. Slower queries are listed in information_schema.slow_queries.
    ("long_query_time", "10", Kind::Seconds),
    ("license", "Apache-2.0", Kind::Fixed),
    ("lower_case_table_names", "0", Kind::Fixed),
    ("max_allowed_packet", "67108864", Kind::Ignored),
    ("max_execution_time", "0", Kind::Number),
    ("net_buffer_length", "16384", Kind::Ignored),
    ("net_read_timeout", "30", Kind::Ignored),
    ("net_write_timeout", "60", Kind::Ignored),
    ("performance_schema", "0", Kind::Fixed),
    ("profiling", "0", Kind::Ignored),
    ("query_cache_size", "0", Kind::Ignored),
    ("query_cache_type", "OFF", Kind::Ignored),
    ("session_track_gtids", "OFF", Kind::Ignored),
    ("socket", "", Kind::Fixed),
    ("sql_auto_is_null", "0", Kind::Ignored),
    ("sql_mode", "ONLY_FULL_GROUP_BY", Kind::Ignored),
    ("sql_select_limit", "18446744073709551615", Kind::Number),
    ("sql_warnings", "0", Kind::Ignored),
    ("system_time_zone", "UTC", Kind::Fixed),
    ("time_zone", "UTC", Kind::Ignored),
    ("transaction_isolation", "REPEATABLE-READ", Kind::Ignored),
    ("transaction_read_only", "0", Kind::Bit),
    ("tx_isolation", "REPEATABLE-READ", Kind::Ignored),
    ("tx_read_only", "0", Kind::Bit),
    ("unique_checks", "1", Kind::Ignored),
    ("version", VERSION, Kind::Fixed),
    ("version_comment", "commensal: SQL under workload groups", Kind::Fixed),
];

/// Bytes that the value of a system variable may have.
const LONGEST_VALUE: usize = 1 << 16;

/// Bytes that a session's user variables may have, with their names; and those that its other variables may have.
const MOST_BYTES: usize = 1 << 20;

/// Modes of MySQL's `sql_mode` that change the meaning of a query, and have no effect here. ANSI consists of several, of which
/// one has.
const MODES: [&str; 8] = [
    "ANSI",
    "HIGH_NOT_PRECEDENCE",
    "IGNORE_SPACE",
    "NO_BACKSLASH_ESCAPES",
    "NO_UNSIGNED_SUBTRACTION",
    "PAD_CHAR_TO_FULL_LENGTH",
    "PIPES_AS_CONCAT",
    "REAL_AS_FLOAT",
];

/// Variables for the client's character sets.
const LETTERS_OF: [&str; 4] =
    ["names", "character_set_client", "character_set_connection", "character_set_results"];

/// Accepted character sets: UTF-8 and subsets of it, and Windows-1252.
const LETTERS: [&str; 7] = ["utf8mb4", "utf8mb3", "utf8", "ascii", "us-ascii", "binary", "latin1"];

fn known(name: &str) -> Option<(&'static str, Kind)> {
    let found = KNOWN.iter().find(|(known, ..)| *known == name);
    found
        .map(|(_, default, kind)| (*default, *kind))
        .or((name == "wait_timeout").then_some(("28800", Kind::Ignored)))
        .or_else(|| {
            let (default, may_set) = mysql_variables::get(name)?;
            Some((default, if may_set { Kind::Ignored } else { Kind::Fixed }))
        })
}

/// Returns the name that a variable has since MySQL 8.
fn current(name: &str) -> &str {
    match name {
        "tx_isolation" => "transaction_isolation",
        "tx_read_only" => "transaction_read_only",
        name => name,
    }
}

/// Returns the value that a variable has unless it is set.
fn default_of(name: &str) -> Option<String> {
    let (default, _) = known(name)?;
    let now = (name == "timestamp").then(|| SystemTime::now().duration_since(UNIX_EPOCH).ok()).flatten();
    Some(match now {
        Some(now) => format!("{}.{:06}", now.as_secs(), now.subsec_micros()),
        None => default.to_owned(),
    })
}

/// Returns 1 or 0 for a word that means on or off.
fn bit(value: &str) -> Option<&'static str> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => Some("1"),
        "0" | "false" | "off" => Some("0"),
        _ => None,
    }
}

/// The variables that a session has set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Returns the value of a variable; `None` if the variable does not exist.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        let name = current(name);
        let value = self.0.get(name).cloned().or_else(|| default_of(name))?;
        let bit = mysql_variables::is_switch(name).then(|| bit(&value)).flatten();
        Some(bit.map_or(value, str::to_owned))
    }

    /// Sets a variable; `None` as the value restores the default. The value of a user's variable (`@name`) is a literal.
    ///
    /// # Errors
    /// The variable does not exist or is read-only, or the value is not allowed.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), Error> {
        let name = current(name);
        if name.starts_with('@') {
            self.0.remove(name);
            let Some(value) = value else { return Ok(()) };
            return self.insert(name, value.to_owned());
        }
        let Some((_, kind)) = known(name) else {
            return Err(Error::Name(Problem::Variable, format!("Unknown system variable '{name}'")));
        };
        let Some(value) = value else {
            self.0.remove(name);
            return Ok(());
        };
        if value.len() > LONGEST_VALUE {
            return Err(Error::Rule(format!("the value of {name} has more than {LONGEST_VALUE} bytes")));
        }
        let wrong = || {
            let text = format!("Variable '{name}' can't be set to the value of '{value}'");
            Error::Name(Problem::Value, text)
        };
        let value = match kind {
            Kind::Text | Kind::Ignored => value.to_owned(),
            Kind::Switch => match value.to_ascii_lowercase().as_str() {
                "1" | "true" | "on" => "true".to_owned(),
                "0" | "false" | "off" => "false".to_owned(),
                _ => return Err(wrong()),
            },
            Kind::Bit => bit(value).ok_or_else(wrong)?.to_owned(),
            Kind::Number => value.parse::<u64>().map_err(|_| wrong())?.to_string(),
            Kind::Seconds => {
                let seconds =
                    value.parse::<f64>().ok().and_then(|value| Duration::try_from_secs_f64(value).ok());
                seconds.ok_or_else(wrong)?.as_secs_f64().to_string()
            }
            Kind::Fixed => {
                return Err(Error::Name(
                    Problem::Fixed,
                    format!("Variable '{name}' is a read only variable"),
                ));
            }
        };
        if name == "batch_size" && value == "0" {
            return Err(wrong());
        }
        let letters = value.to_ascii_lowercase();
        if LETTERS_OF.contains(&name) && !LETTERS.contains(&letters.as_str()) {
            let text = format!("Unknown character set: '{value}': utf8mb4 and latin1 are supported");
            return Err(Error::Name(Problem::Letters, text));
        }
        self.insert(name, value)
    }

    /// Stores a value, unless the session's variables are too large.
    fn insert(&mut self, name: &str, value: String) -> Result<(), Error> {
        let of_user = name.starts_with('@');
        let others = self.0.iter().filter(|(other, _)| *other != name && other.starts_with('@') == of_user);
        let used: usize = others.map(|(other, value)| other.len() + value.len()).sum();
        if used + name.len() + value.len() > MOST_BYTES {
            return Err(Error::Rule(format!(
                "the variables of a session may have {MOST_BYTES} bytes in all: {name} would exceed that"
            )));
        }
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// Whether setting this variable has no effect, whatever the value is.
    #[must_use]
    pub fn is_ignored(name: &str) -> bool {
        known(name).is_some_and(|(_, kind)| kind == Kind::Ignored)
    }

    /// Returns a warning if the value of this variable changes the results of statements in MySQL, but not here.
    #[must_use]
    pub fn without_effect(&self, name: &str) -> Option<String> {
        let value = self.get(name)?.to_ascii_uppercase();
        let matters = match name {
            "time_zone" => !["UTC", "SYSTEM", "+00:00"].contains(&value.as_str()),
            "sql_mode" => value.split(',').any(|mode| MODES.contains(&mode.trim())),
            "sql_auto_is_null" => value == "1",
            "timestamp" => self.0.contains_key(name),
            _ => false,
        };
        matters.then(|| format!("{name} is stored and shown, but not enforced"))
    }

    /// Returns all variables whose names match, sorted.
    #[must_use]
    pub fn all(&self, matches: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let names =
            KNOWN.iter().map(|(name, ..)| *name).chain(["wait_timeout"]).chain(mysql_variables::names());
        let mut all: Vec<(String, String)> = names
            .filter(|name| *name != "names" && matches(name))
            .map(|name| (name.to_owned(), self.shown(name)))
            .collect();
        all.sort();
        all
    }

    /// The value in SHOW VARIABLES.
    fn shown(&self, name: &str) -> String {
        let value = self.get(name).unwrap_or_default();
        let is_bit = matches!(known(current(name)), Some((_, Kind::Bit)));
        match value.as_str() {
            "1" if is_bit || mysql_variables::is_switch(name) => "ON".to_owned(),
            "0" if is_bit || mysql_variables::is_switch(name) => "OFF".to_owned(),
            _ => value,
        }
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    fn seconds(&self, name: &str) -> Option<Duration> {
        Duration::try_from_secs_f64(self.get(name)?.parse().ok()?).ok()
    }

    fn is_on(&self, name: &str) -> bool {
        self.get(name).as_deref() == Some("true")
    }

    /// Whether a text in double quotes is a name (`ANSI_QUOTES` in `sql_mode`).
    #[must_use]
    pub fn ansi_quotes(&self) -> bool {
        let modes = self.get("sql_mode").unwrap_or_default();
        let is_ansi = |mode: &str| ["ansi", "ansi_quotes"].contains(&mode.trim().to_lowercase().as_str());
        modes.split(',').any(is_ansi)
    }

    /// Returns `workload_group`, unless it is empty.
    #[must_use]
    pub fn group(&self) -> Option<String> {
        self.get("workload_group").filter(|name| !name.is_empty())
    }

    /// Returns `bypass_workload_group`.
    #[must_use]
    pub fn bypass(&self) -> bool {
        self.is_on("bypass_workload_group")
    }

    /// Whether the session's statements may not write (`transaction_read_only`).
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.get("transaction_read_only").as_deref() == Some("1")
    }

    /// Returns the limits of a query: `query_slot_count`, `long_query_time`, and unless they are zero `exec_mem_limit`, `query_timeout` (in
    /// seconds) and `max_execution_time` (in milliseconds).
    #[must_use]
    pub fn limits(&self) -> QueryLimits {
        let positive = |name: &str| Some(self.number(name)).filter(|value| *value > 0);
        QueryLimits {
            slots: u32::try_from(self.number("query_slot_count")).unwrap_or(u32::MAX),
            memory: usize::try_from(self.number("exec_mem_limit")).ok().filter(|bytes| *bytes > 0),
            timeout: positive("query_timeout").map(Duration::from_secs),
            execution: positive("max_execution_time").map(Duration::from_millis),
            slow_after: self.seconds("long_query_time"),
        }
    }

    /// Returns the options for planning a statement: `dry_run_query`, `batch_size`, `sql_select_limit`, and
    /// `parallel_pipeline_task_num`. If the last of these is zero, `cpus` is used instead.
    #[must_use]
    pub fn plan_options(&self, database: String, cpus: usize) -> PlanOptions {
        let (partitions, batch_size) = (self.partitions(cpus), self.batch_size());
        let select_limit = Some(self.number("sql_select_limit")).filter(|limit| *limit < u64::MAX);
        PlanOptions { database, partitions, batch_size, dry_run: self.is_on("dry_run_query"), select_limit }
    }

    fn partitions(&self, cpus: usize) -> usize {
        match usize::try_from(self.number("parallel_pipeline_task_num")) {
            Ok(0) | Err(_) => cpus.max(1),
            Ok(number) => number.min(1_024),
        }
    }

    /// Returns `batch_size`.
    #[must_use]
    pub fn batch_size(&self) -> usize {
        usize::try_from(self.number("batch_size")).unwrap_or(8_192).clamp(1, 65_536)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let mut variables = Variables::default();
        for (name, value, want) in [
            ("workload_group", "g2", Ok("g2")),
            ("dry_run_query", "TRUE", Ok("true")),
            (
                "dry_run_query",
                "perhaps",
                Err("Variable 'dry_run_query' can't be set to the value of 'perhaps'"),
            ),
            ("query_timeout", "-1", Err("Variable 'query_timeout' can't be set to the value of '-1'")),
            ("batch_size", "0", Err("Variable 'batch_size' can't be set to the value of '0'")),
            ("version", "9", Err("Variable 'version' is a read only variable")),
            ("autocomit", "1", Err("Unknown system variable 'autocomit'")),
            ("@mine", "1", Ok("1")),
            ("unique_checks", "off", Ok("0")),
            ("big_tables", "ON", Ok("1")),
            ("query_cache_type", "OFF", Ok("OFF")),
            ("wait_timeout", "5", Ok("5")),
            ("tx_isolation", "READ-COMMITTED", Ok("READ-COMMITTED")),
            ("transaction_read_only", "ON", Ok("1")),
            ("autocommit", "maybe", Err("Variable 'autocommit' can't be set to the value of 'maybe'")),
            ("names", "UTF8", Ok("UTF8")),
            ("names", "latin1", Ok("latin1")),
            ("names", "koi8r", Err("Unknown character set: 'koi8r': utf8mb4 and latin1 are supported")),
        ] {
            let got = variables.set(name, Some(value)).map(|()| variables.get(name).unwrap());
            assert_eq!(
                got.map_err(|error| error.to_string()),
                want.map(str::to_owned).map_err(str::to_owned)
            );
        }
        let options = |variables: &Variables| variables.plan_options("main".to_owned(), 2);
        assert!(options(&variables).dry_run);
        variables.set("dry_run_query", None).unwrap();
        assert!(!options(&variables).dry_run);
        assert_eq!(variables.group().as_deref(), Some("g2"));
        assert_eq!(options(&variables).partitions, 2);
    }
}
