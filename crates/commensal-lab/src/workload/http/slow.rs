//! Time by which answers come later, by order: a harm of known size for a lab that is to find it.
//!
//! ```text
//! work │ before: spun │ answer │ after: spun │ next request
//! ```
//! A request holds its worker for the work and for `before + after`, and its answer comes after `before`. Where the sum is the
//! same, arms with another `before` have the same load and the same queues, and every latency differs by exactly that. It is
//! spun by the clock, whatever the CPU's frequency, and the service counts what came before its answers.

use std::fmt;
use std::hint::spin_loop;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Most that an order may ask for, ns.
pub const MOST_NS: u64 = 1_000_000_000;

/// The order in force, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Slow {
    before_ns: AtomicU64,
    after_ns: AtomicU64,
    requests: AtomicU64,
    added_ns: AtomicU64,
}

/// Requests served and time added before their answers, since the service started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SoFar {
    /// Requests.
    pub requests: u64,
    /// Nanoseconds added, by the clock.
    pub added_ns: u64,
}

impl Slow {
    /// For requests whose work is done from now on.
    pub(super) fn set(&self, before_ns: u64, after_ns: u64) {
        self.before_ns.store(before_ns, Ordering::Relaxed);
        self.after_ns.store(after_ns, Ordering::Relaxed);
    }

    /// What comes before an answer; the other part is owed to the connection.
    pub(super) fn before(&self, owed_ns: &AtomicU64) {
        let (before_ns, after_ns) =
            (self.before_ns.load(Ordering::Relaxed), self.after_ns.load(Ordering::Relaxed));
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.added_ns.fetch_add(spin(before_ns), Ordering::Relaxed);
        owed_ns.store(after_ns, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> SoFar {
        SoFar {
            requests: self.requests.load(Ordering::Relaxed),
            added_ns: self.added_ns.load(Ordering::Relaxed),
        }
    }
}

/// Computes for so long by the clock; how long it was.
fn spin(ns: u64) -> u64 {
    if ns == 0 {
        return 0;
    }
    let (began, mut passed) = (Instant::now(), 0);
    while passed < ns {
        spin_loop();
        passed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }
    passed
}

/// A connection that spins what it owes once its answer is sent.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: TcpStream,
    pub owed_ns: Arc<AtomicU64>,
}

impl Connection {
    fn sent(&self, done: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if matches!(done, Poll::Ready(Ok(_))) {
            spin(self.owed_ns.swap(0, Ordering::Relaxed));
        }
        done
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.sent(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl fmt::Display for SoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests {} added_ns {}", self.requests, self.added_ns)
    }
}

impl FromStr for SoFar {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<SoFar, ()> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["requests", requests, "added_ns", added_ns] => Ok(SoFar {
                requests: requests.parse().map_err(drop)?,
                added_ns: added_ns.parse().map_err(drop)?,
            }),
            _ => Err(()),
        }
    }
}
