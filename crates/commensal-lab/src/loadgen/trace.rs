//! Every request of a run, for a caller that sorts them into windows while the load continues.
//!
//! The generator appends and never waits for long; the caller takes the collected requests. Times are nanoseconds since
//! the schedule began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with 2xx in time.
    Answered,
    /// No answer in time; its latency is the timeout.
    TimedOut,
    /// Anything else; it has no latency.
    Failed,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its intended start.
    pub due_ns: u64,
    /// From the intended start to the last byte of the answer, microseconds.
    pub latency_us: u64,
    /// From the send to the last byte, microseconds; `None` when it was never sent.
    pub service_us: Option<u64>,
    /// Its outcome.
    pub outcome: Outcome,
}

/// Requests collected since the last call of `take`.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Requests that ended, in the order of their ends.
    pub samples: Vec<Sample>,
    /// Intended start, and how late the generator was for it, microseconds.
    pub lateness: Vec<(u64, u64)>,
}

/// Shared by the generator's thread and the caller's.
#[derive(Debug, Default)]
pub struct Trace {
    gathered: Mutex<Gathered>,
    began: OnceLock<Instant>,
    settled_ns: AtomicU64,
}

impl Trace {
    /// Takes the collected requests.
    #[must_use]
    pub fn take(&self) -> Gathered {
        std::mem::take(&mut self.gathered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the schedule began; `None` before that.
    #[must_use]
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// No request due before this time is in flight any more.
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

    pub(super) fn ended(&self, due_ns: u64, latency_us: u64, service_us: Option<u64>, outcome: Outcome) {
        let sample = Sample { due_ns, latency_us, service_us, outcome };
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).samples.push(sample);
    }

    pub(super) fn settled_before(&self, due_ns: u64) {
        self.settled_ns.store(due_ns, Ordering::Release);
    }
}
