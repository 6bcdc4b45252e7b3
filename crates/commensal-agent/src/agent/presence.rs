//! The lock and the control socket in the agent's state directory, by which other programs find the agent. If another
//! program removes them, the agent creates them again: otherwise clients could not connect, and a second agent could
//! start unnoticed.

use super::start::only_one;
use crate::control::{self, Control};
use crate::error::AgentError;
use commensal_core::errno::Errno;
use commensal_host::{Host, Lock};
use commensal_reconcile::agent_lock::running;
use std::path::Path;

/// The lock and the control socket. The socket is dropped first.
pub(super) struct Presence {
    pub(super) control: Control,
    pub(super) lock: Lock,
}

/// The result of a check of the lock and the control socket.
pub(super) enum Found {
    /// Lock and socket are this agent's. The value names those that were missing and that the agent created again, if
    /// any.
    Ours(Option<&'static str>),
    /// Another agent has started, after the lock file was removed.
    Another,
}

impl Presence {
    pub(super) fn look_after(&mut self, host: &mut dyn Host, state_dir: &Path) -> Result<Found, AgentError> {
        let has_lock = match running(host, state_dir)? {
            Some(pid) if pid != Some(std::process::id()) => return Ok(Found::Another),
            holder => holder.is_some(),
        };
        if !has_lock {
            host.state_dir(state_dir)?;
            self.lock = only_one(host, state_dir, false)?;
        }
        let socket = state_dir.join(control::SOCKET);
        // A file with the right name is not enough: it may be the socket of an agent that has died.
        let has_socket = match host.listener(&socket) {
            // Something listens on the socket, but its queue of connections is full.
            Err(error) if error.errno == Errno::EAGAIN => true,
            listener => listener? == Some(std::process::id()),
        };
        if !has_socket {
            self.control.listen_again(host, &socket)?;
        }
        Ok(Found::Ours(match (has_lock, has_socket) {
            (true, true) => None,
            (false, true) => Some("the agent's lock was"),
            (true, false) => Some("the control socket was"),
            (false, false) => Some("the agent's lock and the control socket were"),
        }))
    }
}
