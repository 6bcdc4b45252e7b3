//! What a line of a journal says, and who wrote it.

use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::{Host, HostError, below};
use commensal_sensors::machine;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Who wrote a journal, and in which boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// `machine`, `run` or `lab`.
    pub kind: String,
    /// Process number of the owner.
    pub pid: u32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`; cgroups do not survive a boot.
    pub boot_id: String,
}

impl Owner {
    /// This process, as the owner of a journal of this name.
    ///
    /// # Errors
    /// When the process cannot be looked at.
    pub fn this_process(host: &mut dyn Host, name: &str) -> Result<Owner, HostError> {
        let pid = std::process::id();
        let start_ticks = host.process(pid)?.start_ticks;
        let boot_id = machine::boot_id(host).unwrap_or_default();
        let kind = name.split('-').next().unwrap_or(name).to_owned();
        Ok(Owner { kind, pid, start_ticks, boot_id })
    }

    /// Whether it is still there; a process that has its number by now is another one, and one that is dead and stays in the
    /// table until its parent looks does nothing any more.
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

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// First line: whose journal this is.
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
        /// Value to write to put it back.
        value: String,
    },
    /// The threads of somebody else's group are about to get a core-scheduling cookie.
    Cookied(Target),
    /// The scheduler is about to be told of a cgroup.
    Ordering {
        /// In whose name.
        owner: String,
        /// Mount point of the hierarchy of the cpu controller.
        mount: String,
        /// Path of the cgroup.
        path: String,
    },
    /// A thread is about to be kept to other CPUs.
    Affinity {
        /// Its number.
        tid: u32,
        /// Its start time, clock ticks since boot.
        start_ticks: u64,
        /// CPUs that it may use until then, as a list.
        cpus: String,
    },
    /// Threads are about to become `SCHED_EXT`.
    Scheduling,
    /// A thread with a policy of its own is about to become `SCHED_EXT`.
    Policy {
        /// Its number.
        tid: u32,
        /// Its start time, clock ticks since boot.
        start_ticks: u64,
        /// That policy.
        policy: i32,
    },
    /// A group is about to be replaced by a fresh one of the same name. The release before wrote `renewing`.
    #[serde(alias = "renewing")]
    Recreating(Target),
    /// A process is about to be moved into groups of ours.
    Moving {
        /// Its number.
        pid: u32,
        /// Its start time, clock ticks since boot.
        start_ticks: u64,
        /// Its process group: what it starts and leaves behind is known by it.
        pgrp: u32,
        /// The match that took it.
        by: String,
        /// Where it is, one per hierarchy.
        from: Vec<Target>,
        /// Where it goes.
        to: Vec<Target>,
    },
    /// It was moved.
    Moved {
        /// Its number.
        pid: u32,
        /// Its start time.
        start_ticks: u64,
    },
    /// A knob of somebody else's group is about to be written for the first time.
    Original {
        /// The group.
        group: Target,
        /// Our name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write to put it back.
        value: String,
    },
    /// What a knob is to be when nobody looks after the machine; a later one of the same knob stands for it.
    Safe {
        /// The group.
        group: Target,
        /// Our name of the knob.
        knob: String,
        /// Kernel file.
        file: String,
        /// Device, if the file has one line per device.
        device: Option<String>,
        /// Text to write.
        value: String,
        /// Whether it is of an online group: those come first.
        online: bool,
    },
}

impl Record {
    /// The directory that the scheduler was told of.
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
