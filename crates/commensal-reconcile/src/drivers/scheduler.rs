//! Sends orders, the configuration of cgroups, to the sched_ext scheduler of this state directory, over its socket
//! (`docs/reference/sched-control.md`). `commensal_sensors::scheduler` reads the scheduler's state.

use commensal_core::scheduler::protocol::{Done, Request};
use commensal_core::scheduler::{Mode, Orders, SOCKET};
use commensal_host::Host;
use commensal_sensors::scheduler::{Unanswered, heard, status};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Timeout of a status request, which the scheduler answers from memory.
const PATIENCE: Duration = Duration::from_millis(500);
/// Timeout of a plan's orders: the scheduler changes the policy of every thread of a new group. The timeout is less
/// than the agent's lease, the time after which the guard treats a silent agent as dead.
const ORDERS_PATIENCE: Duration = Duration::from_secs(4);

/// Sends a request that changes the scheduler's state; returns the response, which the scheduler sends when it has
/// carried out the request.
///
/// # Errors
/// Returns an [`Unanswered`]; after a timeout the request may still be carried out later.
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

/// Replaces all orders of the same owner by these orders, and checks that the scheduler has them.
pub(crate) fn order(host: &dyn Host, socket: &Path, orders: &Orders) -> Result<(), Unanswered> {
    tell(host, socket, &Request::Orders(orders.clone()), ORDERS_PATIENCE)?;
    // The scheduler has confirmed the orders, so an unreadable status is not an error.
    let Ok(status) = status(host, socket, PATIENCE) else { return Ok(()) };
    let found = status.orders.0.get(&orders.owner).cloned().unwrap_or_default();
    match found.groups == orders.groups {
        true => Ok(()),
        false => Err(Unanswered::Refused(format!(
            "the sched_ext scheduler accepted the orders of {}, but its status shows different orders of that owner",
            orders.owner
        ))),
    }
}

/// Returns [`Orders::describe`] if the scheduler runs with these orders, otherwise a description of the difference.
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
        missing => format!("{missing} of {} orders differ", orders.groups.len()),
    }
}

/// Removes the owner's orders for these cgroups; returns how many were removed. Does nothing if no scheduler is loaded.
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
