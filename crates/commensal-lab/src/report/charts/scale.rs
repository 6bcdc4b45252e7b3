//! Maps values to pixels, and chooses the labels of axes.

/// A linear map from values to pixels. For a logarithmic axis, callers pass logarithms.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    /// Creates a scale that maps `from.0` to `to.0` and `from.1` to `to.1`. An empty range of values is widened.
    pub fn new(from: (f64, f64), to: (f64, f64)) -> Self {
        let from = if from.1 - from.0 > 1e-12 { from } else { (from.0 - 0.5, from.0 + 0.5) };
        Self { from, to }
    }

    /// Returns the position of a value in pixels; values outside of the range are clamped.
    pub fn at(&self, value: f64) -> f64 {
        let share = ((value - self.from.0) / (self.from.1 - self.from.0)).clamp(0.0, 1.0);
        self.to.0 + share * (self.to.1 - self.to.0)
    }

    /// Returns whether a value is in the range.
    pub fn holds(&self, value: f64) -> bool {
        (self.from.0..=self.from.1).contains(&value)
    }
}

/// Returns the smallest and the largest of the finite values.
pub fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((lo, hi)) => Some((f64::min(lo, value), f64::max(hi, value))),
    })
}

/// Returns round values from 0 to `most`: at least two, and approximately `about`.
pub fn round_steps(most: f64, about: f64) -> Vec<f64> {
    if !(most > 0.0 && most.is_finite()) {
        return vec![0.0];
    }
    let rough = most / about;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= rough * 0.999).unwrap_or(10.0) * power;
    (0..=(most / step * 1.000_001) as u32).map(|i| f64::from(i) * step).collect()
}

/// Returns values for a logarithmic axis from `lo` to `hi`: 1, 2 and 5 times each power of ten, or only the powers if
/// there are many.
pub fn log_steps(lo: f64, hi: f64) -> Vec<f64> {
    if !(lo > 0.0 && hi >= lo && hi.is_finite()) {
        return Vec::new();
    }
    let powers = lo.log10().floor() as i32..=hi.log10().ceil() as i32;
    let factors: &[f64] = if hi / lo > 2_000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    powers
        .flat_map(|power| factors.iter().map(move |factor| factor * 10.0_f64.powi(power)))
        .filter(|value| (lo * 0.999..=hi * 1.001).contains(value))
        .collect()
}

/// Formats a latency as an axis label, such as `200 µs` or `1 ms`.
pub fn axis_latency(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", trimmed(us)),
        us if us < 1e6 => format!("{} ms", trimmed(us / 1e3)),
        us => format!("{} s", trimmed(us / 1e6)),
    }
}

/// Formats a number with at most two decimals, without trailing zeros.
pub fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_stay_at_the_ends() {
        let scale = Scale::new((0.0, 10.0), (100.0, 0.0));
        assert_eq!([-1.0, 0.0, 2.5, 11.0].map(|v| scale.at(v)), [100.0, 100.0, 75.0, 0.0]);
        assert!(Scale::new((3.0, 3.0), (0.0, 1.0)).at(3.0) == 0.5);
        assert_eq!(extent([2.0, f64::NAN, -1.0].into_iter()), Some((-1.0, 2.0)));
        assert_eq!(extent([f64::NAN].into_iter()), None);
    }

    #[test]
    fn axes_have_round_values() {
        assert_eq!(round_steps(2.0, 4.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(round_steps(2_100.0, 4.0), [0.0, 1_000.0, 2_000.0]);
        assert_eq!(round_steps(0.0, 4.0), [0.0]);
        assert_eq!(log_steps(90.0, 1_100.0), [100.0, 200.0, 500.0, 1_000.0]);
        assert_eq!(log_steps(1.0, 1e6).len(), 7);
        assert!(log_steps(0.0, 1.0).is_empty());
        assert_eq!([100.0, 1e3, 2.5e3, 5e6].map(axis_latency), ["100 µs", "1 ms", "2.5 ms", "5 s"]);
    }
}
