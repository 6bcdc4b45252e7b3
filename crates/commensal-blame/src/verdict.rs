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
    /// Offline work stayed within the budget. Contains the measured wait. Indirect effects through third parties are not
    /// included.
    WithinBudget(String),
    /// Offline work exceeded the budget in one or both measures. Contains one reason for each.
    OverBudget(Vec<String>),
    /// There is too little evidence for a verdict. Contains the reason.
    Unknown(String),
}

impl Verdict {
    /// Compares the measurements with the budget.
    #[must_use]
    pub fn of(figures: &Figures, bounds: Bounds) -> Verdict {
        let counters = &figures.counters;
        let waited_ns = figures.wait.of(Kind::Offline);
        // The kernel does not report every task that gets a CPU. What the probe counted meanwhile may be somebody else's
        // doing, and what it did not count may be offline work's.
        let least_ns = waited_ns.saturating_sub(counters.hidden_offline_ns);
        let most_ns = waited_ns + counters.hidden_ns.saturating_sub(counters.hidden_offline_ns);
        let per = |ns| figures.per_cpu_second(ns);
        let Some((least, most)) = per(least_ns).zip(per(most_ns)) else {
            return Verdict::of_starved(least_ns, figures.time_ns, bounds);
        };
        let waited = if counters.hidden_ns == 0 {
            format!("{most:.1} ms per CPU-second")
        } else {
            format!("{least:.1} ms per CPU-second, {most:.1} ms with what the kernel hid from the probe")
        };
        let waited = format!("it made online work wait {waited}; {} ms is allowed", bounds.blame_ms);
        let mut exceeded = Vec::new();
        if least > bounds.blame_ms {
            exceeded.push(waited.clone());
        }
        let delays = figures.preempt_delay.count();
        let p99_us = figures.preempt_delay.quantile(0.99).map(|ns| ns / 1e3);
        if let Some(p99) = p99_us.filter(|p99| delays >= FEWEST_DELAYS && *p99 > bounds.preempt_us) {
            exceeded.push(format!(
                "the 99th percentile of the preemption delay is {p99:.0} us; {} us is allowed",
                bounds.preempt_us
            ));
        }
        if !exceeded.is_empty() {
            return Verdict::OverBudget(exceeded);
        }
        if most > bounds.blame_ms {
            return Verdict::Unknown(format!("{waited}: measure longer (--for)"));
        }
        if delays < FEWEST_DELAYS {
            return Verdict::Unknown(format!(
                "there were {delays} wake-ups on CPUs that ran offline work, but {FEWEST_DELAYS} are needed: measure longer (--for)"
            ));
        }
        Verdict::WithinBudget(waited)
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
            Verdict::WithinBudget(_) => "within budget",
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
            starved.counters.hidden_offline_ns = hidden_ms * 1_000_000;
            check(&starved, expected);
        }
        // What was hidden from the probe decides only where its length matters, however many switches it were: it may
        // have been counted as offline work's, or not.
        for (blame_ms, hidden_ms, of_offline_ms, expected) in [
            (10, 40, 0, "within budget"),
            (10, 41, 0, "unknown"),
            (50, 0, 0, "within budget"),
            (50, 1, 0, "unknown"),
            (50, 1, 1, "within budget"),
            (60, 900, 9, "over budget"),
            (60, 900, 10, "unknown"),
            (1_149, 300, 300, "over budget"),
            (1_149, 1_099, 1_099, "unknown"),
            (1_149, 1_099, 1_098, "over budget"),
            (1_149, 9_000, 0, "over budget"),
        ] {
            let mut hidden = figures(blame_ms, 88, 100);
            hidden.counters.relevant_missed = 40;
            hidden.counters.hidden_ns = hidden_ms * 1_000_000;
            hidden.counters.hidden_offline_ns = of_offline_ms * 1_000_000;
            check(&hidden, expected);
            let because = format!("{:?}", Verdict::of(&hidden, Bounds::default()));
            let (least, most) = (blame_ms - of_offline_ms, blame_ms + hidden_ms - of_offline_ms);
            let both = format!("wait {least}.0 ms per CPU-second, {most}.0 ms with");
            assert!(hidden_ms == 0 || because.contains(&both), "{because}");
        }
        // A delay that is too long needs no more to be over budget.
        let mut late = figures(50, 136, 100);
        late.counters.hidden_ns = 1_000_000;
        check(&late, "over budget");
    }
}
