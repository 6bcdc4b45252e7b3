//! How a run spends its time between two interim analyses: which settings it measures, and whether it goes on at all.
//!
//! Before its first analysis, a run measures every setting. After an analysis, it measures only the settings that some open
//! question compares, so that the time goes where it decides. Every question keeps its plan: its pairs are analysed after
//! the same numbers of rounds, whatever else is measured in these rounds. A question that is decided gets no more pairs, and
//! keeps the level of the analysis that decided it. So leaving out settings costs no error. Neither does ending a run that
//! is not decided: that can only withhold an answer.

use crate::stats::normal_quantile;

/// Rounding error of sums of times, in seconds.
const SLACK_S: f64 = 1e-6;

/// A question that an interim analysis left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The settings that it compares.
    pub settings: Vec<usize>,
    /// Whether the last analysis would decide it if effect and noise stayed as they were measured.
    pub in_reach: bool,
}

/// What an interim analysis forecasts about a question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// The estimated effect.
    pub estimate: f64,
    /// Its lower and its upper one-sided bound.
    pub bounds: [f64; 2],
    /// The one-sided error of the bounds.
    pub level: f64,
}

impl Forecast {
    /// Returns whether an analysis of `times` as many pairs, at an error of `level`, decides on which side of the threshold
    /// the effect lies, if effect and noise stay as they are.
    #[must_use]
    pub fn decides(&self, threshold: f64, times: f64, level: f64) -> bool {
        let below = self.estimate < threshold;
        let distance = if below { self.bounds[1] - self.estimate } else { self.estimate - self.bounds[0] };
        let z = |level: f64| normal_quantile(1.0 - level);
        distance * z(level) / z(self.level) / times.sqrt() < (threshold - self.estimate).abs()
    }
}

/// The time of a run in seconds, by its plan: what the rounds so far took, what the run should take, and what it may take
/// if that decides an open question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    /// What the rounds so far took.
    pub spent_s: f64,
    /// What the run should take.
    pub budget_s: f64,
    /// What it may take.
    pub longest_s: f64,
}

/// What a run does after an interim analysis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It ends.
    End,
    /// It measures these settings, in ascending order, until the next analysis.
    Measure(Vec<usize>),
}

/// Returns what a run does after an interim analysis with these open questions. The next analysis takes place `rounds` rounds
/// later; `cost_s` has the time that each setting takes in a round, in seconds.
///
/// Within the budget, the run goes on while a question is open. Beyond it, it goes on only if every open question is in
/// reach: otherwise it would take longer and still not decide.
#[must_use]
pub fn next(questions: &[Question], (rounds, cost_s): (u32, &[f64]), time: Time) -> Next {
    let mut settings: Vec<usize> = questions.iter().flat_map(|one| one.settings.iter().copied()).collect();
    settings.sort_unstable();
    settings.dedup();
    let round_s: f64 = settings.iter().filter_map(|setting| cost_s.get(*setting)).sum();
    let ends_s = time.spent_s + f64::from(rounds) * round_s;
    let may_go_on = ends_s <= time.budget_s + SLACK_S
        || (ends_s <= time.longest_s + SLACK_S && questions.iter().all(|question| question.in_reach));
    if rounds == 0 || questions.is_empty() || !may_go_on { Next::End } else { Next::Measure(settings) }
}

/// Returns the largest number of rounds, up to `most`, that takes at most `within_s` seconds: a round takes `full_s` seconds
/// up to the first analysis, and `reduced_s` seconds afterwards. `first` has the number of rounds before the first analysis
/// of a run with that many rounds.
#[must_use]
pub fn rounds_within(
    within_s: f64,
    (full_s, reduced_s): (f64, f64),
    most: u32,
    first: impl Fn(u32) -> u32,
) -> u32 {
    let takes_s = |rounds: u32| {
        let first = first(rounds).min(rounds);
        f64::from(first) * full_s + f64::from(rounds - first) * reduced_s
    };
    // A number of rounds with a later first analysis may take longer than a larger number, so all of them are tried.
    (0..=most).rev().find(|rounds| takes_s(*rounds) <= within_s).unwrap_or(0)
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    /// Three settings that take 2, 1 and 1 s in a round, ten rounds up to the next analysis.
    const STRETCH: (u32, &[f64]) = (10, &[2.0, 1.0, 1.0]);

    fn question(settings: &[usize], in_reach: bool) -> Question {
        Question { settings: settings.to_vec(), in_reach }
    }

    // promise 35
    #[test]
    fn only_open_questions_cost_time() {
        let time = Time { spent_s: 60.0, budget_s: 100.0, longest_s: 120.0 };
        let check = |questions: &[Question], want: Next| {
            assert_eq!(next(questions, STRETCH, time), want, "{questions:?}");
        };
        check(&[], Next::End);
        check(&[question(&[2, 1], false)], Next::Measure(vec![1, 2]));
        check(&[question(&[0, 2], true), question(&[2, 1], true)], Next::Measure(vec![0, 1, 2]));
        // 40 s remain, and all three settings take 40 s.
        check(&[question(&[0, 1, 2], false)], Next::Measure(vec![0, 1, 2]));
    }

    // promise 35
    #[test]
    fn beyond_the_budget_only_an_answer_in_reach_is_waited_for() {
        for spent_s in [0.0, 79.0, 80.0, 81.0, 99.0, 100.0, 101.0, 150.0] {
            let time = Time { spent_s, budget_s: 100.0, longest_s: 120.0 };
            for in_reach in [false, true] {
                let ends_s = spent_s + 20.0;
                let goes_on = ends_s <= 100.0 || (in_reach && ends_s <= 120.0);
                let want = if goes_on { Next::Measure(vec![1, 2]) } else { Next::End };
                assert_eq!(next(&[question(&[1, 2], in_reach)], STRETCH, time), want, "{spent_s} {in_reach}");
                // One question out of reach keeps the run from going on for the others.
                let both = [question(&[1, 2], true), question(&[1, 2], false)];
                let want = if ends_s <= 100.0 { Next::Measure(vec![1, 2]) } else { Next::End };
                assert_eq!(next(&both, STRETCH, time), want, "{spent_s}");
            }
        }
        let time = Time { spent_s: 0.0, budget_s: 100.0, longest_s: 120.0 };
        assert_eq!(next(&[question(&[1], true)], (0, STRETCH.1), time), Next::End, "no analysis is left");
    }

    #[test]
    fn a_forecast_narrows_the_bounds() {
        let check = |estimate: f64, times: f64, want: bool| {
            let forecast = Forecast { estimate, bounds: [estimate - 4.0, estimate + 4.0], level: 0.05 };
            assert_eq!(forecast.decides(10.0, times, 0.05), want, "{estimate} {times}");
        };
        check(5.0, 1.0, true);
        check(7.0, 1.0, false);
        check(7.0, 1.7, false);
        check(7.0, 1.8, true);
        check(13.0, 1.7, false);
        check(13.0, 1.8, true);
        check(10.0, 1_000.0, false);
        // A stricter analysis needs more: 1.96 instead of 1.645 standard errors.
        let forecast = Forecast { estimate: 7.0, bounds: [3.0, 11.0], level: 0.05 };
        assert!(!forecast.decides(10.0, 2.5, 0.025) && forecast.decides(10.0, 2.6, 0.025));
    }

    #[test]
    fn the_rounds_fit_into_the_time() {
        let first = |rounds: u32| rounds.div_ceil(5);
        for (within_s, costs, want) in
            [(100.0, (5.0, 5.0), 20), (100.0, (10.0, 2.5), 25), (3.0, (5.0, 1.0), 0), (1e9, (5.0, 1.0), 500)]
        {
            let rounds = rounds_within(within_s, costs, 500, first);
            assert_eq!(rounds, want, "{within_s} {costs:?}");
        }
    }
}
