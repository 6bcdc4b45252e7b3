//! The in-memory hierarchies: groups, their files, and the results of reads.
//!
//! `files.rs` decides which files a group has, `rules.rs` the effect of a write.

use super::files::{keeps, triggers};
use super::machine::{
    CallLog, FakeKernel, Faults, Group, Machine, Numbers, PlainFiles, Programs, Sockets, Tree,
};
use super::parse::Answer;
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::spelling;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's order of controllers in `cgroup.controllers`.
const V2_ORDER: [Controller; 5] =
    [Controller::Cpuset, Controller::Cpu, Controller::Io, Controller::Memory, Controller::Pids];

/// Maximum length of a group's name, in bytes. cgroup file systems have no limit for names (no `NAME_MAX` in kernfs;
/// seen on 6.18), so it is the maximum length of a path in a system call.
const NAME_MAX: usize = 4_095;

impl Machine {
    pub(super) fn new(cpus: CpuSet) -> Machine {
        Machine {
            kernel: FakeKernel {
                possible: cpus.clone(),
                cpus,
                online_is_busy: false,
                nodes: [0].into_iter().collect(),
                devices: BTreeSet::new(),
                lacking: BTreeSet::new(),
                vendor: None,
                core_sched: None,
            },
            trees: Vec::new(),
            groups: BTreeMap::new(),
            plain: PlainFiles::default(),
            programs: Programs::default(),
            sockets: Sockets::default(),
            processes: BTreeMap::new(),
            namespace: Vec::new(),
            numbers: Numbers::default(),
            faults: Faults::default(),
            log: CallLog::default(),
            life: 0,
            uptime: Duration::from_secs(1_000),
        }
    }

    /// Returns an independent copy of the machine: later changes to one do not affect the other.
    pub(super) fn copy(&self) -> Machine {
        let mut copy = self.clone();
        // Processes that hold locks belong to the original machine, so the copy has no locks.
        copy.plain.locks.clear();
        copy.log.mutations.clear();
        for process in copy.processes.values_mut() {
            process.running = process.running.apart();
        }
        copy
    }

    /// Mounts a hierarchy whose root group has no files yet; returns its index in `trees`.
    pub(super) fn mount(&mut self, mount: &str, version: Version, controllers: &[Controller]) -> usize {
        let tree = self.trees.len();
        let root = self.new_inode();
        self.trees.push(Tree {
            mount: mount.into(),
            version,
            controllers: controllers.to_vec(),
            root,
            known: None,
        });
        self.groups.insert(root, Group { tree, ..Group::default() });
        tree
    }

    pub(super) fn new_inode(&mut self) -> u64 {
        self.numbers.inode()
    }

    pub(super) fn version(&self, group: &Group) -> Version {
        self.trees[group.tree].version
    }

    pub(super) fn group(&self, inode: u64) -> Answer<&Group> {
        self.groups.get(&inode).ok_or(Errno::ENODEV)
    }

    pub(super) fn group_mut(&mut self, inode: u64) -> Answer<&mut Group> {
        self.groups.get_mut(&inode).ok_or(Errno::ENODEV)
    }

    pub(super) fn parent(&self, group: &Group) -> Option<&Group> {
        group.parent.and_then(|inode| self.groups.get(&inode))
    }

    /// Returns the stored text of a file; empty if there is none.
    pub(super) fn text<'a>(&'a self, group: &'a Group, file: &str) -> &'a str {
        group.files.get(file).and_then(Option::as_deref).unwrap_or_default()
    }

    pub(super) fn store(&mut self, inode: u64, file: &str, text: String) {
        if let Some(group) = self.groups.get_mut(&inode) {
            group.files.insert(file.to_owned(), Some(text));
        }
    }

    /// Returns the controllers whose files the group has.
    pub(super) fn controllers(&self, group: &Group) -> Vec<Controller> {
        let tree = &self.trees[group.tree];
        match (tree.version, self.parent(group)) {
            (Version::V2, Some(parent)) => {
                V2_ORDER.into_iter().filter(|controller| parent.enabled.contains(controller)).collect()
            }
            (Version::V2, None) => {
                V2_ORDER.into_iter().filter(|controller| tree.controllers.contains(controller)).collect()
            }
            (Version::V1, _) => tree.controllers.clone(),
        }
    }

    pub(super) fn mkdir(&mut self, parent: u64, name: &str) -> Answer<u64> {
        let above = self.groups.get(&parent).ok_or(Errno::ENOENT)?;
        if name.contains('\n') {
            return Err(Errno::EINVAL);
        }
        if spelling::bytes(name.as_bytes()).len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if above.children.contains_key(name) || above.files.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let group =
            Group { tree: above.tree, name: name.to_owned(), parent: Some(parent), ..Group::default() };
        let inode = self.new_inode();
        self.groups.insert(inode, group);
        self.group_mut(parent)?.children.insert(name.to_owned(), inode);
        let mut controllers = self.controllers(self.group(inode)?);
        controllers.push(Controller::Core);
        self.populate(inode, &controllers);
        self.inherit(parent, inode);
        Ok(inode)
    }

    /// Renames a group under the same parent. v1 only: v2 returns `EPERM`.
    pub(super) fn rename(&mut self, parent: u64, from: &str, expect: u64, to: &str) -> Answer<()> {
        let above = self.groups.get(&parent).ok_or(Errno::ENOENT)?;
        let inode = *above.children.get(from).filter(|inode| **inode == expect).ok_or(Errno::ENOENT)?;
        if self.version(above) == Version::V2 {
            return Err(Errno::EPERM);
        }
        if spelling::bytes(to.as_bytes()).len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if above.files.contains_key(to) {
            return Err(Errno::ENOTDIR);
        }
        if above.children.contains_key(to) {
            return Err(Errno::EEXIST);
        }
        let above = self.group_mut(parent)?;
        above.children.remove(from);
        above.children.insert(to.to_owned(), inode);
        self.group_mut(inode)?.name = to.to_owned();
        Ok(())
    }

    pub(super) fn rmdir(&mut self, parent: u64, name: &str, expect: u64) -> Answer<()> {
        let above = self.groups.get(&parent).ok_or(Errno::ENOENT)?;
        if above.files.contains_key(name) {
            return Err(if expect == 0 { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        let inode = *above.children.get(name).filter(|inode| **inode == expect).ok_or(Errno::ENOENT)?;
        if !self.group(inode)?.children.is_empty() || !self.members(inode).is_empty() {
            return Err(Errno::EBUSY);
        }
        self.remove(inode);
        Ok(())
    }

    fn remove(&mut self, inode: u64) {
        if let Some(gone) = self.groups.remove(&inode)
            && let Some(above) = gone.parent.and_then(|parent| self.groups.get_mut(&parent))
        {
            above.children.remove(&gone.name);
        }
    }

    /// Removes a group and everything below it, as another program would; its processes move to the parent.
    pub(super) fn vanish(&mut self, inode: u64) {
        let Some(parent) = self.groups.get(&inode).and_then(|group| group.parent) else { return };
        let below = self.subtree(inode);
        for process in self.processes.values_mut() {
            let all = process.apart.values_mut().chain([&mut process.groups]);
            for at in all.flatten().filter(|at| below.contains(at)) {
                *at = parent;
            }
        }
        for gone in below.into_iter().rev() {
            self.remove(gone);
        }
    }

    /// Returns the group and all groups below it, parents first.
    pub(super) fn subtree(&self, inode: u64) -> Vec<u64> {
        let mut found = vec![inode];
        let mut next = 0;
        while let Some(at) = found.get(next).copied() {
            found.extend(self.groups.get(&at).into_iter().flat_map(|group| group.children.values().copied()));
            next += 1;
        }
        found
    }

    /// Returns the bytes of memory that the group and all groups below it use.
    pub(super) fn usage(&self, inode: u64) -> u64 {
        self.subtree(inode).iter().filter_map(|at| self.groups.get(at)).map(|group| group.usage).sum()
    }

    /// Returns the group's path below the mount; `/` for the root.
    pub(super) fn path(&self, inode: u64) -> String {
        let mut names = Vec::new();
        let mut at = self.groups.get(&inode);
        while let Some(group) = at {
            names.push(group.name.as_str());
            at = self.parent(group);
        }
        names.reverse();
        if names.len() < 2 { "/".to_owned() } else { names.join("/") }
    }

    /// Returns the absolute path of a group.
    pub(super) fn full_path(&self, inode: u64) -> PathBuf {
        let mount = self.groups.get(&inode).map(|group| self.trees[group.tree].mount.clone());
        crate::below(&mount.unwrap_or_default(), &self.path(inode))
    }

    /// Finds the last group on an absolute path. Returns its inode and the rest of the path.
    pub(super) fn locate(&self, path: &Path) -> Option<(u64, PathBuf)> {
        let tree = self
            .trees
            .iter()
            .filter(|tree| path.starts_with(&tree.mount))
            .max_by_key(|tree| tree.mount.components().count())?;
        let mut at = tree.root;
        let mut left = path.strip_prefix(&tree.mount).ok()?.components();
        while let Some(name) = left.clone().next().and_then(|part| part.as_os_str().to_str()) {
            let Some(child) = self.groups.get(&at).and_then(|group| group.children.get(name)) else { break };
            at = *child;
            left.next();
        }
        Some((at, left.as_path().to_owned()))
    }

    pub(super) fn group_at(&self, path: &Path) -> Answer<u64> {
        match self.locate(path) {
            Some((inode, left)) if left.as_os_str().is_empty() => Ok(inode),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Returns the content of a control file, with the trailing line break that the kernel adds.
    pub(super) fn read(&self, inode: u64, file: &str) -> Answer<String> {
        let group = self.group(inode)?;
        let stored = group.files.get(file).ok_or(Errno::ENOENT)?;
        if triggers(self.version(group), file) {
            return Err(Errno::EINVAL);
        }
        let text = match stored {
            Some(text) => text.clone(),
            None => self.computed(inode, group, file),
        };
        let keeps_its_line = file.starts_with("cpuset.") || file.starts_with("cgroup.sub");
        Ok(if text.is_empty() && !keeps_its_line { text } else { text + "\n" })
    }

    fn computed(&self, inode: u64, group: &Group, file: &str) -> String {
        let lines = |pids: Vec<u32>| pids.iter().map(u32::to_string).collect::<Vec<_>>().join("\n");
        let words = |list: Vec<Controller>| {
            list.iter().map(|controller| controller.v2_name()).collect::<Vec<_>>().join(" ")
        };
        match file {
            "cgroup.procs" => lines(self.members(inode)),
            "cgroup.threads" | "tasks" => lines(self.threads(inode)),
            "cgroup.controllers" => words(self.controllers(group)),
            "cgroup.subtree_control" => {
                words(V2_ORDER.into_iter().filter(|controller| group.enabled.contains(controller)).collect())
            }
            "cgroup.events" => {
                let populated = self.subtree(inode).iter().any(|at| !self.members(*at).is_empty());
                let frozen = self.text(group, "cgroup.freeze") == "1";
                format!("populated {}\nfrozen {}", u8::from(populated), u8::from(frozen))
            }
            "cpuset.cpus.effective" | "cpuset.effective_cpus" => {
                self.effective(group, "cpuset.cpus", &self.kernel.cpus).to_string()
            }
            "cpuset.cpus.exclusive.effective" => self.set_aside_in(group).to_string(),
            "cpuset.mems.effective" | "cpuset.effective_mems" => {
                self.effective(group, "cpuset.mems", &self.kernel.nodes).to_string()
            }
            "pids.current" => {
                self.subtree(inode).iter().map(|at| self.members(*at).len()).sum::<usize>().to_string()
            }
            _ => self.usage(inode).to_string(),
        }
    }

    /// Returns the text of every file that can be written and keeps its value, by absolute path.
    pub(super) fn snapshot(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for (inode, group) in &self.groups {
            let version = self.version(group);
            let folder = self.full_path(*inode);
            for name in group.files.keys().filter(|name| keeps(version, name)) {
                let text = self.read(*inode, name).unwrap_or_default();
                all.insert(folder.join(name).display().to_string(), text.trim_end().to_owned());
            }
        }
        all
    }
}
