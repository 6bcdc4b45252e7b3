//! The governors of one group: one per local device and one per remote store, all with the group's rates. A governor is
//! a read rate that the group's queries share.

use crate::governor::{Governor, Reach, Settings};
use crate::limiter::BytesPerS;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;

/// The source that bytes are read from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A disk, identified by its device number (`st_dev` of a directory on it, which the caller determines).
    /// Directories on the same disk share its limit.
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// A remote store, identified by a unique name such as `s3://bucket`.
    Store(String),
}

impl Source {
    /// The kind of store.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match self {
            Source::Device { .. } => Reach::Local,
            Source::Store(_) => Reach::Remote,
        }
    }
}

/// A group's rates. Each source of a kind gets the full rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// `io.read`: for each local device.
    pub local: Option<BytesPerS>,
    /// `remote.read`: for each remote store.
    pub remote: Option<BytesPerS>,
}

impl Rates {
    fn of(self, reach: Reach) -> Option<BytesPerS> {
        match reach {
            Reach::Local => self.local,
            Reach::Remote => self.remote,
        }
    }
}

/// One group's governors. Each governor is created when its source is first used.
#[derive(Debug, Default)]
pub struct Governors {
    timer: Option<Handle>,
    inner: Mutex<(Rates, BTreeMap<Source, Governor>)>,
}

impl Governors {
    /// Creates governors with `rates`. The governors' timers run on the runtime `timer` or, if `timer` is `None`, on
    /// the runtimes of the readers that wait.
    #[must_use]
    pub fn new(rates: Rates, timer: Option<Handle>) -> Governors {
        Governors { timer, inner: Mutex::new((rates, BTreeMap::new())) }
    }

    /// Returns the governor of a source. The same source always has the same governor.
    pub fn of(&self, source: &Source) -> Governor {
        let mut inner = self.lock();
        let (rates, governors) = &mut *inner;
        let made = || {
            let settings = Settings { timer: self.timer.clone(), ..Settings::of(source.reach()) };
            Governor::with(settings, rates.of(source.reach()))
        };
        governors.entry(source.clone()).or_insert_with(made).clone()
    }

    /// Changes the rates of all existing and future sources.
    pub fn set_rates(&self, rates: Rates) {
        let mut inner = self.lock();
        inner.0 = rates;
        for (source, governor) in &inner.1 {
            governor.set_rate(rates.of(source.reach()));
        }
    }

    /// Returns all governors created so far, with their sources.
    pub fn each(&self) -> Vec<(Source, Governor)> {
        self.lock().1.iter().map(|(source, governor)| (source.clone(), governor.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, (Rates, BTreeMap<Source, Governor>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
