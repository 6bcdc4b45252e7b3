//! Lifts the members of a group below level 0 (`cpu.qos_level` of openEuler's kernel): moves them temporarily into a
//! group that commensal creates at level 0 or above, and moves them back.
//!
//! ```text
//! /                    0                        /                             0
//!   batch             -1   members  ──lift──►     batch                      -1
//!                                                 commensal-lifted-INODE      0   members, with the limits of batch
//!                                   ◄─lower──
//! ```
//! The journal record is on disk before `commensal-lifted-INODE` is created. Every process in that group belongs to the
//! group in the record, so single processes need no records, and any later commensal process can move the members back.

use crate::drivers::level::{self, Kept};
use crate::drivers::lift::level_above;
use crate::drivers::members;
use crate::drivers::processes::write_pid;
use crate::drivers::recreate::copy;
use crate::hand::is_gone;
use crate::journal::{Journal, JournalError, LIFTED, Lifting, Record, Target};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::knob::KnobId;
use commensal_host::{Dir, Host, HostError, below};
use commensal_sensors::mounts::hierarchies;
use std::path::Path;

/// Maximum number of processes that are lifted together, which bounds the time that it takes.
const MOST: usize = 512;

/// Maximum number of passes over a group whose members keep forking.
const PASSES: usize = 100;

/// Why the members of a group were not lifted. They are still in their group.
#[derive(Debug, thiserror::Error)]
pub enum LiftError {
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// A quota: CPU time per period (us).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// CPU time in each period (us).
    pub quota_us: u64,
    /// Length of the period (us).
    pub period_us: u64,
}

impl Lifting {
    /// Path of the group that the members belong to.
    #[must_use]
    pub fn shown(&self) -> String {
        self.group.shown()
    }
}

/// Lifts the members of the group at `path` in this hierarchy. The group into which they move gets the limits of their
/// own group, and `quota` if it is stricter. `None` if the group is not below level 0, no longer exists, or has no
/// members.
///
/// # Errors
/// Returns a [`LiftError`]; then the members are still in their group.
pub fn lift_group(
    host: &mut dyn Host,
    journal: &mut Journal,
    (mount, path): (&str, &CgroupPath),
    quota: Option<Quota>,
) -> Result<Option<Lifting>, LiftError> {
    let Some((above, above_path)) = level_above(host, mount, path) else { return Ok(None) };
    let lifted = match host.open(&below(Path::new(mount), path.as_str())) {
        Ok(own) => {
            let lifted = lift_open(host, journal, (mount, path, own), (above, &above_path), quota);
            host.close(own);
            lifted
        }
        Err(error) => Err(error.into()),
    };
    host.close(above);
    lifted
}

fn lift_open(
    host: &mut dyn Host,
    journal: &mut Journal,
    (mount, path, own): (&str, &CgroupPath, Dir),
    (above, above_path): (Dir, &CgroupPath),
    quota: Option<Quota>,
) -> Result<Option<Lifting>, LiftError> {
    if pids(host, own)?.is_empty() {
        return Ok(None);
    }
    let name = format!("{LIFTED}{}", own.inode);
    let group = Target { mount: mount.to_owned(), path: path.as_str().to_owned(), inode: own.inode };
    let lifted = Lifting { group, to: above_path.child(&name).as_str().to_owned() };
    let record = Record::Lifting(lifted.clone());
    if !journal.has(&record) {
        journal.append(host, &[record])?;
    }
    let into = match host.mkdir(above, &name) {
        Err(error) if error.errno == Errno::EEXIST => host.open_child(above, &name)?,
        made => made?,
    };
    // The real-time budget is copied separately, and the kernel may refuse it: the budgets of both groups together may
    // exceed that of their parent (kernel/sched/rt.c, `tg_rt_schedulable`). Members that are SCHED_IDLE need no
    // real-time budget.
    let real_time = |knob: KnobId| matches!(knob, KnobId::CpuRtRuntime | KnobId::CpuRtPeriod);
    let done = copy(host, own, into, |knob| !real_time(knob))
        .map(|()| drop(copy(host, own, into, real_time)))
        .and_then(|()| quota.map_or(Ok(()), |quota| restrict(host, into, quota)))
        .and_then(|()| enter(host, (mount, path, own), into));
    host.close(into);
    match done {
        Ok(()) => Ok(Some(lifted)),
        Err(error) => {
            // If this fails as well, the record stays, and the next commensal process moves the members back.
            let _ = lower_group(host, journal, &lifted);
            Err(error.into())
        }
    }
}

/// Sets a quota, unless the group has a stricter one.
fn restrict(host: &mut dyn Host, group: Dir, quota: Quota) -> Result<(), HostError> {
    let mut number =
        |file: &str| -> Result<i64, HostError> { Ok(host.read(group, file)?.trim().parse().unwrap_or(-1)) };
    let (now, period) = (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?);
    let stricter = u64::try_from(now).is_ok_and(|now| {
        let period = u64::try_from(period).unwrap_or(1).max(1);
        u128::from(now) * u128::from(quota.period_us) <= u128::from(quota.quota_us) * u128::from(period)
    });
    if stricter {
        return Ok(());
    }
    // The kernel accepts any period while there is no quota.
    host.write(group, "cpu.cfs_quota_us", "-1")?;
    host.write(group, "cpu.cfs_period_us", &quota.period_us.to_string())?;
    host.write(group, "cpu.cfs_quota_us", &quota.quota_us.to_string())
}

/// Moves the members into the group for lifted members, and gives them the normal policy. Threads of a member that are in
/// another group stay there.
fn enter(
    host: &mut dyn Host,
    (mount, path, own): (&str, &CgroupPath, Dir),
    into: Dir,
) -> Result<(), HostError> {
    let (hierarchies, hierarchy) = hierarchy(host, mount);
    let mut left = MOST;
    for _ in 0..PASSES {
        let inside: Vec<u32> = pids(host, own)?.into_iter().take(left).collect();
        if inside.is_empty() {
            break;
        }
        left -= inside.len();
        for pid in inside {
            match write_pid(host, pid, (&hierarchies, hierarchy), (path, into)) {
                Err(error) if error.errno == Errno::ESRCH => {}
                written => written?,
            }
        }
        let tasks = host.read(into, "tasks").unwrap_or_default();
        let tids = tasks.split_whitespace().filter_map(|tid| tid.parse().ok());
        // A failure is ignored: a thread that stays SCHED_IDLE gets less CPU time here, but some.
        let _ = level::make_normal(host, tids, &Kept::new());
    }
    Ok(())
}

/// Returns the hierarchies, and the index of the one at this mount point.
fn hierarchy(host: &mut dyn Host, mount: &str) -> (Vec<Hierarchy>, usize) {
    let all = hierarchies(host).unwrap_or_default();
    let index = all.iter().position(|one| one.mount == mount).unwrap_or(usize::MAX);
    (all, index)
}

/// Moves lifted members back into their group, where the kernel makes them `SCHED_IDLE` again. If their group was
/// replaced, the group that now has its path gets them; if there is no such group, they move to the parent of the group
/// for lifted members, which stays.
///
/// # Errors
/// Returns an error when a member cannot be moved.
pub fn put_down(host: &mut dyn Host, lifted: &Lifting) -> Result<(), HostError> {
    let mount = Path::new(&lifted.group.mount);
    let from = match host.open(&below(mount, &lifted.to)) {
        Err(error) if is_gone(&error) => return Ok(()),
        opened => opened?,
    };
    let above = lifted.to.rsplit_once('/').map_or("", |(above, _)| above);
    let home = match host.open(&below(mount, &lifted.group.path)) {
        Err(error) if is_gone(&error) => host.open(&below(mount, above)),
        // After any other error the group may still exist, and its members must not end up outside it.
        opened => opened,
    };
    let done = home.and_then(|home| {
        let done = leave(host, (&lifted.group.mount, &CgroupPath::new(&lifted.to), from), home);
        host.close(home);
        done
    });
    host.close(from);
    done
}

fn leave(
    host: &mut dyn Host,
    (mount, path, from): (&str, &CgroupPath, Dir),
    home: Dir,
) -> Result<(), HostError> {
    let (hierarchies, hierarchy) = hierarchy(host, mount);
    for _ in 0..PASSES {
        let inside = pids(host, from)?;
        if inside.is_empty() {
            return Ok(());
        }
        for pid in inside {
            match write_pid(host, pid, (&hierarchies, hierarchy), (path, home)) {
                Err(error) if error.errno == Errno::ESRCH => {}
                written => written?,
            }
        }
    }
    let object = "a group whose members appear faster than they can be moved".to_owned();
    Err(HostError { operation: "empty", object, value: None, errno: Errno::EBUSY })
}

/// Moves lifted members back and removes the group in which they were.
///
/// # Errors
/// Returns an error when a member cannot be moved, or the group cannot be removed.
pub(crate) fn lower(host: &mut dyn Host, lifted: &Lifting) -> Result<(), HostError> {
    put_down(host, lifted)?;
    let (above, name) = lifted.to.rsplit_once('/').unwrap_or(("", &lifted.to));
    let parent = host.open(&below(Path::new(&lifted.group.mount), above))?;
    let removed = host.open_child(parent, name).and_then(|dir| {
        host.close(dir);
        host.rmdir(parent, name, dir.inode)
    });
    host.close(parent);
    match removed {
        Err(error) if is_gone(&error) => Ok(()),
        removed => removed,
    }
}

/// Like [`put_down`]; also removes the group for lifted members, and the journal record.
///
/// # Errors
/// Returns a [`LiftError`]; then the record stays, and `restore` or the next start of an agent moves the members back.
pub fn lower_group(host: &mut dyn Host, journal: &mut Journal, lifted: &Lifting) -> Result<(), LiftError> {
    lower(host, lifted)?;
    let record = Record::Lifting(lifted.clone());
    Ok(journal.forget(host, |_, one| *one == record)?)
}

/// Returns the PIDs of the members; a group that no longer exists has none.
///
/// # Errors
/// Returns an error when the list cannot be read, so that it is unknown whether there are members.
fn pids(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    match members::pids(host, group) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        pids => pids,
    }
}
