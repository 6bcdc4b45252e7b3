//! What each kind of record tells the journal, the marks on cgroups, `apply` and `restore`.

use crate::drivers::apply::Settled;
use crate::journal::{Mounts, Record, Target};
use crate::restore::{Undo, Undone};
use commensal_core::actual::{ActualState, Hierarchy, Ours};
use commensal_host::Host;

/// The order of undoing. Within a rank, the last record is undone first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Before all values, such as a switch that clears the knobs that it governs.
    First,
    /// Values, and what else `restore` tries again as long as other records of this rank succeed.
    Values,
    /// Processes and threads: a thread's affinity is limited by its cpuset.
    Threads,
    /// Groups that commensal created.
    Groups,
    /// Controllers, which these groups may use.
    Controllers,
}

/// Facts about a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'r> {
    /// When the record is undone.
    pub rank: Rank,
    /// The group that undoing opens. It cannot be found while it, or one above it, is half replaced by a fresh one.
    pub group: Option<&'r Target>,
    /// Whether `restore` undoes the record only if its mark exists, because undoing it removes or empties a group or
    /// moves processes.
    pub proof: bool,
}

/// A kind of record. `Record::kind` returns it.
pub(crate) trait Kind {
    fn facts(&self) -> Facts<'_>;

    /// Describes the record in a sentence for people. Names that other users can choose are escaped.
    fn words(&self) -> String;

    /// Returns why commensal cannot have written this record; `None` if it can have. The caller checks separately
    /// whether the cgroup or process is still the same, by inode or start time.
    fn objection(&self, mounts: &Mounts) -> Option<String>;

    /// Returns the group that has a copy of the record (a mark), and the attribute's name without its prefix.
    fn mark(&self) -> Option<(&Target, String)> {
        None
    }

    /// Returns the record without its value, if it has one. Of several records of a subject only the first counts,
    /// because it has the original.
    fn subject(&self) -> Option<Record> {
        None
    }

    /// Adds what the record says about commensal's changes to groups that exist.
    fn claim(&self, _actual: &ActualState, _ours: &mut Ours) {}

    /// Whether the steps that were carried out have settled this record, although `Work::traces` does not return it for
    /// their inverses (`Created`, `Ordering`).
    fn is_settled(&self, _settled: &Settled) -> bool {
        false
    }

    /// Completes what a killed process has left half done, as far as that concerns this record alone. `hierarchies` are the
    /// mounted ones, if the journal has scheduling attributes of threads.
    fn finish(&self, _host: &mut dyn Host, _hierarchies: &[Hierarchy]) -> Undone {
        Ok(None)
    }

    /// Undoes the change. Returns a description of it, or `None` if there was nothing to do. Without a default, so that no
    /// kind goes without.
    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone;
}
