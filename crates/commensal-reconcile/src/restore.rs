//! Restores every original value and every controller, and removes all of commensal's groups.
//!
//! Works from the journals alone, even if their writers are dead; a second run has nothing to do; a journal of an
//! earlier boot refers to groups that no longer exist.

mod lost;
mod moving;
mod outcome;
mod recreating;
mod shared;
mod target;
mod values;

use crate::drivers::apply::with_meaning;
use crate::drivers::{affinity, cookies, members, policy, scheduler};
use crate::journal::{self, Contents, Record, Target};
use crate::marks::{self, Mark};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Form, KnobId, TABLE, Version};
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use outcome::Left;
pub use outcome::Restored;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use target::open;
use values::{not_taken, put_back};

/// How long to wait for killed processes of a dead lab run to leave their group.
const PATIENCE: Duration = Duration::from_secs(5);

/// Used in messages about damaged lines.
const DAMAGED: &str = "cannot be used";

/// Restores from every journal in `dir`, except those of a lab run that is still running, and from the marks on cgroups
/// for lost journals of `dir`; with `of_all` also for lost state directories of others.
///
/// # Errors
/// When the state directory or a journal cannot be read.
pub fn restore(host: &mut dyn Host, dir: &Path, boot_id: &str, of_all: bool) -> Result<Restored, HostError> {
    sweep(host, dir);
    let marks = marks::all(host);
    let orphans = lost::orphans(host, dir, marks.found, of_all);
    let mut restored = restore_where(host, dir, boot_id, &orphans, |_| true)?;
    restored.failed.extend(marks.unread.iter().map(|error| format!("records on cgroups: {error}")));
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

/// Restores only what dead lab runs left behind: the first action of a new lab run.
///
/// # Errors
/// When the state directory or a journal cannot be read.
pub fn restore_stale(host: &mut dyn Host, dir: &Path, boot_id: &str) -> Result<Restored, HostError> {
    restore_where(host, dir, boot_id, &[], |name| name.starts_with(journal::LAB))
}

/// Restores from one journal: the end of a lab run, or of the last command of a group of `run`.
///
/// # Errors
/// When the journal cannot be read or rewritten.
pub fn restore_own(host: &mut dyn Host, dir: &Path, name: &str) -> Result<Restored, HostError> {
    let mut result = Restored::default();
    // The group that this process is in can be left only when the controllers above it are disabled: repeat as long as
    // something changed.
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        one_journal(host, dir, name, &[], &mut result)?;
        if result.left.is_empty() || result.done.len() == done {
            return Ok(result);
        }
    }
}

/// Completes operations in the journal `name` that were interrupted in this boot: the replacement of groups by fresh
/// ones. Restores nothing.
///
/// # Errors
/// When the journal cannot be read, or the kernel refuses; then nothing has changed, and it can be tried again.
pub fn finish(host: &mut dyn Host, dir: &Path, boot_id: &str, name: &str) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let text = host.state_read(&path)?.unwrap_or_default();
    let mut contents = journal::read(host, &text);
    // Groups of an earlier boot are gone: completing would create them again.
    if contents.owner().is_none_or(|owner| owner.boot_id != boot_id)
        || !contents.records.iter().any(|record| matches!(record, Record::Recreating(_)))
    {
        return Ok(());
    }
    let stuck = recreating::finish(host, &path, &mut contents, &mut Vec::new());
    stuck.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

fn restore_where(
    host: &mut dyn Host,
    dir: &Path,
    boot_id: &str,
    marks: &[Mark],
    wanted: impl Fn(&str) -> bool,
) -> Result<Restored, HostError> {
    let mut result = Restored::default();
    let marked: BTreeSet<&str> = marks.iter().map(|mark| mark.journal.as_str()).collect();
    let mut marks = marks;
    // A group of one journal can be kept busy by a group of another: repeat as long as something changed.
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        let mut names: BTreeSet<String> = journal::names(host, dir).into_iter().collect();
        names.extend(marked.iter().map(|name| (*name).to_owned()));
        for name in names.into_iter().filter(|name| wanted(name)) {
            // A journal that cannot be read or belongs to another process does not stop the others from being restored.
            if let Err(error) = eligible(host, dir, boot_id, &name, marks, &mut result) {
                let path = journal::path(dir, &name);
                result.failed.push(format!("{} was not carried out: {error}", path.display()));
            }
        }
        // The marks' records are in the journals now.
        marks = &[];
        if result.left.is_empty() || result.done.len() == done {
            return Ok(result);
        }
    }
}

/// Restores from one journal, unless it is of an earlier boot or of a lab run that is still running.
fn eligible(
    host: &mut dyn Host,
    dir: &Path,
    boot_id: &str,
    name: &str,
    marks: &[Mark],
    result: &mut Restored,
) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let contents = journal::parse(&host.state_read(&path)?.unwrap_or_default());
    if let Some(owner) = contents.owner() {
        if owner.boot_id != boot_id {
            return host.state_remove(&path);
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
    one_journal(host, dir, name, marks, result)
}

/// Restores from one journal. Only a lab's groups contain nothing but the lab's processes, so only those are emptied by
/// killing.
fn one_journal(
    host: &mut dyn Host,
    dir: &Path,
    name: &str,
    marks: &[Mark],
    result: &mut Restored,
) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let text = host.state_read(&path)?.unwrap_or_default();
    let contents = journal::read(host, &text);
    for (line, reason) in &contents.damaged {
        result.failed.push(format!("{} line {line} {DAMAGED}: {reason}", path.display()));
    }
    let mut contents = contents;
    // Records that the journal has lost are on the groups' marks.
    let known: BTreeSet<_> = contents.records.iter().filter_map(marks::home).collect();
    let of_name = marks.iter().filter(|mark| mark.journal == name).map(|mark| &mark.record);
    let lost = of_name.filter(|record| marks::home(record).is_some_and(|home| !known.contains(&home)));
    let lost: Vec<Record> = lost.cloned().collect();
    contents.records.extend(lost);
    // A switch serves all groups started by `run`, so it is restored with the last of them.
    let mut waiting: Vec<Record> = match name == journal::RUN && in_use(host, &contents) {
        true => {
            contents.records.extract_if(.., |record| matches!(record, Record::Switching { .. })).collect()
        }
        false => Vec::new(),
    };
    // Threads return to the kernel's scheduler before any mechanism that holds them back is removed.
    let ordered: Vec<Record> =
        contents.records.extract_if(.., |record| matches!(record, Record::Ordering { .. })).collect();
    let busy = |host: &mut dyn Host, record: &Record| name == journal::RUN && is_busy(host, record);
    let (stay, go): (Vec<Record>, Vec<Record>) = ordered.into_iter().partition(|one| busy(host, one));
    waiting.extend(stay);
    waiting.extend(unorder(host, dir, go, result));
    let mut kept = undo_all(host, &path, &contents, name.starts_with(journal::LAB), result);
    kept.extend(waiting);
    keep(host, &path, &contents, &kept, &text, result)
}

/// Whether a recorded group contains processes other than this one.
fn in_use(host: &mut dyn Host, contents: &Contents) -> bool {
    contents.records.iter().any(|record| {
        let Record::Created(target) = record else { return false };
        let Ok(dir) = host.open(&below(Path::new(&target.mount), &target.path)) else { return false };
        let used = dir.inode == target.inode && members::others(host, dir);
        host.close(dir);
        used
    })
}

/// Whether the group in an order contains processes other than this one: then a command of `run` is still in it.
fn is_busy(host: &mut dyn Host, record: &Record) -> bool {
    let Some(Ok(dir)) = record.ordered().map(|cgroup| host.open(Path::new(&cgroup))) else { return false };
    let used = members::others(host, dir);
    host.close(dir);
    used
}

/// Removes orders from the scheduler, one request for each owner; returns the records that remain.
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

/// Rewrites the journal with the records that remain. Damaged lines are saved in a file beside it, for a person to
/// read; they must not block the next apply.
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
            // Restored records must not be restored a second time, and unreadable lines must not be lost.
            Err(error) => {
                result.failed.push(format!("the lines that {DAMAGED} stay in {}: {error}", path.display()));
                unreadable = lines;
            }
        }
    }
    marks::clear(host, path.parent().unwrap_or(Path::new("/")), journal::without(&contents.records, kept));
    let owner = contents.owner().map(|owner| Record::Owner(owner.clone()));
    if kept.is_empty() && unreadable.is_empty() {
        return host.state_remove(path);
    }
    let lines: String = owner.iter().chain(kept).map(journal::line).collect();
    host.state_replace(path, &(lines + &unreadable))
}

/// Values first, then processes, then commensal's groups, then controllers, which the groups may use; each from the
/// last to the first.
fn rank(record: &Record) -> u8 {
    match record {
        // Turning a switch clears the knobs that it governs; their original values can be written after that.
        Record::Owner(_) | Record::Switching { .. } => 0,
        // Undone already, or obsolete with the original.
        Record::Ordering { .. } | Record::Safe { .. } => 0,
        // All threads first, then those whose original policy is not the normal one.
        Record::Scheduling => 0,
        Record::Original { .. } | Record::Cookied(_) | Record::Recreating(_) => 1,
        // A thread's affinity is limited by its cpuset, so it is restored afterwards.
        Record::Moving { .. } | Record::Moved { .. } | Record::Affinity { .. } | Record::Policy { .. } => 2,
        Record::Creating { .. } | Record::Created(_) => 3,
        Record::Enabling { .. } => 4,
    }
}

/// Undoes the records in the order of [`rank`]; returns those that remain, in the order of the journal.
fn undo_all(
    host: &mut dyn Host,
    journal: &Path,
    contents: &Contents,
    kill: bool,
    result: &mut Restored,
) -> Vec<Record> {
    let contents = &mut contents.clone();
    let stuck = recreating::finish(host, journal, contents, &mut result.done);
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
    let mut job = Job { journal, kill, stuck, created, known, idle };
    let mut order: Vec<usize> = (0..contents.records.len()).rev().collect();
    order.sort_by_key(|index| rank(&contents.records[*index]));
    let originals = order.iter().take_while(|index| rank(&contents.records[**index]) <= 1).count();
    let (values, rest) = order.split_at(originals);
    let mut waiting = values.to_vec();
    let mut kept = BTreeSet::new();
    let first = result.failed.len();
    // Originals of several plans can block each other (a weight while the group is still idle, a child wider than its
    // parent): as long as some were restored, the others are retried.
    while !waiting.is_empty() {
        let before = result.failed.len();
        let failed = pass(host, contents, &waiting, &mut job, result, &mut kept);
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
    kept.extend(moving::back(host, contents, result));
    pass(host, contents, rest, &mut job, result, &mut kept);
    if !waiting.is_empty() {
        // A child group that was in the way is gone now, or it was the group itself: after a crash between its creation
        // and the record of its inode the next process took it for one that commensal did not create.
        result.failed.drain(first..second);
        let again: BTreeSet<usize> = waiting.iter().copied().collect();
        kept.retain(|index| !again.contains(index));
        pass(host, contents, &waiting, &mut job, result, &mut kept);
    }
    result.failed.extend(job.stuck.into_iter().map(|(_, error)| error));
    // Their current form: a group that was replaced meanwhile has another inode.
    kept.into_iter().map(|index| contents.records[index].clone()).collect()
}

/// Facts about all records of a journal.
struct Job<'a> {
    journal: &'a Path,
    kill: bool,
    /// Half-replaced groups, and why they stay so: groups at or below their paths cannot be found now.
    stuck: Vec<(Target, String)>,
    /// Mount and path of every group whose inode is recorded.
    created: BTreeSet<(String, String)>,
    /// Paths of all recorded groups.
    known: BTreeSet<String>,
    /// Groups for which it is recorded whether they were idle.
    idle: BTreeSet<Target>,
}

impl Job<'_> {
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

/// Paths of all recorded groups.
fn known_paths(contents: &Contents) -> BTreeSet<String> {
    let path = |record: &Record| match record {
        Record::Created(target) | Record::Cookied(target) => Some(target.path.clone()),
        Record::Original { group, .. } => Some(group.path.clone()),
        _ => None,
    };
    contents.records.iter().filter_map(path).filter(|path| path != "/").collect()
}

/// Whether the path is one of these or below one.
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

/// Undoes these records; returns those that failed. Records that remain are in `kept`.
fn pass(
    host: &mut dyn Host,
    contents: &mut Contents,
    order: &[usize],
    job: &mut Job<'_>,
    result: &mut Restored,
    kept: &mut BTreeSet<usize>,
) -> Vec<usize> {
    let mut failed = Vec::new();
    job.stuck.retain_mut(|(target, why)| match recreating::again(host, job.journal, contents, target) {
        Ok(line) => {
            result.done.push(line);
            false
        }
        Err(error) => {
            *why = error.to_string();
            true
        }
    });
    for index in order.iter().copied() {
        let record = &contents.records[index].clone();
        if job.is_stuck(record) {
            kept.insert(index);
            failed.push(index);
            continue;
        }
        let kill = job.kill;
        let undone = match record {
            // Processes and orders were restored before (see `moving` and `unorder`).
            Record::Ordering { .. }
            | Record::Owner(_)
            | Record::Safe { .. }
            | Record::Recreating(_)
            | Record::Moving { .. }
            | Record::Moved { .. } => Ok(None),
            Record::Switching { switch, value } => {
                shared::switch_back(host, switch, value, &|path| is_within(path, &job.known))
            }
            Record::Cookied(target) => take_cookies(host, target),
            Record::Affinity { tid, start_ticks, cpus } => {
                affinity::put_back(host, (*tid, *start_ticks), cpus).map_err(Left::Failed)
            }
            Record::Scheduling => policy::all_back(host).map_err(Left::Failed),
            Record::Policy { tid, start_ticks, policy } => {
                policy::put_back(host, (*tid, *start_ticks), *policy).map_err(Left::Failed)
            }
            Record::Creating { mount, path } => {
                // The inode was never recorded: either a `Created` follows, or the crash came in between.
                let known = job.created.contains(&(mount.clone(), path.clone()));
                // Without an inode it may be another program's group: it is removed if empty, but never emptied by
                // killing.
                if known { Ok(None) } else { remove(host, mount, path, None, false) }
            }
            Record::Created(target) => remove(host, &target.mount, &target.path, Some(target.inode), kill),
            Record::Enabling { group, controller } => disable(host, group, controller),
            Record::Original { .. } => original(host, job, contents, record, &mut result.done),
        };
        match undone {
            Ok(Some(line)) => result.done.push(line),
            Ok(None) => {}
            // Another program has begun to use a controller that a lab run enabled: it stays enabled.
            Err(Left::Busy(line)) if kill && matches!(record, Record::Enabling { .. }) => {
                result.done.push(line)
            }
            Err(Left::Busy(line)) => {
                result.left.push(line);
                kept.insert(index);
            }
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
                        job.stuck.push((group.clone(), words));
                    }
                    _ => result.failed.push(words),
                }
            }
        }
    }
    failed
}

/// Restores one value, unless other groups share it and still use it.
fn original(
    host: &mut dyn Host,
    job: &Job<'_>,
    contents: &mut Contents,
    record: &Record,
    done: &mut Vec<String>,
) -> Result<Option<String>, Left> {
    let journal = job.journal;
    let Record::Original { group, knob, file, device, value } = record else { return Ok(None) };
    match KnobId::from_name(knob) {
        Some(KnobId::IoCostQos) => {
            let ours = |path: &str| is_within(path, &job.known);
            if let Some(user) = shared::user(host, KnobId::IoWeight, &ours) {
                return Err(Left::Busy(format!(
                    "{file} stays as it is: group {user} has a weight of its own"
                )));
            }
        }
        Some(KnobId::CpuBvtWarpNs) => {
            if let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? {
                let ours = |path: &str| job.known.contains(path);
                let written = shared::copies_back(host, group, dir, file, value, &ours);
                host.close(dir);
                done.extend(written.map_err(Left::Failed)?);
            }
        }
        _ => {}
    }
    if let Some(other) = lost::kept_by_another(host, journal, group, record) {
        let file = text::path(&below(Path::new(&group.mount), &group.path).join(file));
        return Ok(Some(format!("{file} is for the commensal whose state is in {other} to put back")));
    }
    // After a refusal half way, an earlier attempt has left a fresh group with the members in it, and no old one.
    if recreating::is_half_done(host, group, knob) {
        return recreating::restore_by_recreating(host, journal, contents, group, file, value);
    }
    match put_back(host, group, knob, file, device.as_deref(), value) {
        Err(Left::Failed(error)) if knob == "cpu.qos_level" && error.errno == Errno::EINVAL => {
            recreating::restore_by_recreating(host, journal, contents, group, file, value)
        }
        Err(Left::Failed(error))
            if *knob == KnobId::CpuWeight.to_string()
                && error.errno == Errno::EINVAL
                && !job.idle.contains(group)
                && end_idle(host, group, done)? =>
        {
            put_back(host, group, knob, file, device.as_deref(), value)
        }
        back => back,
    }
}

/// A weight cannot be written to an idle group (EINVAL), and no readable record says that the group was idle before:
/// that record is damaged or torn. A weight other than the default is recorded only while it can be written, so the
/// group was not idle then; it became so afterwards, by commensal unless its owner has begun to use `cpu.idle` since,
/// and only the weight is known to be the owner's. Returns whether the group is no longer idle.
fn end_idle(host: &mut dyn Host, group: &Target, done: &mut Vec<String>) -> Result<bool, Left> {
    let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? else { return Ok(false) };
    let idle = KnobId::CpuIdle.row().v2.map_or("", |file| file.name);
    let is_idle = host.read(dir, idle).is_ok_and(|text| text.trim() == "1");
    let written = if is_idle { host.write(dir, idle, "0").map(|()| true) } else { Ok(false) };
    host.close(dir);
    let ended = written.map_err(Left::Failed)?;
    if ended {
        let shown = below(Path::new(&group.mount), &group.path).join(idle).display().to_string();
        done.push(format!("{shown} is 0 again: what it was cannot be read"));
    }
    Ok(ended)
}

fn take_cookies(host: &mut dyn Host, target: &Target) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, &target.mount, &target.path, Some(target.inode))? else { return Ok(None) };
    let taken = cookies::take(host, dir);
    // Those of a group or a kernel that is there are answered with the same numbers as those of one that is not.
    let gone = matches!(&taken, Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT))
        && !cookies::any(host, dir);
    host.close(dir);
    let shown = text::path(&below(Path::new(&target.mount), &target.path));
    match taken {
        Ok(()) => Ok(Some(format!("threads of {shown} have no core-scheduling cookie any more"))),
        Err(_) if gone => Ok(None),
        Err(error) => Err(Left::Failed(error)),
    }
}

fn remove(
    host: &mut dyn Host,
    mount: &str,
    path: &str,
    inode: Option<u64>,
    kill: bool,
) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, mount, path, inode)? else { return Ok(None) };
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut inside = members::pids(host, dir).unwrap_or_default();
    let own = std::process::id();
    // Only from the group that `aside` moved it to: a commensal that was started inside a group stays there.
    if inside.contains(&own) && name.ends_with(crate::drivers::aside::ENDING) {
        // This process had moved itself into it (see `aside`), and moves back.
        let back = host.open(&below(Path::new(mount), above)).and_then(|parent| {
            let back = host.write(parent, "cgroup.procs", &own.to_string());
            host.close(parent);
            back
        });
        if let Err(error) = back {
            host.close(dir);
            let shown = text::path(&below(Path::new(mount), path));
            return Err(Left::Busy(format!("{shown} was left: this process sits in it ({error})")));
        }
        inside.retain(|pid| *pid != own);
    }
    // A command that is left running must not stay frozen; and frozen tasks of cgroup v1 do not die before they are
    // thawed.
    if !inside.is_empty() {
        members::thaw(host, dir);
    }
    let ended = if kill && !inside.is_empty() { members::kill_all(host, dir, PATIENCE) } else { Ok(()) };
    let parent = ended.and_then(|()| host.open(&below(Path::new(mount), above)));
    let removed = parent.and_then(|parent| {
        let removed = host.rmdir(parent, name, dir.inode);
        host.close(parent);
        removed
    });
    let has_children = !host.children(dir).unwrap_or_default().is_empty();
    host.close(dir);
    let shown = text::path(&below(Path::new(mount), path));
    match removed {
        Ok(()) => Ok(Some(format!("removed {shown}"))),
        Err(error) if error.errno == Errno::ENOENT => match open(host, mount, path, Some(dir.inode))? {
            Some(dir) => {
                host.close(dir);
                Err(Left::Failed(error))
            }
            None => Ok(None),
        },
        Err(error) if error.errno == Errno::EBUSY => {
            let because = match inside.len() {
                0 if has_children => "it has groups below it".to_owned(),
                0 => error.to_string(),
                count => format!("it has {count} running processes"),
            };
            Err(Left::Busy(format!("{shown} was left: {because}")))
        }
        Err(error) => Err(Left::Failed(error)),
    }
}

fn disable(host: &mut dyn Host, group: &Target, controller: &str) -> Result<Option<String>, Left> {
    let Some(dir) = open(host, &group.mount, &group.path, Some(group.inode))? else { return Ok(None) };
    let enabled = host.read(dir, "cgroup.subtree_control").unwrap_or_default();
    if enabled.split_whitespace().all(|name| name != controller) {
        host.close(dir);
        return Ok(None);
    }
    let shown = text::path(&below(Path::new(&group.mount), &group.path));
    let written = match user_of(host, dir, controller) {
        None => {
            let off = format!("-{controller}");
            host.write(dir, "cgroup.subtree_control", &off).and_then(|()| {
                let enabled = host.read(dir, "cgroup.subtree_control")?;
                match enabled.split_whitespace().any(|name| name == controller) {
                    true => Err(not_taken(format!("{shown}/cgroup.subtree_control"), &off)),
                    false => Ok(None),
                }
            })
        }
        Some(user) => Ok(Some(user)),
    };
    host.close(dir);
    match written {
        Ok(None) => Ok(Some(format!("disabled {controller} in {shown}"))),
        Ok(Some(user)) => {
            Err(Left::Busy(format!("{controller} stays enabled in {shown}: group {user} uses it")))
        }
        Err(error) if error.errno == Errno::EBUSY && error.operation == "write" => Err(Left::Busy(format!(
            "{controller} stays enabled in {shown}: a group below enables it as well ({error})"
        ))),
        Err(error) => Err(Left::Failed(error)),
    }
}

/// A child group with a value of this controller that was set since the controller was enabled: disabling would lose
/// it.
fn user_of(host: &mut dyn Host, dir: Dir, controller: &str) -> Option<String> {
    let controller = Controller::from_name(controller, Version::V2)?;
    let files: Vec<_> =
        TABLE.iter().filter(|row| row.controller == controller).filter_map(|row| row.v2).collect();
    for name in host.children(dir).unwrap_or_default() {
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let changed = files.iter().any(|file| {
            let text = host.read(child, file.name).unwrap_or_default();
            let text = text.trim();
            let default = if file.per_device() { "" } else { file.default };
            !matches!(file.form, Form::Trigger | Form::Opaque) && !text.is_empty() && text != default
        });
        host.close(child);
        if changed {
            return Some(name);
        }
    }
    None
}
