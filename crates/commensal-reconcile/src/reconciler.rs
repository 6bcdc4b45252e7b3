//! The reconciliation loop: plan against the current machine, skip steps in back-off, carry out the rest, and report
//! changes with their reasons; repeatedly.

mod back_off;
mod in_force;
mod refused;
mod safe;
mod steps;

pub use back_off::Drift;
pub use steps::Change;

use crate::drivers::apply::{Failure, Refusal, apply, forget_gone, forget_settled};
use crate::drivers::aside::step_aside;
use crate::enforce::{adopt, moves};
use crate::instance::{Instance, ReconcileError};
use crate::journal;
use crate::request::{PlanRequest, Planned};
use back_off::BackOff;
use commensal_core::actual::ActualState;
use commensal_core::plan::{Action, Step};
use commensal_core::scheduler::Scheduler;
use commensal_host::{GroupWatch, Host};
use commensal_sensors::mounts::population;
use commensal_sensors::{Survey, machine, sched_ext};
use in_force::InForce;
use safe::Announced;
use std::collections::BTreeSet;
use steps::{decided, inodes, lasts, orders, structure};

/// How often a round plans again because a group vanished meanwhile, or a step was refused and is then left out.
const ATTEMPTS: usize = 8;

/// Puts groups in force repeatedly.
#[derive(Debug)]
pub struct Reconciler {
    /// The commensal whose groups these are.
    pub instance: Instance,
    /// The machine and its capabilities.
    pub survey: Survey,
    /// Number of kernel files written so far.
    pub writes: u64,
    in_force: InForce,
    back_off: BackOff,
    /// The safe state that is in the journal.
    announced: Announced,
    /// Whether the undo journal has records.
    recorded: bool,
    /// Whether the journal had no records at the start, and the cgroups have not been asked for them yet.
    lost: bool,
    /// What is to be told of a journal that was written anew in a round.
    rebuilt: Option<String>,
    /// Operations that a killed commensal has left half done and that cannot be completed.
    half_done: Vec<String>,
    /// The online CPUs at the last survey.
    cpus: String,
    /// The kernel's state of schedulers at the last round, and whether commensal's was in transition.
    schedulers: String,
    waits_for_scheduler: bool,
    /// The kernel's counts of cgroups at the last round.
    population: String,
}

/// Results of a round.
#[derive(Debug)]
pub struct Round {
    /// The last plan; it is in force now, except for steps in back-off.
    pub planned: Planned,
    /// The changes made.
    pub changes: Vec<Change>,
    /// Problems of this round, in whole sentences.
    pub problems: Vec<String>,
    /// When the next round has something to try, ms, if nothing but refused steps is left to do.
    pub again_ms: Option<u64>,
    /// Whether `planned` includes the written values, so that [`Reconciler::adjust`] can continue from it.
    pub current: bool,
}

impl Reconciler {
    /// Surveys the machine. The caller holds the machine's lock.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub fn new(instance: Instance, host: &mut dyn Host) -> Result<Reconciler, ReconcileError> {
        let half_done = instance.recover(host);
        let cpus = machine::online_cpus(host);
        let survey = instance.survey(host)?;
        let lost = instance.may_have_lost_journal(host);
        Ok(Reconciler {
            instance,
            survey,
            writes: 0,
            in_force: InForce::default(),
            back_off: BackOff::default(),
            announced: Announced::default(),
            recorded: !lost,
            lost,
            rebuilt: None,
            half_done,
            cpus,
            schedulers: String::new(),
            waits_for_scheduler: false,
            population: String::new(),
        })
    }

    /// Subscribes to writes to managed control files (inotify). `watch` must be empty.
    pub fn see_writes(&mut self, watch: GroupWatch) {
        self.in_force.see_writes(watch);
    }

    /// Surveys the machine again, because it may have changed: a CPU was hot-plugged, a controller was enabled; and marks cgroups
    /// again that refused it. The caller holds the machine's lock.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub fn look_again(&mut self, host: &mut dyn Host) -> Result<(), ReconcileError> {
        self.half_done = self.instance.recover(host);
        self.cpus = machine::online_cpus(host);
        self.survey = self.instance.survey(host)?;
        // A journal that cannot be opened is told when it matters.
        if let Ok(journal) = self.instance.journal(host, journal::MACHINE) {
            journal.complete_marks(host);
        }
        Ok(())
    }

    /// Whether the set of online CPUs has changed since the last survey.
    #[must_use]
    pub fn cpus_changed(&self, host: &dyn Host) -> bool {
        machine::online_cpus(host) != self.cpus
    }

    /// Whether a scheduler was loaded or unloaded since the last round, or commensal's is about to be.
    #[must_use]
    pub fn scheduler_changed(&self, host: &dyn Host) -> bool {
        self.waits_for_scheduler || sched_ext::stamp(host) != self.schedulers
    }

    /// Checks that the undo journal still exists, if it had records; a lost one is written anew from the marks on the
    /// cgroups. Returns the problem.
    pub fn look_after_journal(&mut self, host: &mut dyn Host) -> Option<String> {
        if !self.is_journal_gone(host) {
            return None;
        }
        let path = journal::path(&self.instance.state_dir, journal::MACHINE);
        let written = self.instance.rebuild_journal(host);
        Some(match written {
            Ok(None) => {
                format!(
                    "{} is gone, and is written anew once nobody else changes the machine",
                    path.display()
                )
            }
            Ok(Some(records)) => self.written_anew(records),
            Err(error) => format!("{} is gone and cannot be written anew: {error}", path.display()),
        })
    }

    /// If the journal cannot be opened, the code that needs it reports that.
    fn is_journal_gone(&self, host: &dyn Host) -> bool {
        let path = journal::path(&self.instance.state_dir, journal::MACHINE);
        self.recorded && host.state_lock_file(&path).is_ok_and(|file| file.is_none())
    }

    /// Whether a round would find something to do, judged from a few facts: the number of cgroups, unless they are
    /// `followed` in another way, and some of the values in force. The next round finds what this misses.
    pub fn disturbed(&mut self, host: &mut dyn Host, followed: bool) -> bool {
        if !followed && population(host, &self.survey.hierarchies) != self.population {
            return true;
        }
        !self.in_force.all_hold(host, &self.survey.hierarchies)
    }

    /// Puts the request in force, as far as possible now. The caller holds the machine's lock; `now_ms` is on a
    /// monotonic clock.
    ///
    /// # Errors
    /// When the machine cannot be read or the groups do not fit it. A refused step is not an error: it is left out,
    /// reported, and retried later.
    pub fn round(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        request: &PlanRequest<'_>,
    ) -> Result<Round, ReconcileError> {
        if self.lost {
            self.remember(host)?;
            self.lost = false;
        }
        let mut changes = Vec::new();
        // After a group vanished between reading and writing: the groups that existed in every reading so far.
        let mut lasting: Option<BTreeSet<(usize, u64)>> = None;
        for attempt in 1.. {
            let mut planned = self.look_and_plan(host, now_ms, request)?;
            // Planned without the originals, or with them and removed since: what is in force is not to be taken for them.
            if self.is_journal_gone(host) {
                let records = self.remember(host)?;
                self.rebuilt = Some(self.written_anew(records));
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
            let structure = structure(&steps);
            let enables = steps[..structure].iter().any(|step| matches!(step.action, Action::Enable(_)));
            // New controllers can be tested only after they are enabled; and the safe values of a new group are
            // journalled before its settings are written, which requires the group to exist.
            let apart = enables || (structure > 0 && structure < steps.len() && request.safe.is_some());
            let first = if apart { &steps[..structure] } else { &steps[..] };
            let failure = self.carry_out(host, first, &planned, request, &mut changes)?;
            // Children that moved processes started meanwhile are still in the old group.
            let moved = failure.is_none() && moves(first) > self.back_off.stayed.len();
            match failure {
                // The step itself is fine, but no other step can be journalled either.
                Some(Failure { refusal: Refusal::Journal(error), left, .. }) => {
                    let mut problems = self.problems(&planned);
                    problems.push(in_words(&error));
                    problems.extend(left);
                    return Ok(Round { planned, changes, problems, again_ms: None, current: false });
                }
                Some(failure) => {
                    if !self.back_off.failed(now_ms, &planned.actual, steps.get(failure.step), &failure) {
                        lasting.get_or_insert_with(|| inodes(&planned.actual));
                    }
                    // A half-replaced group changes its identity once that is completed: do so before the next reading.
                    if !failure.left.is_empty() {
                        self.half_done = self.instance.recover(host);
                    }
                }
                None if enables => self.look_again(host)?,
                None if apart => {}
                None if moved && attempt < ATTEMPTS => {}
                None => {
                    self.in_force.watch(host, &planned.actual);
                    // Groups that were too new for this round are due in the next one.
                    self.population = match young {
                        true => String::new(),
                        false => population(host, &self.survey.hierarchies),
                    };
                    self.settle(host, &planned)?;
                    let current = !young && self.take_in(host, &mut planned, &steps)?;
                    let unknown = self.rebuilt.is_some()
                        || !self.half_done.is_empty()
                        || !planned.actual.unread.is_empty();
                    let again_ms = self.back_off.next_try_ms(now_ms).filter(|_| current && !unknown);
                    let problems = self.problems(&planned);
                    return Ok(Round { planned, changes, problems, again_ms, current });
                }
            }
            if attempt >= ATTEMPTS {
                let mut problems = self.problems(&planned);
                problems.push(format!("tried {ATTEMPTS} times; the rest waits for the next round"));
                return Ok(Round { planned, changes, problems, again_ms: None, current: false });
            }
        }
        unreachable!("the last attempt returns")
    }

    fn problems(&mut self, planned: &Planned) -> Vec<String> {
        let rebuilt = self.rebuilt.take();
        rebuilt
            .into_iter()
            .chain(self.half_done.iter().cloned())
            .chain(planned.actual.unread.iter().map(|why| format!("whether it holds is not known: {why}")))
            .chain(self.back_off.problems(planned))
            .collect()
    }

    /// Puts into a missing journal what the cgroups tell. The caller holds the lock.
    fn remember(&mut self, host: &mut dyn Host) -> Result<usize, ReconcileError> {
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        let records = self.instance.remember(host, &mut journal)?;
        self.recorded = records > 0;
        Ok(records)
    }

    /// What is told of a journal that was gone.
    fn written_anew(&self, records: usize) -> String {
        let path = journal::path(&self.instance.state_dir, journal::MACHINE).display().to_string();
        match records {
            0 => format!(
                "{path} is gone, and the cgroups tell of no original: `commensal restore` will put nothing back"
            ),
            _ => format!("{path} was gone and is written anew, with {records} records that the cgroups tell"),
        }
    }

    /// Plans against the current machine, and records what other programs have changed since.
    fn look_and_plan(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        request: &PlanRequest<'_>,
    ) -> Result<Planned, ReconcileError> {
        self.schedulers = sched_ext::stamp(host);
        let planned = self.instance.plan(host, &self.survey, request)?;
        self.waits_for_scheduler = planned.actual.scheduler.as_ref().is_some_and(Scheduler::is_on_its_way);
        self.in_force.find_drift(now_ms, &planned.actual, &mut self.back_off.drift);
        self.back_off.calm(now_ms, &planned.actual);
        Ok(planned)
    }

    /// Puts new decisions in force on the machine as the last round left it: no cgroup is searched for, so this is
    /// quick however many there are. Returns whether that was possible; if not, a round is needed. The caller holds the
    /// machine's lock, and knows that nothing else has changed.
    ///
    /// # Errors
    /// When the journal cannot be written or the groups do not fit the machine; then a round is needed as well.
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

    /// Applies the written values of these steps to the planned state; returns whether the steps changed nothing else.
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

    /// Journals, then writes; if a step is refused, all are undone.
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
                let mut journal = self.instance.journal(host, journal::MACHINE)?;
                if self.recorded {
                    self.instance.remember(host, &mut journal)?;
                }
                self.announce(host, steps, planned, request, &mut journal)?;
                journal.append(host, &[])?;
                self.recorded = !journal.is_empty();
            }
            return Ok(None);
        }
        // Another commensal may have written to the journal since.
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        if self.recorded {
            self.instance.remember(host, &mut journal)?;
        }
        self.announce(host, steps, planned, request, &mut journal)?;
        forget_gone(host, &planned.actual, &mut journal)?;
        step_aside(host, steps, &planned.actual, planned.desired.aside.name(), &mut journal)?;
        let outcome = apply(host, steps, &planned.actual, &mut journal);
        self.recorded = !journal.is_empty();
        self.writes += outcome.applied.len() as u64;
        if outcome.failure.is_none() {
            for step in steps {
                let key = self.in_force.written(step, &planned.actual);
                self.back_off.done(step, key.as_ref());
                changes.push(Change::new(step, planned));
            }
        }
        self.back_off.stayed = outcome.stayed;
        Ok(outcome.failure)
    }

    /// Drops records of restored settings, and takes over wanted groups that `run` created.
    fn settle(&mut self, host: &mut dyn Host, planned: &Planned) -> Result<(), ReconcileError> {
        let of_run = self.instance.state_dir.join(format!("{}.journal", journal::RUN));
        let runs = host.state_read(&of_run)?.is_some_and(|text| !text.is_empty());
        if planned.plan.settled.is_empty() && !runs {
            return Ok(());
        }
        let mut journal = self.instance.journal(host, journal::MACHINE)?;
        if runs {
            adopt(&self.instance, host, planned, &mut journal)?;
        }
        forget_settled(host, &planned.plan.settled, &planned.actual, &mut journal)?;
        self.recorded = !journal.is_empty();
        Ok(())
    }

    /// Settings that another program also writes.
    #[must_use]
    pub fn drift(&self, now_ms: u64, actual: &ActualState) -> Vec<Drift> {
        self.back_off.drift(now_ms, actual)
    }
}

/// An error with its causes.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
