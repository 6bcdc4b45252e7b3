//! Starvation: when online work takes everything for long, offline groups are frozen, well before the kernel's watchdog
//! would take the scheduler off; and thawed when there is room again. Pure: time and observations are arguments.
//!
//! A frozen thread is not runnable, so it waits for nothing and the watchdog has nothing to see. To get there it has to
//! run once more, which a thread that starves cannot: so it goes back to the fair class first (where `cpu.idle` holds it
//! down to almost nothing, which is enough to stop).

use std::time::Duration;

/// What the guard goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// A thread that waited for longer starves.
    pub patience: Duration,
    /// Share of the machine that has to be idle, and open to offline work, before it comes back, in 1/1000.
    pub room_permille: u64,
    /// For how long, at first. Doubles with each relapse.
    pub calm: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { patience: Duration::from_secs(5), room_permille: 50, calm: Duration::from_secs(2) }
    }
}

/// The most that [`Bounds::calm`] grows to, as a factor.
const MOST_CALM: u32 = 32;
/// Starving again within this is a relapse.
const RELAPSE: Duration = Duration::from_secs(60);

impl Bounds {
    /// What is wrong with them beside a watchdog of this length.
    ///
    /// # Errors
    /// When the watchdog would be first.
    pub fn check(&self, watchdog: Duration) -> Result<(), String> {
        // A group that starves has to be seen, sent back to the fair class and stopped within the rest.
        if self.patience * 2 > watchdog {
            let (patience, watchdog) = (self.patience.as_millis(), watchdog.as_millis());
            return Err(format!(
                "--guard-ms {patience} is more than half of --watchdog-ms {watchdog}: the kernel would take the scheduler off first"
            ));
        }
        Ok(())
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Stop offline groups.
    Freeze,
    /// Let them go on.
    Thaw,
}

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardSample {
    /// Since the boot.
    pub now: Duration,
    /// Longest wait of an offline thread.
    pub oldest: Duration,
    /// Idle time open to offline work since the last look, of all CPUs' time, in 1/1000.
    pub room_permille: u64,
}

/// The state.
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

    /// Groups go on for another reason, such as the end of it all.
    #[must_use]
    pub fn thawed(self) -> Guard {
        Guard { frozen_at: None, calm_since: None, ..self }
    }

    /// Takes what was seen, and says what to do now.
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
        // Room has to last.
        assert_eq!(guard.step(&bounds, &seen(4, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(5, 0, 0)), None);
        assert_eq!(guard.step(&bounds, &seen(6, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(7, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(8, 0, 300)), Some(Action::Thaw));
        assert!(!guard.frozen());
        // A relapse has to be calm for twice as long.
        assert_eq!(guard.step(&bounds, &seen(20, 6, 0)), Some(Action::Freeze));
        assert_eq!(guard.step(&bounds, &seen(21, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(24, 0, 300)), None);
        assert_eq!(guard.step(&bounds, &seen(25, 0, 300)), Some(Action::Thaw));
        // An hour later it is as at first.
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
