//! The testbed of a run: creates its cgroups, switches policies on and off, starts processes and cleans up.
//!
//! Everything is written through plan, drivers and journal, so that the next run or `commensal restore` can undo a run
//! killed at any moment. The run's cgroups are two parents named after its pid.

mod claim;
mod error;
mod guard;
mod moving;
mod policies;
mod scheduled;
#[cfg(test)]
mod tests;

pub use claim::Claim;
pub use error::TestbedError;
pub use guard::{Guard, keep_watch};
pub use policies::{ArmPolicy, Tasks, Wanted};

use crate::isolation::Isolation;
use commensal_core::actual::{ActualState, Capabilities, CgroupPath, Hierarchy};
use commensal_core::errno::Errno;
use commensal_core::plan::{Action, Step, undo};
use commensal_core::topology::Machine;
use commensal_host::{Child, Host, HostError, Lock, SpawnSpec, below};
use commensal_reconcile::{
    Applied, Instance, Journal, PlanRequest, ReconcileError, apply, enforce, members, restore_own,
    restore_stale, step_aside, verify,
};
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{Survey, machine, mounts};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may take to die of SIGKILL: on a busy machine, one of the idle class must first get a CPU.
const LAST_MOMENTS: Duration = Duration::from_secs(15);

/// Which side of the experiment a process is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The service.
    Online,
    /// The batch work.
    Offline,
    /// A program that generates load: treated as online, but accounted separately from the service.
    Client,
    /// Threads of the idle class that keep every CPU from idling: treated as offline, but accounted separately from the
    /// batch work.
    Warm,
}

/// The testbed of a run.
#[derive(Debug)]
pub struct Testbed {
    /// CPU topology of the machine.
    pub machine: Machine,
    /// Its cgroup hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// Policies of the isolated arms, in the order of the arms.
    pub policies: Vec<ArmPolicy>,
    /// Steps that apply the online settings common to all policies of the run, and whether they are applied.
    online: (Vec<Step>, bool),
    /// Steps that freeze the offline side and the warm side, and whether each is frozen.
    pauses: [(Vec<Step>, bool); 2],
    /// Why the run's own offline work cannot be frozen although the plan asks for it.
    stays_hot: Option<String>,
    /// Index of the active policy.
    on: Option<usize>,
    /// The controller that currently moves limits.
    moving: Option<moving::Moving>,
    /// The active scheduler.
    scheduled: Option<scheduled::Scheduled>,
    /// What an earlier, killed run had left and this one removed first.
    pub cleaned: Vec<String>,
    instance: Instance,
    journal: Journal,
    actual: ActualState,
    survey: Survey,
    /// Paths of the cgroups, indexed by [`Side`].
    paths: [CgroupPath; 4],
    groups: [GroupDirs; 4],
    /// Held so that no other lab run measures at the same time.
    _lock: Lock,
}

/// Surveys the machine, removes what dead runs left, and creates the cgroups of this run.
///
/// # Errors
/// When the machine cannot be read, the journal cannot be kept, or the kernel refuses a group; then nothing
/// of this run is left.
pub fn open(
    host: &mut dyn Host,
    state_dir: PathBuf,
    probe_name: &str,
    cgroup_root: Option<&CgroupPath>,
    wanted: &Wanted<'_>,
) -> Result<Testbed, TestbedError> {
    host.state_dir(&state_dir)?;
    let lock_path = state_dir.join("lab.lock");
    let Some(lock) = host.state_lock(&lock_path)? else {
        return Err(TestbedError::busy(&lock_path));
    };
    let instance = Instance {
        cgroup_root: cgroup_root.cloned(),
        ..Instance::of_process(&state_dir, policies::PREFIX, probe_name)
    };
    let journal_name = instance.journal_name().to_owned();
    // On any error, everything created so far is removed.
    build(host, instance, wanted, lock).inspect_err(|_| {
        let _ = restore_own(host, &state_dir, &journal_name);
    })
}

fn build(
    host: &mut dyn Host,
    instance: Instance,
    wanted: &Wanted<'_>,
    lock: Lock,
) -> Result<Testbed, TestbedError> {
    let boot_id = machine::boot_id(host).unwrap_or_default();
    let cleaned = restore_stale(host, &instance.state_dir, &boot_id)?.done;
    let mut journal = instance.open_journal(host)?;
    // The cgroups, and their values while no policy is active.
    let mut specs = policies::specs(wanted)?;
    let machine = machine::machine(host)?;
    wanted.isolations.iter().for_each(|isolation| isolation.make_room(&mut specs, &machine));
    let none = Isolation::none();
    let restrict = |caps: &Capabilities| none.restrict(caps);
    let request = PlanRequest { mechanisms: Some(&restrict), ..PlanRequest::beside(&specs) };
    let (planned, outcome) = enforce(&instance, host, &request, &mut journal)?;
    if let Some(failure) = outcome.failure {
        return Err(TestbedError::refused(&failure));
    }
    // Controllers that the root cgroup had not enabled could not be probed before.
    let looked = instance.survey(host)?;
    let found = instance.observe(host, &looked)?;
    let plans = policies::Planner { instance: &instance, survey: &looked, wanted };
    let policies::All { actual, policies, online, mut structure } = plans.all(host, &found)?;
    let mut pauses = [(Vec::new(), false), (Vec::new(), false)];
    let mut stays_hot = None;
    for (pause, name) in pauses.iter_mut().zip(["batch", "warm"]) {
        if !policies::pauses(name, wanted) {
            continue;
        }
        let path = wanted.attached[Side::Offline as usize]
            .map_or_else(|| name.to_owned(), |path| path.as_str().to_owned());
        match plans.pause(host, &actual, name)? {
            Ok((needed, steps)) => {
                policies::add(&mut structure, &needed);
                pause.0 = steps;
            }
            // The run's own offline work can be started and stopped instead.
            Err(why) if wanted.attached[Side::Offline as usize].is_none() => stays_hot = Some(why),
            Err(why) => {
                return Err(TestbedError::new(format!(
                    "{path} cannot be frozen for the blocks without offline work: {why}"
                )));
            }
        }
    }
    step_aside(host, &structure, &actual, planned.desired.aside.name(), &mut journal)
        .map_err(ReconcileError::from)?;
    if let Some(failure) = apply(host, &structure, &actual, &mut journal).failure {
        return Err(TestbedError::refused(&failure));
    }
    let member = |name: &str| {
        let group = planned.desired.groups.iter().find(|group| group.name.as_str() == name);
        group.map(|group| group.members[0].path.clone()).unwrap_or_default()
    };
    let paths = policies::GROUPS.map(|(name, _)| member(name));
    let groups = open_groups(host, &looked, &paths);
    Ok(Testbed {
        machine: looked.machine.clone(),
        hierarchies: looked.hierarchies.clone(),
        survey: looked,
        policies,
        online: (online, false),
        pauses,
        stays_hot,
        on: None,
        moving: None,
        scheduled: None,
        paths,
        groups,
        cleaned,
        instance,
        journal,
        actual,
        _lock: lock,
    })
}

/// Opens the cgroups of all sides; none where the run has no cgroups of its own.
fn open_groups(host: &mut dyn Host, look: &Survey, paths: &[CgroupPath; 4]) -> [GroupDirs; 4] {
    let possible = look.caps.cgroup_obstacle.is_none() && look.tenancy.obstacle.is_none();
    let hierarchies = if possible { look.hierarchies.as_slice() } else { &[] };
    [0, 1, 2, 3].map(|side| GroupDirs::open(host, hierarchies, &paths[side]))
}

/// Removes empty cgroups with the run's names from hierarchies where the run created none: a container engine that gets
/// one of our cgroups as a parent creates it in every hierarchy. The names contain the run's pid, so they are ours.
fn sweep(host: &mut dyn Host, paths: &[CgroupPath; 4], prefix: &str) {
    let parents = paths.iter().filter_map(CgroupPath::parent);
    let all = paths.iter().cloned().chain(parents);
    let all: Vec<CgroupPath> = all.filter(|path| path.parts().any(|part| part.starts_with(prefix))).collect();
    for mounts::Mount { mount, .. } in mounts::cgroup_mounts(host).unwrap_or_default() {
        for path in &all {
            let Some(above) = path.parent() else { continue };
            let Ok(dir) = host.open(&below(Path::new(&mount), above.as_str())) else { continue };
            if let Ok(group) = host.open_child(dir, path.name()) {
                // Cgroups that are not empty are not reported here: those in the journal were tried already.
                let _ = host.rmdir(dir, path.name(), group.inode);
                host.close(group);
            }
            host.close(dir);
        }
    }
}

impl Testbed {
    /// Why arms cannot alternate within milliseconds on this machine; `None` when they can.
    #[must_use]
    pub fn carries_over(&self) -> Option<String> {
        let of_tasks = self.policies.iter().filter(|policy| policy.obstacle.is_none()).find_map(|policy| {
            (policy.tasks != Tasks::default())
                .then(|| format!("{} is given to tasks at their start", policy.driver))
        });
        let frozen = self.stays_hot.as_ref().map(|why| format!("offline work cannot be frozen: {why}"));
        frozen.or(of_tasks)
    }

    /// Freezes or thaws the offline side or the warm side; does nothing when the run does not freeze that side.
    ///
    /// # Errors
    /// When the kernel refuses a step.
    pub fn pause(&mut self, host: &mut dyn Host, side: Side, frozen: bool) -> Result<(), TestbedError> {
        let index = usize::from(side == Side::Warm);
        if self.pauses[index].1 == frozen {
            return Ok(());
        }
        let steps = if frozen { self.pauses[index].0.clone() } else { undo(&self.pauses[index].0) };
        self.steps(host, &steps)?;
        self.pauses[index].1 = frozen;
        Ok(())
    }

    /// Applies the online settings common to the run's policies, or undoes them. Arms that are compared with each other
    /// have the same online settings, so that only the treatment of the offline side differs.
    ///
    /// # Errors
    /// When the kernel refuses a step.
    pub fn favour_online(&mut self, host: &mut dyn Host, on: bool) -> Result<(), TestbedError> {
        if self.online.1 == on {
            return Ok(());
        }
        let steps = if on { self.online.0.clone() } else { undo(&self.online.0) };
        self.steps(host, &steps)?;
        self.online.1 = on;
        Ok(())
    }

    /// Switches the isolation of one arm on.
    ///
    /// # Errors
    /// When the kernel refuses a step, or the arm's scheduler does not load; then the policy is off.
    pub fn isolate(&mut self, host: &mut dyn Host, policy: usize) -> Result<(), TestbedError> {
        let steps = self.policies[policy].steps.clone();
        self.steps(host, &steps)?;
        if let Err(error) = self.begin_scheduling(host, policy) {
            self.steps(host, &undo(&steps))?;
            return Err(error);
        }
        self.on = Some(policy);
        self.begin_moving(policy);
        Ok(())
    }

    /// The policy that is on.
    #[must_use]
    pub fn isolated(&self) -> Option<usize> {
        self.on
    }

    /// Switches the active policy off, if there is one.
    ///
    /// # Errors
    /// When the kernel refuses a step, or the arm's scheduler does not unload.
    pub fn release(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let Some(policy) = self.on.take() else { return Ok(()) };
        self.moving = None;
        let ended = self.end_scheduling(host);
        let steps = undo(&self.policies[policy].steps);
        self.steps(host, &steps)?;
        ended
    }

    /// Reads the policy's settings back: whether they are still in force, and for a per-task policy whether the task
    /// has them.
    pub fn policy_now(&self, host: &mut dyn Host, policy: usize, offline: Option<&Child>) -> Vec<Applied> {
        let policy = &self.policies[policy];
        let mut now = verify(host, &policy.steps, &self.actual);
        now.extend(self.scheduling_now(host));
        if let Some(child) = offline {
            now.extend(policy.tasks.of_task(host, child.process.pid));
        }
        now
    }

    fn steps(&mut self, host: &mut dyn Host, steps: &[Step]) -> Result<(), TestbedError> {
        let outcome = apply(host, steps, &self.actual, &mut self.journal);
        match outcome.failure {
            None if steps.iter().any(|step| matches!(step.action, Action::Recreate { .. })) => {
                self.recreated(host)
            }
            None => Ok(()),
            Some(failure) => Err(TestbedError::refused(&failure)),
        }
    }

    /// After a setting that cannot be reverted: adopts the new cgroups that were created under the same names.
    fn recreated(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let fresh = self.survey.tree(host)?;
        for (place, found) in &mut self.actual.cgroups {
            if let Some(now) = fresh.cgroups.get(place) {
                found.inode = now.inode;
            }
        }
        let groups = open_groups(host, &self.survey, &self.paths);
        std::mem::replace(&mut self.groups, groups).into_iter().for_each(|group| group.close(host));
        Ok(())
    }

    /// The cgroups of one side.
    #[must_use]
    pub fn group(&self, side: Side) -> &GroupDirs {
        &self.groups[side as usize]
    }

    /// Starts a process of one side inside its cgroups; it is killed when this program dies. `policy` is that of an
    /// isolated arm, which may apply to tasks instead of cgroups.
    ///
    /// # Errors
    /// When the program cannot be started there.
    pub fn start(
        &self,
        host: &mut dyn Host,
        side: Side,
        policy: Option<usize>,
        mut spec: SpawnSpec,
    ) -> Result<Child, TestbedError> {
        spec.groups = self.group(side).all();
        spec.die_with_parent = true;
        spec.own_process_group = true;
        if let (Side::Offline, Some(policy)) = (side, policy) {
            let tasks = &self.policies[policy].tasks;
            spec.policy.idle = tasks.idle;
            spec.policy.nice = tasks.nice;
            spec.policy.cpus.clone_from(&tasks.cpus);
        }
        Ok(host.spawn(&spec)?)
    }

    /// Path of the cgroups of a side, for a program that starts processes there itself.
    #[must_use]
    pub fn path(&self, side: Side) -> &CgroupPath {
        &self.paths[side as usize]
    }

    /// Kills a process and everything else in the cgroups of its side, and waits until all are gone.
    ///
    /// # Errors
    /// `ETIMEDOUT` when a process survives SIGKILL for fifteen seconds.
    pub fn stop(&self, host: &mut dyn Host, side: Side, child: &mut Child) -> Result<(), TestbedError> {
        let deadline = Instant::now() + LAST_MOMENTS;
        match host.signal(&child.process, commensal_host::Signal::KILL) {
            Err(error) if error.errno != Errno::ESRCH => return Err(error.into()),
            _ => {}
        }
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                let object = format!("process {}", child.process.pid);
                return Err(
                    HostError { operation: "end", object, value: None, errno: Errno::ETIMEDOUT }.into()
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(dir) = self.group(side).any() {
            members::kill_all(host, dir, LAST_MOMENTS)?;
        }
        Ok(())
    }

    /// Removes everything that this run created. Returns what could not be removed; it stays in the journal for
    /// `commensal restore`.
    ///
    /// # Errors
    /// When the journal cannot be read or rewritten.
    pub fn close(mut self, host: &mut dyn Host) -> Result<Vec<String>, TestbedError> {
        let ended = self.end_scheduling(host);
        self.groups.into_iter().for_each(|group| group.close(host));
        let mut restored = restore_own(host, &self.instance.state_dir, self.instance.journal_name())?;
        sweep(host, &self.paths, &self.instance.prefix);
        restored.left.append(&mut restored.failed);
        restored.left.extend(ended.err().map(|error| error.to_string()));
        Ok(restored.left)
    }
}
