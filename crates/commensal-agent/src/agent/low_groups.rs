//! Checks the groups below level 0 (`cpu.qos_level` of openEuler's kernel) in every tick: which groups starve, which
//! members have changed their scheduling policy, and which frozen groups have not stopped. A group starves if its tasks
//! want a CPU and get none. Its members are then lifted (moved temporarily to a group at level 0) if the group has a
//! minimum share.

use super::Agent;
use super::actuation::Phase;
use super::sensing::Sensing;
use super::ticks::Now;
use crate::min_share::Sharing;
use crate::sense::Sample;
use crate::starvation::LowGroup;
use commensal_core::actual::CgroupPath;
use commensal_core::desired::{DesiredGroup, DesiredState};
use commensal_core::group::GroupName;
use commensal_core::knob::Controller;
use commensal_host::Host;
use std::collections::BTreeSet;

/// Minimum interval (ms) between two checks of starvation and policies. While online work waits, a tick may begin only
/// 30 ms after the one before.
const APART_MS: u64 = 900;
/// Time (ms) after which a frozen group that has not stopped is reported as a problem.
const STOPS_MS: u64 = 5_000;
/// Maximum number of cgroups of a frozen group whose state is read.
const STOPPED: usize = 64;

impl Agent<'_> {
    /// Moves back the members that the last tick lifted, before this tick does any other work.
    pub(super) fn end_min_share(&mut self, problems: &mut Vec<String>) {
        problems.extend(self.decisions.low.put_back(self.host, &self.reconciler.instance));
    }

    /// Checks the groups below level 0, after the round. The members of a starving group with a minimum share are
    /// lifted at every second check and moved back at the next one. A tick that starts early, between two checks, also
    /// moves them back, and lifts them again when it ends.
    pub(super) fn look_after_levels(&mut self, now: &Now, sample: &Sample, problems: &mut Vec<String>) {
        let Some(planned) = self.actuation.planned() else { return };
        let (sensing, low, desired) = (&mut self.sensing, &mut self.decisions.low, &planned.desired);
        sensing.look_after_frozen(self.host, now, desired, problems);
        if sensing.levels.low.is_empty() && sensing.levels.starved.is_empty() {
            return;
        }
        let hierarchies = self.reconciler.survey.hierarchies.as_slice();
        let paused = self.actuation.phase == Phase::Paused;
        let mut actions = Vec::new();
        let looks = sensing.levels.looked_ms.is_none_or(|at| now.ms.saturating_sub(at) >= APART_MS);
        if looks {
            sensing.levels.looked_ms = Some(now.ms);
            sensing.look_for_starvation(self.host, now, sample, desired, &low.lifted);
            actions = low.set_policies_back(self.host, now, &sensing.levels.low, hierarchies, paused);
        }
        if !paused && !self.canary.is_isolation_off() {
            // A check lifts the groups that were not lifted since the last check. Between two checks, the groups are
            // lifted again whose lifting this tick has interrupted.
            let groups = sensing.sharing(desired, |name| low.lifted.contains(name) != looks);
            let sharing = (groups.as_slice(), &sensing.levels.starved);
            let instance = &self.reconciler.instance;
            let (lifted, told) = low.lift(self.host, instance, hierarchies, sharing, &now.text);
            actions.extend(lifted);
            problems.extend(told);
        }
        if looks {
            low.looked(&sensing.levels.starved);
        }
        actions.into_iter().for_each(|action| self.publishing.note(action));
        problems.extend(low.problems(now.ms));
    }
}

impl Sensing {
    /// Finds the groups below level 0 that starve. The members of `lifted` groups may have run since the last check.
    fn look_for_starvation(
        &mut self,
        host: &mut dyn Host,
        now: &Now,
        sample: &Sample,
        desired: &DesiredState,
        lifted: &BTreeSet<GroupName>,
    ) {
        let levels = &mut self.levels;
        let of = |(name, paths): &(GroupName, Vec<CgroupPath>)| {
            let rates = sample.groups.get(name.as_str());
            let dirs = paths.iter().filter_map(|path| self.meters.dir_v1(path, Controller::Cpu));
            LowGroup {
                name: name.clone(),
                dirs: dirs.collect(),
                cpus: rates.and_then(|rates| rates.cpus),
                tasks: rates.and_then(|rates| rates.tasks),
                lifted: lifted.contains(name),
                frozen: desired.groups.iter().any(|group| group.name == *name && group.limits.frozen()),
            }
        };
        let low: Vec<LowGroup> = levels.low.iter().map(of).collect();
        levels.starvation.look(host, (now.ms, &now.text), &low);
        levels.starved = levels.starvation.starved(now.ms);
    }

    /// The groups that starve, have a minimum share, and for which `turn` returns true.
    fn sharing(&self, desired: &DesiredState, turn: impl Fn(&GroupName) -> bool) -> Vec<Sharing> {
        let of = |group: &DesiredGroup| {
            let share = group.min_share?;
            self.levels.starved.get(&group.name).filter(|_| turn(&group.name))?;
            let (_, paths) = self.levels.low.iter().find(|(name, _)| *name == group.name)?;
            let dir = |path: &CgroupPath| Some((path.clone(), self.meters.dir_v1(path, Controller::Cpu)?));
            let cgroups = paths.iter().filter_map(dir).collect();
            Some(Sharing { name: group.name.clone(), share, cgroups })
        };
        desired.groups.iter().filter_map(of).collect()
    }

    /// Finds frozen groups whose tasks have not all stopped (cgroup v1: `FREEZING`).
    fn look_after_frozen(
        &mut self,
        host: &mut dyn Host,
        now: &Now,
        desired: &DesiredState,
        problems: &mut Vec<String>,
    ) {
        let before = std::mem::take(&mut self.levels.freezing);
        for group in desired.groups.iter().filter(|group| group.limits.frozen()) {
            let mut states = group.members.iter().take(STOPPED).filter_map(|member| {
                let dir = self.meters.dir_v1(&member.path, Controller::Freezer)?;
                Some((&member.path, host.read(dir, "freezer.state").ok()?))
            });
            let Some(first) = states.next() else { continue };
            let at = std::iter::once(first).chain(states).find(|(_, state)| state.trim() == "FREEZING");
            let known = before.get(&group.name).cloned().flatten();
            let since = at.as_ref().map(|_| known.unwrap_or_else(|| (now.ms, now.text.clone())));
            if let (Some((path, _)), Some((since_ms, since))) = (at, &since)
                && now.ms.saturating_sub(*since_ms) >= STOPS_MS
            {
                problems.push(format!(
                    "group {} is not frozen yet: freezer.state of {path} has been FREEZING since {since}, so some tasks \
                     have not stopped",
                    group.name
                ));
            }
            self.levels.freezing.insert(group.name.clone(), since);
        }
    }
}
