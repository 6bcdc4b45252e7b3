//! Finds the comparisons of arms on which verdicts are based. An arm is one of the ways of running the online service
//! that a run compares.

use crate::record::{Arm, Comparison, Design, LatenessRule, Metric, Role, Run};
use crate::stats::{SignedRank, mean};
use std::collections::BTreeMap;

/// Fewest rounds from which a comparison has a bound.
const FEWEST: u32 = 5;
/// Additional steal (CPUs) of the baseline on CPUs that may idle, from which the hypervisor disturbs it.
const DISTURBED_CPUS: f64 = 0.01;
/// Significance level of the additional steal.
const SURE: f64 = 0.05;

/// Returns the comparison of an arm with the service alone on one metric. For an isolated or warm arm, "alone" means
/// under the same online settings as in that arm, if the run has such a reference.
pub(crate) fn against_baseline<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    let role = run.arms.iter().find(|other| other.name == arm)?.role;
    let alone = match role {
        Role::Isolated | Role::Warm => run.reference()?,
        _ => run.arm_with(Role::Baseline)?,
    };
    run.comparison(arm, &alone.name, metric)
}

/// Returns the comparison on which the verdict on an isolated arm is based: with the service alone on CPUs that may
/// idle, or with the service alone on CPUs that are kept busy, whichever shows more harm. A service can be faster on a
/// CPU that never idles; isolation must not get the credit for that gain. A baseline that is [`disturbed`] does not count if the
/// other one is usable.
pub(crate) fn against_strictest<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    let cold = against_baseline(run, arm, metric);
    let warm = run.arm_with(Role::Warm).and_then(|warm| run.comparison(arm, &warm.name, metric));
    let bound = |result: &Comparison| result.one_sided.map_or(result.harm_pct, |[_, hi]| hi);
    match (cold, warm) {
        (Some(_), Some(warm)) if warm.rounds >= FEWEST && disturbed(run).is_some() => Some(warm),
        (Some(cold), Some(warm)) if warm.rounds >= FEWEST && cold.rounds < FEWEST => Some(warm),
        (Some(cold), Some(warm)) if warm.rounds >= FEWEST && bound(warm) > bound(cold) => Some(warm),
        (cold, warm) => cold.or(warm),
    }
}

/// Returns whether a baseline has enough usable rounds for a metric.
pub(crate) fn has_bound(result: Option<&Comparison>) -> bool {
    result.is_some_and(|result| result.rounds >= FEWEST)
}

/// How much CPU time the hypervisor took from the service alone, on CPUs that may idle and on CPUs that never idle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Disturbed {
    pub cold_cpus: f64,
    pub warm_cpus: f64,
}

/// Returns whether the hypervisor disturbs the service alone on CPUs that may idle, and not on CPUs that never idle: it took
/// significantly more from the former. A hypervisor wakes a halted virtual CPU late; that delays a service that lets its CPUs
/// idle, and neither the service on warm CPUs nor the service beside offline work.
pub(crate) fn disturbed(run: &Run) -> Option<Disturbed> {
    let (cold, warm) = (run.reference()?, run.arm_with(Role::Warm)?);
    if run.design.lateness == LatenessRule::WholeBlock {
        return None;
    }
    let (more, p) = steal_beside(run, &cold.name, &warm.name)?;
    let cpus =
        |arm: &Arm| mean(&run.blocks_of(&arm.name).filter_map(|block| block.cpu.steal).collect::<Vec<f64>>());
    let both = Disturbed { cold_cpus: cpus(cold)?, warm_cpus: cpus(warm)? };
    (more >= DISTURBED_CPUS && p < SURE).then_some(both)
}

/// Returns whether harm is proven and may be at or above the threshold.
pub(crate) fn proven_harmful(result: &Comparison, design: &Design) -> bool {
    result.one_sided.is_some_and(|[lo, hi]| lo > 0.0 && hi >= design.threshold_of(result.metric))
}

/// Compares the steal time of two arms in the same rounds: returns the additional steal time of `arm` (CPUs) and its
/// p-value; `None` if the machine does not report steal time.
pub(crate) fn steal_beside(run: &Run, arm: &str, vs: &str) -> Option<(f64, f64)> {
    let of = |arm: &str| -> BTreeMap<u32, f64> {
        run.blocks_of(arm).filter_map(|block| Some((block.round, block.cpu.steal?))).collect()
    };
    let beside = of(vs);
    let pairs = of(arm).into_iter().filter_map(|(round, steal)| Some(steal - beside.get(&round)?));
    let ranks = SignedRank::new(&pairs.collect::<Vec<f64>>())?;
    Some((ranks.estimate(), ranks.p_equal(0.0)))
}
