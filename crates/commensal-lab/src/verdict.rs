//! Determines the verdict of a run, with reasons.
//!
//! A run measures several arms: the online service alone, next to offline work, and next to offline work under
//! isolation. A gate is a metric whose harm (how much worse it is than for the service alone) determines the verdict.
//!
//! PASS requires that the one-sided upper bound of every gate's harm is below the gate's threshold. FAIL requires proof
//! that the harm of some gate is at or above the threshold, with Holm's correction over the gates of one arm. Both are
//! computed from pairs of blocks; a block is the measurement of one arm in one round. On a noisy machine, the bounds
//! are wide and the verdict is INCONCLUSIVE; the reason then names the bound that was reached. If two identical arms
//! differ significantly, the run is INVALID. If data is missing, the verdict is INCONCLUSIVE, never a guess.

mod arm;
mod compared;
mod environment;
mod health;

pub(crate) use arm::{Gate, each, rounds_to_decide, threshold_words};
pub(crate) use health::service_failed;

use crate::record::{Arm, LatenessRule, Metric, Role, Run, Verdict};
pub(crate) use compared::{
    against_baseline, against_strictest, disturbed, has_bound, proven_harmful, steal_beside,
};
use std::collections::BTreeMap;

/// The verdict on a run, and its explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict of the run: the worst of its criteria.
    pub verdict: Verdict,
    /// Verdict of each isolated arm; empty if the environment check failed, so that no arm can be judged.
    pub arms: BTreeMap<String, Verdict>,
    /// Reasons for the verdict, in whole sentences.
    pub reasons: Vec<String>,
    /// Facts that do not change the verdict but limit what it means, such as "closed loop".
    pub notes: Vec<String>,
}

/// Judges a run by its blocks (validity, crashes, control files read back) and by the comparisons of its arms.
pub fn judge(run: &Run) -> Judgement {
    let mut notes = environment::notes(run);
    let mut arms = BTreeMap::new();
    let (verdict, reasons) = conclusion(run, &mut notes, &mut arms);
    Judgement { verdict, arms, reasons, notes }
}

fn conclusion(
    run: &Run,
    notes: &mut Vec<String>,
    arms: &mut BTreeMap<String, Verdict>,
) -> (Verdict, Vec<String>) {
    let not_in_force = environment::not_in_force(run);
    if !not_in_force.is_empty() {
        return (Verdict::Invalid, not_in_force);
    }
    let broken = health::broken_arms(run);
    if !broken.is_empty() {
        return (Verdict::Broken, broken);
    }
    let by_itself = health::fails_by_itself(run);
    if !by_itself.is_empty() {
        return (Verdict::Invalid, by_itself);
    }
    if let Some(reason) = environment::too_many_invalid_blocks(run) {
        return (Verdict::Invalid, vec![reason]);
    }
    let gates = planned_gates(run, notes);
    if gates.is_empty() {
        return (Verdict::Inconclusive, vec!["no gate metric has blocks with enough requests".to_owned()]);
    }
    let late = environment::no_baseline(run, &gates);
    if !late.is_empty() {
        return (Verdict::Invalid, late);
    }
    let (verdict, mut reasons) = environment::identical(run, &gates);
    if verdict != Verdict::Pass {
        let isolated = run.arms.iter().filter(|arm| arm.role == Role::Isolated);
        reasons.extend(isolated.filter_map(|arm| health::too_rare(run, arm)));
        return (verdict, reasons);
    }
    notes.extend(environment::about_contention(run, &gates));
    let isolated: Vec<_> = run.arms.iter().filter(|arm| arm.role == Role::Isolated).collect();
    if isolated.is_empty() {
        return (
            Verdict::Inconclusive,
            vec!["the run has no isolated arm, so there is nothing to judge: add one with --arms".to_owned()],
        );
    }
    let (mut worst, mut reasons) = (Verdict::Pass, Vec::new());
    for arm in isolated {
        let (mut verdict, mut why) = arm::judge(run, arm, &gates);
        for part in beside_gates(run, arm) {
            // What nobody asked for decides only where it is proven.
            if part.verdict == Verdict::Inconclusive && !part.asked {
                notes.extend(part.reasons.iter().map(|reason| format!("not decided: {reason}")));
                continue;
            }
            if part.verdict.rank() > verdict.rank() {
                verdict = part.verdict;
                why.clear();
            }
            why.extend(part.reasons);
        }
        notes.extend(arm::gains(run, arm, &gates));
        arms.insert(arm.name.clone(), verdict);
        // The list of reasons starts with the arms that determine the verdict.
        if verdict.rank() > worst.rank() {
            why.append(&mut reasons);
            reasons = why;
            worst = verdict;
        } else {
            reasons.append(&mut why);
        }
    }
    (worst, reasons)
}

/// The result of an arm on a criterion that is not a gate, such as the tail of the latency.
pub(crate) struct Part {
    pub name: &'static str,
    /// Whether the criterion decides about the verdict even if the run does not decide about the criterion.
    pub asked: bool,
    pub verdict: Verdict,
    pub reasons: Vec<String>,
}

/// Evaluates all criteria for an isolated arm that are not gates: waits of online threads, tail of the latency, offline
/// work, and rare failures.
pub(crate) fn beside_gates(run: &Run, arm: &Arm) -> Vec<Part> {
    let part = |name, asked, (verdict, reasons)| Part { name, asked, verdict, reasons };
    // By the rule of older records, every criterion was asked for.
    let old = run.design.lateness == LatenessRule::WholeBlock;
    let one = |(verdict, reason)| (verdict, vec![reason]);
    let blame = run.blame.iter().find(|blame| blame.arm == arm.name);
    let rare = health::too_rare(run, arm).map(|reason| (Verdict::Inconclusive, reason));
    let all = [
        blame.map(|blame| part("waits blamed on offline work", old, (blame.verdict, blame.reasons.clone()))),
        tail(run, &arm.name)
            .map(|tail| part("requests over the objective", old || run.design.slo.is_some(), one(tail))),
        enough_offline(run, &arm.name).map(|kept| part("offline work that is kept", true, one(kept))),
        rare.map(|rare| part("the service does not fail", true, one(rare))),
    ];
    all.into_iter().flatten().collect()
}

/// Evaluates the tail criterion: the share of requests above a latency threshold. If the user defined an objective, the
/// criterion is always part of the verdict. Otherwise the criterion is part of the verdict only if the tail is
/// significantly worse than for the service alone. The arm then passes only if its tail is proven to stay within the
/// bound.
fn tail(run: &Run, arm: &str) -> Option<(Verdict, String)> {
    let tail = run.over_objective.iter().find(|tail| tail.arm == arm)?;
    let harmed = tail.one_sided.is_some_and(|[lo, _]| lo > 0.0);
    if !harmed && run.design.slo.is_none() {
        return None;
    }
    let said = format!(
        "arm {arm}: {:.2} % of the requests take longer than {:.0} µs, {} {:.2} %",
        tail.arm_pct,
        tail.objective_us,
        if run.arm_with(Role::Warm).is_some_and(|warm| warm.name == tail.vs) {
            "on warm CPUs"
        } else {
            "alone"
        },
        tail.alone_pct
    );
    let bound = "the share may rise by half, or by 0.1 percentage points if that is more";
    let why = match (tail.verdict, tail.steal_more) {
        (Verdict::Inconclusive, Some(more)) if harmed && !tail.steal_alike => format!(
            "{said}; but steal time was {more:.2} CPUs higher in arm {arm}, so the difference may be due to the hypervisor"
        ),
        (Verdict::Inconclusive, _) if tail.one_sided.is_none() => {
            format!("{said}; there are too few rounds for a confidence bound")
        }
        (Verdict::Inconclusive, _) => format!("{said}; the confidence interval includes the limit: {bound}"),
        _ => format!("{said}; {bound}"),
    };
    Some((tail.verdict, why))
}

/// Evaluates the criterion on the offline work that an isolated arm keeps. Returns `None` when the arm is proven to
/// keep enough, or the run requires no minimum share. Without this criterion, isolation that stops all offline work
/// would pass.
fn enough_offline(run: &Run, arm: &str) -> Option<(Verdict, String)> {
    let least = run.design.min_offline_pct?;
    let kept = run.offline.iter().find(|kept| kept.arm == arm);
    let said = |verdict, what: String| {
        Some((verdict, format!("arm {arm}: {what} of the offline work; at least {least} % is required")))
    };
    match kept.and_then(|kept| kept.kept_vs_contended_ci95) {
        Some([_, hi]) if hi < least => said(Verdict::Fail, format!("it keeps at most {hi:.0} %")),
        Some([lo, hi]) if lo < least => said(Verdict::Inconclusive, format!("it keeps {lo:.0} to {hi:.0} %")),
        Some(_) => None,
        None => said(Verdict::Inconclusive, "it keeps an unknown share".to_owned()),
    }
}

/// Returns the gates for which the plan has enough requests; adds a note for each other gate.
fn planned_gates(run: &Run, notes: &mut Vec<String>) -> Vec<Metric> {
    let mut gates = Vec::new();
    for &gate in &run.design.gates {
        if !run.design.plans_for(gate) {
            let label = gate.label();
            notes.push(format!(
                "{label} does not take part in the verdict: by the plan, blocks have too few requests for {label}"
            ));
        } else if !gates.contains(&gate) {
            gates.push(gate);
        }
    }
    gates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude_from;
    use crate::fixture::{bare_run, concluded, simulate};
    use crate::record::Comparison;
    use crate::rng::Rng;

    fn check(run: &Run, verdict: Verdict, expect: &str) {
        let got = judge(run);
        let said = got.reasons.join("\n");
        assert_eq!(got.verdict, verdict, "{said}");
        assert!(said.contains(expect), "expected {expect:?} in:\n{said}");
    }

    fn good() -> Run {
        concluded(12, [0.0, 0.5, 0.005], 0.01)
    }

    /// Also a run that only measures the noise has to be sound.
    #[test]
    fn identical_arms_are_compared_without_an_isolated_arm() {
        let mut run = concluded(12, [0.3, 0.5, 0.0], 0.01);
        run.arms.retain(|arm| arm.role != Role::Isolated);
        check(&run, Verdict::Invalid, "the two identical arms differ");
    }

    #[test]
    fn exit_codes() {
        let all = [Verdict::Pass, Verdict::Fail, Verdict::Inconclusive, Verdict::Invalid, Verdict::Broken];
        assert_eq!(all.map(Verdict::exit_code), [0, 1, 3, 4, 1]);
        assert_eq!(serde_json::to_string(&Verdict::Inconclusive).unwrap(), "\"INCONCLUSIVE\"");
    }

    #[test]
    fn a_quiet_machine_decides() {
        check(&good(), Verdict::Pass, "P50, P90 and QPS stay within 5 %");
        check(&concluded(12, [0.0, 0.5, 0.2], 0.01), Verdict::Fail, "P90 is harmed by more than 5 %");
    }

    #[test]
    fn an_open_question_says_how_many_rounds_it_needs() {
        let run = concluded(8, [0.0, 0.5, 0.04], 0.012);
        check(&run, Verdict::Inconclusive, "rounds would decide");
    }

    // promise 35
    #[test]
    fn a_noisy_machine_gives_no_verdict() {
        check(
            &concluded(12, [0.0, 0.5, 0.0], 0.2),
            Verdict::Inconclusive,
            "neither proven below 5 % nor proven above",
        );
        // A difference between identical arms shows that the measurement is unsound, even if the isolated arm is proven
        // to be harmed.
        check(&concluded(12, [0.3, 0.5, 3.0], 0.01), Verdict::Invalid, "the two identical arms differ");
    }

    #[test]
    fn too_few_rounds_are_inconclusive() {
        for rounds in 1..5 {
            check(
                &concluded(rounds, [0.0, 0.5, 0.0], 0.001),
                Verdict::Inconclusive,
                "a confidence bound needs 5",
            );
        }
        check(&concluded(5, [0.0, 0.5, 0.0], 0.001), Verdict::Pass, "stay within");
    }

    #[test]
    fn six_rounds_cannot_prove_failure_of_five_gates() {
        let mut run = concluded(6, [0.0, 0.5, 0.5], 0.001);
        let p50 = run.results.clone();
        for metric in [Metric::P95, Metric::P99] {
            let like_p50 = p50.iter().filter(|r| r.metric == Metric::P50).cloned();
            run.results.extend(like_p50.map(|r| Comparison { metric, ..r }));
            run.design.gates.push(metric);
        }
        check(&run, Verdict::Inconclusive, "7 rounds");
    }

    // promise 35
    #[test]
    fn isolation_must_keep_offline_work_where_that_is_asked_for() {
        let asked = |ci95, least| {
            let mut run = good();
            run.design.min_offline_pct = Some(least);
            run.offline[0].kept_vs_contended_ci95 = ci95;
            run
        };
        check(&asked(Some([78.0, 84.0]), 30.0), Verdict::Pass, "stay within");
        check(
            &asked(Some([2.0, 9.0]), 30.0),
            Verdict::Fail,
            "it keeps at most 9 % of the offline work; at least 30 %",
        );
        check(
            &asked(Some([20.0, 40.0]), 30.0),
            Verdict::Inconclusive,
            "it keeps 20 to 40 % of the offline work",
        );
        check(&asked(None, 30.0), Verdict::Inconclusive, "an unknown share");
    }

    // promise 35
    #[test]
    fn several_looks_ask_for_more() {
        let mut run = bare_run(12);
        let samples = simulate(&mut Rng::new(17), 12, [0.0, 0.5, 0.03], (0.015, 0.0), &run.design.gates);
        conclude_from(&mut run, &samples, Vec::new());
        let bounds =
            |run: &Run| run.comparison("isolated", "baseline", Metric::P50).unwrap().one_sided.unwrap();
        let once = bounds(&run);
        run.design.looks = vec![8, 16, 24];
        conclude_from(&mut run, &samples, Vec::new());
        let thrice = bounds(&run);
        assert!(thrice[0] < once[0] && thrice[1] > once[1], "{once:?} {thrice:?}");
        // Harm without isolation does not end a run early.
        let contended =
            |run: &Run| run.comparison("contended", "baseline", Metric::P50).unwrap().one_sided.unwrap();
        let looked = contended(&run);
        run.design.looks.clear();
        conclude_from(&mut run, &samples, Vec::new());
        assert_eq!(looked, contended(&run));
    }

    #[test]
    fn the_environment_is_judged_first() {
        let mut run = good();
        run.blocks.iter_mut().find(|b| b.arm == "baseline").unwrap().online_crashed = true;
        check(&run, Verdict::Invalid, "crashed without any offline work");

        let mut run = good();
        run.arms[3].policy.as_mut().unwrap().applied[0].read = Some("0".into());
        check(&run, Verdict::Invalid, "cpu.idle of /commensal/offline should hold \"1\" but reads \"0\"");
        run.arms[3].policy.as_mut().unwrap().applied[0].read = None;
        check(&run, Verdict::Invalid, "could not be read back");

        let mut run = good();
        for block in run.blocks.iter_mut().take(10) {
            block.valid = false;
            block.invalid_reason = Some("generator late".into());
        }
        check(&run, Verdict::Invalid, "10 of 48 blocks are invalid");
        // Reasons that differ only in their numbers count as the same reason.
        for (index, block) in run.blocks.iter_mut().take(10).enumerate() {
            let late = index < 4;
            let reason = if late { "generator late".to_owned() } else { format!("used {index}.5 CPUs") };
            block.invalid_reason = Some(reason);
        }
        check(&run, Verdict::Invalid, "most frequent reason: used ");
        run.blocks[0].valid = true;
        check(&run, Verdict::Pass, "stay within");
    }

    #[test]
    fn a_service_that_fails_under_isolation_is_broken() {
        let mut run = good();
        let mut crash = |blocks: usize| {
            run.blocks
                .iter_mut()
                .filter(|b| b.arm == "isolated")
                .take(blocks)
                .for_each(|b| b.online_crashed = true);
            run.clone()
        };
        check(
            &crash(1),
            Verdict::Inconclusive,
            "crashed in 1 of 12 blocks of arm isolated, and in none of 24",
        );
        check(&crash(3), Verdict::Broken, "crashed in 3 of 12 blocks of arm isolated");

        let mut run = good();
        for block in run.blocks.iter_mut().filter(|b| b.arm == "isolated") {
            block.load.errors = 60;
            block.load.timeouts = 30;
            // Too many errors also make a block invalid; this must not hide the failure of the service.
            block.valid = false;
        }
        check(&run, Verdict::Broken, "1.1 % of the requests");
        for block in run.blocks.iter_mut().filter(|b| b.arm.starts_with("baseline")) {
            block.load.errors = 900;
        }
        check(&run, Verdict::Invalid, "without any offline work");
    }

    #[test]
    fn a_crash_in_the_contended_arm_is_a_finding_and_not_a_verdict() {
        let mut run = good();
        run.blocks.iter_mut().find(|b| b.arm == "contended").unwrap().online_crashed = true;
        let got = judge(&run);
        assert_eq!(got.verdict, Verdict::Pass);
        assert!(
            got.notes.iter().any(|n| n.contains("crashed in 1 of 12 blocks of arm contended")),
            "{got:?}"
        );
    }

    #[test]
    fn missing_arms_and_gates_are_inconclusive() {
        let without = |role| {
            let mut run = good();
            run.arms.retain(|arm| arm.role != role);
            run
        };
        check(&without(Role::Baseline2), Verdict::Inconclusive, "no second baseline");
        check(&without(Role::Isolated), Verdict::Inconclusive, "no isolated arm");
        let mut run = good();
        run.design.gates.clear();
        check(&run, Verdict::Inconclusive, "no gate metric");
        let mut run = good();
        run.design.gates.push(Metric::P99);
        check(&run, Verdict::Inconclusive, "P99");
        run.design.percentiles = vec![Metric::P50, Metric::P90];
        check(&run, Verdict::Pass, "stay within");
        assert!(judge(&run).notes.iter().any(|n| n.contains("P99 does not take part")));
    }

    #[test]
    fn an_antagonist_that_does_not_disturb_is_named() {
        let said = |harm| judge(&concluded(12, [0.0, harm, 0.0], 0.01)).notes.join("\n");
        assert!(said(0.0).contains("isolation has nothing to remove"));
        assert!(!said(0.5).contains("nothing to remove"));
        let mut open = concluded(12, [0.0, 0.5, 0.0], 0.01);
        for result in open.results.iter_mut().filter(|r| r.arm == "contended") {
            result.one_sided = Some([-1.0, 6.0]);
        }
        assert!(judge(&open).notes.iter().any(|note| note.contains("does not prove")));
    }

    #[test]
    fn the_worst_of_several_isolated_arms_decides() {
        let run = crate::fixture::two_isolated([0.0, 0.3]);
        check(&run, Verdict::Fail, "arm isolated:quota=80%");
        assert!(run.reasons.iter().any(|r| r.contains("arm isolated:")), "{:?}", run.reasons);
    }

    #[test]
    fn an_early_stop_and_a_weak_driver_are_said() {
        let mut run = good();
        run.design.rounds = 20;
        run.arms[3].policy.as_mut().unwrap().weak = Some("nice only acts inside one group".into());
        let notes = judge(&run).notes.join("\n");
        assert!(notes.contains("12 of 20 planned rounds"), "{notes}");
        assert!(notes.contains("nice only acts inside one group"), "{notes}");
    }

    #[test]
    fn negative_harm_is_reported_as_such() {
        let notes = judge(&concluded(12, [0.0, 0.5, -0.04], 0.005)).notes.join("\n");
        assert!(notes.contains("better than in the baseline"), "{notes}");
    }
}
