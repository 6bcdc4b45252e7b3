//! When the kernel takes the scheduler off: how long to wait until it is loaded again, and when not any more. Pure.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Why it went, in the kernel's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// `enum scx_exit_kind`: below 1024 somebody asked for it.
    pub kind: u64,
    /// Code of whoever asked.
    pub code: u64,
    /// Such as "runnable task stall".
    pub reason: String,
    /// Such as "stress-ng[1234] failed to run for 30.123s".
    pub message: String,
}

impl Ended {
    /// One line.
    #[must_use]
    pub fn told(&self) -> String {
        let more = if self.message.is_empty() { String::new() } else { format!(": {}", self.message) };
        format!("{}{more} (kind {})", self.reason, self.kind)
    }

    /// Whether it was the operator's key (SysRq S) or another program: then it does not come back by itself.
    #[must_use]
    pub fn wanted(&self) -> bool {
        (64..1024).contains(&self.kind)
    }
}

/// No more than so many reloads …
const MOST: usize = 3;
/// … in this time.
const WINDOW: Duration = Duration::from_secs(600);
/// Wait before the first; four times as long before each next one.
const FIRST: Duration = Duration::from_secs(1);

/// Reloads so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloads {
    done: VecDeque<Duration>,
    due: Option<Duration>,
    /// All that ever were.
    pub count: u64,
}

/// What follows an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Load again then (time since the boot).
    At(Duration),
    /// Not any more: the fallback stays.
    Never,
}

impl Reloads {
    /// It was taken off now.
    pub fn ejected(&mut self, now: Duration, ended: &Ended) -> Next {
        while self.done.front().is_some_and(|then| now.saturating_sub(*then) > WINDOW) {
            self.done.pop_front();
        }
        if ended.wanted() || self.done.len() >= MOST {
            self.due = None;
            return Next::Never;
        }
        let due = now + FIRST * 4_u32.pow(self.done.len() as u32);
        self.due = Some(due);
        Next::At(due)
    }

    /// Whether it is time to load again; counts it when it is.
    pub fn due(&mut self, now: Duration) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.due = None;
        self.done.push_back(now);
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn three_times_in_ten_minutes_and_slower_each_time() {
        let stall = Ended { kind: 1026, ..Ended::default() };
        let mut reloads = Reloads::default();
        for (at, wait) in [(100, 1), (110, 4), (130, 16)] {
            assert_eq!(reloads.ejected(s(at), &stall), Next::At(s(at + wait)));
            assert!(!reloads.due(s(at)));
            assert!(reloads.due(s(at + wait)) && !reloads.due(s(at + wait)));
        }
        assert_eq!(reloads.ejected(s(200), &stall), Next::Never);
        assert!(!reloads.due(s(10_000)));
        // Later the first ones count no more.
        assert_eq!(reloads.ejected(s(720), &stall), Next::At(s(724)));
        assert_eq!(reloads.count, 3);
    }

    #[test]
    fn what_an_operator_has_done_stays_done() {
        let key = Ended { kind: 67, reason: "disabled by sysrq-S".to_owned(), ..Ended::default() };
        assert_eq!(Reloads::default().ejected(s(1), &key), Next::Never);
        assert_eq!(key.told(), "disabled by sysrq-S (kind 67)");
    }
}
