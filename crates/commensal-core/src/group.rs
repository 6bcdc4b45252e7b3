//! Workload groups in the user's terms: class, limits and members. Kernel names and the differences between cgroup v1
//! and v2 do not appear here.

use crate::limit::{LimitSet, Written};
use crate::text::{toml, visible};
use crate::topology::Device;
use crate::units::{BytesPerS, CpuAmount, Micros, Millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A group's name: letters, digits, `-` and `_`, at most 64 characters. It becomes the name of a cgroup directory.
/// Copies of a name share the memory of its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Arc<str>);

/// Names without a dot that cgroup v1 gives to control files; a child group cannot have such a name.
pub(crate) const TAKEN: [&str; 3] = ["tasks", "release_agent", "notify_on_release"];

impl GroupName {
    /// Checks that the name is valid.
    ///
    /// # Errors
    /// Returns a sentence that states why the name is invalid.
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
        Ok(GroupName(name.into()))
    }

    /// The name as a string.
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

/// The class of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Latency-critical work, which offline groups must not slow down.
    Online,
    /// Batch work, which uses the resources that online groups leave.
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

/// The reaction when a group reaches its memory hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExceed {
    /// The kernel kills the largest process of the group (its default).
    KillLargest,
    /// The kernel kills the whole group (`memory.oom.group`, cgroup v2).
    KillGroup,
    /// The agent freezes the group.
    Freeze,
    /// New jobs wait in the group's admission queue.
    Queue,
}

/// The state that a group is left in when the agent dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SafeState {
    /// Class knobs keep their values; limits on online groups are removed.
    #[default]
    Protect,
    /// Every original value is restored.
    Restore,
}

/// Whether the limits of a group with several cgroups apply to each cgroup or to all of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LimitScope {
    /// The limits apply to each adopted member.
    #[default]
    PerMember,
    /// The limits apply to all members together; this requires a common parent cgroup that belongs to the group.
    Total,
}

/// Kind of CPU partition that makes a group's CPUs a separate scheduling domain (`cpuset.cpus.partition`, cgroup v2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// No other group runs on the CPUs; the scheduler balances the group's threads among them.
    Root,
    /// No other group runs on the CPUs, and the scheduler does not balance: for threads that are pinned individually.
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

/// Limits of a group's admission queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Maximum number of jobs that run simultaneously.
    pub max_concurrency: u32,
    /// Maximum number of jobs that wait; further jobs are refused.
    pub max_size: u32,
    /// Maximum wait of a job; `None` for no limit.
    pub timeout: Option<Millis>,
}

impl Queue {
    /// Maximum numbers of running and of waiting jobs; `None` is unlimited.
    #[must_use]
    pub fn bounds(&self) -> (Option<u32>, Option<u32>) {
        let bound = |limit: u32| Some(limit).filter(|limit| *limit != u32::MAX);
        (bound(self.max_concurrency), bound(self.max_size))
    }
}

/// Quality-of-service class of a pod (Kubernetes documentation, "Pod Quality of Service Classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodQos {
    /// The pod has no requests and no limits.
    BestEffort,
    /// The pod requests less than its limits allow.
    Burstable,
    /// The pod requests as much as its limits allow.
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

/// A condition that selects members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Cgroups by path. In the path, `*` stands for one component or a part of a component, `**` for any number of
    /// components.
    Cgroup(glob::Pattern),
    /// A systemd unit or slice by name.
    Systemd(String),
    /// Containers with this label (`key=value`).
    DockerLabel(String),
    /// Containers with this name.
    DockerName(String),
    /// The pods of a Kubernetes quality-of-service class; [`crate::member::is_of_pods`] identifies their cgroups.
    Kubernetes(PodQos),
    /// Processes and their descendants. A process must satisfy every condition that is not `None`.
    Process {
        /// Path of the executable, or the last component of the path.
        exe: Option<String>,
        /// User of the process, by name or number.
        user: Option<String>,
        /// Text that the process's command line must contain.
        cmdline: Option<String>,
    },
}

impl Match {
    /// Creates a match of exactly the cgroup at this path.
    ///
    /// # Errors
    /// Returns a sentence if the path cannot be expressed as a pattern.
    pub fn exactly(path: &str) -> Result<Match, String> {
        glob::Pattern::new(&glob::Pattern::escape(path)).map(Match::Cgroup).map_err(|error| error.to_string())
    }

    /// The match as it is written in a groups file, an inline table of TOML.
    #[must_use]
    pub fn in_file(&self) -> String {
        match self {
            Match::Cgroup(pattern) => format!("{{ cgroup = {} }}", toml(pattern.as_str())),
            Match::Systemd(unit) => format!("{{ systemd = {} }}", toml(unit)),
            Match::DockerLabel(label) => format!("{{ docker-label = {} }}", toml(label)),
            Match::DockerName(name) => format!("{{ docker-name = {} }}", toml(name)),
            Match::Kubernetes(qos) => format!("{{ kubernetes = \"{qos}\" }}"),
            Match::Process { exe, user, cmdline } => {
                let parts = [("exe", exe), ("user", user), ("cmdline", cmdline)];
                let part = |(key, value): (&str, &Option<String>)| {
                    Some(format!("{key} = {}", toml(value.as_ref()?)))
                };
                format!(
                    "{{ process = {{ {} }} }}",
                    parts.into_iter().filter_map(part).collect::<Vec<_>>().join(", ")
                )
            }
        }
    }
}

/// A match of exactly this cgroup as it is written in a groups file, for messages.
#[must_use]
pub fn of_cgroup(path: &str) -> String {
    Match::exactly(path).map_or_else(|_| format!("{{ cgroup = {} }}", toml(path)), |one| one.in_file())
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

/// A position in a file, for messages; line and column are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, counted from 1.
    pub line: usize,
    /// Column, in characters from 1.
    pub column: usize,
}

/// A group as written by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name of the group.
    pub name: GroupName,
    /// Class of the group.
    pub class: Class,
    /// Limits of the group.
    pub limits: LimitSet<Written>,
    /// The reaction when the group reaches its memory hard limit.
    pub on_exceed: Option<OnExceed>,
    /// Disks to which the disk limits apply, to each of them separately; an empty list means every whole disk of the
    /// machine.
    pub disks: Vec<Device>,
    /// Maximum rate of remote reads, which the SQL engine enforces.
    pub remote_read: Option<BytesPerS>,
    /// Admission queue, for jobs started by `commensal run` and by the SQL engine.
    pub queue: Option<Queue>,
    /// Whether the kernel or the scheduler keeps the group's threads off SMT siblings of CPUs that run online threads
    /// (noise clean).
    pub expel: bool,
    /// The state that the group is left in when the agent dies.
    pub safe_state: SafeState,
    /// Whether commensal writes kernel settings even where a manager (systemd, a container manager) claims to be the
    /// only writer.
    pub takeover: bool,
    /// Whether limits apply to each member or to all members together.
    pub scope: LimitScope,
    /// Target for the group's preemption delay, the time from the wake-up of a thread of this group on a CPU that runs
    /// offline work until that work has left the CPU. The 99th percentile of these delays must not exceed the target.
    pub target_wakeup_p99: Option<Micros>,
    /// CPU time that the agent gives the group while the group starves. A group starves if its tasks get no CPU time
    /// because its `cpu.qos_level` is below 0.
    pub min_share: Option<CpuAmount>,
    /// Conditions that select the group's members.
    pub matches: Vec<Match>,
    /// Position of the group and its keys in the file, for messages.
    pub source: Source,
}

/// Position of a group in its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// File name.
    pub file: String,
    /// Position of each key, such as `memory.max`; for the empty key, the position of the group itself.
    pub positions: BTreeMap<String, Position>,
}

impl Source {
    /// Place of a key, or of the group if the key is absent.
    #[must_use]
    pub fn at(&self, key: &str) -> SourcePlace {
        let position = self.positions.get(key).or_else(|| self.positions.get(""));
        SourcePlace { file: self.file.clone(), position: position.copied() }
    }
}

/// A place in a file, for messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourcePlace {
    /// File name.
    pub file: String,
    /// Position in the file; `None` for the file as a whole.
    pub position: Option<Position>,
}

impl fmt::Display for SourcePlace {
    /// Writes `file:line:column`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&visible(&self.file))?;
        self.position.map_or(Ok(()), |at| write!(f, ":{}:{}", at.line, at.column))
    }
}

impl GroupSpec {
    /// Creates a group that has a class but no other settings.
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
            min_share: None,
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
