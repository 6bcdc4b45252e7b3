//! One commensal on this machine: its state directory, the names of its cgroups, and its journals.

use crate::JournalError;
use crate::drivers::aside::DelegationError;
use crate::journal::{self, Journal, Owner, Record};
use crate::marks;
use crate::master::{self, Mastery};
use crate::request::{PlanRequest, Planned};
use crate::restore::{Restored, finish, restore};
use commensal_core::actual::{ActualState, CgroupPath, Ours};
use commensal_core::config::ConfigError;
use commensal_core::desired::{DesiredState, ResolveOptions, resolve};
use commensal_core::topology::Machine;
use commensal_host::{Host, HostError, Lock};
use commensal_sensors::{SensorError, Survey, capability, delegation, machine, mounts, scheduler, survey};
use std::path::{Path, PathBuf};

/// State directory and names of a commensal.
#[derive(Debug, Clone)]
pub struct Instance {
    /// State directory.
    pub state_dir: PathBuf,
    /// First part of the names of its cgroups.
    pub prefix: String,
    /// Parent of its cgroups, if the user has chosen one.
    pub cgroup_root: Option<CgroupPath>,
    /// `DOCKER_HOST`.
    pub engine: Option<String>,
    /// Name of the scratch cgroup in which settings are tested.
    pub scratch: String,
    /// Whether other commensals work on this machine: their leftovers are not touched.
    pub beside_others: bool,
    /// Journals that record which cgroups it created; originals and moved processes are read from the first one.
    pub journals: Vec<String>,
}

/// Why groups could not be put in force.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The machine could not be read.
    #[error("cannot read this machine")]
    Sensor(#[from] SensorError),
    /// The undo journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A system call failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// There is no room in a delegated group.
    #[error(transparent)]
    DelegationError(#[from] DelegationError),
    /// Groups that do not fit this machine or each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Groups(Vec<ConfigError>),
}

impl Instance {
    /// The machine's main instance, with the default names.
    #[must_use]
    pub fn new(state_dir: &Path) -> Instance {
        Instance::of_machine(state_dir, "commensal")
    }

    /// The instance that manages lasting groups, with another prefix.
    #[must_use]
    pub fn of_machine(state_dir: &Path, prefix: &str) -> Instance {
        Instance {
            state_dir: state_dir.to_owned(),
            prefix: prefix.to_owned(),
            cgroup_root: None,
            engine: None,
            scratch: format!("{prefix}-probe"),
            beside_others: false,
            journals: vec![journal::MACHINE.to_owned(), journal::RUN.to_owned()],
        }
    }

    /// An instance that lasts as long as this process: an experiment, with the PID in the names of its journal and
    /// cgroups.
    #[must_use]
    pub fn of_process(state_dir: &Path, prefix: &str, scratch: &str) -> Instance {
        let pid = std::process::id();
        Instance {
            prefix: format!("{prefix}-{pid}"),
            scratch: scratch.to_owned(),
            journals: vec![format!("{}{pid}", journal::LAB)],
            ..Instance::new(state_dir)
        }
    }

    /// Surveys the machine and tests what works on it, in a scratch group. The caller holds the lock, if there can be
    /// one.
    ///
    /// # Errors
    /// When `/proc` or `/sys` lack files that every Linux has.
    pub fn survey(&self, host: &mut dyn Host) -> Result<Survey, SensorError> {
        let mut survey = survey(host, &self.scratch, self.cgroup_root.as_ref())?;
        scheduler::capability(host, &self.state_dir, &self.prefix, &mut survey.caps);
        Ok(survey)
    }

    /// The current cgroups, and which of them commensal created; without values and members.
    ///
    /// # Errors
    /// When the groups or the journals cannot be read.
    pub fn observe(&self, host: &mut dyn Host, survey: &Survey) -> Result<ActualState, ReconcileError> {
        let mut found = survey.tree(host)?;
        found.ours = self.ours(host, &found)?;
        Ok(found)
    }

    /// Plans against an earlier survey and the current groups.
    ///
    /// # Errors
    /// When the groups or the journal cannot be read, or the specs do not fit.
    pub fn plan(
        &self,
        host: &mut dyn Host,
        survey: &Survey,
        request: &PlanRequest<'_>,
    ) -> Result<Planned, ReconcileError> {
        let mut found = self.observe(host, survey)?;
        match request.members {
            Some(find) => find(host, &mut found),
            None => {
                let engine = self.engine.as_deref();
                survey.members(host, request.specs, request.engines, engine, &mut found);
            }
        }
        self.plan_against(host, survey, request, found)
    }

    /// Plans against an earlier survey and an earlier observation of the groups.
    ///
    /// # Errors
    /// When the journal cannot be read, or the specs do not fit.
    pub fn plan_against(
        &self,
        host: &mut dyn Host,
        survey: &Survey,
        request: &PlanRequest<'_>,
        mut found: ActualState,
    ) -> Result<Planned, ReconcileError> {
        let mut desired = self.desired(&survey.machine, request, &found)?;
        if request.kept && desired.alone {
            let boot_id = machine::boot_id(host).unwrap_or_default();
            desired.kept = journal::ours(host, &self.state_dir, journal::MACHINE, &boot_id, &found)?.created;
        }
        survey.fill(host, &desired, &mut found)?;
        // Read last, so that groups frozen by the scheduler's guard are known to be its work.
        if found.scheduler.is_none() {
            found.scheduler = Some(scheduler::look(host, &self.state_dir, &self.prefix));
        }
        Ok(Planned::new(survey, request, found, desired))
    }

    /// Plans again against the same observation, updated with values that were written since.
    ///
    /// # Errors
    /// When the specs do not fit; then nothing has changed.
    pub fn plan_again(
        &self,
        survey: &Survey,
        request: &PlanRequest<'_>,
        before: &mut Planned,
    ) -> Result<(), ReconcileError> {
        let desired = self.desired(&survey.machine, request, &before.actual)?;
        *before = Planned::new(survey, request, std::mem::take(&mut before.actual), desired);
        Ok(())
    }

    /// Resolves the specs for this machine, with its groups and their members as found.
    ///
    /// # Errors
    /// Every limit that this machine cannot have, and every cgroup that two groups claim.
    pub fn desired(
        &self,
        machine: &Machine,
        request: &PlanRequest<'_>,
        found: &ActualState,
    ) -> Result<DesiredState, ReconcileError> {
        let options = ResolveOptions {
            prefix: self.prefix.clone(),
            alone: request.alone,
            own: request.own.clone(),
            kept: request.kept,
        };
        let mut desired = resolve(request.specs, machine, found, &options).map_err(ReconcileError::Groups)?;
        (request.adjust)(&mut desired);
        Ok(desired)
    }

    /// What commensal did to these cgroups, according to its journals.
    ///
    /// # Errors
    /// When a journal cannot be read.
    pub fn ours(&self, host: &mut dyn Host, found: &ActualState) -> Result<Ours, ReconcileError> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let mut ours = Ours::default();
        for (index, name) in self.journals.iter().enumerate() {
            let one = journal::ours(host, &self.state_dir, name, &boot_id, found)?;
            match index {
                0 => ours = one,
                _ => ours.created.extend(one.created),
            }
        }
        Ok(ours)
    }

    /// Name of the journal for this instance's changes.
    #[must_use]
    pub fn journal_name(&self) -> &str {
        self.journals.first().map_or(journal::MACHINE, String::as_str)
    }

    /// Opens that journal.
    ///
    /// # Errors
    /// When it is damaged or cannot be created.
    pub fn open_journal(&self, host: &mut dyn Host) -> Result<Journal, ReconcileError> {
        self.journal(host, self.journal_name())
    }

    /// Opens a journal, [`journal::MACHINE`] or [`journal::RUN`], and completes operations that it records as
    /// interrupted. The caller holds the lock.
    ///
    /// # Errors
    /// When it is damaged or cannot be created.
    pub fn journal(&self, host: &mut dyn Host, name: &str) -> Result<Journal, ReconcileError> {
        let owner = Owner::this_process(host, name)?;
        // What cannot be completed stays in the journal, and later users of the group get an error that it is gone.
        let _ = finish(host, &self.state_dir, &owner.boot_id, name);
        Ok(Journal::open(host, &self.state_dir, name, owner)?)
    }

    /// Completes operations that a killed commensal has left half done and that a plan would not notice; returns those
    /// that cannot be completed, and why. The caller holds the lock.
    pub fn recover(&self, host: &mut dyn Host) -> Vec<String> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let stuck =
            self.journals.iter().filter_map(|name| finish(host, &self.state_dir, &boot_id, name).err());
        let mut told: Vec<String> =
            stuck.map(|error| format!("a group is half replaced by a fresh one: {error}")).collect();
        // A damaged journal: nothing can be written until it is repaired, and other code reports that when it matters.
        for name in &self.journals {
            let path = journal::path(&self.state_dir, name);
            let text = host.state_read(&path).ok().flatten().unwrap_or_default();
            if let Some((line, why)) = journal::parse(&text).damaged.first() {
                told.push(format!(
                    "{} is damaged at line {line} ({why}); `commensal restore` puts back what can be read, and the groups tell \
                     the rest",
                    path.display()
                ));
            }
        }
        told
    }

    /// Puts into an empty journal of lasting changes what the cgroups tell; returns the number of its records. Other journals stay
    /// empty: what ends with a command or an experiment would undo what lasts. The caller holds the lock.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn remember(
        &self,
        host: &mut dyn Host,
        journal: &mut Journal,
    ) -> Result<usize, ReconcileError> {
        if journal.is_empty() && journal.is(journal::MACHINE) {
            let records = self.marked(host)?;
            journal.append(host, &records)?;
        }
        Ok(journal.len())
    }

    /// Records of lasting changes that the cgroups tell.
    ///
    /// # Errors
    /// When a cgroup cannot be asked: what it has would be taken for its original.
    fn marked(&self, host: &mut dyn Host) -> Result<Vec<Record>, ReconcileError> {
        let owner = self.state_dir.display().to_string();
        let marks = marks::all(host);
        if let Some(error) = marks.unread.into_iter().next() {
            return Err(error.into());
        }
        let ours =
            marks.found.into_iter().filter(|mark| mark.owner == owner && mark.journal == journal::MACHINE);
        Ok(ours.map(|mark| mark.record).collect())
    }

    /// Whether the journal of lasting changes has no records: cgroups may tell of some all the same.
    pub(crate) fn may_have_lost_journal(&self, host: &mut dyn Host) -> bool {
        let path = journal::path(&self.state_dir, journal::MACHINE);
        !host.state_read(&path).is_ok_and(|text| text.is_some_and(|text| !text.is_empty()))
    }

    /// Writes a missing journal of lasting changes anew from the marks on the cgroups; returns the number of records, or `None`
    /// while another process is changing the machine.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn rebuild_journal(&self, host: &mut dyn Host) -> Result<Option<usize>, ReconcileError> {
        host.state_dir(&self.state_dir)?;
        let Some(_lock) = self.try_lock(host)? else { return Ok(None) };
        let mut journal = self.open_journal(host)?;
        Ok(Some(self.remember(host, &mut journal)?))
    }

    /// Restores everything in the journals of the state directory, whoever wrote it, and removes scratch cgroups, with
    /// these names and this instance's, that a killed survey has left. The caller holds the lock.
    ///
    /// # Errors
    /// When the state directory or a journal cannot be read.
    pub fn restore(&self, host: &mut dyn Host, scratches: &[String]) -> Result<Restored, ReconcileError> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let hierarchies = mounts::hierarchies(host)?;
        let tenancy = delegation::look(host, &hierarchies, self.cgroup_root.as_ref());
        // Scratch groups first: a controller stays enabled as long as a group uses it.
        let names = scratches.iter().chain([&self.scratch]);
        let mut done: Vec<String> =
            names.flat_map(|name| capability::sweep(host, &hierarchies, &tenancy, name)).collect();
        let mut restored = restore(host, &self.state_dir, &boot_id, !self.beside_others)?;
        done.append(&mut restored.done);
        restored.done = done;
        Ok(restored)
    }

    /// Tries to become the one commensal that manages the cgroups of this kernel, or those that were delegated to it.
    ///
    /// # Errors
    /// When the cgroups cannot be read.
    pub fn be_master(&self, host: &mut dyn Host) -> Result<Mastery, ReconcileError> {
        let hierarchies = mounts::hierarchies(host)?;
        let tenancy = delegation::look(host, &hierarchies, self.cgroup_root.as_ref());
        Ok(master::take(host, &self.state_dir, &hierarchies, &tenancy.base)?)
    }

    /// Takes the lock that protects changes to the machine; `None` when another process holds it.
    ///
    /// # Errors
    /// When the state directory cannot be created.
    pub fn try_lock(&self, host: &mut dyn Host) -> Result<Option<Lock>, HostError> {
        host.state_dir(&self.state_dir)?;
        host.state_lock(&self.state_dir.join("lock"))
    }
}
