//! The JSON Schema of groups files, for editors and other programs, generated from the tables of keys and limits.
//!
//! The schema accepts every file that [`super::parse_file`] accepts. The parser also refuses what a schema cannot
//! describe: amounts that overflow or round to 0, CPU lists in descending order, invalid glob patterns, and patterns
//! without a name in them. Amounts of a machine are checked by neither of them but by [`crate::desired::resolve`].

use super::{AGENT_KEYS, keys};
use crate::group::TAKEN;
use crate::limit::{LIMITS, LimitId, MEMORY_MAX, Row, Unit, Write};
use crate::toml_reader::{FileKey, Kind};
use crate::units::{BYTE_UNITS, CPU_UNITS, TIME_UNITS};
use serde_json::{Map, Value, json};

/// A key that is not a limit: its path, its description, and for text of a certain form, the pattern of the text.
type Described = (&'static str, &'static str, fn() -> Option<String>);

/// The descriptions of all keys that are not limits, which have their own in [`LIMITS`].
const DESCRIBED: &[Described] = &[
    ("class", "online: latency-critical work; offline: batch work, which yields to online work.", free),
    ("cpu.min-share", "CPU time that an offline group gets even while it starves.", cpus),
    ("memory.on-exceed", "What happens when the group reaches memory.max.", free),
    (
        "io.devices",
        "The disks to which the io keys apply, such as \"254:0\"; by default every whole disk.",
        device,
    ),
    ("remote.read", "Rate of reads from remote stores, which the SQL engine enforces.", rate),
    ("queue.max-concurrency", "Number of the group's commands that may run at the same time.", free),
    ("queue.max-size", "Number of commands that may wait; further commands are refused.", free),
    ("queue.timeout", "How long a command may wait, such as \"10 min\".", || some(time(1_000_000, false))),
    ("expel", "Keeps an offline group off cores whose SMT sibling runs online work.", free),
    ("safe-state", "What the agent leaves behind when it ends.", free),
    ("takeover", "Writes kernel settings even where systemd or a container manager writes them, too.", free),
    ("limits", "Whether the limits apply to each member or to all members together.", free),
    ("target-wakeup-p99", "Target of an online group for the time that offline work keeps a CPU.", micros),
    ("match", "Members of the group. Without it, only `commensal run` starts members.", free),
    ("match-everything", "Allows a cgroup pattern without a name in it, such as \"/*\".", free),
    ("match.cgroup", "Cgroups by path: * is one component or a part of it, ** any number of them.", cgroup),
    ("match.systemd", "A systemd unit or slice, by name.", free),
    ("match.docker-label", "Containers with this label, key=value or key.", free),
    ("match.docker-name", "The container with this name.", free),
    ("match.kubernetes", "The pods of a quality-of-service class.", free),
    ("match.process", "Processes for which every given key holds, and their descendants.", free),
    ("match.process.exe", "Path of the program, or its last component.", free),
    ("match.process.user", "User of the process, by name or number.", free),
    ("match.process.cmdline", "A part of the arguments, joined by spaces.", free),
    ("agent.headroom", "When and how the agent limits offline work as a whole.", free),
    ("agent.weights", "Whether online groups get more weight than cgroups of no group.", free),
    (
        "agent.io",
        "Whether the agent limits disk I/O of offline groups while online groups wait for the disks.",
        free,
    ),
];

/// The JSON Schema (draft 7) of groups files.
#[must_use]
pub fn schema() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "commensal groups file",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "agent": table("agent.", AGENT_KEYS),
            "group": {
                "description": "The workload groups, by name.",
                "type": "object",
                "propertyNames": { "pattern": "^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$", "not": { "enum": TAKEN } },
                "additionalProperties": { "$ref": "#/definitions/group" },
            },
        },
        "anyOf": [
            { "required": ["agent"] },
            { "required": ["group"], "properties": { "group": { "minProperties": 1 } } },
        ],
        "definitions": { "group": group() },
    })
}

fn group() -> Value {
    let mut schema = table("", &keys());
    schema["required"] = json!(["class"]);
    let properties = &mut schema["properties"];
    // Contents of a list or table that a list of keys cannot state.
    properties["match"]["minItems"] = json!(1);
    properties["match"]["items"]["minProperties"] = json!(1);
    properties["match"]["items"]["maxProperties"] = json!(1);
    properties["match"]["items"]["properties"]["process"]["minProperties"] = json!(1);
    properties["io"]["properties"]["devices"]["minItems"] = json!(1);
    properties["queue"]["anyOf"] = json!([{ "maxProperties": 0 }, { "required": ["max-concurrency"] }]);
    schema["allOf"] = rules().into();
    schema
}

/// The contradictions between keys that [`super::cross_checks`] reports.
fn rules() -> Vec<Value> {
    let refused = |why: fn(&Row) -> bool| LIMITS.iter().filter(move |row| why(row)).map(has);
    let on = |key: &str| given(key, json!({ "const": true }));
    let any = |key: &str| given(key, json!({}));
    let not_online = refused(|row| row.not_online.is_some()).chain([on("expel"), any("cpu.min-share")]);
    let not_offline = refused(|row| row.not_offline.is_some()).chain([any("target-wakeup-p99")]);
    let of_disks = refused(|row| matches!(row.write, Write::PerDisk(_)) || row.id == LimitId::IoWeight);
    let mut rules = vec![
        of_class("online", not_online.collect()),
        of_class("offline", not_offline.collect()),
        json!({ "if": on("match-everything"), "then": any("match") }),
        json!({ "if": any("memory.on-exceed"), "then": any(MEMORY_MAX.key()) }),
        json!({ "if": any("io.devices"), "then": { "anyOf": of_disks.collect::<Vec<_>>() } }),
    ];
    let needs = LIMITS.iter().filter_map(|row| Some((row, row.needs?.row())));
    rules.extend(needs.map(|(row, other)| json!({ "if": has(row), "then": has(other) })));
    rules
}

fn of_class(class: &str, refused: Vec<Value>) -> Value {
    json!({ "if": given("class", json!({ "const": class })), "then": { "not": { "anyOf": refused } } })
}

/// The schema of groups that have the limit; a switch that is off is no limit.
fn has(row: &Row) -> Value {
    let value = if row.unit == Unit::Switch { json!({ "const": true }) } else { json!({}) };
    given(row.key, value)
}

/// The schema of tables that have a key with such a value.
fn given(path: &str, value: Value) -> Value {
    let above = |value: Value, name: &str| json!({ "required": [name], "properties": { name: value } });
    path.rsplit('.').fold(value, above)
}

/// The schema of a table with these keys; `above` is the prefix of their names in [`DESCRIBED`].
fn table(above: &str, keys: &[FileKey]) -> Value {
    let mut table = no_other_keys();
    for key in keys {
        let mut inside = &mut table;
        let parts: Vec<&str> = key.path.split('.').collect();
        for (index, part) in parts.iter().enumerate() {
            let last = index + 1 == parts.len();
            let new = || if last { one_key(above, key) } else { no_other_keys() };
            let Some(properties) = inside["properties"].as_object_mut() else { break };
            inside = properties.entry(*part).or_insert_with(new);
        }
    }
    let needed: Vec<&str> = keys.iter().filter(|key| key.needed).map(|key| key.path).collect();
    if !needed.is_empty() {
        table["required"] = needed.into();
    }
    table
}

fn no_other_keys() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": Map::new() })
}

fn one_key(above: &str, key: &FileKey) -> Value {
    let name = format!("{above}{}", key.path);
    let limit = LIMITS.iter().find(|row| row.key == name).map(|row| (row.doc, of_unit(row.unit)));
    let other = || DESCRIBED.iter().find(|(path, ..)| *path == name).map(|(_, doc, form)| (*doc, form()));
    let (doc, pattern) = limit.or_else(other).unwrap_or_default();
    let mut schema = value(&name, key.kind, pattern);
    schema["description"] = doc.into();
    schema
}

fn value(name: &str, kind: Kind, pattern: Option<String>) -> Value {
    let text = || match &pattern {
        Some(pattern) => json!({ "type": "string", "pattern": pattern }),
        None => json!({ "type": "string" }),
    };
    let list = |items: Value| json!({ "type": "array", "items": items });
    let whole = |low: u64, high: u64| json!({ "type": "integer", "minimum": low, "maximum": high });
    let command = || json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 });
    match kind {
        Kind::AnyText | Kind::Checked(_) | Kind::Quantity(_) => text(),
        Kind::Text => json!({ "type": "string", "pattern": "\\S" }),
        Kind::NumberOrText(..) => json!({ "type": ["number", "string"] }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Whole(low, high) => whole(low, high),
        Kind::Number(low, f64::INFINITY) => json!({ "type": "number", "minimum": low }),
        Kind::Number(low, high) => json!({ "type": "number", "minimum": low, "maximum": high }),
        Kind::Positive => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Texts(_) => list(text()),
        Kind::Wholes(low, high) => list(whole(low, high)),
        Kind::Command => command(),
        Kind::Commands => list(command()),
        Kind::Named => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::Table(keys) => table(&format!("{name}."), keys),
        Kind::WordOrTable(words, keys) => {
            json!({ "anyOf": [{ "enum": words }, table(&format!("{name}."), keys)] })
        }
        Kind::Tables(keys) => list(table(&format!("{name}."), keys)),
    }
}

/// The pattern of a limit's text; `None` for a limit that is not text or is one of some words.
fn of_unit(unit: Unit) -> Option<String> {
    match unit {
        Unit::Cpus => cpus(),
        Unit::CpuSet => some(cpu_set()),
        Unit::Memory => some(format!(r"{NUMBER}\s*({}|%)", bytes())),
        Unit::Rate => rate(),
        Unit::Operations => some(format!(r"{POSITIVE}\s*iops")),
        Unit::Time => micros(),
        Unit::Weight | Unit::Partition | Unit::Count(..) | Unit::Switch => None,
    }
}

/// A number of [`crate::units`], whose digits may have underscores between them.
const NUMBER: &str = r"[0-9_]*[0-9][0-9_]*(\.[0-9_]*[0-9][0-9_]*)?";
/// A number that is not 0.
const POSITIVE: &str =
    r"([0-9_]*[1-9][0-9_]*(\.[0-9_]*[0-9][0-9_]*)?|[0-9_]*[0-9][0-9_]*\.[0-9_]*[1-9][0-9_]*)";

/// A pattern for the whole text, with white space around it.
fn some(inside: String) -> Option<String> {
    Some(format!(r"^\s*{inside}\s*$"))
}

fn free() -> Option<String> {
    None
}

fn cpus() -> Option<String> {
    some(format!(r"{POSITIVE}\s*(%|{})", CPU_UNITS.join("|")))
}

fn bytes() -> String {
    BYTE_UNITS.map(|(name, _)| name).join("|")
}

fn rate() -> Option<String> {
    some(format!(r"{POSITIVE}\s*({})\s*/s", bytes()))
}

fn micros() -> Option<String> {
    some(time(1_000, true))
}

/// One or more numbers with units of at least this length; one of them is above 0 if the sum has to be.
fn time(shortest_ns: u128, positive: bool) -> String {
    let units = TIME_UNITS.iter().filter(|(_, unit_ns)| *unit_ns >= shortest_ns);
    let names: Vec<&str> = units.flat_map(|(names, _)| names.iter().copied()).collect();
    let part = |number: &str| format!(r"{number}\s*({})\s*", names.join("|"));
    let any = part(NUMBER);
    if positive { format!("({any})*{}({any})*", part(POSITIVE)) } else { format!("({any})+") }
}

fn cpu_set() -> String {
    let one = r"\+?[0-9]+(\s*-\s*\+?[0-9]+)?";
    format!(r"[\s,]*{one}\s*(,\s*({one}\s*)?)*")
}

fn device() -> Option<String> {
    some(r"\+?[0-9]+:\+?[0-9]+".to_owned())
}

/// An absolute path that is not the root, without the components `.` and `..`.
fn cgroup() -> Option<String> {
    Some(r"^/+([^./][^/]*|\.[^./][^/]*|\.\.[^/]+)(/+([^./][^/]*|\.[^./][^/]*|\.\.[^/]+))*/*$".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{MATCH_KEYS, PROCESS_KEYS};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_key_has_one_description() {
        let limits: BTreeSet<String> = LIMITS.iter().map(|row| row.key.to_owned()).collect();
        let names = |above: &str, keys: &[FileKey]| -> Vec<String> {
            keys.iter().map(|key| format!("{above}{}", key.path)).collect()
        };
        let mut wanted: Vec<String> = names("", &keys());
        wanted.retain(|name| !limits.contains(name));
        wanted.extend(names("match.", MATCH_KEYS));
        wanted.extend(names("match.process.", PROCESS_KEYS));
        wanted.extend(names("agent.", AGENT_KEYS));
        wanted.sort();
        let mut described: Vec<String> = DESCRIBED.iter().map(|(path, ..)| (*path).to_owned()).collect();
        described.sort();
        assert_eq!(described, wanted);
    }
}
