//! The testbed of a run of the lab. The testbed creates cgroups for the two sides, online work and offline work;
//! switches isolation policies on and off; starts processes; and cleans up. Each isolation policy belongs to an
//! isolated arm; an arm is one of the ways of running the service that the run compares.
//!
//! The testbed makes all changes through commensal's planner, drivers and journal. So the next run or `commensal
//! restore` can undo the changes of a run that was killed at any moment. The run's cgroups have two parents, whose
//! names contain the run's pid.

mod cgroups;
mod changes;
mod claim;
mod error;
mod guard;
mod moving;
mod policies;
mod scheduled;
#[cfg(test)]
mod tests;

pub use cgroups::Side;
pub use claim::Claim;
pub use error::TestbedError;
pub use guard::{Guard, keep_watch};
pub use policies::{ArmPolicy, Tasks, Wanted};

use crate::isolation::Isolation;
use cgroups::{SideCgroups, sweep};
use changes::{Changes, Toggle};
use commensal_core::actual::{ActualState, Capabilities, CgroupPath};
use commensal_core::errno::Errno;
use commensal_core::plan::{Action, Step, undo};
use commensal_host::{Child, Host, HostError, Lock, SpawnSpec};
use commensal_reconcile::{
    Applied, Instance, PlanRequest, ReconcileError, apply, enforce, members, restore_own, restore_stale,
    step_aside,
};
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{Survey, machine};
use moving::Moving;
use scheduled::ArmScheduler;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit for a process to exit after SIGKILL; after that time, the run fails. The limit is long because on a busy
/// machine each thread of the process must first get a CPU, and pending writes to a slow disk must first finish.
const LAST_MOMENTS: Duration = Duration::from_secs(120);

/// The testbed of a run.
#[derive(Debug)]
pub struct Testbed {
    /// The survey of the machine: its hardware and the kernel's capabilities.
    pub survey: Survey,
    /// Policies of the isolated arms, in the order of the arms. An arm is one of the ways of running the online service
    /// that the run compares.
    pub policies: Vec<ArmPolicy>,
    /// Changes of earlier, killed runs that this run undid at its start.
    pub cleaned: Vec<String>,
    cgroups: SideCgroups,
    changes: Changes,
    /// The online settings common to all policies of the run.
    online: Toggle,
    freezing: Freezing,
    active: Option<ActivePolicy>,
    /// Lock on the state directory, held for the duration of the run.
    _lock: Lock,
}

/// The sides whose processes the run freezes while an arm has no offline work.
#[derive(Debug, Default)]
struct Freezing {
    offline: Toggle,
    warm: Toggle,
    /// Why the run cannot freeze its own offline work, although the experiment requests it; `None` if it can, or need
    /// not.
    obstacle: Option<String>,
}

impl Freezing {
    fn side(&mut self, side: Side) -> &mut Toggle {
        if side == Side::Warm { &mut self.warm } else { &mut self.offline }
    }
}

/// The active policy, with the controller and the scheduler that run while it is active.
#[derive(Debug)]
struct ActivePolicy {
    /// Index of the policy.
    index: usize,
    /// The controller that adapts the offline side's CPUs to the load; `None` if the policy has none.
    moving: Option<Moving>,
    /// The policy's third-party scheduler.
    scheduler: Option<ArmScheduler>,
}

/// Surveys the machine, undoes the changes of killed runs, and creates the cgroups of this run.
///
/// # Errors
/// Returns an error if another run holds the lock, the machine cannot be read, the journal cannot be written, or the
/// kernel refuses to create a cgroup. Before returning an error, the function removes what it created.
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
        return Err(TestbedError::busy(host, &lock_path));
    };
    let instance = Instance {
        cgroup_root: cgroup_root.cloned(),
        ..Instance::of_process(&state_dir, policies::PREFIX, probe_name)
    };
    let journal_name = instance.journal_name().to_owned();
    // On any error, remove everything that the run has created.
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
    // The specifications of the cgroups, with the values that apply while no policy is active.
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
    // Survey again: the first survey could not test controllers that were not yet enabled in the root cgroup.
    let looked = instance.survey(host)?;
    let found = instance.observe(host, &looked)?;
    let plans = policies::Planner { instance: &instance, survey: &looked, wanted };
    let policies::All { actual, policies, online, mut structure } = plans.all(host, &found)?;
    let freezing = freezing(host, &plans, &actual, &mut structure)?;
    step_aside(host, &structure, &actual, planned.desired.aside.name(), &mut journal)
        .map_err(ReconcileError::from)?;
    if let Some(failure) = apply(host, &structure, &actual, &mut journal).failure {
        return Err(TestbedError::refused(&failure));
    }
    let member = |name: &str| {
        let group = planned.desired.groups.iter().find(|group| group.name.as_str() == name);
        group.map(|group| group.members[0].path.clone()).unwrap_or_default()
    };
    let cgroups = SideCgroups::open(host, &looked, policies::GROUPS.map(|(name, _)| member(name)));
    Ok(Testbed {
        survey: looked,
        policies,
        cleaned,
        cgroups,
        changes: Changes { instance, journal, actual },
        online: Toggle { steps: online, on: false },
        freezing,
        active: None,
        _lock: lock,
    })
}

/// Plans how to freeze the offline side and the warm side (threads that keep idle CPUs busy), and adds the required
/// cgroup changes to `structure`.
///
/// # Errors
/// Returns an error if offline work that already ran before the run cannot be frozen.
fn freezing(
    host: &mut dyn Host,
    plans: &policies::Planner<'_>,
    actual: &ActualState,
    structure: &mut Vec<Step>,
) -> Result<Freezing, TestbedError> {
    let (mut freezing, wanted) = (Freezing::default(), plans.wanted);
    for (side, name) in [(Side::Offline, "batch"), (Side::Warm, "warm")] {
        if !policies::pauses(name, wanted) {
            continue;
        }
        let path = wanted.attached[Side::Offline as usize]
            .map_or_else(|| name.to_owned(), |path| path.as_str().to_owned());
        match plans.pause(host, actual, name)? {
            Ok((needed, steps)) => {
                policies::add(structure, &needed);
                freezing.side(side).steps = steps;
            }
            // Without freezing, the run can still stop and start its own offline work.
            Err(why) if wanted.attached[Side::Offline as usize].is_none() => freezing.obstacle = Some(why),
            Err(why) => {
                return Err(TestbedError::new(format!(
                    "{path} cannot be frozen, as blocks without offline work require: {why}"
                )));
            }
        }
    }
    Ok(freezing)
}

impl Testbed {
    /// Returns why this run cannot alternate arms within milliseconds on this machine; `None` if it can.
    #[must_use]
    pub fn carries_over(&self) -> Option<String> {
        let of_tasks = self.policies.iter().filter(|policy| policy.obstacle.is_none()).find_map(|policy| {
            (policy.tasks != Tasks::default())
                .then(|| format!("the run sets {} when it starts the tasks", policy.driver))
        });
        let frozen =
            self.freezing.obstacle.as_ref().map(|why| format!("offline work cannot be frozen: {why}"));
        frozen.or(of_tasks)
    }

    /// Freezes or thaws the offline side or the warm side; does nothing if this run does not freeze that side.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a step of the plan.
    pub fn pause(&mut self, host: &mut dyn Host, side: Side, frozen: bool) -> Result<(), TestbedError> {
        let Some(steps) = self.freezing.side(side).steps_to(frozen) else { return Ok(()) };
        self.steps(host, &steps)?;
        self.freezing.side(side).on = frozen;
        Ok(())
    }

    /// Applies or reverts the online settings common to the run's policies. Arms that are compared with each other have
    /// the same online settings, so that they differ only in the treatment of the offline side.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a step of the plan.
    pub fn favour_online(&mut self, host: &mut dyn Host, on: bool) -> Result<(), TestbedError> {
        let Some(steps) = self.online.steps_to(on) else { return Ok(()) };
        self.steps(host, &steps)?;
        self.online.on = on;
        Ok(())
    }

    /// Switches on the policy of one isolated arm.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a step of the plan, or the arm's scheduler does not load. The policy is
    /// then off.
    pub fn isolate(&mut self, host: &mut dyn Host, policy: usize) -> Result<(), TestbedError> {
        let steps = self.policies[policy].steps.clone();
        self.steps(host, &steps)?;
        let arm = &self.policies[policy];
        match ArmScheduler::start(host, arm.scheduler.as_deref()) {
            Ok(scheduler) => {
                let moving = Moving::begin(arm, self.path(Side::Offline));
                self.active = Some(ActivePolicy { index: policy, moving, scheduler });
                Ok(())
            }
            Err(error) => {
                self.steps(host, &undo(&steps))?;
                Err(error)
            }
        }
    }

    /// Returns the index of the active policy.
    #[must_use]
    pub fn isolated(&self) -> Option<usize> {
        self.active.as_ref().map(|active| active.index)
    }

    /// Switches off the active policy, if there is one.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a step of the plan, or the arm's scheduler does not unload.
    pub fn release(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let Some(active) = self.active.take() else { return Ok(()) };
        let ended = active.scheduler.map_or(Ok(()), |scheduler| scheduler.stop(host));
        let steps = undo(&self.policies[active.index].steps);
        self.steps(host, &steps)?;
        ended
    }

    /// Adapts the offline side's CPUs to the CPU use since the last call, if the active policy has a controller for
    /// this.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a step of the plan.
    pub fn follow(&mut self, host: &mut dyn Host) -> Result<(), TestbedError> {
        let moving = self.active.as_ref().and_then(|active| active.moving.as_ref());
        let Some(now_ms) = moving.map(Moving::now_ms) else { return Ok(()) };
        self.follow_at(host, now_ms)
    }

    fn follow_at(&mut self, host: &mut dyn Host, now_ms: u64) -> Result<(), TestbedError> {
        let Some(ActivePolicy { index, moving: Some(moving), .. }) = &mut self.active else { return Ok(()) };
        let offline = self.cgroups.dirs(Side::Offline);
        let cpus = moving.step(host, now_ms, &self.survey.machine.topology, offline);
        let Some(cpus) = cpus else { return Ok(()) };
        let steps = moving::give(&mut self.policies[*index].steps, self.cgroups.path(Side::Offline), &cpus);
        self.steps(host, &steps)
    }

    /// Returns why the active policy's scheduler is no longer in force (it is not loaded, or its program has exited);
    /// `None` if it is in force.
    pub fn scheduler_lost(&mut self, host: &dyn Host) -> Option<String> {
        self.active.as_mut()?.scheduler.as_mut()?.lost(host)
    }

    /// Reads back the control files of a policy, to check that their values are still in force. For a policy that
    /// applies to tasks, also reads the attributes of the offline task.
    pub fn policy_now(&self, host: &mut dyn Host, policy: usize, offline: Option<&Child>) -> Vec<Applied> {
        let policy = &self.policies[policy];
        let mut now = self.changes.read_back(host, &policy.steps);
        let scheduler = self.active.as_ref().and_then(|active| active.scheduler.as_ref());
        now.extend(scheduler.and_then(|scheduler| scheduler.read_back(host)));
        if let Some(child) = offline {
            now.extend(policy.tasks.of_task(host, child.process.pid));
        }
        now
    }

    fn steps(&mut self, host: &mut dyn Host, steps: &[Step]) -> Result<(), TestbedError> {
        self.changes.apply(host, steps)?;
        if steps.iter().any(|step| matches!(step.action, Action::Recreate { .. })) {
            // A setting could not be reverted in place, so the cgroup was replaced and must be opened again.
            self.changes.adopt(&self.survey.tree(host)?);
            self.cgroups.open_again(host, &self.survey);
        }
        Ok(())
    }

    /// Returns the open cgroups of one side.
    #[must_use]
    pub fn group(&self, side: Side) -> &GroupDirs {
        self.cgroups.dirs(side)
    }

    /// Starts a process in the cgroups of one side. The kernel kills the process when this program exits. `policy` is
    /// the policy of an isolated arm; it may set attributes of tasks instead of cgroups.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started in these cgroups.
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

    /// Returns the path of a side's cgroups, for programs that start processes there themselves.
    #[must_use]
    pub fn path(&self, side: Side) -> &CgroupPath {
        self.cgroups.path(side)
    }

    /// Kills a process and all other processes in and below the cgroups of its side, and waits until all of them have
    /// exited.
    ///
    /// # Errors
    /// `EBUSY` or `ETIMEDOUT` if a process survives SIGKILL for two minutes.
    pub fn stop(&self, host: &mut dyn Host, side: Side, child: &mut Child) -> Result<(), TestbedError> {
        let deadline = Instant::now() + LAST_MOMENTS;
        match host.signal(&child.process, commensal_host::Signal::KILL) {
            Err(error) if error.errno != Errno::ESRCH => return Err(error.into()),
            _ => {}
        }
        // Before the wait for the child, which may be frozen in a cgroup of its own.
        members::kill_all(host, &self.group(side).all(), LAST_MOMENTS)?;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                let object = format!("process {}", child.process.pid);
                return Err(
                    HostError { operation: "end", object, value: None, errno: Errno::ETIMEDOUT }.into()
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Removes everything that this run created. Returns a message for each change that could not be undone. Such a
    /// change stays in the journal, and `commensal restore` retries it.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read or rewritten.
    pub fn close(mut self, host: &mut dyn Host) -> Result<Vec<String>, TestbedError> {
        let scheduler = self.active.take().and_then(|active| active.scheduler);
        let ended = scheduler.map_or(Ok(()), |scheduler| scheduler.stop(host));
        let paths = self.cgroups.close(host);
        let instance = &self.changes.instance;
        let mut restored = restore_own(host, &instance.state_dir, instance.journal_name())?;
        sweep(host, &paths, &instance.prefix);
        restored.left.append(&mut restored.failed);
        restored.left.extend(ended.err().map(|error| error.to_string()));
        Ok(restored.left)
    }
}
