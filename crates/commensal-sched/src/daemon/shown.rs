//! The status for the socket, and the keep-alives for the service manager.

use crate::control::Published;
use crate::service::Signs;
use commensal_core::scheduler::protocol::Status;
use std::sync::PoisonError;
use std::time::Duration;

/// The published status, which changes in every round.
pub(super) struct Shown {
    published: Published,
    signs: Signs,
    /// The status that is published next.
    pub status: Status,
    /// Time since boot at which the scheduler was loaded.
    pub loaded_at: Duration,
}

impl Shown {
    /// Creates the state without publishing anything.
    pub fn new(published: Published, now: Duration) -> Shown {
        let status = Status { ok: true, pid: std::process::id(), ..Status::default() };
        Shown { published, signs: Signs::default(), status, loaded_at: now }
    }

    /// Publishes the status; `now` is the time since boot.
    pub fn publish(&mut self, now: Duration) {
        self.status.loaded_s = now.saturating_sub(self.loaded_at).as_secs();
        self.signs.alive(now, &self.status);
        let text = commensal_core::text::json(&self.status).unwrap_or_default();
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
