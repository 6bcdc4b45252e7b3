//! Parses a groups file, the user's TOML file with workload groups, into group specs; reports every error in one pass,
//! with line and column.
//!
//! This module checks keys, types, units and contradictions between keys. [`crate::desired::resolve`] checks whether
//! the limits fit the machine.

pub mod schema;
mod whole;

use crate::cpuset::CpuSet;
use crate::desired::takes_everything;
use crate::group::{
    Class, GroupName, GroupSpec, LimitScope, Match, OnExceed, Partition, PodQos, Position, Queue, SafeState,
    Source,
};
use crate::limit::{LIMITS, LimitId, LimitSet, MEMORY_MAX, On, Row, Unit, Write, Written};
use crate::spelling;
use crate::toml_reader::{FileKey, Kind, Node, Reader, Section, TextPlace, TomlValue, is, key};
use crate::topology::Device;
use crate::units::{BytesPerS, CpuAmount, IoPerS, MemoryAmount, Micros, Millis, Weight};
use std::collections::BTreeMap;

pub use crate::toml_reader::ConfigError;
pub(crate) use whole::repeated;
pub use whole::{Compiled, Texts, compile};

/// Keys of `[group.NAME]` that are not limits.
const OTHER_KEYS: &[FileKey] = &[
    key("class", Kind::Word(&["online", "offline"])),
    key("cpu.min-share", Kind::Quantity(is::<CpuAmount>)),
    key("memory.on-exceed", Kind::Word(&["kill-largest", "kill-group", "freeze", "queue"])),
    key("io.devices", Kind::Texts(is::<Device>)),
    key("remote.read", Kind::Quantity(is::<BytesPerS>)),
    key("queue.max-concurrency", Kind::Whole(1, 1_000_000)),
    key("queue.max-size", Kind::Whole(0, 1_000_000)),
    key("queue.timeout", Kind::Quantity(is::<Millis>)),
    key("expel", Kind::Flag),
    key("safe-state", Kind::Word(&["protect", "restore"])),
    key("takeover", Kind::Flag),
    key("limits", Kind::Word(&["per-member", "total"])),
    key("target-wakeup-p99", Kind::Quantity(is::<Micros>)),
    key("match", Kind::Tables(MATCH_KEYS)),
    key("match-everything", Kind::Flag),
];

/// All keys of `[agent]`.
pub const AGENT_KEYS: &[FileKey] = &[
    key("headroom", Kind::Word(&["target", "auto", "frame", "quota", "off"])),
    key("weights", Kind::Flag),
    key("io", Kind::Flag),
];

const MATCH_KEYS: &[FileKey] = &[
    key("cgroup", Kind::Checked(cgroup)),
    key("systemd", Kind::Text),
    key("docker-label", Kind::Text),
    key("docker-name", Kind::Text),
    key("kubernetes", Kind::Word(&["besteffort", "burstable", "guaranteed"])),
    key("process", Kind::Table(PROCESS_KEYS)),
];

const PROCESS_KEYS: &[FileKey] =
    &[key("exe", Kind::Text), key("user", Kind::Text), key("cmdline", Kind::Text)];

/// All keys of `[group.NAME]`.
#[must_use]
pub fn keys() -> Vec<FileKey> {
    let limits = LIMITS.iter().map(|row| {
        let kind = match row.unit {
            Unit::Weight => Kind::Whole(1, 10_000),
            Unit::Cpus => Kind::Quantity(is::<CpuAmount>),
            Unit::CpuSet => Kind::Quantity(cpu_set),
            Unit::Partition => Kind::Word(&["root", "isolated"]),
            Unit::Memory => Kind::Quantity(is::<MemoryAmount>),
            Unit::Rate => Kind::Quantity(is::<BytesPerS>),
            Unit::Operations => Kind::Quantity(is::<IoPerS>),
            Unit::Time => Kind::Quantity(is::<Micros>),
            Unit::Count(low, high) => Kind::Whole(u64::from(low), u64::from(high)),
            Unit::Switch => Kind::Flag,
        };
        key(row.key, kind)
    });
    limits.chain(OTHER_KEYS.iter().copied()).collect()
}

fn cpu_set(text: &str) -> Result<(), String> {
    match text.parse::<CpuSet>().map_err(|error| error.to_string())? {
        set if set.is_empty() => Err("it is empty: a group needs at least one CPU".to_owned()),
        _ => Ok(()),
    }
}

fn cgroup(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err(format!("{text:?} must start with \"/\", the root of the cgroup hierarchy"));
    }
    if text.split('/').any(|part| part == ".." || part == ".") {
        return Err(format!("{text:?} contains \"..\" or \".\""));
    }
    if text.trim_matches('/').is_empty() {
        return Err("the root cgroup holds the whole machine and cannot be a member".to_owned());
    }
    pattern(text).map(drop).map_err(|error| format!("{text:?} is not a pattern: {}", error.msg))
}

fn pattern(text: &str) -> Result<glob::Pattern, glob::PatternError> {
    // Encodes the pattern in the same way as the names of cgroups (see `spelling`).
    glob::Pattern::new(&spelling::text(text.trim_end_matches('/').as_bytes().to_vec()))
}

/// How the agent keeps offline (batch) work within its headroom, which is the machine's CPUs minus a reserve and minus
/// the CPU use of all other work. The agent either confines offline work to whole cores, or limits it by a CPU quota
/// (`cpu.max`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Headroom {
    /// The agent limits offline work only while an online group misses its `target-wakeup-p99`, by whole cores or by a
    /// quota, depending on the machine. At other times offline work may use all CPU time that online groups leave.
    #[default]
    Target,
    /// The agent always limits offline work, by whole cores or by a quota, depending on the machine.
    Auto,
    /// The agent always limits offline work to whole physical cores (the big frame).
    Frame,
    /// The agent always limits offline work by a quota.
    Quota,
    /// The agent never limits offline work: only the scheduling class of offline groups restrains it.
    Off,
}

/// The parsed content of a groups file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupsFile {
    /// The groups, from `[group.NAME]`.
    pub groups: Vec<GroupSpec>,
    /// The `[agent]` table; `None` if the file has no such table.
    pub agent: Option<AgentKeys>,
}

/// The `[agent]` table of a groups file; `None` for a key that is absent, otherwise its value and position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentKeys {
    /// How the agent keeps offline work within its headroom.
    pub headroom: Option<(Headroom, Position)>,
    /// Whether the agent gives online groups more weight than sibling cgroups that belong to no group.
    pub weights: Option<(bool, Position)>,
    /// Whether the agent limits the disk I/O of offline groups while online groups wait for the disks.
    pub io: Option<(bool, Position)>,
}

/// Parses a groups file and returns its groups. `file` is the file's name in messages.
///
/// # Errors
/// Returns all errors of the file, in the order of the text.
pub fn parse(file: &str, text: &str) -> Result<Vec<GroupSpec>, Vec<ConfigError>> {
    parse_file(file, text).map(|file| file.groups)
}

/// Parses a groups file like [`parse`], and returns the `[agent]` table as well.
///
/// # Errors
/// Returns all errors of the file, in the order of the text.
pub fn parse_file(file: &str, text: &str) -> Result<GroupsFile, Vec<ConfigError>> {
    let mut reader = Reader::default();
    let root = reader.parse(file, text).unwrap_or_default();
    let mut read = GroupsFile::default();
    for (name, node) in &root {
        match (name.as_str(), &node.value) {
            ("agent", TomlValue::Table(table)) => {
                let section = reader.section("", node.at, table, AGENT_KEYS);
                read.agent = Some(agent(&section, &reader));
            }
            ("agent", _) => reader.note(node.at, "\"agent\" must be a table: write [agent]"),
            ("group", TomlValue::Table(groups)) => {
                read.groups
                    .extend(groups.iter().filter_map(|(name, node)| group(file, name, node, &mut reader)));
            }
            ("group", _) => reader.note(node.at, "\"group\" must be a table of groups: write [group.NAME]"),
            (name, _) => reader.unknown(node.key_at, name, &["group", "agent"]),
        }
    }
    if read.groups.is_empty() && read.agent.is_none() && reader.is_right() {
        let message = "no groups here: write [group.NAME] with class = \"online\" or \"offline\"";
        reader.note(TextPlace::default(), message);
    }
    if reader.is_right() { Ok(read) } else { Err(reader.mistakes()) }
}

/// Converts the `[agent]` table to typed values.
fn agent(keys: &Section, reader: &Reader) -> AgentKeys {
    let headroom = keys.text("headroom").map(|word| match word {
        "auto" => Headroom::Auto,
        "frame" => Headroom::Frame,
        "quota" => Headroom::Quota,
        "off" => Headroom::Off,
        _ => Headroom::Target,
    });
    let at = |key: &str| reader.position(keys.at(key));
    AgentKeys {
        headroom: headroom.map(|headroom| (headroom, at("headroom"))),
        weights: keys.flag("weights").map(|weights| (weights, at("weights"))),
        io: keys.flag("io").map(|io| (io, at("io"))),
    }
}

/// Converts a `[group.NAME]` table to a group spec.
fn group(file: &str, name: &str, node: &Node, reader: &mut Reader) -> Option<GroupSpec> {
    let TomlValue::Table(table) = &node.value else {
        reader.note(node.at, format!("group {name:?} must be a table"));
        return None;
    };
    let keys = reader.section("", node.key_at, table, &keys());
    let named = GroupName::new(name).map_err(|message| reader.note(node.key_at, message)).ok();
    if !keys.given("class") {
        let message = format!("group {name:?} has no class: write class = \"online\" or \"offline\"");
        reader.note(node.key_at, message);
    }
    if keys.texts("io.devices").is_some_and(<[_]>::is_empty) {
        reader.note(keys.at("io.devices"), "io.devices must be a list such as [\"254:0\"], not empty");
    }
    let (queue, matches) = (queue(&keys, reader), matches(&keys, reader));
    let class = match keys.text("class")? {
        "online" => Class::Online,
        _ => Class::Offline,
    };
    let devices = keys.texts("io.devices").unwrap_or_default();
    let mut spec = GroupSpec {
        limits: limits(&keys),
        on_exceed: keys.text("memory.on-exceed").map(|word| match word {
            "kill-largest" => OnExceed::KillLargest,
            "kill-group" => OnExceed::KillGroup,
            "freeze" => OnExceed::Freeze,
            _ => OnExceed::Queue,
        }),
        disks: devices.iter().filter_map(|(text, _)| text.parse().ok()).collect(),
        remote_read: keys.parsed("remote.read"),
        queue,
        expel: keys.flag("expel").unwrap_or_default(),
        safe_state: match keys.text("safe-state") {
            Some("protect") => SafeState::Protect,
            Some("restore") => SafeState::Restore,
            _ => SafeState::default(),
        },
        takeover: keys.flag("takeover").unwrap_or_default(),
        scope: match keys.text("limits") {
            Some("per-member") => LimitScope::PerMember,
            Some("total") => LimitScope::Total,
            _ => LimitScope::default(),
        },
        target_wakeup_p99: keys.parsed("target-wakeup-p99"),
        min_share: keys.parsed("cpu.min-share"),
        matches,
        ..GroupSpec::new(named?, class)
    };
    spec.source = Source { file: file.to_owned(), positions: BTreeMap::new() };
    spec.source.positions.insert(String::new(), reader.position(node.key_at));
    for (key, _, at) in keys.places() {
        spec.source.positions.insert(key.to_owned(), reader.position(at));
    }
    cross_checks(&spec, &keys, reader);
    Some(spec)
}

/// Reports settings that contradict each other or have no effect.
fn cross_checks(spec: &GroupSpec, keys: &Section, reader: &mut Reader) {
    let name = &spec.name;
    for (row, _) in spec.limits.iter() {
        let why = match spec.class {
            Class::Online => row.not_online,
            Class::Offline => row.not_offline,
        };
        if let Some(why) = why {
            let message = format!("group {:?}: {} {why}", name.as_str(), row.key);
            reader.note(keys.at(row.key), message);
        }
        if let Some(other) = row.needs.filter(|other| !spec.limits.contains(*other)) {
            let message =
                format!("group {:?}: {} has no effect without {}", name.as_str(), row.key, other.row().key);
            reader.note(keys.at(row.key), message);
        }
    }
    if spec.expel && spec.class == Class::Online {
        let message = format!("group {:?}: expel is a property of offline groups", name.as_str());
        reader.note(keys.at("expel"), message);
    }
    if spec.target_wakeup_p99.is_some() && spec.class == Class::Offline {
        let message = format!("group {:?}: target-wakeup-p99 is a property of online groups", name.as_str());
        reader.note(keys.at("target-wakeup-p99"), message);
    }
    if spec.min_share.is_some() && spec.class == Class::Online {
        let message = format!("group {:?}: cpu.min-share is a property of offline groups", name.as_str());
        reader.note(keys.at("cpu.min-share"), message);
    }
    if spec.on_exceed.is_some() && !spec.limits.has(MEMORY_MAX) {
        let message = format!("group {:?}: memory.on-exceed has no effect without memory.max", name.as_str());
        reader.note(keys.at("memory.on-exceed"), message);
    }
    let wide = spec.matches.iter().find(|one| match one {
        Match::Cgroup(pattern) => takes_everything(pattern.as_str()),
        _ => false,
    });
    match (wide, keys.flag("match-everything") == Some(true)) {
        (Some(one), false) => {
            let message = format!(
                "group {:?}: {one} takes every cgroup of the machine; write a name in it, or match-everything = true if \
                 that is meant",
                name.as_str()
            );
            reader.note(keys.at("match"), message);
        }
        (None, true) => {
            let message = format!(
                "group {:?}: match-everything has no effect without a match such as {{ cgroup = \"/*\" }}",
                name.as_str()
            );
            reader.note(keys.at("match-everything"), message);
        }
        _ => {}
    }
    let of_disks = |row: &Row| matches!(row.write, Write::PerDisk(_)) || row.id == LimitId::IoWeight;
    if !spec.disks.is_empty() && !spec.limits.iter().any(|(row, _)| of_disks(row)) {
        let message =
            format!("group {:?}: io.devices has no effect without a rate or io.weight", name.as_str());
        reader.note(keys.at("io.devices"), message);
    }
}

/// Returns all limits of the table, each parsed according to its unit.
fn limits(keys: &Section) -> LimitSet<Written> {
    let mut limits = LimitSet::default();
    for row in LIMITS {
        let key = row.key;
        let amount = match row.unit {
            Unit::Weight => keys.whole(key).and_then(Weight::new).map(Written::Weight),
            Unit::Cpus => keys.parsed(key).map(Written::Cpus),
            Unit::CpuSet => keys.parsed(key).map(Written::CpuSet),
            Unit::Partition => keys.text(key).map(|word| match word {
                "root" => Written::Partition(Partition::Root),
                _ => Written::Partition(Partition::Isolated),
            }),
            Unit::Memory => keys.parsed(key).map(Written::Memory),
            Unit::Rate => keys.parsed(key).map(Written::Rate),
            Unit::Operations => keys.parsed(key).map(Written::Operations),
            Unit::Time => keys.parsed(key).map(Written::Time),
            Unit::Count(..) => keys.whole(key).map(Written::Count),
            Unit::Switch => keys.flag(key).filter(|on| *on).map(|_| Written::Switch(On)),
        };
        if let Some(amount) = amount {
            limits.insert(row.id, amount);
        }
    }
    limits
}

fn queue(keys: &Section, reader: &mut Reader) -> Option<Queue> {
    let (_, first, _) = keys.places().find(|(key, ..)| key.starts_with("queue."))?;
    if !keys.given("queue.max-concurrency") {
        reader.note(first, "a queue needs max-concurrency");
    }
    Some(Queue {
        max_concurrency: keys.whole("queue.max-concurrency")?,
        max_size: keys.whole("queue.max-size").unwrap_or(u32::MAX),
        timeout: keys.parsed("queue.timeout"),
    })
}

fn matches(keys: &Section, reader: &mut Reader) -> Vec<Match> {
    let Some(items) = keys.tables("match") else { return Vec::new() };
    if items.is_empty() {
        let message = "match is empty: it would never find a member; leave it out if the group is only used with \
                       `commensal run`";
        reader.note(keys.at("match"), message);
    }
    items.iter().filter_map(|item| one_match(item, reader)).collect()
}

fn one_match(item: &Section, reader: &mut Reader) -> Option<Match> {
    if item.size() != 1 {
        let names: Vec<&str> = MATCH_KEYS.iter().map(|key| key.path).collect();
        reader.note(item.at(""), format!("each match must have exactly one of {}", names.join(", ")));
        return None;
    }
    if let Some(process) = item.table("process") {
        if process.size() == 0 {
            let names: Vec<&str> = PROCESS_KEYS.iter().map(|key| key.path).collect();
            reader.note(item.at("process"), format!("process needs at least one of {}", names.join(", ")));
        }
        let text = |key| process.owned(key);
        return Some(Match::Process { exe: text("exe"), user: text("user"), cmdline: text("cmdline") });
    }
    if let Some(word) = item.text("kubernetes") {
        return Some(Match::Kubernetes(match word {
            "besteffort" => PodQos::BestEffort,
            "burstable" => PodQos::Burstable,
            _ => PodQos::Guaranteed,
        }));
    }
    let cgroup = item.with("cgroup", pattern).map(Match::Cgroup);
    let systemd = || item.owned("systemd").map(Match::Systemd);
    let label = || item.owned("docker-label").map(Match::DockerLabel);
    cgroup.or_else(systemd).or_else(label).or_else(|| item.owned("docker-name").map(Match::DockerName))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{CPU_MAX, IO_READ};

    /// Parses the text; returns its errors, or the number of groups.
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
        assert_eq!(etl.source.at("cpu.max").to_string(), "groups.toml:8:25");
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
    fn another_format_gets_one_message() {
        for (text, want) in [
            ("{ \"group\": { \"web\": { \"class\": \"online\" } } }", "groups.toml:1:1: this is JSON"),
            ("\n  { \"group\": 1,\n", "groups.toml:2:3: this is JSON"),
            ("[1, 2]", "groups.toml:1:1: this is JSON"),
            ("# groups\n\ngroup:\n  web:\n    class: online\n", "groups.toml:3:1: this is YAML"),
            ("---\ngroup: {}\n", "groups.toml:1:1: this is YAML"),
            ("- web\n- etl\n", "groups.toml:1:1: this is YAML"),
            ("\"group\": web\n", "groups.toml:1:1: this is YAML"),
        ] {
            let got = errors(text);
            assert!(got.starts_with(want) && !got.contains('\n'), "{text:?}: {got}");
        }
        for toml in [
            "[group.web\nclass: x",
            "[group.web]\nclass: \"online\"",
            "a = \"b: c\" d",
            "group.web",
            "http://x",
        ] {
            let got = errors(toml);
            assert!(!got.contains("this is") && got.starts_with("groups.toml:"), "{toml:?}: {got}");
        }
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
            ("match = [{ cgruop = \"/a\" }]", "unknown key \"match.cgruop\"; did you mean \"match.cgroup\"?"),
            ("match = [{ cgroup = \"/**\" }]", "takes every cgroup of the machine; write a name in it"),
            ("match = [{ cgroup = \"/*\" }]\nmatch-everything = false", "or match-everything = true if"),
            ("match = [{ cgroup = \"/*\" }]\nmatch-everything = true", "ok: 1 groups"),
            ("match = [{ cgroup = \"/*.slice\" }]", "ok: 1 groups"),
            ("match-everything = true", "has no effect without a match such as"),
            ("match-everythin = true", "did you mean \"match-everything\"?"),
            ("match = [5]", "match must be a list of tables of cgroup, systemd,"),
            ("match = [{ process = { exe = \"\" } }]", "match.process.exe must be text that is not empty"),
            ("match = [{}]", "exactly one of"),
            ("match = [{ kubernetes = \"burstable\" }]", "ok: 1 groups"),
            ("match = [{ kubernetes = \"best-effort\" }]", "must be one of \"besteffort\", "),
            ("match = [{ process = {} }]", "at least one of exe, user, cmdline"),
            ("cpu_max = \"50 %\"", "did you mean \"cpu.max\"?"),
            ("memory = \"8 GiB\"", "memory must be a table: its keys are memory.min, "),
            ("cpu.set = \"\"", "at least one CPU"),
            ("cpu.set = \"3-1\"", "is not a CPU list"),
            ("cpu.weight = 0", "cpu.weight = 0: it must be a whole number from 1 to 10000"),
            ("cpu.weight = \"100\"", "from 1 to 10000"),
            ("cpu.max = \"0 %\"", "above zero"),
            ("pids.max = 0", "from 1 to"),
            ("cpu.min-share = \"0 %\"", "above zero"),
            ("cpu.min-share = \"1 ms\"", "a CPU amount"),
            ("expel = 1", "must be true or false"),
            ("io.weight = 0", "from 1 to 10000"),
            ("io.cost = true", "no effect without io.weight"),
            ("cpu.partition = \"isolated\"", "no effect without cpu.set"),
            ("cpu.qos-level = 1", "is a level of online groups"),
            ("cpu.qos-level = 3", "1 to 2"),
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
        assert!(errors("[group.g]\nclass = \"online\"\nfrozen = true\n").contains("would freeze"));
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
