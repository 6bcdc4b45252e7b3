//! The waiting and running queries of a server, and when the last one finished.

use super::query::Query;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All queries by number.
#[derive(Debug, Default)]
pub struct Queries {
    all: Mutex<BTreeMap<u64, Arc<Query>>>,
    /// When the last query finished. `None` once `are_at_rest` has returned true for the idle time that follows.
    ended: Mutex<Option<Instant>>,
}

impl Queries {
    /// Returns all queries, ordered by number.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Query>> {
        lock(&self.all).values().cloned().collect()
    }

    /// Adds a query.
    pub fn add(&self, query: &Arc<Query>) {
        lock(&self.all).insert(query.identity.number, Arc::clone(query));
    }

    /// Removes the query with this number.
    pub fn remove(&self, number: u64) {
        lock(&self.all).remove(&number);
        *lock(&self.ended) = Some(Instant::now());
    }

    /// Whether no query has run or waited for longer than `quiet`. After each query, only the first call that finds
    /// this returns true.
    #[must_use]
    pub fn are_at_rest(&self, quiet: Duration) -> bool {
        let mut ended = lock(&self.ended);
        let rest = ended.is_some_and(|ended| ended.elapsed() > quiet) && lock(&self.all).is_empty();
        if rest {
            *ended = None;
        }
        rest
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
