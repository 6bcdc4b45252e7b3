//! What vendors' kernels need besides a knob: machine-wide switches, kernel releases that must not be used, and the
//! number of levels of `cpu.qos_level`.
//!
//! Sources: openEuler kernel 5.10 (`kernel/sched/core.c`, `cpu_qos_write`) and rubik's documentation;
//! Anolis kernel 5.10 (`kernel/sched/fair.c`, `update_bvt_warp_ns`) and Alibaba's page on Group Identity.
//! Documented, not observed: no such kernel could be booted for our tests.

use crate::knob::KnobId;
use std::fmt;

/// A machine-wide kernel setting without which a vendor's knob does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// Anolis/Alibaba: turning it on or off clears the identity of every group; EBUSY while core scheduling
    /// is in use.
    GroupIdentity,
    /// openEuler: while it is 0, `memory.qos_level` cannot be written and has no effect.
    MemcgQos,
}

impl Switch {
    /// Every switch.
    pub const ALL: [Switch; 2] = [Switch::GroupIdentity, Switch::MemcgQos];

    /// Path of the switch's file.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Switch::GroupIdentity => "/proc/sys/kernel/sched_group_identity_enabled",
            Switch::MemcgQos => "/proc/sys/vm/memcg_qos_enable",
        }
    }

    /// The knob that needs it.
    #[must_use]
    pub fn knob(self) -> KnobId {
        match self {
            Switch::GroupIdentity => KnobId::CpuBvtWarpNs,
            Switch::MemcgQos => KnobId::MemoryQosLevel,
        }
    }

    /// The switch that `knob` needs.
    #[must_use]
    pub fn of(knob: KnobId) -> Option<Switch> {
        Switch::ALL.into_iter().find(|switch| switch.knob() == knob)
    }

    /// The switch with this name, as [`fmt::Display`] spells it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Switch> {
        Switch::ALL.into_iter().find(|switch| switch.to_string() == name)
    }
}

impl fmt::Display for Switch {
    /// The switch's name as sysctl(8) spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Switch::GroupIdentity => "kernel.sched_group_identity_enabled",
            Switch::MemcgQos => "vm.memcg_qos_enable",
        })
    }
}

/// Identity of an online group: high class, and offline tasks leave its SMT sibling.
pub const BVT_ONLINE: i64 = 2;
/// Identity of an offline group.
pub const BVT_OFFLINE: i64 = -1;
/// `cpu.qos_level` and `memory.qos_level` of an offline group.
pub const QOS_OFFLINE: i64 = -1;

/// Abilities of `cpu.qos_level` on this kernel, tested in a scratch group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosLevels {
    /// Whether it has the levels -2 to 2; otherwise only -1 and 0.
    pub five: bool,
    /// Whether an offline group can be made online again. Where it cannot, undo moves the members to a fresh group of
    /// the same name.
    pub reversible: bool,
}

impl fmt::Display for QosLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.five, self.reversible) {
            (true, true) => "five levels, reversible",
            (true, false) => "five levels, irreversible: undo moves the members to a fresh group",
            (false, true) => "two levels, reversible",
            (false, false) => "two levels, irreversible: undo moves the members to a fresh group",
        })
    }
}

/// Why Group Identity must not be used on a kernel of this release (`uname -r`), if so.
///
/// Versions from Alibaba's page "Group Identity feature": 4.19.91-25.1 to 25.5 can crash the machine; in 4.19.91-26 to
/// 26.3, 5.10.112-11 to 11.2 and 5.10.134-12 to 12.2 the feature is compiled in but off.
#[must_use]
pub fn identity_obstacle(release: &str) -> Option<String> {
    type Build = (u32, u32);
    const BAD: [(&str, Build, Build, &str); 4] = [
        ("4.19.91", (25, 1), (25, 5), "can bring the machine down"),
        ("4.19.91", (26, 0), (26, 3), "has it switched off for good"),
        ("5.10.112", (11, 0), (11, 2), "has it switched off for good"),
        ("5.10.134", (12, 0), (12, 2), "has it switched off for good"),
    ];
    let (base, rest) = release.split_once('-')?;
    let mut numbers = rest.split('.').map_while(|word| word.parse::<u32>().ok());
    let build = (numbers.next()?, numbers.next().unwrap_or(0));
    let found = BAD.iter().find(|(of, first, last, _)| *of == base && (*first..=*last).contains(&build));
    found.map(|(_, first, last, what)| {
        format!(
            "kernel {release} {what} with Group Identity (Alibaba lists {base}-{}.{} to {}.{})",
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
        assert!(identity_obstacle("4.19.91-25.3.al7").unwrap().contains("bring the machine down"));
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
