//! In place of the judge, in a build without feature `bpf`.

use crate::figures::{Figures, Thread};
use crate::{NoJudge, Scope};
use commensal_host::Host;

/// Never there.
#[derive(Debug)]
pub enum Judge {}

/// How many judges are at work on this machine: this build cannot tell.
///
/// # Errors
/// Always.
pub fn count() -> Result<usize, NoJudge> {
    Err(NoJudge::NotBuilt)
}

impl Judge {
    /// Says that it was not built.
    ///
    /// # Errors
    /// Always.
    pub fn attach(_host: &dyn Host, _scope: &Scope) -> Result<Judge, NoJudge> {
        Err(NoJudge::NotBuilt)
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// None, because there is no such value.
    pub fn read(&self, _host: &dyn Host) -> Result<Figures, NoJudge> {
        match *self {}
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// None, because there is no such value.
    pub fn totals(&self) -> Result<Figures, NoJudge> {
        match *self {}
    }

    /// Nothing can be stopped.
    ///
    /// # Errors
    /// None, because there is no such value.
    pub fn stop(&mut self) -> Result<(), NoJudge> {
        match *self {}
    }

    /// Nothing began.
    #[must_use]
    pub fn beginning(&self) -> Figures {
        match *self {}
    }

    /// Nothing can be read.
    ///
    /// # Errors
    /// None, because there is no such value.
    pub fn threads(&self) -> Result<Vec<Thread>, NoJudge> {
        match *self {}
    }
}
