//! CPU time: how processes that compute share a CPU. The model follows observations of mainline kernels (weights,
//! `cpu.idle`, quotas, freezing), of openEuler's scheduling levels and of the core of Group Identity; for absolute
//! expulsion and rank 3 it follows documents only. Processes compute if they were started with the argument `burn`.

use super::machine::{Machine, Proc, VendorKernel};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, Version};
use commensal_core::process::SCHED_IDLE;
use commensal_core::vendor::{QosLevels, Switch};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Weight of a group or task that is `SCHED_IDLE` (`WEIGHT_IDLEPRIO`), where the default is 1024.
const IDLE_WEIGHT: f64 = 3.0;
const DEFAULT_WEIGHT: f64 = 1024.0;
/// Flags of `cpu.identity`.
const UNDERCLASS: u32 = 1;
const HIGHCLASS: u32 = 2;
const ABSOLUTE: u32 = 32;

impl Machine {
    /// Lets time pass: the processes that compute use the CPUs.
    pub(super) fn compute(&mut self, time: Duration) {
        self.uptime += time;
        let Some(tree) = self.trees.iter().position(|tree| tree.controllers.contains(&Controller::Cpu))
        else {
            return;
        };
        for pids in self.on_cpus().into_values() {
            let runnable = self.unthrottled(tree, pids);
            let root = self.trees[tree].root;
            let mut used = BTreeMap::new();
            self.divide(tree, root, &runnable, time.as_nanos() as f64, &mut used);
            for (pid, ns) in used {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.run_ns += ns as u64;
                }
            }
        }
    }

    /// The processes that compute on each CPU.
    fn on_cpus(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut on_cpu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, process) in self.processes.iter().filter(|(_, process)| computes(process)) {
            if !self.is_frozen(process) {
                let cpu = self.cpus_of(process).iter().next().unwrap_or(0);
                on_cpu.entry(cpu).or_default().push(*pid);
            }
        }
        on_cpu
    }

    /// Whether a process computes on a CPU that other processes keep from it ([`Machine::unthrottled`]).
    pub(super) fn is_throttled(&self, process: &Proc) -> bool {
        let tree = self.trees.iter().position(|tree| tree.controllers.contains(&Controller::Cpu));
        let Some((tree, pid)) = tree.zip(process.threads.keys().next().copied()) else { return false };
        let beside = self.on_cpus().into_values().find(|pids| pids.contains(&pid));
        beside.is_some_and(|pids| !self.unthrottled(tree, pids).contains(&pid))
    }

    /// The CPUs that a process may use: those it was pinned to, or those of its cpuset.
    pub(super) fn cpus_of(&self, process: &Proc) -> CpuSet {
        let pinned = process.spec.as_ref().and_then(|spec| spec.policy.cpus.clone());
        let of_group = process.groups.iter().find_map(|inode| {
            let set: CpuSet = self.text(self.groups.get(inode)?, "cpuset.cpus").parse().ok()?;
            (!set.is_empty()).then_some(set)
        });
        pinned.or(of_group).unwrap_or_else(|| self.kernel.cpus.clone())
    }

    fn is_frozen(&self, process: &Proc) -> bool {
        self.is_frozen_on_v1(process) || self.is_below(process, "cgroup.freeze", "1")
    }

    /// Whether a freezer of v1 holds the process, which then acts on no signal.
    pub(super) fn is_frozen_on_v1(&self, process: &Proc) -> bool {
        self.is_below(process, "freezer.state", "FROZEN")
    }

    /// Whether the process is in or below a group whose file has this text.
    fn is_below(&self, process: &Proc, file: &str, text: &str) -> bool {
        process.groups.iter().any(|inode| {
            let mut at = self.groups.get(inode);
            while let Some(group) = at {
                if self.text(group, file) == text {
                    return true;
                }
                at = self.parent(group);
            }
            false
        })
    }

    fn policy(&self, pid: u32) -> i32 {
        self.processes.get(&pid).map_or(0, |process| process.scheduling(pid).policy)
    }

    fn group_of(&self, tree: usize, pid: u32) -> u64 {
        self.processes.get(&pid).and_then(|process| process.groups.get(tree).copied()).unwrap_or_default()
    }

    /// openEuler: the processes of one CPU without those that are throttled. A group below level 0 is throttled while
    /// all of its processes on this CPU are `SCHED_IDLE` and another process on the CPU is not.
    fn unthrottled(&self, tree: usize, pids: Vec<u32>) -> Vec<u32> {
        if !matches!(self.kernel.vendor, Some(VendorKernel::OpenEuler { .. })) {
            return pids;
        }
        let offline = |pid: &u32| self.level_of(self.group_of(tree, *pid)) < 0;
        let idle = |pid: &u32| self.policy(*pid) == SCHED_IDLE;
        let busy = pids.iter().any(|pid| !offline(pid) && !idle(pid));
        let all_idle = |pid: &u32| {
            let group = self.group_of(tree, *pid);
            pids.iter().filter(|other| self.group_of(tree, **other) == group).all(idle)
        };
        pids.iter().filter(|pid| !(busy && offline(pid) && all_idle(pid))).copied().collect()
    }

    fn level_of(&self, inode: u64) -> i64 {
        self.groups.get(&inode).and_then(|group| self.text(group, "cpu.qos_level").parse().ok()).unwrap_or(0)
    }

    /// Divides `ns` of CPU time among the processes in and below a group.
    fn divide(&self, tree: usize, at: u64, pids: &[u32], ns: f64, used: &mut BTreeMap<u32, f64>) {
        let Some(group) = self.groups.get(&at) else { return };
        let ns = self.quota_of(at).map_or(ns, |quota| ns.min(quota * ns));
        let mut entities: Vec<(f64, u32, Vec<u32>, Option<u64>)> = Vec::new();
        for child in group.children.values() {
            let below = self.subtree(*child);
            let inside: Vec<u32> =
                pids.iter().copied().filter(|pid| below.contains(&self.group_of(tree, *pid))).collect();
            if !inside.is_empty() {
                entities.push((self.weight_of(*child), self.flags_of(*child), inside, Some(*child)));
            }
        }
        for pid in pids.iter().filter(|pid| self.group_of(tree, **pid) == at) {
            let weight = if self.policy(*pid) == SCHED_IDLE { IDLE_WEIGHT } else { DEFAULT_WEIGHT };
            entities.push((weight, 0, vec![*pid], None));
        }
        let flags: Vec<u32> = entities.iter().map(|(_, flags, ..)| *flags).collect();
        if self.hides_underclass(&flags) {
            entities.retain(|(_, flags, ..)| flags & UNDERCLASS == 0);
        }
        let total: f64 = entities.iter().map(|(weight, ..)| weight).sum();
        for (weight, _, inside, child) in entities {
            let part = ns * weight / total;
            match child {
                Some(child) => self.divide(tree, child, &inside, part, used),
                None => inside.into_iter().for_each(|pid| *used.entry(pid).or_default() += part),
            }
        }
    }

    /// Group Identity: whether the underclass (offline) groups get no CPU time. If one online group waits, they share
    /// the CPU with it by weight; if a second online group waits, the kernel always picks it before them.
    fn hides_underclass(&self, flags: &[u32]) -> bool {
        let online = flags.iter().filter(|flags| **flags & HIGHCLASS != 0).count();
        let on = matches!(self.kernel.vendor, Some(VendorKernel::Anolis { .. }))
            && self.setting(Switch::GroupIdentity) != Some(0);
        let features = self.plain.files.get(Path::new("/sys/kernel/debug/sched_features"));
        let strict =
            features.is_some_and(|text| text.split_whitespace().any(|word| word == "ID_ABSOLUTE_EXPEL"));
        let absolute = flags.iter().any(|flags| flags & ABSOLUTE != 0);
        on && (online > 1 || (online == 1 && strict) || absolute)
    }

    fn flags_of(&self, inode: u64) -> u32 {
        let group = self.groups.get(&inode);
        group.and_then(|group| self.text(group, "cpu.identity").parse().ok()).unwrap_or(0)
    }

    fn weight_of(&self, inode: u64) -> f64 {
        let Some(group) = self.groups.get(&inode) else { return DEFAULT_WEIGHT };
        let number = |file: &str| self.text(group, file).parse::<f64>().ok();
        if self.text(group, "cpu.idle") == "1" {
            return IDLE_WEIGHT;
        }
        let weight = match self.version(group) {
            Version::V1 => number("cpu.shares"),
            Version::V2 => number("cpu.weight").map(|weight| weight * DEFAULT_WEIGHT / 100.0),
        };
        let five = self.plain.files.contains_key(Path::new(QosLevels::WEIGHTS));
        let level = if five { self.level_of(inode) } else { 0 };
        weight.unwrap_or(DEFAULT_WEIGHT) * 10f64.powi(i32::try_from(level).unwrap_or(0))
    }

    /// Quota of the group, in CPUs.
    fn quota_of(&self, inode: u64) -> Option<f64> {
        let group = self.groups.get(&inode)?;
        let (quota, period) = match self.version(group) {
            Version::V1 => (self.text(group, "cpu.cfs_quota_us"), self.text(group, "cpu.cfs_period_us")),
            Version::V2 => self.text(group, "cpu.max").split_once(' ')?,
        };
        let quota = quota.parse::<f64>().ok().filter(|quota| *quota > 0.0)?;
        Some(quota / period.parse::<f64>().ok()?)
    }
}

/// Whether the process computes.
pub(super) fn computes(process: &Proc) -> bool {
    let burns = process.spec.as_ref().is_some_and(|spec| spec.args.iter().any(|arg| arg == "burn"));
    burns && process.running.exit().is_none()
}
