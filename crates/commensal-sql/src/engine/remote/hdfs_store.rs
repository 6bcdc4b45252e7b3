//! A read-only object store on HDFS.
//!
//! The client of HDFS receives up to 100 packets of 64 KiB ahead of its reader, before any limiter sees them. So this
//! store asks a data node for no more than the query pays for at once, and asks again when that is read. A file that a
//! statement has opened stays open, so that all its reads are of one version, name nodes are asked once, and a data node
//! that has failed is not tried again.

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use commensal_store::Query as Reader;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use hdfs_native::client::FileStatus;
use hdfs_native::file::FileReader;
use hdfs_native::{Client, HdfsError};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait for an answer of a name node, in which the client also looks for the active one.
const ANSWER: Duration = Duration::from_secs(20);

/// Longest wait for data of a block, in which the client tries its replicas one after the other.
const DATA: Duration = Duration::from_secs(90);

/// Size of a request to a data node without a limit, in bytes.
const REQUEST: u64 = 4 << 20;

/// Maximum length of a text from a server of HDFS, in characters.
const TEXT: usize = 400;

/// Why HDFS has failed, in its own words but without the stack of its program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HdfsAnswer(String);

/// The files of a cluster, whose reads one query pays for.
pub struct HdfsStore {
    client: Client,
    reads: Reader,
    /// The files that were opened so far.
    open: Mutex<HashMap<Path, Arc<HdfsFile>>>,
}

struct HdfsFile {
    meta: ObjectMeta,
    reader: FileReader,
}

impl HdfsStore {
    /// Creates a store whose reads `reads` pays for.
    #[must_use]
    pub fn new(client: Client, reads: Reader) -> HdfsStore {
        HdfsStore { client, reads, open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Path, Arc<HdfsFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, location: &Path) -> Result<ObjectMeta> {
        let path = absolute(location);
        let status = answered(&path, self.client.get_file_info(&path)).await?;
        if status.isdir {
            return Err(failed(&path, &HdfsError::FileNotFound("it is a folder".to_owned())));
        }
        meta(&status)
    }

    async fn open(&self, location: &Path) -> Result<Arc<HdfsFile>> {
        let known = self.lock().get(location).cloned();
        if let Some(file) = known {
            return Ok(file);
        }
        let (meta, path) = (self.look(location).await?, absolute(location));
        let reader = answered(&path, self.client.read(&path)).await?;
        // The file may have grown in between.
        let meta = ObjectMeta { size: meta.size.min(reader.file_length() as u64), ..meta };
        let file = Arc::new(HdfsFile { meta, reader });
        Ok(Arc::clone(self.lock().entry(location.clone()).or_insert(file)))
    }

    /// Lists what is data in a folder. Folders of programs that write are not looked into, because they come and go.
    fn listed(&self, prefix: Option<&Path>, recursive: bool) -> BoxStream<'static, Result<FileStatus>> {
        let under = prefix.map_or_else(|| "/".to_owned(), absolute);
        let client = self.client.clone();
        stream::try_unfold(vec![folder(&client, &under)], move |mut folders| {
            let (client, under) = (client.clone(), under.clone());
            async move {
                while let Some((path, found)) = folders.last_mut() {
                    let next = answered(path.as_str(), async { found.next().await.transpose() }).await;
                    match next {
                        Ok(Some(status)) if is_shown(&under, &status.path) => {
                            if recursive && status.isdir {
                                folders.push(folder(&client, &status.path));
                            }
                            return Ok(Some((status, folders)));
                        }
                        Ok(Some(_)) => {}
                        // As in a store of objects, where a folder without objects does not exist.
                        Ok(None) | Err(Error::NotFound { .. }) => {
                            folders.pop();
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(None)
            }
        })
        .boxed()
    }
}

/// A folder that is being listed, and what is still to be found in it.
type Folder = (String, BoxStream<'static, hdfs_native::Result<FileStatus>>);

fn folder(client: &Client, path: &str) -> Folder {
    (path.to_owned(), client.list_status_iter(path, false).into_stream())
}

/// Whether a file or folder below `folder`, and not itself, is data: names that begin with `_` or `.` are those of
/// programs that write, such as `_SUCCESS`.
fn is_shown(folder: &str, path: &str) -> bool {
    let below = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
    !below.is_empty() && !below.split('/').any(|name| name.starts_with(['_', '.']))
}

fn absolute(location: &Path) -> String {
    format!("/{location}")
}

fn meta(status: &FileStatus) -> Result<ObjectMeta> {
    let modified = i64::try_from(status.modification_time).unwrap_or(i64::MAX);
    Ok(ObjectMeta {
        location: Path::parse(&status.path)?,
        last_modified: DateTime::from_timestamp_millis(modified).unwrap_or_default(),
        size: status.length as u64,
        e_tag: Some(format!("{:x}-{:x}", status.modification_time, status.length)),
        version: None,
    })
}

fn generic(text: String) -> Error {
    Error::Generic { store: "HDFS", source: Box::new(HdfsAnswer(text)) }
}

/// Converts an error of the client.
fn failed(path: &str, error: &HdfsError) -> Error {
    let (class, text) = match error {
        HdfsError::RPCError(class, text) | HdfsError::FatalRPCError(class, text) => {
            (class.as_str(), text.clone())
        }
        HdfsError::FileNotFound(text) => ("FileNotFoundException", text.clone()),
        other => ("", other.to_string()),
    };
    // The other lines are where in its program the server was.
    let text: String = text.lines().next().unwrap_or_default().chars().take(TEXT).collect();
    let (path, source) = (path.to_owned(), Box::new(HdfsAnswer(text.clone())));
    match class.rsplit('.').next() {
        Some("AccessControlException") => Error::PermissionDenied { path, source },
        Some("FileNotFoundException") => Error::NotFound { path, source },
        _ => generic(text),
    }
}

/// Waits for a name node, but not forever: the client itself has no limit.
async fn answered<T>(path: &str, answer: impl Future<Output = hdfs_native::Result<T>>) -> Result<T> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answer) => answer.map_err(|error| failed(path, &error)),
        Err(_) => Err(generic(format!("the name node has not answered for {} s", ANSWER.as_secs()))),
    }
}

/// Cuts off the bytes that are requested next.
fn cut(left: &mut Range<u64>, reads: &Reader) -> Option<Range<u64>> {
    let start = left.start;
    left.start = left.end.min(start.saturating_add(reads.piece().unwrap_or(REQUEST).max(1)));
    (start < left.end).then_some(start..left.start)
}

/// Streams a range of a file by one request to a data node after the other.
fn body(file: Arc<HdfsFile>, range: Range<u64>, reads: Reader) -> BoxStream<'static, Result<Bytes>> {
    let path = absolute(&file.meta.location);
    let requests = stream::unfold((file, range), move |(file, mut left)| {
        let part = cut(&mut left, &reads);
        let request = part.map(|part| {
            // Sizes of files were converted from `usize` by the client.
            let (start, size) = (part.start as usize, (part.end - part.start) as usize);
            (file.reader.read_range_stream(start, size), (file, left))
        });
        futures::future::ready(request)
    });
    stream::try_unfold(requests.flatten().boxed(), move |mut body| {
        let path = path.clone();
        async move {
            match tokio::time::timeout(DATA, body.next()).await {
                Ok(Some(Ok(bytes))) => Ok(Some((bytes, body))),
                Ok(Some(Err(error))) => Err(failed(&path, &error)),
                Ok(None) => Ok(None),
                Err(_) => Err(generic(format!("no data of {path} for {} s", DATA.as_secs()))),
            }
        }
    })
    .boxed()
}

fn read_only<T>(location: &Path) -> Result<T> {
    let source = Box::new(HdfsAnswer("HDFS is only read".to_owned()));
    Err(Error::PermissionDenied { path: location.to_string(), source })
}

impl fmt::Debug for HdfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HdfsStore").finish_non_exhaustive()
    }
}

impl fmt::Display for HdfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HDFS")
    }
}

#[async_trait]
impl ObjectStore for HdfsStore {
    async fn put_opts(&self, location: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        read_only(location)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        read_only(location)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (meta, body, range) = if options.head {
            let meta = self.look(location).await?;
            (meta, stream::empty().boxed(), 0..0)
        } else {
            let file = self.open(location).await?;
            let (meta, whole) = (file.meta.clone(), 0..file.meta.size);
            let range = options.range.as_ref().map(|range| range.as_range(meta.size)).transpose();
            let range = range.map_err(|error| generic(error.to_string()))?.unwrap_or(whole);
            (meta, body(file, range.clone(), self.reads.clone()), range)
        };
        options.check_preconditions(&meta)?;
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes: Default::default() })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        locations.map(|location| location.and_then(|location| read_only(&location))).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let files = self.listed(prefix, true);
        files
            .try_filter(|status| futures::future::ready(!status.isdir))
            .and_then(|status| futures::future::ready(meta(&status)))
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let found: Vec<FileStatus> = self.listed(prefix, false).try_collect().await?;
        let (folders, files): (Vec<_>, Vec<_>) = found.iter().partition(|status| status.isdir);
        let common_prefixes = folders.iter().map(|status| Ok(Path::parse(&status.path)?));
        Ok(ListResult {
            common_prefixes: common_prefixes.collect::<Result<_>>()?,
            objects: files.into_iter().map(meta).collect::<Result<_>>()?,
        })
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        read_only(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line() {
        let denied = "Permission denied: user=eve, access=READ\n\tat org.apache.hadoop.X";
        let class = "org.apache.hadoop.security.AccessControlException";
        let error = failed("/t", &HdfsError::RPCError(class.to_owned(), denied.to_owned()));
        assert!(matches!(&error, Error::PermissionDenied { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("user=eve") && !text.contains("apache"), "{text}");
        let class = "java.io.FileNotFoundException";
        let error = failed("/t", &HdfsError::FatalRPCError(class.to_owned(), "no /t".to_owned()));
        assert!(matches!(&error, Error::NotFound { .. }), "{error}");
        let error = failed("/t", &HdfsError::DataTransferError("x".repeat(10_000)));
        assert!(error.to_string().len() < 2 * TEXT);
    }

    #[test]
    fn files_of_programs_are_not_data() {
        for (folder, path, shown) in [
            ("/t", "/t/1.csv", true),
            ("/t", "/t/city=a/1.csv", true),
            ("/_t", "/_t/1.csv", true),
            ("/", "/1.csv", true),
            ("/t", "/t/_SUCCESS", false),
            ("/t", "/t/_temporary/1.csv", false),
            ("/t", "/t/.1.csv.crc", false),
            ("/t/1.csv", "/t/1.csv", false),
        ] {
            assert_eq!(is_shown(folder, path), shown, "{folder} {path}");
        }
    }
}
