//! The governors of one group: one for each device and each remote store, all at the group's rates.

use crate::governor::{Governor, Reach, Settings};
use crate::limiter::BytesPerS;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;

/// The source of bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A disk, by its device number (`st_dev` of a directory on it, which the caller looks up): directories on one disk
    /// share its limit.
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// A remote store, by a unique name such as `s3://bucket`.
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

/// A group's rates; each source of a kind has the full rate.
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

/// One group's governors, created when a source is first used.
#[derive(Debug, Default)]
pub struct Governors {
    timer: Option<Handle>,
    inner: Mutex<(Rates, BTreeMap<Source, Governor>)>,
}

impl Governors {
    /// Governors at `rates`, whose timers run on `timer`, or on their readers' runtimes.
    #[must_use]
    pub fn new(rates: Rates, timer: Option<Handle>) -> Governors {
        Governors { timer, inner: Mutex::new((rates, BTreeMap::new())) }
    }

    /// The governor of a source; the same one each time.
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

    /// All governors so far, by source.
    pub fn each(&self) -> Vec<(Source, Governor)> {
        self.lock().1.iter().map(|(source, governor)| (source.clone(), governor.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, (Rates, BTreeMap<Source, Governor>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
