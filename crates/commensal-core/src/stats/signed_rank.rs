//! Wilcoxon's signed-rank distribution, and the confidence intervals derived from it for the centre of paired
//! differences.
//!
//! The interval is the classical inversion of the test: it runs from the `(c + 1)`-th smallest to the `(c + 1)`-th
//! largest Walsh average (the mean of two differences), where `c` is the critical value. The method assumes only that
//! the differences are independent and symmetric about their centre.

use super::{Interval, median_of_sorted, walsh_averages};

/// The largest number of pairs for which the null distribution is computed exactly. The counts of the distribution add
/// up to `2^n` and fit into 64 bits. For more pairs a normal approximation with continuity correction is used. At 50
/// pairs, the critical value of the approximation differs from the exact value by at most 1.
pub const EXACT_UP_TO: usize = 50;

/// The error probability of a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tail {
    /// 5 % on one side. The verdict uses this error for each side separately.
    OneSided95,
    /// 2.5 % on each side, for the interval that is displayed.
    TwoSided95,
    /// This error on one side: the share of the error that one of several interim analyses may spend.
    OneSided(f64),
}

impl Tail {
    /// The error probability on one side.
    fn alpha(self) -> f64 {
        match self {
            Self::OneSided95 => 0.05,
            Self::TwoSided95 => 0.025,
            Self::OneSided(alpha) => alpha,
        }
    }

    /// The standard normal quantile of `1 - alpha`.
    fn z(self) -> f64 {
        match self {
            Self::OneSided95 => 1.644_853_626_951_472_2,
            Self::TwoSided95 => 1.959_963_984_540_054,
            Self::OneSided(alpha) => normal_quantile(1.0 - alpha),
        }
    }
}

/// For each rank sum in `0 ..= n (n + 1) / 2`, the number of the `2^n` sign patterns that have it; `n` is at most
/// `EXACT_UP_TO`.
fn null_counts(n: usize) -> Vec<u64> {
    let top = n * (n + 1) / 2;
    let mut counts = vec![0_u64; top + 1];
    counts[0] = 1;
    let mut reached = 0;
    for rank in 1..=n {
        reached += rank;
        for sum in (rank..=reached).rev() {
            counts[sum] += counts[sum - rank];
        }
    }
    counts
}

/// Mean and standard deviation of the rank sum for `n` pairs.
fn null_moments(n: usize) -> (f64, f64) {
    let n = n as f64;
    (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt())
}

/// `P(W <= w)`, where `W` is the rank sum of `n` pairs whose differences are centred on zero.
pub fn lower_tail_probability(n: usize, w: usize) -> f64 {
    if w >= n * (n + 1) / 2 {
        return 1.0;
    }
    if n <= EXACT_UP_TO {
        let below: u64 = null_counts(n)[..=w].iter().sum();
        below as f64 / 2.0_f64.powi(n as i32)
    } else {
        let (mean, sd) = null_moments(n);
        normal_cdf((w as f64 + 0.5 - mean) / sd)
    }
}

/// The critical value, as in the published tables: the largest `c` for which `P(W <= c)` does not exceed the error of
/// `tail`.
///
/// `None` if even `W = 0` is too likely. This is so with fewer than 6 pairs for the two-sided 95 % interval, and with
/// fewer than 5 pairs for a one-sided 95 % bound. Then no interval exists.
pub fn critical_value(n: usize, tail: Tail) -> Option<usize> {
    if n > EXACT_UP_TO {
        let (mean, sd) = null_moments(n);
        return Some((mean - tail.z() * sd - 0.5).floor().max(0.0) as usize);
    }
    let limit = tail.alpha() * 2.0_f64.powi(n as i32);
    let mut below = 0_u64;
    let mut critical = None;
    for (sum, count) in null_counts(n).into_iter().enumerate() {
        below += count;
        if below as f64 > limit {
            break;
        }
        critical = Some(sum);
    }
    critical
}

/// Paired differences, prepared for estimates, bounds and p-values.
#[derive(Debug, Clone)]
pub struct SignedRank {
    n: usize,
    walsh: Vec<f64>,
}

impl SignedRank {
    /// Prepares the paired differences; returns `None` if there are none, or if one of them is not finite.
    pub fn new(differences: &[f64]) -> Option<Self> {
        if differences.is_empty() || differences.iter().any(|d| !d.is_finite()) {
            return None;
        }
        Some(Self { n: differences.len(), walsh: walsh_averages(differences) })
    }

    /// Uses `n (n + 1) / 2` ascending values as the Walsh averages of `n` pairs; returns `None` if `n` is 0 or the
    /// number of values differs.
    pub fn from_sorted_walsh(n: usize, walsh: Vec<f64>) -> Option<Self> {
        (n > 0 && walsh.len() == n * (n + 1) / 2).then_some(Self { n, walsh })
    }

    /// The number of pairs.
    pub fn pairs(&self) -> usize {
        self.n
    }

    /// The Hodges-Lehmann estimate, in the unit of the differences.
    pub fn estimate(&self) -> f64 {
        median_of_sorted(&self.walsh).unwrap_or(f64::NAN)
    }

    /// The lower and the upper bound for `tail`; `None` if there are too few pairs.
    ///
    /// With `OneSided95` each end is a separate 95 % bound; together they form a 90 % interval.
    pub fn interval(&self, tail: Tail) -> Option<Interval> {
        let c = critical_value(self.n, tail)?;
        let lo = *self.walsh.get(c)?;
        let hi = *self.walsh.get(self.walsh.len().checked_sub(c + 1)?)?;
        Some(Interval { lo, hi })
    }

    /// The one-sided p-value of the hypothesis that the centre is at most `shift`; small if the differences lie above
    /// `shift`.
    ///
    /// Walsh averages equal to `shift` count against rejection, so ties make the test conservative. The p-value is at
    /// most 5 % if and only if the one-sided lower bound lies above `shift`.
    pub fn p_at_most(&self, shift: f64) -> f64 {
        let not_above = self.walsh.partition_point(|w| *w <= shift);
        lower_tail_probability(self.n, not_above)
    }

    /// The one-sided p-value of the hypothesis that the centre is at least `shift`; small if the differences lie below
    /// `shift`.
    pub fn p_at_least(&self, shift: f64) -> f64 {
        let below = self.walsh.partition_point(|w| *w < shift);
        lower_tail_probability(self.n, self.walsh.len() - below)
    }

    /// The two-sided p-value of the hypothesis that the centre is `shift`.
    pub fn p_equal(&self, shift: f64) -> f64 {
        (2.0 * self.p_at_most(shift).min(self.p_at_least(shift))).min(1.0)
    }
}

/// The quantile of the standard normal distribution for `p`. Its error is below 1e-5 for `p` between 1e-3 and 1 - 1e-3,
/// and below 1e-2 for `p` between 1e-5 and 1 - 1e-5.
pub fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0_f64, 8.0_f64);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if normal_cdf(middle) < p { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The error spending function of Lan and DeMets of the O'Brien-Fleming type: the part of the error `alpha` that a run
/// may have spent when it has collected the share `t` (0 to 1) of its data.
pub fn obrien_fleming(alpha: f64, t: f64) -> f64 {
    if t <= 0.0 {
        return 0.0;
    }
    2.0 - 2.0 * normal_cdf(normal_quantile(1.0 - alpha / 2.0) / t.min(1.0).sqrt())
}

/// The standard normal distribution function, with an absolute error below 2e-7 (`erfcc` of Numerical Recipes).
pub(crate) fn normal_cdf(x: f64) -> f64 {
    const C: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let series = C.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let upper = 0.5 * t * (series - z * z).exp();
    if x > 0.0 { 1.0 - upper } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_are_the_published_ones() {
        let two_sided = [
            (6, 0),
            (7, 2),
            (8, 3),
            (9, 5),
            (10, 8),
            (11, 10),
            (12, 13),
            (13, 17),
            (14, 21),
            (15, 25),
            (16, 29),
            (17, 34),
            (18, 40),
            (19, 46),
            (20, 52),
            (25, 89),
            (30, 137),
            (40, 264),
            (50, 434),
        ];
        for (n, want) in two_sided {
            assert_eq!(critical_value(n, Tail::TwoSided95), Some(want), "two-sided n = {n}");
        }
        let one_sided = [
            (5, 0),
            (6, 2),
            (7, 3),
            (8, 5),
            (9, 8),
            (10, 10),
            (11, 13),
            (12, 17),
            (13, 21),
            (14, 25),
            (15, 30),
            (16, 35),
            (17, 41),
            (18, 47),
            (19, 53),
            (20, 60),
            (25, 100),
            (30, 151),
            (50, 466),
        ];
        for (n, want) in one_sided {
            assert_eq!(critical_value(n, Tail::OneSided95), Some(want), "one-sided n = {n}");
        }
    }

    #[test]
    fn too_few_pairs_have_no_interval() {
        for n in 0..6 {
            assert_eq!(critical_value(n, Tail::TwoSided95), None, "two-sided n = {n}");
        }
        for n in 0..5 {
            assert_eq!(critical_value(n, Tail::OneSided95), None, "one-sided n = {n}");
        }
        let five = SignedRank::new(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(five.interval(Tail::TwoSided95), None);
        assert_eq!(five.interval(Tail::OneSided95), Some(Interval { lo: 1.0, hi: 5.0 }));
    }

    #[test]
    fn the_null_distribution_is_exact() {
        // n = 3: sums 0 1 2 3 3 4 5 6.
        assert_eq!(null_counts(3), [1, 1, 1, 2, 1, 1, 1]);
        assert_eq!(lower_tail_probability(3, 2), 3.0 / 8.0);
        assert_eq!(lower_tail_probability(3, 6), 1.0);
        assert_eq!(lower_tail_probability(0, 0), 1.0);
        assert_eq!(null_counts(EXACT_UP_TO).iter().sum::<u64>(), 1 << EXACT_UP_TO);
    }

    #[test]
    fn the_approximation_joins_the_exact_values() {
        for n in [40, 50] {
            let (mean, sd) = null_moments(n);
            for tail in [Tail::OneSided95, Tail::TwoSided95] {
                let approx = (mean - tail.z() * sd - 0.5).floor() as usize;
                assert!(critical_value(n, tail).unwrap().abs_diff(approx) <= 1, "n = {n}");
            }
        }
        assert!((normal_cdf(-1.644_853_627) - 0.05).abs() < 2e-7);
        assert!((normal_cdf(1.959_963_985) - 0.975).abs() < 2e-7);
        // Exact values, computed with arbitrary-precision integers.
        let exact = [(51, 453, 486), (60, 648, 690), (100, 1955, 2045)];
        for (n, two_sided, one_sided) in exact {
            assert!(critical_value(n, Tail::TwoSided95).unwrap().abs_diff(two_sided) <= 1, "n = {n}");
            assert!(critical_value(n, Tail::OneSided95).unwrap().abs_diff(one_sided) <= 1, "n = {n}");
            let p = lower_tail_probability(n, one_sided);
            assert!((p - 0.05).abs() < 0.001, "n = {n}: {p}");
        }
    }

    #[test]
    fn interval_and_p_value_agree() {
        let d = [0.02, 0.07, 0.05, -0.01, 0.04, 0.09, 0.06, 0.03];
        let s = SignedRank::new(&d).unwrap();
        let one = s.interval(Tail::OneSided95).unwrap();
        assert!(s.p_at_most(one.lo - 1e-9) <= 0.05);
        assert!(s.p_at_most(one.lo + 1e-9) > 0.05);
        assert!(s.p_at_least(one.hi + 1e-9) <= 0.05);
        assert!(s.p_at_least(one.hi - 1e-9) > 0.05);
        let two = s.interval(Tail::TwoSided95).unwrap();
        assert!(s.p_equal(two.lo - 1e-9) <= 0.05);
        assert!(s.p_equal(s.estimate()) > 0.5);
        assert!(two.lo <= one.lo && one.hi <= two.hi);
    }

    #[test]
    fn p_value_of_a_worked_example() {
        // All eight differences positive: P(W+ = 36) = 1 / 256.
        let s = SignedRank::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        assert_eq!(s.p_at_most(0.0), 1.0 / 256.0);
        assert_eq!(s.p_equal(0.0), 2.0 / 256.0);
        assert_eq!(s.p_at_least(0.0), 1.0);
    }

    #[test]
    fn differences_that_are_all_equal_prove_nothing_at_their_value() {
        let s = SignedRank::new(&[0.0; 12]).unwrap();
        assert_eq!(s.interval(Tail::TwoSided95), Some(Interval { lo: 0.0, hi: 0.0 }));
        assert_eq!(s.p_at_most(0.0), 1.0);
        assert_eq!(s.p_equal(0.0), 1.0);
    }

    /// Compares every statistic with scipy's result, including ties, zeros and few pairs;
    /// `fixtures/stats/signed_rank.py` generates the table.
    #[test]
    fn figures_are_those_of_scipy() {
        let table = include_str!("../../../../fixtures/stats/signed_rank.txt");
        let close = |got: f64, want: &str, what: &str| {
            let want: f64 = want.parse().unwrap();
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{what}: got {got}, want {want}");
        };
        let (mut samples, mut bounds, mut quantiles) = (0, 0, 0);
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split(" | ").collect();
            if let ["quantile", p, want] = cells[..] {
                let (p, want): (f64, f64) = (p.parse().unwrap(), want.parse().unwrap());
                // The tolerance is the error of the distribution function, divided by its slope.
                let tolerance = 2e-7 / ((-want * want / 2.0).exp() / std::f64::consts::TAU.sqrt());
                assert!((normal_quantile(p) - want).abs() <= tolerance, "{line}: {}", normal_quantile(p));
                quantiles += 1;
                continue;
            }
            let differences: Vec<f64> = cells[1].split(' ').map(|one| one.parse().unwrap()).collect();
            let ranks = SignedRank::new(&differences).unwrap();
            close(ranks.estimate(), cells[2], line);
            close(ranks.p_at_most(0.0), cells[3], line);
            close(ranks.p_at_least(0.0), cells[4], line);
            samples += 1;
            for (level, cell) in [0.05, 0.025, 0.0264, 0.0015].into_iter().zip(&cells[5..]) {
                let ends = ranks.interval(Tail::OneSided(level));
                let what = format!("at {level}: {line}");
                match (ends, cell.split_once(' ')) {
                    (None, None) => assert_eq!(*cell, "none", "{what}"),
                    (Some(ends), Some((lo, hi))) => {
                        close(ends.lo, lo, &what);
                        close(ends.hi, hi, &what);
                        bounds += 1;
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
        println!("{samples} samples, {bounds} pairs of bounds, {quantiles} quantiles");
        assert!(samples >= 90 && bounds >= 200 && quantiles >= 9);
    }
}
