//! What shows others that the agent runs: the lock and the control socket in its state directory. They are made anew when somebody
//! removes them: nobody could ask the agent, and a second one could start, without anybody being told.

use super::start::{only_one, running};
use crate::control::{self, Control};
use crate::error::AgentError;
use commensal_core::errno::Errno;
use commensal_host::{Host, Lock};
use std::path::Path;

/// The lock and the socket. The socket is given up first.
pub(super) struct Presence {
    pub(super) control: Control,
    pub(super) lock: Lock,
}

/// What was found.
pub(super) enum Found {
    /// Everything, or what was not there is made anew; what that was.
    Ours(Option<&'static str>),
    /// Another agent, which began after the lock was removed.
    Another,
}

impl Presence {
    pub(super) fn look_after(&mut self, host: &mut dyn Host, state_dir: &Path) -> Result<Found, AgentError> {
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
