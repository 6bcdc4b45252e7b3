//! How changes are carried out: what comes first, and what a refusal means to the others.
//!
//! | policy | what was refused | whose |
//! |---|---|---|
//! | take back (`enforce`) | ends the request, and all that was done for it is undone | `apply`, `run`, the lab and density |
//! | leave out (`reconciler`) | is left out of the next plans, and retried after a back-off | a tick of the agent |
//! | tell and go on ([`as_far_as_possible`]) | is retried as long as others succeed, and told | `restore`, the safe state |
//!
//! The first two have plans. A plan leads from one valid state to another after any number of its steps, but not without
//! one of them, so a refused step undoes the steps before it ([`apply`](crate::apply())) under both policies. Then the
//! request has failed, or there is another plan without the step. The third policy has records and no plan: each record is
//! right whatever becomes of the others, and nothing says which of them comes first.

use commensal_core::plan::{Action, Step, structure};

/// Maximum number of plans for one request.
pub(crate) const PLANS: usize = 10;

/// Whether the step enables a controller, whose settings can be tested only after that.
pub(crate) fn enables(step: &Step) -> bool {
    matches!(step.action, Action::Enable(_))
}

/// Returns the steps of a plan that are carried out together, and whether they are the whole plan. Groups and controllers
/// come first, alone, if the rest is planned again after them: with the new controllers, or because the journal gets the
/// safe values of a new group before its settings are written (`has_safe`), so the group must exist first.
pub(crate) fn first_part(steps: &[Step], has_safe: bool) -> (&[Step], bool) {
    let first = structure(steps);
    let alone = has_safe && !first.is_empty() && first.len() < steps.len();
    if alone || first.iter().any(enables) { (first, false) } else { (steps, true) }
}

/// Whether these steps have moved processes: children that they started meanwhile are still in the old group.
pub(crate) fn has_moved(steps: &[Step], stayed: &[String]) -> bool {
    steps.iter().filter(|step| matches!(step.action, Action::Move(_))).count() > stayed.len()
}

/// Does something with each item, and with the refused ones again as long as others succeed: one setting can block another
/// (the weight of an idle group, a burst above the quota, a quota before its period). Returns the refused items, each with
/// its last refusal.
pub(crate) fn as_far_as_possible<T, E>(
    items: Vec<T>,
    mut act: impl FnMut(&T) -> Result<(), E>,
) -> Vec<(T, E)> {
    repeat(items, |items| {
        let refused = items.into_iter().filter_map(|item| {
            let refusal = act(&item).err()?;
            Some((item, refusal))
        });
        refused.collect()
    })
}

/// Like [`as_far_as_possible`], for a pass that does something with all the items and returns the refused ones.
pub(crate) fn repeat<T, E>(mut items: Vec<T>, mut pass: impl FnMut(Vec<T>) -> Vec<(T, E)>) -> Vec<(T, E)> {
    loop {
        let before = items.len();
        let refused = if items.is_empty() { Vec::new() } else { pass(items) };
        if refused.len() == before {
            return refused;
        }
        items = refused.into_iter().map(|(item, _)| item).collect();
    }
}
