//! Restores the scheduling attributes of threads that the kernel changed because of their group's level
//! (`cpu.qos_level`).

use super::outcome::{Left, Undone};
use crate::drivers::level::{self, Given};
use crate::journal::{self, Contents, Member, Record};
use commensal_core::actual::Hierarchy;
use commensal_host::{Host, HostError};
use commensal_sensors::mounts;
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the mounted hierarchies, if the journal has scheduling attributes of threads.
pub(super) fn hierarchies(host: &mut dyn Host, contents: &Contents) -> Vec<Hierarchy> {
    match contents.records.iter().any(is_member) {
        true => mounts::hierarchies(host).unwrap_or_default(),
        false => Vec::new(),
    }
}

pub(super) fn is_member(record: &Record) -> bool {
    matches!(record, Record::Member { .. })
}

/// Restores the attributes of the thread in a record, unless the thread is in a group below level 0.
pub(crate) fn give(host: &mut dyn Host, hierarchies: &[Hierarchy], member: &Member) -> Undone {
    match level::put_back(host, hierarchies, member)? {
        Given::Back(line) => Ok(Some(line)),
        Given::Settled => Ok(None),
        // The record of the group gives the reason why the thread is still in the group.
        Given::Below => Err(Left::Waits),
    }
}

/// Restores the attributes of threads as far as possible before any group is replaced. Once a group has level 0 again,
/// nothing shows that a level above 0 has made its members `SCHED_OTHER`. Refused threads are tried again later.
pub(super) fn give_first(
    host: &mut dyn Host,
    hierarchies: &[Hierarchy],
    contents: &Contents,
    done: &mut Vec<String>,
) {
    for record in &contents.records {
        if let Record::Member(member) = record
            && let Ok(Some(line)) = give(host, hierarchies, member)
        {
            done.push(line);
        }
    }
}

/// Restores the attributes of threads that a killed commensal process had moved out of groups below level 0, and drops
/// their records. The record of a refused thread stays; while a group is replaced only in part, all stay, because
/// completing that needs them.
pub(super) fn finish(host: &mut dyn Host, path: &Path, contents: &Contents) -> Result<(), HostError> {
    let hierarchies = hierarchies(host, contents);
    let (mut over, mut refused) = (BTreeSet::new(), Ok(()));
    let in_part = contents.records.iter().any(|record| matches!(record, Record::Recreating(_)));
    for (index, record) in contents.records.iter().enumerate() {
        let Record::Member(member) = record else { continue };
        match give(host, &hierarchies, member) {
            Ok(_) if !in_part => drop(over.insert(index)),
            Err(Left::Failed(error)) => refused = Err(error),
            Ok(_) | Err(Left::Busy(_) | Left::Denied(_) | Left::Waits) => {}
        }
    }
    // The damaged lines have to be saved before the journal is rewritten.
    if !over.is_empty() && contents.damaged.is_empty() {
        let kept = contents.records.iter().enumerate().filter(|(index, _)| !over.contains(index));
        journal::store(host, path, kept.map(|(_, record)| record))?;
    }
    refused
}
