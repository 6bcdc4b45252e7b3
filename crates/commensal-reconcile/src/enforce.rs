//! Puts groups in force once: plan, journal, apply. A controller's knobs can be tested only after the controller is
//! enabled. So this module first creates groups and enables controllers, and plans the remaining steps for the
//! resulting state.

use crate::drivers::apply::{Outcome, apply};
use crate::drivers::aside::step_aside;
use crate::instance::{Instance, ReconcileError};
use crate::journal::{self, Journal, JournalError};
use crate::request::{PlanRequest, Planned};
use commensal_core::actual::CgroupPath;
use commensal_core::plan::{Action, Step, structure, undo};
use commensal_host::Host;

/// Maximum number of further passes after processes were moved: children that they started meanwhile are still in the
/// old group.
const LOOKS: usize = 10;

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
    let (mut planned, mut outcome) = once(instance, host, request, journal)?;
    let mut moved = moves(&planned.plan.steps) > outcome.stayed.len();
    for _ in 0..LOOKS {
        if !moved || outcome.failure.is_some() {
            break;
        }
        let (mut again, more) = once(instance, host, request, journal)?;
        moved = moves(&again.plan.steps) > more.stayed.len();
        planned.plan.steps.append(&mut again.plan.steps);
        (planned.plan.unmet, planned.plan.notes) = (again.plan.unmet, again.plan.notes);
        (planned.plan.settled, planned.actual, planned.desired) =
            (again.plan.settled, again.actual, again.desired);
        let before = outcome.done;
        outcome.applied.extend(more.applied);
        outcome.stayed = more.stayed;
        outcome.told.extend(more.told);
        outcome.done += more.done;
        outcome.failure = more.failure.map(|mut failure| {
            failure.step += before;
            failure.left.push(format!("the {before} earlier steps, which were carried out separately"));
            failure
        });
    }
    Ok((planned, outcome))
}

/// Counts the processes that these steps move.
pub(crate) fn moves(steps: &[Step]) -> usize {
    steps.iter().filter(|step| matches!(step.action, Action::Move(_))).count()
}

/// What follows the first part of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// A survey and a new plan: new controllers can be tested only after they are enabled.
    Survey,
    /// A new plan: the journal gets the safe values of a new group before its settings are written, so the group must exist
    /// first.
    Plan,
    /// Nothing: the part is the whole plan.
    Nothing,
}

/// Returns the steps of a plan that are carried out together: groups and controllers first, if the rest depends on them.
/// `has_safe` tells whether the plan has safe values.
pub(crate) fn first_part(steps: &[Step], has_safe: bool) -> (&[Step], Then) {
    let first = structure(steps);
    let enables = first.iter().any(|step| matches!(step.action, Action::Enable(_)));
    match enables {
        true => (first, Then::Survey),
        false if has_safe && !first.is_empty() && first.len() < steps.len() => (first, Then::Plan),
        false => (steps, Then::Nothing),
    }
}

fn once(
    instance: &Instance,
    host: &mut dyn Host,
    request: &PlanRequest<'_>,
    journal: &mut Journal,
) -> Result<(Planned, Outcome), ReconcileError> {
    let first = plan(instance, host, request)?;
    let aside = first.desired.aside.name();
    step_aside(host, &first.plan.steps, &first.actual, aside, journal)?;
    let (part, then) = first_part(&first.plan.steps, false);
    let built = apply(host, part, &first.actual, journal);
    if then == Then::Nothing || built.failure.is_some() {
        return Ok((first, built));
    }
    let structure = part.to_vec();
    let settled = plan(instance, host, request).map(|planned| {
        let outcome = apply(host, &planned.plan.steps, &planned.actual, journal);
        (planned, outcome)
    });
    let failed = settled.as_ref().map_or(true, |(_, outcome)| outcome.failure.is_some());
    let mut left = Vec::new();
    if failed {
        match plan(instance, host, request) {
            Ok(now) => {
                let back = apply(host, &undo(&structure), &now.actual, journal);
                left.extend(
                    back.failure.map(|failure| format!("{}: {}", failure.description, failure.refusal)),
                );
            }
            Err(error) => left.push(format!(
                "the groups that were created, because {error}; `commensal restore` removes them"
            )),
        }
    }
    let (mut planned, mut outcome) = settled?;
    if let Some(failure) = &mut outcome.failure {
        failure.step += structure.len();
        failure.left.append(&mut left);
    }
    outcome.done += built.done;
    planned.plan.steps.splice(0..0, structure);
    Ok((planned, outcome))
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
