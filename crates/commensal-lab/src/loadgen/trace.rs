//! A trace of every request of a load. With a trace, a caller can sort the requests into windows while the load
//! continues.
//!
//! The generator appends each request to the trace, and the caller takes the requests collected so far; both hold the
//! lock only briefly. A request is due at its intended start, which the schedule determines. Times are nanoseconds
//! since the schedule began.

use commensal_core::errno::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with 2xx within the timeout.
    Answered,
    /// Not answered within the timeout; the latency is the timeout.
    TimedOut,
    /// Failed in any other way; there is no latency.
    Failed,
}

/// One request and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Intended start (ns since the schedule began).
    pub due_ns: u64,
    /// Time from the intended start to the last byte of the response (µs).
    pub latency_us: u64,
    /// Time from the actual send to the last byte of the response (µs); `None` if the request failed or was never sent.
    pub service_us: Option<u64>,
    /// Outcome of the request.
    pub outcome: Outcome,
}

/// Requests collected since the last call of [`Trace::take`].
#[derive(Debug, Default)]
pub struct Gathered {
    /// Finished requests, in the order in which they finished.
    pub samples: Vec<Sample>,
    /// For each request whose send the generator could delay: its intended start (ns) and that delay (µs).
    pub lateness: Vec<(u64, u64)>,
    /// Intended starts (ns) of the requests that were sent a second time, on a new connection.
    pub resent: Vec<u64>,
    /// For each socket error, its time (ns) and its number. For the error of a request, the time is the request's
    /// intended start; for an attempt to open a connection, it is the time of the attempt.
    pub socket_errors: Vec<(u64, Errno)>,
}

/// Trace that the generator's thread and the caller's thread share.
#[derive(Debug, Default)]
pub struct Trace {
    gathered: Mutex<Gathered>,
    began: OnceLock<Instant>,
    settled_ns: AtomicU64,
}

impl Trace {
    /// Takes the requests collected so far.
    #[must_use]
    pub fn take(&self) -> Gathered {
        std::mem::take(&mut self.gathered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the time at which the schedule began; `None` before that time.
    #[must_use]
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// Returns the time (ns) before which every request that was due has its outcome.
    #[must_use]
    pub fn settled_ns(&self) -> u64 {
        self.settled_ns.load(Ordering::Acquire)
    }

    pub(super) fn begins(&self, at: Instant) {
        let _ = self.began.set(at);
    }

    pub(super) fn late(&self, due_ns: u64, late_us: u64) {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).lateness.push((due_ns, late_us));
    }

    pub(super) fn resent(&self, due_ns: u64) {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).resent.push(due_ns);
    }

    pub(super) fn socket_error(&self, at_ns: u64, errno: Errno) {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).socket_errors.push((at_ns, errno));
    }

    pub(super) fn ended(&self, due_ns: u64, latency_us: u64, service_us: Option<u64>, outcome: Outcome) {
        let sample = Sample { due_ns, latency_us, service_us, outcome };
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).samples.push(sample);
    }

    pub(super) fn settled_before(&self, due_ns: u64) {
        self.settled_ns.store(due_ns, Ordering::Release);
    }
}
