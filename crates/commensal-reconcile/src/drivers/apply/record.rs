//! Journal operations that are not steps of a plan: removes outdated records, creates records of the safe state, and
//! reads values back.

use super::{Applied, Work};
use crate::drivers::level;
use crate::drivers::scheduler::in_force;
use crate::journal::{Journal, JournalError, Original, Record, Safe, Target};
use crate::steps::order::ordered;
use commensal_core::actual::{ActualState, CgroupRef, SettingRef};
use commensal_core::plan::{Action, SafeSetting, Step, WrittenSetting};
use commensal_host::Host;
use std::collections::{BTreeMap, BTreeSet};

/// Removes originals from the journal that a plan wanted to restore and that were in force already.
///
/// # Errors
/// Returns an error when the journal cannot be rewritten.
pub fn forget_settled(
    host: &mut dyn Host,
    settled: &[SettingRef],
    actual: &ActualState,
    journal: &mut Journal,
) -> Result<(), JournalError> {
    let key = |(place, knob, device): &SettingRef| {
        let mount = actual.hierarchies.get(place.hierarchy)?.mount.clone();
        let inode = actual.cgroups.get(place)?.inode;
        let target = Target { mount, path: place.path.as_str().to_owned(), inode };
        Some((target, knob.to_string(), device.map(|device| device.to_string())))
    };
    let settled: BTreeSet<_> = settled.iter().filter_map(key).collect();
    journal.forget(host, |_, record| match record {
        Record::Original(setting) => settled.contains(&setting.key()),
        _ => false,
    })
}

/// Returns the records of the safe state: one for each setting whose group exists.
pub(crate) fn safe_records(
    host: &mut dyn Host,
    actual: &ActualState,
    settings: &BTreeMap<SettingRef, SafeSetting>,
) -> Vec<Record> {
    let work = Work::new(host, actual);
    let record = |((place, knob, device), one): (&SettingRef, &SafeSetting)| {
        let inode = actual.cgroups.get(place)?.inode;
        let group = Target { mount: work.mount(place), path: place.path.as_str().to_owned(), inode };
        let file = work.file(place, *knob).ok()?;
        let value = file.encode(&one.value, *device).ok()?;
        let (knob, device) = (knob.to_string(), device.map(|device| device.to_string()));
        let setting = Original { group, knob, file: file.name.to_owned(), device, value };
        Some(Record::Safe(Safe { setting, online: one.online }))
    };
    settings.iter().filter_map(record).collect()
}

/// Number of records of removed groups (originals and safe values) that always stay in the journal.
const GONE: usize = 64;

/// Removes from the journal the records of removed groups, once there are more than `GONE` of them and more than
/// records of existing groups. Also removes records of exited threads, once the journal has half of the maximum number
/// of such records. Without this, the file would grow without limit where groups and processes are created and removed
/// all the time. `actual` must be newer than the last journalled change.
///
/// # Errors
/// Returns an error when the file cannot be rewritten.
pub fn forget_gone(
    host: &mut dyn Host,
    actual: &ActualState,
    journal: &mut Journal,
) -> Result<(), JournalError> {
    if journal.len() <= GONE {
        return Ok(());
    }
    let members = journal.members();
    if members.len() >= level::MOST / 2 {
        let gone = members.into_keys().filter(|thread| level::has_exited(host, *thread)).collect();
        journal.forget(host, |_, record| record.is_member(&gone))?;
    }
    let mount = |place: &CgroupRef| actual.hierarchies.get(place.hierarchy).map(|one| one.mount.as_str());
    let there: BTreeSet<(&str, u64)> =
        actual.cgroups.iter().filter_map(|(place, cgroup)| Some((mount(place)?, cgroup.inode))).collect();
    let is_gone = |group: &Target| !there.contains(&(group.mount.as_str(), group.inode));
    let (gone, kept): (Vec<_>, Vec<_>) = journal.groups_of_values().partition(|group| is_gone(group));
    if gone.len() <= GONE.max(kept.len()) {
        return Ok(());
    }
    journal.forget(host, |_, record| record.setting().is_some_and(|setting| is_gone(&setting.group)))
}

/// Reads back the values written by `steps`, to check whether they are still in force. If a value cannot be read, the
/// field `read` contains the reason.
pub fn verify(host: &mut dyn Host, steps: &[Step], actual: &ActualState) -> Vec<Applied> {
    let mut work = Work::new(host, actual);
    for step in steps {
        if let Action::Order { to, .. } = &step.action {
            let read = actual.scheduler.as_ref().map(|found| in_force(work.host, &found.socket, to));
            let read = read.unwrap_or_else(|| "the scheduler's state is not known".to_owned());
            work.outcome.applied.push(ordered(to, read));
        }
        let Some(WrittenSetting { knob, device, to, .. }) = step.action.written() else { continue };
        let Ok(file) = work.file(&step.place, knob) else { continue };
        let read = work.dir(&step.place).map_err(|refusal| refusal.to_string()).and_then(|dir| {
            let text = work.host.read(dir, file.name).map_err(|error| error.to_string())?;
            file.parse(&text, device).map_err(|error| error.to_string())
        });
        let want = to.to_string();
        let read = match read {
            Ok(read) if file.holds(&read, to) => want.clone(),
            Ok(read) => read.to_string(),
            Err(because) => because,
        };
        let place = actual.show(&step.place);
        // Only the last step that writes a knob has the final value.
        work.outcome.applied.retain(|one| one.place != place || one.file != file.name);
        work.outcome.applied.push(Applied { place, file: file.name, want, read });
    }
    work.finish().applied
}
