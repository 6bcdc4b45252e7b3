//! Two runs side by side: what each says about an arm, and whether their intervals have anything in common.
//!
//! Runs on other machines or by other plans measure something else, so they are refused unless somebody insists.

use super::terminal::aligned;
use crate::analysis::Samples;
use crate::format::{brackets, change_pct, latency, quantum, signed_pct, three_digits};
use crate::record::{Design, Metric, Role, Run};
use crate::stats::{SignedRank, Tail};
use crate::verdict::{Verdict, against_baseline};
use serde::Serialize;
use std::fmt::Write as _;

/// Runs whose offered loads differ by less, as a ratio, were made by the same plan: it may have been calibrated.
const SAME_LOAD: f64 = 1.02;

/// Why two runs are not compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// They were made on different machines.
    #[error("the runs were made on different machines: {a}, and {b}")]
    Machine {
        /// Where the first was made.
        a: String,
        /// Where the second was made.
        b: String,
    },
    /// They were planned differently.
    #[error("the runs were planned differently: {}", differences.join("; "))]
    Design {
        /// Each field with both values.
        differences: Vec<String>,
    },
}

/// Two runs compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Verdicts of both.
    pub verdicts: [Option<Verdict>; 2],
    /// Each metric of each arm that both runs have.
    pub rows: Vec<DiffRow>,
    /// What else differs.
    pub notes: Vec<String>,
}

/// One metric of one arm in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffRow {
    /// The arm.
    pub arm: String,
    /// The metric.
    pub metric: Metric,
    /// In the first run.
    pub a: Estimate,
    /// In the second run.
    pub b: Estimate,
    /// Whether the two intervals have a value in common; `None` where one of them does not exist.
    pub intervals_overlap: Option<bool>,
    /// The step in which changes may be printed, per cent; `None` for figures that are absolute.
    #[serde(skip)]
    step_pct: Option<f64>,
}

/// An estimate with its two-sided 95 % interval: of the baseline absolute (microseconds, or requests per second), of the
/// other arms the signed change against their baseline, per cent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Its interval, lower end first; `None` below 6 rounds.
    pub ci95: Option<[f64; 2]>,
}

impl Estimate {
    fn new(value: f64, ends: Option<[f64; 2]>) -> Self {
        Self { value, ci95: ends.map(|[a, b]| [a.min(b), a.max(b)]) }
    }
}

/// Compares two concluded runs of one machine and one plan, in words.
///
/// # Errors
/// When machine or plan differ.
pub fn diff(a: &Run, b: &Run) -> Result<String, DiffError> {
    comparable(a, b)?;
    Ok(compare(a, b).text())
}

/// Whether two runs measured the same thing.
///
/// # Errors
/// When machine or plan differ.
pub fn comparable(a: &Run, b: &Run) -> Result<(), DiffError> {
    if a.machine.fingerprint != b.machine.fingerprint {
        let place = |run: &Run| {
            format!("{} with {} CPUs and kernel {}", run.machine.cpu, run.machine.threads, run.machine.kernel)
        };
        return Err(DiffError::Machine { a: place(a), b: place(b) });
    }
    let differences = differences(a, b);
    if differences.is_empty() { Ok(()) } else { Err(DiffError::Design { differences }) }
}

/// The fields of the plan in which two runs differ. Runs of more or fewer rounds, and in other styles, still compare.
fn differences(a: &Run, b: &Run) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |name: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{name} is {a} and {b}"));
        }
    };
    check("experiment", a.experiment.clone(), b.experiment.clone());
    let arms = |run: &Run| {
        run.arms.iter().map(|arm| format!("{} ({:?})", arm.name, arm.role)).collect::<Vec<_>>().join(", ")
    };
    check("the set of arms", arms(a), arms(b));
    let (a, b) = (&a.design, &b.design);
    check("the measured part of a block", format!("{} s", a.block_s), format!("{} s", b.block_s));
    check("the settling time", format!("{} s", a.settle_s), format!("{} s", b.settle_s));
    check("the warm-up", format!("{} s", a.warmup_s), format!("{} s", b.warmup_s));
    if !same_load(a, b) {
        check("the offered load", load(a.offered_per_s), load(b.offered_per_s));
    }
    check("the load generator", format!("{:?}", a.load), format!("{:?}", b.load));
    check("the concurrency", format!("{:?}", a.concurrency), format!("{:?}", b.concurrency));
    let gates = |design: &Design| {
        let gate = |gate: &Metric| format!("{} within {} %", gate.label(), design.threshold_of(*gate));
        design.gates.iter().map(gate).collect::<Vec<_>>().join(", ")
    };
    check("the set of gates", gates(a), gates(b));
    found
}

fn load(per_s: Option<f64>) -> String {
    per_s.map_or("closed".to_owned(), |per_s| format!("{per_s} per second"))
}

fn same_load(a: &Design, b: &Design) -> bool {
    match (a.offered_per_s, b.offered_per_s) {
        (None, None) => true,
        (Some(a), Some(b)) => a == b || (a.max(b) / a.min(b)) < SAME_LOAD,
        _ => false,
    }
}

/// Compares two concluded runs, whatever they are.
pub fn compare(a: &Run, b: &Run) -> Diff {
    let mut notes = Vec::new();
    if a.machine.fingerprint != b.machine.fingerprint {
        notes.push("the runs were made on different machines".to_owned());
    }
    notes.extend(differences(a, b));
    let (mut rows, samples) = (Vec::new(), [Samples::of(a).0, Samples::of(b).0]);
    for arm in &a.arms {
        let Some(twin) = b.arms.iter().find(|other| other.name == arm.name) else { continue };
        let driver = |policy: &Option<crate::record::Policy>| {
            policy.as_ref().map_or("none".to_owned(), |policy| policy.driver.clone())
        };
        let (first, second) = (driver(&arm.policy), driver(&twin.policy));
        if first != second {
            notes.push(format!("arm {}: the driver is {first} and {second}", arm.name));
        }
        for metric in a.design.metrics() {
            let of = |run: &Run, samples: &Samples| match arm.role {
                Role::Baseline => absolute(run, samples, &arm.name, metric),
                _ => relative(run, &arm.name, metric),
            };
            if let (Some(a_has), Some(b_has)) = (of(a, &samples[0]), of(b, &samples[1])) {
                let floor = |run: &Run| run.noise_floor_pct.get(&metric).copied();
                let step = quantum(floor(a)).max(quantum(floor(b)));
                let step_pct = (arm.role != Role::Baseline).then_some(step);
                rows.push(row(&arm.name, metric, [a_has, b_has], step_pct));
            }
        }
    }
    for (run, which) in [(a, "first"), (b, "second")] {
        if run.verdict == Some(Verdict::Invalid) {
            notes.push(format!("the {which} run is INVALID: its figures are no result"));
        }
    }
    Diff { verdicts: [a.verdict, b.verdict], rows, notes }
}

fn row(arm: &str, metric: Metric, [a, b]: [Estimate; 2], step_pct: Option<f64>) -> DiffRow {
    let overlap = a.ci95.zip(b.ci95).map(|(a, b)| a[0] <= b[1] && b[0] <= a[1]);
    DiffRow { arm: arm.to_owned(), metric, a, b, intervals_overlap: overlap, step_pct }
}

/// The level of a metric in one arm: Hodges-Lehmann estimate over rounds, on the logarithms.
fn absolute(run: &Run, samples: &Samples, arm: &str, metric: Metric) -> Option<Estimate> {
    let index = run.arms.iter().position(|other| other.name == arm)?;
    let logs: Vec<f64> = samples.values(index, metric).into_iter().map(f64::ln).collect();
    let ranks = SignedRank::new(&logs)?;
    let ends = ranks.interval(Tail::TwoSided95).map(|ends| [ends.lo.exp(), ends.hi.exp()]);
    Some(Estimate::new(ranks.estimate().exp(), ends))
}

fn relative(run: &Run, arm: &str, metric: Metric) -> Option<Estimate> {
    let result = against_baseline(run, arm, metric)?;
    let change = |harm| change_pct(metric, harm);
    Some(Estimate::new(change(result.harm_pct), result.ci95.map(|ends| ends.map(change))))
}

impl Diff {
    /// The comparison in words.
    pub fn text(&self) -> String {
        let word = |verdict: Option<Verdict>| verdict.map_or("NO VERDICT", Verdict::label);
        let mut out = format!("A {}, B {}\n", word(self.verdicts[0]), word(self.verdicts[1]));
        let mut table = vec![["", "A", "", "B", "", "95 % intervals"].map(str::to_owned).to_vec()];
        table.extend(self.rows.iter().map(DiffRow::cells));
        out.push_str(&aligned(&table));
        if self.rows.is_empty() {
            out.push_str("no metric was measured in an arm of both runs\n");
        }
        let apart = self.rows.iter().filter(|row| row.intervals_overlap == Some(false)).count();
        let known = self.rows.iter().filter(|row| row.intervals_overlap.is_some()).count();
        let _ = writeln!(
            out,
            "{apart} of {known} pairs of intervals are apart. Apart is a difference; overlapping is no proof of sameness."
        );
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        out
    }
}

impl DiffRow {
    fn cells(&self) -> Vec<String> {
        let absolute = |value: f64| match self.metric.quantile() {
            Some(_) => latency(value),
            None => three_digits(value),
        };
        let of = |one: &Estimate| match self.step_pct {
            Some(step) => {
                let ends = one.ci95.map(|ends| brackets(ends, step));
                [signed_pct(one.value, step), ends.unwrap_or_default()]
            }
            None => {
                let ends = one.ci95.map(|[lo, hi]| format!("[{}, {}]", absolute(lo), absolute(hi)));
                [absolute(one.value), ends.unwrap_or_default()]
            }
        };
        let ([a, a_ends], [b, b_ends]) = (of(&self.a), of(&self.b));
        vec![format!("{} {}", self.arm, self.metric.label()), a, a_ends, b, b_ends, self.said().to_owned()]
    }

    fn said(&self) -> &'static str {
        let higher = self.b.value > self.a.value;
        match self.intervals_overlap {
            None => "unknown: 6 rounds are needed",
            Some(true) => "overlap",
            Some(false) if higher == self.metric.more_is_better() => "apart: B is better",
            Some(false) => "apart: B is worse",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture::{concluded, small_run};

    fn concluded_small() -> Run {
        let mut run = small_run();
        conclude(&mut run);
        run
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let run = concluded_small();
        let compared = compare(&run, &run);
        assert!(
            compared.notes.is_empty() && compared.rows.iter().all(|row| row.intervals_overlap == Some(true))
        );
        let text = diff(&run, &run).unwrap();
        assert!(text.starts_with("A PASS, B PASS\n"), "{text}");
        assert!(text.contains("\n0 of ") && text.contains(" pairs of intervals are apart."), "{text}");
        assert!(text.contains("baseline P50") && text.contains(" µs"), "{text}");
    }

    #[test]
    fn intervals_apart_say_who_is_worse() {
        let (a, b) = (concluded(12, [0.0, 0.5, 0.0], 0.01), concluded(12, [0.0, 0.5, 0.2], 0.01));
        let text = diff(&a, &b).unwrap();
        let line = |arm: &str| text.lines().find(|line| line.starts_with(arm)).unwrap_or_default();
        assert!(line("isolated P90").ends_with("apart: B is worse"), "{text}");
        assert!(line("isolated QPS").ends_with("apart: B is worse"), "{text}");
        assert!(line("contended P90").ends_with("overlap"), "{text}");
        let back = diff(&b, &a).unwrap();
        assert!(back.contains("apart: B is better"), "{back}");
    }

    #[test]
    fn other_machines_and_plans_are_refused() {
        let check = |change: fn(&mut Run), expect: &str| {
            let (a, mut b) = (concluded_small(), concluded_small());
            change(&mut b);
            let said = diff(&a, &b).unwrap_err().to_string();
            assert!(said.contains(expect), "{said}");
            // Who insists gets the figures with the difference beside them.
            assert!(compare(&a, &b).text().contains("  the ") || !compare(&a, &b).notes.is_empty());
        };
        check(|run| run.machine.fingerprint = "sha256:11".into(), "different machines: AMD EPYC with 2 CPUs");
        check(|run| run.design.block_s = 5.0, "the measured part of a block is 20 s and 5 s");
        check(|run| run.design.offered_per_s = None, "the offered load is 400 per second and closed");
        check(|run| run.design.offered_per_s = Some(500.0), "400 per second and 500 per second");
        check(|run| run.design.threshold_pct = 10.0, "the set of gates is P50 within 5 %");
        check(|run| run.experiment = "other".into(), "experiment is http-vs-stress-ng and other");
    }

    #[test]
    fn rounds_and_calibrated_loads_may_differ() {
        let (a, mut b) = (concluded_small(), concluded_small());
        b.design.rounds = 40;
        b.design.offered_per_s = Some(404.0);
        b.arms[3].policy.as_mut().unwrap().driver = "cpu.bvt_warp_ns".into();
        let text = diff(&a, &b).unwrap();
        assert!(text.contains("arm isolated: the driver is cpu.idle and cpu.bvt_warp_ns"), "{text}");
    }

    #[test]
    fn few_rounds_are_unknown() {
        let run = concluded(4, [0.0, 0.5, 0.0], 0.01);
        let text = diff(&run, &run).unwrap();
        assert!(text.contains("unknown: 6 rounds are needed") && text.contains("0 of 0 pairs"), "{text}");
    }
}
