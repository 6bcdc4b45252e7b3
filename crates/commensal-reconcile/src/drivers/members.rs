//! Lists, thaws and kills the processes of commensal's groups.

use crate::drivers::processes::identity;
use crate::hand::is_gone;
use commensal_core::errno::Errno;
use commensal_core::process::Stat;
use commensal_host::{Dir, Host, HostError, Process, Signal};
use std::path::Path;
use std::time::{Duration, Instant};

/// The cgroup v1 file with the state of a group's freezer.
const FREEZER: &str = "freezer.state";
const THAWED: &str = "THAWED";
/// How long a group that is to be removed may wait for processes that exit.
const EXITS_WITHIN: Duration = Duration::from_secs(10);

/// Returns the PIDs of the processes that are in the group now.
///
/// # Errors
/// Returns an error when the group no longer exists.
pub fn pids(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    let text = host.read(group, "cgroup.procs")?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Returns the PIDs of the processes that are in the group, after it has waited for those that exit: they leave the group
/// by themselves, but need CPU time for that, and a group that yields to busy CPUs gets little.
pub(crate) fn staying(host: &mut dyn Host, group: Dir) -> Vec<u32> {
    let deadline = Instant::now() + EXITS_WITHIN;
    loop {
        let inside = pids(host, group).unwrap_or_default();
        let all_exit = !inside.is_empty() && inside.iter().all(|pid| exits(host, *pid));
        if !all_exit || Instant::now() >= deadline {
            return inside;
        }
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
    for (file, thawed) in [("cgroup.freeze", "0"), (FREEZER, THAWED)] {
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

/// Kills every process of the group with SIGKILL, and waits until none is left, so that the group can be removed. A
/// process that is forked meanwhile is killed in a later pass.
///
/// # Errors
/// Returns `EBUSY` when processes remain after `patience`.
pub fn kill_all(host: &mut dyn Host, group: Dir, patience: Duration) -> Result<(), HostError> {
    let deadline = Instant::now() + patience;
    // v2 kills all processes of a group in one operation, including those that are being forked (Linux 5.14 and newer).
    let _ = host.write(group, "cgroup.kill", "1");
    loop {
        let left = match pids(host, group) {
            Ok(left) => left,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let object = format!("{} processes of a commensal group", left.len());
            return Err(HostError { operation: "end", object, value: None, errno: Errno::EBUSY });
        }
        for pid in left {
            // The pidfd is opened first, in case another process has reused the PID: it refers to the process that has
            // the PID now, which gets the signal only if it is still in the group.
            let Ok(process) = host.process(pid) else { continue };
            if pids(host, group).is_ok_and(|now| now.contains(&pid)) {
                let _ = host.signal(&process, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
