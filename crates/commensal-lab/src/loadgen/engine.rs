//! The event loop: assigns due requests to connections, reads responses, and keeps time.
//!
//! A request is due at its intended start, which the schedule determines. A slot is a fixed place for one connection.
//! The measured window is the part of the run whose requests count; afterwards the run drains, that is, waits for the
//! outcomes of requests that were already due.
//!
//! All times are nanoseconds since the start of the schedule. Invariant: until the recorder has the outcome of a
//! request that was due, the request is in exactly one place, the client queue or a connection. Requests leave the
//! queue in the order of their due times, so deadlines in `in_flight` ascend.

#[cfg(test)]
mod tests;

use super::LoadResult;
use super::conn::{Conn, Request, State, Step, failure, number};
use super::poller::{Clock, Poller, TimerSlack};
use super::pool::Pool;
use super::record::{Failure, Recorder, nanos};
use super::requests::{DueTimes, Requests};
use super::schedule::Schedule;
use super::spec::{LoadError, LoadSpec, Mode, Phase};
use super::trace::Trace;
use crate::workload::cpu::thread_cpu_time;
use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum interval between two checks of the stop flag.
const STOP_CHECK_NS: u64 = 20_000_000;
/// Maximum number of bytes read in one call.
const BUFFER: usize = 64 * 1024;

/// State of one run of the load generator.
pub(super) struct Engine<'a> {
    spec: &'a LoadSpec,
    /// The bytes of a request; all requests of a run have equal bytes.
    text: Vec<u8>,
    /// The part of a response that the engine read last.
    buffer: Vec<u8>,
    clock: Clock,
    poller: Poller,
    pool: Pool,
    due: DueTimes,
    requests: Requests,
    recorder: Recorder,
}

impl<'a> Engine<'a> {
    pub(super) fn new(spec: &'a LoadSpec) -> Result<Self, LoadError> {
        let length = spec.warmup + spec.measure;
        let schedule = Schedule::new(spec.arrival, spec.rate_per_s, length, spec.seed);
        Ok(Self {
            spec,
            text: spec.request("keep-alive"),
            buffer: vec![0; BUFFER],
            clock: Clock::start(),
            poller: Poller::new()?,
            pool: Pool::new(spec.addr, spec.pool()),
            due: DueTimes::new(schedule),
            requests: Requests::new(nanos(spec.timeout), spec.pool()),
            recorder: Recorder::new(spec)?,
        })
    }

    /// Makes the engine also report the outcome of every request to `trace`.
    pub(super) fn traced(mut self, trace: &Arc<Trace>) -> Self {
        self.recorder.trace = Some(Arc::clone(trace));
        self
    }

    /// Runs the load, from opening the connections to the end of the drain.
    pub(super) fn run(
        mut self,
        stop: &AtomicBool,
        on_measure: &mut dyn FnMut(Phase),
    ) -> Result<LoadResult, LoadError> {
        let _slack = TimerSlack::claim();
        self.open_pool(stop)?;
        let begins_ns = nanos(self.spec.warmup);
        let ends_ns = begins_ns + nanos(self.spec.measure);
        let mut cpu_at_start = None;
        let mut next_phase = Some((begins_ns, Phase::MeasureStart));
        loop {
            self.clock.read();
            if stop.load(Ordering::Relaxed) && !self.recorder.result.cut {
                match next_phase {
                    Some((_, Phase::MeasureEnd)) if self.spec.keep_partial => {
                        next_phase = Some((self.cut(), Phase::MeasureEnd));
                    }
                    // The run is draining: the window is complete.
                    None if self.spec.keep_partial => {}
                    _ => return Err(LoadError::Stopped),
                }
            }
            match next_phase {
                Some((at_ns, Phase::MeasureStart)) if self.clock.now_ns >= at_ns => {
                    on_measure(Phase::MeasureStart);
                    cpu_at_start = Some(thread_cpu_time());
                    next_phase = Some((ends_ns, Phase::MeasureEnd));
                }
                Some((at_ns, Phase::MeasureEnd)) if self.clock.now_ns >= at_ns => {
                    let used = thread_cpu_time().saturating_sub(cpu_at_start.unwrap_or_default());
                    self.recorder.result.generator_cpu_s = used.as_secs_f64();
                    on_measure(Phase::MeasureEnd);
                    next_phase = None;
                }
                _ => {}
            }
            self.advance();
            let pending = self.due.next_ns.is_some() || self.requests.are_pending();
            if next_phase.is_none() && !pending {
                return Ok(self.recorder.finish());
            }
            self.wait(next_phase.map(|(at_ns, _)| at_ns))?;
            self.handle_events();
        }
    }

    /// Sends what is due, ends what has timed out, and reopens connections.
    fn advance(&mut self) {
        self.send_due();
        self.expire();
        self.pool.reconnect(self.poller.set(), self.clock.now_ns);
        for error in self.pool.connect_errors.drain(..) {
            self.recorder.not_connected(self.clock.now_ns, number(error));
        }
    }

    /// Cuts the measured window short. The engine still completes requests that are already due. Returns the end of the
    /// window.
    fn cut(&mut self) -> u64 {
        self.send_due();
        self.due.end();
        self.recorder.cut(self.clock.now_ns);
        self.clock.now_ns
    }

    /// Connects every slot, then starts the clock.
    fn open_pool(&mut self, stop: &AtomicBool) -> Result<(), LoadError> {
        for slot in 0..self.pool.conns.len() {
            self.pool.open(slot, self.poller.set(), self.clock.now_ns);
        }
        let give_up_ns = nanos(self.spec.timeout);
        while self.pool.is_connecting() && self.pool.connect_errors.is_empty() {
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Stopped);
            }
            if self.clock.read() >= give_up_ns {
                self.pool.connect_errors.push(Errno::TIMEDOUT);
            }
            let check_ns = self.clock.now_ns + STOP_CHECK_NS;
            self.poller.poll_until(&mut self.clock, check_ns)?;
            self.handle_events();
        }
        if let Some(error) = self.pool.connect_errors.pop() {
            let (addr, connections) = (self.spec.addr, self.spec.pool());
            return Err(LoadError::Connect { addr, connections, source: error.into() });
        }
        self.clock = Clock::start();
        if let Some(trace) = &self.recorder.trace {
            trace.begins(self.clock.started());
        }
        self.poller.restart();
        self.pool.restart();
        match self.spec.mode {
            Mode::Open => self.due.begin(),
            Mode::Closed { .. } => self.due.begin_closed(nanos(self.spec.warmup + self.spec.measure)),
        }
        self.recorder.result.reconnects = 0;
        Ok(())
    }

    /// Assigns every due request to a connection or to the queue, or drops it if the queue is full.
    fn send_due(&mut self) {
        if self.spec.mode != Mode::Open {
            return self.refill();
        }
        while let Some(due_ns) = self.due.take(self.clock.now_ns) {
            self.recorder.due(due_ns);
            // Queued requests have precedence: while the queue holds any request, no connection is free.
            if let Some(slot) = self.pool.take_free() {
                let punctual = self.pool.was_idle(slot, due_ns);
                self.send(slot, due_ns, punctual);
            } else {
                self.recorder.noticed(due_ns, self.clock.now_ns);
                if self.requests.queue.len() < self.spec.max_backlog {
                    self.requests.queue.push_back(due_ns);
                } else {
                    self.recorder.failed(due_ns, Failure::Backlog);
                }
            }
        }
    }

    /// In a closed loop, sends a request on every free connection.
    fn refill(&mut self) {
        for _ in 0..self.pool.free() {
            if !self.due.refills(self.clock.now_ns) {
                return;
            }
            let Some(slot) = self.pool.take_free() else { return };
            self.recorder.due(self.clock.now_ns);
            self.send(slot, self.clock.now_ns, false);
        }
    }

    fn send(&mut self, slot: usize, due_ns: u64, punctual: bool) {
        let request = self.requests.start(slot, due_ns, self.clock.read());
        self.recorder.sent(due_ns, request.sent_ns, punctual);
        let step = self.pool.conns[slot].start(self.poller.set(), request, &self.text);
        self.settle(slot, request, step);
    }

    /// Handles the result that a connection reports for its request: records the outcome, and makes the connection
    /// available.
    fn settle(&mut self, slot: usize, request: Request, step: Step) {
        match step {
            Step::Waiting => {}
            Step::Answered(answer) => {
                let now_ns = self.clock.read();
                self.requests.end();
                self.recorder.answered(request.due_ns, request.sent_ns, now_ns, answer.status);
                if answer.reusable {
                    self.release(slot, now_ns);
                } else {
                    self.replace(slot);
                }
            }
            Step::Failed(Failure::Closed(_)) if self.pool.conns[slot].may_resend() => {
                self.resend(slot, request);
            }
            Step::Failed(failure) => self.fail(slot, request, failure),
        }
    }

    /// Opens a new connection for a request whose kept connection the server has ended. The request keeps its due time,
    /// its deadline and the time of its first send.
    fn resend(&mut self, slot: usize, request: Request) {
        self.recorder.resent(request.due_ns);
        self.recorder.result.reconnects += 1;
        if let Err(error) = self.pool.reopen(slot, self.poller.set(), request) {
            self.fail(slot, request, failure(error));
        }
    }

    /// Records that a request has failed, and replaces its connection.
    fn fail(&mut self, slot: usize, request: Request, failure: Failure) {
        self.requests.end();
        self.recorder.failed(request.due_ns, failure);
        self.replace(slot);
    }

    /// Gives a free connection to the request that has waited longest, or marks the connection as idle.
    fn release(&mut self, slot: usize, now_ns: u64) {
        self.pool.conns[slot].state = State::Idle { since_ns: now_ns };
        match self.requests.queue.pop_front() {
            Some(due_ns) => self.send(slot, due_ns, false),
            None => self.pool.set_free(slot),
        }
    }

    /// Records requests whose timeout has passed as timeouts, and replaces their connections.
    fn expire(&mut self) {
        let now_ns = self.clock.now_ns;
        while let Some(&(deadline_ns, slot, id)) = self.requests.in_flight.front() {
            if let Some(request) = self.pool.conns[slot].state.request()
                && request.id == id
            {
                if deadline_ns > now_ns {
                    break;
                }
                self.requests.end();
                self.recorder.timed_out(request.due_ns, Some(request.sent_ns), now_ns);
                self.replace(slot);
            }
            self.requests.in_flight.pop_front();
        }
        while let Some(due_ns) = self.requests.expire_queued(now_ns) {
            self.recorder.timed_out(due_ns, None, now_ns);
        }
        let oldest = self.requests.oldest_ns().or(self.due.next_ns);
        self.recorder.settled_before(oldest.unwrap_or(now_ns).min(now_ns));
    }

    /// Closes a connection that the engine cannot use any more, and counts a reconnection for its slot.
    fn replace(&mut self, slot: usize) {
        self.recorder.result.reconnects += 1;
        self.pool.replace(slot, self.poller.set(), self.clock.now_ns);
    }

    /// Waits for events until the next deadline; during the spin time before a request is due, polls without sleeping.
    fn wait(&mut self, phase_ns: Option<u64>) -> Result<(), LoadError> {
        let spin_ns = nanos(self.spec.spin);
        let [under_way_ns, queued_ns] = self.requests.deadlines_ns();
        let wake_ns = [
            self.due.next_ns.map(|due| due.saturating_sub(spin_ns)),
            under_way_ns,
            queued_ns,
            self.pool.next_retry_ns(),
            phase_ns,
        ];
        let check_ns = self.clock.now_ns + STOP_CHECK_NS;
        let wake_ns = wake_ns.into_iter().flatten().fold(check_ns, u64::min);
        self.poller.poll_until(&mut self.clock, wake_ns)
    }

    fn handle_events(&mut self) {
        for i in 0..self.poller.events.len() {
            let Event { flags, data, .. } = self.poller.events[i];
            let (slot, generation) = Conn::unpack(data);
            if self.pool.conns[slot].is_current(generation) {
                self.handle(slot, flags);
                self.send_due();
            }
        }
    }

    fn handle(&mut self, slot: usize, flags: EventFlags) {
        match self.pool.conns[slot].state {
            State::Down => {}
            State::Connecting => {
                let now_ns = self.clock.read();
                match self.pool.conns[slot].connected(self.poller.set(), now_ns) {
                    Ok(()) => self.release(slot, now_ns),
                    Err(e) => self.pool.connect_failed(slot, e, now_ns),
                }
            }
            State::Resending(request) => {
                let now_ns = self.clock.read();
                let step = match self.pool.conns[slot].connected(self.poller.set(), now_ns) {
                    Ok(()) => self.pool.conns[slot].start(self.poller.set(), request, &self.text),
                    Err(e) => Step::Failed(failure(e)),
                };
                self.settle(slot, request, step);
            }
            // The server closed the connection or sent unsolicited data, so the engine could not trust the next
            // response.
            State::Idle { .. } => {
                self.pool.withdraw(slot);
                self.replace(slot);
            }
            State::Busy(request) => {
                let mut step = Step::Waiting;
                if flags.contains(EventFlags::OUT) {
                    step = self.pool.conns[slot].resume(self.poller.set(), &self.text);
                }
                let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                if step == Step::Waiting && flags.intersects(readable) {
                    step = self.pool.conns[slot].read(&mut self.buffer);
                }
                if let Step::Answered(answer) = &mut step {
                    // The server closed the connection after a complete response, without announcing it in the header.
                    answer.reusable &= !flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
                }
                self.settle(slot, request, step);
            }
        }
    }
}
