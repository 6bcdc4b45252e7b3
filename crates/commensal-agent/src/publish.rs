//! The latest snapshot, for readers. The loop replaces it by swapping a pointer, so readers never delay the loop.

use crate::snapshot::Snapshot;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of ticks without a new snapshot after which the loop counts as hanging.
const STALE_TICKS: u32 = 5;
/// Minimum time without a new snapshot after which the loop counts as hanging. The loop itself reports a tick that is
/// merely long.
const STALE_AT_LEAST: Duration = Duration::from_secs(5);

/// The place where the loop publishes its snapshots; shared as `Arc<Published>`.
#[derive(Debug, Default)]
pub struct Published(ArcSwapOption<Stamped>);

#[derive(Debug)]
struct Stamped {
    snapshot: Arc<Snapshot>,
    at: Instant,
}

/// A snapshot and how long ago it was published.
#[derive(Debug, Clone)]
pub struct Latest {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    /// Time since the snapshot was published, by a monotonic clock.
    pub age: Duration,
}

impl Published {
    /// Creates a publisher without a snapshot.
    #[must_use]
    pub fn new() -> Published {
        Published::default()
    }

    /// Replaces the snapshot; never blocks.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        self.0.store(Some(Arc::new(Stamped { snapshot, at: Instant::now() })));
    }

    /// The latest snapshot; `None` before the end of the first tick.
    #[must_use]
    pub fn latest(&self) -> Option<Latest> {
        let stamped = self.0.load_full()?;
        Some(Latest { snapshot: Arc::clone(&stamped.snapshot), age: stamped.at.elapsed() })
    }
}

/// Whether a snapshot of this age means that the loop hangs: it is older than five ticks and older than five seconds.
#[must_use]
pub fn is_stale(snapshot: &Snapshot, age: Duration) -> bool {
    age > (Duration::from_millis(snapshot.interval_ms) * STALE_TICKS).max(STALE_AT_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn readers_see_whole_snapshots_in_order() {
        let published = Published::new();
        assert!(published.latest().is_none());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !over.load(Ordering::Relaxed) {
                        let Some(latest) = published.latest() else { continue };
                        assert!(latest.snapshot.ticks >= last);
                        assert_eq!(latest.snapshot.pid, u32::try_from(latest.snapshot.ticks).unwrap());
                        last = latest.snapshot.ticks;
                    }
                });
            }
            for ticks in 1..20_000u32 {
                let snapshot = Snapshot { ticks: ticks.into(), pid: ticks, ..Snapshot::default() };
                published.publish(Arc::new(snapshot));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(published.latest().unwrap().snapshot.ticks, 19_999);
    }

    /// A reader that keeps a snapshot for a long time delays nothing.
    // promise 56
    #[test]
    fn a_reader_never_blocks_the_writer() {
        let published = Published::new();
        published.publish(Arc::new(Snapshot::default()));
        let held: Vec<Latest> = (0..1_000).filter_map(|_| published.latest()).collect();
        published.publish(Arc::new(Snapshot { ticks: 1, ..Snapshot::default() }));
        assert_eq!(held.len(), 1_000);
        assert!(held.iter().all(|latest| latest.snapshot.ticks == 0));
        assert_eq!(published.latest().unwrap().snapshot.ticks, 1);
    }

    #[test]
    fn what_is_stale() {
        let of = |interval_ms| Snapshot { interval_ms, ..Snapshot::default() };
        assert!(!is_stale(&of(1_000), Duration::from_secs(5)));
        assert!(is_stale(&of(1_000), Duration::from_millis(5_001)));
        assert!(!is_stale(&of(10), Duration::from_secs(4)));
        assert!(!is_stale(&of(10_000), Duration::from_secs(49)));
    }
}
