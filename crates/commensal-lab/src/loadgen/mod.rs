//! Load generator for HTTP/1.1 GET requests: open loop by default, closed loop on request.
//!
//! In an open loop, each request is due at a time that a [`Schedule`] fixes in advance, independent of responses.
//! Latency counts from that due time (the *intended* start), not from the actual send. If a service stalls for 500 ms,
//! the requests that become due during the stall therefore count as slow. A closed-loop client sends a request only
//! after the previous response. So the client would not send these requests, and would understate the stall
//! (coordinated omission). The generator records its own delay in sending as `lateness`, and [`invalid_reasons`]
//! reports a lateness that is too large.
//!
//! One thread uses non-blocking sockets. Each request uses the connection that has been idle longest, so that every
//! connection stays in use. If no connection is free, the request waits in a client queue and keeps its due time. The
//! timeout also counts from the due time, so every request has an outcome by then. The run ends with a drain, which
//! waits for outstanding outcomes and therefore lasts at most one timeout.
//!
//! A server may end a kept connection at any time, also while a request is on its way. Like other clients, the generator
//! then sends the request once more, on a new connection (RFC 9112, section 9.3.1), and counts it in
//! [`LoadFigures::resent`](crate::record::LoadFigures::resent) instead of as an error. Its latency and its timeout still
//! count from its due time.
//!
//! The caller sets the scheduling policy of the thread; SCHED_FIFO with priority 1 gives the least lateness.

mod conn;
mod engine;
mod knee;
mod limits;
mod poller;
mod pool;
mod record;
mod report;
mod requests;
mod response;
mod schedule;
mod series;
mod spec;
#[cfg(test)]
mod tests;
mod trace;
mod validity;

pub use knee::{Knee, KneeEnd, KneeLimits, KneePoint, knee};
pub use record::{ErrorKinds, LoadResult};
pub use report::{Asked, LoadReport, REPORT_SCHEMA, SloAnswer, Spread, interval_log};
pub use schedule::{Arrival, Schedule};
pub use series::{Second, SecondSeries};
use spec::request_text;
pub use spec::{LoadError, LoadSpec, Mode, Phase, SPIN};
pub use trace::{Gathered, Outcome, Sample, Trace};
pub use validity::{
    ACHIEVED_SHARE_MIN, FAILED_SHARE_OVER_BASELINE_MAX, LATE, LATENESS_FLOOR_US, LATENESS_SHARE_MAX,
    LoadBaseline, LoadEvidence, NOT_KEPT_UP, in_time, invalid_reasons,
};

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs one load: opens the connections, warms up, measures, and drains.
///
/// Calls `on_measure` on the generator's thread at the start and at the end of the measured window; a slow `on_measure`
/// therefore delays requests. Setting `stop` aborts the run within 50 ms. With [`LoadSpec::keep_partial`], setting
/// `stop` in the measured window shortens the window instead.
///
/// # Errors
/// If the spec is invalid, the connections cannot be opened, or `stop` is set while there is no partial result to keep.
pub fn run(
    spec: &LoadSpec,
    stop: &AtomicBool,
    on_measure: &mut dyn FnMut(Phase),
) -> Result<LoadResult, LoadError> {
    spec.validate()?;
    engine::Engine::new(spec)?.run(stop, on_measure)
}

/// Like [`run`], but also reports every request to `trace` when it finishes, including requests of the warm-up and the
/// drain.
///
/// # Errors
/// See [`run`].
pub fn run_traced(
    spec: &LoadSpec,
    trace: &Arc<Trace>,
    stop: &AtomicBool,
    on_measure: &mut dyn FnMut(Phase),
) -> Result<LoadResult, LoadError> {
    spec.validate()?;
    engine::Engine::new(spec)?.traced(trace).run(stop, on_measure)
}

/// Requests `path` repeatedly until the server responds with status 2xx.
///
/// # Errors
/// [`LoadError::NotReady`] with the result of the last attempt if the deadline passes first.
pub fn wait_ready(addr: SocketAddr, path: &str, deadline: Instant) -> Result<(), LoadError> {
    /// Pause between two attempts, and minimum timeout of one attempt.
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        let patience =
            deadline.saturating_duration_since(Instant::now()).clamp(PAUSE, Duration::from_secs(1));
        let last = match probe(&request_text(&addr.to_string(), path, "close"), addr, patience) {
            Ok(200..=299) => return Ok(()),
            Ok(status) => format!("status {status}"),
            Err(e) => e.to_string(),
        };
        if Instant::now() + PAUSE >= deadline {
            return Err(LoadError::NotReady { addr, path: path.to_owned(), last });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Sends one request with the path, host and timeout of `spec`, to test whether the server responds.
///
/// # Errors
/// [`LoadError::NotReady`] if the response is not 2xx or the request fails; [`LoadError::OwnLimit`] if the request fails
/// because of a limit of the generator itself; [`LoadError::Spec`] if the spec is invalid.
pub fn look(spec: &LoadSpec) -> Result<(), LoadError> {
    spec.validate()?;
    let last = match probe(&spec.request("close"), spec.addr, spec.timeout) {
        Ok(200..=299) => return Ok(()),
        Ok(status) => format!("status {status}"),
        Err(e) => match limits::own_limit(&e) {
            Some(sentence) => return Err(LoadError::OwnLimit(sentence)),
            None => e.to_string(),
        },
    };
    Err(LoadError::NotReady { addr: spec.addr, path: spec.path.clone(), last })
}

/// Sends one request on a new connection; returns the response's status.
fn probe(request: &[u8], addr: SocketAddr, patience: Duration) -> io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&addr, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(request)?;
    let mut parser = response::Parser::default();
    let mut buffer = [0u8; 4096];
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP/1.1");
    loop {
        let answer = match stream.read(&mut buffer)? {
            0 => Some(parser.end().ok_or(io::ErrorKind::UnexpectedEof)?),
            n => parser.feed(&buffer[..n]).map_err(|_| malformed())?,
        };
        if let Some(answer) = answer {
            return Ok(answer.status);
        }
    }
}
