//! What to send, how fast and for how long, and why a load fails.

use super::schedule::Arrival;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Default for how long to spin before a due time.
///
/// At 2 000 requests/s it costs 10 % of one CPU at most. Measured on a shared virtual machine with two CPUs, median
/// lateness: 95 us from plain sleep, 42 us with a timer slack of 1 ns, 1 us with this spin.
pub const SPIN: Duration = Duration::from_micros(50);

/// What decides when a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The schedule, regardless of answers.
    #[default]
    Open,
    /// The answers: each of `concurrency` connections sends the next request once the last one is answered. For
    /// comparison with tools that only do this; latency counts from the send, and a service that stalls gets fewer
    /// requests.
    Closed {
        /// Connections, 1 to 60 000; `LoadSpec::connections`, `rate_per_s` and `arrival` are then ignored.
        concurrency: usize,
    },
}

/// What to send, how fast, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSpec {
    /// The server.
    pub addr: SocketAddr,
    /// Value of the `Host` header; `None` is the address.
    pub host: Option<String>,
    /// Request target: a path with an optional query, such as `/cpu?cpu=1&count=4000`.
    pub path: String,
    /// Requests per second over all connections, above 0.
    pub rate_per_s: f64,
    /// Distribution of the arrivals.
    pub arrival: Arrival,
    /// Seed of the schedule.
    pub seed: u64,
    /// Load before the measured window; nothing of it is recorded.
    pub warmup: Duration,
    /// Length of the measured window, above zero.
    pub measure: Duration,
    /// Connections, opened before the start; 1 to 60 000.
    pub connections: usize,
    /// Most requests that may wait for a connection; the next one is an error of kind `backlog`.
    pub max_backlog: usize,
    /// A request without an answer this long after its intended start is a timeout; its connection is replaced.
    pub timeout: Duration,
    /// Poll without sleeping for this long before a due time; with zero, only sleep.
    pub spin: Duration,
    /// What decides when a request is sent.
    pub mode: Mode,
    /// Whether the stop flag, if set within the measured window, ends the window and keeps what was measured, instead
    /// of returning [`LoadError::Stopped`].
    pub keep_partial: bool,
}

impl LoadSpec {
    /// A spec with the defaults: Poisson, seed 1, warm-up 2 s, 64 connections, backlog 20 000, timeout 5 s,
    /// spin [`SPIN`].
    #[must_use]
    pub fn new(addr: SocketAddr, path: impl Into<String>, rate_per_s: f64, measure: Duration) -> Self {
        Self {
            addr,
            host: None,
            path: path.into(),
            rate_per_s,
            arrival: Arrival::Poisson,
            seed: 1,
            warmup: Duration::from_secs(2),
            measure,
            connections: 64,
            max_backlog: 20_000,
            timeout: Duration::from_secs(5),
            spin: SPIN,
            mode: Mode::Open,
            keep_partial: false,
        }
    }

    /// Number of connections that the run opens.
    #[must_use]
    pub fn pool(&self) -> usize {
        match self.mode {
            Mode::Open => self.connections,
            Mode::Closed { concurrency } => concurrency,
        }
    }

    pub(super) fn request(&self, connection: &str) -> Vec<u8> {
        let host = self.host.clone().unwrap_or_else(|| self.addr.to_string());
        request_text(&host, &self.path, connection)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`LoadError::Spec`] with the first impossible key and its value.
    pub fn validate(&self) -> Result<(), LoadError> {
        let hour = Duration::from_secs(3600);
        let day = hour * 24;
        let host = self.host.as_deref().unwrap_or("x");
        let checks: [(bool, &'static str, String, &'static str); 7] = [
            (
                self.mode != Mode::Open || (self.rate_per_s > 0.0 && self.rate_per_s <= 1e6),
                "rate_per_s",
                self.rate_per_s.to_string(),
                "must be above 0 and at most 1000000",
            ),
            (
                self.path.starts_with('/') && self.path.bytes().all(|b| b.is_ascii_graphic()),
                "path",
                format!("{:?}", self.path),
                "must start with / and hold printable ASCII without spaces",
            ),
            (
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic()),
                "host",
                format!("{host:?}"),
                "must hold printable ASCII without spaces",
            ),
            (
                self.measure > Duration::ZERO && self.measure <= day,
                "measure",
                format!("{:?}", self.measure),
                "must be above 0 and at most a day",
            ),
            (self.warmup <= day, "warmup", format!("{:?}", self.warmup), "must be at most a day"),
            (
                (1..=60_000).contains(&self.pool()),
                "connections",
                self.pool().to_string(),
                "must be 1 to 60000",
            ),
            (
                self.timeout >= Duration::from_millis(1) && self.timeout <= hour,
                "timeout",
                format!("{:?}", self.timeout),
                "must be 1 ms to 1 h, the range of the latency histogram",
            ),
        ];
        match checks.into_iter().find(|(fine, ..)| !fine) {
            Some((_, key, value, reason)) => Err(LoadError::Spec { key, value, reason }),
            None => Ok(()),
        }
    }
}

/// The two moments at which `on_measure` is called, for snapshots by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The measured window begins.
    MeasureStart,
    /// The measured window is over; draining follows.
    MeasureEnd,
}

/// Why a run gave no result. Failed requests are no such reason: they are counted.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A value that cannot be used.
    #[error("{key} = {value}: {reason}")]
    Spec {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        reason: &'static str,
    },
    /// The connections could not be opened before the start.
    #[error("cannot open {connections} connections to {addr}: is the server running?")]
    Connect {
        /// The server.
        addr: SocketAddr,
        /// How many were asked for.
        connections: usize,
        /// Error of the last connection that failed.
        source: io::Error,
    },
    /// The server was not ready in time.
    #[error("http://{addr}{path} did not answer 2xx in time; last attempt: {last}")]
    NotReady {
        /// The server.
        addr: SocketAddr,
        /// The path requested.
        path: String,
        /// Result of the last attempt.
        last: String,
    },
    /// The stop flag was set before there was anything to keep.
    #[error("the load was stopped before its end")]
    Stopped,
    /// The service does not keep up with any rate that was tried.
    #[error(
        "the service does not keep up even with {lowest_per_s:.0} requests/s, so it has no knee: look at it alone first"
    )]
    NoKnee {
        /// The lowest rate that was tried, requests per second.
        lowest_per_s: f64,
    },
    /// The event queue failed.
    #[error("cannot wait for socket events")]
    Events(#[from] io::Error),
    /// The histograms could not be made.
    #[error("cannot create the histograms")]
    Histogram(#[from] hdrhistogram::CreationError),
}

pub(super) fn request_text(host: &str, path: &str, connection: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n").into_bytes()
}
