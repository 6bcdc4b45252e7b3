//! The verdict about offline work: whether the waits that it caused stayed within its budget, as far as the
//! measurements allow a conclusion.

use crate::Figures;
use crate::figures::Kind;

/// Minimum number of delays from which a 99th percentile is computed.
pub const FEWEST_DELAYS: u64 = 100;

/// The budget of offline work: the largest values at which the verdict is still within budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Wait caused by offline work per second of online CPU time (ms).
    pub blame_ms: f64,
    /// 99th percentile of the time that offline work stays on a CPU after an online thread was woken there (us).
    pub preempt_us: f64,
}

impl Default for Bounds {
    /// In tests with various background loads, protected groups stayed below 40 ms and 30 us, and unprotected groups
    /// were above 118 ms and 1.9 ms (Linux 6.18, one CPU).
    fn default() -> Bounds {
        Bounds { blame_ms: 50.0, preempt_us: 100.0 }
    }
}

/// The verdict about offline work.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Offline work stayed within the budget. Indirect effects through third parties are not included.
    WithinBudget,
    /// Offline work exceeded the budget in one or both measures. Contains one reason for each.
    OverBudget(Vec<String>),
    /// There is too little evidence for a verdict. Contains the reason.
    Unknown(String),
}

impl Verdict {
    /// Compares the measurements with the budget.
    #[must_use]
    pub fn of(figures: &Figures, bounds: Bounds) -> Verdict {
        let (waited_ns, hidden_ns) = (figures.wait.of(Kind::Offline), figures.counters.hidden_ns);
        let Some((blame_ms, hidden_ms)) =
            figures.per_cpu_second(waited_ns).zip(figures.per_cpu_second(hidden_ns))
        else {
            return Verdict::of_starved(waited_ns.saturating_sub(hidden_ns), figures.time_ns, bounds);
        };
        // What the probe could not see belongs to offline work, or to others: the budget is compared with both.
        let (least, most) = ((blame_ms - hidden_ms).max(0.0), blame_ms + hidden_ms);
        if least <= bounds.blame_ms && most > bounds.blame_ms && hidden_ms > 0.0 {
            return Verdict::Unknown(format!(
                "it made online work wait {least:.1} to {most:.1} ms per CPU-second, and {} ms is allowed: the kernel did \
                 not report {:.2} % of the context switches during waits to the probe; measure longer (--for)",
                bounds.blame_ms,
                figures.missed_share() * 100.0
            ));
        }
        let mut exceeded = Vec::new();
        if blame_ms > bounds.blame_ms {
            exceeded.push(format!(
                "it made online work wait {blame_ms:.1} ms per CPU-second; {} ms is allowed",
                bounds.blame_ms
            ));
        }
        let delays = figures.preempt_delay.count();
        let p99_us = figures.preempt_delay.quantile(0.99).map(|ns| ns / 1e3);
        if let Some(p99) = p99_us.filter(|p99| delays >= FEWEST_DELAYS && *p99 > bounds.preempt_us) {
            exceeded.push(format!(
                "the 99th percentile of the preemption delay is {p99:.0} us; {} us is allowed",
                bounds.preempt_us
            ));
        }
        match exceeded.is_empty() {
            false => Verdict::OverBudget(exceeded),
            true if delays < FEWEST_DELAYS => Verdict::Unknown(format!(
                "there were {delays} wake-ups on CPUs that ran offline work, but {FEWEST_DELAYS} are needed: measure longer (--for)"
            )),
            true => Verdict::WithinBudget,
        }
    }

    /// The verdict about a service that had no CPU time: a wait per CPU-second would be infinite. One thread can have at
    /// most the length of the measurement as CPU time, so the wait is compared with the budget for that.
    fn of_starved(waited_ns: u64, length_ns: u64, bounds: Bounds) -> Verdict {
        let (waited_s, length_s) = (waited_ns as f64 / 1e9, length_ns as f64 / 1e9);
        if waited_s * 1e3 <= bounds.blame_ms * length_s {
            return Verdict::Unknown("online work had no CPU time".to_owned());
        }
        Verdict::OverBudget(vec![format!(
            "it made online work wait {waited_s:.2} s in {length_s:.2} s, in which online work had no CPU time at all"
        )])
    }

    /// The verdict as readable text.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Verdict::WithinBudget => "within budget",
            Verdict::OverBudget(_) => "over budget",
            Verdict::Unknown(_) => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Histogram, histogram::SLOTS};

    /// Figures with 1 s of CPU time, this wait for offline work (ms), and `count` preemption delays in this slot.
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

    // promise 33
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
        // Without any CPU time, in a look of one second.
        for (blame_ms, hidden_ms, expected) in
            [(999, 0, "over budget"), (51, 0, "over budget"), (50, 0, "unknown"), (999, 949, "unknown")]
        {
            let mut starved = figures(blame_ms, 88, 0);
            (starved.counters.run_ns, starved.time_ns) = (0, 1_000_000_000);
            starved.counters.hidden_ns = hidden_ms * 1_000_000;
            check(&starved, expected);
        }
        // What was hidden from the probe decides only where its length matters, however many switches it were.
        for (blame_ms, hidden_ms, expected) in [
            (10, 40, "within budget"),
            (10, 41, "unknown"),
            (50, 0, "within budget"),
            (50, 1, "unknown"),
            (1_149, 300, "over budget"),
            (1_149, 1_099, "unknown"),
            (1_149, 1_098, "over budget"),
        ] {
            let mut hidden = figures(blame_ms, 88, 100);
            hidden.counters.relevant_missed = 40;
            hidden.counters.hidden_ns = hidden_ms * 1_000_000;
            check(&hidden, expected);
        }
    }
}
