//! The records of a journal, and the journal's owner. Most records are written before the change that they describe;
//! `Created` and `Moved` follow it. What a record means to the journal, to the marks, to `apply` and to `restore` is in
//! the file of its kind in `steps`.

use commensal_core::actual::{ActualState, CgroupPath, CgroupRef};
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_core::text;
use commensal_host::{Host, HostError, Scheduling, below};
use commensal_sensors::machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The process that wrote a journal, and its boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// `machine`, `run`, `sched` or `lab`.
    pub kind: String,
    /// PID of the owner.
    pub pid: u32,
    /// Start time of the owner in clock ticks since boot.
    pub start_ticks: u64,
    /// Content of `/proc/sys/kernel/random/boot_id`; cgroups do not survive a boot.
    pub boot_id: String,
}

impl Owner {
    /// Returns this process as the owner of a journal of this name.
    ///
    /// # Errors
    /// Returns an error when the process's identity cannot be read.
    pub fn this_process(host: &mut dyn Host, name: &str) -> Result<Owner, HostError> {
        let pid = std::process::id();
        let start_ticks = host.process(pid)?.start_ticks;
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let kind = name.split('-').next().unwrap_or(name).to_owned();
        Ok(Owner { kind, pid, start_ticks, boot_id })
    }

    /// Whether the owner is still running. A zombie counts as exited, and so does an owner whose PID another process
    /// has reused.
    pub fn runs(&self, host: &mut dyn Host) -> bool {
        host.process(self.pid).is_ok_and(|process| process.start_ticks == self.start_ticks)
            && !self.is_dead(host)
    }

    fn is_dead(&self, host: &dyn Host) -> bool {
        let stat = host.read_file(Path::new(&format!("/proc/{}/stat", self.pid))).unwrap_or_default();
        Stat::parse(&stat).is_some_and(|stat| stat.has_ended())
    }
}

/// A cgroup by mount point, path and inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Mount point of the hierarchy.
    pub mount: String,
    /// Path of the cgroup below the mount point.
    pub path: String,
    /// Inode of the directory.
    pub inode: u64,
}

/// Prefix of the name of a group for lifted members (moved temporarily out of a group below level 0); the inode of the
/// members' own group follows.
pub(crate) const LIFTED: &str = "commensal-lifted-";

impl Target {
    /// The group's directory.
    pub(crate) fn place(&self) -> PathBuf {
        below(Path::new(&self.mount), &self.path)
    }

    /// The group's directory, for people.
    pub(crate) fn shown(&self) -> String {
        text::path(&self.place())
    }

    /// Returns the cgroup, if the same one still exists.
    pub(crate) fn find(&self, actual: &ActualState) -> Option<CgroupRef> {
        let hierarchy = actual.hierarchies.iter().position(|hierarchy| hierarchy.mount == self.mount)?;
        let place = CgroupRef { hierarchy, path: CgroupPath::new(&self.path) };
        let is_same = actual.cgroups.get(&place).is_some_and(|found| found.inode == self.inode);
        is_same.then_some(place)
    }

    /// Whether a group at this path can contain the lifted members of this group.
    pub(crate) fn lifts_to(&self, path: &str) -> bool {
        let Some((above, name)) = path.rsplit_once('/') else { return false };
        let inside = self.path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
        inside && name == format!("{LIFTED}{}", self.inode)
    }
}

/// A group is about to be created; its inode is not known yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Creating {
    /// Mount point.
    pub mount: String,
    /// Path.
    pub path: String,
}

/// A group was created.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Created(pub Target);

/// A controller is about to be enabled for a group's children.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Enabling {
    /// The group whose children get the controller.
    pub group: Target,
    /// v2 name of the controller.
    pub controller: String,
}

/// A machine-wide switch is about to be changed for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Switching {
    /// Name of the switch, as sysctl(8) spells it.
    pub switch: String,
    /// Value to write to restore the switch.
    pub value: String,
}

/// The threads of a group that commensal did not create are about to get a core-scheduling cookie.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cookied(pub Target);

/// The scheduler is about to get an order, the configuration of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ordering {
    /// Owner of the order.
    pub owner: String,
    /// Mount point of the hierarchy of the cpu controller.
    pub mount: String,
    /// Path of the cgroup.
    pub path: String,
}

/// A thread is about to be pinned to other CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Affinity {
    /// TID of the thread.
    pub tid: u32,
    /// Start time of the thread, in clock ticks since boot.
    pub start_ticks: u64,
    /// CPUs that the thread may use before the change, as a list.
    pub cpus: String,
}

/// A thread without the normal policy is about to become `SCHED_EXT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// TID of the thread.
    pub tid: u32,
    /// Start time of the thread, in clock ticks since boot.
    pub start_ticks: u64,
    /// Original policy of the thread.
    pub policy: i32,
}

/// A thread is about to become `SCHED_IDLE`, because the level (`cpu.qos_level`) of its present or future group is
/// below 0, or `SCHED_OTHER`, because its group gets a level above 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The group that the thread is in or enters.
    pub group: Target,
    /// TID of the thread.
    pub tid: u32,
    /// Start time of the thread, in clock ticks since boot.
    pub start_ticks: u64,
    /// Original scheduling attributes of the thread.
    pub scheduling: Scheduling,
}

impl Member {
    /// The thread, by TID and start time.
    pub(crate) fn thread(&self) -> (u32, u64) {
        (self.tid, self.start_ticks)
    }
}

/// Members of a group below level 0 are about to be moved temporarily into a group that commensal creates. All
/// processes in that group belong to the members' own group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lifting {
    /// The group that the members belong to.
    pub group: Target,
    /// Path of the group that contains the members while they are lifted.
    pub to: String,
}

/// A group is about to be replaced by a fresh one of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recreating(pub Target);

/// A process is about to be moved into a commensal group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Moving {
    /// PID of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Process group of the process, by which `restore` recognises children that outlive the process.
    pub pgrp: u32,
    /// The match that selected the process.
    pub by: String,
    /// The process's current groups, one per hierarchy.
    pub from: Vec<Target>,
    /// The process's new groups.
    pub to: Vec<Target>,
}

/// A process was moved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Moved {
    /// PID of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
}

/// A knob of a group that commensal did not create is about to be written for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Original {
    /// The group that has the knob.
    pub group: Target,
    /// commensal's name of the knob.
    pub knob: String,
    /// Kernel file.
    pub file: String,
    /// Device, if the file has one line per device.
    pub device: Option<String>,
    /// Text to write to the file to set the value.
    pub value: String,
}

/// A knob of one particular group: the group, the knob's name, and the device.
pub(crate) type Key = (Target, String, Option<String>);

impl Original {
    pub(crate) fn key(&self) -> Key {
        (self.group.clone(), self.knob.clone(), self.device.clone())
    }
}

/// The safe value of a knob, which must be in force when no agent runs. A later record of the same knob replaces it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Safe {
    /// The knob and the value.
    #[serde(flatten)]
    pub setting: Original,
    /// Whether the group is online: values of online groups are written first.
    pub online: bool,
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each kind of record says what it is")]
pub enum Record {
    /// The journal's owner; always the first line.
    Owner(Owner),
    Creating(Creating),
    Created(Created),
    Enabling(Enabling),
    Switching(Switching),
    Cookied(Cookied),
    Ordering(Ordering),
    Affinity(Affinity),
    /// Threads are about to become `SCHED_EXT`.
    Scheduling,
    Policy(Policy),
    Member(Member),
    Lifting(Lifting),
    Recreating(Recreating),
    Moving(Moving),
    Moved(Moved),
    Original(Original),
    Safe(Safe),
}

impl Record {
    /// Returns the process in the record; `None` for records without a process.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Record::Moving(Moving { pid, start_ticks, .. }) | Record::Moved(Moved { pid, start_ticks }) => {
                Some(ProcessId { pid: *pid, start_ticks: *start_ticks })
            }
            _ => None,
        }
    }

    /// Whether the record is about one of these threads in groups below level 0.
    pub(crate) fn is_member(&self, threads: &BTreeSet<(u32, u64)>) -> bool {
        matches!(self, Record::Member(member) if threads.contains(&member.thread()))
    }

    /// Returns the original or safe value in the record.
    pub(crate) fn setting(&self) -> Option<&Original> {
        match self {
            Record::Original(setting) | Record::Safe(Safe { setting, .. }) => Some(setting),
            _ => None,
        }
    }

    /// Returns the groups that a record contains, and that may be replaced by fresh ones. The group with the mark of the
    /// record is the first one.
    pub(crate) fn groups_mut(&mut self) -> Vec<&mut Target> {
        match self {
            Record::Created(Created(group))
            | Record::Cookied(Cookied(group))
            | Record::Enabling(Enabling { group, .. })
            | Record::Member(Member { group, .. })
            | Record::Original(Original { group, .. })
            | Record::Safe(Safe { setting: Original { group, .. }, .. }) => vec![group],
            Record::Moving(Moving { from, to, .. }) => to.iter_mut().chain(from).collect(),
            _ => Vec::new(),
        }
    }
}
