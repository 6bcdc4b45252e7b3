//! Decides after an interim analysis whether a run goes on, and which arms it measures until the next one. The decision
//! depends on the recorded blocks alone, so that a continued run decides like an uninterrupted one.
//!
//! A gate (a metric that determines the verdict) of an isolated arm is a question with two parts: the arm is compared with
//! the service alone on CPUs that may idle, and on CPUs that never idle. A part that is decided costs no more time. The two
//! identical arms and the arm without isolation are measured up to the first analysis, and longer only while the arms cannot
//! be judged.

use super::conclude;
use crate::format::log_of_pct;
use crate::record::{Arm, Comparison, Metric, Role, Run, Sweep, Verdict, Windows};
use crate::verdict::{Gate, beside_gates, disturbed, each, has_bound};
use commensal_core::windows::Answer;
use commensal_core::windows::stretch::{Forecast, Next, Outlook, Question, Time, next};
use std::collections::BTreeMap;

/// Returns what a run does after this many rounds; `None` if it goes on as before, because no analysis takes place then or
/// because its rounds always measure every arm.
#[must_use]
pub fn after(run: &Run, rounds: u32) -> Option<Next> {
    let look = run.design.looks.iter().position(|look| *look == rounds)?;
    let mut now = run.clone();
    now.blocks.retain(|block| block.round < rounds);
    conclude(&mut now);
    if is_decided(&now) {
        return Some(Next::End);
    }
    let (allotted, windows) = run.design.allotted.zip(run.design.windows)?;
    let (spent_s, slowness) = taken(&now, windows);
    let time = Time { spent_s, budget_s: allotted.budget_s, longest_s: allotted.longest_s };
    let left = run.design.looks.get(look + 1).map_or(0, |later| later - rounds);
    let costs: Vec<f64> = run.arms.iter().map(|arm| windows.arm_s(arm.role) * slowness).collect();
    Some(next(&questions(&now, rounds), (left, &costs), time))
}

/// Returns how long the recorded rounds took, in seconds, and how many times as long as planned. A round ends when the next one
/// begins, but takes at least as long as planned: the times of a continued run begin at zero again.
fn taken(run: &Run, windows: Windows) -> (f64, f64) {
    let mut rounds = BTreeMap::<u32, (f64, Option<f64>)>::new();
    for block in &run.blocks {
        let arm = run.arms.iter().find(|arm| arm.name == block.arm);
        let (planned_s, began_s) = rounds.entry(block.round).or_default();
        *planned_s += arm.map_or(0.0, |arm| windows.block_s(arm.role));
        *began_s = [*began_s, block.at_s].into_iter().flatten().reduce(f64::min);
    }
    let rounds: Vec<(f64, Option<f64>)> = rounds.into_values().collect();
    let planned_s: f64 = rounds.iter().map(|(planned_s, _)| planned_s).sum();
    let late_s = |pair: &[(f64, Option<f64>)]| {
        let took_s = pair[1].1.zip(pair[0].1).map_or(0.0, |(next_s, began_s)| next_s - began_s);
        (took_s - pair[0].0).max(0.0)
    };
    let taken_s = planned_s + rounds.windows(2).map(late_s).sum::<f64>();
    (taken_s, if planned_s > 0.0 { taken_s / planned_s } else { 1.0 })
}

/// Returns how many seconds and how many blocks a run still takes that is not decided before its budget is spent. It measures
/// these arms from this round until its next analysis.
pub(crate) fn rest(run: &Run, (round, measured): (u32, &[usize]), windows: Windows) -> (f64, usize) {
    let (spent_s, slowness) = taken(run, windows);
    let of_round = |arms: &[usize]| {
        let roles = arms.iter().filter_map(|arm| run.arms.get(*arm)).map(|arm| arm.role);
        let (mut seconds, mut blocks) = (0.0, 0.0);
        for role in roles {
            seconds += windows.arm_s(role) * slowness;
            blocks += 1.0 / f64::from(windows.turns(role).every.max(1));
        }
        (seconds, blocks)
    };
    let until = *run.design.looks.iter().find(|look| **look > round).unwrap_or(&run.design.rounds);
    let (now, later) = (of_round(measured), of_round(&run.design.later_arms(&run.arms)));
    let first = f64::from(until.saturating_sub(round));
    let mut then = f64::from(run.design.rounds.saturating_sub(until));
    if let Some(allotted) = run.design.allotted {
        let left_s = allotted.budget_s - spent_s - first * now.0;
        then = then.min((left_s / later.0).floor().max(0.0));
    }
    (first * now.0 + then * later.0, (first * now.1 + then * later.1).round() as usize)
}

/// Whether an interim analysis already decides the run. All interim analyses of a run share its allowed error rate.
fn is_decided(now: &Run) -> bool {
    // A sweep (a run over several values of a setting) is undecided while the verdict on any value is inconclusive.
    let open = |_: &Sweep| now.arm_verdicts.values().any(|verdict| *verdict == Verdict::Inconclusive);
    !now.design.sweep.as_ref().is_some_and(open)
        && matches!(now.verdict, Some(Verdict::Pass | Verdict::Fail | Verdict::Broken))
}

/// Returns the open questions of a concluded run after this many rounds.
fn questions(now: &Run, rounds: u32) -> Vec<Question> {
    let about_all = |outlook| Question { settings: (0..now.arms.len()).collect(), outlook };
    if now.arm_verdicts.is_empty() {
        // More of the same rarely makes an unsound measurement sound.
        let open = now.verdict == Some(Verdict::Inconclusive);
        return vec![about_all(if open { Outlook::Question } else { Outlook::Nothing })];
    }
    let gates: Vec<Metric> =
        now.design.gates.iter().copied().filter(|gate| now.design.plans_for(*gate)).collect();
    let mut questions = Vec::new();
    let open = |arm: &&Arm| now.arm_verdicts.get(&arm.name) == Some(&Verdict::Inconclusive);
    for arm in now.arms.iter().filter(open) {
        for gate in each(now, arm, &gates).iter().filter(|gate| gate.verdict == Verdict::Inconclusive) {
            questions.extend(of_gate(now, arm, gate, rounds));
        }
        let asked = beside_gates(now, arm).into_iter();
        let asked = asked.filter(|part| part.asked && part.verdict == Verdict::Inconclusive);
        questions.extend(asked.map(|_| about_all(Outlook::Question)));
    }
    questions
}

/// Returns the open parts of a gate: the comparisons that are not proven to stay within the threshold.
fn of_gate(now: &Run, arm: &Arm, gate: &Gate<'_>, rounds: u32) -> Vec<Question> {
    let theta = now.design.threshold_of(gate.metric);
    let warm = now.arm_with(Role::Warm);
    let on_warm = warm.and_then(|warm| now.comparison(&arm.name, &warm.name, gate.metric));
    // A baseline that the hypervisor disturbs does not count.
    let cold = now.reference().filter(|_| disturbed(now).is_none() || !has_bound(on_warm));
    let at = |arm: &Arm| now.arms.iter().position(|other| other.name == arm.name);
    let alone = [cold, warm].into_iter().flatten();
    let parts = alone.filter_map(|alone| {
        let result = now.comparison(&arm.name, &alone.name, gate.metric);
        let within = result.and_then(|result| result.one_sided).is_some_and(|[_, hi]| hi < theta);
        let outlook = result.map_or(Outlook::Question, |result| outlook(now, result, rounds));
        (!within).then_some(Question { settings: vec![at(alone)?, at(arm)?], outlook })
    });
    parts.collect()
}

/// Returns what the last planned analysis would decide, if harm and noise stayed as they are. A comparison without bounds
/// forecasts nothing, so it counts as in reach.
fn outlook(now: &Run, result: &Comparison, rounds: u32) -> Outlook {
    let (Some(last), Some(level), Some([lo, hi])) =
        (now.design.looks.last(), result.level, result.one_sided.map(|ends| ends.map(log_of_pct)))
    else {
        return Outlook::Question;
    };
    let forecast = Forecast { estimate: log_of_pct(result.harm_pct), bounds: [lo, hi], level };
    let threshold = log_of_pct(now.design.threshold_of(result.metric));
    let within = now.design.level(*last);
    // Holm's correction for the number of gates, at its strictest.
    let beyond = within / now.design.gates.len().max(1) as f64;
    match forecast.answer(threshold, f64::from(*last) / f64::from(rounds.max(1)), (within, beyond)) {
        Answer::Open => Outlook::Nothing,
        // A sweep asks about each of its values.
        Answer::Beyond if now.design.sweep.is_none() => Outlook::Run,
        Answer::Within | Answer::Beyond => Outlook::Question,
    }
}
