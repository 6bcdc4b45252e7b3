//! Carries out what needs no plan: the controllers' decisions about processes to kill and queues to hold (keep closed),
//! and the treatment of members of groups below level 0 (`cpu.qos_level` of openEuler's kernel).

use super::low_members::LowMembers;
use crate::controllers::{Controllers, Decided};
use crate::sense::Meters;
use crate::snapshot::Action;
use commensal_core::control::frame::least;
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredState;
use commensal_core::group::GroupName;
use commensal_core::topology::Topology;
use commensal_host::{Dir, Host, Process};
use commensal_reconcile::{members, queue};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long per tick a frozen v1 cgroup is thawed so that a pending SIGKILL takes effect. Shorter than any lease.
const DYING: Duration = Duration::from_millis(100);

/// The controllers and their decisions, with the state of the actions that need no plan.
#[derive(Default)]
pub(super) struct Decisions {
    pub controllers: Controllers,
    pub decided: Decided,
    /// Killed processes of frozen groups that have not exited yet.
    dying: Vec<Process>,
    /// Groups whose queues are held closed.
    holding: BTreeSet<GroupName>,
    /// Members of groups below level 0.
    pub low: LowMembers,
}

impl Decisions {
    /// The CPUs that offline work keeps in the safe state; `None` if offline work is not confined to a set of CPUs now.
    pub fn floor(&self, topology: &Topology) -> Option<CpuSet> {
        least(topology, self.decided.wants.cpu_set.as_ref()?)
    }

    /// Kills the chosen processes. Leaves out a process whose PID belongs to another process now. Returns the actions
    /// for the audit log.
    pub fn kill(
        &mut self,
        host: &mut dyn Host,
        meters: &Meters,
        desired: Option<&DesiredState>,
        at: &str,
    ) -> Vec<Action> {
        let began = Instant::now();
        let left = || DYING.saturating_sub(began.elapsed());
        for process in std::mem::take(&mut self.dying) {
            let frozen = frozen_around(host, meters, desired, process.pid);
            if members::kill(host, &process, &frozen, left()).is_ok_and(|ended| !ended) {
                self.dying.push(process);
            }
        }
        let mut actions = Vec::new();
        for kill in std::mem::take(&mut self.decided.kill) {
            let victim = kill.victim;
            let Ok(process) = host.process(victim.pid) else { continue };
            if process.start_ticks != victim.start {
                continue;
            }
            let frozen = frozen_around(host, meters, desired, victim.pid);
            let ended = members::kill(host, &process, &frozen, left());
            if ended.as_ref().is_ok_and(|ended| !ended) {
                self.dying.push(process.clone());
            }
            let ended = ended.map_or_else(|error| error.to_string(), |_| "killed".to_owned());
            actions.push(kill.action(ended, at));
        }
        actions
    }

    /// Keeps the queues closed that controllers have decided to hold, and opens the others again. A hold expires after
    /// `time`, so that it ends even if the agent has died. Returns the actions for the audit log.
    pub fn hold_queues(
        &mut self,
        host: &mut dyn Host,
        state_dir: &Path,
        time: Duration,
        at: &str,
        problems: &mut Vec<String>,
    ) -> Vec<Action> {
        let held = &self.decided.held;
        for name in self.holding.iter().filter(|name| !held.contains_key(*name)) {
            problems.extend(queue::release(host, state_dir, name).err().map(|error| error.to_string()));
        }
        for (name, why) in held {
            let done = queue::hold(host, state_dir, name, &why.rule, time);
            problems.extend(done.err().map(|error| error.to_string()));
        }
        let actions = self.decided.queues(&self.holding, at);
        self.holding = held.keys().cloned().collect();
        actions
    }
}

/// Returns the frozen v1 freezer cgroups that contain the process and thus keep it from exiting.
fn frozen_around(host: &mut dyn Host, meters: &Meters, desired: Option<&DesiredState>, pid: u32) -> Vec<Dir> {
    let groups = desired.map(|desired| desired.groups.as_slice()).unwrap_or_default();
    let frozen = groups.iter().filter(|group| group.limits.frozen());
    let paths = frozen.flat_map(|group| &group.members).map(|member| &member.path);
    paths.filter_map(|path| meters.freezer(host, path, pid)).collect()
}
