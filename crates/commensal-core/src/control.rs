//! The agent's controllers: they compute from measurements what offline work may use now, each with its reasons.
//!
//! | controller | from | to |
//! |---|---|---|
//! | [`frame`] | use of the machine | CPUs of offline work, whole cores |
//! | [`suppress`] | use of the machine | a quota and its period, where whole cores would waste too much |
//! | [`weights`] | weights of the siblings of online groups | weight of online groups |
//! | [`latency`] | waits of online threads | a cap on offline CPUs, for [`frame`] and [`suppress`] |
//! | [`memory`] | memory of groups and of the machine | queue held, groups frozen, one process killed |
//! | [`io`] | pressure of online groups | disk rates of offline groups |
//!
//! All of them shrink at once, grow slowly ([`regulator`]) and give their reasons ([`explain`]).
//!
//! **Missing is never 0.** A measurement that did not arrive is `None`: the current limits are kept for
//! [`MISSING_HOLD_MS`], then offline work falls back to its floor. If the machine cannot measure something at all, the
//! caller says so (`measurable`), and the controller switches itself off with a stated reason.
//!
//! **Time** is an argument, in milliseconds of a monotonic clock. A clock that jumps gains nothing: see [`Clock`].

pub mod explain;
pub mod formula;
pub mod frame;
pub mod io;
pub mod latency;
pub mod memory;
pub mod own;
pub mod period;
pub mod regulator;
pub mod suppress;
pub mod weights;

pub use explain::{Explanation, Input};

/// How long the last decision stays in force when no measurements arrive, ms: five ticks of one second. One or two lost
/// readings are normal (a group vanished while it was read); five in a row mean that the source is gone.
pub const MISSING_HOLD_MS: u64 = 5_000;

/// The longest time between two calls that counts in full towards growth and holds, ms: two ticks of one second. After
/// a longer gap (the machine slept, the agent was stopped, the clock was set) nothing is known about the time between.
pub const LONGEST_STEP_MS: u64 = 2_000;

/// Measures the time between calls. A clock that goes back counts as no time; one that jumps ahead counts as
/// [`LONGEST_STEP_MS`]. Deadlines are stored as remaining time, so neither can end or prolong them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    last_ms: Option<u64>,
}

impl Clock {
    /// Time that counts since the last call, ms; 0 at the first call.
    pub fn step(&mut self, now_ms: u64) -> u64 {
        let passed = self.last_ms.map_or(0, |last| now_ms.saturating_sub(last));
        self.last_ms = Some(now_ms);
        passed.min(LONGEST_STEP_MS)
    }
}

/// A usable measurement: present, finite and not negative. Anything else counts as missing.
#[must_use]
pub fn sound(measured: Option<f64>) -> Option<f64> {
    measured.filter(|value| value.is_finite() && *value >= 0.0)
}

/// How long a source has delivered nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Staleness {
    ms: u64,
}

impl Staleness {
    /// Records whether the source delivered a value; true when it has been silent for longer than [`MISSING_HOLD_MS`].
    pub(crate) fn step(&mut self, passed_ms: u64, spoke: bool) -> bool {
        self.ms = if spoke { 0 } else { self.ms.saturating_add(passed_ms) };
        self.ms >= MISSING_HOLD_MS
    }

    /// Time without a value, ms.
    pub(crate) fn ms(self) -> u64 {
        self.ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_buys_nothing() {
        let mut clock = Clock::default();
        let steps = [5_000, 6_000, 3_000, 4_000, 1 << 60].map(|now| clock.step(now));
        assert_eq!(steps, [0, 1_000, 0, 1_000, LONGEST_STEP_MS]);
    }

    #[test]
    fn what_is_no_number_is_missing() {
        assert_eq!(sound(Some(0.0)), Some(0.0));
        for bad in [None, Some(f64::NAN), Some(f64::INFINITY), Some(-0.5)] {
            assert_eq!(sound(bad), None, "{bad:?}");
        }
    }
}
