//! Fake processes: each thread is in exactly one group per hierarchy; a process is identified by PID and start time, and
//! reports an exit status to its parent.

use super::compute::computes;
use super::machine::{FakeLooks, Machine, Proc};
use super::parse::Answer;
use super::running::Running;
use crate::{Exit, Scheduling, Signal, SpawnSpec};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::process::{SCHED_FIFO, SCHED_IDLE, SCHED_RR};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process as a test sees it.
#[derive(Debug, Clone)]
pub struct FakeProcess {
    /// Process ID.
    pub pid: u32,
    /// Start time (clock ticks), which distinguishes the process from an earlier one with the same PID.
    pub start_ticks: u64,
    /// How the process was started; `None` if the test added it.
    pub spec: Option<SpawnSpec>,
    /// Absolute paths of the process's groups, one per hierarchy.
    pub groups: Vec<PathBuf>,
    /// How the process exited; `None` while it runs.
    pub exit: Option<Exit>,
    /// Signals that the process received, oldest first.
    pub signals: Vec<Signal>,
    /// Whether the policy of the process's first thread is `SCHED_IDLE`.
    pub idle: bool,
    /// Scheduling attributes by thread.
    pub scheduling: BTreeMap<u32, Scheduling>,
    /// Core-scheduling cookie by thread.
    pub threads: BTreeMap<u32, u64>,
}

impl Machine {
    /// Returns the PIDs of the live processes with a thread in the group, ascending.
    pub(super) fn members(&self, inode: u64) -> Vec<u32> {
        let inside =
            |process: &Proc| process.threads.keys().any(|tid| process.groups_of(*tid).contains(&inode));
        let live = |process: &Proc| process.running.exit().is_none() && inside(process);
        self.processes.iter().filter(|(_, process)| live(process)).map(|(pid, _)| *pid).collect()
    }

    /// Returns the IDs of a group's threads, process by process.
    pub(super) fn threads(&self, inode: u64) -> Vec<u32> {
        let members = self.members(inode);
        let processes = members.iter().filter_map(|pid| self.processes.get(pid));
        let inside = |process: &Proc, tid: u32| process.groups_of(tid).contains(&inode);
        let threads = processes.flat_map(|process| process.threads.keys().map(move |tid| (process, *tid)));
        threads.filter(|(process, tid)| inside(process, *tid)).map(|(_, tid)| tid).collect()
    }

    /// Returns the process with this PID, alive or a zombie; otherwise `ESRCH`.
    pub(super) fn present(&self, pid: u32) -> Answer<&Proc> {
        self.processes.get(&pid).filter(|process| !process.running.reaped()).ok_or(Errno::ESRCH)
    }

    pub(super) fn add(&mut self, pid: u32, groups: Vec<u64>, spec: Option<SpawnSpec>) -> Running {
        let running = Running::default();
        // A program of the lab that handles SIGTERM.
        let handles = spec.as_ref().is_some_and(|spec| spec.args.iter().any(|arg| arg == "--handle-sigterm"));
        let handler = handles.then_some(0);
        let process = Proc {
            start_ticks: self.numbers.start_ticks(),
            groups,
            apart: BTreeMap::new(),
            spec,
            running: running.clone(),
            ignores_sigterm: false,
            signals: Vec::new(),
            scheduling: BTreeMap::new(),
            wants_cpu: false,
            user_ticks: 0,
            handler,
            asked_to_end: false,
            run_ns: 0,
            threads: [(pid, 0)].into(),
            looks: FakeLooks::default(),
        };
        self.processes.insert(pid, process);
        running
    }

    pub(super) fn new_pid(&mut self) -> u32 {
        self.numbers.pid()
    }

    pub(super) fn roots(&self) -> Vec<u64> {
        self.trees.iter().map(|tree| tree.root).collect()
    }

    /// Handles a write to `cgroup.procs`, which moves the process of the thread, or to a file that moves the thread
    /// alone. `caller` is the process that writes.
    pub(super) fn attach_text(&mut self, inode: u64, file: &str, text: &str, caller: u32) -> Answer<()> {
        let number = super::parse::number(text.trim()).map_err(|_| Errno::EINVAL)?;
        let tid = match i32::try_from(number) {
            Ok(0) => caller,
            Ok(pid) if pid > 0 => pid.unsigned_abs(),
            _ => return Err(Errno::EINVAL),
        };
        let alone = file != "cgroup.procs";
        let live = self.process_of(tid).filter(|(_, process)| process.running.exit().is_none());
        let (pid, process) = live.ok_or(Errno::ESRCH)?;
        self.may_enter(inode)?;
        let tree = self.group(inode)?.tree;
        // A thread of the unified hierarchy may be apart from its process only in a threaded subtree.
        if file == "cgroup.threads" && process.groups_of(tid).get(tree) != Some(&inode) {
            return Err(Errno::EOPNOTSUPP);
        }
        let moves = process.threads.keys().filter(|one| !alone || **one == tid);
        let real_time = |tid: &u32| [SCHED_FIFO, SCHED_RR].contains(&process.scheduling(*tid).policy);
        if moves.into_iter().any(real_time) {
            self.real_time_budget(&[inode], Errno::EINVAL)?;
        }
        self.moment_of_move(pid);
        // `cgroup_migrate_add_task` passes a task that exits over.
        if !self.faults.processes.exiting.contains_key(&pid) {
            if alone {
                self.put_thread(inode, tid);
            } else {
                self.enter(inode, pid);
            }
        }
        self.moment_of_move(pid);
        Ok(())
    }

    /// Fails if the kernel does not allow processes in the group.
    pub(super) fn may_enter(&self, inode: u64) -> Answer<()> {
        let group = self.group(inode)?;
        match self.version(group) {
            Version::V1 if group.files.contains_key("cpuset.cpus") => {
                let empty = |file| self.text(group, file).is_empty();
                if empty("cpuset.cpus") || empty("cpuset.mems") { Err(Errno::ENOSPC) } else { Ok(()) }
            }
            Version::V2 if group.parent.is_some() && !self.takes_both(inode, &group.enabled) => {
                Err(Errno::EBUSY)
            }
            _ => Ok(()),
        }
    }

    /// Whether a v2 group that enables these controllers for its children may also contain processes. It may only if
    /// all of the controllers are threaded and no group below it contains processes: then the group could become a
    /// thread root.
    pub(super) fn takes_both(&self, inode: u64, enabled: &std::collections::BTreeSet<Controller>) -> bool {
        let threaded = [Controller::Cpu, Controller::Cpuset, Controller::Pids];
        let below = self.subtree(inode);
        let populated = below.iter().skip(1).any(|child| !self.members(*child).is_empty());
        enabled.is_empty() || (!populated && enabled.iter().all(|controller| threaded.contains(controller)))
    }

    pub(super) fn enter(&mut self, inode: u64, pid: u32) {
        let Some(tree) = self.groups.get(&inode).map(|group| group.tree) else { return };
        if let Some(process) = self.processes.get_mut(&pid) {
            let all = process.apart.values_mut().chain([&mut process.groups]);
            all.filter_map(|groups| groups.get_mut(tree)).for_each(|at| *at = inode);
            process.apart.retain(|_, groups| *groups != process.groups);
        }
        self.enters_offline(inode, pid);
        self.go_on();
    }

    /// Moves one thread.
    pub(super) fn put_thread(&mut self, inode: u64, tid: u32) {
        let Some(tree) = self.groups.get(&inode).map(|group| group.tree) else { return };
        let Some(pid) = self.process_of(tid).map(|(pid, _)| pid) else { return };
        let offline = self.level(inode, "cpu.qos_level") < 0;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.put_thread(pid, tid, (tree, inode));
            if offline {
                process.scheduling.insert(tid, Scheduling::of(SCHED_IDLE));
            }
        }
        self.go_on();
    }

    /// Starts a child of `caller` inside `groups`.
    pub(super) fn spawn(&mut self, spec: &SpawnSpec, groups: &[u64], caller: u32) -> Answer<u32> {
        if self.programs.missing.contains(&spec.program) {
            return Err(Errno::ENOENT);
        }
        for inode in groups {
            self.may_enter(*inode)?;
        }
        let mut places = self.processes.get(&caller).map_or_else(|| self.roots(), |own| own.groups.clone());
        for inode in groups {
            let tree = self.group(*inode)?.tree;
            places[tree] = *inode;
        }
        // A v1 cpu group has no real-time budget until one is written to it.
        if spec.policy.fifo.is_some() {
            self.real_time_budget(&places, Errno::EPERM)?;
        }
        let cookie = spec.policy.cookie.map(|cookie| self.resolve_cookie(cookie)).transpose()?;
        let pid = self.new_pid();
        self.add(pid, places.clone(), Some(spec.clone()));
        for inode in places {
            self.enters_offline(inode, pid);
        }
        // The child sets its policy once it is in its groups.
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads = [(pid, cookie.unwrap_or(0))].into();
            let fifo = spec.policy.fifo.and_then(|priority| u32::try_from(priority).ok());
            let own = fifo.map(|priority| Scheduling::real_time(SCHED_FIFO, priority));
            let own = own.or_else(|| spec.policy.idle.then_some(Scheduling::of(SCHED_IDLE)));
            own.into_iter().for_each(|own| process.schedule_all(own));
        }
        Ok(pid)
    }

    /// Delivers a signal to the process with this PID and start time; otherwise `ESRCH`.
    pub(super) fn deliver(&mut self, pid: u32, start_ticks: u64, signal: Signal) -> Answer<()> {
        let same = self.present(pid)?.start_ticks == start_ticks;
        let process = self.processes.get_mut(&pid).filter(|_| same).ok_or(Errno::ESRCH)?;
        process.signals.push(signal);
        let ignored = process.ignores_sigterm && (signal == Signal::TERM || signal == Signal::INT);
        if let Some(status) = process.handler.filter(|_| signal.asks_to_end()) {
            process.asked_to_end = true;
            if let Some(process) = self.processes.get(&pid).filter(|process| !self.is_starving(process)) {
                process.running.end(Exit::Code(status));
            }
        } else if signal.0 != 0 && !ignored {
            // Signal 0 only checks whether the process exists. SIGKILL waits until the process is thawed (see `go_on`).
            let waits = |process: &&Proc| signal == Signal::KILL && self.is_frozen_on_v1(process);
            if let Some(process) = self.processes.get(&pid).filter(|process| !waits(process)) {
                process.running.end(Exit::Signal(signal.0));
            }
        }
        Ok(())
    }

    /// Returns the process that has this thread, alive or a zombie.
    pub(super) fn process_of(&self, tid: u32) -> Option<(u32, &Proc)> {
        let of_thread = || self.processes.iter().find(|(_, process)| process.threads.contains_key(&tid));
        let (pid, process) = self.processes.get_key_value(&tid).or_else(of_thread)?;
        (!process.running.reaped()).then_some((*pid, process))
    }

    /// Lets time pass: processes that want a CPU and do not starve use one.
    pub(super) fn pass(&mut self, time: Duration) {
        self.uptime += time;
        let runs = |process: &Proc| {
            process.wants_cpu && process.running.exit().is_none() && !self.is_starving(process)
        };
        let running: Vec<u32> =
            self.processes.iter().filter(|(_, process)| runs(process)).map(|(pid, _)| *pid).collect();
        let mut used = Vec::new();
        for pid in running {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            process.user_ticks += u64::try_from(time.as_millis() / 10).unwrap_or(0);
            used.extend(process.groups.iter().copied());
        }
        for inode in used {
            let mut at = Some(inode);
            while let Some((inode, group)) = at.and_then(|at| Some((at, self.groups.get(&at)?))) {
                at = group.parent;
                if let Ok(ns) = self.text(group, "cpuacct.usage").parse::<u128>() {
                    self.store(inode, "cpuacct.usage", (ns + time.as_nanos()).to_string());
                }
            }
        }
    }

    /// Returns the text of `/proc/PID/FILE`; `None` if the process or the file does not exist. As in the kernel, `PID` may
    /// be any thread.
    pub(super) fn proc_file(&self, pid: u32, file: &str) -> Option<String> {
        if let Some((tid, file)) = file.strip_prefix("task/").and_then(|rest| rest.split_once('/')) {
            let tid = tid.parse().ok()?;
            let same = self.process_of(tid)?.0 == self.process_of(pid)?.0;
            return self.proc_file(tid, file).filter(|_| same);
        }
        let (tgid, process) = self.process_of(pid)?;
        let name =
            process.spec.as_ref().and_then(|spec| spec.program.file_name()?.to_str().map(str::to_owned));
        let name = name.unwrap_or_else(|| format!("fake{pid}"));
        let letter = match process.running.exit() {
            Some(_) => 'Z',
            None if !process.wants_cpu && !computes(process) => 'S',
            // The kernel throttles a starving task in the uninterruptible state (`sched_qos_offline_wait`).
            None if self.is_starving(process) => 'D',
            None => 'R',
        };
        match file {
            "cgroup" => {
                let exits = self.faults.processes.exiting.contains_key(&pid);
                Some(self.proc_cgroup(process.groups_of(pid), exits))
            }
            "comm" => Some(format!("{name}\n")),
            "wchan" if letter == 'D' => Some("sched_qos_offline_wait".to_owned()),
            "wchan" => Some("0".to_owned()),
            "cmdline" if process.looks.cmdline.is_empty() => Some(format!("{name}\0")),
            "cmdline" => Some(process.looks.cmdline.replace(' ', "\0") + "\0"),
            "stat" => {
                let nice = process.spec.as_ref().and_then(|spec| spec.policy.nice).unwrap_or(0);
                let priority = 20 + nice;
                let start = process.start_ticks;
                let FakeLooks { parent, pgrp, exe, .. } = &process.looks;
                let pgrp = if *pgrp == 0 { pid } else { *pgrp };
                // PF_KTHREAD, include/linux/sched.h.
                let exiting = if self.faults.processes.exiting.contains_key(&pid) { 0x4 } else { 0 };
                let flags = exiting + if exe.is_empty() { 0x20_0000 } else { 4_194_304 };
                let (ticks, threads) = (process.user_ticks, process.threads.len());
                // The fields up to numbers 40 and 41, the real-time priority and the scheduling policy.
                let Scheduling { policy, priority: real_time, .. } = process.scheduling(pid);
                let between = "0 ".repeat(17);
                Some(format!(
                    "{pid} ({name}) {letter} {parent} {pgrp} {pid} 0 -1 {flags} 0 0 0 0 {ticks} 0 0 0 {priority} {nice} {threads} 0 \
                     {start} {between}{real_time} {policy}\n"
                ))
            }
            // The first thread computes.
            "schedstat" if computes(process) && process.threads.keys().next() == Some(&pid) => {
                Some(format!("{} 0 0\n", process.run_ns))
            }
            "status" => {
                let pinned = process.spec.as_ref().and_then(|spec| spec.policy.cpus.clone());
                let of_group =
                    || if computes(process) { self.cpus_of(process) } else { self.kernel.cpus.clone() };
                let cpus = pinned.unwrap_or_else(of_group);
                let caught = process.handler.map_or(0, |_| 1u64 << (Signal::TERM.0 - 1));
                Some(format!(
                    "Name:\t{name}\nState:\t{letter}\nTgid:\t{tgid}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nSigCgt:\t{caught:016x}\nCpus_allowed_list:\t{cpus}\n",
                    parent = process.looks.parent,
                    uid = process.looks.uid,
                ))
            }
            _ => None,
        }
    }

    fn proc_cgroup(&self, groups: &[u64], exits: bool) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (index, tree) in self.trees.iter().enumerate() {
            let exits = exits && tree.version == Version::V1;
            let inode = groups.get(index).copied().filter(|_| !exits).unwrap_or(tree.root);
            let path = self.shown_path(index, inode);
            lines.push(match tree.version {
                Version::V1 => {
                    let names: Vec<&str> = tree.controllers.iter().map(|one| one.v1_name()).collect();
                    format!("{}:{}:{path}\n", index + 1, names.join(","))
                }
                Version::V2 => format!("0::{path}\n"),
            });
        }
        lines.reverse();
        lines.concat()
    }

    /// Returns a group's path relative to the root of the cgroup namespace (`kernfs_path_from_node`, fs/kernfs/dir.c).
    fn shown_path(&self, tree: usize, inode: u64) -> String {
        let names = |inode| -> Vec<String> {
            self.path(inode).split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let (from, to) =
            (self.namespace.get(tree).map(|root| names(*root)).unwrap_or_default(), names(inode));
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let up = std::iter::repeat_n("..", from.len() - common);
        let path: String =
            up.chain(to[common..].iter().map(String::as_str)).map(|name| format!("/{name}")).collect();
        if path.is_empty() { "/".to_owned() } else { path }
    }

    /// Makes the groups of a process the root of the cgroup namespace, or returns to the initial namespace; the mounts stay.
    pub(super) fn unshare(&mut self, pid: Option<u32>) {
        let of = |pid: u32| self.processes.get(&pid).map(|process| process.groups.clone());
        self.namespace = pid.and_then(of).unwrap_or_default();
        let lines = self.trees.iter().enumerate().map(|(index, tree)| {
            let (mount, root) = (tree.mount.display(), self.shown_path(index, tree.root));
            let kind = if tree.version == Version::V1 { "cgroup" } else { "cgroup2" };
            format!("{} 21 0:{} {root} {mount} rw - {kind} {kind} rw\n", 30 + index, 30 + index)
        });
        let info: String = lines.collect();
        self.plain.files.insert(PathBuf::from("/proc/self/mountinfo"), info);
    }

    pub(super) fn describe(&self, pid: u32, process: &Proc) -> FakeProcess {
        FakeProcess {
            pid,
            start_ticks: process.start_ticks,
            spec: process.spec.clone(),
            groups: process.groups.iter().map(|inode| self.full_path(*inode)).collect(),
            exit: process.running.exit(),
            signals: process.signals.clone(),
            idle: process.scheduling(pid).policy == SCHED_IDLE,
            scheduling: process.threads.keys().map(|tid| (*tid, process.scheduling(*tid))).collect(),
            threads: process.threads.clone(),
        }
    }
}

/// Adds a process with this PID, in these groups.
pub(super) fn place(machine: &mut Machine, pid: u32, groups: &[&str]) {
    let roots = machine.roots();
    machine.add(pid, roots, None);
    for group in groups {
        if let Ok(inode) = machine.group_at(Path::new(group)) {
            machine.enter(inode, pid);
        }
    }
}
