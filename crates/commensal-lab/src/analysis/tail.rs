//! Evaluates the tail of an isolated arm: the share of requests above a latency threshold, compared with the service
//! alone. A block of short windows has too few requests for a high percentile, but enough to compare shares above a
//! fixed latency, pair by pair. An arm is one of the ways of running the service that a run compares; a block is the
//! measurement of one arm in one round; a gate is a metric that determines the verdict.

use crate::record::Verdict;
use crate::record::{Block, LatencyHistogram, OverObjective, Role, Run, decode_histogram};
use crate::verdict::{disturbed, steal_beside};
use commensal_core::windows::{Answer, Paired};
use std::collections::BTreeMap;

/// If the user defined no objective, the latency threshold is this percentile of the service alone.
const OF_ALONE: f64 = 0.99;
/// Maximum increase of the share of requests above the threshold, relative to the share of the service alone.
pub const MOST_MORE: f64 = 0.5;
/// Increase that is always allowed (percentage points): when the service alone has very few slow requests, 50 % more of
/// them are still very few.
pub const AT_LEAST_PCT: f64 = 0.1;
/// Additional steal time of the isolated arm (CPUs) above which the hypervisor may be the cause of a worse tail.
const STEAL: f64 = 0.05;
/// Significance level of the difference in steal time.
const SURE: f64 = 0.05;
/// If the user defined no objective, minimum number of requests above the threshold, in the isolated arm or in the
/// service alone.
const FEWEST: f64 = 100.0;

fn histogram(block: &Block) -> Option<LatencyHistogram> {
    decode_histogram(block.histograms.latency.as_deref()?).ok()
}

/// Compares every isolated arm with the service alone, and also with the warm arm (the service alone on CPUs that never
/// idle) if the run has one. Returns the comparison that shows more harm.
pub fn over_objective(run: &Run) -> Vec<OverObjective> {
    let warm = run.arm_with(Role::Warm);
    // A baseline that the hypervisor disturbs does not count.
    let Some(alone) = disturbed(run).and(warm).or(run.reference()) else { return Vec::new() };
    let of = |arm: &str| -> BTreeMap<u32, LatencyHistogram> {
        let valid = run.blocks_of(arm).filter(|block| block.valid && !block.online_crashed);
        valid.filter_map(|block| Some((block.round, histogram(block)?))).collect()
    };
    let reference = of(&alone.name);
    let Some(objective_us) = run.design.slo.map(|slo| slo.latency_us).or_else(|| percentile(&reference))
    else {
        return Vec::new();
    };
    let warm = warm.filter(|warm| warm.name != alone.name).map(|warm| (warm.name.as_str(), of(&warm.name)));
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
    isolated
        .filter_map(|arm| {
            let its = of(&arm.name);
            let cold = one(run, (&arm.name, &its), (&alone.name, &reference), objective_us);
            let warm = warm
                .as_ref()
                .and_then(|(name, warm)| one(run, (&arm.name, &its), (name, warm), objective_us));
            strictest(cold, warm)
        })
        .collect()
}

/// Returns the comparison that shows more harm; the verdict on the gates uses the same rule.
fn strictest(cold: Option<OverObjective>, warm: Option<OverObjective>) -> Option<OverObjective> {
    let beyond = |one: &OverObjective| one.one_sided.map(|[_, hi]| hi - allowed(one.alone_pct));
    match (cold, warm) {
        (Some(cold), Some(warm)) => Some(if beyond(&warm) > beyond(&cold) { warm } else { cold }),
        (cold, warm) => cold.or(warm),
    }
}

/// Maximum increase of the share of requests above the threshold (percentage points).
fn allowed(alone_pct: f64) -> f64 {
    (alone_pct * MOST_MORE).max(AT_LEAST_PCT)
}

/// Returns the percentile [`OF_ALONE`] over all blocks together.
fn percentile(blocks: &BTreeMap<u32, LatencyHistogram>) -> Option<f64> {
    let mut all = blocks.values();
    let mut sum = all.next()?.clone();
    for one in all {
        sum.add(one).ok()?;
    }
    crate::record::percentile_us(&sum, OF_ALONE)
}

fn over(histogram: &LatencyHistogram, objective_us: f64) -> f64 {
    let within = histogram.count_between(0, objective_us as u64);
    histogram.len().saturating_sub(within) as f64
}

fn one(
    run: &Run,
    (arm, its): (&str, &BTreeMap<u32, LatencyHistogram>),
    (vs, alone): (&str, &BTreeMap<u32, LatencyHistogram>),
    objective_us: f64,
) -> Option<OverObjective> {
    let pct = |one: &LatencyHistogram| over(one, objective_us) / one.len().max(1) as f64 * 100.0;
    let differences: Vec<f64> =
        its.iter().filter_map(|(round, one)| Some(pct(one) - pct(alone.get(round)?))).collect();
    let whole = |blocks: &BTreeMap<u32, LatencyHistogram>| {
        let (missed, all) = blocks.values().fold((0.0, 0.0), |(missed, all), one| {
            (missed + over(one, objective_us), all + one.len() as f64)
        });
        (missed, missed / f64::max(all, 1.0) * 100.0)
    };
    let ((missed, alone_pct), (missed_isolated, arm_pct)) = (whole(alone), whole(its));
    if run.design.slo.is_none() && missed.max(missed_isolated) < FEWEST {
        return None;
    }
    let steal = steal_beside(run, arm, vs);
    // If the isolated arm has a worse tail and also more steal time, the steal may be the cause, so isolation is not
    // blamed. If the arm has a worse tail and no more steal time, isolation is blamed.
    let alike = steal.is_none_or(|(more, p)| more <= STEAL || p >= SURE);
    let level = run.design.level(run.measured_rounds(&[arm, vs]));
    let paired = Paired::new(&differences, allowed(alone_pct), level)?;
    let harmed = paired.bounds.is_some_and(|ends| ends.lo > 0.0);
    let verdict = match paired.answer {
        _ if harmed && !alike => Verdict::Inconclusive,
        Answer::Beyond => Verdict::Fail,
        Answer::Within => Verdict::Pass,
        Answer::Open => Verdict::Inconclusive,
    };
    Some(OverObjective {
        arm: arm.to_owned(),
        vs: vs.to_owned(),
        objective_us,
        alone_pct,
        arm_pct,
        difference_pct: paired.estimate,
        one_sided: paired.bounds.map(|ends| [ends.lo, ends.hi]),
        steal_alike: alike,
        steal_more: steal.map(|(more, _)| more),
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude;
    use crate::fixture::small_run;
    use crate::record::{Arm, Metric, Slo, encode_histogram, new_histogram};

    /// Returns a run of twelve rounds. `over` has the number of slow requests, of 20,000, for the service alone, the
    /// warm arm and the isolated arm. `steal` has the steal time of the first two arms, and of the isolated arm.
    fn run_with(over: [u64; 3], steal: [f64; 2], slo: bool) -> Run {
        let mut run = small_run();
        let again = run.blocks.clone().into_iter().map(|block| Block { round: block.round + 6, ..block });
        run.blocks.extend(again.collect::<Vec<_>>());
        run.design.rounds = 12;
        run.design.slo = slo.then_some(Slo { metric: Metric::P99, latency_us: 5_000.0, window_s: 1.0 });
        run.arms.push(Arm { name: "warm".into(), role: Role::Warm, policy: None, offline: None });
        let warm = run.blocks_of("baseline").cloned().map(|block| Block { arm: "warm".into(), ..block });
        run.blocks.extend(warm.collect::<Vec<_>>());
        for block in &mut run.blocks {
            let of = match block.arm.as_str() {
                "isolated" => over[2],
                "warm" => over[1],
                _ => over[0],
            };
            let phase = u32::from(block.arm == "isolated");
            let wobble = u64::from((block.round + phase) % 3) * 10;
            let mut histogram = new_histogram().unwrap();
            histogram.saturating_record_n(500, 20_000 - of - wobble);
            histogram.saturating_record_n(9_000, of + wobble);
            block.histograms.latency = Some(encode_histogram(&histogram).unwrap());
            (block.load.achieved_per_s, block.load.offered_requests) = (Some(400.0), 20_000);
            let isolated = block.arm == "isolated";
            block.cpu.steal = Some(steal[usize::from(isolated)] + f64::from(block.round) * 1e-3);
        }
        conclude(&mut run);
        run
    }

    /// Checks the verdict on the tail, the verdict of the run, and a part of the reasons.
    fn check(over: [u64; 3], steal: [f64; 2], slo: bool, [tail, whole]: [Verdict; 2], says: &str) {
        let run = run_with(over, steal, slo);
        let said = format!(
            "{:?}\n{:?}\n{:?}",
            run.over_objective,
            run.reasons,
            crate::report::summarise(&run).headline
        );
        assert_eq!(run.over_objective.first().map(|one| one.verdict), Some(tail), "{said}");
        assert_eq!(run.verdict, Some(whole), "{said}");
        assert!(said.contains(says), "{says} is not in {said}");
    }

    // promise 36
    #[test]
    fn no_pass_over_a_harmed_tail() {
        use Verdict::{Fail, Inconclusive, Pass};
        // Of 20,000 requests, 70 slow ones are 0.35 % for the service alone, so 0.175 percentage points more are
        // allowed.
        check([60, 60, 60], [0.0; 2], true, [Pass, Pass], "vs: \"baseline\"");
        check(
            [60, 60, 80],
            [0.0; 2],
            true,
            [Pass, Pass],
            "but 0.45 % of its requests take longer than 5.00 ms",
        );
        check([60, 60, 200], [0.0; 2], true, [Fail, Fail], "1.05 % of the requests take longer than 5000 µs");
        check([60, 60, 95], [0.0; 2], true, [Inconclusive, Inconclusive], "includes the limit");
        // If the service alone has hardly any slow requests, many are still a failure, and one in ten thousand is
        // acceptable.
        check([0, 0, 200], [0.0; 2], true, [Fail, Fail], "1.05 %");
        check([0, 0, 2], [0.0; 2], true, [Pass, Pass], "0.06 %");
        // The warm arm is the stricter comparison if the service is faster there.
        check([200, 20, 200], [0.0; 2], true, [Fail, Fail], "on warm CPUs 0.15 %");
    }

    #[test]
    fn short_windows_tell_the_shares() {
        let mut run = run_with([60, 60, 80], [0.0; 2], true);
        run.design.windows = Some(crate::record::Windows {
            window_s: 0.1,
            guard_s: 0.02,
            tail_s: 0.0,
            per_round: 10,
            contended_s: 2.0,
            contended_every: 2,
        });
        conclude(&mut run);
        let text = crate::report::terminal(&run, false);
        assert!(text.contains("requests over 5.00 ms: baseline 0.35 %, isolated 0.45 %"), "{text}");
        assert!(!text.contains("no window contains a request"), "{text}");
    }

    // promise 36
    #[test]
    fn steal_excuses_a_tail_and_passes_none() {
        use Verdict::{Fail, Inconclusive, Pass};
        check([60, 60, 200], [0.01, 0.3], true, [Inconclusive; 2], "steal time was 0.29 CPUs higher");
        // A small difference in steal time, or less steal time than alone, is no excuse.
        check([60, 60, 200], [0.01, 0.04], true, [Fail, Fail], "1.05 %");
        check([60, 60, 200], [0.3, 0.01], true, [Fail, Fail], "1.05 %");
        check([60, 60, 60], [0.01, 0.3], true, [Pass, Pass], "");
    }

    #[test]
    fn without_a_named_objective_it_is_the_tail_of_the_service_alone() {
        let found = |over| over_objective(&run_with(over, [0.0; 2], false));
        assert_eq!(found([150, 150, 150])[0].verdict, Verdict::Pass);
        assert_eq!(found([150, 150, 500])[0].verdict, Verdict::Fail);
        // If all requests of the tail have the same latency as the percentile, none is above it.
        assert_eq!(found([400, 400, 400]), []);
    }
}
