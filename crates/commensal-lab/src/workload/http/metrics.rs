//! The HTTP server's own metrics, in the Prometheus text format 0.0.4. The lab takes its results from the load
//! generator instead, because a server cannot know how long a request waited before the server read it.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The quantiles of the summary, which are those of the Group Identity experiment that this workload reproduces.
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

/// Shortest time that the histogram distinguishes, in nanoseconds (1 us). The histogram has three significant digits.
const TIME_NS_MIN: u64 = 1_000;
/// Longest time that the histogram records, in nanoseconds (1 h); a longer time is recorded as this one.
const TIME_NS_MAX: u64 = 3_600_000_000_000;

/// Counters since the start or the last reset.
#[derive(Debug)]
pub(super) struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    cpu_ns: Histogram<u64>,
    cpu_sum_ns: u128,
    requests: BTreeMap<(&'static str, u16), u64>,
}

impl Metrics {
    /// Creates empty metrics; returns `None` only if the histogram's bounds are invalid.
    pub(super) fn new() -> Option<Self> {
        let cpu_ns = Histogram::new_with_bounds(TIME_NS_MIN, TIME_NS_MAX, 3).ok()?;
        Some(Self { inner: Mutex::new(Inner { cpu_ns, cpu_sum_ns: 0, requests: BTreeMap::new() }) })
    }

    /// Counts one response. `path` is a route instead of the requested path, so that the number of labels stays small.
    pub(super) fn count(&self, path: &'static str, code: u16) {
        *self.lock().requests.entry((path, code)).or_default() += 1;
    }

    /// Records the duration of one successful `/cpu` request.
    pub(super) fn record_cpu(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut inner = self.lock();
        inner.cpu_ns.saturating_record(ns);
        inner.cpu_sum_ns += u128::from(ns);
    }

    /// Resets all counters, so that the next scrape contains only later values.
    pub(super) fn reset(&self) {
        let mut inner = self.lock();
        inner.cpu_ns.reset();
        inner.cpu_sum_ns = 0;
        inner.requests.clear();
    }

    /// Formats the metrics as exposition text.
    pub(super) fn render(&self) -> String {
        let inner = self.lock();
        let mut text = String::from(
            "# HELP http_response_time Duration of HTTP requests in seconds, from the parsed request to the \
             finished response, since the server started or since the last POST /reset. There is no sliding window: \
             two scrapes with a reset between them share no samples.\n\
             # TYPE http_response_time summary\n",
        );
        // Writing to a String cannot fail.
        for q in QUANTILES {
            let seconds = if inner.cpu_ns.is_empty() {
                "NaN".to_owned()
            } else {
                (inner.cpu_ns.value_at_quantile(q) as f64 / 1e9).to_string()
            };
            let _ = writeln!(text, "http_response_time{{path=\"/cpu\",quantile=\"{q}\"}} {seconds}");
        }
        let _ = writeln!(text, "http_response_time_sum{{path=\"/cpu\"}} {}", inner.cpu_sum_ns as f64 / 1e9);
        let _ = writeln!(text, "http_response_time_count{{path=\"/cpu\"}} {}", inner.cpu_ns.len());
        text.push_str("# HELP http_requests_total HTTP requests answered since the server started or since the last POST /reset.\n");
        text.push_str("# TYPE http_requests_total counter\n");
        for ((path, code), n) in &inner.requests {
            let _ = writeln!(text, "http_requests_total{{path=\"{path}\",code=\"{code}\"}} {n}");
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while counting leaves a count that is off by at most one, which is acceptable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
