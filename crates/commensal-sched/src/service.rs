//! Notifications to the service manager: that the scheduler is loaded and answers, keep-alives of the loop, its status,
//! and that it stops. Without a service manager nothing is sent.

use commensal_core::scheduler::protocol::Status;
use sd_notify::NotifyState;
use std::time::Duration;

/// Keep-alives are less frequent than rounds, because each one wakes the service manager.
const EVERY: Duration = Duration::from_secs(1);

/// Reports that the start is complete.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the daemon is stopping and restores what it has changed.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Keep-alives of the loop.
#[derive(Debug, Default)]
pub struct Signs {
    last: Option<Duration>,
}

impl Signs {
    /// Reports that the loop has completed a round, with the status; `now` is the time since boot.
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
    // A service manager that gets no keep-alive ends this process in time; nothing better can be done here.
    let _ = sd_notify::notify(states);
}

/// The line that `systemctl status` shows.
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
