//! Marks: copies of journal records on the cgroups themselves, as extended attributes `trusted.commensal.*`.
//!
//! A mark exists exactly as long as its cgroup, only root can write it, and every instance of commensal on the machine
//! can read it, including those with another state directory. So no instance mistakes another instance's limit for an
//! original, and if a state directory is lost, its journals can be rebuilt. Where marks are not available (users other
//! than root, `EPERM`; old kernels, `EOPNOTSUPP`) there is only the journal.
//!
//! A mark contains a checksum of itself. What it says about a damaged one is not known, not even whose it is, so nobody
//! acts on it: `restore` names its cgroup.
//!
//! A mark is also a [`Proof`]: any user who can write a journal could have added a record, but only root can have set
//! the mark. Commensal therefore sets such a mark when it makes the change, and never because a record in a file says
//! that the change was made (see [`complete`]). Marks that serve as a proof are called proofs here.

use crate::attributes::{self, PREFIX, announcement};
use crate::drivers::recreate;
use crate::hand::{self, is_gone};
use crate::journal::{Created, Creating, Moving, Record, Target, can_be_ours};
use commensal_core::actual::{ActualState, CgroupRef};
use commensal_core::errno::Errno;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::mounts::hierarchies;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

/// One record, and the journal that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// State directory of the instance that wrote the mark.
    pub owner: String,
    /// Name of the journal in that directory.
    pub journal: String,
    /// The record.
    pub record: Record,
    /// CRC-32, in hex, of the mark without this field; earlier versions set marks without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl Mark {
    fn new((state_dir, journal): (&Path, &str), record: Record) -> Mark {
        let owner = state_dir.display().to_string();
        Mark { owner, journal: journal.to_owned(), record, sum: None }
    }

    fn encode(mut self) -> String {
        self.sum = Some(self.checksum());
        text::json(&self).unwrap_or_default()
    }

    /// Returns the mark in this text; `None` if the text is not what [`Mark::encode`] returned.
    fn decode(text: &str) -> Option<Mark> {
        let mut mark: Mark = serde_json::from_str(text).ok()?;
        let sum = mark.sum.take();
        sum.is_none_or(|sum| sum == mark.checksum()).then_some(mark)
    }

    fn checksum(&self) -> String {
        let json = text::json(&Mark { sum: None, ..self.clone() }).unwrap_or_default();
        format!("{:08x}", crc32fast::hash(json.as_bytes()))
    }
}

/// Returns the group of a record and the attribute name of its mark; `None` for a record that does not concern a single
/// group.
pub(crate) fn home(record: &Record) -> Option<(&Target, String)> {
    let (group, name) = record.kind().mark()?;
    Some((group, format!("{PREFIX}{name}")))
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
            now = Some((group.clone(), hand::open(host, group).ok().flatten()));
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

/// Marks the groups of these records, which are in the journal `name` of `state_dir`. A record that cannot be marked is
/// still in the journal. Returns the records whose marks serve as a proof and could not be set.
pub(crate) fn set<'a>(
    host: &mut dyn Host,
    (state_dir, name): (&Path, &str),
    records: impl IntoIterator<Item = &'a Record>,
) -> Vec<Record> {
    let owner = state_dir.display().to_string();
    let records: Vec<&Record> = records.into_iter().collect();
    let mut marked = HashSet::new();
    each(host, records.iter().copied(), |host, dir, attribute, record| {
        let attribute = slot(host, dir, attribute, (record, &owner));
        match attributes::put(host, dir, &attribute, &text_of((state_dir, name), record)) {
            Err(error) => !attributes::is_unavailable(&error),
            Ok(()) => {
                marked.extend(needs_mark(record).then(|| record.clone()));
                true
            }
        }
    });
    records.into_iter().filter(|record| needs_mark(record) && !marked.contains(*record)).cloned().collect()
}

/// Returns the text of a mark. If the paths of a process's previous groups are too long for an attribute, leaves them
/// out: the mark is still a proof without them.
fn text_of(names: (&Path, &str), record: &Record) -> String {
    let whole = Mark::new(names, record.clone()).encode();
    if whole.len() <= attributes::MOST_BYTES {
        return whole;
    }
    let mut short = record.clone();
    if let Record::Moving(Moving { from, .. }) = &mut short {
        from.clear();
    }
    Mark::new(names, short).encode()
}

/// Returns the name of the attribute with which `owner` marks the record. Several instances can have enabled the same
/// controller: the first one marks it under the plain name, the others under names of their own, so that removing one
/// mark does not remove the others.
fn slot(host: &mut dyn Host, dir: Dir, name: &str, (record, owner): (&Record, &str)) -> String {
    let is_another = |mark: &Mark| Path::new(&mark.owner) != Path::new(owner);
    match record {
        Record::Enabling(_)
            if read(host, dir, name).is_ok_and(|mark| mark.is_some_and(|mark| is_another(&mark))) =>
        {
            of_owner(name, owner)
        }
        _ => name.to_owned(),
    }
}

fn of_owner(name: &str, owner: &str) -> String {
    format!("{name}@{:08x}", crc32fast::hash(owner.as_bytes()))
}

/// Returns the names of all attributes that may contain the mark of this record (see [`slot`]).
fn slots(name: &str, record: &Record, owners: &BTreeSet<String>) -> Vec<String> {
    let of_owners = owners.iter().map(|owner| of_owner(name, owner));
    let of_owners = of_owners.filter(|_| matches!(record, Record::Enabling(_)));
    std::iter::once(name.to_owned()).chain(of_owners).collect()
}

/// Whether `restore` undoes this record only if its mark exists.
fn needs_mark(record: &Record) -> bool {
    record.kind().facts().proof
}

/// Sets those marks of these records that an earlier attempt could not set. Other instances' marks stay. Sets no marks
/// that serve as a proof, because a record that was read from a file may be forged.
pub(crate) fn complete<'a>(
    host: &mut dyn Host,
    (state_dir, name): (&Path, &str),
    records: impl IntoIterator<Item = &'a Record>,
) {
    let owner = state_dir.display().to_string();
    let mut last: BTreeMap<(&Target, String), &Record> = BTreeMap::new();
    for record in records.into_iter().filter(|record| !needs_mark(record)) {
        match record {
            // Of several safe values the newest one counts; of all other records the first one counts, which has the
            // original.
            Record::Safe(_) => last.extend(home(record).map(|home| (home, record))),
            _ => {
                home(record).map(|home| last.entry(home).or_insert(record));
            }
        }
    }
    let mut missing = Vec::new();
    each(host, last.into_values(), |host, dir, attribute, record| {
        let found = read(host, dir, attribute);
        let stale = |mark: &Mark| mark.owner == owner && mark.record != *record;
        let is_missing = match &found {
            Ok(mark) => mark.as_ref().is_none_or(stale),
            Err(error) => is_damaged(error),
        };
        missing.extend(is_missing.then(|| record.clone()));
        found.is_ok() || is_missing
    });
    set(host, (state_dir, name), &missing);
}

/// Updates the marks of records whose groups were replaced by fresh ones to the new inodes. The fresh groups have
/// copies of the proofs already.
pub(crate) fn refresh<'a>(
    host: &mut dyn Host,
    names: (&Path, &str),
    records: impl IntoIterator<Item = &'a Record>,
) {
    set(host, names, records.into_iter().filter(|record| !needs_mark(record)));
}

/// Changes the marks of records that are moved from another journal of `state_dir` to the journal `name`. A record
/// without a mark gets none.
pub(crate) fn hand_over(host: &mut dyn Host, (state_dir, name): (&Path, &str), records: &[Record]) {
    let owners: BTreeSet<String> = [state_dir.display().to_string()].into();
    let mut proven = Vec::new();
    each(host, records, |host, dir, _, record| {
        let proof = proof(host, dir, record, &owners);
        proven.extend(matches!(proof, Ok(Proof::Ours)).then(|| record.clone()));
        true
    });
    set(host, (state_dir, name), &proven);
}

/// Removes the marks of outdated records that `owners` (state directories) have set. The marks of other owners stay. If
/// `journal` is given, proofs that belong to another journal stay as well.
pub(crate) fn clear<'a>(
    host: &mut dyn Host,
    (owners, journal): (&BTreeSet<String>, Option<&str>),
    records: impl IntoIterator<Item = &'a Record>,
) {
    each(host, records, |host, dir, attribute, record| {
        let stays =
            |mark: &Mark| needs_mark(record) && journal.is_some_and(|journal| mark.journal != journal);
        slots(attribute, record, owners).iter().all(|name| {
            let goes = match read(host, dir, name) {
                Ok(mark) => mark.is_some_and(|mark| is_of(&mark, owners) && !stays(&mark)),
                // The record has been undone from the journal, so nobody needs this copy of it.
                Err(error) => journal.is_none() && is_damaged(&error),
            };
            !goes || host.set_attribute(dir, name, None).is_ok()
        })
    });
}

fn is_of(mark: &Mark, owners: &BTreeSet<String>) -> bool {
    owners.iter().any(|owner| Path::new(owner) == Path::new(&mark.owner))
}

/// Creates a group whose creation is recorded in the journal. Before, the parent gets a mark that announces the group;
/// the group gets its own mark before any other change to it. Whenever this process is killed, one of the two marks
/// shows that commensal created the group.
///
/// # Errors
/// Returns an error when the kernel refuses to create the group.
pub(crate) fn make(
    host: &mut dyn Host,
    names: (&Path, &str),
    parent: Dir,
    (mount, path): (&str, &str),
) -> Result<Dir, HostError> {
    let child = last(path);
    let attribute = announcement(child);
    let creating = Record::Creating(Creating { mount: mount.to_owned(), path: path.to_owned() });
    let announced = attributes::put(host, parent, &attribute, &text_of(names, &creating));
    let made = host.mkdir(parent, child);
    if announced.as_ref().is_err_and(attributes::is_unavailable) {
        return made;
    }
    let is_marked = match &made {
        Ok(dir) => {
            let target = Target { mount: mount.to_owned(), path: path.to_owned(), inode: dir.inode };
            let record = Record::Created(Created(target));
            let text = text_of(names, &record);
            home(&record).is_some_and(|(_, name)| attributes::put(host, *dir, &name, &text).is_ok())
        }
        Err(_) => true,
    };
    // A group that could not be marked keeps its announcement.
    if announced.is_ok() && is_marked {
        let _ = host.set_attribute(parent, &attribute, None);
    }
    made
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn parent(host: &mut dyn Host, mount: &str, path: &str) -> Result<Dir, HostError> {
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    host.open(&below(Path::new(mount), above))
}

/// Whether one of `owners` has announced in the parent group that it creates this group (see [`make`]).
///
/// # Errors
/// Returns an error when the announcement cannot be read.
pub(crate) fn is_announced(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    (mount, path): (&str, &str),
) -> Result<bool, HostError> {
    let parent = parent(host, mount, path)?;
    let mark = read(host, parent, &announcement(last(path)));
    host.close(parent);
    let is_it = |record: &Record| matches!(record, Record::Creating(Creating { path: of, .. }) if last(of) == last(path));
    Ok(mark?.is_some_and(|mark| is_of(&mark, owners) && is_it(&mark.record)))
}

/// Removes the announcement of a group, unless the group exists and has no mark of its own.
pub(crate) fn clear_announcement(
    host: &mut dyn Host,
    owners: &BTreeSet<String>,
    (mount, path): (&str, &str),
) {
    let Ok(parent) = parent(host, mount, path) else { return };
    let attribute = announcement(last(path));
    let is_announced = match read(host, parent, &attribute) {
        Ok(mark) => mark.is_some_and(|mark| is_of(&mark, owners)),
        Err(error) => is_damaged(&error),
    };
    if is_announced {
        let is_needed = host.open_child(parent, last(path)).is_ok_and(|child| {
            let target = Target { mount: mount.to_owned(), path: path.to_owned(), inode: child.inode };
            let proof = proof(host, child, &Record::Created(Created(target)), owners);
            host.close(child);
            proof != Ok(Proof::Ours)
        });
        if !is_needed {
            let _ = host.set_attribute(parent, &attribute, None);
        }
    }
    host.close(parent);
}

/// Reads a mark. `EBADMSG` if it is damaged (see [`is_damaged`]).
fn read(host: &mut dyn Host, dir: Dir, attribute: &str) -> Result<Option<Mark>, HostError> {
    let Some(text) = host.attribute(dir, attribute)? else { return Ok(None) };
    let object = format!("the record in the cgroup's attribute {attribute} (`setfattr -x` removes it)");
    let damaged = || HostError { operation: DECODE, object, value: None, errno: Errno::EBADMSG };
    Mark::decode(&text).map(Some).ok_or_else(damaged)
}

/// The operation in the error about a damaged mark.
const DECODE: &str = "decode";

/// Whether the error means that there is a mark, and that it is damaged.
pub(crate) fn is_damaged(error: &HostError) -> bool {
    error.operation == DECODE
}

/// An attribute whose name is that of a mark, and that cannot be read, or whose text is not a record that commensal can
/// have put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damaged {
    group: Target,
    attribute: String,
    /// The kernel's error when the attribute was read.
    unread: Option<Errno>,
}

impl Damaged {
    /// Says what is damaged and what a person can do.
    pub(crate) fn describe(&self) -> String {
        describe_damaged((&self.group, &self.attribute), self.unread)
    }

    /// Whether the attribute is still there. If the group was replaced by a fresh one, that has a copy.
    pub(crate) fn remains(&self, host: &mut dyn Host) -> bool {
        let dir = match host.open(&self.group.place()) {
            Ok(dir) => dir,
            Err(error) => return !is_gone(&error),
        };
        let text = host.attribute(dir, &self.attribute);
        host.close(dir);
        !matches!(text, Ok(None))
    }
}

fn describe_damaged((group, attribute): (&Target, &str), unread: Option<Errno>) -> String {
    let shown = group.shown();
    let attribute = text::visible(attribute);
    let what = match unread {
        Some(errno) => format!("a record that cannot be read ({attribute}: {errno})"),
        None => format!("a damaged record ({attribute})"),
    };
    format!(
        "{shown} has {what}, so what commensal changed there may remain: check the settings of this cgroup, then remove the \
         record with `setfattr -x {attribute} {}`",
        text::shell(&shown)
    )
}

/// The same message as that of [`Damaged`], about the mark of this record.
pub(crate) fn describe_damaged_mark(record: &Record) -> Option<String> {
    home(record).map(|(group, attribute)| describe_damaged((group, &attribute), None))
}

/// Whether an attribute of this name is a mark. The others are the master's (see `master`), and those with which commensal
/// tries whether attributes can be set.
fn is_mark(attribute: &str) -> bool {
    const OTHERS: [&str; 3] = ["master", "tried", "try"];
    attribute.strip_prefix(PREFIX).is_some_and(|name| !OTHERS.contains(&name))
}

/// Reads the group's mark with the same subject as this record, no matter which instance set it.
///
/// # Errors
/// Returns an error when the mark cannot be read, so that it is unknown whether it exists, or is damaged.
pub(crate) fn of(host: &mut dyn Host, dir: Dir, record: &Record) -> Result<Option<Mark>, HostError> {
    match home(record) {
        Some((_, name)) => read(host, dir, &name),
        None => Ok(None),
    }
}

/// Whether the mark on a group confirms a record of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The record's mark, set by one of the expected owners.
    Ours,
    /// The record's mark, set by another instance; the value is that instance's state directory.
    Of(String),
    /// There is no mark, although groups can be marked on this machine. Only the journal says that commensal made the
    /// change, and a user who could write the journal may have forged the record.
    Missing,
    /// There is no mark, because groups cannot be marked on this machine or by this user. The journal is the only
    /// evidence.
    Unavailable,
}

/// Reads from the group's marks whether commensal made the change in the record. `owners` are the state directories
/// whose records are being undone.
///
/// # Errors
/// Returns an error when the mark cannot be read, so that it is unknown whether it exists.
pub(crate) fn proof(
    host: &mut dyn Host,
    dir: Dir,
    record: &Record,
    owners: &BTreeSet<String>,
) -> Result<Proof, HostError> {
    let Some((_, name)) = home(record) else { return Ok(Proof::Unavailable) };
    let (mut other, mut damaged) = (None, None);
    for name in slots(&name, record, owners) {
        match read(host, dir, &name) {
            Ok(Some(mark)) if is_of(&mark, owners) => return Ok(Proof::Ours),
            Ok(Some(mark)) => other = other.or(Some(mark.owner)),
            Ok(None) => {}
            Err(error) if attributes::is_unavailable(&error) || attributes::is_out_of_reach(&error) => {
                return Ok(Proof::Unavailable);
            }
            Err(error) if is_damaged(&error) => damaged = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = damaged {
        return Err(error);
    }
    if let Some(other) = other {
        return Ok(Proof::Of(other));
    }
    Ok(if attributes::can_be_put(host, dir)? { Proof::Missing } else { Proof::Unavailable })
}

/// Removes from `created` (the groups that `state_dir` created according to a journal) the groups without a mark of
/// `state_dir`. Groups with commensal's prefix in their path stay without a check, because no other program uses such
/// names.
pub(crate) fn keep_proven(
    host: &mut dyn Host,
    (state_dir, prefix): (&Path, &str),
    actual: &ActualState,
    created: &mut BTreeSet<CgroupRef>,
) {
    let owners: BTreeSet<String> = [state_dir.display().to_string()].into();
    let prefix = format!("/{prefix}-");
    created.retain(|place| {
        let hierarchy = actual.hierarchies.get(place.hierarchy);
        let Some(hierarchy) = hierarchy.filter(|_| !place.path.as_str().contains(&prefix)) else {
            return true;
        };
        let path = place.path.as_str().to_owned();
        let Ok(dir) = host.open(&below(Path::new(&hierarchy.mount), &path)) else { return true };
        let target = Target { mount: hierarchy.mount.clone(), path, inode: dir.inode };
        let proof = proof(host, dir, &Record::Created(Created(target)), &owners);
        host.close(dir);
        matches!(proof, Ok(Proof::Ours | Proof::Unavailable))
    });
}

/// All readable marks on this machine, with the current mount points and paths of their groups.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub found: Vec<Mark>,
    /// Marks that nobody can use or read.
    pub damaged: Vec<Damaged>,
    /// Errors that may have hidden further marks.
    pub unread: Vec<HostError>,
}

/// Reads the marks of all cgroups.
pub(crate) fn all(host: &mut dyn Host) -> Marks {
    let mut marks = Marks::default();
    let can_be_ours = can_be_ours(host);
    let mounted = hierarchies(host);
    if let Err(commensal_sensors::SensorError::Host(error)) = &mounted {
        marks.unread.push(error.clone());
    }
    for hierarchy in mounted.unwrap_or_default() {
        let root = host.open(Path::new(&hierarchy.mount));
        if let Some(root) = marks.noted(root) {
            below_group(host, (&hierarchy.mount, "/"), root, &can_be_ours, &mut marks);
            host.close(root);
        }
    }
    marks
}

impl Marks {
    /// Returns the result of a read. Records an error, unless the group no longer exists or this user may not read it.
    fn noted<T>(&mut self, read: Result<T, HostError>) -> Option<T> {
        let error = match read {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        if !is_gone(&error) && !matches!(error.errno, Errno::EACCES | Errno::EPERM) {
            self.unread.push(error);
        }
        None
    }
}

fn below_group(
    host: &mut dyn Host,
    (mount, path): (&str, &str),
    dir: Dir,
    can_be_ours: &dyn Fn(&Record) -> bool,
    marks: &mut Marks,
) {
    let target = Target { mount: mount.to_owned(), path: path.to_owned(), inode: dir.inode };
    let names = attributes::names(host, dir);
    for attribute in marks.noted(names).unwrap_or_default() {
        let (mark, unread) = match read(host, dir, &attribute) {
            Ok(None) => continue,
            Ok(mark) => (mark, None),
            Err(error) if is_gone(&error) => continue,
            Err(error) => (None, (!is_damaged(&error)).then_some(error.errno)),
        };
        // Root can also have set or copied an attribute that commensal has not: one with the wrong name, or with a record
        // that commensal never writes.
        let usable = mark.filter(|mark| is_name_of(&attribute, mark)).and_then(|mut mark| {
            place(&mut mark.record, &target);
            can_be_ours(&mark.record).then_some(mark)
        });
        match usable {
            Some(mark) => marks.found.push(mark),
            None if is_mark(&attribute) => {
                marks.damaged.push(Damaged { group: target.clone(), attribute, unread });
            }
            None => {}
        }
    }
    let children = host.children(dir);
    let children = marks.noted(children).unwrap_or_default();
    for name in &children {
        // While a group is replaced, the fresh group has copies of its marks. If the old group is removed already, the
        // fresh group will get its name.
        let to = recreate::replaced_name(name);
        if to.is_some_and(|to| children.iter().any(|one| one == to)) {
            continue;
        }
        let child = host.open_child(dir, name);
        if let Some(child) = marks.noted(child) {
            let path = format!("{}/{}", path.trim_end_matches('/'), to.unwrap_or(name));
            below_group(host, (mount, &path), child, can_be_ours, marks);
            host.close(child);
        }
    }
}

fn is_name_of(name: &str, mark: &Mark) -> bool {
    match (&mark.record, home(&mark.record)) {
        (Record::Creating(Creating { path, .. }), _) => name == announcement(last(path)),
        (Record::Enabling(_), Some((_, plain))) => name == plain || name == of_owner(&plain, &mark.owner),
        (_, Some((_, plain))) => name == plain,
        (_, None) => false,
    }
}

/// Replaces the record's group by `target`.
fn place(record: &mut Record, target: &Target) {
    match record {
        // The target is the parent of the group that is being created.
        Record::Creating(Creating { mount, path }) => {
            *path = format!("{}/{}", target.path.trim_end_matches('/'), last(path));
            mount.clone_from(&target.mount);
        }
        Record::Lifting(lifting) => lifting.group = target.clone(),
        other => {
            if let Some(group) = other.groups_mut().into_iter().next() {
                *group = target.clone();
            }
        }
    }
}
