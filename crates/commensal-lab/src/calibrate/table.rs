//! Summary of a calibration: how often the verdicts were right, for each known harm, and whether the verdicts meet
//! their goals. In a calibration, the service harms itself by a known delay, and the verdict should report that harm. A
//! gate is a metric whose harm determines the verdict. The summary is formatted as text for a terminal and as Markdown.

use super::answer::KNOWN;
use super::{Answer, Calibration, Done, GateAnswer};
use crate::format::{plain, signed};
use crate::record::Metric;
use crate::record::Verdict;
use crate::stats::{mean, median};
use commensal_core::text::{Align, columns, markdown_table};
use serde::Serialize;

/// A verdict counts as right or wrong only if the true harm is above or below the threshold by at least this factor.
const APART: f64 = 1.5;
/// Goal: maximum share of false verdicts.
const MOST_FALSE: f64 = 0.05;
/// Goal: minimum share of confidence intervals that contain the true harm.
const LEAST_COVERED: f64 = 0.93;
/// Goal: minimum share of gross (large) harms on P90 that are detected.
const LEAST_FOUND: f64 = 0.95;
/// Smallest configured harm on P90 that counts as gross, in per cent.
const GROSS_PCT: f64 = 30.0;
/// Smallest true harm on P90 that counts as gross, in per cent, if the service could not add the full delay.
const GROSS_TRUE_PCT: f64 = 20.0;
/// Minimum number of results from which a share of 5 % can be estimated.
const ENOUGH: usize = 100;

/// The expected verdict for a harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// PASS: the harm is far below the threshold on every gate, which is a metric that determines the verdict.
    Pass,
    /// FAIL: the harm is far above the threshold on some gate.
    Fail,
    /// Either verdict: the harm is close to a threshold.
    Either,
}

/// Returns the expected verdict of a result.
fn expected(answer: &Answer) -> Expected {
    let times = |gate: &GateAnswer| gate.true_pct / gate.threshold_pct;
    if answer.gates.iter().any(|gate| times(gate) >= APART) {
        Expected::Fail
    } else if answer.gates.iter().all(|gate| times(gate) <= 1.0 / APART) {
        Expected::Pass
    } else {
        Expected::Either
    }
}

/// The results of all runs for one harm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the harm.
    pub harm: String,
    /// Number of results.
    pub answers: usize,
    /// Number of verdicts PASS.
    pub pass: usize,
    /// Number of verdicts FAIL or BROKEN.
    pub fail: usize,
    /// Number of verdicts INCONCLUSIVE.
    pub open: usize,
    /// Number of verdicts INVALID.
    pub invalid: usize,
    /// Number of results with the expected verdict, where that is PASS or FAIL.
    pub right: usize,
    /// Number of results with the opposite of the expected verdict.
    pub wrong: usize,
    /// Number of results for which either verdict is acceptable.
    pub either: usize,
    /// Configured delay per request (µs, median).
    pub asked_us: Option<f64>,
    /// Measured delay per request (µs, median).
    pub counted_us: Option<f64>,
    /// CPU time per request, minus the CPU time per request of the service alone (µs, median).
    pub cpu_us: Option<f64>,
    /// One entry per percentile.
    pub gates: Vec<Shown>,
}

/// One percentile over all results for a harm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shown {
    /// The percentile.
    pub metric: Metric,
    /// The true harm (per cent, median).
    pub true_pct: Option<f64>,
    /// The measured harm (per cent, median).
    pub harm_pct: Option<f64>,
    /// Number of confidence intervals; INVALID results do not count.
    pub intervals: usize,
    /// Number of these intervals that contain the true harm.
    pub covered: usize,
    /// Upper confidence bound (per cent, median).
    pub bound_pct: Option<f64>,
    /// Number of results in which all rounds together prove a harm above the threshold on this percentile alone.
    pub beyond: usize,
}

/// A goal for the verdicts, and whether the verdicts meet it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// Description of the cases that `count` counts.
    pub what: &'static str,
    /// Number of these cases, out of `of`.
    pub count: usize,
    /// Number of cases to which the goal applies.
    pub of: usize,
    /// Required value of `count / of`; `most` says whether it is a maximum or a minimum.
    pub share: f64,
    /// Whether `share` is a maximum; otherwise it is a minimum.
    pub most: bool,
    /// Whether the goal is met; `None` if the goal applies to no case.
    pub holds: Option<bool>,
}

impl Goal {
    fn new(what: &'static str, (count, of): (usize, usize), (share, most): (f64, bool)) -> Goal {
        let seen = count as f64 / of.max(1) as f64;
        let holds = (of > 0).then_some(if most { seen <= share } else { seen >= share });
        Goal { what, count, of, share, most, holds }
    }

    fn describe(&self) -> String {
        let (than, pct) = (if self.most { "at most" } else { "at least" }, self.share * 100.0);
        match self.holds {
            None => format!("{}: not tested (goal: {than} {pct:.0} %)", self.what),
            Some(holds) => format!(
                "{}: {} of {}, {} % (goal: {than} {pct:.0} %){}",
                self.what,
                self.count,
                self.of,
                plain(self.count as f64 / self.of.max(1) as f64 * 100.0, 0.1),
                if holds { "" } else { ": NOT REACHED" }
            ),
        }
    }
}

/// The summary of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationSummary {
    /// Number of runs.
    pub runs: usize,
    /// One row per harm, in the order of the plan.
    pub rows: Vec<Row>,
    /// The goals for the verdicts.
    pub goals: Vec<Goal>,
    /// Further facts about the calibration.
    pub facts: Vec<String>,
}

impl CalibrationSummary {
    /// Whether at least one goal could be tested, and all goals that could be tested are met.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.goals.iter().all(|goal| goal.holds != Some(false))
            && self.goals.iter().any(|goal| goal.holds.is_some())
    }
}

/// Computes the summary of a calibration.
#[must_use]
pub fn summarise(record: &Calibration) -> CalibrationSummary {
    let of = |harm: &crate::record::KnownHarm| -> Vec<&Answer> {
        record.runs.iter().flat_map(|run| &run.answers).filter(|answer| answer.harm == *harm).collect()
    };
    let rows: Vec<Row> = record.plan.harms.iter().map(|harm| row(&harm.arm, &of(harm))).collect();
    let sum = |of: &dyn Fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
    let gates = |of: fn(&Shown) -> usize| sum(&|row| row.gates.iter().map(of).sum());
    let gross: Vec<&Answer> = record
        .plan
        .harms
        .iter()
        .filter(|harm| harm.of == Metric::P90 && harm.pct >= GROSS_PCT)
        .flat_map(of)
        .filter(|answer| {
            answer.gates.iter().any(|gate| gate.metric == Metric::P90 && gate.true_pct >= GROSS_TRUE_PCT)
        })
        .collect();
    let found =
        gross.iter().filter(|answer| answer.verdict != Verdict::Invalid && beyond(answer, Metric::P90));
    let goals = vec![
        Goal::new(
            "false verdicts (PASS at 1.5 times a threshold or more, FAIL at 2/3 of it or less)",
            (sum(&|row| row.wrong), sum(&|row| row.answers - row.either)),
            (MOST_FALSE, true),
        ),
        Goal::new(
            "true harm within its confidence interval",
            (gates(|one| one.covered), gates(|one| one.intervals)),
            (LEAST_COVERED, false),
        ),
        Goal::new(
            "harm of +30 % on P90 detected by the gate on P90 alone",
            (found.count(), gross.len()),
            (LEAST_FOUND, false),
        ),
    ];
    CalibrationSummary { runs: record.runs.len(), rows, goals, facts: facts(record) }
}

fn beyond(answer: &Answer, metric: Metric) -> bool {
    answer.gates.iter().any(|gate| gate.metric == metric && gate.beyond)
}

fn row(harm: &str, answers: &[&Answer]) -> Row {
    let count = |of: &dyn Fn(&Answer) -> bool| answers.iter().filter(|answer| of(answer)).count();
    let said = |verdict| count(&|answer| answer.verdict == verdict);
    let failed = |answer: &Answer| matches!(answer.verdict, Verdict::Fail | Verdict::Broken);
    let passed = |answer: &Answer| answer.verdict == Verdict::Pass;
    let must = |answer: &Answer, want| expected(answer) == want;
    let middle = |of: &dyn Fn(&Answer) -> Option<f64>| {
        median(&answers.iter().filter_map(|answer| of(answer)).collect::<Vec<f64>>())
    };
    let shown = |metric: Metric| {
        let its: Vec<(&Answer, &GateAnswer)> = answers
            .iter()
            .flat_map(|answer| answer.gates.iter().map(|gate| (*answer, gate)))
            .filter(|(_, gate)| gate.metric == metric)
            .collect();
        let middle = |of: &dyn Fn(&GateAnswer) -> Option<f64>| {
            median(&its.iter().filter_map(|(_, gate)| of(gate)).collect::<Vec<f64>>())
        };
        let covers = its
            .iter()
            .filter(|(answer, _)| answer.verdict != Verdict::Invalid)
            .filter_map(|(_, gate)| gate.covers());
        let covers: Vec<bool> = covers.collect();
        Shown {
            metric,
            true_pct: middle(&|gate| Some(gate.true_pct)),
            harm_pct: middle(&|gate| Some(gate.harm_pct)),
            intervals: covers.len(),
            covered: covers.iter().filter(|covers| **covers).count(),
            bound_pct: middle(&|gate| gate.one_sided.map(|[_, hi]| hi)),
            beyond: its.iter().filter(|(_, gate)| gate.beyond).count(),
        }
    };
    Row {
        harm: harm.to_owned(),
        answers: answers.len(),
        pass: said(Verdict::Pass),
        fail: count(&failed),
        open: said(Verdict::Inconclusive),
        invalid: said(Verdict::Invalid),
        right: count(&|answer| {
            (passed(answer) && must(answer, Expected::Pass))
                || (failed(answer) && must(answer, Expected::Fail))
        }),
        wrong: count(&|answer| {
            (passed(answer) && must(answer, Expected::Fail))
                || (failed(answer) && must(answer, Expected::Pass))
        }),
        either: count(&|answer| must(answer, Expected::Either)),
        asked_us: middle(&|answer| Some(answer.asked_us)),
        counted_us: middle(&|answer| answer.counted_us),
        cpu_us: middle(&|answer| answer.cpu_us),
        gates: KNOWN.map(shown).to_vec(),
    }
}

fn facts(record: &Calibration) -> Vec<String> {
    let plan = &record.plan;
    let mut facts = Vec::new();
    if let (Ok(experiment), Ok(quickstart_s)) = (plan.experiment(0), plan.quickstart_s()) {
        let per_round = experiment.design.windows.map_or(0, |windows| windows.per_round);
        facts.push(format!(
            "each verdict is based on at most {} rounds of {per_round} windows, as many as `lab run quickstart --for {:.0}s` has",
            experiment.design.rounds,
            quickstart_s.ceil()
        ));
    }
    let of = |of: fn(&Done) -> Option<f64>| record.runs.iter().filter_map(of).collect::<Vec<f64>>();
    let range = |values: &[f64], step: f64| {
        let ends = values
            .iter()
            .copied()
            .fold((f64::INFINITY, 0.0), |(lo, hi), one| (f64::min(lo, one), f64::max(hi, one)));
        mean(values)
            .map(|mean| format!("{} ({} to {})", plain(mean, step), plain(ends.0, step), plain(ends.1, step)))
    };
    if let Some(alone) = range(&of(|run| run.alone_us), 1.0) {
        facts.push(format!("the median latency of the service alone is {alone} us"));
    }
    if let Some(foreign) = range(&of(|run| run.foreign_cpus), 0.01) {
        let stolen = range(&of(|run| run.steal_cpus), 0.01)
            .map(|steal| format!("; steal time was {steal} CPUs"))
            .unwrap_or_default();
        facts.push(format!("programs outside the experiment used {foreign} CPUs{stolen}"));
    }
    if let Some(beside) = &plan.beside {
        facts.push(format!("neighbour: {beside}"));
    }
    let answers: usize = record.runs.iter().map(|run| run.answers.len()).sum();
    if answers < ENOUGH {
        facts
            .push(format!("{answers} verdicts are too few to estimate a share of 5 %, which needs {ENOUGH}"));
    }
    let mut caveats: Vec<&String> = record.runs.iter().flat_map(|run| &run.caveats).collect();
    caveats.sort();
    caveats.dedup();
    facts.extend(caveats.into_iter().cloned());
    if let Some(machine) = &record.machine {
        facts.push(format!("{}, {} CPUs, kernel {}", machine.cpu, machine.threads, machine.kernel));
    }
    facts
}

const ANSWERS: [&str; 11] = [
    "harm",
    "answers",
    "PASS",
    "FAIL",
    "open",
    "INVALID",
    "right",
    "wrong",
    "added us",
    "counted us",
    "CPU us",
];
const INTERVALS: [&str; 7] = ["harm", "gate", "true %", "shown %", "covered", "bound %", "beyond"];

fn number(value: Option<f64>, step: f64) -> String {
    value.map_or_else(|| "-".to_owned(), |value| plain(value, step))
}

fn answer_cells(row: &Row) -> Vec<String> {
    // If either verdict is acceptable, the counts of right and wrong verdicts mean nothing.
    let graded = |count: usize| if row.either == row.answers { "-".to_owned() } else { count.to_string() };
    let counts = [row.answers, row.pass, row.fail, row.open, row.invalid].map(|count| count.to_string());
    let mut cells = vec![row.harm.clone()];
    cells.extend(counts);
    cells.extend([graded(row.right), graded(row.wrong)]);
    cells.extend([row.asked_us, row.counted_us, row.cpu_us].map(|us| number(us, 0.1)));
    cells
}

fn interval_cells(row: &Row) -> Vec<Vec<String>> {
    let one = |shown: &Shown| {
        let step = 0.1;
        vec![
            row.harm.clone(),
            shown.metric.label().to_owned(),
            number(shown.true_pct, step),
            shown.harm_pct.map_or_else(|| "-".to_owned(), |pct| signed(pct, step)),
            format!("{} of {}", shown.covered, shown.intervals),
            number(shown.bound_pct, step),
            format!("{} of {}", shown.beyond, row.answers),
        ]
    };
    row.gates.iter().map(one).collect()
}

/// Returns both tables (harms and percentiles), each with its header row.
fn tables(summary: &CalibrationSummary) -> [Vec<Vec<String>>; 2] {
    let head = |titles: &[&str]| titles.iter().map(|title| (*title).to_owned()).collect();
    let (mut answers, mut intervals) = (vec![head(&ANSWERS)], vec![head(&INTERVALS)]);
    answers.extend(summary.rows.iter().map(answer_cells));
    intervals.extend(summary.rows.iter().flat_map(interval_cells));
    [answers, intervals]
}

/// Formats the tables, the goals and the facts for a terminal.
#[must_use]
pub fn terminal(summary: &CalibrationSummary) -> String {
    let mut text = format!("{} runs\n", summary.runs);
    for table in tables(summary) {
        text.push('\n');
        text.push_str(&columns(&table, Align::Figures));
    }
    text.push('\n');
    for goal in &summary.goals {
        text.push_str(&format!("{}\n", goal.describe()));
    }
    for fact in &summary.facts {
        text.push_str(&format!("{fact}\n"));
    }
    text
}

/// Formats the tables, the goals and the facts as Markdown.
#[must_use]
pub fn markdown(summary: &CalibrationSummary) -> String {
    let mut text = format!("{} runs.\n", summary.runs);
    for table in tables(summary) {
        text.push('\n');
        text.push_str(&markdown_table(&table, 1, str::to_owned));
    }
    text.push('\n');
    for line in summary.goals.iter().map(Goal::describe).chain(summary.facts.iter().cloned()) {
        text.push_str(&format!("- {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;
    use crate::record::{KnownHarm, RecordedBy};

    fn gate(metric: Metric, (true_pct, width): (f64, f64), beyond: bool) -> GateAnswer {
        let threshold_pct = if metric == Metric::P50 { 5.0 } else { 10.0 };
        GateAnswer {
            metric,
            threshold_pct,
            true_pct,
            harm_pct: true_pct + 0.2,
            ci95: Some([true_pct - width, true_pct + width]),
            one_sided: Some([true_pct - width * 0.8, true_pct + width * 0.8]),
            beyond,
        }
    }

    fn answer(harm: &KnownHarm, verdict: Verdict, width: f64) -> Answer {
        let (p50, p90) = match harm.of {
            Metric::P90 => (harm.pct * 1.5, harm.pct),
            _ => (harm.pct, harm.pct / 1.5),
        };
        Answer {
            harm: harm.clone(),
            asked_us: harm.pct * 1.6,
            counted_us: Some(harm.pct * 1.6),
            cpu_us: Some(harm.pct * 1.6),
            verdict,
            rounds: 10,
            level: 0.026,
            gates: vec![
                gate(Metric::P50, (p50, width), p50 > 7.0),
                gate(Metric::P90, (p90, width), p90 > 14.0),
            ],
            reasons: Vec::new(),
        }
    }

    fn record(harms: &str, verdicts: &[&[Verdict]]) -> Calibration {
        let plan = Plan::new(Some(harms), 90.0, 1, None).unwrap();
        let mut record = Calibration::new(plan, RecordedBy::default());
        for run in verdicts {
            let answers = record.plan.harms.iter().zip(*run);
            let answers = answers.map(|(harm, verdict)| answer(harm, *verdict, 1.0)).collect();
            record.runs.push(Done {
                seed: 1,
                started: String::new(),
                rounds: 10,
                offered_per_s: Some(2_100.0),
                alone_us: Some(160.0),
                foreign_cpus: Some(0.25),
                steal_cpus: Some(0.01),
                answers,
                blocks: Vec::new(),
                caveats: vec!["one remark".to_owned()],
            });
        }
        record
    }

    use Verdict::{Broken, Fail, Inconclusive, Invalid, Pass};

    #[test]
    fn right_and_wrong_follow_from_what_is_true() {
        let check = |harms: &str, verdict: Verdict, want: (usize, usize, usize)| {
            let row = &summarise(&record(harms, &[&[verdict]])).rows[0];
            assert_eq!((row.right, row.wrong, row.either), want, "{harms} {verdict:?}");
        };
        for (harms, right, wrong) in
            [("0", Pass, Fail), ("3", Pass, Fail), ("10", Fail, Pass), ("p90:30", Fail, Pass)]
        {
            check(harms, right, (1, 0, 0));
            check(harms, wrong, (0, 1, 0));
            check(harms, Inconclusive, (0, 0, 0));
            check(harms, Invalid, (0, 0, 0));
        }
        check("0", Broken, (0, 1, 0));
        check("10", Broken, (1, 0, 0));
        // Near the threshold, either verdict is acceptable.
        for verdict in [Pass, Fail, Inconclusive] {
            check("3.5", verdict, (0, 0, 1));
            check("5", verdict, (0, 0, 1));
            check("7.4", verdict, (0, 0, 1));
        }
    }

    #[test]
    fn goals_hold_or_not_and_nothing_counted_is_not_tested() {
        let holds =
            |record: &Calibration| summarise(record).goals.iter().map(|goal| goal.holds).collect::<Vec<_>>();
        let good = record("0,10", &[&[Pass, Fail], &[Inconclusive, Invalid]]);
        assert_eq!(holds(&good), [Some(true), Some(true), None]);
        assert!(summarise(&good).holds());
        let wrong = record("0,10", &[&[Fail, Fail]]);
        assert_eq!(holds(&wrong), [Some(false), Some(true), None]);
        assert!(!summarise(&wrong).holds());
        let mut uncovered = record("0,10", &[&[Pass, Fail]]);
        uncovered.runs[0].answers[0].gates[0].ci95 = Some([1.0, 2.0]);
        assert_eq!(holds(&uncovered), [Some(true), Some(false), None]);
        // Confidence intervals of INVALID results are not counted.
        uncovered.runs[0].answers[0].verdict = Invalid;
        assert_eq!(holds(&uncovered), [Some(true), Some(true), None]);
        assert_eq!(holds(&record("p90:30", &[&[Fail]])), [Some(true), Some(true), Some(true)]);
        // Without a verdict, the harm counts as not detected.
        assert_eq!(holds(&record("p90:30", &[&[Invalid]]))[2], Some(false));
        let mut by_median = record("p90:30", &[&[Fail]]);
        by_median.runs[0].answers[0].gates[1].beyond = false;
        assert_eq!(holds(&by_median)[2], Some(false));
        assert!(!summarise(&record("0", &[])).holds(), "nothing was tested");
    }

    #[test]
    fn both_forms_say_the_same() {
        let record = record("0,5,p90:30", &[&[Pass, Pass, Fail], &[Pass, Fail, Inconclusive]]);
        let summary = summarise(&record);
        let (text, marked) = (terminal(&summary), markdown(&summary));
        assert!(text.starts_with("2 runs\n\nharm "), "{text}");
        let row = "+5 %                2     1     1     0        0      -      -";
        assert!(text.contains(row), "{text}");
        assert!(marked.contains("| +5 % | 2 | 1 | 1 | 0 | 0 | - | - | 8.0 | 8.0 | 8.0 |"), "{marked}");
        assert!(
            marked.contains("| +30 % of P90 | P90 | 30.0 | +30.2 | 2 of 2 | 30.8 | 2 of 2 |"),
            "{marked}"
        );
        for said in [
            "false verdicts (PASS at 1.5 times a threshold or more, FAIL at 2/3 of it or less): 0 of 4, 0.0 % (goal: at most 5 %)",
            "true harm within its confidence interval: 12 of 12, 100.0 % (goal: at least 93 %)",
            "harm of +30 % on P90 detected by the gate on P90 alone: 2 of 2",
            "programs outside the experiment used 0.25 (0.25 to 0.25) CPUs; steal time was 0.01",
            "6 verdicts are too few to estimate a share of 5 %",
            "lab run quickstart --for",
            "one remark",
        ] {
            assert!(text.contains(said) && marked.contains(said), "{said}\n{text}");
        }
        assert_eq!(text.matches("one remark").count(), 1);
        let narrow = text.lines().take(14).map(|line| line.chars().count()).max();
        assert!(narrow <= Some(100), "{narrow:?}\n{text}");
    }
}
