//! Lifts single processes: moves them temporarily out of a group that is held back: a group that is idle (`cpu.idle`), or
//! below level 0 (`cpu.qos_level` of openEuler's kernel), or inside such a group.
//!
//! While other work is busy, a task that is held back gets little CPU time to run its own code, so it handles a signal
//! that asks it to end late, or never (observed: after 12 s with `cpu.idle`; alive after 20 s below level 0). When a task
//! below level 0 is killed, openEuler's kernel moves it to the root group and gives it the normal policy
//! (kernel/signal.c, `complete_signal`; core.c, `sched_move_work`). Before this module asks a task to end, it makes the
//! same change to the task.

use crate::drivers::level::{self, Kept};
use crate::drivers::processes::{identity, is};
use crate::hand;
use crate::journal::Target;
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_core::knob::Controller;
use commensal_core::member::ProcessId;
use commensal_host::{Dir, Host, HostError, Process, below};
use commensal_sensors::mounts::hierarchies;
use commensal_sensors::processes::places;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of processes that are lifted together with one process, which bounds the time that lifting takes.
const MOST: usize = 256;

/// Maximum number of passes over the group: a process may fork while it is lifted.
const PASSES: usize = 4;

/// Processes that were moved out of a group that is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifted {
    from: Target,
    to: Target,
    hold: Hold,
    processes: BTreeSet<ProcessId>,
    /// Other children of this process that were in `to` before.
    others: BTreeSet<ProcessId>,
}

impl Lifted {
    /// Number of processes that were moved.
    #[must_use]
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Whether they were below level 0, where they may get no CPU time at all; otherwise their group was idle.
    #[must_use]
    pub fn by_level(&self) -> bool {
        self.hold == Hold::Level
    }

    /// Path of the group from which the processes were moved.
    #[must_use]
    pub fn from(&self) -> String {
        self.from.shown()
    }

    /// Path of the group that contains the processes now.
    #[must_use]
    pub fn to(&self) -> String {
        self.to.shown().trim_end_matches('/').to_owned()
    }
}

/// What holds a group back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The group, or one above it, is idle.
    Idle,
    /// The group, or one above it, is below level 0.
    Level,
}

/// Moves a process, and its descendants in the same group, to the nearest ancestor group that is not held back, and gives
/// them the normal policy if they have lost it. If that group takes no processes, moves them to the group of this process,
/// unless that one is held back too. `None` if the process is not held back, or has exited.
///
/// Until [`lower`], this process adopts descendants whose parent exits, so that `lower` finds them, and the caller starts
/// no other process.
///
/// # Errors
/// Returns an error when the process itself cannot be moved.
pub fn lift(host: &mut dyn Host, process: &Process) -> Result<Option<Lifted>, HostError> {
    let Ok(mounted) = hierarchies(host) else { return Ok(None) };
    let Some(index) = mounted.iter().position(|one| one.controllers.contains(&Controller::Cpu)) else {
        return Ok(None);
    };
    let group_of = |host: &mut dyn Host, pid: &str| {
        places(host, Path::new(&format!("/proc/{pid}/cgroup")), &mounted).remove(&index)
    };
    let mount = &mounted[index].mount;
    let Some(path) = group_of(host, &process.pid.to_string()) else { return Ok(None) };
    let Some((above, hold)) = above_hold(host, mount, &path) else { return Ok(None) };
    let own = group_of(host, "self").filter(|own| above_hold(host, mount, own).is_none());
    let dir = host.open(&below(Path::new(mount), path.as_str()))?;
    let from = Target { mount: mount.clone(), path: path.as_str().to_owned(), inode: dir.inode };
    let mut lifted = family_to(host, process, dir, (&from, &above, hold));
    if let (Err(_), Some(own)) = (&lifted, own) {
        lifted = family_to(host, process, dir, (&from, &own, hold)).or(lifted);
    }
    host.close(dir);
    lifted
}

/// The group above the outermost group that is held back, of a group and those above it; `None` if none is held back.
fn above_hold(host: &mut dyn Host, mount: &str, path: &CgroupPath) -> Option<(CgroupPath, Hold)> {
    let mut above = CgroupPath::root();
    for group in path.ancestors().into_iter().chain([path.clone()]) {
        if let Some(hold) = hold_of(host, mount, &group) {
            return Some((above, hold));
        }
        above = group;
    }
    None
}

fn hold_of(host: &mut dyn Host, mount: &str, group: &CgroupPath) -> Option<Hold> {
    let dir = host.open(&below(Path::new(mount), group.as_str())).ok()?;
    let hold = match level::of(host, dir) {
        Some(..=-1) => Some(Hold::Level),
        _ => host.read(dir, "cpu.idle").is_ok_and(|idle| idle.trim() == "1").then_some(Hold::Idle),
    };
    host.close(dir);
    hold
}

/// Opens the nearest ancestor group that is not below level 0; `None` if the group itself is not below level 0.
pub(crate) fn level_above(host: &mut dyn Host, mount: &str, path: &CgroupPath) -> Option<(Dir, CgroupPath)> {
    let dir = host.open(&below(Path::new(mount), path.as_str())).ok()?;
    let level = level::of(host, dir);
    host.close(dir);
    level.filter(|level| *level < 0)?;
    for above in path.ancestors().into_iter().rev() {
        let Ok(dir) = host.open(&below(Path::new(mount), above.as_str())) else { continue };
        if level::of(host, dir).is_some_and(|level| level >= 0) {
            return Some((dir, above));
        }
        host.close(dir);
    }
    None
}

/// Moves a process and its descendants out of the open group `dir`.
fn family_to(
    host: &mut dyn Host,
    process: &Process,
    dir: Dir,
    (from, to, hold): (&Target, &CgroupPath, Hold),
) -> Result<Option<Lifted>, HostError> {
    let into = host.open(&below(Path::new(&from.mount), to.as_str()))?;
    let to = Target { mount: from.mount.clone(), path: to.as_str().to_owned(), inode: into.inode };
    let others = children(host, into);
    let mut lifted = Lifted { from: from.clone(), to, hold, processes: BTreeSet::new(), others };
    // Where this is refused, processes whose parent exits stay lifted.
    let _ = host.adopt_orphans(true);
    let first = ProcessId { pid: process.pid, start_ticks: process.start_ticks };
    let mut failed = None;
    for _ in 0..PASSES {
        // Includes the children of processes that were lifted in an earlier pass.
        let known: BTreeSet<ProcessId> = lifted.processes.iter().copied().chain([first]).collect();
        let family = family(host, dir, &known);
        let new: Vec<ProcessId> =
            family.into_iter().filter(|one| !lifted.processes.contains(one)).take(MOST).collect();
        if new.is_empty() || lifted.processes.len() >= MOST {
            break;
        }
        for one in new {
            match enter(host, into, one, hold) {
                Ok(true) => drop(lifted.processes.insert(one)),
                Ok(false) => {}
                Err(error) if one == first => failed = Some(error),
                Err(_) => {}
            }
        }
        if failed.is_some() {
            break;
        }
    }
    host.close(into);
    match failed {
        Some(error) => {
            lower(host, &lifted);
            Err(error)
        }
        None if lifted.processes.is_empty() => {
            let _ = host.adopt_orphans(false);
            Ok(None)
        }
        None => Ok(Some(lifted)),
    }
}

/// Moves a process into an open group that is not held back, and gives it the normal policy if it was below level 0, where
/// the kernel has made it `SCHED_IDLE`; returns whether it has not exited.
fn enter(host: &mut dyn Host, into: Dir, process: ProcessId, hold: Hold) -> Result<bool, HostError> {
    if !is(host, process) {
        return Ok(false);
    }
    match host.write(into, "cgroup.procs", &process.pid.to_string()) {
        Err(error) if error.errno == Errno::ESRCH => return Ok(false),
        written => written?,
    }
    if hold == Hold::Idle {
        return Ok(true);
    }
    let tasks = host.list(Path::new(&format!("/proc/{}/task", process.pid))).unwrap_or_default();
    // A failure is ignored: a thread that stays SCHED_IDLE gets less CPU time here, but some.
    let _ = level::make_normal(host, tasks.iter().filter_map(|tid| tid.parse().ok()), &Kept::new());
    Ok(true)
}

/// Moves the lifted processes back, together with processes that they have started since, as far as they are still in
/// the group into which they were lifted. Below level 0 the kernel makes them `SCHED_IDLE` again. Returns how many were
/// moved back.
pub fn lower(host: &mut dyn Host, lifted: &Lifted) -> usize {
    let back = go_back(host, lifted);
    let _ = host.adopt_orphans(false);
    back
}

fn go_back(host: &mut dyn Host, lifted: &Lifted) -> usize {
    let Ok(Some(home)) = hand::open(host, &lifted.from) else { return 0 };
    let back = match hand::open(host, &lifted.to) {
        Ok(Some(dir)) => {
            let back = leave(host, dir, home, lifted);
            host.close(dir);
            back
        }
        _ => 0,
    };
    host.close(home);
    back
}

/// Moves the lifted processes and their descendants from one open group to another; returns how many were moved.
fn leave(host: &mut dyn Host, from: Dir, home: Dir, lifted: &Lifted) -> usize {
    let (mut known, mut tried, mut back) = (lifted.processes.clone(), BTreeSet::new(), 0);
    for _ in 0..PASSES {
        known.extend(children(host, from).difference(&lifted.others));
        let family = family(host, from, &known);
        let new: Vec<ProcessId> = family.into_iter().filter(|one| tried.insert(*one)).collect();
        if new.is_empty() {
            break;
        }
        for one in new {
            if is(host, one) && host.write(home, "cgroup.procs", &one.pid.to_string()).is_ok() {
                known.insert(one);
                back += 1;
            }
        }
    }
    back
}

/// Start time and parent of every process in the open group that has not exited.
fn members(host: &mut dyn Host, dir: Dir) -> BTreeMap<u32, (u64, u32)> {
    let text = host.read(dir, "cgroup.procs").unwrap_or_default();
    let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    let identity = |pid| identity(host, pid).map(|(start_ticks, parent, _)| (pid, (start_ticks, parent)));
    pids.filter_map(identity).collect()
}

/// Returns the children of this process that are in the open group.
fn children(host: &mut dyn Host, dir: Dir) -> BTreeSet<ProcessId> {
    let own = std::process::id();
    let found = members(host, dir).into_iter().filter(|(_, (_, parent))| *parent == own);
    found.map(|(pid, (start_ticks, _))| ProcessId { pid, start_ticks }).collect()
}

/// Returns those of these processes and their descendants that are in the open group.
fn family(host: &mut dyn Host, dir: Dir, of: &BTreeSet<ProcessId>) -> Vec<ProcessId> {
    let parents = members(host, dir);
    let started: BTreeMap<u32, u64> = of.iter().map(|one| (one.pid, one.start_ticks)).collect();
    let is_of_family = |pid: u32| {
        let mut at = pid;
        // A chain of parents has at most as many links as the group has processes.
        for _ in 0..=parents.len() {
            let found = parents.get(&at);
            if let Some(start_ticks) = started.get(&at) {
                // Another process may have the PID by now. A process in another group still has its children.
                return found.is_none_or(|(now, _)| now == start_ticks);
            }
            let Some((_, parent)) = found else { return false };
            at = *parent;
        }
        false
    };
    let inside = parents.iter().filter(|(pid, _)| is_of_family(**pid));
    inside.map(|(pid, (start_ticks, _))| ProcessId { pid: *pid, start_ticks: *start_ticks }).collect()
}
