//! The records of a journal, and the journal's owner. Most records are written before the change that they describe;
//! `Created` and `Moved` follow it.

use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::{Host, HostError, Scheduling, below};
use commensal_sensors::machine;
use serde::{Deserialize, Serialize};
use std::path::Path;

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
    /// Whether a group at this path can contain the lifted members of this group.
    pub(crate) fn lifts_to(&self, path: &str) -> bool {
        let Some((above, name)) = path.rsplit_once('/') else { return false };
        let inside = self.path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
        inside && name == format!("{LIFTED}{}", self.inode)
    }
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The journal's owner; always the first line.
    Owner(Owner),
    /// A group is about to be created; its inode is not known yet.
    Creating {
        /// Mount point.
        mount: String,
        /// Path.
        path: String,
    },
    /// A group was created.
    Created(Target),
    /// A controller is about to be enabled for a group's children.
    Enabling {
        /// The group whose children get the controller.
        group: Target,
        /// v2 name of the controller.
        controller: String,
    },
    /// A machine-wide switch is about to be changed for the first time.
    Switching {
        /// Name of the switch, as sysctl(8) spells it.
        switch: String,
        /// Value to write to restore the switch.
        value: String,
    },
    /// The threads of a group that commensal did not create are about to get a core-scheduling cookie.
    Cookied(Target),
    /// The scheduler is about to get an order, the configuration of one cgroup.
    Ordering {
        /// Owner of the order.
        owner: String,
        /// Mount point of the hierarchy of the cpu controller.
        mount: String,
        /// Path of the cgroup.
        path: String,
    },
    /// A thread is about to be pinned to other CPUs.
    Affinity {
        /// TID of the thread.
        tid: u32,
        /// Start time of the thread, in clock ticks since boot.
        start_ticks: u64,
        /// CPUs that the thread may use before the change, as a list.
        cpus: String,
    },
    /// Threads are about to become `SCHED_EXT`.
    Scheduling,
    /// A thread without the normal policy is about to become `SCHED_EXT`.
    Policy {
        /// TID of the thread.
        tid: u32,
        /// Start time of the thread, in clock ticks since boot.
        start_ticks: u64,
        /// Original policy of the thread.
        policy: i32,
    },
    /// A thread is about to become `SCHED_IDLE`, because the level (`cpu.qos_level`) of its present or future group is
    /// below 0, or `SCHED_OTHER`, because its group gets a level above 0.
    Member {
        /// The group that the thread is in or enters.
        group: Target,
        /// TID of the thread.
        tid: u32,
        /// Start time of the thread, in clock ticks since boot.
        start_ticks: u64,
        /// Original scheduling attributes of the thread.
        scheduling: Scheduling,
    },
    /// Members of a group below level 0 are about to be moved temporarily into a group that commensal creates. All
    /// processes in that group belong to the members' own group.
    Lifting {
        /// The group that the members belong to.
        group: Target,
        /// Path of the group that contains the members while they are lifted.
        to: String,
    },
    /// A group is about to be replaced by a fresh one of the same name.
    Recreating(Target),
    /// A process is about to be moved into a commensal group.
    Moving {
        /// PID of the process.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start_ticks: u64,
        /// Process group of the process, by which `restore` recognises children that outlive the process.
        pgrp: u32,
        /// The match that selected the process.
        by: String,
        /// The process's current groups, one per hierarchy.
        from: Vec<Target>,
        /// The process's new groups.
        to: Vec<Target>,
    },
    /// A process was moved.
    Moved {
        /// PID of the process.
        pid: u32,
        /// Start time of the process, in clock ticks since boot.
        start_ticks: u64,
    },
    /// A knob of a group that commensal did not create is about to be written for the first time.
    Original {
        /// The group that has the knob.
        group: Target,
        /// commensal's name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write to the file to restore the original value.
        value: String,
    },
    /// The safe value of a knob, which must be in force when no agent runs. A later record of the same knob replaces
    /// it.
    Safe {
        /// The group that has the knob.
        group: Target,
        /// commensal's name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write to the file to set the safe value.
        value: String,
        /// Whether the group is online: values of online groups are written first.
        online: bool,
    },
}

impl Record {
    /// Returns the directory of the cgroup that the order is for; `None` for other records.
    #[must_use]
    pub fn ordered(&self) -> Option<String> {
        let Record::Ordering { mount, path, .. } = self else { return None };
        Some(below(Path::new(mount), path).display().to_string())
    }

    /// Returns the process in the record; `None` for records without a process.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Record::Moving { pid, start_ticks, .. } | Record::Moved { pid, start_ticks } => {
                Some(ProcessId { pid: *pid, start_ticks: *start_ticks })
            }
            _ => None,
        }
    }
}
