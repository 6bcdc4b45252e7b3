//! What the loop looks after besides the groups: the guard, its own lock and socket, and who asks it to end.

use super::Agent;
use super::options::Flags;
use super::presence::Found;
use super::start::NEXT;
use commensal_core::text;
use commensal_reconcile::in_words;
use std::sync::atomic::Ordering;

/// How often lock and socket are looked after, in ticks: it takes some forty system calls.
const EVERY: u64 = 5;

impl Agent<'_> {
    /// Whether to go on: nobody asked this agent to end, and none that waits asked it to make room. One that stood still finds a
    /// request whose sender has given up; if it went, nobody would keep the groups.
    pub(super) fn goes_on(&self, flags: &Flags) -> bool {
        if flags.hand_over.load(Ordering::Relaxed) {
            let next = self.host.state_lock_file(&self.reconciler.instance.state_dir.join(NEXT));
            // What cannot be seen is believed.
            if !next.map_or(true, |file| file.is_some_and(|file| file.is_held())) {
                flags.hand_over.store(false, Ordering::Relaxed);
            }
        }
        !flags.stop.load(Ordering::Relaxed) && !flags.hand_over.load(Ordering::Relaxed)
    }

    /// Makes the lock and the control socket anew if they are gone. Returns whether another agent has the state directory meanwhile,
    /// for which this one makes room.
    pub(super) fn look_after_presence(&mut self, problems: &mut Vec<String>) -> bool {
        if !self.publishing.ticks.is_multiple_of(EVERY) {
            return false;
        }
        let state_dir = &self.reconciler.instance.state_dir;
        match self.presence.look_after(self.host, state_dir) {
            Ok(Found::Another) => return true,
            Ok(Found::Ours(None)) => {}
            Ok(Found::Ours(Some(what))) => {
                problems.push(format!("{what} gone from {} and made anew", text::path(state_dir)));
            }
            Err(error) => problems.push(format!(
                "whether the agent's lock and its control socket are in {} is not known: {}",
                text::path(state_dir),
                in_words(&error)
            )),
        }
        false
    }

    /// Starts a new guard when the old one is gone or hangs.
    pub(super) fn look_after_guard(&mut self, problems: &mut Vec<String>) {
        let Some(lease) = &mut self.lease else { return };
        match lease.look_after(self.host, &self.reconciler.instance, self.options) {
            Ok(told) => problems.extend(told),
            Err(error) => problems.push(error.to_string()),
        }
    }
}
