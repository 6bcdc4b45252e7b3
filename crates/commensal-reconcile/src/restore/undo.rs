//! The state of undoing one journal.

use super::outcome::Restored;
use super::remains::Remains;
use crate::journal::{Contents, Created, Record, Target};
use crate::steps::Rank;
use commensal_core::actual::Hierarchy;
use commensal_core::knob::KnobId;
use std::collections::BTreeSet;
use std::path::Path;

/// What `restore` does about processes in the groups that commensal created, and about cgroups below them that somebody
/// else has created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// Processes are killed and cgroups removed: all of them are a lab's own.
    Ends,
    /// Cgroups without processes are removed, as what a command of `run` has left. Processes stay.
    Goes,
    /// Both stay.
    Stays,
}

/// The records of a journal, and facts about all of them that undoing one needs.
pub(crate) struct Undo<'a> {
    pub journal: &'a Path,
    pub contents: &'a mut Contents,
    /// The state directories whose marks prove a record.
    pub owners: &'a BTreeSet<String>,
    pub result: &'a mut Restored,
    pub inside: Inside,
    /// Half-replaced groups, and why they could not be completed. Groups at or below their paths cannot be found now.
    pub stuck: Vec<(Target, String)>,
    /// Messages about records without a mark, for which only the journal is evidence (see `proof`).
    pub denied: BTreeSet<String>,
    /// Mount and path of every group whose inode is recorded.
    pub created: BTreeSet<(String, String)>,
    /// Paths of all groups with recorded changes, without the root.
    pub known: BTreeSet<String>,
    /// Groups whose original `cpu.idle` is recorded.
    pub idle: BTreeSet<Target>,
    /// The mounted hierarchies, if the journal has scheduling attributes of threads.
    pub hierarchies: Vec<Hierarchy>,
    /// Groups that could not be removed because they are in use.
    pub remains: Remains,
}

impl<'a> Undo<'a> {
    pub fn new(
        (journal, contents): (&'a Path, &'a mut Contents),
        owners: &'a BTreeSet<String>,
        inside: Inside,
        result: &'a mut Restored,
    ) -> Undo<'a> {
        let (mut created, mut known, mut idle) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for record in &contents.records {
            match record {
                Record::Created(Created(group)) => {
                    created.insert((group.mount.clone(), group.path.clone()));
                }
                Record::Original(one) if one.knob == KnobId::CpuIdle.to_string() => {
                    idle.insert(one.group.clone());
                }
                _ => {}
            }
            // A group whose children got a controller is not changed itself.
            let facts = record.kind().facts();
            let changed = facts.group.filter(|group| facts.rank < Rank::Controllers && group.path != "/");
            known.extend(changed.map(|group| group.path.clone()));
        }
        let (stuck, denied, hierarchies, remains) =
            (Vec::new(), BTreeSet::new(), Vec::new(), Remains::default());
        Undo {
            journal,
            contents,
            owners,
            result,
            inside,
            stuck,
            denied,
            created,
            known,
            idle,
            hierarchies,
            remains,
        }
    }

    /// Whether the record's group cannot be found, because it or one above it is half replaced. The record of a replacement
    /// waits until that is completed, and then says something else.
    pub fn is_stuck(&self, record: &Record) -> bool {
        if matches!(record, Record::Recreating(_)) {
            return true;
        }
        let Some(target) = record.kind().facts().group else { return false };
        self.stuck.iter().any(|(stuck, _)| {
            let inside = target.path.strip_prefix(&stuck.path);
            stuck.mount == target.mount && inside.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Whether the path is one of `known` or below one of them.
    pub fn has_within(&self, path: &str) -> bool {
        let mut above = Some(path);
        while let Some(at) = above.filter(|at| !at.is_empty()) {
            if self.known.contains(at) {
                return true;
            }
            above = at.rsplit_once('/').map(|(above, _)| above);
        }
        false
    }
}
