//! The measured window second by second, and what it says about a service level objective.
//!
//! A latency belongs to the second in which its request was due, an answer to the second in which it came: a stall
//! shows as a second without answers and as long latencies of the seconds that were due in it. While a second
//! still waits for answers it is a histogram; afterwards only its occupied buckets are kept.

use super::LoadResult;
use crate::record::{LatencyHistogram, Slo, SloSeen, Tick, new_histogram, percentile_us};
use hdrhistogram::{CreationError, Histogram};
use std::collections::VecDeque;

const SECOND_NS: u64 = 1_000_000_000;

/// The measured window, second by second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SecondSeries {
    /// One entry per second that has begun; the last may be shorter.
    pub seconds: Vec<Second>,
    /// The timeout of the run, microseconds.
    pub timeout_us: u64,
}

/// One second of the measured window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Second {
    /// Requests answered with 2xx in it.
    pub answered: u64,
    /// Requests that were due in it and failed otherwise than by timeout.
    pub failed: u64,
    /// Latencies of the requests that were due in it: microseconds and how many, ascending. Timeouts are in it at the
    /// timeout value.
    pub latency: Vec<(u32, u32)>,
}

impl Second {
    /// Adds the latencies to a histogram.
    pub fn add_to(&self, histogram: &mut LatencyHistogram) {
        for (us, count) in &self.latency {
            histogram.saturating_record_n(u64::from(*us), u64::from(*count));
        }
    }
}

impl LoadResult {
    /// The measured window second by second, in the form of the record. CPU use is not known here.
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

    /// How well an objective was kept. Windows are whole seconds: a length between is rounded up. A failed request
    /// counts as one that took until the timeout, and never as one that met the objective. Nothing is seen for an
    /// objective on throughput.
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

/// A second that still waits for answers.
#[derive(Debug, Default)]
struct Live {
    failed: u64,
    /// Made with the first latency.
    latency: Option<Histogram<u32>>,
}

/// Builds a [`SecondSeries`]; all times are nanoseconds since the begin of the measured window.
#[derive(Debug)]
pub(super) struct Writer {
    closed: Vec<Second>,
    /// The seconds after the closed ones.
    live: VecDeque<Live>,
    answered: Vec<u64>,
    /// An empty histogram to be used again.
    spare: Histogram<u32>,
}

impl Writer {
    pub(super) fn new() -> Result<Self, CreationError> {
        let spare = Histogram::new_with_bounds(1, super::record::TIME_US_MAX, 3)?;
        Ok(Self { closed: Vec::new(), live: VecDeque::new(), answered: Vec::new(), spare })
    }

    /// Index in `live`. A second is closed only when nothing of it is under way, so nothing is ever subtracted
    /// that is not there.
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

    /// No request that was due before is under way any more.
    pub(super) fn close_before(&mut self, due_ns: u64) {
        while self.closed.len() < second(due_ns) {
            self.close_one();
        }
    }

    fn close_one(&mut self) {
        let live = self.live.pop_front().unwrap_or_default();
        let mut second = Second { failed: live.failed, ..Second::default() };
        if let Some(mut latency) = live.latency {
            // 1 h in microseconds fits.
            let bucket = |v: hdrhistogram::iterators::IterationValue<u32>| {
                (u32::try_from(v.value_iterated_to()).unwrap_or(u32::MAX), v.count_at_value())
            };
            second.latency = latency.iter_recorded().map(bucket).collect();
            latency.reset();
            self.spare = latency;
        }
        self.closed.push(second);
    }

    /// The series of a window of this length.
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
