//! Decides whether and when to reload the scheduler after the kernel has ejected it. No function here has side effects.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// The reason for an ejection, as the kernel reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// `enum scx_exit_kind`. A value below 1024 means that the operator or a program requested the exit.
    pub kind: u64,
    /// Exit code that the program which requested the exit has given.
    pub code: u64,
    /// Reason, such as "runnable task stall".
    pub reason: String,
    /// Details, such as `stress-ng[1234] failed to run for 30.123s`.
    pub message: String,
}

impl Ended {
    /// Formats the ejection as one line of text.
    #[must_use]
    pub fn told(&self) -> String {
        let more = if self.message.is_empty() { String::new() } else { format!(": {}", self.message) };
        format!("{}{more} (kind {})", self.reason, self.kind)
    }

    /// Whether the operator (SysRq S) or another program requested the exit. In that case the scheduler is not
    /// reloaded.
    #[must_use]
    pub fn wanted(&self) -> bool {
        (64..1024).contains(&self.kind)
    }
}

/// Maximum number of reloads within [`WINDOW`].
const MOST: usize = 3;
/// Time in which [`MOST`] reloads are allowed.
const WINDOW: Duration = Duration::from_secs(600);
/// Back-off before the first reload; multiplied by four for each further reload within [`WINDOW`].
const FIRST: Duration = Duration::from_secs(1);

/// The history of reloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloads {
    done: VecDeque<Duration>,
    due: Option<Duration>,
    /// Total number of reloads.
    pub count: u64,
}

/// The reaction to an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Reload at this time (since boot).
    At(Duration),
    /// Give up: the offline threads stay in the fair class.
    Never,
}

impl Reloads {
    /// Records an ejection, and decides whether and when to reload.
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

    /// Whether a reload is due now. If a reload is due, this function counts it.
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
        // Later the first reloads no longer count.
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
