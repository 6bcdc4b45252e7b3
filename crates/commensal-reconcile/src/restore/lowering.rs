//! Moves lifted members (moved temporarily out of a group below level 0, `cpu.qos_level`) back into their group. No
//! mark is needed as a proof: the name of the group that contains them now has a prefix that no other program uses, and
//! the inode of the members' own group.

use super::outcome::Restored;
use crate::drivers::lifted_group::{LiftedGroup, lower};
use crate::journal::{self, Contents, Record};
use crate::marks;
use commensal_host::{Host, HostError};
use std::collections::BTreeSet;
use std::path::Path;

/// Moves the members of all records back; returns the indices of the records for which that failed.
pub(super) fn all(host: &mut dyn Host, contents: &Contents, result: &mut Restored) -> BTreeSet<usize> {
    let mut failed = BTreeSet::new();
    for (index, record) in contents.records.iter().enumerate() {
        let Some(lifted) = LiftedGroup::of(record) else { continue };
        if let Err(error) = lower(host, &lifted) {
            result.failed.push(format!("lifted members of {} cannot be moved back: {error}", lifted.shown()));
            failed.insert(index);
        }
    }
    failed
}

/// Moves members back that a killed commensal process had lifted, and drops their records.
pub(super) fn finish(
    host: &mut dyn Host,
    path: &Path,
    contents: &mut Contents,
    owners: &BTreeSet<String>,
) -> Result<(), HostError> {
    if !contents.records.iter().any(|record| matches!(record, Record::Lifting { .. })) {
        return Ok(());
    }
    let mut failed = Ok(());
    let before = contents.records.clone();
    contents.records.retain(|record| {
        let Some(lifted) = LiftedGroup::of(record) else { return true };
        lower(host, &lifted).map_err(|error| failed = Err(error)).is_err()
    });
    marks::clear(host, (owners, None), journal::without(&before, &contents.records));
    // The damaged lines have to be saved before the journal is rewritten.
    if contents.damaged.is_empty() {
        journal::store(host, path, &contents.records)?;
    }
    failed
}
