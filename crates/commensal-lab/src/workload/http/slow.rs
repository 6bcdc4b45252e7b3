//! A configurable delay of responses, with which the lab tests whether it detects a delay of known size.
//!
//! ```text
//! work │ before: spin │ response │ after: spin │ next request
//! ```
//! A request occupies its worker for its work and for `before + after`; the server sends the response after `before`.
//! Arms (conditions of an experiment) that have equal sums of `before` and `after` therefore have equal load and
//! queues, and every latency differs by exactly the difference in `before`. The worker spins until the clock has
//! advanced by the delay, so the CPU's frequency does not matter. The server measures each delay before a response. A
//! spin takes longer than configured (overshoots) if its thread loses the CPU; the server counts these spins and their
//! overshoots.

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

/// Number of buckets for the overshoot of a spin: two per octave, from 1 us to more than a second.
const BUCKETS: usize = 42;

/// Returns the bucket for an overshoot; `None` for less than a microsecond.
fn bucket(over_us: u64) -> Option<usize> {
    let octave = over_us.checked_ilog2()? as usize;
    let upper_half = octave > 0 && over_us >> (octave - 1) & 1 == 1;
    Some((2 * octave + usize::from(upper_half)).min(BUCKETS - 1))
}

/// Returns the overshoot that a bucket represents, in microseconds.
fn middle_us(bucket: usize) -> f64 {
    let octave = f64::from(1_u32 << (bucket / 2));
    octave * if bucket.is_multiple_of(2) { 1.25 } else { 1.75 }
}

/// Maximum of each configured delay, in nanoseconds.
pub const MOST_NS: u64 = 1_000_000_000;

/// The configured delay, and its statistics.
#[derive(Debug)]
pub(super) struct Slow {
    before_ns: AtomicU64,
    after_ns: AtomicU64,
    requests: AtomicU64,
    added_ns: AtomicU64,
    over: [AtomicU64; BUCKETS],
}

/// Totals since the service started: requests served, and delays added before their responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoFar {
    /// Number of requests.
    pub requests: u64,
    /// Sum of the delays before responses, as the clock measured them, in nanoseconds.
    pub added_ns: u64,
    over: [u64; BUCKETS],
}

impl Default for SoFar {
    fn default() -> SoFar {
        SoFar { requests: 0, added_ns: 0, over: [0; BUCKETS] }
    }
}

impl SoFar {
    /// Returns the difference between this reading and an earlier one.
    #[must_use]
    pub fn since(&self, before: &SoFar) -> SoFar {
        SoFar {
            requests: self.requests.saturating_sub(before.requests),
            added_ns: self.added_ns.saturating_sub(before.added_ns),
            over: std::array::from_fn(|i| self.over[i].saturating_sub(before.over[i])),
        }
    }

    /// Returns the sum of two readings.
    #[must_use]
    pub fn and(&self, other: &SoFar) -> SoFar {
        SoFar {
            requests: self.requests + other.requests,
            added_ns: self.added_ns + other.added_ns,
            over: std::array::from_fn(|i| self.over[i] + other.over[i]),
        }
    }

    /// Returns the overshoots of the delay in microseconds, each with its number of responses. The result omits
    /// responses with an overshoot below one microsecond.
    #[must_use]
    pub fn over_us(&self) -> Vec<(f64, u64)> {
        let buckets = self.over.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets.map(|(bucket, count)| (middle_us(bucket), *count)).collect()
    }
}

impl Slow {
    pub(super) fn new() -> Slow {
        let zero = || AtomicU64::new(0);
        Slow {
            before_ns: zero(),
            after_ns: zero(),
            requests: zero(),
            added_ns: zero(),
            over: std::array::from_fn(|_| zero()),
        }
    }

    /// Sets the two delays; they apply to requests whose work finishes after this call.
    pub(super) fn set(&self, before_ns: u64, after_ns: u64) {
        self.before_ns.store(before_ns, Ordering::Relaxed);
        self.after_ns.store(after_ns, Ordering::Relaxed);
    }

    /// Spins for the delay before a response. Stores the delay after the response in `owed_ns`, for which
    /// [`Connection`] spins later.
    pub(super) fn before(&self, owed_ns: &AtomicU64) {
        let (before_ns, after_ns) =
            (self.before_ns.load(Ordering::Relaxed), self.after_ns.load(Ordering::Relaxed));
        self.requests.fetch_add(1, Ordering::Relaxed);
        let spun_ns = spin(before_ns);
        self.added_ns.fetch_add(spun_ns, Ordering::Relaxed);
        if let Some(bucket) = bucket((spun_ns - before_ns) / 1_000) {
            self.over[bucket].fetch_add(1, Ordering::Relaxed);
        }
        owed_ns.store(after_ns, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> SoFar {
        SoFar {
            requests: self.requests.load(Ordering::Relaxed),
            added_ns: self.added_ns.load(Ordering::Relaxed),
            over: std::array::from_fn(|i| self.over[i].load(Ordering::Relaxed)),
        }
    }
}

/// Spins until the clock has advanced by `ns`; returns the time taken in nanoseconds.
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

/// A connection that spins for the delay after a response once the response has been sent.
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
        write!(f, "requests {} added_ns {} over", self.requests, self.added_ns)?;
        self.over.iter().try_for_each(|count| write!(f, " {count}"))
    }
}

impl FromStr for SoFar {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<SoFar, ()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let ["requests", requests, "added_ns", added_ns, "over", over @ ..] = &words[..] else {
            return Err(());
        };
        let over: Vec<u64> =
            over.iter().map(|count| count.parse()).collect::<std::result::Result<_, _>>().map_err(drop)?;
        Ok(SoFar {
            requests: requests.parse().map_err(drop)?,
            added_ns: added_ns.parse().map_err(drop)?,
            over: over.try_into().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stand_for_what_is_in_them() {
        assert_eq!(bucket(0), None);
        for us in [1, 2, 3, 4, 5, 6, 7, 8, 100, 150, 4_000, 900_000] {
            let middle = middle_us(bucket(us).unwrap());
            assert!((0.7..1.5).contains(&(middle / us as f64)), "{us} us: {middle}");
        }
        assert_eq!(bucket(u64::MAX), Some(BUCKETS - 1));
    }

    #[test]
    fn readings_are_text_and_have_differences() {
        let slow = Slow::new();
        slow.set(1_000, 5);
        let owed = AtomicU64::new(0);
        let before = slow.so_far();
        (0..3).for_each(|_| slow.before(&owed));
        let after = slow.so_far();
        assert_eq!(owed.load(Ordering::Relaxed), 5);
        assert_eq!(after.to_string().parse(), Ok(after));
        let since = after.since(&before);
        assert_eq!(since.requests, 3);
        assert!(since.added_ns >= 3_000);
        assert_eq!(before.and(&since), after);
        let over: u64 = since.over_us().iter().map(|(_, count)| count).sum();
        assert!(over <= 3);
        for wrong in ["", "requests 1", "requests 1 added_ns 2 over 3", "requests x added_ns 2 over"] {
            assert_eq!(wrong.parse::<SoFar>(), Err(()), "{wrong}");
        }
    }
}
