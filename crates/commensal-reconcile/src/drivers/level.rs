//! Scheduling attributes of threads in groups whose level is not 0 (`cpu.qos_level` of openEuler's kernel): how the
//! kernel changes the attributes, and how this module restores them.
//!
//! ```text
//! level below 0 is written ─► every thread in and below the group is SCHED_IDLE      (core.c, tg_change_scheduler)
//! a thread enters, or is forked there ─► it is SCHED_IDLE                            (core.c, sched_change_qos_group)
//! it leaves, or the group is replaced ─► it stays SCHED_IDLE
//! level above 0 is written ─► every thread in and below the group is SCHED_OTHER (core.c, tg_change_scheduler; read)
//! ```
//! The journal has a record of each thread whose attributes were not the default ones, so that they can be restored; a
//! thread without a record gets the default ones. Newer kernels do not change real-time threads (5.10.0-160, by the
//! release notes): such threads are not `SCHED_IDLE` afterwards, and this module does not change them.

use crate::hand::is_gone;
use crate::journal::{Member, Record, Target};
use commensal_core::actual::Hierarchy;
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_IDLE, SCHED_NORMAL, Scheduling, Stat};
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::level::level;
use commensal_sensors::processes::places;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of threads with a record in one journal. Further threads get the default attributes.
pub(crate) const MOST: usize = 1_024;

/// A thread by TID and start time (clock ticks).
pub(crate) type Thread = (u32, u64);

/// The recorded attributes by thread.
pub(crate) type Kept = BTreeMap<Thread, Scheduling>;

/// Returns start time and policy of a thread, from the thread's own `stat`: the kernel computes the process's `stat`
/// from all threads. `None` if the thread has exited.
///
/// # Errors
/// Returns an error when the file cannot be read for another reason. Then it is unknown whether the thread still
/// exists.
fn look(host: &dyn Host, tid: u32) -> Result<Option<(u64, i32)>, HostError> {
    let text = match host.read_file(Path::new(&format!("/proc/{tid}/task/{tid}/stat"))) {
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        read => read?,
    };
    Ok(Stat::parse(&text).and_then(|stat| Some((stat.start_ticks()?, stat.policy()?))))
}

/// Whether a thread has exited for certain.
pub(crate) fn has_exited(host: &dyn Host, (tid, started): Thread) -> bool {
    look(host, tid).is_ok_and(|found| found.is_none_or(|(start_ticks, _)| start_ticks != started))
}

/// Returns the level of a group; `None` if the level is unknown, the kernel has no levels, or the group no longer
/// exists.
pub(crate) fn of(host: &mut dyn Host, group: Dir) -> Option<i64> {
    level(host, group).ok().flatten()
}

/// Returns the recorded attributes. If a thread has several records, the first one counts.
pub(crate) fn kept<'r>(records: impl IntoIterator<Item = &'r Record>) -> Kept {
    let mut kept = Kept::new();
    for record in records {
        if let Record::Member(member) = record {
            kept.entry(member.thread()).or_insert(member.scheduling);
        }
    }
    kept
}

/// Returns the TIDs of all threads in and below a group.
///
/// # Errors
/// Returns an error when a group cannot be read. Groups below it that no longer exist have no threads.
pub(crate) fn threads(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    threads_where(host, group, &|_, _| Ok(true))
}

/// Like [`threads`], without the groups below level 0, because the kernel has changed the attributes of their threads
/// already.
///
/// # Errors
/// Returns the same errors as [`threads`].
pub(crate) fn threads_at_0(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    threads_where(host, group, &|host, group| Ok(level(host, group)?.is_none_or(|level| level >= 0)))
}

fn threads_where(
    host: &mut dyn Host,
    group: Dir,
    counts: &dyn Fn(&mut dyn Host, Dir) -> Result<bool, HostError>,
) -> Result<Vec<u32>, HostError> {
    if !counts(host, group)? {
        return Ok(Vec::new());
    }
    let text = host.read(group, "tasks")?;
    let mut tids: Vec<u32> = text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect();
    for name in host.children(group)? {
        let below = host.open_child(group, &name).and_then(|child| {
            let below = threads_where(host, child, counts);
            host.close(child);
            below
        });
        match below {
            Ok(below) => tids.extend(below),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tids)
}

/// Returns records of these threads, whose attributes the kernel is about to replace. Also returns the number of
/// threads left out because the journal would have more than [`MOST`] such records. Threads in `kept` have a record
/// already and get no second one.
///
/// # Errors
/// Returns an error when a thread exists whose attributes cannot be read: without a record they would be lost.
pub(crate) fn records(
    host: &dyn Host,
    group: &Target,
    tids: impl IntoIterator<Item = u32>,
    kept: &mut Kept,
) -> Result<(Vec<Record>, usize), HostError> {
    let (mut records, mut left_out) = (Vec::new(), 0);
    for tid in tids {
        let Some((start_ticks, _)) = look(host, tid)? else { continue };
        let scheduling = match host.scheduling(tid) {
            Err(error) if error.errno == Errno::ESRCH => continue,
            read => read?,
        };
        let own = scheduling != Scheduling::default() && scheduling.is_possible();
        if !own || kept.contains_key(&(tid, start_ticks)) {
            continue;
        }
        if kept.len() >= MOST {
            left_out += 1;
            continue;
        }
        kept.insert((tid, start_ticks), scheduling);
        records.push(Record::Member(Member { group: group.clone(), tid, start_ticks, scheduling }));
    }
    Ok((records, left_out))
}

/// Gives the default attributes to the threads among `tids` that are `SCHED_IDLE` and have no record: the kernel made
/// them `SCHED_IDLE`.
///
/// # Errors
/// Returns the kernel's error, or `EBUSY` if a thread stays `SCHED_IDLE`.
pub(crate) fn make_normal(
    host: &mut dyn Host,
    tids: impl IntoIterator<Item = u32>,
    kept: &Kept,
) -> Result<(), HostError> {
    for thread in unrecorded(host, tids, kept)? {
        set(host, thread.0, &Scheduling::default())?;
    }
    Ok(())
}

/// Returns the threads among `tids` that are `SCHED_IDLE` and have no record.
///
/// # Errors
/// Returns an error when the policy of a thread that has not exited cannot be read.
pub(crate) fn unrecorded(
    host: &dyn Host,
    tids: impl IntoIterator<Item = u32>,
    kept: &Kept,
) -> Result<Vec<Thread>, HostError> {
    let mut threads = Vec::new();
    for tid in tids {
        if let Some((started, policy)) = look(host, tid)?
            && policy == SCHED_IDLE
            && !kept.contains_key(&(tid, started))
        {
            threads.push((tid, started));
        }
    }
    Ok(threads)
}

/// Makes threads `SCHED_IDLE` again if they are still in the group below level 0 that they were about to leave. An
/// error is ignored, because an agent tries again.
pub(crate) fn make_idle(host: &mut dyn Host, threads: &[Thread]) {
    for thread in threads.iter().filter(|thread| !has_exited(host, **thread)).collect::<Vec<_>>() {
        let _ = set_idle(host, thread.0);
    }
}

/// Makes a thread of a group below level 0 `SCHED_IDLE` again, after the thread has changed its policy. Returns `false`
/// if the thread has exited.
///
/// # Errors
/// Returns the kernel's error.
pub fn set_idle(host: &mut dyn Host, tid: u32) -> Result<bool, HostError> {
    set(host, tid, &Scheduling::of(SCHED_IDLE))
}

/// Result of restoring a recorded thread's attributes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The thread has its original attributes; the message says so.
    Back(String),
    /// The thread has exited, or it has other attributes by now: nothing is left to do.
    Settled,
    /// The thread is in a group below level 0, where it must be `SCHED_IDLE`.
    Below,
}

/// Restores the attributes of a recorded thread.
///
/// # Errors
/// Returns the kernel's error, or `EBUSY` if the thread does not have the attributes afterwards.
pub(crate) fn put_back(
    host: &mut dyn Host,
    hierarchies: &[Hierarchy],
    member: &Member,
) -> Result<Given, HostError> {
    let ((tid, started), own) = (member.thread(), &member.scheduling);
    let Some((_, now)) = look(host, tid)?.filter(|(start_ticks, _)| *start_ticks == started) else {
        return Ok(Given::Settled);
    };
    let level = of_thread(host, hierarchies, &member.group.mount, tid)?.unwrap_or(0);
    if level < 0 {
        return Ok(Given::Below);
    }
    let is_taken = now == SCHED_IDLE || (level > 0 && now == SCHED_NORMAL);
    if !is_taken || host.scheduling(tid).is_ok_and(|has| has == *own) {
        return Ok(Given::Settled);
    }
    Ok(match set(host, tid, own)? {
        true => Given::Back(format!("thread {tid} has {own} again")),
        false => Given::Settled,
    })
}

/// Returns the level of the group in this hierarchy that contains the thread; `None` if the thread has exited, or if it
/// is in no group with a level.
///
/// # Errors
/// Returns an error when the level cannot be read.
fn of_thread(
    host: &mut dyn Host,
    hierarchies: &[Hierarchy],
    mount: &str,
    tid: u32,
) -> Result<Option<i64>, HostError> {
    let file = format!("/proc/{tid}/cgroup");
    match host.read_file(Path::new(&file)) {
        Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        read => drop(read?),
    }
    let Some(index) = hierarchies.iter().position(|one| one.mount == mount) else { return Ok(None) };
    let Some(path) = places(host, Path::new(&file), hierarchies).remove(&index) else { return Ok(None) };
    let dir = match host.open(&below(Path::new(mount), path.as_str())) {
        Err(error) if is_gone(&error) => return Ok(None),
        opened => opened?,
    };
    let found = level(host, dir);
    host.close(dir);
    found
}

/// Sets a thread's attributes and reads its policy back; returns `false` if the thread has exited.
fn set(host: &mut dyn Host, tid: u32, to: &Scheduling) -> Result<bool, HostError> {
    match host.set_scheduling(tid, to) {
        Err(error) if error.errno == Errno::ESRCH => Ok(false),
        Err(error) => Err(error),
        Ok(())
            if to.policy != SCHED_IDLE
                && look(host, tid)?.is_some_and(|(_, policy)| policy == SCHED_IDLE) =>
        {
            let object = format!("{to} of thread {tid}");
            Err(HostError { operation: "keep", object, value: None, errno: Errno::EBUSY })
        }
        Ok(()) => Ok(true),
    }
}
