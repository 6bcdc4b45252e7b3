//! Every byte, every range and every error is that of the store itself.

use crate::device::{Device, MIB, Model, path, pattern};
use bytes::Bytes;
use commensal_store::{BytesPerS, GovernedStore, Governor, QueryId, Reach, Settings};
use object_store::integration;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt, Result};
use std::mem::discriminant;
use std::ops::Range;
use std::sync::Arc;

const SIZE: u64 = 300_000;

/// Pieces of 10,000 bytes and requests of 25,000, so that a small object has many.
fn governor(reach: Reach, limited: bool) -> Governor {
    let settings = Settings { piece: 10_000, request: 25_000, ..Settings::of(reach) };
    Governor::with(settings, limited.then_some(BytesPerS(1 << 30)))
}

fn governed<S: ObjectStore>(inner: &Arc<S>, reach: Reach, limited: bool) -> GovernedStore<S> {
    GovernedStore::new(Arc::clone(inner), governor(reach, limited).query(QueryId(1)))
}

fn ways() -> impl Iterator<Item = (Reach, bool)> {
    [Reach::Local, Reach::Remote].into_iter().flat_map(|reach| [(reach, true), (reach, false)])
}

/// What `object_store` asks of every store, on ours over memory and over files, with and without a limit.
// promise 44
#[tokio::test]
async fn it_passes_the_conformance_suite_of_object_store() {
    for (reach, limited) in ways() {
        let store = governed(&Arc::new(InMemory::new()), reach, limited);
        integration::put_get_delete_list(&store).await;
        integration::list_with_offset_exclusivity(&store).await;
        integration::get_opts(&store).await;
        integration::list_uses_directories_correctly(&store).await;
        integration::list_with_delimiter(&store).await;
        integration::rename_and_copy(&store).await;
        integration::copy_if_not_exists(&store).await;
        integration::copy_rename_nonexistent_object(&store).await;
        integration::stream_get(&store).await;
        integration::put_opts(&store, true).await;
        integration::put_get_attributes(&store).await;
        integration::multipart_out_of_order(&store).await;

        let folder = tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let store = governed(&Arc::new(files), reach, limited);
        integration::put_get_delete_list(&store).await;
        integration::list_with_offset_exclusivity(&store).await;
        integration::get_opts(&store).await;
        integration::list_uses_directories_correctly(&store).await;
        integration::list_with_delimiter(&store).await;
        integration::rename_and_copy(&store).await;
        integration::copy_if_not_exists(&store).await;
        integration::stream_get(&store).await;
    }
}

fn same<T: PartialEq + std::fmt::Debug>(ours: Result<T>, bare: Result<T>, what: &str) {
    match (ours, bare) {
        // Whole objects are not printed.
        (Ok(ours), Ok(bare)) => assert!(ours == bare, "{what}: other bytes"),
        (Err(ours), Err(bare)) => {
            assert_eq!(discriminant(&ours), discriminant(&bare), "{what}: {ours} for {bare}");
        }
        (ours, bare) => {
            panic!("{what}: ours fails: {:?}, the store fails: {:?}", ours.err(), bare.err());
        }
    }
}

async fn body(
    store: &dyn ObjectStore,
    options: GetOptions,
) -> Result<(Range<u64>, u64, Option<String>, Bytes)> {
    let result = store.get_opts(&path(), options).await?;
    let (range, size, e_tag) = (result.range.clone(), result.meta.size, result.meta.e_tag.clone());
    Ok((range, size, e_tag, result.bytes().await?))
}

async fn gets_are_equal<S: ObjectStore>(bare: &Arc<S>, what: &str) {
    let ranges: Vec<Option<GetRange>> = vec![
        None,
        Some((0..1).into()),
        Some((9_999..10_001).into()),
        Some((0..SIZE).into()),
        Some((70_000..SIZE + 50).into()),
        Some((SIZE..SIZE + 1).into()),
        Some((7..7).into()),
        Some(GetRange::Offset(123_456)),
        Some(GetRange::Offset(SIZE + 1)),
        Some(GetRange::Suffix(1)),
        Some(GetRange::Suffix(99_999)),
        Some(GetRange::Suffix(SIZE * 9)),
    ];
    let tag = bare.head(&path()).await.unwrap().e_tag.unwrap();
    for (reach, limited) in ways() {
        let ours = governed(bare, reach, limited);
        for range in &ranges {
            let conditions = [
                GetOptions::new(),
                GetOptions::new().with_if_match(Some(tag.clone())),
                GetOptions::new().with_if_match(Some("other")),
                GetOptions::new().with_if_none_match(Some(tag.clone())),
                GetOptions::new().with_head(true),
            ];
            for options in conditions {
                let options = options.with_range(range.clone());
                let what = format!("{what}, {reach:?}, limited {limited}, {options:?}");
                same(body(&ours, options.clone()).await, body(bare, options).await, &what);
            }
        }
        let nothing = Path::from("no/such");
        same(ours.get(&nothing).await.map(|_| ()), bare.get(&nothing).await.map(|_| ()), what);
        same(
            ours.get_ranges(&nothing, &[0..90_000]).await,
            bare.get_ranges(&nothing, &[0..90_000]).await,
            what,
        );
    }
}

/// `beyond`: whether ranges behind the end of the object are compared as well.
async fn ranges_are_equal<S: ObjectStore>(bare: &Arc<S>, reach: Reach, beyond: bool, what: &str) {
    let mut cases: Vec<Vec<Range<u64>>> = vec![
        vec![],
        vec![0..SIZE],
        vec![5..10, 290_000..290_001, 0..3],
        vec![0..100_000, 50_000..60_000, 0..100_000, 99_999..200_001],
        (0..300).map(|at| at * 1_000..at * 1_000 + 700).collect(),
        vec![0..9_999, 9_999..20_001, 20_001..SIZE],
    ];
    if beyond {
        cases.extend([vec![200_000..SIZE + 1], vec![SIZE..SIZE + 20_000], vec![0..50_000, 8..8]]);
    }
    for limited in [true, false] {
        let ours = governed(bare, reach, limited);
        for ranges in &cases {
            let what = format!("{what}, {reach:?}, limited {limited}, {ranges:?}");
            same(ours.get_ranges(&path(), ranges).await, bare.get_ranges(&path(), ranges).await, &what);
        }
        let backwards = Range { start: 5, end: 4 };
        assert!(ours.get_ranges(&path(), &[backwards]).await.is_err());
    }
}

// promise 44
#[tokio::test]
async fn every_byte_is_that_of_the_store() {
    let memory = Arc::new(InMemory::new());
    memory.put(&path(), pattern(SIZE).into()).await.unwrap();
    gets_are_equal(&memory, "memory").await;
    ranges_are_equal(&memory, Reach::Local, true, "memory").await;
    ranges_are_equal(&memory, Reach::Remote, false, "memory").await;

    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    files.put(&path(), pattern(SIZE).into()).await.unwrap();
    gets_are_equal(&files, "files").await;
    ranges_are_equal(&files, Reach::Local, true, "files").await;
    ranges_are_equal(&files, Reach::Remote, false, "files").await;

    // A store that only has what the trait gives it, as remote ones do.
    let device = Arc::new(Device::with(Model::default(), SIZE).await);
    gets_are_equal(&device, "device").await;
    ranges_are_equal(&device, Reach::Local, false, "device").await;
    ranges_are_equal(&device, Reach::Remote, false, "device").await;
}

/// The trait's own way of putting ranges together panics here: a Parquet file that lies about its columns must not.
#[tokio::test]
async fn ranges_far_behind_the_end_do_not_panic() {
    let device = Arc::new(Device::with(Model::default(), SIZE).await);
    let ours = governed(&device, Reach::Remote, true);
    let got = ours.get_ranges(&path(), &[0..200_000, SIZE + 100..SIZE + 200]).await.unwrap();
    assert_eq!(got.iter().map(Bytes::len).collect::<Vec<_>>(), [200_000, 0]);
    assert_eq!(got[0], pattern(SIZE)[..200_000]);
}

/// Whoever reads a file by itself goes past the governor.
// promise 44
#[tokio::test]
async fn a_file_never_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    files.put(&path(), pattern(SIZE).into()).await.unwrap();
    assert!(matches!(files.get(&path()).await.unwrap().payload, GetResultPayload::File(..)));
    for (reach, limited) in ways() {
        let ours = governed(&files, reach, limited);
        for options in [GetOptions::new(), GetOptions::new().with_head(true)] {
            let payload = ours.get_opts(&path(), options).await.unwrap().payload;
            assert!(matches!(payload, GetResultPayload::Stream(_)));
        }
    }
}

/// Another file takes the place of one that is being read: what comes is of the first one, or an error; never a mixture.
#[tokio::test]
async fn pieces_are_of_one_version() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let device = Arc::new(InMemory::new());
    let (old, new) = (vec![1u8; SIZE as usize], vec![2u8; SIZE as usize]);
    for reach in [Reach::Local, Reach::Remote] {
        for store in [Arc::clone(&files) as Arc<dyn ObjectStore>, device.clone()] {
            store.put(&path(), old.clone().into()).await.unwrap();
            // So slow that the replacement comes in the middle.
            let settings = Settings { piece: 10_000, request: 25_000, ..Settings::of(reach) };
            let governor = Governor::with(settings, Some(BytesPerS(MIB)));
            let ours = GovernedStore::new(Arc::clone(&store), governor.query(QueryId(1)));
            let reading = tokio::spawn(async move { ours.get_ranges(&path(), &[0..SIZE]).await });
            while governor.statistics().delivered_bytes < 50_000 {
                tokio::task::yield_now().await;
            }
            store.put(&path(), new.clone().into()).await.unwrap();
            governor.set_rate(Some(BytesPerS(1 << 30)));
            match reading.await.unwrap() {
                Ok(got) => assert!(got[0] == old, "{reach:?}, {store}: a mixture"),
                Err(error) => {
                    let precondition = matches!(error, object_store::Error::Precondition { .. });
                    assert!(precondition, "{reach:?}, {store}: {error}");
                }
            }
        }
    }
}
