//! Measures the waits that online work causes itself (the baseline). Limits on offline work cannot shorten these waits.
//!
//! Run delay and pressure do not show what causes them. Two online threads on one CPU, without any offline work, waited
//! 136 ms per CPU-second (measured, Linux 6.18). A service that reads from a slow disk causes I/O pressure by itself.
//! So the wait that remains while offline work is at its floor is taken as the baseline, and only a wait clearly above
//! the baseline counts against offline work. The waits measured by the probe need no baseline, because the probe
//! attributes them.

/// Time (ms) for which offline work must be at its floor before the remaining wait is taken as the baseline; by then,
/// requests that had queued up are done.
pub const LEARN_MS: u64 = 5_000;
/// How long (ms) a baseline is valid. After that time the baseline must be measured again; during the measurement,
/// offline work is at its floor for some seconds.
pub const KEEP_MS: u64 = 600_000;
/// Multiple of the baseline up to which a wait is not blamed on offline work. The margin is necessary because such
/// measurements differ by a third between quiet seconds.
pub const MARGIN: f64 = 1.5;

/// Learns the baseline from severities. A severity is the measured wait divided by the allowed wait: 1 at the bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Own {
    sum: f64,
    ms: u64,
    known: Option<(f64, u64)>,
}

impl Own {
    /// Returns the severity that counts against offline work, computed from the measured severity. `at_floor` states
    /// whether offline work is limited to its floor and uses no more than that.
    pub fn step(&mut self, passed_ms: u64, severity: f64, at_floor: bool) -> f64 {
        self.known = self
            .known
            .and_then(|(own, left_ms)| left_ms.checked_sub(passed_ms.max(1)).map(|left_ms| (own, left_ms)));
        if at_floor && severity > 1.0 {
            let weighted = severity * passed_ms as f64;
            (self.sum, self.ms) = (self.sum + weighted, self.ms + passed_ms);
        } else {
            (self.sum, self.ms) = (0.0, 0);
        }
        if self.ms >= LEARN_MS {
            let mean = self.sum / self.ms as f64;
            self.known = Some((mean, KEEP_MS));
            (self.sum, self.ms) = (0.0, 0);
        }
        severity / (self.known.map_or(1.0, |(own, _)| own * MARGIN)).max(1.0)
    }

    /// The baseline severity; `None` if it is unknown or at most 1.
    #[must_use]
    pub fn known(&self) -> Option<f64> {
        self.known.map(|(own, _)| own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_at_the_floor_is_the_online_sides_own_for_a_while() {
        let mut own = Own::default();
        for _ in 0..4 {
            assert_eq!(own.step(1_000, 3.0, true), 3.0);
        }
        assert!(own.step(1_000, 3.0, true) < 0.7);
        assert_eq!(own.step(1_000, 9.0, false), 2.0, "clearly more than its own");
        assert_eq!(own.known(), Some(3.0));
        for _ in 0..600 {
            own.step(1_000, 0.1, false);
        }
        assert_eq!(own.step(1_000, 3.0, false), 3.0);
    }

    #[test]
    fn nothing_is_learnt_away_from_the_floor_or_in_calm() {
        let mut own = Own::default();
        for second in 0..100 {
            own.step(1_000, 3.0, second % 4 == 0);
            own.step(1_000, 0.5, true);
        }
        assert_eq!(own.known(), None);
    }
}
