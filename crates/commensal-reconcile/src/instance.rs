//! One instance of commensal on this machine: its state directory, the names of its cgroups, and its journals. A mark
//! is a copy of a journal record in an extended attribute of a cgroup.

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

/// State directory and names of an instance of commensal.
#[derive(Debug, Clone)]
pub struct Instance {
    /// State directory.
    pub state_dir: PathBuf,
    /// Prefix of the names of the instance's cgroups.
    pub prefix: String,
    /// Parent of the instance's cgroups, if the user has chosen one.
    pub cgroup_root: Option<CgroupPath>,
    /// Value of `DOCKER_HOST`, the address of the container engine.
    pub engine: Option<String>,
    /// Name of the scratch cgroup in which settings are tested.
    pub scratch: String,
    /// Whether other instances of commensal may run on this machine. If so, `restore` does not use or remove their
    /// marks.
    pub beside_others: bool,
    /// Journals with the cgroups that the instance created. Original values and moved processes are read from the first
    /// journal only.
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
    /// Controllers cannot be enabled in a delegated group.
    #[error(transparent)]
    DelegationError(#[from] DelegationError),
    /// The groups do not fit this machine or each other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Groups(Vec<ConfigError>),
}

impl Instance {
    /// Returns the machine's main instance, with the default names.
    #[must_use]
    pub fn new(state_dir: &Path) -> Instance {
        Instance::of_machine(state_dir, "commensal")
    }

    /// Returns the instance for groups that stay until `restore`, with the given prefix.
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

    /// Returns an instance for an experiment, which exists as long as this process. The names of its journal and
    /// cgroups contain the PID.
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

    /// Surveys the machine and tests, in a scratch group, which mechanisms work on it. The caller holds the machine's
    /// lock, if the state directory allows one.
    ///
    /// # Errors
    /// Returns an error when `/proc` or `/sys` lack files that every Linux has.
    pub fn survey(&self, host: &mut dyn Host) -> Result<Survey, SensorError> {
        let mut survey = survey(host, &self.scratch, self.cgroup_root.as_ref())?;
        scheduler::capability(host, &self.state_dir, &self.prefix, &mut survey.caps);
        Ok(survey)
    }

    /// Surveys the machine again without testing mechanisms in a scratch group. `None` if they must be tested again.
    ///
    /// # Errors
    /// Returns an error when `/proc` or `/sys` lack files that every Linux has.
    pub fn refresh(&self, host: &mut dyn Host, survey: &Survey) -> Result<Option<Survey>, SensorError> {
        let mut refreshed = survey.refreshed(host, self.cgroup_root.as_ref())?;
        if let Some(survey) = &mut refreshed {
            scheduler::capability(host, &self.state_dir, &self.prefix, &mut survey.caps);
        }
        Ok(refreshed)
    }

    /// Returns the current cgroups, and which of them commensal created; without their values and members.
    ///
    /// # Errors
    /// Returns an error when the groups or the journals cannot be read.
    pub fn observe(&self, host: &mut dyn Host, survey: &Survey) -> Result<ActualState, ReconcileError> {
        let mut found = survey.tree(host)?;
        found.ours = self.ours(host, &found)?;
        Ok(found)
    }

    /// Makes a plan from an earlier survey and the current cgroups.
    ///
    /// # Errors
    /// Returns an error when the groups or the journal cannot be read, or the specs do not fit.
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

    /// Makes a plan from an earlier survey and an earlier observation of the cgroups.
    ///
    /// # Errors
    /// Returns an error when the journal cannot be read, or the specs do not fit.
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
        // Read last, so that groups that the scheduler's guard has frozen in the meantime are recognised as frozen by
        // the guard.
        if found.scheduler.is_none() {
            found.scheduler = Some(scheduler::look(host, &self.state_dir, &self.prefix));
        }
        Ok(Planned::new(survey, request, found, desired))
    }

    /// Plans again from the same observation, updated with the values that were written since.
    ///
    /// # Errors
    /// Returns an error when the specs do not fit; then nothing has changed.
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

    /// Resolves the specs for this machine: returns the desired state of the groups and their members as observed.
    ///
    /// # Errors
    /// Returns an error that lists every limit that this machine cannot have, and every cgroup that two groups claim.
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

    /// Returns the changes that commensal made to these cgroups, according to the instance's journals.
    ///
    /// # Errors
    /// Returns an error when a journal cannot be read.
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
        // A plan removes created groups that are empty and that no spec requests.
        marks::keep_proven(host, (&self.state_dir, &self.prefix), found, &mut ours.created);
        Ok(ours)
    }

    /// Returns the name of the journal for this instance's changes.
    #[must_use]
    pub fn journal_name(&self) -> &str {
        self.journals.first().map_or(journal::MACHINE, String::as_str)
    }

    /// Opens the journal for this instance's changes.
    ///
    /// # Errors
    /// Returns an error when it is damaged or cannot be created.
    pub fn open_journal(&self, host: &mut dyn Host) -> Result<Journal, ReconcileError> {
        self.journal(host, self.journal_name())
    }

    /// Opens a journal ([`journal::MACHINE`] or [`journal::RUN`]), and completes the operations that, according to the
    /// journal, were interrupted. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when it is damaged or cannot be created.
    pub fn journal(&self, host: &mut dyn Host, name: &str) -> Result<Journal, ReconcileError> {
        let owner = Owner::this_process(host, name)?;
        // If an operation cannot be completed, its record stays in the journal. Later operations on the group fail
        // because the group does not exist.
        let _ = finish(host, &self.state_dir, &owner.boot_id, name);
        Ok(Journal::open(host, &self.state_dir, name, owner)?)
    }

    /// Completes operations that a killed commensal process has left half done and that a plan would not notice.
    /// Returns messages about operations that cannot be completed, and about damaged journals. The caller holds the
    /// machine's lock.
    pub fn recover(&self, host: &mut dyn Host) -> Vec<String> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let mut told = Vec::new();
        for name in &self.journals {
            match finish(host, &self.state_dir, &boot_id, name) {
                Ok(denied) => told.extend(denied),
                Err(error) => told.push(format!("an interrupted undo cannot be completed: {error}")),
            }
        }
        // While a journal is damaged, nothing can be written. The code that needs to write reports the damage.
        for name in &self.journals {
            let path = journal::path(&self.state_dir, name);
            let text = journal::load(host, &path).ok().flatten().unwrap_or_default();
            if let Some((line, why)) = journal::parse(&text).damaged.first() {
                told.push(format!(
                    "{} is damaged at line {line} ({why}); `commensal restore` restores what can be read, and takes \
                     the rest from the attributes of the cgroups",
                    path.display()
                ));
            }
        }
        told
    }

    /// If this is the journal of lasting changes (those that stay until `restore`) and it is empty, fills it from the
    /// marks on the cgroups; returns the number of its records. Other journals stay empty: their changes are undone
    /// when a command or an experiment ends, and that would undo lasting changes. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when the journal cannot be written.
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

    /// Reads the records of lasting changes from the marks on the cgroups.
    ///
    /// # Errors
    /// Returns an error when the marks of a cgroup cannot be read: without them, its current values would count as its
    /// originals.
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

    /// Whether the journal of lasting changes has no records. There may be marks on cgroups nevertheless, if the
    /// journal was lost.
    pub(crate) fn may_have_lost_journal(&self, host: &mut dyn Host) -> bool {
        let path = journal::path(&self.state_dir, journal::MACHINE);
        !journal::load(host, &path).is_ok_and(|text| text.is_some_and(|text| !text.is_empty()))
    }

    /// Rebuilds a missing journal of lasting changes from the marks on the cgroups; returns the number of records, or
    /// `None` while another process is changing the machine.
    ///
    /// # Errors
    /// Returns an error when the journal cannot be written.
    pub(crate) fn rebuild_journal(&self, host: &mut dyn Host) -> Result<Option<usize>, ReconcileError> {
        host.state_dir(&self.state_dir)?;
        let Some(_lock) = self.try_lock(host)? else { return Ok(None) };
        let mut journal = self.open_journal(host)?;
        Ok(Some(self.remember(host, &mut journal)?))
    }

    /// Restores all changes in the journals of the state directory, including the journals of other processes. Also
    /// removes scratch cgroups that a killed survey has left behind: this instance's, and those with a name in
    /// `scratches`. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when the state directory or a journal cannot be read.
    pub fn restore(&self, host: &mut dyn Host, scratches: &[String]) -> Result<Restored, ReconcileError> {
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let hierarchies = mounts::hierarchies(host)?;
        let tenancy = delegation::look(host, &hierarchies, self.cgroup_root.as_ref());
        // Scratch groups are removed first, because a controller stays enabled as long as a group uses it.
        let names = scratches.iter().chain([&self.scratch]);
        let mut done: Vec<String> =
            names.flat_map(|name| capability::sweep(host, &hierarchies, &tenancy, name)).collect();
        let mut restored = restore(host, &self.state_dir, &boot_id, !self.beside_others)?;
        done.append(&mut restored.done);
        restored.done = done;
        Ok(restored)
    }

    /// Tries to become the only instance of commensal that manages the cgroups of this kernel or, for a user other than
    /// root, the cgroups that were delegated to this user.
    ///
    /// # Errors
    /// Returns an error when the cgroups cannot be read.
    pub fn be_master(&self, host: &mut dyn Host) -> Result<Mastery, ReconcileError> {
        let hierarchies = mounts::hierarchies(host)?;
        let tenancy = delegation::look(host, &hierarchies, self.cgroup_root.as_ref());
        Ok(master::take(host, &self.state_dir, &hierarchies, &tenancy.base)?)
    }

    /// Takes the lock that protects changes to the machine; `None` if another process holds it.
    ///
    /// # Errors
    /// Returns an error when the state directory cannot be created.
    pub fn try_lock(&self, host: &mut dyn Host) -> Result<Option<Lock>, HostError> {
        host.state_dir(&self.state_dir)?;
        host.state_lock(&self.state_dir.join("lock"))
    }
}
