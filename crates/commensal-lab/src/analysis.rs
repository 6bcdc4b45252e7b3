//! Compares the arms of a run (the conditions, such as the service alone or next to offline work) by their recorded
//! blocks. The functions depend only on the run. A block measures one arm once; a round measures every arm once.
//!
//! The baseline is the service alone, and baseline2 measures the same condition again. The contended arm adds offline
//! work, and an isolated arm also adds isolation. Harm is the relative worsening of a metric: higher latency or lower
//! throughput.
//!
//! The value of a percentile comes from the histogram of one block, never from the requests of several blocks together.
//! Each comparison pairs the blocks of the same round, if both blocks are valid, and uses the log-ratio of their
//! values; positive is harm. The analysis keeps outliers.

mod blamed;
pub(crate) mod lateness;
mod offline;
mod samples;
pub(crate) mod stretch;
mod sweep;
mod tail;

pub use blamed::blamed;
pub use offline::offline_kept;
pub use samples::{Samples, online_failed};
pub use sweep::{SweepKnee, answered, knee, need_not_hold};
pub use tail::over_objective;

use crate::format::{log_of_pct, pct_of_log};
use crate::record::{Arm, Attribution, Comparison, Design, Metric, Role, Run};
use crate::stats::{Interval, SignedRank, Tail, by_value};
use crate::verdict::{self, proven_harmful};
use commensal_core::windows::Paired;
use std::collections::BTreeMap;

/// The results of all comparisons between arms.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Findings {
    /// All comparisons: every arm against the baseline, and isolated arms also against the contended arm. If a run has
    /// a policy-only arm (isolation without offline work) or a warm arm (CPUs kept from idling), the isolated arms are
    /// compared with those arms, too.
    pub results: Vec<Comparison>,
    /// For each metric: half-width of the two-sided 95 % confidence interval of the difference between the two
    /// identical arms (per cent).
    pub noise_floor_pct: BTreeMap<Metric, f64>,
    /// The share of harm that isolation removes, for metrics on which harm in the contended arm is proven.
    pub attribution: Vec<Attribution>,
}

/// Computes all results from the blocks and stores them in the run; replaces earlier results.
pub fn conclude(run: &mut Run) {
    let (samples, notes) = Samples::of(run);
    conclude_from(run, &samples, notes);
}

/// Computes all results like [`conclude`], from the given samples instead of the blocks; `notes` become the first notes
/// of the run.
pub fn conclude_from(run: &mut Run, samples: &Samples, mut notes: Vec<String>) {
    let findings = compare(&run.arms, &run.design, samples);
    run.results = findings.results;
    run.noise_floor_pct = findings.noise_floor_pct;
    run.attribution = findings.attribution;
    run.offline = offline_kept(run);
    run.blame = blamed(run);
    run.over_objective = over_objective(run);
    let mut judgement = verdict::judge(run);
    sweep::settle(run, &mut judgement);
    notes.extend(judgement.notes);
    run.verdict = Some(judgement.verdict);
    run.arm_verdicts = judgement.arms;
    run.reasons = judgement.reasons;
    run.notes = notes;
}

/// Compares the arms on every metric. A pair of blocks takes part if both blocks have a value of the metric.
pub fn compare(arms: &[Arm], design: &Design, samples: &Samples) -> Findings {
    let find = |role| arms.iter().position(|arm| arm.role == role);
    let mut findings = Findings::default();
    let Some(baseline) = find(Role::Baseline) else { return findings };
    // An arm with the policies' online settings is also compared with the service alone under those settings.
    let reference = find(Role::PolicyOnly).unwrap_or(baseline);
    let warm = find(Role::Warm);
    // If a run has several kinds of offline work, an isolated arm is compared with the contended arm of equal offline
    // work.
    let contended_for = |arm: &Arm| {
        arms.iter().position(|other| other.role == Role::Contended && other.offline == arm.offline)
    };
    for (index, arm) in arms.iter().enumerate() {
        if matches!(arm.role, Role::Baseline | Role::OfflineAlone) {
            continue;
        }
        compare_arms(arms, design, samples, (index, baseline), &mut findings.results);
        if matches!(arm.role, Role::Isolated | Role::Warm) && reference != baseline {
            compare_arms(arms, design, samples, (index, reference), &mut findings.results);
        }
        if let (Role::Isolated, Some(warm)) = (arm.role, warm) {
            compare_arms(arms, design, samples, (index, warm), &mut findings.results);
        }
        if let (Role::Isolated, Some(contended)) = (arm.role, contended_for(arm)) {
            compare_arms(arms, design, samples, (index, contended), &mut findings.results);
        }
    }
    if let Some(baseline2) = find(Role::Baseline2) {
        // Five rounds give no 95 % interval; the noise floor then comes from the widest possible interval (94 %).
        let floor = |r: &Comparison| r.ci95.or(r.one_sided).map(|[lo, hi]| (r.metric, (hi - lo) / 2.0));
        let (a, b) = (&arms[baseline2].name, &arms[baseline].name);
        findings.noise_floor_pct =
            findings.results.iter().filter(|r| r.arm == *a && r.vs == *b).filter_map(floor).collect();
    }
    let isolated = arms.iter().enumerate().filter(|(_, arm)| arm.role == Role::Isolated);
    for (index, arm) in isolated {
        let Some(contended) = contended_for(arm) else { continue };
        let trio = Trio { isolated: index, contended, baseline, reference };
        for metric in design.metrics() {
            let harm = findings
                .results
                .iter()
                .find(|r| r.metric == metric && r.arm == arms[contended].name && r.vs == arms[baseline].name);
            if harm.is_some_and(|r| proven_harmful(r, design)) {
                findings.attribution.extend(attribute(&arm.name, metric, samples, trio));
            }
        }
    }
    findings
}

/// Fewest pairs that are alike with which the others are left out: a confidence interval needs six.
const FEWEST_ALIKE: usize = 6;

/// Returns the log-ratios of one metric between two arms, one per round, in the order of the rounds; positive is harm.
///
/// Pairs of which the hypervisor hit one block much harder than the other are left out, if the others are enough and at least
/// half of all: a burst of steal says nothing about the arms. Steal is independent of the metric, so that leaving a pair out
/// cannot favour an answer. Arms that differ in steal in most rounds are compared as they are.
pub fn paired_log_ratios(samples: &Samples, metric: Metric, arm: usize, vs: usize) -> Vec<f64> {
    let sign = if metric.more_is_better() { -1.0 } else { 1.0 };
    let pairs: Vec<(u32, f64)> = samples
        .rounds(arm)
        .filter_map(|round| {
            let (a, b) = (samples.get(arm, round, metric)?, samples.get(vs, round, metric)?);
            Some((round, sign * (a.ln() - b.ln())))
        })
        .collect();
    let alike: Vec<f64> =
        pairs.iter().filter(|(round, _)| samples.alike(arm, vs, *round)).map(|(_, log)| *log).collect();
    let enough = alike.len() >= FEWEST_ALIKE && alike.len() * 2 >= pairs.len();
    if enough { alike } else { pairs.into_iter().map(|(_, log)| log).collect() }
}

/// Appends the comparisons of arm `pair.0` with arm `pair.1`, one per metric.
fn compare_arms(
    arms: &[Arm],
    design: &Design,
    samples: &Samples,
    pair: (usize, usize),
    into: &mut Vec<Comparison>,
) {
    // Arms that are left out after an analysis keep its level.
    let rounds = if design.levels.is_empty() { samples.begun() } else { samples.shared(pair.0, pair.1) };
    let role = arms[pair.0].role;
    let level = design.level_of(role, rounds);
    // The interval of an arm that can end the run has to hold at all analyses together.
    let interval = (role == Role::Isolated && !design.levels.is_empty()).then_some(level / 2.0);
    for metric in design.metrics() {
        let logs = paired_log_ratios(samples, metric, pair.0, pair.1);
        let names = (arms[pair.0].name.as_str(), arms[pair.1].name.as_str());
        into.extend(compare_logs(names, metric, (design, level, interval), &logs));
    }
}

/// Computes a comparison from the log-ratios of the rounds; returns `None` if there are no log-ratios.
fn compare_logs(
    (arm, vs): (&str, &str),
    metric: Metric,
    (design, level, interval): (&Design, f64, Option<f64>),
    logs: &[f64],
) -> Option<Comparison> {
    let threshold = log_of_pct(design.threshold_of(metric));
    let paired = Paired::new(logs, threshold, level)?;
    let ci95 = match interval {
        Some(each) => Paired::new(logs, threshold, each)?.bounds,
        None => paired.ci95,
    };
    let in_pct = |i: Interval| {
        let i = i.map(pct_of_log);
        [i.lo, i.hi]
    };
    Some(Comparison {
        arm: arm.to_owned(),
        vs: vs.to_owned(),
        metric,
        harm_pct: pct_of_log(paired.estimate),
        ci95: ci95.map(in_pct),
        one_sided: paired.bounds.map(in_pct),
        level: Some(level),
        mean_pct: pct_of_log(paired.mean),
        mean_t_ci95: paired.mean_t_ci95.map(in_pct),
        p_fail: paired.p_beyond,
        p_equal: Some(paired.p_equal),
        sd_log: paired.standard_deviation,
        rounds: paired.pairs,
        method: if paired.exact { "hl-signed-rank" } else { "hl-signed-rank-normal" }.to_owned(),
    })
}

/// Indices of the arms from which an attribution is computed.
#[derive(Debug, Clone, Copy)]
struct Trio {
    isolated: usize,
    contended: usize,
    /// The arm with which the contended arm is compared.
    baseline: usize,
    /// The arm with which the isolated arm is compared: the service alone under the same online settings.
    reference: usize,
}

/// Estimates which share of the contended arm's harm the isolated arm avoids.
///
/// The removed share `rho` is the value for which `h_iso - (1 - rho) h_cont` is centred on zero over the rounds. For
/// two rounds i and j, the share is `1 - (h_iso,i + h_iso,j) / (h_cont,i + h_cont,j)`. The function uses these shares
/// in place of Walsh averages, so that the median and the signed-rank bounds apply unchanged. The bounds require that
/// every denominator is positive.
fn attribute(arm: &str, metric: Metric, samples: &Samples, trio: Trio) -> Option<Attribution> {
    let sign = if metric.more_is_better() { -1.0 } else { 1.0 };
    let harms: Vec<(f64, f64)> = samples
        .rounds(trio.isolated)
        .filter_map(|round| {
            let base = samples.get(trio.baseline, round, metric)?.ln();
            let reference = samples.get(trio.reference, round, metric)?.ln();
            let isolated = samples.get(trio.isolated, round, metric)?.ln();
            let contended = samples.get(trio.contended, round, metric)?.ln();
            Some((pct_of_log(sign * (isolated - reference)), pct_of_log(sign * (contended - base))))
        })
        .collect();
    let (mut removed, mut monotone) = (Vec::new(), true);
    for (i, a) in harms.iter().enumerate() {
        for b in &harms[i..] {
            let denominator = a.1 + b.1;
            if denominator > 0.0 {
                removed.push((1.0 - (a.0 + b.0) / denominator) * 100.0);
            } else {
                monotone = false;
            }
        }
    }
    removed.sort_unstable_by(by_value);
    if monotone {
        let ranks = SignedRank::from_sorted_walsh(harms.len(), removed)?;
        let ci95 = ranks.interval(Tail::TwoSided95).map(|i| [i.lo, i.hi]);
        return Some(Attribution { arm: arm.to_owned(), metric, removed_pct: ranks.estimate(), ci95 });
    }
    let removed_pct = crate::stats::median(&removed)?;
    Some(Attribution { arm: arm.to_owned(), metric, removed_pct, ci95: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::record::{Block, Query};

    // promise 40
    #[test]
    fn the_openeuler_figures_through_the_whole_path() {
        let base = [
            (Metric::Qps, 1.88534),
            (Metric::P50, 0.484905),
            (Metric::P90, 0.728296),
            (Metric::P99, 0.873945),
        ];
        let contended = [0.94240, 0.840477, 1.430317, 1.555647];
        let isolated = [1.88258, 0.485725, 0.734696, 0.887807];
        let arms = fixture::arms();
        let mut samples = Samples::empty(arms.len());
        for (i, (metric, value)) in base.into_iter().enumerate() {
            samples.set(0, 0, metric, value);
            samples.set(2, 0, metric, contended[i]);
            samples.set(3, 0, metric, isolated[i]);
        }
        let found = compare(&arms, &fixture::design(1), &samples);
        let printed = |arm: &str| -> Vec<String> {
            let ours = found.results.iter().filter(|r| r.arm == arm && r.vs == "baseline");
            ours.map(|r| crate::format::signed(crate::format::change_pct(r.metric, r.harm_pct), 0.01))
                .collect()
        };
        assert_eq!(printed("contended"), ["−50.01", "+73.33", "+96.39", "+78.00"]);
        assert_eq!(printed("isolated"), ["−0.15", "+0.17", "+0.88", "+1.59"]);
        // One round gives an estimate but no interval.
        assert!(found.results.iter().all(|r| r.ci95.is_none() && r.one_sided.is_none() && r.rounds == 1));
    }

    #[test]
    fn harm_is_positive_for_slower_and_for_less() {
        let run = fixture::concluded(12, [0.0, 0.5, 0.01], 0.01);
        for metric in [Metric::Qps, Metric::P50, Metric::P90] {
            let contended = run.comparison("contended", "baseline", metric).unwrap();
            assert!((contended.harm_pct - 50.0).abs() < 3.0, "{metric:?} {}", contended.harm_pct);
            let gain = run.comparison("isolated", "contended", metric).unwrap();
            assert!(gain.harm_pct < -25.0, "{metric:?} {}", gain.harm_pct);
            let [lo, hi] = contended.ci95.unwrap();
            assert!(lo < contended.harm_pct && contended.harm_pct < hi && lo > 45.0 && hi < 55.0);
            assert_eq!(contended.rounds, 12);
            assert_eq!(contended.method, "hl-signed-rank");
        }
    }

    #[test]
    fn the_noise_floor_is_the_half_width_of_the_aa_interval() {
        let run = fixture::concluded(12, [0.0, 0.5, 0.01], 0.02);
        let aa = run.comparison("baseline2", "baseline", Metric::P90).unwrap().ci95.unwrap();
        assert_eq!(run.noise_floor_pct[&Metric::P90], (aa[1] - aa[0]) / 2.0);
        let five = fixture::concluded(5, [0.0, 0.5, 0.01], 0.02);
        let aa = five.comparison("baseline2", "baseline", Metric::P90).unwrap();
        let [lo, hi] = aa.one_sided.unwrap();
        assert_eq!((aa.ci95, five.noise_floor_pct[&Metric::P90]), (None, (hi - lo) / 2.0));
        assert!(fixture::concluded(4, [0.0, 0.5, 0.01], 0.02).noise_floor_pct.is_empty());
    }

    #[test]
    fn an_invalid_block_costs_its_round_and_no_more() {
        for arm in ["baseline", "baseline2", "contended", "isolated"] {
            let mut run = fixture::small_run();
            run.blocks.iter_mut().find(|block| block.arm == arm).unwrap().valid = false;
            conclude(&mut run);
            let text = crate::report::terminal(&run, false);
            assert!(!text.contains("noise floor unknown"), "{arm}: {text}");
            assert_eq!(text.contains("of 5 rounds"), arm.starts_with("baseline"), "{arm}: {text}");
        }
    }

    #[test]
    fn attribution_removes_the_share_that_was_built_in() {
        let run = fixture::concluded(12, [0.0, 0.5, 0.05], 0.005);
        let p90 = run.attribution.iter().find(|a| a.metric == Metric::P90).unwrap();
        assert!((p90.removed_pct - 90.0).abs() < 3.0, "{p90:?}");
        let [lo, hi] = p90.ci95.unwrap();
        assert!(lo < p90.removed_pct && p90.removed_pct < hi && hi - lo < 10.0, "{p90:?}");
    }

    /// Blocks that a burst of steal has hit cost their pair, unless most pairs differ.
    #[test]
    fn pairs_with_unlike_steal_are_left_out() {
        let check = |hit: &[u32], expected: usize| {
            let mut run = fixture::beside_a_hypervisor(0.0);
            for block in
                run.blocks.iter_mut().filter(|block| block.arm == "isolated" && hit.contains(&block.round))
            {
                block.cpu.steal = Some(0.3);
                let mut slow = crate::record::new_histogram().unwrap();
                slow.record_n(5_000, 2_000).unwrap();
                block.histograms.latency = crate::record::encode_histogram(&slow).ok();
            }
            conclude(&mut run);
            let result = run.comparison("isolated", "warm", Metric::P50).unwrap();
            assert_eq!(result.rounds as usize, expected, "{hit:?}");
            assert!(expected == 12 || result.harm_pct.abs() < 2.0, "{hit:?}: {}", result.harm_pct);
        };
        check(&[], 12);
        check(&[3], 11);
        check(&[0, 1, 2, 5, 9, 11], 6);
        check(&[0, 1, 2, 3, 5, 9, 11], 12);
    }

    #[test]
    fn attribution_needs_proven_harm() {
        let run = fixture::concluded(12, [0.0, 0.0, 0.0], 0.01);
        assert!(run.attribution.is_empty());
    }

    #[test]
    fn only_rounds_with_two_valid_blocks_are_paired() {
        let mut run = fixture::small_run();
        for block in &mut run.blocks {
            if block.round == 1 && block.arm == "isolated" {
                block.valid = false;
            }
        }
        conclude(&mut run);
        assert_eq!(run.comparison("isolated", "baseline", Metric::P50).unwrap().rounds, 5);
        assert_eq!(run.comparison("contended", "baseline", Metric::P50).unwrap().rounds, 6);
    }

    #[test]
    fn concluding_twice_changes_nothing() {
        let mut run = fixture::small_run();
        conclude(&mut run);
        let once = run.clone();
        conclude(&mut run);
        assert_eq!(run, once);
    }

    /// A gate is a metric that takes part in the verdict. On a gate with a Prometheus query, proven harm fails the run;
    /// blocks without a value of the query are not paired.
    #[test]
    fn answers_of_prometheus_take_part() {
        let mut run = fixture::small_run();
        let [slow, hits] = [("p95 of checkout", false), ("hits", true)]
            .map(|(name, more)| Metric::query(name, more).unwrap());
        for metric in [slow, hits] {
            let (query, url) = ("q".to_owned(), "u".to_owned());
            run.design.queries.push(Query { metric, query, url, scrape_s: 5.0 });
        }
        run.design.gates = vec![Metric::P50, slow, hits];
        let value = |block: &Block| {
            let noise = 1.0 + 0.001 * f64::from(block.round) * f64::from(block.pos);
            if block.arm == "isolated" { 1.5 * noise } else { noise }
        };
        for block in &mut run.blocks {
            block.queried = BTreeMap::from([(slow, value(block)), (hits, value(block))]);
        }
        conclude(&mut run);
        let harm = |run: &Run, metric| run.comparison("isolated", "baseline", metric).unwrap().harm_pct;
        assert!((harm(&run, slow) - 50.0).abs() < 2.0 && (harm(&run, hits) + 33.0).abs() < 2.0);
        assert_eq!(run.verdict, Some(crate::record::Verdict::Fail), "{:?}", run.reasons);
        assert!(run.noise_floor_pct.contains_key(&slow));
        let text = crate::report::terminal(&run, false);
        assert!(
            text.contains("p95 of checkout is at least") && text.contains("% worse than alone"),
            "{text}"
        );
        assert!(crate::report::junit(&run, false).contains("name=\"p95 of checkout within 5 %\""));
        let csv = crate::report::csv(&run);
        assert!(csv.lines().next().unwrap().ends_with(",p95 of checkout,hits"), "{csv}");
        assert!(crate::report::html(&run).contains("<th scope=\"col\">p95 of checkout</th>"));
        let again = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(again, run);
        // These blocks have no value because Prometheus was down, or have the value zero, which has no logarithm.
        for block in run.blocks.iter_mut().filter(|block| block.round < 2) {
            block.queried.insert(hits, 0.0);
            block.queried.remove(&slow);
        }
        conclude(&mut run);
        assert_eq!(run.comparison("isolated", "baseline", slow).unwrap().rounds, 4);
        assert_eq!(run.verdict, Some(crate::record::Verdict::Inconclusive));
        for words in ["p95 of checkout has no value in 8 of 24 blocks", "hits is 0 or less in 8 of 24 blocks"]
        {
            assert!(run.notes.iter().any(|note| note.contains(words)), "{:?}", run.notes);
        }
    }

    #[test]
    fn above_fifty_rounds_the_method_says_so() {
        let run = fixture::concluded(60, [0.0, 0.5, 0.01], 0.01);
        let r = run.comparison("isolated", "baseline", Metric::P50).unwrap();
        assert_eq!(r.method, "hl-signed-rank-normal");
    }
}
