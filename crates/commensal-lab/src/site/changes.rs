//! The changes that a run makes to its cgroups. A step is one change, for example to one control file. The journal, a
//! file on disk, records the original values before each change, so that a later program can undo the changes.

use super::error::TestbedError;
use commensal_core::actual::ActualState;
use commensal_core::plan::{Step, undo};
use commensal_host::Host;
use commensal_reconcile::{Applied, Instance, Journal, apply, verify};

/// The run's journal, and the state of the cgroups that the steps change.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) instance: Instance,
    pub(super) journal: Journal,
    /// The cgroups, with the values from before any change of the run.
    pub(super) actual: ActualState,
}

impl Changes {
    /// Executes the steps.
    ///
    /// # Errors
    /// If the kernel refuses a step; the function then undoes the earlier steps.
    pub(super) fn apply(&mut self, host: &mut dyn Host, steps: &[Step]) -> Result<(), TestbedError> {
        match apply(host, steps, &self.actual, &mut self.journal).failure {
            None => Ok(()),
            Some(failure) => Err(TestbedError::refused(&failure)),
        }
    }

    /// Reads back the values that these steps wrote.
    pub(super) fn read_back(&self, host: &mut dyn Host, steps: &[Step]) -> Vec<Applied> {
        verify(host, steps, &self.actual)
    }

    /// Takes over the inode numbers of cgroups that a step recreated under their old names; `fresh` is the current
    /// state of the cgroups.
    pub(super) fn adopt(&mut self, fresh: &ActualState) {
        for (place, found) in &mut self.actual.cgroups {
            if let Some(now) = fresh.cgroups.get(place) {
                found.inode = now.inode;
            }
        }
    }
}

/// Steps that the run switches on and off together. To switch them off is to undo them.
#[derive(Debug, Default)]
pub(super) struct Toggle {
    pub(super) steps: Vec<Step>,
    /// Whether the steps are switched on.
    pub(super) on: bool,
}

impl Toggle {
    /// Returns the steps that must run to reach the state `on`; `None` if that is already the state.
    pub(super) fn steps_to(&self, on: bool) -> Option<Vec<Step>> {
        (self.on != on).then(|| if on { self.steps.clone() } else { undo(&self.steps) })
    }
}
