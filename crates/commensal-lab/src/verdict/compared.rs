//! The comparisons on which verdicts are based.

use crate::record::{Comparison, Design, Metric, Role, Run};

/// Compares an arm with the service alone on one metric, using the same online settings where the run has such an arm.
pub(crate) fn against_baseline<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    let role = run.arms.iter().find(|other| other.name == arm)?.role;
    let alone = match role {
        Role::Isolated | Role::Warm => run.reference()?,
        _ => run.arm_with(Role::Baseline)?,
    };
    run.comparison(arm, &alone.name, metric)
}

/// The comparison on which the verdict on an isolated arm is based: against the cold or the warm service alone,
/// whichever shows more harm. What a service gains from a CPU that never idles must not be credited to isolation.
pub(crate) fn against_strictest<'a>(run: &'a Run, arm: &str, metric: Metric) -> Option<&'a Comparison> {
    let cold = against_baseline(run, arm, metric);
    let warm = run.arm_with(Role::Warm).and_then(|warm| run.comparison(arm, &warm.name, metric));
    let bound = |result: &Comparison| result.one_sided.map_or(result.harm_pct, |[_, hi]| hi);
    match (cold, warm) {
        (Some(cold), Some(warm)) if warm.rounds >= 5 && bound(warm) > bound(cold) => Some(warm),
        (cold, warm) => cold.or(warm),
    }
}

/// Whether harm is proven and not proven to be under the threshold.
pub(crate) fn proven_harmful(result: &Comparison, design: &Design) -> bool {
    result.one_sided.is_some_and(|[lo, hi]| lo > 0.0 && hi >= design.threshold_of(result.metric))
}
