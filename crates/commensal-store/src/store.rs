//! The governed store: an `ObjectStore` for which a query pays for each read in advance. To pay for bytes means to
//! reserve them with the rate limiter of the query's governor, and to wait until they are granted.

use crate::body;
use crate::governor::Reach;
use crate::query::Query;
use crate::ranges;
use crate::upload::{GovernedUpload, pay_for_write};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A store that reads on behalf of one query, at the rate of the query's governor. A governed store is cheap to create:
/// create one for each query, all on the same inner store.
///
/// Behaviour of each call:
///
/// | call | behaviour |
/// | --- | --- |
/// | `get_opts` | A local file becomes a stream of pieces. The query pays for each piece before the store reads it, one piece ahead of the consumer. For a remote object, the query pays for the first piece before the request, and for each other piece before it is taken from the body. |
/// | `get_ranges` | The query pays for the ranges piece by piece, and all pieces are from one version of the object. Without a limit, or if everything fits into one piece, the store calls `get_ranges` of the inner store. |
/// | `list*` | The governor counts the call, and does not limit it. |
/// | `put*` | The bytes are charged to the query given to [`GovernedStore::with_writes`], if there is one. |
/// | `delete*`, `copy*`, `rename*` | The inner store runs the call without a charge. |
#[derive(Debug)]
pub struct GovernedStore<S: ?Sized> {
    inner: Arc<S>,
    reads: Query,
    writes: Option<Query>,
}

impl<S: ObjectStore + ?Sized> GovernedStore<S> {
    /// Creates a store on `inner` whose reads are paid for by the query `reads`.
    pub fn new(inner: Arc<S>, reads: Query) -> GovernedStore<S> {
        GovernedStore { inner, reads, writes: None }
    }

    /// Returns the same store with its writes charged to `writes`.
    #[must_use]
    pub fn with_writes(self, writes: Query) -> GovernedStore<S> {
        GovernedStore { writes: Some(writes), ..self }
    }

    /// Creates a store on the same inner store for another query. Its writes are not charged.
    #[must_use]
    pub fn for_query(&self, reads: Query) -> GovernedStore<S> {
        GovernedStore { inner: Arc::clone(&self.inner), reads, writes: None }
    }

    /// The query that pays for the reads.
    #[must_use]
    pub fn reads(&self) -> &Query {
        &self.reads
    }
}

impl<S: ObjectStore + ?Sized> fmt::Display for GovernedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reads.governor().rate() {
            Some(rate) => write!(f, "GovernedStore({rate}, {})", self.inner),
            None => write!(f, "GovernedStore(no limit, {})", self.inner),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: ObjectStore + ?Sized> ObjectStore for GovernedStore<S> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if let Some(writes) = &self.writes {
            pay_for_write(writes, payload.content_length()).await?;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, opts).await?;
        Ok(match &self.writes {
            Some(writes) => Box::new(GovernedUpload { upload, writes: writes.clone() }),
            None => upload,
        })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let result = get_opts(&*self.inner, &self.reads, location, options).await?;
        let asked = if head { 0 } else { result.range.end.saturating_sub(result.range.start) };
        self.reads.asked(asked);
        Ok(result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.reads.asked(ranges::total(ranges));
        ranges::get(&self.inner, &self.reads, location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.reads.governor().listed();
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.reads.governor().listed();
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.reads.governor().listed();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

/// Calls `get_opts` of the inner store and returns a result whose body is paid for.
pub(crate) async fn get_opts<S: ObjectStore + ?Sized>(
    inner: &S,
    reads: &Query,
    location: &Path,
    options: GetOptions,
) -> Result<GetResult> {
    let ahead = match (reads.governor().reach(), reads.piece()) {
        (Reach::Remote, Some(piece)) if !options.head => {
            let known = match &options.range {
                Some(GetRange::Bounded(range)) => range.end.saturating_sub(range.start),
                Some(GetRange::Suffix(bytes)) => *bytes,
                Some(GetRange::Offset(_)) | None => piece,
            };
            Some(reads.pay(known.min(piece)).await?)
        }
        _ => None,
    };
    let result = inner.get_opts(location, options).await?;
    Ok(body::paid(result, reads, ahead))
}
