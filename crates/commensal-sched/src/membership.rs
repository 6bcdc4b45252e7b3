//! The threads under the scheduler: all threads of offline groups. The daemon updates them in each round. A thread that
//! is created between two rounds is under the scheduler automatically, because a child inherits its parent's policy.

use crate::weights::Node;
use commensal_core::errno::Errno;
use commensal_core::group::Class;
use commensal_core::process::{SCHED_EXT, SCHED_NORMAL};
use commensal_host::{Dir, Host, HostError};
use commensal_reconcile::journal::{Journal, JournalError, Record};
use commensal_reconcile::policy::{self, ThreadLook};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum depth of nested cgroups that are read.
const DEPTH: usize = 16;
/// Number of rounds in which every known thread is checked again. Each round checks an equal part of the threads.
const AGAIN: usize = 25;

/// An offline group, as read from the cgroup file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Weight of the group, and the cgroups below it.
    pub node: Node,
    /// Inode and path of every cgroup in the group, the top one first.
    pub cgroups: Vec<(u64, String)>,
    /// Threads of all these cgroups.
    pub threads: Vec<u32>,
    /// Whether `cpu.idle` gives the group only otherwise idle CPU time after the scheduler is unloaded.
    pub fallback: bool,
}

/// Reads an offline group without the subgroups that have their own orders (configuration). Returns `None` if the group
/// does not exist.
///
/// # Errors
/// The group cannot be read.
pub fn walk(
    host: &mut dyn Host,
    path: &str,
    weight: Option<u64>,
    ordered: &BTreeMap<String, Class>,
) -> Result<Option<Tree>, HostError> {
    let dir = match host.open(Path::new(path)) {
        Ok(dir) => dir,
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut tree = Tree {
        node: Node::default(),
        cgroups: Vec::new(),
        threads: Vec::new(),
        fallback: idle(host, Path::new(path)),
    };
    let itself = host.read(dir, "cpu.idle").is_ok_and(|text| text.trim() == "1");
    let node = descend(host, (dir, path), ordered, &mut tree, 0);
    host.close(dir);
    tree.node = Node { weight: weight.unwrap_or(100), ..node? };
    if weight.is_none() && !itself {
        tree.node.weight = own_weight(host, path);
    }
    Ok(Some(tree))
}

/// Whether the kernel gives the group low priority without the scheduler: `cpu.idle` is set on the group or on a cgroup
/// above it.
fn idle(host: &dyn Host, path: &Path) -> bool {
    let of = |group: &Path| host.read_file(&group.join("cpu.idle")).is_ok_and(|text| text.trim() == "1");
    path.ancestors().any(of)
}

fn descend(
    host: &mut dyn Host,
    (dir, path): (Dir, &str),
    ordered: &BTreeMap<String, Class>,
    tree: &mut Tree,
    depth: usize,
) -> Result<Node, HostError> {
    tree.cgroups.push((dir.inode, path.to_owned()));
    let before = tree.threads.len();
    tree.threads.extend(threads(host, dir)?);
    let busy = tree.threads.len() > before;
    let mut node = Node { id: dir.inode, weight: 100, busy, children: Vec::new() };
    if depth >= DEPTH {
        return Ok(node);
    }
    for name in host.children(dir)? {
        let below = format!("{}/{name}", path.trim_end_matches('/'));
        if ordered.contains_key(&below) {
            continue;
        }
        // The child may have been removed since it was listed.
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let found = descend(host, (child, &below), ordered, tree, depth + 1);
        let weight = weight_in(host, child);
        host.close(child);
        match found {
            Ok(found) => node.children.push(Node { weight, ..found }),
            Err(error) if [Errno::ENODEV, Errno::ENOENT].contains(&error.errno) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(node)
}

/// Reads the threads of a cgroup; v1 and v2 have different files for them.
fn threads(host: &mut dyn Host, dir: Dir) -> Result<Vec<u32>, HostError> {
    let text = match host.read(dir, "cgroup.threads") {
        Err(error) if error.errno == Errno::ENOENT => host.read(dir, "tasks")?,
        // The root of a threaded subtree lists only processes; its threads are listed in the cgroups below.
        Err(error) if error.errno == Errno::EOPNOTSUPP => return Ok(Vec::new()),
        other => other?,
    };
    Ok(text.split_whitespace().filter_map(|tid| tid.parse().ok()).collect())
}

fn weight_in(host: &mut dyn Host, dir: Dir) -> u64 {
    let number = |text: String| text.trim().parse::<u64>().ok();
    let v2 = host.read(dir, "cpu.weight").ok().and_then(number);
    let v1 = || host.read(dir, "cpu.shares").ok().and_then(number).map(|shares| shares * 100 / 1024);
    // An idle cgroup has weight 0.
    v2.or_else(v1).filter(|weight| *weight > 0).unwrap_or(100)
}

fn own_weight(host: &mut dyn Host, path: &str) -> u64 {
    let Ok(dir) = host.open(Path::new(path)) else { return 100 };
    let weight = weight_in(host, dir);
    host.close(dir);
    weight
}

/// A thread under the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    start_ticks: u64,
    /// The policy that the thread had before it was switched. For a thread created by a switched thread, the original
    /// policy of its creator.
    own: i32,
}

/// Results of one round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Number of threads switched to the scheduler.
    pub joined: usize,
    /// Number of threads that got their original policy back.
    pub left: usize,
    /// Number of threads whose policy another program had changed.
    pub drifted: usize,
    /// Changes that were refused.
    pub refused: Vec<String>,
}

/// The threads under the scheduler.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<u32, Member>,
    /// Threads of offline groups that are not switched: real-time and deadline threads, and killed threads.
    pub kept: BTreeSet<u32>,
    cursor: u32,
}

impl Members {
    /// Number of threads under the scheduler.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Reads from the journal which threads an earlier process switched, with their original policies.
    #[must_use]
    pub fn inherit(journal: &Journal) -> Members {
        let known = journal.policies().map(|(tid, start_ticks, own)| (tid, Member { start_ticks, own }));
        Members { known: known.collect(), ..Members::default() }
    }

    /// Runs one round: switches the threads of offline groups, and restores the original policy of threads that have
    /// left those groups.
    ///
    /// # Errors
    /// The journal cannot be written. In that case the round has switched no thread that the journal does not contain.
    pub fn round(
        &mut self,
        host: &mut dyn Host,
        found: &[u32],
        journal: &mut Journal,
    ) -> Result<Round, JournalError> {
        let mut round = Round::default();
        let present: BTreeSet<u32> = found.iter().copied().collect();
        self.check_some(host, &mut round);
        let switched = journal.has(&Record::Scheduling);
        let mut fresh: Vec<(u32, ThreadLook)> = Vec::new();
        for tid in &present {
            if self.known.contains_key(tid) || self.kept.contains(tid) {
                continue;
            }
            match policy::look(host, *tid) {
                Some(look) if look.plain() => fresh.push((*tid, self.own(*tid, look, switched, host))),
                Some(_) => drop(self.kept.insert(*tid)),
                None => {}
            }
        }
        if !fresh.is_empty() {
            policy::record(host, &fresh, journal)?;
        }
        for (tid, look) in fresh {
            match policy::set(host, tid, SCHED_EXT) {
                Ok(true) => {
                    self.known.insert(tid, Member { start_ticks: look.start_ticks, own: look.policy });
                    round.joined += 1;
                }
                Ok(false) => {}
                Err(error) => round.refused.push(error.to_string()),
            }
        }
        self.kept.retain(|tid| present.contains(tid));
        let gone: Vec<u32> = self.known.keys().copied().filter(|tid| !present.contains(tid)).collect();
        for tid in gone {
            self.let_go(host, tid, &mut round);
        }
        Ok(round)
    }

    /// Moves killed threads to the fair class, and returns the number of moved threads. A thread needs a CPU to exit,
    /// and in the scheduler's class it may wait for a CPU for long.
    pub fn let_die(&mut self, host: &mut dyn Host) -> usize {
        let dying: Vec<u32> = self.known.keys().copied().filter(|tid| killed(host, *tid)).collect();
        for tid in &dying {
            self.known.remove(tid);
            // An error here means that the thread has exited already.
            let _ = policy::set(host, *tid, SCHED_NORMAL);
            self.kept.insert(*tid);
        }
        dying.len()
    }

    /// Restores the original policy of every thread.
    pub fn release(&mut self, host: &mut dyn Host) -> Round {
        let mut round = Round::default();
        for tid in self.known.keys().copied().collect::<Vec<_>>() {
            self.let_go(host, tid, &mut round);
        }
        round
    }

    /// Returns a thread's original policy. A thread that already has the policy `SCHED_EXT` was created by a switched
    /// thread, and gets that thread's original policy. If no thread was switched yet, `SCHED_EXT` is the thread's own
    /// policy.
    fn own(&self, tid: u32, look: ThreadLook, switched: bool, host: &dyn Host) -> ThreadLook {
        if look.policy != SCHED_EXT || !switched {
            return look;
        }
        let leader = leader(host, tid);
        let from = leader.and_then(|pid| self.known.get(&pid)).or_else(|| self.known.get(&look.parent));
        ThreadLook { policy: from.map_or(SCHED_NORMAL, |member| member.own), ..look }
    }

    fn let_go(&mut self, host: &mut dyn Host, tid: u32, round: &mut Round) {
        let Some(member) = self.known.remove(&tid) else { return };
        let now = policy::look(host, tid);
        if now.is_none_or(|now| now.start_ticks != member.start_ticks || now.policy != SCHED_EXT) {
            return;
        }
        match policy::set(host, tid, member.own) {
            Ok(true) => round.left += 1,
            Ok(false) => {}
            Err(error) => round.refused.push(error.to_string()),
        }
    }

    /// Checks some of the known threads. A thread ID that the kernel has reused counts as a new thread. If another
    /// program has changed a thread's policy, the scheduler's policy is set again.
    fn check_some(&mut self, host: &mut dyn Host, round: &mut Round) {
        let count = self.known.len().div_ceil(AGAIN);
        let mut some: Vec<u32> = self.known.range(self.cursor..).map(|(tid, _)| *tid).take(count).collect();
        if some.len() < count {
            some.extend(self.known.keys().copied().take(count - some.len()));
        }
        self.cursor = some.last().map_or(0, |tid| tid.wrapping_add(1));
        for tid in some {
            let Some(member) = self.known.get(&tid).copied() else { continue };
            match policy::look(host, tid) {
                Some(now) if now.start_ticks == member.start_ticks && now.policy == SCHED_EXT => {}
                Some(now) if now.start_ticks == member.start_ticks && now.plain() => {
                    round.drifted += 1;
                    if let Err(error) = policy::set(host, tid, SCHED_EXT) {
                        round.refused.push(error.to_string());
                    }
                }
                _ => drop(self.known.remove(&tid)),
            }
        }
    }
}

/// Whether a fatal signal is pending for the thread.
fn killed(host: &dyn Host, tid: u32) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let Ok(status) = host.read_file(Path::new(&format!("/proc/{tid}/status"))) else { return false };
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    let mut masks = pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.any(|mask| mask & SIGKILL != 0)
}

fn leader(host: &dyn Host, tid: u32) -> Option<u32> {
    let status = host.read_file(Path::new(&format!("/proc/{tid}/status"))).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Lists the threads on the machine that had policy `SCHED_EXT` before commensal switched any thread. These threads
/// belong to other programs and keep the policy.
#[must_use]
pub fn foreign(host: &dyn Host) -> Vec<(u32, ThreadLook)> {
    let numbers = |path: &str| -> Vec<u32> {
        let names = host.list(Path::new(path)).unwrap_or_default();
        names.iter().filter_map(|name| name.parse().ok()).collect()
    };
    let tids = numbers("/proc").into_iter().flat_map(|pid| numbers(&format!("/proc/{pid}/task")));
    let looked = tids.filter_map(|tid| Some((tid, policy::look(host, tid)?)));
    looked.filter(|(_, look)| look.policy == SCHED_EXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    #[test]
    fn what_is_underneath_may_be_of_a_group_above() {
        let mut host = FakeHost::v2(2, 1 << 30);
        for (parent, name) in [("", "ours"), ("/ours", "etl"), ("", "theirs")] {
            let dir = host.open(Path::new(&format!("/sys/fs/cgroup{parent}"))).unwrap();
            host.write(dir, "cgroup.subtree_control", "+cpu").unwrap();
            host.mkdir(dir, name).unwrap();
            host.close(dir);
        }
        let ours = host.open(Path::new("/sys/fs/cgroup/ours")).unwrap();
        host.write(ours, "cpu.idle", "1").unwrap();
        let mut held_down = |path: &str| {
            let tree = walk(&mut host, path, None, &BTreeMap::new()).unwrap();
            tree.map(|tree| (tree.fallback, tree.node.weight))
        };
        assert_eq!(held_down("/sys/fs/cgroup/ours").map(|(fallback, _)| fallback), Some(true));
        assert_eq!(held_down("/sys/fs/cgroup/ours/etl"), Some((true, 100)));
        assert_eq!(held_down("/sys/fs/cgroup/theirs"), Some((false, 100)));
        assert_eq!(held_down("/sys/fs/cgroup/nobody"), None);
    }
}
