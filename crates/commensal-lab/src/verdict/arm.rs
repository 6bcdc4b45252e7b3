//! Judges one isolated arm by its gates: the metrics whose harm determines the verdict.

use super::compared::{against_baseline, against_strictest};
use crate::format::{brackets, change_pct, log_of_pct, quantum, sentence_list, signed_pct};
use crate::record::{Arm, Comparison, Metric, Run, Verdict};
use crate::stats::{holm, rounds_for_holm, rounds_needed};

/// Largest number of rounds that a reason suggests. A question that needs more rounds counts as undecidable.
const PRACTICAL_ROUNDS: u32 = 1_000;

/// The verdict on one gate of an arm. It depends on the arm's other gates through Holm's correction.
pub(crate) struct Gate<'a> {
    pub metric: Metric,
    /// The comparison on which the verdict is based; `None` if no round has a value of the metric in both arms.
    pub result: Option<&'a Comparison>,
    pub verdict: Verdict,
}

/// Returns the verdict on each gate of an arm. FAIL: the rounds prove harm at or above the threshold, with correction
/// for the number of gates. PASS: the rounds prove that the harm stays below the threshold. Otherwise INCONCLUSIVE.
pub(crate) fn each<'a>(run: &'a Run, arm: &Arm, gates: &[Metric]) -> Vec<Gate<'a>> {
    let results: Vec<_> =
        gates.iter().map(|gate| (*gate, against_strictest(run, &arm.name, *gate))).collect();
    let tested: Vec<&Comparison> = results
        .iter()
        .filter_map(|(_, result)| *result)
        .filter(|result| result.one_sided.is_some())
        .collect();
    // The error rate is divided among the interim analyses.
    let level = |result: &Comparison| result.level.unwrap_or_else(|| run.design.level(run.rounds_begun()));
    let p_values: Vec<f64> =
        tested.iter().map(|result| (result.p_fail * 0.05 / level(result)).min(1.0)).collect();
    let failed: Vec<Metric> = tested
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

/// Returns the verdict on one arm, with a sentence for each gate that determines it.
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
    let tested: Vec<&Comparison> =
        gates.iter().filter_map(|gate| gate.result).filter(|result| result.one_sided.is_some()).collect();
    let open: Vec<String> = of(Verdict::Inconclusive)
        .map(|gate| match gate.result {
            Some(result) if result.one_sided.is_some() => undecided(run, arm, result, tested.len()),
            other => too_few(run, &arm.name, gate.metric, other.map_or(0, |result| result.rounds)),
        })
        .collect();
    if !open.is_empty() {
        return (Verdict::Inconclusive, open);
    }
    (Verdict::Pass, vec![within(run, arm, &tested)])
}

/// Formats the reason for a pass: all gates, and the gate that came closest to its threshold.
fn within(run: &Run, arm: &Arm, tested: &[&Comparison]) -> String {
    let labels: Vec<&str> = tested.iter().map(|result| result.metric.label()).collect();
    let verb = if labels.len() == 1 { "stays" } else { "stay" };
    let room = |r: &&&Comparison| r.one_sided.map_or(f64::NAN, |b| b[1] / run.design.threshold_of(r.metric));
    let worst = tested.iter().max_by(|a, b| room(a).total_cmp(&room(b)));
    let closest = worst.map(|worst| {
        format!("; closest to its threshold is {} {}", worst.metric.label(), with_bounds(run, worst))
    });
    format!(
        "arm {}: {} {verb} within {}{}",
        arm.name,
        sentence_list(&labels),
        threshold_words(run, tested.iter().map(|r| r.metric)),
        closest.unwrap_or_default()
    )
}

/// Formats the threshold, such as `5 %`, or `their thresholds` if the gates have different thresholds.
pub(crate) fn threshold_words(run: &Run, gates: impl Iterator<Item = Metric>) -> String {
    let mut thresholds: Vec<f64> = gates.map(|gate| run.design.threshold_of(gate)).collect();
    thresholds.dedup();
    match thresholds.as_slice() {
        [one] => format!("{one} %"),
        _ => "their thresholds".to_owned(),
    }
}

/// Formats the change of a metric with the one-sided bounds that the verdict used.
fn with_bounds(run: &Run, result: &Comparison) -> String {
    let step = quantum(run.noise_floor_pct.get(&result.metric).copied());
    let change = |harm| change_pct(result.metric, harm);
    let bounds = result.one_sided.map(|ends| format!(" {}", brackets(ends.map(change), step)));
    format!("{}{}", signed_pct(change(result.harm_pct), step), bounds.unwrap_or_default())
}

fn too_few(run: &Run, arm: &str, gate: Metric, rounds: u32) -> String {
    let (label, needed) = (gate.label(), rounds_for_bound(run));
    format!("arm {arm}: {label} has {rounds} usable rounds; a confidence bound needs {needed}")
}

/// Returns the number of rounds from which a confidence bound exists. An interim analysis has a smaller error rate, and needs
/// more.
pub(super) fn rounds_for_bound(run: &Run) -> u32 {
    run.design.level(run.rounds_begun()).recip().log2().ceil() as u32
}

/// Formats the reason for a gate that is proven neither to stay within its threshold nor to exceed it.
fn undecided(run: &Run, arm: &Arm, result: &Comparison, gates: usize) -> String {
    let theta = run.design.threshold_of(result.metric);
    let what = format!("arm {}: {} {}", arm.name, result.metric.label(), with_bounds(run, result));
    if result.one_sided.is_some_and(|[lo, _]| lo >= theta) {
        // The gate is harmful taken alone, but Holm's correction requires more rounds. The suggested number includes
        // the rounds that could not be used, because the reader of the report counts all rounds.
        let begun = run.rounds_begun().max(result.rounds);
        let rounds = rounds_for_holm(gates).max(begun.saturating_add(1));
        return format!(
            "{what} is proven to exceed {theta} % if tested alone, but not after correction for {gates} \
             gates; about {rounds} rounds would decide"
        );
    }
    match rounds_to_decide(result, theta, gates) {
        Some(rounds) => {
            format!(
                "{what} is neither proven below {theta} % nor proven above; about {rounds} rounds would decide"
            )
        }
        None => format!(
            "{what} is so close to {theta} % that, at this noise, no practical number of rounds would decide"
        ),
    }
}

/// Returns the number of rounds that would decide the gate if the harm stayed as measured; `None` when that number is
/// impractically large.
pub(crate) fn rounds_to_decide(result: &Comparison, threshold_pct: f64, gates: usize) -> Option<u32> {
    let margin = log_of_pct(threshold_pct) - log_of_pct(result.harm_pct);
    let mut rounds = rounds_needed(result.sd_log?, margin.abs())?;
    if margin < 0.0 {
        rounds = rounds.max(rounds_for_holm(gates));
    }
    // The estimate of the noise is itself noisy. If the rounds so far did not decide, the suggestion must be larger
    // than their number.
    let more = result.rounds.saturating_add(result.rounds.div_ceil(4));
    Some(rounds.max(more)).filter(|rounds| *rounds <= PRACTICAL_ROUNDS)
}

/// Returns a note for each gate on which the arm is proven to be better than the baseline.
pub(super) fn gains(run: &Run, arm: &Arm, gates: &[Metric]) -> Vec<String> {
    let better = |&gate: &Metric| {
        let result = against_baseline(run, &arm.name, gate)?;
        result.ci95.filter(|[_, hi]| *hi < 0.0)?;
        Some(format!(
            "arm {}: {} is better than in the baseline ({}): offline work may keep CPUs from deep idle states, from which \
             they wake slowly",
            arm.name,
            gate.label(),
            with_bounds(run, result)
        ))
    };
    gates.iter().filter(|gate| gate.quantile().is_some()).filter_map(better).collect()
}
