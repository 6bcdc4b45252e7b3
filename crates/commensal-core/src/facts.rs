//! Facts about the running kernel on which plans rely: statements such as "a quota of 10 % of a CPU holds". Each fact
//! states how we know it, and which result a trial on a real kernel must have. `commensal doctor --prove` carries out
//! the trials in scratch cgroups (`commensal-lab`, `prove`); this module only describes them.
//!
//! This module has no facts about the default, the form and the permission of each knob's file (a knob is a kernel
//! setting of a cgroup). `doctor --prove` derives the trials of these properties from the rows of the knob table.

use crate::knob::{Evidence, KnobId, Version};
use crate::process::{SCHED_BATCH, SCHED_NORMAL};
use crate::vendor::{BVT_OFFLINE, BVT_ONLINE, QOS_OFFLINE, QosLevels};

/// The features of a kernel that decide which facts apply to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Number of levels of `cpu.qos_level`; `None` if the kernel does not have this file.
    pub levels: Option<QosLevels>,
    /// Whether `cpu.bvt_warp_ns` can be used.
    pub ranks: bool,
    /// Whether `ID_ABSOLUTE_EXPEL` is on: Group Identity then keeps offline groups off a CPU on which an online group
    /// runs.
    pub absolute: bool,
}

/// The kernels to which a fact applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldsOn {
    /// All kernels that have the knobs of the fact.
    Any,
    /// openEuler's kernel, with any number of levels.
    Levels,
    /// openEuler's kernel with this number of levels.
    LevelsOf(QosLevels),
    /// Kernels with Group Identity (`cpu.bvt_warp_ns`).
    Ranks,
    /// Kernels with Group Identity, while `ID_ABSOLUTE_EXPEL` is off.
    RanksByWeight,
}

impl HoldsOn {
    /// Whether the fact applies to this kernel.
    #[must_use]
    pub fn holds(self, kernel: &Kernel) -> bool {
        match self {
            HoldsOn::Any => true,
            HoldsOn::Levels => kernel.levels.is_some(),
            HoldsOn::LevelsOf(levels) => kernel.levels == Some(levels),
            HoldsOn::Ranks => kernel.ranks,
            HoldsOn::RanksByWeight => kernel.ranks && !kernel.absolute,
        }
    }
}

/// One operation of a trial of a file fact; some operations have an expected answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Writes the first text to the knob's file; the answer is what the file then reads, or the name of the error
    /// number. The second text is the expected answer.
    Write(KnobId, &'static str, &'static str),
    /// Reads the knob's file; the text is the expected answer.
    Read(KnobId, &'static str),
    /// Creates a child cgroup, which all later operations use.
    Child,
    /// Starts a process in the cgroup. The operation has no answer.
    Start,
    /// Gives the started process this scheduling policy, as the process itself could. The operation has no answer.
    SetPolicy(i32),
    /// Moves the started process into the cgroup of the current operations. The operation has no answer.
    Enter,
    /// Moves the started process into the first cgroup of the trial. The operation has no answer.
    Leave,
    /// Reads the scheduling policy of the started process; the text is the expected answer, a name from sched(7).
    Policy(&'static str),
}

impl Op {
    /// The expected answer; `None` if the operation has no expected answer.
    #[must_use]
    pub fn expected(self) -> Option<&'static str> {
        match self {
            Op::Write(_, _, answer) | Op::Read(_, answer) | Op::Policy(answer) => Some(answer),
            Op::Child | Op::Start | Op::SetPolicy(_) | Op::Enter | Op::Leave => None,
        }
    }
}

/// A fact about files: operations in a fresh cgroup, with the expected answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFact {
    /// The fact, as a sentence without a full stop.
    pub says: &'static str,
    /// How we know the fact.
    pub evidence: Evidence,
    /// The kernels to which the fact applies.
    pub on: HoldsOn,
    /// The operations.
    pub ops: &'static [Op],
}

/// A value that a trial of a fact about CPU time writes to a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// This number.
    Number(i64),
    /// The smallest weight in the cgroup version in use.
    SmallestWeight,
}

impl Amount {
    /// The number that the trial writes; the smallest weight depends on the cgroup version.
    #[must_use]
    pub fn number(self, version: Version) -> i64 {
        match (self, version) {
            (Amount::Number(number), _) => number,
            (Amount::SmallestWeight, Version::V1) => 2,
            (Amount::SmallestWeight, Version::V2) => 1,
        }
    }
}

/// The scheduling policy of a process of a trial, which computes without pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// The policy with which the process was started, unchanged.
    Started,
    /// `SCHED_IDLE` from the start.
    Idle,
    /// `SCHED_OTHER`, set after the process has entered its cgroup.
    SetNormal,
}

/// One side of a fact about CPU time: one or more cgroups with the same settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareSide {
    /// Settings of each cgroup of this side.
    pub settings: &'static [(KnobId, Amount)],
    /// Scheduling policy of the processes in these cgroups.
    pub tasks: Tasks,
    /// Number of cgroups of this side, each with one process.
    pub groups: usize,
}

const fn side(settings: &'static [(KnobId, Amount)]) -> ShareSide {
    ShareSide { settings, tasks: Tasks::Started, groups: 1 }
}

/// A fact about CPU time: processes in sibling cgroups compute without pause on the same CPU, and the two sides get
/// certain shares of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShareFact {
    /// The fact, as a sentence without a full stop.
    pub says: &'static str,
    /// How we know the fact.
    pub evidence: Evidence,
    /// The kernels to which the fact applies.
    pub on: HoldsOn,
    /// The side whose share the trial measures.
    pub first: ShareSide,
    /// The side that competes with the first side for the CPU.
    pub other: ShareSide,
    /// The smallest and the largest share that the first side may get of the CPU time of both sides, in per cent.
    pub percent: (f64, f64),
}

impl FileFact {
    /// The expected answers of all operations, as text.
    #[must_use]
    pub fn expected(&self) -> String {
        self.ops.iter().filter_map(|op| op.expected()).collect::<Vec<_>>().join(", ")
    }
}

impl ShareFact {
    /// The expected share, as text.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.percent {
            (0.0, most) => format!("at most {most} %"),
            (least, 100.0) => format!("at least {least} %"),
            (least, most) => format!("{least} to {most} %"),
        }
    }

    /// Whether a measured share (per cent) agrees with the fact.
    #[must_use]
    pub fn agrees(&self, percent: f64) -> bool {
        (self.percent.0..=self.percent.1).contains(&percent)
    }

    /// The knobs that the fact sets.
    pub fn knobs(&self) -> impl Iterator<Item = KnobId> {
        self.first.settings.iter().chain(self.other.settings).map(|(knob, _)| *knob)
    }
}

/// Mainline kernels on which our tests run.
pub const MAINLINE: Evidence = Evidence::Observed("Linux 6.18");
const EULER: Evidence = Evidence::Observed("openEuler's code, 5.10");
const ALIBABA: Evidence = Evidence::Observed("the core of Alibaba's scheduler code, 5.10");
const ALIBABA_READ: Evidence = Evidence::Documented("Anolis' kernel 5.10, kernel/sched/fair.c");

const RANK: KnobId = KnobId::CpuBvtWarpNs;
const FLAGS: KnobId = KnobId::CpuIdentity;
const LEVEL: KnobId = KnobId::CpuQosLevel;

/// The facts about files.
pub static FILES: &[FileFact] = &[
    FileFact {
        says: "cpu.qos_level -1 is final and makes tasks SCHED_IDLE",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Read(LEVEL, "0"),
            Op::Start,
            Op::Policy("SCHED_OTHER"),
            Op::Write(LEVEL, "-1", "-1"),
            Op::Write(LEVEL, "-1", "-1"),
            Op::Policy("SCHED_IDLE"),
            Op::Write(LEVEL, "0", "EINVAL"),
        ],
    },
    FileFact {
        says: "a child of a group at cpu.qos_level -1 has the same level",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Write(LEVEL, "-1", "-1"),
            Op::Child,
            Op::Read(LEVEL, "-1"),
            Op::Write(LEVEL, "0", "EINVAL"),
            Op::Write(LEVEL, "-1", "-1"),
        ],
    },
    FileFact {
        says: "cpu.qos_level refuses text, and numbers of too many digits",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Write(LEVEL, "x", "EINVAL"),
            Op::Write(LEVEL, "-1x", "EINVAL"),
            Op::Write(LEVEL, "12345678901234567890", "ERANGE"),
            Op::Read(LEVEL, "0"),
        ],
    },
    FileFact {
        says: "cpu.qos_level -1 makes a SCHED_BATCH task SCHED_IDLE, too",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Start,
            Op::SetPolicy(SCHED_BATCH),
            Op::Policy("SCHED_BATCH"),
            Op::Write(LEVEL, "-1", "-1"),
            Op::Policy("SCHED_IDLE"),
        ],
    },
    FileFact {
        says: "a task at cpu.qos_level -1 that sets another policy keeps it",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Start,
            Op::Write(LEVEL, "-1", "-1"),
            Op::SetPolicy(SCHED_NORMAL),
            Op::Policy("SCHED_OTHER"),
            Op::Write(LEVEL, "-1", "-1"),
            Op::Policy("SCHED_OTHER"),
        ],
    },
    FileFact {
        says: "a task that enters a group at cpu.qos_level -1 becomes SCHED_IDLE, and stays so when it leaves",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Start,
            Op::Child,
            Op::Write(LEVEL, "-1", "-1"),
            Op::Policy("SCHED_OTHER"),
            Op::Enter,
            Op::Policy("SCHED_IDLE"),
            Op::Leave,
            Op::Policy("SCHED_IDLE"),
        ],
    },
    FileFact {
        says: "weight and quota can be written at cpu.qos_level -1",
        evidence: EULER,
        on: HoldsOn::Levels,
        ops: &[
            Op::Write(LEVEL, "-1", "-1"),
            Op::Write(KnobId::CpuWeight, "512", "512"),
            Op::Write(KnobId::CpuMax, "50000", "50000"),
            Op::Read(LEVEL, "-1"),
        ],
    },
    FileFact {
        says: "two levels: cpu.qos_level takes -1 and 0, without blanks",
        evidence: EULER,
        on: HoldsOn::LevelsOf(QosLevels::Two),
        ops: &[
            Op::Write(LEVEL, "1", "EINVAL"),
            Op::Write(LEVEL, "-2", "EINVAL"),
            Op::Write(LEVEL, " 0", "EINVAL"),
            Op::Write(LEVEL, "0x0", "0"),
        ],
    },
    FileFact {
        says: "five levels: a cpu.qos_level above 0 is final, too",
        evidence: EULER,
        on: HoldsOn::LevelsOf(QosLevels::Five),
        ops: &[
            Op::Write(LEVEL, "3", "EINVAL"),
            Op::Write(LEVEL, "2", "2"),
            Op::Write(LEVEL, "1", "EINVAL"),
            Op::Write(LEVEL, "0", "EINVAL"),
        ],
    },
    FileFact {
        says: "cpu.bvt_warp_ns takes -2 to 3 and stands for flags in cpu.identity",
        evidence: ALIBABA,
        on: HoldsOn::Ranks,
        ops: &[
            Op::Write(RANK, "-3", "ERANGE"),
            Op::Write(RANK, "4", "ERANGE"),
            Op::Write(RANK, "2", "2"),
            Op::Read(FLAGS, "22"),
            Op::Write(RANK, "-1", "-1"),
            Op::Read(FLAGS, "9"),
            Op::Write(RANK, "0", "0"),
            Op::Read(FLAGS, "0"),
        ],
    },
    FileFact {
        says: "cpu.bvt_warp_ns 3 exists",
        evidence: ALIBABA_READ,
        on: HoldsOn::Ranks,
        ops: &[Op::Write(RANK, "3", "3"), Op::Read(FLAGS, "54"), Op::Write(RANK, "0", "0")],
    },
    FileFact {
        says: "a new child copies cpu.bvt_warp_ns, a later write does not reach it",
        evidence: ALIBABA,
        on: HoldsOn::Ranks,
        ops: &[Op::Write(RANK, "-1", "-1"), Op::Child, Op::Read(RANK, "-1"), Op::Write(RANK, "0", "0")],
    },
    FileFact {
        says: "a write to cpu.identity succeeds, but cpu.bvt_warp_ns does not show it",
        evidence: ALIBABA_READ,
        on: HoldsOn::Ranks,
        ops: &[
            Op::Write(FLAGS, "4096", "ERANGE"),
            Op::Write(FLAGS, "3", "EINVAL"),
            Op::Write(FLAGS, "4", "4"),
            Op::Read(RANK, "0"),
            Op::Write(FLAGS, "0", "0"),
        ],
    },
];

/// The facts about CPU time. The trials begin with the first fact: if two equal cgroups do not share a CPU evenly, the
/// other results mean little.
pub static SHARES: &[ShareFact] = &[
    ShareFact {
        says: "two groups of the same weight share a CPU evenly",
        evidence: MAINLINE,
        on: HoldsOn::Any,
        first: side(&[]),
        other: side(&[]),
        percent: (40.0, 60.0),
    },
    ShareFact {
        says: "share of a group with the smallest cpu.weight beside one with the default weight",
        evidence: MAINLINE,
        on: HoldsOn::Any,
        first: side(&[(KnobId::CpuWeight, Amount::SmallestWeight)]),
        other: side(&[]),
        percent: (0.0, 3.0),
    },
    ShareFact {
        says: "share of a group with cpu.idle 1 beside one with the default weight",
        evidence: MAINLINE,
        on: HoldsOn::Any,
        first: side(&[(KnobId::CpuIdle, Amount::Number(1))]),
        other: side(&[]),
        percent: (0.0, 3.0),
    },
    ShareFact {
        says: "share of a group at cpu.qos_level -1 beside one at level 0",
        evidence: EULER,
        on: HoldsOn::Levels,
        first: side(&[(LEVEL, Amount::Number(QOS_OFFLINE))]),
        other: side(&[]),
        percent: (0.0, 1.0),
    },
    ShareFact {
        says: "share of a group at cpu.qos_level -1 beside online work that is SCHED_IDLE and so not preferred",
        evidence: EULER,
        on: HoldsOn::Levels,
        first: side(&[(LEVEL, Amount::Number(QOS_OFFLINE))]),
        other: ShareSide { settings: &[], tasks: Tasks::Idle, groups: 1 },
        percent: (4.0, 100.0),
    },
    ShareFact {
        says: "share of a group at cpu.qos_level -1 whose member has set another policy and is not throttled",
        evidence: EULER,
        on: HoldsOn::Levels,
        first: ShareSide {
            settings: &[(LEVEL, Amount::Number(QOS_OFFLINE))],
            tasks: Tasks::SetNormal,
            groups: 1,
        },
        other: side(&[]),
        percent: (4.0, 100.0),
    },
    ShareFact {
        says: "groups at cpu.qos_level -1 share by weight: 256 beside 1024",
        evidence: EULER,
        on: HoldsOn::Levels,
        first: side(&[(KnobId::CpuWeight, Amount::Number(256)), (LEVEL, Amount::Number(QOS_OFFLINE))]),
        other: side(&[(LEVEL, Amount::Number(QOS_OFFLINE))]),
        percent: (12.0, 30.0),
    },
    ShareFact {
        says: "five levels: share of a group at cpu.qos_level -2 beside one at level -1",
        evidence: EULER,
        on: HoldsOn::LevelsOf(QosLevels::Five),
        first: side(&[(LEVEL, Amount::Number(-2))]),
        other: side(&[(LEVEL, Amount::Number(QOS_OFFLINE))]),
        percent: (4.0, 20.0),
    },
    ShareFact {
        says: "five levels: share of a group at cpu.qos_level 0 beside one at level 2",
        evidence: EULER,
        on: HoldsOn::LevelsOf(QosLevels::Five),
        first: side(&[]),
        other: side(&[(LEVEL, Amount::Number(2))]),
        percent: (0.0, 5.0),
    },
    ShareFact {
        says: "cpu.bvt_warp_ns -1 beside one group at 2: Group Identity alone shares by the weights",
        evidence: ALIBABA,
        on: HoldsOn::RanksByWeight,
        first: side(&[(RANK, Amount::Number(BVT_OFFLINE))]),
        other: side(&[(RANK, Amount::Number(BVT_ONLINE))]),
        percent: (40.0, 60.0),
    },
    ShareFact {
        says: "share of a group at cpu.bvt_warp_ns -1, with the smallest weight, beside one group at 2",
        evidence: ALIBABA,
        on: HoldsOn::Ranks,
        first: side(&[(RANK, Amount::Number(BVT_OFFLINE)), (KnobId::CpuWeight, Amount::SmallestWeight)]),
        other: side(&[(RANK, Amount::Number(BVT_ONLINE))]),
        percent: (0.0, 3.0),
    },
    ShareFact {
        says: "share of a group at cpu.bvt_warp_ns -1 beside two groups at 2",
        evidence: ALIBABA,
        on: HoldsOn::Ranks,
        first: side(&[(RANK, Amount::Number(BVT_OFFLINE))]),
        other: ShareSide {
            settings: &[(RANK, Amount::Number(BVT_ONLINE))],
            tasks: Tasks::Started,
            groups: 2,
        },
        percent: (0.0, 3.0),
    },
    ShareFact {
        says: "share of a group at cpu.bvt_warp_ns -1 beside one group at 3",
        evidence: ALIBABA_READ,
        on: HoldsOn::Ranks,
        first: side(&[(RANK, Amount::Number(BVT_OFFLINE))]),
        other: side(&[(RANK, Amount::Number(3))]),
        percent: (0.0, 3.0),
    },
];

/// A fact about the effect of a limit on a process that computes without pause in the limited cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitFact {
    /// The limit is a quota of a tenth of a CPU.
    Quota,
    /// The limit is a set of one CPU.
    Cpus,
    /// The cgroup is frozen.
    Frozen,
}

impl LimitFact {
    /// All facts about the effect of a limit.
    pub const ALL: [LimitFact; 3] = [LimitFact::Quota, LimitFact::Cpus, LimitFact::Frozen];
    /// The quota, in per cent of a CPU.
    pub const QUOTA_PERCENT: i64 = 10;
    /// The largest use of a CPU, in per cent, that agrees with the quota. It exceeds the quota because the kernel hands
    /// out the quota in slices.
    pub const QUOTA_AT_MOST: f64 = 15.0;

    /// The fact, as a sentence without a full stop.
    #[must_use]
    pub fn says(self) -> &'static str {
        match self {
            LimitFact::Quota => "a quota of 10 % of a CPU holds",
            LimitFact::Cpus => "a process in a cpuset of one CPU runs there",
            LimitFact::Frozen => "a frozen process uses no CPU time",
        }
    }

    /// The knob that sets the limit.
    #[must_use]
    pub fn knob(self) -> KnobId {
        match self {
            LimitFact::Quota => KnobId::CpuMax,
            LimitFact::Cpus => KnobId::CpusetCpus,
            LimitFact::Frozen => KnobId::CgroupFreeze,
        }
    }
}

/// A fact about a process that *starves*: its group is at `cpu.qos_level` -1, and a process at level 0 keeps the only CPU
/// that it may use busy. Observed with openEuler's code, 5.10, with two and with five levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StarvingFact {
    /// The process does not handle a signal; it does when it is at level 0.
    Handler,
    /// SIGKILL ends the process.
    Kill,
    /// The v1 freezer cannot freeze the process; it can when the process is at level 0.
    Freezer,
    /// After the overload period the process still gets no CPU time, and the kernel's figures do not show that it waits.
    Overload,
}

impl StarvingFact {
    /// All facts about a starving process; the one that takes longest is the last.
    pub const ALL: [StarvingFact; 4] =
        [StarvingFact::Handler, StarvingFact::Kill, StarvingFact::Freezer, StarvingFact::Overload];
    /// How we know these facts.
    pub const EVIDENCE: Evidence = EULER;

    /// The fact, as a sentence without a full stop.
    #[must_use]
    pub fn says(self) -> &'static str {
        match self {
            StarvingFact::Handler => {
                "a task at cpu.qos_level -1 beside a busy one handles SIGTERM only once it is at level 0"
            }
            StarvingFact::Kill => "SIGKILL ends a task at cpu.qos_level -1 beside a busy one",
            StarvingFact::Freezer => {
                "a task at cpu.qos_level -1 beside a busy one can be frozen only once it is at level 0"
            }
            StarvingFact::Overload => {
                "after the overload period, a task at cpu.qos_level -1 waits in state D, without run delay"
            }
        }
    }

    /// The result that agrees with the fact, as text.
    #[must_use]
    pub fn expected(self) -> &'static str {
        match self {
            StarvingFact::Handler => "runs on, then exits",
            StarvingFact::Kill => "exits",
            StarvingFact::Freezer => "FREEZING, then FROZEN",
            StarvingFact::Overload => "state D, at most 1 % of a CPU, at most 10 % run delay",
        }
    }

    /// Whether state, CPU time and run delay (both in per cent of the time) agree with [`StarvingFact::Overload`].
    #[must_use]
    pub fn agrees(is_in_state_d: bool, ran_percent: f64, delay_percent: f64) -> bool {
        is_in_state_d && ran_percent <= 1.0 && delay_percent <= 10.0
    }
}

/// Name of a scheduling policy as in sched(7), such as `SCHED_IDLE`. A number that has no name in this function is
/// returned as digits.
#[must_use]
pub fn policy_name(policy: i32) -> String {
    match policy {
        0 => "SCHED_OTHER".to_owned(),
        1 => "SCHED_FIFO".to_owned(),
        2 => "SCHED_RR".to_owned(),
        3 => "SCHED_BATCH".to_owned(),
        5 => "SCHED_IDLE".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: [Kernel; 4] = [
        Kernel { levels: None, ranks: false, absolute: false },
        Kernel { levels: Some(QosLevels::Two), ranks: false, absolute: false },
        Kernel { levels: Some(QosLevels::Five), ranks: false, absolute: false },
        Kernel { levels: None, ranks: true, absolute: true },
    ];

    /// Every knob that a mechanism relies on has a fact that is tried wherever the kernel has the knob.
    #[test]
    fn every_rung_of_the_ladder_has_a_fact() {
        for knob in [KnobId::CpuWeight, KnobId::CpuIdle, LEVEL, RANK] {
            let tried = SHARES.iter().any(|fact| fact.first.settings.iter().any(|(one, _)| *one == knob));
            assert!(tried, "{knob}");
        }
    }

    #[test]
    fn facts_are_told_once_and_are_about_some_kernel() {
        let says: std::collections::BTreeSet<&str> =
            FILES.iter().map(|fact| fact.says).chain(SHARES.iter().map(|fact| fact.says)).collect();
        assert_eq!(says.len(), FILES.len() + SHARES.len());
        let ranks = Kernel { ranks: true, ..Kernel::default() };
        for on in FILES.iter().map(|fact| fact.on).chain(SHARES.iter().map(|fact| fact.on)) {
            assert!(KERNELS.iter().chain([&ranks]).any(|kernel| on.holds(kernel)), "{on:?}");
        }
        assert!(!HoldsOn::RanksByWeight.holds(&KERNELS[3]) && HoldsOn::RanksByWeight.holds(&ranks));
        assert!(!HoldsOn::LevelsOf(QosLevels::Two).holds(&KERNELS[2]) && HoldsOn::Levels.holds(&KERNELS[2]));
    }

    #[test]
    fn starvation_agrees_within_its_bounds() {
        assert!(StarvingFact::agrees(true, 0.1, 0.0));
        for (in_d, ran, delay) in [(false, 0.1, 0.0), (true, 1.1, 0.0), (true, 0.1, 94.0)] {
            assert!(!StarvingFact::agrees(in_d, ran, delay), "{in_d} {ran} {delay}");
        }
    }

    #[test]
    fn parts_agree_within_their_bounds() {
        let even = &SHARES[0];
        assert_eq!(even.expected(), "40 to 60 %");
        assert!(even.agrees(50.2) && !even.agrees(0.2));
        let smallest = &SHARES[1];
        assert_eq!(smallest.expected(), "at most 3 %");
        assert!(smallest.agrees(0.0) && !smallest.agrees(50.0));
        let told = SHARES.iter().find(|fact| fact.percent.1 == 100.0).unwrap();
        assert_eq!(told.expected(), "at least 4 %");
    }
}
