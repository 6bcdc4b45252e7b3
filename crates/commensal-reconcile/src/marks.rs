//! Copies of journal records on the cgroups themselves: extended attributes `trusted.commensal.*`.
//!
//! They exist exactly as long as the cgroup, only root can write them, and every commensal on the machine sees them,
//! whatever its state directory: no commensal takes another one's limit for an original, and losing a state directory
//! loses nothing. Where they are not available (a user who is not root, `EPERM`; old kernels, `EOPNOTSUPP`) there is
//! only the journal.

use crate::journal::{Record, Target, can_be_ours};
use commensal_core::errno::Errno;
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::mounts::hierarchies;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// First part of every attribute's name.
const PREFIX: &str = "trusted.commensal.";

/// One record, and its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// State directory of the commensal that wrote it.
    pub owner: String,
    /// Name of the journal in that directory.
    pub journal: String,
    /// The record.
    pub record: Record,
}

/// The group of a record and the name of its mark; `None` for a record that does not concern a single group.
pub(crate) fn home(record: &Record) -> Option<(&Target, String)> {
    let of = |kind: &str, knob: &str, device: &Option<String>| match device {
        Some(device) => format!("{PREFIX}{kind}.{knob}@{device}"),
        None => format!("{PREFIX}{kind}.{knob}"),
    };
    match record {
        Record::Created(group) => Some((group, format!("{PREFIX}created"))),
        Record::Cookied(group) => Some((group, format!("{PREFIX}cookied"))),
        Record::Enabling { group, controller } => Some((group, format!("{PREFIX}enabling.{controller}"))),
        Record::Original { group, knob, device, .. } => Some((group, of("original", knob, device))),
        Record::Safe { group, knob, device, .. } => Some((group, of("safe", knob, device))),
        Record::Moving { pid, start_ticks, to, .. } => {
            Some((to.first()?, format!("{PREFIX}moving.{pid}.{start_ticks}")))
        }
        Record::Owner(_)
        | Record::Creating { .. }
        | Record::Switching { .. }
        | Record::Ordering { .. }
        | Record::Affinity { .. }
        | Record::Scheduling
        | Record::Policy { .. }
        | Record::Recreating(_)
        | Record::Moved { .. } => None,
    }
}

/// Opens a target's group, if it is still the same one.
fn open(host: &mut dyn Host, group: &Target) -> Option<Dir> {
    let dir = host.open(&below(Path::new(&group.mount), &group.path)).ok()?;
    if dir.inode == group.inode {
        return Some(dir);
    }
    host.close(dir);
    None
}

/// Visits the records, each with its open group; stops when the callback returns `false`.
fn each<'a>(
    host: &mut dyn Host,
    records: impl IntoIterator<Item = &'a Record>,
    mut act: impl FnMut(&mut dyn Host, Dir, &str, &Record) -> bool,
) {
    let mut now: Option<(Target, Option<Dir>)> = None;
    for record in records {
        let Some((group, name)) = home(record) else { continue };
        if now.as_ref().is_none_or(|(open, _)| open != group) {
            if let Some((_, Some(dir))) = now.take() {
                host.close(dir);
            }
            now = Some((group.clone(), open(host, group)));
        }
        let Some((_, Some(dir))) = &now else { continue };
        if !act(host, *dir, &name, record) {
            break;
        }
    }
    if let Some((_, Some(dir))) = now {
        host.close(dir);
    }
}

/// Marks the groups of these records, which are in the journal `name` of `state_dir`. Marks are a second copy: a record
/// that cannot be marked is still in the journal.
pub(crate) fn set<'a>(
    host: &mut dyn Host,
    (state_dir, name): (&Path, &str),
    records: impl IntoIterator<Item = &'a Record>,
) {
    let owner = state_dir.display().to_string();
    each(host, records, |host, dir, attribute, record| {
        let mark = Mark { owner: owner.clone(), journal: name.to_owned(), record: record.clone() };
        let text = commensal_core::text::json(&mark).unwrap_or_default();
        match host.set_attribute(dir, attribute, Some(&text)) {
            Err(error) => !matches!(error.errno, Errno::EPERM | Errno::EOPNOTSUPP),
            Ok(()) => true,
        }
    });
}

/// Marks the groups of these records that are not marked so: an earlier try was refused. Another commensal's marks stay.
pub(crate) fn complete<'a>(
    host: &mut dyn Host,
    (state_dir, name): (&Path, &str),
    records: impl IntoIterator<Item = &'a Record>,
) {
    let owner = state_dir.display().to_string();
    let mut last: BTreeMap<(&Target, String), &Record> = BTreeMap::new();
    for record in records {
        match record {
            // The newest safe value counts, and the first of everything else.
            Record::Safe { .. } => last.extend(home(record).map(|home| (home, record))),
            _ => {
                home(record).map(|home| last.entry(home).or_insert(record));
            }
        }
    }
    let mut missing = Vec::new();
    each(host, last.into_values(), |host, dir, attribute, record| {
        let found = read(host, dir, attribute);
        let stale = |mark: &Mark| mark.owner == owner && mark.record != *record;
        let is_missing = found.as_ref().is_ok_and(|mark| mark.as_ref().is_none_or(stale));
        missing.extend(is_missing.then(|| record.clone()));
        found.is_ok()
    });
    set(host, (state_dir, name), &missing);
}

/// Removes the marks of outdated records, unless another owner has replaced them.
pub(crate) fn clear<'a>(
    host: &mut dyn Host,
    state_dir: &Path,
    records: impl IntoIterator<Item = &'a Record>,
) {
    let owner = state_dir.display().to_string();
    each(host, records, |host, dir, attribute, _| {
        let ours = read(host, dir, attribute).is_ok_and(|mark| mark.is_some_and(|mark| mark.owner == owner));
        !ours || host.set_attribute(dir, attribute, None).is_ok()
    });
}

fn read(host: &mut dyn Host, dir: Dir, attribute: &str) -> Result<Option<Mark>, HostError> {
    let text = host.attribute(dir, attribute)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
}

/// The mark on the group with the same subject as this record, whoever set it.
///
/// # Errors
/// When it cannot be read: then it is not known whether there is one.
pub(crate) fn of(host: &mut dyn Host, dir: Dir, record: &Record) -> Result<Option<Mark>, HostError> {
    match home(record) {
        Some((_, name)) => read(host, dir, &name),
        None => Ok(None),
    }
}

/// Every mark that can be read on this machine, with its group's current mount point and path.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub found: Vec<Mark>,
    /// Why further ones may be missing.
    pub unread: Vec<HostError>,
}

/// Reads the marks of all cgroups.
pub(crate) fn all(host: &mut dyn Host) -> Marks {
    let mut marks = Marks::default();
    let mounted = hierarchies(host);
    if let Err(commensal_sensors::SensorError::Host(error)) = &mounted {
        marks.unread.push(error.clone());
    }
    for hierarchy in mounted.unwrap_or_default() {
        let root = host.open(Path::new(&hierarchy.mount));
        if let Some(root) = marks.noted(root) {
            below_group(host, (&hierarchy.mount, "/"), root, &mut marks);
            host.close(root);
        }
    }
    let can_be_ours = can_be_ours(host);
    marks.found.retain(|mark| can_be_ours(&mark.record));
    marks
}

impl Marks {
    /// What was read; an error is noted, unless the group is gone or not for this user to see.
    fn noted<T>(&mut self, read: Result<T, HostError>) -> Option<T> {
        let error = match read {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        if !matches!(error.errno, Errno::ENOENT | Errno::ENODEV | Errno::EACCES | Errno::EPERM) {
            self.unread.push(error);
        }
        None
    }
}

fn below_group(host: &mut dyn Host, (mount, path): (&str, &str), dir: Dir, marks: &mut Marks) {
    let target = Target { mount: mount.to_owned(), path: path.to_owned(), inode: dir.inode };
    let names = host.attributes(dir, PREFIX);
    for name in marks.noted(names).unwrap_or_default() {
        let mark = read(host, dir, &name);
        let Some(mut mark) = marks.noted(mark).flatten() else { continue };
        let home_name = home(&mark.record).map(|(_, name)| name);
        // A mark under the wrong name is ignored.
        if home_name.as_deref() == Some(name.as_str()) {
            place(&mut mark.record, &target);
            marks.found.push(mark);
        }
    }
    let children = host.children(dir);
    for name in marks.noted(children).unwrap_or_default() {
        let child = host.open_child(dir, &name);
        if let Some(child) = marks.noted(child) {
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            below_group(host, (mount, &path), child, marks);
            host.close(child);
        }
    }
}

/// Sets the record's group to this one.
fn place(record: &mut Record, target: &Target) {
    match record {
        Record::Created(group)
        | Record::Cookied(group)
        | Record::Enabling { group, .. }
        | Record::Original { group, .. }
        | Record::Safe { group, .. } => *group = target.clone(),
        Record::Moving { to, .. } => {
            if let Some(first) = to.first_mut() {
                *first = target.clone();
            }
        }
        _ => {}
    }
}
