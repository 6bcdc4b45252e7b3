//! Puts groups in force once: plan, journal, apply. A refusal ends that, and everything is taken back.

use crate::drivers::apply::{Outcome, apply};
use crate::drivers::aside::step_aside;
use crate::instance::{Instance, ReconcileError};
use crate::journal::{self, Journal, JournalError};
use crate::request::{PlanRequest, Planned};
use crate::runner::{PLANS, first_part, has_moved};
use commensal_core::actual::CgroupPath;
use commensal_core::plan::{Step, undo};
use commensal_host::Host;

/// Makes a plan and carries it out. Repeats both as long as processes have to be moved.
///
/// # Errors
/// Returns an error when the machine cannot be read, a group does not fit the machine, or controllers cannot be enabled
/// in a delegated group. A refusal by the kernel is not an error but part of the outcome; all steps were undone in that
/// case.
pub fn enforce(
    instance: &Instance,
    host: &mut dyn Host,
    request: &PlanRequest<'_>,
    journal: &mut Journal,
) -> Result<(Planned, Outcome), ReconcileError> {
    instance.remember(host, journal)?;
    let (mut before, mut ahead, mut built) = (Vec::<Step>::new(), Vec::<Step>::new(), Outcome::default());
    for plans in 1.. {
        let ran = plan(instance, host, request).and_then(|planned| {
            let steps = planned.plan.steps.as_slice();
            let (part, is_whole) = if ahead.is_empty() { first_part(steps, false) } else { (steps, true) };
            step_aside(host, part, &planned.actual, planned.desired.aside.name(), journal)?;
            let (outcome, part) = (apply(host, part, &planned.actual, journal), part.to_vec());
            Ok((planned, part, is_whole, outcome))
        });
        let failed = ran.as_ref().map_or(true, |(.., outcome)| outcome.failure.is_some());
        let left = if failed { take_back(instance, host, request, &ahead, journal) } else { None };
        let (mut planned, part, is_whole, outcome) = ran?;
        let again = !failed && (!is_whole || plans < PLANS && has_moved(&part, &outcome.stayed));
        built = built.then(outcome);
        if let Some(failure) = &mut built.failure {
            failure.left.extend(left);
            if !before.is_empty() {
                let earlier = before.len();
                failure.left.push(format!("the {earlier} earlier steps, which were carried out separately"));
            }
        }
        if !again {
            planned.plan.steps.splice(0..0, before.into_iter().chain(ahead));
            return Ok((planned, built));
        }
        ahead.extend(part);
        if is_whole {
            before.append(&mut ahead);
        }
    }
    unreachable!("the last plan returns")
}

/// Undoes the groups and controllers that were carried out ahead of a plan that failed. Returns a message about what could
/// not be undone.
fn take_back(
    instance: &Instance,
    host: &mut dyn Host,
    request: &PlanRequest<'_>,
    ahead: &[Step],
    journal: &mut Journal,
) -> Option<String> {
    if ahead.is_empty() {
        return None;
    }
    match plan(instance, host, request) {
        Ok(now) => {
            let failure = apply(host, &undo(ahead), &now.actual, journal).failure?;
            Some(format!("{}: {}", failure.description, failure.refusal))
        }
        Err(error) => {
            Some(format!("the groups that were created, because {error}; `commensal restore` removes them"))
        }
    }
}

fn plan(
    instance: &Instance,
    host: &mut dyn Host,
    request: &PlanRequest<'_>,
) -> Result<Planned, ReconcileError> {
    let survey = instance.survey(host)?;
    instance.plan(host, &survey, request)
}

/// Adopts groups that `run` created and that these specs also request: such a group is no longer removed when its last
/// command exits.
///
/// # Errors
/// Returns an error when a journal cannot be read or written.
pub fn adopt(
    instance: &Instance,
    host: &mut dyn Host,
    planned: &Planned,
    journal: &mut Journal,
) -> Result<(), JournalError> {
    let own = planned.desired.groups.iter().flat_map(|group| &group.members).filter(|member| member.own);
    let own: Vec<_> = own.map(|member| member.path.clone()).collect();
    let wanted =
        |target: &journal::Target| own.iter().any(|path| CgroupPath::new(&target.path).contains(path));
    journal::adopt(host, &instance.state_dir, journal, wanted)
}
