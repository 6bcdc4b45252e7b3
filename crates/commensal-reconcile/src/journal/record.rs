//! The records of a journal, and its owner.

use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::{Host, HostError, below};
use commensal_sensors::machine;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The process that wrote a journal, and its boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// `machine`, `run` or `lab`.
    pub kind: String,
    /// PID of the owner.
    pub pid: u32,
    /// Start time of the owner in clock ticks since boot.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`; cgroups do not survive a boot.
    pub boot_id: String,
}

impl Owner {
    /// This process, as the owner of a journal of this name.
    ///
    /// # Errors
    /// When the process's identity cannot be read.
    pub fn this_process(host: &mut dyn Host, name: &str) -> Result<Owner, HostError> {
        let pid = std::process::id();
        let start_ticks = host.process(pid)?.start_ticks;
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let kind = name.split('-').next().unwrap_or(name).to_owned();
        Ok(Owner { kind, pid, start_ticks, boot_id })
    }

    /// Whether the owner is still running; another process that reused its PID does not count, nor does a zombie.
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
    /// Path below it.
    pub path: String,
    /// Inode of the directory.
    pub inode: u64,
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// First line: the journal's owner.
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
        /// The group.
        group: Target,
        /// v2 name of the controller.
        controller: String,
    },
    /// A machine-wide switch is about to be changed for the first time.
    Switching {
        /// Its name, as sysctl(8) spells it.
        switch: String,
        /// Value to write to restore it.
        value: String,
    },
    /// The threads of a group that commensal did not create are about to get a core-scheduling cookie.
    Cookied(Target),
    /// The scheduler is about to get an order for a cgroup.
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
        /// Start time of the thread, clock ticks since boot.
        start_ticks: u64,
        /// CPUs that it may use before the change, as a list.
        cpus: String,
    },
    /// Threads are about to become `SCHED_EXT`.
    Scheduling,
    /// A thread without the normal policy is about to become `SCHED_EXT`.
    Policy {
        /// TID of the thread.
        tid: u32,
        /// Start time of the thread, clock ticks since boot.
        start_ticks: u64,
        /// Its original policy.
        policy: i32,
    },
    /// A group is about to be replaced by a fresh one of the same name. The previous release wrote `renewing`.
    #[serde(alias = "renewing")]
    Recreating(Target),
    /// A process is about to be moved into a commensal group.
    Moving {
        /// PID of the process.
        pid: u32,
        /// Start time of the process, clock ticks since boot.
        start_ticks: u64,
        /// Its process group, by which children that outlive it are recognised.
        pgrp: u32,
        /// The match that selected it.
        by: String,
        /// Its current groups, one per hierarchy.
        from: Vec<Target>,
        /// Its new groups.
        to: Vec<Target>,
    },
    /// A process was moved.
    Moved {
        /// PID of the process.
        pid: u32,
        /// Start time of the process.
        start_ticks: u64,
    },
    /// A knob of a group that commensal did not create is about to be written for the first time.
    Original {
        /// The group.
        group: Target,
        /// commensal's name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write to restore it.
        value: String,
    },
    /// The safe value of a knob, for when no agent runs; a later record of the same knob replaces it.
    Safe {
        /// The group.
        group: Target,
        /// commensal's name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write.
        value: String,
        /// Whether the group is online: those are written first.
        online: bool,
    },
}

impl Record {
    /// The directory of the cgroup that the scheduler has an order for.
    #[must_use]
    pub fn ordered(&self) -> Option<String> {
        let Record::Ordering { mount, path, .. } = self else { return None };
        Some(below(Path::new(mount), path).display().to_string())
    }

    /// The process that the record is about.
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
