//! Within its budget or over it: the conclusion about offline work that the figures allow.

use crate::Figures;
use crate::figures::Kind;

/// Above this share of unreported context switches the figures are not evidence.
pub const MOST_MISSED: f64 = 0.005;
/// Minimum number of delays for a 99th percentile.
pub const FEWEST_DELAYS: u64 = 100;

/// The budget of offline work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Wait blamed on it per second of online CPU time, ms.
    pub blame_ms: f64,
    /// 99th percentile of the time that it stays on a CPU after online work was woken there, us.
    pub preempt_us: f64,
}

impl Default for Bounds {
    /// Protected groups stay below 40 ms and 30 us under every background load tested, unprotected ones are above 118
    /// ms and 1.9 ms (Linux 6.18, one CPU).
    fn default() -> Bounds {
        Bounds { blame_ms: 50.0, preempt_us: 100.0 }
    }
}

/// The verdict.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Offline work made online work wait no more than allowed. Indirect effects through third parties are not
    /// included.
    WithinBudget,
    /// Offline work exceeded the budget, by one measure or both.
    OverBudget(Vec<String>),
    /// There are too few measurements.
    Unknown(String),
}

impl Verdict {
    /// Compares the figures with the budget.
    #[must_use]
    pub fn of(figures: &Figures, bounds: Bounds) -> Verdict {
        let missed = figures.missed_share();
        if missed > MOST_MISSED {
            return Verdict::Unknown(format!(
                "{:.1} % of the context switches while they waited were hidden from the probe, {} % are allowed",
                missed * 100.0,
                MOST_MISSED * 100.0
            ));
        }
        let Some(blame_ms) = figures.per_cpu_second(figures.wait.of(Kind::Offline)) else {
            return Verdict::Unknown("online work had no CPU time".to_owned());
        };
        let mut exceeded = Vec::new();
        if blame_ms > bounds.blame_ms {
            exceeded.push(format!(
                "it made online work wait {blame_ms:.1} ms per CPU-second, {} ms are allowed",
                bounds.blame_ms
            ));
        }
        let delays = figures.preempt_delay.count();
        let p99_us = figures.preempt_delay.quantile(0.99).map(|ns| ns / 1e3);
        if let Some(p99) = p99_us.filter(|p99| delays >= FEWEST_DELAYS && *p99 > bounds.preempt_us) {
            exceeded.push(format!(
                "the 99th percentile of leaving a CPU for it is {p99:.0} us, {} us are allowed",
                bounds.preempt_us
            ));
        }
        match exceeded.is_empty() {
            false => Verdict::OverBudget(exceeded),
            true if delays < FEWEST_DELAYS => Verdict::Unknown(format!(
                "not enough wake-ups: {delays} on CPUs with offline work, {FEWEST_DELAYS} are needed"
            )),
            true => Verdict::WithinBudget,
        }
    }

    /// The verdict in words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Verdict::WithinBudget => "within budget",
            Verdict::OverBudget(_) => "over budget",
            Verdict::Unknown(_) => "unknown",
        }
    }

    /// The verdict's old word, which programs still get until the next release.
    pub(crate) fn old_word(&self) -> &'static str {
        match self {
            Verdict::WithinBudget => "innocent",
            Verdict::OverBudget(_) => "guilty",
            Verdict::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Histogram, histogram::SLOTS};

    /// Figures with 1 s of CPU time, this offline blame in ms, and `count` preemption delays in this slot.
    fn figures(blame_ms: u64, slot: usize, count: u64) -> Figures {
        let mut figures = Figures::default();
        figures.counters.run_ns = 1_000_000_000;
        figures.counters.relevant = 1_000;
        figures.wait.0[Kind::Offline as usize] = blame_ms * 1_000_000;
        let mut counts = vec![0; SLOTS];
        counts[slot] = count;
        figures.preempt_delay = Histogram::new(counts);
        figures
    }

    // promise 41
    #[test]
    fn each_answer() {
        // Slot 88 begins at 8,192 ns, slot 136 at 524 us.
        let check = |figures: &Figures, words: &str| {
            let verdict = Verdict::of(figures, Bounds::default());
            assert_eq!(verdict.words(), words, "{verdict:?}");
        };
        check(&figures(10, 88, 100), "within budget");
        check(&figures(10, 88, 99), "unknown");
        check(&figures(60, 88, 99), "over budget");
        check(&figures(10, 136, 100), "over budget");
        check(&figures(10, 136, 99), "unknown");
        check(&Figures::default(), "unknown");
        let mut missed = figures(10, 88, 100);
        missed.counters.relevant_missed = 6;
        check(&missed, "unknown");
        missed.counters.relevant_missed = 5;
        check(&missed, "within budget");
    }
}
