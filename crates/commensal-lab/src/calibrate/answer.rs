//! The results of one calibration run: for each known harm, the verdict and the measured harm, together with the true
//! harm. In a calibration, the service harms itself by a known delay; each harm has its own arm (a way of running the
//! service). A gate is a metric whose harm determines the verdict.

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

/// The percentiles for which the true harm is known.
pub const KNOWN: [Metric; 2] = [Metric::P50, Metric::P90];

/// The result of one run for one harm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The known harm of the arm.
    pub harm: KnownHarm,
    /// Configured delay per request (µs).
    pub asked_us: f64,
    /// Average delay that the service added, as measured by the service (µs).
    pub counted_us: Option<f64>,
    /// CPU time per request in this arm, minus the CPU time per request of the service alone (µs), from the kernel's
    /// accounting. The value is near zero, because the service should use equal CPU time in every arm.
    pub cpu_us: Option<f64>,
    /// The verdict that the experiment `quickstart` would have given.
    pub verdict: Verdict,
    /// Number of rounds after which the verdict was reached.
    pub rounds: u32,
    /// One-sided error rate of the bounds after that number of rounds.
    pub level: f64,
    /// One entry per gate (metric that determines the verdict) whose true harm is known.
    pub gates: Vec<GateAnswer>,
    /// Reasons for the verdict.
    pub reasons: Vec<String>,
}

/// The measured and the true harm on one percentile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateAnswer {
    /// The percentile, as a metric.
    pub metric: Metric,
    /// Largest harm that still counts as no harm (per cent).
    pub threshold_pct: f64,
    /// The true harm (per cent).
    pub true_pct: f64,
    /// The measured harm (per cent).
    pub harm_pct: f64,
    /// Two-sided 95 % confidence interval of the measured harm (per cent).
    pub ci95: Option<[f64; 2]>,
    /// One-sided confidence bounds of the measured harm (per cent).
    pub one_sided: Option<[f64; 2]>,
    /// Whether all rounds together prove a harm above the threshold on this percentile alone.
    pub beyond: bool,
}

impl GateAnswer {
    /// Whether the confidence interval contains the true harm; `None` if there is no interval.
    #[must_use]
    pub fn covers(&self) -> Option<bool> {
        self.ci95.map(|[lo, hi]| lo <= self.true_pct && self.true_pct <= hi)
    }
}

/// The values of one block that enter the statistics, from which every result can be recomputed. A block is the
/// measurement of one arm in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockSample {
    /// Name of the arm.
    pub arm: String,
    /// Number of the round, starting at 0.
    pub round: u32,
    /// Whether the block was valid.
    pub valid: bool,
    /// Median latency (µs).
    pub p50_us: Option<f64>,
    /// P90 of the latency (µs).
    pub p90_us: Option<f64>,
    /// Requests answered per second.
    pub qps: Option<f64>,
    /// Histogram of the latencies, encoded in base64; `None` if the record omits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hist: Option<String>,
}

/// Returns a run for one harm. It contains the arm with that harm as its isolated arm, and the two arms of the service
/// alone. The blocks of that arm are judged again, as those of an isolated arm.
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

/// Returns the concluded run as it was after `rounds` rounds.
fn after(run: &Run, rounds: u32) -> Run {
    let mut then = run.clone();
    then.blocks.retain(|block| block.round < rounds);
    conclude(&mut then);
    then
}

/// Returns the run, concluded at the first interim analysis that decides it, or at its end if none does.
fn concluded(run: &Run) -> Run {
    let decides = |verdict| matches!(verdict, Some(Verdict::Pass | Verdict::Fail | Verdict::Broken));
    let begun = run.rounds_begun();
    let looks = run.design.looks.iter().copied().filter(|look| *look < begun);
    looks.map(|look| after(run, look)).find(|then| decides(then.verdict)).unwrap_or_else(|| after(run, begun))
}

/// Returns the comparison of an arm with the service alone.
fn against_alone(run: &Run, arm: &str, metric: Metric) -> Option<Comparison> {
    let alone = run.arm_with(Role::Baseline)?;
    run.comparison(arm, &alone.name, metric).cloned()
}

/// Returns one result per harm.
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

/// Returns the true harm in per cent (median over the rounds): the rise of a percentile of the service alone, with both
/// identical arms together, when every latency is increased by the configured delay. The service has
/// also counted how often a delay took longer than configured, and by how much: the same fraction of the latencies is
/// increased by that excess as well.
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

/// Cumulative distribution of latencies. Each upper bound in microseconds has the number of latencies that do not
/// exceed it.
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

    /// Returns the number of latencies that do not exceed this bound.
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

    /// Returns the percentile of these latencies after the delays are added, under the assumption that delays and
    /// latencies are independent.
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
            // The tolerance is for rounding errors.
            if within(middle) >= rank - 1e-6 { hi = middle } else { lo = middle }
        }
        Some(hi)
    }
}

/// Returns the CPU time per request in excess of that of the service alone (µs).
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

/// Returns the sample of every block, including the histogram if `whole`.
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

    /// Returns a simulated run of the plan. Latencies are log-normal; in an arm with a harm, a constant is added to
    /// them; each round has a random slowdown.
    pub fn simulated(plan: &Plan, seed: u64, noise: f64) -> Run {
        const BASE_US: f64 = 160.0;
        let experiment = plan.experiment(0).unwrap();
        let mut rng = Rng::new(seed);
        let mut run = Run { design: experiment.design.clone(), arms: experiment.arms, ..Run::default() };
        run.machine.threads = 2;
        for arm in &run.arms {
            let harm = plan.harms.iter().find(|harm| harm.arm == arm.name);
            // The median is BASE_US, and P90 is 1.467 times as much.
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
                    // The steps are finer than the histogram's, and the distribution is symmetric.
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

    /// Returns the quantile that corresponds to `u`, using the logistic approximation of the normal distribution, `u =
    /// 1 / (1 + exp(-(1.5976 z + 0.07056 z^3)))`, which is accurate to one per cent. The cubic equation has one real
    /// root, given in closed form.
    fn inverse_normal(u: f64) -> f64 {
        let (logit, cubic) = ((u / (1.0 - u)).ln(), 0.070_56);
        let (p, q) = (1.5976 / cubic, logit / cubic);
        let third = (1.5 * q / p * (3.0_f64 / p).sqrt()).asinh() / 3.0;
        (2.0 * (p / 3.0).sqrt() * third.sinh()).clamp(-5.0, 5.0)
    }

    // promise 35
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
        // If every response is 40 µs too late, the percentile rises by 40 µs.
        check(vec![(40.0, 100)], 0.5, 202.5);
        // A tenth of the responses is far too late. The median is then the value at rank 50 of the 90 other responses,
        // and P90 is the maximum of the other responses.
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
            // The same delay is a smaller percentage of P90 than of the median.
            assert!(one.harm.pct == 0.0 || p90.true_pct < p50.true_pct);
            assert!((of.harm_pct - of.true_pct).abs() < 1.0, "{of:?}");
            assert_eq!(p90.beyond, p90.true_pct > 15.0, "{p90:?}");
        }
        // A run ends at the interim analysis that decides it.
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
        // The limit is 95 %, minus three standard deviations of the count; P50 and P90 of a block are correlated.
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
        // The samples contain every block, with its latencies if these are stored.
        let seen_all = seen(&run, true);
        assert_eq!(seen_all.len(), run.blocks.len());
        assert_eq!(seen_all.iter().filter(|one| one.arm == "+0 %").count(), twin.len());
        assert!(
            seen_all.iter().all(|one| one.hist.is_some() && one.p50_us.is_some() && one.p90_us.is_some())
        );
        assert!(seen(&run, false).iter().all(|one| one.hist.is_none()));
    }
}
