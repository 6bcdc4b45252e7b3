//! Lists, thaws and kills the processes of commensal's groups.

use crate::drivers::processes::identity;
use crate::hand::is_gone;
use commensal_core::errno::Errno;
use commensal_core::process::Stat;
use commensal_core::text::{self, visible};
use commensal_host::{Dir, Host, HostError, Process, Signal, below};
use commensal_sensors::freezer::{self, frozen_by};
use commensal_sensors::mounts;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// The cgroup v1 file with the state of a group's freezer.
const FREEZER: &str = "freezer.state";
const THAWED: &str = "THAWED";
/// How long the removal of groups waits for processes that exit.
const EXITS_WITHIN: Duration = Duration::from_secs(10);

/// Returns the PIDs of the processes that are in the group now.
///
/// # Errors
/// Returns an error when the group no longer exists.
pub fn pids(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    let text = host.read(group, "cgroup.procs")?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Waits while a group has no other processes than some that exit: they leave the group by themselves, but need CPU time for
/// that, and a group that yields to busy CPUs gets little.
pub(crate) fn wait_for_exits(host: &mut dyn Host, groups: &[Dir]) {
    let deadline = Instant::now() + EXITS_WITHIN;
    let all_exit = |host: &mut dyn Host, group: Dir| {
        let inside = pids(host, group).unwrap_or_default();
        !inside.is_empty() && inside.iter().all(|pid| exits(host, *pid))
    };
    while groups.iter().any(|group| all_exit(host, *group)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether all threads of the process have exited, or are about to.
fn exits(host: &dyn Host, pid: u32) -> bool {
    let folder = format!("/proc/{pid}/task");
    host.list(Path::new(&folder)).unwrap_or_default().iter().all(|tid| {
        let stat = host.read_file(Path::new(&format!("{folder}/{tid}/stat"))).unwrap_or_default();
        Stat::parse(&stat).is_none_or(|stat| stat.has_ended())
    })
}

/// Whether processes other than this one are in or below the group.
pub(crate) fn others(host: &mut dyn Host, group: Dir) -> bool {
    let own = std::process::id();
    if pids(host, group).is_ok_and(|pids| pids.iter().any(|pid| *pid != own)) {
        return true;
    }
    host.children(group).unwrap_or_default().into_iter().any(|name| {
        let Ok(child) = host.open_child(group, &name) else { return false };
        let used = others(host, child);
        host.close(child);
        used
    })
}

/// Thaws the group. Does nothing if it is not frozen or has no freezer.
pub fn thaw(host: &mut dyn Host, group: Dir) {
    for (file, thawed) in freezer::FILES {
        if host.read(group, file).is_ok_and(|state| state.trim() != thawed) {
            let _ = host.write(group, file, thawed);
        }
    }
}

/// Kills one process with SIGKILL. In a frozen group of cgroup v1 the signal takes effect only when the group is thawed
/// (kernel/cgroup/legacy_freezer.c; the v2 freezer lets killed tasks exit). Such groups, given as `frozen`, are thawed
/// until the process has exited, for at most `patience`, and then frozen again. Returns `false` if the process has not
/// exited within `patience`. If no group had to be thawed, returns `true` immediately; the process exits soon.
///
/// # Errors
/// Returns an error when the process has exited already, or this user may not kill it.
pub fn kill(
    host: &mut dyn Host,
    process: &Process,
    frozen: &[Dir],
    patience: Duration,
) -> Result<bool, HostError> {
    host.signal(process, Signal::KILL)?;
    // A zombie counts as exited: it has freed its memory.
    let dies = |host: &mut dyn Host| {
        identity(host, process.pid).is_some_and(|(start_ticks, ..)| start_ticks == process.start_ticks)
    };
    let mut thawed = Vec::new();
    for group in frozen {
        if dies(host) && host.read(*group, FREEZER).is_ok_and(|state| state.trim() != THAWED) {
            thawed.push(*group);
            host.write(*group, FREEZER, THAWED)?;
        }
    }
    let deadline = Instant::now() + patience;
    while !thawed.is_empty() && dies(host) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = thawed.is_empty() || !dies(host);
    thawed.into_iter().try_for_each(|group| host.write(group, FREEZER, "FROZEN"))?;
    Ok(ended)
}

/// Kills every process in and below the groups with SIGKILL, thaws the groups and the cgroups below them, and waits
/// until no process is left, so that the groups can be removed. Takes all hierarchies together, because on cgroup v1 the
/// cgroup that freezes a process, so that it ignores SIGKILL, can be in another hierarchy than the cgroup that lists it.
/// Processes and cgroups that are created meanwhile are found in a later pass.
///
/// # Errors
/// Returns `EBUSY` when processes remain after `patience`.
pub fn kill_all(host: &mut dyn Host, groups: &[Dir], patience: Duration) -> Result<(), HostError> {
    let deadline = Instant::now() + patience;
    loop {
        let left = kill_once(host, groups)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let all: Vec<String> = left.iter().map(|pid| describe(host, *pid)).collect();
            let object = format!("the processes of a commensal group: {}", all.join(", "));
            return Err(HostError { operation: "end", object, value: None, errno: Errno::EBUSY });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGKILL to every process in and below the groups, except this one, and then thaws all of these cgroups. Returns
/// the PIDs that were found.
fn kill_once(host: &mut dyn Host, groups: &[Dir]) -> Result<BTreeSet<u32>, HostError> {
    let (own, mut found, mut refused) = (std::process::id(), BTreeSet::new(), None);
    for group in groups {
        each_within(host, *group, &mut |host, dir| {
            let pids = inside(host, dir).unwrap_or_else(|error| {
                refused = Some(error);
                Vec::new()
            });
            for pid in pids {
                found.insert(pid);
                // The pidfd is opened first, in case another process has reused the PID: it refers to the process that
                // has the PID now, which gets the signal only if it is still in the group.
                let Ok(process) = host.process(pid) else { continue };
                if pid != own && inside(host, dir).is_ok_and(|now| now.contains(&pid)) {
                    let _ = host.signal(&process, Signal::KILL);
                }
            }
        });
    }
    let has_own = found.remove(&own);
    for group in groups.iter().filter(|_| !found.is_empty()) {
        // v2 kills all processes in and below a group in one operation, including those that are being forked (Linux
        // 5.14 and newer).
        if !has_own {
            let _ = host.write(*group, "cgroup.kill", "1");
        }
        each_within(host, *group, &mut thaw);
    }
    refused.map_or(Ok(found), Err)
}

/// Returns the PIDs in the group; none if it no longer exists or is a threaded group, whose processes the threaded
/// domain above it lists (`EOPNOTSUPP`).
fn inside(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    match pids(host, group) {
        Err(error) if is_gone(&error) || error.errno == Errno::EOPNOTSUPP => Ok(Vec::new()),
        pids => pids,
    }
}

/// Visits the group and all cgroups below it, each before those below it.
fn each_within(host: &mut dyn Host, group: Dir, act: &mut dyn FnMut(&mut dyn Host, Dir)) {
    act(host, group);
    for name in host.children(group).unwrap_or_default() {
        if let Ok(child) = host.open_child(group, &name) {
            each_within(host, child, act);
            host.close(child);
        }
    }
}

/// Removes the cgroups below the group that have no processes. What the kernel refuses stays.
pub(crate) fn remove_below(host: &mut dyn Host, group: Dir) {
    for name in host.children(group).unwrap_or_default() {
        if let Ok(child) = host.open_child(group, &name) {
            remove_below(host, child);
            host.close(child);
            let _ = host.rmdir(group, &name, child.inode);
        }
    }
}

/// Describes a process for a message: its PID, program and user, and the cgroup that freezes it, if one does.
pub(crate) fn describe(host: &mut dyn Host, pid: u32) -> String {
    let status = host.read_file(Path::new(&format!("/proc/{pid}/status"))).unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    let mut about: Vec<String> = field("Name:").map(|name| visible(name).into_owned()).into_iter().collect();
    about.extend(field("Uid:").map(|uid| format!("user {uid}")));
    let hierarchies = mounts::hierarchies(host).unwrap_or_default();
    about.extend(frozen_by(host, pid, &hierarchies).map(|frozen| {
        format!("frozen by {}", text::path(&below(Path::new(&frozen.mount), frozen.path.as_str())))
    }));
    if about.is_empty() { pid.to_string() } else { format!("{pid} ({})", about.join(", ")) }
}
