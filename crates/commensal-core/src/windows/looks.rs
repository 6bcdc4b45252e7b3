//! Interim analyses ("looks") of data that is still being collected, and the share of the error that each analysis may
//! spend.

use crate::stats::{fewest_pairs, obrien_fleming};

/// The plan of a run's interim analyses: the numbers of pairs after which the run checks whether the result is clear,
/// and the error that each analysis may spend.
///
/// The spending function of Lan and DeMets (1983) of the O'Brien-Fleming type divides the error; it gives early
/// analyses only a small part. Each analysis may spend the increase of that function since the previous analysis. So
/// all analyses together keep the stated error, however they are correlated.
#[derive(Debug, Clone, PartialEq)]
pub struct Looks {
    at: Vec<u32>,
    /// The one-sided error of all analyses together.
    error: f64,
}

impl Looks {
    /// Plans analyses after these numbers of pairs, in ascending order. An empty list means a single analysis at the
    /// end of the run, after any number of pairs.
    #[must_use]
    pub fn new(error: f64, at: Vec<u32>) -> Looks {
        Looks { at, error }
    }

    /// Plans analyses after half, three quarters and all of the pairs. The plan leaves out an interim analysis in which
    /// even unanimous pairs would not be significant, because it would waste error.
    #[must_use]
    pub fn plan(error: f64, pairs: u32) -> Looks {
        let mut at = vec![pairs.div_ceil(2), (pairs * 3).div_ceil(4), pairs];
        at.dedup();
        loop {
            let looks = Looks { at, error };
            let vain = looks.at.iter().position(|look| *look < fewest_pairs(1, looks.level(*look)));
            match vain {
                Some(index) if index + 1 < looks.at.len() => {
                    at = looks.at;
                    at.remove(index);
                }
                _ => return looks,
            }
        }
    }

    /// The numbers of pairs after which analyses take place.
    #[must_use]
    pub fn at(&self) -> &[u32] {
        &self.at
    }

    /// Whether an analysis that may end the run early takes place after this many pairs. The analysis at the planned
    /// end does not count.
    #[must_use]
    pub fn is_due(&self, pairs: u32) -> bool {
        self.at.last() != Some(&pairs) && self.at.contains(&pairs)
    }

    /// The one-sided error that a conclusion after this many pairs may spend. It is the share of the analysis planned
    /// after this many pairs; if no analysis is planned then, the share of the next analysis.
    #[must_use]
    pub fn level(&self, pairs: u32) -> f64 {
        let Some(last) = self.at.len().checked_sub(1) else { return self.error };
        let look = self.at.iter().position(|look| pairs <= *look).unwrap_or(last);
        self.spent(look + 1) - self.spent(look)
    }

    /// The error that remains after this many pairs, for the final conclusion. It applies when a run ends as planned,
    /// or ends early for a reason that is unrelated to the data.
    #[must_use]
    pub fn rest(&self, pairs: u32) -> f64 {
        let last = self.at.len().saturating_sub(1);
        let made = self.at.iter().take(last).filter(|look| **look <= pairs).count();
        self.error - self.spent(made)
    }

    /// The error that the first `looks` analyses spend together.
    fn spent(&self, looks: usize) -> f64 {
        let at = |look: usize| self.at.get(look).map(|at| f64::from(*at));
        match (looks.checked_sub(1).and_then(at), at(looks), self.at.last()) {
            (None, ..) => 0.0,
            (Some(_), None, _) | (.., None) => self.error,
            (Some(at), Some(_), Some(last)) => obrien_fleming(self.error, at / f64::from(*last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-4, "got {got}, want {want}");
    }

    #[test]
    fn looks_share_the_error() {
        // O'Brien-Fleming spending of 5 % after half, three quarters and all of the pairs: 0.0056, 0.0236, 0.05.
        let looks = Looks::new(0.05, vec![20, 30, 40]);
        for (pairs, level) in
            [(6, 0.0056), (20, 0.0056), (21, 0.0180), (30, 0.0180), (40, 0.0264), (99, 0.0264)]
        {
            close(looks.level(pairs), level);
        }
        let due: Vec<u32> = (0..60).filter(|pairs| looks.is_due(*pairs)).collect();
        assert_eq!(due, [20, 30]);
        close([20, 30, 40].map(|look| looks.level(look)).iter().sum(), 0.05);
        // The remaining error: all of it before the first analysis, and that of the last analysis at the planned end.
        for (pairs, rest) in [(0, 0.05), (19, 0.05), (20, 0.0444), (35, 0.0264), (40, 0.0264), (99, 0.0264)] {
            close(looks.rest(pairs), rest);
        }
        for one in [Looks::new(0.05, Vec::new()), Looks::new(0.05, vec![12])] {
            assert_eq!((one.level(3), one.rest(3)), (0.05, 0.05));
            assert_eq!((one.level(12), one.rest(12)), (0.05, 0.05));
        }
    }

    #[test]
    fn no_look_that_could_decide_nothing_is_planned() {
        for (error, pairs, want) in [
            (0.05, 40, &[20, 30, 40][..]),
            (0.05, 12, &[9, 12]),
            (0.025, 29, &[15, 22, 29]),
            (0.025, 12, &[9, 12]),
            (0.025, 6, &[6]),
            (0.05, 4, &[4]),
            (0.05, 0, &[0]),
        ] {
            assert_eq!(Looks::plan(error, pairs).at(), want, "{error}, {pairs}");
        }
        for pairs in 0..600 {
            for error in [0.05, 0.025] {
                let looks = Looks::plan(error, pairs);
                let sum: f64 = looks.at().iter().map(|look| looks.level(*look)).sum();
                assert!((sum - error).abs() < 1e-6, "{pairs}: {sum}");
                for look in looks.at().iter().rev().skip(1) {
                    assert!(0.5_f64.powi(*look as i32) <= looks.level(*look), "{pairs}: {looks:?}");
                }
            }
        }
    }
}
