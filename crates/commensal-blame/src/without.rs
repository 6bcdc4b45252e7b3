//! In place of the judge, in a build without feature `bpf`.

use crate::figures::{Figures, Thread};
use crate::{NoJudge, Scope};
use commensal_host::Host;

/// Never there.
#[derive(Debug)]
pub enum Judge {}

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
    pub fn read(&self) -> Result<Figures, NoJudge> {
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
