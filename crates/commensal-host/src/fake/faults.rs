//! Faults that tests can inject, and the record of mutations (successful changes of the machine).

use super::machine::{Effect, FakeLooks, Machine, Mutation};
use super::parse::Answer;
use super::procs::place;
use super::vendor::of_child;
use crate::Exit;
use commensal_core::errno::Errno;

/// The kind of a mutation, which decides the permissions and faults that apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A change in a cgroup file system.
    Group,
    /// A state file that is created or written.
    State,
    /// A write below `/proc/sys`.
    Setting,
    /// Anything else.
    Other,
}

impl Machine {
    /// Returns EIO after a simulated crash, and for a host that was created before a restart. Counts the call.
    pub(super) fn alive(&self, life: u32) -> Answer<()> {
        self.log.calls.set(self.log.calls.get() + 1);
        if self.faults.crashed || life != self.life { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Fails if a mutation is not allowed now.
    pub(super) fn may_change(&mut self, life: u32, kind: Kind) -> Answer<()> {
        self.alive(life)?;
        if let Some((0 | 1, errno)) = self.faults.fail {
            self.faults.fail = None;
            return Err(errno);
        }
        if let (Kind::Group, Some((0, errno))) = (kind, self.faults.refuse) {
            return Err(errno);
        }
        match kind {
            Kind::Group if self.faults.read_only => Err(Errno::EROFS),
            Kind::Setting if self.faults.read_only => Err(Errno::EROFS),
            Kind::Setting if self.faults.unprivileged => Err(Errno::EACCES),
            Kind::State if self.faults.state_full => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// Returns the effect of the fault set by [`FakeHost::trouble`](super::FakeHost::trouble) on an operation; `None`
    /// if it does not apply.
    pub(super) fn troubled(
        &mut self,
        operation: &'static str,
        path: &str,
        value: &str,
    ) -> Answer<Option<Effect>> {
        let most = self.faults.trouble_times;
        let (trouble, times) = &mut self.faults.trouble;
        let same_value = |wanted: &String| match operation {
            "ask" => value.contains(wanted.as_str()),
            _ => value.trim() == wanted.trim(),
        };
        let hit = trouble.as_ref().filter(|one| {
            one.operation == operation
                && (one.path == path || operation == "cookie")
                && one.value.as_ref().is_none_or(same_value)
                && (one.lasts || *times < most)
        });
        let Some(hit) = hit else { return Ok(None) };
        *times += 1;
        match &hit.effect {
            Effect::Fails(errno) => Err(*errno),
            other => Ok(Some(other.clone())),
        }
    }

    /// Fails if a file of a group (or, for `""`, the list of its children) cannot be changed now, because of a fault or
    /// a missing permission.
    pub(super) fn takes(&self, inode: u64, file: &str) -> Answer<()> {
        match self.faults.closed.as_ref().filter(|(closed, _)| closed == file) {
            Some((_, errno)) => Err(*errno),
            None => self.permitted(inode, file),
        }
    }

    /// Fails if this user may not write this file of a group (for `""`: may not create and remove groups in it). A user
    /// other than root may do so below a group that was delegated to them; in that group itself they may write only the
    /// files that cgroup-v2.rst names under "Model of Delegation".
    pub(super) fn permitted(&self, inode: u64, file: &str) -> Answer<()> {
        if !self.faults.unprivileged {
            return Ok(());
        }
        let given = |inode: &u64| self.groups.get(inode).is_some_and(|group| group.given);
        let own =
            given(&inode) && ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"].contains(&file);
        let mut above = self.groups.get(&inode).and_then(|group| group.parent);
        let mut below = false;
        while let Some(at) = above {
            below |= given(&at);
            above = self.groups.get(&at).and_then(|group| group.parent);
        }
        if own || below { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Fails if this user may not move the process or thread. In v2, a user other than root may move a process only
    /// within a delegated subtree: the common ancestor of both groups must be theirs too (cgroup-v2.rst, "Delegation
    /// Containment").
    pub(super) fn may_move(&self, pid: u32, to: u64) -> Answer<()> {
        let (Some(group), Some((_, process))) = (self.groups.get(&to), self.process_of(pid)) else {
            return Ok(());
        };
        let Some(from) = process.groups_of(pid).get(group.tree).copied() else { return Ok(()) };
        let above = |inode: u64| -> Vec<u64> {
            std::iter::successors(Some(inode), |at| self.groups.get(at).and_then(|group| group.parent))
                .collect()
        };
        let ours = above(from);
        match above(to).into_iter().find(|inode| ours.contains(inode)) {
            Some(common) => self.permitted(common, "cgroup.procs"),
            None => Ok(()),
        }
    }

    /// Simulates events between reading a process's identity and moving it.
    pub(super) fn before_move(&mut self, pid: u32) {
        if let Some((_, groups, looks)) = self.faults.processes.reuse.take_if(|(reused, ..)| *reused == pid) {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            place(self, pid, &groups);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.looks = looks;
            }
        }
        if let Some(parent) = self.faults.processes.forks.take() {
            self.fork(parent);
        }
    }

    /// Carries out [`FakeHost::exits_at_move`](super::FakeHost::exits_at_move) before and after a write of this PID.
    pub(super) fn moment_of_move(&mut self, pid: u32) {
        match &mut self.faults.processes.exits {
            Some((exits, 0)) if *exits == pid => drop(self.faults.processes.exiting.insert(pid, 3)),
            Some((exits, left)) if *exits == pid => *left -= 1,
            _ => {}
        }
    }

    /// Starts an identical child of a process in the same groups; returns its PID.
    fn fork(&mut self, parent: u32) -> Option<u32> {
        let (groups, looks, scheduling) = self
            .processes
            .get(&parent)
            .map(|one| (one.groups.clone(), one.looks.clone(), one.scheduling(parent)))?;
        let child = self.new_pid();
        self.add(child, groups.clone(), None);
        self.processes.get_mut(&child)?.schedule_all(of_child(scheduling));
        groups.into_iter().for_each(|inode| self.enters_offline(inode, child));
        let process = self.processes.get_mut(&child)?;
        process.looks =
            FakeLooks { parent, pgrp: if looks.pgrp == 0 { parent } else { looks.pgrp }, ..looks };
        Some(child)
    }

    /// Carries out [`FakeHost::hands_over`](super::FakeHost::hands_over) after the process list of a group was read.
    pub(super) fn listed(&mut self, inode: u64) {
        for pid in self.members(inode) {
            let Some(left) = self.faults.processes.exiting.get_mut(&pid) else { continue };
            *left = left.saturating_sub(1);
            if let (0, Some(process)) = (*left, self.processes.get(&pid)) {
                process.running.end(Exit::Code(0));
                process.running.poll();
            }
        }
        let Some((parent, times)) = self.faults.processes.hands_over else { return };
        if !self.members(inode).contains(&parent) {
            return;
        }
        let Some(child) = self.fork(parent) else { return };
        if let Some(process) = self.processes.get_mut(&child) {
            process.looks.parent = 1;
        }
        if let Some(process) = self.processes.get(&parent) {
            process.running.end(Exit::Code(0));
            process.running.poll();
        }
        self.faults.processes.hands_over = (times > 1).then_some((child, times - 1));
    }

    /// Records a mutation that succeeded, and crashes if it was the last one before a simulated crash.
    pub(super) fn changed(&mut self, operation: &'static str, path: String, value: &str) {
        self.log.mutations.push(Mutation { operation, path, value: value.to_owned() });
        if let Some((left, _)) = &mut self.faults.fail {
            *left = left.saturating_sub(1);
        }
        if let Some((left, _)) = &mut self.faults.refuse {
            *left = left.saturating_sub(1);
        }
        if let Some(left) = &mut self.faults.crash {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.crash();
            }
        }
    }

    /// Crashes the agent: its locks are released, and its children started with `die_with_parent` are killed.
    pub(super) fn crash(&mut self) {
        self.faults.crash = None;
        self.faults.crashed = true;
        self.orphan_locks();
        for process in self.processes.values() {
            if process.spec.as_ref().is_some_and(|spec| spec.die_with_parent) {
                process.running.end(Exit::Signal(crate::Signal::KILL.0));
            }
        }
    }
}
