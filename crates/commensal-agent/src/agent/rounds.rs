//! Decides when a tick changes the machine, and how much of the machine is read for that.

use super::options::OnExit;
use super::start::LOCK_PATIENCE;
use super::{
    Agent, Now, Phase, ROUND_AT_LEAST, ROUND_EVERY, ROUND_SHARE, SURVEY_EVERY, TRIM_EVERY, canary, yields,
};
use crate::members::Interest;
use crate::{siblings, view};
use commensal_core::actual::ActualState;
use commensal_core::desired::DesiredState;
use commensal_core::group::Match;
use commensal_core::safe::safe;
use commensal_host::Host;
use commensal_reconcile::{FindMembers, PlanRequest, Planned, Round, SafeRequest, in_words};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

/// The work that a tick has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// No work.
    No,
    /// Only the controllers' new decisions; nothing else has changed.
    Decided,
    /// A whole round.
    Whole,
}

impl Agent<'_> {
    /// Whether this tick needs a round: the groups or the decisions have changed, another program changed the machine,
    /// the last round was not complete, or it was long ago.
    fn round_is_due(&mut self) -> Due {
        let wants = (self.groups.state.generation, self.decisions.decided.wants.clone());
        let before = self.actuation.put_in_force.as_ref();
        let decided = before.is_some_and(|(generation, wants)| {
            (*generation, wants) != (self.groups.state.generation, &self.decisions.decided.wants)
        });
        let reloaded = before.is_none_or(|(generation, _)| *generation != self.groups.state.generation);
        let every = (self.actuation.round_took * ROUND_SHARE).clamp(ROUND_EVERY, ROUND_AT_LEAST);
        let whole = reloaded
            || (self.actuation.phase != Phase::Settled && !self.actuation.waits(self.now().ms))
            || self.actuation.rounded.is_none_or(|at| at.elapsed() >= every)
            || self.reconciler.cpus_changed(self.host)
            || self.reconciler.scheduler_changed(self.host)
            || self.reconciler.disturbed(self.host, self.members.complete())
            || self.processes_differ();
        self.actuation.put_in_force = Some(wants);
        match (whole, decided) {
            (true, _) => Due::Whole,
            (false, true) => Due::Decided,
            (false, false) => Due::No,
        }
    }

    /// Processes have no events, so they are searched for in every tick.
    fn processes_differ(&mut self) -> bool {
        let Some(round) = &self.actuation.last else { return true };
        let specs = &self.groups.compiled.groups;
        let by_process = |one: &Match| matches!(one, Match::Process { .. });
        specs.iter().flat_map(|spec| &spec.matches).any(by_process)
            && self.members.members.processes_differ(self.host, specs, &round.planned.actual)
    }

    /// Stores the results of a round that began at `began`; returns its problems.
    pub(super) fn rounded(&mut self, mut round: Round, began: Instant) -> Vec<String> {
        (self.actuation.rounded, self.actuation.round_took) = (Some(Instant::now()), began.elapsed());
        // A round that created or moved something is followed by another one that sees the result.
        let done = round.problems.is_empty() && round.current;
        self.actuation.phase = match self.actuation.phase {
            Phase::Paused => Phase::Paused,
            Phase::Unsettled | Phase::Settled if done => Phase::Settled,
            _ => Phase::Unsettled,
        };
        let changes = std::mem::take(&mut round.changes);
        self.note_changes(changes);
        let Planned { actual, desired, .. } = &round.planned;
        self.sensing.meters.follow(self.host, &actual.hierarchies, desired);
        self.sensing.blame_monitor.follow(&round.planned);
        (self.actuation.yields, self.actuation.fixed) = (yields(&round.planned), view::fixed(&round.planned));
        self.actuation.beside = match self.groups.compiled.weights {
            true => siblings::of(self.host, &round.planned),
            false => BTreeMap::new(),
        };
        let problems = std::mem::take(&mut round.problems);
        (self.actuation.problems, self.actuation.again_ms) = (problems.clone(), round.again_ms);
        self.members.mind(Interest::of(&self.groups.compiled.groups, &round.planned.desired));
        self.actuation.last = Some(round);
        self.actuation.untrimmed = true;
        self.follow_pressure();
        problems
    }

    /// Gives freed memory back, once nothing is left to do: while a round is made, the machine as it was before and what the plan
    /// was made of take more than what is kept.
    pub(super) fn trim(&mut self) {
        let state = &mut self.actuation;
        let due = state.trimmed.is_none_or(|at| at.elapsed() >= TRIM_EVERY);
        if due && state.untrimmed && state.phase == Phase::Settled {
            (state.untrimmed, state.trimmed) = (false, Some(Instant::now()));
            commensal_host::trim_memory();
        }
    }

    /// Makes one round, if one is due and no other process is changing the machine.
    pub(super) fn enforce(&mut self, now: &Now, problems: &mut Vec<String>) {
        let due = self.round_is_due();
        if due != Due::Whole && self.actuation.waits(now.ms) {
            problems.extend(self.actuation.problems.iter().cloned());
        }
        if due == Due::No {
            return;
        }
        self.actuation.unsettle();
        // Before the lock is taken, and for a limited time: an engine may be slow, and other groups must not wait for
        // it.
        self.members.wait_for_engine();
        match self.reconciler.instance.try_lock(self.host) {
            Ok(Some(_lock)) => {
                self.actuation.locked_out = None;
                if self.actuation.surveyed.elapsed() >= SURVEY_EVERY
                    || self.reconciler.cpus_changed(self.host)
                {
                    self.actuation.surveyed = Instant::now();
                    if let Err(error) = self.reconciler.look_again(self.host) {
                        problems.push(error.to_string());
                    }
                }
                let floor = self.floor();
                let (decided, off) = (&self.decisions.decided, self.isolation_is_off());
                let adjust = |desired: &mut DesiredState| canary::adjust(off, decided, desired);
                let specs = &self.groups.compiled.groups;
                let found = RefCell::new(&mut self.members.members);
                let find = |host: &mut dyn Host, state: &mut ActualState| {
                    found.borrow_mut().fill(host, specs, state);
                };
                let members: Option<FindMembers<'_>> = Some(&find);
                let (safe_specs, floor) = (safe(specs), floor.as_ref());
                let guarded = self.lease.is_some() || self.options.on_exit == OnExit::Safe;
                let safe = guarded.then_some(SafeRequest { specs: &safe_specs, floor });
                let request =
                    PlanRequest { adjust: &adjust, members, kept: true, safe, ..PlanRequest::all(specs) };
                if due == Due::Decided
                    && !off
                    && let Some(round) = &mut self.actuation.last
                    && self.reconciler.adjust(self.host, now.ms, &request, round).is_ok_and(|done| done)
                {
                    self.actuation.phase = Phase::Settled;
                    self.actuation.fixed = view::fixed(&round.planned);
                    let changes = std::mem::take(&mut round.changes);
                    self.note_changes(changes);
                    return;
                }
                let began = Instant::now();
                let done = self.reconciler.round(self.host, now.ms, &request);
                match done {
                    Ok(round) => {
                        self.canary_in_force(round.problems.is_empty());
                        problems.append(&mut self.rounded(round, began));
                    }
                    Err(error) => {
                        self.canary_in_force(false);
                        problems.push(in_words(&error));
                    }
                }
            }
            Ok(None) => {
                self.canary_in_force(false);
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
