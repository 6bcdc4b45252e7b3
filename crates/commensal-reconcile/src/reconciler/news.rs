//! Puts groups in force on cgroups that have come and gone since the last round, without reading the others again.

use super::steps::{decided, orders};
use super::{Reconciler, Round};
use crate::instance::ReconcileError;
use crate::request::PlanRequest;
use commensal_core::actual::CgroupPath;
use commensal_core::member::ContainerFact;
use commensal_core::plan::{Action, Step};
use commensal_host::Host;
use std::collections::BTreeSet;

impl Reconciler {
    /// Continues from the last round: reads these cgroups, those of containers that were started or stopped, and those below
    /// them, and writes what they lack. Returns whether that was sufficient; if not, a round is needed. The caller holds the
    /// machine's lock and ensures that nothing else has changed.
    ///
    /// # Errors
    /// Returns an error when cgroups or the journal cannot be read or written, or the groups do not fit the machine. A round
    /// is needed in these cases as well.
    pub fn meet(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        (request, news): (&PlanRequest<'_>, &mut BTreeSet<CgroupPath>),
        round: &mut Round,
    ) -> Result<bool, ReconcileError> {
        let Some(find) = request.members.filter(|_| round.current) else { return Ok(false) };
        round.current = false;
        // Only a round reads a hierarchy that was mounted meanwhile and the cookies of threads, and completes what a killed
        // process has left half done.
        let mounted = self.survey.hierarchies != round.planned.actual.hierarchies;
        let has_cookies = round.planned.desired.groups.iter().any(|group| group.expel);
        let half_done = !self.half_done.is_empty() || self.journal.is_gone(host, &self.instance);
        if mounted || has_cookies || half_done {
            return Ok(false);
        }
        let actual = &mut round.planned.actual;
        let before = std::mem::take(&mut actual.engines.containers);
        find(host, actual);
        news.extend(changed(&before, &actual.engines.containers));
        let read = self.survey.look_at(host, &*news, actual)?;
        actual.ours = self.instance.ours(host, actual)?;
        if !actual.unread.is_empty() {
            return Ok(false);
        }
        self.instance.plan_again(&self.survey, request, &mut round.planned)?;
        let planned = &mut round.planned;
        self.in_force.find_drift(now_ms, planned, &mut self.back_off.drift);
        self.back_off.calm(now_ms, &planned.actual);
        let steps = self.back_off.ready(now_ms, planned);
        let is_plain = |step: &Step| {
            let of_news = matches!(step.action, Action::Write { .. }) && read.contains(&step.place);
            of_news || decided(step).is_some() || orders(step).is_some()
        };
        if steps.len() < planned.plan.steps.len() || !steps.iter().all(is_plain) {
            return Ok(false);
        }
        let failure = self.carry_out(host, &steps, planned, request, &mut round.changes)?;
        if failure.is_some() || !self.back_off.stayed.is_empty() {
            return Ok(false);
        }
        let (of_news, others): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| read.contains(&step.place) && orders(step).is_none());
        let written = of_news.into_iter().map(|step| step.place).collect();
        self.survey.values(host, &written, &mut planned.actual)?;
        if !self.take_in(host, planned, &others)? {
            return Ok(false);
        }
        if !written.is_empty() {
            planned.actual.ours = self.instance.ours(host, &planned.actual)?;
        }
        let held = std::mem::take(&mut planned.plan.held);
        self.in_force.found(&held, &planned.actual);
        self.in_force.watch(host, &planned.actual);
        self.settle(host, &round.planned)?;
        round.problems = self.problems(&round.planned);
        round.current = round.planned.actual.unread.is_empty();
        Ok(round.current)
    }
}

/// Returns the cgroups of containers that are in one of the lists only, or have changed.
fn changed<'c>(
    before: &'c [ContainerFact],
    now: &'c [ContainerFact],
) -> impl Iterator<Item = CgroupPath> + 'c {
    let only = |these: &'c [ContainerFact], others: &'c [ContainerFact]| {
        let these = these.iter().filter(move |one| !others.contains(one));
        these.flat_map(|one| one.paths.values().cloned())
    };
    only(before, now).chain(only(now, before))
}
