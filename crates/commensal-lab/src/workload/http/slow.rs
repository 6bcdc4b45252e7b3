//! Time that every request takes longer, by order: a harm of known size for a lab that is to find it.
//!
//! It is spun by the clock, so it is added exactly, whatever the CPU's frequency. The service counts what it added: two
//! readings tell what the requests between them had.

use std::fmt;
use std::hint::spin_loop;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Most that a request may take longer, ns.
pub const MOST_NS: u64 = 1_000_000_000;

/// The order in force, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Slow {
    ns: AtomicU64,
    requests: AtomicU64,
    added_ns: AtomicU64,
}

/// Requests served and time added to them, since the service started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SoFar {
    /// Requests.
    pub requests: u64,
    /// Nanoseconds added, by the clock.
    pub added_ns: u64,
}

impl Slow {
    /// For requests whose work is done from now on.
    pub(super) fn set(&self, ns: u64) {
        self.ns.store(ns, Ordering::Relaxed);
    }

    /// Takes as long as ordered.
    pub(super) fn spin(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let ns = self.ns.load(Ordering::Relaxed);
        if ns == 0 {
            return;
        }
        let (began, mut passed) = (Instant::now(), 0);
        while passed < ns {
            spin_loop();
            passed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        self.added_ns.fetch_add(passed, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> SoFar {
        SoFar {
            requests: self.requests.load(Ordering::Relaxed),
            added_ns: self.added_ns.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Display for SoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requests {} added_ns {}", self.requests, self.added_ns)
    }
}

impl FromStr for SoFar {
    type Err = ();

    fn from_str(text: &str) -> Result<SoFar, ()> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["requests", requests, "added_ns", added_ns] => Ok(SoFar {
                requests: requests.parse().map_err(drop)?,
                added_ns: added_ns.parse().map_err(drop)?,
            }),
            _ => Err(()),
        }
    }
}
