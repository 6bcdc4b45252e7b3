//! Facts about the journal of lasting changes that are kept between two rounds. Rebuilds a lost journal from the marks
//! (copies of journal records on the cgroups).

use crate::instance::{Instance, ReconcileError};
use crate::journal::{self, Journal, Record};
use commensal_host::Host;

/// State of the journal.
#[derive(Debug)]
pub(super) struct JournalState {
    /// Whether the journal has records.
    recorded: bool,
    /// Whether the journal had no records at the start, and the marks on the cgroups have not been read yet.
    lost: bool,
    /// Message about a journal that was rebuilt in this round.
    pub(super) rebuilt: Option<String>,
    /// Records of changes that could not be marked on the cgroups yet.
    unmarked: Vec<Record>,
}

impl JournalState {
    pub(super) fn new(host: &mut dyn Host, instance: &Instance) -> JournalState {
        let lost = instance.may_have_lost_journal(host);
        JournalState { recorded: !lost, lost, rebuilt: None, unmarked: Vec::new() }
    }

    /// Whether the journal had records and its file no longer exists. If the file cannot be opened, returns `false`:
    /// the code that needs the file reports the error.
    pub(super) fn is_gone(&self, host: &dyn Host, instance: &Instance) -> bool {
        let path = journal::path(&instance.state_dir, journal::MACHINE);
        self.recorded && host.state_lock_file(&path).is_ok_and(|file| file.is_none())
    }

    /// Rebuilds the journal if it is gone, unless another process is changing the machine. Returns a message if the
    /// journal was lost.
    pub(super) fn look_after(&self, host: &mut dyn Host, instance: &Instance) -> Option<String> {
        if !self.is_gone(host, instance) {
            return None;
        }
        let path = journal::path(&instance.state_dir, journal::MACHINE);
        Some(match instance.rebuild_journal(host) {
            Ok(None) => {
                format!(
                    "{} is missing, and is rebuilt once no other process is changing the machine",
                    path.display()
                )
            }
            Ok(Some(records)) => written_anew(instance, records),
            Err(error) => format!("{} is missing and cannot be rebuilt: {error}", path.display()),
        })
    }

    /// Called before each round. If the journal had no records at the start, reads the marks on the cgroups before the
    /// first round. The caller holds the machine's lock.
    pub(super) fn begin_round(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
    ) -> Result<(), ReconcileError> {
        if self.lost {
            self.remember(host, instance)?;
            self.lost = false;
        }
        Ok(())
    }

    /// Rebuilds a journal that is gone. The caller holds the lock.
    pub(super) fn rebuild(&mut self, host: &mut dyn Host, instance: &Instance) -> Result<(), ReconcileError> {
        let records = self.remember(host, instance)?;
        self.rebuilt = Some(written_anew(instance, records));
        Ok(())
    }

    /// Fills a missing journal from the marks on the cgroups; returns the number of its records.
    fn remember(&mut self, host: &mut dyn Host, instance: &Instance) -> Result<usize, ReconcileError> {
        let mut journal = instance.journal(host, journal::MACHINE)?;
        let records = instance.remember(host, &mut journal)?;
        self.recorded = records > 0;
        Ok(records)
    }

    /// Opens the journal. If it is empty but had records, fills it from the marks, because another commensal process
    /// may have written to it since. The caller holds the machine's lock.
    pub(super) fn open(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
    ) -> Result<Journal, ReconcileError> {
        let gone = self.is_gone(host, instance);
        let mut journal = instance.journal(host, journal::MACHINE)?;
        if self.recorded {
            let records = instance.remember(host, &mut journal)?;
            self.rebuilt = gone.then(|| written_anew(instance, records)).or(self.rebuilt.take());
        }
        Ok(journal)
    }

    /// Records which marks could not be set while steps were carried out, to set them later.
    pub(super) fn applied(&mut self, journal: &mut Journal) {
        self.unmarked.extend(journal.take_unmarked());
        self.note(journal);
    }

    /// Retries marks that could not be set. A journal that cannot be opened is reported by the code that needs it.
    pub(super) fn mark_again(&mut self, host: &mut dyn Host, instance: &Instance) {
        if let Ok(journal) = instance.journal(host, journal::MACHINE) {
            journal.complete_marks(host);
            self.unmarked = journal.mark_again(host, std::mem::take(&mut self.unmarked));
        }
    }

    /// Notes whether the journal has records, after something was written to it.
    pub(super) fn note(&mut self, journal: &Journal) {
        self.recorded = !journal.is_empty();
    }
}

/// Returns the message about a lost journal from which `records` records could be rebuilt.
fn written_anew(instance: &Instance, records: usize) -> String {
    let path = journal::path(&instance.state_dir, journal::MACHINE).display().to_string();
    match records {
        0 => format!(
            "{path} is missing, and no cgroup has a copy of its records: `commensal restore` can restore nothing"
        ),
        _ => format!(
            "{path} was missing and was rebuilt with {records} records from the attributes of the cgroups"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;
    use std::path::Path;

    /// The file goes after a round has looked for it, or between two writes of one round.
    // promise 12
    #[test]
    fn a_journal_that_is_gone_when_it_is_opened_is_told() {
        let fake = FakeHost::v1(2, 1 << 30);
        let (mut host, instance) = (fake.another(), Instance::new(Path::new("/state")));
        let mut state = JournalState::new(&mut host, &instance);
        drop(state.open(&mut host, &instance).unwrap());
        assert_eq!(state.rebuilt, None, "there was none");
        state.recorded = true;
        fake.set_file("/state/machine.journal", "");
        drop(state.open(&mut host, &instance).unwrap());
        assert_eq!(state.rebuilt, None, "it is there");
        fake.remove_file("/state/machine.journal");
        drop(state.open(&mut host, &instance).unwrap());
        assert!(state.rebuilt.unwrap().contains("machine.journal is missing"));
    }
}
