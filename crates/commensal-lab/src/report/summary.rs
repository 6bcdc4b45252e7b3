//! The content that terminal and Markdown reports share: the line with the verdict, one table, and facts. An arm is one
//! of the compared ways of running the service; a gate is a metric that determines the verdict.
//!
//! The row of the baseline has absolute values, which are medians over the valid blocks. The other rows have signed
//! changes from the baseline, which are paired Hodges-Lehmann estimates. Each change has as many digits as the metric's
//! noise floor supports.

use super::answer::{answer, anyway, foreign, stolen};
use crate::analysis::Samples;
use crate::format::{
    brackets, change_pct, latency, plain, plus_minus_pct, quantum, sentence_list, signed, signed_pct,
    three_digits,
};
use crate::record::Verdict;
use crate::record::{Arm, ArmBlame, Block, Comparison, Metric, Role, Run};
use crate::stats::{SignedRank, Tail, median};
use crate::verdict::{against_baseline, against_strictest, service_failed, threshold_words};
use std::collections::BTreeSet;

/// The metrics that always have a column.
const COLUMNS: [Metric; 5] = [Metric::Qps, Metric::P50, Metric::P90, Metric::P95, Metric::P99];
/// A cell without a value.
const NOTHING: &str = "–";

/// The report of a run, as text and table cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The verdict as printed.
    pub word: &'static str,
    /// The text after the verdict, on the same line.
    pub headline: String,
    /// For an INVALID or BROKEN run: what the run measured nevertheless, what was wrong, and what to do about the
    /// cause. Otherwise empty.
    pub anyway: Vec<String>,
    /// Titles of the columns. The first title, above the names of the arms, is empty.
    pub titles: Vec<String>,
    /// Rows of the table, in the order of the arms.
    pub rows: Vec<Vec<String>>,
    /// Sentences on the noise floor, the harm that isolation removes, and the offline work that isolation keeps.
    pub facts: Vec<String>,
    /// The reasons for the verdict, followed by the notes.
    pub notes: Vec<String>,
}

/// Formats a concluded run.
pub fn summarise(run: &Run) -> Summary {
    let (samples, _) = Samples::of(run);
    let mut metrics = COLUMNS.to_vec();
    metrics.extend(run.results.iter().map(|r| r.metric).filter(|m| *m == Metric::P999).take(1));
    metrics.extend(run.design.queries.iter().map(|query| query.metric));
    let mut titles = vec![String::new()];
    titles.extend(metrics.iter().map(|m| m.label().to_owned()));
    // The column for waits exists only if the wait probe ran.
    let blamed = !run.blame.is_empty();
    titles.extend(blamed.then(|| "blamed".to_owned()));
    titles.extend(["CPU".to_owned(), "offline work".to_owned()]);
    // With several isolated arms, the worst one determines the verdict, and each has its own verdict in the table.
    titles.extend(ranked(run).then(|| "verdict".to_owned()));
    let shown = |arm: &&Arm| !matches!(arm.role, Role::Baseline2 | Role::OfflineAlone);
    let rows = run.arms.iter().filter(shown).map(|arm| row(run, arm, &metrics, &samples)).collect();
    let mut notes = run.reasons.clone();
    notes.extend(run.notes.iter().cloned());
    let word = run.verdict.map_or("NO VERDICT", Verdict::label);
    Summary { word, headline: headline(run), anyway: anyway(run), titles, rows, facts: facts(run), notes }
}

fn row(run: &Run, arm: &Arm, metrics: &[Metric], samples: &Samples) -> Vec<String> {
    let crashed = service_failed(run, arm);
    let index = run.arms.iter().position(|a| a.name == arm.name);
    let mut cells = vec![arm.name.clone()];
    for &metric in metrics {
        cells.push(if crashed {
            "x".to_owned()
        } else if arm.role == Role::Baseline {
            let values = index.map(|i| samples.values(i, metric)).unwrap_or_default();
            median(&values).map_or(NOTHING.to_owned(), |v| absolute(metric, v))
        } else {
            against_baseline(run, &arm.name, metric).map_or(NOTHING.to_owned(), |r| change(run, r))
        });
    }
    if !run.blame.is_empty() {
        let blame = run.blame.iter().find(|blame| blame.arm == arm.name);
        cells.push(
            blame.map_or(NOTHING.to_owned(), |blame| format!("{} ms/s", wait(blame.offline_ms_per_cpu_s))),
        );
    }
    cells.push(cpu_cell(run, arm).unwrap_or_else(|| NOTHING.to_owned()));
    cells.push(work_cell(run, arm).unwrap_or_else(|| NOTHING.to_owned()));
    if ranked(run) {
        let verdict = run.arm_verdicts.get(&arm.name).map(|verdict| verdict.label());
        cells.push(verdict.unwrap_or(NOTHING).to_owned());
    }
    cells
}

/// Returns whether several isolated arms were judged.
fn ranked(run: &Run) -> bool {
    run.arm_verdicts.len() > 1
}

fn absolute(metric: Metric, value: f64) -> String {
    if metric.quantile().is_some() { latency(value) } else { three_digits(value) }
}

/// Returns the rounding step for printed values of a metric.
fn step(run: &Run, metric: Metric) -> f64 {
    quantum(run.noise_floor_pct.get(&metric).copied())
}

/// Formats a signed change with as many digits as the noise floor supports.
pub(super) fn change(run: &Run, result: &Comparison) -> String {
    signed_pct(change_pct(result.metric, result.harm_pct), step(run, result.metric))
}

/// Returns the share of the machine's CPUs that was busy in a block, in per cent. Steal does not count as busy. A block
/// may lack the offline side's use only if its arm has no offline work.
fn busy_pct(run: &Run, arm: &Arm, block: &Block) -> Option<f64> {
    let runs_offline = matches!(arm.role, Role::Contended | Role::Isolated | Role::OfflineAlone);
    let offline = if runs_offline { block.cpu.offline? } else { block.cpu.offline.unwrap_or_default() };
    let busy = block.cpu.online? + block.cpu.other? + offline;
    (run.machine.threads > 0).then(|| busy / f64::from(run.machine.threads) * 100.0)
}

/// Returns the busy shares of an arm with their rounds, for valid blocks only.
pub(super) fn busy(run: &Run, arm: &Arm) -> Vec<(u32, f64)> {
    let valid = run.blocks_of(&arm.name).filter(|block| block.valid);
    valid.filter_map(|block| Some((block.round, busy_pct(run, arm, block)?))).collect()
}

/// Returns the differences of the busy share between two arms in percentage points, paired by round.
fn busy_differences(run: &Run, arm: &Arm, base: &Arm) -> Option<SignedRank> {
    let base = busy(run, base);
    let pair = |(round, pct)| base.iter().find(|(other, _)| *other == round).map(|(_, b)| pct - b);
    SignedRank::new(&busy(run, arm).into_iter().filter_map(pair).collect::<Vec<f64>>())
}

pub(super) fn cpu_cell(run: &Run, arm: &Arm) -> Option<String> {
    let base = run.arm_with(Role::Baseline)?;
    if arm.role == Role::Baseline {
        let values: Vec<f64> = busy(run, arm).into_iter().map(|(_, pct)| pct).collect();
        return median(&values).map(|pct| format!("{pct:.1} %"));
    }
    let floor = run
        .arm_with(Role::Baseline2)
        .and_then(|twin| busy_differences(run, twin, base)?.interval(Tail::TwoSided95))
        .map(|i| i.half_width().max(1.0));
    Some(format!("{} pp", signed(busy_differences(run, arm, base)?.estimate(), quantum(floor))))
}

fn work_cell(run: &Run, arm: &Arm) -> Option<String> {
    let mut works = run.blocks_of(&arm.name).filter(|block| block.valid).map(|block| block.work.offline);
    match arm.role {
        Role::Contended => works.any(|work| work.is_some()).then(|| "100 %".to_owned()),
        Role::Isolated => {
            let kept = run.offline.iter().find(|kept| kept.arm == arm.name)?;
            kept.kept_vs_contended_pct.map(|pct| format!("{pct:.0} %"))
        }
        _ => None,
    }
}

/// Returns the gates for which some arm has a result.
fn gates(run: &Run) -> Vec<Metric> {
    let have: BTreeSet<Metric> = run.results.iter().map(|r| r.metric).collect();
    run.design.gates.iter().copied().filter(|gate| have.contains(gate)).collect()
}

/// Returns the gate result that is worst relative to its threshold, over all isolated arms.
fn decisive(run: &Run) -> Option<&Comparison> {
    let gates = gates(run);
    let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
    let results = isolated.flat_map(|arm| gates.iter().filter_map(|g| against_strictest(run, &arm.name, *g)));
    let failing = run.verdict == Some(Verdict::Fail);
    let badness = |r: &Comparison| {
        let bound = r.one_sided.map_or(r.harm_pct, |[lo, hi]| if failing { lo } else { hi });
        bound / run.design.threshold_of(r.metric)
    };
    results.max_by(|a, b| badness(a).total_cmp(&badness(b)))
}

/// Formats `P99 +1.9 % [−0.8, +4.3], 12 rounds, noise floor ±2.1 %`.
fn evidence(run: &Run) -> Option<String> {
    let result = decisive(run)?;
    let step = step(run, result.metric);
    let ends = result.ci95.map(|ends| ends.map(|harm| change_pct(result.metric, harm)));
    let ends = ends.map(|ends| format!(" {}", brackets(ends, step))).unwrap_or_default();
    let floor = run.noise_floor_pct.get(&result.metric);
    let floor = floor
        .map_or("noise floor unknown".to_owned(), |f| format!("noise floor {}", plus_minus_pct(*f, step)));
    let several = run.arms.iter().filter(|arm| arm.role == Role::Isolated).count() > 1;
    let arm = if several { format!("{}: ", result.arm) } else { String::new() };
    let (label, change) = (result.metric.label(), change(run, result));
    Some(format!("({arm}{label} {change}{ends}, {} rounds, {floor})", result.rounds))
}

fn headline(run: &Run) -> String {
    if let Some(answer) = crate::analysis::answered(run).or_else(|| answer(run)) {
        return answer;
    }
    let labels: Vec<&str> = gates(run).iter().map(|gate| gate.label()).collect();
    let limit = threshold_words(run, gates(run).into_iter());
    let evidence = evidence(run).map(|e| format!("  {e}")).unwrap_or_default();
    match run.verdict {
        None => "the run has no verdict yet".to_owned(),
        Some(Verdict::Pass) => format!("isolation keeps {} within {limit}{evidence}", sentence_list(&labels)),
        Some(Verdict::Fail) => {
            let metric = decisive(run).map_or("the gates", |r| r.metric.label());
            format!("isolation does not keep {metric} within {limit}{evidence}")
        }
        Some(Verdict::Inconclusive) => {
            format!("it is undecided whether isolation keeps the harm within {limit}{evidence}")
        }
        Some(Verdict::Invalid) => "the measurement is invalid, so its values are not a result".to_owned(),
        Some(Verdict::Broken) => "the online service failed under isolation".to_owned(),
    }
}

fn facts(run: &Run) -> Vec<String> {
    let mut facts = vec![noise_floor(run)];
    facts.extend(warm(run));
    facts.extend(foreign(run));
    facts.extend(stolen(run));
    // Waits do not depend on the noise in latencies, so these facts are valid even if the run is INVALID.
    facts.extend(run.blame.iter().map(blamed));
    if run.verdict == Some(Verdict::Invalid) {
        return facts;
    }
    facts.extend(slo(run));
    for arm in run.arms.iter().filter(|arm| arm.role == Role::Isolated) {
        let name = if arm.name == "isolated" { "isolation" } else { &arm.name };
        facts.push(removed(run, arm, name));
        facts.push(kept(run, arm, name));
    }
    facts
}

/// Formats the comparison of the isolated arm with the service alone on CPUs that never idle.
fn warm(run: &Run) -> Option<String> {
    let warm = run.arm_with(Role::Warm)?;
    let isolated = run.arm_with(Role::Isolated)?;
    let each: Vec<String> = run
        .design
        .gates
        .iter()
        .filter(|gate| gate.quantile().is_some())
        .filter_map(|gate| run.comparison(&isolated.name, &warm.name, *gate))
        .map(|result| {
            let step = step(run, result.metric);
            let ends = result.ci95.map(|ends| format!(" {}", brackets(ends, step))).unwrap_or_default();
            format!("{} {}{ends}", result.metric.label(), change(run, result))
        })
        .collect();
    (!each.is_empty()).then(|| {
        format!("isolated, compared with the service alone on CPUs that never idle: {}", each.join(", "))
    })
}

/// Formats `P99 within 5.00 ms in windows of 1 s: baseline 100.0 %, contended 12.5 %`, over the valid blocks of each
/// arm.
fn slo(run: &Run) -> Option<String> {
    let slo = run.design.slo?;
    if run.design.windows.is_some() {
        return shares(run, slo.latency_us);
    }
    let mut parts = Vec::new();
    for arm in run.arms.iter().filter(|arm| arm.role != Role::OfflineAlone) {
        let seen: Vec<_> =
            run.blocks_of(&arm.name).filter(|block| block.valid).filter_map(|block| block.slo).collect();
        let (windows, met) = seen.iter().fold((0, 0), |(all, met), one| (all + one.windows, met + one.met));
        if windows > 0 {
            parts.push(format!(
                "{} {:.1} % of {windows}",
                arm.name,
                f64::from(met) / f64::from(windows) * 100.0
            ));
        }
    }
    let parts = if parts.is_empty() { "no window contains a request".to_owned() } else { parts.join(", ") };
    let (label, bound) = (slo.metric.label(), latency(slo.latency_us));
    Some(format!("{label} within {bound} in windows of {} s: {parts}", slo.window_s))
}

/// Formats `requests over 5.00 ms: policy-only 0.21 %, isolated 0.20 %`. Runs with short windows use this line, because
/// their windows are shorter than the windows in the objective.
fn shares(run: &Run, objective_us: f64) -> Option<String> {
    let mut parts = Vec::new();
    for tail in &run.over_objective {
        for (arm, pct) in [(&tail.vs, tail.alone_pct), (&tail.arm, tail.arm_pct)] {
            let part = format!("{arm} {pct:.2} %");
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    (!parts.is_empty()).then(|| format!("requests over {}: {}", latency(objective_us), parts.join(", ")))
}

/// Formats `isolated: wait blamed on offline work 8.3 ms per CPU-second [7.1, 10.2], …: PASS on waits`.
fn blamed(blame: &ArmBlame) -> String {
    let ends = |ends: Option<[f64; 2]>| {
        ends.map(|[lo, hi]| format!(" [{}, {}]", wait(lo), wait(hi))).unwrap_or_default()
    };
    let p99 = blame.preemption_p99_us.map(|us| format!(", preemption delay {} (P99)", latency(us)));
    let total = blame.total_difference_ms_per_cpu_s.map(|ms| {
        let sign = if ms < 0.0 { "−" } else { "+" };
        let ends = blame
            .total_difference_ci95
            .map(|[lo, hi]| format!(" [{}, {}]", signed_wait(lo), signed_wait(hi)));
        format!(
            ", waits of any cause {sign}{}{} against the baseline",
            wait(ms.abs()),
            ends.unwrap_or_default()
        )
    });
    format!(
        "{}: wait blamed on offline work {} ms per CPU-second{}{}{}: {} on waits",
        blame.arm,
        wait(blame.offline_ms_per_cpu_s),
        ends(blame.ci95),
        p99.unwrap_or_default(),
        total.unwrap_or_default(),
        blame.verdict.label()
    )
}

/// Formats milliseconds with one decimal below 10 and with none above.
fn wait(ms: f64) -> String {
    if ms.abs() < 9.95 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

fn signed_wait(ms: f64) -> String {
    let sign = if ms < 0.0 { "−" } else { "+" };
    format!("{sign}{}", wait(ms.abs()))
}

fn noise_floor(run: &Run) -> String {
    if run.noise_floor_pct.is_empty() {
        return "noise floor unknown: measuring it needs a second baseline arm and 5 rounds".to_owned();
    }
    let shown = |(metric, _): &(&Metric, &f64)| COLUMNS.contains(metric) || run.design.gates.contains(metric);
    let each =
        run.noise_floor_pct.iter().filter(shown).map(|(metric, floor)| {
            format!("{} {}", metric.label(), plus_minus_pct(*floor, step(run, *metric)))
        });
    let twin = run.arm_with(Role::Baseline2).map(|twin| twin.name.as_str());
    let few = run.results.iter().any(|result| Some(result.arm.as_str()) == twin && result.rounds == 5);
    let few = if few { " of 5 rounds (94 % intervals)" } else { "" };
    format!("noise floor, from two identical arms{few}: {}", each.collect::<Vec<_>>().join(", "))
}

/// Formats `isolation removes 98 % [95, 100] of the P99 harm`, with every metric for which harm without isolation is
/// proven.
fn removed(run: &Run, arm: &Arm, name: &str) -> String {
    let each: Vec<String> = run
        .attribution
        .iter()
        .filter(|a| a.arm == arm.name && run.design.gates.contains(&a.metric))
        .map(|a| {
            let ends = a.ci95.map(|[lo, hi]| format!(" [{}, {}]", plain(lo, 1.0), plain(hi, 1.0)));
            let (pct, ends) = (plain(a.removed_pct, 1.0), ends.unwrap_or_default());
            format!("{pct} %{ends} of the {} harm", a.metric.label())
        })
        .collect();
    if each.is_empty() {
        return format!(
            "{name}: no harm is proven without isolation, so it is unknown how much isolation removes"
        );
    }
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    format!("{name} removes {}", sentence_list(&each))
}

/// Formats `isolation keeps 81 % [79, 83] of the offline work`.
fn kept(run: &Run, arm: &Arm, name: &str) -> String {
    let unknown =
        || format!("{name}: offline work kept is unknown, because the arms report no amount of offline work");
    let Some(kept) = run.offline.iter().find(|kept| kept.arm == arm.name) else { return unknown() };
    let mut parts = Vec::new();
    if let Some(pct) = kept.kept_vs_contended_pct {
        let ends = kept.kept_vs_contended_ci95.map(|[lo, hi]| format!(" [{lo:.0}, {hi:.0}]"));
        parts.push(format!("keeps {pct:.0} %{} of the offline work", ends.unwrap_or_default()));
    }
    if let Some(pct) = kept.kept_vs_alone_pct {
        parts.push(format!("reaches {pct:.0} % of the throughput of offline work alone"));
    }
    if let Some(pct) = kept.cpu_left_used_pct {
        parts.push(format!("uses {pct:.0} % of the CPU time that online work leaves"));
    }
    if parts.is_empty() {
        return unknown();
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let emu = kept.emu_pct.map(|pct| format!(" (EMU {pct:.0} %)")).unwrap_or_default();
    format!("{name} {}{emu}", sentence_list(&parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::concluded;

    /// The headline describes the arm that is closest to its bound, compared with the baseline that shows more harm.
    #[test]
    fn the_headline_tells_of_the_arm_nearest_to_its_bound() {
        let mut run = concluded(12, [0.0, 0.5, -0.19], 0.005);
        let arm = |name: &str, role| Arm { name: name.into(), role, policy: None, offline: None };
        run.arms.extend([arm("warm", Role::Warm), arm("isolated:nice", Role::Isolated)]);
        let own: Vec<Comparison> = run.results.iter().filter(|r| r.arm == "isolated").cloned().collect();
        for mut result in own.into_iter().filter(|result| result.vs == "baseline") {
            let mut other = Comparison { arm: "isolated:nice".into(), ..result.clone() };
            if result.metric == Metric::Qps {
                let still = |result: &mut Comparison| {
                    (result.harm_pct, result.ci95, result.one_sided) = (0.0, Some([0.0; 2]), Some([0.0; 2]));
                };
                still(&mut other);
                still(&mut result);
                let known = |r: &&mut Comparison| {
                    r.metric == Metric::Qps && r.arm == "isolated" && r.vs == "baseline"
                };
                run.results.iter_mut().filter(known).for_each(still);
            }
            if result.metric == Metric::P50 {
                (result.harm_pct, result.ci95, result.one_sided) = (2.0, Some([0.5, 3.5]), Some([0.7, 3.3]));
            }
            run.results.extend([other, Comparison { vs: "warm".into(), ..result }]);
        }
        run.verdict = Some(Verdict::Pass);
        let headline = summarise(&run).headline;
        assert!(
            headline.starts_with("with isolation your service's median is at most 3.3 % slower than alone"),
            "{headline}"
        );
    }
}
