//! The sched_ext scheduler as seen by a plan: its reported state, and the orders for its groups.
//!
//! The scheduler is a separate program that listens on a socket (`docs/reference/sched-control.md`); a plan has at most
//! one step for it, which contains all orders of one owner. The same types are sent over the socket; [`protocol`] has
//! the rest of the messages.

pub mod protocol;

use crate::group::Class;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Name of the scheduler's socket in the state directory.
pub const SOCKET: &str = "sched.sock";

/// CPU time that a group may use in each period. The kernel does not enforce `cpu.max` on threads of a sched_ext scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Quota, us.
    pub quota_us: u64,
    /// Period, us.
    #[serde(default = "default_period_us")]
    pub period_us: u64,
}

/// The default period of `cpu.max`.
fn default_period_us() -> u64 {
    100_000
}

/// The order for one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Offline threads are scheduled by sched_ext; online ones stay with the kernel's default class. An unknown word
    /// makes the whole request invalid.
    pub class: Class,
    /// Online: offline threads leave the SMT siblings of a CPU that runs a thread of this group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expel: bool,
    /// Offline: share against other offline groups; without one the scheduler reads the group's weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Offline: hard limit of CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Quota>,
}

/// All orders of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// The owner: the prefix of its cgroups' names. Orders of other owners stay unchanged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Orders by absolute directory in the hierarchy of the cpu controller, without a trailing slash.
    #[serde(with = "protocol::list")]
    pub groups: BTreeMap<String, Order>,
    /// How long SMT siblings stay free after an expelling thread has left the core, us. No plan changes it.
    #[serde(default)]
    pub hold_off_us: u64,
}

impl Orders {
    /// `2 offline, 1 online (expel)`; `none`.
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

    /// The differences between these orders and `to`, cgroup by cgroup: `+` for added, `-` for removed, `~` for
    /// changed.
    pub fn changes<'a>(&'a self, to: &'a Orders) -> impl Iterator<Item = (char, &'a str)> {
        let come = to.groups.iter().filter_map(|(cgroup, order)| match self.groups.get(cgroup) {
            None => Some(('+', cgroup.as_str())),
            Some(before) => (before != order).then_some(('~', cgroup.as_str())),
        });
        let go = self.groups.keys().filter(|cgroup| !to.groups.contains_key(*cgroup));
        come.chain(go.map(|cgroup| ('-', cgroup.as_str())))
    }
}

/// State of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It is being loaded.
    #[default]
    Starting,
    /// It schedules the offline threads.
    Running,
    /// Its guard has frozen the offline groups, because online work leaves them no CPU time.
    Frozen,
    /// The kernel has unloaded it, and it will be loaded again.
    Ejected,
    /// The kernel has unloaded it, and it stays unloaded.
    GivenUp,
}

impl Mode {
    /// The state in words, as shown to users.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Mode::Starting => "starting",
            Mode::Running => "running",
            Mode::Frozen => "offline groups are frozen: online work leaves them nothing",
            Mode::Ejected => "taken off by the kernel, to be loaded again; the fallback holds",
            Mode::GivenUp => "taken off by the kernel for good; the fallback holds",
        }
    }
}

impl fmt::Display for Mode {
    /// The word used on the socket.
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

/// The scheduler of this state directory, as found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Path of its socket.
    pub socket: PathBuf,
    /// Its state; `None` when nothing answers on the socket.
    pub mode: Option<Mode>,
    /// Why it cannot be used; `None` when it can.
    pub obstacle: Option<String>,
    /// The orders of commensal's owner that are in force.
    pub orders: Orders,
}

impl Scheduler {
    /// Whether the scheduler's guard has frozen this offline group: then commensal must neither thaw it nor treat the
    /// freeze as a second writer.
    #[must_use]
    pub fn has_frozen(&self, cgroup: &str) -> bool {
        let order = self.orders.groups.get(cgroup);
        self.mode == Some(Mode::Frozen) && order.is_some_and(|order| order.class == Class::Offline)
    }

    /// Whether its state will soon change by itself.
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
