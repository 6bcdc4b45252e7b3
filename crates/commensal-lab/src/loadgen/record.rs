//! Records the results of the load generator: three histograms and exact counts.
//!
//! A request is due at its intended start, which the schedule determines. A request counts in the measured window if
//! its due time is in the window. After the window, the run drains: waits for the outcomes of requests that were
//! already due.

use super::series::{SecondSeries, Writer};
use super::spec::{LoadSpec, Mode};
use super::trace::{Outcome, Trace};
use crate::record::{LoadFigures, SocketErrors};
use commensal_core::errno::Errno;
use hdrhistogram::{CreationError, Histogram};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound of recorded times: 1 h, in microseconds.
pub(super) const TIME_US_MAX: u64 = 3_600_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// Failed requests by kind; timeouts are counted separately.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ErrorKinds {
    /// Responses whose status is not 2xx.
    pub status: u64,
    /// Connections that the peer closed before the response was complete. A kept connection that the peer closed before
    /// the first byte of the response counts only in [`LoadFigures::resent`].
    pub closed: u64,
    /// Responses that are not valid HTTP/1.
    pub malformed: u64,
    /// Requests dropped because the client queue was full.
    pub backlog: u64,
    /// Other socket errors.
    pub io: u64,
    /// All socket errors by error number, including attempts to open a connection. These counts are no part of the
    /// total: a request that waits while attempts to connect fail has another outcome, such as a timeout.
    #[serde(default, skip_serializing_if = "SocketErrors::is_empty")]
    pub socket_errors: SocketErrors,
}

impl ErrorKinds {
    /// Returns the number of failed requests, which is the sum of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.status + self.closed + self.malformed + self.backlog + self.io
    }
}

/// The kind of a failure, with one variant per kind of [`ErrorKinds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Status,
    /// Without an error number if the peer closed the connection in order (FIN).
    Closed(Option<Errno>),
    Malformed,
    Backlog,
    Io(Errno),
}

/// Results of the measured window of one run. Each request that was due in the window counts exactly once: as
/// completed, as an error or as a timeout. Requests of the warm-up do not count.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Requests offered and their outcomes. Responses that arrive in the drain count in `completed` but not in the
    /// achieved load. In a closed loop, the offered load is the number of requests sent.
    pub load: LoadFigures,
    /// Requests written to a connection.
    pub sent: u64,
    /// Requests answered with 2xx within the timeout.
    pub completed: u64,
    /// Number of errors by kind.
    pub error_kinds: ErrorKinds,
    /// Time from the intended start to the last byte of the response (µs), for `completed` requests. The histogram
    /// includes each timed-out request with the timeout as its value. It excludes failed requests: an error that a
    /// server returns quickly is not a fast response.
    pub latency: Histogram<u64>,
    /// Time from the actual send to the last byte of the response (µs), which is what a closed-loop client would
    /// report. The histogram includes each request that timed out after its send, with the time since the send as a
    /// lower bound.
    pub service: Histogram<u64>,
    /// The delay that the generator itself added (µs). For a request that found a free connection when it was due, this
    /// is the time from the intended start to the actual send. For a request that had to wait for a connection, this is
    /// the time from the intended start until the generator noticed the due request. (A generator that gets no CPU
    /// reads no responses, so it also finds its connections busy.)
    pub lateness: Histogram<u64>,
    /// Length of the measured window (seconds).
    pub measured_s: f64,
    /// CPU time of the generator's thread within the window (seconds).
    pub generator_cpu_s: f64,
    /// Number of connections that were reopened in the whole run, including warm-up and drain.
    pub reconnects: u64,
    /// In a closed loop, the number of requests in flight; `None` in an open loop. In a closed loop, latency counts
    /// from the send, and the latencies understate stalls, because the generator does not send requests during a stall.
    pub closed: Option<usize>,
    /// Whether the caller's stop flag cut the window short.
    pub cut: bool,
    /// Results of the window, second by second.
    pub series: SecondSeries,
}

impl LoadResult {
    /// Returns the field `load`, but without an offered rate if the load was a closed loop.
    #[must_use]
    pub fn scheduled(&self) -> LoadFigures {
        LoadFigures { offered_per_s: self.load.offered_per_s.filter(|_| self.closed.is_none()), ..self.load }
    }
}

/// Builds a [`LoadResult`]; all times are in nanoseconds since the start of the schedule.
#[derive(Debug)]
pub(super) struct Recorder {
    from_ns: u64,
    until_ns: u64,
    timeout_ns: u64,
    in_time: u64,
    series: Writer,
    /// The next due time (ns) at which the recorder closes a second of `series`.
    close_ns: u64,
    /// Receives the outcome of every request, including requests outside the measured window.
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

    /// Whether a request with this due time counts in the measured window.
    fn counts(&self, due_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&due_ns)
    }

    pub(super) fn due(&mut self, due_ns: u64) {
        self.result.load.offered_requests += u64::from(self.counts(due_ns));
    }

    /// Records that the generator noticed a due request which has to wait for a connection.
    pub(super) fn noticed(&mut self, due_ns: u64, now_ns: u64) {
        if let Some(trace) = &self.trace {
            trace.late(due_ns, micros(now_ns.saturating_sub(due_ns)));
        }
        if self.counts(due_ns) {
            record(&mut self.result.lateness, now_ns.saturating_sub(due_ns));
        }
    }

    /// Records that the generator sent a request; `punctual` is true if a connection was free at the due time.
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

    /// Records a complete response. A response that arrives after the timeout counts as a timeout, regardless of its
    /// status.
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

    /// Records a timeout; `sent_ns` is `None` for a request that was never sent.
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
        let errno = match failure {
            Failure::Closed(errno) => errno,
            Failure::Io(errno) => Some(errno),
            Failure::Status | Failure::Malformed | Failure::Backlog => None,
        };
        if let Some(trace) = &self.trace {
            trace.ended(due_ns, 0, None, Outcome::Failed);
            if let Some(errno) = errno {
                trace.socket_error(due_ns, errno);
            }
        }
        if self.counts(due_ns) {
            self.series.failed(due_ns - self.from_ns);
            let kinds = &mut self.result.error_kinds;
            *match failure {
                Failure::Status => &mut kinds.status,
                Failure::Closed(_) => &mut kinds.closed,
                Failure::Malformed => &mut kinds.malformed,
                Failure::Backlog => &mut kinds.backlog,
                Failure::Io(_) => &mut kinds.io,
            } += 1;
            if let Some(errno) = errno {
                kinds.socket_errors.add(errno);
            }
        }
    }

    /// Records that the generator opens a new connection to send a request again.
    pub(super) fn resent(&mut self, due_ns: u64) {
        if let Some(trace) = &self.trace {
            trace.resent(due_ns);
        }
        self.result.load.resent += u64::from(self.counts(due_ns));
    }

    /// Records that a connection could not be opened, so that requests have to wait. Such attempts count from the start
    /// of the measured window to the end of the drain, because a request that was due in the window may still wait.
    pub(super) fn not_connected(&mut self, now_ns: u64, errno: Errno) {
        if let Some(trace) = &self.trace {
            trace.socket_error(now_ns, errno);
        }
        if now_ns >= self.from_ns {
            self.result.error_kinds.socket_errors.add(errno);
        }
    }

    fn latency(&mut self, due_ns: u64, ns: u64) {
        let us = micros(ns);
        self.result.latency.saturating_record(us);
        self.series.latency(due_ns - self.from_ns, us);
    }

    /// Records that every request due before `due_ns` has its outcome.
    pub(super) fn settled_before(&mut self, due_ns: u64) {
        if let Some(trace) = &self.trace {
            trace.settled_before(due_ns);
        }
        if due_ns >= self.close_ns {
            self.series.close_before(due_ns.min(self.until_ns) - self.from_ns);
            self.close_ns += SECOND_NS;
        }
    }

    /// Ends the measured window now; requests with later due times do not count.
    pub(super) fn cut(&mut self, now_ns: u64) {
        self.until_ns = now_ns.clamp(self.from_ns, self.until_ns);
        self.result.measured_s = (self.until_ns - self.from_ns) as f64 / 1e9;
        self.result.cut = true;
    }

    pub(super) fn finish(mut self) -> LoadResult {
        let measured_ns = self.until_ns - self.from_ns;
        self.result.series = self.series.finish(measured_ns, micros(self.timeout_ns));
        // If the window ends as soon as it starts, its length is 0; the minimum avoids 0 / 0.
        let seconds = self.result.measured_s.max(1e-9);
        let load = &mut self.result.load;
        load.errors = self.result.error_kinds.total();
        load.offered_per_s = Some(load.offered_requests as f64 / seconds);
        load.achieved_per_s = Some(self.in_time as f64 / seconds);
        self.result
    }
}

/// Converts a duration to nanoseconds; durations above 584 years become `u64::MAX`.
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

    /// A recorder with a warm-up of 1 s, a window of 2 s and a timeout of 500 ms.
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
        // The response to the second request arrived 3 ms after the window had closed.
        assert_eq!((r.load.offered_per_s, r.load.achieved_per_s), (Some(1.0), Some(0.5)));
    }

    #[test]
    fn timeouts_enter_at_the_timeout_value_and_failures_stay_out() {
        let mut r = recorder();
        r.timed_out(S, None, S + 500 * MS);
        r.timed_out(S, Some(S + 400 * MS), S + 501 * MS);
        r.answered(S, S, S + 700 * MS, 200);
        r.answered(S, S, S + MS, 404);
        let refused = Failure::Io(Errno::ECONNREFUSED);
        for f in [Failure::Closed(None), Failure::Malformed, Failure::Backlog, refused, refused] {
            r.failed(S, f);
        }
        let r = r.finish();
        let mut socket_errors = SocketErrors::default();
        (0..2).for_each(|_| socket_errors.add(Errno::ECONNREFUSED));
        let kinds = ErrorKinds { status: 1, closed: 1, malformed: 1, backlog: 1, io: 2, socket_errors };
        assert_eq!((r.load.timeouts, r.completed, r.load.errors, r.error_kinds), (3, 0, 6, kinds));
        assert_eq!((r.latency.len(), r.service.len()), (3, 2));
        assert!(
            r.latency.equivalent(r.latency.max(), 500_000) && r.latency.equivalent(r.latency.min(), 500_000)
        );
    }

    #[test]
    fn every_socket_error_of_the_window_and_of_the_drain_is_counted() {
        let mut r = recorder();
        // The warm-up ends at 1 s, and the window at 3 s.
        for now_ns in [0, S - 1, S, 2 * S, 4 * S] {
            r.not_connected(now_ns, Errno::EADDRNOTAVAIL);
        }
        for due_ns in [S - 1, S, 3 * S - 1, 3 * S] {
            r.failed(due_ns, Failure::Closed(Some(Errno::ECONNRESET)));
            r.failed(due_ns, Failure::Closed(None));
            r.failed(due_ns, Failure::Io(Errno::EPERM));
            r.resent(due_ns);
        }
        let r = r.finish();
        assert_eq!(
            r.error_kinds.socket_errors.counts().collect::<Vec<_>>(),
            [("EADDRNOTAVAIL", 3), ("ECONNRESET", 2), ("EPERM", 2)]
        );
        assert_eq!((r.error_kinds.closed, r.error_kinds.io, r.load.errors, r.load.resent), (4, 2, 6, 2));
    }

    #[test]
    fn a_request_that_waited_for_a_connection_is_not_the_generators_lateness() {
        let mut r = recorder();
        r.sent(S, S + 90 * MS, false);
        assert_eq!(r.finish().lateness.len(), 0);
    }
}
