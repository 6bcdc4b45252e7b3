//! Locks of state files: held by a process of the test, or by a child that inherited one and still runs.

use super::FakeHost;
use super::tree::Machine;
use crate::locks::Held;
use crate::{Lock, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One open file description of a locked file.
#[derive(Debug, Clone)]
pub(crate) struct Token(Arc<Opening>);

#[derive(Debug)]
struct Opening {
    released: AtomicBool,
}

impl Token {
    pub(crate) fn release(&self) {
        self.0.released.store(true, Ordering::SeqCst);
    }
}

/// The holder of a file's lock.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    opening: Weak<Opening>,
    /// Whether the process that took it has died; children may still hold it.
    orphaned: bool,
}

impl Machine {
    fn is_locked(&self, path: &Path) -> bool {
        let Some(holder) = self.locks.get(path) else { return false };
        let Some(opening) = holder.opening.upgrade() else { return false };
        let there = self.files.contains_key(path) || self.group_at(path).is_ok();
        if opening.released.load(Ordering::SeqCst) || !there {
            return false;
        }
        let has = |lock: &Lock| matches!(&lock.0, Held::Fake(token) if Arc::ptr_eq(&token.0, &opening));
        let specs = self.processes.values().filter_map(|process| Some((process.spec.as_ref()?, process)));
        let (mut copies, mut runs) = (1, false);
        for (spec, process) in specs {
            let own = spec.locks.iter().filter(|lock| has(lock)).count();
            copies += own;
            runs |= own > 0 && process.running.exit().is_none();
        }
        runs || (!holder.orphaned && Arc::strong_count(&opening) > copies)
    }

    pub(super) fn take_lock(&mut self, path: &Path) -> Option<Lock> {
        if self.is_locked(path) {
            return None;
        }
        let opening = Arc::new(Opening { released: AtomicBool::new(false) });
        let holder = Holder { opening: Arc::downgrade(&opening), orphaned: false };
        self.locks.insert(path.to_owned(), holder);
        Some(Lock(Held::Fake(Token(opening))))
    }

    pub(super) fn orphan_locks(&mut self) {
        for holder in self.locks.values_mut() {
            holder.orphaned = true;
        }
    }
}

/// A file whose lock may be held.
#[derive(Debug)]
pub(crate) struct FakeLockFile {
    host: FakeHost,
    path: PathBuf,
}

impl FakeLockFile {
    pub(super) fn new(host: FakeHost, path: &Path) -> FakeLockFile {
        FakeLockFile { host, path: path.to_owned() }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.host.machine().is_locked(&self.path)
    }

    pub(crate) fn wait(&self) -> Result<()> {
        while self.is_held() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn lock(&self) -> Lock {
        loop {
            let taken = self.host.machine().take_lock(&self.path);
            match taken {
                Some(lock) => return lock,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
