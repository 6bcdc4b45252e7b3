//! The parameters of a load, and the reasons why a load has no result.
//!
//! A request is due at its intended start, which the schedule determines. The measured window is the part of the run
//! whose requests count. To spin is to poll for events without sleeping.

use super::limits::own_limit;
use super::schedule::Arrival;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Default time for which the generator spins before a request is due.
///
/// At 2 000 requests/s, spinning uses at most 10 % of one CPU. Median delay of the send, measured on a shared virtual
/// machine with two CPUs: 95 µs with plain sleep, 42 µs with a timer slack of 1 ns, 1 µs with this spin.
pub const SPIN: Duration = Duration::from_micros(50);

/// The mode of the load, which determines when requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Open loop: the schedule determines when to send a request, regardless of responses.
    #[default]
    Open,
    /// Closed loop: each of `concurrency` connections sends its next request after the response to its previous
    /// request. Use this mode to compare results with tools that support no other mode. Latency counts from the send,
    /// and a service that stalls gets fewer requests.
    Closed {
        /// Number of connections, 1 to 60 000. The generator then ignores `LoadSpec::connections`, `rate_per_s` and
        /// `arrival`.
        concurrency: usize,
    },
}

/// The parameters of a load: what to send, how fast, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSpec {
    /// Address of the server.
    pub addr: SocketAddr,
    /// Value of the `Host` header; `None` for the address.
    pub host: Option<String>,
    /// Request target: a path with an optional query, such as `/cpu?cpu=1&count=4000`.
    pub path: String,
    /// Requests per second over all connections; must be above 0.
    pub rate_per_s: f64,
    /// Distribution of the gaps between requests.
    pub arrival: Arrival,
    /// Seed of the schedule.
    pub seed: u64,
    /// Duration of the load before the measured window; requests of the warm-up do not count.
    pub warmup: Duration,
    /// Length of the measured window; must be above zero.
    pub measure: Duration,
    /// Number of connections, 1 to 60 000; the generator opens them before the start.
    pub connections: usize,
    /// Maximum number of requests that wait for a connection; any further request fails with an error of kind
    /// `backlog`.
    pub max_backlog: usize,
    /// Timeout of a request, counted from its intended start. After a timeout, the generator replaces the connection.
    pub timeout: Duration,
    /// Time for which the generator spins before a request is due; zero if the generator only sleeps.
    pub spin: Duration,
    /// Open or closed loop.
    pub mode: Mode,
    /// Effect of a stop flag that the caller sets within the measured window: if true, the run shortens the window and
    /// returns the results so far; otherwise, the run fails with [`LoadError::Stopped`].
    pub keep_partial: bool,
}

impl LoadSpec {
    /// Creates a spec with the defaults: Poisson arrivals, seed 1, warm-up 2 s, 64 connections, backlog 20 000, timeout
    /// 5 s, spin [`SPIN`], open loop.
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

    /// Returns the number of connections that the run opens.
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

    /// Checks that all values are within their ranges.
    ///
    /// # Errors
    /// [`LoadError::Spec`] with the first invalid key and its value.
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
                "must start with / and contain only printable ASCII without spaces",
            ),
            (
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic()),
                "host",
                format!("{host:?}"),
                "must contain only printable ASCII without spaces",
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

/// The two moments at which a run calls `on_measure`, so that the caller can read its own counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The measured window starts.
    MeasureStart,
    /// The measured window has ended; the run now waits for outstanding responses.
    MeasureEnd,
}

/// The reason why a run has no result. A failed request does not prevent a result, because the result counts failed
/// requests.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A parameter is out of range.
    #[error("{key} = {value}: {reason}")]
    Spec {
        /// The parameter.
        key: &'static str,
        /// The invalid value.
        value: String,
        /// The values that the parameter allows.
        reason: &'static str,
    },
    /// The generator could not open its connections before the start.
    #[error("cannot open {connections} connections to {addr}: {}", way_out(.source))]
    Connect {
        /// Address of the server.
        addr: SocketAddr,
        /// Number of connections requested.
        connections: usize,
        /// Error of the last connection that failed.
        source: io::Error,
    },
    /// The generator ran into a limit of its own when it tested whether the server responds.
    #[error("{0}")]
    OwnLimit(String),
    /// The server did not respond with status 2xx before the deadline.
    #[error("http://{addr}{path} did not respond with status 2xx in time; last attempt: {last}")]
    NotReady {
        /// Address of the server.
        addr: SocketAddr,
        /// The path that was requested.
        path: String,
        /// Result of the last attempt.
        last: String,
    },
    /// The caller set the stop flag before there was any result to keep.
    #[error("the load was stopped before its end")]
    Stopped,
    /// The service does not keep up with any rate that the search tried.
    #[error(
        "the service does not keep up even with {lowest_per_s:.0} requests/s, so no knee was found: find out first why the service is so slow"
    )]
    NoKnee {
        /// The lowest rate that the search tried (requests per second).
        lowest_per_s: f64,
    },
    /// Waiting for socket events failed.
    #[error("cannot wait for socket events")]
    Events(#[from] io::Error),
    /// The histograms could not be created.
    #[error("cannot create the histograms")]
    Histogram(#[from] hdrhistogram::CreationError),
}

fn way_out(error: &io::Error) -> String {
    own_limit(error).unwrap_or_else(|| "is the server running?".to_owned())
}

pub(super) fn request_text(host: &str, path: &str, connection: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n").into_bytes()
}
