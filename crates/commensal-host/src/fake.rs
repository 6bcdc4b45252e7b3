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
//! Files, defaults, ranges and normalisation come from the knob table; the rules that a row cannot say
//! are in `fake/`. `tests/conformance.txt` runs on this host and on the kernel.
//!
//! **Faults and crashes count mutations that succeed**: write, mkdir, rmdir, spawn, signal, and
//! `state_append`, `state_replace`, `state_rename`, `state_remove`. That is what [`FakeHost::mutations`] lists, so
//! `for n in 0..mutations().len()` with [`FakeHost::crash_after`] visits every place to die.

mod faults;
mod files;
mod fixture;
mod host;
mod limits;
mod locks;
mod parse;
mod procs;
mod rules;
mod tree;
mod vendor;

pub use faults::{Effect, Mutation, Trouble};
pub use files::driven_files;
pub use fixture::FixtureError;
pub(crate) use locks::FakeLockFile;
pub(crate) use locks::Token;
pub(crate) use procs::Running;
pub use procs::{FakeLooks, FakeProcess};
pub use vendor::VendorKernel;

use crate::Exit;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::ownership::Ownership;
use commensal_core::topology::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tree::Machine;

/// Controllers with a hierarchy of their own in [`FakeHost::v1`].
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

/// Process number of a fake host's own process: the real one, so that code which asks finds itself.
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

/// A directory as this host has it open.
#[derive(Debug)]
struct OpenDir {
    inode: u64,
    path: PathBuf,
    generation: u32,
    /// Control files used through it: like the real host, the fake has them open, and an open file of
    /// a removed group says ENODEV where a new one says ENOENT.
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

    /// cgroup v2: one hierarchy with every controller at `/sys/fs/cgroup`; none is given to children yet.
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

    /// Any mixture: v1 hierarchies by mount point, and the unified one with what is left to it.
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

    /// Files from text: comment lines start with `#`, others are `path<TAB>value` with `\n` for a line
    /// break, `\t` for a tab and `\\` for a backslash. Hierarchies are made for the cgroup mounts of its `/proc/mounts`;
    /// their groups have just the files that the text names.
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

    /// A host for another process of the same machine: it sees the same kernel, files, locks, faults.
    /// It also serves to look at and change the machine while the code under test owns the first one.
    #[must_use]
    pub fn another(&self) -> FakeHost {
        FakeHost { machine: Arc::clone(&self.machine), life: self.machine().life, dirs: Vec::new() }
    }

    /// A host of another machine, which is as this one is now: groups, files, processes, faults. Nothing that happens to one
    /// of them happens to the other. On the new one no lock is held and [`FakeHost::mutations`] begin anew; who serves at a
    /// socket does so on both, by a clone.
    #[must_use]
    pub fn copy(&self) -> FakeHost {
        let machine = self.machine().copy();
        FakeHost { life: machine.life, machine: Arc::new(Mutex::new(machine)), dirs: Vec::new() }
    }

    /// The agent is started again on the same machine: groups, processes and state files are as they
    /// were; open directories, locks and faults are gone. Hosts from before answer EIO from now on.
    #[must_use]
    pub fn restart(&self) -> FakeHost {
        let mut machine = self.machine();
        machine.crash();
        machine.faults = faults::Faults::default();
        machine.life += 1;
        drop(machine);
        self.another()
    }

    /// Sets a file's text: a control file if the path is inside a group (no rule is asked, and the
    /// file is made if it is not there), a plain file otherwise.
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

    /// Puts something into the place of a state file that is none: `a named pipe`, `a directory`.
    pub fn set_kind(&self, path: impl Into<PathBuf>, kind: &'static str) {
        let path = path.into();
        let mut machine = self.machine();
        // Its name is in the folder all the same.
        machine.files.entry(path.clone()).or_default();
        machine.odd.insert(path, kind);
    }

    /// Gives a file or folder an owner and a mode; what is not told belongs to root alone.
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

    /// The device is unplugged: limits on it go, and writing one says ENODEV. Its files in `/sys` stay.
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

    /// The kernel does not have this file, in any group, now or later.
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

    /// The kernel has core scheduling, and SMT is on or not (`ENODEV`).
    pub fn core_scheduling(&self, smt: bool) {
        self.machine().core_sched = Some(smt);
    }

    /// The process starts one more thread, with the cookie of its first one; gives its number.
    pub fn add_thread(&self, pid: u32) -> u32 {
        self.machine().add_thread(pid)
    }

    /// The process starts one more thread while cookies are handed out for the next time.
    pub fn thread_appears(&self, pid: u32) {
        self.machine().faults.threads_appear.push(pid);
    }

    /// Gives a thread a core-scheduling cookie, as somebody else would.
    pub fn set_cookie(&self, tid: u32, cookie: u64) {
        let mut machine = self.machine();
        if let Some(process) = machine.processes.values_mut().find(|process| process.cookie(tid).is_some()) {
            process.set_cookie(tid, cookie);
        }
    }

    /// The group belongs to user 1000, as a service manager delegates one.
    pub fn give_to_user(&self, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.given = true;
        }
    }

    /// Groups keep no extended attributes.
    pub fn refuse_attributes(&self) {
        self.machine().faults.no_attributes = true;
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

    /// Bytes that a group itself uses; they cannot be reclaimed. Nothing happens if there is no such
    /// group.
    pub fn set_usage(&self, group: impl AsRef<Path>, bytes: u64) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref())
            && let Ok(group) = machine.group_mut(inode)
        {
            group.usage = bytes;
        }
    }

    /// A process that was there before us, in these groups (absolute paths) and else in the roots.
    /// Returns its pid. A path that is no group is passed over.
    pub fn add_process(&self, groups: &[&str]) -> u32 {
        let mut machine = self.machine();
        let pid = machine.new_pid();
        place(&mut machine, pid, groups);
        pid
    }

    /// The pid of a process that ended is given to a new one.
    pub fn reuse_pid(&self, pid: u32, groups: &[&str]) {
        place(&mut self.machine(), pid, groups);
    }

    /// Gives a process its program, user and parent.
    pub fn set_looks(&self, pid: u32, looks: FakeLooks) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.looks = looks;
        }
    }

    /// Right before the next write of this number to a `cgroup.procs`, its process ends and another one, in `groups` and
    /// looking like `looks`, gets the number.
    pub fn reuse_pid_before_move(&self, pid: u32, groups: &[&str], looks: FakeLooks) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        self.machine().faults.reuse = Some((pid, groups, looks));
    }

    /// Right before the next write to a `cgroup.procs`, this process starts a child like itself, where it is.
    pub fn forks_before_move(&self, pid: u32) {
        self.machine().faults.forks = Some(pid);
    }

    /// Right after somebody has read a list of processes with this one in it, it starts a child in the same groups and ends; then
    /// the child, `times` in all.
    pub fn hands_over(&self, pid: u32, times: u32) {
        self.machine().faults.hands_over = Some((pid, times));
    }

    /// Whoever asks at the local socket `path` gets the answer of the longest of these beginnings of a request that fits.
    pub fn answer(&self, path: impl Into<PathBuf>, request: &str, answer: &str) {
        self.machine().answers.insert((path.into(), request.to_owned()), answer.to_owned());
    }

    /// Whoever asks at the local socket `path` is answered by `service`, or waits in vain, until somebody else serves there.
    /// It must not use this machine.
    pub fn serve(
        &self,
        path: impl Into<PathBuf>,
        service: impl FnMut(&str) -> Option<String> + Clone + Send + 'static,
    ) {
        self.machine().services.insert(path.into(), tree::Service(Box::new(service)));
    }

    /// Nobody serves there any more.
    pub fn hang_up(&self, path: impl AsRef<Path>) {
        self.machine().services.remove(path.as_ref());
    }

    /// Moves a process as somebody else would, without asking any rule.
    pub fn move_process(&self, pid: u32, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.enter(inode, pid);
        }
    }

    /// A process ends by itself.
    pub fn end(&self, pid: u32, exit: Exit) {
        if let Some(process) = self.machine().processes.get(&pid) {
            process.running.end(exit);
            if process.spec.is_none() {
                process.running.poll();
            }
        }
    }

    /// SIGTERM and SIGINT do nothing to this process.
    pub fn ignores_sigterm(&self, pid: u32) {
        if let Some(process) = self.machine().processes.get_mut(&pid) {
            process.ignores_sigterm = true;
        }
    }

    /// Starting this program fails with ENOENT.
    pub fn missing_program(&self, program: impl Into<PathBuf>) {
        self.machine().missing.insert(program.into());
    }

    /// What a program started with [`crate::Stdout::Pipe`] has written (up to 64 KiB).
    pub fn output_of(&self, program: impl Into<PathBuf>, text: &str) {
        self.machine().outputs.insert(program.into(), text.to_owned());
    }

    /// Time passes.
    pub fn advance(&self, time: Duration) {
        self.machine().uptime += time;
    }

    /// Every process ever, by pid.
    #[must_use]
    pub fn processes(&self) -> Vec<FakeProcess> {
        let machine = self.machine();
        machine.processes.iter().map(|(pid, process)| machine.describe(*pid, process)).collect()
    }

    /// A group and all below it disappear; their processes go to its parent.
    pub fn vanish(&self, group: impl AsRef<Path>) {
        let mut machine = self.machine();
        if let Ok(inode) = machine.group_at(group.as_ref()) {
            machine.vanish(inode);
        }
    }

    /// The mutation tried after `n - 1` more have succeeded fails with `errno`, once; 1 is the next.
    pub fn fail_write(&self, n: u32, errno: Errno) {
        self.machine().faults.fail = Some((n, errno));
    }

    /// After `n` more mutations every change of a cgroup fails with `errno`, until [`FakeHost::refuse_nothing`].
    pub fn refuse_from(&self, n: u32, errno: Errno) {
        self.machine().faults.refuse = Some((n, errno));
    }

    /// The file of this name takes nothing in any group, until [`FakeHost::refuse_nothing`]; `""`: no group can be made or removed.
    pub fn refuse_file(&self, name: &str, errno: Errno) {
        self.machine().faults.closed = Some((name.to_owned(), errno));
    }

    /// Changes of cgroups are taken again.
    pub fn refuse_nothing(&self) {
        let mut machine = self.machine();
        machine.faults.refuse = None;
        machine.faults.closed = None;
    }

    /// The next write to a file of this name takes `value` instead and says nothing: a kernel that handles the
    /// knob otherwise, or somebody else who writes it at once.
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

    /// Whether [`FakeHost::crash_after`] has come to pass.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.machine().faults.crashed
    }

    /// The cgroup file systems are mounted read-only: EROFS.
    pub fn read_only(&self, on: bool) {
        self.machine().faults.read_only = on;
    }

    /// We are user 1000: cgroup writes say EACCES, signals to processes that are not ours EPERM.
    pub fn unprivileged(&self, on: bool) {
        self.machine().faults.unprivileged = on;
    }

    /// The disk with the state files is full: ENOSPC, and nothing is written.
    pub fn state_full(&self, on: bool) {
        self.machine().faults.state_full = on;
    }

    /// Every knob of every group: absolute path and text. Two equal snapshots mean that the same
    /// groups exist with the same settings; processes are not part of it.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        self.machine().snapshot()
    }

    /// What was changed, oldest first.
    #[must_use]
    pub fn mutations(&self) -> Vec<Mutation> {
        self.machine().mutations.clone()
    }
}

fn place(machine: &mut Machine, pid: u32, groups: &[&str]) {
    let roots = machine.roots();
    machine.add(pid, roots, None);
    for group in groups {
        if let Ok(inode) = machine.group_at(Path::new(group)) {
            machine.enter(inode, pid);
        }
    }
}
