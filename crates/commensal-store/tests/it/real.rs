//! On the machine's own clock and files, with wide bounds: other work takes whole seconds away here at times.

use crate::device::{MIB, path, pattern};
use commensal_core::limiter::QueryId;
use commensal_core::units::BytesPerS;
use commensal_store::{GovernedStore, Governor, Reach};
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In bytes per second.
const RATE: u64 = 64 * MIB;
/// What a run must reach of the rate, however busy the machine.
const LEAST: f64 = 0.3;

async fn read_on(store: GovernedStore<LocalFileSystem>, by_ranges: bool, until: Instant) {
    while Instant::now() < until {
        if by_ranges {
            let ranges = [0..3 * MIB, 3 * MIB + 5..8 * MIB];
            assert_eq!(store.get_ranges(&path(), &ranges).await.unwrap()[1].len() as u64, 5 * MIB - 5);
        } else {
            let mut body = store.get(&path()).await.unwrap().into_stream();
            while body.try_next().await.unwrap().is_some() && Instant::now() < until {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_at_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    files.put(&path(), pattern(8 * MIB).into()).await.unwrap();
    for (readers, by_ranges) in [(1, false), (16, true), (48, false)] {
        let governor = Governor::new(Reach::Local, Some(BytesPerS(RATE)));
        let began = Instant::now();
        let until = began + Duration::from_secs(2);
        let mut all = tokio::task::JoinSet::new();
        for reader in 0..readers {
            let store = GovernedStore::new(Arc::clone(&files), governor.query(QueryId(reader % 3)));
            all.spawn(read_on(store, by_ranges, until));
        }
        tokio::time::sleep_until(until.into()).await;
        all.shutdown().await;
        let (took, statistics) = (began.elapsed().as_secs_f64(), governor.statistics());
        let rate = statistics.delivered_bytes as f64 / took / RATE as f64;
        let what = format!("{readers} readers: {rate:.3} of the rate, {statistics:?}");
        // Above it there is only the burst.
        assert!((LEAST..=1.0 + 0.026 / took).contains(&rate), "{what}");
        println!("{what}");
    }
}
