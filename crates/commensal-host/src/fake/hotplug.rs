//! CPU hotplug, and what it does to cpusets.
//!
//! In v2 a cpuset keeps its `cpuset.cpus`, and only the effective set changes. In v1 the kernel takes the CPU out of
//! every set, and moves the tasks of a set that is empty now to the nearest ancestor with CPUs and memory nodes
//! (`cpuset_handle_hotplug`, kernel/cgroup/cpuset.c; `cpuset1_hotplug_update_tasks` and `remove_tasks_in_empty_cpuset`,
//! kernel/cgroup/cpuset-v1.c). When the CPU comes back, only the root gets it, and no task returns.

use super::machine::Machine;
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, Version};
use std::path::PathBuf;

impl Machine {
    pub(super) fn set_online(&mut self, cpu: u32, online: bool) {
        let one: CpuSet = [cpu].into_iter().collect();
        if !self.kernel.possible.contains(cpu) {
            return;
        }
        self.kernel.cpus = match online {
            true => self.kernel.cpus.union(&one),
            false => self.kernel.cpus.difference(&one),
        };
        let list = format!("{}\n", self.kernel.cpus);
        for file in ["/sys/devices/system/cpu/online", "/sys/devices/system/node/node0/cpulist"] {
            self.plain.files.insert(PathBuf::from(file), list.clone());
        }
        let cpusets = self
            .trees
            .iter()
            .filter(|tree| tree.version == Version::V1 && tree.controllers.contains(&Controller::Cpuset));
        for root in cpusets.map(|tree| tree.root).collect::<Vec<_>>() {
            self.store(root, "cpuset.cpus", self.kernel.cpus.to_string());
            self.shrink_below(root);
        }
    }

    /// Takes CPUs that the v1 cpuset does not have out of the sets below it, from the top.
    fn shrink_below(&mut self, inode: u64) {
        let Ok(group) = self.group(inode) else { return };
        let above = self.set_of(group, "cpuset.cpus");
        for child in group.children.values().copied().collect::<Vec<_>>() {
            let Ok(found) = self.group(child) else { continue };
            let set = self.set_of(found, "cpuset.cpus");
            let left = set.intersection(&above);
            if left != set {
                self.store(child, "cpuset.cpus", left.to_string());
                if left.is_empty() {
                    self.empty_into_ancestor(child);
                }
            }
            self.shrink_below(child);
        }
    }

    /// Moves all tasks of a cpuset to its nearest ancestor with CPUs and memory nodes.
    fn empty_into_ancestor(&mut self, inode: u64) {
        let above = |inode: u64| self.groups.get(&inode).and_then(|group| group.parent);
        let usable = |inode: &u64| {
            let lists = ["cpuset.cpus", "cpuset.mems"];
            self.groups.get(inode).is_some_and(|group| {
                group.parent.is_none() || lists.iter().all(|list| !self.set_of(group, list).is_empty())
            })
        };
        let Some(home) = std::iter::successors(above(inode), |inode| above(*inode)).find(usable) else {
            return;
        };
        for pid in self.members(inode) {
            self.enter(home, pid);
        }
    }
}
