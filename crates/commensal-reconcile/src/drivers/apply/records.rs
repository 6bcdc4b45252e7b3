//! Records that come and go without a step: of values that are back, of the state without anybody, of groups that are gone.

use super::Work;
use crate::journal::{Journal, JournalError, Record, Target};
use commensal_core::actual::{ActualState, CgroupRef};
use commensal_core::knob::KnobId;
use commensal_core::plan::SafeSetting;
use commensal_core::topology::Device;
use commensal_host::Host;
use std::collections::{BTreeMap, BTreeSet};

/// Takes originals off the record that are back in place already: values that a plan wanted back and found so.
///
/// # Errors
/// When the journal cannot be rewritten.
pub fn forget_settled(
    host: &mut dyn Host,
    settled: &[(CgroupRef, KnobId, Option<Device>)],
    actual: &ActualState,
    journal: &mut Journal,
) -> Result<(), JournalError> {
    let key = |(place, knob, device): &(CgroupRef, KnobId, Option<Device>)| {
        let mount = actual.hierarchies.get(place.hierarchy)?.mount.clone();
        let inode = actual.cgroups.get(place)?.inode;
        let target = Target { mount, path: place.path.to_string(), inode };
        Some((target, knob.to_string(), device.map(|device| device.to_string())))
    };
    let settled: BTreeSet<_> = settled.iter().filter_map(key).collect();
    journal.forget(host, |_, record| match record {
        Record::Original { group, knob, device, .. } => {
            settled.contains(&(group.clone(), knob.clone(), device.clone()))
        }
        _ => false,
    })
}

/// What goes on record of the state without anybody: one record for each setting whose group is there.
pub(crate) fn safe_records(
    host: &mut dyn Host,
    actual: &ActualState,
    settings: &BTreeMap<(CgroupRef, KnobId, Option<Device>), SafeSetting>,
) -> Vec<Record> {
    let work = Work::new(host, actual);
    let record = |((place, knob, device), one): (&(CgroupRef, KnobId, Option<Device>), &SafeSetting)| {
        let inode = actual.cgroups.get(place)?.inode;
        let group = Target { mount: work.mount(place), path: place.path.to_string(), inode };
        let file = work.file(place, *knob).ok()?;
        let value = file.encode(&one.value, *device).ok()?;
        let (knob, device) = (knob.to_string(), device.map(|device| device.to_string()));
        Some(Record::Safe { group, knob, file: file.name.to_owned(), device, value, online: one.online })
    };
    settings.iter().filter_map(record).collect()
}

/// Originals of vanished groups that are kept on record whatever else there is.
const GONE: usize = 64;

/// Takes the originals of groups that are gone off the record, once they are many and more than the others: where groups come
/// and go all the time the file would grow for ever. `actual` is from after the last change that is on record.
///
/// # Errors
/// When the file cannot be rewritten.
pub fn forget_gone(
    host: &mut dyn Host,
    actual: &ActualState,
    journal: &mut Journal,
) -> Result<(), JournalError> {
    if journal.len() <= GONE {
        return Ok(());
    }
    let mount = |place: &CgroupRef| actual.hierarchies.get(place.hierarchy).map(|one| one.mount.as_str());
    let there: BTreeSet<(&str, u64)> =
        actual.cgroups.iter().filter_map(|(place, cgroup)| Some((mount(place)?, cgroup.inode))).collect();
    let is_gone = |group: &Target| !there.contains(&(group.mount.as_str(), group.inode));
    let (gone, kept): (Vec<_>, Vec<_>) = journal.groups_of_values().partition(|group| is_gone(group));
    if gone.len() <= GONE.max(kept.len()) {
        return Ok(());
    }
    let of_value = |record: &Record| match record {
        Record::Original { group, .. } | Record::Safe { group, .. } => is_gone(group),
        _ => false,
    };
    journal.forget(host, |_, record| of_value(record))
}
