//! The event loop: hands due requests to connections, reads answers, and keeps time.
//!
//! All times are nanoseconds since the start of the schedule. Invariant: a request that was due is in exactly one
//! place, the client queue or a connection, until the recorder has its outcome; due times leave the queue in
//! order, so deadlines in `in_flight` ascend.

use super::LoadResult;
use super::conn::{Conn, Request, State, Step};
use super::record::{Failure, Recorder, nanos};
use super::schedule::Schedule;
use super::spec::{LoadError, LoadSpec, Mode, Phase};
use super::trace::Trace;
use crate::workload::cpu::thread_cpu_time;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum interval between checks of the stop flag.
const STOP_CHECK_NS: u64 = 20_000_000;
/// Delay before a slot reconnects if its last connection brought no answer, so that a server that refuses or closes at
/// once is not flooded.
const RETRY_NS: u64 = 10_000_000;
/// A real-time thread that never sleeps loses 50 ms of every second as soon as another task wants its CPU
/// (`sched_rt_runtime_us`, or the fair server of newer kernels). So after this time without a sleep the thread yields
/// by itself, for 7 % of the time, in slices that are short compared with the allowed lateness.
const AWAKE_NS: u64 = 400_000;
const NAP: Duration = Duration::from_micros(30);
/// Events taken at once. Due requests go out after each one, so a batch does not make them late.
const BATCH: usize = 64;
/// Bytes read at once.
const BUFFER: usize = 64 * 1024;

/// The whole state of one run.
pub(super) struct Engine<'a> {
    spec: &'a LoadSpec,
    text: Vec<u8>,
    epoll: OwnedFd,
    events: Vec<Event>,
    buffer: Vec<u8>,
    start: Instant,
    /// The clock when it was last read: once per turn of the loop, per send and per answer. Reading it for every
    /// decision took a quarter of the generator's time.
    now_ns: u64,
    /// When the thread last slept, or at least offered to.
    slept_ns: u64,
    conns: Vec<Conn>,
    /// Idle slots, longest idle first.
    free: VecDeque<usize>,
    /// Due times of requests that wait for a connection.
    queue: VecDeque<u64>,
    /// Deadline, slot and request id in sending order. Finished requests stay until they come to the front.
    in_flight: VecDeque<(u64, usize, u64)>,
    /// Times at which slots may reconnect.
    retries: VecDeque<(u64, usize)>,
    schedule: Schedule,
    /// The head of the schedule; `None` before the clock starts, after the last request, and in a closed loop.
    next_due_ns: Option<u64>,
    /// In a closed loop: when the last request may go out. 0 before the clock starts.
    refill_until_ns: u64,
    next_id: u64,
    busy: usize,
    connect_error: Option<io::Error>,
    recorder: Recorder,
}

impl<'a> Engine<'a> {
    pub(super) fn new(spec: &'a LoadSpec) -> Result<Self, LoadError> {
        let length = spec.warmup + spec.measure;
        let schedule = Schedule::new(spec.arrival, spec.rate_per_s, length, spec.seed);
        Ok(Self {
            spec,
            text: spec.request("keep-alive"),
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?,
            events: Vec::with_capacity(BATCH),
            buffer: vec![0; BUFFER],
            start: Instant::now(),
            now_ns: 0,
            slept_ns: 0,
            // validate() bounds the connections far below u32.
            conns: (0..spec.pool()).map(|slot| Conn::new(slot as u32)).collect(),
            free: VecDeque::with_capacity(spec.pool()),
            queue: VecDeque::new(),
            in_flight: VecDeque::with_capacity(2 * spec.pool()),
            retries: VecDeque::new(),
            schedule,
            next_due_ns: None,
            refill_until_ns: 0,
            next_id: 0,
            busy: 0,
            connect_error: None,
            recorder: Recorder::new(spec)?,
        })
    }

    /// Also reports every request to `trace`.
    pub(super) fn traced(mut self, trace: &Arc<Trace>) -> Self {
        self.recorder.trace = Some(Arc::clone(trace));
        self
    }

    /// The run, from the pool to the end of the drain.
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
            self.read_clock();
            if stop.load(Ordering::Relaxed) && !self.recorder.result.cut {
                match next_phase {
                    Some((_, Phase::MeasureEnd)) if self.spec.keep_partial => {
                        next_phase = Some((self.cut(), Phase::MeasureEnd));
                    }
                    // Draining: the window is complete.
                    None if self.spec.keep_partial => {}
                    _ => return Err(LoadError::Stopped),
                }
            }
            match next_phase {
                Some((at_ns, Phase::MeasureStart)) if self.now_ns >= at_ns => {
                    on_measure(Phase::MeasureStart);
                    cpu_at_start = Some(thread_cpu_time());
                    next_phase = Some((ends_ns, Phase::MeasureEnd));
                }
                Some((at_ns, Phase::MeasureEnd)) if self.now_ns >= at_ns => {
                    let used = thread_cpu_time().saturating_sub(cpu_at_start.unwrap_or_default());
                    self.recorder.result.generator_cpu_s = used.as_secs_f64();
                    on_measure(Phase::MeasureEnd);
                    next_phase = None;
                }
                _ => {}
            }
            self.send_due();
            self.expire();
            self.reconnect();
            let pending = self.next_due_ns.is_some() || !self.queue.is_empty() || self.busy > 0;
            if next_phase.is_none() && !pending {
                return Ok(self.recorder.finish());
            }
            self.wait(next_phase.map(|(at_ns, _)| at_ns))?;
            self.handle_events();
        }
    }

    /// Ends the measured window now; requests already due are still waited for.
    fn cut(&mut self) -> u64 {
        self.send_due();
        self.next_due_ns = None;
        self.refill_until_ns = 0;
        self.recorder.cut(self.now_ns);
        self.now_ns
    }

    /// Connects every slot, then starts the clock.
    fn open_pool(&mut self, stop: &AtomicBool) -> Result<(), LoadError> {
        for slot in 0..self.conns.len() {
            self.open(slot);
        }
        let give_up_ns = nanos(self.spec.timeout);
        while self.conns.iter().any(|c| c.state == State::Connecting) && self.connect_error.is_none() {
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Stopped);
            }
            if self.read_clock() >= give_up_ns {
                self.connect_error = Some(io::ErrorKind::TimedOut.into());
            }
            self.poll_until(self.now_ns + STOP_CHECK_NS)?;
            self.handle_events();
        }
        if let Some(source) = self.connect_error.take() {
            let (addr, connections) = (self.spec.addr, self.spec.pool());
            return Err(LoadError::Connect { addr, connections, source });
        }
        self.start = Instant::now();
        if let Some(trace) = &self.recorder.trace {
            trace.begins(self.start);
        }
        (self.now_ns, self.slept_ns) = (0, 0);
        match self.spec.mode {
            Mode::Open => self.next_due_ns = self.schedule.next().map(nanos),
            Mode::Closed { .. } => self.refill_until_ns = nanos(self.spec.warmup + self.spec.measure),
        }
        self.recorder.result.reconnects = 0;
        for conn in &mut self.conns {
            if let State::Idle { since_ns } = &mut conn.state {
                *since_ns = 0;
            }
        }
        for (at_ns, _) in &mut self.retries {
            *at_ns = 0;
        }
        Ok(())
    }

    /// Gives every due request to a connection or to the queue, or drops it when the queue is full.
    fn send_due(&mut self) {
        if self.spec.mode != Mode::Open {
            return self.refill();
        }
        while let Some(due_ns) = self.next_due_ns.filter(|due_ns| *due_ns <= self.now_ns) {
            self.next_due_ns = self.schedule.next().map(nanos);
            self.recorder.due(due_ns);
            // Waiting requests go first; while any request waits, no connection is free.
            if let Some(slot) = self.free.pop_front() {
                let punctual =
                    matches!(self.conns[slot].state, State::Idle { since_ns } if since_ns <= due_ns);
                self.send(slot, due_ns, punctual);
            } else {
                self.recorder.noticed(due_ns, self.now_ns);
                if self.queue.len() < self.spec.max_backlog {
                    self.queue.push_back(due_ns);
                } else {
                    self.recorder.failed(due_ns, Failure::Backlog);
                }
            }
        }
    }

    /// Closed loop: every free connection sends.
    fn refill(&mut self) {
        for _ in 0..self.free.len() {
            if self.now_ns >= self.refill_until_ns {
                return;
            }
            let Some(slot) = self.free.pop_front() else { return };
            self.recorder.due(self.now_ns);
            self.send(slot, self.now_ns, false);
        }
    }

    fn send(&mut self, slot: usize, due_ns: u64, punctual: bool) {
        let request = Request { id: self.next_id, due_ns, sent_ns: self.read_clock() };
        self.next_id += 1;
        self.busy += 1;
        self.in_flight.push_back((due_ns.saturating_add(nanos(self.spec.timeout)), slot, request.id));
        self.recorder.sent(due_ns, request.sent_ns, punctual);
        let step = self.conns[slot].start(self.epoll.as_fd(), request, &self.text);
        self.settle(slot, request, step);
    }

    /// Handles what a connection reports about its request.
    fn settle(&mut self, slot: usize, request: Request, step: Step) {
        match step {
            Step::Waiting => {}
            Step::Answered(answer) => {
                let now_ns = self.read_clock();
                self.busy -= 1;
                self.recorder.answered(request.due_ns, request.sent_ns, now_ns, answer.status);
                if answer.reusable {
                    self.release(slot, now_ns);
                } else {
                    self.replace(slot);
                }
            }
            Step::Failed(failure) => {
                self.busy -= 1;
                self.recorder.failed(request.due_ns, failure);
                self.replace(slot);
            }
        }
    }

    /// Gives a free connection to the longest waiting request, or marks it as idle.
    fn release(&mut self, slot: usize, now_ns: u64) {
        self.conns[slot].state = State::Idle { since_ns: now_ns };
        match self.queue.pop_front() {
            Some(due_ns) => self.send(slot, due_ns, false),
            None => self.free.push_back(slot),
        }
    }

    /// Drops requests whose timeout is over.
    fn expire(&mut self) {
        let now_ns = self.now_ns;
        while let Some(&(deadline_ns, slot, id)) = self.in_flight.front() {
            if let State::Busy(request) = self.conns[slot].state
                && request.id == id
            {
                if deadline_ns > now_ns {
                    break;
                }
                self.busy -= 1;
                self.recorder.timed_out(request.due_ns, Some(request.sent_ns), now_ns);
                self.replace(slot);
            }
            self.in_flight.pop_front();
        }
        let timeout_ns = nanos(self.spec.timeout);
        while let Some(due_ns) = self.queue.front().filter(|due| due.saturating_add(timeout_ns) <= now_ns) {
            self.recorder.timed_out(*due_ns, None, now_ns);
            self.queue.pop_front();
        }
        let under_way =
            self.in_flight.front().map(|(deadline_ns, ..)| deadline_ns.saturating_sub(timeout_ns));
        let oldest = under_way.or_else(|| self.queue.front().copied()).or(self.next_due_ns);
        self.recorder.settled_before(oldest.unwrap_or(now_ns).min(now_ns));
    }

    /// Closes a connection and reopens its slot, at once if the connection had brought an answer.
    fn replace(&mut self, slot: usize) {
        self.recorder.result.reconnects += 1;
        let useful = self.conns[slot].answers > 0;
        self.conns[slot].close();
        if useful {
            self.open(slot);
        } else {
            self.retries.push_back((self.now_ns + RETRY_NS, slot));
        }
    }

    fn open(&mut self, slot: usize) {
        if let Err(e) = self.conns[slot].open(self.epoll.as_fd(), &self.spec.addr) {
            self.connect_failed(slot, e);
        }
    }

    fn connect_failed(&mut self, slot: usize, error: io::Error) {
        self.connect_error = Some(error);
        self.conns[slot].close();
        self.retries.push_back((self.now_ns + RETRY_NS, slot));
    }

    fn reconnect(&mut self) {
        let now_ns = self.now_ns;
        while let Some(&(_, slot)) = self.retries.front().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.retries.pop_front();
            self.open(slot);
        }
    }

    /// Waits for events until the next deadline; shortly before a due time it polls without sleeping.
    fn wait(&mut self, phase_ns: Option<u64>) -> Result<(), LoadError> {
        let spin_ns = nanos(self.spec.spin);
        let queue_ns = self.queue.front().map(|due| due.saturating_add(nanos(self.spec.timeout)));
        let wake_ns = [
            self.next_due_ns.map(|due| due.saturating_sub(spin_ns)),
            self.in_flight.front().map(|(deadline, ..)| *deadline),
            queue_ns,
            self.retries.front().map(|(at, _)| *at),
            phase_ns,
        ];
        let check_ns = self.now_ns + STOP_CHECK_NS;
        self.poll_until(wake_ns.into_iter().flatten().fold(check_ns, u64::min))
    }

    /// Fills `events`, waiting until `wake_ns` at the latest.
    ///
    /// `ppoll` on the epoll descriptor does the waiting: it takes nanoseconds on every kernel, whereas
    /// `epoll_pwait` rounds up to milliseconds and `epoll_pwait2` needs Linux 5.11.
    fn poll_until(&mut self, wake_ns: u64) -> Result<(), LoadError> {
        self.events.clear();
        if wake_ns > self.now_ns {
            let timeout = timespec(Duration::from_nanos(wake_ns.saturating_sub(self.read_clock())));
            match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {
                    self.slept_ns = wake_ns;
                    return Ok(());
                }
                Ok(_) => {}
                Err(e) => return Err(LoadError::Events(e.into())),
            }
        } else if self.now_ns.saturating_sub(self.slept_ns) > AWAKE_NS {
            std::thread::sleep(NAP);
            self.slept_ns = self.read_clock();
        }
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(Duration::ZERO))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(LoadError::Events(e.into())),
        }
    }

    fn handle_events(&mut self) {
        for i in 0..self.events.len() {
            let Event { flags, data, .. } = self.events[i];
            let (slot, generation) = Conn::unpack(data);
            if self.conns[slot].is_current(generation) {
                self.handle(slot, flags);
                self.send_due();
            }
        }
    }

    fn handle(&mut self, slot: usize, flags: EventFlags) {
        match self.conns[slot].state {
            State::Down => {}
            State::Connecting => {
                let now_ns = self.read_clock();
                match self.conns[slot].connected(self.epoll.as_fd(), now_ns) {
                    Ok(()) => self.release(slot, now_ns),
                    Err(e) => self.connect_failed(slot, e),
                }
            }
            // The server closed the connection or sent data unasked: the next answer could not be trusted.
            State::Idle { .. } => {
                self.free.retain(|free| *free != slot);
                self.replace(slot);
            }
            State::Busy(request) => {
                let mut step = Step::Waiting;
                if flags.contains(EventFlags::OUT) {
                    step = self.conns[slot].resume(self.epoll.as_fd(), &self.text);
                }
                let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                if step == Step::Waiting && flags.intersects(readable) {
                    step = self.conns[slot].read(&mut self.buffer);
                }
                if let Step::Answered(answer) = &mut step {
                    // The server closed the connection after a complete answer without announcing it in the header.
                    answer.reusable &= !flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
                }
                self.settle(slot, request, step);
            }
        }
    }

    fn read_clock(&mut self) -> u64 {
        self.now_ns = nanos(self.start.elapsed());
        self.now_ns
    }
}

fn timespec(d: Duration) -> Timespec {
    // At most a day ahead: both parts fit.
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
}

/// Timer slack of 1 ns for the calling thread while this lives: the default of 50 us is added to every sleep.
#[derive(Debug)]
struct TimerSlack {
    before: Option<NonZeroU64>,
}

impl TimerSlack {
    /// If the kernel refuses, the thread's slack stays as it was; lateness will show it.
    fn claim() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Self { before }
    }
}

impl Drop for TimerSlack {
    fn drop(&mut self) {
        // Without a value the kernel goes back to the thread's default.
        let _ = set_current_timer_slack(self.before);
    }
}
