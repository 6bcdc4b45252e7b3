//! The loop's duties that do not concern groups: the guard, the agent's lock and socket, and requests to exit.

use super::lease::Lease;
use super::options::{Flags, Options};
use super::presence::{Found, Presence};
use super::start::NEXT;
use crate::guard::Link;
use crate::snapshot;
use commensal_core::text;
use commensal_host::Host;
use commensal_reconcile::{Instance, in_words};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of ticks between two checks of lock, socket and journal: a check takes about sixty system calls.
const EVERY: u64 = 5;
/// Minimum number of times per lease that the loop records progress while it waits.
const BEATS: u32 = 3;

/// Whether the loop continues. It exits on request. A request from another agent counts only while that agent still
/// waits to replace this one: if it has given up, for example while this agent was stopped, exiting would leave no
/// agent.
pub(super) fn goes_on(host: &dyn Host, state_dir: &Path, flags: &Flags) -> bool {
    if flags.hand_over.load(Ordering::Relaxed) {
        let next = host.state_lock_file(&state_dir.join(NEXT));
        // If the lock file cannot be read, assume that the other agent still waits.
        if !next.map_or(true, |file| file.is_some_and(|file| file.is_held())) {
            flags.hand_over.store(false, Ordering::Relaxed);
        }
    }
    !flags.stop.load(Ordering::Relaxed) && !flags.hand_over.load(Ordering::Relaxed)
}

/// The lock, control socket and guard, which must exist while the agent runs.
pub(super) struct Upkeep {
    presence: Presence,
    /// `None` if the agent runs without a guard.
    lease: Option<Lease>,
}

impl Upkeep {
    pub fn new(presence: Presence, lease: Option<Lease>) -> Upkeep {
        Upkeep { presence, lease }
    }

    /// Whether the agent has a lease: a guard sets the safe state if the agent dies.
    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether the guard is connected.
    pub fn is_guarded(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.link.is_some())
    }

    /// How long the loop may wait without recording progress; `None` if there is no guard.
    pub fn longest_wait(&self) -> Option<Duration> {
        self.lease.as_ref().map(|lease| lease.time / BEATS)
    }

    /// The lease's part of a snapshot.
    pub fn shown(&self) -> Option<snapshot::Lease> {
        self.lease.as_ref().map(|lease| snapshot::Lease {
            time_ms: u64::try_from(lease.time.as_millis()).unwrap_or(u64::MAX),
            guard_pid: lease.link.as_ref().and_then(Link::pid),
        })
    }

    /// Whether lock, socket and journal are checked in this tick.
    pub fn is_due(tick: u64) -> bool {
        tick.is_multiple_of(EVERY)
    }

    /// Every few ticks, creates the lock and the control socket again if another program removed them. Returns whether
    /// another agent has taken over the state directory meanwhile; this agent must then exit.
    pub fn look_after_presence(
        &mut self,
        host: &mut dyn Host,
        state_dir: &Path,
        tick: u64,
        problems: &mut Vec<String>,
    ) -> bool {
        if !Upkeep::is_due(tick) {
            return false;
        }
        match self.presence.look_after(host, state_dir) {
            Ok(Found::Another) => return true,
            Ok(Found::Ours(None)) => {}
            Ok(Found::Ours(Some(what))) => {
                problems.push(format!("{what} gone from {} and created again", text::path(state_dir)));
            }
            Err(error) => problems.push(format!(
                "cannot check whether the agent's lock and control socket still exist in {}: {}",
                text::path(state_dir),
                in_words(&error)
            )),
        }
        false
    }

    /// The connection to the guard, if there is one.
    pub fn guard(&self) -> Option<&Link> {
        self.lease.as_ref()?.link.as_ref()
    }

    /// Starts a new guard if the old one has exited or hangs.
    pub fn look_after_guard(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        options: &Options,
        problems: &mut Vec<String>,
    ) {
        let Some(lease) = &mut self.lease else { return };
        match lease.look_after(host, instance, options) {
            Ok(told) => problems.extend(told),
            Err(error) => problems.push(error.to_string()),
        }
    }

    /// Notifies the guard that the agent exits normally.
    pub fn farewell(&mut self) {
        if let Some(link) = self.lease.take().and_then(|lease| lease.link) {
            link.farewell();
        }
    }
}
