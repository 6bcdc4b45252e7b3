//! A machine in memory that obeys the kernel's cgroup rules, for tests of all crates above this one.
//!
//! ```text
//! FakeHost ── another() ──► FakeHost      two processes of one machine
//!    │  copy()                                        a copy of this machine
//!    │  set_file, add_process, set_usage, vanish …    changes made by other programs
//!    │  fail_write, crash_after, read_only …          faults
//!    ▼  processes, mutations, snapshot                what the code under test did
//! Machine: hierarchies (tree, files), rules of writes (rules, limits), processes (procs), files (fixture)
//! ```
//!
//! Files, defaults, ranges and normalisation are those of the knob table (the table of kernel settings); `fake/` has
//! the rules that the table cannot express. The script `tests/conformance.txt` runs on this host and on the kernel.
//!
//! **Faults and crashes count successful mutations**: every call that changes cgroups, processes, threads, kernel
//! settings or state files, except locking an existing file, extended attributes and `state_remove_all`.
//! [`FakeHost::mutations`] lists the same calls, so `for n in 0..mutations().len()` with [`FakeHost::crash_after`]
//! tests a crash at every point.

mod compute;
mod faults;
mod files;
mod fixture;
mod host;
mod hotplug;
mod limits;
mod locks;
mod machine;
mod opening;
mod parse;
mod procs;
mod rules;
mod running;
mod tree;
mod vendor;

pub use files::driven_files;
pub use fixture::FixtureError;
pub use machine::{Effect, FakeLooks, Mutation, Trouble, VendorKernel};
pub(crate) use opening::{FakeLockFile, Token};
pub use procs::FakeProcess;
pub(crate) use running::Running;

use crate::{Exit, Scheduling};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::ownership::Ownership;
use commensal_core::topology::Device;
use machine::{Faults, Machine, Service};
use procs::place;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Controllers with a separate hierarchy in [`FakeHost::v1`].
const V1: [Controller; 7] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Cpuset,
    Controller::Memory,
    Controller::Io,
    Controller::Pids,
    Controller::Freezer,
];
const V2: [Controller; 5] =
    [Controller::Cpuset, Controller::Cpu, Controller::Io, Controller::Memory, Controller::Pids];

/// PID of the process that uses a fake host: its real PID, so that code which reads its own PID finds itself in the
/// fake machine.
fn own_pid() -> u32 {
    std::process::id()
}

/// One process's view of a machine in memory; see the [module](self).
#[derive(Debug)]
pub struct FakeHost {
    machine: Arc<Mutex<Machine>>,
    life: u32,
    dirs: Vec<Option<OpenDir>>,
}

/// A directory that this host has open.
#[derive(Debug)]
struct OpenDir {
    inode: u64,
    path: PathBuf,
    generation: u32,
    /// Control files opened through this directory. Like the real host, the fake keeps them open, so that reading a
    /// file of a removed group returns ENODEV as on the real host. (Opening the file again would return ENOENT.)
    held: BTreeSet<String>,
}

impl FakeHost {
    /// A machine with cgroup v1: one hierarchy per controller, mounted at `/sys/fs/cgroup/NAME`.
    #[must_use]
    pub fn v1(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mounts =
            V1.map(|controller| (format!("/sys/fs/cgroup/{}", controller.v1_name()), vec![controller]));
        FakeHost::mounted(cpus, memory_bytes, &mounts, None)
    }

    /// A machine with cgroup v1 as most distributions mounted it: cpu and cpuacct share one hierarchy at
    /// `/sys/fs/cgroup/cpu,cpuacct`.
    #[must_use]
    pub fn v1_comounted(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mut mounts = vec![("/sys/fs/cgroup/cpu,cpuacct".to_owned(), V1[..2].to_vec())];
        mounts.extend(V1[2..].iter().map(|one| (format!("/sys/fs/cgroup/{}", one.v1_name()), vec![*one])));
        FakeHost::mounted(cpus, memory_bytes, &mounts, None)
    }

    /// A machine with cgroup v2: one hierarchy with all controllers at `/sys/fs/cgroup`. No controller is enabled for
    /// children yet.
    #[must_use]
    pub fn v2(cpus: u32, memory_bytes: u64) -> FakeHost {
        FakeHost::mounted(cpus, memory_bytes, &[], Some(("/sys/fs/cgroup", &V2)))
    }

    /// Like [`FakeHost::v1`], with a v2 hierarchy without controllers at `/sys/fs/cgroup/unified`.
    #[must_use]
    pub fn hybrid(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mounts =
            V1.map(|controller| (format!("/sys/fs/cgroup/{}", controller.v1_name()), vec![controller]));
        FakeHost::mounted(cpus, memory_bytes, &mounts, Some(("/sys/fs/cgroup/unified", &[])))
    }

    /// A machine with any mixture: v1 hierarchies by mount point, and a unified hierarchy with the remaining
    /// controllers.
    #[must_use]
    pub fn mounted(
        cpus: u32,
        memory_bytes: u64,
        v1: &[(String, Vec<Controller>)],
        v2: Option<(&str, &[Controller])>,
    ) -> FakeHost {
        let mut machine = Machine::new((0..cpus).collect());
        for (mount, controllers) in v1 {
            machine.mount(mount, Version::V1, controllers);
        }
        if let Some((mount, controllers)) = v2 {
            machine.mount(mount, Version::V2, controllers);
        }
        for tree in machine.trees.clone() {
            let mut controllers = tree.controllers;
            controllers.push(Controller::Core);
            machine.populate(tree.root, &controllers);
        }
        machine.kernel.devices.insert(Device { major: 254, minor: 0 });
        fixture::machine_files(&mut machine, memory_bytes);
        FakeHost::around(machine)
    }

    fn around(mut machine: Machine) -> FakeHost {
        let roots = machine.roots();
        machine.add(own_pid(), roots, None);
        FakeHost { machine: Arc::new(Mutex::new(machine)), life: 0, dirs: Vec::new() }
    }

    /// Creates a machine from text. Comment lines start with `#`; every other line is `path<TAB>value`, with `\n` for a
    /// line break, `\t` for a tab and `\\` for a backslash. Hierarchies are created for the cgroup mounts in its
    /// `/proc/mounts`; the groups in them have only the files that the text names.
    ///
    /// # Errors
    /// Returns an error when a line does not have that form.
    pub fn from_fixture(text: &str) -> Result<FakeHost, FixtureError> {
        fixture::read(text).map(FakeHost::around)
    }

    /// Returns the machines of `fixtures/*.tree` in the source tree, with their names.
    ///
    /// # Errors
    /// Returns an error when one of these files cannot be read.
    pub fn fixtures() -> std::io::Result<Vec<(String, FakeHost)>> {
        let read = |(name, text): (String, String)| match FakeHost::from_fixture(&text) {
            Ok(fake) => Ok((name, fake)),
            Err(error) => Err(std::io::Error::other(format!("{name}: {error}"))),
        };
        fixture::trees()?.into_iter().map(read).collect()
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a host for another process of the same machine, with the same kernel, files, locks and faults. Tests
    /// also use it to inspect and change the machine while the code under test owns the first host.
    #[must_use]
    pub fn another(&self) -> FakeHost {
        FakeHost { machine: Arc::clone(&self.machine), life: self.machine().life, dirs: Vec::new() }
    }

    /// Returns a host on a copy of this machine: groups, files, processes and faults. Later changes to one machine do
    /// not affect the other. In the copy no lock is held and [`FakeHost::mutations`] is empty; services on sockets are
    /// cloned.
    #[must_use]
    pub fn copy(&self) -> FakeHost {
        let machine = self.machine().copy();
        FakeHost { life: machine.life, machine: Arc::new(Mutex::new(machine)), dirs: Vec::new() }
    }

    /// Simulates a restart of the agent on the same machine: groups, processes and state files stay; open directories,
    /// locks and faults are dropped. Earlier hosts return EIO from now on.
    #[must_use]
    pub fn restart(&self) -> FakeHost {
        let mut machine = self.machine();
        machine.crash();
        machine.faults = Faults::default();
        machine.life += 1;
        drop(machine);
        self.another()
    }

    /// Sets the text of a file, and creates the file if it does not exist. A file inside a group is a control file; the
    /// kernel's rules for writing it are not checked.
    pub fn set_file(&self, path: impl AsRef<Path>, text: &str) {
        let mut machine = self.machine();
        let path = path.as_ref();
        match machine.locate(path) {
            Some((inode, left)) if left.components().count() == 1 => {
                machine.store(inode, &left.to_string_lossy(), text.trim_end_matches('\n').to_owned());
            }
            _ => {
                machine.plain.files.insert(path.to_owned(), text.to_owned());
            }
        }
    }

    /// Makes the state file at `path` something other than a regular file, such as `a named pipe` or `a directory`.
    pub fn set_kind(&self, path: impl Into<PathBuf>, kind: &'static str) {
        let path = path.into();
        let mut machine = self.machine();
        // A listing of the directory must still contain the name.
        machine.plain.files.entry(path.clone()).or_default();
        machine.plain.odd.insert(path, kind);
    }

    /// Makes a state file report this size in bytes. A reader that allows this size still gets the file's text.
    pub fn set_size(&self, path: impl Into<PathBuf>, bytes: u64) {
        self.machine().plain.sizes.insert(path.into(), bytes);
    }

    /// Sets owner and mode of a file or directory. By default every file and directory belongs to root, and only root
    /// may write to it.
    pub fn set_owner(&self, path: impl Into<PathBuf>, owner: u32, mode: u32) {
        self.machine().plain.owners.insert(path.into(), Ownership { owner, mode });
    }

    /// Removes a file, as on a kernel without this file.
    pub fn remove_file(&self, path: impl AsRef<Path>) {
        let mut machine = self.machine();
        let path = path.as_ref();
        if let Some((inode, left)) = machine.locate(path)
            && let Some(group) = machine.groups.get_mut(&inode)
        {
            group.files.remove(left.to_string_lossy().as_ref());
        }
        machine.plain.files.remove(path);
    }

    /// Unplugs the device: its limits disappear, and writing a limit for it returns ENODEV. The device's files in
    /// `/sys` stay.
    pub fn unplug(&self, device: Device) {
        let mut machine = self.machine();
        machine.kernel.devices.remove(&device);
        let line = format!("{device} ");
        for group in machine.groups.values_mut() {
            for text in group.files.values_mut().flatten() {
                let kept: Vec<&str> = text.lines().filter(|one| !one.starts_with(&line)).collect();
                *text = kept.join("\n");
            }
        }
    }

    /// Removes this file from all existing and future groups, as on a kernel without this file.
    pub fn without_file(&self, name: &str) {
        let mut machine = self.machine();
        machine.kernel.lacking.insert(name.to_owned());
        for group in machine.groups.values_mut() {
            group.files.remove(name);
        }
    }

    /// Adds a block device, in addition to `254:0`, for which I/O limits can be written.
    pub fn add_device(&self, device: Device) {
        self.machine().kernel.devices.insert(device);
    }

    /// Emulates a vendor kernel: adds its control files to all existing and future cgroups, its sysctl (off) and its
    /// release string.
    pub fn vendor_kernel(&self, kernel: VendorKernel) {
        let mut machine = self.machine();
        machine.kernel.vendor = Some(kernel);
        for inode in machine.groups.keys().copied().collect::<Vec<_>>() {
            let controllers =
                machine.group(inode).map(|group| machine.controllers(group)).unwrap_or_default();
            machine.populate(inode, &controllers);
            if let (VendorKernel::OpenEuler { .. }, Ok(group)) = (kernel, machine.group_mut(inode)) {
                group.files.remove("cpu.idle");
            }
        }
        if let Some(switch) = kernel.switch() {
            machine.plain.files.insert(PathBuf::from(switch.path()), "0\n".to_owned());
        }
        for (path, text) in kernel.settings() {
            machine.plain.files.insert(PathBuf::from(path), (*text).to_owned());
        }
        machine
            .plain
            .files
            .insert(PathBuf::from("/proc/sys/kernel/osrelease"), format!("{}\n", kernel.release()));
    }

    /// Pairs the CPUs into cores of two threads.
    pub fn smt(&self) {
        let mut machine = self.machine();
        for cpu in machine.kernel.cpus.clone().iter() {
            let first = cpu / 2 * 2;
            let siblings = format!("{first}-{}\n", first + 1);
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            machine.plain.files.insert(PathBuf::from(format!("{folder}/thread_siblings_list")), siblings);
            machine
                .plain
                .files
                .insert(PathBuf::from(format!("{folder}/core_id")), format!("{}\n", first / 2));
        }
    }

    /// Puts this process into a cgroup namespace of its own, whose root is its present groups, with the mounts of before.
    pub fn unshare_cgroups(&self) {
        self.machine().unshare(Some(own_pid()));
    }

    /// Returns to the initial cgroup namespace.
    pub fn leave_namespace(&self) {
        self.machine().unshare(None);
    }

    /// Takes a CPU offline, or brings it back online.
    pub fn set_online(&self, cpu: u32, online: bool) {
        self.machine().set_online(cpu, online);
    }

    /// Adds core scheduling to the kernel, with SMT on or off. With SMT off, cookies fail with `ENODEV`.
    pub fn core_scheduling(&self, smt: bool) {
        self.machine().kernel.core_sched = Some(smt);
    }

    /// Starts one more thread in the process, with the core-scheduling cookie of the process's first thread; returns
    /// its TID.
    pub fn add_thread(&self, pid: u32) -> u32 {
        self.machine().add_thread(pid)
    }

    /// Lets the process start one more thread during the next assignment of cookies.
    pub fn thread_appears(&self, pid: u32) {
        self.machine().faults.processes.threads_appear.push(pid);
    }

    /// Sets a thread's scheduling attributes without any check, as if another program or the thread itself had done so.
    pub fn schedule(&self, tid: u32, to: Scheduling) {
        let mut machine = self.machine();
        if let Some(process) = machine.processes.values_mut().find(|process| process.cookie(tid).is_some()) {
            process.scheduling.insert(tid, to);
        }
        machine.go_on();
    }

    /// Makes online work use every CPU from now on, or stops this. Meanwhile the code of processes in groups below
    /// level 0 (`cpu.qos_level`) does not run, not even their signal handlers, and the processes cannot be frozen.
    pub fn online_is_busy(&self, busy: bool) {
        let mut machine = self.machine();
        machine.kernel.online_is_busy = busy;
        machine.go_on();
    }

    /// Makes the process want a CPU all the time, or stops this. When the clock advances, such a process uses a CPU.
    pub fn wants_cpu(&self, pid: u32, wants: bool) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.wants_cpu = wants;
        }
    }

    /// Gives the process a handler for the signals that ask it to end: once its code runs, the process exits with this
    /// status.
    pub fn handles_sigterm(&self, pid: u32, status: i32) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.handler = Some(status);
        }
    }

    /// Sets a thread's core-scheduling cookie, as another program would.
    pub fn set_cookie(&self, tid: u32, cookie: u64) {
        let mut machine = self.machine();
        if let Some(process) = machine.processes.values_mut().find(|process| process.cookie(tid).is_some()) {
            process.set_cookie(tid, cookie);
        }
    }

    /// Gives the group to user 1000, as a service manager does when it delegates.
    pub fn give_to_user(&self, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.given = true;
        }
    }

    /// Makes groups unable to store extended attributes.
    pub fn refuse_attributes(&self) {
        self.machine().faults.no_attributes = true;
    }

    /// Makes groups able to store extended attributes again.
    pub fn accept_attributes(&self) {
        self.machine().faults.no_attributes = false;
    }

    /// Gives a group an extended attribute.
    pub fn give_attribute(&self, group: impl AsRef<Path>, name: &str, value: &str) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.attributes.insert(name.to_owned(), value.to_owned());
        }
    }

    /// Sets the memory that a group itself uses, in bytes; it cannot be reclaimed. Does nothing if the group does not
    /// exist.
    pub fn set_usage(&self, group: impl AsRef<Path>, bytes: u64) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.usage = bytes;
        }
    }

    /// Adds a process that commensal did not start, in these groups (absolute paths), and in the root groups of all
    /// other hierarchies. Returns its PID. Paths that are not groups are ignored.
    pub fn add_process(&self, groups: &[&str]) -> u32 {
        let mut machine = self.machine();
        let pid = machine.new_pid();
        place(&mut machine, pid, groups);
        pid
    }

    /// Starts a new process with the PID of one that has exited.
    pub fn reuse_pid(&self, pid: u32, groups: &[&str]) {
        place(&mut self.machine(), pid, groups);
    }

    /// Sets the attributes of a process that `/proc` shows, such as its program, user and parent.
    pub fn set_looks(&self, pid: u32, looks: FakeLooks) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.looks = looks;
        }
    }

    /// Replaces a process just before the next write of its PID to a `cgroup.procs`: the process exits, and a new one
    /// with the attributes `looks`, in `groups`, gets its PID.
    pub fn reuse_pid_before_move(&self, pid: u32, groups: &[&str], looks: FakeLooks) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        self.machine().faults.processes.reuse = Some((pid, groups, looks));
    }

    /// Makes this process start an identical child, in its own groups, just before the next write to a `cgroup.procs`.
    pub fn forks_before_move(&self, pid: u32) {
        self.machine().faults.processes.forks = Some(pid);
    }

    /// Makes this process begin to exit (`PF_EXITING`) around a write of its PID to a `cgroup.procs`: `moment` 0 is before
    /// the next write, 1 after it, 2 before the second write and so on. It stays in its groups, writes do not move it,
    /// and cgroup v1 shows it in `/`.
    pub fn exits_at_move(&self, pid: u32, moment: u32) {
        self.machine().faults.processes.exits = Some((pid, moment));
    }

    /// Makes this process start a child in the same groups and exit after the next read of a process list that contains
    /// it. The child then also starts a child and exits, and so on, `times` in all.
    pub fn hands_over(&self, pid: u32, times: u32) {
        self.machine().faults.processes.hands_over = Some((pid, times));
    }

    /// Sets the response of the local socket `path` to requests that begin with `request`. If several prefixes match a
    /// request, the longest one applies.
    pub fn answer(&self, path: impl Into<PathBuf>, request: &str, answer: &str) {
        self.machine().sockets.answers.insert((path.into(), request.to_owned()), answer.to_owned());
    }

    /// Makes `service` respond to requests to the local socket `path`, until another service replaces it. If `service`
    /// returns `None`, the request times out. `service` must not use this machine.
    pub fn serve(
        &self,
        path: impl Into<PathBuf>,
        service: impl FnMut(&str) -> Option<String> + Clone + Send + 'static,
    ) {
        self.machine().sockets.services.insert(path.into(), Service(Box::new(service)));
    }

    /// Removes the service of a socket.
    pub fn hang_up(&self, path: impl AsRef<Path>) {
        self.machine().sockets.services.remove(path.as_ref());
    }

    /// Moves a process as another program would, without checking the kernel's rules.
    pub fn move_process(&self, pid: u32, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.enter(inode, pid);
        }
    }

    /// Moves one thread as another program would, without checking the kernel's rules.
    pub fn move_thread(&self, tid: u32, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.put_thread(inode, tid);
        }
    }

    /// Makes a process exit in the given way.
    pub fn end(&self, pid: u32, exit: Exit) {
        if let Some(process) = self.machine().processes.get(&pid) {
            process.running.end(exit);
            if process.spec.is_none() {
                process.running.poll();
            }
        }
    }

    /// Makes the process ignore SIGTERM and SIGINT.
    pub fn ignores_sigterm(&self, pid: u32) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.ignores_sigterm = true;
        }
    }

    /// Makes starting this program fail with ENOENT.
    pub fn missing_program(&self, program: impl Into<PathBuf>) {
        self.machine().programs.missing.insert(program.into());
    }

    /// Sets the output (up to 64 KiB) of a program started with [`crate::Stdout::Pipe`].
    pub fn output_of(&self, program: impl Into<PathBuf>, text: &str) {
        self.machine().programs.outputs.insert(program.into(), text.to_owned());
    }

    /// Advances the clock. In that time every process that wants a CPU uses one, unless it starves.
    pub fn advance(&self, time: Duration) {
        self.machine().pass(time);
    }

    /// Advances the clock while the processes that were started with the argument `burn` compute. They share a CPU as
    /// was observed on the kernel that the machine emulates.
    pub fn run(&self, time: Duration) {
        self.machine().compute(time);
    }

    /// Returns every process that ever existed, by PID.
    #[must_use]
    pub fn processes(&self) -> Vec<FakeProcess> {
        let machine = self.machine();
        machine.processes.iter().map(|(pid, process)| machine.describe(*pid, process)).collect()
    }

    /// Removes a group and everything below it; their processes move to its parent.
    pub fn vanish(&self, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.vanish(inode);
        }
    }

    /// Makes the n-th mutation from now on fail with `errno`; 1 is the next mutation. Only successful mutations count.
    pub fn fail_write(&self, n: u32, errno: Errno) {
        self.machine().faults.fail = Some((n, errno));
    }

    /// Makes every change of a cgroup fail with `errno` after `n` more mutations, until [`FakeHost::refuse_nothing`].
    pub fn refuse_from(&self, n: u32, errno: Errno) {
        self.machine().faults.refuse = Some((n, errno));
    }

    /// Makes writes to files of this name fail with `errno` in every group, until [`FakeHost::refuse_nothing`]. With
    /// `""`, groups cannot be created or removed.
    pub fn refuse_file(&self, name: &str, errno: Errno) {
        self.machine().faults.closed = Some((name.to_owned(), errno));
    }

    /// Ends the effect of [`FakeHost::refuse_from`] and [`FakeHost::refuse_file`].
    pub fn refuse_nothing(&self) {
        let mut machine = self.machine();
        machine.faults.refuse = None;
        machine.faults.closed = None;
    }

    /// Makes the next write to a file of this name store `value` instead, without an error: like a kernel that treats
    /// the knob differently, or another program that overwrites the value immediately.
    pub fn takes_instead(&self, file: &str, value: &str) {
        self.machine().faults.instead = Some((file.to_owned(), value.to_owned()));
    }

    /// Injects a fault into one operation from now on. The fault replaces an earlier one, and lasts until
    /// [`FakeHost::no_trouble`].
    pub fn trouble(&self, trouble: Trouble) {
        self.trouble_times(trouble, 1);
    }

    /// Like [`FakeHost::trouble`]; a fault that does not last occurs this number of times.
    pub fn trouble_times(&self, trouble: Trouble, times: u32) {
        let mut machine = self.machine();
        machine.faults.trouble = (Some(trouble), 0);
        machine.faults.trouble_times = times;
    }

    /// Removes the fault of [`FakeHost::trouble`]. Returns how often the fault occurred.
    pub fn no_trouble(&self) -> u32 {
        std::mem::take(&mut self.machine().faults.trouble).1
    }

    /// Simulates a crash of the agent after `n` more mutations: every operation fails with EIO, the agent's locks are
    /// free, and children that were started with `die_with_parent` are killed.
    pub fn crash_after(&self, n: u32) {
        let mut machine = self.machine();
        machine.faults.crash = Some(n);
        if n == 0 {
            machine.crash();
        }
    }

    /// Whether the crash of [`FakeHost::crash_after`] has happened.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.machine().faults.crashed
    }

    /// Makes the cgroup file systems and kernel settings read-only: writes return EROFS.
    pub fn read_only(&self, on: bool) {
        self.machine().faults.read_only = on;
    }

    /// Makes this process run as user 1000: cgroup writes return EACCES, signals to other users' processes EPERM.
    pub fn unprivileged(&self, on: bool) {
        self.machine().faults.unprivileged = on;
    }

    /// Makes the file system of the state files full: writes return ENOSPC, and nothing is written.
    pub fn state_full(&self, on: bool) {
        self.machine().faults.state_full = on;
    }

    /// Returns the text of every knob of every group, by absolute path. If two snapshots are equal, the same groups
    /// exist with the same settings; processes are not included.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        self.machine().snapshot()
    }

    /// Returns the number of calls that hosts of this machine have made: reads and changes of cgroups, files, processes
    /// and state files. Some changes count twice.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.machine().log.calls.get()
    }

    /// Returns the mutations, oldest first.
    #[must_use]
    pub fn mutations(&self) -> Vec<Mutation> {
        self.machine().log.mutations.clone()
    }
}
