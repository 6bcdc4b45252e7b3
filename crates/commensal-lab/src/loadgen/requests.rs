//! The requests of the load generator: when the next request is due, which requests wait for a connection, and which
//! are in flight.
//!
//! A slot is a fixed place for one connection.

use super::conn::Request;
use super::record::nanos;
use super::schedule::Schedule;
use std::collections::VecDeque;

/// The times at which requests are due (in an open loop), or the time until which to send requests (in a closed loop).
#[derive(Debug)]
pub(super) struct DueTimes {
    schedule: Schedule,
    /// The next due time (ns); `None` before the clock starts, after the last request, and in a closed loop.
    pub(super) next_ns: Option<u64>,
    /// In a closed loop, the time at which sending stops (ns); 0 before the clock starts.
    refill_until_ns: u64,
}

impl DueTimes {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self { schedule, next_ns: None, refill_until_ns: 0 }
    }

    /// Starts an open loop: sets the first due time.
    pub(super) fn begin(&mut self) {
        self.next_ns = self.schedule.next().map(nanos);
    }

    /// Starts a closed loop that ends at `until_ns`.
    pub(super) fn begin_closed(&mut self, until_ns: u64) {
        self.refill_until_ns = until_ns;
    }

    /// Stops further requests before the planned end.
    pub(super) fn end(&mut self) {
        self.next_ns = None;
        self.refill_until_ns = 0;
    }

    /// Returns the due time of the next request if that time has come, and advances to the following request.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.next_ns.filter(|due_ns| *due_ns <= now_ns)?;
        self.next_ns = self.schedule.next().map(nanos);
        Some(due_ns)
    }

    /// Whether a closed loop still sends requests.
    pub(super) fn refills(&self, now_ns: u64) -> bool {
        now_ns < self.refill_until_ns
    }
}

/// Requests that were due and have no outcome yet.
#[derive(Debug)]
pub(super) struct Requests {
    /// Timeout of a request, counted from its due time.
    timeout_ns: u64,
    /// Due times of requests that are waiting for a connection.
    pub(super) queue: VecDeque<u64>,
    /// Deadline (ns), slot and ID of each request sent, in sending order. A finished request stays in the list until it
    /// is the first entry.
    pub(super) in_flight: VecDeque<(u64, usize, u64)>,
    next_id: u64,
    /// Number of requests in flight.
    busy: usize,
}

impl Requests {
    pub(super) fn new(timeout_ns: u64, slots: usize) -> Self {
        let in_flight = VecDeque::with_capacity(2 * slots);
        Self { timeout_ns, queue: VecDeque::new(), in_flight, next_id: 0, busy: 0 }
    }

    /// Whether any request waits for a connection or is in flight.
    pub(super) fn are_pending(&self) -> bool {
        !self.queue.is_empty() || self.busy > 0
    }

    /// Adds a request that the generator sends on the connection of `slot`.
    pub(super) fn start(&mut self, slot: usize, due_ns: u64, sent_ns: u64) -> Request {
        let request = Request { id: self.next_id, due_ns, sent_ns };
        self.next_id += 1;
        self.busy += 1;
        self.in_flight.push_back((due_ns.saturating_add(self.timeout_ns), slot, request.id));
        request
    }

    /// Notes that a request in flight has its outcome.
    pub(super) fn end(&mut self) {
        self.busy -= 1;
    }

    /// If the timeout of the request that has waited longest has passed, removes that request from the queue and
    /// returns its due time.
    pub(super) fn expire_queued(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = *self.queue.front()?;
        (due_ns.saturating_add(self.timeout_ns) <= now_ns).then(|| self.queue.pop_front()).flatten()
    }

    /// Returns the due time of the oldest request that may still lack an outcome.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let under_way = self.in_flight.front();
        let under_way = under_way.map(|(deadline_ns, ..)| deadline_ns.saturating_sub(self.timeout_ns));
        under_way.or_else(|| self.queue.front().copied())
    }

    /// Returns when the next request in flight and the next request in the queue time out (ns).
    pub(super) fn deadlines_ns(&self) -> [Option<u64>; 2] {
        let under_way = self.in_flight.front().map(|(deadline_ns, ..)| *deadline_ns);
        let queued = self.queue.front().map(|due_ns| due_ns.saturating_add(self.timeout_ns));
        [under_way, queued]
    }
}
