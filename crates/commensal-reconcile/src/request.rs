//! What is asked of the machine, and the plan that answers it.

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

/// Groups to put in force, and what there is to know about them.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// Those that need a cgroup of their own although they have matches.
    pub own: &'a BTreeSet<GroupName>,
    /// The groups are added to those in force: nothing that they do not ask for is taken back.
    pub alone: bool,
    /// What controllers decided on top of it.
    pub adjust: &'a dyn Fn(&mut DesiredState),
    /// Finds containers and processes that the groups match; without it they are looked for on the spot.
    pub members: Option<FindMembers<'a>>,
    /// What container engines said, when they were asked before; without it they are asked on the spot.
    pub engines: Option<&'a Found>,
    /// Whether an agent keeps them in force from now on.
    pub kept: bool,
    /// What is to be left without anybody who looks after it, for whoever must bring that state; nothing is put on record for it
    /// without this.
    pub safe: Option<SafeRequest<'a>>,
    /// What the plan may use of what works here; everything without it.
    pub mechanisms: Option<&'a dyn Fn(&Capabilities) -> Capabilities>,
}

/// What is to be left when nobody looks after the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SafeRequest<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// CPUs that offline groups are left with, if they are kept to some.
    pub floor: Option<&'a CpuSet>,
}

/// Fills in who is a member.
pub type FindMembers<'a> = &'a dyn Fn(&mut dyn Host, &mut ActualState);

impl<'a> PlanRequest<'a> {
    /// All groups that are to be in force, as they are written.
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

    /// Groups that are added to those in force: nothing of the others is taken back.
    #[must_use]
    pub fn beside(specs: &'a [GroupSpec]) -> PlanRequest<'a> {
        PlanRequest { alone: true, ..PlanRequest::all(specs) }
    }

    /// As [`PlanRequest::beside`], with a cgroup of its own for each group in `own`. Without any, as [`PlanRequest::all`].
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
    /// What is wanted.
    pub desired: DesiredState,
    /// What to do.
    pub plan: Plan,
    /// Why groups of our own cannot be made, if they cannot.
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
        // A plan learns of the scheduler from the state: one that may not use it must not see it.
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
