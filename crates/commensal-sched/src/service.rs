//! Notifications to the service manager (systemd): "ready" once the scheduler is loaded and its socket is served,
//! keep-alives of the daemon's loop with its status, and "stopping". Without a service manager, nothing is sent.

use commensal_core::scheduler::protocol::Status;
use sd_notify::NotifyState;
use std::time::Duration;

/// Minimum interval between keep-alives. A round is shorter, but each keep-alive wakes the service manager.
const EVERY: Duration = Duration::from_secs(1);

/// Reports that the start is complete.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the daemon is stopping and restores the original settings.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Keep-alives of the loop.
#[derive(Debug, Default)]
pub struct Signs {
    last: Option<Duration>,
}

impl Signs {
    /// Reports that the loop has completed a round, with the status, at most once a second. `now` is the time since
    /// boot.
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
    // If keep-alives do not arrive, the service manager terminates this process. This process can do nothing better
    // about an error here.
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
