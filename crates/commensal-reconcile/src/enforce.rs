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
    let has_moved = |(planned, outcome): &Done| moves(&planned.plan.steps) > outcome.stayed.len();
    let mut done = once(instance, host, request, journal)?;
    let mut moved = has_moved(&done);
    for _ in 0..LOOKS {
        if !moved || done.1.failure.is_some() {
            break;
        }
        let mut more = once(instance, host, request, journal)?;
        moved = has_moved(&more);
        if let Some(failure) = &mut more.1.failure {
            let before = done.1.done;
            failure.left.push(format!("the {before} earlier steps, which were carried out separately"));
        }
        done = join(done, more);
    }
    Ok(done)
}

/// A plan, and what came of it.
type Done = (Planned, Outcome);

/// Adds the steps of an earlier plan, which were all carried out, to those of a later one for the same request.
fn join((earlier, built): Done, (mut planned, mut outcome): Done) -> Done {
    planned.plan.steps.splice(0..0, earlier.plan.steps);
    outcome.applied.splice(0..0, built.applied);
    outcome.told.splice(0..0, built.told);
    outcome.done += built.done;
    if let Some(failure) = &mut outcome.failure {
        failure.step += built.done;
    }
    (planned, outcome)
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
) -> Result<Done, ReconcileError> {
    let mut first = plan(instance, host, request)?;
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
    let (planned, mut outcome) = settled?;
    if let Some(failure) = &mut outcome.failure {
        failure.left.append(&mut left);
    }
    first.plan.steps = structure;
    Ok(join((first, built), (planned, outcome)))
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
