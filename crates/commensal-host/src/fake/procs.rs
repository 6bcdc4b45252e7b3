//! Fake processes: exactly one group per hierarchy, identity of PID and start time, exit status for the parent.

use super::machine::{FakeLooks, Machine, Proc};
use super::parse::Answer;
use super::running::Running;
use crate::{Exit, Signal, SpawnSpec};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A process as a test sees it.
#[derive(Debug, Clone)]
pub struct FakeProcess {
    /// Process ID.
    pub pid: u32,
    /// Start time, which distinguishes it from an earlier process with the same PID.
    pub start_ticks: u64,
    /// How it was started; `None` for a process that existed before.
    pub spec: Option<SpawnSpec>,
    /// Absolute paths of its groups, one per hierarchy.
    pub groups: Vec<PathBuf>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// Signals it got, oldest first.
    pub signals: Vec<Signal>,
    /// Whether its policy is `SCHED_IDLE`.
    pub idle: bool,
    /// Core-scheduling cookie by thread.
    pub threads: BTreeMap<u32, u64>,
}

impl Machine {
    /// Pids of the live processes of a group, ascending.
    pub(super) fn members(&self, inode: u64) -> Vec<u32> {
        let live = |process: &&Proc| process.running.exit().is_none() && process.groups.contains(&inode);
        self.processes.iter().filter(|(_, process)| live(process)).map(|(pid, _)| *pid).collect()
    }

    /// Threads of the live processes of a group, ascending.
    pub(super) fn threads(&self, inode: u64) -> Vec<u32> {
        let members = self.members(inode);
        let processes = members.iter().filter_map(|pid| self.processes.get(pid));
        processes.flat_map(|process| process.threads.keys().copied()).collect()
    }

    /// A process that still has a PID: alive, or a zombie.
    pub(super) fn present(&self, pid: u32) -> Answer<&Proc> {
        self.processes.get(&pid).filter(|process| !process.running.reaped()).ok_or(Errno::ESRCH)
    }

    pub(super) fn add(&mut self, pid: u32, groups: Vec<u64>, spec: Option<SpawnSpec>) -> Running {
        self.ticks += 1;
        let running = Running::default();
        let process = Proc {
            start_ticks: self.ticks,
            groups,
            spec,
            running: running.clone(),
            ignores_sigterm: false,
            signals: Vec::new(),
            policy: 0,
            threads: [(pid, 0)].into(),
            looks: FakeLooks::default(),
        };
        self.processes.insert(pid, process);
        running
    }

    pub(super) fn new_pid(&mut self) -> u32 {
        self.next_pid += 1;
        self.next_pid
    }

    pub(super) fn roots(&self) -> Vec<u64> {
        self.trees.iter().map(|tree| tree.root).collect()
    }

    /// Handles a write to `cgroup.procs`. `caller` is the process that writes.
    pub(super) fn attach_text(&mut self, inode: u64, text: &str, caller: u32) -> Answer<()> {
        let number = super::parse::number(text.trim()).map_err(|_| Errno::EINVAL)?;
        let pid = match i32::try_from(number) {
            Ok(0) => caller,
            Ok(pid) if pid > 0 => pid.unsigned_abs(),
            _ => return Err(Errno::EINVAL),
        };
        let live = self.processes.get(&pid).is_some_and(|process| process.running.exit().is_none());
        if !live {
            return Err(Errno::ESRCH);
        }
        self.may_enter(inode)?;
        self.enter(inode, pid);
        Ok(())
    }

    /// Whether the kernel lets a process into the group.
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

    /// v2: whether a group that enables these controllers for its children may also hold processes. It may not, unless
    /// all of them are threaded controllers and no child has processes: then the group could become a thread root.
    pub(super) fn takes_both(&self, inode: u64, enabled: &std::collections::BTreeSet<Controller>) -> bool {
        let threaded = [Controller::Cpu, Controller::Cpuset, Controller::Pids];
        let below = self.subtree(inode);
        let populated = below.iter().skip(1).any(|child| !self.members(*child).is_empty());
        enabled.is_empty() || (!populated && enabled.iter().all(|controller| threaded.contains(controller)))
    }

    pub(super) fn enter(&mut self, inode: u64, pid: u32) {
        let Some(tree) = self.groups.get(&inode).map(|group| group.tree) else { return };
        if let Some(at) = self.processes.get_mut(&pid).and_then(|process| process.groups.get_mut(tree)) {
            *at = inode;
        }
        self.enters_offline(inode, pid);
    }

    /// Starts a child of `caller` inside `groups`.
    pub(super) fn spawn(&mut self, spec: &SpawnSpec, groups: &[u64], caller: u32) -> Answer<u32> {
        if self.missing.contains(&spec.program) {
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
        // A v1 cpu group has no real-time budget until one is written.
        let budget = |inode: &u64| {
            let group = self.groups.get(inode)?;
            group.files.get("cpu.rt_runtime_us")?.as_deref()
        };
        if spec.policy.fifo.is_some() && places.iter().filter_map(budget).any(|text| text == "0") {
            return Err(Errno::EPERM);
        }
        let cookie = spec.policy.cookie.map(|cookie| self.resolve_cookie(cookie)).transpose()?;
        let pid = self.new_pid();
        self.add(pid, places.clone(), Some(spec.clone()));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.policy = if spec.policy.idle { 5 } else { 0 };
            process.threads = [(pid, cookie.unwrap_or(0))].into();
        }
        for inode in places {
            self.enters_offline(inode, pid);
        }
        Ok(pid)
    }

    /// Sends a signal to the process with this identity.
    pub(super) fn deliver(&mut self, pid: u32, start_ticks: u64, signal: Signal) -> Answer<()> {
        let same = self.present(pid)?.start_ticks == start_ticks;
        let process = self.processes.get_mut(&pid).filter(|_| same).ok_or(Errno::ESRCH)?;
        process.signals.push(signal);
        let ignored = process.ignores_sigterm && (signal == Signal::TERM || signal == Signal::INT);
        // Signal 0 only checks whether the process exists.
        if signal.0 != 0 && !ignored {
            process.running.end(Exit::Signal(signal.0));
        }
        Ok(())
    }

    /// `/proc/PID/...` of a fake process.
    pub(super) fn proc_file(&self, pid: u32, file: &str) -> Option<String> {
        let process = self.present(pid).ok()?;
        let name =
            process.spec.as_ref().and_then(|spec| spec.program.file_name()?.to_str().map(str::to_owned));
        let name = name.unwrap_or_else(|| format!("fake{pid}"));
        let letter = if process.running.exit().is_some() { 'Z' } else { 'S' };
        match file {
            "cgroup" => Some(self.proc_cgroup(process)),
            "comm" => Some(format!("{name}\n")),
            "cmdline" if process.looks.cmdline.is_empty() => Some(format!("{name}\0")),
            "cmdline" => Some(process.looks.cmdline.replace(' ', "\0") + "\0"),
            "stat" => {
                let nice = process.spec.as_ref().and_then(|spec| spec.policy.nice).unwrap_or(0);
                let priority = 20 + nice;
                let start = process.start_ticks;
                let FakeLooks { parent, pgrp, exe, .. } = &process.looks;
                let pgrp = if *pgrp == 0 { pid } else { *pgrp };
                // PF_KTHREAD, include/linux/sched.h.
                let flags = if exe.is_empty() { 0x20_0000 } else { 4_194_304 };
                // Fields up to 41, the policy.
                let policy = process.policy;
                let between = "0 ".repeat(18);
                Some(format!(
                    "{pid} ({name}) {letter} {parent} {pgrp} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 {priority} {nice} 1 0 {start} \
                     {between}{policy}\n"
                ))
            }
            "status" => {
                let cpus = process.spec.as_ref().and_then(|spec| spec.policy.cpus.clone());
                let cpus = cpus.unwrap_or_else(|| self.cpus.clone());
                Some(format!(
                    "Name:\t{name}\nState:\t{letter}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCpus_allowed_list:\t{cpus}\n",
                    parent = process.looks.parent,
                    uid = process.looks.uid,
                ))
            }
            _ => None,
        }
    }

    fn proc_cgroup(&self, process: &Proc) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (index, tree) in self.trees.iter().enumerate() {
            let path = process.groups.get(index).map_or_else(|| "/".to_owned(), |inode| self.path(*inode));
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

    pub(super) fn describe(&self, pid: u32, process: &Proc) -> FakeProcess {
        FakeProcess {
            pid,
            start_ticks: process.start_ticks,
            spec: process.spec.clone(),
            groups: process.groups.iter().map(|inode| self.full_path(*inode)).collect(),
            exit: process.running.exit(),
            signals: process.signals.clone(),
            idle: process.policy == 5,
            threads: process.threads.clone(),
        }
    }
}

/// Puts a new process into its groups.
pub(super) fn place(machine: &mut Machine, pid: u32, groups: &[&str]) {
    let roots = machine.roots();
    machine.add(pid, roots, None);
    for group in groups {
        if let Ok(inode) = machine.group_at(Path::new(group)) {
            machine.enter(inode, pid);
        }
    }
}
