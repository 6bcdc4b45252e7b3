//! The report for CI servers: one testcase per gate metric of each isolated arm, in the form that JUnit's XML has become.
//!
//! What is not decided is skipped with a message, or failed where the caller is strict.

use super::charts::escape;
use crate::analysis::{answered, need_not_hold};
use crate::format::{brackets, change_pct, quantum, signed_pct};
use crate::record::{Arm, Comparison, Metric, Role, Run};
use crate::stats::holm;
use crate::verdict::{Verdict, against_baseline, against_strictest, service_failed};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// One testcase.
struct Case {
    class: String,
    name: String,
    outcome: Verdict,
    message: String,
}

/// The report as JUnit XML. With `strict`, INCONCLUSIVE and INVALID are failures.
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
        let failed = proven_failures(run, arm, &gates);
        let class = format!("{}.{}", run.experiment, arm.name);
        for gate in gates {
            let (outcome, message) = gate_outcome(run, arm, gate, failed.contains(&gate));
            let name = format!("{} within {} %", gate.label(), run.design.threshold_of(gate));
            cases.push(Case { class: class.clone(), name, outcome, message });
        }
        if let Some(blame) = run.blame.iter().find(|blame| blame.arm == arm.name) {
            let name = "waits blamed on offline work".to_owned();
            let (outcome, message) = match run.verdict {
                Some(Verdict::Invalid) => (Verdict::Invalid, why(run)),
                _ => (blame.verdict, blame.reasons.join("; ")),
            };
            cases.push(Case { class, name, outcome, message });
        }
    }
    // Which values of a limit hold is what was asked; that some does is what a build can fail on.
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
    // The verdict knows more than the gates. What they do not show must not look like success.
    let worst = run.verdict.unwrap_or(Verdict::Inconclusive);
    if worst != Verdict::Pass && !cases.iter().any(|case| case.outcome == worst) {
        let (class, name) = (run.experiment.clone(), "verdict".to_owned());
        cases.push(Case { class, name, outcome: worst, message: why(run) });
    }
    cases
}

/// The reasons of the verdict in one line.
fn why(run: &Run) -> String {
    if run.reasons.is_empty() { "the run is not concluded".to_owned() } else { run.reasons.join("; ") }
}

/// The gates on which harm above the threshold is proven, all gates of the arm considered.
fn proven_failures(run: &Run, arm: &Arm, gates: &[Metric]) -> BTreeSet<Metric> {
    let judged: Vec<&Comparison> = gates
        .iter()
        .filter_map(|gate| against_strictest(run, &arm.name, *gate))
        .filter(|result| result.one_sided.is_some())
        .collect();
    let p_values: Vec<f64> = judged.iter().map(|result| result.p_fail).collect();
    judged
        .iter()
        .zip(holm(&p_values))
        .filter(|(_, rejected)| *rejected)
        .map(|(result, _)| result.metric)
        .collect()
}

fn gate_outcome(run: &Run, arm: &Arm, gate: Metric, failed: bool) -> (Verdict, String) {
    if run.verdict.is_none_or(|verdict| verdict == Verdict::Invalid) {
        return (run.verdict.unwrap_or(Verdict::Inconclusive), why(run));
    }
    if service_failed(run, arm) {
        return (Verdict::Broken, why(run));
    }
    let Some(result) = against_strictest(run, &arm.name, gate) else {
        return (
            Verdict::Inconclusive,
            format!("{} was not measured in both arms of any round", gate.label()),
        );
    };
    let step = quantum(run.noise_floor_pct.get(&gate).copied());
    let change = |harm| change_pct(gate, harm);
    let ends = result.ci95.map(|ends| format!(" {}", brackets(ends.map(change), step))).unwrap_or_default();
    let said = format!("{}{ends}, {} rounds", signed_pct(change(result.harm_pct), step), result.rounds);
    let theta = run.design.threshold_of(gate);
    let Some([_, most]) = result.one_sided else {
        return (Verdict::Inconclusive, format!("{said}: at least 5 rounds are needed for any bound"));
    };
    // Without two identical arms that were compared on it, nothing is known about the ground a figure stands on.
    let ground = run.arm_with(Role::Baseline2).and_then(|twin| against_baseline(run, &twin.name, gate));
    if ground.is_none_or(|twin| twin.one_sided.is_none()) {
        return (Verdict::Inconclusive, format!("{said}: no second baseline to compare it with"));
    }
    match () {
        () if failed => (Verdict::Fail, format!("{said}: harmed by more than {theta} %")),
        () if most < theta => (Verdict::Pass, said),
        () => (Verdict::Inconclusive, format!("{said}: {theta} % is neither held nor left for certain")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::concluded;

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

    #[test]
    fn waits_are_a_case_where_there_was_a_judge() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.blame.push(crate::record::ArmBlame {
            arm: "isolated".into(),
            rounds: 12,
            offline_ms_per_cpu_s: 80.0,
            ci95: None,
            one_sided: None,
            preemption_p99_us: None,
            preemptions: 0,
            total_difference_ms_per_cpu_s: None,
            total_difference_ci95: None,
            total_difference_one_sided: None,
            verdict: Verdict::Fail,
            reasons: vec!["80 ms per CPU-second".into()],
        });
        run.verdict = Some(Verdict::Fail);
        check(&run, false, [4, 1, 0], "<failure type=\"FAIL\" message=\"80 ms per CPU-second\">");
        run.verdict = Some(Verdict::Invalid);
        check(&run, false, [4, 0, 4], "name=\"waits blamed on offline work\"");
    }

    #[test]
    fn a_service_that_died_fails_every_gate() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.blocks.iter_mut().find(|block| block.arm == "isolated").unwrap().online_crashed = true;
        run.verdict = Some(Verdict::Broken);
        check(&run, false, [3, 3, 0], "type=\"BROKEN\"");
    }

    #[test]
    fn what_the_gates_do_not_show_is_a_case_of_its_own() {
        let mut run = concluded(12, [0.0, 0.5, 0.0], 0.01);
        run.verdict = Some(Verdict::Fail);
        run.reasons = vec!["it keeps < 30 % of the work & \"that\" is too little".into()];
        check(&run, false, [4, 1, 0], "it keeps &lt; 30 % of the work &amp; &quot;that&quot; is");
        (run.verdict, run.reasons) = (None, Vec::new());
        check(&run, false, [3, 0, 3], "not concluded");
        run.arms.retain(|arm| arm.role != Role::Isolated);
        run.verdict = Some(Verdict::Inconclusive);
        check(&run, false, [1, 0, 1], "name=\"verdict\"");
    }
}
