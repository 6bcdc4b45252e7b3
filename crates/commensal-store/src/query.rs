//! A query's handle: its reads are paid for through it; it can be cancelled, and moved to another governor.

use crate::governor::Governor;
use crate::limiter::QueryId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Why a read could not be paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayError {
    /// The query was cancelled.
    #[error("query {} was cancelled, so it reads no more", .0.0)]
    Cancelled(QueryId),
    /// A wait needs a timer.
    #[error(
        "reading at a limited rate needs a tokio runtime with its time driver: call it from one, or give its handle in Settings::timer"
    )]
    NoRuntime,
}

impl From<PayError> for object_store::Error {
    fn from(error: PayError) -> object_store::Error {
        object_store::Error::Generic { store: "GovernedStore", source: Box::new(error) }
    }
}

/// Counters of one query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueryStatistics {
    /// Bytes that it requested.
    pub asked_bytes: u64,
    /// Bytes that were delivered for it ([`crate::Statistics::delivered_bytes`]).
    pub delivered_bytes: u64,
    /// Number of payments that had to wait.
    pub waits: u64,
    /// Total time of those waits; waits of parallel readers add up.
    pub waited: Duration,
}

/// One query that reads. Clones are the same query.
#[derive(Debug, Clone)]
pub struct Query {
    id: QueryId,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    at: watch::Sender<Payer>,
    asked: AtomicU64,
    delivered: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

/// The governor that the query pays.
#[derive(Debug, Clone)]
struct Payer {
    governor: Governor,
    cancelled: bool,
}

impl Query {
    pub(crate) fn new(governor: Governor, id: QueryId) -> Query {
        let shared = Shared {
            at: watch::Sender::new(Payer { governor, cancelled: false }),
            asked: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        };
        Query { id, shared: Arc::new(shared) }
    }

    /// The query's id.
    #[must_use]
    pub fn id(&self) -> QueryId {
        self.id
    }

    /// The governor that it pays now.
    #[must_use]
    pub fn governor(&self) -> Governor {
        self.shared.at.borrow().governor.clone()
    }

    /// Cancels its waiting and all future reads, with [`PayError::Cancelled`].
    pub fn cancel(&self) {
        self.shared.at.send_modify(|place| place.cancelled = true);
    }

    /// Whether the query was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.at.borrow().cancelled
    }

    /// Moves the query to another governor: its waiting reads leave the old queue and join the new one. Payments so far
    /// stay with the old governor.
    pub fn move_to(&self, governor: &Governor) {
        self.shared.at.send_if_modified(|place| {
            let moves = !place.governor.is(governor);
            place.governor = governor.clone();
            moves
        });
    }

    /// The counters so far.
    #[must_use]
    pub fn statistics(&self) -> QueryStatistics {
        QueryStatistics {
            asked_bytes: self.shared.asked.load(Ordering::Relaxed),
            delivered_bytes: self.shared.delivered.load(Ordering::Relaxed),
            waits: self.shared.waits.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.shared.waited_ns.load(Ordering::Relaxed)),
        }
    }

    /// Waits until `bytes` may be read. For reads that do not use an object store, such as those of spilled files;
    /// requests should be small ([`Limiter::piece`](crate::limiter::Limiter::piece) says how small and why).
    ///
    /// # Errors
    /// The query was cancelled, or there is no runtime for a timer.
    pub async fn pay(&self, bytes: u64) -> Result<Paid, PayError> {
        let mut at = self.shared.at.subscribe();
        loop {
            let Payer { governor, cancelled } = at.borrow_and_update().clone();
            if cancelled {
                return Err(PayError::Cancelled(self.id));
            }
            let admission = tokio::select! {
                biased;
                admission = governor.admit(self.id, bytes) => admission?,
                // The sender exists as long as this query.
                _ = at.changed() => continue,
            };
            if let Some(waited) = admission.waited {
                self.shared.waits.fetch_add(1, Ordering::Relaxed);
                let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
                self.shared.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
            }
            return Ok(Paid {
                query: self.clone(),
                governor,
                left: bytes,
                charged: admission.charged,
                begun: false,
            });
        }
    }

    /// Counts and charges `bytes` that were read already without asking; later reads wait for them. For callers that
    /// cannot wait, such as a spill that is written from synchronous code.
    pub fn owe(&self, bytes: u64) {
        let governor = self.governor();
        self.count(&governor, bytes);
        governor.settle(0, bytes);
    }

    pub(crate) fn asked(&self, bytes: u64) {
        self.shared.asked.fetch_add(bytes, Ordering::Relaxed);
        self.governor().asked(bytes);
    }

    /// How much to pay for at once now; `None` means everything.
    pub(crate) fn piece(&self) -> Option<u64> {
        self.shared.at.borrow().governor.piece()
    }

    fn count(&self, governor: &Governor, bytes: u64) {
        self.shared.delivered.fetch_add(bytes, Ordering::Relaxed);
        governor.delivered(bytes);
    }
}

/// Bytes that were paid for. What is not [spent](Paid::spend) is refunded when this is dropped.
#[derive(Debug)]
#[must_use = "what is not spent goes back"]
pub struct Paid {
    query: Query,
    governor: Governor,
    left: u64,
    charged: bool,
    begun: bool,
}

impl Paid {
    /// Bytes that may still be read.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Records that `bytes` were received. An excess becomes a debt.
    pub fn spend(&mut self, bytes: u64) {
        self.query.count(&self.governor, bytes);
        let covered = bytes.min(self.left);
        self.left -= covered;
        if self.charged {
            self.governor.settle(0, bytes - covered);
        }
    }

    /// Marks the read as under way: it moves its bytes even if the caller stops waiting, so if this is dropped now, the
    /// rest counts as spent. Until [`Paid::failed`].
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// The read failed: the rest is refunded.
    pub(crate) fn failed(&mut self) {
        self.begun = false;
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        if self.begun && self.left > 0 {
            self.spend(self.left);
        }
        if self.charged {
            self.governor.settle(self.left, 0);
        }
    }
}
