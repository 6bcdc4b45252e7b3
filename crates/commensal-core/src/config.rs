//! Text of a groups file to group specs; every error in one pass, with line and column.
//!
//! Only the shape is judged here: keys, types, units. Whether the limits fit a machine is
//! [`crate::desired::resolve`]'s question.

use crate::cpuset::CpuSet;
use crate::group::{
    Class, GroupName, GroupSpec, LimitScope, Match, OnExceed, Partition, PodQos, Position, Queue, SafeState,
    Source,
};
use crate::limit::{LIMITS, LimitId, LimitSet, MEMORY_MAX, On, Row, Unit, Write, Written};
use crate::text::line_and_column;
use crate::topology::Device;
use crate::units::Weight;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Something wrong in a groups file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// `file:line:column`.
    pub at: String,
    /// What is wrong and how to put it right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Keys of a group beside its limits, as dotted paths.
const OTHER_KEYS: &[&str] = &[
    "class",
    "memory.on-exceed",
    "io.devices",
    "remote.read",
    "queue.max-concurrency",
    "queue.max-size",
    "queue.timeout",
    "expel",
    "safe-state",
    "takeover",
    "limits",
    "target-wakeup-p99",
    "match",
];

/// Every key of a group, as a dotted path.
#[must_use]
pub fn keys() -> Vec<&'static str> {
    LIMITS.iter().map(|row| row.key).chain(OTHER_KEYS.iter().copied()).collect()
}

const AGENT_KEYS: &[&str] = &["room", "weights", "io"];
const MATCH_KEYS: &[&str] = &["cgroup", "systemd", "docker-label", "docker-name", "kubernetes", "process"];
const PROCESS_KEYS: &[&str] = &["exe", "user", "cmdline"];

/// How the agent keeps the offline side to its room: the machine's CPUs less a reserve and less what everybody else uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// Only while an online group misses its `target-wakeup-p99`, and then by whole cores or by a quota, as fits the
    /// machine: otherwise offline work may use all that its class leaves it.
    #[default]
    Target,
    /// Always, by whole cores or by a quota, as fits the machine.
    Auto,
    /// Always, by whole physical cores (the big frame).
    Frame,
    /// Always, by a quota.
    Quota,
    /// Never: class only.
    Off,
}

/// What one file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupsFile {
    /// `[group.NAME]`.
    pub groups: Vec<GroupSpec>,
    /// `[agent]`.
    pub agent: Option<AgentKeys>,
}

/// `[agent]` of one file; each with where it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentKeys {
    /// How the offline side is kept to its room.
    pub room: Option<(Room, Position)>,
    /// Whether online groups get more weight than what no group claims.
    pub weights: Option<(bool, Position)>,
    /// Whether the offline side's disks are held back while online groups wait for them.
    pub io: Option<(bool, Position)>,
}

/// Reads one groups file. `file` is its name for messages.
///
/// # Errors
/// Every mistake found, in the order of the text.
pub fn parse(file: &str, text: &str) -> Result<Vec<GroupSpec>, Vec<ConfigError>> {
    parse_file(file, text).map(|file| file.groups)
}

/// The same with what is for the agent.
///
/// # Errors
/// Every mistake found, in the order of the text.
pub fn parse_file(file: &str, text: &str) -> Result<GroupsFile, Vec<ConfigError>> {
    let mut reader = Reader { file, text, errors: Vec::new() };
    let (root, syntax) = DeTable::parse_recoverable(text);
    for error in &syntax {
        reader.error(error.span().unwrap_or(0..0), error.message().to_owned());
    }
    let read = if syntax.is_empty() { reader.root(root.get_ref()) } else { GroupsFile::default() };
    if reader.errors.is_empty() { Ok(read) } else { Err(reader.finish()) }
}

type Value<'i> = Spanned<DeValue<'i>>;
/// Leaves of one group by dotted path, with the span of the key.
type Leaves<'t, 'i> = BTreeMap<String, (Range<usize>, &'t Value<'i>)>;

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    errors: Vec<(Position, String)>,
}

impl Reader<'_> {
    fn finish(mut self) -> Vec<ConfigError> {
        self.errors.sort();
        self.errors.dedup();
        let file = self.file;
        let error = |(position, message): (Position, String)| ConfigError {
            at: format!("{file}:{}:{}", position.line, position.column),
            message,
        };
        self.errors.into_iter().map(error).collect()
    }

    fn error(&mut self, span: Range<usize>, message: String) {
        self.errors.push((self.position(span.start), message));
    }

    fn position(&self, offset: usize) -> Position {
        let (line, column) = line_and_column(self.text, offset);
        Position { line, column }
    }

    fn unknown(&mut self, span: Range<usize>, key: &str, known: &[&str]) {
        let hint = match nearest(key, known) {
            Some(name) => format!("; did you mean {name:?}?"),
            None if known.len() <= FEW => format!("; known keys: {}", known.join(", ")),
            None => format!("; the nearest keys are {}", nearest_ones(key, known).join(", ")),
        };
        self.error(span, format!("unknown key {key:?}{hint}"));
    }

    fn root(&mut self, root: &DeTable<'_>) -> GroupsFile {
        let (mut groups, mut agent) = (Vec::new(), None);
        for (key, value) in root {
            if key.get_ref() == "agent" {
                agent = self.agent(value);
                continue;
            }
            if key.get_ref() != "group" {
                self.unknown(key.span(), key.get_ref(), &["group", "agent"]);
                continue;
            }
            let Some(tables) = value.get_ref().as_table() else {
                self.error(
                    value.span(),
                    "\"group\" must be a table of groups: write [group.NAME]".to_owned(),
                );
                continue;
            };
            for (name, value) in tables {
                groups.extend(self.group(name, value));
            }
        }
        if groups.is_empty() && agent.is_none() && self.errors.is_empty() {
            self.error(
                0..0,
                "no groups here: write [group.NAME] with class = \"online\" or \"offline\"".to_owned(),
            );
        }
        GroupsFile { groups, agent }
    }

    /// `[agent]`.
    fn agent(&mut self, value: &Value<'_>) -> Option<AgentKeys> {
        let Some(table) = value.get_ref().as_table() else {
            self.error(value.span(), "\"agent\" must be a table: write [agent]".to_owned());
            return None;
        };
        let mut leaves = Leaves::new();
        for (key, value) in table {
            if AGENT_KEYS.contains(&key.get_ref().as_ref()) {
                leaves.insert(key.get_ref().to_string(), (key.span(), value));
            } else {
                self.unknown(key.span(), key.get_ref(), AGENT_KEYS);
            }
        }
        let words = [
            ("target", Room::Target),
            ("auto", Room::Auto),
            ("frame", Room::Frame),
            ("quota", Room::Quota),
            ("off", Room::Off),
        ];
        let room = self.word(&leaves, "room", &words);
        let mut flag = |key: &str| leaves.contains_key(key).then(|| self.flag(&leaves, key));
        let (weights, io) = (flag("weights"), flag("io"));
        let at = |key: &str| self.position(leaves.get(key).map_or(0, |(_, value)| value.span().start));
        Some(AgentKeys {
            room: room.map(|room| (room, at("room"))),
            weights: weights.map(|weights| (weights, at("weights"))),
            io: io.map(|io| (io, at("io"))),
        })
    }

    fn group(&mut self, key: &Spanned<DeString<'_>>, value: &Value<'_>) -> Option<GroupSpec> {
        let Some(table) = value.get_ref().as_table() else {
            self.error(value.span(), format!("group {:?} must be a table", key.get_ref()));
            return None;
        };
        let mut leaves = Leaves::new();
        self.flatten("", table, &mut leaves);
        let name = GroupName::new(key.get_ref()).map_err(|message| self.error(key.span(), message)).ok();
        let words = [("online", Class::Online), ("offline", Class::Offline)];
        let class = self.word(&leaves, "class", &words);
        if !leaves.contains_key("class") {
            let message =
                format!("group {:?} has no class: write class = \"online\" or \"offline\"", key.get_ref());
            self.error(key.span(), message);
        }
        let mut spec = GroupSpec {
            limits: self.limits(&leaves),
            on_exceed: self.word(
                &leaves,
                "memory.on-exceed",
                &[
                    ("kill-largest", OnExceed::KillLargest),
                    ("kill-group", OnExceed::KillGroup),
                    ("freeze", OnExceed::Freeze),
                    ("queue", OnExceed::Queue),
                ],
            ),
            disks: self.disks(&leaves),
            remote_read: self.quantity(&leaves, "remote.read"),
            queue: self.queue(&leaves),
            expel: self.flag(&leaves, "expel"),
            safe_state: self
                .word(
                    &leaves,
                    "safe-state",
                    &[("protect", SafeState::Protect), ("restore", SafeState::Restore)],
                )
                .unwrap_or_default(),
            takeover: self.flag(&leaves, "takeover"),
            scope: self
                .word(
                    &leaves,
                    "limits",
                    &[("per-member", LimitScope::PerMember), ("total", LimitScope::Total)],
                )
                .unwrap_or_default(),
            target_wakeup_p99: self.quantity(&leaves, "target-wakeup-p99"),
            matches: self.matches(&leaves),
            ..GroupSpec::new(name?, class?)
        };
        spec.source = Source { file: self.file.to_owned(), positions: BTreeMap::new() };
        spec.source.positions.insert(String::new(), self.position(key.span().start));
        for (path, (_, value)) in &leaves {
            spec.source.positions.insert(path.clone(), self.position(value.span().start));
        }
        self.cross_checks(&spec);
        Some(spec)
    }

    /// Settings that contradict each other or cannot take effect.
    fn cross_checks(&mut self, spec: &GroupSpec) {
        let at =
            |key: &str| spec.source.positions.get(key).copied().unwrap_or(Position { line: 1, column: 1 });
        let name = &spec.name;
        for (row, _) in spec.limits.iter() {
            if let (Class::Online, Some(why)) = (spec.class, row.not_online) {
                let message = format!("group {:?}: {} {why}", name.as_str(), row.key);
                self.errors.push((at(row.key), message));
            }
            if let Some(other) = row.needs.filter(|other| !spec.limits.contains(*other)) {
                let message = format!(
                    "group {:?}: {} has no effect without {}",
                    name.as_str(),
                    row.key,
                    other.row().key
                );
                self.errors.push((at(row.key), message));
            }
        }
        if spec.expel && spec.class == Class::Online {
            let message = format!("group {:?}: expel is a property of offline groups", name.as_str());
            self.errors.push((at("expel"), message));
        }
        if spec.target_wakeup_p99.is_some() && spec.class == Class::Offline {
            let message =
                format!("group {:?}: target-wakeup-p99 is a property of online groups", name.as_str());
            self.errors.push((at("target-wakeup-p99"), message));
        }
        if spec.on_exceed.is_some() && !spec.limits.has(MEMORY_MAX) {
            let message =
                format!("group {:?}: memory.on-exceed has no effect without memory.max", name.as_str());
            self.errors.push((at("memory.on-exceed"), message));
        }
        let of_disks = |row: &Row| matches!(row.write, Write::PerDisk(_)) || row.id == LimitId::IoWeight;
        if !spec.disks.is_empty() && !spec.limits.iter().any(|(row, _)| of_disks(row)) {
            let message =
                format!("group {:?}: io.devices has no effect without a rate or io.weight", name.as_str());
            self.errors.push((at("io.devices"), message));
        }
    }

    fn flatten<'t, 'i>(&mut self, prefix: &str, table: &'t DeTable<'i>, leaves: &mut Leaves<'t, 'i>) {
        for (key, value) in table {
            let path = if prefix.is_empty() {
                key.get_ref().to_string()
            } else {
                format!("{prefix}.{}", key.get_ref())
            };
            let known = keys();
            if known.contains(&path.as_str()) {
                leaves.insert(path, (key.span(), value));
            } else if let (Some(inner), true) =
                (value.get_ref().as_table(), known.iter().any(|known| known.starts_with(&format!("{path}."))))
            {
                self.flatten(&path, inner, leaves);
            } else {
                self.unknown(key.span(), &path, &known);
            }
        }
    }

    /// A quoted quantity with a unit.
    fn quantity<T: FromStr<Err: fmt::Display>>(&mut self, leaves: &Leaves<'_, '_>, key: &str) -> Option<T> {
        let (_, value) = leaves.get(key)?;
        let problem = match value.get_ref() {
            DeValue::String(text) => match text.parse::<T>() {
                Ok(quantity) => return Some(quantity),
                Err(error) => format!("{key}: {error}"),
            },
            DeValue::Integer(number) => {
                // Let the type itself say what it wants.
                let wanted =
                    number.as_str().parse::<T>().err().map(|error| error.to_string()).unwrap_or_default();
                format!("{key}: a bare number has no unit: {wanted}")
            }
            other => format!("{key} must be text with a unit, not {}", other.type_str()),
        };
        self.error(value.span(), problem);
        None
    }

    fn integer(&mut self, leaves: &Leaves<'_, '_>, key: &str, low: u32, high: u32) -> Option<u32> {
        let (_, value) = leaves.get(key)?;
        let number =
            value.get_ref().as_integer().filter(|n| n.radix() == 10).and_then(|n| n.as_str().parse().ok());
        let number = number.filter(|number| (low..=high).contains(number));
        if number.is_none() {
            self.error(value.span(), format!("{key} must be a whole number from {low} to {high}"));
        }
        number
    }

    fn flag(&mut self, leaves: &Leaves<'_, '_>, key: &str) -> bool {
        let Some((_, value)) = leaves.get(key) else { return false };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.error(value.span(), format!("{key} must be true or false"));
            false
        })
    }

    fn word<T: Copy>(&mut self, leaves: &Leaves<'_, '_>, key: &str, words: &[(&str, T)]) -> Option<T> {
        let (_, value) = leaves.get(key)?;
        let given = value.get_ref().as_str();
        let found = words.iter().find(|(word, _)| Some(*word) == given).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = given.and_then(|given| nearest(given, &known));
            let hint = hint.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
            let quoted: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
            self.error(value.span(), format!("{key} must be one of {}{hint}", quoted.join(", ")));
        }
        found
    }

    fn weight(&mut self, leaves: &Leaves<'_, '_>, key: &str) -> Option<Weight> {
        let number = self.integer(leaves, key, 1, 10_000)?;
        u16::try_from(number).ok().and_then(Weight::new)
    }

    fn cpu_set(&mut self, leaves: &Leaves<'_, '_>, key: &str) -> Option<CpuSet> {
        let set: CpuSet = self.quantity(leaves, key)?;
        if set.is_empty() {
            let span = leaves.get(key).map_or(0..0, |(_, value)| value.span());
            self.error(span, format!("{key} is empty: a group needs at least one CPU"));
        }
        Some(set)
    }

    /// Every limit, each as its unit is read.
    fn limits(&mut self, leaves: &Leaves<'_, '_>) -> LimitSet<Written> {
        let mut limits = LimitSet::default();
        for row in LIMITS {
            let key = row.key;
            let amount = match row.unit {
                Unit::Weight => self.weight(leaves, key).map(Written::Weight),
                Unit::Cpus => self.quantity(leaves, key).map(Written::Cpus),
                Unit::CpuSet => self.cpu_set(leaves, key).map(Written::CpuSet),
                Unit::Partition => {
                    let words = [("root", Partition::Root), ("isolated", Partition::Isolated)];
                    self.word(leaves, key, &words).map(Written::Partition)
                }
                Unit::Memory => self.quantity(leaves, key).map(Written::Memory),
                Unit::Rate => self.quantity(leaves, key).map(Written::Rate),
                Unit::Operations => self.quantity(leaves, key).map(Written::Operations),
                Unit::Time => self.quantity(leaves, key).map(Written::Time),
                Unit::Count(low, high) => self.integer(leaves, key, low, high).map(Written::Count),
                Unit::Switch => self.flag(leaves, key).then_some(Written::Switch(On)),
            };
            if let Some(amount) = amount {
                limits.insert(row.id, amount);
            }
        }
        limits
    }

    fn disks(&mut self, leaves: &Leaves<'_, '_>) -> Vec<Device> {
        let mut devices = Vec::new();
        if let Some((_, value)) = leaves.get("io.devices") {
            let items = value.get_ref().as_array();
            for item in items.into_iter().flat_map(|items| items.iter()) {
                match item.get_ref().as_str().map(str::parse) {
                    Some(Ok(device)) => devices.push(device),
                    Some(Err(message)) => self.error(item.span(), format!("io.devices: {message}")),
                    None => self.error(item.span(), "io.devices holds text such as \"254:0\"".to_owned()),
                }
            }
            if items.is_none_or(|items| items.is_empty()) {
                self.error(
                    value.span(),
                    "io.devices must be a list such as [\"254:0\"], not empty".to_owned(),
                );
            }
        }
        devices
    }

    fn queue(&mut self, leaves: &Leaves<'_, '_>) -> Option<Queue> {
        let max_concurrency = self.integer(leaves, "queue.max-concurrency", 1, 1_000_000);
        let max_size = self.integer(leaves, "queue.max-size", 0, 1_000_000);
        let timeout = self.quantity(leaves, "queue.timeout");
        let first = leaves.iter().find(|(key, _)| key.starts_with("queue."));
        let (_, (span, _)) = first?;
        if !leaves.contains_key("queue.max-concurrency") {
            self.error(span.clone(), "a queue needs max-concurrency".to_owned());
        }
        Some(Queue { max_concurrency: max_concurrency?, max_size: max_size.unwrap_or(u32::MAX), timeout })
    }

    fn matches(&mut self, leaves: &Leaves<'_, '_>) -> Vec<Match> {
        let Some((_, value)) = leaves.get("match") else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            self.error(value.span(), "match must be a list such as [{ cgroup = \"/batch/*\" }]".to_owned());
            return Vec::new();
        };
        if items.is_empty() {
            let message = "match is empty: it would never find a member; leave it out if the group is only used with \
                           `commensal run`";
            self.error(value.span(), message.to_owned());
        }
        items.iter().filter_map(|item| self.one_match(item)).collect()
    }

    fn one_match(&mut self, item: &Value<'_>) -> Option<Match> {
        let entry =
            item.get_ref().as_table().filter(|table| table.len() == 1).and_then(|table| table.iter().next());
        let Some((key, value)) = entry else {
            let message = format!("each match has exactly one of {}", MATCH_KEYS.join(", "));
            self.error(item.span(), message);
            return None;
        };
        let what = key.get_ref().as_ref();
        if !MATCH_KEYS.contains(&what) {
            self.unknown(key.span(), what, MATCH_KEYS);
            return None;
        }
        if what == "process" {
            return self.process_match(value);
        }
        let Some(text) = value.get_ref().as_str().filter(|text| !text.trim().is_empty()) else {
            self.error(value.span(), format!("{what} must be text that is not empty"));
            return None;
        };
        match what {
            "cgroup" => self.cgroup_match(text, value.span()),
            "systemd" => Some(Match::Systemd(text.to_owned())),
            "docker-label" => Some(Match::DockerLabel(text.to_owned())),
            "kubernetes" => self.kubernetes_match(text, value.span()),
            _ => Some(Match::DockerName(text.to_owned())),
        }
    }

    fn cgroup_match(&mut self, text: &str, span: Range<usize>) -> Option<Match> {
        let problem = if !text.starts_with('/') {
            format!("cgroup {text:?} must start with \"/\", the root of the cgroup hierarchy")
        } else if text.split('/').any(|part| part == ".." || part == ".") {
            format!("cgroup {text:?} contains \"..\" or \".\"")
        } else if text.trim_matches('/').is_empty() {
            "the root cgroup holds the whole machine and cannot be a member".to_owned()
        } else {
            match glob::Pattern::new(text.trim_end_matches('/')) {
                Ok(pattern) => return Some(Match::Cgroup(pattern)),
                Err(error) => format!("cgroup {text:?} is not a pattern: {}", error.msg),
            }
        };
        self.error(span, problem);
        None
    }

    fn kubernetes_match(&mut self, text: &str, span: Range<usize>) -> Option<Match> {
        let classes = [PodQos::BestEffort, PodQos::Burstable, PodQos::Guaranteed];
        let found = classes.into_iter().find(|qos| qos.to_string() == text);
        if found.is_none() {
            let words = classes.map(|qos| format!("\"{qos}\""));
            self.error(span, format!("kubernetes must be one of {}", words.join(", ")));
        }
        found.map(Match::Kubernetes)
    }

    fn process_match(&mut self, value: &Value<'_>) -> Option<Match> {
        let table = value.get_ref().as_table().filter(|table| !table.is_empty());
        let Some(table) = table else {
            self.error(value.span(), format!("process needs at least one of {}", PROCESS_KEYS.join(", ")));
            return None;
        };
        for (key, value) in table {
            if !PROCESS_KEYS.contains(&key.get_ref().as_ref()) {
                self.unknown(key.span(), key.get_ref(), PROCESS_KEYS);
            } else if value.get_ref().as_str().is_none_or(str::is_empty) {
                self.error(value.span(), format!("{} must be text that is not empty", key.get_ref()));
            }
        }
        let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str()).map(str::to_owned);
        Some(Match::Process { exe: text("exe"), user: text("user"), cmdline: text("cmdline") })
    }
}

/// So many names are told all.
const FEW: usize = 6;

/// How far a known name is from what was written.
fn distance(given: &str, name: &str) -> usize {
    let last = |text: &str| text.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::damerau_levenshtein(given, name);
    // `cpu_max` or a key in the wrong table should still find `cpu.max`.
    whole.min(strsim::damerau_levenshtein(&last(given), &last(name)) + 1)
}

/// The known name closest to what was written, if it is close enough to be a slip.
#[must_use]
pub fn nearest<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    let near = known.iter().map(|name| (distance(given, name), *name)).filter(|(far, _)| *far <= 3);
    near.min().map(|(_, name)| name)
}

/// The known names closest to what was written, however far they are: first those of the table of that name.
#[must_use]
pub fn nearest_ones<'k>(given: &str, known: &[&'k str]) -> Vec<&'k str> {
    let table = format!("{}.", given.split('.').next().unwrap_or(given));
    let mut all: Vec<_> =
        known.iter().map(|name| (!name.starts_with(&table), distance(given, name), *name)).collect();
    all.sort_unstable();
    all.into_iter().take(FEW).map(|(_, _, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{CPU_MAX, IO_READ};

    /// Parses and gives either the groups' debug form lines that were asked for, or the errors.
    fn errors(text: &str) -> String {
        match parse("groups.toml", text) {
            Ok(groups) => format!("ok: {} groups", groups.len()),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        }
    }

    #[test]
    fn the_guides_example_is_read_whole() {
        let text = r#"
            [group.web]
            class = "online"
            match = [{ systemd = "nginx.service" }, { docker-label = "tier=web" }]

            [group.etl]
            class     = "offline"
            cpu.max   = "50 %"
            cpu.weight = 20
            memory    = { max = "8 GiB", on-exceed = "kill-largest" }
            io.read   = "100 MiB/s"
            queue     = { max-concurrency = 4, max-size = 100, timeout = "10 min" }
            match     = [{ cgroup = "/batch/*" }]
        "#;
        let groups = parse("groups.toml", text).unwrap();
        let etl = groups.iter().find(|group| group.name.as_str() == "etl").unwrap();
        assert_eq!(etl.limits.get(CPU_MAX).unwrap().to_string(), "50 % of the machine");
        assert_eq!(etl.on_exceed, Some(OnExceed::KillLargest));
        assert_eq!(etl.limits.get(IO_READ).unwrap().to_string(), "100 MiB/s");
        assert_eq!(etl.queue.unwrap().max_concurrency, 4);
        assert_eq!(etl.source.at("cpu.max"), "groups.toml:8:25");
        assert_eq!(groups.iter().find(|group| group.name.as_str() == "web").unwrap().matches.len(), 2);
    }

    #[test]
    fn all_errors_in_one_pass_with_positions() {
        let text = "[group.etl]\nclas = \"offline\"\nmemory.max = 8\n[group.\"a/b\"]\nclass = \"ofline\"\n";
        let want = [
            r#"groups.toml:1:8: group "etl" has no class: write class = "online" or "offline""#,
            r#"groups.toml:2:1: unknown key "clas"; did you mean "class"?"#,
            r#"groups.toml:3:14: memory.max: a bare number has no unit: "8" is not a size with a unit, such as "8 GiB", or a share of the machine, such as "25 %""#,
            r#"groups.toml:4:8: group name "a/b" contains '/'; letters, digits, "-" and "_" are possible, because the name becomes a cgroup directory"#,
            r#"groups.toml:5:9: class must be one of "online", "offline"; did you mean "offline"?"#,
        ];
        assert_eq!(errors(text), want.join("\n"));
    }

    #[test]
    fn mistakes_one_by_one() {
        let offline = |rest: &str| errors(&format!("[group.g]\nclass = \"offline\"\n{rest}\n"));
        assert_eq!(offline(""), "ok: 1 groups");
        for (text, want) in [
            ("match = []", "match is empty"),
            ("match = [{ cgroup = \"batch\" }]", "must start with \"/\""),
            ("match = [{ cgroup = \"/a/../b\" }]", "contains \"..\""),
            ("match = [{ cgroup = \"/\" }]", "cannot be a member"),
            ("match = [{ cgruop = \"/a\" }]", "did you mean \"cgroup\"?"),
            ("match = [{}]", "exactly one of"),
            ("match = [{ kubernetes = \"burstable\" }]", "ok: 1 groups"),
            ("match = [{ kubernetes = \"best-effort\" }]", "must be one of \"besteffort\", "),
            ("match = [{ process = {} }]", "at least one of exe, user, cmdline"),
            ("cpu_max = \"50 %\"", "did you mean \"cpu.max\"?"),
            ("memory = \"8 GiB\"", "unknown key \"memory\"; the nearest keys are memory."),
            ("cpu.set = \"\"", "at least one CPU"),
            ("cpu.set = \"3-1\"", "is not a CPU list"),
            ("cpu.weight = 0", "from 1 to 10000"),
            ("cpu.weight = \"100\"", "from 1 to 10000"),
            ("cpu.max = \"0 %\"", "above zero"),
            ("pids.max = 0", "from 1 to"),
            ("expel = 1", "must be true or false"),
            ("io.weight = 0", "from 1 to 10000"),
            ("io.cost = true", "no effect without io.weight"),
            ("cpu.partition = \"isolated\"", "no effect without cpu.set"),
            ("cpu.partition = \"isolate\"\ncpu.set = \"0\"", "did you mean \"isolated\"?"),
            ("frozen = \"yes\"", "must be true or false"),
            ("memory.on-exceed = \"kill-largest\"", "no effect without memory.max"),
            ("io.devices = [\"254:0\"]", "no effect without a rate"),
            ("queue.max-size = 3", "needs max-concurrency"),
            ("nonsense = 1", "the nearest keys are "),
        ] {
            let got = offline(text);
            assert!(got.contains(want), "{text}: {got}");
        }
        assert!(errors("[group.g]\nclass = \"online\"\ncpu.max = \"50 %\"\n").contains("would stall"));
        assert!(errors("[group.g]\nclass = \"online\"\nfrozen = true\n").contains("would stop"));
        assert!(errors("").contains("no groups here"));
        assert!(errors("[group.g\n").contains("groups.toml:1:"));
        assert!(errors("group = 3").contains("must be a table of groups"));
        assert!(errors("[group.g]\nclass=\"offline\"\n[grop.x]\n").contains("did you mean \"group\"?"));
    }

    #[test]
    fn no_text_makes_it_panic() {
        let text = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/b/*\" }]\ncpu.max = \"50 %\"\n";
        for end in 0..text.len() {
            let _ = parse("g", &text[..end]);
            let _ = parse("g", &text.replace(&text[end..=end], "\"["));
        }
    }
}
