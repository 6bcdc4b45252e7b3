//! The waiting and running queries of a server, the slow ones among those that have ended, and when the last one finished.

use super::query::{Identity, Query};
use super::waits::Waits;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Number of slow queries that are kept: the last ones.
const KEPT: usize = 500;

/// A query that has ended and was slow.
#[derive(Debug, Clone)]
pub struct Slow {
    /// The query.
    pub identity: Identity,
    /// Name of the group whose threads it ran on.
    pub group: String,
    /// When it ended.
    pub ended: SystemTime,
    /// How long it took, with its waits.
    pub took: Duration,
    /// What it waited for.
    pub waits: Waits,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Rows that its scans have produced.
    pub scan_rows: u64,
    /// Bytes that it has read, from local disks and from remote stores.
    pub scan_bytes: (u64, u64),
    /// The most memory that it has held, in bytes.
    pub peak: usize,
    /// Bytes spilled.
    pub spilled_bytes: u64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// All queries by number.
#[derive(Debug, Default)]
pub struct Queries {
    all: Mutex<BTreeMap<u64, Arc<Query>>>,
    slow: Mutex<VecDeque<Slow>>,
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

    /// Lists a query that ends now, if it was slow.
    pub fn note(&self, query: &Arc<Query>, peak: usize) {
        let took = query.timing.arrived().elapsed();
        if query.limits.slow_after.is_none_or(|least| took < least) {
            return;
        }
        let waits = query.waits();
        let one = Slow {
            identity: query.identity.clone(),
            group: query.home().name.clone(),
            ended: SystemTime::now(),
            took,
            // Of a query that has never run, the whole time.
            waits: Waits { queue: waits.queue.min(took), ..waits },
            cpu_ns: query.usage.cpu_ns(),
            scan_rows: query.usage.scan_rows(),
            scan_bytes: query.scan_bytes(),
            peak,
            spilled_bytes: query.usage.spilled_bytes(),
            failure: query.failure(),
        };
        let mut slow = lock(&self.slow);
        if slow.len() == KEPT {
            slow.pop_front();
        }
        slow.push_back(one);
    }

    /// Returns the slow queries, the last one last.
    #[must_use]
    pub fn slow(&self) -> Vec<Slow> {
        lock(&self.slow).iter().cloned().collect()
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
