//! What `restore` did, and why something is left.

use commensal_host::HostError;

/// Results of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Values restored, controllers disabled and groups removed, one line each.
    pub done: Vec<String>,
    /// What was left unchanged, with the reason: a commensal group with live processes, a running owner.
    pub left: Vec<String>,
    /// What failed, or could not be read.
    pub failed: Vec<String>,
    /// PID of a loaded scheduler: it keeps its records, from which it restores threads when it is unloaded.
    pub scheduler: Option<u32>,
}

impl Restored {
    /// Whether there was nothing to do at all.
    #[must_use]
    pub fn nothing(&self) -> bool {
        self.done.is_empty() && self.left.is_empty() && self.failed.is_empty()
    }
}

pub(super) enum Left {
    Busy(String),
    Failed(HostError),
}
