//! Figures as a person and a program want them.

use crate::Histogram;
use crate::figures::{Figures, Kind};
use crate::verdict::{Bounds, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Culprits that are named; the rest are summed.
pub const NAMED: usize = 10;

/// Who waited and because of whom.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Names of the subjects.
    pub subjects: Vec<String>,
    /// Names of those whose guilt is judged.
    pub against: Vec<String>,
    /// How long it was looked, s.
    pub seconds: f64,
    /// Time that the subjects had a CPU, s.
    pub run_s: f64,
    /// Waits that ended.
    pub waits: u64,
    /// Time that they waited for a CPU, ms: summed over threads.
    pub wait_ms: f64,
    /// The same per second that they had one, ms; absent when they had none.
    pub wait_ms_per_cpu_s: Option<f64>,
    /// Of that, caused by others: tasks of other groups, the kernel, interrupts.
    pub by_others_ms_per_cpu_s: Option<f64>,
    /// Who held the CPU meanwhile: largest first.
    pub culprits: Vec<Row>,
    /// Wake-up to running.
    pub wake: Delay,
    /// Wake-up on a CPU that offline work has, to that work gone.
    pub preemption: Delay,
    /// Time with offline work on the SMT sibling, ms.
    pub overlap_ms: f64,
    /// Wait behind others while offline work had another CPU, ms (an upper bound).
    pub displaced_ms: f64,
    /// By subject, when there are several.
    pub by_subject: Vec<SubjectRow>,
    /// Whether the figures can be trusted.
    pub evidence: Evidence,
    /// About `against`, if anybody is.
    pub verdict: Option<Judged>,
}

/// One culprit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// A cgroup, or a description.
    pub name: String,
    /// other, peers, offline, kernel, nobody or interrupts.
    pub kind: &'static str,
    /// Wait while it held the CPU, ms.
    pub ms: f64,
    /// The same per second that the subjects had a CPU, ms.
    pub ms_per_cpu_s: Option<f64>,
    /// Of the whole wait.
    pub share: f64,
}

/// One subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubjectRow {
    /// Its name.
    pub name: String,
    /// Time on a CPU, s.
    pub run_s: f64,
    /// Wait by what held the CPU, ms.
    pub wait_ms: BTreeMap<&'static str, f64>,
}

/// A distribution of delays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delay {
    /// How many.
    pub count: u64,
    /// Median, us.
    pub p50_us: Option<f64>,
    /// 90th percentile, us.
    pub p90_us: Option<f64>,
    /// 99th percentile, us.
    pub p99_us: Option<f64>,
}

impl Delay {
    fn of(histogram: &Histogram) -> Delay {
        let us = |share| histogram.quantile(share).map(|ns| ns / 1e3);
        Delay { count: histogram.count(), p50_us: us(0.5), p90_us: us(0.9), p99_us: us(0.99) }
    }
}

/// Self-checks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evidence {
    /// Context switches of the machine.
    pub switches: u64,
    /// Of those, hidden from the judge.
    pub missed: u64,
    /// Context switches on CPUs where a subject was queued.
    pub relevant: u64,
    /// Of those, hidden from the judge.
    pub relevant_missed: u64,
    /// Waits that were lost with them.
    pub lost: u64,
    /// Wait that nothing accounts for, ms.
    pub unexplained_ms: f64,
    /// Wait whose culprit found no place, ms.
    pub unnamed_ms: f64,
    /// Waits compared with the kernel's own figure, ours and its, ms; absent without comparison.
    pub kernel: Option<Agreement>,
}

/// This judge against `sched_info.run_delay`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Agreement {
    /// Waits that the kernel counted.
    pub waits: u64,
    /// Their sum here, ms.
    pub ours_ms: f64,
    /// Their sum in the kernel, ms.
    pub kernel_ms: f64,
    /// Waits that the kernel counted as 0.
    pub kernel_zero: u64,
    /// Their sum here, ms.
    pub kernel_zero_ours_ms: f64,
}

/// A verdict in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// innocent, guilty or unknown.
    pub word: &'static str,
    /// Why.
    pub because: Vec<String>,
}

/// Names for a report.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// Of the subjects, in their order.
    pub subjects: Vec<String>,
    /// Of those whose guilt is judged.
    pub against: Vec<String>,
}

const MS: f64 = 1e6;

impl Report {
    /// Puts figures into words. `name` says what a cgroup is called.
    #[must_use]
    pub fn new(figures: &Figures, labels: &Labels, bounds: Bounds, name: &dyn Fn(u64) -> String) -> Report {
        let counters = &figures.counters;
        let wait = figures.wait.sum();
        let row = |name: String, kind: Kind, ns: u64| Row {
            name,
            kind: kind.name(),
            ms: ns as f64 / MS,
            ms_per_cpu_s: figures.per_cpu_second(ns),
            share: if wait == 0 { 0.0 } else { ns as f64 / wait as f64 },
        };
        let by_subject = figures.subjects.iter().enumerate().map(|(index, subject)| SubjectRow {
            name: labels.subjects.get(index).cloned().unwrap_or_default(),
            run_s: subject.run_ns as f64 / 1e9,
            wait_ms: Kind::ALL.iter().map(|kind| (kind.name(), subject.wait.of(*kind) as f64 / MS)).collect(),
        });
        let several = figures.subjects.len() > 1;
        let agreement = Agreement {
            waits: counters.checked,
            ours_ms: counters.checked_ns as f64 / MS,
            kernel_ms: counters.kernel_ns as f64 / MS,
            kernel_zero: counters.kernel_zero,
            kernel_zero_ours_ms: counters.kernel_zero_ns as f64 / MS,
        };
        let verdict = (!labels.against.is_empty()).then(|| {
            let verdict = Verdict::of(figures, bounds);
            let because = match &verdict {
                Verdict::Innocent => Vec::new(),
                Verdict::Guilty(because) => because.clone(),
                Verdict::Unknown(because) => vec![because.clone()],
            };
            Judged { word: verdict.word(), because }
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
            culprits: rows(figures, name).into_iter().map(|(name, kind, ns)| row(name, kind, ns)).collect(),
            wake: Delay::of(&figures.wake_delay),
            preemption: Delay::of(&figures.preempt_delay),
            overlap_ms: counters.overlap_ns as f64 / MS,
            displaced_ms: counters.displaced_ns as f64 / MS,
            by_subject: if several { by_subject.collect() } else { Vec::new() },
            evidence: Evidence {
                switches: counters.switches,
                missed: counters.missed,
                relevant: counters.relevant,
                relevant_missed: counters.relevant_missed,
                lost: counters.lost,
                unexplained_ms: counters.unexplained_ns as f64 / MS,
                unnamed_ms: counters.full_ns as f64 / MS,
                kernel: (counters.checked + counters.kernel_zero > 0).then_some(agreement),
            },
            verdict,
        }
    }

    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{}: {:.2} s on a CPU and {} waiting for one in {:.1} s ({} waits)",
            self.subjects.join(", "),
            self.run_s,
            time(self.wait_ms),
            self.seconds,
            self.waits
        );
        let (Some(all), Some(others)) = (self.wait_ms_per_cpu_s, self.by_others_ms_per_cpu_s) else {
            let _ = writeln!(out, "it had no CPU time, so there is nothing to compare its waits with");
            return out;
        };
        let _ = writeln!(out, "wait per CPU-second {}, of which caused by others {}", ms(all), ms(others));
        let width = self.culprits.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(24);
        if !self.culprits.is_empty() {
            let _ = writeln!(out, "\n{:width$}  ms per CPU-s   share", "who held the CPU meanwhile");
            for row in &self.culprits {
                let value = row.ms_per_cpu_s.unwrap_or(0.0);
                let _ = writeln!(out, "{:width$}  {value:>12.2}  {:>5.1} %", row.name, row.share * 100.0);
            }
            out.push('\n');
        }
        let _ = writeln!(out, "wake-up to running        {}", self.wake.text());
        if !self.against.is_empty() {
            let _ = writeln!(out, "offline work off the CPU  {}", self.preemption.text());
        }
        if self.overlap_ms > 0.0 {
            let share = self.overlap_ms / 10.0 / self.run_s;
            let _ = writeln!(
                out,
                "offline on an SMT sibling {} ({share:.1} % of its CPU time)",
                time(self.overlap_ms)
            );
        }
        for subject in &self.by_subject {
            let wait: f64 = subject.wait_ms.values().sum();
            let _ =
                writeln!(out, "{}: {:.2} s on a CPU, {} waiting", subject.name, subject.run_s, time(wait));
        }
        if let Some(judged) = &self.verdict {
            let _ = writeln!(out, "{}: {}", self.against.join(", "), judged.word);
            for because in &judged.because {
                let _ = writeln!(out, "  {because}");
            }
        }
        self.notes(&mut out);
        out
    }

    fn notes(&self, out: &mut String) {
        let evidence = &self.evidence;
        if evidence.relevant_missed + evidence.lost > 0 {
            let share = evidence.relevant_missed as f64 / evidence.relevant.max(1) as f64 * 100.0;
            let _ = writeln!(
                out,
                "note: {} of {} context switches while they waited ({share:.3} %) were hidden from the judge; {} waits were lost",
                evidence.relevant_missed, evidence.relevant, evidence.lost
            );
        }
        if evidence.unnamed_ms > 0.0 {
            let _ = writeln!(
                out,
                "note: {} of wait found no place in the list of culprits",
                time(evidence.unnamed_ms)
            );
        }
        if let Some(kernel) = &evidence.kernel {
            let _ = writeln!(
                out,
                "note: the kernel counted {} waits as {:.3} ms, the judge as {:.3} ms; {} more, of {:.3} ms, the kernel counted as 0",
                kernel.waits,
                kernel.kernel_ms,
                kernel.ours_ms,
                kernel.kernel_zero,
                kernel.kernel_zero_ours_ms
            );
        }
    }

    /// One line for the time since the last one.
    #[must_use]
    pub fn line(&self) -> String {
        let top = self.culprits.first();
        let top = top.map(|row| format!(", most by {} ({})", row.name, time(row.ms))).unwrap_or_default();
        let others = self.by_others_ms_per_cpu_s.map_or_else(|| "-".to_owned(), ms);
        format!(
            "on a CPU {}, waiting {}, by others {others} per CPU-second{top}",
            time(self.run_s * 1e3),
            time(self.wait_ms)
        )
    }
}

impl Delay {
    fn text(&self) -> String {
        match (self.p50_us, self.p90_us, self.p99_us) {
            (Some(p50), Some(p90), Some(p99)) => {
                format!("P50 {}  P90 {}  P99 {}  ({} times)", us(p50), us(p90), us(p99), self.count)
            }
            _ => "never".to_owned(),
        }
    }
}

/// The largest culprits, the rest in one row, and what is no task.
fn rows(figures: &Figures, name: &dyn Fn(u64) -> String) -> Vec<(String, Kind, u64)> {
    let mut peers = 0;
    let mut unknown = 0;
    let mut named: BTreeMap<(String, Kind), u64> = BTreeMap::new();
    for (culprit, ns) in &figures.culprits {
        match (culprit.kind, culprit.cgroup) {
            (Kind::Online, _) => peers += ns,
            (_, None) => unknown += ns,
            (kind, Some(id)) => *named.entry((name(id), kind)).or_default() += ns,
        }
    }
    let mut named: Vec<((String, Kind), u64)> = named.into_iter().collect();
    named.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest: u64 = named.iter().skip(NAMED).map(|(_, ns)| ns).sum();
    let more = named.len().saturating_sub(NAMED);
    let mark = |name: String, kind: Kind| match kind {
        Kind::Offline => format!("{name} (offline)"),
        _ => name,
    };
    let mut rows: Vec<(String, Kind, u64)> =
        named.into_iter().take(NAMED).map(|((name, kind), ns)| (mark(name, kind), kind, ns)).collect();
    let mut add = |name: String, kind: Kind, ns: u64| {
        if ns > 0 {
            rows.push((name, kind, ns));
        }
    };
    add(format!("{more} other cgroups"), Kind::Other, rest);
    add("tasks that took turns too fast to name".to_owned(), Kind::Other, unknown + figures.counters.full_ns);
    add("its own peers".to_owned(), Kind::Online, peers);
    add("kernel threads".to_owned(), Kind::Kernel, figures.wait.of(Kind::Kernel));
    add("nobody (idle wake-up, throttling)".to_owned(), Kind::Idle, figures.wait.of(Kind::Idle));
    add("interrupts".to_owned(), Kind::Interrupt, figures.wait.of(Kind::Interrupt));
    rows.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    rows
}

fn ms(value: f64) -> String {
    if value < 9.95 { format!("{value:.2} ms") } else { format!("{value:.1} ms") }
}

fn us(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1} us"),
        ..10_000.0 => format!("{value:.0} us"),
        _ => format!("{:.1} ms", value / 1e3),
    }
}

fn time(value_ms: f64) -> String {
    match value_ms {
        ..1.0 => format!("{:.0} us", value_ms * 1e3),
        ..1_000.0 => format!("{value_ms:.1} ms"),
        _ => format!("{:.2} s", value_ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{ByKind, Culprit};

    #[test]
    fn the_rest_is_summed_and_nothing_is_lost() {
        let mut figures =
            Figures { wait: ByKind([66_000_000, 5_000_000, 0, 1_000_000, 0, 0]), ..Figures::default() };
        figures.counters.run_ns = 2_000_000_000;
        for id in 1..=11 {
            let culprit = Culprit { subject: 0, kind: Kind::Other, cgroup: Some(id) };
            figures.culprits.insert(culprit, id * 1_000_000);
        }
        figures.culprits.insert(Culprit { subject: 0, kind: Kind::Online, cgroup: Some(50) }, 5_000_000);
        let report = Report::new(&figures, &Labels::default(), Bounds::default(), &|id| format!("/g{id}"));
        let total: f64 = report.culprits.iter().map(|row| row.ms).sum();
        assert!((total - report.wait_ms).abs() < 1e-6, "{report:?}");
        assert_eq!(report.culprits[0].name, "/g11");
        assert!(report.culprits.iter().any(|row| row.name == "1 other cgroups" && row.ms == 1.0));
        assert_eq!((report.wait_ms_per_cpu_s, report.by_others_ms_per_cpu_s), (Some(36.0), Some(33.5)));
        assert!(report.verdict.is_none());
        let text = report.text();
        assert!(text.contains("wait per CPU-second 36.0 ms, of which caused by others 33.5 ms"), "{text}");
    }
}
