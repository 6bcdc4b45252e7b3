//! An [`object_store::ObjectStore`] that limits the rate of reads and shares it fairly between queries. It works for
//! any program that uses `object_store`.
//!
//! ```text
//! Governor (a rate) ◄── Query (the reader) ◄── GovernedStore (the objects)     many stores and queries, one governor
//! ```
//!
//! **Charged in advance.** Before a read, its query pays the [`Governor`]: it reserves the bytes, and the read starts
//! when the governor has granted them. Large reads are cut into pieces, so that the rate is also kept within short
//! windows and a wait can be cancelled at any time. A limiter that charges afterwards admits all readers that wake up
//! together: `cargo run --release -p commensal-store --example windows` compares both limiters. [`limiter`] describes
//! the algorithm and its guarantees.
//!
//! **Fair.** The queries of a governor get equal shares, however many partitions each of them reads in parallel.
//!
//! **Prompt.** [`Governor::set_rate`] takes effect immediately, also for waiting reads. [`Query::cancel`] cancels
//! waits. Dropping a waiting future removes it from the queue. Payment for bytes that were not received is refunded.
//!
//! ```
//! use commensal_store::{BytesPerS, GovernedStore, Governor, QueryId, Reach};
//! use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> object_store::Result<()> {
//! let governor = Governor::new(Reach::Local, Some(BytesPerS(100 << 20)));
//! let query = governor.query(QueryId(1));
//! let store = GovernedStore::new(Arc::new(InMemory::new()), query.clone());
//!
//! let path = Path::from("hits.parquet");
//! store.put(&path, vec![7; 1 << 20].into()).await?;
//! assert_eq!(store.get_range(&path, 10..20).await?, vec![7; 10]);
//!
//! governor.set_rate(Some(BytesPerS(10 << 20)));
//! assert_eq!(governor.statistics().delivered_bytes, 10);
//! query.cancel();
//! assert!(store.get(&path).await?.bytes().await.is_err());
//! # Ok(()) }
//! ```
//!
//! **Bytes that count** are those read from a file or a socket for a reader. Reads served from the page cache count
//! too, because a limiter cannot know in advance which data is cached; [`Statistics::delivered_bytes`] explains how to
//! compare with the device's counter. Data that the kernel receives into socket buffers ahead of a slow reader is not
//! counted; for ranges, [`Settings::request`] bounds its amount. Copies and renames happen inside the store and are not
//! counted. A connector that buffers bodies without a bound (`SpawnedReqwestConnector`) defeats the pacing of remote
//! bodies.
//!
//! Reads at a limited rate need a tokio runtime with its time driver. Without one, only reads without a limit work.
#![forbid(unsafe_code)]

mod body;
mod governor;
mod governors;
pub mod limiter;
mod query;
mod ranges;
mod store;
mod upload;

pub use governor::{Governor, Reach, Settings, Statistics};
pub use governors::{Governors, Rates, Source};
pub use limiter::{BytesPerS, QueryId};
pub use query::{Paid, PayError, Query, QueryStatistics};
pub use store::GovernedStore;
