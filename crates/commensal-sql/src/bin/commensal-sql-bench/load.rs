//! Load on a server: concurrent clients in a closed loop. Each client sends its next statement as soon as it has the
//! result of the previous one.
//!
//! The lab (commensal's tool for experiments) parses the output of [`Outcome::json`] (tool `json-lines`), so this
//! server can be the lab's online service.

use crate::client::{Client, ClientError};
use std::fmt::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Parameters of a load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Address of the server.
    pub address: SocketAddr,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
    /// The database; empty for none.
    pub database: String,
    /// Statements that each client sends first.
    pub setup: Vec<String>,
    /// Statements that the clients send in turn, repeatedly. Each client starts with a different statement.
    pub statements: Vec<String>,
    /// Number of concurrent clients.
    pub clients: usize,
    /// Total number of statements; `None` means no limit.
    pub most: Option<usize>,
}

/// Result of a statement.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Time from sending the statement to receiving the last row.
    pub took: Duration,
    /// Number of rows, or the error message.
    pub rows: Result<u64, String>,
}

impl Outcome {
    /// Formats the result as a line of JSON for the lab.
    #[must_use]
    pub fn json(&self) -> String {
        let mut line = format!("{{\"latency_us\": {}", self.took.as_micros());
        if self.rows.is_err() {
            line.push_str(", \"error\": true");
        }
        line.push('}');
        line
    }
}

/// Stops a load from another thread.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Stop {
    /// Closes all connections. Statements that still run count as neither finished nor failed.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    fn keep(&self, stream: TcpStream) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        if self.is_stopped() {
            self.stop();
        }
    }
}

/// Runs the load until it is stopped or complete, and calls `seen` with each result.
///
/// # Errors
/// A client cannot log in, a setup statement fails, or the server closes a connection. All other clients are then
/// stopped.
pub fn run(load: &Load, stop: &Stop, seen: &(dyn Fn(Outcome) + Sync)) -> Result<(), ClientError> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let one = |client| {
            let (next, stop) = (&next, &stop);
            scope.spawn(move || {
                let done = client_of(load, client, next, stop, seen);
                // A connection that `Stop` has closed is not an error.
                let done = if stop.is_stopped() { Ok(()) } else { done };
                if done.is_err() {
                    stop.stop();
                }
                done
            })
        };
        let clients: Vec<_> = (0..load.clients).map(one).collect();
        let gone = || ClientError::Protocol("a client's thread has panicked");
        clients.into_iter().try_for_each(|client| client.join().unwrap_or_else(|_| Err(gone())))
    })
}

fn client_of(
    load: &Load,
    number: usize,
    next: &AtomicUsize,
    stop: &Stop,
    seen: &(dyn Fn(Outcome) + Sync),
) -> Result<(), ClientError> {
    let mut client = Client::connect(load.address, &load.user, &load.password, &load.database)?;
    stop.keep(client.handle()?);
    for statement in &load.setup {
        client.fetch(statement)?;
    }
    let mut at = number;
    while !stop.is_stopped() && load.most.is_none_or(|most| next.fetch_add(1, SeqCst) < most) {
        let begun = Instant::now();
        let answer = client.run(&load.statements[at % load.statements.len()], &mut |_| {});
        let took = begun.elapsed();
        at += 1;
        match answer {
            Ok(rows) => seen(Outcome { took, rows: Ok(rows) }),
            Err(ClientError::Server { text, .. }) => seen(Outcome { took, rows: Err(text) }),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Latencies of finished statements.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Collects the latencies of the finished statements in these results.
    #[must_use]
    pub fn of(outcomes: &[Outcome]) -> Latencies {
        let finished = outcomes.iter().filter(|outcome| outcome.rows.is_ok());
        let mut all: Vec<Duration> = finished.map(|outcome| outcome.took).collect();
        all.sort();
        Latencies(all)
    }

    /// Returns a quantile: the smallest latency that at least this share of all latencies does not exceed. `None` if
    /// there are no latencies.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied()
    }
}

/// Formats a summary of a run as readable text.
#[must_use]
pub fn summary(outcomes: &[Outcome], seconds: f64) -> String {
    let latencies = Latencies::of(outcomes);
    let failed = outcomes.iter().filter(|outcome| outcome.rows.is_err()).count();
    let finished = outcomes.len() - failed;
    let mut text = format!(
        "{finished} finished and {failed} failed in {seconds:.1} s, {:.2} per second",
        finished as f64 / seconds.max(1e-9)
    );
    for (share, name) in [(0.5, "P50"), (0.95, "P95"), (0.99, "P99"), (1.0, "max")] {
        if let Some(latency) = latencies.quantile(share) {
            let _ = write!(text, ", {name} {:.1} ms", latency.as_secs_f64() * 1e3);
        }
    }
    if let Some(Err(error)) = outcomes.iter().map(|outcome| &outcome.rows).find(|rows| rows.is_err()) {
        let _ = write!(text, "\nfirst error: {error}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_were_seen() {
        let outcome = |ms, rows: Result<u64, String>| Outcome { took: Duration::from_millis(ms), rows };
        let mut outcomes: Vec<Outcome> = (1..=100).map(|ms| outcome(ms, Ok(1))).collect();
        outcomes.push(outcome(9_000, Err("no".to_owned())));
        let latencies = Latencies::of(&outcomes);
        for (share, ms) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(latencies.quantile(share), Some(Duration::from_millis(ms)), "{share}");
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
        let text = summary(&outcomes, 10.0);
        assert!(text.starts_with("100 finished and 1 failed in 10.0 s, 10.00 per second"), "{text}");
        assert!(text.ends_with("first error: no"), "{text}");
        assert_eq!(outcomes[100].json(), "{\"latency_us\": 9000000, \"error\": true}");
    }
}
