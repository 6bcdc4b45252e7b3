//! The sched_ext scheduler as a plan sees it: what it says of itself, and what it is told of groups.
//!
//! It is a program of its own that answers at a socket (`docs/reference/sched-control.md`); a plan has at most one step
//! for it, which says all that one owner wants. The same types go over the socket; [`protocol`] is what else its text has.

pub mod protocol;

use crate::group::Class;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Name of its socket in the state directory.
pub const SOCKET: &str = "sched.sock";

/// CPU time that a group may use in each period. The kernel does not enforce `cpu.max` on threads of a sched_ext scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// us.
    pub quota_us: u64,
    /// us.
    #[serde(default = "default_period_us")]
    pub period_us: u64,
}

/// That of `cpu.max`.
fn default_period_us() -> u64 {
    100_000
}

/// What the scheduler is told of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Offline threads are the scheduler's; online ones stay with the kernel's own. A word that this program does not know is
    /// an error of the whole request.
    pub class: Class,
    /// Online: offline threads leave the siblings of a CPU that runs one of this group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expel: bool,
    /// Offline: share against other offline groups; without one the scheduler reads the group's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Offline: hard limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Quota>,
}

/// All that one owner wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// Who orders: the prefix of its cgroups' names. The orders of others stay as they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// By absolute directory in the hierarchy of the cpu controller, without a slash at the end.
    #[serde(with = "protocol::list")]
    pub groups: BTreeMap<String, Order>,
    /// For how long a thread of a core stays free after an expelling one has left it, us. No plan changes it.
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

    /// What makes other orders of these, cgroup by cgroup: `+` for a new one, `-` for one that goes, `~` for a changed one.
    pub fn changes<'a>(&'a self, to: &'a Orders) -> impl Iterator<Item = (char, &'a str)> {
        let come = to.groups.iter().filter_map(|(cgroup, order)| match self.groups.get(cgroup) {
            None => Some(('+', cgroup.as_str())),
            Some(before) => (before != order).then_some(('~', cgroup.as_str())),
        });
        let go = self.groups.keys().filter(|cgroup| !to.groups.contains_key(*cgroup));
        come.chain(go.map(|cgroup| ('-', cgroup.as_str())))
    }
}

/// What it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On its way.
    #[default]
    Starting,
    /// It has the offline threads.
    Running,
    /// Its guard has frozen the offline groups, because online work leaves them nothing.
    Frozen,
    /// The kernel has taken it off, and it will be loaded again.
    Ejected,
    /// The kernel has taken it off, and it stays off.
    GivenUp,
}

impl Mode {
    /// For people.
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
    /// The word of the socket.
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

/// The scheduler of this state directory as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Where it listens.
    pub socket: PathBuf,
    /// What it does; `None` when nobody answers there.
    pub mode: Option<Mode>,
    /// Why it cannot be used; `None` when it can.
    pub obstacle: Option<String>,
    /// The orders of our owner that are in force.
    pub orders: Orders,
}

impl Scheduler {
    /// Whether offline groups under its orders stand still by its guard's hand: they are neither to be thawed nor is this
    /// somebody who writes our knobs.
    #[must_use]
    pub fn has_frozen(&self, cgroup: &str) -> bool {
        let order = self.orders.groups.get(cgroup);
        self.mode == Some(Mode::Frozen) && order.is_some_and(|order| order.class == Class::Offline)
    }

    /// Whether it will be something else before long without anybody's doing.
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
