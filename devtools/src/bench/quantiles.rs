//! Quantiles of measured times.

use commensal_core::stats::percentile;
use serde_json::{Value, json};
use std::fmt;

/// Measured times, sorted.
pub struct Quantiles(Vec<f64>);

impl Quantiles {
    /// Column headers of the printed form.
    pub const HEADER: &str = "     P50      P90      P99  longest";

    pub fn new(mut times: Vec<f64>) -> Quantiles {
        times.sort_by(f64::total_cmp);
        Quantiles(times)
    }

    /// Returns the quantile `share` (nearest rank); NaN if there are no times.
    pub fn at(&self, share: f64) -> f64 {
        percentile(&self.0, share).unwrap_or(f64::NAN)
    }

    pub fn json(&self) -> Value {
        json!({
            "p50_ms": self.at(0.5), "p90_ms": self.at(0.9), "p99_ms": self.at(0.99), "longest_ms": self.at(1.0),
            "times_ms": self.0,
        })
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [p50, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(|share| self.at(share));
        write!(f, "{p50:>8.1} {p90:>8.1} {p99:>8.1} {longest:>8.1}")
    }
}
