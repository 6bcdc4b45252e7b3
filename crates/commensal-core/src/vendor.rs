//! Properties of vendors' kernels other than knobs: machine-wide switches, kernel releases that must not be used, and
//! the number of levels of `cpu.qos_level`.
//!
//! Sources: openEuler kernel 5.10 (`kernel/sched/core.c`, `cpu_qos_write`) and rubik's documentation; Anolis kernel
//! 5.10 (`kernel/sched/fair.c`, `update_bvt_warp_ns`) and Alibaba's page on Group Identity. We could not install these
//! kernels for our tests. We put the code of openEuler's scheduling levels and the core of Group Identity onto a Debian
//! kernel of the same version and ran it there ([`crate::knob::Evidence`]). We only read the code of memory levels and
//! of SMT expulsion (offline threads leave the SMT siblings of CPUs that run online threads).

use crate::knob::KnobId;
use std::fmt;

/// A machine-wide kernel setting without which a knob of a vendor's kernel has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// Group Identity of Anolis and Alibaba kernels. Turning it on or off clears the identity of every group, and fails
    /// with EBUSY while core scheduling is in use.
    GroupIdentity,
    /// Memory levels of openEuler's kernel. While the switch is 0, `memory.qos_level` cannot be written and has no
    /// effect.
    MemcgQos,
}

impl Switch {
    /// All switches.
    pub const ALL: [Switch; 2] = [Switch::GroupIdentity, Switch::MemcgQos];

    /// Path of the switch's file.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Switch::GroupIdentity => "/proc/sys/kernel/sched_group_identity_enabled",
            Switch::MemcgQos => "/proc/sys/vm/memcg_qos_enable",
        }
    }

    /// The knob that needs the switch.
    #[must_use]
    pub fn knob(self) -> KnobId {
        match self {
            Switch::GroupIdentity => KnobId::CpuBvtWarpNs,
            Switch::MemcgQos => KnobId::MemoryQosLevel,
        }
    }

    /// The switch that `knob` needs; `None` if the knob needs no switch.
    #[must_use]
    pub fn of(knob: KnobId) -> Option<Switch> {
        Switch::ALL.into_iter().find(|switch| switch.knob() == knob)
    }

    /// The switch with this name, in the form that [`fmt::Display`] writes; `None` for an unknown name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Switch> {
        Switch::ALL.into_iter().find(|switch| switch.to_string() == name)
    }
}

impl Switch {
    /// Returns the switch's name in the form of sysctl(8).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Switch::GroupIdentity => "kernel.sched_group_identity_enabled",
            Switch::MemcgQos => "vm.memcg_qos_enable",
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Value of `cpu.bvt_warp_ns` for an online group: its tasks have high priority, and offline tasks leave the SMT
/// siblings of the CPUs that run tasks of the group.
pub const BVT_ONLINE: i64 = 2;
/// Value of `cpu.bvt_warp_ns` for an offline group.
pub const BVT_OFFLINE: i64 = -1;
/// The flags that the kernel stores in `cpu.identity` for a value of `cpu.bvt_warp_ns`: underclass 1, highclass 2, SMT
/// expeller 4, idle saver 8, idle seeker 16, absolute expeller 32 (5.10, `update_bvt_warp_ns`). A write to
/// `cpu.identity` itself leaves `cpu.bvt_warp_ns` unchanged. So if the flags in `cpu.identity` differ from the result
/// of this function, another program has written them.
#[must_use]
pub fn identity_flags(bvt: i64) -> i64 {
    match bvt {
        3 => 2 | 4 | 16 | 32,
        2 => 2 | 4 | 16,
        1 => 2 | 16,
        -2 | -1 => 1 | 8,
        _ => 0,
    }
}

/// Value of `cpu.qos_level` and `memory.qos_level` for an offline group.
pub const QOS_OFFLINE: i64 = -1;

/// Number of levels of `cpu.qos_level` on this kernel. With either number, the kernel cannot make an offline group
/// online again; to undo the level, commensal moves the members to a fresh group of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosLevels {
    /// Levels -1 and 0; the kernel refuses the change from -1 to 0.
    Two,
    /// Levels -2 to 2 (`CONFIG_QOS_SCHED_MULTILEVEL`); the kernel refuses to change a level other than 0.
    Five,
}

impl QosLevels {
    /// File of a sysctl that exists only on kernels with five levels.
    pub const WEIGHTS: &str = "/proc/sys/kernel/qos_level_weights";
}

impl fmt::Display for QosLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = if *self == QosLevels::Five { "five" } else { "two" };
        write!(f, "{number} levels, irreversible: undo moves the members to a fresh group")
    }
}

/// A machine-wide setting of a vendor's kernel that commensal shows and never writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sysctl {
    /// The name in the form of sysctl(8).
    pub name: &'static str,
    /// Path of the file.
    pub path: &'static str,
    /// The smallest and the largest value that the kernel accepts; `None` if that is not known.
    pub range: Option<(i64, i64)>,
    /// The value after boot.
    pub default: &'static str,
    /// The meaning of the setting, as part of a sentence.
    pub doc: &'static str,
}

/// The settings of openEuler's scheduling levels. The kernel refuses a value outside the range with EINVAL (observed
/// with openEuler's code, 5.10).
pub const QOS_SYSCTLS: [Sysctl; 3] = [
    Sysctl {
        name: "kernel.qos_overload_detect_period_ms",
        path: QOS_PERIOD,
        range: Some((100, 100_000)),
        default: "5000",
        doc: "how long a CPU is busy with online work until its offline tasks may leave the kernel",
    },
    Sysctl {
        name: "kernel.qos_offline_wait_interval_ms",
        path: "/proc/sys/kernel/qos_offline_wait_interval_ms",
        range: Some((100, 1000)),
        default: "100",
        doc: "how often such a task checks whether it may run",
    },
    Sysctl {
        name: "kernel.qos_level_weights",
        path: QosLevels::WEIGHTS,
        range: None,
        default: "1 10 100 1000 10000",
        doc: "weights of the levels -2 to 2, with five levels only",
    },
];

/// File of a sysctl that every kernel with openEuler's scheduling levels has.
pub const QOS_PERIOD: &str = "/proc/sys/kernel/qos_overload_detect_period_ms";

/// Why Group Identity must not be used on a kernel of this release (`uname -r`); `None` if it may be used.
///
/// Versions from Alibaba's page "Group Identity feature": 4.19.91-25.1 to 25.5 can crash the machine; in 4.19.91-26 to
/// 26.3, 5.10.112-11 to 11.2 and 5.10.134-12 to 12.2 the feature is compiled in but off.
#[must_use]
pub fn identity_obstacle(release: &str) -> Option<String> {
    type Build = (u32, u32);
    const BAD: [(&str, Build, Build, &str); 4] = [
        ("4.19.91", (25, 1), (25, 5), "can crash the machine with Group Identity"),
        ("4.19.91", (26, 0), (26, 3), "has Group Identity compiled in but always off"),
        ("5.10.112", (11, 0), (11, 2), "has Group Identity compiled in but always off"),
        ("5.10.134", (12, 0), (12, 2), "has Group Identity compiled in but always off"),
    ];
    let (base, rest) = release.split_once('-')?;
    let mut numbers = rest.split('.').map_while(|word| word.parse::<u32>().ok());
    let build = (numbers.next()?, numbers.next().unwrap_or(0));
    let found = BAD.iter().find(|(of, first, last, _)| *of == base && (*first..=*last).contains(&build));
    found.map(|(_, first, last, what)| {
        format!(
            "kernel {release} {what} (Alibaba lists {base}-{}.{} to {}.{})",
            first.0, first.1, last.0, last.1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_are_refused() {
        let refused = |release: &str| identity_obstacle(release).is_some();
        for bad in [
            "4.19.91-25.1.al7.x86_64",
            "4.19.91-25.5.an8.aarch64",
            "4.19.91-26.al7.x86_64",
            "4.19.91-26.3.al7.x86_64",
            "5.10.112-11.al8.x86_64",
            "5.10.112-11.2.al8.x86_64",
            "5.10.134-12.2.al8.x86_64",
        ] {
            assert!(refused(bad), "{bad}");
        }
        for good in [
            "4.19.91-24.8.al7.x86_64",
            "4.19.91-25.6.al7.x86_64",
            "4.19.91-25.al7.x86_64",
            "4.19.91-26.4.al7.x86_64",
            "5.10.134-13.al8.x86_64",
            "5.10.134-16.1.al8.x86_64",
            "6.18.0",
            "",
        ] {
            assert!(!refused(good), "{good}");
        }
        assert!(identity_obstacle("4.19.91-25.3.al7").unwrap().contains("crash the machine"));
    }

    #[test]
    fn switches_and_their_knobs() {
        for switch in Switch::ALL {
            assert_eq!(Switch::of(switch.knob()), Some(switch));
            assert_eq!(Switch::from_name(&switch.to_string()), Some(switch));
            assert!(switch.path().ends_with(switch.to_string().rsplit('.').next().unwrap()));
        }
    }
}
