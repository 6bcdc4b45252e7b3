//! Putting back: every original value, every controller, and none of our groups left.
//!
//! Works from the journals alone, with whoever wrote them dead; a second run finds nothing to do; a
//! journal of an earlier boot means groups that no longer exist.

mod lost;
mod moving;
mod recreating;
mod shared;
mod values;

use crate::drivers::apply::with_meaning;
use crate::drivers::{affinity, cookies, members, policy, scheduler};
use crate::journal::{self, Contents, Record, Target};
use crate::marks::{self, Mark};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Form, KnobId, TABLE, Version};
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::mounts::cgroup_mounts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use values::{not_taken, put_back};

/// How long to wait for killed processes of a dead lab run to leave their group.
const PATIENCE: Duration = Duration::from_secs(5);

/// In messages about damaged lines.
const DAMAGED: &str = "cannot be used";

/// What a restore did.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Values put back, controllers disabled and groups removed, one line each.
    pub done: Vec<String>,
    /// What was left as it is, with the reason: a group of ours with live processes, a running owner.
    pub left: Vec<String>,
    /// What failed, or could not be read.
    pub failed: Vec<String>,
    /// Process of a scheduler that is loaded: it keeps its record, by which it puts threads back when it goes.
    pub scheduler: Option<u32>,
}

impl Restored {
    /// Whether there was nothing to do at all.
    #[must_use]
    pub fn nothing(&self) -> bool {
        self.done.is_empty() && self.left.is_empty() && self.failed.is_empty()
    }
}

/// Restores from every journal in `dir`, except those of a lab run that is still running, and from what the cgroups tell of
/// journals of `dir` that are lost; with `of_all` of state directories that are lost as well.
///
/// # Errors
/// When the state directory or a journal cannot be read.
pub fn restore(host: &mut dyn Host, dir: &Path, boot_id: &str, of_all: bool) -> Result<Restored, HostError> {
    sweep(host, dir);
    let marks = marks::all(host);
    let marks = lost::orphans(host, dir, marks, of_all);
    restore_where(host, dir, boot_id, &marks, |_| true)
}

/// Removes files that somebody who was killed meanwhile had written half (`.NAME.PID.new`, before they take the name).
fn sweep(host: &mut dyn Host, dir: &Path) {
    for name in host.list(dir).unwrap_or_default() {
        let aside = name.strip_prefix('.').and_then(|name| name.strip_suffix(".new"));
        let pid = aside.and_then(|name| name.rsplit_once('.')?.1.parse::<u32>().ok());
        if pid.is_some_and(|pid| host.process(pid).is_err()) {
            let _ = host.state_remove(&dir.join(name));
        }
    }
}

/// Restores only what dead lab runs left behind: what a new lab run does first.
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
    // A group that we sit in ourselves can be left when the controllers above it are gone: as long as something moved, look
    // again.
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

/// Finishes what the journal `name` says was interrupted half way in this boot: the replacing of groups by fresh ones. Nothing
/// goes back.
///
/// # Errors
/// When the journal cannot be read, or the kernel refuses; then it is as before, and can be tried again.
pub fn finish(host: &mut dyn Host, dir: &Path, boot_id: &str, name: &str) -> Result<(), HostError> {
    let path = journal::path(dir, name);
    let text = host.state_read(&path)?.unwrap_or_default();
    let mut contents = journal::read(host, &text);
    // Groups of an earlier boot are gone: finishing would make them anew.
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
    // What one journal made can keep what another made busy: as long as something moved, look again.
    loop {
        let done = result.done.len();
        result.left.clear();
        result.failed.retain(|line| line.contains(DAMAGED));
        let mut names: BTreeSet<String> = journal::names(host, dir).into_iter().collect();
        names.extend(marked.iter().map(|name| (*name).to_owned()));
        for name in names.into_iter().filter(|name| wanted(name)) {
            // One that cannot be read or is somebody else's keeps none of the others from going back.
            if let Err(error) = eligible(host, dir, boot_id, &name, marks, &mut result) {
                let path = journal::path(dir, &name);
                result.failed.push(format!("{} was not carried out: {error}", path.display()));
            }
        }
        // What is to be undone of them is in the journals now.
        marks = &[];
        if result.left.is_empty() || result.done.len() == done {
            return Ok(result);
        }
    }
}

/// Undoes one journal, unless it is of an earlier boot or of a lab run that is still running.
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

/// Undoes one journal. Only a lab's groups hold nothing but the lab's own processes, so only they are
/// emptied by force.
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
    // What the journal has lost is on the groups.
    let known: BTreeSet<_> = contents.records.iter().filter_map(marks::home).collect();
    let of_name = marks.iter().filter(|mark| mark.journal == name).map(|mark| &mark.record);
    let lost = of_name.filter(|record| marks::home(record).is_some_and(|home| !known.contains(&home)));
    let lost: Vec<Record> = lost.cloned().collect();
    contents.records.extend(lost);
    // A switch is for everything that `run` started, so it goes back with the last of them.
    let mut waiting: Vec<Record> = match name == journal::RUN && in_use(host, &contents) {
        true => {
            contents.records.extract_if(.., |record| matches!(record, Record::Switching { .. })).collect()
        }
        false => Vec::new(),
    };
    // Threads are the kernel's own scheduler's before anything that holds them back is gone.
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

/// Whether a group on record has processes besides this one.
fn in_use(host: &mut dyn Host, contents: &Contents) -> bool {
    contents.records.iter().any(|record| {
        let Record::Created(target) = record else { return false };
        let Ok(dir) = host.open(&below(Path::new(&target.mount), &target.path)) else { return false };
        let used = dir.inode == target.inode && members::others(host, dir);
        host.close(dir);
        used
    })
}

/// Whether the group that the scheduler was told of has processes besides this one: a command of `run` is in it still.
fn is_busy(host: &mut dyn Host, record: &Record) -> bool {
    let Some(Ok(dir)) = record.ordered().map(|cgroup| host.open(Path::new(&cgroup))) else { return false };
    let used = members::others(host, dir);
    host.close(dir);
    used
}

/// Takes orders away from the scheduler, one request for each owner; gives the records that still stand.
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

/// Rewrites the journal with what is still to be undone. Damaged lines go to a file beside it, for a person to
/// look at; they must not stand in the way of the next apply.
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
            // What was done must not be done a second time, and what cannot be read must not be lost.
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

/// Values first, then processes, then our groups, then controllers, which the groups may use; each from the last to the first.
fn rank(record: &Record) -> u8 {
    match record {
        // Turning a switch clears what it governs; values that were there before can be written once more then.
        Record::Owner(_) | Record::Switching { .. } => 0,
        // Taken back before, or gone with the original.
        Record::Ordering { .. } | Record::Safe { .. } => 0,
        // All threads first, then those with a policy of their own.
        Record::Scheduling => 0,
        Record::Original { .. } | Record::Cookied(_) | Record::Recreating(_) => 1,
        // What a thread may use is cut to what its cpuset has.
        Record::Moving { .. } | Record::Moved { .. } | Record::Affinity { .. } | Record::Policy { .. } => 2,
        Record::Creating { .. } | Record::Created(_) => 3,
        Record::Enabling { .. } => 4,
    }
}

/// Undoes the records in the order of [`rank`]; returns those that still stand, in the order of the journal.
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
    // Originals of several plans can stand in each other's way (a weight while the group is still idle, a child
    // wider than its parent): as long as some went back, the others are tried again.
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
        // A group below that stood in the way is gone now, or the group itself: a crash between its making and the record of
        // its inode had the next one take it for somebody else's.
        result.failed.drain(first..second);
        let again: BTreeSet<usize> = waiting.iter().copied().collect();
        kept.retain(|index| !again.contains(index));
        pass(host, contents, &waiting, &mut job, result, &mut kept);
    }
    result.failed.extend(job.stuck.into_iter().map(|(_, error)| error));
    // As they are now: a group that was replaced meanwhile has another inode.
    kept.into_iter().map(|index| contents.records[index].clone()).collect()
}

/// What holds for all records of a journal.
struct Job<'a> {
    journal: &'a Path,
    kill: bool,
    /// Groups that are half replaced, and why they stay so: nothing of them or below them can be found now.
    stuck: Vec<(Target, String)>,
    /// Mount and path of every group whose inode is on record.
    created: BTreeSet<(String, String)>,
    /// Paths of every group on record.
    known: BTreeSet<String>,
    /// Groups of which it is on record whether they were idle.
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

/// Paths of every group on record.
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

/// Undoes these records; returns those that failed. What still stands is in `kept`.
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
            // Processes and orders went back before (see `moving` and `unorder`).
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
                // The inode was never learnt: either a `Created` follows, or the crash came between.
                let known = job.created.contains(&(mount.clone(), path.clone()));
                // Without an inode it may be somebody else's: removed if empty, never emptied by force.
                if known { Ok(None) } else { remove(host, mount, path, None, false) }
            }
            Record::Created(target) => remove(host, &target.mount, &target.path, Some(target.inode), kill),
            Record::Enabling { group, controller } => disable(host, group, controller),
            Record::Original { .. } => original(host, job, contents, record, &mut result.done),
        };
        match undone {
            Ok(Some(line)) => result.done.push(line),
            Ok(None) => {}
            // Somebody else has begun to use what a lab run enabled: it is theirs now.
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

/// Puts one value back, unless it is for others as well and they use it.
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
    // Refused half way, an earlier try has left a fresh group with the members in it, and no old one.
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

/// A weight is not written to an idle group (EINVAL), and nothing that can be read says that the group was idle before: that
/// record is damaged or cut off. A weight other than the default comes on record only while it can be written, so the group was
/// not idle then; it became so afterwards, by us unless its owner has begun to use `cpu.idle` since, and the weight is what is
/// known to be theirs. Gives whether the group is not idle any more.
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

enum Left {
    Busy(String),
    Failed(HostError),
}

/// Opens the very group that the journal means; `None` when it is gone.
fn open(host: &mut dyn Host, mount: &str, path: &str, inode: Option<u64>) -> Result<Option<Dir>, Left> {
    match host.open(&below(Path::new(mount), path)) {
        Ok(dir) if inode.is_none_or(|inode| inode == dir.inode) => Ok(Some(dir)),
        Ok(dir) => {
            host.close(dir);
            Ok(None)
        }
        Err(error)
            if matches!(
                error.errno,
                Errno::ENOENT | Errno::ENODEV | Errno::ENOTDIR | Errno::ELOOP | Errno::EINVAL
            ) && !mounted(host, mount) =>
        {
            let group = text::path(&below(Path::new(mount), path));
            Err(Left::Busy(format!(
                "{group} cannot be looked at: no cgroup hierarchy is mounted at {mount} here"
            )))
        }
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => Ok(None),
        Err(error) => Err(Left::Failed(error)),
    }
}

/// Whether a cgroup file system is mounted there: in a chroot or a container the host's may not be.
fn mounted(host: &dyn Host, mount: &str) -> bool {
    cgroup_mounts(host).is_ok_and(|all| all.iter().any(|one| one.mount == mount))
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
    // Only from where `aside` put it: a commensal that was started inside a group stays there.
    if inside.contains(&own) && name.ends_with(crate::drivers::aside::ENDING) {
        // This very process stepped aside into it (see `aside`), and goes back where it was.
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
    // A command that is left running is not left stopped; and frozen tasks of cgroup v1 do not die before they thaw.
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

/// A child group that somebody gave a value of this controller since it was enabled: it would lose it.
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
