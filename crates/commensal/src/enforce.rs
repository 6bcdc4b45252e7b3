//! From specs to a machine that obeys them: plan, journal, apply. Where a controller has to be enabled first, its knobs
//! cannot be tried before, so the structure comes first and the rest is planned against what is there then.

use crate::context::{Context, Planned};
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::plan::{Action, Step, undo};
use commensal_drivers::{Journal, Outcome, apply};
use std::collections::BTreeSet;

/// Looks after processes were moved: what they started meanwhile is where they were.
const LOOKS: usize = 10;

/// Plans and carries out, and looks again as long as processes have to be moved. `own` names groups that need a cgroup of their own: then the specs are a part of what is in force,
/// and nothing else is taken back.
///
/// # Errors
/// When the machine cannot be read, a group does not fit it, or there is no room in a delegated group; a refusal by the
/// kernel is in the outcome, and then everything is as it was.
pub fn enforce(
    context: &mut Context,
    specs: &[GroupSpec],
    own: &BTreeSet<GroupName>,
    journal: &mut Journal,
) -> anyhow::Result<(Planned, Outcome)> {
    let (mut planned, mut outcome) = once(context, specs, own, journal)?;
    let mut moved = moves(&planned) > outcome.stayed.len();
    for _ in 0..LOOKS {
        if !moved || outcome.failure.is_some() {
            break;
        }
        let (mut again, more) = once(context, specs, own, journal)?;
        moved = moves(&again) > more.stayed.len();
        planned.plan.steps.append(&mut again.plan.steps);
        (planned.plan.unmet, planned.plan.notes) = (again.plan.unmet, again.plan.notes);
        (planned.plan.settled, planned.actual, planned.desired) =
            (again.plan.settled, again.actual, again.desired);
        let before = outcome.done;
        outcome.applied.extend(more.applied);
        outcome.stayed = more.stayed;
        outcome.done += more.done;
        outcome.failure = more.failure.map(|mut failure| {
            failure.step += before;
            failure.left.push(format!("the {before} steps before, which were carried out by themselves"));
            failure
        });
    }
    Ok((planned, outcome))
}

/// How many processes are to be moved.
fn moves(planned: &Planned) -> usize {
    planned.plan.steps.iter().filter(|step| matches!(step.action, Action::Move(_))).count()
}

fn once(
    context: &mut Context,
    specs: &[GroupSpec],
    own: &BTreeSet<GroupName>,
    journal: &mut Journal,
) -> anyhow::Result<(Planned, Outcome)> {
    let first = context.plan(specs, own.clone())?;
    context.step_aside(&first, journal)?;
    let enables = |step: &Step| matches!(step.action, Action::Enable(_));
    if !first.plan.structure().iter().any(enables) {
        let outcome = apply(&mut context.host, &first.plan.steps, &first.actual, journal);
        return Ok((first, outcome));
    }
    let structure = first.plan.structure().to_vec();
    let built = apply(&mut context.host, &structure, &first.actual, journal);
    if built.failure.is_some() {
        return Ok((first, built));
    }
    let settled = settle(context, specs, own, journal);
    let failed = settled.as_ref().map_or(true, |(_, outcome)| outcome.failure.is_some());
    let mut left = Vec::new();
    if failed {
        match context.plan(specs, own.clone()) {
            Ok(now) => {
                let back = apply(&mut context.host, &undo(&structure), &now.actual, journal);
                left.extend(
                    back.failure.map(|failure| format!("{}: {}", failure.description, failure.refusal)),
                );
            }
            Err(error) => left
                .push(format!("the groups made for it, because {error:#}; `commensal restore` removes them")),
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

/// The rest, against what the structure has made visible.
fn settle(
    context: &mut Context,
    specs: &[GroupSpec],
    own: &BTreeSet<GroupName>,
    journal: &mut Journal,
) -> anyhow::Result<(Planned, Outcome)> {
    let planned = context.plan(specs, own.clone())?;
    let outcome = apply(&mut context.host, &planned.plan.steps, &planned.actual, journal);
    Ok((planned, outcome))
}
