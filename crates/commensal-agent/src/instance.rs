//! One commensal on this machine: where its state is, how its groups are called, and how specs become a plan here.

use commensal_core::actual::{ActualState, CgroupPath, Ours};
use commensal_core::config::ConfigError;
use commensal_core::desired::{DesiredState, ResolveOptions, resolve};
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::knob::Controller;
use commensal_core::plan::{Plan, plan};
use commensal_host::{Host, HostError, Lock};
use commensal_reconcile::journal::{self, Journal, Owner};
use commensal_reconcile::{JournalError, NoRoom};
use commensal_sensors::{SensorError, Survey, machine, scheduler, survey};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where and under which names.
#[derive(Debug, Clone)]
pub struct Instance {
    /// State directory.
    pub state_dir: PathBuf,
    /// First part of the names of our own cgroups.
    pub prefix: String,
    /// Below which cgroup our own go, if the user insists.
    pub cgroup_root: Option<CgroupPath>,
    /// `DOCKER_HOST`.
    pub engine: Option<String>,
}

/// Why groups could not be put in force.
#[derive(Debug, thiserror::Error)]
pub enum EnforceError {
    /// The machine could not be looked at.
    #[error(transparent)]
    Sensor(#[from] SensorError),
    /// The undo journal could not be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system refused something.
    #[error(transparent)]
    Host(#[from] HostError),
    /// There is no room in a delegated group.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Groups that do not fit this machine or each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Groups(Vec<ConfigError>),
}

/// No group.
pub const NOBODY: &BTreeSet<GroupName> = &BTreeSet::new();

/// What is to be put in force.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The groups.
    pub specs: &'a [GroupSpec],
    /// Those that need a cgroup of their own: then the specs are a part of what is in force, and nothing else is taken back.
    pub own: &'a BTreeSet<GroupName>,
    /// What controllers decided on top of it.
    pub adjust: &'a dyn Fn(&mut DesiredState),
    /// Finds containers and processes that the groups match; without it they are asked for on the spot.
    pub members: Option<Find<'a>>,
    /// Whether an agent keeps them in force from now on.
    pub kept: bool,
}

/// Fills in who is a member.
pub type Find<'a> = &'a dyn Fn(&mut dyn Host, &mut ActualState);

impl<'a> Ask<'a> {
    /// Groups as they are written, once.
    #[must_use]
    pub fn new(specs: &'a [GroupSpec], own: &'a BTreeSet<GroupName>) -> Ask<'a> {
        Ask { specs, own, adjust: &|_| (), members: None, kept: false }
    }
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("specs", &self.specs).field("own", &self.own).finish_non_exhaustive()
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

impl Instance {
    /// With the names that are used unless somebody asks for others.
    #[must_use]
    pub fn new(state_dir: &Path) -> Instance {
        let prefix = "commensal".to_owned();
        Instance { state_dir: state_dir.to_owned(), prefix, cgroup_root: None, engine: None }
    }

    /// Name of the scratch group in which knobs are tried.
    #[must_use]
    pub fn probe_name(&self) -> String {
        format!("{}-probe", self.prefix)
    }

    /// The machine and what works on it, by trying in a scratch group. The caller holds the lock, if there can be one.
    ///
    /// # Errors
    /// When `/proc` or `/sys` lack what every Linux has there.
    pub fn survey(&self, host: &mut dyn Host) -> Result<Survey, SensorError> {
        let mut survey = survey(host, &self.probe_name(), self.cgroup_root.as_ref())?;
        scheduler::capability(host, &self.state_dir, &self.prefix, &mut survey.caps);
        Ok(survey)
    }

    /// Plans against an earlier survey and the groups as they are now.
    ///
    /// # Errors
    /// When the groups cannot be read, the journal cannot be read, or the specs do not fit.
    pub fn plan(&self, host: &mut dyn Host, survey: &Survey, ask: &Ask<'_>) -> Result<Planned, EnforceError> {
        let mut found = survey.tree(host)?;
        found.ours = self.ours(host, &found)?;
        match ask.members {
            Some(find) => find(host, &mut found),
            None => survey.members(host, ask.specs, self.engine.as_deref(), &mut found),
        }
        let mut desired = self.desired(survey, ask, &found)?;
        if ask.kept && desired.alone {
            let boot_id = machine::boot_id(host).unwrap_or_default();
            desired.kept = journal::ours(host, &self.state_dir, journal::MACHINE, &boot_id, &found)?.created;
        }
        survey.fill(host, &desired, &mut found);
        // Last, so that what its guard froze is known to be its work.
        found.scheduler = Some(scheduler::look(host, &self.state_dir, &self.prefix));
        Ok(planned(survey, found, desired))
    }

    /// What commensal did to these cgroups, by its journals.
    ///
    /// # Errors
    /// When a journal cannot be read.
    pub fn ours(&self, host: &mut dyn Host, found: &ActualState) -> Result<Ours, EnforceError> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let mut ours = journal::ours(host, &self.state_dir, journal::MACHINE, &boot_id, found)?;
        let of_run = journal::ours(host, &self.state_dir, journal::RUN, &boot_id, found)?;
        ours.created.extend(of_run.created);
        Ok(ours)
    }

    /// Plans once more against a machine that is as it was found, with values that were written since.
    ///
    /// # Errors
    /// When the specs do not fit; then everything is as it was.
    pub fn plan_again(
        &self,
        survey: &Survey,
        ask: &Ask<'_>,
        before: &mut Planned,
    ) -> Result<(), EnforceError> {
        let desired = self.desired(survey, ask, &before.actual)?;
        *before = planned(survey, std::mem::take(&mut before.actual), desired);
        Ok(())
    }

    fn desired(
        &self,
        survey: &Survey,
        ask: &Ask<'_>,
        found: &ActualState,
    ) -> Result<DesiredState, EnforceError> {
        let options = ResolveOptions {
            prefix: self.prefix.clone(),
            alone: !ask.own.is_empty(),
            own: ask.own.clone(),
            kept: ask.kept,
        };
        let mut desired =
            resolve(ask.specs, &survey.machine, found, &options).map_err(EnforceError::Groups)?;
        (ask.adjust)(&mut desired);
        Ok(desired)
    }

    /// Opens a journal: [`journal::MACHINE`] or [`journal::RUN`].
    ///
    /// # Errors
    /// When it is damaged or cannot be made.
    pub fn journal(&self, host: &mut dyn Host, name: &str) -> Result<Journal, EnforceError> {
        let pid = std::process::id();
        let start_ticks = host.process(pid)?.start_ticks;
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let owner = Owner { kind: name.to_owned(), pid, start_ticks, boot_id };
        Ok(Journal::open(host, &self.state_dir, name, owner)?)
    }

    /// Who changes the machine holds this one; `None` when somebody else does.
    ///
    /// # Errors
    /// When the state directory cannot be made.
    pub fn try_lock(&self, host: &mut dyn Host) -> Result<Option<Lock>, HostError> {
        host.state_dir(&self.state_dir)?;
        host.state_lock(&self.state_dir.join("lock"))
    }
}

fn planned(survey: &Survey, found: ActualState, desired: DesiredState) -> Planned {
    let plan = plan(&desired, &found, &survey.caps);
    tracing::debug!(steps = plan.steps.len(), unmet = plan.unmet.len(), "planned");
    let cpu = found.hierarchy_of(Controller::Cpu);
    let own = found.own_obstacle.clone().filter(|_| cpu.is_none_or(|cpu| !found.own_possible(cpu)));
    let obstacle = survey.caps.cgroup_obstacle.clone().or(own);
    Planned { actual: found, desired, plan, obstacle }
}
