//! Requests that fail, bodies that end early, and what was paid for them.

use crate::device::{Device, Fault, MIB, Model, path, pattern};
use commensal_store::{BytesPerS, GovernedStore, Governor, QueryId, Reach};
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes per second; an object of a mebibyte takes one second.
const RATE: u64 = MIB;

/// What came counts and takes its time; what did not come takes none.
// promise 44
#[tokio::test(start_paused = true)]
async fn what_did_not_come_is_not_paid_for() {
    let faults = [
        Fault::None,
        Fault::Refuses(2),
        Fault::Refuses(1),
        Fault::Ends(100_000),
        Fault::Ends(0),
        Fault::Breaks(65_536),
    ];
    for fault in faults {
        for reach in [Reach::Local, Reach::Remote] {
            let device = Device::with(Model { fault, ..Model::default() }, MIB).await;
            let governor = Governor::new(reach, Some(BytesPerS(RATE)));
            let query = governor.query(QueryId(1));
            let store = GovernedStore::new(Arc::new(device.clone()), query.clone());
            let began = Instant::now();
            for _ in 0..6 {
                if let Ok(result) = store.get(&path()).await {
                    let mut body = result.into_stream();
                    while let Ok(Some(_)) = body.try_next().await {}
                }
                // Also by ranges; whether they come is the device's matter.
                let _ = store.get_ranges(&path(), &[0..200_000, 900_000..MIB]).await;
            }
            let what = format!("{fault:?}, {reach:?}");
            let delivered = governor.statistics().delivered_bytes;
            assert_eq!(query.statistics().delivered_bytes, delivered, "{what}");
            assert!(delivered <= device.moved(), "{what}: {delivered} of {}", device.moved());
            // What a broken call brought already counts as well, up to one frame and what it skips between ranges.
            let (took, would) = (began.elapsed().as_secs_f64(), delivered as f64 / RATE as f64);
            assert!((would - 0.1..=would + 0.1).contains(&took), "{what}: {took} s for {would} s of bytes");
        }
    }
}

/// The store's own end of a body is handed on as it is.
#[tokio::test(start_paused = true)]
async fn short_bodies_are_as_short_as_the_stores() {
    for reach in [Reach::Local, Reach::Remote] {
        let model = Model { fault: Fault::Ends(70_000), ..Model::default() };
        let device = Device::with(model, MIB).await;
        let governor = Governor::new(reach, Some(BytesPerS(RATE)));
        let store = GovernedStore::new(Arc::new(device), governor.query(QueryId(1)));
        let got = store.get(&path()).await.unwrap().bytes().await.unwrap();
        assert_eq!(got, pattern(MIB)[..70_000]);
    }
}

/// A body that breaks half-way: the bytes before, then the error, then the end.
#[tokio::test(start_paused = true)]
async fn an_error_in_the_body_comes_after_the_bytes_before_it() {
    for reach in [Reach::Local, Reach::Remote] {
        let model = Model { fault: Fault::Breaks(128 << 10), ..Model::default() };
        let device = Device::with(model, MIB).await;
        let governor = Governor::new(reach, Some(BytesPerS(RATE)));
        let store = GovernedStore::new(Arc::new(device), governor.query(QueryId(1)));
        let mut body = store.get(&path()).await.unwrap().into_stream();
        let mut got = Vec::new();
        let error = loop {
            match body.try_next().await {
                Ok(Some(bytes)) => got.extend_from_slice(&bytes),
                Ok(None) => panic!("no error"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("broken pipe"), "{error}");
        assert_eq!(got, pattern(MIB)[..128 << 10]);
    }
}

/// The store alone would give empty pieces for ever (`object_store` 0.13.2, `chunked_stream`).
#[tokio::test]
async fn a_file_that_became_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    files.put(&path(), pattern(MIB).into()).await.unwrap();
    let governor = Governor::new(Reach::Local, Some(BytesPerS(1 << 30)));
    let store = GovernedStore::new(Arc::new(files), governor.query(QueryId(1)));
    let result = store.get(&path()).await.unwrap();
    let file = folder.path().join(crate::device::OBJECT);
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(1_000).unwrap();
    let read = tokio::time::timeout(Duration::from_secs(60), result.bytes()).await.expect("it ends");
    assert!(read.is_err());
}
