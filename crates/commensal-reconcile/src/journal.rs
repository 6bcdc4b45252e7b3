//! The undo journal: contains the original of each value on disk before the value is written for the first time.
//!
//! The state directory has one file per owner: `machine.journal` for `apply`, whose changes stay until `restore`;
//! `run.journal` for `run`, whose groups are removed with their last command; `lab-PID.journal` for a lab run, whose
//! changes are undone when it ends; `sched.journal` for the scheduler. A line is the CRC-32 of its JSON in hex, a
//! space, and the JSON. If a crash cuts off the last line (no line break), the write that the line announces has not
//! happened, so the line is dropped. Other damage is reported, and never repaired by guessing.

pub(crate) mod fits;
mod inspect;
mod record;

pub(crate) use fits::Mounts;
pub use inspect::{Boot, Inspected, TOLD, inspect};
pub use record::{
    Affinity, Cookied, Created, Creating, Enabling, Lifting, Member, Moved, Moving, Ordering, Original,
    Owner, Policy, Record, Recreating, Safe, Switching, Target,
};
pub(crate) use record::{Key, LIFTED};

use crate::drivers::level::{self, Kept};
use crate::drivers::recreate::Recreated;
use crate::marks;
use commensal_core::actual::{ActualState, Ours};
use commensal_core::errno::Errno;
use commensal_core::member::ProcessId;
use commensal_host::{Dir, Host, HostError};
use commensal_sensors::{machine, mounts};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// Name of the journal of `apply`, whose changes last until `restore`.
pub const MACHINE: &str = "machine";
/// Name of the journal of `run`, whose groups last until their last command exits.
pub const RUN: &str = "run";
/// Name of the scheduler's journal: the original policies of threads that run under the scheduler.
pub const SCHED: &str = "sched";
/// Prefix of the name of a lab run's journal; the run's PID follows.
pub const LAB: &str = "lab-";
/// Extension of every journal's file name.
const ENDING: &str = "journal";
/// Maximum size of a journal in bytes: some two million records. A larger file is neither read nor extended.
pub const MOST_BYTES: u64 = 512 << 20;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system call failed.
    #[error("the undo journal cannot be stored, so nothing was written")]
    Host(#[from] HostError),
    /// Some lines were not written by commensal.
    #[error(
        "{path} is damaged at line {line} ({reason}), so nothing was written; `commensal restore` restores what can be read"
    )]
    Damaged {
        /// The file.
        path: String,
        /// First damaged line, from 1.
        line: usize,
        /// The reason why the line is damaged.
        reason: String,
    },
}

/// A parsed journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Valid records, in the order of the file.
    pub records: Vec<Record>,
    /// Damaged lines: line number from 1, and the reason.
    pub damaged: Vec<(usize, String)>,
    /// Whether a last line that a crash cut off (a torn line) was dropped.
    pub torn: bool,
}

impl Contents {
    /// The journal's owner, if its line could be read.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.records.iter().find_map(|record| match record {
            Record::Owner(owner) => Some(owner),
            _ => None,
        })
    }
}

/// Encodes one record as a line.
#[must_use]
pub fn line(record: &Record) -> String {
    let json = commensal_core::text::json(record).expect("records are plain strings and numbers");
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

/// Parses a journal's text. Never fails: damage is part of the result.
#[must_use]
pub fn parse(text: &str) -> Contents {
    parse_where(text, |_| None)
}

/// Parses a journal's text and checks each record against the knob table and this machine's mounts: a record that
/// commensal cannot have written in this boot counts as damage, even if its checksum is right. A journal of an earlier
/// boot is not checked, because none of its records is used.
#[must_use]
pub fn read(host: &dyn Host, text: &str) -> Contents {
    parse_where(text, objection(host))
}

/// Returns a function that returns, for one record after another of a journal, why commensal cannot have written it.
fn objection(host: &dyn Host) -> impl FnMut(&Record) -> Option<String> + use<> {
    let (boot_id, mounts) = (machine::boot_id(host), mounts::kinds(host));
    let mut whose = None;
    move |record| {
        if let (Record::Owner(owner), None) = (record, &whose) {
            whose = Some(boot_id.as_ref() == Some(&owner.boot_id));
        }
        if whose == Some(false) { None } else { record.kind().objection(&mounts) }
    }
}

/// Returns a function that tells whether commensal can have written a record on this machine.
pub(crate) fn can_be_ours(host: &dyn Host) -> impl Fn(&Record) -> bool + use<> {
    let mounts = mounts::kinds(host);
    move |record| record.kind().objection(&mounts).is_none()
}

/// Parses the text. `objection` returns why commensal cannot have written a readable record.
fn parse_where(text: &str, objection: impl FnMut(&Record) -> Option<String>) -> Contents {
    let mut contents = Contents::default();
    contents.torn = each_line(text, objection, |number, record| match record {
        Ok(record) => contents.records.push(record),
        Err(reason) => contents.damaged.push((number, reason)),
    });
    contents
}

/// Parses one line after another, and passes on its number and its record, or the reason why it is damaged. Returns whether
/// the last line is torn.
fn each_line(
    text: &str,
    mut objection: impl FnMut(&Record) -> Option<String>,
    mut act: impl FnMut(usize, Result<Record, String>),
) -> bool {
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let Some(whole) = line.strip_suffix('\n') else { return true };
        act(number, parse_line(whole).and_then(|record| objection(&record).map_or(Ok(record), Err)));
    }
    false
}

fn parse_line(line: &str) -> Result<Record, String> {
    let (sum, json) = line.split_once(' ').ok_or("no checksum")?;
    let wrong = u32::from_str_radix(sum, 16).ok() != Some(crc32fast::hash(json.as_bytes()));
    if wrong {
        return Err("the checksum is wrong".to_owned());
    }
    serde_json::from_str(json).map_err(|error| format!("not a record of this version: {error}"))
}

/// An open journal: the records so far, and the file to append to.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    owner: Owner,
    /// The records in the file, without the owner's line.
    records: Vec<Record>,
    /// Size of the file in bytes.
    size: u64,
    /// The safe value of each knob (in force when no agent runs), and whether the knob's group is online.
    safe: BTreeMap<Key, (String, bool)>,
    /// Records that the next append writes together with its own.
    waiting: Vec<Record>,
    /// Records of this process that need a mark (a copy on their cgroup), but whose mark could not be set.
    unmarked: Vec<Record>,
    /// The subject of each record (see [`Record::subject`]): a set, because searching a long journal for every step would be slow.
    known: HashSet<Record>,
}

/// Number of outdated safe values that may stay in the file; more may stay if there are more valid ones.
const STALE: usize = 256;

impl Journal {
    /// Opens the journal `name` in `dir`, creating the directory. The file itself is created with the first record, so
    /// that a plan without steps leaves nothing behind.
    ///
    /// # Errors
    /// Returns an error when the directory cannot be created, or an existing journal is damaged: then undo could not be
    /// guaranteed.
    pub fn open(host: &mut dyn Host, dir: &Path, name: &str, owner: Owner) -> Result<Journal, JournalError> {
        host.state_dir(dir)?;
        let path = path(dir, name);
        let text = load(host, &path)?.unwrap_or_default();
        let contents = read(host, &text);
        let of_another_boot = contents.owner().is_some_and(|written| written.boot_id != owner.boot_id);
        if let Some((line, reason)) = contents.damaged.first().filter(|_| !of_another_boot) {
            let (path, reason) = (path.display().to_string(), reason.clone());
            return Err(JournalError::Damaged { path, line: *line, reason });
        }
        let stale = of_another_boot || contents.owner().is_none();
        let mut size = text.len() as u64;
        if stale || contents.torn {
            // Groups of an earlier boot no longer exist; the next line would be appended to a torn line.
            let kept: String =
                if stale { String::new() } else { contents.records.iter().map(line).collect() };
            size = kept.len() as u64;
            match kept.is_empty() {
                true => host.state_remove(&path)?,
                false => host.state_replace(&path, &kept)?,
            }
        }
        let mut records = if stale { Vec::new() } else { contents.records };
        records.retain(|record| !matches!(record, Record::Owner(_)));
        let mut journal = Journal {
            path,
            owner,
            records,
            size,
            safe: BTreeMap::new(),
            waiting: Vec::new(),
            unmarked: Vec::new(),
            known: HashSet::new(),
        };
        journal.index();
        Ok(journal)
    }

    fn index(&mut self) {
        self.safe = self.records.iter().filter_map(safe).collect();
        self.known = self.records.iter().map(Record::subject).collect();
    }

    /// Whether the safe value of this knob of this particular group is in the journal.
    pub(crate) fn has_safe(&self, group: &Target, knob: &str, device: Option<&str>) -> bool {
        self.safe.contains_key(&(group.clone(), knob.to_owned(), device.map(str::to_owned)))
    }

    /// Queues records of safe values, which the next [`Journal::append`] writes. Skips values that have a record
    /// already.
    pub(crate) fn announce_safe(&mut self, records: impl IntoIterator<Item = Record>) {
        let new = records
            .into_iter()
            .filter(|record| safe(record).is_some_and(|(key, value)| self.safe.get(&key) != Some(&value)));
        self.waiting = new.collect();
    }

    /// Whether a record about the same subject exists already.
    #[must_use]
    pub fn has(&self, record: &Record) -> bool {
        self.known.contains(&record.subject())
    }

    /// Returns the threads whose original policy is not the normal one: TID, start time (clock ticks) and policy.
    pub fn policies(&self) -> impl Iterator<Item = (u32, u64, i32)> {
        self.records.iter().filter_map(|record| match record {
            Record::Policy(Policy { tid, start_ticks, policy }) => Some((*tid, *start_ticks, *policy)),
            _ => None,
        })
    }

    /// Returns the recorded scheduling attributes of threads in groups below level 0 (`cpu.qos_level`).
    pub(crate) fn members(&self) -> Kept {
        level::kept(&self.records)
    }

    /// Returns the records that contain scheduling attributes of threads.
    pub(crate) fn of_members(&self) -> Vec<Member> {
        let member =
            |record: &Record| if let Record::Member(one) = record { Some(one.clone()) } else { None };
        self.records.iter().filter_map(member).collect()
    }

    /// Returns the groups whose replacement by a fresh group was begun and not completed.
    pub(crate) fn recreating(&self) -> impl Iterator<Item = &Target> {
        self.records.iter().filter_map(|record| match record {
            Record::Recreating(Recreating(target)) => Some(target),
            _ => None,
        })
    }

    /// Updates the journal after groups were replaced by fresh ones of the same name: records get the new inodes, and
    /// the replacement counts as completed.
    ///
    /// # Errors
    /// Returns an error when the file cannot be rewritten.
    pub(crate) fn recreated(
        &mut self,
        host: &mut dyn Host,
        mount: &str,
        groups: &[Recreated],
    ) -> Result<(), JournalError> {
        let mut records = self.records.clone();
        let over = |record: &Record| match record {
            Record::Recreating(Recreating(target)) => {
                target.mount == mount && groups.iter().any(|group| group.path == target.path)
            }
            _ => false,
        };
        records.retain(|record| !over(record));
        rename(&mut records, mount, groups);
        if records == self.records {
            return Ok(());
        }
        self.rewrite(host, records)?;
        let of_recreated = |record: &&Record| {
            marks::home(record)
                .is_some_and(|(target, _)| groups.iter().any(|group| group.new == target.inode))
        };
        marks::refresh(host, self.names(), self.records.iter().filter(of_recreated));
        Ok(())
    }

    /// Writes the queued records and `records` to disk, and marks their groups. When this returns, the records
    /// survive a crash.
    ///
    /// # Errors
    /// Returns an error when the records could not be written completely. None of them is in the file in this case.
    pub fn append(&mut self, host: &mut dyn Host, records: &[Record]) -> Result<(), JournalError> {
        let all = self.write(host, records)?;
        if !all.is_empty() {
            let unmarked = marks::set(host, self.names(), &all);
            self.unmarked.extend(unmarked);
            self.shorten(host);
        }
        Ok(())
    }

    /// Writes the queued records and `records` to disk; returns all of them.
    fn write(&mut self, host: &mut dyn Host, records: &[Record]) -> Result<Vec<Record>, JournalError> {
        let all: Vec<Record> = self.waiting.iter().chain(records).cloned().collect();
        if all.is_empty() {
            return Ok(all);
        }
        let lines: String = all.iter().map(line).collect();
        // If the file was removed since it was opened, appending would create a new file without an owner, which would
        // count as the whole journal although it has only these records.
        let is_gone = !self.records.is_empty() && host.state_lock_file(&self.path)?.is_none();
        let before = match (self.records.is_empty(), is_gone) {
            (true, _) => self.head(),
            (false, false) => String::new(),
            (false, true) => self.head() + &self.records.iter().map(line).collect::<String>(),
        };
        let kept = if self.records.is_empty() || is_gone { 0 } else { self.size };
        let text = before + &lines;
        let size = kept + text.len() as u64;
        // A refused step is better than a journal that is too large to be read.
        if size > MOST_BYTES {
            let object = format!("{}, whose size limit is {MOST_BYTES} bytes", self.path.display());
            return Err(HostError { operation: "append to", object, value: None, errno: Errno::EFBIG }.into());
        }
        match is_gone {
            true => host.state_replace(&self.path, &text)?,
            false => host.state_append(&self.path, &text)?,
        }
        self.size = size;
        self.safe.extend(all.iter().filter_map(safe));
        self.known.extend(all.iter().map(Record::subject));
        self.waiting.clear();
        self.records.extend(all.iter().cloned());
        Ok(all)
    }

    /// Drops the safe values of knobs that are not in `wanted`, if their groups still exist. The groups' owners control
    /// such knobs again.
    pub(crate) fn forget_safe(
        &mut self,
        host: &mut dyn Host,
        actual: &ActualState,
        wanted: &[Record],
    ) -> Result<(), JournalError> {
        let wanted: BTreeSet<Key> = wanted.iter().filter_map(safe).map(|(key, _)| key).collect();
        let unwanted = self.safe.keys().filter(|key| !wanted.contains(*key) && key.0.find(actual).is_some());
        let unwanted: BTreeSet<Key> = unwanted.cloned().collect();
        if unwanted.is_empty() {
            return Ok(());
        }
        self.forget(host, |_, record| safe(record).is_some_and(|(key, _)| unwanted.contains(&key)))
    }

    /// Drops safe values that later records replace, once there are many (see [`STALE`]). After a failure, the next
    /// append tries again.
    fn shorten(&mut self, host: &mut dyn Host) {
        let all = self.records.iter().filter(|record| matches!(record, Record::Safe(_))).count();
        if all - self.safe.len().min(all) > STALE.max(self.safe.len()) {
            let standing = self.safe.clone();
            let mut seen = BTreeSet::new();
            let stale = |record: &Record| match safe(record) {
                Some((key, value)) => standing.get(&key) != Some(&value) || !seen.insert(key),
                None => false,
            };
            let stale: Vec<bool> = self.records.iter().map(stale).collect();
            let _ = self.forget(host, |index, _| stale.get(index) == Some(&true));
        }
    }

    /// Returns the state directory and the journal's name.
    fn names(&self) -> (&Path, &str) {
        let name = self.path.file_stem().and_then(|name| name.to_str());
        (self.path.parent().unwrap_or(Path::new("/")), name.unwrap_or_default())
    }

    /// Returns the state directory.
    pub(crate) fn state_dir(&self) -> &Path {
        self.names().0
    }

    /// Sets the mark of this record on its group again; the record itself is on disk already.
    pub(crate) fn mark(&self, host: &mut dyn Host, record: &Record) {
        marks::set(host, self.names(), [record]);
    }

    /// Sets the mark of the recorded original with this subject again. A crash after the record was written may have
    /// prevented the mark.
    pub(crate) fn mark_first(&self, host: &mut dyn Host, subject: &Record) {
        let first = self.records.iter().find(|record| record.subject() == *subject);
        marks::set(host, self.names(), first);
    }

    /// Creates a group whose creation is recorded, and marks it, so that a killed process always leaves a mark.
    ///
    /// # Errors
    /// Returns an error when the kernel refuses.
    pub(crate) fn make(
        &self,
        host: &mut dyn Host,
        parent: Dir,
        place: (&str, &str),
    ) -> Result<Dir, HostError> {
        marks::make(host, self.names(), parent, place)
    }

    /// Takes the records of this process whose marks could not be set, to try again later.
    pub(crate) fn take_unmarked(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.unmarked)
    }

    /// Sets the marks of records that this process has appended earlier; returns those that are still missing.
    pub(crate) fn mark_again(&self, host: &mut dyn Host, records: Vec<Record>) -> Vec<Record> {
        let standing: Vec<Record> = records.into_iter().filter(|record| self.has(record)).collect();
        marks::set(host, self.names(), &standing)
    }

    /// Sets the missing marks of all records on their groups.
    pub(crate) fn complete_marks(&self, host: &mut dyn Host) {
        marks::complete(host, self.names(), &self.records);
    }

    fn head(&self) -> String {
        line(&Record::Owner(self.owner.clone()))
    }

    /// Returns the group of each recorded original and safe value.
    pub(crate) fn groups_of_values(&self) -> impl Iterator<Item = &Target> {
        self.records.iter().filter_map(Record::setting).map(|setting| &setting.group)
    }

    /// Returns the records of moves of processes.
    pub(crate) fn moving(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| matches!(record, Record::Moving(_)))
    }

    /// Returns the processes whose moves are recorded.
    pub(crate) fn processes(&self) -> BTreeSet<ProcessId> {
        self.records.iter().filter_map(Record::process).collect()
    }

    /// Number of records, which is also the index of the next record for [`Journal::forget`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether this journal has this name.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.path.file_name().is_some_and(|file| file.to_str() == Some(&format!("{name}.{ENDING}")))
    }

    /// Whether the journal has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes the records for which `gone` returns true. After a restore, the setting belongs to the next program that
    /// writes it, so it must not be restored a second time.
    ///
    /// # Errors
    /// Returns an error when the file cannot be rewritten; it is unchanged in that case.
    pub fn forget(
        &mut self,
        host: &mut dyn Host,
        mut gone: impl FnMut(usize, &Record) -> bool,
    ) -> Result<(), JournalError> {
        let kept: Vec<Record> =
            self.records.iter().enumerate().filter(|(i, r)| !gone(*i, r)).map(|(_, r)| r.clone()).collect();
        if kept.len() == self.records.len() {
            return Ok(());
        }
        let before = self.rewrite(host, kept)?;
        let owner = [self.state_dir().display().to_string()].into();
        let (_, name) = self.names();
        marks::clear(host, (&owner, Some(name)), without(&before, &self.records));
        Ok(())
    }

    /// Replaces all records, and removes the file if there are none. Returns the records from before.
    fn rewrite(&mut self, host: &mut dyn Host, records: Vec<Record>) -> Result<Vec<Record>, JournalError> {
        let text = self.head() + &records.iter().map(line).collect::<String>();
        match records.is_empty() {
            true => host.state_remove(&self.path)?,
            false => host.state_replace(&self.path, &text)?,
        }
        self.size = text.len() as u64;
        let before = std::mem::replace(&mut self.records, records);
        self.index();
        Ok(before)
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Changes the inodes in the records to those of the fresh groups.
pub(crate) fn rename(records: &mut [Record], mount: &str, groups: &[Recreated]) {
    let new = |target: &Target| {
        let found = groups.iter().find(|group| group.path == target.path && target.mount == mount)?;
        (found.old == 0 || found.old == target.inode).then_some(found.new)
    };
    for target in records.iter_mut().flat_map(Record::groups_mut) {
        if let Some(inode) = new(target) {
            target.inode = inode;
        }
    }
}

/// Returns the records of `before` for which no record in `now` has the same mark.
pub(crate) fn without<'a>(before: &'a [Record], now: &[Record]) -> Vec<&'a Record> {
    let standing: BTreeSet<_> = now.iter().filter_map(marks::home).collect();
    before.iter().filter(|record| marks::home(record).is_some_and(|home| !standing.contains(&home))).collect()
}

/// Returns key and value of a record of a safe value.
fn safe(record: &Record) -> Option<(Key, (String, bool))> {
    let Record::Safe(Safe { setting, online }) = record else { return None };
    Some((setting.key(), (setting.value.clone(), *online)))
}

/// Moves the records of wanted groups from `run`'s journal into `into`: groups that `apply` now manages must not be
/// removed with the last command that was started in them.
///
/// # Errors
/// Returns an error when a journal cannot be read or written.
pub fn adopt(
    host: &mut dyn Host,
    dir: &Path,
    into: &mut Journal,
    wanted: impl Fn(&Target) -> bool,
) -> Result<(), JournalError> {
    let mut of_run = Journal::open(host, dir, RUN, into.owner.clone())?;
    let moves = |record: &Record| match record {
        Record::Created(Created(target)) | Record::Member(Member { group: target, .. }) => wanted(target),
        Record::Ordering(Ordering { mount, path, .. }) => {
            wanted(&Target { mount: mount.clone(), path: path.clone(), inode: 0 })
        }
        // Controllers are enabled for wanted and other groups alike; `restore` disables those that no group uses.
        Record::Enabling(_) => true,
        _ => false,
    };
    let moved: Vec<Record> = of_run.records.iter().filter(|record| moves(record)).cloned().collect();
    if !moved.iter().any(|record| matches!(record, Record::Created(_))) {
        return Ok(());
    }
    // Queued records are written and marked first. The existing marks of the moved records are changed, not set anew: a
    // mark proves that commensal made the change, and a record alone does not.
    into.append(host, &[])?;
    into.write(host, &moved)?;
    marks::hand_over(host, into.names(), &moved);
    of_run.forget(host, |_, record| match record {
        Record::Creating(Creating { mount, path }) => moved.iter().any(
            |other| matches!(other, Record::Created(Created(target)) if target.mount == *mount && target.path == *path),
        ),
        record => moves(record),
    })
}

/// Reads the text of a journal; `None` if there is none.
///
/// # Errors
/// Returns an error when it cannot be read, or is larger than [`MOST_BYTES`].
pub fn load(host: &mut dyn Host, path: &Path) -> Result<Option<String>, HostError> {
    host.state_read_within(path, MOST_BYTES)
}

/// Rewrites a journal with its current records; removes the file if there are none. A journal with damaged lines stays as it
/// is, because these lines have to be saved first.
///
/// # Errors
/// Returns the kernel's error; the file is unchanged in that case.
pub(crate) fn store(host: &mut dyn Host, path: &Path, contents: &Contents) -> Result<(), HostError> {
    match contents.records.iter().all(|record| matches!(record, Record::Owner(_))) {
        _ if !contents.damaged.is_empty() => Ok(()),
        true => host.state_remove(path),
        false => host.state_replace(path, &contents.records.iter().map(line).collect::<String>()),
    }
}

pub(crate) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.{ENDING}"))
}

/// Returns the names of all journals in the state directory.
#[must_use]
pub fn names(host: &dyn Host, dir: &Path) -> Vec<String> {
    let names = host.list(dir).unwrap_or_default();
    names.iter().filter_map(|name| name.strip_suffix(ENDING)?.strip_suffix('.').map(str::to_owned)).collect()
}

/// Returns what the journal `name` records as created or changed by commensal, for groups that still exist. A journal
/// of another boot is ignored: inode numbers start again, so a new group could be confused with an old one.
///
/// # Errors
/// Returns an error when the file exists but cannot be read.
pub fn ours(
    host: &mut dyn Host,
    dir: &Path,
    name: &str,
    boot_id: &str,
    actual: &ActualState,
) -> Result<Ours, JournalError> {
    let text = load(host, &path(dir, name))?.unwrap_or_default();
    let mut ours = Ours::default();
    let contents = read(host, &text);
    if contents.owner().is_some_and(|owner| owner.boot_id != boot_id) {
        return Ok(ours);
    }
    for record in &contents.records {
        record.kind().claim(actual, &mut ours);
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Record {
        Record::Owner(Owner { kind: "machine".into(), pid: 1, start_ticks: 2, boot_id: "b".into() })
    }

    // promise 12
    #[test]
    fn every_damaged_byte_is_noticed() {
        let text = line(&owner());
        assert_eq!(parse(&text).records, [owner()]);
        for index in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[index] ^= 1;
            let contents = parse(&String::from_utf8_lossy(&bytes));
            assert!(contents.records.is_empty(), "byte {index} changed and was not noticed");
        }
    }

    #[test]
    fn a_torn_end_is_dropped_and_a_torn_middle_is_damage() {
        let text = line(&owner());
        let torn = format!("{text}{}", &text[..text.len() - 5]);
        assert_eq!(parse(&torn), Contents { records: vec![owner()], damaged: vec![], torn: true });
        let middle = format!("{}\n{text}", &text[..text.len() - 5]);
        assert_eq!(parse(&middle).damaged.len(), 1);
        assert_eq!(parse(&middle).records.len(), 1);
        assert_eq!(parse("\n").damaged, [(1, "no checksum".to_owned())]);
    }

    /// Journals outlive the version that wrote them: the lines of every kind are read and written as in the first version
    /// that had them.
    // promise 12
    #[test]
    fn records_are_written_as_in_the_first_version() {
        let group = r#"{"mount":"/sys/fs/cgroup/cpu","path":"/a/b","inode":7}"#;
        let value = |knob: &str, device: &str| {
            format!(r#""group":{group},"knob":"{knob}","file":"f","device":{device},"value":"1""#)
        };
        let (plain, of_disk) = (value("cpu.weight", "null"), value("io.max.rbps", r#""8:0""#));
        for fields in [
            r#"owner","kind":"machine","pid":1,"start_ticks":2,"boot_id":"b""#.to_owned(),
            r#"creating","mount":"/sys/fs/cgroup/cpu","path":"/a""#.to_owned(),
            r#"created","mount":"/sys/fs/cgroup/cpu","path":"/a","inode":7"#.to_owned(),
            format!(r#"enabling","group":{group},"controller":"cpu""#),
            r#"switching","switch":"vm.memcg_qos_enable","value":"0""#.to_owned(),
            r#"cookied","mount":"/sys/fs/cgroup/cpu","path":"/a","inode":7"#.to_owned(),
            r#"ordering","owner":"machine","mount":"/sys/fs/cgroup/cpu","path":"/a""#.to_owned(),
            r#"affinity","tid":1,"start_ticks":2,"cpus":"0-1""#.to_owned(),
            r#"scheduling""#.to_owned(),
            r#"policy","tid":1,"start_ticks":2,"policy":3"#.to_owned(),
            format!(
                r#"member","group":{group},"tid":1,"start_ticks":2,"scheduling":{{"policy":1,"priority":3}}"#
            ),
            format!(r#"lifting","group":{group},"to":"/commensal-lifted-7""#),
            r#"recreating","mount":"/sys/fs/cgroup/cpu","path":"/a","inode":7"#.to_owned(),
            format!(
                r#"moving","pid":9,"start_ticks":5,"pgrp":8,"by":"process ffmpeg","from":[{group}],"to":[{group}]"#
            ),
            r#"moved","pid":9,"start_ticks":5"#.to_owned(),
            format!(r#"original",{plain}"#),
            format!(r#"original",{of_disk}"#),
            format!(r#"safe",{plain},"online":true"#),
            format!(r#"safe",{of_disk},"online":false"#),
        ] {
            let json = format!(r#"{{"record":"{fields}}}"#);
            let text = format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
            let contents = parse(&text);
            assert_eq!(contents.records.iter().map(line).collect::<Vec<_>>(), [text], "{contents:?}");
        }
    }
}
