//! An experiment's file: TOML to [`Experiment`]. All mistakes in one error, each with line and column.
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
//! `{port}`, `{dir}`, `{cpus}`, `{seconds}`, `{concurrency}`, `{program}`, `{online-group}` and `{offline-group}` are put in
//! wherever a command, a file or a path has them.

use super::shape::Mistakes;
use super::short;
use super::{Attached, Batch, Experiment, Load, Offline, Online, Rate, Ready, Requirement, Restart, Service};
use super::{metrics, sweep};
use crate::isolation::Isolation;
use crate::loadgen::Arrival;
use crate::record::{Arm, BlameBounds, Design, MAX_ROUNDS, Metric, Role, Slo};
use crate::report::Style;
use crate::tools::Tool;
use crate::tools::work::WorkKind;
use crate::workload::antagonist::Kind;
use commensal_core::units::{Bytes, Millis};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .wrong.join("\n  "))]
pub struct FileError {
    /// The file.
    pub name: String,
    /// Every mistake, `NAME:LINE:COLUMN: what is wrong`, in the order of the text.
    pub wrong: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    #[serde(default)]
    about: String,
    arms: Vec<String>,
    restart: Option<Restart>,
    #[serde(default)]
    root: bool,
    disk: Option<String>,
    #[serde(default)]
    design: RawDesign,
    #[serde(default)]
    online: RawOnline,
    load: Option<RawLoad>,
    #[serde(default)]
    offline: RawOffline,
    #[serde(default)]
    requires: Vec<Requirement>,
    #[serde(default)]
    metric: Vec<metrics::RawMetric>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawDesign {
    pub rounds: Option<u32>,
    pub block: Option<String>,
    settle: Option<String>,
    warmup: Option<String>,
    threshold: Option<String>,
    #[serde(default)]
    thresholds: BTreeMap<String, String>,
    gates: Option<Vec<String>>,
    percentiles: Option<Vec<String>>,
    seed: Option<u64>,
    style: Option<String>,
    min_offline: Option<String>,
    slo: Option<RawSlo>,
    blame: Option<RawBlame>,
    pub carry_over: Option<String>,
    pub r#for: Option<String>,
    pub window: Option<String>,
    pub guard: Option<String>,
    pub per_round: Option<u32>,
    pub contended: Option<String>,
    pub contended_every: Option<u32>,
    vary: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawSlo {
    metric: String,
    latency: String,
    window: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawBlame {
    wait_ms_per_cpu_s: f64,
    preemption_p99_us: f64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawOnline {
    attach: Option<String>,
    address: Option<String>,
    command: Option<Vec<String>>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    prepare: Vec<Vec<String>>,
    #[serde(default)]
    setup: Vec<Vec<String>>,
    #[serde(default)]
    cleanup: Vec<Vec<String>>,
    ready: Option<RawReady>,
    ready_within: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum RawReady {
    Tcp,
    Http(String),
    Command(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLoad {
    http: Option<String>,
    rate: Option<RawRate>,
    connections: Option<usize>,
    arrival: Option<RawArrival>,
    tool: Option<String>,
    command: Option<Vec<String>>,
    stdin: Option<String>,
    output: Option<String>,
    concurrency: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawRate {
    Number(f64),
    Share(String),
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum RawArrival {
    Poisson,
    Constant,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawOffline {
    attach: Option<String>,
    built_in: Option<String>,
    command: Option<Vec<String>>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    prepare: Vec<Vec<String>>,
    #[serde(default)]
    cleanup: Vec<Vec<String>>,
    work: Option<String>,
    cpus: Option<f64>,
    ramp: Option<Vec<u32>>,
}

/// Reads an experiment; `name` is what it is called, `cpus` those of the machine.
///
/// # Errors
/// [`FileError`] with everything that is wrong.
pub fn parse(name: &str, text: &str) -> Result<Experiment, FileError> {
    let failed = |wrong: Mistakes| FileError { name: name.to_owned(), wrong: wrong.lines() };
    let mut wrong = Mistakes::of(name, text);
    if !wrong.none() {
        return Err(failed(wrong));
    }
    let raw: RawFile = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(error) => {
            wrong.of_toml(&error);
            return Err(failed(wrong));
        }
    };
    let (arms, isolations) = arms(&raw.arms, &mut wrong);
    let own_service = raw.online.command.is_some() || raw.online.attach.is_some();
    let load = load(raw.load, own_service, &mut wrong);
    let mut raw_design = raw.design;
    let (vary, ramp) = (raw_design.vary.take(), raw.offline.ramp.clone());
    let raw_short = short::RawShort::of(&mut raw_design);
    let mut design = design(raw_design, &load, &mut wrong);
    metrics::of_file(&raw.metric, &mut design.0, &mut wrong);
    let short = short::plan(raw_short, (&load, raw.restart, &isolations, &design.0), &mut wrong);
    let disk_bytes = read(raw.disk.as_deref(), "disk", &mut wrong, |text| text.parse::<Bytes>())
        .map_or(0, |bytes| bytes.0);
    let seed = design.1;
    let mut experiment = Experiment {
        name: name.to_owned(),
        about: raw.about,
        seed,
        design: design.0,
        short,
        arms,
        left_out: Vec::new(),
        isolations,
        online: online(raw.online, &mut wrong),
        load,
        offline: offline(raw.offline, &mut wrong),
        restart: raw.restart.unwrap_or_default(),
        requires: raw.requires,
        disk_bytes,
        root: raw.root,
        source: Some(text.to_owned()),
    };
    if let Some(vary) = vary
        && let Err(why) = sweep::vary(&mut experiment, &vary)
    {
        wrong.at("design.vary", format!("design.vary = {vary:?}: {why}"));
    }
    if let Some(ramp) = ramp
        && let Err(why) = sweep::ramp(&mut experiment, &ramp)
    {
        wrong.at("offline.ramp", format!("offline.ramp: {why}"));
    }
    if wrong.none() { Ok(experiment) } else { Err(failed(wrong)) }
}

/// A value in text, if there is one; what is wrong with it is noted under its key.
pub(super) fn read<T, E: std::fmt::Display>(
    text: Option<&str>,
    key: &str,
    wrong: &mut Mistakes,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Option<T> {
    match parse(text?) {
        Ok(value) => Some(value),
        Err(why) => {
            wrong.at(key, format!("{key} = {:?}: {why}", text.unwrap_or_default()));
            None
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    Ok(text.parse::<Millis>().map_err(|error| error.to_string())?.0 as f64 / 1e3)
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').ok_or("an amount such as \"5 %\" is needed")?;
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("a number above 0 is needed before the %".to_owned()),
    }
}

pub(super) fn metric(text: &str) -> Result<Metric, String> {
    let known = Metric::ALL.into_iter().find(|metric| metric.label().eq_ignore_ascii_case(text.trim()));
    let labels = Metric::ALL.map(Metric::label).join(", ");
    known.ok_or_else(|| format!("there is no such metric; there are {labels}"))
}

/// `20 ms` and `500 us`, in microseconds.
pub(super) fn latency(text: &str) -> Result<f64, String> {
    let micros = text.trim().strip_suffix("us").map(|number| number.trim().parse::<f64>());
    match micros {
        Some(Ok(us)) if us.is_finite() && us > 0.0 => Ok(us),
        Some(_) => Err("a number above 0 is needed before us".to_owned()),
        None => match seconds(text)? {
            time if time > 0.0 => Ok(time * 1e6),
            _ => Err("a time above 0 is needed".to_owned()),
        },
    }
}

/// A metric that has a latency.
pub(super) fn percentile(text: &str) -> Result<Metric, String> {
    match metric(text)? {
        Metric::Qps => Err("a percentile is needed".to_owned()),
        percentile => Ok(percentile),
    }
}

/// Windows are made of the seconds that a block's series has.
pub(super) fn window(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        time if (1.0..=3_600.0).contains(&time) && time.fract() == 0.0 => Ok(time),
        _ => Err("whole seconds from 1 to 3600 are needed".to_owned()),
    }
}

pub(super) fn arms(names: &[String], wrong: &mut Mistakes) -> (Vec<Arm>, Vec<Isolation>) {
    let (mut arms, mut isolations): (Vec<Arm>, Vec<Isolation>) = (Vec::new(), Vec::new());
    for (index, name) in names.iter().enumerate() {
        let key = format!("arms[{index}]");
        let role = match name.as_str() {
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
                        Err(why) => wrong.at(&key, format!("arm {name}: {why}")),
                    }
                    Role::Isolated
                }
                _ => {
                    wrong.at(
                        &key,
                        format!(
                            "arm {name:?}: there are baseline, baseline2, policy-only, warm, contended, offline-alone, isolated and isolated:MEANS"
                        ),
                    );
                    continue;
                }
            },
        };
        if arms.iter().any(|arm| arm.name == *name) {
            wrong.at(&key, format!("arm {name} is named twice"));
        }
        arms.push(Arm { name: name.clone(), role, policy: None, offline: None });
    }
    for (role, name) in [(Role::Baseline, "baseline"), (Role::Baseline2, "baseline2")] {
        if !arms.iter().any(|arm| arm.role == role) {
            wrong.at(
                "arms",
                format!(
                    "arms: {name} is missing; without two identical arms nobody knows what the machine itself does to the figures"
                ),
            );
        }
    }
    (arms, isolations)
}

fn design(raw: RawDesign, load: &Load, wrong: &mut Mistakes) -> (Design, u64) {
    let default = Design {
        rounds: 12,
        block_s: 20.0,
        settle_s: 1.0,
        warmup_s: 2.0,
        threshold_pct: 5.0,
        gates: vec![Metric::P50, Metric::P90, Metric::Qps],
        ..Design::default()
    };
    let mut time = |text: Option<String>, key: &str, default: f64, range: std::ops::RangeInclusive<f64>| {
        let checked = |text: &str| match seconds(text)? {
            time if range.contains(&time) => Ok(time),
            _ => Err::<f64, String>(format!("not within {} to {} s", range.start(), range.end())),
        };
        read(text.as_deref(), key, wrong, checked).unwrap_or(default)
    };
    let block_s = time(raw.block, "design.block", default.block_s, 0.2..=3_600.0);
    let settle_s = time(raw.settle, "design.settle", default.settle_s, 0.0..=600.0);
    let warmup_s = time(raw.warmup, "design.warmup", default.warmup_s, 0.0..=600.0);
    let rounds = raw.rounds.unwrap_or(default.rounds);
    if rounds == 0 || u64::from(rounds) > MAX_ROUNDS as u64 {
        wrong.at("design.rounds", format!("design.rounds = {rounds}: not within 1 to {MAX_ROUNDS}"));
    }
    let threshold_pct =
        read(raw.threshold.as_deref(), "design.threshold", wrong, percent).unwrap_or(default.threshold_pct);
    let mut overrides = BTreeMap::new();
    for (name, text) in &raw.thresholds {
        let key = format!("design.thresholds.{name}");
        let pair = read(Some(name), &key, wrong, metric).zip(read(Some(text), &key, wrong, percent));
        overrides.extend(pair);
    }
    let mut metrics = |names: Option<Vec<String>>, key: &str, default: Vec<Metric>| match names {
        Some(names) => names.iter().filter_map(|name| read(Some(name), key, wrong, metric)).collect(),
        None => default,
    };
    let gates = metrics(raw.gates, "design.gates", default.gates);
    let percentiles = metrics(raw.percentiles, "design.percentiles", Vec::new());
    let slo = raw.slo.and_then(|slo| {
        let metric = read(Some(&slo.metric), "design.slo.metric", wrong, percentile)?;
        let latency_us = read(Some(&slo.latency), "design.slo.latency", wrong, latency)?;
        let window_s = read(slo.window.as_deref(), "design.slo.window", wrong, window).unwrap_or(1.0);
        Some(Slo { metric, latency_us, window_s })
    });
    let (offered_per_s, concurrency, name) = match load {
        Load::Http { rate: Rate::PerSecond(rate), .. } => (Some(*rate), None, "built-in".to_owned()),
        Load::Http { .. } => (None, None, "built-in".to_owned()),
        Load::Tool { tool, concurrency, .. } => (None, *concurrency, tool.to_string()),
    };
    let design = Design {
        rounds,
        block_s,
        settle_s,
        warmup_s,
        offered_per_s,
        threshold_pct,
        threshold_overrides_pct: overrides,
        gates,
        percentiles,
        blame: raw.blame.map(|bounds| BlameBounds {
            wait_ms_per_cpu_s: bounds.wait_ms_per_cpu_s,
            preemption_p99_us: bounds.preemption_p99_us,
        }),
        load: Some(name),
        concurrency,
        slo,
        min_offline_pct: read(raw.min_offline.as_deref(), "design.min-offline", wrong, percent),
        style: read(raw.style.as_deref(), "design.style", wrong, |name| {
            name.parse::<Style>().map(|_| name.to_owned())
        }),
        ..default
    };
    (design, raw.seed.unwrap_or(1))
}

fn online(raw: RawOnline, wrong: &mut Mistakes) -> Online {
    if let Some(to) = raw.attach {
        if raw.command.is_some() {
            wrong.at("online.attach", "online: either command or attach");
        }
        let addr = read(raw.address.as_deref(), "online.address", wrong, |text| text.parse::<SocketAddr>());
        if addr.is_none() && raw.address.is_none() {
            wrong.at(
                "online.address",
                "online.address is missing: where it serves, such as \"127.0.0.1:8080\"",
            );
        }
        return Online::Attached(Attached {
            to,
            addr: addr.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))),
        });
    }
    let Some(command) = raw.command else {
        let empty =
            raw.files.is_empty() && raw.prepare.is_empty() && raw.setup.is_empty() && raw.ready.is_none();
        if !empty {
            wrong.at("online.command", "online.command is missing");
        }
        return Online::BuiltIn;
    };
    commands("online", &[std::slice::from_ref(&command), &raw.prepare, &raw.setup, &raw.cleanup], wrong);
    let within = read(raw.ready_within.as_deref(), "online.ready-within", wrong, seconds);
    Online::Program(Service {
        files: names(raw.files, "online.files", wrong),
        prepare: raw.prepare,
        command,
        ready: match raw.ready {
            None | Some(RawReady::Tcp) => Ready::Tcp,
            Some(RawReady::Http(path)) => Ready::Http(path),
            Some(RawReady::Command(command)) => Ready::Command(command),
        },
        ready_within: Duration::from_secs_f64(within.unwrap_or(30.0)),
        setup: raw.setup,
        cleanup: raw.cleanup,
    })
}

fn offline(raw: RawOffline, wrong: &mut Mistakes) -> Offline {
    if let Some(cpus) = raw.cpus.filter(|cpus| !(cpus.is_finite() && *cpus > 0.0)) {
        wrong.at("offline.cpus", format!("offline.cpus = {cpus}: a number above 0 is needed"));
    }
    if let Some(to) = raw.attach {
        if raw.built_in.is_some()
            || raw.command.is_some()
            || !raw.files.is_empty()
            || !raw.prepare.is_empty()
            || !raw.cleanup.is_empty()
        {
            wrong.at(
                "offline.attach",
                "offline: what is attached to runs already; only work and cpus go with attach",
            );
        }
        if raw.work.is_some_and(|work| work != WorkKind::CpuSeconds.to_string()) {
            wrong.at("offline.work", "offline.work: of work that runs already only cpu-seconds are known");
        }
        return Offline::Attached { to, expected_cpus: raw.cpus };
    }
    let Some(command) = raw.command else {
        if !raw.files.is_empty() || !raw.prepare.is_empty() || raw.work.is_some() || raw.cpus.is_some() {
            wrong.at("offline.command", "offline.command is missing");
        }
        let kind = read(raw.built_in.as_deref(), "offline.built-in", wrong, |name| name.parse());
        return Offline::BuiltIn(kind.unwrap_or(Kind::Cpu));
    };
    if raw.built_in.is_some() {
        wrong.at("offline.built-in", "offline: either command or built-in");
    }
    commands("offline", &[std::slice::from_ref(&command), &raw.prepare, &raw.cleanup], wrong);
    Offline::Program(Batch {
        files: names(raw.files, "offline.files", wrong),
        prepare: raw.prepare,
        command,
        work: read(raw.work.as_deref(), "offline.work", wrong, |name| name.parse())
            .unwrap_or(WorkKind::CpuSeconds),
        expected_cpus: raw.cpus,
        cleanup: raw.cleanup,
    })
}

/// Each command has a program.
fn commands(side: &str, all: &[&[Vec<String>]], wrong: &mut Mistakes) {
    let empty = |command: &&Vec<String>| command.first().is_none_or(String::is_empty);
    if all.iter().flat_map(|commands| commands.iter()).any(|command| empty(&command)) {
        wrong.at(
            &format!("{side}.command"),
            format!("{side}: a command is empty; write it as [\"program\", \"argument\", …]"),
        );
    }
}

/// Files go into the run's own folder, and nowhere else.
fn names(files: BTreeMap<String, String>, key: &str, wrong: &mut Mistakes) -> BTreeMap<String, String> {
    for name in files.keys() {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            wrong.at(
                &format!("{key}.{name}"),
                format!("{key}.{name:?}: a plain file name is needed; it is written into {{dir}}"),
            );
        }
    }
    files
}

fn load(raw: Option<RawLoad>, own_service: bool, wrong: &mut Mistakes) -> Load {
    let none = Load::Http {
        path: super::BUILT_IN_PATH.to_owned(),
        rate: Rate::PerSecond(super::RATE_PER_S),
        connections: 64,
        arrival: Arrival::Poisson,
    };
    let Some(raw) = raw else {
        if own_service {
            wrong.at(
                "online",
                "[load] is missing: http = \"/path\" with a rate, or tool = \"…\" with a command",
            );
        }
        return none;
    };
    match (raw.http, raw.tool, raw.command) {
        (Some(path), None, None) => {
            if !path.starts_with('/') {
                wrong.at("load.http", format!("load.http = {path:?}: a path such as \"/\" is needed"));
            }
            let rate = match raw.rate {
                Some(value) => rate(&value, wrong),
                None => {
                    wrong.at(
                        "load.http",
                        "load.rate is missing: requests per second, or \"60 %\" of what the service can do",
                    );
                    Rate::PerSecond(1.0)
                }
            };
            let arrival = match raw.arrival {
                Some(RawArrival::Constant) => Arrival::Constant,
                Some(RawArrival::Poisson) | None => Arrival::Poisson,
            };
            let connections = raw.connections.unwrap_or(64);
            if !(1..=60_000).contains(&connections) {
                wrong.at(
                    "load.connections",
                    format!("load.connections = {connections}: not within 1 to 60000"),
                );
            }
            Load::Http { path, rate, connections, arrival }
        }
        (None, Some(tool), Some(command)) => {
            commands("load", &[std::slice::from_ref(&command)], wrong);
            let Some(tool) = read(Some(&tool), "load.tool", wrong, |name| name.parse::<Tool>()) else {
                return none;
            };
            let (stdin, output, concurrency) = (raw.stdin, raw.output, raw.concurrency);
            Load::Tool { tool, command, stdin, output, concurrency }
        }
        _ => {
            wrong.at(
                "load",
                "[load] needs either http = \"/path\" with a rate, or tool = \"…\" with a command",
            );
            none
        }
    }
}

fn rate(value: &RawRate, wrong: &mut Mistakes) -> Rate {
    let (number, text) = match value {
        RawRate::Number(number) => (Some(*number), number.to_string()),
        RawRate::Share(text) => match percent(text) {
            Ok(percent) if percent <= 100.0 => return Rate::OfKnee(percent / 100.0),
            _ => (None, format!("{text:?}")),
        },
    };
    match number {
        Some(number) if number.is_finite() && number > 0.0 && number <= 1e6 => Rate::PerSecond(number),
        _ => {
            wrong.at(
                "load.rate",
                format!(
                    "load.rate = {text}: requests per second up to 1000000, or up to \"100 %\" of what the service can do"
                ),
            );
            Rate::PerSecond(1.0)
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
        assert_eq!((experiment.online, experiment.offline), (Online::BuiltIn, Offline::BuiltIn(Kind::Cpu)));
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

    // promise 48
    #[test]
    fn mistakes_of_keys_and_kinds() {
        check("comand = 1", &["x:2:1: unknown key \"comand\""]);
        check(
            "[online]\ncomand = [\"x\"]",
            &["x:3:1: unknown key \"online.comand\"; did you mean \"online.command\"?"],
        );
        check("[desing]\nrounds = 3", &["x:2:2: unknown key \"desing\"", "known keys here: about, arms"]);
        check(
            "[design]\nrounds = 0\nblock = \"1 h 1\"\ngates = [\"P50\", \"P42\"]",
            &["x:3:10: design.rounds = 0", "x:4:9: design.block", "x:5:9: ", "P42", "QPS, P50"],
        );
        // Kinds, and all of them in one pass.
        check(
            "about = 5\nroot = \"yes\"\n[design]\nrounds = \"6\"\ngates = \"P50\"\n[online]\nprepare = [\"x\"]\nready = 5\n[load]\nrate = true",
            &[
                "x:2:9: about must be a text",
                "x:3:8: root must be true or false",
                "x:5:10: design.rounds must be a whole number",
                "x:6:9: design.gates must be a list of texts",
                "x:8:11: online.prepare must be a list of commands",
                "x:9:9: online.ready must be a text or a table",
                "x:11:8: load.rate must be a number, or a text",
            ],
        );
        check("design = 5", &["x:2:10: design must be a table: write [design]"]);
        check(
            "[[requires]]\nprogram = 1\npackage = \"x\"\nat_least = \"2\"",
            &[
                "x:3:11: requires.program",
                "x:5:1: unknown key \"requires.at_least\"; did you mean \"requires.at-least\"?",
            ],
        );
        check("[[requires]]\nprogram = \"x\"", &["x:2:1: missing field `package`"]);
        check("[design\nrounds = 1", &["x:2:8: "]);
    }

    // promise 48
    #[test]
    fn mistakes_of_values() {
        // Short windows.
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
            &["x:3:14: design.carry-over = \"medium\"", "\"long\" where it is not"],
        );
        check(
            "[design]\ncarry-over = \"long\"\nguard = \"1 s\"",
            &["x:4:9: design.guard is about short windows", "carry-over = \"long\""],
        );
        check(
            "restart = \"round\"\n[design]\ncarry-over = \"short\"",
            &["x:4:14: design.carry-over = \"short\"", "a fresh service again and again"],
        );
        check(
            "[design]\ncarry-over = \"short\"\n[load]\ntool = \"wrk\"\ncommand = [\"wrk\"]",
            &["x:3:14: ", "not when each of them was due"],
        );
        check("[design]\nblock = \"2 h\"", &["not within 0.2 to 3600 s"]);
        check("[design]\nthreshold = \"5\"", &["such as \"5 %\""]);
        check("[online]\ncommand = [\"x\"]", &["[load] is missing"]);
        check(
            "[online]\ncommand = []\n[load]\nhttp = \"x\"\nrate = \"200 %\"",
            &["a command is empty", "a path such as", "up to \"100 %\""],
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
            &["runs already", "only cpu-seconds"],
        );
        check("[load]\ntool = \"wrk\"", &["needs either http"]);
        check("[load]\nhttp = \"/\"\nrate = 5\nconnections = 0", &["load.connections = 0"]);
        check("[offline]\ncommand = [\"x\"]\nfiles = { \"../x\" = \"\" }", &["a plain file name"]);
        let error = parse("x", "arms = [\"baseline\", \"isolated:magic\", \"best\", \"baseline\"]")
            .unwrap_err()
            .to_string();
        for word in [
            "x:1:21: arm isolated:magic",
            "x:1:39: arm \"best\"",
            "x:1:47: arm baseline is named twice",
            "x:1:8: arms: baseline2 is missing",
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(parse("x", "").unwrap_err().to_string().contains("arms"));
    }
}
