//! What can go wrong on purpose, and the record of what was done.

use super::tree::{Answer, Machine};
use crate::Exit;
use commensal_core::errno::Errno;

/// One change of the machine that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// `write`, `create`, `remove`, `start`, `signal`, `append`, `replace` or `forget` (a state file).
    pub operation: &'static str,
    /// File, group or process.
    pub path: String,
    /// What was written.
    pub value: String,
}

/// The faults that are set.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Successful mutations until (and including) the one that fails, and how it fails.
    pub(super) fail: Option<(u32, Errno)>,
    /// Successful mutations left before the crash.
    pub(super) crash: Option<u32>,
    pub(super) crashed: bool,
    pub(super) read_only: bool,
    pub(super) unprivileged: bool,
    pub(super) state_full: bool,
    /// The next write to this file is taken with that value instead.
    pub(super) instead: Option<(String, String)>,
}

/// Which permissions and faults a mutation is subject to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something in a cgroup file system.
    Group,
    /// A state file that grows.
    State,
    /// Anything else.
    Other,
}

impl Machine {
    /// Refuses everything after a crash and to a host of an earlier life.
    pub(super) fn alive(&self, life: u32) -> Answer<()> {
        if self.faults.crashed || life != self.life { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Whether a mutation may be tried.
    pub(super) fn may_change(&mut self, life: u32, kind: Kind) -> Answer<()> {
        self.alive(life)?;
        if let Some((0 | 1, errno)) = self.faults.fail {
            self.faults.fail = None;
            return Err(errno);
        }
        match kind {
            Kind::Group if self.faults.read_only => Err(Errno::EROFS),
            Kind::Group if self.faults.unprivileged => Err(Errno::EACCES),
            Kind::State if self.faults.state_full => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// Records a mutation that succeeded, and crashes if it was the last one allowed.
    pub(super) fn changed(&mut self, operation: &'static str, path: String, value: &str) {
        self.mutations.push(Mutation { operation, path, value: value.to_owned() });
        if let Some((left, _)) = &mut self.faults.fail {
            *left = left.saturating_sub(1);
        }
        if let Some(left) = &mut self.faults.crash {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.crash();
            }
        }
    }

    /// The agent dies: with it go its locks and the children that were to die with it.
    pub(super) fn crash(&mut self) {
        self.faults.crash = None;
        self.faults.crashed = true;
        self.locks.clear();
        for process in self.processes.values() {
            if process.spec.as_ref().is_some_and(|spec| spec.die_with_parent) {
                process.running.end(Exit::Signal(crate::Signal::KILL.0));
            }
        }
    }
}
