//! The governor: a rate that the readers of many stores and queries share, with a timer that admits waiting reads. A
//! reader pays for its bytes before the read: it reserves them with the limiter, and waits if the rate requires it.
//!
//! [`crate::limiter`] makes all decisions; this module adds the lock, the timer and the counters. The timer is a
//! separate task, so that a waiting reader that is not polled does not delay other readers. The timer exists only while
//! readers wait.

use crate::limiter::{BytesPerS, Limiter, QueryId, Shape, Ticket, TicketId, Windows};
use crate::query::{PayError, Query};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Longest sleep of the timer. Afterwards the timer checks again, and sleeps again if the next read is not due yet.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

/// The kind of store; it determines how large reads are cut into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reach {
    /// A local disk: files are opened once and read piece by piece.
    Local,
    /// A store behind a network: a response body is read only as fast as the query pays for its data.
    Remote,
}

/// Configuration of a governor. [`Settings::of`] returns the usual values.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The kind of store.
    pub reach: Reach,
    /// Maximum credit, expressed as time at the rate. Credit accumulates while nothing is read. A piece (the bytes of
    /// one payment) is at most half of this maximum, or one page at very low rates. So the timer may be late by the
    /// time of the other half without loss of credit.
    pub burst: Duration,
    /// Maximum size of one payment, in bytes. At low rates, payments are smaller ([`Limiter::piece`]).
    pub piece: u64,
    /// The largest range of one remote request, in bytes. This size bounds the amount of data that the kernel can
    /// receive into a socket buffer before the query has paid for it.
    pub request: u64,
    /// Runtime for the timer; `None` means the runtime of the first reader that waits. The runtime should have threads
    /// that are never blocked.
    pub timer: Option<Handle>,
}

impl Settings {
    /// Returns the usual values: a burst of 25 ms, pieces of 1 MiB, remote requests of 4 MiB.
    #[must_use]
    pub fn of(reach: Reach) -> Settings {
        Settings { reach, burst: Duration::from_millis(25), piece: 1 << 20, request: 4 << 20, timer: None }
    }
}

/// Counters over all queries of a governor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Bytes that readers requested.
    pub asked_bytes: u64,
    /// Bytes read from the disk or the socket, including gaps between ranges that were read with one request. Reads
    /// from the page cache count too. Compare with the device's counter (`rbytes` of `io.stat`) over the same period:
    /// if the device counted less, the rest came from the page cache; if it counted more, the kernel read ahead.
    pub delivered_bytes: u64,
    /// Bytes delivered in the last full second.
    pub last_second_bytes: u64,
    /// Largest number of bytes delivered within 100 ms.
    pub most_100ms_bytes: u64,
    /// Largest number of bytes delivered within 1 s.
    pub most_1s_bytes: u64,
    /// Number of read calls.
    pub requests: u64,
    /// Number of list calls; they are not limited.
    pub lists: u64,
    /// Number of payments that had to wait.
    pub waits: u64,
    /// Total duration of all payments' waits.
    pub waited: Duration,
    /// Number of payments that are waiting now.
    pub waiting: usize,
}

/// A rate that many stores and queries share. Clones refer to the same governor.
#[derive(Debug, Clone)]
pub struct Governor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    origin: Instant,
    /// Whether a limit is set. Without a limit, reads proceed without taking the lock.
    limited: AtomicBool,
    state: Mutex<State>,
    /// Signals the timer that the next admission may be due earlier.
    sooner: Notify,
}

#[derive(Debug)]
struct State {
    limiter: Limiter,
    doors: HashMap<TicketId, oneshot::Sender<()>>,
    timer_runs: bool,
    counted: Statistics,
    delivered: Windows,
}

/// Result of a payment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    /// Whether the bytes were charged to a limit.
    pub(crate) charged: bool,
    /// How long the payment waited; `None` if it did not wait.
    pub(crate) waited: Option<Duration>,
}

impl Governor {
    /// Creates a governor with the usual settings. Without a rate it only counts.
    #[must_use]
    pub fn new(reach: Reach, rate: Option<BytesPerS>) -> Governor {
        Governor::with(Settings::of(reach), rate)
    }

    /// Creates a governor with the given settings.
    #[must_use]
    pub fn with(settings: Settings, rate: Option<BytesPerS>) -> Governor {
        let shape = Shape { burst: settings.burst, quantum: settings.piece };
        let state = State {
            limiter: Limiter::new(rate, shape, 0),
            doors: HashMap::new(),
            timer_runs: false,
            counted: Statistics::default(),
            delivered: Windows::default(),
        };
        let shared = Shared {
            settings,
            origin: Instant::now(),
            limited: AtomicBool::new(rate.is_some()),
            state: Mutex::new(state),
            sooner: Notify::new(),
        };
        Governor { shared: Arc::new(shared) }
    }

    /// Creates a handle for a query. All queries share this governor's rate equally; handles with the same id count as
    /// one query.
    #[must_use]
    pub fn query(&self, id: QueryId) -> Query {
        Query::new(self.clone(), id)
    }

    /// The kind of store.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.shared.settings.reach
    }

    /// Returns the current rate; `None` means no limit.
    #[must_use]
    pub fn rate(&self) -> Option<BytesPerS> {
        self.shared.lock().limiter.rate()
    }

    /// Changes the rate, also for reads that already wait; `None` removes the limit.
    pub fn set_rate(&self, rate: Option<BytesPerS>) {
        let mut state = self.shared.lock();
        state.limiter.set_rate(self.shared.now(), rate);
        self.shared.limited.store(rate.is_some(), Ordering::Release);
        state.open_doors(self.shared.now());
        self.shared.sooner.notify_one();
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        Statistics {
            delivered_bytes: state.delivered.total(),
            last_second_bytes: state.delivered.last_second(now),
            most_100ms_bytes: state.delivered.most_100ms(),
            most_1s_bytes: state.delivered.most_1s(),
            waiting: state.limiter.waiting(),
            ..state.counted
        }
    }

    /// Returns the maximum size of one payment now, in bytes; `None` if there is no limit, because reads are then not
    /// cut into pieces.
    pub(crate) fn piece(&self) -> Option<u64> {
        if !self.shared.limited.load(Ordering::Acquire) {
            return None;
        }
        Some(self.shared.lock().limiter.piece(self.shared.settings.piece).max(1))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Whether both handles refer to the same governor.
    pub(crate) fn is(&self, other: &Governor) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits until `query` may read `bytes`. If the future is dropped, nothing is charged.
    pub(crate) async fn admit(&self, query: QueryId, bytes: u64) -> Result<Admission, PayError> {
        if !self.shared.limited.load(Ordering::Acquire) {
            return Ok(Admission { charged: false, waited: None });
        }
        let began = self.shared.now();
        let mut waited = false;
        while let Some(place) = self.reserve(query, bytes, waited)? {
            waited = true;
            if place.turn().await {
                break;
            }
            // The timer's runtime has shut down: the next reservation starts another timer.
        }
        let waited = waited.then(|| Duration::from_nanos(self.shared.now() - began));
        if let Some(waited) = waited {
            let mut state = self.shared.lock();
            state.counted.waits += 1;
            state.counted.waited += waited;
        }
        Ok(Admission { charged: true, waited })
    }

    /// Makes a reservation; returns `None` if the credit covers the bytes immediately. `again` means that the timer was
    /// dropped with its runtime, so a new timer must be started on the current runtime.
    fn reserve(&self, query: QueryId, bytes: u64, again: bool) -> Result<Option<Waiter>, PayError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        let now = shared.now();
        state.open_doors(now);
        let Ticket::Waits { id, .. } = state.limiter.reserve(now, query, bytes) else { return Ok(None) };
        let (door, opened) = oneshot::channel();
        state.doors.insert(id, door);
        let starts = !state.timer_runs;
        state.timer_runs = true;
        // The lock is released first, because a runtime that has shut down drops a new task immediately, and the drop
        // of that task acquires this lock.
        drop(state);
        let place = Waiter { shared: Arc::clone(shared), id, bytes, opened, passed: false };
        if starts {
            let timer = Timer { shared: Arc::clone(shared), done: false };
            let chosen = shared.settings.timer.clone().filter(|_| !again);
            let handle = chosen.map_or_else(Handle::try_current, Ok).map_err(|_| PayError::NoRuntime)?;
            handle.spawn(timer.run());
        }
        Ok(Some(place))
    }

    /// Counts a read call for `bytes`.
    pub(crate) fn asked(&self, bytes: u64) {
        let mut state = self.shared.lock();
        state.counted.requests += 1;
        state.counted.asked_bytes = state.counted.asked_bytes.saturating_add(bytes);
    }

    /// Counts a list call.
    pub(crate) fn listed(&self) {
        self.shared.lock().counted.lists += 1;
    }

    /// Counts delivered bytes, without a correction of the payment.
    pub(crate) fn delivered(&self, bytes: u64) {
        let now = self.shared.now();
        self.shared.lock().delivered.record(now, bytes);
    }

    /// Corrects a payment of `paid` bytes to the bytes received.
    pub(crate) fn settle(&self, paid: u64, received: u64) {
        if paid != received {
            self.shared.settle(paid, received);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the governor was created.
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn settle(&self, paid: u64, received: u64) {
        let mut state = self.lock();
        let now = self.now();
        state.limiter.settle(now, paid, received);
        if paid > received {
            state.open_doors(now);
            self.sooner.notify_one();
        }
    }
}

impl State {
    /// Admits all reads that are due.
    fn open_doors(&mut self, now_ns: u64) {
        while let Some(granted) = self.limiter.grant(now_ns) {
            // A waiting read that is dropped removes its sender while it holds the same lock.
            if let Some(door) = self.doors.remove(&granted.id) {
                let _ = door.send(());
            }
        }
    }
}

/// A waiting read. If it is dropped, its reservation is cancelled.
#[derive(Debug)]
struct Waiter {
    shared: Arc<Shared>,
    id: TicketId,
    bytes: u64,
    opened: oneshot::Receiver<()>,
    passed: bool,
}

impl Waiter {
    /// Waits for admission; returns `false` if the timer was dropped, which cancelled this reservation.
    async fn turn(mut self) -> bool {
        let opened = (&mut self.opened).await.is_ok();
        self.passed = true;
        opened
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.passed {
            return;
        }
        let waited_still = {
            let mut state = self.shared.lock();
            state.doors.remove(&self.id).is_some() && state.limiter.cancel(self.id)
        };
        if waited_still {
            self.shared.sooner.notify_one();
        } else if self.opened.try_recv().is_ok() {
            self.shared.settle(self.bytes, 0);
        }
    }
}

/// The task that admits reads when they are due.
struct Timer {
    shared: Arc<Shared>,
    /// Whether no read waits any more, so that the next waiting read starts another timer.
    done: bool,
}

impl Timer {
    async fn run(mut self) {
        while let Some(due_ns) = self.next() {
            let due = self.shared.origin + Duration::from_nanos(due_ns);
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.shared.sooner.notified() => {}
            }
        }
    }

    /// Admits the reads that are due; returns the time when the next one is due (ns), or `None` if no read waits.
    fn next(&mut self) -> Option<u64> {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        state.open_doors(now);
        let due = state.limiter.due();
        self.done = due.is_none();
        state.timer_runs = !self.done;
        let longest = u64::try_from(LONGEST_SLEEP.as_nanos()).unwrap_or(u64::MAX);
        due.map(|due| due.min(now.saturating_add(longest)))
    }
}

impl Drop for Timer {
    /// When the timer's runtime shuts down, reads on other runtimes may still be waiting. These reads reserve again and
    /// start another timer.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.shared.lock();
        let State { doors, limiter, timer_runs, .. } = &mut *state;
        for (id, _door) in doors.drain() {
            limiter.cancel(id);
        }
        *timer_runs = false;
    }
}
