//! The measured window of a load as a series of seconds, and its evaluation against a service level objective.
//!
//! A request is due at its intended start, which the schedule determines. A latency counts in the second in which its
//! request was due, a response in the second in which it arrived. A stall therefore shows as a second without
//! responses, and as long latencies of the requests that were due in that second. While responses to requests of a
//! second are still outstanding, a histogram holds the latencies of that second; afterwards, the series keeps only the
//! non-empty buckets.

use super::LoadResult;
use crate::record::{LatencyHistogram, Slo, SloSeen, Tick, new_histogram, percentile_us};
use hdrhistogram::{CreationError, Histogram};
use std::collections::VecDeque;

const SECOND_NS: u64 = 1_000_000_000;

/// The measured window, second by second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SecondSeries {
    /// One entry per second of the window; the last second may be shorter.
    pub seconds: Vec<Second>,
    /// Timeout of the requests (µs).
    pub timeout_us: u64,
}

/// One second of the measured window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Second {
    /// Number of requests answered with 2xx in this second.
    pub answered: u64,
    /// Number of requests that were due in this second and failed, excluding timeouts.
    pub failed: u64,
    /// Latencies of the requests that were due in this second, as pairs of microseconds and count, ascending. A
    /// timed-out request is included with the timeout as its latency.
    pub latency: Vec<(u32, u32)>,
}

impl Second {
    /// Adds this second's latencies to a histogram.
    pub fn add_to(&self, histogram: &mut LatencyHistogram) {
        for (us, count) in &self.latency {
            histogram.saturating_record_n(u64::from(*us), u64::from(*count));
        }
    }
}

impl LoadResult {
    /// Returns one entry per second of the window, in the form that the record of a run uses. The entries lack the CPU
    /// use, which the caller adds.
    #[must_use]
    pub fn ticks(&self) -> Vec<Tick> {
        let Ok(mut histogram) = new_histogram() else { return Vec::new() };
        let tick = |(i, second): (usize, &Second)| {
            histogram.reset();
            second.add_to(&mut histogram);
            let begin_s = i as f64;
            let t_s = (begin_s + 1.0).min(self.measured_s);
            Tick {
                t_s,
                qps: (t_s > begin_s).then(|| second.answered as f64 / (t_s - begin_s)),
                p50_us: percentile_us(&histogram, 0.5),
                p99_us: percentile_us(&histogram, 0.99),
                ..Tick::default()
            }
        };
        self.series.seconds.iter().enumerate().map(tick).collect()
    }

    /// Evaluates an objective: a latency that a percentile of every window must stay within. Window lengths are whole
    /// seconds, and other lengths are rounded up. A failed request counts with the timeout as its latency, and as a
    /// request that did not meet the objective. For an objective on throughput, the result is empty.
    #[must_use]
    pub fn slo(&self, slo: &Slo) -> SloSeen {
        let mut seen = SloSeen::default();
        let (Some(quantile), Ok(mut histogram)) = (slo.metric.quantile(), new_histogram()) else {
            return seen;
        };
        let window = slo.window_s.clamp(1.0, 86_400.0).ceil() as usize;
        let (mut met, mut all, mut miss_s) = (0u64, 0u64, 0.0);
        for (i, seconds) in self.series.seconds.chunks(window).enumerate() {
            histogram.reset();
            seconds.iter().for_each(|second| second.add_to(&mut histogram));
            let latency_us = slo.latency_us.max(0.0) as u64;
            met += if latency_us == 0 { 0 } else { histogram.count_between(1, latency_us) };
            let failed: u64 = seconds.iter().map(|second| second.failed).sum();
            histogram.saturating_record_n(self.series.timeout_us, failed);
            let Some(us) = percentile_us(&histogram, quantile) else { continue };
            all += histogram.len();
            seen.windows += 1;
            seen.worst_us = seen.worst_us.max(us);
            if us <= slo.latency_us {
                seen.met += 1;
                miss_s = 0.0;
            } else {
                let begin_s = (i * window) as f64;
                miss_s += (begin_s + window as f64).min(self.measured_s) - begin_s;
                seen.longest_miss_s = seen.longest_miss_s.max(miss_s);
            }
        }
        seen.requests_met_pct = met as f64 / all.max(1) as f64 * 100.0;
        seen
    }
}

/// A second for which responses are still outstanding.
#[derive(Debug, Default)]
struct Live {
    failed: u64,
    /// Histogram of the latencies; `None` until the first latency.
    latency: Option<Histogram<u32>>,
}

/// Builds a [`SecondSeries`]; all times are in nanoseconds since the start of the measured window.
#[derive(Debug)]
pub(super) struct Writer {
    closed: Vec<Second>,
    /// The seconds that the writer has not closed yet.
    live: VecDeque<Live>,
    answered: Vec<u64>,
    /// An empty histogram that the next second can reuse.
    spare: Histogram<u32>,
}

impl Writer {
    pub(super) fn new() -> Result<Self, CreationError> {
        let spare = Histogram::new_with_bounds(1, super::record::TIME_US_MAX, 3)?;
        Ok(Self { closed: Vec::new(), live: VecDeque::new(), answered: Vec::new(), spare })
    }

    /// Returns the index in `live` of the second that contains `due_ns`. The writer closes a second only when none of
    /// its requests is in flight, so the subtraction does not saturate.
    fn at(&mut self, due_ns: u64) -> usize {
        let at = second(due_ns).saturating_sub(self.closed.len());
        if self.live.len() <= at {
            self.live.resize_with(at + 1, Live::default);
        }
        at
    }

    pub(super) fn latency(&mut self, due_ns: u64, us: u64) {
        let at = self.at(due_ns);
        let spare = &self.spare;
        self.live[at].latency.get_or_insert_with(|| spare.clone()).saturating_record(us);
    }

    pub(super) fn failed(&mut self, due_ns: u64) {
        let at = self.at(due_ns);
        self.live[at].failed += 1;
    }

    pub(super) fn answered(&mut self, end_ns: u64) {
        let at = second(end_ns);
        if self.answered.len() <= at {
            self.answered.resize(at + 1, 0);
        }
        self.answered[at] += 1;
    }

    /// Closes the seconds before `due_ns`, because all requests that were due in those seconds have their outcome.
    pub(super) fn close_before(&mut self, due_ns: u64) {
        while self.closed.len() < second(due_ns) {
            self.close_one();
        }
    }

    fn close_one(&mut self) {
        let live = self.live.pop_front().unwrap_or_default();
        let mut second = Second { failed: live.failed, ..Second::default() };
        if let Some(mut latency) = live.latency {
            // One hour in microseconds fits into u32.
            let bucket = |v: hdrhistogram::iterators::IterationValue<u32>| {
                (u32::try_from(v.value_iterated_to()).unwrap_or(u32::MAX), v.count_at_value())
            };
            second.latency = latency.iter_recorded().map(bucket).collect();
            latency.reset();
            self.spare = latency;
        }
        self.closed.push(second);
    }

    /// Returns the series of a window of this length.
    pub(super) fn finish(mut self, measured_ns: u64, timeout_us: u64) -> SecondSeries {
        let count = usize::try_from(measured_ns.div_ceil(SECOND_NS)).unwrap_or(usize::MAX);
        self.close_before(count as u64 * SECOND_NS);
        self.closed.truncate(count);
        for (second, answered) in self.closed.iter_mut().zip(&self.answered) {
            second.answered = *answered;
        }
        SecondSeries { seconds: self.closed, timeout_us }
    }
}

fn second(ns: u64) -> usize {
    usize::try_from(ns / SECOND_NS).unwrap_or(usize::MAX)
}
