//! A query while it waits and runs: its user, its group, its resource usage, and why it ended.

use super::accounts::Accounts;
use super::error::Error;
use super::worker::wire::QueryUse;
use crate::statement::UserName;
use arc_swap::ArcSwap;
use commensal_store::{Query as Reader, QueryId, Reach, Source};
use datafusion::physical_plan::ExecutionPlan;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Parameters of a query.
#[derive(Debug, Clone)]
pub struct QueryTerms {
    /// Number of the connection.
    pub connection: u32,
    /// The user.
    pub user: UserName,
    /// The statement, without secrets.
    pub sql: String,
    /// Slots that it takes in the queue.
    pub slots: u32,
    /// The query's own memory limit, in bytes: within it, the query has precedence over others.
    pub memory_limit: Option<usize>,
    /// Time limit, if any.
    pub timeout: Option<Duration>,
}

/// A query that was accepted.
pub struct Query {
    /// Query number; a larger one was accepted later.
    pub number: u64,
    /// The same as text, as Doris prints it.
    pub id: String,
    /// Number of the connection.
    pub connection: u32,
    /// The user.
    pub user: UserName,
    /// The statement, without secrets.
    pub sql: String,
    /// Slots in the queue.
    pub slots: u32,
    /// The query's own memory limit, in bytes.
    pub memory_limit: Option<usize>,
    /// Time limit, if any.
    pub timeout: Option<Duration>,
    /// When the query was accepted.
    pub arrived: Instant,
    /// The accounts of the group on whose threads the query runs.
    pub home: Arc<Accounts>,
    group: ArcSwap<Accounts>,
    begun: OnceLock<Instant>,
    end: OnceLock<Error>,
    stop: CancellationToken,
    /// Whether the query is done; the lock is held while the query is moved.
    done: Mutex<bool>,
    /// The plan, for its counters. It refers back to the query, so it is dropped when the query is done.
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    /// CPU time of its tasks, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Bytes written to spill files.
    pub spilled_bytes: AtomicU64,
    /// Bytes read back from them.
    pub unspilled_bytes: AtomicU64,
    /// Handles through which its reads are charged, by source.
    readers: Mutex<BTreeMap<Source, Reader>>,
    /// Whether it runs in a worker process, which reports its usage.
    remote: AtomicBool,
    heard: Mutex<QueryUse>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("id", &self.id).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Next query number in this process, starting at 1.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Query {
    /// A new query, which arrives now.
    #[must_use]
    pub fn new(ask: QueryTerms, group: Arc<Accounts>) -> Arc<Query> {
        let number = NUMBERS.fetch_add(1, Relaxed);
        // Two halves as in Doris; the first distinguishes processes.
        let id = format!("{:016x}-{number:016x}", u64::from(std::process::id()));
        Query::of_server(ask, group, number, id)
    }

    /// A query that the server sent to this worker, with its number and identifier.
    #[must_use]
    pub fn of_server(ask: QueryTerms, group: Arc<Accounts>, number: u64, id: String) -> Arc<Query> {
        Arc::new(Query {
            number,
            id,
            connection: ask.connection,
            user: ask.user,
            sql: ask.sql,
            slots: ask.slots,
            memory_limit: ask.memory_limit,
            timeout: ask.timeout,
            arrived: Instant::now(),
            home: Arc::clone(&group),
            group: ArcSwap::new(group),
            begun: OnceLock::new(),
            end: OnceLock::new(),
            stop: CancellationToken::new(),
            done: Mutex::new(false),
            plan: Mutex::default(),
            cpu_ns: AtomicU64::new(0),
            spilled_bytes: AtomicU64::new(0),
            unspilled_bytes: AtomicU64::new(0),
            readers: Mutex::default(),
            remote: AtomicBool::new(false),
            heard: Mutex::default(),
        })
    }

    /// The group that is charged now.
    #[must_use]
    pub fn group(&self) -> Arc<Accounts> {
        self.group.load_full()
    }

    /// Charges another group from now on: memory that the query holds, CPU and bytes that it will use. It keeps its
    /// slot in the queue of the group that admitted it until it ends. A query in a worker process stays with its group.
    pub fn move_to(&self, group: &Arc<Accounts>) {
        let done = lock(&self.done);
        if *done || self.is_remote() {
            return;
        }
        let from = self.group.swap(Arc::clone(group));
        if from.id != group.id {
            from.memory.hand_over(&group.memory, self.number);
            for (source, reader) in lock(&self.readers).iter() {
                reader.move_to(&group.reads.of(source));
            }
        }
    }

    /// The handle for reading from a source; created once per source.
    #[must_use]
    pub fn reader(&self, source: &Source) -> Reader {
        let mut readers = lock(&self.readers);
        let reader = readers
            .entry(source.clone())
            .or_insert_with(|| self.group().reads.of(source).query(QueryId(self.number)));
        if self.stop.is_cancelled() {
            reader.cancel();
        }
        reader.clone()
    }

    /// Marks the query as admitted and running.
    pub fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    /// When the query started to run; `None` while it waits in the queue.
    #[must_use]
    pub fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Tells the query to end. Only the first reason is kept.
    pub fn end(&self, why: Error) {
        let _ = self.end.set(why);
        self.stop.cancel();
        // Wakes reads that wait for their turn.
        for reader in lock(&self.readers).values() {
            reader.cancel();
        }
    }

    /// Why the query was told to end.
    #[must_use]
    pub fn ended(&self) -> Option<Error> {
        self.end.get().cloned()
    }

    /// Waits until the query is told to end.
    pub async fn stopped(&self) -> Error {
        self.stop.cancelled().await;
        self.ended().unwrap_or(Error::Cancelled)
    }

    /// Marks the query as done; from now on it cannot be moved.
    pub fn set_done(&self) {
        *lock(&self.done) = true;
        let plan = lock(&self.plan).take();
        if let Some(plan) = plan {
            lock(&self.heard).scan_rows = rows_of_leaves(&plan);
        }
    }

    /// Whether the query is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *lock(&self.done)
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

    /// Takes over the usage that the worker process reports.
    pub fn hear(&self, used: QueryUse) {
        self.cpu_ns.store(used.cpu_ns, Relaxed);
        self.spilled_bytes.store(used.spilled_bytes, Relaxed);
        self.unspilled_bytes.store(used.unspilled_bytes, Relaxed);
        *lock(&self.heard) = used;
    }

    /// Keeps the plan for its counters, until the query is done.
    pub fn set_plan(&self, plan: Arc<dyn ExecutionPlan>) {
        *lock(&self.plan) = Some(plan);
    }

    /// Rows that its scans have produced so far.
    #[must_use]
    pub fn scan_rows(&self) -> u64 {
        let running = lock(&self.plan).clone();
        running.map_or_else(|| lock(&self.heard).scan_rows, |plan| rows_of_leaves(&plan))
    }

    /// Bytes that it has read so far, from local disks and from remote stores.
    #[must_use]
    pub fn scan_bytes(&self) -> (u64, u64) {
        let readers = lock(&self.readers);
        let of = |reach: Reach| -> u64 {
            let read = readers.iter().filter(|(source, _)| source.reach() == reach);
            read.map(|(_, reader)| reader.statistics().delivered_bytes).sum()
        };
        let heard = *lock(&self.heard);
        (of(Reach::Local) + heard.local_bytes, of(Reach::Remote) + heard.remote_bytes)
    }

    /// Time since the query started; while it waits, since it arrived.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun().unwrap_or(self.arrived).elapsed()
    }
}

/// Rows that the scans of a plan have produced.
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
