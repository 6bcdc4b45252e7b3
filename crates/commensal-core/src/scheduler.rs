//! commensal's sched_ext scheduler as a plan describes it: its reported state, and its orders. An order is the
//! scheduler's configuration of one cgroup; expelling keeps offline threads off the SMT siblings of CPUs that run
//! online threads.
//!
//! The scheduler is a separate program that listens on a socket (`docs/reference/sched-control.md`). A plan has at most
//! one step for the scheduler, which contains all orders of one owner, that is, of one user of the scheduler. The types
//! of this module are also sent over the socket; [`protocol`] defines the other messages.

pub mod protocol;

use crate::group::Class;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Name of the scheduler's socket in the state directory.
pub const SOCKET: &str = "sched.sock";

/// A hard limit of CPU time: the group may use the quota in each period. The scheduler enforces it, because the kernel
/// does not enforce `cpu.max` on threads that a sched_ext scheduler schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Quota (us).
    pub quota_us: u64,
    /// Period (us).
    #[serde(default = "default_period_us")]
    pub period_us: u64,
}

/// The default period of `cpu.max` (us).
fn default_period_us() -> u64 {
    100_000
}

/// An order: the scheduler's configuration of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Class of the cgroup. The sched_ext scheduler schedules offline threads; online threads stay in the kernel's fair
    /// class. A request with any other word for the class is invalid as a whole.
    pub class: Class,
    /// For an online cgroup: whether its threads are expelling threads, that is, whether offline threads must leave the
    /// SMT siblings of a CPU that runs a thread of this cgroup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expel: bool,
    /// For an offline cgroup: its weight among the offline cgroups, 1 to 10000; if `None`, the scheduler reads the
    /// cgroup's own weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// For an offline cgroup: hard limit of its CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Quota>,
}

/// All orders of an owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// The owner of the orders. The owner's identifier is the prefix of the names of its cgroups. New orders of one
    /// owner do not change the orders of other owners.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The orders, by the absolute directory of the cgroup in the hierarchy of the cpu controller, without a trailing
    /// slash.
    #[serde(with = "protocol::list")]
    pub groups: BTreeMap<String, Order>,
    /// How long (us) offline threads stay off a core after an expelling thread has left that core. No plan changes this
    /// value.
    #[serde(default)]
    pub hold_off_us: u64,
}

impl Orders {
    /// Summary of the orders, such as `2 offline, 1 online (expel)` or `none`.
    #[must_use]
    pub fn describe(&self) -> String {
        let count = |class: Class| self.groups.values().filter(|order| order.class == class).count();
        let expel = if self.groups.values().any(|order| order.expel) { " (expel)" } else { "" };
        match (count(Class::Offline), count(Class::Online)) {
            (0, 0) => "none".to_owned(),
            (offline, 0) => format!("{offline} offline"),
            (offline, online) => format!("{offline} offline, {online} online{expel}"),
        }
    }

    /// Returns the cgroups whose orders differ between `self` and `to`, each with `+` for added, `-` for removed or `~`
    /// for changed.
    pub fn changes<'a>(&'a self, to: &'a Orders) -> impl Iterator<Item = (char, &'a str)> {
        let come = to.groups.iter().filter_map(|(cgroup, order)| match self.groups.get(cgroup) {
            None => Some(('+', cgroup.as_str())),
            Some(before) => (before != order).then_some(('~', cgroup.as_str())),
        });
        let go = self.groups.keys().filter(|cgroup| !to.groups.contains_key(*cgroup));
        come.chain(go.map(|cgroup| ('-', cgroup.as_str())))
    }
}

/// The state of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The scheduler is being loaded.
    #[default]
    Starting,
    /// The scheduler schedules the offline threads.
    Running,
    /// The scheduler's guard against starvation has frozen the offline groups, because online work leaves them no CPU
    /// time.
    Frozen,
    /// The kernel has unloaded the scheduler; the daemon will load it again.
    Ejected,
    /// The kernel has unloaded the scheduler; the daemon does not load it again.
    GivenUp,
}

impl Mode {
    /// The state as readable text, as shown to users.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Mode::Starting => "starting",
            Mode::Running => "running",
            Mode::Frozen => "offline groups are frozen, because online work leaves them no CPU time",
            Mode::Ejected => {
                "ejected by the kernel, and to be loaded again; meanwhile the fallback is in force"
            }
            Mode::GivenUp => "ejected by the kernel, and not loaded again; the fallback is in force",
        }
    }
}

impl fmt::Display for Mode {
    /// Writes the word for the state in the protocol of the socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Starting => "starting",
            Mode::Running => "running",
            Mode::Frozen => "frozen",
            Mode::Ejected => "ejected",
            Mode::GivenUp => "given-up",
        })
    }
}

/// The state of the scheduler whose socket is in this state directory, as last read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Path of the scheduler's socket.
    pub socket: PathBuf,
    /// State of the scheduler; `None` if no process responds on the socket.
    pub mode: Option<Mode>,
    /// Why commensal cannot use the scheduler; `None` if it can.
    pub obstacle: Option<String>,
    /// The orders in force whose owner is commensal.
    pub orders: Orders,
}

impl Scheduler {
    /// Whether the scheduler's guard against starvation has frozen this offline group. If so, commensal must neither
    /// thaw the group nor treat the freeze as the write of another program.
    #[must_use]
    pub fn has_frozen(&self, cgroup: &str) -> bool {
        let order = self.orders.groups.get(cgroup);
        self.mode == Some(Mode::Frozen) && order.is_some_and(|order| order.class == Class::Offline)
    }

    /// Whether the daemon is about to load the scheduler (again), so that the state will soon change without any action
    /// of commensal.
    #[must_use]
    pub fn is_on_its_way(&self) -> bool {
        matches!(self.mode, Some(Mode::Starting | Mode::Ejected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(groups: &[(&str, Class, bool)]) -> Orders {
        let order = |(path, class, expel): &(&str, Class, bool)| {
            let order = Order { class: *class, expel: *expel, weight: None, limit: None };
            ((*path).to_owned(), order)
        };
        Orders { groups: groups.iter().map(order).collect(), ..Orders::default() }
    }

    #[test]
    fn orders_in_words() {
        assert_eq!(Orders::default().describe(), "none");
        assert_eq!(orders(&[("/a", Class::Offline, false)]).describe(), "1 offline");
        let both = orders(&[("/a", Class::Offline, false), ("/b", Class::Online, true)]);
        assert_eq!(both.describe(), "1 offline, 1 online (expel)");
        let changed = orders(&[("/b", Class::Online, false), ("/c", Class::Offline, false)]);
        let changes: Vec<_> = both.changes(&changed).collect();
        assert_eq!(changes, [('~', "/b"), ('+', "/c"), ('-', "/a")]);
    }

    #[test]
    fn only_offline_groups_of_ours_are_the_guards() {
        let mut found = Scheduler { mode: Some(Mode::Frozen), ..Scheduler::default() };
        found.orders = orders(&[("/a", Class::Offline, false), ("/b", Class::Online, true)]);
        assert!(found.has_frozen("/a") && !found.has_frozen("/b") && !found.has_frozen("/c"));
        found.mode = Some(Mode::Running);
        assert!(!found.has_frozen("/a"));
    }
}
