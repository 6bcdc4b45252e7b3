//! The sched_ext scheduler of this state directory: what its owner wants, over its socket
//! (`docs/reference/sched-control.md`).

use commensal_core::errno::Errno;
use commensal_core::scheduler::protocol::{self, Request, Status};
use commensal_core::scheduler::{Mode, Orders, SOCKET};
use commensal_host::{Host, HostError};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// How long a status may take: it is answered from memory.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long orders may take: every thread of a new group changes its policy. Less than a lease of the agent.
const ORDERS_PATIENCE: Duration = Duration::from_secs(4);

/// Why orders are not in force.
#[derive(Debug)]
pub(crate) enum Unordered {
    /// Nobody listens, or not well.
    Host(HostError),
    /// Refused, with the reason.
    Refused(String),
}

impl std::fmt::Display for Unordered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unordered::Host(error) => error.fmt(f),
            Unordered::Refused(error) => write!(f, "the sched_ext scheduler refuses: {error}"),
        }
    }
}

/// From now on these, and no others of their owner.
pub(crate) fn order(host: &dyn Host, socket: &Path, orders: &Orders) -> Result<(), Unordered> {
    send(host, socket, orders.into())
}

fn send(host: &dyn Host, socket: &Path, orders: protocol::OrdersOfOwner) -> Result<(), Unordered> {
    ask(host, socket, &Request::Orders(orders), ORDERS_PATIENCE).map(drop)
}

/// The answer, if it is not a refusal.
fn ask(host: &dyn Host, socket: &Path, request: &Request, patience: Duration) -> Result<Value, Unordered> {
    let text = host.ask(socket, &request.text(), patience).map_err(Unordered::Host)?;
    protocol::answer(&text).map_err(Unordered::Refused)
}

fn status(host: &dyn Host, socket: &Path) -> Result<Status, Unordered> {
    let answer = ask(host, socket, &Request::Status, PATIENCE)?;
    Status::read(answer).map_err(Unordered::Refused)
}

/// Whether the scheduler runs and has these orders, as [`Orders::describe`]; what is otherwise, in words.
pub(crate) fn in_force(host: &dyn Host, socket: &Path, orders: &Orders) -> String {
    let status = match status(host, socket) {
        Ok(status) => status,
        Err(error) => return error.to_string(),
    };
    match status.mode {
        Mode::Running | Mode::Frozen => {}
        mode => return format!("the scheduler is {mode}"),
    }
    let found = status.orders.0.get(&orders.owner).map(Orders::from).unwrap_or_default();
    // As they were sent: what the other class would have is not.
    let wanted = Orders::from(&protocol::OrdersOfOwner::from(orders));
    match wanted.groups.iter().filter(|(cgroup, order)| found.groups.get(*cgroup) != Some(*order)).count() {
        0 => orders.describe(),
        missing => format!("{missing} of {} otherwise", orders.groups.len()),
    }
}

/// The owner wants nothing for these cgroups any more; how many it did. Without a scheduler there is nothing to do.
pub(crate) fn forget(
    host: &dyn Host,
    state_dir: &Path,
    owner: &str,
    cgroups: &BTreeSet<String>,
) -> Result<usize, Unordered> {
    let socket = state_dir.join(SOCKET);
    let status = match status(host, &socket) {
        Err(Unordered::Host(error)) if is_absent(&error) => return Ok(0),
        status => status?,
    };
    let Some(mut orders) = status.orders.0.get(owner).cloned() else { return Ok(0) };
    let before = orders.groups.len();
    orders.owner = owner.to_owned();
    orders.groups.retain(|group| !cgroups.contains(&group.cgroup));
    let gone = before - orders.groups.len();
    if gone > 0 {
        send(host, &socket, orders)?;
    }
    Ok(gone)
}

/// Whether nobody listens there.
fn is_absent(error: &HostError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ECONNREFUSED)
}
