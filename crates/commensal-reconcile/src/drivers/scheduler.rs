//! Sends orders to the sched_ext scheduler of this state directory, over its socket
//! (`docs/reference/sched-control.md`). `commensal_sensors::scheduler` reads its state.

use commensal_core::scheduler::protocol::{Done, Request};
use commensal_core::scheduler::{Mode, Orders, SOCKET};
use commensal_host::Host;
use commensal_sensors::scheduler::{Unanswered, heard, status};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Timeout of a status request, which is answered from memory.
const PATIENCE: Duration = Duration::from_millis(500);
/// Timeout of a plan's orders: every thread of a new group changes its policy. Less than a lease of the agent.
const ORDERS_PATIENCE: Duration = Duration::from_secs(4);

/// Sends a request that changes something; returns the answer once it is carried out.
///
/// # Errors
/// [`Unanswered`]; after a timeout the request may still be carried out later.
pub fn tell(
    host: &dyn Host,
    socket: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Done, Unanswered> {
    let answer = heard(host.ask(socket, &request.text(), patience))?;
    serde_json::from_value(answer).map_err(|error| {
        Unanswered::Refused(format!("the sched_ext scheduler's answer cannot be read: {error}"))
    })
}

/// From now on these, and no others of their owner; the scheduler is asked whether it has them.
pub(crate) fn order(host: &dyn Host, socket: &Path, orders: &Orders) -> Result<(), Unanswered> {
    tell(host, socket, &Request::Orders(orders.clone()), ORDERS_PATIENCE)?;
    // It has said that they are carried out: only one that says otherwise is doubted.
    let Ok(status) = status(host, socket, PATIENCE) else { return Ok(()) };
    let found = status.orders.0.get(&orders.owner).cloned().unwrap_or_default();
    match found.groups == orders.groups {
        true => Ok(()),
        false => Err(Unanswered::Refused(format!(
            "the sched_ext scheduler took the orders of {} and has others of that owner",
            orders.owner
        ))),
    }
}

/// Whether the scheduler runs with these orders: [`Orders::describe`] if so, otherwise the difference in words.
pub(crate) fn in_force(host: &dyn Host, socket: &Path, orders: &Orders) -> String {
    let status = match status(host, socket, PATIENCE) {
        Ok(status) => status,
        Err(error) => return error.to_string(),
    };
    match status.mode {
        Mode::Running | Mode::Frozen => {}
        mode => return format!("the scheduler is {mode}"),
    }
    let found = status.orders.0.get(&orders.owner).cloned().unwrap_or_default();
    match orders.groups.iter().filter(|(cgroup, order)| found.groups.get(*cgroup) != Some(*order)).count() {
        0 => orders.describe(),
        missing => format!("{missing} of {} otherwise", orders.groups.len()),
    }
}

/// Removes the owner's orders for these cgroups; returns how many there were. Does nothing without a scheduler.
pub(crate) fn forget(
    host: &dyn Host,
    state_dir: &Path,
    owner: &str,
    cgroups: &BTreeSet<String>,
) -> Result<usize, Unanswered> {
    let socket = state_dir.join(SOCKET);
    let mut status = match status(host, &socket, PATIENCE) {
        Err(error) if error.is_nobody() => return Ok(0),
        status => status?,
    };
    let Some(mut orders) = status.orders.0.remove(owner) else { return Ok(0) };
    let before = orders.groups.len();
    orders.owner = owner.to_owned();
    orders.groups.retain(|cgroup, _| !cgroups.contains(cgroup));
    let gone = before - orders.groups.len();
    if gone > 0 {
        order(host, &socket, &orders)?;
    }
    Ok(gone)
}
