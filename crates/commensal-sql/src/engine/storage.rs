//! The folders of the engine: the data folder and a private folder for spill files. Creates each query's access to
//! both.

use super::data::Data;
use super::error::{Error, cannot};
use super::query::Query;
use super::scratch::Scratch;
use super::stores::{Spill, Stores, device, disk};
use commensal_core::topology::Device;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The data folder and the spill files, and the device of each. Reads are charged to that device.
pub struct Storage {
    /// The data folder.
    pub data: Data,
    data_device: Device,
    scratch: Arc<Scratch>,
    /// Spill files of all queries.
    spill: Arc<DiskManager>,
    spill_device: Device,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("data", &self.data).finish_non_exhaustive()
    }
}

impl Storage {
    /// Opens the data folder, and creates a private folder for spill files in `spill`.
    ///
    /// # Errors
    /// A folder does not exist, or `spill` is not writable.
    pub fn open(data: &Path, writable: bool, spill: &Path) -> Result<Storage, Error> {
        let data = Data::open(data, writable)?;
        let device = |folder: &Path| device(folder).map_err(|error| cannot("look at", folder, &error));
        let (data_device, spill_device) = (device(data.store.root())?, device(spill)?);
        let scratch = Arc::new(Scratch::new(spill)?);
        let mode = DiskManagerMode::Directories(vec![scratch.path().to_owned()]);
        let spill = Arc::new(DiskManagerBuilder::default().with_mode(mode).build()?);
        Ok(Storage { data, data_device, scratch, spill, spill_device })
    }

    /// Returns the engine's private folder.
    #[must_use]
    pub fn scratch(&self) -> &Arc<Scratch> {
        &self.scratch
    }

    /// Returns the stores of a query: the data folder, whose reads are charged to the query.
    #[must_use]
    pub fn stores(&self, query: &Query) -> Stores {
        Stores::new(&self.data.store, query.reader(&disk(self.data_device)))
    }

    /// Returns the spill files of a query.
    #[must_use]
    pub fn spill(&self, query: &Query) -> Spill {
        Spill::new(&self.spill, query.reader(&disk(self.spill_device)), &query.usage)
    }
}
