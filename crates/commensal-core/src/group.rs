//! Workload groups in the user's terms: class, limits, members. No kernel names, no differences between cgroup v1 and
//! v2.

use crate::limit::{LimitSet, Written};
use crate::text::visible;
use crate::topology::Device;
use crate::units::{BytesPerS, Micros, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A group's name: letters, digits, `-` and `_`, at most 64. It becomes a cgroup directory name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

/// Control files of cgroup v1 without a dot in their names: a child group cannot have such a name.
const TAKEN: [&str; 3] = ["tasks", "release_agent", "notify_on_release"];

impl GroupName {
    /// Checks the name.
    ///
    /// # Errors
    /// A sentence that says why the name is not valid.
    pub fn new(name: &str) -> Result<GroupName, String> {
        if name.is_empty() {
            return Err("a group name cannot be empty".to_owned());
        }
        if let Some(bad) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))) {
            return Err(format!(
                "group name {name:?} contains {bad:?}; letters, digits, \"-\" and \"_\" are possible, because the \
                 name becomes a cgroup directory"
            ));
        }
        if name.starts_with('-') || name.len() > 64 {
            return Err(format!("group name {name:?} starts with \"-\" or has more than 64 characters"));
        }
        if TAKEN.contains(&name) {
            return Err(format!("group name {name:?} is the name of a cgroup control file"));
        }
        Ok(GroupName(name.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A group's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Latency-critical; must not be slowed down by offline groups.
    Online,
    /// Batch; uses what online groups leave.
    Offline,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Online => "online",
            Class::Offline => "offline",
        })
    }
}

/// What happens when a group reaches its memory hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExceed {
    /// The kernel kills the largest process of the group (its default).
    KillLargest,
    /// The kernel kills the whole group (`memory.oom.group`, cgroup v2).
    KillGroup,
    /// The agent freezes the group.
    Freeze,
    /// New members wait in the queue.
    Queue,
}

/// The state that a group is left in when the agent dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SafeState {
    /// Class knobs stay, limits on online groups are lifted.
    #[default]
    Protect,
    /// Every original value is restored.
    Restore,
}

/// Whether limits of a group with several cgroups apply to each cgroup or to all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitScope {
    /// The limits apply to each adopted member.
    #[default]
    PerMember,
    /// The limits apply to all members together, which needs a common parent that the group owns.
    Total,
}

/// Whether a group's CPUs are a separate scheduling domain (`cpuset.cpus.partition`, cgroup v2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// No other group runs there; the scheduler balances within.
    Root,
    /// No other group runs there and the scheduler does not balance: for threads that are pinned one by one.
    Isolated,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Partition::Root => "root",
            Partition::Isolated => "isolated",
        })
    }
}

/// Admission queue of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Maximum number of members that run at once.
    pub max_concurrency: u32,
    /// Maximum number of members that wait; more are refused.
    pub max_size: u32,
    /// Longest wait.
    pub timeout: Option<Millis>,
}

impl Queue {
    /// Maximum numbers of running and of waiting members; `None` is unlimited.
    #[must_use]
    pub fn bounds(&self) -> (Option<u32>, Option<u32>) {
        let bound = |limit: u32| Some(limit).filter(|limit| *limit != u32::MAX);
        (bound(self.max_concurrency), bound(self.max_size))
    }
}

/// Quality-of-service class of a pod (Kubernetes, "Pod Quality of Service Classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodQos {
    /// Has no requests or limits.
    BestEffort,
    /// Requests less than its limits.
    Burstable,
    /// Requests all that its limits allow.
    Guaranteed,
}

impl fmt::Display for PodQos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PodQos::BestEffort => "besteffort",
            PodQos::Burstable => "burstable",
            PodQos::Guaranteed => "guaranteed",
        })
    }
}

/// How members are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// cgroup paths; `*` stands for one component or a part of one, `**` for any number.
    Cgroup(glob::Pattern),
    /// A systemd unit or slice by name.
    Systemd(String),
    /// Containers with this label (`key=value`).
    DockerLabel(String),
    /// Containers with this name.
    DockerName(String),
    /// The pods of a Kubernetes quality-of-service class; [`crate::member::is_of_pods`] tells which cgroup that is.
    Kubernetes(PodQos),
    /// Processes with their descendants; every given part must match.
    Process {
        /// Path of the executable, or its last part.
        exe: Option<String>,
        /// User, by name or number.
        user: Option<String>,
        /// Part of the command line.
        cmdline: Option<String>,
    },
}

impl Match {
    /// A pattern that matches the cgroup at this path and no other.
    ///
    /// # Errors
    /// A sentence, when no pattern can express that.
    pub fn exactly(path: &str) -> Result<Match, String> {
        glob::Pattern::new(&glob::Pattern::escape(path)).map(Match::Cgroup).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Cgroup(pattern) => write!(f, "cgroup {}", visible(pattern.as_str())),
            Match::Systemd(unit) => write!(f, "systemd unit {}", visible(unit)),
            Match::DockerLabel(label) => write!(f, "containers with label {}", visible(label)),
            Match::DockerName(name) => write!(f, "container {}", visible(name)),
            Match::Kubernetes(qos) => write!(f, "{qos} pods"),
            Match::Process { exe, user, cmdline } => {
                f.write_str("processes")?;
                for (what, value) in [("exe", exe), ("user", user), ("cmdline", cmdline)] {
                    value.as_ref().map_or(Ok(()), |value| write!(f, " with {what} {}", visible(value)))?;
                }
                Ok(())
            }
        }
    }
}

/// A position in a text, for messages: line and column from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column in characters.
    pub column: usize,
}

/// One group as written by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name of the group.
    pub name: GroupName,
    /// Class of the group.
    pub class: Class,
    /// Limits of the group.
    pub limits: LimitSet<Written>,
    /// What happens when the group reaches its memory hard limit.
    pub on_exceed: Option<OnExceed>,
    /// Disks that the disk limits apply to, to each separately; an empty list means every whole disk of the machine.
    pub disks: Vec<Device>,
    /// Remote-read rate, enforced by the SQL engine.
    pub remote_read: Option<BytesPerS>,
    /// Admission queue, for jobs started by `commensal run` and by the SQL engine.
    pub queue: Option<Queue>,
    /// Keep the SMT sibling of online threads free (noise clean).
    pub expel: bool,
    /// State of the group when the agent dies.
    pub safe_state: SafeState,
    /// Write class knobs also where a container manager writes the weight.
    pub takeover: bool,
    /// Whether limits apply to each member or to all together.
    pub scope: LimitScope,
    /// Target for the time that it takes to get offline work off a CPU for a thread of this group (99th percentile).
    pub target_wakeup_p99: Option<Micros>,
    /// Members.
    pub matches: Vec<Match>,
    /// File and positions of the keys, for messages.
    pub source: Source,
}

/// Where a group was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// File name.
    pub file: String,
    /// Position of each key, such as `memory.max`; the group's own position has the empty key.
    pub positions: BTreeMap<String, Position>,
}

impl Source {
    /// `file:line:column` of a key, or of the group when the key was not written.
    #[must_use]
    pub fn at(&self, key: &str) -> String {
        match self.positions.get(key).or_else(|| self.positions.get("")) {
            Some(position) => format!("{}:{}:{}", visible(&self.file), position.line, position.column),
            None => visible(&self.file).into_owned(),
        }
    }
}

impl GroupSpec {
    /// A group with a class and nothing else.
    #[must_use]
    pub fn new(name: GroupName, class: Class) -> GroupSpec {
        GroupSpec {
            name,
            class,
            limits: LimitSet::default(),
            on_exceed: None,
            disks: Vec::new(),
            remote_read: None,
            queue: None,
            expel: false,
            safe_state: SafeState::default(),
            takeover: false,
            scope: LimitScope::default(),
            target_wakeup_p99: None,
            matches: Vec::new(),
            source: Source::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_directories() {
        for good in ["etl", "a", "web-1", "A_b"] {
            assert!(GroupName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "..", ".", "a b", "-x", "cpu.max", "tasks", "größe", &"x".repeat(65)] {
            assert!(GroupName::new(bad).is_err(), "{bad}");
        }
    }
}
