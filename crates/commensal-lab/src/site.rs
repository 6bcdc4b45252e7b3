//! The place where a run happens: its groups, its policy switched on and off, its processes, its end.
//!
//! Everything written goes through plan, drivers and journal, so that a run killed at any moment is undone
//! by the next one or by `commensal restore`. The groups are the run's own: two parents named after its pid.

use commensal_core::actual::{ActualState, CgroupPath, Hierarchy};
use commensal_core::class::TaskPolicy;
use commensal_core::desired::{DesiredState, ResolveOptions, resolve};
use commensal_core::errno::Errno;
use commensal_core::group::{Class, GroupName, GroupSpec};
use commensal_core::plan::{Action, Plan, Step, plan, undo};
use commensal_core::topology::Machine;
use commensal_drivers::journal::{Journal, Owner};
use commensal_drivers::{
    Applied, Failure, JournalError, apply, members, restore_own, restore_stale, step_aside, verify,
};
use commensal_host::{Child, Host, HostError, Lock, SpawnSpec};
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{SensorError, Survey, machine, survey};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a run could not take place or had to end.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// The machine could not be looked at.
    #[error("cannot read this machine")]
    Sensor(#[from] SensorError),
    /// The system refused something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The undo journal could not be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A step of the plan was refused.
    #[error("{}", refused(.0))]
    Refused(Box<Failure>),
    /// Two runs at once would measure each other.
    #[error("another lab run is using this machine (it holds {0}); two at once would measure each other")]
    Busy(String),
    /// The delegated group cannot be used.
    #[error(transparent)]
    NoRoom(#[from] commensal_drivers::NoRoom),
    /// Our own groups could not be planned: our bug.
    #[error("the run's own groups cannot be planned: {0}")]
    Plan(String),
}

fn refused(failure: &Failure) -> String {
    let left = match failure.left.is_empty() {
        true => "everything done before was taken back".to_owned(),
        false => format!("could not be taken back: {}", failure.left.join("; ")),
    };
    format!("step {} was refused: {}\n  {}\n  {left}", failure.step + 1, failure.description, failure.refusal)
}

/// Which side of the experiment a process is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The service.
    Online,
    /// The burners.
    Offline,
}

/// How the isolated arm isolates here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Means {
    /// Name of the mechanism.
    pub driver: String,
    /// Why it is weak, if it is.
    pub weak: Option<String>,
    /// What the plan could not do, in words.
    pub unmet: Vec<String>,
}

/// A run's place on the machine.
#[derive(Debug)]
pub struct Site {
    /// What the machine is made of.
    pub machine: Machine,
    /// Its cgroup hierarchies.
    pub hierarchies: Vec<Hierarchy>,
    /// How it isolates.
    pub means: Means,
    /// What an earlier, killed run had left and was removed first.
    pub cleaned: Vec<String>,
    state_dir: PathBuf,
    journal: Journal,
    journal_name: String,
    actual: ActualState,
    survey: Survey,
    /// Of the groups of both sides.
    paths: [CgroupPath; 2],
    policy_on: Vec<Step>,
    task_policy: Option<TaskPolicy>,
    online: GroupDirs,
    offline: GroupDirs,
    /// Nobody else measures meanwhile.
    _lock: Lock,
}

/// Looks at the machine, removes what dead runs left, and makes the groups of this run.
///
/// # Errors
/// When the machine cannot be read, the journal cannot be kept, or the kernel refuses a group; then nothing
/// of this run is left.
pub fn open(
    host: &mut dyn Host,
    state_dir: PathBuf,
    probe_name: &str,
    cgroup_root: Option<&CgroupPath>,
) -> Result<Site, SiteError> {
    host.state_dir(&state_dir)?;
    let lock_path = state_dir.join("lab.lock");
    let Some(lock) = host.state_lock(&lock_path)? else {
        return Err(SiteError::Busy(lock_path.display().to_string()));
    };
    let name = format!("{}{}", commensal_drivers::journal::LAB, std::process::id());
    // Whatever goes wrong on the way: what was made by then is removed.
    build(host, state_dir.clone(), probe_name, cgroup_root, lock).inspect_err(|_| {
        let _ = restore_own(host, &state_dir, &name);
    })
}

fn build(
    host: &mut dyn Host,
    state_dir: PathBuf,
    probe_name: &str,
    cgroup_root: Option<&CgroupPath>,
    lock: Lock,
) -> Result<Site, SiteError> {
    let boot_id = machine::boot_id(host).unwrap_or_default();
    let cleaned = restore_stale(host, &state_dir, &boot_id)?.done;
    let pid = std::process::id();
    let start_ticks = host.process(pid)?.start_ticks;
    let first_look = survey(host, probe_name, cgroup_root)?;
    let journal_name = format!("{}{pid}", commensal_drivers::journal::LAB);
    let owner = Owner { kind: "lab".to_owned(), pid, start_ticks, boot_id: boot_id.clone() };
    let mut journal = Journal::open(host, &state_dir, &journal_name, owner)?;
    let found = first_look.tree(host)?;
    let (desired, first) = replan(host, found, &first_look, pid)?;
    step_aside(host, first.1.structure(), &first.0, desired.aside.name(), &mut journal)?;
    let built = apply(host, first.1.structure(), &first.0, &mut journal);
    if let Some(failure) = built.failure {
        return Err(SiteError::Refused(Box::new(failure)));
    }
    // What the root did not enable before could not be tried before.
    let looked = survey(host, probe_name, cgroup_root)?;
    let mut found = looked.tree(host)?;
    found.ours = commensal_drivers::journal::ours(host, &state_dir, &journal_name, &boot_id, &found)?;
    let (_, (actual, plan)) = replan(host, found, &looked, pid)?;
    let member = |class: Class| {
        let group = desired.groups.iter().find(|group| group.class == class);
        group.map(|group| group.members[0].path.clone()).unwrap_or_default()
    };
    let paths = [member(Class::Online), member(Class::Offline)];
    let [online, offline] = open_groups(host, &looked, &paths);
    Ok(Site {
        machine: looked.machine.clone(),
        hierarchies: looked.hierarchies.clone(),
        survey: looked,
        paths,
        means: means(&plan),
        cleaned,
        state_dir,
        journal,
        journal_name,
        actual,
        policy_on: plan.settings().to_vec(),
        task_policy: plan.task_policies.into_values().next(),
        online,
        offline,
        _lock: lock,
    })
}

/// The groups of both sides; none where groups of our own cannot be.
fn open_groups(host: &mut dyn Host, look: &Survey, paths: &[CgroupPath; 2]) -> [GroupDirs; 2] {
    let possible = look.caps.cgroup_obstacle.is_none() && look.tenancy.obstacle.is_none();
    let hierarchies = if possible { look.hierarchies.as_slice() } else { &[] };
    [0, 1].map(|side| GroupDirs::open(host, hierarchies, &paths[side]))
}

/// The same two groups against what is there: before the structure, and again after it.
fn replan(
    host: &mut dyn Host,
    mut found: ActualState,
    look: &Survey,
    pid: u32,
) -> Result<(DesiredState, (ActualState, Plan)), SiteError> {
    let name = |text: &str| GroupName::new(text).map_err(SiteError::Plan);
    let specs =
        [GroupSpec::new(name("service")?, Class::Online), GroupSpec::new(name("batch")?, Class::Offline)];
    let options = ResolveOptions { prefix: format!("commensal-lab-{pid}"), ..ResolveOptions::default() };
    let desired = resolve(&specs, &look.machine, &found, &options).map_err(|errors| {
        SiteError::Plan(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    })?;
    look.fill(host, &desired, &mut found);
    let plan = plan(&desired, &found, &look.caps);
    Ok((desired, (found, plan)))
}

fn means(plan: &Plan) -> Means {
    let names: BTreeMap<&str, ()> =
        plan.mechanisms.values().map(|mechanism| (mechanism.name(), ())).collect();
    let weak = plan.task_policies.values().find_map(|policy| policy.weak.clone());
    let driver = match (&weak, names.is_empty()) {
        (Some(_), _) => "SCHED_IDLE + nice 19 on tasks".to_owned(),
        (None, true) => "none".to_owned(),
        (None, false) => names.into_keys().collect::<Vec<_>>().join(", "),
    };
    Means {
        driver,
        weak,
        unmet: plan.unmet.iter().map(|unmet| format!("{}: {}", unmet.what, unmet.because)).collect(),
    }
}

impl Site {
    /// Switches isolation on.
    ///
    /// # Errors
    /// When the kernel refuses a step; then the policy is off.
    pub fn isolate(&mut self, host: &mut dyn Host) -> Result<(), SiteError> {
        let steps = self.policy_on.clone();
        self.steps(host, &steps)
    }

    /// Switches isolation off again.
    ///
    /// # Errors
    /// When the kernel refuses a step.
    pub fn release(&mut self, host: &mut dyn Host) -> Result<(), SiteError> {
        let steps = undo(&self.policy_on);
        self.steps(host, &steps)
    }

    /// Reads again what isolation set: whether it still is in force, and for a weak one whether the task has it.
    pub fn policy_now(&self, host: &mut dyn Host, offline: Option<&Child>) -> Vec<Applied> {
        let mut now = verify(host, &self.policy_on, &self.actual);
        if let (Some(_), Some(child)) = (&self.task_policy, offline) {
            let stat =
                host.read_file(Path::new(&format!("/proc/{}/stat", child.process.pid))).unwrap_or_default();
            // Field 41 of proc(5), counted from the last bracket: the scheduling policy, 5 is SCHED_IDLE.
            let field =
                stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(38)).unwrap_or("?");
            let place = format!("task {}", child.process.pid);
            now.push(Applied { place, file: "policy", want: "5".to_owned(), read: field.to_owned() });
        }
        now
    }

    fn steps(&mut self, host: &mut dyn Host, steps: &[Step]) -> Result<(), SiteError> {
        let outcome = apply(host, steps, &self.actual, &mut self.journal);
        match outcome.failure {
            None if steps.iter().any(|step| matches!(step.action, Action::Renew { .. })) => {
                self.renewed(host)
            }
            None => Ok(()),
            Some(failure) => Err(SiteError::Refused(Box::new(failure))),
        }
    }

    /// A level without a way back was undone by fresh groups of the same names.
    fn renewed(&mut self, host: &mut dyn Host) -> Result<(), SiteError> {
        let fresh = self.survey.tree(host)?;
        for (place, found) in &mut self.actual.cgroups {
            if let Some(now) = fresh.cgroups.get(place) {
                found.inode = now.inode;
            }
        }
        let [online, offline] = open_groups(host, &self.survey, &self.paths);
        std::mem::replace(&mut self.online, online).close(host);
        std::mem::replace(&mut self.offline, offline).close(host);
        Ok(())
    }

    /// The groups of one side.
    #[must_use]
    pub fn group(&self, side: Side) -> &GroupDirs {
        match side {
            Side::Online => &self.online,
            Side::Offline => &self.offline,
        }
    }

    /// Starts a process of one side inside its groups; it dies with this one. `isolated` matters where
    /// groups cannot be used and the tasks themselves get the policy.
    ///
    /// # Errors
    /// When the program cannot be started there.
    pub fn start(
        &self,
        host: &mut dyn Host,
        side: Side,
        isolated: bool,
        mut spec: SpawnSpec,
    ) -> Result<Child, SiteError> {
        spec.groups = self.group(side).all();
        spec.die_with_parent = true;
        spec.own_process_group = true;
        if let (Side::Offline, true, Some(policy)) = (side, isolated, &self.task_policy) {
            spec.policy.idle = policy.idle;
            spec.policy.nice = policy.idle.then_some(19);
            spec.policy.cpus.clone_from(&policy.cpus);
        }
        Ok(host.spawn(&spec)?)
    }

    /// Ends a process and everything else in the groups of its side, and waits until it is gone.
    ///
    /// # Errors
    /// `ETIMEDOUT` when something survives SIGKILL for five seconds.
    pub fn stop(&self, host: &mut dyn Host, side: Side, child: &mut Child) -> Result<(), SiteError> {
        let deadline = Instant::now() + Duration::from_secs(5);
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
            members::kill_all(host, dir, Duration::from_secs(5))?;
        }
        Ok(())
    }

    /// Removes everything that this run made. What could not be removed is told, and stays in the journal
    /// for `commensal restore`.
    ///
    /// # Errors
    /// When the journal cannot be read or rewritten.
    pub fn close(self, host: &mut dyn Host) -> Result<Vec<String>, SiteError> {
        self.online.close(host);
        self.offline.close(host);
        let mut restored = restore_own(host, &self.state_dir, &self.journal_name)?;
        restored.left.append(&mut restored.failed);
        Ok(restored.left)
    }
}
