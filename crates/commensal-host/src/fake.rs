//! A machine in memory that obeys the kernel's cgroup rules; for tests of everything above this crate.
//!
//! ```text
//! FakeHost ── another() ──► FakeHost      two processes of one machine
//!    │  copy()                                        another machine that is as this one is now
//!    │  set_file, add_process, set_usage, vanish …    the world changes
//!    │  fail_write, crash_after, read_only …          things go wrong
//!    ▼  processes, mutations, snapshot                what was done
//! Machine: hierarchies (tree, files), rules of writes (rules, limits), processes (procs), files (fixture)
//! ```
//!
//! Files, defaults, ranges and normalisation come from the knob table; rules that a row cannot express are in `fake/`.
//! `tests/conformance.txt` runs on this host and on the kernel.
//!
//! **Faults and crashes count successful mutations**: write, mkdir, rmdir, spawn, signal, and `state_append`,
//! `state_replace`, `state_rename`, `state_remove`. [`FakeHost::mutations`] lists the same ones, so `for n in
//! 0..mutations().len()` with [`FakeHost::crash_after`] tests a crash at every point.

mod faults;
mod files;
mod fixture;
mod host;
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

use crate::Exit;
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

/// PID of a fake host's process: the real one, so that code which asks for its PID finds itself.
fn own_pid() -> u32 {
    std::process::id()
}

/// One process's view of a machine in memory. See the module.
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
    /// Control files opened through it: like the real host, the fake keeps them open, and an open file of a removed
    /// group returns ENODEV where opening it anew returns ENOENT.
    held: BTreeSet<String>,
}

impl FakeHost {
    /// cgroup v1: one hierarchy per controller, mounted at `/sys/fs/cgroup/NAME`.
    #[must_use]
    pub fn v1(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mounts =
            V1.map(|controller| (format!("/sys/fs/cgroup/{}", controller.v1_name()), vec![controller]));
        FakeHost::mounted(cpus, memory_bytes, &mounts, None)
    }

    /// cgroup v1 as most distributions mounted it: cpu and cpuacct are one hierarchy at
    /// `/sys/fs/cgroup/cpu,cpuacct`.
    #[must_use]
    pub fn v1_comounted(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mut mounts = vec![("/sys/fs/cgroup/cpu,cpuacct".to_owned(), V1[..2].to_vec())];
        mounts.extend(V1[2..].iter().map(|one| (format!("/sys/fs/cgroup/{}", one.v1_name()), vec![*one])));
        FakeHost::mounted(cpus, memory_bytes, &mounts, None)
    }

    /// cgroup v2: one hierarchy with every controller at `/sys/fs/cgroup`; none is enabled for children yet.
    #[must_use]
    pub fn v2(cpus: u32, memory_bytes: u64) -> FakeHost {
        FakeHost::mounted(cpus, memory_bytes, &[], Some(("/sys/fs/cgroup", &V2)))
    }

    /// [`FakeHost::v1`] and a v2 hierarchy without controllers at `/sys/fs/cgroup/unified`.
    #[must_use]
    pub fn hybrid(cpus: u32, memory_bytes: u64) -> FakeHost {
        let mounts =
            V1.map(|controller| (format!("/sys/fs/cgroup/{}", controller.v1_name()), vec![controller]));
        FakeHost::mounted(cpus, memory_bytes, &mounts, Some(("/sys/fs/cgroup/unified", &[])))
    }

    /// Any mixture: v1 hierarchies by mount point, and a unified one with the remaining controllers.
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
        machine.devices.insert(Device { major: 254, minor: 0 });
        fixture::machine_files(&mut machine, memory_bytes);
        FakeHost::around(machine)
    }

    fn around(mut machine: Machine) -> FakeHost {
        let roots = machine.roots();
        machine.add(own_pid(), roots, None);
        FakeHost { machine: Arc::new(Mutex::new(machine)), life: 0, dirs: Vec::new() }
    }

    /// A machine from text: comment lines start with `#`, others are `path<TAB>value` with `\n` for a line break, `\t`
    /// for a tab and `\\` for a backslash. Hierarchies are created for the cgroup mounts in its `/proc/mounts`; their
    /// groups have only the files that the text names.
    ///
    /// # Errors
    /// When a line is not of that form.
    pub fn from_fixture(text: &str) -> Result<FakeHost, FixtureError> {
        fixture::read(text).map(FakeHost::around)
    }

    /// The machines of `fixtures/*.tree` in the source tree, with their names.
    ///
    /// # Errors
    /// When one cannot be read.
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

    /// A host for another process of the same machine: it shares kernel, files, locks and faults. Tests also use it to
    /// inspect and change the machine while the code under test owns the first host.
    #[must_use]
    pub fn another(&self) -> FakeHost {
        FakeHost { machine: Arc::clone(&self.machine), life: self.machine().life, dirs: Vec::new() }
    }

    /// A host of another machine that is a copy of this one: groups, files, processes, faults. Later changes to one do
    /// not affect the other. On the copy no lock is held and [`FakeHost::mutations`] is empty; services on sockets are
    /// cloned.
    #[must_use]
    pub fn copy(&self) -> FakeHost {
        let machine = self.machine().copy();
        FakeHost { life: machine.life, machine: Arc::new(Mutex::new(machine)), dirs: Vec::new() }
    }

    /// Simulates a restart of the agent on the same machine: groups, processes and state files stay as they were; open
    /// directories, locks and faults are gone. Earlier hosts return EIO from now on.
    #[must_use]
    pub fn restart(&self) -> FakeHost {
        let mut machine = self.machine();
        machine.crash();
        machine.faults = Faults::default();
        machine.life += 1;
        drop(machine);
        self.another()
    }

    /// Sets a file's text: a control file if the path is inside a group (without checking rules; the file is created if
    /// it does not exist), a plain file otherwise.
    pub fn set_file(&self, path: impl AsRef<Path>, text: &str) {
        let mut machine = self.machine();
        let path = path.as_ref();
        match machine.locate(path) {
            Some((inode, left)) if left.components().count() == 1 => {
                machine.store(inode, &left.to_string_lossy(), text.trim_end_matches('\n').to_owned());
            }
            _ => {
                machine.files.insert(path.to_owned(), text.to_owned());
            }
        }
    }

    /// Replaces a state file by something that is not a regular file: `a named pipe`, `a directory`.
    pub fn set_kind(&self, path: impl Into<PathBuf>, kind: &'static str) {
        let path = path.into();
        let mut machine = self.machine();
        // The directory still lists its name.
        machine.files.entry(path.clone()).or_default();
        machine.odd.insert(path, kind);
    }

    /// Sets owner and mode of a file or directory; by default it belongs to root, and only root may write.
    pub fn set_owner(&self, path: impl Into<PathBuf>, owner: u32, mode: u32) {
        self.machine().owners.insert(path.into(), Ownership { owner, mode });
    }

    /// Removes a file, as if the kernel did not have it.
    pub fn remove_file(&self, path: impl AsRef<Path>) {
        let mut machine = self.machine();
        let path = path.as_ref();
        if let Some((inode, left)) = machine.locate(path)
            && let Some(group) = machine.groups.get_mut(&inode)
        {
            group.files.remove(left.to_string_lossy().as_ref());
        }
        machine.files.remove(path);
    }

    /// Unplugs the device: its limits disappear, and writing one returns ENODEV. Its files in `/sys` stay.
    pub fn unplug(&self, device: Device) {
        let mut machine = self.machine();
        machine.devices.remove(&device);
        let line = format!("{device} ");
        for group in machine.groups.values_mut() {
            for text in group.files.values_mut().flatten() {
                let kept: Vec<&str> = text.lines().filter(|one| !one.starts_with(&line)).collect();
                *text = kept.join("\n");
            }
        }
    }

    /// Removes this file from all existing and future groups, as if the kernel did not have it.
    pub fn without_file(&self, name: &str) {
        let mut machine = self.machine();
        machine.lacking.insert(name.to_owned());
        for group in machine.groups.values_mut() {
            group.files.remove(name);
        }
    }

    /// Adds a block device that I/O limits accept, besides `254:0`.
    pub fn add_device(&self, device: Device) {
        self.machine().devices.insert(device);
    }

    /// Emulates a vendor kernel: adds its control files to all existing and future cgroups, its sysctl (off) and its release string.
    pub fn vendor_kernel(&self, kernel: VendorKernel) {
        let mut machine = self.machine();
        machine.vendor = Some(kernel);
        for inode in machine.groups.keys().copied().collect::<Vec<_>>() {
            let controllers =
                machine.group(inode).map(|group| machine.controllers(group)).unwrap_or_default();
            machine.populate(inode, &controllers);
            if let (VendorKernel::OpenEuler { .. }, Ok(group)) = (kernel, machine.group_mut(inode)) {
                group.files.remove("cpu.idle");
            }
        }
        if let Some(switch) = kernel.switch() {
            machine.files.insert(PathBuf::from(switch.path()), "0\n".to_owned());
        }
        machine.files.insert(PathBuf::from("/proc/sys/kernel/osrelease"), format!("{}\n", kernel.release()));
    }

    /// Pairs the CPUs into cores of two threads.
    pub fn smt(&self) {
        let mut machine = self.machine();
        for cpu in machine.cpus.clone().iter() {
            let first = cpu / 2 * 2;
            let siblings = format!("{first}-{}\n", first + 1);
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            machine.files.insert(PathBuf::from(format!("{folder}/thread_siblings_list")), siblings);
            machine.files.insert(PathBuf::from(format!("{folder}/core_id")), format!("{}\n", first / 2));
        }
    }

    /// Adds core scheduling to the kernel, with SMT on or off (`ENODEV`).
    pub fn core_scheduling(&self, smt: bool) {
        self.machine().core_sched = Some(smt);
    }

    /// Starts one more thread in the process, with the cookie of its first one; returns its TID.
    pub fn add_thread(&self, pid: u32) -> u32 {
        self.machine().add_thread(pid)
    }

    /// Lets the process start one more thread during the next assignment of cookies.
    pub fn thread_appears(&self, pid: u32) {
        self.machine().faults.threads_appear.push(pid);
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

    /// They can again.
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

    /// Sets the bytes that a group itself uses; they cannot be reclaimed. Does nothing if there is no such group.
    pub fn set_usage(&self, group: impl AsRef<Path>, bytes: u64) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.usage = bytes;
        }
    }

    /// Adds a process that existed before commensal, in these groups (absolute paths) and otherwise in the root groups.
    /// Returns its PID. Paths that are not groups are ignored.
    pub fn add_process(&self, groups: &[&str]) -> u32 {
        let mut machine = self.machine();
        let pid = machine.new_pid();
        place(&mut machine, pid, groups);
        pid
    }

    /// Gives the PID of a process that has exited to a new one.
    pub fn reuse_pid(&self, pid: u32, groups: &[&str]) {
        place(&mut self.machine(), pid, groups);
    }

    /// Gives a process its program, user and parent.
    pub fn set_looks(&self, pid: u32, looks: FakeLooks) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.looks = looks;
        }
    }

    /// Before the next write of this PID to a `cgroup.procs`, the process exits, and a new one with attributes `looks`,
    /// in `groups`, gets its PID.
    pub fn reuse_pid_before_move(&self, pid: u32, groups: &[&str], looks: FakeLooks) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        self.machine().faults.reuse = Some((pid, groups, looks));
    }

    /// Before the next write to a `cgroup.procs`, this process starts an identical child in its groups.
    pub fn forks_before_move(&self, pid: u32) {
        self.machine().faults.forks = Some(pid);
    }

    /// After the next read of a process list that contains this process, it starts a child in the same groups and
    /// exits; the child then does the same, `times` in all.
    pub fn hands_over(&self, pid: u32, times: u32) {
        self.machine().faults.hands_over = Some((pid, times));
    }

    /// Answers requests to the local socket `path`: if several prefixes of a request match, the longest wins.
    pub fn answer(&self, path: impl Into<PathBuf>, request: &str, answer: &str) {
        self.machine().answers.insert((path.into(), request.to_owned()), answer.to_owned());
    }

    /// Lets `service` answer requests to the local socket `path`, or leave them unanswered, until it is replaced.
    /// `service` must not use this machine.
    pub fn serve(
        &self,
        path: impl Into<PathBuf>,
        service: impl FnMut(&str) -> Option<String> + Clone + Send + 'static,
    ) {
        self.machine().services.insert(path.into(), Service(Box::new(service)));
    }

    /// Removes the service of a socket.
    pub fn hang_up(&self, path: impl AsRef<Path>) {
        self.machine().services.remove(path.as_ref());
    }

    /// Moves a process as another program would, without checking any rule.
    pub fn move_process(&self, pid: u32, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.enter(inode, pid);
        }
    }

    /// Lets a process exit by itself.
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
        self.machine().missing.insert(program.into());
    }

    /// Sets the output (up to 64 KiB) of a program started with [`crate::Stdout::Pipe`].
    pub fn output_of(&self, program: impl Into<PathBuf>, text: &str) {
        self.machine().outputs.insert(program.into(), text.to_owned());
    }

    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        self.machine().uptime += time;
    }

    /// Every process that ever existed, by PID.
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

    /// Makes one mutation fail with `errno`: the one after `n - 1` more successful ones; 1 is the next.
    pub fn fail_write(&self, n: u32, errno: Errno) {
        self.machine().faults.fail = Some((n, errno));
    }

    /// After `n` more mutations every change of a cgroup fails with `errno`, until [`FakeHost::refuse_nothing`].
    pub fn refuse_from(&self, n: u32, errno: Errno) {
        self.machine().faults.refuse = Some((n, errno));
    }

    /// Writes to files of this name fail in every group until [`FakeHost::refuse_nothing`]; `""`: groups cannot be
    /// created or removed.
    pub fn refuse_file(&self, name: &str, errno: Errno) {
        self.machine().faults.closed = Some((name.to_owned(), errno));
    }

    /// Changes of cgroups succeed again.
    pub fn refuse_nothing(&self) {
        let mut machine = self.machine();
        machine.faults.refuse = None;
        machine.faults.closed = None;
    }

    /// The next write to a file of this name silently stores `value` instead, like a kernel that handles the knob
    /// differently, or another program that overwrites it at once.
    pub fn takes_instead(&self, file: &str, value: &str) {
        self.machine().faults.instead = Some((file.to_owned(), value.to_owned()));
    }

    /// From now on this operation does not go as it should, and every other one does; until another one is named, or
    /// [`FakeHost::no_trouble`].
    pub fn trouble(&self, trouble: Trouble) {
        self.machine().faults.trouble = (Some(trouble), 0);
    }

    /// Every operation goes as it should. Gives how often the one of [`FakeHost::trouble`] did not.
    pub fn no_trouble(&self) -> u32 {
        std::mem::take(&mut self.machine().faults.trouble).1
    }

    /// After `n` more mutations the agent is dead: everything fails with EIO, its locks are free, its
    /// children that die with it are killed.
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

    /// Makes the cgroup file systems read-only: EROFS.
    pub fn read_only(&self, on: bool) {
        self.machine().faults.read_only = on;
    }

    /// Makes this process run as user 1000: cgroup writes return EACCES, signals to other users' processes EPERM.
    pub fn unprivileged(&self, on: bool) {
        self.machine().faults.unprivileged = on;
    }

    /// Makes the disk with the state files full: ENOSPC, and nothing is written.
    pub fn state_full(&self, on: bool) {
        self.machine().faults.state_full = on;
    }

    /// Every knob of every group: absolute path and text. Two equal snapshots mean that the same groups exist with the
    /// same settings; processes are not included.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        self.machine().snapshot()
    }

    /// The mutations, oldest first.
    #[must_use]
    pub fn mutations(&self) -> Vec<Mutation> {
        self.machine().mutations.clone()
    }
}
