//! Finds the comparisons of arms on which verdicts are based. An arm is one of the ways of running the online service
//! that a run compares.

use crate::record::{Comparison, Design, Metric, Role, Run};

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
/// CPU that never idles; isolation must not get the credit for that gain.
pub(crate) fn against_strictest<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    let cold = against_baseline(run, arm, metric);
    let warm = run.arm_with(Role::Warm).and_then(|warm| run.comparison(arm, &warm.name, metric));
    let bound = |result: &Comparison| result.one_sided.map_or(result.harm_pct, |[_, hi]| hi);
    match (cold, warm) {
        (Some(cold), Some(warm)) if warm.rounds >= 5 && bound(warm) > bound(cold) => Some(warm),
        (cold, warm) => cold.or(warm),
    }
}

/// Returns whether harm is proven and may be at or above the threshold.
pub(crate) fn proven_harmful(result: &Comparison, design: &Design) -> bool {
    result.one_sided.is_some_and(|[lo, hi]| lo > 0.0 && hi >= design.threshold_of(result.metric))
}
