//! Response bodies of reads: a local file as a stream of pieces, and a remote response that is read only as fast as the
//! query pays for its data. To pay for bytes means to reserve them with the rate limiter of the query's governor, and
//! to wait until they are granted.

use crate::query::{Paid, Query};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::{Attributes, GetResult, GetResultPayload, ObjectMeta, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Size of a piece when there is no limit, in bytes.
const FREE_PIECE: u64 = 1 << 20;

/// Replaces the body of a result with a body whose bytes the query `reads` pays for. `ahead` is the payment that was
/// made before the request.
///
/// A file is never passed on as a file: a caller that reads it directly would bypass the governor.
pub(crate) fn paid(result: GetResult, reads: &Query, ahead: Option<Paid>) -> GetResult {
    let GetResult { payload, meta, range, attributes } = result;
    let payload = match payload {
        GetResultPayload::File(file, path) => {
            of_file(OpenFile::new(file, path, meta.clone()), range.clone(), reads.clone())
        }
        GetResultPayload::Stream(inner) => of_stream(inner, &range, reads.clone(), ahead),
    };
    GetResult { payload: GetResultPayload::Stream(payload), meta, range, attributes }
}

/// A file that the inner store has opened. Clones share the open file. If another file replaces it at the path, reads
/// still return the contents of the opened file.
#[derive(Debug, Clone)]
pub(crate) struct OpenFile {
    file: Arc<File>,
    path: PathBuf,
    meta: ObjectMeta,
}

impl OpenFile {
    pub(crate) fn new(file: File, path: PathBuf, meta: ObjectMeta) -> OpenFile {
        OpenFile { file: Arc::new(file), path, meta }
    }

    /// The size of the file when it was opened, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.meta.size
    }

    /// Reads a range on the thread pool for blocking work. Errors are those of the store that opened the file.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let file = self.file.try_clone().map_err(|source| object_store::Error::Generic {
            store: "GovernedStore",
            source: Box::new(source),
        })?;
        let payload = GetResultPayload::File(file, self.path.clone());
        let meta = self.meta.clone();
        GetResult { payload, meta, range, attributes: Attributes::default() }.bytes().await
    }

    /// Appends the file's contents at `places` to the buffers of their ranges. All places are read in one task on the
    /// thread pool for blocking work. Only one such call may run at a time, because calls share the file's position. If
    /// the caller stops waiting while the read runs, the bytes are still charged.
    pub(crate) async fn fill_paid(
        &self,
        mut rooms: Vec<Vec<u8>>,
        places: &[RangePart],
        paid: &mut [Paid],
    ) -> Result<Vec<Vec<u8>>> {
        let (file, places) = (Arc::clone(&self.file), places.to_vec());
        let fill = move || {
            for place in places {
                let room = &mut rooms[place.of];
                let filled = append(&file, &place.range, room);
                filled.map_err(|error| (place.range.clone(), error))?;
            }
            Ok::<_, (Range<u64>, io::Error)>(rooms)
        };
        paid.iter_mut().for_each(Paid::begin);
        let filled = match Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(fill).await,
            Err(_) => Ok(fill()),
        };
        paid.iter_mut().for_each(Paid::failed);
        let (range, error) = match filled.map_err(|source| object_store::Error::JoinError { source })? {
            Ok(rooms) => {
                paid.iter_mut().for_each(|paid| paid.spend(paid.left()));
                return Ok(rooms);
            }
            Err(failed) => failed,
        };
        // Reading the range again through the store returns the store's own error.
        self.read(range).await?;
        Err(object_store::Error::Generic { store: "GovernedStore", source: Box::new(error) })
    }

    /// Reads a range that was paid for. If the caller stops waiting while the read runs, the bytes are still charged.
    pub(crate) async fn read_paid(&self, range: Range<u64>, paid: &mut Paid) -> Result<Bytes> {
        paid.begin();
        let read = self.read(range).await;
        paid.failed();
        let bytes = read?;
        paid.spend(bytes.len() as u64);
        Ok(bytes)
    }
}

/// A part of one of several ranges.
#[derive(Debug, Clone)]
pub(crate) struct RangePart {
    /// Index of the range.
    pub(crate) of: usize,
    /// Position in the object.
    pub(crate) range: Range<u64>,
}

/// Reads a range of the file and appends it to `room` without zeroing the memory first.
fn append(mut file: &File, range: &Range<u64>, room: &mut Vec<u8>) -> io::Result<()> {
    let size = range.end - range.start;
    file.seek(SeekFrom::Start(range.start))?;
    let came = file.take(size).read_to_end(room)?;
    if (came as u64) < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Cuts the next piece off `range`; returns `None` at the end of the range.
fn cut(range: &mut Range<u64>, reads: &Query) -> Option<Range<u64>> {
    if range.start >= range.end {
        return None;
    }
    let piece = reads.piece().unwrap_or(FREE_PIECE);
    let end = range.end.min(range.start.saturating_add(piece));
    let cut = range.start..end;
    range.start = end;
    Some(cut)
}

/// Streams a range of a file. While the consumer processes one piece, the next piece is paid for and read, so that even
/// a single slow consumer reaches the rate.
fn of_file(file: OpenFile, range: Range<u64>, reads: Query) -> BoxStream<'static, Result<Bytes>> {
    let one = |file: OpenFile, range: Range<u64>, reads: Query| async move {
        let mut paid = reads.pay(range.end - range.start).await?;
        file.read_paid(range, &mut paid).await
    };
    let state = (file, range, reads, JoinSet::new());
    stream::try_unfold(state, move |(file, mut range, reads, mut ahead)| async move {
        if Handle::try_current().is_err() {
            let Some(next) = cut(&mut range, &reads) else { return Ok(None) };
            let bytes = one(file.clone(), next, reads.clone()).await?;
            return Ok(Some((bytes, (file, range, reads, ahead))));
        }
        let mut start = |ahead: &mut JoinSet<_>| {
            if let Some(next) = cut(&mut range, &reads) {
                ahead.spawn(one(file.clone(), next, reads.clone()));
            }
        };
        if ahead.is_empty() {
            start(&mut ahead);
        }
        let Some(joined) = ahead.join_next().await else { return Ok(None) };
        let bytes = joined.map_err(|source| object_store::Error::JoinError { source })??;
        start(&mut ahead);
        Ok(Some((bytes, (file, range, reads, ahead))))
    })
    .boxed()
}

/// Streams a response body of a remote store: passes data on as soon as the query has paid for it. Data that is not
/// consumed stays with the sender (the TCP window closes). The query pays for all received data, even for data beyond
/// the range.
fn of_stream(
    inner: BoxStream<'static, Result<Bytes>>,
    range: &Range<u64>,
    reads: Query,
    paid: Option<Paid>,
) -> BoxStream<'static, Result<Bytes>> {
    let expected = range.end.saturating_sub(range.start);
    let body = Body { inner, reads, paid, expected, held: Bytes::new() };
    stream::try_unfold(body, |mut body| async move { Ok(body.next().await?.map(|bytes| (bytes, body))) })
        .boxed()
}

struct Body {
    inner: BoxStream<'static, Result<Bytes>>,
    reads: Query,
    paid: Option<Paid>,
    /// Bytes of the range that are still expected.
    expected: u64,
    /// Data that was received but is not paid for yet.
    held: Bytes,
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.held.is_empty() {
            if self.paid.as_ref().is_none_or(|paid| paid.left() == 0) && self.expected > 0 {
                self.paid = Some(self.pay(self.expected).await?);
            }
            match self.inner.next().await.transpose()? {
                Some(bytes) => self.held = bytes,
                None => {
                    self.paid = None;
                    return Ok(None);
                }
            }
        }
        let mut paid = match self.paid.take().filter(|paid| paid.left() > 0) {
            Some(paid) => paid,
            None => self.pay(self.held.len() as u64).await?,
        };
        let most = usize::try_from(paid.left()).unwrap_or(usize::MAX);
        let bytes = self.held.split_to(self.held.len().min(most));
        paid.spend(bytes.len() as u64);
        self.expected = self.expected.saturating_sub(bytes.len() as u64);
        self.paid = Some(paid);
        Ok(Some(bytes))
    }

    async fn pay(&mut self, bytes: u64) -> Result<Paid> {
        let piece = self.reads.piece().unwrap_or(FREE_PIECE);
        Ok(self.reads.pay(bytes.min(piece)).await?)
    }
}
