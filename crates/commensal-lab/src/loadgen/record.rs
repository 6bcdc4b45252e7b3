//! Records the results of the generator: three histograms and exact counts, attributed by intended start.

use super::series::{SecondSeries, Writer};
use super::spec::{LoadSpec, Mode};
use super::trace::{Outcome, Trace};
use crate::record::LoadFigures;
use hdrhistogram::{CreationError, Histogram};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound of the stored times in microseconds: 1 h.
pub(super) const TIME_US_MAX: u64 = 3_600_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Failed requests by kind; timeouts are counted beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ErrorKinds {
    /// Answers whose status is not 2xx.
    pub status: u64,
    /// The peer closed the connection before the answer was complete.
    pub closed: u64,
    /// Bytes that are no HTTP/1 response.
    pub malformed: u64,
    /// Requests given up because the client queue was full.
    pub backlog: u64,
    /// Any other socket error.
    pub io: u64,
}

impl ErrorKinds {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.status + self.closed + self.malformed + self.backlog + self.io
    }
}

/// One kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Status,
    Closed,
    Malformed,
    Backlog,
    Io,
}

/// The measured window of one run. Every request that was due in it is in exactly one of `completed`, errors
/// and timeouts; requests of the warm-up are in nothing here.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Requests offered and their outcomes. Answers during the drain are in `completed` but not in the achieved load.
    /// In a closed loop the offered load is the number sent.
    pub load: LoadFigures,
    /// Requests written to a connection.
    pub sent: u64,
    /// Requests answered with 2xx within the timeout.
    pub completed: u64,
    /// The errors by kind.
    pub error_kinds: ErrorKinds,
    /// Microseconds from intended start to the last byte of the answer, for `completed`; timeouts are in it at
    /// their value. Failed requests are not: a fast refusal is not a fast answer.
    pub latency: Histogram<u64>,
    /// Microseconds from the actual send to the last byte: what a closed-loop client would report. Requests that
    /// timed out after they were sent are in it with the time they had waited, a lower bound.
    pub service: Histogram<u64>,
    /// The generator's own error, not the service's. Microseconds from intended start to actual send, for requests that
    /// found a connection free when they were due; for the others, until the generator noticed that they were due: a
    /// generator without a CPU also finds its connections busy, because it reads no answers.
    pub lateness: Histogram<u64>,
    /// Length of the window in seconds.
    pub measured_s: f64,
    /// CPU time of the generator's thread within the window, in seconds.
    pub generator_cpu_s: f64,
    /// Connections opened again, in the whole run, warm-up and drain included.
    pub reconnects: u64,
    /// Number of requests in flight, in a closed loop. Latency then counts from the send, there are no due times, and a
    /// stall is under-stated: the requests that would have met it were never sent.
    pub closed: Option<usize>,
    /// Whether the window was cut short by the stop flag.
    pub cut: bool,
    /// The window second by second.
    pub series: SecondSeries,
}

impl LoadResult {
    /// The load figures of the schedule: like `load`, but a closed loop offers nothing.
    #[must_use]
    pub fn scheduled(&self) -> LoadFigures {
        LoadFigures { offered_per_s: self.load.offered_per_s.filter(|_| self.closed.is_none()), ..self.load }
    }
}

/// Counts into a [`LoadResult`]; all times are nanoseconds since the start of the schedule.
#[derive(Debug)]
pub(super) struct Recorder {
    from_ns: u64,
    until_ns: u64,
    timeout_ns: u64,
    in_time: u64,
    series: Writer,
    /// When the next second can be closed.
    close_ns: u64,
    /// Receives every request, including those outside the measured window.
    pub(super) trace: Option<Arc<Trace>>,
    pub(super) result: LoadResult,
}

impl Recorder {
    pub(super) fn new(spec: &LoadSpec) -> Result<Self, CreationError> {
        let histogram = || Histogram::new_with_bounds(1, TIME_US_MAX, 3);
        let from_ns = nanos(spec.warmup);
        let result = LoadResult {
            load: LoadFigures::default(),
            sent: 0,
            completed: 0,
            error_kinds: ErrorKinds::default(),
            latency: histogram()?,
            service: histogram()?,
            lateness: histogram()?,
            measured_s: spec.measure.as_secs_f64(),
            generator_cpu_s: 0.0,
            reconnects: 0,
            closed: match spec.mode {
                Mode::Open => None,
                Mode::Closed { concurrency } => Some(concurrency),
            },
            cut: false,
            series: SecondSeries::default(),
        };
        let until_ns = from_ns + nanos(spec.measure);
        let (timeout_ns, series, close_ns) = (nanos(spec.timeout), Writer::new()?, from_ns + SECOND_NS);
        Ok(Self { from_ns, until_ns, timeout_ns, in_time: 0, series, close_ns, trace: None, result })
    }

    /// Whether a request with this due time counts.
    fn counts(&self, due_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&due_ns)
    }

    pub(super) fn due(&mut self, due_ns: u64) {
        self.result.load.offered_requests += u64::from(self.counts(due_ns));
    }

    /// Records when a request that must wait for a connection was noticed.
    pub(super) fn noticed(&mut self, due_ns: u64, now_ns: u64) {
        if let Some(trace) = &self.trace {
            trace.late(due_ns, micros(now_ns.saturating_sub(due_ns)));
        }
        if self.counts(due_ns) {
            record(&mut self.result.lateness, now_ns.saturating_sub(due_ns));
        }
    }

    /// Records that a request was sent; `punctual` when a connection was free at its due time.
    pub(super) fn sent(&mut self, due_ns: u64, sent_ns: u64, punctual: bool) {
        if let Some(trace) = self.trace.as_ref().filter(|_| punctual) {
            trace.late(due_ns, micros(sent_ns.saturating_sub(due_ns)));
        }
        if self.counts(due_ns) {
            self.result.sent += 1;
            if punctual {
                record(&mut self.result.lateness, sent_ns.saturating_sub(due_ns));
            }
        }
    }

    /// Records a complete answer. One that arrives after the timeout counts as a timeout, whatever its status.
    pub(super) fn answered(&mut self, due_ns: u64, sent_ns: u64, end_ns: u64, status: u16) {
        if end_ns.saturating_sub(due_ns) >= self.timeout_ns {
            return self.timed_out(due_ns, Some(sent_ns), end_ns);
        }
        if !(200..300).contains(&status) {
            return self.failed(due_ns, Failure::Status);
        }
        if let Some(trace) = &self.trace {
            let (latency, service) = (end_ns.saturating_sub(due_ns), end_ns.saturating_sub(sent_ns));
            trace.ended(due_ns, micros(latency), Some(micros(service)), Outcome::Answered);
        }
        if self.counts(due_ns) {
            self.result.completed += 1;
            self.in_time += u64::from(end_ns <= self.until_ns);
            if end_ns <= self.until_ns {
                self.series.answered(end_ns.saturating_sub(self.from_ns));
            }
            self.latency(due_ns, end_ns.saturating_sub(due_ns));
            record(&mut self.result.service, end_ns.saturating_sub(sent_ns));
        }
    }

    /// Records a timeout; `sent_ns` is `None` for a request that never got a connection.
    pub(super) fn timed_out(&mut self, due_ns: u64, sent_ns: Option<u64>, now_ns: u64) {
        if let Some(trace) = &self.trace {
            let service = sent_ns.map(|sent_ns| micros(now_ns.saturating_sub(sent_ns)));
            trace.ended(due_ns, micros(self.timeout_ns), service, Outcome::TimedOut);
        }
        if self.counts(due_ns) {
            self.result.load.timeouts += 1;
            self.latency(due_ns, self.timeout_ns);
            if let Some(sent_ns) = sent_ns {
                record(&mut self.result.service, now_ns.saturating_sub(sent_ns));
            }
        }
    }

    pub(super) fn failed(&mut self, due_ns: u64, failure: Failure) {
        if let Some(trace) = &self.trace {
            trace.ended(due_ns, 0, None, Outcome::Failed);
        }
        if self.counts(due_ns) {
            self.series.failed(due_ns - self.from_ns);
            let kinds = &mut self.result.error_kinds;
            *match failure {
                Failure::Status => &mut kinds.status,
                Failure::Closed => &mut kinds.closed,
                Failure::Malformed => &mut kinds.malformed,
                Failure::Backlog => &mut kinds.backlog,
                Failure::Io => &mut kinds.io,
            } += 1;
        }
    }

    fn latency(&mut self, due_ns: u64, ns: u64) {
        let us = micros(ns);
        self.result.latency.saturating_record(us);
        self.series.latency(due_ns - self.from_ns, us);
    }

    /// No request due before `due_ns` is in flight any more.
    pub(super) fn settled_before(&mut self, due_ns: u64) {
        if let Some(trace) = &self.trace {
            trace.settled_before(due_ns);
        }
        if due_ns >= self.close_ns {
            self.series.close_before(due_ns.min(self.until_ns) - self.from_ns);
            self.close_ns += SECOND_NS;
        }
    }

    /// Ends the window now: requests due later are not counted.
    pub(super) fn cut(&mut self, now_ns: u64) {
        self.until_ns = now_ns.clamp(self.from_ns, self.until_ns);
        self.result.measured_s = (self.until_ns - self.from_ns) as f64 / 1e9;
        self.result.cut = true;
    }

    pub(super) fn finish(mut self) -> LoadResult {
        let measured_ns = self.until_ns - self.from_ns;
        self.result.series = self.series.finish(measured_ns, micros(self.timeout_ns));
        // A window that was cut at once has no rate; this avoids 0 / 0.
        let seconds = self.result.measured_s.max(1e-9);
        let load = &mut self.result.load;
        load.errors = self.result.error_kinds.total();
        load.offered_per_s = Some(load.offered_requests as f64 / seconds);
        load.achieved_per_s = Some(self.in_time as f64 / seconds);
        self.result
    }
}

/// Nanoseconds of a duration; 584 years at most.
pub(super) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn record(histogram: &mut Histogram<u64>, ns: u64) {
    histogram.saturating_record(micros(ns));
}

fn micros(ns: u64) -> u64 {
    (ns.saturating_add(500) / 1000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Warm-up 1 s, window 2 s, timeout 500 ms.
    fn recorder() -> Recorder {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let mut spec = LoadSpec::new(addr, "/", 10.0, Duration::from_secs(2));
        spec.warmup = Duration::from_secs(1);
        spec.timeout = Duration::from_millis(500);
        Recorder::new(&spec).expect("bounds")
    }

    #[test]
    fn the_intended_start_decides_what_counts() {
        let mut r = recorder();
        for due in [0, S - 1, S, 3 * S - 1, 3 * S] {
            r.due(due);
            r.sent(due, due + MS, true);
            r.answered(due, due + MS, due + 3 * MS, 200);
        }
        let r = r.finish();
        assert_eq!((r.load.offered_requests, r.sent, r.completed, r.load.errors), (2, 2, 2, 0));
        assert_eq!((r.latency.len(), r.service.len(), r.lateness.len()), (2, 2, 2));
        assert_eq!((r.latency.max() / 10, r.service.max() / 10, r.lateness.max() / 10), (300, 200, 100));
        // The second was answered 3 ms after the window closed.
        assert_eq!((r.load.offered_per_s, r.load.achieved_per_s), (Some(1.0), Some(0.5)));
    }

    #[test]
    fn timeouts_enter_at_the_timeout_value_and_failures_stay_out() {
        let mut r = recorder();
        r.timed_out(S, None, S + 500 * MS);
        r.timed_out(S, Some(S + 400 * MS), S + 501 * MS);
        r.answered(S, S, S + 700 * MS, 200);
        r.answered(S, S, S + MS, 404);
        for f in [Failure::Closed, Failure::Malformed, Failure::Backlog, Failure::Io, Failure::Io] {
            r.failed(S, f);
        }
        let r = r.finish();
        let kinds = ErrorKinds { status: 1, closed: 1, malformed: 1, backlog: 1, io: 2 };
        assert_eq!((r.load.timeouts, r.completed, r.load.errors, r.error_kinds), (3, 0, 6, kinds));
        assert_eq!((r.latency.len(), r.service.len()), (3, 2));
        assert!(
            r.latency.equivalent(r.latency.max(), 500_000) && r.latency.equivalent(r.latency.min(), 500_000)
        );
    }

    #[test]
    fn a_request_that_waited_for_a_connection_is_not_the_generators_lateness() {
        let mut r = recorder();
        r.sent(S, S + 90 * MS, false);
        assert_eq!(r.finish().lateness.len(), 0);
    }
}
