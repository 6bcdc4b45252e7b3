//! The agent's controllers: they compute from measurements how much offline (batch) work may use now, and explain each
//! decision. Online work is latency-critical; a controller limits offline work to protect it.
//!
//! | controller | input | output |
//! |---|---|---|
//! | [`frame`] | CPU use of the machine | whole cores that offline work may use |
//! | [`suppress`] | CPU use of the machine | quota of offline work, where whole cores would waste too much |
//! | [`period`] | waits of online threads blamed on offline work | period of that quota |
//! | [`weights`] | weights of the siblings of online groups | weight of online groups |
//! | [`latency`] | waits of online threads | cap on the CPUs of offline work, for [`frame`] and [`suppress`] |
//! | [`memory`] | memory of groups and of the machine | whether to hold a queue, freeze groups or kill a process |
//! | [`io`] | I/O pressure of online groups | disk rates of offline groups |
//!
//! All controllers shrink immediately, grow slowly ([`regulator`]) and explain their decisions ([`explain`]).
//!
//! **Terms.** A *tick* is one pass of the agent's loop, once per second by default. The *floor* is the amount of a
//! resource that offline work always keeps. The *blamed wait* is the time that online threads waited for a CPU while
//! offline work had the CPU, usually in ms per second of CPU time that the online threads got (CPU-second). The
//! *severity* is a measured wait divided by the allowed wait. koordlet, katalyst, volcano-agent, crane, rubik and
//! sideloader are similar tools.
//!
//! **Missing is never 0.** A measurement that did not arrive is `None`: the controllers keep the current limits for
//! [`MISSING_HOLD_MS`], then limit offline work to its floor. If the machine cannot measure something at all, the
//! caller passes `measurable = false`, and the controller sets no limit and states the reason.
//!
//! **Time** is an argument of every step, in milliseconds of a monotonic clock. A clock that jumps does no harm: see
//! [`Clock`].

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

/// How long (ms) the last decision stays in force when no measurements arrive: five ticks of one second. One or two
/// missing measurements are normal, for example because a group was removed during the reading. Five in a row mean that
/// the source has failed.
pub const MISSING_HOLD_MS: u64 = 5_000;

/// The longest time (ms) between two calls that counts in full towards growth and holds: two ticks of one second. A
/// longer gap counts as this time, because no measurement covers the gap: the machine was suspended, the agent was
/// stopped, or the clock was set.
pub const LONGEST_STEP_MS: u64 = 2_000;

/// Measures the time between calls. If the clock goes backwards, the time counts as 0. If the clock jumps ahead, the
/// time counts as [`LONGEST_STEP_MS`]. The controllers store remaining times instead of deadlines, so that a jump of
/// the clock neither ends nor extends a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    last_ms: Option<u64>,
}

impl Clock {
    /// The time since the last call (ms), limited to [`LONGEST_STEP_MS`]; 0 at the first call.
    pub fn step(&mut self, now_ms: u64) -> u64 {
        let passed = self.last_ms.map_or(0, |last| now_ms.saturating_sub(last));
        self.last_ms = Some(now_ms);
        passed.min(LONGEST_STEP_MS)
    }
}

/// Returns the measurement if it is present, finite and not negative; anything else counts as missing.
#[must_use]
pub fn sound(measured: Option<f64>) -> Option<f64> {
    measured.filter(|value| value.is_finite() && *value >= 0.0)
}

/// Measures for how long a source of measurements has delivered no value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Staleness {
    ms: u64,
}

impl Staleness {
    /// Records whether the source delivered a value. Returns true once the source has delivered none for
    /// [`MISSING_HOLD_MS`].
    pub(crate) fn step(&mut self, passed_ms: u64, spoke: bool) -> bool {
        self.ms = if spoke { 0 } else { self.ms.saturating_add(passed_ms) };
        self.ms >= MISSING_HOLD_MS
    }

    /// Time without a value (ms).
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
