//! Parser for experiment files: turns TOML into an [`Experiment`]. Its error lists all mistakes together, each with
//! line and column.
//!
//! ```toml
//! about = "my service beside my batch job"
//! arms  = ["baseline", "baseline2", "contended", "isolated", "isolated:weight"]
//!
//! [design]
//! rounds = 12
//! block  = "20 s"
//! gates  = ["P50", "P90", "QPS"]
//!
//! [online]
//! command = ["my-server", "--port", "{port}"]
//! ready   = { http = "/healthz" }
//!
//! [load]
//! http = "/"
//! rate = "60 %"
//!
//! [offline]
//! command = ["my-job"]
//! ```
//! The parser accepts the placeholders `{port}`, `{dir}`, `{cpus}`, `{seconds}`, `{concurrency}`, `{program}`,
//! `{online-group}` and `{offline-group}` in commands, files and paths; a run replaces them by their values. A file can
//! contain only its differences from another file ([`super::base`]).
//!
//! An arm is one condition that an experiment compares, such as the service alone (`baseline`) or next to offline work
//! with isolation (`isolated`).

use super::base::{self, FileReader};
use super::values::{
    FileError, latency, metric, path, percent, percentile, rate, seconds, share, window, within,
};
use super::{
    Attached, Batch, Experiment, Load, Offline, Online, Rate, Ready, Requirement, Restart, Service, metrics,
    short, sweep,
};
use crate::isolation::Isolation;
use crate::loadgen::Arrival;
use crate::record::{Arm, BlameBounds, Design, LatenessRule, MAX_ROUNDS, Metric, Role, Slo};
use crate::report::Style;
use crate::tools::Tool;
use crate::tools::work::WorkKind;
use crate::workload::antagonist::Kind as Antagonist;
use commensal_core::toml_reader::{FileKey, Kind, Reader, Section, TextPlace, is, key, needed};
use commensal_core::units::Bytes;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// All keys of an experiment file.
pub const KEYS: &[FileKey] = &[
    base::BASED_ON,
    base::WITHOUT,
    key("about", Kind::AnyText),
    needed("arms", Kind::Texts(any)),
    key("restart", Kind::Word(&["block", "round", "never"])),
    key("root", Kind::Flag),
    key("disk", Kind::Quantity(is::<Bytes>)),
    key("design.rounds", Kind::Whole(1, MAX_ROUNDS as u64)),
    key("design.block", Kind::Quantity(|text| within(text, 0.2, 3_600.0).map(drop))),
    key("design.settle", Kind::Quantity(|text| within(text, 0.0, 600.0).map(drop))),
    key("design.warmup", Kind::Quantity(|text| within(text, 0.0, 600.0).map(drop))),
    key("design.threshold", Kind::Quantity(share)),
    key("design.thresholds", Kind::Named),
    key("design.gates", Kind::Texts(|text| metric(text).map(drop))),
    key("design.percentiles", Kind::Texts(|text| metric(text).map(drop))),
    key("design.seed", Kind::Whole(0, u64::MAX)),
    key("design.style", Kind::Checked(is::<Style>)),
    key("design.min-offline", Kind::Quantity(share)),
    key("design.slo", Kind::Table(SLO_KEYS)),
    key("design.blame", Kind::Table(BLAME_KEYS)),
    key("design.carry-over", Kind::Checked(short::carry_over)),
    key("design.for", Kind::Quantity(|text| within(text, 1.0, 86_400.0).map(drop))),
    key("design.window", Kind::Quantity(|text| within(text, 0.02, 10.0).map(drop))),
    key("design.guard", Kind::Quantity(|text| within(text, 0.001, 5.0).map(drop))),
    key("design.per-round", Kind::Whole(1, 1_000)),
    key("design.contended", Kind::Quantity(|text| within(text, 0.1, 60.0).map(drop))),
    key("design.contended-every", Kind::Whole(1, 1_000)),
    key("design.vary", Kind::Text),
    key("metric", Kind::Tables(metrics::KEYS)),
    key("online.attach", Kind::Text),
    key("online.address", Kind::Checked(is::<SocketAddr>)),
    key("online.command", Kind::Command),
    key("online.files", Kind::Named),
    key("online.prepare", Kind::Commands),
    key("online.setup", Kind::Commands),
    key("online.cleanup", Kind::Commands),
    key("online.ready", Kind::WordOrTable(&["tcp"], READY_KEYS)),
    key("online.ready-within", Kind::Quantity(|text| seconds(text).map(drop))),
    key("load.http", Kind::Checked(path)),
    key("load.rate", Kind::NumberOrText("a number, or a text such as \"60 %\"", |text| rate(text).map(drop))),
    key("load.connections", Kind::Whole(1, 60_000)),
    key("load.arrival", Kind::Word(&["poisson", "constant"])),
    key("load.tool", Kind::Checked(is::<Tool>)),
    key("load.command", Kind::Command),
    key("load.stdin", Kind::AnyText),
    key("load.output", Kind::Text),
    key("load.concurrency", Kind::Whole(1, u32::MAX as u64)),
    key("offline.attach", Kind::Text),
    key("offline.built-in", Kind::Checked(is::<Antagonist>)),
    key("offline.command", Kind::Command),
    key("offline.files", Kind::Named),
    key("offline.prepare", Kind::Commands),
    key("offline.cleanup", Kind::Commands),
    key("offline.work", Kind::Checked(is::<WorkKind>)),
    key("offline.cpus", Kind::Positive),
    key("offline.ramp", Kind::Wholes(0, u32::MAX as u64)),
    key("requires", Kind::Tables(REQUIRES_KEYS)),
];

const SLO_KEYS: &[FileKey] = &[
    needed("metric", Kind::Checked(|text| percentile(text).map(drop))),
    needed("latency", Kind::Quantity(|text| latency(text).map(drop))),
    key("window", Kind::Quantity(|text| window(text).map(drop))),
];

const BLAME_KEYS: &[FileKey] = &[
    needed("wait-ms-per-cpu-s", Kind::Number(0.0, f64::INFINITY)),
    needed("preemption-p99-us", Kind::Number(0.0, f64::INFINITY)),
];

const READY_KEYS: &[FileKey] = &[key("http", Kind::Text), key("command", Kind::Command)];

const REQUIRES_KEYS: &[FileKey] = &[
    needed("program", Kind::Text),
    needed("package", Kind::Text),
    key("version", Kind::Texts(any)),
    key("at-least", Kind::Text),
];

fn any(_: &str) -> Result<(), String> {
    Ok(())
}

/// Parses an experiment called `name`. The text may be based on a shipped experiment, but not on another file.
///
/// # Errors
/// [`FileError`] with all mistakes in the text.
pub fn parse(name: &str, text: &str) -> Result<Experiment, FileError> {
    read(name, text, &mut |_| Err("based-on cannot name a file here".to_owned()))
}

/// Parses an experiment; `name` is the path of its file, and `beside` reads the files on which the experiment is based.
///
/// # Errors
/// [`FileError`] with all mistakes, including mistakes in the other files.
pub fn read(name: &str, text: &str, beside: &mut FileReader<'_>) -> Result<Experiment, FileError> {
    let mut reader = Reader::default();
    let read = base::whole(&mut reader, name, text, beside).map(|(table, source)| {
        let keys = reader.section("", TextPlace::default(), &table, KEYS);
        experiment(name, source, &keys, &mut reader)
    });
    match read {
        Some(read) if reader.is_right() => Ok(read),
        _ => Err(FileError { wrong: reader.mistakes() }),
    }
}

fn experiment(name: &str, source: String, keys: &Section, reader: &mut Reader) -> Experiment {
    let named = keys.texts("arms").unwrap_or_default();
    let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
    let Named { arms, isolations, wrong } = arms(&names);
    if keys.texts("arms").is_some() {
        for (index, why) in wrong {
            reader.note(index.map_or(keys.at("arms"), |index| named[index].1), why);
        }
    }
    let load = load(keys, reader);
    let mut design = design(keys, &load, reader);
    metrics::of_file(keys.tables("metric").unwrap_or_default(), &mut design, reader);
    let restart = keys.text("restart").map(|word| match word {
        "block" => Restart::Block,
        "never" => Restart::Never,
        _ => Restart::Round,
    });
    let short = short::plan(keys, (&load, restart, &isolations, &design), reader);
    let requirement = |one: &Section| {
        let version = one.texts("version").unwrap_or_default();
        Some(Requirement {
            program: one.owned("program")?,
            package: one.owned("package")?,
            version: version.iter().map(|(text, _)| text.clone()).collect(),
            at_least: one.owned("at-least"),
        })
    };
    let mut experiment = Experiment {
        name: name.to_owned(),
        about: keys.owned("about").unwrap_or_default(),
        seed: keys.whole("design.seed").unwrap_or(1),
        design,
        short,
        arms,
        left_out: Vec::new(),
        isolations,
        online: online(keys, reader),
        load,
        offline: offline(keys, reader),
        restart: restart.unwrap_or_default(),
        requires: keys.tables("requires").unwrap_or_default().iter().filter_map(requirement).collect(),
        disk_bytes: keys.parsed::<Bytes>("disk").map_or(0, |bytes| bytes.0),
        root: keys.flag("root").unwrap_or_default(),
        source: Some(source),
    };
    if let Some(vary) = keys.text("design.vary")
        && let Err(why) = sweep::vary(&mut experiment, vary)
    {
        reader.note(keys.at("design.vary"), format!("design.vary = {vary:?}: {why}"));
    }
    if let Some(threads) = keys.wholes("offline.ramp") {
        let threads: Vec<u32> =
            threads.iter().filter_map(|(number, _)| u32::try_from(*number).ok()).collect();
        if let Err(why) = sweep::ramp(&mut experiment, &threads) {
            reader.note(keys.at("offline.ramp"), format!("offline.ramp: {why}"));
        }
    }
    experiment
}

/// Result of parsing a list of arm names.
pub(super) struct Named {
    pub arms: Vec<Arm>,
    /// The isolations of the isolated arms, in the order of the arms.
    pub isolations: Vec<Isolation>,
    /// Mistakes, each with the index of its arm; the index is `None` for a mistake that concerns all arms together.
    pub wrong: Vec<(Option<usize>, String)>,
}

pub(super) fn arms(names: &[&str]) -> Named {
    let (mut arms, mut isolations, mut wrong) = (Vec::<Arm>::new(), Vec::new(), Vec::new());
    for (index, name) in names.iter().enumerate() {
        let role = match *name {
            "baseline" => Role::Baseline,
            "baseline2" => Role::Baseline2,
            "policy-only" => Role::PolicyOnly,
            "warm" => Role::Warm,
            "contended" => Role::Contended,
            "offline-alone" => Role::OfflineAlone,
            isolated => match isolated.strip_prefix("isolated") {
                Some(rest) if rest.is_empty() || rest.starts_with(':') => {
                    match Isolation::parse(rest.strip_prefix(':').unwrap_or("best")) {
                        Ok(isolation) => isolations.push(isolation),
                        Err(why) => wrong.push((Some(index), format!("arm {name}: {why}"))),
                    }
                    Role::Isolated
                }
                _ => {
                    wrong.push((
                        Some(index),
                        format!(
                            "arm {name:?} is unknown; arms are baseline, baseline2, policy-only, warm, contended, offline-alone, isolated and isolated:MECHANISM"
                        ),
                    ));
                    continue;
                }
            },
        };
        if arms.iter().any(|arm| arm.name == *name) {
            wrong.push((Some(index), format!("arm {name} is listed twice")));
        }
        arms.push(Arm { name: (*name).to_owned(), role, policy: None, offline: None });
    }
    for (role, name) in [(Role::Baseline, "baseline"), (Role::Baseline2, "baseline2")] {
        if !arms.iter().any(|arm| arm.role == role) {
            wrong.push((
                None,
                format!(
                    "arms: {name} is missing; a run needs two identical arms to measure how much the machine itself disturbs the values"
                ),
            ));
        }
    }
    Named { arms, isolations, wrong }
}

fn design(keys: &Section, load: &Load, reader: &mut Reader) -> Design {
    let default = Design {
        rounds: 12,
        block_s: 20.0,
        settle_s: 1.0,
        warmup_s: 2.0,
        threshold_pct: 5.0,
        gates: vec![Metric::P50, Metric::P90, Metric::Qps],
        ..Design::default()
    };
    let mut overrides = BTreeMap::new();
    for (name, text, at) in keys.named("design.thresholds") {
        match metric(name).and_then(|metric| Ok((metric, percent(text)?))) {
            Ok((metric, pct)) => {
                overrides.insert(metric, pct);
            }
            Err(why) => reader.note(at, format!("design.thresholds.{name} = {text:?}: {why}")),
        }
    }
    let time = |key: &str, default: f64| keys.with(key, seconds).unwrap_or(default);
    let metrics = |key: &str| {
        let names = keys.texts(key)?;
        Some(names.iter().filter_map(|(name, _)| metric(name).ok()).collect())
    };
    let (offered_per_s, concurrency, load) = match load {
        Load::Http { rate: Rate::PerSecond(rate), .. } => (Some(*rate), None, "built-in".to_owned()),
        Load::Http { .. } => (None, None, "built-in".to_owned()),
        Load::Tool { tool, concurrency, .. } => (None, *concurrency, tool.to_string()),
    };
    let slo = keys.table("design.slo").and_then(|slo| {
        Some(Slo {
            metric: slo.with("metric", percentile)?,
            latency_us: slo.with("latency", latency)?,
            window_s: slo.with("window", window).unwrap_or(1.0),
        })
    });
    let blame = keys.table("design.blame").and_then(|bounds| {
        Some(BlameBounds {
            wait_ms_per_cpu_s: bounds.number("wait-ms-per-cpu-s")?,
            preemption_p99_us: bounds.number("preemption-p99-us")?,
        })
    });
    Design {
        rounds: keys.whole("design.rounds").unwrap_or(default.rounds),
        block_s: time("design.block", default.block_s),
        settle_s: time("design.settle", default.settle_s),
        warmup_s: time("design.warmup", default.warmup_s),
        offered_per_s,
        threshold_pct: keys.with("design.threshold", percent).unwrap_or(default.threshold_pct),
        threshold_overrides_pct: overrides,
        gates: metrics("design.gates").unwrap_or(default.gates),
        percentiles: metrics("design.percentiles").unwrap_or_default(),
        blame,
        load: Some(load),
        concurrency,
        slo,
        min_offline_pct: keys.with("design.min-offline", percent),
        style: keys.owned("design.style"),
        lateness: LatenessRule::ByPercentile,
        ..Design::default()
    }
}

fn online(keys: &Section, reader: &mut Reader) -> Online {
    let files = files(keys, "online.files", reader);
    if let Some(to) = keys.owned("online.attach") {
        if keys.given("online.command") {
            reader.note(keys.at("online.attach"), "online: give either command or attach, not both");
        }
        if !keys.given("online.address") {
            let message = "online.address is missing: the address of the service, such as \"127.0.0.1:8080\"";
            reader.note(keys.at("online.address"), message);
        }
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        return Online::Attached(Attached { to, addr: keys.parsed("online.address").unwrap_or(nowhere) });
    }
    let ready = match keys.table("online.ready") {
        Some(ready) => match (ready.owned("http"), ready.command("command")) {
            (Some(path), None) => Ready::Http(path),
            (None, Some(command)) => Ready::Command(command),
            _ => {
                if ready.size() != 1 {
                    reader.note(
                        keys.at("online.ready"),
                        "online.ready must have exactly one of http and command",
                    );
                }
                Ready::Tcp
            }
        },
        None => Ready::Tcp,
    };
    let Some(command) = keys.command("online.command") else {
        let more = ["files", "prepare", "setup", "ready"];
        if !keys.given("online.command") && more.iter().any(|more| keys.given(&format!("online.{more}"))) {
            reader.note(keys.at("online.command"), "online.command is missing");
        }
        return Online::BuiltIn;
    };
    Online::Program(Service {
        files,
        prepare: keys.commands("online.prepare"),
        command,
        ready,
        ready_within: Duration::from_secs_f64(keys.with("online.ready-within", seconds).unwrap_or(30.0)),
        setup: keys.commands("online.setup"),
        cleanup: keys.commands("online.cleanup"),
    })
}

fn offline(keys: &Section, reader: &mut Reader) -> Offline {
    let files = files(keys, "offline.files", reader);
    let given = |some: &[&str]| some.iter().any(|key| keys.given(&format!("offline.{key}")));
    let (expected_cpus, work) = (keys.number("offline.cpus"), keys.parsed::<WorkKind>("offline.work"));
    if let Some(to) = keys.owned("offline.attach") {
        if given(&["built-in", "command", "files", "prepare", "cleanup"]) {
            let message =
                "offline: attached work already runs, so only work and cpus can be given with attach";
            reader.note(keys.at("offline.attach"), message);
        }
        if work.is_some_and(|work| work != WorkKind::CpuSeconds) {
            let message = "offline.work: for attached work, only cpu-seconds can be counted";
            reader.note(keys.at("offline.work"), message);
        }
        return Offline::Attached { to, expected_cpus };
    }
    let Some(command) = keys.command("offline.command") else {
        if !given(&["command", "attach"]) && given(&["files", "prepare", "work", "cpus"]) {
            reader.note(keys.at("offline.command"), "offline.command is missing");
        }
        return Offline::BuiltIn(keys.parsed("offline.built-in").unwrap_or(Antagonist::Cpu));
    };
    if keys.given("offline.built-in") {
        reader.note(keys.at("offline.built-in"), "offline: give either command or built-in, not both");
    }
    Offline::Program(Batch {
        files,
        prepare: keys.commands("offline.prepare"),
        command,
        work: work.unwrap_or(WorkKind::CpuSeconds),
        expected_cpus,
        cleanup: keys.commands("offline.cleanup"),
    })
}

/// Returns the files that a run writes into its own directory: name and content. A name that contains a path is a
/// mistake.
fn files(keys: &Section, key: &str, reader: &mut Reader) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for (name, text, at) in keys.named(key) {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            let message =
                format!("{key}.{name:?}: give a file name without a path; the file is written into {{dir}}");
            reader.note(at, message);
        }
        files.insert(name.to_owned(), text.to_owned());
    }
    files
}

fn load(keys: &Section, reader: &mut Reader) -> Load {
    let none = Load::Http {
        path: super::BUILT_IN_PATH.to_owned(),
        rate: Rate::PerSecond(super::RATE_PER_S),
        connections: 64,
        arrival: Arrival::Poisson,
    };
    if keys.places().all(|(key, ..)| !key.starts_with("load.")) {
        if keys.given("online.command") || keys.given("online.attach") {
            let message =
                "[load] is missing: give http = \"/path\" with a rate, or tool = \"…\" with a command";
            reader.note(keys.at("online"), message);
        }
        return none;
    }
    let given = |key: &str| keys.given(&format!("load.{key}"));
    match (given("http"), given("tool"), given("command")) {
        (true, false, false) => {
            if !given("rate") {
                let message = "load.rate is missing: give requests per second, or a share of what the service sustains, such as \"60 %\"";
                reader.note(keys.at("load.http"), message);
            }
            let arrival = match keys.text("load.arrival") {
                Some("constant") => Arrival::Constant,
                _ => Arrival::Poisson,
            };
            Load::Http {
                path: keys.owned("load.http").unwrap_or_default(),
                rate: keys.with("load.rate", rate).unwrap_or(Rate::PerSecond(1.0)),
                connections: keys.whole("load.connections").unwrap_or(64),
                arrival,
            }
        }
        (false, true, true) => match (keys.parsed("load.tool"), keys.command("load.command")) {
            (Some(tool), Some(command)) => Load::Tool {
                tool,
                command,
                stdin: keys.owned("load.stdin"),
                output: keys.owned("load.output"),
                concurrency: keys.whole("load.concurrency"),
            },
            _ => none,
        },
        _ => {
            let message = "[load] needs either http = \"/path\" with a rate, or tool = \"…\" with a command";
            reader.note(keys.at("load"), message);
            none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARMS: &str = "arms = [\"baseline\", \"baseline2\", \"contended\", \"isolated\"]\n";

    #[test]
    fn a_file_with_little_in_it() {
        let experiment = parse("x", ARMS).unwrap();
        assert_eq!((experiment.design.rounds, experiment.design.block_s), (12, 20.0));
        assert_eq!(
            (experiment.online, experiment.offline),
            (Online::BuiltIn, Offline::BuiltIn(Antagonist::Cpu))
        );
        assert_eq!(experiment.isolations, [Isolation::default()]);
    }

    #[test]
    fn a_file_with_everything() {
        let text = r#"
about = "mine"
arms = ["baseline", "baseline2", "contended", "isolated", "isolated:cpu.idle+sched-idle", "offline-alone"]
restart = "never"
disk = "1 GiB"
root = true
[design]
rounds = 8
block = "500 ms"
threshold = "10 %"
thresholds = { P99 = "20 %" }
gates = ["p99", "QPS"]
slo = { metric = "P99", latency = "500 us" }
min-offline = "30 %"
style = "plugsched"
[online]
command = ["server", "{port}"]
files = { "a.conf" = "x" }
ready = { http = "/ok" }
[load]
http = "/"
rate = "60 %"
arrival = "constant"
[offline]
command = ["job"]
cpus = 2
[[requires]]
program = "server"
package = "server-deb"
at-least = "1.2"
"#;
        let experiment = parse("x", text).unwrap();
        assert_eq!(
            experiment.design.slo,
            Some(Slo { metric: Metric::P99, latency_us: 500.0, window_s: 1.0 })
        );
        assert_eq!(experiment.design.threshold_of(Metric::P99), 20.0);
        assert!(
            matches!(experiment.load, Load::Http { rate: Rate::OfKnee(share), .. } if (share - 0.6).abs() < 1e-9)
        );
        assert_eq!((experiment.isolations.len(), experiment.disk_bytes), (2, 1 << 30));
        assert_eq!(experiment.requires[0].at_least.as_deref(), Some("1.2"));
    }

    fn check(text: &str, words: &[&str]) {
        let error = parse("x", &format!("{ARMS}{text}")).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    // promise 39
    #[test]
    fn mistakes_of_keys_and_kinds() {
        check("comand = 1", &["x:2:1: unknown key \"comand\""]);
        check(
            "[online]\ncomand = [\"x\"]",
            &["x:3:1: unknown key \"online.comand\"; did you mean \"online.command\"?"],
        );
        check("[desing]\nrounds = 3", &["x:2:2: unknown key \"desing\"; did you mean \"design\"?"]);
        check(
            "[design]\nrounds = 0\nblock = \"1 h 1\"\ngates = [\"P50\", \"P42\"]",
            &["x:3:10: design.rounds = 0", "x:4:9: design.block", "x:5:17: design.gates", "P42", "QPS, P50"],
        );
        // Values of wrong types; the parser reports all of them together.
        check(
            "about = 5\nroot = \"yes\"\n[design]\nrounds = \"6\"\ngates = \"P50\"\n[online]\nprepare = [\"x\"]\nready = 5\n[load]\nrate = true",
            &[
                "x:2:9: about must be a text",
                "x:3:8: root must be true or false",
                "x:5:10: design.rounds must be a whole number",
                "x:6:9: design.gates must be a list of texts",
                "x:8:12: online.prepare must be a list of commands",
                "x:9:9: online.ready must be one of \"tcp\", or a table of http, command, not a number",
                "x:11:8: load.rate must be a number, or a text",
            ],
        );
        check("design = 5", &["x:2:10: design must be a table: its keys are design.rounds, "]);
        check(
            "[[requires]]\nprogram = 1\npackage = \"x\"\nat_least = \"2\"",
            &[
                "x:3:11: requires.program",
                "x:5:1: unknown key \"requires.at_least\"; did you mean \"requires.at-least\"?",
            ],
        );
        check("[[requires]]\nprogram = \"x\"", &["x:2:1: requires.package is missing"]);
        check("[design\nrounds = 1", &["x:2:8: "]);
    }

    // promise 39
    #[test]
    fn mistakes_of_values() {
        // Experiments with short windows.
        check(
            "[design]\nwindow = \"20 s\"\nguard = \"0 s\"\nper-round = 0\nfor = \"0 s\"",
            &[
                "x:3:10: design.window",
                "x:4:9: design.guard",
                "x:5:13: design.per-round = 0",
                "x:6:7: design.for",
            ],
        );
        check(
            "[design]\ncarry-over = \"medium\"",
            &["x:3:14: design.carry-over = \"medium\"", "\"long\", if they last longer"],
        );
        check(
            "[design]\ncarry-over = \"long\"\nguard = \"1 s\"",
            &["x:4:9: design.guard applies to short windows", "carry-over = \"long\""],
        );
        check(
            "restart = \"round\"\n[design]\ncarry-over = \"short\"",
            &["x:4:14: design.carry-over = \"short\"", "requests restarts of the service"],
        );
        check(
            "[design]\ncarry-over = \"short\"\n[load]\ntool = \"wrk\"\ncommand = [\"wrk\"]",
            &["x:3:14: ", "does not print when each request was due"],
        );
        check("[design]\nblock = \"2 h\"", &["must be 0.2 s to 3600 s"]);
        check("[design]\nthreshold = \"5\"", &["such as \"5 %\""]);
        check("[online]\ncommand = [\"x\"]", &["[load] is missing"]);
        check(
            "[online]\ncommand = []\n[load]\nhttp = \"x\"\nrate = \"200 %\"",
            &["a command is empty", "a path that starts with /", "at most \"100 %\""],
        );
        check(
            "[online]\nattach = \"x.service\"\n[load]\nhttp = \"/\"\nrate = 5",
            &["online.address is missing"],
        );
        check(
            "[online]\nattach = \"x.service\"\naddress = \"here\"",
            &["online.address = \"here\"", "[load] is missing"],
        );
        check("[online]\nfiles = { a = \"\" }", &["online.command is missing"]);
        check("[offline]\ncpus = 1", &["offline.command is missing"]);
        check("[offline]\nattach = \"x\"\ncpus = 0", &["a number above 0"]);
        check(
            "[offline]\nattach = \"x\"\ncommand = [\"y\"]\nwork = \"ffmpeg\"",
            &["already runs", "only cpu-seconds"],
        );
        check("[load]\ntool = \"wrk\"", &["needs either http"]);
        check("[load]\nhttp = \"/\"\nrate = 5\nconnections = 0", &["load.connections = 0"]);
        check("[offline]\ncommand = [\"x\"]\nfiles = { \"../x\" = \"\" }", &["a file name without a path"]);
        let error = parse("x", "arms = [\"baseline\", \"isolated:magic\", \"best\", \"baseline\"]")
            .unwrap_err()
            .to_string();
        for word in [
            "x:1:21: arm isolated:magic",
            "x:1:39: arm \"best\"",
            "x:1:47: arm baseline is listed twice",
            "x:1:8: arms: baseline2 is missing",
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(parse("x", "").unwrap_err().to_string().contains("arms"));
    }
}
