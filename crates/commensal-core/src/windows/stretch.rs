//! How a run spends its time between two interim analyses: which settings it measures, and whether it goes on at all.
//!
//! Before its first analysis, a run measures every setting. After an analysis, it measures only the settings that some open
//! question compares, so that the time goes where it decides. Every question keeps its plan: its pairs are analysed after
//! the same numbers of rounds, whatever else is measured in these rounds. A question that is decided gets no more pairs, and
//! keeps the level of the analysis that decided it. So leaving out settings costs no error. Neither does ending a run that
//! is not decided: that can only withhold an answer.

use super::Answer;
use crate::stats::normal_quantile;

/// Rounding error of sums of times, in seconds.
const SLACK_S: f64 = 1e-6;

/// A question that an interim analysis left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The settings that it compares.
    pub settings: Vec<usize>,
    /// What the last analysis would decide about it.
    pub outlook: Outlook,
}

/// What the last analysis would decide if effect and noise stayed as they were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing.
    Nothing,
    /// The question.
    Question,
    /// The run, whatever its other questions are: one proven harm makes it fail.
    Run,
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
    /// Returns on which side of the threshold an analysis of `times` as many pairs finds the effect, if effect and noise stay
    /// as they are. It claims that the effect is within the threshold at the first of two errors, and beyond it at the second.
    #[must_use]
    pub fn answer(&self, threshold: f64, times: f64, (within, beyond): (f64, f64)) -> Answer {
        let z = |level: f64| normal_quantile(1.0 - level);
        let proves = |distance: f64, level: f64| {
            distance * z(level) / z(self.level) / times.sqrt() < (threshold - self.estimate).abs()
        };
        if self.estimate < threshold {
            if proves(self.bounds[1] - self.estimate, within) { Answer::Within } else { Answer::Open }
        } else if proves(self.estimate - self.bounds[0], beyond) {
            Answer::Beyond
        } else {
            Answer::Open
        }
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
/// reach, or one that decides the run: otherwise it would take longer and still not decide.
#[must_use]
pub fn next(questions: &[Question], (rounds, cost_s): (u32, &[f64]), time: Time) -> Next {
    let mut settings: Vec<usize> = questions.iter().flat_map(|one| one.settings.iter().copied()).collect();
    settings.sort_unstable();
    settings.dedup();
    let round_s: f64 = settings.iter().filter_map(|setting| cost_s.get(*setting)).sum();
    let ends_s = time.spent_s + f64::from(rounds) * round_s;
    let of = |outlook: Outlook| move |question: &Question| question.outlook == outlook;
    let in_reach = questions.iter().any(of(Outlook::Run)) || !questions.iter().any(of(Outlook::Nothing));
    let may_go_on = ends_s <= time.budget_s + SLACK_S || (ends_s <= time.longest_s + SLACK_S && in_reach);
    if rounds == 0 || questions.is_empty() || !may_go_on { Next::End } else { Next::Measure(settings) }
}

/// Returns the analysis that should take place within the budget: the first one after at least three fifths of the rounds. If it
/// came a little later, the last part of the budget would be left unused.
#[must_use]
pub fn within_budget(analyses: &[u32]) -> Option<u32> {
    let rounds = analyses.last()?;
    analyses.iter().copied().find(|at| u64::from(*at) * 5 >= u64::from(*rounds) * 3)
}

/// Returns the largest number of rounds, up to `most`, that takes at most `longest_s` seconds, and one analysis of which is
/// [`within_budget`]. A round takes `full_s` seconds up to the first analysis, and `reduced_s` seconds afterwards. `analyses` has
/// the numbers of rounds after which a run with that many rounds is analysed.
#[must_use]
pub fn rounds_within(
    (budget_s, longest_s): (f64, f64),
    (full_s, reduced_s): (f64, f64),
    most: u32,
    analyses: impl Fn(u32) -> Vec<u32>,
) -> u32 {
    let fits = |rounds: u32| {
        let at = analyses(rounds);
        let first = at.first().copied().unwrap_or(0).min(rounds);
        let takes_s = |rounds: u32| f64::from(first) * full_s + f64::from(rounds - first) * reduced_s;
        takes_s(rounds) <= longest_s && within_budget(&at).is_none_or(|at| takes_s(at) <= budget_s + SLACK_S)
    };
    // A number of rounds with a later first analysis may take longer than a larger number, so all of them are tried.
    (0..=most).rev().find(|rounds| fits(*rounds)).unwrap_or(0)
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    /// Three settings that take 2, 1 and 1 s in a round, ten rounds up to the next analysis.
    const STRETCH: (u32, &[f64]) = (10, &[2.0, 1.0, 1.0]);

    fn question(settings: &[usize], outlook: Outlook) -> Question {
        Question { settings: settings.to_vec(), outlook }
    }

    // promise 35
    #[test]
    fn only_open_questions_cost_time() {
        let time = Time { spent_s: 60.0, budget_s: 100.0, longest_s: 120.0 };
        let check = |questions: &[Question], want: Next| {
            assert_eq!(next(questions, STRETCH, time), want, "{questions:?}");
        };
        check(&[], Next::End);
        check(&[question(&[2, 1], Outlook::Nothing)], Next::Measure(vec![1, 2]));
        let both = [question(&[0, 2], Outlook::Question), question(&[2, 1], Outlook::Question)];
        check(&both, Next::Measure(vec![0, 1, 2]));
        // 40 s remain, and all three settings take 40 s.
        check(&[question(&[0, 1, 2], Outlook::Nothing)], Next::Measure(vec![0, 1, 2]));
    }

    // promise 35
    #[test]
    fn beyond_the_budget_only_an_answer_in_reach_is_waited_for() {
        for spent_s in [0.0, 79.0, 80.0, 81.0, 99.0, 100.0, 101.0, 150.0] {
            let time = Time { spent_s, budget_s: 100.0, longest_s: 120.0 };
            let check = |outlooks: &[Outlook], in_reach: bool| {
                let questions: Vec<Question> =
                    outlooks.iter().map(|outlook| question(&[1, 2], *outlook)).collect();
                let ends_s = spent_s + 20.0;
                let goes_on = ends_s <= 100.0 || (in_reach && ends_s <= 120.0);
                let want = if goes_on { Next::Measure(vec![1, 2]) } else { Next::End };
                assert_eq!(next(&questions, STRETCH, time), want, "{spent_s} {outlooks:?}");
            };
            check(&[Outlook::Nothing], false);
            check(&[Outlook::Question], true);
            check(&[Outlook::Run], true);
            // One question out of reach keeps the run from going on for the others, unless one of them decides the run.
            check(&[Outlook::Question, Outlook::Nothing], false);
            check(&[Outlook::Nothing, Outlook::Run], true);
            check(&[Outlook::Question, Outlook::Run], true);
        }
        let time = Time { spent_s: 0.0, budget_s: 100.0, longest_s: 120.0 };
        assert_eq!(
            next(&[question(&[1], Outlook::Run)], (0, STRETCH.1), time),
            Next::End,
            "no analysis is left"
        );
    }

    #[test]
    fn a_forecast_narrows_the_bounds() {
        let check = |estimate: f64, times: f64, want: Answer| {
            let forecast = Forecast { estimate, bounds: [estimate - 4.0, estimate + 4.0], level: 0.05 };
            assert_eq!(forecast.answer(10.0, times, (0.05, 0.05)), want, "{estimate} {times}");
        };
        check(5.0, 1.0, Answer::Within);
        check(7.0, 1.0, Answer::Open);
        check(7.0, 1.7, Answer::Open);
        check(7.0, 1.8, Answer::Within);
        check(13.0, 1.7, Answer::Open);
        check(13.0, 1.8, Answer::Beyond);
        check(10.0, 1_000.0, Answer::Open);
        // A stricter analysis needs more: 1.96 instead of 1.645 standard errors.
        for (estimate, levels, decided) in
            [(7.0, (0.025, 0.05), Answer::Within), (13.0, (0.05, 0.025), Answer::Beyond)]
        {
            let forecast = Forecast { estimate, bounds: [estimate - 4.0, estimate + 4.0], level: 0.05 };
            assert_eq!(forecast.answer(10.0, 2.5, levels), Answer::Open, "{estimate}");
            assert_eq!(forecast.answer(10.0, 2.6, levels), decided, "{estimate}");
        }
    }

    #[test]
    fn the_rounds_fit_into_the_time() {
        let fifths = |rounds: u32| (1..=5).map(|part| (rounds * part).div_ceil(5)).collect::<Vec<u32>>();
        for (budget_s, longest_s, costs, want) in [
            (100.0, 100.0, (5.0, 5.0), 20),
            (100.0, 100.0, (10.0, 2.5), 25),
            (3.0, 3.0, (5.0, 1.0), 0),
            (1e9, 1e9, (5.0, 1.0), 500),
            // 25 rounds would take 100 s; the third analysis, after 15 of them, comes after 75 s.
            (75.0, 100.0, (10.0, 2.5), 25),
            (74.0, 100.0, (10.0, 2.5), 23),
            (50.0, 100.0, (10.0, 2.5), 15),
        ] {
            let rounds = rounds_within((budget_s, longest_s), costs, 500, fifths);
            assert_eq!(rounds, want, "{budget_s} {longest_s} {costs:?}");
        }
    }
}
