//! The report for CI servers, in JUnit's XML format. There is one test case per gate (metric that determines the
//! verdict) of each isolated arm, and one per further criterion.
//!
//! The test case of an undecided gate is marked as skipped, with a message; in strict mode the case fails.

use super::charts::escape;
use crate::analysis::{answered, need_not_hold};
use crate::format::{brackets, change_pct, quantum, signed_pct};
use crate::record::Verdict;
use crate::record::{Arm, Metric, Role, Run};
use crate::verdict::{Gate, Part, beside_gates, each, service_failed};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A test case.
struct Case {
    class: String,
    name: String,
    outcome: Verdict,
    message: String,
}

/// Formats the report as JUnit XML. With `strict`, INCONCLUSIVE and INVALID are failures.
pub fn junit(run: &Run, strict: bool) -> String {
    let cases = cases(run);
    let fails = |case: &&Case| match case.outcome {
        Verdict::Pass => false,
        Verdict::Fail | Verdict::Broken => true,
        Verdict::Inconclusive | Verdict::Invalid => strict,
    };
    let failures = cases.iter().filter(fails).count();
    let skipped = cases.iter().filter(|case| case.outcome != Verdict::Pass).count() - failures;
    let counts =
        format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"", cases.len());
    let seconds: f64 = run.blocks.iter().map(|block| block.measure_s).filter(|s| s.is_finite()).sum();
    let timestamp = run.started.trim_end_matches('Z');
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"commensal lab\" {counts}>\n\
         <testsuite name=\"{}\" {counts} time=\"{seconds:.3}\" timestamp=\"{}\">\n",
        escape(&run.experiment),
        escape(timestamp)
    );
    for case in &cases {
        let (class, name) = (escape(&case.class), escape(&case.name));
        let _ = write!(out, "<testcase classname=\"{class}\" name=\"{name}\"");
        let (kind, message) = (case.outcome.label(), escape(&case.message));
        let _ = match case.outcome {
            Verdict::Pass => writeln!(out, ">\n<system-out>{message}</system-out>\n</testcase>"),
            _ if fails(&case) => {
                writeln!(out, ">\n<failure type=\"{kind}\" message=\"{message}\"></failure>\n</testcase>")
            }
            _ => writeln!(out, ">\n<skipped message=\"{kind}: {message}\"></skipped>\n</testcase>"),
        };
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

fn cases(run: &Run) -> Vec<Case> {
    let mut cases = Vec::new();
    for arm in run.arms.iter().filter(|arm| arm.role == Role::Isolated) {
        let mut seen = BTreeSet::new();
        let gates: Vec<Metric> = run
            .design
            .gates
            .iter()
            .copied()
            .filter(|gate| run.design.plans_for(*gate) && seen.insert(*gate))
            .collect();
        let class = format!("{}.{}", run.experiment, arm.name);
        // If the environment check failed, no arm can be judged, and every test case gets the verdict of the run.
        let whole = whole(run, arm);
        let outcome = |own: (Verdict, String)| whole.map_or(own, |verdict| (verdict, why(run)));
        for gate in each(run, arm, &gates) {
            let name = format!("{} within {} %", gate.metric.label(), run.design.threshold_of(gate.metric));
            let (outcome, message) = outcome((gate.verdict, said(run, &gate)));
            cases.push(Case { class: class.clone(), name, outcome, message });
        }
        // What nobody asked for fails no build while it is undecided.
        let decides = |part: &Part| part.asked || part.verdict != Verdict::Inconclusive;
        for part in beside_gates(run, arm).into_iter().filter(decides) {
            let (outcome, message) = outcome((part.verdict, part.reasons.join("; ")));
            cases.push(Case { class: class.clone(), name: part.name.to_owned(), outcome, message });
        }
    }
    // With one arm for each value of a limit, the question is which values pass. So the build fails only if no value
    // passes.
    if let Some(sweep) = run.design.sweep.as_ref().filter(|sweep| !sweep.ramp)
        && let Some(outcome) = run.verdict.filter(|_| answered(run).is_some())
    {
        let open = |arm: &Arm| run.arm_verdicts.get(&arm.name) != Some(&Verdict::Pass);
        let open: BTreeSet<String> = (run.arms.iter())
            .filter(|arm| need_not_hold(run, &arm.name) && open(arm))
            .map(|arm| format!("{}.{}", run.experiment, arm.name))
            .collect();
        cases.retain(|case| !open.contains(&case.class));
        let (class, name) = (run.experiment.clone(), format!("some {} holds", sweep.what));
        cases.push(Case { class, name, outcome, message: why(run) });
    }
    // If no test case shows the problem, a separate case must, so that the report does not look like success.
    let verdict = run.verdict.unwrap_or(Verdict::Inconclusive);
    if verdict != Verdict::Pass && !cases.iter().any(|case| case.outcome == verdict) {
        let (class, name) = (run.experiment.clone(), "verdict".to_owned());
        cases.push(Case { class, name, outcome: verdict, message: why(run) });
    }
    cases
}

/// Returns the verdict for all cases of an arm that was not judged separately.
fn whole(run: &Run, arm: &Arm) -> Option<Verdict> {
    match run.verdict {
        None => Some(Verdict::Inconclusive),
        Some(Verdict::Broken) => {
            Some(if service_failed(run, arm) { Verdict::Broken } else { Verdict::Inconclusive })
        }
        Some(verdict) => (!run.arm_verdicts.contains_key(&arm.name)).then_some(verdict),
    }
}

/// Returns the reasons of the verdict on one line.
fn why(run: &Run) -> String {
    if run.reasons.is_empty() { "the run has no verdict yet".to_owned() } else { run.reasons.join("; ") }
}

/// Describes the result on a gate.
fn said(run: &Run, gate: &Gate<'_>) -> String {
    let Some(result) = gate.result else {
        return format!("{} was not measured in both arms of any round", gate.metric.label());
    };
    let step = quantum(run.noise_floor_pct.get(&gate.metric).copied());
    let change = |harm| change_pct(gate.metric, harm);
    let ends = result.ci95.map(|ends| format!(" {}", brackets(ends.map(change), step))).unwrap_or_default();
    let said = format!("{}{ends}, {} rounds", signed_pct(change(result.harm_pct), step), result.rounds);
    let theta = run.design.threshold_of(gate.metric);
    match gate.verdict {
        _ if result.one_sided.is_none() => format!("{said}: a confidence bound needs 5 rounds"),
        Verdict::Fail => format!("{said}: harmed by more than {theta} %"),
        Verdict::Pass => said,
        _ => format!("{said}: neither proven below {theta} % nor proven above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::concluded;
    use crate::record::ArmBlame;
    use crate::verdict::judge;

    fn check(run: &Run, strict: bool, expect: [usize; 3], holds: &str) {
        let text = junit(run, strict);
        let [tests, failures, skipped] = expect;
        let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"");
        assert_eq!(text.matches(&counts).count(), 2, "{text}");
        assert_eq!(text.matches("<testcase ").count(), tests, "{text}");
        assert_eq!(text.matches("<failure ").count(), failures, "{text}");
        assert_eq!(text.matches("<skipped ").count(), skipped, "{text}");
        assert!(text.contains(holds), "{text}");
    }

    #[test]
    fn one_case_per_gate() {
        check(&concluded(12, [0.0, 0.5, 0.0], 0.01), false, [3, 0, 0], "name=\"P50 within 5 %\"");
        check(&concluded(12, [0.0, 0.5, 0.3], 0.01), false, [3, 3, 0], "harmed by more than 5 %");
        let open = concluded(8, [0.0, 0.5, 0.04], 0.012);
        let undecided = junit(&open, false).matches("<skipped ").count();
        assert!(undecided > 0);
        assert_eq!(junit(&open, true).matches("<failure ").count(), undecided);
    }

    #[test]
    fn invalid_runs_prove_nothing() {
        let noisy = concluded(12, [0.3, 0.5, 0.0], 0.01);
        check(&noisy, false, [3, 0, 3], "message=\"INVALID: the two identical arms differ");
        check(&noisy, true, [3, 3, 0], "<failure type=\"INVALID\"");
    }

    fn waits(verdict: Verdict) -> ArmBlame {
        ArmBlame {
            arm: "isolated".into(),
            rounds: 12,
            offline_ms_per_cpu_s: 80.0,
            ci95: None,
            one_sided: None,
            preemption_p99_us: None,
            preemption_p99_one_sided: None,
            preemptions: 0,
            total_difference_ms_per_cpu_s: None,
            total_difference_ci95: None,
            total_difference_one_sided: None,
            verdict,
            reasons: vec!["80 ms per CPU-second".into()],
        }
    }

    /// Determines the verdict of a run again, after a test has changed the run's data.
    fn decided(mut run: Run) -> Run {
        let found = judge(&run);
        (run.verdict, run.arm_verdicts, run.reasons) = (Some(found.verdict), found.arms, found.reasons);
        run
    }

    #[test]
    fn waits_are_a_case_where_there_was_a_probe() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.blame.push(waits(Verdict::Fail));
        let mut run = decided(run);
        check(&run, false, [4, 1, 0], "<failure type=\"FAIL\" message=\"80 ms per CPU-second\">");
        run.arms[3].policy.as_mut().unwrap().applied[0].read = Some("0".into());
        check(&decided(run), false, [4, 0, 4], "name=\"waits blamed on offline work\"");
    }

    #[test]
    fn a_service_that_died_fails_every_gate() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.blocks
            .iter_mut()
            .filter(|block| block.arm == "isolated")
            .for_each(|block| block.online_crashed = true);
        check(&decided(run), false, [3, 3, 0], "type=\"BROKEN\"");
    }

    /// Tests all combinations of results of gates and other criteria: the test cases agree with the verdict.
    // promise 40
    #[test]
    fn the_cases_and_the_verdict_agree() {
        use Verdict::{Broken, Fail, Inconclusive, Pass};
        let mut seen = std::collections::BTreeMap::new();
        let (twins, gates) = ([0.0, 0.3], [(0.0, 0.01), (0.04, 0.03), (0.3, 0.01)]);
        let blames = [None, Some(Pass), Some(Inconclusive), Some(Fail)];
        let kept = [None, Some([78.0, 84.0]), Some([20.0, 40.0]), Some([2.0, 9.0])];
        for (twin, (harm, sd)) in twins.iter().flat_map(|twin| gates.iter().map(move |gate| (twin, gate))) {
            let base = concluded(12, [*twin, 0.5, *harm], *sd);
            for (blame, kept) in blames.iter().flat_map(|blame| kept.iter().map(move |kept| (blame, kept))) {
                for (crashed, arms) in
                    [(0, "isolated"), (1, "isolated"), (12, "isolated"), (2, "baseline")].into_iter()
                {
                    for (twins, floor) in [(true, true), (true, false), (false, true)] {
                        let mut run = base.clone();
                        run.blame.extend(blame.map(waits));
                        run.design.min_offline_pct = kept.map(|_| 30.0);
                        run.offline[0].kept_vs_contended_ci95 = *kept;
                        let its = run.blocks.iter_mut().filter(|block| block.arm == arms);
                        its.take(crashed).for_each(|block| block.online_crashed = true);
                        if !twins {
                            run.arms.retain(|arm| arm.role != Role::Baseline2);
                        }
                        if !floor {
                            run.results.iter_mut().for_each(|result| result.one_sided = None);
                        }
                        let run = decided(run);
                        let verdict = run.verdict.unwrap();
                        *seen.entry(verdict.label()).or_insert(0) += 1;
                        let cases = cases(&run);
                        let worst = cases.iter().map(|case| case.outcome).max_by_key(|one| one.rank());
                        assert_eq!(
                            worst,
                            Some(verdict),
                            "{blame:?} {kept:?} {crashed} {arms}: {:?}",
                            run.reasons
                        );
                        let failed = junit(&run, false).contains("<failure ");
                        assert_eq!(
                            failed,
                            matches!(verdict, Fail | Broken),
                            "{verdict:?}: {:?}",
                            run.reasons
                        );
                        let strictly = junit(&run, true).contains("<failure ");
                        assert_eq!(strictly, verdict != Pass, "{verdict:?}: {:?}", run.reasons);
                    }
                }
            }
        }
        let all: Vec<&str> = seen.keys().copied().collect();
        assert_eq!(all, ["BROKEN", "FAIL", "INCONCLUSIVE", "INVALID", "PASS"], "{seen:?}");
    }

    #[test]
    fn what_the_gates_do_not_show_is_a_case_of_its_own() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.verdict = Some(Verdict::Fail);
        run.reasons = vec!["it keeps < 30 % of the work & \"that\" is too little".into()];
        check(&run, false, [4, 1, 0], "it keeps &lt; 30 % of the work &amp; &quot;that&quot; is");
        (run.verdict, run.reasons) = (None, Vec::new());
        check(&run, false, [3, 0, 3], "no verdict yet");
        run.arms.retain(|arm| arm.role != Role::Isolated);
        run.verdict = Some(Verdict::Inconclusive);
        check(&run, false, [1, 0, 1], "name=\"verdict\"");
    }
}
