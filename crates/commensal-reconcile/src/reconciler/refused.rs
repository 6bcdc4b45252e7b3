//! Refused steps that do not concern a setting of an existing group: a group that cannot be created, a limit of a group
//! that was just created, orders for the scheduler. The reconciler reports such a step, leaves it out together with
//! dependent steps, and retries it later.

use commensal_core::drift::{FIRST_BACK_OFF_MS, LONGEST_BACK_OFF_MS};
use commensal_core::knob::Controller;
use commensal_core::plan::{Action, Step};

#[derive(Debug)]
struct Refused {
    step: Step,
    back_off_ms: u64,
    again_from_ms: u64,
    reason: String,
}

/// The refused steps, each with its last refusal.
#[derive(Debug, Default)]
pub(super) struct RefusedSteps(Vec<Refused>);

impl RefusedSteps {
    /// Records a refusal: the back-off is a second at first, and doubles with each further refusal.
    pub(super) fn add(&mut self, now_ms: u64, step: &Step, reason: String) {
        let before = self.0.iter().find(|one| same(&one.step, step)).map(|one| one.back_off_ms);
        self.forget(step);
        let back_off_ms = match before {
            Some(before) => before.saturating_mul(2).min(LONGEST_BACK_OFF_MS),
            None => FIRST_BACK_OFF_MS,
        };
        let again_from_ms = now_ms.saturating_add(back_off_ms);
        self.0.push(Refused { step: step.clone(), back_off_ms, again_from_ms, reason });
    }

    /// Forgets a step that was carried out, or whose group exists now (its setting then has a separate back-off).
    pub(super) fn forget(&mut self, step: &Step) {
        self.0.retain(|one| !same(&one.step, step));
    }

    /// Whether a step may be tried now: neither the step nor a step that it depends on is in back-off.
    pub(super) fn may_try(&self, now_ms: u64, step: &Step) -> bool {
        let waits = |one: &Refused| now_ms < one.again_from_ms;
        !self.0.iter().any(|one| waits(one) && (same(&one.step, step) || needs(step, &one.step)))
    }

    /// Returns the time (ms, on the clock of `now_ms`) from which the next step in back-off may be tried; `None` if no
    /// step is in back-off.
    pub(super) fn next_try_ms(&self, now_ms: u64) -> Option<u64> {
        self.0.iter().map(|one| one.again_from_ms).filter(|from| *from > now_ms).min()
    }

    /// Returns why the steps that are still planned were refused, and forgets the refusals of all other steps.
    pub(super) fn reasons(&mut self, planned: &[Step]) -> Vec<String> {
        self.0.retain(|one| planned.iter().any(|step| same(&one.step, step)));
        self.0.iter().map(|one| one.reason.clone()).collect()
    }
}

/// Whether two steps have the same result, even if their old values differ.
fn same(one: &Step, other: &Step) -> bool {
    one.place == other.place
        && match (&one.action, &other.action) {
            (Action::Order { to: one, .. }, Action::Order { to: other, .. }) => one == other,
            (one, other) => match (one.written(), other.written()) {
                (Some(one), Some(other)) => {
                    (one.knob, one.device, one.to) == (other.knob, other.device, other.to)
                }
                _ => one == other,
            },
        }
}

/// Whether a step needs the other one to be carried out first.
fn needs(step: &Step, other: &Step) -> bool {
    let (hierarchy, group) = (other.place.hierarchy, &other.place.path);
    let below = step.place.hierarchy == hierarchy && group.contains(&step.place.path);
    match (&other.action, &step.action) {
        (Action::Create, Action::Move(movement)) => {
            movement.to.get(&hierarchy).is_some_and(|path| group.contains(path))
        }
        (Action::Create, _) => below,
        (Action::Enable(controller), _) => {
            below && step.place != other.place && controller_of(step) == Some(*controller)
        }
        _ => false,
    }
}

/// Returns the controller whose file a step writes, or which it enables.
fn controller_of(step: &Step) -> Option<Controller> {
    match &step.action {
        Action::Enable(controller) => Some(*controller),
        other => other.written().map(|one| one.knob.row().controller),
    }
}
