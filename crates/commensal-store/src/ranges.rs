//! `get_ranges`: paid for and read in pieces, every byte of one version of the object.

use crate::body::{OpenFile, RangePart};
use crate::governor::Reach;
use crate::query::{Paid, Query};
use crate::store::get_opts;
use bytes::{Bytes, BytesMut};
use futures_util::future::{FutureExt, OptionFuture, try_join};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetResultPayload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, Result,
};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of concurrent requests of one remote call, as in `object_store` itself.
const PARALLEL: usize = 10;
/// Maximum number of requests of one remote stretch that are paid for or under way: one ahead.
const AHEAD: usize = 2;
/// Maximum number of pieces of one call that are read at once.
const AT_ONCE: usize = 16;

/// A range whose end is before its start.
#[derive(Debug, thiserror::Error)]
#[error("the range ends at {} before it starts at {}", .0.end, .0.start)]
struct Backwards(Range<u64>);

/// A store returned less than its object contains.
#[derive(Debug, thiserror::Error)]
#[error("{came} bytes came of {} to {}", .range.start, .range.end)]
struct Short {
    range: Range<u64>,
    came: usize,
}

pub(crate) fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(length(range)))
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

pub(crate) async fn get<S: ObjectStore + ?Sized>(
    inner: &Arc<S>,
    reads: &Query,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    if let Some(range) = ranges.iter().find(|range| range.start > range.end) {
        let source = Box::new(Backwards(range.clone()));
        return Err(object_store::Error::Generic { store: "GovernedStore", source });
    }
    let reach = reads.governor().reach();
    // A remote store also reads the gaps between ranges that are close together.
    let moves = match reach {
        Reach::Local => total(ranges),
        Reach::Remote => total(&merged(ranges)),
    };
    match (reads.piece(), reach) {
        (Some(piece), Reach::Local) if moves > piece => local(inner, reads, location, ranges).await,
        (Some(piece), Reach::Remote) if moves > piece => remote(inner, reads, location, ranges).await,
        _ => whole(&**inner, reads, location, ranges, moves).await,
    }
}

/// Calls the inner store directly.
async fn whole<S: ObjectStore + ?Sized>(
    inner: &S,
    reads: &Query,
    location: &Path,
    ranges: &[Range<u64>],
    moves: u64,
) -> Result<Vec<Bytes>> {
    let mut paid = reads.pay(moves).await?;
    paid.begin();
    let got = inner.get_ranges(location, ranges).await;
    paid.failed();
    let got = got?;
    let came: u64 = got.iter().map(|bytes| bytes.len() as u64).sum();
    // The gaps were received too; but a range beyond the object's end returns less.
    paid.spend(if came < total(ranges) { came } else { moves });
    Ok(got)
}

/// The source of a local object, which is read piece by piece.
enum Opened<S: ?Sized> {
    File(OpenFile),
    /// A local store without files: the version ensures that all pieces are from the same object.
    Store(Arc<S>, ObjectMeta),
}

impl<S: ObjectStore + ?Sized> Opened<S> {
    async fn open(inner: &Arc<S>, location: &Path) -> Result<Opened<S>> {
        let result = inner.get_opts(location, GetOptions::default()).await?;
        Ok(match result.payload {
            GetResultPayload::File(file, path) => Opened::File(OpenFile::new(file, path, result.meta)),
            GetResultPayload::Stream(_) => Opened::Store(Arc::clone(inner), result.meta),
        })
    }

    fn size(&self) -> u64 {
        match self {
            Opened::File(file) => file.size(),
            Opened::Store(_, meta) => meta.size,
        }
    }

    /// Reads the parts that were paid for, and appends each to the buffer of its range.
    async fn read(
        &self,
        mut rooms: Vec<Vec<u8>>,
        places: &[RangePart],
        mut paid: Vec<Paid>,
    ) -> Result<Vec<Vec<u8>>> {
        let (inner, meta) = match self {
            Opened::File(file) => return file.fill_paid(rooms, places, &mut paid).await,
            Opened::Store(inner, meta) => (inner, meta),
        };
        for RangePart { of, range } in places {
            let options = same_version(meta, range.clone());
            let bytes = inner.get_opts(&meta.location, options).await?.bytes().await?;
            spend(&mut paid, bytes.len() as u64);
            if bytes.len() as u64 != length(range) {
                let source = Box::new(Short { range: range.clone(), came: bytes.len() });
                return Err(object_store::Error::Generic { store: "GovernedStore", source });
            }
            rooms[*of].extend_from_slice(&bytes);
        }
        Ok(rooms)
    }
}

fn same_version(meta: &ObjectMeta, range: Range<u64>) -> GetOptions {
    GetOptions::new()
        .with_range(Some(range))
        .with_if_match(meta.e_tag.clone())
        .with_version(meta.version.clone())
}

/// Records that `bytes` were received for these payments.
fn spend(paid: &mut [Paid], mut bytes: u64) {
    let count = paid.len();
    for (at, paid) in paid.iter_mut().enumerate() {
        // The last payment gets the excess as a debt.
        let of_this = if at + 1 == count { bytes } else { bytes.min(paid.left()) };
        bytes -= of_this;
        paid.spend(of_this);
    }
}

/// Cuts ranges into parts, and combines small ones: no batch is larger than `most` bytes.
fn batches(ranges: impl Iterator<Item = (usize, Range<u64>)>, most: u64) -> Vec<Vec<RangePart>> {
    let most = most.max(1);
    let mut batches: Vec<Vec<RangePart>> = Vec::new();
    let mut free = 0;
    for (of, Range { mut start, end }) in ranges {
        while start < end {
            if free == 0 {
                batches.push(Vec::new());
                free = most;
            }
            let next = end.min(start.saturating_add(free));
            free -= next - start;
            if let Some(batch) = batches.last_mut() {
                batch.push(RangePart { of, range: start..next });
            }
            start = next;
        }
    }
    batches
}

/// An empty buffer with the capacity for a range.
fn room(range: &Range<u64>) -> Result<Vec<u8>> {
    let size = usize::try_from(length(range)).map_err(|source| {
        let source = Box::new(source);
        object_store::Error::Generic { store: "GovernedStore", source }
    })?;
    Ok(Vec::with_capacity(size))
}

/// A range that is assembled from its pieces, which arrive in order; a single piece is not copied.
#[derive(Default)]
struct Part {
    first: Bytes,
    grown: BytesMut,
}

impl Part {
    fn push(&mut self, bytes: Bytes, whole: usize) {
        if self.grown.is_empty() && self.first.is_empty() {
            self.first = bytes;
            return;
        }
        if self.grown.is_empty() {
            self.grown.reserve(whole);
            self.grown.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.grown.extend_from_slice(&bytes);
    }

    fn whole(self) -> Bytes {
        if self.grown.is_empty() { self.first } else { self.grown.freeze() }
    }
}

async fn local<S: ObjectStore + ?Sized>(
    inner: &Arc<S>,
    reads: &Query,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let opened = Opened::open(inner, location).await?;
    let size = opened.size();
    let regular = ranges.iter().cloned().enumerate().filter(|(_, range)| inside(range, size));
    let batches = batches(regular, reads.piece().unwrap_or(u64::MAX));
    let of_size = |range: &Range<u64>| if inside(range, size) { room(range) } else { Ok(Vec::new()) };
    let mut rooms = ranges.iter().map(of_size).collect::<Result<Vec<_>>>()?;
    let pay = |places: &[RangePart]| {
        let bytes = places.iter().map(|place| length(&place.range)).sum();
        async move { Ok::<Paid, object_store::Error>(reads.pay(bytes).await?) }
    };
    let mut batches = batches.into_iter().peekable();
    let mut ahead = match batches.peek() {
        Some(places) => Some(pay(places).await?),
        None => None,
    };
    while let (Some(mut places), Some(paid)) = (batches.next(), ahead.take()) {
        let mut all = vec![paid];
        // Pieces that can be paid for without waiting are read in the same batch: if the limit does not bind, that is
        // most of them.
        while all.len() < AT_ONCE
            && let Some(paid) = batches.peek().and_then(|next| pay(next).now_or_never())
        {
            all.push(paid?);
            places.extend(batches.next().into_iter().flatten());
        }
        // The next batch is paid for while this one is read.
        let next = OptionFuture::from(batches.peek().map(|places| pay(places)));
        (rooms, ahead) = try_join(opened.read(rooms, &places, all), async { next.await.transpose() }).await?;
    }
    let mut whole: Vec<Bytes> = rooms.into_iter().map(Bytes::from).collect();
    for (of, range) in ranges.iter().enumerate().filter(|(_, range)| !inside(range, size)) {
        whole[of] = odd(inner, reads, location, range, size).await?;
    }
    Ok(whole)
}

fn inside(range: &Range<u64>, size: u64) -> bool {
    range.start < range.end && range.end <= size
}

/// An empty range, or one beyond the object's end: the inner store decides the result, and the bytes that exist are
/// paid for.
async fn odd<S: ObjectStore + ?Sized>(
    inner: &Arc<S>,
    reads: &Query,
    location: &Path,
    range: &Range<u64>,
    size: u64,
) -> Result<Bytes> {
    let mut left = size.min(range.end).saturating_sub(range.start);
    let mut paid = Vec::new();
    while left > 0 {
        let piece = left.min(reads.piece().unwrap_or(u64::MAX));
        paid.push(reads.pay(piece).await?);
        left -= piece;
    }
    let got = inner.get_ranges(location, std::slice::from_ref(range)).await?;
    for paid in &mut paid {
        paid.spend(paid.left());
    }
    Ok(got.into_iter().next().unwrap_or_default())
}

/// Sorts ranges, and merges those with gaps too small for separate requests, as `object_store::coalesce_ranges` does;
/// that function panics if a range begins beyond the object's end.
fn merged(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(OBJECT_STORE_COALESCE_DEFAULT) => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

async fn remote<S: ObjectStore + ?Sized>(
    inner: &Arc<S>,
    reads: &Query,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let merged = merged(ranges);
    let fetches: Vec<_> = merged
        .iter()
        .map(|range| fetch(Arc::clone(inner), reads.clone(), location.clone(), range.clone()))
        .collect();
    let fetched: Vec<Bytes> = stream::iter(fetches).buffered(PARALLEL).try_collect().await?;
    let slice = |range: &Range<u64>| {
        let at = merged.partition_point(|whole| whole.start <= range.start).saturating_sub(1);
        let bytes = &fetched[at];
        let within = |offset: u64| {
            usize::try_from(offset.saturating_sub(merged[at].start))
                .map_or(bytes.len(), |to| to.min(bytes.len()))
        };
        bytes.slice(within(range.start)..within(range.end))
    };
    Ok(ranges.iter().map(slice).collect())
}

/// Reads one stretch of an object, in requests of a bounded size; the first response determines the version that the
/// others must have.
async fn fetch<S: ObjectStore + ?Sized>(
    inner: Arc<S>,
    reads: Query,
    location: Path,
    range: Range<u64>,
) -> Result<Bytes> {
    let request = reads.governor().settings().request.max(1);
    let first = range.start..range.end.min(range.start.saturating_add(request));
    let options = GetOptions::new().with_range(Some(first.clone()));
    let result = get_opts(&*inner, &reads, &location, options).await?;
    let meta = result.meta.clone();
    let mut part = Part::default();
    part.push(result.bytes().await?, usize::try_from(length(&range)).unwrap_or(0));
    let mut rest = Vec::new();
    let mut at = first.end;
    let end = range.end.min(meta.size);
    while at < end {
        let next = at..end.min(at.saturating_add(request));
        at = next.end;
        rest.push(get_one(Arc::clone(&inner), reads.clone(), meta.clone(), next));
    }
    let mut rest = stream::iter(rest).buffered(AHEAD);
    while let Some(bytes) = rest.try_next().await? {
        part.push(bytes, usize::try_from(length(&range)).unwrap_or(0));
    }
    Ok(part.whole())
}

async fn get_one<S: ObjectStore + ?Sized>(
    inner: Arc<S>,
    reads: Query,
    meta: ObjectMeta,
    range: Range<u64>,
) -> Result<Bytes> {
    let options = same_version(&meta, range);
    get_opts(&*inner, &reads, &meta.location, options).await?.bytes().await
}
