//! The fake kernel's part of [`crate::locks`]: open file descriptions, and files that can be locked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A handle on the open file description of a locked file.
#[derive(Debug, Clone)]
pub(crate) struct Token(pub(super) Arc<Opening>);

/// An open file description.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(super) released: AtomicBool,
}

impl Token {
    pub(crate) fn release(&self) {
        self.0.released.store(true, Ordering::SeqCst);
    }
}

/// A file whose lock may be held.
pub(crate) struct FakeLockFile {
    pub(super) held: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) take: Box<dyn Fn() -> Option<Token> + Send + Sync>,
}

impl fmt::Debug for FakeLockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeLockFile")
    }
}

impl FakeLockFile {
    pub(crate) fn is_held(&self) -> bool {
        (self.held)()
    }

    pub(crate) fn wait(&self) {
        while self.is_held() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn lock(&self) -> Token {
        loop {
            match (self.take)() {
                Some(token) => return token,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
