//! The tail of an isolated arm: the share of requests over an objective, compared with the service alone. A percentile far out
//! needs more requests than a block of short windows has; counts over a fixed latency can be paired and bounded all the same.

use crate::record::{Block, LatencyHistogram, OverObjective, Role, Run, decode_histogram};
use crate::verdict::Verdict;
use commensal_core::windows::{Answer, Paired};
use std::collections::BTreeMap;

/// The objective, where the user names none, is this percentile of the service alone.
const OF_ALONE: f64 = 0.99;
/// How much more of the requests than alone may be over the objective, as a share of those alone.
pub const MOST_MORE: f64 = 0.5;
/// Steal that may differ between two arms, CPUs, for a tail to be isolation's doing.
const STEAL: f64 = 0.05;
/// Fewest requests over the objective, alone, for a share to mean anything.
const FEWEST: f64 = 100.0;

fn histogram(block: &Block) -> Option<LatencyHistogram> {
    decode_histogram(block.hist.as_deref()?).ok()
}

/// Every isolated arm against the service alone.
pub fn over_objective(run: &Run) -> Vec<OverObjective> {
    let Some(alone) = run.reference() else { return Vec::new() };
    let of = |arm: &str| -> BTreeMap<u32, LatencyHistogram> {
        let valid = run.blocks_of(arm).filter(|block| block.valid && !block.online_crashed);
        valid.filter_map(|block| Some((block.round, histogram(block)?))).collect()
    };
    let reference = of(&alone.name);
    let Some(objective_us) = run.design.slo.map(|slo| slo.latency_us).or_else(|| percentile(&reference))
    else {
        return Vec::new();
    };
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
    isolated
        .filter_map(|arm| one(run, (&arm.name, &of(&arm.name)), (&alone.name, &reference), objective_us))
        .collect()
}

/// The percentile of all blocks together.
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
    let ((missed, alone_pct), (_, arm_pct)) = (whole(alone), whole(its));
    if missed < FEWEST {
        return None;
    }
    let steal = |arm: &str| {
        let seen: Vec<f64> = run.blocks_of(arm).filter_map(|block| block.cpu.steal).collect();
        crate::stats::mean(&seen)
    };
    let steal = [steal(vs), steal(arm)];
    let alike = steal[0].zip(steal[1]).is_none_or(|(a, b)| (a - b).abs() <= STEAL);
    let allowed = alone_pct * MOST_MORE;
    let paired = Paired::new(&differences, allowed, run.design.level(run.rounds_begun()))?;
    let verdict = match paired.answer {
        _ if !alike => Verdict::Inconclusive,
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
        verdict,
    })
}
