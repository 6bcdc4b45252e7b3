//! Cancelling, changing the rate, moving, writes, and runtimes that end.

use crate::device::{Device, MIB, Model, path, pattern};
use crate::wait::{throughout, until};
use commensal_store::{
    BytesPerS, GovernedStore, Governor, Governors, PayError, Query, QueryId, Rates, Reach, Settings, Source,
    Statistics,
};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A governor whose burst is spent, at so many MiB/s.
async fn spent(reach: Reach, mib_per_s: u64) -> Governor {
    let governor = Governor::new(reach, Some(BytesPerS(mib_per_s * MIB)));
    let mut paid = governor.query(QueryId(999)).pay(mib_per_s * MIB / 40).await.unwrap();
    paid.spend(paid.left());
    governor
}

fn paying(query: &Query, bytes: u64) -> tokio::task::JoinHandle<Result<(), PayError>> {
    let query = query.clone();
    tokio::spawn(async move {
        let mut paid = query.pay(bytes).await?;
        paid.spend(bytes);
        Ok(())
    })
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

// promise 44
#[tokio::test(start_paused = true)]
async fn a_cancelled_query_waits_no_more_and_the_others_move_up() {
    let governor = spent(Reach::Local, 1).await;
    let (first, second) = (governor.query(QueryId(1)), governor.query(QueryId(2)));
    let began = Instant::now();
    let cancelled: Vec<_> = (0..100).map(|_| paying(&first, MIB)).collect();
    let other = paying(&second, MIB);
    until("all wait", || governor.statistics().waiting == 101).await;
    first.cancel();
    for waiter in cancelled {
        assert_eq!(waiter.await.unwrap(), Err(PayError::Cancelled(QueryId(1))));
    }
    assert!(seconds(began) < 0.05, "{}", seconds(began));
    other.await.unwrap().unwrap();
    // As if the hundred had never been there: above the burst, it goes with a full one.
    assert!(seconds(began) < 0.1, "{}", seconds(began));
    assert_eq!(first.pay(1).await.unwrap_err(), PayError::Cancelled(QueryId(1)));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_query_reads_no_more() {
    for reach in [Reach::Local, Reach::Remote] {
        for rate in [Some(BytesPerS(MIB)), None] {
            let device = Device::with(Model::default(), 4 * MIB).await;
            let governor = Governor::new(reach, rate);
            let query = governor.query(QueryId(1));
            let store = GovernedStore::new(Arc::new(device), query.clone());
            let mut body = store.get(&path()).await.unwrap().into_stream();
            body.try_next().await.unwrap().unwrap();
            query.cancel();
            let error = body.try_collect::<Vec<_>>().await.unwrap_err();
            assert!(error.to_string().contains("query 1 was cancelled"), "{error}");
            assert!(store.get_ranges(&path(), &[0..10]).await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_dropped_leaves_the_line() {
    let device = Device::with(Model::default(), 4 * MIB).await;
    let governor = spent(Reach::Local, 1).await;
    let store = GovernedStore::new(Arc::new(device), governor.query(QueryId(1)));
    let began = Instant::now();
    for _ in 0..50 {
        let read = async { store.get_range(&path(), 0..4 * MIB).await };
        assert!(tokio::time::timeout(Duration::from_millis(1), read).await.is_err());
        let read = async { store.get_ranges(&path(), &[0..2 * MIB, 2 * MIB..4 * MIB]).await };
        assert!(tokio::time::timeout(Duration::from_millis(1), read).await.is_err());
    }
    assert_eq!(governor.statistics().waiting, 0);
    // What came in the meantime is what the rate gave, and nothing that was given up is waited for.
    let most = MIB as f64 * (1.0 / 40.0 + seconds(began));
    assert!(governor.statistics().delivered_bytes as f64 <= most + 1.0);
    let began = Instant::now();
    paying(&governor.query(QueryId(2)), 10_000).await.unwrap().unwrap();
    assert!(seconds(began) < 0.05, "{}", seconds(began));
}

/// Its turn came and nobody looked: the others go on, and when it is given up, what it had goes back.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_polled_holds_nobody_up() {
    let governor = spent(Reach::Local, 1).await;
    let (lazy, busy) = (governor.query(QueryId(1)), governor.query(QueryId(2)));
    let mut asleep = Box::pin(lazy.pay(10_000));
    assert!((&mut asleep).now_or_never().is_none());
    let began = Instant::now();
    for _ in 0..100 {
        paying(&busy, 10_000).await.unwrap().unwrap();
    }
    let with_one_asleep = seconds(began);
    assert!((0.9..1.1).contains(&with_one_asleep), "{with_one_asleep}");
    drop(asleep);
    assert_eq!(governor.statistics().delivered_bytes, 1_000_000 + MIB / 40);
    assert_eq!(lazy.statistics().delivered_bytes, 0);
}

// promise 44
#[tokio::test(start_paused = true)]
async fn a_new_rate_holds_at_once() {
    for (rate, least, most) in [(Some(100), 0.05, 0.2), (None, 0.0, 0.01), (Some(5), 1.5, 2.5)] {
        let governor = spent(Reach::Local, 1).await;
        let device = Device::with(Model::default(), MIB).await;
        let reads: Vec<_> = (0..10)
            .map(|id| {
                let store = GovernedStore::new(Arc::new(device.clone()), governor.query(QueryId(id)));
                tokio::spawn(async move { store.get_ranges(&path(), &[0..MIB]).await })
            })
            .collect();
        // A tenth of a second at the old rate, on the paused clock.
        sleep(Duration::from_millis(100)).await;
        assert!(governor.statistics().delivered_bytes < MIB / 5);
        let began = Instant::now();
        governor.set_rate(rate.map(|mib| BytesPerS(mib * MIB)));
        for read in reads {
            assert_eq!(read.await.unwrap().unwrap()[0], pattern(MIB));
        }
        // Ten mebibytes, of which some came before.
        assert!((least..most).contains(&seconds(began)), "{rate:?}: {}", seconds(began));
    }
}

/// A debt of ten seconds, and a limit that is raised a hundred times: a tenth of a second is left of it.
// promise 44
#[tokio::test(start_paused = true)]
async fn old_debts_are_paid_at_the_new_rate() {
    let governor = spent(Reach::Local, 1).await;
    let query = governor.query(QueryId(1));
    query.owe(10 * MIB);
    let began = Instant::now();
    let waits = paying(&query, 1_000);
    until("it waits", || governor.statistics().waiting == 1).await;
    governor.set_rate(Some(BytesPerS(100 * MIB)));
    waits.await.unwrap().unwrap();
    assert!((0.09..0.12).contains(&seconds(began)), "{}", seconds(began));
    assert_eq!(query.statistics().waits, 1);
    assert!((0.09..0.12).contains(&query.statistics().waited.as_secs_f64()));
}

#[tokio::test(start_paused = true)]
async fn a_query_that_is_moved_pays_its_new_governor() {
    let (slow, fast) = (spent(Reach::Local, 1).await, spent(Reach::Local, 100).await);
    let device = Device::with(Model::default(), 10 * MIB).await;
    let query = slow.query(QueryId(1));
    let store = GovernedStore::new(Arc::new(device), query.clone());
    let read = tokio::spawn(async move { store.get_ranges(&path(), &[0..10 * MIB]).await });
    until("it waits", || slow.statistics().waiting > 0).await;
    let began = Instant::now();
    query.move_to(&fast);
    query.move_to(&fast);
    assert_eq!(read.await.unwrap().unwrap()[0], pattern(10 * MIB));
    assert!(seconds(began) < 0.2, "{}", seconds(began));
    assert_eq!(slow.statistics().waiting, 0);
    let (before, after) = (slow.statistics().delivered_bytes, fast.statistics().delivered_bytes);
    assert!(before < MIB && after > 9 * MIB, "{before}, {after}");
    assert_eq!(query.statistics().delivered_bytes, 10 * MIB);
}

#[tokio::test(start_paused = true)]
async fn writes_are_charged_where_that_is_asked_for() {
    let writes = spent(Reach::Local, 10).await;
    let reads = Governor::new(Reach::Local, None);
    let plain = GovernedStore::new(Arc::new(InMemory::new()), reads.query(QueryId(1)));
    let began = Instant::now();
    plain.put(&path(), pattern(50 * MIB).into()).await.unwrap();
    assert!(seconds(began) < 0.01);
    let store = plain.for_query(reads.query(QueryId(2))).with_writes(writes.query(QueryId(2)));
    store.put(&path(), pattern(10 * MIB).into()).await.unwrap();
    assert!((0.95..1.1).contains(&seconds(began)), "{}", seconds(began));
    let mut upload = WriteMultipart::new(store.put_multipart(&path()).await.unwrap());
    upload.write(&pattern(20 * MIB));
    upload.finish().await.unwrap();
    assert!((2.85..3.15).contains(&seconds(began)), "{}", seconds(began));
    assert_eq!(store.get(&path()).await.unwrap().bytes().await.unwrap(), pattern(20 * MIB));
    assert_eq!(writes.statistics().delivered_bytes, 30 * MIB + MIB / 4);
    assert_eq!(reads.statistics().delivered_bytes, 20 * MIB);
}

#[tokio::test]
async fn without_a_limit_a_call_is_the_stores_own() {
    let device = Device::with(Model::default(), 8 * MIB).await;
    let governor = Governor::new(Reach::Remote, None);
    let store = GovernedStore::new(Arc::new(device.clone()), governor.query(QueryId(1)));
    store.get_ranges(&path(), &[0..8 * MIB]).await.unwrap();
    assert_eq!(device.requests(), 1);
    store.list(None).collect::<Vec<_>>().await;
    store.list_with_delimiter(None).await.unwrap();
    let Statistics { asked_bytes, delivered_bytes, requests, lists, waits, waiting, .. } =
        governor.statistics();
    assert_eq!((asked_bytes, delivered_bytes), (8 * MIB, 8 * MIB));
    assert_eq!((requests, lists, waits, waiting), (1, 2, 0, 0));
    governor.set_rate(Some(BytesPerS(100 * MIB)));
    assert_eq!(store.to_string(), "GovernedStore(104857600 B/s, Device(InMemory))");
    store.get_ranges(&path(), &[0..8 * MIB]).await.unwrap();
    // In requests of 4 MiB.
    assert_eq!(device.requests(), 3);
}

/// While the consumer is busy with the first piece, the second is read.
#[tokio::test]
async fn a_file_is_read_one_piece_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    files.put(&path(), pattern(4 * MIB).into()).await.unwrap();
    let governor = Governor::new(Reach::Local, Some(BytesPerS(1 << 30)));
    let store = GovernedStore::new(Arc::new(files), governor.query(QueryId(1)));
    let mut body = store.get(&path()).await.unwrap().into_stream();
    let first = body.try_next().await.unwrap().unwrap().len() as u64;
    let delivered = || governor.statistics().delivered_bytes;
    until("one piece is read ahead", || delivered() >= 2 * first).await;
    throughout(Duration::from_millis(50), "more is read ahead", || delivered() == 2 * first).await;
}

#[tokio::test]
async fn sources_have_governors_of_their_own() {
    let rates = Rates { local: Some(BytesPerS(MIB)), remote: None };
    let governors = Governors::new(rates, None);
    let disk = |minor| Source::Device { major: 8, minor };
    let bucket = Source::Store("s3://hits".to_owned());
    assert_eq!(governors.of(&disk(0)).rate(), rates.local);
    assert_eq!((governors.of(&bucket).rate(), governors.of(&bucket).reach()), (None, Reach::Remote));
    governors.of(&disk(0)).query(QueryId(1)).owe(5);
    assert_eq!(governors.of(&disk(0)).statistics().delivered_bytes, 5);
    assert_eq!(governors.of(&disk(1)).statistics().delivered_bytes, 0);
    governors.set_rates(Rates { local: None, remote: Some(BytesPerS(7)) });
    let now: Vec<_> = governors.each().iter().map(|(_, governor)| governor.rate()).collect();
    assert_eq!(now, [None, None, Some(BytesPerS(7))]);
    assert_eq!(governors.of(&disk(2)).rate(), None);
}

/// Without a runtime reads work as long as they need not wait, and a wait says what is missing.
#[test]
fn without_a_runtime() {
    let memory = Arc::new(InMemory::new());
    let governor = Governor::new(Reach::Local, None);
    let store = GovernedStore::new(memory, governor.query(QueryId(1)));
    store.put(&path(), pattern(1_000).into()).now_or_never().unwrap().unwrap();
    assert_eq!(store.get_range(&path(), 0..1_000).now_or_never().unwrap().unwrap(), pattern(1_000));
    governor.set_rate(Some(BytesPerS(MIB)));
    let error = async {
        loop {
            governor.query(QueryId(1)).pay(10_000).await?.spend(10_000);
        }
    };
    let error: Result<(), PayError> = error.now_or_never().unwrap();
    assert_eq!(error, Err(PayError::NoRuntime));
    assert_eq!(governor.statistics().waiting, 0);
}

/// The timer runs where the first one waits, or where it is told to. That runtime ends, or has ended already; those that
/// wait on another one still get their turn.
#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let lasting = runtime();
    for told in [false, true] {
        let passing = runtime();
        let timer = told.then(|| runtime().handle().clone());
        let settings = Settings { timer, ..Settings::of(Reach::Local) };
        let governor = Governor::with(settings, Some(BytesPerS(MIB)));
        governor.query(QueryId(0)).owe(MIB / 2);
        let query = governor.query(QueryId(1));
        let pay = |bytes| {
            let query = query.clone();
            async move { query.pay(bytes).await.map(drop) }
        };
        let waits = |count| {
            while governor.statistics().waiting < count {
                std::thread::yield_now();
            }
        };
        let first = query.clone();
        // Again and again, so that it waits whenever the second one comes.
        passing.spawn(async move {
            while let Ok(mut paid) = first.pay(8 * MIB).await {
                let left = paid.left();
                paid.spend(left);
            }
        });
        waits(1);
        let stays = lasting.spawn(pay(10_000));
        waits(2);
        drop(passing);
        let done = lasting.block_on(async { tokio::time::timeout(Duration::from_secs(60), stays).await });
        done.expect("it gets its turn").unwrap().unwrap();
    }
}

mod measure {
    use super::*;

    /// A limit that comes while a body is read holds for the rest of it.
    #[tokio::test]
    async fn a_limit_that_comes_holds_for_bodies_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        files.put(&path(), pattern(8 * MIB).into()).await.unwrap();
        let governor = Governor::new(Reach::Local, None);
        let store = GovernedStore::new(Arc::new(files), governor.query(QueryId(1)));
        let mut body = store.get(&path()).await.unwrap().into_stream();
        let mut got = body.try_next().await.unwrap().unwrap().len() as u64;
        governor.set_rate(Some(BytesPerS(16 * MIB)));
        let began = std::time::Instant::now();
        while let Some(bytes) = body.try_next().await.unwrap() {
            got += bytes.len() as u64;
        }
        assert_eq!(got, 8 * MIB);
        // Two pieces of a mebibyte may have been read without a limit. At most 6 MiB at 16 MiB/s are left.
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        assert!(governor.statistics().waits > 0);
    }
}
