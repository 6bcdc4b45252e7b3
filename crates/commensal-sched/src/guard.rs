//! The guard against starvation. When online work uses all CPU time for long, the guard requires that offline groups
//! are frozen, well before the kernel's watchdog would eject the scheduler. When there is idle time again, the guard
//! requires that they are thawed. No function here has side effects: time and observations are arguments.
//!
//! A frozen thread is not runnable, so the watchdog ignores it. But a thread must run once more to become frozen, and a
//! starving thread cannot run. Therefore the daemon first moves it to the fair class. There `cpu.idle` leaves the
//! thread very little CPU time, but enough to become frozen.

use std::time::Duration;

/// Thresholds of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// A thread that has waited for longer than this counts as starving.
    pub patience: Duration,
    /// Idle time open to offline work that the guard requires before a thaw, in 1/1000 of all CPUs' time.
    pub room_permille: u64,
    /// How long the idle time must stay at least that high before a thaw. This duration doubles with each relapse.
    pub calm: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { patience: Duration::from_secs(5), room_permille: 50, calm: Duration::from_secs(2) }
    }
}

/// Maximum growth of [`Bounds::calm`], as a factor.
const MOST_CALM: u32 = 32;
/// Threads that starve again within this time after a thaw count as a relapse.
const RELAPSE: Duration = Duration::from_secs(60);

impl Bounds {
    /// Checks these thresholds against a watchdog with this timeout.
    ///
    /// # Errors
    /// The kernel's watchdog would trigger before the guard.
    pub fn check(&self, watchdog: Duration) -> Result<(), String> {
        // Within the remaining time, the daemon must notice a starving group, move it back to the fair class and freeze
        // it.
        if self.patience * 2 > watchdog {
            let (patience, watchdog) = (self.patience.as_millis(), watchdog.as_millis());
            return Err(format!(
                "--guard-ms {patience} is more than half of --watchdog-ms {watchdog}: the kernel would eject the scheduler first"
            ));
        }
        Ok(())
    }
}

/// An action that the guard requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Freeze offline groups.
    Freeze,
    /// Thaw offline groups.
    Thaw,
}

/// Measurements of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardSample {
    /// Time since boot.
    pub now: Duration,
    /// Longest wait of an offline thread that still waits.
    pub oldest: Duration,
    /// Idle time open to offline work since the last sample, in 1/1000 of all CPUs' time.
    pub room_permille: u64,
}

/// State of the guard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    frozen_at: Option<Duration>,
    calm_since: Option<Duration>,
    thawed_at: Option<Duration>,
    factor: u32,
    /// How often groups were frozen.
    pub freezes: u64,
}

impl Guard {
    /// Whether groups are frozen.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.frozen_at.is_some()
    }

    /// Returns the state after the daemon has thawed the groups for another reason, such as unloading.
    #[must_use]
    pub fn thawed(self) -> Guard {
        Guard { frozen_at: None, calm_since: None, ..self }
    }

    /// Processes a sample; returns the action that is required now, if any.
    pub fn step(&mut self, bounds: &Bounds, seen: &GuardSample) -> Option<Action> {
        let now = seen.now;
        if self.frozen_at.is_none() {
            if seen.oldest < bounds.patience {
                return None;
            }
            let relapse = self.thawed_at.is_some_and(|thawed| now.saturating_sub(thawed) < RELAPSE);
            self.factor = if relapse { (self.factor * 2).min(MOST_CALM) } else { 1 };
            self.frozen_at = Some(now);
            self.calm_since = None;
            self.freezes += 1;
            return Some(Action::Freeze);
        }
        if seen.room_permille < bounds.room_permille {
            self.calm_since = None;
            return None;
        }
        let since = *self.calm_since.get_or_insert(now);
        if now.saturating_sub(since) < bounds.calm * self.factor.max(1) {
            return None;
        }
        self.frozen_at = None;
        self.thawed_at = Some(now);
        Some(Action::Thaw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(now_s: u64, oldest_s: u64, room_permille: u64) -> GuardSample {
        GuardSample { now: Duration::from_secs(now_s), oldest: Duration::from_secs(oldest_s), room_permille }
    }

    #[test]
    fn it_freezes_late_and_thaws_later_each_time() {
        let bounds = Bounds::default();
        let mut guard = Guard::default();
        assert_eq!(guard.step(&bounds, &seen(1, 4, 0)), None);
        assert_eq!(guard.step(&bounds, &seen(2, 5, 0)), Some(Action::Freeze));
        assert_eq!(guard.step(&bounds, &seen(3, 0, 40)), None);
        // Idle time must last.
        assert_eq!(guard.step(&bounds, &seen(4, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(5, 0, 0)), None);
        assert_eq!(guard.step(&bounds, &seen(6, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(7, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(8, 0, 300)), Some(Action::Thaw));
        assert!(!guard.frozen());
        // After a relapse, idle time must last twice as long.
        assert_eq!(guard.step(&bounds, &seen(20, 6, 0)), Some(Action::Freeze));
        assert_eq!(guard.step(&bounds, &seen(21, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(24, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(25, 0, 300)), Some(Action::Thaw));
        // After an hour without starvation the guard has forgotten the relapse.
        assert_eq!(guard.step(&bounds, &seen(4000, 6, 0)), Some(Action::Freeze));
        assert_eq!(guard.step(&bounds, &seen(4001, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(4003, 0, 300)), Some(Action::Thaw));
        assert_eq!(guard.freezes, 3);
    }

    #[test]
    fn the_watchdog_comes_after_it() {
        assert_eq!(Bounds::default().check(Duration::from_secs(30)), Ok(()));
        assert!(Bounds::default().check(Duration::from_secs(6)).unwrap_err().contains("--guard-ms 5000"));
    }
}
