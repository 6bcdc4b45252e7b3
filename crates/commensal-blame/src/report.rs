//! The probe's measurements, prepared for people and for programs.
//!
//! A target is a cgroup or process whose waits for a CPU the probe measured. A culprit is a cgroup whose tasks held the
//! CPU during these waits. The peers of a waiting thread are the online targets' other threads.

mod causes;
mod picture;
mod text;

pub use causes::{Cause, besides};
pub use picture::escape;

use crate::Histogram;
use crate::commands::is_generator;
use crate::figures::{ByKind, Command, Counters, Culprit, Figures, Kind};
use crate::verdict::{Bounds, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;

/// Name of the row for the peers if there is a single target.
const OWN_PEERS: &str = "its own peers";
/// Culprits that the probe counted by kind only.
const UNNAMED: &str = "tasks that could not be named";
/// Kind of the row of this program's load generator.
const GENERATOR: &str = "load generator";
/// Number of culprits that get a row of their own; the time of the others is summed by kind.
pub const NAMED: usize = 10;
/// Number of commands of a culprit that get a row of their own; the time of the others is summed.
pub const COMMANDS: usize = 8;
/// Minimum share of a culprit in the total wait from which the report splits its time by command.
pub const BROKEN_DOWN: f64 = 0.1;

/// Waits and their causes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Names of the targets.
    pub subjects: Vec<String>,
    /// Names of the offline targets, whose share of the waits has a budget.
    pub against: Vec<String>,
    /// Length of the measurement (s).
    pub seconds: f64,
    /// CPU time of the targets (s).
    pub run_s: f64,
    /// Number of waits that have ended.
    pub waits: u64,
    /// Time that the targets' threads waited for a CPU (ms), summed over the threads.
    pub wait_ms: f64,
    /// Wait per second of the targets' CPU time (ms); absent without CPU time.
    pub wait_ms_per_cpu_s: Option<f64>,
    /// Wait caused by other groups, the kernel and interrupts, per second of the targets' CPU time (ms).
    pub by_others_ms_per_cpu_s: Option<f64>,
    /// What kept the targets from a CPU, and what to do about it, with the largest first. Empty without
    /// [`Report::explain`].
    pub causes: Vec<Cause>,
    /// Tasks and other activities that held the CPU during the waits, with the largest wait first. This program's own load
    /// generator comes last: it is part of the measurement, and in no way a cause that the service has in use.
    pub culprits: Vec<Row>,
    /// Delay from wake-up to running.
    pub wake: Delay,
    /// Delay from a wake-up on a CPU where offline work runs until the offline work has left the CPU.
    pub preemption: Delay,
    /// Time in which offline work ran on an SMT sibling of a target's thread (ms).
    pub overlap_ms: f64,
    /// Delay from the start of a target's thread on a core where offline work runs on an SMT sibling until the offline
    /// work left the sibling.
    pub eviction: Delay,
    /// Number of times that offline work on an SMT sibling was still there when the target's thread left its CPU.
    pub stayed: u64,
    /// Number of times that offline work started on an SMT sibling of a running target's thread.
    pub intrusions: u64,
    /// Wait behind other tasks while offline work had another CPU (ms); an upper bound.
    pub displaced_ms: f64,
    /// Waits by target.
    pub by_subject: Vec<SubjectRow>,
    /// Self-checks of the probe: they show whether the measurements are reliable.
    pub evidence: Evidence,
    /// Verdict about the offline targets in `against`, if there are any.
    pub verdict: Option<VerdictText>,
}

/// One culprit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of a cgroup, or a description.
    pub name: String,
    /// Kind of the culprit: `other`, `real-time`, `peers`, `offline`, `kernel`, `nobody` (no task held the CPU),
    /// `interrupts`, or `load generator` (this program's own).
    pub kind: &'static str,
    /// Wait while the culprit held the CPU (ms).
    pub ms: f64,
    /// Wait while the culprit held the CPU, per second of the targets' CPU time (ms).
    pub ms_per_cpu_s: Option<f64>,
    /// Share of the total wait, from 0 to 1.
    pub share: f64,
    /// The culprit's wait by command, largest first. The rows add up to the culprit's wait. Empty if the culprit is
    /// online or offline, has less than a tenth of the total wait, or has a single command.
    pub commands: Vec<CommandRow>,
}

/// Processes of a culprit with the same name and user.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommandRow {
    /// Name of the processes; absent in the row that sums up all commands without a row of their own.
    pub command: Option<String>,
    /// Name of the processes' user, or the UID if the user has no name.
    pub user: Option<String>,
    /// UID of the processes' user.
    pub uid: Option<u32>,
    /// How long the targets' threads waited while one of the processes held the CPU (ms).
    pub ms: f64,
    /// The same per second of the targets' CPU time (ms).
    pub ms_per_cpu_s: Option<f64>,
    /// Share of the total wait, from 0 to 1.
    pub share: f64,
}

impl CommandRow {
    fn new(command: Option<(String, u32)>, labels: &Labels, figures: Row) -> CommandRow {
        let (command, uid) = command.unzip();
        let Row { ms, ms_per_cpu_s, share, .. } = figures;
        CommandRow { command, user: uid.map(|uid| labels.user(uid)), uid, ms, ms_per_cpu_s, share }
    }
}

/// Waits of one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubjectRow {
    /// Name of the target.
    pub name: String,
    /// CPU time (s).
    pub run_s: f64,
    /// Number of waits that have ended.
    pub waits: u64,
    /// Time that the target's threads waited for a CPU (ms).
    pub wait_ms: f64,
    /// Tasks and other activities that held the CPU during the waits, with the largest wait first.
    pub culprits: Vec<Row>,
}

/// Number, percentiles and maximum of a set of delays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delay {
    /// Number of delays.
    pub count: u64,
    /// Median (us).
    pub p50_us: Option<f64>,
    /// 90th percentile (us).
    pub p90_us: Option<f64>,
    /// 99th percentile (us).
    pub p99_us: Option<f64>,
    /// The longest delay (us).
    pub max_us: Option<f64>,
}

impl Delay {
    fn of(histogram: &Histogram) -> Delay {
        let us = |share| histogram.quantile(share).map(|ns| ns / 1e3);
        Delay {
            count: histogram.count(),
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            max_us: us(1.0),
        }
    }
}

/// Self-checks of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evidence {
    /// Number of context switches on the machine.
    pub switches: u64,
    /// Number of context switches that the kernel did not report to the probe.
    pub missed: u64,
    /// Number of relevant context switches: those on CPUs where a target's thread was queued.
    pub relevant: u64,
    /// Number of relevant context switches that the kernel did not report to the probe.
    pub relevant_missed: u64,
    /// Part of the waits during which a task that the kernel did not report may have held the CPU (ms).
    pub hidden_ms: f64,
    /// Number of waits, runs and sleeps whose end the kernel did not report to the probe.
    pub lost: u64,
    /// Duration of these (ms): what the threads did meanwhile is taken from the kernel's own account of them.
    pub lost_ms: f64,
    /// Number of runs of the probe's programs that the kernel skipped.
    pub skipped: u64,
    /// Number of events of threads that were not counted, because the kernel gave the probe no memory for the thread.
    pub no_storage: u64,
    /// Wait that is attributed to no kind (ms).
    pub unexplained_ms: f64,
    /// Wait whose culprit did not fit into the map of culprits (ms).
    pub unnamed_ms: f64,
    /// Comparison with the kernel's measurement; absent without `verify`.
    pub kernel: Option<Agreement>,
}

/// Comparison of the probe with `sched_info.run_delay`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Agreement {
    /// Number of waits that the kernel counted.
    pub waits: u64,
    /// Sum of the waits in `waits` as measured by the probe (ms).
    pub ours_ms: f64,
    /// Sum of the waits in `waits` as measured by the kernel (ms).
    pub kernel_ms: f64,
    /// Number of waits that the kernel counted as 0.
    pub kernel_zero: u64,
    /// Sum of the waits that the kernel counted as 0, as measured by the probe (ms).
    pub kernel_zero_ours_ms: f64,
}

impl Agreement {
    fn of(counters: &Counters) -> Agreement {
        Agreement {
            waits: counters.checked,
            ours_ms: counters.checked_ns as f64 / MS,
            kernel_ms: counters.kernel_ns as f64 / MS,
            kernel_zero: counters.kernel_zero,
            kernel_zero_ours_ms: counters.kernel_zero_ns as f64 / MS,
        }
    }
}

/// A verdict with its reasons, as readable text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerdictText {
    /// `within budget`, `over budget` or `unknown`.
    pub result: &'static str,
    /// Reasons for the verdict.
    pub because: Vec<String>,
}

/// Names that a report shows.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// Names of the targets, in the order of the scope.
    pub subjects: Vec<String>,
    /// Names of the offline targets, whose share of the waits has a budget.
    pub against: Vec<String>,
    /// Names of users, by UID.
    pub users: BTreeMap<u32, String>,
}

impl Labels {
    /// The name of a user, or the UID if it has no name.
    #[must_use]
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

const MS: f64 = 1e6;

impl Report {
    /// Prepares a report. `name` maps a cgroup ID to the cgroup's name.
    #[must_use]
    pub fn new(figures: &Figures, labels: &Labels, bounds: Bounds, name: &dyn Fn(u64) -> String) -> Report {
        let counters = &figures.counters;
        let wait = figures.wait.sum();
        let row = |run_ns: u64, wait: u64, (name, kind, ns): (String, Kind, u64)| Row {
            name,
            kind: kind.name(),
            ms: ns as f64 / MS,
            ms_per_cpu_s: (run_ns > 0).then(|| ns as f64 / run_ns as f64 * 1e3),
            share: if wait == 0 { 0.0 } else { ns as f64 / wait as f64 },
            commands: Vec::new(),
        };
        let names = Names { several: figures.subjects.len() > 1, cgroup: name };
        let mut others = figures.commands.clone();
        others.retain(|command, _| !is_generator(&command.name));
        let culprits = |subject: Option<usize>, run_ns: u64, wait: &ByKind| -> Vec<Row> {
            let wanted = |culprit: &Culprit| subject.is_none_or(|index| culprit.subject as usize == index);
            let all: Vec<(Culprit, u64)> = figures
                .culprits
                .iter()
                .filter(|(culprit, _)| wanted(culprit))
                .map(|(culprit, ns)| (*culprit, *ns))
                .collect();
            let (mut rows, generator) = apart(rows(wait, &all, &names), figures, subject, names.cgroup);
            rows.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
            let of_cgroup = |(name, kind, ns): (String, Kind, u64)| {
                let mut culprit = row(run_ns, wait.sum(), (name, kind, ns));
                if [Kind::Other, Kind::RealTime].contains(&kind) && culprit.share >= BROKEN_DOWN {
                    let parts = commands(&others, subject, &culprit.name, ns, names.cgroup);
                    let part = |(command, ns)| {
                        CommandRow::new(command, labels, row(run_ns, wait.sum(), (String::new(), kind, ns)))
                    };
                    culprit.commands = parts.into_iter().map(part).collect();
                }
                culprit
            };
            let generated = generator.map(|(name, ns)| {
                let name = format!("the load generator ({name})");
                Row { kind: GENERATOR, ..row(run_ns, wait.sum(), (name, Kind::Other, ns)) }
            });
            rows.into_iter().map(of_cgroup).chain(generated).collect()
        };
        let by_subject = figures.subjects.iter().enumerate().map(|(index, subject)| SubjectRow {
            name: labels.subjects.get(index).cloned().unwrap_or_default(),
            run_s: subject.run_ns as f64 / 1e9,
            waits: subject.waits,
            wait_ms: subject.wait.sum() as f64 / MS,
            culprits: culprits(Some(index), subject.run_ns, &subject.wait),
        });
        Report {
            subjects: labels.subjects.clone(),
            against: labels.against.clone(),
            seconds: figures.time_ns as f64 / 1e9,
            run_s: counters.run_ns as f64 / 1e9,
            waits: counters.waits,
            wait_ms: wait as f64 / MS,
            wait_ms_per_cpu_s: figures.per_cpu_second(wait),
            by_others_ms_per_cpu_s: figures.per_cpu_second(figures.wait.by_others()),
            causes: Vec::new(),
            culprits: culprits(None, counters.run_ns, &figures.wait),
            wake: Delay::of(&figures.wake_delay),
            preemption: Delay::of(&figures.preempt_delay),
            overlap_ms: counters.overlap_ns as f64 / MS,
            eviction: Delay::of(&figures.evict_delay),
            stayed: counters.stayed,
            intrusions: counters.intrusions,
            displaced_ms: counters.displaced_ns as f64 / MS,
            by_subject: by_subject.collect(),
            evidence: Evidence::of(figures),
            verdict: (!labels.against.is_empty()).then(|| VerdictText::of(&Verdict::of(figures, bounds))),
        }
    }
}

impl Evidence {
    fn of(figures: &Figures) -> Evidence {
        let counters = &figures.counters;
        Evidence {
            switches: counters.switches,
            missed: counters.missed,
            relevant: counters.relevant,
            relevant_missed: counters.relevant_missed,
            hidden_ms: counters.hidden_ns as f64 / MS,
            lost: counters.lost,
            lost_ms: counters.lost_ns as f64 / MS,
            skipped: figures.skipped,
            no_storage: counters.no_storage,
            unexplained_ms: counters.unexplained_ns as f64 / MS,
            unnamed_ms: counters.full_ns as f64 / MS,
            kernel: (counters.checked + counters.kernel_zero > 0).then(|| Agreement::of(counters)),
        }
    }
}

impl VerdictText {
    fn of(verdict: &Verdict) -> VerdictText {
        let because = match verdict {
            Verdict::OverBudget(because) => because.clone(),
            Verdict::WithinBudget(because) | Verdict::Unknown(because) => vec![because.clone()],
        };
        VerdictText { result: verdict.words(), because }
    }
}

/// Returns one row for each of the largest culprits, one for the other culprits of each kind, and one for each activity
/// that is not a task. The rows add up to the wait.
fn rows(wait: &ByKind, culprits: &[(Culprit, u64)], names: &Names<'_>) -> Vec<(String, Kind, u64)> {
    let mut left = *wait;
    let mut named: BTreeMap<(String, Kind), u64> = BTreeMap::new();
    for (culprit, ns) in culprits {
        let Some(id) = culprit.cgroup else { continue };
        if culprit.kind == Kind::Online && !names.several {
            continue;
        }
        let of_kind = &mut left.0[culprit.kind as usize];
        let ns = (*ns).min(*of_kind);
        *of_kind -= ns;
        *named.entry(((names.cgroup)(id), culprit.kind)).or_default() += ns;
    }
    let mut named: Vec<((String, Kind), u64)> = named.into_iter().collect();
    named.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest = named.split_off(named.len().min(NAMED));
    let mut rows: Vec<(String, Kind, u64)> =
        named.into_iter().map(|((name, kind), ns)| (name, kind, ns)).collect();
    for kind in Kind::OF_CGROUPS {
        let of_kind = rest.iter().filter(|((_, of), _)| *of == kind);
        rows.push((
            format!("{} other cgroups", of_kind.clone().count()),
            kind,
            of_kind.map(|(_, ns)| ns).sum(),
        ));
    }
    // Rows for time without a named cgroup: it did not fit into the probe's maps, or the report names no tasks of that
    // kind.
    for (kind, what) in [
        (Kind::Other, UNNAMED),
        (Kind::Offline, UNNAMED),
        (Kind::RealTime, UNNAMED),
        (Kind::Online, if names.several { UNNAMED } else { OWN_PEERS }),
        (Kind::Kernel, "kernel threads"),
        (Kind::Idle, "nobody (idle wake-up, throttling)"),
        (Kind::Interrupt, "interrupts"),
    ] {
        rows.push((what.to_owned(), kind, left.of(kind)));
    }
    rows.retain(|(_, _, ns)| *ns > 0);
    rows.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    rows
}

/// Name and time (ns) of a load generator.
type Generator = (String, u64);

/// Takes the time of this program's load generator out of the rows of its cgroups. The rows and the generator add up to what
/// the rows were.
fn apart(
    mut rows: Vec<(String, Kind, u64)>,
    figures: &Figures,
    subject: Option<usize>,
    called: &dyn Fn(u64) -> String,
) -> (Vec<(String, Kind, u64)>, Option<Generator>) {
    let mut generator: Option<Generator> = None;
    let wanted = |command: &Command| subject.is_none_or(|index| command.subject as usize == index);
    let of_generators =
        figures.commands.iter().filter(|(command, _)| wanted(command) && is_generator(&command.name));
    for (command, ns) in of_generators {
        let place = called(command.cgroup);
        let mut ns = *ns;
        // The thread that generates the load is real-time where that is permitted.
        for of in [Kind::RealTime, Kind::Other] {
            let row = rows.iter_mut().find(|(name, kind, _)| *kind == of && *name == place);
            let Some((_, _, left)) = row else { continue };
            let part = ns.min(*left);
            *left -= part;
            ns -= part;
            generator.get_or_insert_with(|| (command.name.clone(), 0)).1 += part;
        }
    }
    rows.retain(|(_, _, ns)| *ns > 0);
    (rows, generator.filter(|(_, ns)| *ns > 0))
}

/// Time (ns) of a command and its user; `None` stands for all commands without a row of their own.
pub(crate) type Part = (Option<(String, u32)>, u64);

/// Returns the time of the largest commands of the culprit `name`, and the sum of its other commands. The times add up
/// to `ns`. Empty if the culprit has fewer than two commands.
pub(crate) fn commands(
    all: &BTreeMap<Command, u64>,
    subject: Option<usize>,
    name: &str,
    ns: u64,
    called: &dyn Fn(u64) -> String,
) -> Vec<Part> {
    let mut sums: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    let mut known: BTreeMap<u64, bool> = BTreeMap::new();
    for (command, ns) in all {
        let wanted = subject.is_none_or(|index| command.subject as usize == index);
        let here = *known.entry(command.cgroup).or_insert_with(|| called(command.cgroup) == name);
        if wanted && here {
            *sums.entry((&command.name, command.uid)).or_default() += ns;
        }
    }
    let mut sums: Vec<((&str, u32), u64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    if sums.len() < 2 {
        return Vec::new();
    }
    let mut left = ns;
    let mut parts: Vec<Part> = Vec::new();
    for ((name, uid), ns) in sums.into_iter().take(COMMANDS) {
        let ns = ns.min(left);
        left -= ns;
        parts.push((Some((name.to_owned(), uid)), ns));
    }
    parts.push((None, left));
    parts.retain(|(_, ns)| *ns > 0);
    parts
}

/// Names of culprits.
struct Names<'a> {
    /// Whether there are several targets. If so, peers get a row per target.
    several: bool,
    cgroup: &'a dyn Fn(u64) -> String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::TargetStats;

    #[test]
    fn the_rest_is_summed_and_nothing_is_lost() {
        let mut figures =
            Figures { wait: ByKind([66_000_000, 5_000_000, 0, 1_000_000, 0, 0, 0]), ..Figures::default() };
        figures.counters.run_ns = 2_000_000_000;
        for id in 1..=11 {
            let culprit = Culprit { subject: 0, kind: Kind::Other, cgroup: Some(id) };
            figures.culprits.insert(culprit, id * 1_000_000);
        }
        figures.culprits.insert(Culprit { subject: 0, kind: Kind::Online, cgroup: Some(50) }, 5_000_000);
        figures.subjects.push(TargetStats { run_ns: 2_000_000_000, waits: 3, wait: figures.wait });
        let report = Report::new(&figures, &Labels::default(), Bounds::default(), &|id| format!("/g{id}"));
        let total: f64 = report.culprits.iter().map(|row| row.ms).sum();
        assert!((total - report.wait_ms).abs() < 1e-6, "{report:?}");
        assert_eq!(report.culprits[0].name, "/g11");
        assert!(report.culprits.iter().any(|row| row.name == "1 other cgroups" && row.ms == 1.0));
        assert_eq!((report.wait_ms_per_cpu_s, report.by_others_ms_per_cpu_s), (Some(36.0), Some(33.5)));
        assert_eq!(report.by_subject[0].culprits, report.culprits, "there is only one");
        assert!(report.verdict.is_none());
        let text = report.text();
        assert!(text.contains("wait per CPU-second 36.0 ms, of which caused by others 33.5 ms"), "{text}");
        assert!(!text.contains("SMT sibling"), "nobody was there: {text}");
        assert!(!report.html().contains("off an SMT sibling"));
    }

    /// A report escapes the invisible characters in the names of a culprit, a target and an offline target.
    // promise 60
    #[test]
    fn no_name_is_shown_as_it_is() {
        for (odd, shown) in [
            ("/u\u{1b}[2J\u{9b}\r", "/u\\u{1b}[2J\\u{9b}\\r"),
            ("/\u{10ffff}u\t", "/\\xffu\\t"),
            ("/\u{202e}u\u{feff}\u{200b}", "/\\u{202e}u\\u{feff}\\u{200b}"),
            ("/u (container a\nb)", "/u (container a\\nb)"),
        ] {
            let mut figures = Figures::default();
            let culprit = Culprit { subject: 0, kind: Kind::Offline, cgroup: Some(7) };
            let wait = ByKind([20_000_000, 0, 5_000_000, 0, 0, 0, 0]);
            figures.subjects.push(TargetStats { run_ns: 1_000_000, waits: 1, wait });
            figures.culprits.insert(culprit, 5_000_000);
            // The user who starts a command chooses its name.
            let nobodys = Culprit { subject: 0, kind: Kind::Other, cgroup: Some(8) };
            figures.culprits.insert(nobodys, 20_000_000);
            for (name, ns) in [(odd, 15_000_000), ("cc1", 5_000_000)] {
                let command = Command { subject: 0, cgroup: 8, name: name.to_owned(), uid: 7 };
                figures.commands.insert(command, ns);
            }
            (figures.counters.run_ns, figures.wait) = (1_000_000, wait);
            let labels = Labels {
                subjects: vec![odd.to_owned()],
                against: vec!["etl".to_owned()],
                users: [(7, odd.to_owned())].into(),
            };
            let report = Report::new(&figures, &labels, Bounds::default(), &|_| odd.to_owned());
            let metrics = crate::exposition::prometheus(&figures, &labels, &|_| odd.to_owned());
            let json = commensal_core::text::json_pretty(&report).unwrap();
            let forms = [report.text(), report.line(), report.svg(), report.html(), metrics, json];
            for form in forms {
                let raw = |one| commensal_core::text::is_hidden(one) && one != '\n';
                assert!(!form.contains(raw), "{odd:?}: {form:?}");
            }
            assert!(report.text().contains(shown) && report.line().contains(shown), "{}", report.text());
        }
    }

    /// Row A10: 96 % of a wait was "a session's autogroup", without the names of its commands.
    // promise 31
    #[test]
    fn a_large_cgroup_is_broken_down_by_command_and_user() {
        let mut figures = Figures { wait: ByKind([1_000_000_000, 0, 0, 0, 0, 0, 0]), ..Figures::default() };
        figures.counters.run_ns = 1_000_000_000;
        figures.subjects.push(TargetStats { run_ns: 1_000_000_000, waits: 3, wait: figures.wait });
        let mut held = |cgroup, ns: u64, commands: &[(&str, u32, u64)]| {
            figures.culprits.insert(Culprit { subject: 0, kind: Kind::Other, cgroup: Some(cgroup) }, ns);
            for (name, uid, ns) in commands {
                let command = Command { subject: 0, cgroup, name: (*name).to_owned(), uid: *uid };
                figures.commands.insert(command, *ns);
            }
        };
        let many: Vec<(String, u32, u64)> =
            (0..12).map(|n| (format!("c{n:02}"), 1_000, 10_000_000 + n)).collect();
        let mut all: Vec<(&str, u32, u64)> =
            many.iter().map(|(name, uid, ns)| (name.as_str(), *uid, *ns)).collect();
        all.extend([("cc1", 1_000, 400_000_000), ("cc1", 1_001, 50_000_000)]);
        held(0, 700_000_000, &all);
        held(5, 50_000_000, &[("a", 0, 10), ("b", 0, 10)]);
        held(6, 250_000_000, &[("alone", 0, 240_000_000)]);
        let users = [(1_000, "ann".to_owned())].into();
        let labels = Labels { subjects: vec!["web".to_owned()], users, ..Labels::default() };
        let report = Report::new(&figures, &labels, Bounds::default(), &|id| format!("/g{id}"));
        let of = |name: &str| report.culprits.iter().find(|row| row.name == name).unwrap();
        let session = of("/g0");
        let first = &session.commands[0];
        assert_eq!(
            (first.command.as_deref(), first.user.as_deref(), first.uid),
            (Some("cc1"), Some("ann"), Some(1_000))
        );
        assert_eq!((session.commands[1].user.as_deref(), session.commands[1].ms), (Some("1001"), 50.0));
        assert_eq!(session.commands.len(), COMMANDS + 1, "and the rest");
        assert_eq!(session.commands.last().unwrap().command, None);
        for row in report.culprits.iter().filter(|row| !row.commands.is_empty()) {
            let sum: f64 = row.commands.iter().map(|part| part.ms).sum();
            assert!((sum - row.ms).abs() < 1e-6, "{row:?}");
        }
        assert!(of("/g5").commands.is_empty(), "too small");
        assert!(of("/g6").commands.is_empty(), "a single one");
        assert_eq!(report.by_subject[0].culprits, report.culprits);
        let text = report.text();
        assert!(text.contains("\n  cc1 of ann ") && text.contains("\n  other commands "), "{text}");
        let html = report.html();
        assert!(html.contains("<tr class=\"part\"><td>cc1 of ann<td>400.00<td>40.0 %</tr>"), "{html}");
        assert!(report.svg().contains("<title>cc1 of ann: 400.0 ms (40.0 %)</title>"), "{}", report.svg());
        let metrics = crate::exposition::prometheus(&figures, &labels, &|id| format!("/g{id}"));
        let part = "commensal_blame_command_wait_seconds_total{service=\"web\",culprit=\"/g0\",command=\"cc1\",user=\"ann\"} 0.4";
        assert!(metrics.lines().any(|line| line == part), "{metrics}");
        let series = metrics.lines().filter(|line| line.starts_with("commensal_blame_command_wait")).count();
        assert_eq!(series, COMMANDS + 1, "{metrics}");
    }

    /// The load generator stands last, as what it is, wherever it runs, and the rows still add up.
    // promise 31
    #[test]
    fn the_load_generator_is_no_culprit_among_others() {
        let check = |real_time: u64, of_generator: u64, of_others: u64, rows: &[(&str, f64)]| {
            let other = of_generator + of_others - real_time;
            let wait = ByKind([other, 0, 3, 0, 0, 0, real_time].map(|ms| ms * 1_000_000));
            let mut figures = Figures { wait, ..Figures::default() };
            figures.counters.run_ns = 1_000_000_000;
            figures.subjects.push(TargetStats { run_ns: 1_000_000_000, waits: 3, wait });
            let mut held = |kind, cgroup, ms: u64, commands: &[(&str, u64)]| {
                let culprit = Culprit { subject: 0, kind, cgroup: Some(cgroup) };
                figures.culprits.insert(culprit, ms * 1_000_000);
                for (name, ms) in commands {
                    let command = Command { subject: 0, cgroup, name: (*name).to_owned(), uid: 0 };
                    figures.commands.insert(command, ms * 1_000_000);
                }
            };
            let commands = [("commensal lab load", of_generator), ("gzip", of_others)];
            held(Kind::Other, 1, other, &commands);
            held(Kind::RealTime, 1, real_time, &[]);
            held(Kind::Offline, 2, 3, &[]);
            let labels = Labels { subjects: vec!["web".to_owned()], ..Labels::default() };
            let report = Report::new(&figures, &labels, Bounds::default(), &|id| format!("/g{id}"));
            let got: Vec<(&str, f64)> =
                report.culprits.iter().map(|row| (row.name.as_str(), row.ms)).collect();
            assert_eq!(got, rows);
            let line = report.line();
            assert!(!line.contains("generator") || rows.len() == 1, "{line}");
            assert_eq!(report.by_subject[0].culprits, report.culprits);
            report
        };
        let generator = "the load generator (commensal lab load)";
        // None of its time was spent as a real-time task, a part, or all.
        for real_time in [0, 40, 89] {
            let report = check(real_time, 89, 8, &[("/g1", 8.0), ("/g2", 3.0), (generator, 89.0)]);
            assert!(report.culprits[0].commands.is_empty(), "{:?}", report.culprits);
            assert_eq!(report.culprits[2].kind, "load generator");
            check(real_time, 89, 0, &[("/g2", 3.0), (generator, 89.0)]);
        }
        check(0, 0, 8, &[("/g1", 8.0), ("/g2", 3.0)]);
    }

    /// Returns a report in which offline work left an SMT sibling within 1 ms in 99 cases, and after 36 ms in one case.
    fn evicted() -> Report {
        let mut figures = Figures::default();
        let mut counts = vec![0; crate::histogram::SLOTS];
        (counts[(19 - 2) * 8], counts[(25 - 2) * 8]) = (99, 1);
        figures.evict_delay = Histogram::new(counts);
        let counters = &mut figures.counters;
        (counters.run_ns, counters.overlap_ns) = (2_000_000_000, 150_000_000);
        (counters.evictions, counters.stayed, counters.intrusions) = (100, 7, 3);
        let labels =
            Labels { subjects: vec!["web".to_owned()], against: vec!["etl".to_owned()], ..Labels::default() };
        Report::new(&figures, &labels, Bounds::default(), &|id| format!("/g{id}"))
    }

    #[test]
    fn who_leaves_a_sibling_is_told_in_every_form() {
        let report = evicted();
        let text = report.text();
        for line in [
            "offline on an SMT sibling 150.0 ms (7.5 % of its CPU time)",
            "  leaving it              P50 557 us  P90 557 us  P99 557 us  (100 times), at most 35.7 ms",
            "  it stayed 7 times until the service had left its CPU, and started next to the running service 3 times",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        let eviction = report.eviction;
        assert_eq!((eviction.count, report.stayed, report.intrusions), (100, 7, 3));
        assert!(eviction.p99_us.unwrap() < 1_000.0 && eviction.max_us.unwrap() > 30_000.0, "{eviction:?}");
        let html = report.html();
        assert!(html.contains("<tr><td>offline work off an SMT sibling<td>100<td>557 us<"), "{html}");
        // If offline work never left a sibling, the report has no delay, not a delay of 0.
        let nothing = Delay::of(&Histogram::default());
        assert_eq!((nothing.count, nothing.p50_us, nothing.max_us), (0, None, None));
    }

    #[test]
    fn a_verdict_is_told_in_every_form() {
        let labels = Labels { against: vec!["etl".to_owned()], ..Labels::default() };
        let mut figures = Figures::default();
        figures.counters.run_ns = 1_000_000_000;
        figures.wait.0[Kind::Offline as usize] = 60_000_000;
        let mut check = |bounds: Bounds, delays: u64, [result, class]: [&str; 2]| {
            let mut counts = vec![0; crate::histogram::SLOTS];
            counts[88] = delays;
            figures.preempt_delay = Histogram::new(counts);
            let report = Report::new(&figures, &labels, bounds, &|_| String::new());
            assert!(report.text().contains(&format!("etl: {result}\n")), "{}", report.text());
            assert!(
                report.html().contains(&format!("<p class=\"{class}\">etl: <b>{result}</b>")),
                "{}",
                report.html()
            );
        };
        let lax = Bounds { blame_ms: 100.0, ..Bounds::default() };
        check(Bounds::default(), 100, ["over budget", "over-budget"]);
        check(lax, 100, ["within budget", "within-budget"]);
        check(lax, 1, ["unknown", "unknown"]);
    }

    #[test]
    fn what_came_since_leaves_out_who_left_before() {
        let mut earlier = Figures::default();
        let mut counts = vec![0; crate::histogram::SLOTS];
        counts[100] = 4;
        earlier.evict_delay = Histogram::new(counts.clone());
        (earlier.counters.evictions, earlier.counters.stayed, earlier.counters.intrusions) = (4, 2, 1);
        let mut now = earlier.clone();
        counts[100] = 9;
        now.evict_delay = Histogram::new(counts);
        (now.counters.evictions, now.counters.stayed, now.counters.intrusions) = (9, 2, 5);
        let came = now.since(&earlier);
        let counters = came.counters;
        assert_eq!((counters.evictions, counters.stayed, counters.intrusions), (5, 0, 4));
        assert_eq!(came.evict_delay.count(), counters.evictions);
    }
}
