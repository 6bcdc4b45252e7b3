//! How long the online side waits because of itself, so that offline work is not held back for nothing.
//!
//! Run delay and pressure do not say what causes them: two online threads on one CPU, without any offline work, waited
//! 136 ms per CPU-second (measured, Linux 6.18), and a service that reads a slow disk causes I/O pressure alone. So the
//! wait that remains while offline work is at its floor is taken as the online side's baseline, and only what is
//! clearly above it counts. The probe attributes waits and needs none of this.

/// Offline work has to be at its floor for this long before the remaining wait is taken as the online side's baseline,
/// ms: requests that queued up before are answered by then.
pub const LEARN_MS: u64 = 5_000;
/// How long a baseline is valid, ms. Then it is measured again, at the price of some seconds at the floor.
pub const KEEP_MS: u64 = 600_000;
/// Up to this multiple of the baseline a wait is not blamed on offline work: such figures differ by a third between
/// quiet seconds.
pub const MARGIN: f64 = 1.5;

/// Learns the baseline from severities: measured wait over the allowed wait, 1 at the bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Own {
    sum: f64,
    ms: u64,
    known: Option<(f64, u64)>,
}

impl Own {
    /// The severity that counts against offline work, from a measured one. `at_floor`: offline work is limited to its
    /// floor and uses no more.
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

    /// The baseline severity, when it is known and above 1.
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
