//! Lifts single processes: moves them temporarily out of a group below level 0 (`cpu.qos_level` of openEuler's kernel).
//!
//! While online work is busy, a task below level 0 may get no CPU time to run its own code, so it cannot handle a
//! signal that asks it to end (observed: alive after 20 s). When a task is killed, the kernel moves it to the root
//! group and gives it the normal policy (kernel/signal.c, `complete_signal`; core.c, `sched_move_work`). Before this
//! module asks a task to end, it makes the same change to the task.

use crate::drivers::level::{self, Kept};
use crate::journal::Target;
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_core::text;
use commensal_host::{Dir, Host, HostError, Process, below};
use commensal_sensors::mounts::hierarchies;
use commensal_sensors::processes::places;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of processes that are lifted together with one process, which bounds the time that lifting takes.
const MOST: usize = 256;

/// Maximum number of passes over the group: a process may fork while it is lifted.
const PASSES: usize = 4;

/// Processes that were moved out of a group below level 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifted {
    from: Target,
    to: Target,
    processes: BTreeSet<ProcessId>,
}

impl Lifted {
    /// Number of processes that were moved.
    #[must_use]
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Path of the group from which the processes were moved.
    #[must_use]
    pub fn from(&self) -> String {
        text::path(&below(Path::new(&self.from.mount), &self.from.path))
    }

    /// Path of the group that contains the processes now.
    #[must_use]
    pub fn to(&self) -> String {
        let to = text::path(&below(Path::new(&self.to.mount), &self.to.path));
        to.trim_end_matches('/').to_owned()
    }
}

/// Moves a process, and its descendants in the same group, to the nearest ancestor group that is not below level 0, and
/// gives them the normal policy. `None` if the process is not in a group below level 0, or has exited.
///
/// # Errors
/// Returns an error when the process itself cannot be moved.
pub fn lift(host: &mut dyn Host, process: &Process) -> Result<Option<Lifted>, HostError> {
    let Ok(mounted) = hierarchies(host) else { return Ok(None) };
    let of_cpu = |one: &commensal_core::actual::Hierarchy| {
        one.version == Version::V1 && one.controllers.contains(&Controller::Cpu)
    };
    let Some(index) = mounted.iter().position(of_cpu) else { return Ok(None) };
    let file = format!("/proc/{}/cgroup", process.pid);
    let Some(path) = places(host, Path::new(&file), &mounted).remove(&index) else { return Ok(None) };
    let mount = &mounted[index].mount;
    let Some((to, above)) = level_above(host, mount, &path) else { return Ok(None) };
    let lifted = host.open(&below(Path::new(mount), path.as_str())).and_then(|dir| {
        let from = Target { mount: mount.clone(), path: path.as_str().to_owned(), inode: dir.inode };
        let to = Target { mount: mount.clone(), path: above.as_str().to_owned(), inode: to.inode };
        let moved = family_to(host, process, dir, (&from, to));
        host.close(dir);
        moved
    });
    host.close(to);
    lifted
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
    (from, to): (&Target, Target),
) -> Result<Option<Lifted>, HostError> {
    let mut lifted = Lifted { from: from.clone(), to, processes: BTreeSet::new() };
    let into = host.open(&below(Path::new(&lifted.to.mount), &lifted.to.path))?;
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
            match enter(host, into, one) {
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
        None => Ok(Some(lifted).filter(|lifted| !lifted.processes.is_empty())),
    }
}

/// Moves a process into an open group at level 0 or above, and gives it the normal policy; returns whether it has not
/// exited.
fn enter(host: &mut dyn Host, into: Dir, process: ProcessId) -> Result<bool, HostError> {
    if !is_there(host, process) {
        return Ok(false);
    }
    match host.write(into, "cgroup.procs", &process.pid.to_string()) {
        Err(error) if error.errno == Errno::ESRCH => return Ok(false),
        written => written?,
    }
    let tasks = host.list(Path::new(&format!("/proc/{}/task", process.pid))).unwrap_or_default();
    // A failure is ignored: a thread that stays SCHED_IDLE gets less CPU time here, but some.
    let _ = level::make_normal(host, tasks.iter().filter_map(|tid| tid.parse().ok()), &Kept::new());
    Ok(true)
}

/// Moves the lifted processes back, together with processes that they have started since, as far as they are still in
/// the group into which they were lifted. The kernel makes them `SCHED_IDLE` again. Returns how many were moved back.
pub fn lower(host: &mut dyn Host, lifted: &Lifted) -> usize {
    let Some(home) = open_same(host, &lifted.from) else { return 0 };
    let back = match open_same(host, &lifted.to) {
        Some(dir) => {
            let back = leave(host, dir, home, &lifted.processes);
            host.close(dir);
            back
        }
        None => 0,
    };
    host.close(home);
    back
}

/// Moves these processes and their descendants from one open group to another; returns how many were moved.
fn leave(host: &mut dyn Host, from: Dir, home: Dir, processes: &BTreeSet<ProcessId>) -> usize {
    let (mut known, mut tried, mut back) = (processes.clone(), BTreeSet::new(), 0);
    for _ in 0..PASSES {
        let family = family(host, from, &known);
        let new: Vec<ProcessId> = family.into_iter().filter(|one| tried.insert(*one)).collect();
        if new.is_empty() {
            break;
        }
        for one in new {
            if is_there(host, one) && host.write(home, "cgroup.procs", &one.pid.to_string()).is_ok() {
                known.insert(one);
                back += 1;
            }
        }
    }
    back
}

/// Opens a group, if its path still belongs to the same group.
fn open_same(host: &mut dyn Host, group: &Target) -> Option<Dir> {
    let dir = host.open(&below(Path::new(&group.mount), &group.path)).ok()?;
    if dir.inode == group.inode {
        return Some(dir);
    }
    host.close(dir);
    None
}

/// Returns those of these processes and their descendants that are in the open group.
fn family(host: &mut dyn Host, dir: Dir, of: &BTreeSet<ProcessId>) -> Vec<ProcessId> {
    let text = host.read(dir, "cgroup.procs").unwrap_or_default();
    let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    let mut parents: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for pid in pids {
        parents.extend(identity(host, pid).map(|found| (pid, found)));
    }
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

/// Returns start time and parent of a process that has not exited.
fn identity(host: &dyn Host, pid: u32) -> Option<(u64, u32)> {
    let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    (!stat.has_ended()).then_some((stat.start_ticks()?, stat.parent()?))
}

fn is_there(host: &dyn Host, process: ProcessId) -> bool {
    identity(host, process.pid).is_some_and(|(start_ticks, _)| start_ticks == process.start_ticks)
}
