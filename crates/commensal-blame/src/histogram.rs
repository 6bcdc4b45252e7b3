//! Histograms of delays, with eight slots (buckets) per power of two, so that the error of a quantile is at most 6 %.

/// Number of slots of a histogram in the BPF program.
pub const SLOTS: usize = 320;

/// A histogram of delays (ns).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(vec![0; SLOTS])
    }
}

impl Histogram {
    /// Creates a histogram from the BPF program's counters.
    #[must_use]
    pub fn new(counts: Vec<u64>) -> Histogram {
        Histogram(counts)
    }

    /// Number of delays in the histogram.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the quantile `share` (from 0 to 1) in ns: the smallest slot that, together with all lower slots, holds
    /// at least this share of the delays (nearest rank). The value is the middle of that slot. `None` if there are no
    /// delays.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count);
        let mut sum = 0;
        let at = self.0.iter().position(|slot| {
            sum += slot;
            sum >= rank
        })?;
        Some((low(at) + low(at + 1)) / 2.0)
    }

    /// Number of delays by slot.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Sum of all delays (ns), each counted as the middle of its slot.
    #[must_use]
    pub fn sum_ns(&self) -> f64 {
        self.0.iter().enumerate().map(|(at, count)| *count as f64 * (low(at) + low(at + 1)) / 2.0).sum()
    }

    /// Returns the difference from `earlier`, a reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        Histogram(self.0.iter().zip(&earlier.0).map(|(now, then)| now.saturating_sub(*then)).collect())
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }
}

/// The smallest value in a slot (ns).
pub(crate) fn low(slot: usize) -> f64 {
    if slot < 8 {
        return slot as f64;
    }
    let power = slot / 8 + 2;
    2f64.powi(power as i32) * (1.0 + (slot % 8) as f64 / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slot that the BPF program uses for a delay.
    fn slot(ns: u64) -> usize {
        if ns < 8 {
            return ns as usize;
        }
        let power = ns.ilog2() as usize;
        (power - 2) * 8 + ((ns >> (power - 3)) & 7) as usize
    }

    #[test]
    fn quantiles_are_right_within_a_slot() {
        for ns in [0, 1, 7, 8, 9, 100, 999, 12_345, 4_000_000, 77_777_777_777] {
            let mut counts = vec![0; SLOTS];
            counts[slot(ns)] = 3;
            let got = Histogram::new(counts).quantile(0.99).unwrap();
            assert!((got - ns as f64).abs() <= (ns as f64 * 0.07).max(0.5), "{ns}: {got}");
        }
    }

    #[test]
    fn ranks() {
        let mut counts = vec![0; SLOTS];
        counts[slot(1_000)] = 99;
        counts[slot(1_000_000)] = 1;
        let histogram = Histogram::new(counts);
        assert!(histogram.quantile(0.99).unwrap() < 2_000.0);
        assert!(histogram.quantile(1.0).unwrap() > 900_000.0);
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(histogram.since(&histogram).count(), 0);
    }
}
