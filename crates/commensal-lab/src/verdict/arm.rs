//! Judges one isolated arm against the thresholds.

use super::compared::{against_baseline, against_strictest};
use crate::format::{brackets, change_pct, log_of_pct, quantum, sentence_list, signed_pct};
use crate::record::{Arm, Comparison, Metric, Run, Verdict};
use crate::stats::{holm, rounds_for_holm, rounds_needed};

/// A question that needs more rounds than this counts as undecidable.
const PRACTICAL_ROUNDS: u32 = 1_000;

/// One gate of an arm, judged among the others.
pub(crate) struct Gate<'a> {
    pub metric: Metric,
    /// The comparison on which it is based; `None` if no round has the metric in both arms.
    pub result: Option<&'a Comparison>,
    pub verdict: Verdict,
}

/// The verdict on each gate of an arm: FAIL where harm beyond the threshold is proven, taking all gates into account,
/// PASS where harm is proven to stay below it.
pub(crate) fn each<'a>(run: &'a Run, arm: &Arm, gates: &[Metric]) -> Vec<Gate<'a>> {
    let results: Vec<_> =
        gates.iter().map(|gate| (*gate, against_strictest(run, &arm.name, *gate))).collect();
    let judged: Vec<&Comparison> = results
        .iter()
        .filter_map(|(_, result)| *result)
        .filter(|result| result.one_sided.is_some())
        .collect();
    // Interim analyses share the error rate.
    let share = 0.05 / run.design.level(run.rounds_begun());
    let p_values: Vec<f64> = judged.iter().map(|result| (result.p_fail * share).min(1.0)).collect();
    let failed: Vec<Metric> = judged
        .iter()
        .zip(holm(&p_values))
        .filter(|(_, rejected)| *rejected)
        .map(|(result, _)| result.metric)
        .collect();
    let verdict =
        |metric: Metric, result: Option<&Comparison>| match result.and_then(|result| result.one_sided) {
            Some(_) if failed.contains(&metric) => Verdict::Fail,
            Some([_, hi]) if hi < run.design.threshold_of(metric) => Verdict::Pass,
            _ => Verdict::Inconclusive,
        };
    results
        .into_iter()
        .map(|(metric, result)| Gate { metric, result, verdict: verdict(metric, result) })
        .collect()
}

/// The verdict on one arm, with a sentence for each gate that matters.
pub(super) fn judge(run: &Run, arm: &Arm, gates: &[Metric]) -> (Verdict, Vec<String>) {
    let gates = each(run, arm, gates);
    let of = |verdict: Verdict| gates.iter().filter(move |gate| gate.verdict == verdict);
    let failed: Vec<String> = of(Verdict::Fail)
        .filter_map(|gate| gate.result)
        .map(|result| {
            let theta = run.design.threshold_of(result.metric);
            format!(
                "arm {}: {} is harmed by more than {theta} % ({})",
                arm.name,
                result.metric.label(),
                with_bounds(run, result)
            )
        })
        .collect();
    if !failed.is_empty() {
        return (Verdict::Fail, failed);
    }
    let judged: Vec<&Comparison> =
        gates.iter().filter_map(|gate| gate.result).filter(|result| result.one_sided.is_some()).collect();
    let open: Vec<String> = of(Verdict::Inconclusive)
        .map(|gate| match gate.result {
            Some(result) if result.one_sided.is_some() => undecided(run, arm, result, judged.len()),
            other => too_few(&arm.name, gate.metric, other.map_or(0, |result| result.rounds)),
        })
        .collect();
    if !open.is_empty() {
        return (Verdict::Inconclusive, open);
    }
    (Verdict::Pass, vec![within(run, arm, &judged)])
}

/// The sentence for a pass: all gates, and the one that came closest to its threshold.
fn within(run: &Run, arm: &Arm, judged: &[&Comparison]) -> String {
    let labels: Vec<&str> = judged.iter().map(|result| result.metric.label()).collect();
    let verb = if labels.len() == 1 { "stays" } else { "stay" };
    let room = |r: &&&Comparison| r.one_sided.map_or(f64::NAN, |b| b[1] / run.design.threshold_of(r.metric));
    let worst = judged.iter().max_by(|a, b| room(a).total_cmp(&room(b)));
    let closest =
        worst.map(|worst| format!("; closest is {} {}", worst.metric.label(), with_bounds(run, worst)));
    format!(
        "arm {}: {} {verb} within {}{}",
        arm.name,
        sentence_list(&labels),
        threshold_words(run, judged.iter().map(|r| r.metric)),
        closest.unwrap_or_default()
    )
}

/// `5 %`, or words when the gates have different thresholds.
pub(crate) fn threshold_words(run: &Run, gates: impl Iterator<Item = Metric>) -> String {
    let mut thresholds: Vec<f64> = gates.map(|gate| run.design.threshold_of(gate)).collect();
    thresholds.dedup();
    match thresholds.as_slice() {
        [one] => format!("{one} %"),
        _ => "their thresholds".to_owned(),
    }
}

/// The change of the metric with the one-sided bounds that the verdict used.
fn with_bounds(run: &Run, result: &Comparison) -> String {
    let step = quantum(run.noise_floor_pct.get(&result.metric).copied());
    let change = |harm| change_pct(result.metric, harm);
    let bounds = result.one_sided.map(|ends| format!(" {}", brackets(ends.map(change), step)));
    format!("{}{}", signed_pct(change(result.harm_pct), step), bounds.unwrap_or_default())
}

fn too_few(arm: &str, gate: Metric, rounds: u32) -> String {
    let label = gate.label();
    format!(
        "arm {arm}: {label} has {rounds} usable rounds, at least 5 are needed for any bound and 6 for an interval"
    )
}

/// The sentence for a gate that is neither proven within its threshold nor proven beyond it.
fn undecided(run: &Run, arm: &Arm, result: &Comparison, gates: usize) -> String {
    let theta = run.design.threshold_of(result.metric);
    let what = format!("arm {}: {} {}", arm.name, result.metric.label(), with_bounds(run, result));
    if result.one_sided.is_some_and(|[lo, _]| lo >= theta) {
        // Harmful taken alone, but Holm's correction asks for more than these rounds can give.
        // Counted as a person counts them: with rounds that could not be used.
        let begun = run.rounds_begun().max(result.rounds);
        let rounds = rounds_for_holm(gates).max(begun.saturating_add(1));
        return format!(
            "{what} is beyond {theta} % taken alone but not among {gates} gates; about {rounds} rounds would decide"
        );
    }
    match rounds_to_decide(result, theta, gates) {
        Some(rounds) => {
            format!("{what} may be on either side of {theta} %; about {rounds} rounds would decide")
        }
        None => format!("{what} is too close to {theta} % for any practical number of rounds at this noise"),
    }
}

/// The number of rounds that would decide the same harm; `None` when out of reach.
pub(crate) fn rounds_to_decide(result: &Comparison, threshold_pct: f64, gates: usize) -> Option<u32> {
    let margin = log_of_pct(threshold_pct) - log_of_pct(result.harm_pct);
    let mut rounds = rounds_needed(result.sd_log?, margin.abs())?;
    if margin < 0.0 {
        rounds = rounds.max(rounds_for_holm(gates));
    }
    // The estimate is itself noisy; a number that was not enough is not suggested again.
    let more = result.rounds.saturating_add(result.rounds.div_ceil(4));
    Some(rounds.max(more)).filter(|rounds| *rounds <= PRACTICAL_ROUNDS)
}

/// A note for each gate on which the arm is proven better than the baseline.
pub(super) fn gains(run: &Run, arm: &Arm, gates: &[Metric]) -> Vec<String> {
    let better = |&gate: &Metric| {
        let result = against_baseline(run, &arm.name, gate)?;
        result.ci95.filter(|[_, hi]| *hi < 0.0)?;
        Some(format!(
            "arm {}: {} is better than in the baseline ({}); a busy neighbour can keep a CPU out of deep idle",
            arm.name,
            gate.label(),
            with_bounds(run, result)
        ))
    };
    gates.iter().filter(|gate| gate.quantile().is_some()).filter_map(better).collect()
}
