//! Formats the probe's counters since it was attached in the Prometheus text format 0.0.4, for node_exporter's textfile
//! collector or a metrics endpoint. Times are in seconds, as is the convention of Prometheus. A culprit is a cgroup
//! whose tasks held the CPU while a thread of a target (a measured cgroup or process) waited for it.

use crate::figures::{ByKind, Figures, Kind};
use crate::histogram::{Histogram, low};
use crate::report::{BROKEN_DOWN, Labels, Part, commands};
use commensal_core::text::visible;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of culprits per target and kind that have a series of their own, those with the largest wait first.
/// All further culprits share one series.
const CULPRITS: usize = 50;
/// Upper bounds of the histogram buckets: powers of two (ns), from about 1 us to about 1 s.
const BUCKETS: std::ops::RangeInclusive<usize> = 10..=30;

/// Formats the probe's metrics in the Prometheus text format. `name` maps a cgroup ID to the cgroup's name.
#[must_use]
pub fn prometheus(figures: &Figures, labels: &Labels, name: &dyn Fn(u64) -> String) -> String {
    let mut out = String::new();
    let service = |index: usize| labels.subjects.get(index).map(String::as_str).unwrap_or_default();
    let mut add = |name: &str, kind: &str, help: &str, rows: Vec<Sample<'_>>| {
        family(&mut out, name, kind, help, &rows);
    };
    let subjects = || figures.subjects.iter().enumerate();
    let of = |index: usize| vec![("service", service(index).to_owned())];
    add(
        "commensal_blame_run_seconds_total",
        "counter",
        "CPU time of the service's threads.",
        subjects().map(|(index, one)| (of(index), one.run_ns as f64 / 1e9)).collect(),
    );
    add(
        "commensal_blame_waits_total",
        "counter",
        "Number of times that a thread of the service waited for a CPU.",
        subjects().map(|(index, one)| (of(index), one.waits as f64)).collect(),
    );
    let waits = subjects().flat_map(|(index, one)| {
        Kind::ALL
            .into_iter()
            .flat_map(move |kind| culprits(figures, index, kind, one.wait.of(kind), name))
            .map(move |(kind, culprit, ns)| {
                let mut labels = of(index);
                labels.extend([("kind", kind.name().to_owned()), ("culprit", culprit)]);
                (labels, ns as f64 / 1e9)
            })
    });
    add(
        "commensal_blame_wait_seconds_total",
        "counter",
        "Time that threads of the service waited for a CPU, by the culprit that occupied it meanwhile.",
        waits.collect(),
    );
    let commands = subjects().flat_map(|(index, one)| {
        largest(figures, index, &one.wait, name).into_iter().flat_map(move |(culprit, parts)| {
            parts.into_iter().map(move |(command, ns)| {
                let (command, uid) = command.unzip();
                let mut series = of(index);
                series.push(("culprit", culprit.clone()));
                series.push(("command", command.unwrap_or_default()));
                series.push(("user", uid.map(|uid| labels.user(uid)).unwrap_or_default()));
                (series, ns as f64 / 1e9)
            })
        })
    });
    add(
        "commensal_blame_command_wait_seconds_total",
        "counter",
        "Wait caused by the largest culprit that is neither online nor offline, broken down into its largest commands and the rest.",
        commands.collect(),
    );
    for (name, help, value) in of_the_machine(figures) {
        add(name, "counter", help, vec![(Vec::new(), value)]);
    }
    histogram(
        &mut out,
        "commensal_blame_wakeup_delay_seconds",
        "Time from the wake-up of a thread of the service until it runs.",
        &figures.wake_delay,
    );
    histogram(
        &mut out,
        "commensal_blame_preemption_delay_seconds",
        "Time from the wake-up of a thread of the service on a CPU that offline work occupies until that work has left the CPU.",
        &figures.preempt_delay,
    );
    histogram(
        &mut out,
        "commensal_blame_eviction_delay_seconds",
        "Time from when a thread of the service starts to run next to offline work on an SMT sibling until that work has left the sibling.",
        &figures.evict_delay,
    );
    out
}

/// Counters without labels: name, help text and value.
fn of_the_machine(figures: &Figures) -> [(&'static str, &'static str, f64); 7] {
    let counters = &figures.counters;
    [
        (
            "commensal_blame_sibling_overlap_seconds_total",
            "Time that offline work ran on an SMT sibling while a thread of a service ran.",
            counters.overlap_ns as f64 / 1e9,
        ),
        (
            "commensal_blame_sibling_stayed_total",
            "Number of times that offline work was still on the SMT sibling when the thread of a service left its CPU.",
            counters.stayed as f64,
        ),
        (
            "commensal_blame_sibling_intrusions_total",
            "Number of times that offline work started on the SMT sibling of a running thread of a service.",
            counters.intrusions as f64,
        ),
        (
            "commensal_blame_switches_total",
            "Context switches of the whole machine that the kernel reported to the probe.",
            counters.switches as f64,
        ),
        (
            "commensal_blame_waiting_switches_total",
            "Context switches on CPUs where a service's thread was queued.",
            counters.relevant as f64,
        ),
        (
            "commensal_blame_waiting_switches_missed_total",
            "Context switches that the kernel did not report to the probe, on CPUs where a service's thread was queued.",
            counters.relevant_missed as f64,
        ),
        (
            "commensal_blame_waits_lost_total",
            "Number of runs, waits and sleeps whose end the kernel did not report to the probe.",
            counters.lost as f64,
        ),
    ]
}

/// Returns rows of kind, culprit and time (ns) for one kind. The times of the rows add up to `wait`.
fn culprits(
    figures: &Figures,
    subject: usize,
    kind: Kind,
    wait: u64,
    name: &dyn Fn(u64) -> String,
) -> Vec<(Kind, String, u64)> {
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    for (culprit, ns) in &figures.culprits {
        if let (true, true, Some(id)) =
            (culprit.subject as usize == subject, culprit.kind == kind, culprit.cgroup)
        {
            *named.entry(name(id)).or_default() += ns;
        }
    }
    let mut named: Vec<(String, u64)> = named.into_iter().collect();
    named.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    named.truncate(CULPRITS);
    let rest = wait.saturating_sub(named.iter().map(|(_, ns)| ns).sum());
    let mut rows: Vec<(Kind, String, u64)> = named.into_iter().map(|(name, ns)| (kind, name, ns)).collect();
    // This series always exists, even with a value of 0: a series that appears and disappears has gaps.
    rows.push((kind, String::new(), rest));
    rows
}

/// Finds the culprit with the largest wait among those that are neither online nor offline, and splits its wait by
/// command. Returns `None` if the culprit caused less than a tenth of the target's wait, or has a single command.
fn largest(
    figures: &Figures,
    subject: usize,
    wait: &ByKind,
    name: &dyn Fn(u64) -> String,
) -> Option<(String, Vec<Part>)> {
    let all = culprits(figures, subject, Kind::Other, wait.of(Kind::Other), name);
    let (_, culprit, ns) = all.into_iter().find(|(_, name, _)| !name.is_empty())?;
    let large = ns as f64 >= BROKEN_DOWN * wait.sum() as f64;
    let parts =
        if large { commands(&figures.commands, Some(subject), &culprit, ns, name) } else { Vec::new() };
    (!parts.is_empty()).then_some((culprit, parts))
}

fn histogram(out: &mut String, name: &str, help: &str, of: &Histogram) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
    let counts = of.counts();
    let (mut sum, mut slot) = (0, 0);
    for power in BUCKETS {
        // Slots begin at 8 ns, with eight per power of two.
        let end = (power - 2) * 8;
        sum += counts[slot..end.min(counts.len())].iter().sum::<u64>();
        slot = end;
        let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {sum}", low(end) / 1e9);
    }
    let all = of.count();
    let _ = writeln!(
        out,
        "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {}\n{name}_count {all}",
        of.sum_ns() / 1e9
    );
}

/// One time series: its labels and its value.
pub type Sample<'a> = (Vec<(&'a str, String)>, f64);

/// Appends a metric family. `kind` is `counter` or `gauge`. Without rows, only the family's help and type are written.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str, rows: &[Sample<'_>]) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

/// Escapes a label's value, and makes invisible characters visible.
fn escaped(text: &str) -> String {
    visible(text).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Culprit, TargetStats};
    use crate::histogram::SLOTS;

    #[test]
    fn counters_and_histograms() {
        let mut figures = Figures::default();
        let wait = ByKind([7_000_000_000, 0, 3_000_000_000, 0, 0, 500_000_000, 0]);
        figures.subjects.push(TargetStats { run_ns: 2_000_000_000, waits: 9, wait });
        for (kind, id, ns) in [(Kind::Other, Some(1), 4_000_000_000), (Kind::Offline, Some(2), 3_000_000_000)]
        {
            figures.culprits.insert(Culprit { subject: 0, kind, cgroup: id }, ns);
        }
        let mut counts = vec![0; SLOTS];
        counts[(10 - 2) * 8] = 3; // 1024 ns
        counts[SLOTS - 1] = 1;
        figures.wake_delay = Histogram::new(counts.clone());
        figures.evict_delay = Histogram::new(counts);
        (figures.counters.evictions, figures.counters.stayed, figures.counters.intrusions) = (4, 2, 5);
        let labels = Labels { subjects: vec!["a \"b\"".to_owned()], ..Labels::default() };
        let text = prometheus(&figures, &labels, &|id| format!("/g{id}"));
        for line in [
            "commensal_blame_run_seconds_total{service=\"a \\\"b\\\"\"} 2",
            "commensal_blame_wait_seconds_total{service=\"a \\\"b\\\"\",kind=\"other\",culprit=\"/g1\"} 4",
            "commensal_blame_wait_seconds_total{service=\"a \\\"b\\\"\",kind=\"other\",culprit=\"\"} 3",
            "commensal_blame_wait_seconds_total{service=\"a \\\"b\\\"\",kind=\"offline\",culprit=\"\"} 0",
            "commensal_blame_wakeup_delay_seconds_bucket{le=\"0.000001024\"} 0",
            "commensal_blame_wakeup_delay_seconds_bucket{le=\"0.000002048\"} 3",
            "commensal_blame_wakeup_delay_seconds_bucket{le=\"+Inf\"} 4",
            "commensal_blame_wakeup_delay_seconds_count 4",
            "commensal_blame_eviction_delay_seconds_bucket{le=\"0.000002048\"} 3",
            "commensal_blame_eviction_delay_seconds_count 4",
            "commensal_blame_sibling_stayed_total 2",
            "commensal_blame_sibling_intrusions_total 5",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        // Every series belongs to a declared family.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let announced = |name: &str| text.contains(&format!("# TYPE {name} "));
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(announced(name) || base.is_some_and(announced), "{line}");
        }
    }
}
