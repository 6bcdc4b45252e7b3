//! Student's t distribution for whole degrees of freedom, computed by its finite series (Abramowitz and Stegun 26.7.3,
//! 26.7.4). The error is below 1e-9 for the quantiles in use.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// `P(|T| <= tan(theta) sqrt(df))`. The series is in terms of the angle, so every term is positive and at most 1.
fn central_probability(theta: f64, df: u32) -> f64 {
    let (sin, cos) = theta.sin_cos();
    let cos2 = cos * cos;
    let (mut term, first) = if df % 2 == 1 { (cos, 1) } else { (1.0, 0) };
    let mut sum = 0.0;
    // The terms are cos^first, cos^(first + 2), ... cos^(df - 2), each times a ratio of double factorials.
    let mut power = first;
    while power + 2 <= df {
        sum += term;
        term *= cos2 * f64::from(power + 1) / f64::from(power + 2);
        power += 2;
    }
    if df % 2 == 1 { FRAC_2_PI * (theta + sin * sum) } else { sin * sum }
}

/// The quantile of the t distribution with `df` degrees of freedom for the probability `p`.
///
/// `None` if `p` is not strictly between 0 and 1, or `df` is 0.
pub fn t_quantile(p: f64, df: u32) -> Option<f64> {
    if !(p > 0.0 && p < 1.0) || df == 0 {
        return None;
    }
    let want = (2.0 * p - 1.0).abs();
    let (mut lo, mut hi) = (0.0, FRAC_PI_2);
    for _ in 0..60 {
        let mid = (lo + hi) / 2.0;
        if central_probability(mid, df) < want {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    let t = ((lo + hi) / 2.0).tan() * f64::from(df).sqrt();
    Some(if p < 0.5 { -t } else { t })
}

/// The two-sided p-value of `t`: the probability that a t variable with `df` degrees of freedom is at least as far from
/// 0. `None` if `t` is NaN or `df` is 0.
pub fn t_two_sided(t: f64, df: u32) -> Option<f64> {
    if t.is_nan() || df == 0 {
        return None;
    }
    let theta = (t.abs() / f64::from(df).sqrt()).atan();
    Some((1.0 - central_probability(theta, df)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_and_quantiles_agree() {
        for df in [1, 2, 3, 7, 20, 61, 500] {
            for p in [0.001, 0.01, 0.05, 0.3, 0.9] {
                let t = t_quantile(1.0 - p / 2.0, df).unwrap();
                let (got, back) = (t_two_sided(t, df).unwrap(), t_two_sided(-t, df).unwrap());
                assert!((got - p).abs() < 1e-9 && got == back, "df {df}: {got}, {p}");
            }
        }
        assert_eq!(t_two_sided(0.0, 5), Some(1.0));
        assert_eq!(t_two_sided(f64::INFINITY, 5), Some(0.0));
        assert_eq!((t_two_sided(f64::NAN, 5), t_two_sided(1.0, 0)), (None, None));
    }

    #[test]
    fn quantiles_are_those_of_the_published_table() {
        let table = [
            (1, 6.314, 12.706, 63.657),
            (2, 2.920, 4.303, 9.925),
            (3, 2.353, 3.182, 5.841),
            (4, 2.132, 2.776, 4.604),
            (5, 2.015, 2.571, 4.032),
            (7, 1.895, 2.365, 3.499),
            (10, 1.812, 2.228, 3.169),
            (11, 1.796, 2.201, 3.106),
            (19, 1.729, 2.093, 2.861),
            (30, 1.697, 2.042, 2.750),
            (60, 1.671, 2.000, 2.660),
            (120, 1.658, 1.980, 2.617),
            (1000, 1.646, 1.962, 2.581),
        ];
        for (df, t95, t975, t995) in table {
            for (p, want) in [(0.95, t95), (0.975, t975), (0.995, t995)] {
                let got = t_quantile(p, df).unwrap();
                assert!((got - want).abs() <= 0.000_51, "df {df} p {p}: got {got}, want {want}");
            }
        }
    }

    #[test]
    fn the_distribution_is_symmetric_and_its_edges_are_refused() {
        assert_eq!(t_quantile(0.025, 11).unwrap(), -t_quantile(0.975, 11).unwrap());
        assert!(t_quantile(0.5, 7).unwrap().abs() < 1e-9);
        for p in [0.0, 1.0, -1.0, f64::NAN] {
            assert_eq!(t_quantile(p, 5), None);
        }
        assert_eq!(t_quantile(0.9, 0), None);
    }
}
