//! Restores every original value, disables every controller that commensal enabled, and removes all of commensal's
//! groups.
//!
//! Needs only the journals and the marks (copies of journal records on the cgroups), so it works even if the processes
//! that wrote them are dead. Idempotent: a second run has nothing to do. Removes a journal of an earlier boot, because
//! its groups no longer exist.
//!
//! Level means `cpu.qos_level` of openEuler's kernel, which cannot be raised again. Undoing a level therefore replaces
//! the group by a fresh one. Lifted members are processes that were moved temporarily out of a group below level 0.

mod lost;
mod lowering;
mod members;
mod moving;
mod outcome;
mod proof;
mod raising;
mod recreating;
mod remains;
mod shared;
mod structure;
mod target;
mod values;

use crate::drivers::apply::with_meaning;
use crate::drivers::{affinity, members as processes, policy, scheduler};
use crate::journal::{self, Contents, Record, Target};
use crate::marks::{self, Mark};
use commensal_core::actual::Hierarchy;
use commensal_core::errno::Errno;
use commensal_core::knob::KnobId;
use commensal_core::text;
use commensal_host::{Host, HostError, below};
use outcome::Left;
pub use outcome::Restored;
use remains::Remains;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use structure::Inside;
use target::open;
use values::put_back;

/// Part of the messages about damaged lines, by which this module recognises them.
const DAMAGED: &str = "cannot be used";

/// Restores from every journal in `dir`, except those of a lab run that is still running, and from the marks on cgroups
/// if a journal of `dir` was lost. With `of_all`, also from the marks of other lost state directories.
///
/// # Errors
/// Returns an error when the state directory or a journal cannot be read.
pub fn restore(host: &mut dyn Host, dir: &Path, boot_id: &str, of_all: bool) -> Result<Restored, HostError> {
    sweep(host, dir);
    let marks = marks::all(host);
    let orphans = lost::orphans(host, dir, marks.found, of_all);
    let owners = orphans.iter().map(|mark| mark.owner.clone()).chain([dir.display().to_string()]).collect();
    let mut restored = restore_where(host, (dir, boot_id), (orphans.as_slice(), &owners), |_| true)?;
    restored.failed.extend(marks.unread.iter().map(|error| format!("records on cgroups: {error}")));
    // A damaged copy of a record that was undone from the journal is gone now.
    for damaged in marks.damaged.iter().filter(|damaged| damaged.remains(host)) {
        let line = damaged.describe();
        if !restored.left.contains(&line) && !restored.failed.contains(&line) {
            restored.left.push(line);
        }
    }
    Ok(restored)
}

/// Removes temporary files (`.NAME.PID.new`) of processes that were killed before the rename.
fn sweep(host: &mut dyn Host, dir: &Path) {
    for name in host.list(dir).unwrap_or_default() {
        let aside = name.strip_prefix('.').and_then(|name| name.strip_suffix(".new"));
        let pid = aside.and_then(|name| name.rsplit_once('.')?.1.parse::<u32>().ok());
        if pid.is_some_and(|pid| host.process(pid).is_err()) {
            let _ = host.state_remove(&dir.join(name));
        }
    }
}

/// Restores only the changes that killed lab runs left behind; a new lab run does this first.
///
/// # Errors
/// Returns an error when the state directory or a journal cannot be read.
pub fn restore_stale(host: &mut dyn Host, dir: &Path, boot_id: &str) -> Result<Restored, HostError> {
    let owners = [dir.display().to_string()].into();
    restore_where(host, (dir, boot_id), (&[], &owners), |name| name.starts_with(journal::LAB))
}

/// Restores from one journal: that of a lab run that has ended, or that of `run` after the last command of a group.
///
/// # Errors
/// Returns an error when the journal cannot be read or rewritten.
pub fn restore_own(host: &mut dyn Host, dir: &Path, name: &str) -> Result<Restored, HostError> {
    let mut result = Restored::default();
    let owners = [dir.display().to_string()].into();
    // This process can leave its group only after the controllers of the parent are disabled, so the restore is
    // repeated as long as it changes something.
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        one_journal(host, dir, name, (&[], &owners), (false, &mut result))?;
        if result.left.is_empty() || result.done.len() == done {
            return Ok(result);
        }
    }
}

/// Completes operations in the journal `name` that were interrupted in this boot: moves lifted members back, completes
/// the replacement of groups by fresh ones, and restores the scheduling attributes of threads that are no longer below
/// level 0. Restores nothing else. Returns messages about operations for which only the journal, and no mark, is
/// evidence.
///
/// # Errors
/// Returns an error when the journal cannot be read, or the kernel refuses. Nothing has changed in this case, and the
/// caller can try again.
pub fn finish(
    host: &mut dyn Host,
    dir: &Path,
    boot_id: &str,
    name: &str,
) -> Result<BTreeSet<String>, HostError> {
    let path = journal::path(dir, name);
    let text = journal::load(host, &path)?.unwrap_or_default();
    let mut contents = journal::read(host, &text);
    // Groups of an earlier boot no longer exist; completing the replacement would create them again.
    if contents.owner().is_none_or(|owner| owner.boot_id != boot_id) {
        return Ok(BTreeSet::new());
    }
    let owners = [dir.display().to_string()].into();
    let lowered = lowering::finish(host, &path, &mut contents, &owners);
    let mut denied = Ok(BTreeSet::new());
    if contents.records.iter().any(|record| matches!(record, Record::Recreating(_))) {
        let unfinished = recreating::finish(host, &path, &mut contents, &owners, &mut Vec::new());
        // The damaged lines have to be saved before the journal is rewritten.
        if unfinished.dropped && contents.damaged.is_empty() {
            let text: String = contents.records.iter().map(journal::line).collect();
            host.state_replace(&path, &text)?;
        }
        denied = unfinished.stuck.into_iter().next().map_or(Ok(unfinished.denied), |(_, error)| Err(error));
    }
    let given = members::finish(host, &path, &contents);
    denied.and_then(|denied| lowered.and(given).map(|()| denied))
}

/// The marks of lost journals, whose changes are to be undone, and the state directories whose marks prove a record.
type Evidence<'a> = (&'a [Mark], &'a BTreeSet<String>);

fn restore_where(
    host: &mut dyn Host,
    (dir, boot_id): (&Path, &str),
    (marks, owners): Evidence<'_>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Restored, HostError> {
    let mut result = Restored::default();
    let marked: BTreeSet<&str> = marks.iter().map(|mark| mark.journal.as_str()).collect();
    let mut marks = marks;
    // A group in one journal can be in use by a group in another journal, so this is repeated as long as it changes
    // something.
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        let mut names: BTreeSet<String> = journal::names(host, dir).into_iter().collect();
        names.extend(marked.iter().map(|name| (*name).to_owned()));
        for name in names.into_iter().filter(|name| wanted(name)) {
            // An unreadable journal, or one of another process, does not stop the others from being restored.
            if let Err(error) = eligible(host, (dir, boot_id), &name, (marks, owners), &mut result) {
                let path = journal::path(dir, &name);
                result.failed.push(format!("{} was not carried out: {error}", path.display()));
            }
        }
        // The records of the marks are in the journals now, so the marks are not used again.
        marks = &[];
        if result.left.is_empty() || result.done.len() == done {
            return Ok(result);
        }
    }
}

/// Restores from one journal, unless it is from an earlier boot (then it is removed), or of a lab run or scheduler that
/// is still running.
fn eligible(
    host: &mut dyn Host,
    (dir, boot_id): (&Path, &str),
    name: &str,
    evidence: Evidence<'_>,
    result: &mut Restored,
) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let text = journal::load(host, &path).inspect_err(|_| without_journal(host, dir, name, evidence, result));
    let contents = journal::parse(&text?.unwrap_or_default());
    if let Some(owner) = contents.owner() {
        if owner.boot_id != boot_id {
            let removed = host.state_remove(&path);
            // Marks are always of this boot, even if the journal is of an earlier one.
            match removed {
                Ok(()) => return one_journal(host, dir, name, evidence, (true, result)),
                Err(_) => without_journal(host, dir, name, evidence, result),
            }
            return removed;
        }
        if name == journal::SCHED && owner.runs(host) {
            result.scheduler = Some(owner.pid);
            return Ok(());
        }
        if name.starts_with(journal::LAB) && owner.runs(host) {
            result.left.push(format!("{}: its owner, process {}, is running", path.display(), owner.pid));
            return Ok(());
        }
    }
    one_journal(host, dir, name, evidence, (true, result))
}

/// Restores from one journal. Kills processes only in and below a lab's groups, because the lab started all processes
/// there.
/// `ends` means that no commensal process manages the groups afterwards; groups that stay are then raised to level 0.
fn one_journal(
    host: &mut dyn Host,
    dir: &Path,
    name: &str,
    (marks, owners): Evidence<'_>,
    (ends, result): (bool, &mut Restored),
) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let text = journal::load(host, &path)?.unwrap_or_default();
    let mut contents = journal::read(host, &text);
    for (line, reason) in &contents.damaged {
        result.failed.push(format!("{} line {line} {DAMAGED}: {reason}", path.display()));
    }
    // Adds the records that only the marks on the groups have.
    let known: BTreeSet<_> = contents.records.iter().filter_map(marks::home).collect();
    let of_name = marks.iter().filter(|mark| mark.journal == name).map(|mark| &mark.record);
    let lost = of_name.filter(|record| match marks::home(record) {
        Some(home) => !known.contains(&home),
        None => !contents.records.contains(record),
    });
    let lost: Vec<Record> = lost.cloned().collect();
    contents.records.extend(lost);
    // All groups of `run` share a machine-wide switch, so it is restored with the last of them.
    let mut waiting: Vec<Record> = match name == journal::RUN && in_use(host, &contents) {
        true => {
            contents.records.extract_if(.., |record| matches!(record, Record::Switching { .. })).collect()
        }
        false => Vec::new(),
    };
    // Removes orders (the scheduler's configuration of a cgroup) first: threads return to the kernel's scheduler before
    // a mechanism that restricts them is removed.
    let ordered: Vec<Record> =
        contents.records.extract_if(.., |record| matches!(record, Record::Ordering { .. })).collect();
    let busy = |host: &mut dyn Host, record: &Record| name == journal::RUN && is_busy(host, record);
    let (stay, go): (Vec<Record>, Vec<Record>) = ordered.into_iter().partition(|one| busy(host, one));
    waiting.extend(stay);
    waiting.extend(unorder(host, dir, go, result));
    let inside = match name {
        journal::RUN => Inside::Goes,
        name if name.starts_with(journal::LAB) => Inside::Ends,
        _ => Inside::Stays,
    };
    let raise = ends && inside != Inside::Ends;
    let mut kept = undo_all(host, &path, &mut contents, (owners, inside, raise), result);
    kept.extend(waiting);
    marks::clear(host, (owners, None), journal::without(&contents.records, &kept));
    keep(host, &path, &contents, &kept, &text, result)
}

/// Undoes the changes in the marks on cgroups, for a journal that cannot be read.
fn without_journal(
    host: &mut dyn Host,
    dir: &Path,
    name: &str,
    (marks, owners): Evidence<'_>,
    result: &mut Restored,
) {
    let pid = name.strip_prefix(journal::LAB).and_then(|pid| pid.parse().ok());
    if pid.is_some_and(|pid| host.process(pid).is_ok()) {
        return;
    }
    let of_name = marks.iter().filter(|mark| mark.journal == name).map(|mark| mark.record.clone());
    let mut contents = Contents { records: of_name.collect(), ..Contents::default() };
    let kept =
        undo_all(host, &journal::path(dir, name), &mut contents, (owners, Inside::Stays, true), result);
    marks::clear(host, (owners, None), journal::without(&contents.records, &kept));
}

/// Whether a recorded group contains processes other than this one.
fn in_use(host: &mut dyn Host, contents: &Contents) -> bool {
    contents.records.iter().any(|record| {
        let Record::Created(target) = record else { return false };
        let Ok(dir) = host.open(&below(Path::new(&target.mount), &target.path)) else { return false };
        let used = dir.inode == target.inode && processes::others(host, dir);
        host.close(dir);
        used
    })
}

/// Whether the cgroup of an order contains processes other than this one. If so, a command of `run` is still in it.
fn is_busy(host: &mut dyn Host, record: &Record) -> bool {
    let Some(Ok(dir)) = record.ordered().map(|cgroup| host.open(Path::new(&cgroup))) else { return false };
    let used = processes::others(host, dir);
    host.close(dir);
    used
}

/// Removes orders from the scheduler, with one request per owner; returns the records of those that could not be
/// removed.
fn unorder(host: &mut dyn Host, dir: &Path, records: Vec<Record>, result: &mut Restored) -> Vec<Record> {
    let mut by_owner: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for record in &records {
        if let (Record::Ordering { owner, .. }, Some(cgroup)) = (record, record.ordered()) {
            by_owner.entry(owner).or_default().insert(cgroup);
        }
    }
    let mut failed = BTreeSet::new();
    for (owner, cgroups) in &by_owner {
        match scheduler::forget(host, dir, owner, cgroups) {
            Ok(0) => {}
            Ok(1) => result.done.push("the scheduler has no orders for 1 group any more".to_owned()),
            Ok(gone) => result.done.push(format!("the scheduler has no orders for {gone} groups any more")),
            Err(error) => {
                result.failed.push(error.to_string());
                failed.insert((*owner).to_owned());
            }
        }
    }
    let stands = |record: &Record| matches!(record, Record::Ordering { owner, .. } if failed.contains(owner));
    records.into_iter().filter(stands).collect()
}

/// Rewrites the journal with the records that remain. Damaged lines move to a separate file for inspection, because
/// they must not block the next apply.
fn keep(
    host: &mut dyn Host,
    path: &Path,
    contents: &Contents,
    kept: &[Record],
    text: &str,
    result: &mut Restored,
) -> Result<(), HostError> {
    let mut unreadable = String::new();
    if !contents.damaged.is_empty() {
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let lines: String =
            contents.damaged.iter().filter_map(|(number, _)| all.get(number - 1).copied()).collect();
        let aside = path.with_extension("damaged");
        match host.state_append(&aside, &lines) {
            Ok(()) => {
                result.failed.push(format!("the lines that {DAMAGED} are kept in {}", aside.display()));
            }
            // Keeps the unreadable lines in the journal, so that they are not lost; restored records are dropped
            // anyway, so that they are not restored twice.
            Err(error) => {
                result.failed.push(format!("the lines that {DAMAGED} stay in {}: {error}", path.display()));
                unreadable = lines;
            }
        }
    }
    let owner = contents.owner().map(|owner| Record::Owner(owner.clone()));
    if kept.is_empty() && unreadable.is_empty() {
        return host.state_remove(path);
    }
    let lines: String = owner.iter().chain(kept).map(journal::line).collect();
    host.state_replace(path, &(lines + &unreadable))
}

/// Returns the rank of a record in the order of undoing: values first, then processes, then commensal's groups, then
/// the controllers that these groups may use. Within a rank, the last record is undone first.
fn rank(record: &Record) -> u8 {
    match record {
        // Turning a switch clears the knobs that it governs, so their original values are written after it.
        Record::Owner(_) | Record::Switching { .. } => 0,
        // Orders are removed already, and lifted members are moved back. Safe values are obsolete once the original is
        // restored.
        Record::Ordering { .. } | Record::Safe { .. } | Record::Lifting { .. } => 0,
        // This record gives all threads the normal policy first; threads with another original policy get that policy
        // later.
        Record::Scheduling => 0,
        Record::Original { .. } | Record::Cookied(_) | Record::Recreating(_) => 1,
        // A thread's affinity is limited by its cpuset, so it is restored after the values.
        Record::Moving { .. } | Record::Moved { .. } | Record::Affinity { .. } | Record::Policy { .. } => 2,
        // A thread keeps SCHED_IDLE as long as it is in a group below level 0.
        Record::Member { .. } => 2,
        Record::Creating { .. } | Record::Created(_) => 3,
        Record::Enabling { .. } => 4,
    }
}

/// Undoes the records in the order of [`rank`]; returns the records that remain, in the journal's order and with the
/// current inodes of groups that were replaced.
fn undo_all(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    (owners, inside, raise): (&BTreeSet<String>, Inside, bool),
    result: &mut Restored,
) -> Vec<Record> {
    // Lifted members are moved back first, so that they are in their groups when the groups are replaced.
    let mut kept = lowering::all(host, contents, result);
    let hierarchies = members::hierarchies(host, contents);
    members::give_first(host, &hierarchies, contents, &mut result.done);
    let recreating::Unfinished { stuck, denied, .. } =
        recreating::finish(host, journal, contents, owners, &mut result.done);
    let stuck = stuck.into_iter().map(|(target, error)| (target, error.to_string())).collect();
    let created = contents.records.iter().filter_map(|record| match record {
        Record::Created(target) => Some((target.mount.clone(), target.path.clone())),
        _ => None,
    });
    let idle = contents.records.iter().filter_map(|record| match record {
        Record::Original { group, knob, .. } if *knob == KnobId::CpuIdle.to_string() => Some(group.clone()),
        _ => None,
    });
    let (created, idle, known) = (created.collect(), idle.collect(), known_paths(contents));
    let remains = Remains::default();
    let mut facts =
        UndoFacts { journal, owners, inside, stuck, denied, created, known, idle, hierarchies, remains };
    let mut order = distinct(&contents.records);
    order.reverse();
    order.sort_by_key(|index| rank(&contents.records[*index]));
    let originals = order.iter().take_while(|index| rank(&contents.records[**index]) <= 1).count();
    let (values, rest) = order.split_at(originals);
    let mut waiting = values.to_vec();
    let first = result.failed.len();
    // Originals of several plans can block each other (a weight while the group is still idle, a child's CPU set larger
    // than its parent's), so failed records are retried as long as others succeed.
    while !waiting.is_empty() {
        let before = result.failed.len();
        let failed = pass(host, contents, &waiting, &mut facts, result, &mut kept);
        let stays = failed.len() == waiting.len();
        waiting = failed;
        if stays || waiting.is_empty() {
            break;
        }
        result.failed.truncate(before);
        let again: BTreeSet<usize> = waiting.iter().copied().collect();
        kept.retain(|index| !again.contains(index));
    }
    let second = result.failed.len();
    kept.extend(moving::back(host, contents, (owners, &mut facts.denied), result));
    if raise {
        facts.stuck.extend(raising::raise(host, journal, contents, owners, result));
    }
    structure::empty(host, owners, &contents.records, inside == Inside::Ends);
    let again_failed: BTreeSet<usize> =
        pass(host, contents, rest, &mut facts, result, &mut kept).into_iter().collect();
    if !waiting.is_empty() {
        // Retries the values, for two reasons. A child group that blocked them may be removed now. Or the group itself
        // is removed now: commensal crashed after it had created the group and before it recorded the inode, and the
        // next process recorded originals for the group as for another program's.
        result.failed.drain(first..second);
        let again: BTreeSet<usize> = waiting.iter().copied().collect();
        kept.retain(|index| !again.contains(index));
        pass(host, contents, &waiting, &mut facts, result, &mut kept);
    }
    // Completing the replacement of a group needs the records of its threads.
    if !facts.stuck.is_empty() {
        kept.extend(
            (0..contents.records.len()).filter(|index| members::is_member(&contents.records[*index])),
        );
    }
    for (target, error) in facts.stuck {
        result.failed.push(error);
        // If the group was being raised to level 0, no other record says that it is half replaced.
        let record = Record::Recreating(target);
        if !contents.records.contains(&record) {
            kept.insert(contents.records.len());
            contents.records.push(record);
        }
    }
    result.failed.extend(facts.denied);
    result.left.extend(facts.remains.describe(host));
    // If only records of threads remain, the threads are below level 0 in groups that belong to other programs again.
    if kept.iter().all(|index| members::is_member(&contents.records[*index])) {
        kept.retain(|index| again_failed.contains(index));
    }
    // Returns the current records: a group that was replaced meanwhile has another inode.
    kept.into_iter().map(|index| contents.records[index].clone()).collect()
}

/// Returns the indices of the records without repetitions, so that equal records are undone only once: the first one
/// counts.
fn distinct(records: &[Record]) -> Vec<usize> {
    let mut seen = HashSet::with_capacity(records.len());
    (0..records.len()).filter(|index| seen.insert(&records[*index])).collect()
}

/// Facts about all records of a journal that undoing needs.
struct UndoFacts<'a> {
    journal: &'a Path,
    /// The state directories whose marks prove a record.
    owners: &'a BTreeSet<String>,
    inside: Inside,
    /// Half-replaced groups, and why they could not be completed. Groups at or below their paths cannot be found now.
    stuck: Vec<(Target, String)>,
    /// Messages about records without a mark, for which only the journal is evidence (see `proof`).
    denied: BTreeSet<String>,
    /// Mount and path of every group whose inode is recorded.
    created: BTreeSet<(String, String)>,
    /// Paths of all recorded groups.
    known: BTreeSet<String>,
    /// Groups whose original `cpu.idle` is recorded.
    idle: BTreeSet<Target>,
    /// The mounted hierarchies, if the journal has scheduling attributes of threads.
    hierarchies: Vec<Hierarchy>,
    /// Groups that could not be removed because they are in use.
    remains: Remains,
}

impl UndoFacts<'_> {
    fn is_stuck(&self, record: &Record) -> bool {
        let target = match record {
            Record::Recreating(_) => return true,
            Record::Created(target) | Record::Cookied(target) => target,
            Record::Enabling { group, .. } | Record::Original { group, .. } => group,
            Record::Owner(_)
            | Record::Creating { .. }
            | Record::Ordering { .. }
            | Record::Switching { .. }
            | Record::Affinity { .. }
            | Record::Scheduling
            | Record::Policy { .. }
            | Record::Member { .. }
            | Record::Lifting { .. }
            | Record::Safe { .. }
            | Record::Moving { .. }
            | Record::Moved { .. } => return false,
        };
        self.stuck.iter().any(|(stuck, _)| {
            let inside = target
                .path
                .strip_prefix(&stuck.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            stuck.mount == target.mount && inside
        })
    }
}

/// Returns the paths of all recorded groups, without the root.
fn known_paths(contents: &Contents) -> BTreeSet<String> {
    let path = |record: &Record| match record {
        Record::Created(target) | Record::Cookied(target) => Some(target.path.clone()),
        Record::Original { group, .. } => Some(group.path.clone()),
        _ => None,
    };
    contents.records.iter().filter_map(path).filter(|path| path != "/").collect()
}

/// Whether the path is one of `known` or below one of them.
fn is_within(path: &str, known: &BTreeSet<String>) -> bool {
    let mut above = Some(path);
    while let Some(at) = above.filter(|at| !at.is_empty()) {
        if known.contains(at) {
            return true;
        }
        above = at.rsplit_once('/').map(|(above, _)| above);
    }
    false
}

/// Undoes these records once; returns those that failed. Adds the records that remain to `kept`.
fn pass(
    host: &mut dyn Host,
    contents: &mut Contents,
    order: &[usize],
    facts: &mut UndoFacts<'_>,
    result: &mut Restored,
    kept: &mut BTreeSet<usize>,
) -> Vec<usize> {
    let mut failed = Vec::new();
    let (journal, owners, denied) = (facts.journal, facts.owners, &mut facts.denied);
    facts.stuck.retain_mut(|(target, why)| {
        match recreating::again(host, journal, contents, owners, target) {
            Ok(line) => {
                result.done.push(line);
                false
            }
            Err(Left::Failed(error)) => {
                *why = error.to_string();
                true
            }
            Err(Left::Busy(line) | Left::Denied(line)) => {
                denied.insert(line);
                false
            }
            Err(Left::Waits) => false,
        }
    });
    for index in order.iter().copied() {
        let record = &contents.records[index].clone();
        if facts.is_stuck(record) {
            kept.insert(index);
            failed.push(index);
            continue;
        }
        match undo(host, contents, record, facts, &mut result.done) {
            Ok(Some(line)) => result.done.push(line),
            Ok(None) => {}
            // Another program has begun to use a controller that a lab run enabled: it stays enabled.
            Err(Left::Busy(line))
                if facts.inside == Inside::Ends && matches!(record, Record::Enabling { .. }) =>
            {
                result.done.push(line)
            }
            Err(Left::Busy(line)) => {
                result.left.push(line);
                kept.insert(index);
            }
            Err(Left::Denied(line)) => {
                facts.denied.insert(line);
                kept.insert(index);
            }
            Err(Left::Waits) => drop(kept.insert(index)),
            Err(Left::Failed(error)) => {
                failed.push(index);
                kept.insert(index);
                let knob = match record {
                    Record::Original { knob, .. } => KnobId::from_name(knob),
                    _ => None,
                };
                let words = with_meaning(&error, knob);
                match record {
                    Record::Original { group, knob, .. } if recreating::is_half_done(host, group, knob) => {
                        facts.stuck.push((group.clone(), words));
                    }
                    _ => result.failed.push(words),
                }
            }
        }
    }
    failed
}

/// Undoes one record. Returns a description of the change, or `None` if there was nothing to do.
fn undo(
    host: &mut dyn Host,
    contents: &mut Contents,
    record: &Record,
    facts: &mut UndoFacts<'_>,
    done: &mut Vec<String>,
) -> Result<Option<String>, Left> {
    let owners = facts.owners;
    match record {
        // Processes and orders are restored by other modules (see `lowering`, `moving` and `unorder`).
        Record::Ordering { .. }
        | Record::Lifting { .. }
        | Record::Owner(_)
        | Record::Safe { .. }
        | Record::Recreating(_)
        | Record::Moving { .. }
        | Record::Moved { .. } => Ok(None),
        Record::Switching { switch, value } => {
            shared::switch_back(host, switch, value, &|path| is_within(path, &facts.known))
        }
        Record::Cookied(target) => structure::take_cookies(host, owners, target),
        Record::Affinity { tid, start_ticks, cpus } => {
            affinity::put_back(host, (*tid, *start_ticks), cpus).map_err(Left::Failed)
        }
        Record::Scheduling => policy::all_back(host).map_err(Left::Failed),
        Record::Policy { tid, start_ticks, policy } => {
            policy::put_back(host, (*tid, *start_ticks), *policy).map_err(Left::Failed)
        }
        Record::Member { .. } => members::give(host, &facts.hierarchies, record),
        Record::Creating { mount, path } => {
            // If no `Created` record follows, commensal crashed before it recorded the inode.
            let known = facts.created.contains(&(mount.clone(), path.clone()));
            let place = (mount.as_str(), path.as_str());
            let undone = match known {
                true => Ok(None),
                false => structure::remove(host, owners, place, None, (Inside::Stays, &mut facts.remains)),
            };
            if undone.is_ok() {
                marks::clear_announcement(host, owners, place);
            }
            undone
        }
        Record::Created(target) => {
            let place = (target.mount.as_str(), target.path.as_str());
            let inside = (facts.inside, &mut facts.remains);
            structure::remove(host, owners, place, Some(target.inode), inside)
        }
        Record::Enabling { group, controller } => {
            match structure::disable(host, owners, group, controller) {
                // The line about the group below says why.
                Err(Left::Busy(_)) if facts.remains.is_any_in(group) => Err(Left::Waits),
                done => done,
            }
        }
        Record::Original { .. } => original(host, facts, contents, record, done),
    }
}

/// Restores one value, unless other groups still depend on the present value.
fn original(
    host: &mut dyn Host,
    facts: &UndoFacts<'_>,
    contents: &mut Contents,
    record: &Record,
    done: &mut Vec<String>,
) -> Result<Option<String>, Left> {
    let (journal, owners) = (facts.journal, facts.owners);
    let Record::Original { group, knob, file, device, value } = record else { return Ok(None) };
    let recreated = (group, file.as_str(), value.as_str());
    match KnobId::from_name(knob) {
        Some(KnobId::IoCostQos) => {
            let ours = |path: &str| is_within(path, &facts.known);
            if let Some(user) = shared::user(host, KnobId::IoWeight, &ours) {
                return Err(Left::Busy(format!(
                    "{file} stays as it is: {user} has an io.weight that commensal did not set and that may depend on this file"
                )));
            }
        }
        Some(KnobId::CpuBvtWarpNs) => {
            if let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? {
                let ours = |path: &str| facts.known.contains(path);
                let written = shared::copies_back(host, group, dir, file, value, &ours);
                host.close(dir);
                done.extend(written.map_err(Left::Failed)?);
            }
        }
        _ => {}
    }
    if let Some(other) = lost::kept_by_another(host, journal, group, record) {
        let file = text::path(&below(Path::new(&group.mount), &group.path).join(file));
        return Ok(Some(format!(
            "{file} is left to the commensal whose state is in {other}, which restores it"
        )));
    }
    // An attempt that the kernel refused half way may have left the members in a fresh group, without the old group.
    if recreating::is_half_done(host, group, knob) {
        return recreating::restore_by_recreating(host, journal, contents, owners, recreated);
    }
    match put_back(host, group, knob, file, device.as_deref(), value) {
        Err(Left::Failed(error)) if knob == "cpu.qos_level" && error.errno == Errno::EINVAL => {
            match recreating::level_above(host, group) {
                // The group inherits its level from a group above that will be undone as well. This record is tried
                // again after that.
                Some(_) if has_level_above(contents, group) => Err(Left::Failed(error)),
                _ => recreating::restore_by_recreating(host, journal, contents, owners, recreated),
            }
        }
        Err(Left::Failed(error))
            if *knob == KnobId::CpuWeight.to_string()
                && error.errno == Errno::EINVAL
                && !facts.idle.contains(group)
                && end_idle(host, group, done)? =>
        {
            put_back(host, group, knob, file, device.as_deref(), value)
        }
        back => back,
    }
}

/// Whether the journal has the original level of a group above this one.
fn has_level_above(contents: &Contents, group: &Target) -> bool {
    contents.records.iter().any(|record| match record {
        Record::Original { group: above, knob, .. } if knob == "cpu.qos_level" => {
            let inside = group.path.strip_prefix(&above.path);
            above.mount == group.mount && inside.is_some_and(|rest| rest.starts_with('/'))
        }
        _ => false,
    })
}

/// Ends `cpu.idle` of a group whose weight cannot be restored because the group is idle (EINVAL), although no readable
/// record contains its original `cpu.idle` (that record is damaged or torn). The group was not idle when its weight was
/// recorded, because commensal records a weight other than the default only while it can be written. The group became
/// idle later, by commensal unless the group's owner uses `cpu.idle` since. The recorded weight is certainly the
/// owner's, so it takes precedence. Returns whether the group was idle and no longer is.
fn end_idle(host: &mut dyn Host, group: &Target, done: &mut Vec<String>) -> Result<bool, Left> {
    let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? else { return Ok(false) };
    let idle = KnobId::CpuIdle.row().v2.map_or("", |file| file.name);
    let is_idle = host.read(dir, idle).is_ok_and(|text| text.trim() == "1");
    let written = if is_idle { host.write(dir, idle, "0").map(|()| true) } else { Ok(false) };
    host.close(dir);
    let ended = written.map_err(Left::Failed)?;
    if ended {
        let shown = below(Path::new(&group.mount), &group.path).join(idle).display().to_string();
        done.push(format!("{shown} is 0 again, because the record of its original value cannot be read"));
    }
    Ok(ended)
}
