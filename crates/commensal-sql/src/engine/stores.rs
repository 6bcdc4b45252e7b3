//! The stores that one query reads from, whose reads are charged to the query's group, and the query's spill files
//! (data that the query writes to disk because memory is short).

use super::confined_store::Below;
use super::data::SCHEME;
use super::query::Usage;
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
use url::Url;

/// Returns the device of a folder.
///
/// # Errors
/// The folder does not exist.
pub fn device(folder: &Path) -> std::io::Result<Device> {
    use std::os::unix::fs::MetadataExt;
    let number = folder.metadata()?.dev();
    Ok(Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// Returns the source for reads from a folder on `device`.
#[must_use]
pub fn disk(device: Device) -> Source {
    Source::Device { major: device.major, minor: device.minor }
}

/// The stores of one query: the data folder, and the remote stores in its statement.
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
    /// Creates the stores with the data folder, whose reads are charged through `reader`.
    #[must_use]
    pub fn new(data: &Below, reader: Reader) -> Stores {
        Stores { data: Arc::new(GovernedStore::new(Arc::new(data.clone()), reader)), remote: BTreeMap::new() }
    }

    /// Adds a remote store, registered under `host`, whose reads are charged through `reader`.
    pub fn add(&mut self, host: &str, reader: Reader, store: Arc<dyn ObjectStore>) {
        self.remote.insert(host.to_owned(), Arc::new(GovernedStore::new(store, reader)));
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

/// Spill files of one query. Reads from them are limited to the local read rate of the group; writes are only counted.
pub struct Spill {
    files: Arc<DiskManager>,
    usage: Arc<Usage>,
    reader: Reader,
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spill").field("usage", &self.usage).finish_non_exhaustive()
    }
}

impl Spill {
    /// Creates spill files through `files`, whose reads are charged through `reader`, and whose bytes are counted in
    /// `usage`.
    #[must_use]
    pub fn new(files: &Arc<DiskManager>, reader: Reader, usage: &Arc<Usage>) -> Spill {
        Spill { files: Arc::clone(files), usage: Arc::clone(usage), reader }
    }
}

impl TempFileFactory for Spill {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.files.create_tmp_file(description)?;
        Ok(Arc::new(Spilled { file, usage: Arc::clone(&self.usage), reader: self.reader.clone() }))
    }
}

struct Spilled {
    file: Arc<dyn SpillFile>,
    usage: Arc<Usage>,
    reader: Reader,
}

impl SpillFile for Spilled {
    fn path(&self) -> Option<&Path> {
        // Returns no path, because reads through the path would bypass the limit.
        None
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let (reader, usage) = (self.reader.clone(), Arc::clone(&self.usage));
        let pay = move |piece: Result<Bytes>| {
            let (reader, usage) = (reader.clone(), Arc::clone(&usage));
            async move {
                let piece = piece?;
                let bytes = piece.len() as u64;
                let paid = reader.pay(bytes).await;
                paid.map_err(|error| DataFusionError::External(Box::new(error)))?.spend(bytes);
                usage.add_unspilled(bytes);
                Ok(piece)
            }
        };
        Ok(Box::pin(self.file.read_stream()?.then(pay)))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { file: self.file.open_writer()?, usage: Arc::clone(&self.usage) }))
    }
}

/// Counts the written bytes; a group's limits apply to reads only.
struct Writer {
    file: Box<dyn SpillWriter>,
    usage: Arc<Usage>,
}

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.usage.add_spilled(written as u64);
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
