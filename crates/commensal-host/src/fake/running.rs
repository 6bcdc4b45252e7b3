//! The exit of a fake process, as its parent and the machine observe it.

use crate::Exit;
use std::sync::{Arc, Mutex, PoisonError};

/// State shared by a fake process and the [`crate::Child`] that its parent holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running(Arc<Mutex<State>>);

#[derive(Debug, Clone, Default)]
struct State {
    exit: Option<Exit>,
    reaped: bool,
}

impl Running {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an independent copy of the state, for a copy of the machine.
    pub(super) fn apart(&self) -> Running {
        Running(Arc::new(Mutex::new(self.with(|state| state.clone()))))
    }

    /// Makes the process exit; only the first call counts.
    pub(super) fn end(&self, exit: Exit) {
        self.with(|state| state.exit = state.exit.or(Some(exit)));
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.with(|state| state.exit)
    }

    pub(super) fn reaped(&self) -> bool {
        self.with(|state| state.reaped)
    }

    /// Returns the result of a non-blocking wait. If the process has exited, its PID is free afterwards.
    pub(crate) fn poll(&self) -> Option<Exit> {
        self.with(|state| {
            state.reaped |= state.exit.is_some();
            state.exit
        })
    }

    /// Returns the result of a blocking wait. A process that is still running exits with code 0.
    pub(crate) fn wait(&self) -> Exit {
        self.end(Exit::Code(0));
        self.poll().unwrap_or(Exit::Code(0))
    }
}
