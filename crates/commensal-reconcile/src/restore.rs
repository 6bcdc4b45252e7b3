//! Restores every original value, disables every controller that commensal enabled, and removes all of commensal's
//! groups.
//!
//! Needs only the journals and the marks (copies of journal records on the cgroups), so it works even if the processes
//! that wrote them are dead. Idempotent: a second run has nothing to do. Removes a journal of an earlier boot, because
//! its groups no longer exist.
//!
//! Level means `cpu.qos_level` of openEuler's kernel, which cannot be raised again. Undoing a level therefore replaces
//! the group by a fresh one. Lifted members are processes that were moved temporarily out of a group below level 0.

pub(crate) mod lost;
mod outcome;
pub(crate) mod proof;
mod remains;
pub(crate) mod shared;
pub(crate) mod target;
mod undo;

use crate::drivers::apply::with_meaning;
use crate::drivers::members;
use crate::hand;
use crate::journal::{self, Contents, Created, Record, Recreating};
use crate::marks::{self, Mark};
use crate::runner::repeat;
use crate::steps::{Rank, empty, movement, order, recreate};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::KnobId;
use commensal_host::{Host, HostError};
use commensal_sensors::mounts;
pub use outcome::Restored;
pub(crate) use outcome::{Left, Undone, not_taken};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
pub(crate) use undo::{Inside, Undo};

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
    let owners = [dir.display().to_string()].into();
    // This process can leave its group only after the controllers of the parent are disabled.
    as_long_as_it_helps(|result| one_journal(host, dir, name, (&[], &owners), (false, result)))
}

/// Repeats a pass over journals as long as it changes something and something is left.
fn as_long_as_it_helps(
    mut pass: impl FnMut(&mut Restored) -> Result<(), HostError>,
) -> Result<Restored, HostError> {
    let mut result = Restored::default();
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        pass(&mut result)?;
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
    let lowered = finish_and_drop(host, &path, &mut contents, &owners, is_lifting);
    let mut denied = Ok(BTreeSet::new());
    if contents.records.iter().any(is_recreating) {
        let unfinished = recreate::finish(host, &path, &mut contents, &owners, &mut Vec::new());
        if unfinished.dropped {
            journal::store(host, &path, &contents)?;
        }
        denied = unfinished.stuck.into_iter().next().map_or(Ok(unfinished.denied), |(_, error)| Err(error));
    }
    let given = finish_and_drop(host, &path, &mut contents, &owners, is_member);
    denied.and_then(|denied| lowered.and(given).map(|()| denied))
}

fn is_lifting(record: &Record) -> bool {
    matches!(record, Record::Lifting(_))
}

fn is_recreating(record: &Record) -> bool {
    matches!(record, Record::Recreating(_))
}

fn is_member(record: &Record) -> bool {
    matches!(record, Record::Member(_))
}

/// Completes what a killed process has left half done, for the records of one kind.
fn finish_each(host: &mut dyn Host, contents: &Contents, picks: fn(&Record) -> bool) -> Vec<(usize, Undone)> {
    let hierarchies = hierarchies(host, contents);
    let picked = contents.records.iter().enumerate().filter(|(_, record)| picks(record));
    picked.map(|(index, record)| (index, record.kind().finish(host, &hierarchies))).collect()
}

/// Completes what a killed process has left half done, for the records of one kind, and drops the records that are over.
/// While a group is replaced only in part, the records of threads stay, because completing that needs them.
fn finish_and_drop(
    host: &mut dyn Host,
    path: &Path,
    contents: &mut Contents,
    owners: &BTreeSet<String>,
    picks: fn(&Record) -> bool,
) -> Result<(), HostError> {
    let in_part = contents.records.iter().any(is_recreating);
    let (mut over, mut failed) = (BTreeSet::new(), Ok(()));
    for (index, finished) in finish_each(host, contents, picks) {
        match finished {
            Ok(_) => drop(over.insert(index)),
            Err(Left::Failed(error)) => failed = Err(error),
            Err(Left::Busy(_) | Left::Denied(_) | Left::Waits) => {}
        }
    }
    over.retain(|index| !in_part || !is_member(&contents.records[*index]));
    if over.is_empty() {
        return failed;
    }
    let before = std::mem::take(&mut contents.records);
    let kept = before.iter().enumerate().filter(|(index, _)| !over.contains(index));
    contents.records = kept.map(|(_, record)| record.clone()).collect();
    marks::clear(host, (owners, None), journal::without(&before, &contents.records));
    journal::store(host, path, contents)?;
    failed
}

/// Returns the mounted hierarchies, if the journal has scheduling attributes of threads.
fn hierarchies(host: &mut dyn Host, contents: &Contents) -> Vec<Hierarchy> {
    match contents.records.iter().any(is_member) {
        true => mounts::hierarchies(host).unwrap_or_default(),
        false => Vec::new(),
    }
}

/// The marks of lost journals, whose changes are to be undone, and the state directories whose marks prove a record.
type Evidence<'a> = (&'a [Mark], &'a BTreeSet<String>);

fn restore_where(
    host: &mut dyn Host,
    (dir, boot_id): (&Path, &str),
    (marks, owners): Evidence<'_>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Restored, HostError> {
    let marked: BTreeSet<&str> = marks.iter().map(|mark| mark.journal.as_str()).collect();
    let mut marks = marks;
    // A group in one journal can be in use by a group in another journal.
    as_long_as_it_helps(|result| {
        let mut names: BTreeSet<String> = journal::names(host, dir).into_iter().collect();
        names.extend(marked.iter().map(|name| (*name).to_owned()));
        for name in names.into_iter().filter(|name| wanted(name)) {
            // An unreadable journal, or one of another process, does not stop the others from being restored.
            if let Err(error) = eligible(host, (dir, boot_id), &name, (marks, owners), result) {
                let path = journal::path(dir, &name);
                result.failed.push(format!("{} was not carried out: {error}", path.display()));
            }
        }
        // The records of the marks are in the journals now, so the marks are not used again.
        marks = &[];
        Ok(())
    })
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
        true => contents.records.extract_if(.., |record| matches!(record, Record::Switching(_))).collect(),
        false => Vec::new(),
    };
    // Threads return to the kernel's scheduler before a mechanism that restricts them is removed.
    waiting.extend(order::remove(host, (dir, name), &mut contents, result));
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
        let Record::Created(Created(target)) = record else { return false };
        let Ok(Some(dir)) = hand::open(host, target) else { return false };
        let used = members::others(host, dir);
        host.close(dir);
        used
    })
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

/// Undoes the records in the order of [`Rank`]; returns the records that remain, in the journal's order and with the
/// current inodes of groups that were replaced.
fn undo_all(
    host: &mut dyn Host,
    journal: &Path,
    contents: &mut Contents,
    (owners, inside, raise): (&BTreeSet<String>, Inside, bool),
    result: &mut Restored,
) -> Vec<Record> {
    // Lifted members are moved back first, so that they are in their groups when the groups are replaced.
    let mut kept = BTreeSet::new();
    for (index, finished) in finish_each(host, contents, is_lifting) {
        if let (Record::Lifting(lifted), Err(Left::Failed(error))) = (&contents.records[index], finished) {
            result.failed.push(format!("lifted members of {} cannot be moved back: {error}", lifted.shown()));
            kept.insert(index);
        }
    }
    // Once a group has level 0 again, nothing shows that a level above 0 has made its members SCHED_OTHER. So their
    // attributes are restored before any group is replaced, as far as possible; refused threads are tried again later.
    result.done.extend(finish_each(host, contents, is_member).into_iter().filter_map(|(_, line)| line.ok()?));
    let hierarchies = hierarchies(host, contents);
    let recreate::Unfinished { stuck, denied, .. } =
        recreate::finish(host, journal, contents, owners, &mut result.done);
    let stuck = stuck.into_iter().map(|(target, error)| (target, error.to_string())).collect();
    let undo = &mut Undo::new((journal, contents), owners, inside, result);
    (undo.stuck, undo.denied, undo.hierarchies) = (stuck, denied, hierarchies);
    let rank = |undo: &Undo<'_>, index: usize| undo.contents.records[index].kind().facts().rank;
    let mut order = distinct(&undo.contents.records);
    order.reverse();
    order.sort_by_key(|index| rank(undo, *index));
    let values = order.iter().take_while(|index| rank(undo, **index) <= Rank::Values).count();
    let rest = order.split_off(values);
    // Originals of several plans can block each other, such as a child's CPU set that is larger than its parent's.
    let mut refused = repeat(order, |order| pass(host, order, undo, &mut kept));
    kept.extend(movement::back(host, undo));
    if raise {
        recreate::raise(host, undo);
    }
    empty(host, owners, &undo.contents.records, inside == Inside::Ends);
    let later = pass(host, rest, undo, &mut kept);
    let again_failed: BTreeSet<usize> = later.iter().map(|(index, _)| *index).collect();
    if !refused.is_empty() {
        // Retries the values, for two reasons. A child group that blocked them may be removed now. Or the group itself
        // is removed now: commensal crashed after it had created the group and before it recorded the inode, and the
        // next process recorded originals for the group as for another program's.
        refused = pass(host, refused.into_iter().map(|(index, _)| index).collect(), undo, &mut kept);
    }
    for (index, why) in later.into_iter().chain(refused) {
        kept.insert(index);
        undo.result.failed.extend(why);
    }
    // Completing the replacement of a group needs the records of its threads.
    if !undo.stuck.is_empty() {
        kept.extend(
            (0..undo.contents.records.len()).filter(|index| is_member(&undo.contents.records[*index])),
        );
    }
    for (target, error) in std::mem::take(&mut undo.stuck) {
        undo.result.failed.push(error);
        // If the group was being raised to level 0, no other record says that it is half replaced.
        let record = Record::Recreating(Recreating(target));
        if !undo.contents.records.contains(&record) {
            kept.insert(undo.contents.records.len());
            undo.contents.records.push(record);
        }
    }
    undo.result.failed.extend(std::mem::take(&mut undo.denied));
    undo.result.left.extend(undo.remains.describe(host));
    // If only records of threads remain, the threads are below level 0 in groups that belong to other programs again.
    if kept.iter().all(|index| is_member(&undo.contents.records[*index])) {
        kept.retain(|index| again_failed.contains(index));
    }
    // Returns the current records: a group that was replaced meanwhile has another inode.
    kept.into_iter().map(|index| undo.contents.records[index].clone()).collect()
}

/// Returns the indices of the records without repetitions, so that equal records are undone only once: the first one
/// counts.
fn distinct(records: &[Record]) -> Vec<usize> {
    let mut seen = HashSet::with_capacity(records.len());
    (0..records.len()).filter(|index| seen.insert(&records[*index])).collect()
}

/// Undoes these records once. Returns those that the kernel refused, each with the reason, unless that is the reason why a
/// group is half replaced (see [`Undo::stuck`]). Adds the other records that remain to `kept`.
fn pass(
    host: &mut dyn Host,
    order: Vec<usize>,
    undo: &mut Undo<'_>,
    kept: &mut BTreeSet<usize>,
) -> Vec<(usize, Option<String>)> {
    let mut refused = Vec::new();
    for (target, _) in std::mem::take(&mut undo.stuck) {
        match recreate::again(host, undo.journal, undo.contents, undo.owners, &target) {
            Ok(line) => undo.result.done.push(line),
            Err(Left::Failed(error)) => undo.stuck.push((target, error.to_string())),
            Err(Left::Busy(line) | Left::Denied(line)) => drop(undo.denied.insert(line)),
            Err(Left::Waits) => {}
        }
    }
    for index in order {
        let record = &undo.contents.records[index].clone();
        if undo.is_stuck(record) {
            refused.push((index, None));
            continue;
        }
        match record.kind().undo(host, undo) {
            Ok(line) => undo.result.done.extend(line),
            Err(Left::Failed(error)) => {
                let setting = if let Record::Original(setting) = record { Some(setting) } else { None };
                let mut why =
                    Some(with_meaning(&error, setting.and_then(|one| KnobId::from_name(&one.knob))));
                if let Some(half_done) = setting.filter(|one| recreate::is_half_done(host, one)) {
                    undo.stuck.extend(why.take().map(|why| (half_done.group.clone(), why)));
                }
                refused.push((index, why));
            }
            Err(left) => {
                left.note(undo.result, &mut undo.denied);
                kept.insert(index);
            }
        }
    }
    refused
}
