//! In place of the scheduler, in a build without feature `bpf`.

use crate::NoScheduler;
use crate::places::Place;
use crate::watch::Ended;
use commensal_core::scheduler::protocol::{Counters, SlotReading};
use std::time::Duration;

/// How it is loaded.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The kernel takes it off when a thread waits for longer.
    pub watchdog: Duration,
    /// Tests: no thread is asked to leave, so that the tick has to do it.
    pub tick_alone: bool,
    /// Orders name groups of cgroup v2, else of v1's cpu controller.
    pub unified: bool,
}

/// Never there.
#[derive(Debug)]
pub struct Scheduler(());

/// What the verifier says of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub name: String,
    /// Instructions that were looked at.
    pub instructions: u64,
    /// States.
    pub states: u64,
}

/// Functions of the kernel that are called; this build calls none.
#[must_use]
pub fn functions() -> Vec<(String, Vec<String>)> {
    Vec::new()
}

impl Scheduler {
    /// Says that it was not built.
    ///
    /// # Errors
    /// Always.
    pub fn load(_settings: &Settings, _places: &[Place]) -> Result<Scheduler, NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Says that it was not built.
    ///
    /// # Errors
    /// Always.
    pub fn verify() -> Result<Vec<Verified>, NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing can be attached.
    ///
    /// # Errors
    /// Always.
    pub fn attach(&mut self) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing is there to be ordered.
    ///
    /// # Errors
    /// Always.
    pub fn set_group(&self, _cgroup: u64, _name: &str, _class: u64, _slot: u64) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing is there to be ordered.
    ///
    /// # Errors
    /// Always.
    pub fn set_slot(&self, _index: u64, _used: bool, _weight: u64, _limit: u64) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing is there to be ordered.
    ///
    /// # Errors
    /// Always.
    pub fn set_limit(&self, _index: u64, _quota: Duration, _period: Duration) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing is there to be told.
    ///
    /// # Errors
    /// Always.
    pub fn ordered(&mut self, _hold_off: Duration) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing is there to be told.
    ///
    /// # Errors
    /// Always.
    pub fn place(&self, _places: &[Place]) -> Result<(), NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing counts.
    ///
    /// # Errors
    /// Always.
    pub fn counters(&self) -> Result<Counters, NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nothing counts.
    ///
    /// # Errors
    /// Always.
    pub fn slot(&self, _index: u64) -> Result<SlotReading, NoScheduler> {
        Err(NoScheduler::NotBuilt)
    }

    /// Nobody is looked at.
    #[must_use]
    pub fn killed_at(&self) -> u64 {
        0
    }

    /// It never began.
    #[must_use]
    pub fn ended(&self) -> Option<(Ended, String)> {
        None
    }
}
