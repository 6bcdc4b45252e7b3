//! The rules of vendor kernels and of core scheduling. We observed openEuler's scheduling levels and `cpu.bvt_warp_ns`
//! on a Debian kernel with the vendors' code of 5.10. **Documented, not observed**: memory levels (openEuler 5.10,
//! mm/memcontrol.c), `cpu.identity` (Anolis 5.10, kernel/sched/fair.c, `update_identity`), `cpu.priority` (Anolis 6.6,
//! fair.c), core scheduling (kernel/sched/core_sched.c).

use super::machine::{Machine, Proc, VendorKernel};
use super::parse::{self, Answer};
use crate::{Cookie, Exit, Scheduling, Signal};
use commensal_core::errno::Errno;
use commensal_core::process::{SCHED_IDLE, SCHED_NORMAL, SCHED_PLAIN};
use commensal_core::vendor::{QOS_SYSCTLS, Switch, identity_flags};
use std::path::Path;

/// Flags of `cpu.identity` that exclude each other.
const UNDERCLASS: i64 = 1;
const HIGHCLASS: i64 = 2;

/// Returns the attributes that a child of a thread with the attributes `parent` gets.
pub(super) fn of_child(parent: Scheduling) -> Scheduling {
    let plain = SCHED_PLAIN.contains(&parent.policy) || parent.policy == SCHED_NORMAL;
    match parent.reset_on_fork && !plain {
        true => Scheduling::default(),
        false => Scheduling { reset_on_fork: false, ..parent },
    }
}

impl Machine {
    fn is_root(&self, inode: u64) -> Answer<bool> {
        Ok(self.group(inode)?.parent.is_none())
    }

    pub(super) fn level(&self, inode: u64, file: &str) -> i64 {
        self.groups.get(&inode).and_then(|group| self.text(group, file).parse().ok()).unwrap_or(0)
    }

    pub(super) fn set_bvt(&mut self, inode: u64, text: &str) -> Answer<()> {
        let value = parse::number(text)?;
        if self.is_root(inode)? {
            return Err(Errno::EINVAL);
        }
        if !(-2..=3).contains(&value) {
            return Err(Errno::ERANGE);
        }
        // If the switch is on and the group has this value already, a write changes nothing, not even other flags in
        // `cpu.identity`.
        if self.setting(Switch::GroupIdentity) != Some(0) && value == self.level(inode, "cpu.bvt_warp_ns") {
            return Ok(());
        }
        // Children keep their values. While the switch is off the value is stored but has no effect.
        self.store(inode, "cpu.bvt_warp_ns", value.to_string());
        self.store(inode, "cpu.identity", identity_flags(value).to_string());
        Ok(())
    }

    /// Sets the flags in a group's `cpu.identity`. A read of `cpu.bvt_warp_ns` does not show this change.
    pub(super) fn set_identity(&mut self, inode: u64, text: &str) -> Answer<()> {
        let value = parse::number(text)?;
        if self.is_root(inode)? {
            return Err(Errno::EINVAL);
        }
        let range = match self.kernel.vendor {
            Some(VendorKernel::Anolis66) => -1..=1,
            _ => 0..=63,
        };
        if !range.contains(&value) {
            return Err(Errno::ERANGE);
        }
        if value & UNDERCLASS != 0 && value & HIGHCLASS != 0 && value > 0 {
            return Err(Errno::EINVAL);
        }
        self.store(inode, "cpu.identity", value.to_string());
        Ok(())
    }

    pub(super) fn set_qos(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        let value = parse::number(text)?;
        if file == "memory.qos_level" {
            return self.set_memory_qos(inode, value);
        }
        let Some(VendorKernel::OpenEuler { five_levels }) = self.kernel.vendor else {
            return Err(Errno::ENOENT);
        };
        let range = if five_levels { -2..=2 } else { -1..=0 };
        if self.is_root(inode)? || !range.contains(&value) {
            return Err(Errno::EINVAL);
        }
        let now = self.level(inode, file);
        if value == now {
            return Ok(());
        }
        let parent = self.group(inode)?.parent.map_or(0, |parent| self.level(parent, file));
        // The kernel refuses to change a level other than 0.
        if now != 0 || (parent < 0 && value != parent) {
            return Err(Errno::EINVAL);
        }
        for below in self.subtree(inode) {
            self.store(below, file, value.to_string());
            for pid in self.members(below) {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.schedule_all(Scheduling::of(if value < 0 { SCHED_IDLE } else { SCHED_NORMAL }));
                }
            }
        }
        Ok(())
    }

    fn set_memory_qos(&mut self, inode: u64, value: i64) -> Answer<()> {
        if self.setting(Switch::MemcgQos) != Some(1) {
            return Err(Errno::EACCES);
        }
        if self.is_root(inode)? || !(-1..=0).contains(&value) {
            return Err(Errno::EINVAL);
        }
        for below in self.subtree(inode) {
            self.store(below, "memory.qos_level", value.to_string());
        }
        Ok(())
    }

    /// Makes a process that enters an offline group `SCHED_IDLE`, or is forked in one, whatever its policy was; it
    /// stays `SCHED_IDLE` when it leaves the group.
    pub(super) fn enters_offline(&mut self, inode: u64, pid: u32) {
        let offline = self.level(inode, "cpu.qos_level") < 0;
        if let Some(process) = self.processes.get_mut(&pid)
            && offline
        {
            process.schedule_all(Scheduling::of(SCHED_IDLE));
        }
    }

    /// Whether the code of a process does not run at all: online work is busy on every CPU, or on the one on which the
    /// process computes, the process is in a group below level 0, and all its threads are `SCHED_IDLE` (fair.c,
    /// `check_qos_cfs_rq`). Observed: such a process runs in the kernel now and then, but never handles a signal.
    pub(super) fn is_starving(&self, process: &Proc) -> bool {
        let below = process.groups.iter().any(|inode| self.level(*inode, "cpu.qos_level") < 0);
        let idle = |tid: &u32| process.scheduling(*tid).policy == SCHED_IDLE;
        let is_held_back = || self.kernel.online_is_busy || self.is_throttled(process);
        below && process.threads.keys().all(idle) && is_held_back()
    }

    /// Whether a live process in or below the group is starving.
    pub(super) fn is_starving_below(&self, inode: u64) -> bool {
        let members = self.subtree(inode).into_iter().flat_map(|at| self.members(at));
        members.into_iter().any(|pid| self.processes.get(&pid).is_some_and(|one| self.is_starving(one)))
    }

    /// Lets the processes that have a CPU now do what they could not do while they starved: handle signals, and leave
    /// the kernel so that they can be frozen. Killed processes exit once they are thawed.
    pub(super) fn go_on(&mut self) {
        for process in self.processes.values().filter(|process| process.signals.contains(&Signal::KILL)) {
            if !self.is_frozen_on_v1(process) {
                process.running.end(Exit::Signal(Signal::KILL.0));
            }
        }
        if !matches!(self.kernel.vendor, Some(VendorKernel::OpenEuler { .. })) {
            return;
        }
        for process in self.processes.values() {
            let asked = process.asked_to_end && process.running.exit().is_none();
            if let Some(status) = process.handler.filter(|_| asked && !self.is_starving(process)) {
                process.running.end(Exit::Code(status));
            }
        }
        let freezing = |inode: &u64| {
            self.groups.get(inode).is_some_and(|group| self.text(group, "freezer.state") == "FREEZING")
        };
        let frozen: Vec<u64> = self.groups.keys().copied().filter(freezing).collect();
        for inode in frozen {
            if !self.is_starving_below(inode) {
                self.store(inode, "freezer.state", "FROZEN".to_owned());
            }
        }
    }

    /// Fails if the kernel does not give a member of this v1 group a real-time policy: the group has no budget for it
    /// (`CONFIG_RT_GROUP_SCHED`).
    pub(super) fn real_time_budget(&self, inodes: &[u64], errno: Errno) -> Answer<()> {
        let none = |inode: &u64| {
            let group = self.groups.get(inode);
            group.is_some_and(|group| self.text(group, "cpu.rt_runtime_us") == "0")
        };
        if inodes.iter().any(none) { Err(errno) } else { Ok(()) }
    }

    /// Copies the values that a new group inherits from its parent.
    pub(super) fn inherit(&mut self, parent: u64, child: u64) {
        for file in ["cpu.bvt_warp_ns", "cpu.identity", "cpu.qos_level", "memory.qos_level"] {
            let Some(above) = self.groups.get(&parent) else { return };
            let text = self.text(above, file).to_owned();
            let has = self.groups.get(&child).is_some_and(|child| child.files.contains_key(file));
            if has && !text.is_empty() {
                self.store(child, file, text);
            }
        }
    }

    pub(super) fn setting(&self, switch: Switch) -> Option<i64> {
        self.plain.files.get(Path::new(switch.path()))?.trim().parse().ok()
    }

    /// Handles a write below `/proc/sys`.
    pub(super) fn write_setting(&mut self, path: &Path, text: &str) -> Answer<()> {
        if !self.plain.files.contains_key(path) {
            return Err(Errno::ENOENT);
        }
        let sysctl = QOS_SYSCTLS.iter().find(|one| Path::new(one.path) == path);
        if let Some((least, most)) = sysctl.and_then(|one| one.range) {
            let value = parse::number(text.trim())?;
            if !(least..=most).contains(&value) {
                return Err(Errno::EINVAL);
            }
            self.plain.files.insert(path.to_owned(), format!("{value}\n"));
            return Ok(());
        }
        let Some(switch) = Switch::ALL.into_iter().find(|switch| Path::new(switch.path()) == path) else {
            return Err(Errno::EACCES);
        };
        let value @ (0 | 1) = parse::number(text.trim())? else { return Err(Errno::EINVAL) };
        if Some(value) == self.setting(switch) {
            return Ok(());
        }
        let in_use = self.processes.values().any(|process| process.cookies().any(|cookie| cookie != 0));
        if switch == Switch::GroupIdentity && value == 1 && in_use {
            return Err(Errno::EBUSY);
        }
        // Turning the switch on or off clears the groups' identities; turning the memory switch off clears the memory
        // levels.
        let cleared: &[&str] = match (switch, value) {
            (Switch::GroupIdentity, _) => &["cpu.bvt_warp_ns", "cpu.identity"],
            (Switch::MemcgQos, 0) => &["memory.qos_level"],
            (Switch::MemcgQos, _) => &[],
        };
        for group in self.groups.values_mut() {
            for file in cleared {
                group.files.entry((*file).to_owned()).and_modify(|text| *text = Some("0".to_owned()));
            }
        }
        self.plain.files.insert(path.to_owned(), format!("{value}\n"));
        Ok(())
    }

    /// Fails if `PR_SCHED_CORE` does not work on this kernel: EINVAL without core scheduling, ENODEV without SMT. The
    /// call also fails while Group Identity is on (with an error number that is not documented).
    fn core_sched(&self) -> Answer<()> {
        match self.kernel.core_sched {
            None => Err(Errno::EINVAL),
            Some(false) => Err(Errno::ENODEV),
            Some(true) if self.setting(Switch::GroupIdentity) == Some(1) => Err(Errno::EBUSY),
            Some(true) => Ok(()),
        }
    }

    pub(super) fn cookie(&self, tid: u32) -> Answer<u64> {
        self.core_sched()?;
        if tid == 0 {
            return Ok(0);
        }
        self.processes.values().find_map(|process| process.cookie(tid)).ok_or(Errno::ESRCH)
    }

    /// Returns the number of a cookie; creates a new one for [`Cookie::New`].
    pub(super) fn resolve_cookie(&mut self, cookie: Cookie) -> Answer<u64> {
        self.core_sched()?;
        match cookie {
            Cookie::None => Ok(0),
            Cookie::Of(tid) => self.cookie(tid),
            Cookie::New => Ok(self.numbers.cookie()),
        }
    }

    pub(super) fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Answer<()> {
        let number = self.resolve_cookie(cookie)?;
        // A thread that starts during the assignment inherits the current cookie of the thread that started it.
        for pid in std::mem::take(&mut self.faults.processes.threads_appear) {
            self.add_thread(pid);
        }
        for tid in tids {
            if let Some(process) = self.processes.values_mut().find(|process| process.cookie(*tid).is_some())
            {
                process.set_cookie(*tid, number);
            }
        }
        Ok(())
    }

    /// Adds a thread to a process, with the cookie and the scheduling attributes of its first thread; returns its TID.
    pub(super) fn add_thread(&mut self, pid: u32) -> u32 {
        let tid = self.new_pid();
        if let Some(process) = self.processes.get_mut(&pid) {
            let cookie = process.threads.get(&pid).copied().unwrap_or(0);
            process.threads.insert(tid, cookie);
            let inherited = process.scheduling(pid);
            process.scheduling.insert(tid, of_child(inherited));
        }
        let groups = self.processes.get(&pid).map(|process| process.groups.clone()).unwrap_or_default();
        let below = groups.iter().any(|inode| self.level(*inode, "cpu.qos_level") < 0);
        if let Some(process) = self.processes.get_mut(&pid).filter(|_| below) {
            process.scheduling.insert(tid, Scheduling::of(SCHED_IDLE));
        }
        tid
    }
}
