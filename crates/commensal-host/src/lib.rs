//! All access to the operating system goes through this crate; it is the part to audit for code that runs as root.
//!
//! ```text
//! sensors ──read──►  trait Host  ◄──write── drivers, lab
//!                    │        │
//!               LinuxHost   FakeHost (feature "fake": cgroup trees in memory that obey the
//!              (dirfd+inode)          rules the kernel was measured to obey)
//! ```
//!
//! * A cgroup is a [`Dir`]: an open directory and its inode. A path is only used to find it; when the group is removed,
//!   every operation through the old `Dir` fails with `ENODEV` or `ENOENT`, even after a new group of the same name
//!   appeared (measured on 6.18).
//! * A process is a [`Process`]: its pid and start time, held by a pidfd.
//! * [`Host::write`] is one `write(2)` of one value. The caller reads the value back, because the expected value
//!   depends on the knob table.
//!
//! The same conformance script (`tests/conformance.txt`) runs on both hosts.

#![allow(clippy::disallowed_methods, reason = "this crate is the door that the lint sends everyone to")]

mod counters;
mod dir;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
#[cfg(feature = "faults")]
mod faults;
mod linux;
mod locks;
mod names;
mod open;
mod privileges;
mod process;
mod state;
mod waiting;

pub use commensal_core::actual::below;
pub use commensal_core::process::{Cookie, Exit, Policy, Signal};
pub use counters::{Counters, Event};
pub use dir::Dir;
pub use error::{HostError, Result};
#[cfg(feature = "faults")]
pub use faults::FaultyHost as LinuxHost;
#[cfg(not(feature = "faults"))]
pub use linux::LinuxHost;
pub use locks::{Lock, LockFile, Watch};
pub use names::{hold_name, name_holder, peer};
pub use privileges::{Capability, give_up, keep_only, raised};
pub use process::{Child, Process, SpawnSpec, Stderr, Stdin, Stdout, precise_thread};
pub use waiting::{FolderEvent, For, GroupWatch, PressureTrigger, Sources, Stream, Waker, Woken};

use commensal_core::cpuset::CpuSet;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The operations that sensors, drivers and the lab may perform on the machine. Paths are absolute; cgroups are
/// accessed through [`Dir`].
pub trait Host {
    /// Reads the whole of a small file (procfs, sysfs, configuration).
    fn read_file(&self, path: &Path) -> Result<String>;

    /// Reads a configuration file as [`Host::read_file`] does, but refuses (`EPERM`) one that others could have written, if
    /// this host is guarded.
    fn read_trusted(&self, path: &Path) -> Result<String>;

    /// Whether state and configuration that others could have written are refused.
    fn is_guarded(&self) -> bool;

    /// Target of a symbolic link, such as `/proc/PID/exe`.
    fn link(&self, path: &Path) -> Result<String>;

    /// Names in a directory, sorted.
    fn list(&self, path: &Path) -> Result<Vec<String>>;

    /// Sends `request` to the local (Unix) socket at `path` and returns everything received until the other side
    /// closes: at most 8 MiB. The whole exchange takes at most `patience` (`ETIMEDOUT`).
    fn ask(&self, path: &Path, request: &str, patience: Duration) -> Result<String>;

    /// As [`Host::ask`], but says nothing unless root or this user listens at `path`, and nothing through a symbolic link
    /// ([`HostError::is_disbelief`]). A machine in memory has no other users.
    fn ask_own(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        self.ask(path, request, patience)
    }

    /// Listens on a local (Unix) socket at `path` that only this user reaches: its mode is 0600 from the first moment. A
    /// socket that nobody listens on any more is replaced; `EADDRINUSE` when somebody does, `EEXIST` when it is no socket.
    fn listen(&mut self, path: &Path) -> Result<UnixListener>;

    /// As [`Host::listen`], for a socket that the users of `group` reach as well: it is the group's, with mode 0660, before anybody
    /// can find it. Its folder is made with mode 0755 if it is not there; one that others can write is refused (`EPERM`), if this
    /// host is guarded.
    fn listen_for(&mut self, path: &Path, group: u32) -> Result<UnixListener>;

    /// Opens a cgroup directory by absolute path; `EINVAL` when it is none of a cgroup file system, or the path has `.`, `..` or an
    /// empty name in it.
    fn open(&mut self, path: &Path) -> Result<Dir>;

    /// Opens a child group. `name` is one path component.
    fn open_child(&mut self, parent: Dir, name: &str) -> Result<Dir>;

    /// Names of child groups, sorted.
    fn children(&mut self, dir: Dir) -> Result<Vec<String>>;

    /// Reads a control file.
    fn read(&mut self, dir: Dir, file: &str) -> Result<String>;

    /// Writes one value to a control file with one `write(2)`.
    fn write(&mut self, dir: Dir, file: &str, value: &str) -> Result<()>;

    /// Creates a child group.
    fn mkdir(&mut self, parent: Dir, name: &str) -> Result<Dir>;

    /// Removes the child group `name`, if it still is the one with this inode (`ENOENT` otherwise).
    fn rmdir(&mut self, parent: Dir, name: &str, inode: u64) -> Result<()>;

    /// Renames the child group `from` to `to`, if it still is the one with this inode. Only cgroup v1 supports this (v2
    /// returns EPERM), and only to a name that is free (`EEXIST` otherwise).
    fn rename(&mut self, parent: Dir, from: &str, inode: u64, to: &str) -> Result<()>;

    /// An extended attribute of a group, such as systemd's `trusted.delegate`; `None` if the group does not have it, or
    /// the hierarchy stores none.
    fn attribute(&mut self, dir: Dir, name: &str) -> Result<Option<String>>;

    /// Names of a group's extended attributes that begin with `prefix`, sorted; empty where the hierarchy stores none.
    fn attributes(&mut self, dir: Dir, prefix: &str) -> Result<Vec<String>>;

    /// Sets an extended attribute of a group, or removes it (a missing one is not an error). Only root may write
    /// attributes that begin with `trusted.`. Attributes exist as long as the group.
    fn set_attribute(&mut self, dir: Dir, name: &str, value: Option<&str>) -> Result<()>;

    /// Takes the exclusive lock of a group's directory, or returns `None` when another process holds it. The lock is
    /// the same in every mount and namespace; it is advisory, needs no privileges, and is released when its holder
    /// exits.
    fn lock_group(&mut self, dir: Dir) -> Result<Option<Lock>>;

    /// Whether this user may write the control file, without writing it.
    fn may_write(&mut self, dir: Dir, file: &str) -> bool;

    /// Writes a machine-wide kernel setting below `/proc/sys`.
    fn write_setting(&mut self, path: &Path, value: &str) -> Result<()>;

    /// Closes the descriptors of `dir`.
    fn close(&mut self, dir: Dir);

    /// Starts a process. It enters every group of the spec before the first instruction of its program.
    fn spawn(&mut self, spec: &SpawnSpec) -> Result<Child>;

    /// Identifies a running process; `ESRCH` if there is none.
    fn process(&mut self, pid: u32) -> Result<Process>;

    /// Sends a signal to exactly this process; `ESRCH` once it is gone, even if its PID was reused.
    fn signal(&mut self, process: &Process, signal: Signal) -> Result<()>;

    /// Core-scheduling cookie of a thread; 0 is none. `EINVAL` without `CONFIG_SCHED_CORE`, `ENODEV` without SMT.
    fn cookie(&mut self, tid: u32) -> Result<u64>;

    /// Gives every thread of `tids` the same core-scheduling cookie. Threads that have exited meanwhile are skipped.
    fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Result<()>;

    /// Pins a thread to these CPUs (`sched_setaffinity(2)`). `EINVAL` when none of them is online and in its cpuset.
    fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Result<()>;

    /// Sets a thread's policy, one without a priority (`SCHED_NORMAL` is 0); its nice value stays.
    fn set_policy(&mut self, tid: u32, policy: i32) -> Result<()>;

    /// Starts performance counters for the tasks in and below a group, on `cpus`. `ENOENT` when the group is not in the
    /// hierarchy that has `perf_event` (the unified one, unless it is mounted for v1), and also without a performance
    /// monitoring unit for one of the events.
    fn count(&mut self, dir: Dir, cpus: &CpuSet, events: &[Event]) -> Result<Counters>;

    /// Effective user number of this process.
    fn euid(&self) -> u32;

    /// Makes a directory and its parents, for state files.
    fn state_dir(&mut self, path: &Path) -> Result<()>;

    /// Reads a state file; `None` if there is none.
    fn state_read(&mut self, path: &Path) -> Result<Option<String>>;

    /// Appends to a state file and returns when it is on disk (`fsync`, also of the directory when the file is new). If
    /// the disk refuses, no part of `text` stays in the file.
    fn state_append(&mut self, path: &Path, text: &str) -> Result<()>;

    /// Replaces a state file as a whole and durably (write a temporary file, `fsync`, rename).
    fn state_replace(&mut self, path: &Path, text: &str) -> Result<()>;

    /// Renames a state file durably; an existing file of the new name is replaced.
    fn state_rename(&mut self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a state file; a missing one is not an error.
    fn state_remove(&mut self, path: &Path) -> Result<()>;

    /// Removes a state directory with everything in it, without following symbolic links; a missing one is not an
    /// error.
    fn state_remove_all(&mut self, path: &Path) -> Result<()>;

    /// Bytes that this user may still write to the file system of `path`, or of its nearest existing parent directory.
    fn free_bytes(&self, path: &Path) -> Result<u64>;

    /// Takes the exclusive lock of a file, or returns `None` when another process holds it. The kernel releases it when
    /// the holder dies.
    fn state_lock(&mut self, path: &Path) -> Result<Option<Lock>>;

    /// Creates a state file with `text` and locks it from the beginning; `EEXIST` if it exists already, and nothing is
    /// left when the disk refuses. Not durable: a lock is meaningless after a reboot.
    fn state_lock_new(&mut self, path: &Path, text: &str) -> Result<Lock>;

    /// Opens a state file to test its lock or to wait for it; `None` if there is none.
    fn state_lock_file(&self, path: &Path) -> Result<Option<LockFile>>;

    /// Watches directories of state files. `EMFILE` when this user has too many watches (`fs.inotify`).
    fn state_watch(&self, folders: &[&Path]) -> Result<Watch>;

    /// A counter that grows with every operation of this host: while it does not grow, the host does nothing.
    fn pulse(&self) -> Arc<AtomicU64>;

    /// Time since boot, sleep included (`CLOCK_BOOTTIME`): the same for every process, and it cannot be set.
    fn boot_time(&self) -> Duration;
}

/// Returns freed memory that the allocator keeps to the system (glibc's `malloc_trim`).
pub fn trim_memory() {
    // SAFETY: takes no pointer, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Lets glibc keep freed memory until [`trim_memory`]: returning tens of MiB again and again costs page faults.
pub fn keep_memory() {
    // SAFETY: takes no pointer. 32 MiB is the most that glibc takes for the first, and any number for the second.
    unsafe {
        (libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20), libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30))
    };
}
