//! One commensal manages the cgroups of a kernel. Two that do not know of each other would undo each other's values for
//! ever.
//!
//! The lock is on the directory of the cgroup below which groups are created, so it holds across mount, network and
//! process namespaces, and is released when its holder exits. An attribute of the same directory names the holder.

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_host::{Dir, Host, HostError, Lock, below};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The attribute that names the holder.
const ATTRIBUTE: &str = "trusted.commensal.master";

/// The commensal that manages the cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Master {
    /// Its PID.
    pub pid: u32,
    /// Its start time, clock ticks since boot.
    pub start_ticks: u64,
    /// Its state directory.
    pub state_dir: PathBuf,
}

/// Result of the attempt to become the master.
#[derive(Debug)]
pub enum Mastery {
    /// This process is the master, while it holds the lock.
    Ours(Lock),
    /// Another process is the master; its identity, if known.
    Others(Option<Master>),
    /// A process without rights to cgroups holds the lock, so the lock means nothing. Its PID.
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
/// When no hierarchy can be read.
pub(crate) fn take(
    host: &mut dyn Host,
    state_dir: &Path,
    hierarchies: &[Hierarchy],
    base: &CgroupPath,
) -> Result<Mastery, HostError> {
    let unified = hierarchies.iter().find(|one| one.version == Version::V2);
    let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu));
    let Some(hierarchy) = unified.or(cpu).or(hierarchies.first()) else { return Ok(Mastery::Others(None)) };
    let dir = host
        .open(&below(Path::new(&hierarchy.mount), base.as_str()))
        .or_else(|_| host.open(Path::new(&hierarchy.mount)))?;
    let taken = in_directory(host, state_dir, dir);
    host.close(dir);
    taken
}

fn in_directory(host: &mut dyn Host, state_dir: &Path, dir: Dir) -> Result<Mastery, HostError> {
    if let Some(lock) = host.lock_group(dir)? {
        let own = host.process(std::process::id())?;
        let master = Master { pid: own.pid, start_ticks: own.start_ticks, state_dir: state_dir.to_owned() };
        let text = commensal_core::text::json(&master).unwrap_or_default();
        // Without it the others know that there is somebody, and not who.
        let _ = host.set_attribute(dir, ATTRIBUTE, Some(&text));
        return Ok(Mastery::Ours(lock));
    }
    let named = host.attribute(dir, ATTRIBUTE)?.and_then(|text| serde_json::from_str::<Master>(&text).ok());
    let named = named.filter(|master| {
        host.process(master.pid).is_ok_and(|process| process.start_ticks == master.start_ticks)
    });
    if named.is_some() || host.euid() != 0 {
        return Ok(Mastery::Others(named));
    }
    Ok(holder(host, dir.inode).map_or(Mastery::Others(None), Mastery::Squatted))
}

/// PID of the process that holds a lock on this inode according to the kernel, if all holders are users without rights
/// (`proc_locks(5)`).
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

    /// To lock a folder needs no rights, and so says nothing about who keeps its cgroups.
    // promise 74
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
        // Root's own, and what may become root, is taken for another commensal.
        check("0\t0\t0\t0", "Others(None)");
        check("65534\t0\t65534\t65534", "Others(None)");
    }
}
