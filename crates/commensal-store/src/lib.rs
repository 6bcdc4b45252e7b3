//! An [`object_store::ObjectStore`] that reads at a limited rate, shared fairly between queries: for any user of
//! `object_store`.
//!
//! ```text
//! Governor (a rate) ◄── Query (who reads) ◄── GovernedStore (what is read)     many stores and queries, one governor
//! ```
//!
//! **Paid for before it is read.** A read first asks the [`Governor`] and begins when it is admitted; large reads are
//! cut into pieces, so that the rate holds in short windows too and a wait can be cancelled at any time. A limiter that
//! charges afterwards admits all readers that wake up together: `cargo run --release -p commensal-store --example
//! windows` shows both side by side. The algorithm and its guarantees are in [`limiter`].
//!
//! **Fair.** The queries of a governor get equal shares, however many partitions each of them reads in parallel.
//!
//! **Prompt.** [`Governor::set_rate`] takes effect at once, for waiting reads as well; [`Query::cancel`] ends waits;
//! dropping a waiting future removes it from the queue. Payment for bytes that were not received is refunded.
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
//! **The counted bytes** are those that left a file or a socket for a reader. Reads from the page cache count, as a
//! limiter cannot know beforehand which data is cached; [`Statistics::delivered_bytes`] says what to compare with. Data
//! that the kernel's socket buffers receive ahead of a slow reader is not counted; [`Settings::request`] bounds it for
//! ranges. Copies and renames happen inside the store and are not counted. A connector that buffers bodies without a
//! bound (`SpawnedReqwestConnector`) defeats the pacing of remote bodies.
//!
//! A limit needs a tokio runtime with its time driver; without one only reads without a limit work.
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
