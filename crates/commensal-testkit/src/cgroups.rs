//! Cgroups that a test creates, and the processes that it starts in them.

use crate::process::{signal, threads};
use crate::wait::{holds_within, until};
use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long killed processes may take to leave their cgroup.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// PIDs in a cgroup, without the cgroups below it; none if the cgroup does not exist.
#[must_use]
pub fn members(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// PIDs in a cgroup and in all cgroups below it.
fn members_below(cgroup: &Path) -> Vec<u32> {
    let below = children(cgroup).into_iter().flat_map(|child| members_below(&child));
    members(cgroup).into_iter().chain(below).collect()
}

fn children(cgroup: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cgroup).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Removes a cgroup with all cgroups below it. Returns whether the cgroup no longer exists after at most `time`: the
/// kernel removes dead processes from a cgroup a moment after their parent was notified of their exit.
pub fn removed_within(time: Duration, cgroup: &Path) -> bool {
    holds_within(time, || removed(cgroup))
}

fn removed(cgroup: &Path) -> bool {
    for child in children(cgroup) {
        removed(&child);
    }
    std::fs::remove_dir(cgroup).is_ok() || !cgroup.exists()
}

/// A cgroup of the CPU controller with cgroups below it (the groups), and processes in them. When this value is
/// dropped, it kills all processes and removes all cgroups.
#[derive(Debug)]
pub struct Groups {
    /// The cgroup that contains all others.
    pub top: PathBuf,
    /// Whether the cgroup is in the unified hierarchy (v2).
    pub unified: bool,
    running: Vec<Child>,
}

impl Groups {
    /// Creates the top cgroup below the mount point of the CPU controller.
    ///
    /// # Panics
    /// Panics if the cgroup cannot be created.
    #[must_use]
    pub fn new(mount: &Path, unified: bool, test: &str) -> Groups {
        let top = mount.join(format!("commensal-test-{}-{test}", std::process::id()));
        std::fs::create_dir(&top).unwrap_or_else(|error| panic!("{}: {error}", top.display()));
        let groups = Groups { top, unified, running: Vec::new() };
        if unified {
            groups.set("", "cgroup.subtree_control", "+cpu");
        }
        groups
    }

    /// Gives the top cgroup the maximum CPU weight, so that other work of the machine gets hardly any CPU time. The
    /// groups' processes must stay on one CPU: otherwise the test itself would get hardly any CPU time either.
    pub fn outweigh_the_machine(&self) {
        match self.unified {
            true => self.set("", "cpu.weight", "10000"),
            false => self.set("", "cpu.shares", "262144"),
        }
    }

    /// Directory of a group.
    #[must_use]
    pub fn dir(&self, group: &str) -> PathBuf {
        self.top.join(group)
    }

    /// Creates a group if it does not exist, and returns its inode, which is its cgroup ID.
    ///
    /// # Panics
    /// Panics if the group cannot be created.
    pub fn make(&self, group: &str) -> u64 {
        let dir = self.dir(group);
        if !dir.exists() {
            std::fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        }
        std::fs::metadata(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())).ino()
    }

    /// Whether groups have this file. Checks the top cgroup.
    #[must_use]
    pub fn has(&self, file: &str) -> bool {
        self.dir(file).exists()
    }

    /// Writes to a file of a group.
    ///
    /// # Panics
    /// Panics if the kernel refuses the value.
    pub fn set(&self, group: &str, file: &str, value: &str) {
        let path = self.dir(group).join(file);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{} {value}: {error}", path.display()));
    }

    /// Moves a process into a group.
    ///
    /// # Panics
    /// Panics if the kernel refuses the move.
    pub fn enter(&self, group: &str, pid: u32) {
        self.set(group, "cgroup.procs", &pid.to_string());
    }

    /// Starts a shell script in a group, pinned to one CPU if `cpu` is given, and waits until the script has entered
    /// the group.
    ///
    /// # Panics
    /// Panics if the script does not start.
    pub fn start(&mut self, group: &str, cpu: Option<u32>, script: &str) -> u32 {
        let dir = self.dir(group);
        let pin = cpu.map_or_else(String::new, |cpu| format!("taskset -pc {cpu} $$ >/dev/null && "));
        let script = format!("echo $$ >{}/cgroup.procs && {pin} {script}", dir.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("a shell");
        let pid = child.id();
        self.running.push(child);
        until(format_args!("the command has entered {}", dir.display()), || members(&dir).contains(&pid));
        pid
    }

    /// Like [`Groups::start`], for a script that executes a program with several threads. Waits until `count` threads
    /// exist.
    pub fn start_threads(&mut self, group: &str, cpu: Option<u32>, script: &str, count: usize) -> u32 {
        let pid = self.start(group, cpu, script);
        until(format_args!("{count} threads have started"), || threads(pid) >= count);
        pid
    }

    /// Kills all processes in the groups, and waits until they have exited.
    pub fn end_all(&mut self) {
        holds_within(END_PATIENCE, || {
            let pids = members_below(&self.top);
            for pid in &pids {
                signal(*pid, Signal::KILL);
            }
            for child in &mut self.running {
                let _ = child.try_wait();
            }
            pids.is_empty()
        });
        for mut child in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes a group whose processes were killed.
    ///
    /// # Panics
    /// Panics if the group cannot be removed.
    pub fn remove(&self, group: &str) {
        let dir = self.dir(group);
        until(format_args!("{} is gone", dir.display()), || removed(&dir));
    }

    /// Kills all processes, and removes all groups except the top one.
    pub fn clear(&mut self) {
        self.end_all();
        for child in children(&self.top) {
            until(format_args!("{} is gone", child.display()), || removed(&child));
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.end_all();
        removed_within(END_PATIENCE, &self.top);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_empty_and_gone() {
        let nowhere = Path::new("/sys/fs/cgroup/no/such/group");
        assert!(members(nowhere).is_empty() && members_below(nowhere).is_empty());
        assert!(removed_within(Duration::ZERO, nowhere));
    }
}
