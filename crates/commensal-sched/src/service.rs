//! What the service manager is told: that the scheduler is loaded and answers, that the loop goes on, what it does, and that it
//! ends. Where no manager listens nothing is sent.

use commensal_core::scheduler::protocol::Status;
use sd_notify::NotifyState;
use std::time::Duration;

/// Each sign wakes the service manager, so there are fewer of them than rounds.
const EVERY: Duration = Duration::from_secs(1);

/// Whoever waits for the start goes on.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// From now on it puts back what it has changed.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Signs of life of the loop.
#[derive(Debug, Default)]
pub struct Signs {
    last: Option<Duration>,
}

impl Signs {
    /// The loop has come round, at this time since the boot; what there is now goes with it.
    pub fn alive(&mut self, now: Duration, status: &Status) {
        if self.due(now) {
            tell(&[NotifyState::Watchdog, NotifyState::Status(&line(status))]);
        }
    }

    fn due(&mut self, now: Duration) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_sub(last) >= EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }
}

fn tell(states: &[NotifyState<'_>]) {
    // A manager that does not take it ends this process in time; nothing better can be done from here.
    let _ = sd_notify::notify(states);
}

/// What `systemctl status` shows.
fn line(status: &Status) -> String {
    let (groups, threads) = (status.groups.len(), status.threads);
    format!("{}; offline groups: {groups}, their threads: {threads}", status.mode.words())
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::scheduler::Mode;

    #[test]
    fn one_sign_a_second() {
        let mut signs = Signs::default();
        let due = [0, 200, 999, 1_000, 1_100, 2_500, 3_400, 3_500].map(|ms| {
            let now = Duration::from_millis(ms);
            signs.due(now)
        });
        assert_eq!(due, [true, false, false, true, false, true, false, true]);
    }

    #[test]
    fn a_line_for_people() {
        let status = Status { mode: Mode::Running, threads: 31, ..Status::default() };
        assert_eq!(line(&status), "running; offline groups: 0, their threads: 31");
    }
}
