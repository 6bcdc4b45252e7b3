//! All access to the operating system goes through this crate; it is the part to audit for code that runs as root.
//!
//! ```text
//! sensors ──read──►  trait Host  ◄──write── drivers, lab
//!                    │        │
//!               LinuxHost   FakeHost (feature "fake": cgroup trees in memory that obey the
//!              (dirfd+inode)          rules the kernel was measured to obey)
//! ```
//!
//! A cgroup is a [`Dir`]: an open directory and its inode. A path serves only to find the cgroup. After a group is
//! removed, every operation through the old `Dir` fails with `ENODEV` or `ENOENT`, even if a new group of the same name
//! exists (measured on 6.18).
//! A process is a [`Process`]: its PID and start time, held by a pidfd.
//! * [`Host::write`] is one `write(2)` of one value. The caller reads the value back, because the expected value
//!   depends on the knob table.
//!
//! The same conformance script (`tests/conformance.txt`) runs on the real host and on the fake host.

#![allow(clippy::disallowed_methods, reason = "this is the one crate that may call these functions")]

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
pub use commensal_core::process::{Cookie, Exit, Policy, Scheduling, Signal};
pub use counters::{Counters, Event};
pub use dir::Dir;
pub use error::{HostError, Result};
#[cfg(feature = "faults")]
pub use faults::FaultyHost as LinuxHost;
#[cfg(not(feature = "faults"))]
pub use linux::LinuxHost;
pub use locks::{Lock, LockFile, Watch};
pub use names::{hold_name, name_holder, peer};
pub use open::resolved;
pub use privileges::{Capability, give_up, keep_only, raised};
pub use process::{Child, Process, SpawnSpec, Stderr, Stdin, Stdout, precise_thread};
pub use waiting::{FolderEvent, For, GroupWatch, PressureTriggers, Source, Stream, Waker};

use commensal_core::cpuset::CpuSet;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Maximum size in bytes of a state file that has no limit of its own.
pub const STATE_FILE_MOST: u64 = 64 << 20;
/// Maximum size in bytes of the small state files, such as locks and the files in which agents and waiting commands
/// describe themselves.
pub const SMALL_STATE_FILE_MOST: u64 = 64 << 10;

/// The operations that sensors, drivers and the lab may perform on the machine. Paths are absolute; cgroups are
/// accessed through [`Dir`].
pub trait Host {
    /// Reads the whole of a small file (procfs, sysfs, configuration).
    fn read_file(&self, path: &Path) -> Result<String>;

    /// Reads a configuration file like [`Host::read_file`]. If this host is guarded, a file that other users could have
    /// written is refused (`EPERM`).
    fn read_trusted(&self, path: &Path) -> Result<String>;

    /// Refuses (`EPERM`) a directory if other users could have put a file into it, or could have replaced it or a
    /// directory above it. Does nothing if this host is not guarded.
    fn trust_folder(&self, path: &Path) -> Result<()>;

    /// Whether this host refuses state and configuration files that other users could have written.
    fn is_guarded(&self) -> bool;

    /// Returns the target of a symbolic link, such as `/proc/PID/exe`.
    fn link(&self, path: &Path) -> Result<String>;

    /// Returns the names in a directory, sorted.
    fn list(&self, path: &Path) -> Result<Vec<String>>;

    /// Sends `request` to the local (Unix) socket at `path` and returns everything received until the other side
    /// closes: at most 8 MiB. The whole exchange takes at most `patience` (`ETIMEDOUT`).
    fn ask(&self, path: &Path, request: &str, patience: Duration) -> Result<String>;

    /// Like [`Host::ask`], but sends nothing unless the process that listens at `path` belongs to root or this user,
    /// and never follows a symbolic link ([`HostError::is_disbelief`]). The fake host has no other users, so there
    /// `ask_own` is the same as `ask`.
    fn ask_own(&self, path: &Path, request: &str, patience: Duration) -> Result<String> {
        self.ask(path, request, patience)
    }

    /// Listens on a local (Unix) socket at `path` that only this user can connect to: its mode is 0600 from the
    /// beginning. A socket file on which no process listens any more is replaced. `EADDRINUSE` if a process listens on
    /// it, `EEXIST` if the file is not a socket.
    fn listen(&mut self, path: &Path) -> Result<UnixListener>;

    /// Returns the PID of the process that listens on the local socket at `path`; `None` if no process does. `EAGAIN`
    /// if a process listens, and its queue is full. That process sees a connection that closes immediately.
    fn listener(&self, path: &Path) -> Result<Option<u32>>;

    /// Like [`Host::listen`], but members of `group` can connect as well: group and mode (0660) are set before the
    /// socket exists at `path`. Creates the socket's directory with mode 0755 if it does not exist. If this host is
    /// guarded, a directory that others can write is refused (`EPERM`).
    fn listen_for(&mut self, path: &Path, group: u32) -> Result<UnixListener>;

    /// Opens a cgroup directory by absolute path. `EINVAL` if it is not in a cgroup file system, or if a component of
    /// the path is `.`, `..` or empty.
    fn open(&mut self, path: &Path) -> Result<Dir>;

    /// Opens a child group. `name` is one path component.
    fn open_child(&mut self, parent: Dir, name: &str) -> Result<Dir>;

    /// Returns the names of the child groups, sorted.
    fn children(&mut self, dir: Dir) -> Result<Vec<String>>;

    /// Reads a control file.
    fn read(&mut self, dir: Dir, file: &str) -> Result<String>;

    /// Writes one value to a control file with one `write(2)`.
    fn write(&mut self, dir: Dir, file: &str, value: &str) -> Result<()>;

    /// Creates a child group.
    fn mkdir(&mut self, parent: Dir, name: &str) -> Result<Dir>;

    /// Removes the child group `name`, if it still is the one with this inode (`ENOENT` otherwise). Some kernels
    /// count a process as a member for a moment after its parent has seen it exit, when `cgroup.procs` no longer lists
    /// it: the removal waits up to half a second for such processes.
    fn rmdir(&mut self, parent: Dir, name: &str, inode: u64) -> Result<()>;

    /// Renames the child group `from` to `to`, if it still is the one with this inode. Only cgroup v1 supports this (v2
    /// returns EPERM), and only to a name that is free (`EEXIST` otherwise).
    fn rename(&mut self, parent: Dir, from: &str, inode: u64, to: &str) -> Result<()>;

    /// Reads an extended attribute of a group, such as systemd's `trusted.delegate`. `None` if the group does not have
    /// it, or the hierarchy does not store attributes.
    fn attribute(&mut self, dir: Dir, name: &str) -> Result<Option<String>>;

    /// Returns the names of a group's extended attributes that begin with `prefix`, sorted; empty if the hierarchy does
    /// not store attributes.
    fn attributes(&mut self, dir: Dir, prefix: &str) -> Result<Vec<String>>;

    /// Sets an extended attribute of a group, or removes it (a missing one is not an error). Only root may write
    /// attributes that begin with `trusted.`. Attributes exist as long as the group.
    fn set_attribute(&mut self, dir: Dir, name: &str, value: Option<&str>) -> Result<()>;

    /// Takes the exclusive lock of a group's directory, or returns `None` when another process holds it. The lock is
    /// the same in every mount and namespace; it is advisory, needs no privileges, and is released when its holder
    /// exits.
    fn lock_group(&mut self, dir: Dir) -> Result<Option<Lock>>;

    /// Whether this user may write the control file; does not write it.
    fn may_write(&mut self, dir: Dir, file: &str) -> bool;

    /// Writes a machine-wide kernel setting below `/proc/sys`.
    fn write_setting(&mut self, path: &Path, value: &str) -> Result<()>;

    /// Closes the descriptors of `dir`.
    fn close(&mut self, dir: Dir);

    /// Starts a process, which enters every group of the spec before the first instruction of its program.
    fn spawn(&mut self, spec: &SpawnSpec) -> Result<Child>;

    /// Identifies a running process; `ESRCH` if there is none.
    fn process(&mut self, pid: u32) -> Result<Process>;

    /// Sends a signal to exactly this process. `ESRCH` if it no longer exists, even if its PID was reused.
    fn signal(&mut self, process: &Process, signal: Signal) -> Result<()>;

    /// Makes this process the new parent of descendants whose parent exits (`PR_SET_CHILD_SUBREAPER`), or ends that.
    fn adopt_orphans(&mut self, adopt: bool) -> Result<()>;

    /// Returns the core-scheduling cookie of a thread; 0 means none. `EINVAL` without `CONFIG_SCHED_CORE`, `ENODEV`
    /// without SMT.
    fn cookie(&mut self, tid: u32) -> Result<u64>;

    /// Gives every thread of `tids` the same core-scheduling cookie. Threads that have exited meanwhile are skipped.
    fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Result<()>;

    /// Pins a thread to these CPUs (`sched_setaffinity(2)`). `EINVAL` if no CPU of the set is online and in the
    /// thread's cpuset.
    fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Result<()>;

    /// Sets a thread's scheduling policy to one without a priority (`SCHED_NORMAL` is 0). The nice value does not
    /// change.
    fn set_policy(&mut self, tid: u32, policy: i32) -> Result<()>;

    /// Returns a thread's scheduling attributes (`sched_getattr(2)`).
    fn scheduling(&self, tid: u32) -> Result<Scheduling>;

    /// Sets a thread's scheduling attributes (`sched_setattr(2)`). The nice value does not change. `EPERM` for a
    /// real-time policy in a v1 group without a real-time budget.
    fn set_scheduling(&mut self, tid: u32, to: &Scheduling) -> Result<()>;

    /// Starts performance counters for the tasks in and below a group, on `cpus`. `ENOENT` when the group is not in the
    /// hierarchy that has `perf_event` (the unified one, unless it is mounted for v1), and also without a performance
    /// monitoring unit for one of the events.
    fn count(&mut self, dir: Dir, cpus: &CpuSet, events: &[Event]) -> Result<Counters>;

    /// Returns the effective user ID of this process.
    fn euid(&self) -> u32;

    /// Creates a directory and its parents, for state files.
    fn state_dir(&mut self, path: &Path) -> Result<()>;

    /// Reads a state file of at most [`STATE_FILE_MOST`] bytes; see [`Host::state_read_within`].
    fn state_read(&mut self, path: &Path) -> Result<Option<String>> {
        self.state_read_within(path, STATE_FILE_MOST)
    }

    /// Reads a state file; `None` if it does not exist. `EFBIG` if it has more than `most` bytes.
    fn state_read_within(&mut self, path: &Path, most: u64) -> Result<Option<String>>;

    /// Appends to a state file and returns when the data is on disk (`fsync`, also of the directory if the file is
    /// new). If the write fails, no part of `text` stays in the file.
    fn state_append(&mut self, path: &Path, text: &str) -> Result<()>;

    /// Replaces a state file as a whole and durably (write a temporary file, `fsync`, rename).
    fn state_replace(&mut self, path: &Path, text: &str) -> Result<()>;

    /// Renames a state file durably. If a file of the new name exists, this replaces it.
    fn state_rename(&mut self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a state file; a missing one is not an error.
    fn state_remove(&mut self, path: &Path) -> Result<()>;

    /// Removes a state directory with everything in it, without following symbolic links; a missing one is not an
    /// error.
    fn state_remove_all(&mut self, path: &Path) -> Result<()>;

    /// Returns the number of bytes that this user may still write to the file system of `path`, or of its nearest
    /// existing parent directory.
    fn free_bytes(&self, path: &Path) -> Result<u64>;

    /// Takes the exclusive lock of a file, or returns `None` if another process holds it. The kernel releases it when
    /// the holder exits.
    fn state_lock(&mut self, path: &Path) -> Result<Option<Lock>>;

    /// Creates a state file, locks it and writes `text`. `EEXIST` if the file exists already; if writing fails, the
    /// file is removed. The file may be lost in a crash: a lock is meaningless after a reboot.
    fn state_lock_new(&mut self, path: &Path, text: &str) -> Result<Lock>;

    /// Opens a state file to test its lock or to wait for it; `None` if the file does not exist.
    fn state_lock_file(&self, path: &Path) -> Result<Option<LockFile>>;

    /// Watches directories of state files. `EMFILE` if this user has too many inotify instances (`fs.inotify`).
    fn state_watch(&self, folders: &[&Path]) -> Result<Watch>;

    /// Returns a counter that increases with each operation on a cgroup and each [`Host::read_file`]. If the counter
    /// does not change, the host is idle or blocked in a call.
    fn pulse(&self) -> Arc<AtomicU64>;

    /// Returns the time since boot, including suspend (`CLOCK_BOOTTIME`): a clock that is the same for every process,
    /// and that no process can set.
    fn boot_time(&self) -> Duration;
}

/// Returns freed memory that the allocator keeps to the system (glibc's `malloc_trim`).
pub fn trim_memory() {
    // SAFETY: takes no pointer, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Lets glibc merge freed pieces of memory at once, without its lists of small pieces (`M_MXFAST` in mallopt(3)). Such
/// lists are merged when a larger piece is allocated, which a long-running process with a large heap does again and again.
pub fn merge_freed_memory() {
    // SAFETY: takes no pointer.
    unsafe { libc::mallopt(libc::M_MXFAST, 0) };
}

/// Lets glibc keep freed memory until [`trim_memory`]: repeatedly returning tens of MiB to the system costs page
/// faults.
pub fn keep_memory() {
    // SAFETY: takes no pointer. 32 MiB is the most that glibc takes for the first, and any number for the second.
    unsafe {
        (libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20), libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30))
    };
}
