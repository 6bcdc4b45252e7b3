//! The loop's clocks, and how many ticks it has made.

use std::time::{Duration, Instant, SystemTime};

/// The current time on two clocks: monotonic for calculations, time of day for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Now {
    /// Milliseconds since the agent started.
    pub ms: u64,
    /// Time of day (RFC 3339).
    pub text: String,
}

/// The time of day (RFC 3339).
pub(super) fn time_of_day() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// When the agent started, and the ticks that it has made since then.
#[derive(Debug)]
pub(super) struct Ticks {
    started: Instant,
    /// Number of ticks that have ended.
    pub count: u64,
    /// Number of ticks that overran the configured interval.
    pub late: u64,
}

impl Ticks {
    /// Starts the clock.
    pub fn start() -> Ticks {
        Ticks { started: Instant::now(), count: 0, late: 0 }
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.uptime().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn now(&self) -> Now {
        Now { ms: self.now_ms(), text: time_of_day() }
    }

    /// Counts a tick that took `took`.
    pub fn end(&mut self, took: Duration, interval: Duration) {
        self.count += 1;
        if took > interval {
            self.late += 1;
        }
    }
}
