//! The times at which requests are due. The same seed always gives the same schedule.
//!
//! The schedule does not depend on responses, which is what "open loop" means. A stall of the service therefore cannot
//! suppress the requests that become due during the stall.

use crate::rng::splitmix64;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Distribution of the gaps between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Exponentially distributed gaps, as between requests of independent users.
    #[default]
    Poisson,
    /// Equal gaps; the first request is due at the start.
    Constant,
}

/// Iterator over the due times of requests, counted from the start of the schedule: ascending, and all less than the
/// length of the schedule.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrival: Arrival,
    rate_per_s: f64,
    length: Duration,
    random: u64,
    elapsed_s: f64,
    index: u64,
}

impl Schedule {
    /// Creates a schedule of `rate_per_s` requests per second over `length`; the schedule is empty if the rate is not
    /// above zero.
    #[must_use]
    pub fn new(arrival: Arrival, rate_per_s: f64, length: Duration, seed: u64) -> Self {
        Self { arrival, rate_per_s, length, random: seed, elapsed_s: 0.0, index: 0 }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.rate_per_s.is_nan() || self.rate_per_s <= 0.0 {
            return None;
        }
        let due_s = match self.arrival {
            Arrival::Poisson => {
                self.elapsed_s -= unit(&mut self.random).ln() / self.rate_per_s;
                self.elapsed_s
            }
            // Each due time is computed from the index, so that rounding errors do not accumulate.
            Arrival::Constant => self.index as f64 / self.rate_per_s,
        };
        self.index += 1;
        // Due times beyond the range of a Duration are also beyond the length of any schedule.
        Duration::try_from_secs_f64(due_s).ok().filter(|due| *due < self.length)
    }
}

/// Returns a random number, uniform in (0, 1]: the number is never 0, because 0 has no logarithm.
fn unit(state: &mut u64) -> f64 {
    ((splitmix64(state) >> 11) + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poisson(rate: f64, seconds: u64, seed: u64) -> Vec<f64> {
        let length = Duration::from_secs(seconds);
        Schedule::new(Arrival::Poisson, rate, length, seed).map(|d| d.as_secs_f64()).collect()
    }

    #[test]
    fn poisson_keeps_the_mean_rate() {
        for seed in 0..20 {
            let n = poisson(1_000.0, 100, seed).len() as f64;
            // A count with mean 100 000 has a standard deviation of 316; the limit is five of them.
            assert!((n - 100_000.0).abs() < 5.0 * 316.3, "seed {seed}: {n}");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential_and_independent() {
        let due = poisson(500.0, 200, 7);
        let gaps: Vec<f64> = due.windows(2).map(|w| (w[1] - w[0]) * 500.0).collect();
        let n = gaps.len() as f64;
        // Kolmogorov-Smirnov distance from 1 - exp(-x); 1.95/sqrt(n) is the critical value at 0.1 %.
        let mut sorted = gaps.clone();
        sorted.sort_by(f64::total_cmp);
        let distance = sorted
            .iter()
            .enumerate()
            .map(|(i, g)| {
                let cdf = 1.0 - (-g).exp();
                (cdf - i as f64 / n).abs().max(((i + 1) as f64 / n - cdf).abs())
            })
            .fold(0.0, f64::max);
        assert!(distance < 1.95 / n.sqrt(), "distance {distance} for {n} gaps");
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n;
        let lag1 = gaps.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / n / variance;
        assert!(lag1.abs() < 4.0 / n.sqrt(), "neighbouring gaps correlate: {lag1}");
    }

    #[test]
    fn a_seed_decides_everything_and_seeds_differ() {
        assert_eq!(poisson(100.0, 10, 42), poisson(100.0, 10, 42));
        assert_ne!(poisson(100.0, 10, 42), poisson(100.0, 10, 43));
        assert_ne!(poisson(100.0, 10, 0)[0], poisson(100.0, 10, 1)[0]);
    }

    /// Every record contains its seed, so the schedule for a seed must never change.
    #[test]
    fn the_schedule_of_a_seed_is_that_of_earlier_versions() {
        let due: Vec<u128> = Schedule::new(Arrival::Poisson, 1_000.0, Duration::from_secs(1), 7)
            .take(4)
            .map(|due| due.as_nanos())
            .collect();
        assert_eq!(due, [942_045, 5_029_119, 5_133_634, 5_673_322]);
    }

    #[test]
    fn constant_gaps_do_not_drift() {
        let due: Vec<_> = Schedule::new(Arrival::Constant, 3.0, Duration::from_secs(1000), 0).collect();
        assert_eq!(due.len(), 3000);
        assert_eq!(due[0], Duration::ZERO);
        assert_eq!(due[2700], Duration::from_secs(900));
    }

    #[test]
    fn due_times_ascend_and_stay_inside() {
        let due = poisson(5_000.0, 3, 1);
        assert!(due.is_sorted() && due.iter().all(|d| (0.0..3.0).contains(d)));
    }

    #[test]
    fn impossible_rates_are_empty() {
        for rate in [0.0, -1.0, f64::NAN] {
            for arrival in [Arrival::Poisson, Arrival::Constant] {
                assert_eq!(Schedule::new(arrival, rate, Duration::from_secs(1), 1).next(), None, "{rate}");
            }
        }
    }
}
