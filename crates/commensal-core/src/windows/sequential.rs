//! Interim analyses of a run that share its error, with the levels that follow from how they depend on each other.
//!
//! The error is spent in proportion to the pairs (the function of Kim and DeMets, 1987, with power 1): a run that has
//! collected a third of its pairs has spent a third of its error. The level of each analysis follows from the joint
//! distribution of the statistics of all analyses: the standardised rank sums of nested samples behave like a Brownian motion
//! that is looked at from time to time (Lan and DeMets, 1983). [`super::Looks`] ignores this dependence: it spends the same
//! error, and its bounds are up to an eighth wider.

use crate::stats::{normal_cdf, normal_quantile};

/// Number of analyses of a run.
const ANALYSES: u32 = 5;
/// Number of points at which the distribution between two analyses is computed. The levels change by less than 1e-5 with
/// twice as many.
const POINTS: usize = 301;
/// Lower end of the distribution, in standard deviations.
const LOWEST: f64 = -8.0;

/// The part of `error` that may be spent when the share `t` (0 to 1) of the pairs is collected.
#[must_use]
pub fn in_proportion(error: f64, t: f64) -> f64 {
    error * t.clamp(0.0, 1.0)
}

/// The numbers of pairs after which a run of `pairs` pairs is analysed: after each fifth. Analyses before `earliest` are
/// postponed; those in which even unanimous pairs would not give a two-sided interval are left out.
#[must_use]
pub fn fifths(error: f64, pairs: u32, earliest: u32) -> Vec<u32> {
    let fifth = |part: u32| (u64::from(pairs) * u64::from(part)).div_ceil(u64::from(ANALYSES)) as u32;
    let mut at: Vec<u32> = (1..=ANALYSES).map(|part| fifth(part).max(earliest.min(pairs))).collect();
    at.dedup();
    // The level of an analysis is at least the error that is spent since the one before; an interval has half of it on each
    // side.
    let mut before = 0;
    at.retain(|look| {
        let spent = in_proportion(error, f64::from(look - before) / f64::from(pairs.max(1)));
        let useful = *look == pairs || 0.5_f64.powf(f64::from(*look)) <= spent / 2.0;
        before = if useful { *look } else { before };
        useful
    });
    at
}

/// The one-sided error of each of the analyses after these numbers of pairs, in ascending order. A run that decides at the
/// first analysis whose bound excludes the threshold errs with probability `error` at most.
#[must_use]
pub fn levels(error: f64, at: &[u32]) -> Vec<f64> {
    let Some(last) = at.last() else { return Vec::new() };
    let (mut walk, mut spent, mut levels) = (Walk::start(), 0.0, Vec::new());
    for look in at {
        let time = f64::from(*look) / f64::from(*last);
        let may_spend = in_proportion(error, time);
        let z = walk.boundary(time, may_spend - spent);
        spent = may_spend;
        levels.push(1.0 - normal_cdf(z));
        walk = walk.below(time, z);
    }
    levels
}

/// The distribution of a Brownian motion that has not crossed the boundary of an earlier analysis.
struct Walk {
    time: f64,
    /// Values, with their probabilities.
    points: Vec<(f64, f64)>,
}

impl Walk {
    fn start() -> Walk {
        Walk { time: 0.0, points: vec![(0.0, 1.0)] }
    }

    /// The probability that the walk lies above the boundary `z` (in standard deviations) at a later time.
    fn beyond(&self, time: f64, z: f64) -> f64 {
        let (boundary, sd) = (z * time.sqrt(), (time - self.time).sqrt());
        self.points.iter().map(|(at, share)| share * (1.0 - normal_cdf((boundary - at) / sd))).sum()
    }

    /// The boundary that the walk crosses with this probability.
    fn boundary(&self, time: f64, probability: f64) -> f64 {
        let (mut low, mut high) = (normal_quantile(1e-4), normal_quantile(1.0 - 1e-9));
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.beyond(time, middle) > probability { low = middle } else { high = middle }
        }
        high
    }

    /// The walk at a later time, without the part that lies above the boundary then.
    fn below(&self, time: f64, z: f64) -> Walk {
        let sd = (time - self.time).sqrt();
        let (low, high) = (LOWEST * time.sqrt(), z * time.sqrt());
        let step = (high - low) / (POINTS - 1) as f64;
        let density = |at: f64| -> f64 {
            let of = |(from, share): &(f64, f64)| share * (-((at - from) / sd).powi(2) / 2.0).exp();
            self.points.iter().map(of).sum::<f64>() / (sd * std::f64::consts::TAU.sqrt())
        };
        // The trapezoidal rule.
        let part = |index: usize| if index == 0 || index == POINTS - 1 { step / 2.0 } else { step };
        let point = |index: usize| {
            let at = low + step * index as f64;
            (at, density(at) * part(index))
        };
        Walk { time, points: (0..POINTS).map(point).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability that a walk crosses one of these boundaries at equally spaced analyses.
    fn crossing(boundaries: &[f64]) -> f64 {
        let (mut walk, mut sum) = (Walk::start(), 0.0);
        for (index, z) in boundaries.iter().enumerate() {
            let time = (index + 1) as f64 / boundaries.len() as f64;
            sum += walk.beyond(time, *z);
            walk = walk.below(time, *z);
        }
        sum
    }

    /// The constants of Pocock and of O'Brien and Fleming for two-sided tests at 5 and 10 % (Jennison and Turnbull, Group
    /// Sequential Methods, tables 2.1 and 2.3). Half of the error lies on each side.
    #[test]
    fn published_boundaries_have_their_error() {
        for (error, analyses, pocock, obrien_fleming) in [
            (0.05, 2, 2.178, 1.977),
            (0.05, 3, 2.289, 2.004),
            (0.05, 5, 2.413, 2.040),
            (0.05, 10, 2.555, 2.087),
            (0.10, 3, 1.992, 1.710),
            (0.10, 5, 2.122, 1.751),
        ] {
            let decreasing = |look: usize| obrien_fleming * (analyses as f64 / look as f64).sqrt();
            for boundaries in [vec![pocock; analyses], (1..=analyses).map(decreasing).collect::<Vec<f64>>()] {
                let got = crossing(&boundaries);
                assert!((got - error / 2.0).abs() < 1.5e-4, "{error}, {analyses}: {got}");
            }
        }
    }

    #[test]
    fn the_levels_spend_the_error_and_no_more() {
        for at in [vec![11, 22, 33, 44, 55], vec![6, 12], vec![40], vec![17, 20, 21, 200, 1_000]] {
            for error in [0.05, 0.025] {
                let levels = levels(error, &at);
                let (mut walk, mut spent) = (Walk::start(), 0.0);
                for (look, level) in at.iter().zip(&levels) {
                    let time = f64::from(*look) / f64::from(at[at.len() - 1]);
                    let z = normal_quantile(1.0 - level);
                    spent += walk.beyond(time, z);
                    assert!((spent - error * time).abs() < 1e-5, "{at:?} after {look}: {spent}");
                    walk = walk.below(time, z);
                }
                // An analysis has at least its own share, and never the whole error unless it is the only one.
                assert!(levels.iter().all(|level| *level <= error + 1e-6), "{levels:?}");
                assert!(levels.iter().sum::<f64>() >= error - 1e-5, "{levels:?}");
            }
        }
        assert!((levels(0.05, &[12])[0] - 0.05).abs() < 1e-6);
        assert!(levels(0.05, &[]).is_empty());
    }

    #[test]
    fn analyses_take_place_after_each_fifth_that_can_decide() {
        for (pairs, earliest, want) in [
            (55, 6, &[11, 22, 33, 44, 55][..]),
            (56, 0, &[12, 23, 34, 45, 56]),
            (12, 6, &[8, 10, 12]),
            (12, 0, &[8, 10, 12]),
            (10, 6, &[8, 10]),
            (6, 6, &[6]),
            (4, 6, &[4]),
            (0, 6, &[0]),
        ] {
            assert_eq!(fifths(0.05, pairs, earliest), want, "{pairs} from {earliest}");
        }
        for pairs in 1..400 {
            let at = fifths(0.05, pairs, 0);
            assert!(at.windows(2).all(|two| two[0] < two[1]) && at.last() == Some(&pairs), "{at:?}");
            let levels = levels(0.05, &at);
            for (look, level) in at.iter().zip(levels).rev().skip(1) {
                assert!(0.5_f64.powf(f64::from(*look)) <= level / 2.0, "{pairs}: {look} at {level}");
            }
        }
    }
}
