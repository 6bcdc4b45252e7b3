//! Actions on members of groups below level 0 (`cpu.qos_level` of openEuler's kernel). Members that have changed their
//! scheduling policy are set back to `SCHED_IDLE`. Members of starving groups (which want a CPU and get none) are
//! lifted, that is, moved temporarily to level 0, for their minimum share.

use super::ticks::Now;
use crate::levels::{many_set_back, problem, set_back, shares};
use crate::min_share::{MinShare, Sharing};
use crate::policy_watch::{PolicyWatch, Watching};
use crate::snapshot::Action;
use crate::starvation::Starved;
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::group::GroupName;
use commensal_core::knob::Controller;
use commensal_host::Host;
use commensal_reconcile::Instance;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of processes in one tick that the audit log names.
const NAMED: usize = 8;
/// Maximum number of problems about processes that are shown together.
const SHOWN: usize = 16;
/// How long (ms) a problem about a process is shown: not every tick checks all threads.
const SHOWN_MS: u64 = 10_000;

/// The members that were set back or lifted.
#[derive(Debug, Default)]
pub(super) struct LowMembers {
    /// Finds members that have changed their scheduling policy.
    watch: PolicyWatch,
    /// Problems about processes, by PID: the time until which a problem is shown (ms), and its text.
    told: BTreeMap<u32, (u64, String)>,
    /// The groups whose members are lifted now.
    min_share: MinShare,
    /// Groups whose members were lifted since the last check.
    pub lifted: BTreeSet<GroupName>,
    /// Groups whose lifting is in the audit log already; it has one line for each time that a group starves.
    noted: BTreeSet<GroupName>,
}

impl LowMembers {
    /// Moves lifted members back to their groups. Returns a message about each group whose members could not be moved.
    pub fn put_back(&mut self, host: &mut dyn Host, instance: &Instance) -> Vec<String> {
        self.lifted.append(&mut self.min_share.names());
        self.min_share.end(host, instance)
    }

    /// Sets members of these groups that have left `SCHED_IDLE` back to it, unless the agent is `paused`. Returns the
    /// actions for the audit log.
    pub fn set_policies_back(
        &mut self,
        host: &mut dyn Host,
        now: &Now,
        low: &[(GroupName, Vec<CgroupPath>)],
        hierarchies: &[Hierarchy],
        paused: bool,
    ) -> Vec<Action> {
        let Some(cpu) = hierarchies.iter().position(|one| one.controllers.contains(&Controller::Cpu)) else {
            return Vec::new();
        };
        let groups: Vec<(GroupName, CgroupPath)> = low
            .iter()
            .flat_map(|(name, paths)| paths.iter().map(|path| (name.clone(), path.clone())))
            .collect();
        let watching = Watching { now_ms: now.ms, groups: &groups, hierarchies, cpu, paused };
        let mut actions = Vec::new();
        let mut more: BTreeMap<GroupName, usize> = BTreeMap::new();
        for escape in self.watch.look(host, &watching) {
            match problem(&escape) {
                Some(text) => {
                    self.told.insert(escape.pid, (now.ms.saturating_add(SHOWN_MS), text));
                }
                None if actions.len() < NAMED => actions.push(set_back(&escape, &now.text)),
                None => *more.entry(escape.group).or_default() += 1,
            }
        }
        actions.extend(more.iter().map(|(group, count)| many_set_back(group, *count, &now.text)));
        actions
    }

    /// Lifts members of these starving groups. Returns the actions for the audit log, and problems.
    pub fn lift(
        &mut self,
        host: &mut dyn Host,
        instance: &Instance,
        hierarchies: &[Hierarchy],
        (groups, starved): (&[Sharing], &BTreeMap<GroupName, Starved>),
        at: &str,
    ) -> (Vec<Action>, Vec<String>) {
        let Some(cpu) = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)) else {
            return (Vec::new(), Vec::new());
        };
        let (names, problems) = self.min_share.begin(host, instance, &cpu.mount, groups);
        let mut actions = Vec::new();
        for group in groups.iter().filter(|group| names.contains(&group.name)) {
            if self.noted.insert(group.name.clone())
                && let Some(starved) = starved.get(&group.name)
            {
                actions.push(shares(&group.name, group.share, &starved.since, at));
            }
        }
        (actions, problems)
    }

    /// Ends a check: forgets which groups were lifted before it, and which groups no longer starve.
    pub fn looked(&mut self, starved: &BTreeMap<GroupName, Starved>) {
        self.lifted.clear();
        self.noted.retain(|name| starved.contains_key(name));
    }

    /// The problems about processes that are to be shown now.
    pub fn problems(&mut self, now_ms: u64) -> Vec<String> {
        self.told.retain(|_, (until_ms, _)| now_ms < *until_ms);
        let mut shown: Vec<String> = self.told.values().take(SHOWN).map(|(_, text)| text.clone()).collect();
        let left = self.told.len().saturating_sub(SHOWN);
        if left > 0 {
            shown.push(format!("{left} more processes have left SCHED_IDLE"));
        }
        shown
    }
}
