//! The sched_ext scheduler of this state directory: what its owner wants, over its socket
//! (`docs/reference/sched-control.md`). Its types are not ours to depend on, so text is made and read here.

use commensal_core::errno::Errno;
use commensal_core::group::Class;
use commensal_core::scheduler::{Order, Orders, SOCKET};
use commensal_host::{Host, HostError};
use serde_json::{Value, json};
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
    let groups: Vec<Value> = orders.groups.iter().map(|(cgroup, order)| group(cgroup, order)).collect();
    send(host, socket, (&orders.owner, &groups, orders.hold_off_us.into()))
}

fn group(cgroup: &str, order: &Order) -> Value {
    let mut group = json!({ "cgroup": cgroup, "class": order.class.to_string() });
    if order.class == Class::Online {
        group["expel"] = order.expel.into();
        return group;
    }
    if let Some(weight) = order.weight {
        group["weight"] = weight.into();
    }
    if let Some(limit) = order.limit {
        group["limit"] = json!({ "quota_us": limit.quota_us, "period_us": limit.period_us });
    }
    group
}

fn send(
    host: &dyn Host,
    socket: &Path,
    (owner, groups, hold_off_us): (&str, &[Value], Value),
) -> Result<(), Unordered> {
    let request = json!({ "do": "orders", "owner": owner, "groups": groups, "hold_off_us": hold_off_us });
    ask(host, socket, &request, ORDERS_PATIENCE).map(drop)
}

/// The answer, if it is not a refusal. The empty line is the end of the conversation.
fn ask(host: &dyn Host, socket: &Path, request: &Value, patience: Duration) -> Result<Value, Unordered> {
    let text = host.ask(socket, &format!("{request}\n\n"), patience).map_err(Unordered::Host)?;
    let answer: Value = serde_json::from_str(text.lines().next().unwrap_or_default())
        .map_err(|error| Unordered::Refused(format!("no answer of a scheduler: {error}")))?;
    match answer["ok"].as_bool() {
        Some(true) => Ok(answer),
        _ => {
            let error = answer["error"].as_str().unwrap_or("it does not say why");
            Err(Unordered::Refused(error.to_owned()))
        }
    }
}

/// Whether the scheduler runs and has these orders, as [`Orders::describe`]; what is otherwise, in words.
pub(crate) fn in_force(host: &dyn Host, socket: &Path, orders: &Orders) -> String {
    let status = match ask(host, socket, &json!({ "do": "status" }), PATIENCE) {
        Ok(status) => status,
        Err(error) => return error.to_string(),
    };
    let mode = status["mode"].as_str().unwrap_or("without a mode");
    if !matches!(mode, "running" | "frozen") {
        return format!("the scheduler is {mode}");
    }
    let found = status["orders"][orders.owner.as_str()]["groups"].as_array().cloned().unwrap_or_default();
    let is = |(cgroup, order): (&String, &Order)| {
        let wanted = group(cgroup, order);
        let has = |found: &Value| {
            ["cgroup", "class", "weight", "limit"].iter().all(|key| found[key] == wanted[key])
                && found["expel"].as_bool().unwrap_or(false) == order.expel
        };
        found.iter().any(has)
    };
    match orders.groups.iter().filter(|one| !is(*one)).count() {
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
    let status = match ask(host, &socket, &json!({ "do": "status" }), PATIENCE) {
        Err(Unordered::Host(error)) if is_absent(&error) => return Ok(0),
        answer => answer?,
    };
    let orders = &status["orders"][owner];
    let before = orders["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wanted = |group: &&Value| group["cgroup"].as_str().is_none_or(|cgroup| !cgroups.contains(cgroup));
    let kept: Vec<Value> = before.iter().filter(wanted).cloned().collect();
    let gone = before.len() - kept.len();
    if gone > 0 {
        let hold_off_us = orders["hold_off_us"].as_u64().unwrap_or(0);
        send(host, &socket, (owner, &kept, hold_off_us.into()))?;
    }
    Ok(gone)
}

/// Whether nobody listens there.
fn is_absent(error: &HostError) -> bool {
    matches!(error.errno, Errno::ENOENT | Errno::ECONNREFUSED)
}
