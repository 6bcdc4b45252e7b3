//! The policies of a run: for each isolated arm (a condition in which offline work yields to the service), the steps
//! that write the arm's values to the run's cgroups. The run plans all policies once, before the first block.

use super::error::TestbedError;
use crate::isolation::{Isolation, NamedMechanism, WITHOUT};
use commensal_core::actual::{ActualState, Capabilities, CgroupPath};
use commensal_core::class::Mechanism;
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredState;
use commensal_core::group::{Class, GroupName, GroupSpec, Match};
use commensal_core::knob::{Controller, KnobId, Version};
use commensal_core::limit::{FROZEN, On};
use commensal_core::plan::{Action, Step};
use commensal_core::process::Stat;
use commensal_host::Host;
use commensal_reconcile::{Applied, Instance, PlanRequest, Planned};
use commensal_sensors::Survey;
use commensal_sensors::sched_ext::Kernel;
use std::collections::BTreeSet;
use std::path::Path;

/// The name and class of each cgroup of a run, in the order of [`super::Side`].
pub(super) const GROUPS: [(&str, Class); 4] = [
    ("service", Class::Online),
    ("batch", Class::Offline),
    ("client", Class::Online),
    ("warm", Class::Offline),
];

/// The policy of an isolated arm on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArmPolicy {
    /// Description of the isolation mechanism, such as a control file and its value.
    pub driver: String,
    /// Why the isolation mechanism protects the service only weakly; `None` if the mechanism is not weak.
    pub weak: Option<String>,
    /// Requested settings that this machine cannot enforce, each with the reason, as text for a reader.
    pub unmet: Vec<String>,
    /// Why this machine cannot run the arm; `None` if it can.
    pub obstacle: Option<String>,
    /// Whether the CPUs of the offline work change while the policy is on.
    pub(super) moves: bool,
    /// Steps that switch the policy on.
    pub(super) steps: Vec<Step>,
    /// Scheduling attributes that the run gives offline tasks when they start.
    pub(super) tasks: Tasks,
    /// Program and arguments of a third-party sched_ext scheduler that runs while the policy is on.
    pub(super) scheduler: Option<Vec<String>>,
}

/// Scheduling attributes of offline tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Whether tasks have the policy `SCHED_IDLE`.
    pub idle: bool,
    /// Nice level.
    pub nice: Option<i32>,
    /// CPUs on which the tasks may run.
    pub cpus: Option<CpuSet>,
}

impl Tasks {
    /// Reads these attributes back from a task, except the CPUs.
    pub(super) fn of_task(&self, host: &dyn Host, pid: u32) -> Vec<Applied> {
        let stat = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
        let stat = Stat::parse(&stat);
        let field =
            |number: usize| stat.as_ref().and_then(|stat| stat.text(number)).unwrap_or("?").to_owned();
        let place = "offline task".to_owned();
        let applied =
            |file, want: String, number| Applied { place: place.clone(), file, want, read: field(number) };
        // The value 5 is SCHED_IDLE.
        let idle = self.idle.then(|| applied("policy", "5".to_owned(), 41));
        let nice = self.nice.map(|nice| applied("nice", nice.to_string(), 19));
        idle.into_iter().chain(nice).collect()
    }
}

/// Returns the specifications of the run's cgroups. Each has only a class, and, for work that already runs, the cgroup
/// of that work.
pub(super) fn specs(wanted: &Wanted<'_>) -> Result<Vec<GroupSpec>, TestbedError> {
    let spec = |(name, class): &(&str, Class)| {
        let mut spec = GroupSpec::new(GroupName::new(name).map_err(TestbedError::plan)?, *class);
        let attached = match *name {
            "service" => wanted.attached[0],
            "batch" => wanted.attached[1],
            _ => None,
        };
        if let Some(path) = attached {
            spec.matches = vec![Match::exactly(path.as_str()).map_err(TestbedError::plan)?];
        }
        Ok(spec)
    };
    GROUPS.iter().map(spec).collect()
}

/// Prefix of the names of all runs' cgroups.
pub(super) const PREFIX: &str = "commensal-lab";

/// Plans the policies of a run.
pub(super) struct Planner<'a> {
    /// Identity of the run: its cgroups and its journal.
    pub instance: &'a Instance,
    /// What the machine can do, examined after the run created its cgroups.
    pub survey: &'a Survey,
    /// The requirements of the run.
    pub wanted: &'a Wanted<'a>,
}

/// Result of [`Planner::all`].
pub(super) struct All {
    /// State of the cgroups before any policy.
    pub actual: ActualState,
    /// One policy for each isolated arm, in the order of the arms; the steps in a policy concern only the offline side.
    pub policies: Vec<ArmPolicy>,
    /// Steps of all policies for the online cgroups; every arm that uses them uses all of them.
    pub online: Vec<Step>,
    /// Steps that stay in force throughout the run, because policies depend on them. In cgroup v2, a cgroup has a
    /// controller's files only if its ancestors enable the controller.
    pub structure: Vec<Step>,
}

/// Adds to `to` those of `steps` that `to` does not contain yet.
pub(super) fn add(to: &mut Vec<Step>, steps: &[Step]) {
    for step in steps {
        if !to.iter().any(|one| one.place == step.place && one.action == step.action) {
            to.push(step.clone());
        }
    }
}

impl Planner<'_> {
    /// Plans the cgroups, using only the mechanisms that this isolation allows.
    fn plan(
        &self,
        host: &mut dyn Host,
        found: ActualState,
        specs: &[GroupSpec],
        isolation: &Isolation,
    ) -> Result<Planned, TestbedError> {
        let restrict = |caps: &Capabilities| isolation.restrict(caps);
        let request = PlanRequest { mechanisms: Some(&restrict), ..PlanRequest::beside(specs) };
        Ok(self.instance.plan_against(host, self.survey, &request, found)?)
    }

    /// Plans the policies of all isolated arms.
    pub(super) fn all(&self, host: &mut dyn Host, found: &ActualState) -> Result<All, TestbedError> {
        let (wanted, machine) = (self.wanted, &self.survey.machine);
        // A plan reads only the control files that its groups use. This plan contains the settings of all policies
        // together, so that it reads every file that a policy uses.
        let mut every = specs(wanted)?;
        wanted.isolations.iter().for_each(|isolation| isolation.limit(&mut every, machine));
        for spec in &mut every {
            let pauses = pauses(spec.name.as_str(), wanted);
            spec.limits.set(FROZEN, pauses.then_some(On));
        }
        let request = PlanRequest::all(&every);
        let actual = self.instance.plan_against(host, self.survey, &request, found.clone())?.actual;
        let (mut policies, mut structure, mut online) = (Vec::new(), Vec::<Step>::new(), Vec::<Step>::new());
        for isolation in wanted.isolations {
            let mut specs = specs(wanted)?;
            isolation.limit(&mut specs, machine);
            let planned = self.plan(host, actual.clone(), &specs, isolation)?;
            add(&mut structure, planned.plan.structure());
            let mut policy = policy(isolation, self.survey, &planned);
            let favours = |step: &Step| of_online(step, &planned.desired);
            let (theirs, ours): (Vec<Step>, Vec<Step>) = policy.steps.into_iter().partition(favours);
            policy.steps = ours;
            // If policies differ in a setting of the online groups, the run uses the value of the first policy.
            for step in theirs {
                let known = |one: &Step| one.place == step.place && written(one) == written(&step);
                if !online.iter().any(known) {
                    online.push(step);
                }
            }
            let of_tasks = policy.tasks != Tasks::default();
            if of_tasks && wanted.attached[1].is_some() && policy.obstacle.is_none() {
                policy.obstacle = Some(
                    "the run sets it when it starts tasks, but the offline work already runs".to_owned(),
                );
            }
            if isolation.scheduler().is_some() {
                let wrong = Kernel::read(host).obstacles_to_another();
                policy.obstacle = policy.obstacle.or_else(|| (!wrong.is_empty()).then(|| wrong.join("; ")));
            }
            policies.push(policy);
        }
        Ok(All { actual, policies, online, structure })
    }

    /// Plans to freeze the cgroup called `name`. Returns the steps that must come first and the steps that freeze; or
    /// the reason why the cgroup cannot be frozen.
    #[allow(clippy::type_complexity, reason = "two lists of steps, or a sentence")]
    pub(super) fn pause(
        &self,
        host: &mut dyn Host,
        actual: &ActualState,
        name: &str,
    ) -> Result<Result<(Vec<Step>, Vec<Step>), String>, TestbedError> {
        let mut specs = specs(self.wanted)?;
        for spec in specs.iter_mut().filter(|spec| spec.name.as_str() == name) {
            spec.limits.set(FROZEN, On);
        }
        let plan = self.plan(host, actual.clone(), &specs, &Isolation::none())?.plan;
        let unmet = plan.unmet.iter().find(|unmet| unmet.what.contains("frozen"));
        Ok(match (unmet, plan.settings()) {
            (Some(unmet), _) => Err(unmet.because.clone()),
            (None, []) if self.survey.hierarchies.is_empty() => Err("no cgroup is mounted".to_owned()),
            (None, []) => Err("it has no cgroup of its own".to_owned()),
            (None, steps) => Ok((plan.structure().to_vec(), steps.to_vec())),
        })
    }
}

/// Whether a step favours the online side: whether it changes an online cgroup or the parent of the online cgroups. A
/// step that sets a CPU set does not count, because it restricts the cgroup and belongs to one policy only.
fn of_online(step: &Step, desired: &DesiredState) -> bool {
    if written(step).is_some_and(|knob| knob.row().controller == Controller::Cpuset) {
        return false;
    }
    let online = desired.groups.iter().filter(|group| group.class == Class::Online);
    let member = online.flat_map(|group| &group.members).any(|member| member.path == step.place.path);
    written(step).is_some() && (member || step.place.path == desired.online_parent)
}

/// Returns the control file that a step writes; `None` for a step of another kind.
fn written(step: &Step) -> Option<KnobId> {
    match &step.action {
        Action::Write { knob, .. } => Some(*knob),
        _ => None,
    }
}

/// Whether the run freezes the cgroup called `name`. The run freezes offline work that already runs, and with `freezes`
/// also the work that the run starts.
pub(super) fn pauses(name: &str, wanted: &Wanted<'_>) -> bool {
    match name {
        "batch" => wanted.freezes || wanted.attached[1].is_some(),
        "warm" => wanted.freezes,
        _ => false,
    }
}

fn policy(isolation: &Isolation, look: &Survey, planned: &Planned) -> ArmPolicy {
    let plan = &planned.plan;
    let of_tasks = plan.task_policies.values().next();
    let cpu = planned.actual.hierarchy_of(Controller::Cpu);
    let version = cpu.map_or(Version::V2, |index| planned.actual.hierarchies[index].version);
    let best = isolation.best;
    let obstacle = isolation.obstacle(&look.caps, version, plan, &look.machine);
    let fallback = of_tasks.filter(|_| best);
    let named: BTreeSet<String> = plan.mechanisms.values().map(Mechanism::describe).collect();
    let extra = (!isolation.named.is_empty()).then(|| isolation.describe());
    let driver = match (fallback, best) {
        (Some(_), _) => "SCHED_IDLE + nice 19 on tasks".to_owned(),
        (None, true) if named.is_empty() => "none".to_owned(),
        (None, true) => named.into_iter().chain(extra).collect::<Vec<_>>().join(" + "),
        (None, false) => isolation.describe(),
    };
    // An arm with named mechanisms omits all others on purpose, so the record does not list those as missing.
    let unmet = plan
        .unmet
        .iter()
        .filter(|unmet| best || !(unmet.what.starts_with("class ") || unmet.because == WITHOUT));
    ArmPolicy {
        driver,
        weak: fallback.and_then(|policy| policy.weak.clone()),
        unmet: unmet.map(|unmet| format!("{}: {}", unmet.what, unmet.because)).collect(),
        obstacle,
        moves: isolation.named.contains(&NamedMechanism::Frame),
        steps: plan.settings().to_vec(),
        scheduler: isolation.scheduler().map(<[String]>::to_vec),
        tasks: Tasks {
            idle: isolation.idle_tasks() || fallback.is_some_and(|policy| policy.idle),
            nice: isolation.nice().or(fallback.filter(|policy| policy.idle).map(|_| 19)),
            cpus: fallback.and_then(|policy| policy.cpus.clone()),
        },
    }
}

/// What a run needs on the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// Isolations of the isolated arms, in the order of the arms.
    pub isolations: &'a [Isolation],
    /// Cgroups of a service and of offline work that already run; the run uses these instead of creating its own.
    pub attached: [Option<&'a CgroupPath>; 2],
    /// Whether the run also freezes and thaws offline work that it starts itself.
    pub freezes: bool,
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::*;
    use commensal_core::scheduler::Mode;
    use commensal_core::scheduler::protocol::{Request, Standing, Status};
    use commensal_host::fake::FakeHost;
    use std::sync::{Arc, Mutex};

    /// Only arms with the mechanism `best` or `sched_ext` use commensal's scheduler. Between blocks, the scheduler has
    /// no settings from the run.
    #[test]
    fn the_scheduler_is_one_arms_mechanism() {
        let fake = FakeHost::v2(4, 8 << 30);
        fake.set_file("/sys/kernel/sched_ext/state", "enabled\n");
        let orders: Arc<Mutex<Standing>> = Arc::default();
        let told = Arc::clone(&orders);
        fake.serve("/state/sched.sock", move |request| {
            let mut told = told.lock().ok()?;
            if let Request::Orders(orders) = Request::parse(request.trim()).ok()? {
                *told = told.with(orders);
            }
            let status = Status { ok: true, mode: Mode::Running, orders: told.clone(), ..Status::default() };
            serde_json::to_string(&status).ok()
        });
        let owner = format!("{PREFIX}-{}", std::process::id());
        let ordered = || {
            let told = orders.lock().unwrap();
            told.0.get(owner.as_str()).map_or(0, |orders| orders.groups.len())
        };
        let mut host = fake.another();
        let isolations = ["best", "sched_ext", "cpu.idle"].map(|name| Isolation::parse(name).unwrap());
        let wanted = Wanted { isolations: &isolations, ..Wanted::default() };
        let mut site = open(&mut host, "/state".into(), "probe", None, &wanted).unwrap();
        for (arm, groups) in [(0, 4), (1, 4), (2, 0), (1, 4)] {
            assert_eq!(site.policies[arm].obstacle, None, "{arm}");
            site.isolate(&mut host, arm).unwrap();
            assert_eq!(ordered(), groups, "{arm}");
            let now = site.policy_now(&mut host, arm, None);
            assert!(now.iter().all(|one| one.want == one.read), "{arm}: {now:?}");
            assert!(now.iter().any(|one| one.file == "cpu.idle"), "{arm}: {now:?}");
            assert_eq!(now.iter().any(|one| one.file == "orders"), groups > 0, "{arm}: {now:?}");
            site.release(&mut host).unwrap();
            assert_eq!(ordered(), 0, "{arm}");
        }
        site.isolate(&mut host, 0).unwrap();
        assert_eq!(site.close(&mut host).unwrap(), [""; 0]);
        assert_eq!(ordered(), 0);
    }
}
