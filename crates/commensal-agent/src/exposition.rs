//! Formats a snapshot in the Prometheus text format 0.0.4, in base units (seconds, bytes, ratios; CPU use in CPUs). A
//! value that is unknown has no series; it is never 0. Labels are groups, controllers and resources, as named in the
//! groups file. Values of unbounded number, such as paths or reasons, are only in `/v1/snapshot`.

use crate::snapshot::{Group, Pressure, Snapshot};
use commensal_blame::exposition::{Sample, family};
use std::time::Duration;

/// The value of the header `Content-Type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats the snapshot. `age` is the time since the snapshot was made.
#[must_use]
pub fn prometheus(snapshot: &Snapshot, age: Duration) -> String {
    let mut out = Text(String::new());
    agent(&mut out, snapshot, age);
    reactions(&mut out, snapshot);
    state(&mut out, snapshot);
    guard(&mut out, snapshot);
    machine(&mut out, snapshot);
    groups(&mut out, snapshot);
    waits(&mut out, snapshot);
    decisions(&mut out, snapshot);
    out.0
}

struct Text(String);

impl Text {
    fn gauge(&mut self, name: &str, help: &str, rows: &[Sample<'_>]) {
        family(&mut self.0, name, "gauge", help, rows);
    }

    fn counter(&mut self, name: &str, help: &str, rows: &[Sample<'_>]) {
        family(&mut self.0, name, "counter", help, rows);
    }
}

/// Returns one series without labels if the value is known, otherwise no series.
fn one(value: impl Into<Option<f64>>) -> Vec<Sample<'static>> {
    value.into().map(|value| (Vec::new(), value)).into_iter().collect()
}

fn flag(on: bool) -> Vec<Sample<'static>> {
    one(f64::from(u8::from(on)))
}

fn agent(out: &mut Text, snapshot: &Snapshot, age: Duration) {
    let labels = vec![("version", snapshot.version.clone()), ("schema", snapshot.schema.clone())];
    out.gauge(
        "commensal_agent_info",
        "Version and snapshot schema of the running agent, as labels.",
        &[(labels, 1.0)],
    );
    out.gauge("commensal_agent_uptime_seconds", "Time since the agent started.", &one(snapshot.uptime_s));
    out.gauge(
        "commensal_agent_snapshot_age_seconds",
        "Time since the last tick ended; if it exceeds a few tick intervals, the loop hangs.",
        &one(age.as_secs_f64()),
    );
    out.counter("commensal_agent_ticks_total", "Ticks since the agent started.", &one(snapshot.ticks as f64));
    out.counter(
        "commensal_agent_late_ticks_total",
        "Ticks that overran the configured interval.",
        &one(snapshot.cost.late_ticks as f64),
    );
    out.gauge(
        "commensal_agent_tick_interval_seconds",
        "Configured interval between ticks.",
        &one(snapshot.interval_ms as f64 / 1e3),
    );
    out.gauge("commensal_agent_tick_seconds", "Duration of the last tick.", &one(snapshot.tick_ms / 1e3));
    out.counter(
        "commensal_agent_cpu_seconds_total",
        "CPU time that the agent has used.",
        &one(snapshot.cost.cpu_s),
    );
    out.gauge(
        "commensal_agent_resident_memory_bytes",
        "Resident memory of the agent.",
        &one(snapshot.cost.rss_bytes.map(|bytes| bytes as f64)),
    );
    out.counter(
        "commensal_agent_writes_total",
        "Writes to kernel files by the agent.",
        &one(snapshot.cost.writes as f64),
    );
    out.counter(
        "commensal_agent_audit_lines_lost_total",
        "Audit log lines that were lost because the log could not be written in time.",
        &one(snapshot.cost.audit_lost as f64),
    );
}

/// Metrics of how fast the agent reacts to the probe's alarms.
fn reactions(out: &mut Text, snapshot: &Snapshot) {
    let reactions = &snapshot.reactions;
    out.counter(
        "commensal_agent_reactions_total",
        "Alarms of the probe after which the agent restricted offline work.",
        &one(reactions.count as f64),
    );
    out.counter(
        "commensal_agent_reaction_seconds_total",
        "Time from these alarms until the agent's writes were in force.",
        &one(reactions.total_ms / 1e3),
    );
    out.gauge(
        "commensal_agent_longest_reaction_seconds",
        "Longest time from such an alarm until the agent's writes were in force.",
        &one(reactions.longest_ms / 1e3),
    );
}

/// Metrics of what the agent does at the moment: paused, in a canary, with problems, and with which configuration.
fn state(out: &mut Text, snapshot: &Snapshot) {
    out.gauge(
        "commensal_agent_paused",
        "Whether the agent is paused: it observes and writes nothing.",
        &flag(snapshot.paused),
    );
    let off = snapshot.canary.as_ref().is_some_and(|canary| canary.off);
    out.gauge(
        "commensal_agent_canary",
        "Whether a canary is running, which removes isolation for short windows.",
        &flag(snapshot.canary.is_some()),
    );
    out.gauge(
        "commensal_agent_isolation_off",
        "Whether a canary has removed isolation at the moment.",
        &flag(off),
    );
    out.gauge(
        "commensal_agent_active_problems",
        "Number of problems that `commensal status` lists at the moment.",
        &one(snapshot.problems.len() as f64),
    );
    out.gauge(
        "commensal_config_generation",
        "Number of times that a configuration was put in force.",
        &one(snapshot.config.generation as f64),
    );
    out.gauge(
        "commensal_config_rejected",
        "Whether a newer configuration is not in force because it has errors.",
        &flag(snapshot.config.error.is_some()),
    );
}

/// Metrics of the lease, and of the last time that the safe state was set.
fn guard(out: &mut Text, snapshot: &Snapshot) {
    let lease = snapshot.lease.as_ref();
    out.gauge(
        "commensal_lease_seconds",
        "Time without a keep-alive from the agent after which the guard kills it and sets the safe state.",
        &one(lease.map(|lease| lease.time_ms as f64 / 1e3)),
    );
    out.gauge(
        "commensal_guard_present",
        "Whether the guard is running.",
        &flag(lease.is_some_and(|lease| lease.guard_pid.is_some())),
    );
    let last = snapshot.safe_state.as_ref();
    let at = last.and_then(|last| humantime::parse_rfc3339(&last.at).ok());
    let at = at.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    out.gauge(
        "commensal_safe_state_timestamp_seconds",
        "Time at which the safe state was last set because an agent died or exited (Unix time).",
        &one(at.map(|at| at.as_secs_f64())),
    );
    out.gauge(
        "commensal_safe_state_failed_values",
        "Number of values that could not be set or read when the safe state was last set.",
        &one(last.map(|last| last.failures as f64)),
    );
}

fn machine(out: &mut Text, snapshot: &Snapshot) {
    let machine = &snapshot.machine;
    out.gauge("commensal_machine_cpus", "Logical CPUs of the machine.", &one(f64::from(machine.cpus)));
    let by = [
        ("online", machine.online),
        ("offline", machine.offline),
        ("other", machine.other),
        ("steal", machine.steal),
    ];
    let rows: Vec<Sample<'_>> =
        by.into_iter().filter_map(|(by, cpus)| Some((vec![("by", by.to_owned())], cpus?))).collect();
    out.gauge("commensal_machine_used_cpus", "CPUs used during the last tick by online groups, offline groups and other work, and CPUs taken by the hypervisor (steal).", &rows);
    out.gauge(
        "commensal_machine_memory_bytes",
        "Main memory of the machine.",
        &one(machine.memory_bytes as f64),
    );
    out.gauge(
        "commensal_machine_memory_available_bytes",
        "Memory that can be allocated without swapping.",
        &one(machine.memory_available_bytes.map(|bytes| bytes as f64)),
    );
    out.gauge(
        "commensal_machine_pressure_ratio",
        "Share of the last tick in which some task of the machine waited for the resource.",
        &pressure(&[], &machine.pressure),
    );
}

fn pressure<'a>(labels: &[(&'a str, String)], of: &Pressure) -> Vec<Sample<'a>> {
    let parts = [("cpu", of.cpu_pct), ("memory", of.memory_pct), ("io", of.io_pct)];
    let known = parts.into_iter().filter_map(|(name, pct)| Some((name, pct?)));
    known
        .map(|(name, pct)| {
            let mut labels = labels.to_vec();
            labels.push(("resource", name.to_owned()));
            (labels, pct / 100.0)
        })
        .collect()
}

/// A metric of each group: name, whether it is a counter, help text, and a function that returns the value.
type Figure = (&'static str, bool, &'static str, fn(&Group) -> Option<f64>);

const FIGURES: [Figure; 22] = [
    ("members", false, "Number of cgroups in the group.", |one| Some(one.members.len() as f64)),
    ("used_cpus", false, "CPUs that the group used during the last tick.", |one| one.cpus),
    ("memory_bytes", false, "Memory that the group uses.", |one| one.memory_bytes.map(|bytes| bytes as f64)),
    ("memory_max_bytes", false, "Memory hard limit of the group.", |one| {
        one.memory_max_bytes.map(|bytes| bytes as f64)
    }),
    ("read_bytes_per_second", false, "Bytes per second that the group reads from disks.", |one| {
        one.read_per_s
    }),
    ("written_bytes_per_second", false, "Bytes per second that the group writes to disks.", |one| {
        one.write_per_s
    }),
    ("tasks", false, "Number of tasks in the group.", |one| one.tasks.map(|tasks| tasks as f64)),
    (
        "run_delay_seconds_per_second",
        false,
        "Time that the group's threads waited for a CPU (run delay), summed over threads, per second.",
        |one| one.run_delay_ms_per_s.map(|ms| ms / 1e3),
    ),
    (
        "blamed_wait_seconds_per_cpu_second",
        false,
        "Wait for a CPU that offline work occupied, per second of the group's CPU time.",
        |one| one.blamed_ms_per_cpu_s.map(|ms| ms / 1e3),
    ),
    (
        "preemption_delay_p99_seconds",
        false,
        "99th percentile of the time that offline work kept a CPU on which a thread of the group was woken.",
        |one| one.preemption_p99_us.map(|us| us / 1e6),
    ),
    ("throttled_ratio", false, "Share of quota periods in which the group was throttled.", |one| {
        one.throttled_pct.map(|pct| pct / 100.0)
    }),
    ("oom_kills_total", true, "Number of processes of the group that the OOM killer has killed.", |one| {
        one.oom_kills.map(|kills| kills as f64)
    }),
    ("frozen", false, "Whether the agent has frozen the group.", |one| Some(f64::from(u8::from(one.frozen)))),
    (
        "freezing_seconds",
        false,
        "Time since the group was frozen, while some of its tasks have not stopped (cgroup v1).",
        |one| one.freezing_s,
    ),
    (
        "starved_seconds",
        false,
        "How long the tasks of a group below cpu.qos_level 0 have wanted a CPU and had none.",
        |one| one.starved_s,
    ),
    (
        "cpu_pressure_ratio",
        false,
        "Share of the last tick in which some task of the group waited for a CPU.",
        |one| one.pressure.cpu_pct.map(|pct| pct / 100.0),
    ),
    (
        "memory_pressure_ratio",
        false,
        "Share of the last tick in which some task of the group waited for memory.",
        |one| one.pressure.memory_pct.map(|pct| pct / 100.0),
    ),
    (
        "io_pressure_ratio",
        false,
        "Share of the last tick in which some task of the group waited for a disk.",
        |one| one.pressure.io_pct.map(|pct| pct / 100.0),
    ),
    ("queue_running", false, "Commands of the group's queue that are running.", |one| {
        one.queue.as_ref().map(|queue| f64::from(queue.running))
    }),
    ("queue_waiting", false, "Commands of the group's queue that are waiting.", |one| {
        one.queue.as_ref().map(|queue| f64::from(queue.waiting))
    }),
    (
        "queue_max_concurrency",
        false,
        "Maximum number of commands of the group's queue that may run at the same time.",
        |one| one.queue.as_ref().and_then(|queue| queue.max_concurrency).map(f64::from),
    ),
    (
        "queue_held",
        false,
        "Whether the group's queue is held closed, so that no command starts even if slots are free.",
        |one| one.queue.as_ref().map(|queue| f64::from(u8::from(queue.held.is_some()))),
    ),
];

fn groups(out: &mut Text, snapshot: &Snapshot) {
    let info = |group: &Group| {
        let mechanism = group.mechanism.clone().unwrap_or_default();
        let labels =
            [("group", group.name.clone()), ("class", group.class.clone()), ("mechanism", mechanism)];
        (labels.to_vec(), 1.0)
    };
    let rows: Vec<Sample<'_>> = snapshot.groups.iter().map(info).collect();
    out.gauge(
        "commensal_group_info",
        "Class of each group, and the mechanism by which it yields or is protected, as labels.",
        &rows,
    );
    for (name, counts, help, figure) in FIGURES {
        let rows: Vec<Sample<'_>> = snapshot
            .groups
            .iter()
            .filter_map(|group| Some((vec![("group", group.name.clone())], figure(group)?)))
            .collect();
        let kind = if counts { "counter" } else { "gauge" };
        family(&mut out.0, &format!("commensal_group_{name}"), kind, help, &rows);
    }
}

/// Metrics of what online groups waited for. The labels are bounded: kinds, and groups of the groups file.
fn waits(out: &mut Text, snapshot: &Snapshot) {
    let groups = || snapshot.groups.iter();
    let parts = groups().flat_map(|group| {
        group.waits.iter().map(|part| {
            let labels = [
                ("group", group.name.clone()),
                ("kind", part.kind.clone()),
                ("culprit", part.group.clone().unwrap_or_default()),
            ];
            (labels.to_vec(), part.total_s)
        })
    });
    out.counter(
        "commensal_group_wait_seconds_total",
        "Time that the group's threads waited for a CPU, by who had it meanwhile: a kind of work, and the group whose work it was.",
        &parts.collect::<Vec<_>>(),
    );
    let held = groups().flat_map(|group| {
        let labels = |kind: &str| vec![("group", group.name.clone()), ("kind", kind.to_owned())];
        group.held_back.iter().map(move |one| (labels(&one.kind), one.total_s))
    });
    out.counter(
        "commensal_group_held_back_seconds_total",
        "Time that a limit (of the group or of a cgroup above it), a freezer, an affinity or the hypervisor held the group back; it is not added to the waits, but contained in them or apart from them.",
        &held.collect::<Vec<_>>(),
    );
    out.gauge(
        "commensal_agent_probe_refused",
        "Whether the probe cannot be loaded, so that it is not known who has the CPU while groups wait.",
        &flag(snapshot.no_probe.is_some()),
    );
}

fn decisions(out: &mut Text, snapshot: &Snapshot) {
    let controllers = snapshot.controllers.iter().map(|one| {
        let group = one.group.clone().unwrap_or_default();
        (vec![("controller", one.name.clone()), ("group", group)], f64::from(u8::from(one.off.is_none())))
    });
    let controllers: Vec<Sample<'_>> = controllers.collect();
    out.gauge("commensal_controller_on", "Whether the controller is turned on.", &controllers);
    let unmet = snapshot.groups.iter().map(|group| {
        let count = snapshot.unmet.iter().filter(|unmet| unmet.group == group.name).count();
        (vec![("group", group.name.clone())], count as f64)
    });
    let unmet: Vec<Sample<'_>> = unmet.collect();
    out.gauge(
        "commensal_unmet",
        "Number of requested settings of the group that this machine cannot enforce.",
        &unmet,
    );
    out.gauge(
        "commensal_drift_knobs",
        "Number of knobs that another program has changed since the agent set them.",
        &one(snapshot.drift.len() as f64),
    );
    let given_up = snapshot.drift.iter().filter(|drift| drift.back_off_ms.is_none()).count();
    out.gauge(
        "commensal_drift_given_up_knobs",
        "Number of drifted knobs that the agent no longer corrects.",
        &one(given_up as f64),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use commensal_core::text::is_hidden;
    use std::collections::{BTreeMap, BTreeSet};

    /// A strict parser of the format: Prometheus accepts all text that this parser accepts.
    #[derive(Debug, Default)]
    struct Parsed {
        kinds: BTreeMap<String, String>,
        series: BTreeMap<String, f64>,
    }

    fn is_name(text: &str) -> bool {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }

    /// The labels up to the closing brace, and the text after it.
    fn labels(mut text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
        let mut found = BTreeMap::new();
        loop {
            let (name, rest) = text.split_once("=\"").ok_or("no =\"")?;
            if !is_name(name) {
                return Err(format!("label {name:?}"));
            }
            let mut value = String::new();
            let mut chars = rest.char_indices();
            let end = loop {
                match chars.next().ok_or("open label")? {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().ok_or("open escape")?.1 {
                        'n' => value.push('\n'),
                        c @ ('\\' | '"') => value.push(c),
                        c => return Err(format!("escape {c:?}")),
                    },
                    (_, c) => value.push(c),
                }
            };
            if found.insert(name.to_owned(), value).is_some() {
                return Err(format!("label {name} twice"));
            }
            let rest = &rest[end + 1..];
            if let Some(rest) = rest.strip_prefix('}') {
                return Ok((found, rest));
            }
            text = rest.strip_prefix(',').ok_or("no comma")?;
        }
    }

    fn parse(text: &str) -> Result<Parsed, String> {
        let mut parsed = Parsed::default();
        let mut family: Option<String> = None;
        let mut helped = BTreeSet::new();
        if !text.ends_with('\n') {
            return Err("no line break at the end".to_owned());
        }
        for line in text.lines() {
            let wrong = |what: &str| Err(format!("{what}: {line}"));
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let Some((name, help)) = rest.split_once(' ') else { return wrong("no help") };
                if !is_name(name) || help.is_empty() || !helped.insert(name.to_owned()) {
                    return wrong("help");
                }
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let Some((name, kind)) = rest.split_once(' ') else { return wrong("no type") };
                if !helped.contains(name) || !["counter", "gauge"].contains(&kind) {
                    return wrong("type");
                }
                if parsed.kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return wrong("family twice");
                }
                if (kind == "counter") != name.ends_with("_total") {
                    return wrong("a counter ends in _total, and nothing else does");
                }
                family = Some(name.to_owned());
                continue;
            }
            let at = line.find(['{', ' ']).ok_or_else(|| format!("no value: {line}"))?;
            let (name, rest) = line.split_at(at);
            if family.as_deref() != Some(name) {
                return wrong("not of the family above");
            }
            let (labels, rest) = match rest.strip_prefix('{') {
                Some(rest) => labels(rest).map_err(|error| format!("{error}: {line}"))?,
                None => (BTreeMap::new(), rest),
            };
            let Some(value) = rest.strip_prefix(' ') else { return wrong("no space") };
            let value: f64 = value.parse().map_err(|_| format!("no number: {line}"))?;
            if parsed.series.insert(format!("{name}{labels:?}"), value).is_some() {
                return wrong("series twice");
            }
        }
        Ok(parsed)
    }

    // promise 28
    #[test]
    fn golden_metrics() {
        let text = prometheus(&crate::fixture::snapshot(), Duration::from_millis(250));
        golden::check("metrics.txt", &text);
        let parsed = parse(&text).unwrap();
        assert_eq!(parsed.series[r#"commensal_group_run_delay_seconds_per_second{"group": "web"}"#], 0.0125);
        assert_eq!(parsed.series[r#"commensal_group_memory_max_bytes{"group": "etl"}"#], 8_589_934_592.0);
        assert_eq!(parsed.series[r#"commensal_machine_pressure_ratio{"resource": "cpu"}"#], 0.315);
        assert!(parsed.kinds.keys().all(|name| name.starts_with("commensal_")));
    }

    /// An unknown value has no series, but its metric family is present.
    // promise 28
    #[test]
    fn an_empty_snapshot_has_every_family() {
        let empty = parse(&prometheus(&Snapshot::default(), Duration::ZERO)).unwrap();
        let full = parse(&prometheus(&crate::fixture::snapshot(), Duration::ZERO)).unwrap();
        assert_eq!(empty.kinds, full.kinds);
        assert!(empty.series.keys().all(|name| !name.contains("used_cpus")), "{empty:?}");
    }

    // promise 28
    #[test]
    fn odd_names_are_escaped() {
        let check = |odd: &str, shown: &str| {
            let group = Group { name: odd.to_owned(), mechanism: Some(odd.to_owned()), ..Group::default() };
            let snapshot = Snapshot { groups: vec![group], ..Snapshot::default() };
            let text = prometheus(&snapshot, Duration::ZERO);
            assert!(!text.contains(|one| is_hidden(one) && one != '\n'), "{text:?}");
            let parsed = parse(&text).unwrap();
            let name = format!("commensal_group_members{:?}", BTreeMap::from([("group", shown)]));
            assert_eq!(parsed.series[&name], 0.0);
        };
        check("a \"b\"\\c{},=é", "a \"b\"\\c{},=é");
        check("a\n# TYPE b\r\u{1b}\u{9b}", "a\\n# TYPE b\\r\\u{1b}\\u{9b}");
        check("a\u{10ffff}\u{202e}\u{feff}", "a\\xff\\u{202e}\\u{feff}");
    }

    #[test]
    fn the_parser_is_strict() {
        for wrong in [
            "",
            "# HELP a b\n# TYPE a gauge\na 1",
            "a 1\n",
            "# TYPE a gauge\na 1\n",
            "# HELP a b\n# TYPE a gauge\na{b=\"c} 1\n",
            "# HELP a b\n# TYPE a gauge\na{b=\"c\\d\"} 1\n",
            "# HELP a b\n# TYPE a gauge\na x\n",
            "# HELP a b\n# TYPE a gauge\na 1\na 1\n",
            "# HELP a b\n# TYPE a counter\na 1\n",
            "# HELP a b\n# TYPE a gauge\nb 1\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse("# HELP a b\n# TYPE a gauge\na{b=\"c\\\\\",d=\"\\n\"} NaN\n").is_ok());
    }
}
