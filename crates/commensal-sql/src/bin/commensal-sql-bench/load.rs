//! Load on a server: clients that ask at the same time, each its next statement as soon as it has the answer.
//!
//! The lab reads what [`Outcome::json`] prints (tool `json-lines`), so that a server of ours can be its online side.

use crate::client::{Client, ClientError};
use std::fmt::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who asks what.
#[derive(Debug, Clone)]
pub struct Load {
    /// Where the server listens.
    pub address: SocketAddr,
    /// As whom.
    pub user: String,
    /// With which password.
    pub password: String,
    /// The database; empty for none.
    pub database: String,
    /// What each client says first.
    pub setup: Vec<String>,
    /// What they ask, one after the other and then again; each client begins at another one.
    pub statements: Vec<String>,
    /// Clients at the same time.
    pub clients: usize,
    /// Statements in all, if there is an end to them.
    pub most: Option<usize>,
}

/// What came of a statement.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// From sending to the last row.
    pub took: Duration,
    /// Rows, or the error's text.
    pub rows: Result<u64, String>,
}

impl Outcome {
    /// A line for the lab.
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

/// Ends load from another thread.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Stop {
    /// Closes all connections; what runs counts as neither finished nor failed.
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

/// Runs load until it is stopped or at its end, and hands over each outcome as it comes.
///
/// # Errors
/// A client cannot log in, a statement of its setup fails, or the server goes away; the others are stopped then.
pub fn run(load: &Load, stop: &Stop, seen: &(dyn Fn(Outcome) + Sync)) -> Result<(), ClientError> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let one = |client| {
            let (next, stop) = (&next, &stop);
            scope.spawn(move || {
                let done = client_of(load, client, next, stop, seen);
                // A connection that we have closed ourselves is no trouble.
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

/// Latencies of what has finished.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Of these.
    #[must_use]
    pub fn of(outcomes: &[Outcome]) -> Latencies {
        let finished = outcomes.iter().filter(|outcome| outcome.rows.is_ok());
        let mut all: Vec<Duration> = finished.map(|outcome| outcome.took).collect();
        all.sort();
        Latencies(all)
    }

    /// The smallest latency that is not shorter than this share of them; `None` when there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied()
    }
}

/// The end of a run in words.
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
