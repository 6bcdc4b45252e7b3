//! Load generator for HTTP/1.1 GET, open loop unless told otherwise.
//!
//! One thread, non-blocking sockets. Requests are due on a [`Schedule`] that never looks at answers, and latency
//! is counted from the *intended* start: a service that stalls for 500 ms also delays the requests that would have
//! come meanwhile, and a closed-loop client would never send those (coordinated omission). What the generator
//! itself adds is kept apart as `lateness`, and [`invalid_reasons`] says when that is too much.
//!
//! A request takes the connection that has been idle longest, so every connection stays in use. Without a
//! free one it waits in a client queue with its due time kept. The timeout runs from the intended start
//! too: every request has its outcome by then, which also bounds the drain at the end.
//!
//! The caller sets the scheduling class of the thread; SCHED_FIFO 1 gives the least lateness.

mod conn;
mod engine;
mod knee;
mod record;
mod report;
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
    ACHIEVED_SHARE_MIN, FAILED_SHARE_OVER_BASELINE_MAX, LATENESS_FLOOR_US, LATENESS_SHARE_MAX, LoadBaseline,
    LoadEvidence, invalid_reasons,
};

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs one block: connections, warm-up, measured window, drain.
///
/// `on_measure` is called on this thread at the start and the end of the measured window; the time it takes delays
/// requests. Setting `stop` aborts within 50 ms, or with `keep_partial` ends the window there.
///
/// # Errors
/// When the spec is impossible, the pool cannot be opened, or `stop` is set.
pub fn run(
    spec: &LoadSpec,
    stop: &AtomicBool,
    on_measure: &mut dyn FnMut(Phase),
) -> Result<LoadResult, LoadError> {
    spec.validate()?;
    engine::Engine::new(spec)?.run(stop, on_measure)
}

/// Like [`run`], but also calls `trace` for every request that ends, including those of the warm-up and the drain.
///
/// # Errors
/// As [`run`].
pub fn run_traced(
    spec: &LoadSpec,
    trace: &Arc<Trace>,
    stop: &AtomicBool,
    on_measure: &mut dyn FnMut(Phase),
) -> Result<LoadResult, LoadError> {
    spec.validate()?;
    engine::Engine::new(spec)?.traced(trace).run(stop, on_measure)
}

/// Requests `path` until the server answers 2xx.
///
/// # Errors
/// [`LoadError::NotReady`] at the deadline, with the result of the last attempt.
pub fn wait_ready(addr: SocketAddr, path: &str, deadline: Instant) -> Result<(), LoadError> {
    /// Pause between attempts, and the shortest timeout of one.
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

/// Sends one request as the spec describes it, with its timeout.
///
/// # Errors
/// [`LoadError::NotReady`] unless the answer is 2xx.
pub fn look(spec: &LoadSpec) -> Result<(), LoadError> {
    spec.validate()?;
    let last = match probe(&spec.request("close"), spec.addr, spec.timeout) {
        Ok(200..=299) => return Ok(()),
        Ok(status) => format!("status {status}"),
        Err(e) => e.to_string(),
    };
    Err(LoadError::NotReady { addr: spec.addr, path: spec.path.clone(), last })
}

/// Sends one request on a connection of its own; returns the status.
fn probe(request: &[u8], addr: SocketAddr, patience: Duration) -> io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&addr, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(request)?;
    let mut parser = response::Parser::default();
    let mut buffer = [0u8; 4096];
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP/1.1");
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
