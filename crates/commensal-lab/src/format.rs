//! Formats numbers for output. A change is `(arm - base) / base`, computed from unrounded values. The output shows the
//! sign of a change, and no more digits than the noise floor supports. The noise floor is the uncertainty of a
//! comparison between two identical conditions; harm is the relative worsening of a metric.

use crate::record::Metric;

/// Returns the change from `base` to `arm` in per cent; positive if `arm` is larger.
pub fn delta_pct(arm: f64, base: f64) -> f64 {
    (arm - base) / base * 100.0
}

/// Converts a log-ratio into a harm in per cent; limits the log-ratio, so that the result is finite.
pub fn pct_of_log(log_ratio: f64) -> f64 {
    // Adding zero turns -0 into 0, because a reader of the JSON does not expect -0.
    log_ratio.clamp(-30.0, 30.0).exp_m1() * 100.0 + 0.0
}

/// Converts a harm in per cent into a log-ratio.
pub fn log_of_pct(pct: f64) -> f64 {
    (pct / 100.0).max(-1.0 + 1e-13).ln_1p()
}

/// Converts a harm in per cent into the signed change of the metric itself, also in per cent.
///
/// For latency, the harm equals the change. For throughput, a harm of 100 % (each request takes twice as long) is a
/// change of -50 %.
pub fn change_pct(metric: Metric, harm_pct: f64) -> f64 {
    if metric.more_is_better() { pct_of_log(-log_of_pct(harm_pct)) } else { harm_pct }
}

/// Returns the step to which values with this noise floor are rounded, in the unit of the noise floor. The step is the
/// largest power of ten that is at most a tenth of the noise floor, between 0.01 and 100; it is 1 if the noise floor is
/// unknown.
pub fn quantum(noise_floor: Option<f64>) -> f64 {
    match noise_floor {
        Some(floor) if floor.is_finite() => {
            10.0_f64.powi((floor.max(0.1) / 10.0 + 1e-12).log10().floor().clamp(-2.0, 2.0) as i32)
        }
        _ => 1.0,
    }
}

/// Returns the number of decimal places for values that are rounded to the step `quantum`.
fn decimals(quantum: f64) -> usize {
    if quantum >= 0.99 {
        0
    } else if quantum >= 0.099 {
        1
    } else {
        2
    }
}

/// Formats `value`, rounded to the step `quantum`, without a plus sign.
pub fn plain(value: f64, quantum: f64) -> String {
    let rounded = (value / quantum).round() * quantum;
    let digits = decimals(quantum);
    let text = format!("{:.digits$}", rounded.abs());
    let zero = text.bytes().all(|b| matches!(b, b'0' | b'.'));
    if rounded < 0.0 && !zero { format!("−{text}") } else { text }
}

/// Formats `value`, rounded to the step `quantum`, with its sign; a value that rounds to zero has no sign.
pub fn signed(value: f64, quantum: f64) -> String {
    let text = plain(value, quantum);
    let zero = text.bytes().all(|b| matches!(b, b'0' | b'.'));
    if zero || text.starts_with('−') { text } else { format!("+{text}") }
}

/// Formats a noise floor in per cent, such as `±2.1 %`. If the noise floor is smaller than the step `quantum`, the text
/// is an upper bound (`below ±…`).
pub fn plus_minus_pct(floor: f64, quantum: f64) -> String {
    if floor < quantum {
        format!("below ±{} %", plain(quantum, quantum))
    } else {
        format!("±{} %", plain(floor, quantum))
    }
}

/// Formats a signed change in per cent, such as `+1.9 %`.
pub fn signed_pct(value: f64, quantum: f64) -> String {
    format!("{} %", signed(value, quantum))
}

/// Formats an interval of signed values in brackets, lower bound first, such as `[−0.8, +4.3]`.
pub fn brackets(ends: [f64; 2], quantum: f64) -> String {
    let (lo, hi) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
    format!("[{}, {}]", signed(lo, quantum), signed(hi, quantum))
}

/// Formats a value with at least three significant digits, such as `18.9`, `485`, `1234`.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a latency, given in microseconds, as µs, ms or s.
pub fn latency(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} µs", three_digits(us)),
        us if us < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
        us => format!("{} s", three_digits(us / 1e6)),
    }
}

/// Formats a count with a space between groups of three digits, such as `10 000`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// Joins names as a sentence lists them: `a`, `a and b`, `a, b and c`.
pub fn sentence_list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The raw values of the openEuler document. The document's table prints -42 %, -49 %, -44 % and -0.11 %, -0.21 %,
    /// -0.96 %, -1.58 %, with two different denominators and a wrong sign; the test expects the correct changes.
    #[test]
    fn the_openeuler_table_recomputed() {
        let rows = [
            (1.88534, 0.94240, "−50.01"),
            (0.484905, 0.840477, "+73.33"),
            (0.728296, 1.430317, "+96.39"),
            (0.873945, 1.555647, "+78.00"),
            (1.88534, 1.88258, "−0.15"),
            (0.484905, 0.485725, "+0.17"),
            (0.728296, 0.734696, "+0.88"),
            (0.873945, 0.887807, "+1.59"),
        ];
        for (base, arm, want) in rows {
            assert_eq!(signed(delta_pct(arm, base), 0.01), want, "{base} -> {arm}");
        }
    }

    #[test]
    fn digits_follow_the_noise_floor() {
        let check = |value: f64, floor, want: &str| assert_eq!(signed_pct(value, quantum(floor)), want);
        check(0.961, Some(2.6), "+1.0 %");
        check(-0.961, Some(26.0), "−1 %");
        check(1.586, Some(0.5), "+1.59 %");
        check(1.586, Some(0.0), "+1.59 %");
        check(1.586, Some(1.0), "+1.6 %");
        check(-50.01, Some(2.0), "−50.0 %");
        check(1006.4, Some(150.0), "+1010 %");
        check(3.4, None, "+3 %");
        check(3.4, Some(f64::NAN), "+3 %");
        check(-0.04, Some(2.0), "0.0 %");
        check(0.0, Some(2.0), "0.0 %");
    }

    #[test]
    fn throughput_changes_the_other_way() {
        assert!((change_pct(Metric::Qps, 100.0) + 50.0).abs() < 1e-9);
        assert!((change_pct(Metric::P99, 100.0) - 100.0).abs() < 1e-9);
        assert!(change_pct(Metric::Qps, -100.0).is_finite());
        assert!(pct_of_log(1e9).is_finite() && pct_of_log(-1e9) >= -100.0);
        assert!((log_of_pct(pct_of_log(0.3)) - 0.3).abs() < 1e-12);
    }

    #[test]
    fn figures_for_tables() {
        assert_eq!(latency(484.9), "485 µs");
        assert_eq!(latency(30.495), "30.5 µs");
        assert_eq!(latency(484_905.0), "485 ms");
        assert_eq!(latency(12_340.0), "12.3 ms");
        assert_eq!(latency(999.7), "1.00 ms");
        assert_eq!(latency(5_300_000.0), "5.30 s");
        assert_eq!(count(4_100), "4 100");
        assert_eq!(count(12), "12");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(sentence_list(&["P50", "P90", "QPS"]), "P50, P90 and QPS");
        assert_eq!(brackets([4.31, -0.82], 0.1), "[−0.8, +4.3]");
        assert_eq!(plus_minus_pct(2.13, 0.1), "±2.1 %");
        assert_eq!(plus_minus_pct(0.0, quantum(Some(0.0))), "below ±0.01 %");
    }
}
