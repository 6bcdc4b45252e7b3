//! What shows others that the agent runs: the lock and the control socket in its state directory. They are made anew when somebody
//! removes them: nobody could ask the agent, and a second one could start, without anybody being told.

use super::start::{only_one, running};
use super::{Agent, AgentError, Flags};
use crate::control::{self, Control};
use commensal_core::errno::Errno;
use commensal_core::text;
use commensal_host::{Host, Lock};
use commensal_reconcile::in_words;
use std::path::Path;
use std::sync::atomic::Ordering;

/// File of the lock of the agent of a state directory.
pub(super) const LOCK: &str = "agent.lock";

/// File of the lock of an agent that waits for this one to make room.
pub(super) const NEXT: &str = "agent.next";
/// How often it is looked after, in ticks: it takes some forty system calls.
const EVERY: u64 = 5;

/// The lock and the socket. The socket is given up first.
pub(super) struct Presence {
    pub(super) control: Control,
    pub(super) lock: Lock,
}

/// What was found.
enum Found {
    /// Everything, or what was not there is made anew; what that was.
    Ours(Option<&'static str>),
    /// Another agent, which began after the lock was removed.
    Another,
}

impl Presence {
    fn look_after(&mut self, host: &mut dyn Host, state_dir: &Path) -> Result<Found, AgentError> {
        let names = match host.list(state_dir) {
            Err(error) if error.errno != Errno::ENOENT => return Err(error.into()),
            names => names.unwrap_or_default(),
        };
        let has_lock = match running(host, state_dir)? {
            Some(pid) if pid != Some(std::process::id()) => return Ok(Found::Another),
            holder => holder.is_some(),
        };
        let has_socket = names.iter().any(|name| name == control::SOCKET);
        if !has_lock {
            host.state_dir(state_dir)?;
            self.lock = only_one(host, state_dir, false)?;
        }
        if !has_socket {
            self.control.listen_again(host, &state_dir.join(control::SOCKET))?;
        }
        Ok(Found::Ours(match (has_lock, has_socket) {
            (true, true) => None,
            (false, true) => Some("the agent's lock was"),
            (true, false) => Some("the control socket was"),
            (false, false) => Some("the agent's lock and the control socket were"),
        }))
    }
}

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
}
