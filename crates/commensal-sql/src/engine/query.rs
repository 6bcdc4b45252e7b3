//! A query while it waits and runs. It consists of parts that change together: its identity, its limits, its timing, its
//! cancellation, the accounts that it is charged to, and its usage.

mod usage;

pub use usage::Usage;

use super::accounts::Accounts;
use super::error::Error;
use super::terms::QueryLimits;
use super::waits::Waits;
use crate::statement::UserName;
use arc_swap::ArcSwap;
use commensal_store::{Query as Reader, QueryId, Reach, Source};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Identity of a query: its names, and who runs which statement.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Query number; later queries have larger numbers.
    pub number: u64,
    /// The identifier, in Doris' form.
    pub id: String,
    /// Number of the connection; 0 in a worker process.
    pub connection: u32,
    /// The user.
    pub user: UserName,
    /// The statement, without secrets; empty in a worker process.
    pub sql: String,
}

/// Characters of the reason for a failure that are kept.
const LONGEST_FAILURE: usize = 1_000;

/// Next query number in this process; the first one is 1.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Identity {
    /// Creates the identity of a new query.
    #[must_use]
    pub fn new(connection: u32, user: UserName, sql: String) -> Identity {
        let number = NUMBERS.fetch_add(1, Relaxed);
        // Two halves, as in Doris; the first one distinguishes processes.
        let id = format!("{:016x}-{number:016x}", u64::from(std::process::id()));
        Identity { number, id, connection, user, sql }
    }
}

/// When a query was accepted, and when it started to run.
#[derive(Debug)]
pub struct Timing {
    arrived: Instant,
    begun: OnceLock<Instant>,
}

impl Timing {
    fn now() -> Timing {
        Timing { arrived: Instant::now(), begun: OnceLock::new() }
    }

    /// Returns when the query was accepted.
    #[must_use]
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Marks the query as admitted and running.
    pub fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    /// Returns when the query started to run; `None` while it waits in the queue.
    #[must_use]
    pub fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Returns the time since the query started to run or, while it waits, since it arrived.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun().unwrap_or(self.arrived).elapsed()
    }

    /// Returns how long the query has waited in the queue.
    #[must_use]
    pub fn queued(&self) -> Duration {
        self.begun().map_or(self.arrived.elapsed(), |begun| begun - self.arrived)
    }
}

/// Whether a query is cancelled, and why.
#[derive(Debug, Default)]
struct Cancellation {
    reason: OnceLock<Error>,
    token: CancellationToken,
}

impl Cancellation {
    /// Cancels for this reason; the first reason is kept.
    fn cancel(&self, why: Error) {
        let _ = self.reason.set(why);
        self.token.cancel();
    }
}

/// The accounts (counters of a group's use) that a query is charged to, and the handles through which its reads are
/// charged.
struct Charging {
    /// The accounts of the group on whose threads the query runs.
    home: Arc<Accounts>,
    /// The accounts that are charged now.
    group: ArcSwap<Accounts>,
    /// Whether the query is done. The lock is held while the query is moved.
    done: Mutex<bool>,
    /// Handles through which the query's reads are charged, by source.
    readers: Mutex<BTreeMap<Source, Reader>>,
}

impl Charging {
    fn new(group: Arc<Accounts>) -> Charging {
        let home = Arc::clone(&group);
        Charging { home, group: ArcSwap::new(group), done: Mutex::new(false), readers: Mutex::default() }
    }

    /// Charges another group from now on. Also moves the memory that query `number` holds to that group.
    fn switch(&self, group: &Arc<Accounts>, number: u64) {
        let from = self.group.swap(Arc::clone(group));
        if from.id != group.id {
            from.memory.hand_over(&group.memory, number);
            for (source, reader) in lock(&self.readers).iter() {
                reader.move_to(&group.reads.of(source));
            }
        }
    }

    /// Returns the bytes that were read from sources of this kind, and how long the query waited for them.
    fn reads(&self, reach: Reach) -> (u64, Duration) {
        let readers = lock(&self.readers);
        let read = readers.iter().filter(|(source, _)| source.reach() == reach);
        read.map(|(_, reader)| reader.statistics()).fold((0, Duration::ZERO), |(bytes, waited), one| {
            (bytes + one.delivered_bytes, waited + one.waited)
        })
    }
}

/// A query that the server has accepted.
pub struct Query {
    /// The query's names, and who runs which statement.
    pub identity: Identity,
    /// The query's own limits.
    pub limits: QueryLimits,
    /// When the query arrived and when it started to run.
    pub timing: Timing,
    /// The resources that the query has used.
    pub usage: Arc<Usage>,
    cancellation: Cancellation,
    charging: Charging,
    /// Why the query has failed, if it has.
    failure: OnceLock<String>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { id, user, .. } = &self.identity;
        f.debug_struct("Query").field("id", id).field("user", user).finish_non_exhaustive()
    }
}

impl Query {
    /// Creates a query that arrives now. Its use is charged to `group`.
    #[must_use]
    pub fn new(identity: Identity, limits: QueryLimits, group: Arc<Accounts>) -> Arc<Query> {
        Arc::new(Query {
            identity,
            limits,
            timing: Timing::now(),
            usage: Arc::default(),
            cancellation: Cancellation::default(),
            charging: Charging::new(group),
            failure: OnceLock::new(),
        })
    }

    /// Notes why the query fails.
    pub fn fail(&self, why: &Error) {
        let mut text = why.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST_FAILURE) {
            text.truncate(end);
        }
        let _ = self.failure.set(text);
    }

    /// Returns why the query has failed or was cancelled.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned().or_else(|| self.ended().map(|why| why.to_string()))
    }

    /// Returns how long the query has waited so far.
    #[must_use]
    pub fn waits(&self) -> Waits {
        let reported = self.usage.reported_waits();
        let (memory, cpu) = self.usage.waited();
        Waits {
            queue: self.timing.queued(),
            memory: memory + reported.memory,
            cpu: cpu + reported.cpu,
            local: self.charging.reads(Reach::Local).1 + reported.local,
            remote: self.charging.reads(Reach::Remote).1 + reported.remote,
            sleep: self.usage.slept() + reported.sleep,
        }
    }

    /// Returns the accounts of the group on whose threads the query runs.
    #[must_use]
    pub fn home(&self) -> &Arc<Accounts> {
        &self.charging.home
    }

    /// Returns the group that is currently charged.
    #[must_use]
    pub fn group(&self) -> Arc<Accounts> {
        self.charging.group.load_full()
    }

    /// Charges another group from now on: for the memory that the query holds, and for the CPU time and bytes that it
    /// will use. Until it finishes, the query keeps its slot in the queue of the group that admitted it. A query in a
    /// worker process is not moved.
    pub fn move_to(&self, group: &Arc<Accounts>) {
        let done = lock(&self.charging.done);
        if *done || self.usage.is_remote() {
            return;
        }
        self.charging.switch(group, self.identity.number);
    }

    /// Returns the handle for reading from a source. Each source gets one handle.
    #[must_use]
    pub fn reader(&self, source: &Source) -> Reader {
        let mut readers = lock(&self.charging.readers);
        let reader = readers
            .entry(source.clone())
            .or_insert_with(|| self.group().reads.of(source).query(QueryId(self.identity.number)));
        // The check is made under the lock, so that a cancellation misses no reader.
        if self.cancellation.token.is_cancelled() {
            reader.cancel();
        }
        reader.clone()
    }

    /// Cancels the query for this reason. If it was cancelled before, the first reason is kept.
    pub fn end(&self, why: Error) {
        self.cancellation.cancel(why);
        // Wakes reads that wait for the rate limiter.
        for reader in lock(&self.charging.readers).values() {
            reader.cancel();
        }
    }

    /// Returns the reason why the query was cancelled; `None` if it was not cancelled.
    #[must_use]
    pub fn ended(&self) -> Option<Error> {
        self.cancellation.reason.get().cloned()
    }

    /// Waits until the query is cancelled, and returns the reason.
    pub async fn stopped(&self) -> Error {
        self.cancellation.token.cancelled().await;
        self.ended().unwrap_or(Error::Cancelled)
    }

    /// Returns the error of a query that has exceeded one of its time limits.
    #[must_use]
    pub fn exceeded(&self) -> Option<Error> {
        let timing = &self.timing;
        if self.limits.execution.is_some_and(|limit| timing.arrived().elapsed() > limit) {
            return Some(Error::ExecutionTime);
        }
        let timeout = self.limits.timeout;
        timeout.filter(|timeout| timing.begun().is_some() && timing.elapsed() > *timeout).map(Error::Timeout)
    }

    /// Marks the query as done. From now on it cannot be moved.
    pub fn set_done(&self) {
        *lock(&self.charging.done) = true;
        self.usage.drop_plan();
    }

    /// Whether the query is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *lock(&self.charging.done)
    }

    /// Returns the number of bytes that the query has read so far, from local disks and from remote stores.
    #[must_use]
    pub fn scan_bytes(&self) -> (u64, u64) {
        let (local, remote) = self.usage.reported_bytes();
        let delivered = |reach: Reach| self.charging.reads(reach).0;
        (delivered(Reach::Local) + local, delivered(Reach::Remote) + remote)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
