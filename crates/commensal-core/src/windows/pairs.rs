//! Compares the differences within pairs with a threshold.

use crate::stats::{EXACT_UP_TO, Interval, SignedRank, Tail, mean, mean_t_interval, standard_deviation};

/// The position of the centre of the differences relative to the threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Significantly below the threshold.
    Within,
    /// Significantly above the threshold.
    Beyond,
    /// Not significantly below or above the threshold.
    Open,
}

/// Statistics of the differences within pairs, in the unit of the differences. For ratios, each difference is a
/// difference of logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct Paired {
    /// Number of pairs.
    pub pairs: u32,
    /// The Hodges-Lehmann estimate of the centre of the differences.
    pub estimate: f64,
    /// The two-sided 95 % interval of a single analysis; `None` if there are fewer than six pairs.
    pub ci95: Option<Interval>,
    /// The lower and the upper one-sided bound, each at the requested error; `None` if there are too few pairs.
    pub bounds: Option<Interval>,
    /// The one-sided p-value of the hypothesis that the centre is at most the threshold.
    pub p_beyond: f64,
    /// The two-sided p-value of the hypothesis that the centre is 0.
    pub p_equal: f64,
    /// The arithmetic mean, for readers who expect it. The mean, its interval and the standard deviation do not affect
    /// the conclusion.
    pub mean: f64,
    /// Student's 95 % interval of the mean.
    pub mean_t_ci95: Option<Interval>,
    /// Standard deviation of the differences.
    pub standard_deviation: Option<f64>,
    /// Whether the p-values are exact; otherwise they are normal approximations.
    pub exact: bool,
    /// The conclusion from the bounds.
    pub answer: Answer,
}

impl Paired {
    /// Computes the statistics at an error of `level` on each side; returns `None` if there are no differences, or if
    /// one of them is not finite.
    #[must_use]
    pub fn new(differences: &[f64], threshold: f64, level: f64) -> Option<Paired> {
        let ranks = SignedRank::new(differences)?;
        let bounds = ranks.interval(Tail::OneSided(level));
        Some(Paired {
            pairs: u32::try_from(ranks.pairs()).unwrap_or(u32::MAX),
            estimate: ranks.estimate(),
            ci95: ranks.interval(Tail::TwoSided95),
            bounds,
            p_beyond: ranks.p_at_most(threshold),
            p_equal: ranks.p_equal(0.0),
            mean: mean(differences)?,
            mean_t_ci95: mean_t_interval(differences),
            standard_deviation: standard_deviation(differences),
            exact: ranks.pairs() <= EXACT_UP_TO,
            answer: match bounds {
                Some(ends) if ends.lo > threshold => Answer::Beyond,
                Some(ends) if ends.hi < threshold => Answer::Within,
                _ => Answer::Open,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 33
    #[test]
    fn each_answer() {
        let up = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        for (threshold, level, answer) in [
            (0.5, 0.05, Answer::Beyond),
            (3.5, 0.05, Answer::Open),
            (6.5, 0.05, Answer::Within),
            // A bound that equals the threshold is not significant.
            (2.0, 0.05, Answer::Open),
            (5.0, 0.05, Answer::Open),
            (0.5, 0.001, Answer::Open),
        ] {
            let paired = Paired::new(&up, threshold, level).unwrap();
            assert_eq!(paired.answer, answer, "{threshold} at {level}: {paired:?}");
            assert_eq!(paired.answer == Answer::Beyond, paired.p_beyond <= level);
        }
        let one = Paired::new(&[2.0], 0.0, 0.05).unwrap();
        assert_eq!(
            (one.pairs, one.estimate, one.ci95, one.bounds, one.answer),
            (1, 2.0, None, None, Answer::Open)
        );
        assert_eq!(Paired::new(&[], 0.0, 0.05), None);
        assert_eq!(Paired::new(&[1.0, f64::NAN], 0.0, 0.05), None);
    }
}
