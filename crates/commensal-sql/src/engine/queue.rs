//! Admission queue of a group: decides whether a query starts, waits or is refused.
//!
//! [`Line`] makes the decisions and has no side effects. [`Queue`] puts a [`Line`] behind a lock and wakes admitted
//! queries. Check and grant are one step under the lock, so that concurrent queries cannot exceed the limit. Queries
//! are served in order of arrival: a query that needs more slots (units of concurrency) than are free blocks the
//! queries behind it, as in Doris.

use super::error::Error;
use super::settings::QueueLimits;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The running and the waiting queries, by number.
#[derive(Debug, Default)]
pub struct Line {
    running: BTreeMap<u64, u32>,
    waiting: VecDeque<(u64, u32)>,
}

/// Result of a query's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The query got its slots and starts.
    Begin,
    /// The query waits.
    Wait,
    /// The queue is full. Contains the number of queries that already wait.
    Full(u32),
}

impl Line {
    fn used(&self) -> u64 {
        self.running.values().map(|slots| u64::from(*slots)).sum()
    }

    fn fits(&self, limits: &QueueLimits, slots: u32) -> bool {
        self.used() + u64::from(slots) <= u64::from(limits.max_concurrency)
    }

    /// Handles the arrival of a query. `room` states whether there is memory for another query. It is ignored if no
    /// query of the group runs.
    pub fn arrive(&mut self, limits: &QueueLimits, number: u64, slots: u32, room: bool) -> Arrival {
        let room = room || self.running.is_empty();
        let length = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        if self.waiting.is_empty() && room && self.fits(limits, slots) {
            self.running.insert(number, slots);
            Arrival::Begin
        } else if length < limits.max_queue_size {
            self.waiting.push_back((number, slots));
            Arrival::Wait
        } else {
            Arrival::Full(length)
        }
    }

    /// Admits waiting queries as long as slots and memory suffice; returns the numbers of the admitted queries.
    pub fn admit(&mut self, limits: &QueueLimits, room: impl Fn() -> bool) -> Vec<u64> {
        let mut admitted = Vec::new();
        while let Some((number, slots)) = self.waiting.front().copied() {
            if !self.fits(limits, slots) || !(self.running.is_empty() || room()) {
                break;
            }
            self.waiting.pop_front();
            self.running.insert(number, slots);
            admitted.push(number);
        }
        admitted
    }

    /// Removes a running or waiting query.
    pub fn leave(&mut self, number: u64) {
        self.running.remove(&number);
        self.waiting.retain(|(waiting, _)| *waiting != number);
    }

    /// Returns the number of running and of waiting queries.
    #[must_use]
    pub fn lengths(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }
}

/// Function that returns whether there is memory for another query.
pub type MemoryCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// The queue of one group.
pub struct Queue {
    state: Mutex<State>,
    room: MemoryCheck,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

#[derive(Debug)]
struct State {
    limits: QueueLimits,
    line: Line,
    wake: BTreeMap<u64, oneshot::Sender<()>>,
    /// Why the queue admits nobody any more.
    closed: Option<Error>,
}

/// A query's place in the queue, which is released on drop.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<Queue>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.line.leave(self.number);
        state.wake.remove(&self.number);
        drop(state);
        self.queue.admit();
    }
}

/// A query's request for slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotRequest {
    /// The query's number.
    pub number: u64,
    /// Number of slots.
    pub slots: u32,
    /// The query's time limit, if it has one.
    pub timeout: Option<Duration>,
}

impl Queue {
    /// Creates an empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits, room: MemoryCheck) -> Queue {
        let state = State { limits, line: Line::default(), wake: BTreeMap::new(), closed: None };
        Queue { state: Mutex::new(state), room }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new limits.
    pub fn set_limits(&self, limits: QueueLimits) {
        self.lock().limits = limits;
        self.admit();
    }

    /// Closes the queue of a group that is dropped: queries that wait or that arrive later get this error. Queries that
    /// run keep their slots.
    pub fn close(&self, why: Error) {
        let mut state = self.lock();
        state.closed.get_or_insert(why);
        state.wake.clear();
    }

    /// Returns the number of running and of waiting queries.
    #[must_use]
    pub fn lengths(&self) -> (usize, usize) {
        self.lock().line.lengths()
    }

    /// Returns the number of queries that are served before this one, and the queries that run; `None` if it does not wait.
    #[must_use]
    pub fn ahead_of(&self, number: u64) -> Option<(usize, Vec<u64>)> {
        let state = self.lock();
        let ahead = state.line.waiting.iter().position(|(waiting, _)| *waiting == number)?;
        Some((ahead, state.line.running.keys().copied().collect()))
    }

    /// Admits waiting queries. Callers call this function when memory was freed.
    pub fn admit(&self) {
        let mut state = self.lock();
        let limits = state.limits;
        for number in state.line.admit(&limits, &self.room) {
            let woken = state.wake.remove(&number).is_some_and(|wake| wake.send(()).is_ok());
            if !woken {
                // The query has just stopped waiting.
                state.line.leave(number);
            }
        }
    }

    /// Acquires a slot for a query, immediately or after a wait. The wait also ends if the query is cancelled.
    ///
    /// # Errors
    /// With Doris' messages: the queue is full, the wait timed out, the query was cancelled while it waited, or the
    /// query requests more slots than the group has. The error of [`Queue::close`] if the queue is closed.
    pub async fn enter(
        self: &Arc<Self>,
        request: SlotRequest,
        stopped: impl Future<Output = Error>,
    ) -> Result<Ticket, Error> {
        let (place, turn, timeout) = {
            let mut state = self.lock();
            if let Some(why) = &state.closed {
                return Err(why.clone());
            }
            let limits = state.limits;
            let impossible = request.slots > limits.max_concurrency && limits.max_concurrency > 0;
            if request.slots == 0 || impossible {
                return Err(Error::Slots { asked: request.slots, most: limits.max_concurrency });
            }
            let place = || Ticket { queue: Arc::clone(self), number: request.number };
            match state.line.arrive(&limits, request.number, request.slots, (self.room)()) {
                Arrival::Begin => return Ok(place()),
                Arrival::Full(length) => return Err(Error::QueueFull(length)),
                Arrival::Wait => {
                    let (wake, turn) = oneshot::channel();
                    state.wake.insert(request.number, wake);
                    (place(), turn, shorter(limits.timeout, request.timeout))
                }
            }
        };
        tokio::select! {
            biased;
            admitted = turn => admitted.map(|()| place).map_err(|_| self.why_closed()),
            why = stopped => Err(why),
            () = tokio::time::sleep(timeout) => Err(Error::QueueTimeout(timeout)),
        }
    }
}

impl Queue {
    fn why_closed(&self) -> Error {
        self.lock().closed.clone().unwrap_or(Error::Cancelled)
    }
}

/// Returns the shorter of two timeouts; a day if neither the group nor the session sets one.
fn shorter(one: Option<Duration>, other: Option<Duration>) -> Duration {
    one.into_iter().chain(other).min().unwrap_or(Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_concurrency: u32, max_queue_size: u32) -> QueueLimits {
        QueueLimits { max_concurrency, max_queue_size, timeout: Some(Duration::from_secs(60)) }
    }

    #[test]
    fn first_come_first_served() {
        let limits = limits(2, 3);
        let mut line = Line::default();
        let mut arrive = |number| line.arrive(&limits, number, 1, true);
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(&mut arrive),
            [Arrival::Begin, Arrival::Begin, Arrival::Wait, Arrival::Wait, Arrival::Wait, Arrival::Full(3)]
        );
        assert!(line.admit(&limits, || true).is_empty());
        line.leave(1);
        line.leave(4);
        assert_eq!(line.admit(&limits, || true), [3]);
        line.leave(2);
        line.leave(3);
        assert_eq!(line.admit(&limits, || true), [5]);
        line.leave(5);
        assert_eq!(line.lengths(), (0, 0));
    }

    #[test]
    fn nothing_is_admitted_by_zero() {
        let mut line = Line::default();
        assert_eq!(line.arrive(&limits(0, 0), 1, 1, true), Arrival::Full(0));
        assert_eq!(line.arrive(&limits(0, 1), 2, 1, true), Arrival::Wait);
        assert!(line.admit(&limits(0, 1), || true).is_empty());
        assert_eq!(line.admit(&limits(1, 1), || true), [2], "after an ALTER");
    }

    #[test]
    fn slots_and_memory() {
        let limits = limits(4, 9);
        let mut line = Line::default();
        assert_eq!(line.arrive(&limits, 1, 3, true), Arrival::Begin);
        assert_eq!(line.arrive(&limits, 2, 2, true), Arrival::Wait);
        assert_eq!(line.arrive(&limits, 3, 1, true), Arrival::Wait, "nobody overtakes");
        line.leave(1);
        assert_eq!(line.admit(&limits, || false), [2], "one always runs, whatever memory says");
        assert_eq!(line.admit(&limits, || true), [3]);
    }

    #[tokio::test]
    async fn a_closed_queue_answers_everybody() {
        let queue = Arc::new(Queue::new(limits(1, 5), Box::new(|| true)));
        let enter = |number| {
            let request = SlotRequest { number, slots: 1, timeout: None };
            queue.enter(request, std::future::pending())
        };
        let running = enter(1).await.unwrap();
        let mut waiting = Box::pin(enter(2));
        assert!(futures::poll!(&mut waiting).is_pending());
        let why = Error::Rule("closed".to_owned());
        queue.close(why.clone());
        assert_eq!(waiting.await.unwrap_err(), why);
        assert_eq!(enter(3).await.unwrap_err(), why);
        assert_eq!(queue.lengths(), (1, 0), "the one that runs keeps its slot");
        drop(running);
        assert_eq!(queue.lengths(), (0, 0));
    }

    /// Many queries arrive simultaneously and some leave the queue before they run. Never more than two run, every
    /// other query runs, and no slot is lost.
    // promise 47
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn the_grant_is_atomic() {
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
        let queue = Arc::new(Queue::new(limits(2, 1_000), Box::new(|| true)));
        let (running, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counters = Arc::new((running, most, done));
        let mut tasks = Vec::new();
        for number in 0..200 {
            let (queue, counters) = (Arc::clone(&queue), Arc::clone(&counters));
            tasks.push(tokio::spawn(async move {
                let request = SlotRequest { number, slots: 1, timeout: None };
                let stopped = async {
                    if number % 10 != 9 {
                        std::future::pending::<()>().await;
                    }
                    Error::Cancelled
                };
                let entered = queue.enter(request, stopped).await;
                if let Ok(place) = entered {
                    let now = counters.0.fetch_add(1, SeqCst) + 1;
                    counters.1.fetch_max(now, SeqCst);
                    tokio::task::yield_now().await;
                    counters.0.fetch_sub(1, SeqCst);
                    counters.2.fetch_add(1, SeqCst);
                    drop(place);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(queue.lengths(), (0, 0));
        assert!(counters.1.load(SeqCst) <= 2);
        assert!(counters.2.load(SeqCst) >= 180);
    }
}
