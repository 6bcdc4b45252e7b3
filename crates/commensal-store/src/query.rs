//! The handle of a query. Through this handle the query pays for its reads: it reserves bytes with the rate limiter of
//! its governor, and waits until they are granted. A query can be cancelled, and moved to another governor.

use crate::governor::Governor;
use crate::limiter::QueryId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The reason why a read could not be paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayError {
    /// The query was cancelled.
    #[error("query {} was cancelled", .0.0)]
    Cancelled(QueryId),
    /// The read must wait, and no runtime is available for the timer.
    #[error(
        "reading at a limited rate needs a tokio runtime with its time driver: call it from one, or give its handle in \
         Settings::timer"
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
    /// Bytes that the query requested.
    pub asked_bytes: u64,
    /// Bytes that were delivered to the query (counted as in [`crate::Statistics::delivered_bytes`]).
    pub delivered_bytes: u64,
    /// Number of payments that had to wait.
    pub waits: u64,
    /// Total duration of those waits; waits of parallel readers are added up.
    pub waited: Duration,
}

/// Handle of one query that reads. Clones refer to the same query.
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

/// The governor that the query pays, and whether the query was cancelled.
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

    /// Returns the governor that the query currently pays.
    #[must_use]
    pub fn governor(&self) -> Governor {
        self.shared.at.borrow().governor.clone()
    }

    /// Cancels the query: its waiting reads and all future reads fail with [`PayError::Cancelled`].
    pub fn cancel(&self) {
        self.shared.at.send_modify(|place| place.cancelled = true);
    }

    /// Whether the query was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.at.borrow().cancelled
    }

    /// Moves the query to another governor. Its waiting reads leave the old queue and join the new one. Earlier
    /// payments stay with the old governor.
    pub fn move_to(&self, governor: &Governor) {
        self.shared.at.send_if_modified(|place| {
            let moves = !place.governor.is(governor);
            place.governor = governor.clone();
            moves
        });
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn statistics(&self) -> QueryStatistics {
        QueryStatistics {
            asked_bytes: self.shared.asked.load(Ordering::Relaxed),
            delivered_bytes: self.shared.delivered.load(Ordering::Relaxed),
            waits: self.shared.waits.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.shared.waited_ns.load(Ordering::Relaxed)),
        }
    }

    /// Waits until `bytes` may be read. Use this function for reads that bypass the object store, such as reads of
    /// spill files. Requests should be small; [`Limiter::piece`](crate::limiter::Limiter::piece) explains how small and
    /// why.
    ///
    /// # Errors
    /// Fails if the query was cancelled, or if no runtime is available for a timer.
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
                // `changed` cannot fail, because its sender exists as long as this query.
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

    /// Counts and charges `bytes` that were already transferred without a payment; later reads wait for this debt. This
    /// function is for callers that cannot wait, such as synchronous code that writes a spill file.
    pub fn owe(&self, bytes: u64) {
        let governor = self.governor();
        self.count(&governor, bytes);
        governor.settle(0, bytes);
    }

    pub(crate) fn asked(&self, bytes: u64) {
        self.shared.asked.fetch_add(bytes, Ordering::Relaxed);
        self.governor().asked(bytes);
    }

    /// Returns the maximum size of one payment now, in bytes; `None` means that reads are not cut into pieces. A store
    /// whose client receives data ahead of its reader asks its server for no more than this at once.
    #[must_use]
    pub fn piece(&self) -> Option<u64> {
        self.shared.at.borrow().governor.piece()
    }

    fn count(&self, governor: &Governor, bytes: u64) {
        self.shared.delivered.fetch_add(bytes, Ordering::Relaxed);
        governor.delivered(bytes);
    }
}

/// Bytes that were paid for. Bytes that are not [spent](Paid::spend) are refunded on drop.
#[derive(Debug)]
#[must_use = "bytes that are not spent are refunded on drop"]
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

    /// Records that `bytes` were received. Bytes beyond the payment become a debt.
    pub fn spend(&mut self, bytes: u64) {
        self.query.count(&self.governor, bytes);
        let covered = bytes.min(self.left);
        self.left -= covered;
        if self.charged {
            self.governor.settle(0, bytes - covered);
        }
    }

    /// Marks the read as in progress. Such a read transfers its bytes even if the caller stops waiting, so dropping
    /// this payment now counts the rest as spent. [`Paid::failed`] removes the mark.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Removes the mark set by [`Paid::begin`], so that unspent bytes are refunded again.
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
