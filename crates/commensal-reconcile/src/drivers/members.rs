//! Processes of our groups: starting them inside, and ending all of them.

use crate::drivers::apply::identity;
use commensal_core::errno::Errno;
use commensal_host::{Dir, Host, HostError, Process, Signal};
use std::time::{Duration, Instant};

/// The state of a group of cgroup v1's freezer.
const FREEZER: &str = "freezer.state";
const THAWED: &str = "THAWED";

/// Processes in the group now.
///
/// # Errors
/// When the group is gone.
pub fn pids(host: &mut dyn Host, group: Dir) -> Result<Vec<u32>, HostError> {
    let text = host.read(group, "cgroup.procs")?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether the group or one below it has processes besides this one.
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

/// Lets frozen tasks of the group go on. Where nothing freezes, or nobody is frozen, nothing happens.
pub fn thaw(host: &mut dyn Host, group: Dir) {
    for (file, thawed) in [("cgroup.freeze", "0"), (FREEZER, THAWED)] {
        if host.read(group, file).is_ok_and(|state| state.trim() != thawed) {
            let _ = host.write(group, file, thawed);
        }
    }
}

/// Kills one process with SIGKILL. In a frozen group of cgroup v1 the signal is heard only once the group goes on
/// (kernel/cgroup/legacy_freezer.c; the v2 freezer lets the killed go): such groups, given as `frozen`, go on for as long as the
/// process dies, at most `patience`, and stand still again afterwards. Whether it has ended is known only where it had to be
/// waited for; elsewhere it will.
///
/// # Errors
/// When it is gone already, or may not be killed.
pub fn kill(
    host: &mut dyn Host,
    process: &Process,
    frozen: &[Dir],
    patience: Duration,
) -> Result<bool, HostError> {
    host.signal(process, Signal::KILL)?;
    // A zombie has given its memory back.
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

/// Kills every process of the group with SIGKILL and waits until the kernel has let go of them, so that
/// the group can be removed. A process that forks faster than we read is caught by a later look.
///
/// # Errors
/// `EBUSY` when some are still there after `patience`.
pub fn kill_all(host: &mut dyn Host, group: Dir, patience: Duration) -> Result<(), HostError> {
    let deadline = Instant::now() + patience;
    // v2 kills all of them at once, also those that are just being forked (Linux 5.14 and newer).
    let _ = host.write(group, "cgroup.kill", "1");
    loop {
        let left = match pids(host, group) {
            Ok(left) => left,
            Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let object = format!("{} processes of a group of ours", left.len());
            return Err(HostError { operation: "end", object, value: None, errno: Errno::EBUSY });
        }
        for pid in left {
            // Identified first, so that a number reused in between is not hit: the pidfd is of the
            // process that has the number now, and it is signalled only if it still is in the group.
            let Ok(process) = host.process(pid) else { continue };
            if pids(host, group).is_ok_and(|now| now.contains(&pid)) {
                let _ = host.signal(&process, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
