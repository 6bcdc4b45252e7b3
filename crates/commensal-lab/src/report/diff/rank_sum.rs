//! Shift between two samples: the Hodges-Lehmann estimate over all pairs of values, with the bounds of the rank-sum
//! test of Wilcoxon, Mann and Whitney. The test requires that the two distributions have the same shape, whatever that
//! shape is.

use crate::stats::{by_value, median};

/// Maximum total number of values for which the distribution is computed exactly. Up to this number, a float represents
/// the counts exactly.
const EXACT_UP_TO: usize = 50;
/// Error rate on each side of the interval.
const ALPHA: f64 = 0.025;
/// Quantile of the standard normal distribution that corresponds to [`ALPHA`].
const Z: f64 = 1.959_963_984_540_054;

/// A shift with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shift {
    pub estimate: f64,
    /// Two-sided 95 % interval; `None` if the samples are too small for one.
    pub ci95: Option<[f64; 2]>,
}

/// Returns the shift of `b` relative to `a`; `None` if a sample is empty.
pub(super) fn shift(a: &[f64], b: &[f64]) -> Option<Shift> {
    let mut differences: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
    differences.sort_unstable_by(by_value);
    let ends = critical(a.len(), b.len()).map(|c| [differences[c], differences[differences.len() - 1 - c]]);
    Some(Shift { estimate: median(&differences)?, ci95: ends })
}

/// Returns the largest `c` for which `P(U <= c)` is within the error rate, where U is the number of pairs in the wrong
/// order; `None` if even 0 is too likely.
fn critical(n: usize, m: usize) -> Option<usize> {
    if n == 0 || m == 0 {
        return None;
    }
    if n + m > EXACT_UP_TO {
        let (n, m) = (n as f64, m as f64);
        let sd = (n * m * (n + m + 1.0) / 12.0).sqrt();
        return Some((n * m / 2.0 - Z * sd - 0.5).floor().max(0.0) as usize);
    }
    let counts = counts(n, m);
    let limit = counts.iter().sum::<f64>() * ALPHA;
    let mut below = 0.0;
    let within = counts.iter().take_while(|count| {
        below += **count;
        below <= limit
    });
    within.count().checked_sub(1)
}

/// Returns a list of counts. Entry `u` is the number of orderings of two samples in which `u` pairs have the second
/// value below the first. These counts are the coefficients of the Gaussian binomial.
fn counts(n: usize, m: usize) -> Vec<f64> {
    let mut counts = vec![0.0; n * m + 1];
    counts[0] = 1.0;
    for i in 1..=n {
        // Multiplies the polynomial by 1 - q^(m + i), and divides the product by 1 - q^i.
        for u in (m + i..counts.len()).rev() {
            counts[u] -= counts[u - m - i];
        }
        for u in i..counts.len() {
            counts[u] += counts[u - i];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn counts_and_critical_values_are_the_published_ones() {
        assert_eq!(counts(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(counts(3, 3).iter().sum::<f64>(), 20.0);
        // Two-sided 5 %, Mann and Whitney's table.
        for ((n, m), want) in [
            ((4, 4), 0),
            ((5, 5), 2),
            ((6, 6), 5),
            ((8, 8), 13),
            ((10, 10), 23),
            ((12, 12), 37),
            ((20, 20), 127),
            ((6, 12), 14),
        ] {
            assert_eq!(critical(n, m), Some(want), "{n} and {m}");
            assert_eq!(critical(m, n), Some(want), "{m} and {n}");
        }
        assert_eq!([critical(3, 3), critical(0, 9), critical(1, 30)], [None; 3]);
        // Where the value is approximated, the error is at most one.
        let (exact, z) = (critical(25, 25).unwrap(), (25.0 * 25.0 * 51.0 / 12.0_f64).sqrt() * Z);
        assert!(exact.abs_diff((25.0 * 25.0 / 2.0 - z - 0.5).floor() as usize) <= 1);
    }

    /// At least 93 of 100 nominal 95 % intervals contain the true value, even with unequal numbers of rounds and with
    /// bursts.
    #[test]
    fn intervals_hold_the_truth() {
        let mut rng = Rng::new(3);
        for (n, m) in [(6, 6), (12, 40), (40, 129)] {
            let mut sample = |size: usize, at: f64| -> Vec<f64> {
                (0..size)
                    .map(|_| {
                        let burst = if rng.unit_f64() < 0.1 { 0.5 * rng.unit_f64() } else { 0.0 };
                        at + 0.02 * rng.normal() + burst
                    })
                    .collect()
            };
            let holds = (0..400)
                .filter(|_| {
                    let (a, b) = (sample(n, 0.0), sample(m, 0.05));
                    shift(&a, &b)
                        .and_then(|shift| shift.ci95)
                        .is_some_and(|[lo, hi]| lo <= 0.05 && 0.05 <= hi)
                })
                .count();
            assert!(holds >= 372, "{n} and {m}: {holds} of 400");
        }
    }
}
