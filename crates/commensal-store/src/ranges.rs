//! Reads several ranges of one object (`get_ranges`) in pieces, all from one version of the object. The query pays for
//! each piece before the read: it reserves the bytes with the rate limiter of its governor, and waits until they are
//! granted. A stretch is a part of a remote object that covers one range, or several ranges and the small gaps between
//! them.

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

/// Maximum number of stretches that one remote call fetches concurrently (`object_store` itself uses the same number).
const PARALLEL: usize = 10;
/// Maximum number of requests for one stretch that the query pays for or sends at the same time: the current request
/// and the next one.
const AHEAD: usize = 2;
/// Maximum number of pieces of one `get_ranges` call that are read in one batch.
const AT_ONCE: usize = 16;

/// A range whose end is before its start.
#[derive(Debug, thiserror::Error)]
#[error("the range ends at {} before it starts at {}", .0.end, .0.start)]
struct Backwards(Range<u64>);

/// A store returned less data than the object contains.
#[derive(Debug, thiserror::Error)]
#[error("the store returned {came} bytes for the range {} to {}", .range.start, .range.end)]
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

/// Pays for all ranges, then calls the inner store directly.
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
    // The store also received the gaps, which `got` does not contain. If a range ends beyond the object's end, fewer
    // bytes than requested arrive.
    paid.spend(if came < total(ranges) { came } else { moves });
    Ok(got)
}

/// A local object that is read piece by piece.
enum Opened<S: ?Sized> {
    File(OpenFile),
    /// A local store whose objects are not files. The version in the metadata ensures that all pieces are from the same
    /// object.
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

    /// Reads the parts that were paid for, and appends each part to the buffer of its range.
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
        // Bytes beyond all payments become a debt of the last payment.
        let of_this = if at + 1 == count { bytes } else { bytes.min(paid.left()) };
        bytes -= of_this;
        paid.spend(of_this);
    }
}

/// Cuts ranges into parts, and combines small parts into batches. A batch has at most `most` bytes.
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

/// Returns an empty buffer with the capacity for a range.
fn room(range: &Range<u64>) -> Result<Vec<u8>> {
    let size = usize::try_from(length(range)).map_err(|source| {
        let source = Box::new(source);
        object_store::Error::Generic { store: "GovernedStore", source }
    })?;
    Ok(Vec::with_capacity(size))
}

/// A range that is assembled from pieces, which arrive in order. A single piece is not copied.
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
        // Adds the pieces that the query can pay for without a wait to this batch. If reads stay below the limit, most
        // pieces join a batch in this way.
        while all.len() < AT_ONCE
            && let Some(paid) = batches.peek().and_then(|next| pay(next).now_or_never())
        {
            all.push(paid?);
            places.extend(batches.next().into_iter().flatten());
        }
        // Pays for the next batch while this batch is read.
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

/// Reads an empty range, or a range beyond the object's end. The inner store decides the result, and the query pays for
/// the bytes that exist.
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

/// Sorts ranges, and merges ranges whose gaps are too small for separate requests, like
/// `object_store::coalesce_ranges`. `coalesce_ranges` itself is not used, because it panics if a range starts beyond
/// the object's end.
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

/// Fetches one stretch of an object with requests of a bounded size. The first response determines the version that the
/// other responses must have.
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
