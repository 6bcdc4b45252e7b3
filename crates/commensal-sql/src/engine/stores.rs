//! The stores that one query reads from, with reads charged to the query's group, and its spill files.

use super::confined_store::Below;
use super::data::SCHEME;
use super::query::Query;
use bytes::Bytes;
use commensal_core::topology::Device;
use commensal_store::{GovernedStore, Query as Reader, Source};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, StreamExt};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use url::Url;

/// The device of a folder.
///
/// # Errors
/// The folder does not exist.
pub fn device(folder: &Path) -> std::io::Result<Device> {
    use std::os::unix::fs::MetadataExt;
    let number = folder.metadata()?.dev();
    Ok(Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// The source for bytes of a folder on `device`.
fn disk(device: Device) -> Source {
    Source::Device { major: device.major, minor: device.minor }
}

/// The stores of one query: the data folder, and the remote ones that its statement names.
pub struct Stores {
    data: Arc<dyn ObjectStore>,
    remote: BTreeMap<String, Arc<dyn ObjectStore>>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("remote", &self.remote.keys()).finish_non_exhaustive()
    }
}

impl Stores {
    /// The data folder on `device`, with reads charged to `query`.
    #[must_use]
    pub fn new(query: &Query, data: &Below, device: Device) -> Stores {
        let reader = query.reader(&disk(device));
        Stores { data: Arc::new(GovernedStore::new(Arc::new(data.clone()), reader)), remote: BTreeMap::new() }
    }

    /// Adds a remote store, registered under `host` and identified by `name`.
    pub fn add<S: ObjectStore>(&mut self, query: &Query, host: &str, name: &str, store: S) {
        let reader = query.reader(&Source::Store(name.to_owned()));
        self.remote.insert(host.to_owned(), Arc::new(GovernedStore::new(Arc::new(store), reader)));
    }
}

impl ObjectStoreRegistry for Stores {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if url.scheme() == SCHEME {
            return Ok(Arc::clone(&self.data));
        }
        let store = url.host_str().and_then(|host| self.remote.get(host));
        store.cloned().ok_or_else(|| DataFusionError::Plan(format!("no store for {}://", url.scheme())))
    }
}

/// Spill files of one query: written and read back at the rate of its group's local limit.
pub struct Spill {
    files: Arc<DiskManager>,
    query: Arc<Query>,
    reader: Reader,
}

impl Spill {
    /// Files of `files` on `device`, charged to `query`.
    #[must_use]
    pub fn new(files: &Arc<DiskManager>, query: &Arc<Query>, device: Device) -> Spill {
        let reader = query.reader(&disk(device));
        Spill { files: Arc::clone(files), query: Arc::clone(query), reader }
    }
}

impl TempFileFactory for Spill {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.files.create_tmp_file(description)?;
        Ok(Arc::new(Spilled { file, query: Arc::clone(&self.query), reader: self.reader.clone() }))
    }
}

struct Spilled {
    file: Arc<dyn SpillFile>,
    query: Arc<Query>,
    reader: Reader,
}

impl SpillFile for Spilled {
    fn path(&self) -> Option<&Path> {
        // No raw path, since reads through it would bypass the limit.
        None
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let (reader, query) = (self.reader.clone(), Arc::clone(&self.query));
        let pay = move |piece: Result<Bytes>| {
            let (reader, query) = (reader.clone(), Arc::clone(&query));
            async move {
                let piece = piece?;
                let bytes = piece.len() as u64;
                let paid = reader.pay(bytes).await;
                paid.map_err(|error| DataFusionError::External(Box::new(error)))?.spend(bytes);
                query.unspilled_bytes.fetch_add(bytes, Relaxed);
                Ok(piece)
            }
        };
        Ok(Box::pin(self.file.read_stream()?.then(pay)))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { file: self.file.open_writer()?, query: Arc::clone(&self.query) }))
    }
}

/// Counts writes; the limits of a group only apply to reads.
struct Writer {
    file: Box<dyn SpillWriter>,
    query: Arc<Query>,
}

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.query.spilled_bytes.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        self.file.finish()
    }
}
