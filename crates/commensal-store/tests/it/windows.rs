//! The rate in windows of time, for 1 to 128 readers: what the limiter is for.

use crate::charge_after::ChargeAfter;
use crate::device::{Device, MIB, Model, path};
use commensal_store::{BytesPerS, GovernedStore, Governor, Query, QueryId, Reach};
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A test's limit, in bytes per second.
const RATE: u64 = 100 * MIB;
/// How long each case lasts.
const SECONDS: usize = 3;
/// How far a window of 1 s may be off.
const SECOND: f64 = 0.05;
/// How high a window of 100 ms may be.
const TENTH: f64 = 1.5;

/// How a reader reads the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Stream,
    Ranges,
}

/// Reads the whole object again and again.
async fn read_on<S: ObjectStore>(store: GovernedStore<S>, by: By, bytes: u64) {
    loop {
        match by {
            By::Ranges => drop(store.get_ranges(&path(), &[0..bytes / 2, bytes / 2..bytes]).await.unwrap()),
            By::Stream => {
                let mut body = store.get(&path()).await.unwrap().into_stream();
                while body.try_next().await.unwrap().is_some() {}
            }
        }
    }
}

/// Lets readers read for so long on the paused clock, which is the time that is measured, and ends them.
async fn read_for<T: 'static>(seconds: usize, mut readers: JoinSet<T>) {
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    readers.shutdown().await;
}

/// Lets `readers` of one query read for so long; how much the device gave in each second and each tenth, as parts of the
/// rate.
async fn measure(reach: Reach, by: By, readers: usize, model: Model) -> (Vec<f64>, Vec<f64>) {
    const OBJECT: u64 = 4 * MIB;
    let device = Device::with(model, OBJECT).await;
    let governor = Governor::new(reach, Some(BytesPerS(RATE)));
    let query = governor.query(QueryId(1));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..readers {
        let store = GovernedStore::new(Arc::new(device.clone()), query.clone());
        all.spawn(read_on(store, by, OBJECT));
    }
    read_for(SECONDS, all).await;
    let statistics = governor.statistics();
    assert!(statistics.most_1s_bytes as f64 <= RATE as f64 * (1.0 + SECOND), "{statistics:?}");
    parts(&device, began, SECONDS)
}

/// What the device gave in each second and each tenth, as parts of the rate.
fn parts(device: &Device, began: Instant, seconds: usize) -> (Vec<f64>, Vec<f64>) {
    let parts = |length: Duration, count: usize| {
        let windows = device.windows(began, length, count);
        windows.iter().map(|bytes| *bytes as f64 / (RATE as f64 * length.as_secs_f64())).collect()
    };
    (parts(Duration::from_secs(1), seconds), parts(Duration::from_millis(100), seconds * 10))
}

async fn check(reach: Reach, by: By, readers: usize, model: Model) {
    let (seconds, tenths) = measure(reach, by, readers, model).await;
    let what = format!("{reach:?}, {by:?}, {readers} readers, device {:?}", model.mib);
    // The first second has the time until the first bytes arrive.
    for (number, second) in seconds.iter().enumerate() {
        let least = if number == 0 { 0.5 } else { 1.0 - SECOND };
        assert!((least..=1.0 + SECOND).contains(second), "{what}: seconds {seconds:.3?}");
    }
    let most = tenths.iter().copied().fold(0.0, f64::max);
    assert!(most <= TENTH, "{what}: a tenth of {most:.2}, {tenths:.2?}");
    println!("{what}: seconds {seconds:.3?}, the highest tenth {most:.2}");
}

// promise 44
#[tokio::test(start_paused = true)]
async fn every_window_holds_for_1_to_128_readers() {
    for readers in [1, 2, 16, 48, 128] {
        for reach in [Reach::Local, Reach::Remote] {
            for by in [By::Stream, By::Ranges] {
                check(reach, by, readers, Model::default()).await;
            }
        }
    }
}

/// Each reader gets 200 MiB/s from it, and waits 2 ms for each request.
// promise 44
#[tokio::test(start_paused = true)]
async fn every_window_holds_on_a_slow_device() {
    let model =
        Model { request: Duration::from_millis(2), mib: Duration::from_millis(5), ..Model::default() };
    for readers in [16, 48, 128] {
        for (reach, by) in
            [(Reach::Local, By::Ranges), (Reach::Remote, By::Stream), (Reach::Remote, By::Ranges)]
        {
            check(reach, by, readers, model).await;
        }
    }
}

/// What is asked of the limiter above is not what any limiter does: one that charges after the read fails it by far.
// promise 44
#[tokio::test(start_paused = true)]
async fn charging_after_the_read_is_not_even() {
    let model = Model { mib: Duration::from_millis(5), ..Model::default() };
    let device = Device::with(model, 4 * MIB).await;
    let limiter = Arc::new(ChargeAfter::new(RATE));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..48 {
        let (device, limiter) = (device.clone(), Arc::clone(&limiter));
        all.spawn(async move {
            loop {
                limiter.wait().await;
                device.get(&path()).await.unwrap().bytes().await.unwrap();
                limiter.charge(4 * MIB);
            }
        });
    }
    read_for(8, all).await;
    let (seconds, tenths) = parts(&device, began, 8);
    let most = |windows: &[f64]| windows.iter().copied().fold(0.0, f64::max);
    assert!(most(&seconds) > 1.0 + 5.0 * SECOND, "{seconds:.3?}");
    assert!(most(&tenths) > 2.0 * TENTH, "{tenths:.2?}");
}

/// A remote request can bring all at once: what it brings is handed on at the rate.
#[tokio::test(start_paused = true)]
async fn a_body_in_one_frame_is_paced_too() {
    let model = Model { frame: usize::MAX, ..Model::default() };
    let device = Device::with(model, 50 * MIB).await;
    let governor = Governor::new(Reach::Remote, Some(BytesPerS(RATE)));
    let store = GovernedStore::new(Arc::new(device), governor.query(QueryId(1)));
    let began = Instant::now();
    let mut body = store.get(&path()).await.unwrap().into_stream();
    let mut got = 0;
    while let Some(bytes) = body.try_next().await.unwrap() {
        got += bytes.len() as u64;
        let most = RATE as f64 * (began.elapsed().as_secs_f64() + 0.030);
        assert!(got as f64 <= most, "{got} after {:?}", began.elapsed());
    }
    assert_eq!(got, 50 * MIB);
    assert!((0.45..0.55).contains(&began.elapsed().as_secs_f64()), "{:?}", began.elapsed());
}

/// At a low rate pieces are small, or one alone would fill a second.
#[tokio::test(start_paused = true)]
async fn a_low_rate_is_even_too() {
    let device = Device::with(Model { frame: 4_096, ..Model::default() }, MIB).await;
    let governor = Governor::new(Reach::Remote, Some(BytesPerS(MIB)));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..16 {
        let store = GovernedStore::new(Arc::new(device.clone()), governor.query(QueryId(1)));
        all.spawn(read_on(store, By::Stream, MIB));
    }
    read_for(5, all).await;
    for bytes in &device.windows(began, Duration::from_secs(1), 5)[1..] {
        let part = *bytes as f64 / MIB as f64;
        assert!((1.0 - SECOND..=1.0 + SECOND).contains(&part), "{part}");
    }
}

/// What each of several queries got, with so many readers each.
async fn shares(readers: &[usize], reach: Reach, by: By, model: Model) -> Vec<f64> {
    let device = Device::with(model, 4 * MIB).await;
    let governor = Governor::new(reach, Some(BytesPerS(RATE)));
    let mut all = JoinSet::new();
    let queries: Vec<Query> = (0..readers.len()).map(|id| governor.query(QueryId(id as u64))).collect();
    for (query, readers) in queries.iter().zip(readers) {
        for _ in 0..*readers {
            let store = GovernedStore::new(Arc::new(device.clone()), query.clone());
            all.spawn(read_on(store, by, 4 * MIB));
        }
    }
    read_for(3, all).await;
    queries.iter().map(|query| query.statistics().delivered_bytes as f64 / (3.0 * RATE as f64)).collect()
}

/// A query with 128 readers gets as much as one with a single reader that keeps reading, not 128 times as much.
// promise 44
#[tokio::test(start_paused = true)]
async fn a_crowd_does_not_starve_one_reader() {
    let slow = Model { mib: Duration::from_millis(2), ..Model::default() };
    for (reach, by, model) in [
        (Reach::Local, By::Ranges, Model::default()),
        (Reach::Remote, By::Stream, Model::default()),
        (Reach::Local, By::Ranges, slow),
        (Reach::Remote, By::Stream, slow),
    ] {
        let got = shares(&[128, 1], reach, by, model).await;
        assert!(got.iter().all(|share| (0.4..0.6).contains(share)), "{reach:?}, {by:?}: {got:.3?}");
        let got = shares(&[100, 10, 5, 20], reach, by, model).await;
        assert!(got.iter().all(|share| (0.2..0.3).contains(share)), "{reach:?}, {by:?}: {got:.3?}");
    }
}

/// Two stores, one governor: the limit is of both together.
#[tokio::test(start_paused = true)]
async fn stores_share_a_governor() {
    let devices =
        [Device::with(Model::default(), 4 * MIB).await, Device::with(Model::default(), 4 * MIB).await];
    let governor = Governor::new(Reach::Local, Some(BytesPerS(RATE)));
    let mut all = JoinSet::new();
    for (id, device) in devices.iter().enumerate() {
        let store = GovernedStore::new(Arc::new(device.clone()), governor.query(QueryId(id as u64)));
        all.spawn(read_on(store, By::Ranges, 4 * MIB));
    }
    read_for(3, all).await;
    let together = (devices[0].moved() + devices[1].moved()) as f64 / (3.0 * RATE as f64);
    assert!((0.95..=1.05).contains(&together), "{together}");
}
