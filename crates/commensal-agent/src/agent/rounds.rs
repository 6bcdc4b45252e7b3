//! Decides whether a tick makes a round (plan and apply), and whether that round must be complete.

use super::actuation::{Due, Phase, PlanFacts};
use super::options::OnExit;
use super::start::LOCK_PATIENCE;
use super::ticks::{Now, time_of_day};
use super::{Agent, canary};
use crate::members::Interest;
use crate::view;
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::desired::DesiredState;
use commensal_core::group::Match;
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_reconcile::{FindMembers, PlanRequest, Round, SafeRequest, in_words};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

impl Agent<'_> {
    /// The work that this tick needs. Reasons for a round: the groups or the decisions have changed, another program
    /// has changed the machine, the last round was incomplete, or the last round was long ago.
    fn due(&mut self) -> Due {
        let wants = &self.decisions.decided.wants;
        let due = self.actuation.due_to_changes(self.groups.state.generation, wants);
        let whole = due == Due::Whole
            || self.actuation.needs_round(self.ticks.now_ms())
            || self.reconciler.cpus_changed(self.host)
            || self.actuation.surveys.may_pass(self.reconciler.survey.caps.doubtful)
            || self.reconciler.scheduler_changed(self.host)
            || self.reconciler.disturbed(self.host, self.members.complete())
            || self.processes_differ();
        match whole {
            true => Due::Whole,
            false if self.members.has_news() => Due::News,
            false => due,
        }
    }

    /// Whether the processes that groups match have changed. The kernel reports no events about processes, so every
    /// tick scans them.
    fn processes_differ(&mut self) -> bool {
        let Some(round) = &self.actuation.last else { return true };
        let specs = &self.groups.compiled.groups;
        let by_process = |one: &Match| matches!(one, Match::Process { .. });
        specs.iter().flat_map(|spec| &spec.matches).any(by_process)
            && self.members.members.processes_differ(self.host, specs, &round.planned.actual)
    }

    /// Passes on the results of a round that began at `began`; returns its problems.
    pub(super) fn rounded(&mut self, mut round: Round, began: Instant) -> Vec<String> {
        let time = (Instant::now(), began.elapsed());
        let facts = self.follow_members_of(&mut round);
        if let Some(before) = self.actuation.planned() {
            let until = Instant::now() + self.options.interval;
            self.members.incomplete.follow(before, &round.planned, until);
        }
        let problems = round.problems.clone();
        self.actuation.rounded(round, facts, time);
        problems
    }

    /// Passes on the results of a round that put the groups in force on these cgroups alone; returns its problems.
    fn met(&mut self, mut round: Round, news: &BTreeSet<CgroupPath>) -> Vec<String> {
        let facts = self.follow_members_of(&mut round);
        let until = Instant::now() + self.options.interval;
        self.members.incomplete.follow_new(news, &round.planned, until);
        let problems = round.problems.clone();
        self.actuation.continued(round, facts);
        problems
    }

    /// Records the changes of a round, and measures and watches its members from now on.
    fn follow_members_of(&mut self, round: &mut Round) -> PlanFacts {
        let changes = std::mem::take(&mut round.changes);
        self.publishing.note_changes(changes, &self.decisions.decided, &time_of_day());
        let (planned, compiled) = (&round.planned, &self.groups.compiled);
        self.sensing.follow(self.host, planned);
        self.members.mind(Interest::of(&compiled.groups, &planned.desired));
        self.sensing.follow_pressure(&self.reconciler.survey.hierarchies, &planned.desired, compiled);
        PlanFacts::of(self.host, planned, compiled.weights)
    }

    /// Surveys the machine again if it is time for that, or CPUs went online or offline.
    fn survey(&mut self, problems: &mut Vec<String>) {
        let surveys = &self.actuation.surveys;
        let due = surveys.are_due(self.reconciler.survey.caps.doubtful);
        if !due && !self.reconciler.cpus_changed(self.host) {
            return;
        }
        let at = Instant::now();
        if !surveys.tests_are_due(self.reconciler.survey.caps.doubtful)
            && self.reconciler.refresh_survey(self.host).is_ok_and(|sufficient| sufficient)
        {
            return self.actuation.surveys.refreshed(at);
        }
        let before = self.reconciler.survey.caps.clone();
        problems.extend(self.reconciler.look_again(self.host).err().map(|error| error.to_string()));
        self.actuation.surveys.tested(at, &before, &self.reconciler.survey.caps);
    }

    /// Makes a round if one is due and no other process holds the machine lock.
    pub(super) fn enforce(&mut self, now: &Now, problems: &mut Vec<String>) {
        let mut due = self.due();
        if due != Due::Whole && self.actuation.waits(now.ms) {
            problems.extend(self.actuation.outcome.problems.iter().cloned());
        }
        if due == Due::No {
            return;
        }
        self.actuation.unsettle();
        // Wait before taking the lock, and for a limited time only: a slow container engine must not delay other
        // groups.
        self.members.wait_for_engine();
        match self.reconciler.instance.try_lock(self.host) {
            Ok(Some(_lock)) => {
                self.actuation.locked_out = None;
                self.survey(problems);
                let mut news = self.members.take_news().unwrap_or_else(|| {
                    due = Due::Whole;
                    BTreeSet::new()
                });
                let floor = self.decisions.floor(&self.reconciler.survey.machine.topology);
                let (decided, off) = (&self.decisions.decided, self.canary.is_isolation_off());
                let adjust = |desired: &mut DesiredState| canary::adjust(off, decided, desired);
                let specs = &self.groups.compiled.groups;
                let found = RefCell::new(&mut self.members.members);
                let find = |host: &mut dyn Host, state: &mut ActualState| {
                    found.borrow_mut().fill(host, specs, state);
                };
                let members: Option<FindMembers<'_>> = Some(&find);
                let (safe_specs, floor) = (safe(specs), floor.as_ref());
                let guarded = self.upkeep.has_lease() || self.options.on_exit == OnExit::Safe;
                let safe = guarded.then_some(SafeRequest { specs: &safe_specs, floor });
                let request =
                    PlanRequest { adjust: &adjust, members, kept: true, safe, ..PlanRequest::all(specs) };
                if due == Due::Decided
                    && !off
                    && let Some(round) = &mut self.actuation.last
                    && self.reconciler.adjust(self.host, now.ms, &request, round).is_ok_and(|done| done)
                {
                    self.actuation.phase = Phase::Settled;
                    self.actuation.facts.fixed = view::fixed(&round.planned);
                    let changes = std::mem::take(&mut round.changes);
                    self.publishing.note_changes(changes, decided, &time_of_day());
                    return;
                }
                if due == Due::News
                    && !off
                    && let Some(mut round) = self.actuation.last.take()
                {
                    let asked = (&request, &mut news);
                    if self.reconciler.meet(self.host, now.ms, asked, &mut round).is_ok_and(|done| done) {
                        return problems.append(&mut self.met(round, &news));
                    }
                    self.actuation.last = Some(round);
                    // New members appear in one hierarchy after another, maybe during this round.
                    self.actuation.ask_once_more();
                }
                let began = Instant::now();
                let done = self.reconciler.round(self.host, now.ms, &request);
                match done {
                    Ok(round) => {
                        self.canary.in_force(self.ticks.now_ms(), round.problems.is_empty());
                        problems.append(&mut self.rounded(round, began));
                    }
                    Err(error) => {
                        self.canary.in_force(self.ticks.now_ms(), false);
                        problems.push(in_words(&error));
                    }
                }
            }
            Ok(None) => {
                self.canary.in_force(self.ticks.now_ms(), false);
                let since = *self.actuation.locked_out.get_or_insert_with(Instant::now);
                if since.elapsed() > LOCK_PATIENCE {
                    problems.push(format!(
                        "another commensal has been changing this machine for {} s",
                        since.elapsed().as_secs()
                    ));
                }
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
}
