//! A request to the machine, and the plan for it.

use commensal_core::actual::{ActualState, Capabilities, SCHEDULER};
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredState;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::knob::Controller;
use commensal_core::plan::{Plan, plan};
use commensal_host::Host;
use commensal_sensors::Survey;
use commensal_sensors::containers::Found;
use std::collections::BTreeSet;

/// No group.
pub const NO_GROUPS: &BTreeSet<GroupName> = &BTreeSet::new();

/// Groups to put in force, with options.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// Groups that need a cgroup created by commensal although they have matches.
    pub own: &'a BTreeSet<GroupName>,
    /// The groups are added to those in force: settings that they do not ask for are not undone.
    pub alone: bool,
    /// Applies the controllers' decisions.
    pub adjust: &'a dyn Fn(&mut DesiredState),
    /// Finds containers and processes that the groups match; without it they are searched for when planning.
    pub members: Option<FindMembers<'a>>,
    /// Answers of container engines, if they were queried before; without it they are queried when planning.
    pub engines: Option<&'a Found>,
    /// Whether an agent maintains the groups from now on.
    pub kept: bool,
    /// The safe state, for the process that must apply it when no agent runs; without it no safe state is journalled.
    pub safe: Option<SafeRequest<'a>>,
    /// Restricts the capabilities that the plan may use; `None` means all of them.
    pub mechanisms: Option<&'a dyn Fn(&Capabilities) -> Capabilities>,
}

/// The settings to be left when no agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SafeRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// CPUs that offline groups keep, if they are confined.
    pub floor: Option<&'a CpuSet>,
}

/// Adds the members of groups.
pub type FindMembers<'a> = &'a dyn Fn(&mut dyn Host, &mut ActualState);

impl<'a> PlanRequest<'a> {
    /// All groups that must be in force, as written.
    #[must_use]
    pub fn all(specs: &'a [GroupSpec]) -> PlanRequest<'a> {
        let (own, adjust) = (NO_GROUPS, &|_: &mut DesiredState| ());
        PlanRequest {
            specs,
            own,
            alone: false,
            adjust,
            members: None,
            engines: None,
            kept: false,
            safe: None,
            mechanisms: None,
        }
    }

    /// Groups that are added to those in force: settings of other groups are not undone.
    #[must_use]
    pub fn beside(specs: &'a [GroupSpec]) -> PlanRequest<'a> {
        PlanRequest { alone: true, ..PlanRequest::all(specs) }
    }

    /// Like [`PlanRequest::beside`], with a cgroup created by commensal for each group in `own`. Without any, like
    /// [`PlanRequest::all`].
    #[must_use]
    pub fn with_own(specs: &'a [GroupSpec], own: &'a BTreeSet<GroupName>) -> PlanRequest<'a> {
        PlanRequest { own, alone: !own.is_empty(), ..PlanRequest::all(specs) }
    }
}

impl std::fmt::Debug for PlanRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (specs, own, alone) = (self.specs, self.own, self.alone);
        f.debug_struct("PlanRequest")
            .field("specs", &specs)
            .field("own", &own)
            .field("alone", &alone)
            .finish_non_exhaustive()
    }
}

/// Groups, machine and plan, resolved against each other.
#[derive(Debug)]
pub struct Planned {
    /// The machine's cgroups now.
    pub actual: ActualState,
    /// The desired state.
    pub desired: DesiredState,
    /// The plan.
    pub plan: Plan,
    /// Why commensal cannot create groups, if so.
    pub obstacle: Option<String>,
}

impl Planned {
    pub(crate) fn new(
        survey: &Survey,
        request: &PlanRequest<'_>,
        mut found: ActualState,
        desired: DesiredState,
    ) -> Planned {
        let caps = request.mechanisms.map(|allow| allow(&survey.caps));
        let caps = caps.as_ref().unwrap_or(&survey.caps);
        // A plan sees the scheduler in the observed state, so it is hidden if the plan must not use it.
        let hidden = request.mechanisms.is_some() && caps.feature_obstacle(SCHEDULER).is_some();
        let scheduler = if hidden { found.scheduler.take() } else { None };
        let plan = plan(&desired, &found, caps);
        if hidden {
            found.scheduler = scheduler;
        }
        let cpu = found.hierarchy_of(Controller::Cpu);
        let own = found.own_obstacle.clone().filter(|_| cpu.is_none_or(|cpu| !found.own_possible(cpu)));
        let obstacle = survey.caps.cgroup_obstacle.clone().or(own);
        Planned { actual: found, desired, plan, obstacle }
    }
}
