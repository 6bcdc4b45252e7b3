//! The resources that a query has used so far. This process counts them, or the worker process that runs the query
//! reports them.

use crate::engine::waits::Waits;
use crate::engine::worker::wire::QueryUse;
use datafusion::physical_plan::ExecutionPlan;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Resource usage of a query.
#[derive(Default)]
pub struct Usage {
    cpu_ns: AtomicU64,
    spilled_bytes: AtomicU64,
    unspilled_bytes: AtomicU64,
    memory_waited_ns: AtomicU64,
    cpu_waited_ns: AtomicU64,
    slept_ns: AtomicU64,
    /// The query's plan, whose counters are read. The plan refers back to the query, so it is dropped when the query is
    /// done.
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    /// Whether the query runs in a worker process, which reports its usage.
    remote: AtomicBool,
    reported: Mutex<QueryUse>,
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Usage").field("cpu_ns", &self.cpu_ns).finish_non_exhaustive()
    }
}

impl Usage {
    /// Returns the CPU time of the query's tasks, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Relaxed)
    }

    /// Adds CPU time, in nanoseconds.
    pub fn add_cpu_ns(&self, used: u64) {
        self.cpu_ns.fetch_add(used, Relaxed);
    }

    /// Returns the bytes written to spill files.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes.load(Relaxed)
    }

    /// Adds bytes written to spill files.
    pub fn add_spilled(&self, bytes: u64) {
        self.spilled_bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the bytes read back from spill files.
    #[must_use]
    pub fn unspilled_bytes(&self) -> u64 {
        self.unspilled_bytes.load(Relaxed)
    }

    /// Adds bytes read back from spill files.
    pub fn add_unspilled(&self, bytes: u64) {
        self.unspilled_bytes.fetch_add(bytes, Relaxed);
    }

    /// Adds a wait for memory.
    pub fn add_memory_waited(&self, waited: Duration) {
        self.memory_waited_ns.fetch_add(waited.as_nanos() as u64, Relaxed);
    }

    /// Adds a wait for CPU time.
    pub fn add_cpu_waited(&self, waited: Duration) {
        self.cpu_waited_ns.fetch_add(waited.as_nanos() as u64, Relaxed);
    }

    /// Adds a wait in `SLEEP`.
    pub fn add_slept(&self, slept: Duration) {
        self.slept_ns.fetch_add(slept.as_nanos() as u64, Relaxed);
    }

    /// Returns how long tasks in this process have waited in `SLEEP`.
    #[must_use]
    pub fn slept(&self) -> Duration {
        Duration::from_nanos(self.slept_ns.load(Relaxed))
    }

    /// Returns how long tasks in this process have waited for memory, and for CPU time.
    #[must_use]
    pub fn waited(&self) -> (Duration, Duration) {
        let of = |ns: &AtomicU64| Duration::from_nanos(ns.load(Relaxed));
        (of(&self.memory_waited_ns), of(&self.cpu_waited_ns))
    }

    /// Returns the waits that the worker process has reported.
    #[must_use]
    pub fn reported_waits(&self) -> Waits {
        lock(&self.reported).waits
    }

    /// Marks that the query runs in a worker process.
    pub fn set_remote(&self) {
        self.remote.store(true, Relaxed);
    }

    /// Whether the query runs in a worker process.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.remote.load(Relaxed)
    }

    /// Stores the usage that the worker process has reported.
    pub fn hear(&self, used: QueryUse) {
        self.cpu_ns.store(used.cpu_ns, Relaxed);
        self.spilled_bytes.store(used.spilled_bytes, Relaxed);
        self.unspilled_bytes.store(used.unspilled_bytes, Relaxed);
        *lock(&self.reported) = used;
    }

    /// Returns the bytes that the worker process has reported as read, from local disks and from remote stores.
    #[must_use]
    pub fn reported_bytes(&self) -> (u64, u64) {
        let reported = lock(&self.reported);
        (reported.local_bytes, reported.remote_bytes)
    }

    /// Stores the plan, for its counters, until the query is done.
    pub fn set_plan(&self, plan: Arc<dyn ExecutionPlan>) {
        *lock(&self.plan) = Some(plan);
    }

    /// Drops the plan, and keeps the number of rows that its scans have produced.
    pub fn drop_plan(&self) {
        let plan = lock(&self.plan).take();
        if let Some(plan) = plan {
            lock(&self.reported).scan_rows = rows_of_leaves(&plan);
        }
    }

    /// Returns the number of rows that the query's scans have produced so far.
    #[must_use]
    pub fn scan_rows(&self) -> u64 {
        let running = lock(&self.plan).clone();
        running.map_or_else(|| lock(&self.reported).scan_rows, |plan| rows_of_leaves(&plan))
    }
}

/// Returns the number of rows that the scans of a plan have produced.
fn rows_of_leaves(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let children = plan.children();
    match children.is_empty() {
        true => plan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0) as u64,
        false => children.into_iter().map(rows_of_leaves).sum(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
