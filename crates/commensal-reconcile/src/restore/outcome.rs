//! The results of `restore`.

use commensal_core::errno::Errno;
use commensal_host::HostError;
use std::collections::BTreeSet;

/// Results of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Values restored, controllers disabled and groups removed, one line for each.
    pub done: Vec<String>,
    /// Objects that were left unchanged, with the reason, such as a commensal group with live processes or a running
    /// owner.
    pub left: Vec<String>,
    /// Messages about operations that failed, records that could not be read, and records for which only the journal is
    /// evidence.
    pub failed: Vec<String>,
    /// PID of the loaded scheduler, if there is one. Its records are kept, because it uses them to restore its threads
    /// when it is unloaded.
    pub scheduler: Option<u32>,
}

impl Restored {
    /// Whether there was nothing to do at all.
    #[must_use]
    pub fn nothing(&self) -> bool {
        self.done.is_empty() && self.left.is_empty() && self.failed.is_empty()
    }
}

/// Why a record remains in the journal.
#[derive(Debug)]
pub(crate) enum Left {
    /// Another program or group depends on the changed object, or uses it.
    Busy(String),
    /// The record depends on another one that remains, whose message gives the reason.
    Waits,
    /// The kernel refused to undo the record.
    Failed(HostError),
    /// The group has no mark: only the record says that commensal made the change.
    Denied(String),
}

impl Left {
    /// Notes the reason in the results; in `denied` if the record has no mark.
    pub fn note(self, result: &mut Restored, denied: &mut BTreeSet<String>) {
        match self {
            Left::Busy(line) => result.left.push(line),
            Left::Failed(error) => result.failed.push(error.to_string()),
            Left::Denied(line) => drop(denied.insert(line)),
            Left::Waits => {}
        }
    }
}

impl From<HostError> for Left {
    fn from(error: HostError) -> Left {
        Left::Failed(error)
    }
}

/// A description of what was undone, `None` if there was nothing to do, or why the record remains.
pub(crate) type Undone = Result<Option<String>, Left>;

/// Returns the error for a value that the kernel accepted although the file then reads another value.
pub(crate) fn not_taken(object: String, value: &str) -> HostError {
    // EBUSY, because another program probably keeps changing it.
    HostError { operation: "keep", object, value: Some(value.trim().to_owned()), errno: Errno::EBUSY }
}
