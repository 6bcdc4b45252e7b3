//! Locks of state files. A lock is held by a process of the test, or by a child that inherited it and still runs.

use super::machine::{Holder, Machine};
use super::opening::{Opening, Token};
use crate::locks::{Held, Lock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Machine {
    pub(super) fn is_locked(&self, path: &Path) -> bool {
        let Some(holder) = self.plain.locks.get(path) else { return false };
        let Some(opening) = holder.opening.upgrade() else { return false };
        let there = self.plain.files.contains_key(path) || self.group_at(path).is_ok();
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

    pub(super) fn take_lock(&mut self, path: &Path) -> Option<Token> {
        if self.is_locked(path) {
            return None;
        }
        let opening = Arc::new(Opening { released: AtomicBool::new(false) });
        let holder = Holder { opening: Arc::downgrade(&opening), orphaned: false };
        self.plain.locks.insert(path.to_owned(), holder);
        Some(Token(opening))
    }

    pub(super) fn orphan_locks(&mut self) {
        for holder in self.plain.locks.values_mut() {
            holder.orphaned = true;
        }
    }
}
