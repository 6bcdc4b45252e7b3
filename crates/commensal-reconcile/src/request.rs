//! A request to put groups in force, and the plan for it.

use commensal_core::actual::{ActualState, Capabilities, SCHEDULER};
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::DesiredState;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::knob::Controller;
use commensal_core::member::EngineReport;
use commensal_core::plan::{Plan, plan};
use commensal_host::Host;
use commensal_sensors::Survey;
use std::collections::BTreeSet;

/// The empty set of groups.
pub const NO_GROUPS: &BTreeSet<GroupName> = &BTreeSet::new();

/// Groups to put in force, with options.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// Groups that need a cgroup created by commensal although the groups file says which existing cgroups or processes
    /// they match.
    pub own: &'a BTreeSet<GroupName>,
    /// Whether the groups are added to those in force; if so, settings of other groups are not undone.
    pub alone: bool,
    /// Applies the agent's decisions, such as a changed limit, to the desired state.
    pub adjust: &'a dyn Fn(&mut DesiredState),
    /// Finds the containers and processes that the groups match; if unset, planning searches for them.
    pub members: Option<FindMembers<'a>>,
    /// Responses of container engines, if they were queried before; if unset, planning queries them.
    pub engines: Option<&'a EngineReport>,
    /// Whether an agent keeps the groups in force after this request.
    pub kept: bool,
    /// The safe state, which the guard applies when no agent runs; if unset, no safe state is journalled.
    pub safe: Option<SafeRequest<'a>>,
    /// Restricts the capabilities that the plan may use; `None` means all of them.
    pub mechanisms: Option<&'a dyn Fn(&Capabilities) -> Capabilities>,
}

/// The settings that must be in force when no agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SafeRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// CPUs to which offline groups stay confined when no agent runs; `None` if they are not confined to a set of CPUs
    /// now.
    pub floor: Option<&'a CpuSet>,
}

/// A function that adds the members of groups to the observed state.
pub type FindMembers<'a> = &'a dyn Fn(&mut dyn Host, &mut ActualState);

impl<'a> PlanRequest<'a> {
    /// Requests exactly these groups: settings of other groups are undone.
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

    /// Requests these groups in addition to those in force: settings of other groups are not undone.
    #[must_use]
    pub fn beside(specs: &'a [GroupSpec]) -> PlanRequest<'a> {
        PlanRequest { alone: true, ..PlanRequest::all(specs) }
    }

    /// Like [`PlanRequest::beside`], with a cgroup created by commensal for each group in `own`. If `own` is empty,
    /// like [`PlanRequest::all`].
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

/// A plan, and the actual and desired state that it is based on.
#[derive(Debug)]
pub struct Planned {
    /// The machine's current cgroups.
    pub actual: ActualState,
    /// The desired state.
    pub desired: DesiredState,
    /// The plan.
    pub plan: Plan,
    /// The reason why commensal cannot create groups, if it cannot.
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
        // A plan uses the scheduler if the observed state contains one. So the scheduler is removed from that state if
        // the plan must not use it.
        let hidden = request.mechanisms.is_some() && caps.feature_obstacle(SCHEDULER).is_some();
        let scheduler = if hidden { found.scheduler.take() } else { None };
        let plan = plan(&desired, &found, caps);
        if hidden {
            found.scheduler = scheduler;
        }
        let cpu = found.hierarchy_of(Controller::Cpu);
        let own = found.tenancy.obstacle.clone().filter(|_| cpu.is_none_or(|cpu| !found.own_possible(cpu)));
        let obstacle = survey.caps.cgroup_obstacle.clone().or(own);
        Planned { actual: found, desired, plan, obstacle }
    }
}
