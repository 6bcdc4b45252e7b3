//! Evaluates a sweep, which is a run with one isolated arm for each value of a setting: finds the range of values for
//! which isolation passes.
//!
//! The values are judged in order, starting with the least demanding value and ending with the first value that does
//! not pass. Because of this fixed sequence, the claim about the largest passing value has the error rate of a claim
//! about a single value, whatever the number of values.

use crate::record::Verdict;
use crate::record::{Role, Run, Sweep, SweepPoint};
use crate::verdict::{Judgement, threshold_words};

/// The boundary between the values for which isolation passes and the first value for which it does not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepKnee<'a> {
    /// The sweep.
    pub sweep: &'a Sweep,
    /// The largest value that passes together with all values before it.
    pub holds: Option<&'a SweepPoint>,
    /// The first value that does not pass, with its verdict.
    pub ends: Option<(&'a SweepPoint, Verdict)>,
}

/// Returns the boundary of a run's sweep, from the verdicts on its isolated arms; `None` if no value has a verdict.
#[must_use]
pub fn knee<'a>(
    run: &'a Run,
    verdicts: &std::collections::BTreeMap<String, Verdict>,
) -> Option<SweepKnee<'a>> {
    let sweep = run.design.sweep.as_ref()?;
    // A value that is impossible on this machine has no verdict, and is skipped.
    let values = sweep.points.iter().filter_map(|point| {
        let verdict = verdicts.get(point.isolated.as_ref()?)?;
        Some((point, *verdict))
    });
    let mut knee = SweepKnee { sweep, holds: None, ends: None };
    for (point, verdict) in values {
        if verdict != Verdict::Pass {
            knee.ends = Some((point, verdict));
            break;
        }
        knee.holds = Some(point);
    }
    (knee.holds.is_some() || knee.ends.is_some()).then_some(knee)
}

/// Derives the verdict of the run from the verdicts on the values, and adds a summary to the reasons.
///
/// A sweep of the intensity of the offline work (a ramp) claims that isolation passes at every value, so the worst
/// value decides. A sweep of a limit asks which values pass: the run passes if the lowest value passes, fails if the
/// lowest value is proven to fail, and is inconclusive otherwise.
pub(super) fn settle(run: &Run, judgement: &mut Judgement) {
    if !matches!(judgement.verdict, Verdict::Pass | Verdict::Fail | Verdict::Inconclusive) {
        return;
    }
    let Some(knee) = knee(run, &judgement.arms) else { return };
    if !knee.sweep.ramp {
        judgement.verdict = match (knee.holds, knee.ends) {
            (Some(_), _) => Verdict::Pass,
            (None, Some((_, Verdict::Fail))) => Verdict::Fail,
            _ => Verdict::Inconclusive,
        };
    }
    let sentence = said(run, &knee);
    judgement.reasons.insert(0, sentence);
}

/// Formats the summary: `the largest cpu.max that stays within 5 %: 50 % (it keeps 48 % of the offline work); 80 % does
/// not`.
fn said(run: &Run, knee: &SweepKnee<'_>) -> String {
    let limit = match threshold_words(run, run.design.gates.iter().copied()) {
        one if one.ends_with('%') => one,
        _ => "the thresholds".to_owned(),
    };
    let what = &knee.sweep.what;
    let kept = |point: &SweepPoint| {
        let kept = run.offline.iter().find(|kept| Some(&kept.arm) == point.isolated.as_ref());
        let pct = kept.and_then(|kept| kept.kept_vs_contended_pct);
        pct.map(|pct| format!(" (it keeps {pct:.0} % of the offline work)")).unwrap_or_default()
    };
    let word = |verdict| match verdict {
        Verdict::Fail => "does not",
        _ => "is undecided",
    };
    match (knee.sweep.ramp, knee.holds, knee.ends) {
        (true, Some(holds), None) => {
            format!("harm stays within {limit} up to {}{}", holds.label, kept(holds))
        }
        (true, Some(holds), Some((point, verdict))) => format!(
            "harm stays within {limit} up to {}{}; with {} it {}",
            holds.label,
            kept(holds),
            point.label,
            word(verdict)
        ),
        (true, None, Some((point, Verdict::Fail))) => {
            format!("harm exceeds {limit} already with {}", point.label)
        }
        (true, None, Some((point, _))) => {
            format!("it is undecided whether harm stays within {limit} with {}", point.label)
        }
        (false, Some(holds), None) => {
            format!("every {what} tried stays within {limit}, up to {}{}", holds.label, kept(holds))
        }
        (false, Some(holds), Some((point, verdict))) => format!(
            "the largest {what} that stays within {limit}: {}{}; {} {}",
            holds.label,
            kept(holds),
            point.label,
            word(verdict)
        ),
        (false, None, Some((point, Verdict::Fail))) => {
            format!("no {what} tried stays within {limit}: already {} exceeds it", point.label)
        }
        (false, None, Some((point, _))) => {
            format!("it is undecided which {what} stays within {limit}: {} is undecided", point.label)
        }
        (_, None, None) => format!("no value of {what} was judged"),
    }
}

/// Returns the summary of a sweep that has a verdict.
#[must_use]
pub fn answered(run: &Run) -> Option<String> {
    let concluded = matches!(run.verdict?, Verdict::Pass | Verdict::Fail | Verdict::Inconclusive);
    let knee = knee(run, &run.arm_verdicts).filter(|_| concluded)?;
    Some(said(run, &knee))
}

/// Returns whether an arm belongs to a value of a swept limit. Such an arm is judged, but need not pass.
#[must_use]
pub fn need_not_hold(run: &Run, arm: &str) -> bool {
    let varied = run.design.sweep.as_ref().filter(|sweep| !sweep.ramp);
    let is = |point: &SweepPoint| point.isolated.as_deref() == Some(arm);
    let isolated = run.arms.iter().any(|one| one.name == arm && one.role == Role::Isolated);
    isolated && varied.is_some_and(|sweep| sweep.points.iter().any(is))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::conclude_from;
    use crate::fixture::{bare_run, simulate};
    use crate::record::Arm;
    use crate::rng::Rng;

    /// Returns a run of 12 rounds. Its isolated arms have these harms, in the order of the sweep's values.
    fn swept(harms: &[f64], ramp: bool) -> Run {
        let mut run = bare_run(12);
        let template = run.arms.pop().unwrap();
        let blocks = run.blocks.clone();
        run.blocks.retain(|block| block.arm != "isolated");
        let mut samples = crate::analysis::Samples::empty(3 + harms.len());
        let mut points = Vec::new();
        for (index, harm) in harms.iter().enumerate() {
            let name = format!("isolated:{index}");
            run.arms.push(Arm { name: name.clone(), ..template.clone() });
            let its = blocks.iter().filter(|block| block.arm == "isolated").cloned();
            run.blocks.extend(its.map(|block| crate::record::Block { arm: name.clone(), ..block }));
            let at = 20.0 * (index + 1) as f64;
            let label = format!("{at} %");
            points.push(SweepPoint { at, label, contended: None, isolated: Some(name) });
            // The first four arms share one simulation; each further isolated arm has independent noise.
            let one = simulate(
                &mut Rng::new(23 + index as u64),
                12,
                [0.0, 0.5, *harm],
                (0.005, 0.0),
                &run.design.gates,
            );
            for round in 0..12 {
                for metric in run.design.gates.clone() {
                    let arms = if index == 0 { 0..4 } else { 3..4 };
                    for arm in arms {
                        let to = if arm == 3 { 3 + index } else { arm };
                        samples.set(to, round, metric, one.get(arm, round, metric).unwrap());
                    }
                }
            }
        }
        run.design.sweep = Some(Sweep { what: "cpu.max".into(), unit: "%".into(), ramp, points });
        conclude_from(&mut run, &samples, Vec::new());
        run
    }

    /// Each case has the harm at each value, the verdict if the values are a limit, and the verdict if they are a ramp.
    /// At this noise, a harm of 4.8 % is inconclusive.
    // promise 40
    #[test]
    fn the_least_value_decides_a_sweep_and_the_worst_a_ramp() {
        use Verdict::{Fail, Inconclusive, Pass};
        for (harms, vary, vary_words, ramp, ramp_words) in [
            (
                &[0.0, 0.01][..],
                Pass,
                "every cpu.max tried stays within 5 %, up to 40 %",
                Pass,
                "harm stays within 5 % up to 40 %",
            ),
            (
                &[0.0, 0.3],
                Pass,
                "the largest cpu.max that stays within 5 %: 20 % (it keeps 81 % of the offline work); 40 % does not",
                Fail,
                "up to 20 % (it keeps 81 % of the offline work); with 40 % it does not",
            ),
            (
                &[0.0, 0.01, 0.3, 0.6],
                Pass,
                "the largest cpu.max that stays within 5 %: 40 % (",
                Fail,
                "up to 40 % (",
            ),
            (
                &[0.3, 0.6],
                Fail,
                "no cpu.max tried stays within 5 %: already 20 % exceeds it",
                Fail,
                "harm exceeds 5 % already with 20 %",
            ),
            (
                &[0.048, 0.3],
                Inconclusive,
                "it is undecided which cpu.max stays within 5 %: 20 % is undecided",
                Fail,
                "it is undecided whether",
            ),
            // The sweep does not claim a larger value that passes by chance.
            (&[0.3, 0.0], Fail, "no cpu.max tried", Fail, "with 20 %"),
            (&[0.0, 0.048], Pass, "40 % is undecided", Inconclusive, "with 40 % it is undecided"),
        ] {
            for (is_ramp, verdict, words) in [(false, vary, vary_words), (true, ramp, ramp_words)] {
                let run = swept(harms, is_ramp);
                assert_eq!(run.verdict, Some(verdict), "{harms:?} {is_ramp}: {:?}", run.reasons);
                assert!(run.reasons[0].contains(words), "{harms:?}: {:?}", run.reasons);
                assert_eq!(answered(&run).as_deref(), Some(run.reasons[0].as_str()));
            }
        }
    }

    #[test]
    fn bounds_that_differ_are_not_one_number() {
        let mut run = swept(&[0.0, 0.3], false);
        run.design.threshold_overrides_pct.insert(crate::record::Metric::P90, 10.0);
        let said = answered(&run).unwrap();
        assert!(said.starts_with("the largest cpu.max that stays within the thresholds: 20 %"), "{said}");
    }

    #[test]
    fn an_environment_that_is_no_ground_stays_so() {
        let mut run = swept(&[0.0, 0.3], false);
        run.blocks.iter_mut().find(|block| block.arm == "baseline").unwrap().online_crashed = true;
        let mut judgement = crate::verdict::judge(&run);
        settle(&run, &mut judgement);
        assert_eq!(judgement.verdict, Verdict::Invalid);
        run.verdict = Some(Verdict::Invalid);
        assert_eq!(answered(&run), None);
    }

    /// The summary appears in the terminal, Markdown, HTML, CSV and JUnit reports.
    #[test]
    fn every_report_has_the_curve() {
        let run = swept(&[0.0, 0.01, 0.3], false);
        let text = crate::report::terminal(&run, false);
        assert!(text.starts_with("PASS  the largest cpu.max that stays within 5 %: 40 %"), "{text}");
        assert!(text.contains("harm over cpu.max") && text.contains("20 %"), "{text}");
        let markdown = crate::report::markdown(&run);
        assert!(markdown.contains("| cpu.max | verdict |") && markdown.lines().count() <= 40, "{markdown}");
        let page = crate::report::html(&run);
        assert!(page.contains("Harm over cpu.max") && page.contains("id=\"curve0\""), "no curve");
        let csv = crate::report::csv(&run);
        assert!(csv.lines().next().unwrap().ends_with(",\"cpu.max, %\""), "{csv}");
        assert!(csv.lines().any(|line| line.contains(",isolated:1,") && line.ends_with(",40")), "{csv}");
        // The arms of a swept limit need not pass, so they do not fail a build. The result of the sweep is a test case
        // of its own.
        let junit = crate::report::junit(&run, true);
        assert!(junit.contains("failures=\"0\"") && junit.contains("some cpu.max holds"), "{junit}");
        assert!(crate::report::junit(&swept(&[0.3, 0.6], false), false).contains("failures=\"1\""));
        let ramp = swept(&[0.0, 0.3], true);
        assert!(crate::report::junit(&ramp, false).contains("harmed by more than 5 %"));
        let again = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(again, run);
    }
}
