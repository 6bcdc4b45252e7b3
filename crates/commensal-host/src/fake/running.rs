//! How a fake process ends, as its parent and the machine see it.

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

    /// A copy of the state, for a process of another machine.
    pub(super) fn apart(&self) -> Running {
        Running(Arc::new(Mutex::new(self.with(|state| state.clone()))))
    }

    /// Ends the process; only the first call counts.
    pub(super) fn end(&self, exit: Exit) {
        self.with(|state| state.exit = state.exit.or(Some(exit)));
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.with(|state| state.exit)
    }

    pub(super) fn reaped(&self) -> bool {
        self.with(|state| state.reaped)
    }

    /// Result of a non-blocking wait; if the process has exited, its PID is free from then on.
    pub(crate) fn poll(&self) -> Option<Exit> {
        self.with(|state| {
            state.reaped |= state.exit.is_some();
            state.exit
        })
    }

    /// Result of a blocking wait: a process that no test has ended exits with 0.
    pub(crate) fn wait(&self) -> Exit {
        self.end(Exit::Code(0));
        self.poll().unwrap_or(Exit::Code(0))
    }
}
