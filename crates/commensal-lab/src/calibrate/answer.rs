//! What one run reports about each known harm, next to the true harm.

use crate::analysis::{Samples, conclude};
use crate::conductor::judge_round;
use crate::format::pct_of_log;
use crate::record::Verdict;
use crate::record::{
    AddedTime, Block, Comparison, KnownHarm, LatencyHistogram, Metric, Role, Run, decode_histogram,
};
use crate::stats::{mean, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The percentiles whose true harm is known.
pub const KNOWN: [Metric; 2] = [Metric::P50, Metric::P90];

/// What a run reports about one harm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The harm.
    pub harm: KnownHarm,
    /// Configured delay per request, microseconds.
    pub asked_us: f64,
    /// Average delay that the service added, as it measured it itself.
    pub counted_us: Option<f64>,
    /// CPU time per request beyond that of the service alone, from the kernel's accounting; near zero, since the load
    /// should be equal.
    pub cpu_us: Option<f64>,
    /// The verdict that `quickstart` would have given.
    pub verdict: Verdict,
    /// Number of rounds after which it was reached.
    pub rounds: u32,
    /// One-sided error rate of the bounds at that analysis.
    pub level: f64,
    /// One entry per gate whose true harm is known.
    pub gates: Vec<GateAnswer>,
    /// Reasons of the verdict.
    pub reasons: Vec<String>,
}

/// One percentile: reported and true harm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateAnswer {
    /// The percentile.
    pub metric: Metric,
    /// Harm up to this size, per cent, still counts as no harm.
    pub threshold_pct: f64,
    /// The true harm, per cent.
    pub true_pct: f64,
    /// The reported harm, per cent, with its interval and its one-sided bounds.
    pub harm_pct: f64,
    /// See `harm_pct`.
    pub ci95: Option<[f64; 2]>,
    /// See `harm_pct`.
    pub one_sided: Option<[f64; 2]>,
    /// Whether all rounds together prove, on this percentile alone, a harm beyond the threshold.
    pub beyond: bool,
}

impl GateAnswer {
    /// Whether the interval contains the true harm; `None` without an interval.
    #[must_use]
    pub fn covers(&self) -> Option<bool> {
        self.ci95.map(|[lo, hi]| lo <= self.true_pct && self.true_pct <= hi)
    }
}

/// One block with the values that enter the statistics: enough to recompute every figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockSample {
    /// The arm.
    pub arm: String,
    /// The round, from 0.
    pub round: u32,
    /// Whether it was used.
    pub valid: bool,
    /// Percentiles, microseconds.
    pub p50_us: Option<f64>,
    /// See `p50_us`.
    pub p90_us: Option<f64>,
    /// Requests answered per second.
    pub qps: Option<f64>,
    /// Histogram of the latencies, where it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hist: Option<String>,
}

/// The run for one harm: the harmed arm takes the place of the isolated arm, beside the two arms of the service alone,
/// and its blocks are judged like those of an isolated arm.
fn run_of(run: &Run, harm: &KnownHarm) -> Run {
    let mut one = run.clone();
    one.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2) || arm.name == harm.arm);
    for arm in one.arms.iter_mut().filter(|arm| arm.name == harm.arm) {
        arm.role = Role::Isolated;
    }
    let names: Vec<String> = one.arms.iter().map(|arm| arm.name.clone()).collect();
    one.blocks.retain(|block| names.contains(&block.arm));
    for round in 0..one.rounds_begun() {
        judge_round(&mut one, round);
    }
    one
}

/// The run as it was after `rounds` rounds, concluded.
fn after(run: &Run, rounds: u32) -> Run {
    let mut then = run.clone();
    then.blocks.retain(|block| block.round < rounds);
    conclude(&mut then);
    then
}

/// The conclusion at the first interim analysis that decides, or at the end.
fn concluded(run: &Run) -> Run {
    let decides = |verdict| matches!(verdict, Some(Verdict::Pass | Verdict::Fail | Verdict::Broken));
    let begun = run.rounds_begun();
    let looks = run.design.looks.iter().copied().filter(|look| *look < begun);
    looks.map(|look| after(run, look)).find(|then| decides(then.verdict)).unwrap_or_else(|| after(run, begun))
}

/// The comparison with the service alone.
fn against_alone(run: &Run, arm: &str, metric: Metric) -> Option<Comparison> {
    let alone = run.arm_with(Role::Baseline)?;
    run.comparison(arm, &alone.name, metric).cloned()
}

/// One answer per harm.
#[must_use]
pub fn answers(run: &Run, harms: &[KnownHarm]) -> Vec<Answer> {
    harms.iter().filter_map(|harm| answer(run, harm)).collect()
}

fn answer(run: &Run, harm: &KnownHarm) -> Option<Answer> {
    let added = run.added_time.iter().find(|added| added.arm == harm.arm)?;
    let whole = run_of(run, harm);
    let (at_end, then) = (after(&whole, whole.rounds_begun()), concluded(&whole));
    let asked_us = added.asked_ns as f64 / 1e3;
    let gates = KNOWN.iter().filter(|metric| run.design.gates.contains(metric)).filter_map(|&metric| {
        let shown = against_alone(&then, &harm.arm, metric)?;
        let end = against_alone(&at_end, &harm.arm, metric)?;
        let threshold_pct = run.design.threshold_of(metric);
        Some(GateAnswer {
            metric,
            threshold_pct,
            true_pct: true_pct(&then, added, metric)?,
            harm_pct: shown.harm_pct,
            ci95: shown.ci95,
            one_sided: shown.one_sided,
            beyond: end.one_sided.is_some_and(|[lo, _]| lo > threshold_pct),
        })
    });
    let gates = gates.collect();
    Some(Answer {
        harm: harm.clone(),
        asked_us,
        counted_us: (added.requests > 0).then(|| added.added_ns as f64 / 1e3 / added.requests as f64),
        cpu_us: cpu_us(&whole, &harm.arm),
        verdict: then.verdict?,
        rounds: then.rounds_begun(),
        level: then.design.level(then.rounds_begun()),
        gates,
        reasons: then.reasons,
    })
}

/// The true harm over the rounds, per cent: how much a percentile of the service alone (both identical arms together)
/// rises when every latency gets the configured delay, and as many latencies as the service counted also get the
/// excess.
fn true_pct(run: &Run, added: &AddedTime, metric: Metric) -> Option<f64> {
    let quantile = metric.quantile()?;
    let alone = [run.arm_with(Role::Baseline)?, run.arm_with(Role::Baseline2)?].map(|arm| arm.name.as_str());
    let harms: Vec<f64> = (0..run.rounds_begun())
        .filter_map(|round| {
            let blocks = run.blocks.iter().filter(|block| block.round == round && block.valid);
            let its = blocks.filter(|block| alone.contains(&block.arm.as_str()));
            let latencies = Latencies::of(
                its.filter_map(|block| decode_histogram(block.histograms.latency.as_deref()?).ok()),
            );
            let (before, after) = (latencies.quantile(quantile)?, latencies.later(added, quantile)?);
            Some((after / before).ln())
        })
        .collect();
    median(&harms).map(pct_of_log)
}

/// Cumulative distribution of latencies: upper bound in microseconds, and number of latencies up to it.
struct Latencies(Vec<(f64, u64)>);

impl Latencies {
    fn of(histograms: impl Iterator<Item = LatencyHistogram>) -> Latencies {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for histogram in histograms {
            for one in histogram.iter_recorded() {
                *counts.entry(one.value_iterated_to()).or_default() += one.count_since_last_iteration();
            }
        }
        let mut sum = 0;
        let mut up_to = |(us, count): (u64, u64)| {
            sum += count;
            (us as f64, sum)
        };
        Latencies(counts.into_iter().map(&mut up_to).collect())
    }

    /// Number of latencies up to this bound.
    fn within(&self, us: f64) -> f64 {
        let at = self.0.partition_point(|(value, _)| *value <= us);
        at.checked_sub(1).map_or(0.0, |at| self.0[at].1 as f64)
    }

    fn all(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, all)| *all as f64)
    }

    fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.all();
        self.0.iter().find(|(_, up_to)| *up_to as f64 >= rank).map(|(us, _)| *us)
    }

    /// The percentile of the same latencies with the delays added, assuming that delays and latencies are independent.
    fn later(&self, added: &AddedTime, quantile: f64) -> Option<f64> {
        let asked_us = added.asked_ns as f64 / 1e3;
        let requests = added.requests.max(1) as f64;
        let over = added.over_us.iter().map(|(us, count)| (asked_us + us, *count as f64 / requests));
        let mut parts: Vec<(f64, f64)> = over.collect();
        let late: f64 = parts.iter().map(|(_, share)| share).sum();
        parts.push((asked_us, (1.0 - late).max(0.0)));
        let rank = quantile * self.all();
        let within =
            |us: f64| parts.iter().map(|(later, share)| share * self.within(us - later)).sum::<f64>();
        let mut lo = self.quantile(quantile)? + asked_us;
        if parts.len() == 1 {
            return Some(lo);
        }
        lo -= 1.0;
        let mut hi = self.0.last()?.0 + parts.iter().map(|(later, _)| *later).fold(0.0, f64::max);
        while hi - lo > 0.01 {
            let middle = f64::midpoint(lo, hi);
            // Tolerance for rounding.
            if within(middle) >= rank - 1e-6 { hi = middle } else { lo = middle }
        }
        Some(hi)
    }
}

/// CPU time per request over that of the service alone, microseconds.
fn cpu_us(run: &Run, arm: &str) -> Option<f64> {
    let per_request = |name: &str| {
        let (mut used, mut requests) = (0.0, 0);
        for block in run.blocks_of(name) {
            used += block.cpu.online? * block.measure_s;
            requests += block.load.offered_requests;
        }
        (requests > 0).then(|| used * 1e6 / requests as f64)
    };
    let alone: Option<Vec<f64>> = [Role::Baseline, Role::Baseline2]
        .into_iter()
        .map(|role| per_request(&run.arm_with(role)?.name))
        .collect();
    Some(per_request(arm)? - mean(&alone?)?)
}

/// Every block with the values that enter the statistics; with `whole`, histograms are included.
#[must_use]
pub fn seen(run: &Run, whole: bool) -> Vec<BlockSample> {
    let (samples, _) = Samples::of(run);
    let one = |block: &Block| {
        let arm = run.arms.iter().position(|arm| arm.name == block.arm);
        let value = |metric| arm.and_then(|arm| samples.get(arm, block.round, metric));
        BlockSample {
            arm: block.arm.clone(),
            round: block.round,
            valid: block.valid,
            p50_us: value(Metric::P50),
            p90_us: value(Metric::P90),
            qps: value(Metric::Qps),
            hist: block.histograms.latency.clone().filter(|_| whole),
        }
    };
    run.blocks.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;
    use crate::record::{encode_histogram, new_histogram};
    use crate::rng::Rng;

    /// A simulated run of the plan: requests take a log-normal time, those of a harmed arm a constant longer, and each
    /// round has a random slowdown.
    pub fn simulated(plan: &Plan, seed: u64, noise: f64) -> Run {
        const BASE_US: f64 = 160.0;
        let experiment = plan.experiment(0).unwrap();
        let mut rng = Rng::new(seed);
        let mut run = Run { design: experiment.design.clone(), arms: experiment.arms, ..Run::default() };
        run.machine.threads = 2;
        for arm in &run.arms {
            let harm = plan.harms.iter().find(|harm| harm.arm == arm.name);
            // The median is BASE_US, and P90 1.47 times that.
            let of = harm.map_or(0.0, |harm| if harm.of == Metric::P90 { BASE_US * 1.467 } else { BASE_US });
            let asked_ns = (harm.map_or(0.0, |harm| harm.pct) * of * 10.0) as u64;
            let added = AddedTime {
                arm: arm.name.clone(),
                asked_ns,
                requests: 10,
                added_ns: asked_ns * 10,
                over_us: Vec::new(),
            };
            run.added_time.push(added);
        }
        for round in 0..run.design.rounds {
            let drift = (0.1 * rng.normal()).exp();
            for added in &run.added_time {
                let luck = drift * (noise * rng.normal()).exp();
                let mut histogram = new_histogram().unwrap();
                for i in 0..2_100 {
                    // Finer than the histogram's step, and each half of the distribution alike.
                    let u = (f64::from(i) + 0.5) / 2_100.0;
                    let z = inverse_normal(u);
                    let us = BASE_US * luck * (0.3 * z).exp() + added.asked_ns as f64 / 1e3;
                    histogram.saturating_record((us + rng.unit_f64() - 0.5).round() as u64);
                }
                run.blocks.push(Block {
                    arm: added.arm.clone(),
                    round,
                    valid: true,
                    measure_s: 1.0,
                    load: crate::record::LoadFigures {
                        offered_per_s: Some(2_100.0),
                        achieved_per_s: Some(2_100.0 * (0.001 * rng.normal()).exp()),
                        offered_requests: 2_100,
                        ..Default::default()
                    },
                    histograms: crate::record::LoadHistograms {
                        latency: Some(encode_histogram(&histogram).unwrap()),
                        ..Default::default()
                    },
                    lateness_us: Some(crate::record::Lateness { p50: 5.0, p99: 30.0 }),
                    cpu: crate::record::CpuUse {
                        online: Some(0.2 + added.asked_ns as f64 * 2_100.0 / 1e9),
                        ..crate::record::CpuUse::default()
                    },
                    ..Block::default()
                });
            }
        }
        run
    }

    /// Quantile from the logistic approximation of the normal distribution, `u = 1 / (1 + exp(-(1.5976 z + 0.07056
    /// z^3)))`: exact to a per cent, which suffices here. The cubic has one real root, which is known in closed form.
    fn inverse_normal(u: f64) -> f64 {
        let (logit, cubic) = ((u / (1.0 - u)).ln(), 0.070_56);
        let (p, q) = (1.5976 / cubic, logit / cubic);
        let third = (1.5 * q / p * (3.0_f64 / p).sqrt()).asinh() / 3.0;
        (2.0 * (p / 3.0).sqrt() * third.sinh()).clamp(-5.0, 5.0)
    }

    // promise 43
    #[test]
    fn what_is_added_moves_a_percentile_by_as_much_and_what_is_too_much_by_its_share() {
        let mut histogram = new_histogram().unwrap();
        (101..=200).for_each(|us| histogram.saturating_record(us));
        let latencies = Latencies::of([histogram].into_iter());
        assert_eq!((latencies.quantile(0.5), latencies.quantile(0.9)), (Some(150.0), Some(190.0)));
        let check = |over_us: Vec<(f64, u64)>, quantile: f64, want: f64| {
            let arm = "slow".to_owned();
            let added = AddedTime { arm, asked_ns: 12_500, requests: 100, added_ns: 0, over_us };
            let got = latencies.later(&added, quantile).unwrap();
            assert!((got - want).abs() < 1.02, "{got} {want}");
        };
        check(vec![], 0.5, 162.5);
        check(vec![], 0.9, 202.5);
        // If all are 40 too late, the percentile rises by 40.
        check(vec![(40.0, 100)], 0.5, 202.5);
        // A tenth is far too late: the median is that of the others at 50 of 90, P90 is where the others end.
        check(vec![(1_000.0, 10)], 0.5, 100.0 + 50.0 / 0.9 + 12.5);
        check(vec![(1_000.0, 10)], 0.9, 212.5);
    }

    #[test]
    fn a_quiet_machine_is_answered_right_and_its_harms_are_known() {
        let plan = Plan::new(Some("0,3,10,30,p90:30"), 90.0, 1, None).unwrap();
        let run = simulated(&plan, 5, 0.004);
        let all = answers(&run, &plan.harms);
        let verdicts: Vec<Verdict> = all.iter().map(|one| one.verdict).collect();
        use Verdict::{Fail, Pass};
        assert_eq!(verdicts, [Pass, Pass, Fail, Fail, Fail], "{:?}", all[0]);
        for one in &all {
            assert_eq!(one.counted_us, Some(one.asked_us));
            assert!((one.cpu_us.unwrap() - one.asked_us).abs() < 0.001 * one.asked_us.max(1.0), "{one:?}");
            let [p50, p90] = &one.gates[..] else { panic!("{:?}", one.gates) };
            assert_eq!((p50.threshold_pct, p90.threshold_pct), (5.0, 10.0));
            let of = if one.harm.of == Metric::P50 { p50 } else { p90 };
            assert!((of.true_pct - one.harm.pct).abs() < 0.1 * one.harm.pct + 0.01, "{one:?}");
            // The same delay is a smaller share of P90 than of the median.
            assert!(one.harm.pct == 0.0 || p90.true_pct < p50.true_pct);
            assert!((of.harm_pct - of.true_pct).abs() < 1.0, "{of:?}");
            assert_eq!(p90.beyond, p90.true_pct > 15.0, "{p90:?}");
        }
        // A decided answer ends at its interim analysis.
        assert!(
            all[4].rounds < run.design.rounds && run.design.looks.contains(&all[4].rounds),
            "{:?}",
            all[4]
        );
    }

    #[test]
    fn intervals_cover_and_noise_leaves_open() {
        let plan = Plan::new(Some("0,5,30"), 90.0, 1, None).unwrap();
        let (mut covered, mut of, mut open, mut wrong) = (0, 0, 0, 0);
        for seed in 0..40 {
            for one in answers(&simulated(&plan, seed, 0.03), &plan.harms) {
                for covers in one.gates.iter().filter_map(GateAnswer::covers) {
                    (covered, of) = (covered + u32::from(covers), of + 1);
                }
                open += u32::from(one.verdict == Verdict::Inconclusive);
                let bad = if one.harm.pct == 0.0 { Verdict::Fail } else { Verdict::Pass };
                wrong += u32::from(one.verdict == bad && one.harm.pct != 5.0);
            }
        }
        assert_eq!(of, 40 * 3 * 2);
        // 95 % less three standard deviations; P50 and P90 of a block are correlated.
        assert!(covered > 214, "{covered} of {of}");
        assert!(open > 20, "{open}");
        assert_eq!(wrong, 0);
    }

    #[test]
    fn identical_arms_that_differ_and_a_service_that_fails_are_answers_too() {
        let plan = Plan::new(Some("0"), 90.0, 1, None).unwrap();
        let mut run = simulated(&plan, 3, 0.004);
        let twin = run.blocks_of("+0 %").cloned().collect::<Vec<_>>();
        for block in run.blocks.iter_mut().filter(|block| block.arm == "baseline2") {
            let mut slow = new_histogram().unwrap();
            slow.saturating_record_n(400, 2_100);
            block.histograms.latency = Some(encode_histogram(&slow).unwrap());
        }
        assert_eq!(answers(&run, &plan.harms)[0].verdict, Verdict::Invalid);
        let mut broken = simulated(&plan, 3, 0.004);
        broken
            .blocks
            .iter_mut()
            .filter(|block| block.arm == "+0 %")
            .for_each(|block| block.load.errors = 100);
        assert_eq!(answers(&broken, &plan.harms)[0].verdict, Verdict::Broken);
        // Every block is listed, with its latencies where they are stored.
        let seen_all = seen(&run, true);
        assert_eq!(seen_all.len(), run.blocks.len());
        assert_eq!(seen_all.iter().filter(|one| one.arm == "+0 %").count(), twin.len());
        assert!(
            seen_all.iter().all(|one| one.hist.is_some() && one.p50_us.is_some() && one.p90_us.is_some())
        );
        assert!(seen(&run, false).iter().all(|one| one.hist.is_none()));
    }
}
