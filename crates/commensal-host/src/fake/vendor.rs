//! The rules of vendors' kernels and of core scheduling. **Documented, not observed**: read from openEuler's
//! and Anolis' sources (kernel/sched/core.c, fair.c and mm/memcontrol.c of their 5.10), because no such kernel
//! could be booted for our tests; core scheduling from kernel/sched/core_sched.c.

use super::machine::{Machine, VendorKernel};
use super::parse::{self, Answer};
use crate::Cookie;
use commensal_core::errno::Errno;
use commensal_core::vendor::Switch;
use std::path::Path;

/// Flags of `cpu.identity` for a value of `cpu.bvt_warp_ns`: underclass 1, highclass 2, SMT expeller 4, idle
/// saver 8, idle seeker 16.
fn identity(bvt: i64) -> u32 {
    match bvt {
        2 => 2 | 4 | 16,
        1 => 2 | 16,
        -2 | -1 => 1 | 8,
        _ => 0,
    }
}

impl Machine {
    fn is_root(&self, inode: u64) -> Answer<bool> {
        Ok(self.group(inode)?.parent.is_none())
    }

    fn level(&self, inode: u64, file: &str) -> i64 {
        self.groups.get(&inode).and_then(|group| self.text(group, file).parse().ok()).unwrap_or(0)
    }

    pub(super) fn set_bvt(&mut self, inode: u64, text: &str) -> Answer<()> {
        let value = parse::number(text.trim())?;
        if self.is_root(inode)? {
            return Err(Errno::EINVAL);
        }
        if !(-2..=2).contains(&value) {
            return Err(Errno::ERANGE);
        }
        // Children keep their values. While the switch is off the value is stored but has no effect.
        self.store(inode, "cpu.bvt_warp_ns", value.to_string());
        self.store(inode, "cpu.identity", identity(value).to_string());
        Ok(())
    }

    pub(super) fn set_qos(&mut self, inode: u64, file: &str, text: &str) -> Answer<()> {
        let value = parse::number(text.trim())?;
        if file == "memory.qos_level" {
            return self.set_memory_qos(inode, value);
        }
        let Some(VendorKernel::OpenEuler { five_levels, reversible }) = self.vendor else {
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
        if (now < 0 && value > now && !reversible) || (parent < 0 && value != parent) {
            return Err(Errno::EINVAL);
        }
        for below in self.subtree(inode) {
            self.store(below, file, value.to_string());
            for pid in self.members(below) {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.policy = if value < 0 { 5 } else { 0 };
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

    /// Makes a task that enters an offline group `SCHED_IDLE`; it stays so when it leaves.
    pub(super) fn enters_offline(&mut self, inode: u64, pid: u32) {
        let offline = self.level(inode, "cpu.qos_level") < 0;
        if let Some(process) = self.processes.get_mut(&pid)
            && offline
        {
            process.policy = 5;
        }
    }

    /// The values that a new group inherits from its parent.
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
        self.files.get(Path::new(switch.path()))?.trim().parse().ok()
    }

    /// Handles a write below `/proc/sys`.
    pub(super) fn write_setting(&mut self, path: &Path, text: &str) -> Answer<()> {
        if !self.files.contains_key(path) {
            return Err(Errno::ENOENT);
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
        // Switching either way clears Group Identity; switching off clears the memory levels.
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
        self.files.insert(path.to_owned(), format!("{value}\n"));
        Ok(())
    }

    /// Whether `PR_SCHED_CORE` works on this kernel: EINVAL without it, ENODEV without SMT, refused together with Group
    /// Identity (the error number is not documented).
    fn core_sched(&self) -> Answer<()> {
        match self.core_sched {
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

    /// The cookie's number.
    pub(super) fn resolve_cookie(&mut self, cookie: Cookie) -> Answer<u64> {
        self.core_sched()?;
        match cookie {
            Cookie::None => Ok(0),
            Cookie::Of(tid) => self.cookie(tid),
            Cookie::New => {
                self.next_cookie += 1;
                Ok(self.next_cookie)
            }
        }
    }

    pub(super) fn share_cookie(&mut self, cookie: Cookie, tids: &[u32]) -> Answer<()> {
        let number = self.resolve_cookie(cookie)?;
        // A thread that starts meanwhile inherits the current cookie of the thread that started it.
        for pid in std::mem::take(&mut self.faults.threads_appear) {
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

    /// Adds a thread to a process, with the cookie of its first one.
    pub(super) fn add_thread(&mut self, pid: u32) -> u32 {
        let tid = self.new_pid();
        if let Some(process) = self.processes.get_mut(&pid) {
            let cookie = process.threads.get(&pid).copied().unwrap_or(0);
            process.threads.insert(tid, cookie);
        }
        tid
    }
}
