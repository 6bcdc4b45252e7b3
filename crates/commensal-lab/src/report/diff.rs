//! Compares two runs: shows the results of each arm in both runs, and reports which differences are significant. An arm
//! is one of the ways of running the service.
//!
//! For each arm, the rounds of the two runs are two samples. The values of a sample are the paired log-ratios of the
//! arm to its reference. For the reference itself, the values are the logarithms of its metric. The difference is
//! estimated with the Hodges-Lehmann estimator and the exact bounds of the rank-sum test. The printed intervals of the
//! two runs may overlap although the difference is significant. Runs on other machines or with other plans measure
//! different things, so the module refuses to compare them unless the user insists.

mod rank_sum;

use crate::analysis::{Samples, paired_log_ratios};
use crate::error::LabError;
use crate::format::{brackets, change_pct, latency, pct_of_log, quantum, signed_pct, three_digits};
use crate::record::Verdict;
use crate::record::{Design, Machine, Metric, Role, Run};
use crate::stats::{SignedRank, Tail};
use crate::verdict::against_baseline;
use commensal_core::text::{Align, columns};
use serde::Serialize;
use std::fmt::Write as _;

/// Offered loads whose ratio is below this count as equal, because each run may have calibrated its own load.
const SAME_LOAD: f64 = 1.02;

/// Comparison of two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Verdicts of both runs.
    pub verdicts: [Option<Verdict>; 2],
    /// One row for each metric of each arm that both runs have.
    pub rows: Vec<DiffRow>,
    /// Other differences between the runs.
    pub notes: Vec<String>,
}

/// One metric of one arm in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffRow {
    /// The arm.
    pub arm: String,
    /// The metric.
    pub metric: Metric,
    /// Estimate in the first run.
    pub a: Estimate,
    /// Estimate in the second run.
    pub b: Estimate,
    /// How much worse the second run is than the first, in per cent (positive is worse); `None` if a run has no rounds
    /// with this metric.
    pub worse_pct: Option<f64>,
    /// Two-sided 95 % interval of `worse_pct`; `None` if there are too few rounds for an interval.
    pub worse_ci95: Option<[f64; 2]>,
    /// Rounding step of printed changes in per cent; `None` for absolute values.
    #[serde(skip)]
    step_pct: Option<f64>,
}

/// An estimate with its two-sided 95 % interval. For the baseline, the estimate is an absolute value (microseconds, or
/// requests per second). For other arms, it is the signed change from the arm's reference in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Interval of the estimate, lower end first; `None` below 6 rounds.
    pub ci95: Option<[f64; 2]>,
}

impl Estimate {
    fn new(value: f64, ends: Option<[f64; 2]>) -> Self {
        Self { value, ci95: ends.map(|[a, b]| [a.min(b), a.max(b)]) }
    }
}

/// Compares two concluded runs of one machine and one plan; returns readable text.
///
/// # Errors
/// Returns an error when the machines or the plans differ.
pub fn diff(a: &Run, b: &Run) -> Result<String, LabError> {
    comparable(a, b)?;
    Ok(compare(a, b).text())
}

/// Checks that two runs measured the same quantity under the same conditions.
///
/// # Errors
/// Returns an error when the machines or the plans differ.
pub fn comparable(a: &Run, b: &Run) -> Result<(), LabError> {
    let machines = of_machine(&a.machine, &b.machine);
    if !machines.is_empty() {
        return Err(LabError::new(format!(
            "the runs were made on different machines: {}",
            machines.join("; ")
        )));
    }
    let differences = differences(a, b);
    if differences.is_empty() {
        return Ok(());
    }
    Err(LabError::new(format!("the plans of the runs differ: {}", differences.join("; "))))
}

/// Memory sizes whose ratio is below this count as equal, because each kernel reserves a different part of the memory.
const SAME_MEMORY: f64 = 1.05;

/// Returns the differences that make two machines incomparable. Differences in software are not among them:
/// [`of_system`] reports those.
fn of_machine(a: &Machine, b: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |name: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{name} is {a} in A and {b} in B"));
        }
    };
    let unknown = || "unknown".to_owned();
    check("the CPU", a.cpu.clone(), b.cpu.clone());
    check("the number of cores", a.cores.to_string(), b.cores.to_string());
    check("the number of CPUs", a.threads.to_string(), b.threads.to_string());
    let smt = |of: &Machine| of.smt.map_or_else(unknown, |on| if on { "on" } else { "off" }.to_owned());
    check("SMT", smt(a), smt(b));
    let virt = |of: &Machine| of.virt.clone().unwrap_or_else(unknown);
    check("the hypervisor", virt(a), virt(b));
    if let (Some(a), Some(b)) = (a.memory_bytes, b.memory_bytes)
        && a.max(b) as f64 > a.min(b) as f64 * SAME_MEMORY
    {
        check("the memory", format!("{} MiB", a >> 20), format!("{} MiB", b >> 20));
    }
    found
}

/// Returns the changes of software between the runs, which the report mentions but which do not prevent a comparison.
fn of_system(a: &Machine, b: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    if a.kernel != b.kernel {
        found.push(format!("the kernel is {} in A and {} in B", a.kernel, b.kernel));
    }
    let cgroup = |of: &Machine| of.cgroup.clone().unwrap_or_else(|| "none".to_owned());
    if cgroup(a) != cgroup(b) {
        found.push(format!("the cgroup hierarchy is {} in A and {} in B", cgroup(a), cgroup(b)));
    }
    found
}

/// Returns the differences between the plans of two runs. The number of rounds and the table style may differ.
fn differences(a: &Run, b: &Run) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |name: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{name} is {a} in A and {b} in B"));
        }
    };
    check("the experiment", a.experiment.clone(), b.experiment.clone());
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
    per_s.map_or("closed loop".to_owned(), |per_s| format!("{per_s} per second"))
}

fn same_load(a: &Design, b: &Design) -> bool {
    match (a.offered_per_s, b.offered_per_s) {
        (None, None) => true,
        (Some(a), Some(b)) => a == b || (a.max(b) / a.min(b)) < SAME_LOAD,
        _ => false,
    }
}

/// Compares two concluded runs without checking that they are comparable.
pub fn compare(a: &Run, b: &Run) -> Diff {
    let mut notes = of_system(&a.machine, &b.machine);
    let machines = of_machine(&a.machine, &b.machine);
    notes.extend(machines.iter().map(|what| format!("the runs were made on different machines: {what}")));
    notes.extend(differences(a, b));
    let (mut rows, samples) = (Vec::new(), [Samples::of(a).0, Samples::of(b).0]);
    for arm in &a.arms {
        let Some(twin) = b.arms.iter().find(|other| other.name == arm.name) else { continue };
        let driver = |policy: &Option<crate::record::Policy>| {
            policy.as_ref().map_or("none".to_owned(), |policy| policy.driver.clone())
        };
        let (first, second) = (driver(&arm.policy), driver(&twin.policy));
        if first != second {
            notes.push(format!("arm {}: the driver is {first} in A and {second} in B", arm.name));
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
                let logs = |run: &Run, samples: &Samples| logs(run, samples, &arm.name, metric);
                let worse = rank_sum::shift(&logs(a, &samples[0]), &logs(b, &samples[1]));
                rows.push(DiffRow {
                    arm: arm.name.clone(),
                    metric,
                    a: a_has,
                    b: b_has,
                    worse_pct: worse.as_ref().map(|worse| pct_of_log(worse.estimate)),
                    worse_ci95: worse.and_then(|worse| worse.ci95).map(|ends| ends.map(pct_of_log)),
                    step_pct,
                });
            }
        }
    }
    for (run, which) in [(a, "first"), (b, "second")] {
        if run.verdict == Some(Verdict::Invalid) {
            notes.push(format!("the {which} run is INVALID, so its values are not a result"));
        }
    }
    Diff { verdicts: [a.verdict, b.verdict], rows, notes }
}

/// Returns the rounds of one run as logarithms that are positive for harm: ratios of the arm to its reference, or
/// absolute values for the baseline.
fn logs(run: &Run, samples: &Samples, arm: &str, metric: Metric) -> Vec<f64> {
    let place = |name: &str| run.arms.iter().position(|other| other.name == name);
    let Some(index) = place(arm) else { return Vec::new() };
    if run.arms[index].role == Role::Baseline {
        let sign = if metric.more_is_better() { -1.0 } else { 1.0 };
        return samples.values(index, metric).into_iter().map(|value| sign * value.ln()).collect();
    }
    let vs = against_baseline(run, arm, metric).and_then(|result| place(&result.vs));
    vs.map(|vs| paired_log_ratios(samples, metric, index, vs)).unwrap_or_default()
}

/// Returns the absolute value of a metric in one arm: Hodges-Lehmann estimate of the logarithms over rounds.
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
    /// Formats the comparison as readable text.
    pub fn text(&self) -> String {
        let word = |verdict: Option<Verdict>| verdict.map_or("NO VERDICT", Verdict::label);
        let mut out = format!("A {}, B {}\n", word(self.verdicts[0]), word(self.verdicts[1]));
        let mut table = vec![["", "A", "", "B", "", "B is worse by (95 %)"].map(str::to_owned).to_vec()];
        table.extend(self.rows.iter().map(DiffRow::cells));
        out.push_str(&columns(&table, Align::Figures));
        if self.rows.is_empty() {
            out.push_str("no metric was measured in the same arm of both runs\n");
        }
        let differ = self.rows.iter().filter(|row| row.differs() == Some(true)).count();
        let known = self.rows.iter().filter(|row| row.differs().is_some()).count();
        let chance = (known as f64 * 0.05).ceil();
        let _ = writeln!(
            out,
            "{differ} of {known} rows differ significantly at the 5 % level; without any real difference, \
                 about {chance:.0} would be expected. Where no difference is proven, the interval shows how large it may still be."
        );
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        out
    }
}

impl DiffRow {
    /// Returns whether the two runs differ significantly; `None` if there are too few rounds to decide.
    fn differs(&self) -> Option<bool> {
        self.worse_ci95.map(|[lo, hi]| lo > 0.0 || hi < 0.0)
    }

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
        vec![format!("{} {}", self.arm, self.metric.label()), a, a_ends, b, b_ends, self.said()]
    }

    fn said(&self) -> String {
        let Some(worse) = self.worse_pct else { return "unknown".to_owned() };
        let Some([lo, hi]) = self.worse_ci95 else {
            return format!("{}: too few rounds for an interval", signed_pct(worse, 0.1));
        };
        let word = match self.differs() {
            Some(true) if worse > 0.0 => "worse",
            Some(true) => "better",
            _ => "no difference proven",
        };
        format!("{} {}: {word}", signed_pct(worse, 0.1), brackets([lo, hi], 0.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture::small_run;
    use crate::record::{Block, decode_histogram, encode_histogram, new_histogram};

    fn concluded_small() -> Run {
        let mut run = small_run();
        conclude(&mut run);
        run
    }

    /// Returns a variant of [`small_run`] with twelve rounds, harm in the isolated arm, and independent noise in every
    /// round.
    fn harmed(harm: f64, seed: u64) -> Run {
        let (mut run, mut rng) = (small_run(), crate::rng::Rng::new(seed));
        let again = run.blocks.clone().into_iter().map(|block| Block { round: block.round + 6, ..block });
        run.blocks.extend(again.collect::<Vec<_>>());
        for block in &mut run.blocks {
            let factor = if block.arm == "isolated" { 1.0 + harm } else { 1.0 };
            let factor = factor * (0.01 * rng.normal()).exp();
            let mut scaled = new_histogram().unwrap();
            for value in
                decode_histogram(block.histograms.latency.as_deref().unwrap()).unwrap().iter_recorded()
            {
                let us = value.value_iterated_to() as f64 * factor;
                scaled.saturating_record_n(us as u64, value.count_at_value());
            }
            block.histograms.latency = Some(encode_histogram(&scaled).unwrap());
            block.load.achieved_per_s = block.load.achieved_per_s.map(|per_s| per_s / factor);
        }
        run.design.rounds = 12;
        conclude(&mut run);
        run
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let run = concluded_small();
        let compared = compare(&run, &run);
        assert!(compared.notes.is_empty() && compared.rows.iter().all(|row| row.differs() == Some(false)));
        let text = diff(&run, &run).unwrap();
        assert!(text.starts_with("A PASS, B PASS\n") && text.contains("\n0 of "), "{text}");
        assert!(text.contains("baseline P50") && text.contains(" µs"), "{text}");
    }

    #[test]
    fn a_difference_says_who_is_worse_and_by_how_much() {
        let (a, b) = (harmed(0.0, 1), harmed(0.2, 2));
        let text = diff(&a, &b).unwrap();
        let line = |arm: &str| text.lines().find(|line| line.starts_with(arm)).unwrap_or_default();
        assert!(line("isolated P90").ends_with(": worse"), "{text}");
        assert!(line("isolated QPS").ends_with(": worse"), "{text}");
        let found = compare(&a, &b);
        let p90 = found.rows.iter().find(|row| row.arm == "isolated" && row.metric == Metric::P90).unwrap();
        let [lo, hi] = p90.worse_ci95.unwrap();
        assert!(lo < 20.0 && 20.0 < hi && hi - lo < 6.0, "{p90:?}");
        let back = diff(&b, &a).unwrap();
        assert!(
            back.lines().any(|line| line.starts_with("isolated P90") && line.ends_with(": better")),
            "{back}"
        );
    }

    /// With a harm of 2 % and a noise of 1 %, the two intervals overlap, but the difference is significant.
    #[test]
    fn overlapping_intervals_may_differ_for_certain() {
        let (mut shown, mut overlapping) = (0, 0);
        for seed in 0..20 {
            let found = compare(&harmed(0.0, 100 + seed), &harmed(0.017, 200 + seed));
            let p50 = found
                .rows
                .into_iter()
                .find(|row| row.arm == "isolated" && row.metric == Metric::P50)
                .unwrap();
            let (a, b) = (p50.a.ci95.unwrap(), p50.b.ci95.unwrap());
            let differs = p50.differs() == Some(true);
            shown += u32::from(differs);
            overlapping += u32::from(differs && a[0] <= b[1] && b[0] <= a[1]);
        }
        assert!(shown >= 8 && overlapping >= 2, "{shown} {overlapping}");
    }

    #[test]
    fn other_machines_and_plans_are_refused() {
        let check = |change: fn(&mut Run), expect: &str| {
            let (a, mut b) = (concluded_small(), concluded_small());
            change(&mut b);
            let said = diff(&a, &b).unwrap_err().to_string();
            assert!(said.contains(expect), "{said}");
            // If the user insists on the comparison, the report has the values together with the differences between
            // the plans.
            assert!(compare(&a, &b).text().contains("  the ") || !compare(&a, &b).notes.is_empty());
        };
        check(
            |run| run.machine.cpu = "Xeon".into(),
            "different machines: the CPU is AMD EPYC in A and Xeon in B",
        );
        check(|run| run.machine.threads = 4, "the number of CPUs is 2 in A and 4 in B");
        check(
            |run| run.machine.memory_bytes = Some(16 << 30),
            "the memory is 8192 MiB in A and 16384 MiB in B",
        );
        check(|run| run.machine.virt = Some("none".into()), "the hypervisor is kvm in A and none in B");
        check(|run| run.design.block_s = 5.0, "the measured part of a block is 20 s in A and 5 s in B");
        check(
            |run| run.design.offered_per_s = None,
            "the offered load is 400 per second in A and closed loop in B",
        );
        check(|run| run.design.offered_per_s = Some(500.0), "400 per second in A and 500 per second in B");
        check(|run| run.design.threshold_pct = 10.0, "the set of gates is P50 within 5 %");
        check(
            |run| run.experiment = "other".into(),
            "the experiment is http-vs-stress-ng in A and other in B",
        );
    }

    #[test]
    fn another_kernel_is_told_and_compared() {
        let check = |change: fn(&mut Run), expect: &str| {
            let (a, mut b) = (concluded_small(), concluded_small());
            change(&mut b);
            b.machine.fingerprint = "sha256:other".into();
            let said = diff(&a, &b).unwrap();
            assert!(said.contains(expect), "{said}");
        };
        check(|run| run.machine.kernel = "6.18.1".into(), "the kernel is 6.18.0 in A and 6.18.1 in B");
        check(|run| run.machine.cgroup = Some("v2".into()), "the cgroup hierarchy is v1 in A and v2 in B");
        // Each kernel reserves a different part of the memory.
        check(|run| run.machine.memory_bytes = Some((8 << 30) - (3 << 20)), "0 of ");
    }

    #[test]
    fn rounds_and_calibrated_loads_may_differ() {
        let (a, mut b) = (concluded_small(), concluded_small());
        b.design.rounds = 40;
        b.design.offered_per_s = Some(404.0);
        b.arms[3].policy.as_mut().unwrap().driver = "cpu.bvt_warp_ns".into();
        let text = diff(&a, &b).unwrap();
        assert!(
            text.contains("arm isolated: the driver is cpu.idle in A and cpu.bvt_warp_ns in B"),
            "{text}"
        );
    }

    #[test]
    fn few_rounds_are_unknown() {
        let mut run = small_run();
        run.blocks.retain(|block| block.round < 3);
        conclude(&mut run);
        let text = diff(&run, &run).unwrap();
        assert!(
            text.contains("too few rounds for an interval") && text.contains("0 of 0 rows differ"),
            "{text}"
        );
    }
}
