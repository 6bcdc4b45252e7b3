//! One query while it waits and runs: who asked for it, which group pays for it, what it has used, why it ended.

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

/// What one asks for.
#[derive(Debug, Clone)]
pub struct QueryTerms {
    /// Number of the connection.
    pub connection: u32,
    /// Who asks.
    pub user: UserName,
    /// The statement, without secrets.
    pub sql: String,
    /// Slots that it takes in the queue.
    pub slots: u32,
    /// Memory that it may have before others, in bytes.
    pub memory_limit: Option<usize>,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

/// A query that was accepted.
pub struct Query {
    /// Counts up; a larger number began later.
    pub number: u64,
    /// The same as text, as Doris prints it.
    pub id: String,
    /// Number of the connection.
    pub connection: u32,
    /// Who asked.
    pub user: UserName,
    /// The statement, without secrets.
    pub sql: String,
    /// Slots in the queue.
    pub slots: u32,
    /// Memory that it may have before others.
    pub memory_limit: Option<usize>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// When it came.
    pub arrived: Instant,
    /// The accounts of the group whose threads it runs on.
    pub home: Arc<Accounts>,
    group: ArcSwap<Accounts>,
    begun: OnceLock<Instant>,
    end: OnceLock<Error>,
    stop: CancellationToken,
    /// Nothing of it runs any more; whoever moves it holds this meanwhile.
    done: Mutex<bool>,
    /// Holds the query in turn, so it is let go when the query is done.
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    /// CPU time of its tasks, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Bytes written to spill files.
    pub spilled_bytes: AtomicU64,
    /// Bytes read back from them.
    pub unspilled_bytes: AtomicU64,
    /// Who pays for what it reads, by source.
    readers: Mutex<BTreeMap<Source, Reader>>,
    /// It runs in a worker process, which tells what it uses.
    remote: AtomicBool,
    heard: Mutex<QueryUse>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("id", &self.id).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Numbers of this process: queries begin at 1.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Query {
    /// A query that arrives now.
    #[must_use]
    pub fn new(ask: QueryTerms, group: Arc<Accounts>) -> Arc<Query> {
        let number = NUMBERS.fetch_add(1, Relaxed);
        // Two halves as in Doris; the first tells this process's queries from another's.
        let id = format!("{:016x}-{number:016x}", u64::from(std::process::id()));
        Query::of_server(ask, group, number, id)
    }

    /// A query that has its number and name from the server that sent it here.
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

    /// The group that pays now.
    #[must_use]
    pub fn group(&self) -> Arc<Accounts> {
        self.group.load_full()
    }

    /// Another group pays from now on: memory that it holds, CPU and bytes that it will use. Its slot in the queue of the
    /// group that admitted it stays taken until it ends. A query in a worker process stays with its group.
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

    /// Its handle for reading from a source; the same one each time.
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

    /// It was admitted and begins.
    pub fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    /// When it began; `None` while it waits in the queue.
    #[must_use]
    pub fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Tells it to end. The first reason counts.
    pub fn end(&self, why: Error) {
        let _ = self.end.set(why);
        self.stop.cancel();
        // Who waits for its turn to read does not wait any longer.
        for reader in lock(&self.readers).values() {
            reader.cancel();
        }
    }

    /// Why it was told to end.
    #[must_use]
    pub fn ended(&self) -> Option<Error> {
        self.end.get().cloned()
    }

    /// Waits until it is told to end.
    pub async fn stopped(&self) -> Error {
        self.stop.cancelled().await;
        self.ended().unwrap_or(Error::Cancelled)
    }

    /// Nothing of it runs any more; from now on it stays with its group.
    pub fn set_done(&self) {
        *lock(&self.done) = true;
        let plan = lock(&self.plan).take();
        if let Some(plan) = plan {
            lock(&self.heard).scan_rows = rows_of_leaves(&plan);
        }
    }

    /// Whether nothing of it runs any more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *lock(&self.done)
    }

    /// It runs in a worker process from now on.
    pub fn set_remote(&self) {
        self.remote.store(true, Relaxed);
    }

    /// Whether it runs in a worker process.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.remote.load(Relaxed)
    }

    /// What its worker process says of it.
    pub fn hear(&self, used: QueryUse) {
        self.cpu_ns.store(used.cpu_ns, Relaxed);
        self.spilled_bytes.store(used.spilled_bytes, Relaxed);
        self.unspilled_bytes.store(used.unspilled_bytes, Relaxed);
        *lock(&self.heard) = used;
    }

    /// Keeps the plan for its counters, until it is done.
    pub fn set_plan(&self, plan: Arc<dyn ExecutionPlan>) {
        *lock(&self.plan) = Some(plan);
    }

    /// Rows that its scans have given so far.
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

    /// Time since it began; since it came, while it waits.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun().unwrap_or(self.arrived).elapsed()
    }
}

/// Rows that the scans of a plan have given.
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
