//! The reconciliation loop. Each round plans for the current state of the machine, leaves out steps that are in
//! back-off, carries out the other steps, and reports changes with their reasons.

mod back_off;
mod in_force;
mod journal_state;
mod news;
mod refused;
mod safe;
mod signs;
mod steps;

pub use back_off::Drift;
pub use in_force::why_unwatched;
pub use steps::Change;

use crate::drivers::apply::{Failure, Refusal, apply, forget_gone, forget_settled};
use crate::drivers::aside::step_aside;
use crate::enforce::adopt;
use crate::instance::{Instance, ReconcileError};
use crate::journal;
use crate::request::{PlanRequest, Planned};
use crate::runner::{PLANS, enables, first_part, has_moved};
use back_off::BackOff;
use commensal_core::actual::ActualState;
use commensal_core::plan::Step;
use commensal_core::scheduler::Scheduler;
use commensal_host::{GroupWatch, Host, HostError};
use commensal_sensors::Survey;
use in_force::InForce;
use journal_state::JournalState;
use safe::Announced;
use signs::Signs;
use std::collections::BTreeSet;
use steps::{decided, inodes, lasts, orders};

/// Puts groups in force repeatedly.
#[derive(Debug)]
pub struct Reconciler {
    /// The instance of commensal that the groups belong to.
    pub instance: Instance,
    /// The machine and its capabilities.
    pub survey: Survey,
    /// Number of kernel files written so far.
    pub writes: u64,
    in_force: InForce,
    back_off: BackOff,
    /// The safe state (settings in force when no agent runs) that the journal contains.
    announced: Announced,
    journal: JournalState,
    /// Messages about operations that a killed commensal process has left half done and that cannot be completed.
    half_done: Vec<String>,
    /// Messages about steps that were carried out in this round.
    told: Vec<String>,
    signs: Signs,
}

/// Results of a round.
#[derive(Debug)]
pub struct Round {
    /// The last plan. It is in force now, except for steps in back-off.
    pub planned: Planned,
    /// The changes that the round made.
    pub changes: Vec<Change>,
    /// Problems of this round, as readable messages.
    pub problems: Vec<String>,
    /// If only refused steps are left: the time from which they can be retried (ms, on the clock of `now_ms`).
    pub again_ms: Option<u64>,
    /// Whether `planned` contains the values written in this round, so that [`Reconciler::adjust`] can continue from
    /// it.
    pub current: bool,
}

impl Reconciler {
    /// Creates a reconciler, and surveys the machine. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when the machine cannot be read.
    pub fn new(instance: Instance, host: &mut dyn Host) -> Result<Reconciler, ReconcileError> {
        let half_done = instance.recover(host);
        let mut signs = Signs::default();
        signs.note_cpus(host);
        let survey = instance.survey(host)?;
        let journal = JournalState::new(host, &instance);
        Ok(Reconciler {
            instance,
            survey,
            writes: 0,
            in_force: InForce::default(),
            back_off: BackOff::default(),
            announced: Announced::default(),
            journal,
            half_done,
            told: Vec::new(),
            signs,
        })
    }

    /// Subscribes to writes to managed control files (inotify). `watch` must be empty. Without it, all values are read back in
    /// turns.
    pub fn see_writes(&mut self, watch: Result<GroupWatch, HostError>) {
        self.in_force.see_writes(watch);
    }

    /// Returns why writes to some managed control files are not reported, so that they are seen late.
    #[must_use]
    pub fn untold(&self) -> Option<&str> {
        self.in_force.untold()
    }

    /// Surveys the machine again after a change, such as a hot-plugged CPU or an enabled controller. Also retries marks
    /// (copies of journal records on cgroups) that could not be set. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when the machine cannot be read.
    pub fn look_again(&mut self, host: &mut dyn Host) -> Result<(), ReconcileError> {
        self.half_done = self.instance.recover(host);
        self.signs.note_cpus(host);
        self.survey = self.instance.survey(host)?;
        self.journal.mark_again(host, &self.instance);
        Ok(())
    }

    /// Surveys the machine again like [`Reconciler::look_again`], but without testing mechanisms in scratch groups.
    /// Returns whether that was sufficient; if not, call [`Reconciler::look_again`]. The caller holds the machine's lock.
    ///
    /// # Errors
    /// Returns an error when the machine cannot be read.
    pub fn refresh_survey(&mut self, host: &mut dyn Host) -> Result<bool, ReconcileError> {
        let Some(survey) = self.instance.refresh(host, &self.survey)? else { return Ok(false) };
        self.half_done = self.instance.recover(host);
        self.signs.note_cpus(host);
        self.survey = survey;
        self.journal.mark_again(host, &self.instance);
        Ok(true)
    }

    /// Whether the set of online CPUs has changed since the last survey.
    #[must_use]
    pub fn cpus_changed(&self, host: &dyn Host) -> bool {
        self.signs.cpus_changed(host)
    }

    /// Whether the state of sched_ext may have changed since the last round: a scheduler was loaded or unloaded, or
    /// commensal's scheduler was starting or ejected at that time, so that its state changes without a request.
    #[must_use]
    pub fn scheduler_changed(&self, host: &dyn Host) -> bool {
        self.signs.schedulers_changed(host)
    }

    /// Checks that the undo journal still exists, if it had records. Rebuilds a lost journal from the marks on the
    /// cgroups.
    /// Returns a message if the journal was lost.
    pub fn look_after_journal(&mut self, host: &mut dyn Host) -> Option<String> {
        self.journal.look_after(host, &self.instance)
    }

    /// Whether a round would probably have steps to do. Performs cheap checks only: the number of cgroups, unless the
    /// caller watches for new cgroups (`followed`), and some of the values in force. The next round finds changes that
    /// these checks miss.
    pub fn disturbed(&mut self, host: &mut dyn Host, followed: bool) -> bool {
        if !followed && self.signs.population_changed(host, &self.survey) {
            return true;
        }
        !self.in_force.all_hold(host, &self.survey.hierarchies)
    }

    /// Puts the request in force, as far as possible now. The caller holds the machine's lock; `now_ms` is the time of
    /// a monotonic clock.
    ///
    /// # Errors
    /// Returns an error when the machine cannot be read or the groups do not fit it. A refused step is not an error: it
    /// is left out, reported, and retried later.
    pub fn round(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        request: &PlanRequest<'_>,
    ) -> Result<Round, ReconcileError> {
        self.journal.begin_round(host, &self.instance)?;
        let mut changes = Vec::new();
        // Set when a group has vanished between reading and writing: the groups that existed in every reading so far.
        let mut lasting: Option<BTreeSet<(usize, u64)>> = None;
        for plans in 1.. {
            let mut planned = self.look_and_plan(host, now_ms, request)?;
            // If the journal was removed, it is rebuilt and the round plans again. Otherwise values in force would
            // count as originals.
            if self.journal.is_gone(host, &self.instance) {
                self.journal.rebuild(host, &self.instance)?;
                planned = self.look_and_plan(host, now_ms, request)?;
            }
            if let Some(lasting) = &mut lasting {
                let there = inodes(&planned.actual);
                lasting.retain(|one| there.contains(one));
            }
            let mut steps = self.back_off.ready(now_ms, &planned);
            let all = steps.len();
            steps.retain(|step| lasts(step, &planned.actual, lasting.as_ref()));
            let young = all > steps.len();
            let (part, is_whole) = first_part(&steps, request.safe.is_some());
            match self.carry_out(host, part, &planned, request, &mut changes)? {
                // The step did not cause this refusal: the journal cannot record any other step either.
                Some(Failure { refusal: Refusal::Journal(error), mut left, .. }) => {
                    left.insert(0, in_words(&error));
                    return Ok(self.partly(planned, changes, left));
                }
                Some(failure) => {
                    if !self.back_off.failed(now_ms, &planned.actual, steps.get(failure.step), &failure) {
                        lasting.get_or_insert_with(|| inodes(&planned.actual));
                    }
                    // A half-replaced group gets a new inode when its replacement is completed, so it is completed
                    // before the next reading.
                    if !failure.left.is_empty() {
                        self.half_done = self.instance.recover(host);
                    }
                }
                None if part.iter().any(enables) => self.look_again(host)?,
                None if !is_whole => {}
                None if plans < PLANS && has_moved(part, &self.back_off.stayed) => {}
                None => {
                    let held = std::mem::take(&mut planned.plan.held);
                    self.in_force.found(&held, &planned.actual);
                    self.in_force.watch(host, &planned.actual);
                    // Groups that were too new for this round are handled in the next one.
                    self.signs.note_population(host, &self.survey, young);
                    self.settle(host, &planned)?;
                    let current = !young && self.take_in(host, &mut planned, &steps)?;
                    let unknown = self.journal.rebuilt.is_some()
                        || !self.half_done.is_empty()
                        || !planned.actual.unread.is_empty();
                    let again_ms = self.back_off.next_try_ms(now_ms).filter(|_| current && !unknown);
                    let problems = self.problems(&planned);
                    return Ok(Round { planned, changes, problems, again_ms, current });
                }
            }
            if plans >= PLANS {
                let why = "the next round continues";
                let why = format!("the plan was only partly carried out after {PLANS} attempts; {why}");
                return Ok(self.partly(planned, changes, vec![why]));
            }
        }
        unreachable!("the last plan returns")
    }

    /// Ends a round before everything that is not in back-off is in force.
    fn partly(&mut self, planned: Planned, changes: Vec<Change>, why: Vec<String>) -> Round {
        let problems = self.problems(&planned).into_iter().chain(why).collect();
        Round { planned, changes, problems, again_ms: None, current: false }
    }

    fn problems(&mut self, planned: &Planned) -> Vec<String> {
        let rebuilt = self.journal.rebuilt.take();
        rebuilt
            .into_iter()
            .chain(self.half_done.iter().cloned())
            .chain(std::mem::take(&mut self.told))
            .chain(
                planned
                    .actual
                    .unread
                    .iter()
                    .map(|why| format!("cannot check whether a value is in force: {why}")),
            )
            .chain(self.back_off.problems(planned))
            .collect()
    }

    /// Plans against the current machine, and records which values other programs have changed since the last plan.
    fn look_and_plan(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        request: &PlanRequest<'_>,
    ) -> Result<Planned, ReconcileError> {
        self.signs.note_schedulers(host);
        let planned = self.instance.plan(host, &self.survey, request)?;
        self.signs.waits_for_scheduler =
            planned.actual.scheduler.as_ref().is_some_and(Scheduler::is_on_its_way);
        self.in_force.offline = self.survey.machine.topology.offline.clone();
        self.in_force.find_drift(now_ms, &planned, &mut self.back_off.drift);
        self.back_off.evicted.note(now_ms, &planned.plan.steps);
        self.back_off.calm(now_ms, &planned.actual);
        Ok(planned)
    }

    /// Puts new decisions of the agent's controllers in force, based on the state after the last round. Does not read
    /// the cgroups again, so it is fast even with many cgroups. Returns `false` if that is not possible and a round is
    /// needed. The caller holds the machine's lock and ensures that nothing else has changed.
    ///
    /// # Errors
    /// Returns an error when the journal cannot be written or the groups do not fit the machine. A round is needed in
    /// these cases as well.
    pub fn adjust(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        request: &PlanRequest<'_>,
        round: &mut Round,
    ) -> Result<bool, ReconcileError> {
        if !round.current {
            return Ok(false);
        }
        round.current = false;
        self.instance.plan_again(&self.survey, request, &mut round.planned)?;
        let steps = self.back_off.ready(now_ms, &round.planned);
        if steps.len() < round.planned.plan.steps.len()
            || !steps.iter().all(|step| decided(step).is_some() || orders(step).is_some())
        {
            return Ok(false);
        }
        if !steps.is_empty() {
            let failure = self.carry_out(host, &steps, &round.planned, request, &mut round.changes)?;
            if failure.is_some() || !self.back_off.stayed.is_empty() {
                return Ok(false);
            }
        }
        round.current = self.take_in(host, &mut round.planned, &steps)?;
        self.in_force.watch(host, &round.planned.actual);
        self.settle(host, &round.planned)?;
        Ok(true)
    }

    /// Updates the planned state with the values that these steps wrote; returns whether the steps changed nothing
    /// else.
    fn take_in(
        &self,
        host: &mut dyn Host,
        planned: &mut Planned,
        steps: &[Step],
    ) -> Result<bool, ReconcileError> {
        for step in steps {
            if let (Some(orders), Some(found)) = (orders(step), &mut planned.actual.scheduler) {
                found.orders = orders.clone();
                continue;
            }
            let Some((key, to)) = decided(step) else { return Ok(false) };
            if let Some(found) = planned.actual.cgroups.get_mut(&step.place) {
                found.values.insert(key, to.clone());
            }
        }
        if !steps.is_empty() {
            planned.actual.ours = self.instance.ours(host, &planned.actual)?;
        }
        Ok(true)
    }

    /// Journals and carries out steps. If the kernel refuses a step, all of them are undone and the refusal is
    /// returned.
    fn carry_out(
        &mut self,
        host: &mut dyn Host,
        steps: &[Step],
        planned: &Planned,
        request: &PlanRequest<'_>,
        changes: &mut Vec<Change>,
    ) -> Result<Option<Failure>, ReconcileError> {
        if steps.is_empty() {
            self.back_off.stayed.clear();
            if self.announced.differs(request) {
                let mut journal = self.journal.open(host, &self.instance)?;
                self.announce(host, steps, planned, request, &mut journal)?;
                journal.append(host, &[])?;
                self.journal.note(&journal);
            }
            return Ok(None);
        }
        let mut journal = self.journal.open(host, &self.instance)?;
        self.announce(host, steps, planned, request, &mut journal)?;
        forget_gone(host, &planned.actual, &mut journal)?;
        step_aside(host, steps, &planned.actual, planned.desired.aside.name(), &mut journal)?;
        let outcome = apply(host, steps, &planned.actual, &mut journal);
        self.journal.applied(&mut journal);
        self.writes += outcome.applied.len() as u64;
        if outcome.failure.is_none() {
            for step in steps {
                let key = self.in_force.written(step, &planned.actual);
                self.back_off.done(step, key.as_ref());
                changes.push(Change::new(step, planned));
            }
        }
        self.back_off.stayed = outcome.stayed;
        self.told.extend(outcome.told);
        Ok(outcome.failure)
    }

    /// Drops records of restored settings, and adopts groups that `run` created and that the request contains as well.
    fn settle(&mut self, host: &mut dyn Host, planned: &Planned) -> Result<(), ReconcileError> {
        let of_run = self.instance.state_dir.join(format!("{}.journal", journal::RUN));
        let runs = journal::load(host, &of_run)?.is_some_and(|text| !text.is_empty());
        if planned.plan.settled.is_empty() && !runs {
            return Ok(());
        }
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        if runs {
            adopt(&self.instance, host, planned, &mut journal)?;
        }
        forget_settled(host, &planned.plan.settled, &planned.actual, &mut journal)?;
        self.journal.note(&journal);
        Ok(())
    }

    /// Returns the settings that another program also writes.
    #[must_use]
    pub fn drift(&self, now_ms: u64, actual: &ActualState) -> Vec<Drift> {
        self.back_off.drift(now_ms, actual)
    }
}

/// Formats an error and its causes, separated by colons.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
