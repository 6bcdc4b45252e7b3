//! Ensures that only one instance of commensal, the master, manages the cgroups of a kernel. Two instances that do not
//! know of each other would overwrite each other's values forever.
//!
//! Root locks the directory of the hierarchy's root; another user locks the directory of the cgroup that was delegated
//! to this user. Such a lock is effective across mount, network and PID namespaces, and the kernel releases it when its
//! holder exits. An attribute of the locked directory names the holder.

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_host::{Dir, Host, HostError, Lock, below};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of the attribute that identifies the holder.
const ATTRIBUTE: &str = "trusted.commensal.master";

/// The process that manages the cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Master {
    /// PID of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// State directory of the process.
    pub state_dir: PathBuf,
}

/// Result of the attempt to become the master.
#[derive(Debug)]
pub enum Mastery {
    /// This process is the master, while it holds the lock.
    Ours(Lock),
    /// Another process is the master; its identity, if known.
    Others(Option<Master>),
    /// A process with this PID holds the lock but is not root, so it cannot manage cgroups. The lock is ignored.
    Squatted(u32),
}

impl std::fmt::Display for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}, whose state is in {}", self.pid, commensal_core::text::path(&self.state_dir))
    }
}

/// Tries to become the master of the cgroups below `base`.
///
/// # Errors
/// Returns an error when no hierarchy can be read.
pub(crate) fn take(
    host: &mut dyn Host,
    state_dir: &Path,
    hierarchies: &[Hierarchy],
    base: &CgroupPath,
) -> Result<Mastery, HostError> {
    let unified = hierarchies.iter().find(|one| one.version == Version::V2);
    let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu));
    let Some(hierarchy) = unified.or(cpu).or(hierarchies.first()) else { return Ok(Mastery::Others(None)) };
    let mount = Path::new(&hierarchy.mount);
    // Root can change every cgroup, wherever its own groups are; another user can change only cgroups below `base`.
    let dir = match host.euid() {
        0 => host.open(mount),
        _ => host.open(&below(mount, base.as_str())).or_else(|_| host.open(mount)),
    }?;
    let taken = in_directory(host, state_dir, dir);
    host.close(dir);
    taken
}

fn in_directory(host: &mut dyn Host, state_dir: &Path, dir: Dir) -> Result<Mastery, HostError> {
    let own = host.process(std::process::id())?;
    let master = Master { pid: own.pid, start_ticks: own.start_ticks, state_dir: state_dir.to_owned() };
    let text = commensal_core::text::json(&master).unwrap_or_default();
    if let Some(lock) = host.lock_group(dir)? {
        // Without the attribute, other processes know that there is a master, but not which process it is.
        let _ = host.set_attribute(dir, ATTRIBUTE, Some(&text));
        return Ok(Mastery::Ours(lock));
    }
    let named = host.attribute(dir, ATTRIBUTE)?.and_then(|text| serde_json::from_str::<Master>(&text).ok());
    let named = named.filter(|master| {
        host.process(master.pid).is_ok_and(|process| process.start_ticks == master.start_ticks)
    });
    if named.as_ref().is_some_and(|named| *named != master) || host.euid() != 0 {
        return Ok(Mastery::Others(named));
    }
    let Some(pid) = holder(host, dir.inode) else { return Ok(Mastery::Others(None)) };
    // Because the lock is ignored, only the attribute identifies the master.
    let _ = host.set_attribute(dir, ATTRIBUTE, Some(&text));
    Ok(Mastery::Squatted(pid))
}

/// Returns the PID of the first process that holds a lock on this inode according to the kernel (`proc_locks(5)`);
/// `None` if a holder is root.
fn holder(host: &dyn Host, inode: u64) -> Option<u32> {
    let locks = host.read_file(Path::new("/proc/locks")).ok()?;
    let of_inode = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some("FLOCK") && line.contains(&format!(":{inode} "))
    };
    let pids =
        locks.lines().filter(of_inode).filter_map(|line| line.split_whitespace().nth(4)?.parse::<u32>().ok());
    let pids: Vec<u32> = pids.collect();
    let is_root = |pid: &u32| {
        let status = host.read_file(Path::new(&format!("/proc/{pid}/status"))).unwrap_or_default();
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        uid.is_none_or(|uid| uid.split_whitespace().any(|one| one == "0"))
    };
    pids.first().copied().filter(|_| !pids.iter().any(is_root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    /// Any user can lock a directory, so the lock alone does not prove that its holder manages the cgroups.
    // promise 20
    #[test]
    fn a_lock_of_somebody_without_rights_is_told_and_passed_over() {
        let check = |uids: &str, expected: &str| {
            let mut fake = FakeHost::v2(2, 1 << 30);
            let mut other = fake.another();
            let hierarchies = commensal_sensors::mounts::hierarchies(&mut fake).unwrap();
            let dir = other.open(Path::new(&hierarchies[0].mount)).unwrap();
            let _held = other.lock_group(dir).unwrap().unwrap();
            let locks = format!(
                "1: POSIX  ADVISORY  WRITE 7 00:1d:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 4242 00:1d:{inode} 0 EOF\n",
                inode = dir.inode
            );
            fake.set_file("/proc/locks", &locks);
            fake.set_file("/proc/4242/status", &format!("Name:\tflock\nUid:\t{uids}\n"));
            let taken = take(&mut fake, Path::new("/state"), &hierarchies, &CgroupPath::root()).unwrap();
            assert!(format!("{taken:?}").starts_with(expected), "{uids}: {taken:?}");
        };
        check("65534\t65534\t65534\t65534", "Squatted(4242)");
        // If two instances ignore the lock of the same holder, the second finds the first in the attribute.
        let mut fake = FakeHost::v2(2, 1 << 30);
        let mut other = fake.another();
        let hierarchies = commensal_sensors::mounts::hierarchies(&mut fake).unwrap();
        let dir = other.open(Path::new(&hierarchies[0].mount)).unwrap();
        let pid = other.add_process(&[]);
        let start_ticks = other.process(pid).unwrap().start_ticks;
        let first = Master { pid, start_ticks, state_dir: PathBuf::from("/first") };
        other.set_attribute(dir, ATTRIBUTE, Some(&serde_json::to_string(&first).unwrap())).unwrap();
        let _held = other.lock_group(dir).unwrap().unwrap();
        let taken = take(&mut fake, Path::new("/second"), &hierarchies, &CgroupPath::root()).unwrap();
        assert!(matches!(taken, Mastery::Others(Some(named)) if named == first));
        // A lock holder that is root, or may become root, counts as another instance of commensal.
        check("0\t0\t0\t0", "Others(None)");
        check("65534\t0\t65534\t65534", "Others(None)");
    }
}
