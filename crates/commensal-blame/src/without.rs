//! In place of the judge, in a build without feature `bpf`.

use crate::figures::{Figures, OfSubject, Thread};
use crate::{NoJudge, Scope};
use commensal_host::Host;

/// Never there.
#[derive(Debug)]
pub struct Judge(());

/// How many judges are at work on this machine: this build has none.
#[must_use]
pub fn count() -> usize {
    0
}

impl Judge {
    /// Says that it was not built.
    ///
    /// # Errors
    /// Always.
    pub fn attach(_host: &dyn Host, _scope: &Scope) -> Result<Judge, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Watches nobody.
    ///
    /// # Errors
    /// Always.
    pub fn follow(&mut self, _scope: &Scope) -> Result<bool, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// Always.
    pub fn read(&self, _host: &dyn Host) -> Result<Figures, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// Always.
    pub fn totals(&self) -> Result<Figures, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// Always.
    pub fn subjects(&self) -> Result<Vec<OfSubject>, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// Always.
    pub fn threads(&self) -> Result<Vec<Thread>, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be stopped.
    ///
    /// # Errors
    /// Always.
    pub fn stop(&mut self) -> Result<(), NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing began.
    #[must_use]
    pub fn beginning(&self) -> Figures {
        Figures::default()
    }
}
