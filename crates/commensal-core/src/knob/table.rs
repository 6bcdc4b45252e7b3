//! The rows of the knob table. Files, ranges and meanings of error numbers are taken from the kernel
//! (Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, kernel/sched/core.c, kernel/cgroup/cpuset.c,
//! mm/memcontrol*.c, block/blk-throttle.c). The conformance script of `commensal-host` tests every row marked `Driven`.

use super::{
    Controller, ErrnoMeaning, Evidence, File, Form, Knob, KnobOrder, KnobStatus, Normalise, Property, Scope,
    Vendor,
};
use crate::errno::Errno;

macro_rules! knobs {
    ($($id:ident { $($field:ident : $value:expr),* $(,)? })*) => {
        /// Identifier of a row of [`TABLE`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "the row documents itself")]
        pub enum KnobId { $($id),* }

        /// Every knob, in the order of [`KnobId`].
        #[allow(clippy::needless_update, reason = "some rows set every field")]
        pub static TABLE: &[Knob] = &[$(Knob { id: KnobId::$id, $($field: $value,)* ..BLANK }),*];
    };
}

const BLANK: Knob = Knob {
    id: KnobId::CpuWeight,
    name: "",
    controller: Controller::Core,
    unit: "",
    v1: None,
    v2: None,
    vendor: None,
    scope: Scope::NonRoot,
    order: KnobOrder::Free,
    status: KnobStatus::Shown,
    systemd: Property::None,
    errnos: &[],
    doc: "",
};

const TOP: i64 = i64::MAX;
/// `PAGE_COUNTER_MAX` (bytes): the value of a v1 memory file that sets no limit.
const MEMORY_TOP: i64 = 9_223_372_036_854_771_712;

const fn file(name: &'static str, form: Form, range: (i64, i64), default: &'static str) -> Option<File> {
    Some(File { name, form, range, default, normalise: Normalise::Exact })
}
const fn clamped(name: &'static str, range: (i64, i64), default: &'static str) -> Option<File> {
    Some(File { name, form: Form::Number, range, default, normalise: Normalise::Clamp })
}
const fn flag(name: &'static str, default: &'static str) -> Option<File> {
    file(name, Form::Number, (0, 1), default)
}
const fn list(name: &'static str) -> Option<File> {
    Some(File { name, form: Form::List, range: (0, 65_535), default: "", normalise: Normalise::Canonical })
}
/// v1 memory limit: bytes; `-1` means no limit.
const fn pages1(name: &'static str) -> Option<File> {
    let range = (0, MEMORY_TOP);
    Some(File {
        name,
        form: Form::MinusOne,
        range,
        default: "9223372036854771712",
        normalise: Normalise::PageDown,
    })
}
/// v2 memory limit: bytes, or `max` for no limit.
const fn pages2(name: &'static str, default: &'static str) -> Option<File> {
    let range = (0, MEMORY_TOP);
    Some(File { name, form: Form::MaxWord, range, default, normalise: Normalise::PageDown })
}
const fn device1(name: &'static str) -> Option<File> {
    file(name, Form::DeviceNumber, (1, TOP), "")
}
const fn device2(name: &'static str, key: &'static str) -> Option<File> {
    file(name, Form::DeviceKey(key), (1, TOP), "")
}
/// v1 limit of operations per second. The range ends at 32 bits: of a larger number the kernel silently keeps the low
/// 32 bits (5000000000 reads back as 705032704, measured on 6.18).
const fn device1_iops(name: &'static str) -> Option<File> {
    file(name, Form::DeviceNumber, (1, 4_294_967_294), "")
}
const fn opaque(name: &'static str) -> Option<File> {
    file(name, Form::Opaque, (0, TOP), "")
}
const fn trigger(name: &'static str) -> Option<File> {
    file(name, Form::Trigger, (0, TOP), "")
}
const fn meaning(errno: Errno, because: &'static str, try_this: &'static str) -> ErrnoMeaning {
    ErrnoMeaning { errno, because, try_this }
}

const WEIGHT_ERRNOS: &[ErrnoMeaning] = &[
    meaning(
        Errno::EINVAL,
        "cpu.idle is 1 in this group, and the kernel refuses its weight while a group is idle",
        "leave cpu.weight out of an offline group, or set class = \"online\"",
    ),
    meaning(Errno::ERANGE, "the kernel takes weights from 1 to 10000", "choose a weight in that range"),
];
const QUOTA_ERRNOS: &[ErrnoMeaning] = &[meaning(
    Errno::EINVAL,
    "the quota is under 1 ms, or (cgroup v1) above the parent's or under a child's share of CPU",
    "widen the parent's limit, or lower the children's first",
)];
const IDLE_ERRNOS: &[ErrnoMeaning] =
    &[meaning(Errno::EINVAL, "cpu.idle takes 0 or 1, and not in the root group", "use a child group")];
const CPUS_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::EACCES, "the set is not within the parent's cpuset", "widen the parent's cpuset first"),
    meaning(
        Errno::EBUSY,
        "a child group still uses a CPU that the new set lacks",
        "narrow the child's cpuset first",
    ),
    meaning(
        Errno::ENOSPC,
        "the group has processes and the set would be empty",
        "move the processes out first",
    ),
    meaning(Errno::ERANGE, "the list names CPUs that this kernel cannot have", "name only CPUs that exist"),
    meaning(
        Errno::EINVAL,
        "no CPU of the list is online, or an exclusive sibling has them",
        "name free CPUs",
    ),
];
const MEMORY_ERRNOS: &[ErrnoMeaning] = &[
    meaning(
        Errno::EBUSY,
        "the group uses more than the new limit and reclaim could not free enough",
        "raise the limit, or end members of the group first",
    ),
    meaning(
        Errno::EINVAL,
        "the value is not a size, or (cgroup v1) memory.memsw.limit_in_bytes would be below it",
        "raise memory.memsw.limit_in_bytes first",
    ),
];
const IO_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::ENODEV, "there is no such block device, or it is a partition", "name a whole disk"),
    meaning(Errno::EINVAL, "the line is not a device number and a rate", "give \"major:minor rate\""),
    meaning(Errno::ERANGE, "the rate is 0 or too large", "give a rate above 0"),
];
const PIDS_ERRNOS: &[ErrnoMeaning] =
    &[meaning(Errno::EINVAL, "pids.max takes 0 to 4194304 or \"max\"", "choose a number in that range")];

const QOS_ERRNOS: &[ErrnoMeaning] = &[meaning(
    Errno::EINVAL,
    "a level other than 0 is final; a child of an offline group has its parent's level; the root has none",
    "move the members to a fresh group, which `commensal restore` does; put online work outside offline groups",
)];
const BVT_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::EINVAL, "the root group has no identity", "use a child group"),
    meaning(Errno::ERANGE, "the kernel takes -2 to 3", "choose a value in that range"),
    meaning(
        Errno::EBUSY,
        "core scheduling is in use, and the kernel allows only one of the two",
        "remove the core-scheduling cookies first, or leave Group Identity off",
    ),
];
const MEMORY_QOS_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::EACCES, "vm.memcg_qos_enable is 0", "set it to 1 first"),
    meaning(Errno::EINVAL, "it takes -1 or 0, and not in the root group", "use a child group"),
];
const FREEZE_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::ERANGE, "it takes 0 or 1", "use 0 or 1"),
    meaning(Errno::EINVAL, "it takes THAWED or FROZEN", "use one of them"),
];
const PARTITION_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::EINVAL, "it takes member, root or isolated, and not in the root group", "use one of them"),
    meaning(Errno::EBUSY, "a child group is a partition, too", "make the children members first"),
];
const EXCLUSIVE_ERRNOS: &[ErrnoMeaning] = &[
    meaning(
        Errno::EINVAL,
        "a sibling group has reserved one of these CPUs, or has no other CPU",
        "name free CPUs",
    ),
    meaning(Errno::ERANGE, "the list names CPUs that this kernel cannot have", "name only CPUs that exist"),
];
const IO_WEIGHT_ERRNOS: &[ErrnoMeaning] =
    &[meaning(Errno::EINVAL, "it takes 1 to 10000", "choose a weight in that range")];
const BFQ_WEIGHT_ERRNOS: &[ErrnoMeaning] =
    &[meaning(Errno::ERANGE, "it takes 1 to 1000", "choose a weight in that range")];
const IO_COST_ERRNOS: &[ErrnoMeaning] = &[
    meaning(Errno::ENODEV, "there is no such block device, or it is a partition", "name a whole disk"),
    meaning(
        Errno::EOPNOTSUPP,
        "the device does not go through the block multi-queue layer",
        "name another disk",
    ),
];

/// Name of openEuler's kernel in messages.
const OPENEULER: &str = "openEuler";
/// Name of the Anolis kernel in messages; Alibaba Cloud Linux uses this kernel, too.
const ANOLIS: &str = "Anolis/Alibaba";
/// Name of the Anolis kernel 6.6 in messages. Its files for the class of a group differ from those of [`ANOLIS`].
const ANOLIS_66: &str = "Anolis 6.6";

/// openEuler's CONFIG_QOS_SCHED, run with two and with five levels.
const QOS_SCHED_RUN: Evidence = Evidence::Observed("openEuler's code, 5.10");
/// Group Identity without its expulsion from SMT siblings and from the CPU itself.
const IDENTITY_RUN: Evidence = Evidence::Observed("the core of Alibaba's scheduler code, 5.10");
const PRIORITY_READ: Evidence = Evidence::Documented("Anolis' kernel 6.6, kernel/sched/fair.c");
const MEMCG_QOS_READ: Evidence = Evidence::Documented("openEuler's kernel 5.10, mm/memcontrol.c");

const NOT_DRIVEN: KnobStatus = KnobStatus::DriverToCome("not written: no group key uses it yet");

knobs! {
    // ---- cpu ----
    CpuWeight {
        name: "cpu.weight", controller: Controller::Cpu, unit: "v2 weight, v1 shares",
        v1: clamped("cpu.shares", (2, 262_144), "1024"),
        v2: file("cpu.weight", Form::Number, (1, 10_000), "100"),
        order: KnobOrder::NotWhileIdle, status: KnobStatus::Driven, errnos: WEIGHT_ERRNOS,
        systemd: Property::Number("CPUWeight"),
        doc: "Share of CPU time among siblings when the CPUs are contended (soft limit).",
    }
    CpuWeightNice {
        name: "cpu.weight.nice", controller: Controller::Cpu, unit: "nice level",
        v2: file("cpu.weight.nice", Form::Number, (-20, 19), "0"),
        order: KnobOrder::NotWhileIdle, status: NOT_DRIVEN,
        doc: "The weight on the scale of nice levels; another view of cpu.weight.",
    }
    CpuMax {
        name: "cpu.max", controller: Controller::Cpu, unit: "us of CPU time per period",
        v1: file("cpu.cfs_quota_us", Form::MinusOne, (1_000, 17_592_186_044_415), "-1"),
        v2: file("cpu.max", Form::Quota, (1_000, 17_592_186_044_415), "max 100000"),
        order: KnobOrder::WithinParent, status: KnobStatus::Driven, errnos: QUOTA_ERRNOS,
        systemd: Property::Converted("CPUQuota"),
        doc: "CPU hard limit: CPU time per period; it caps use and does not protect others' wake-ups.",
    }
    CpuPeriod {
        name: "cpu.max.period", controller: Controller::Cpu, unit: "us",
        v1: file("cpu.cfs_period_us", Form::Number, (1_000, 1_000_000), "100000"),
        v2: file("cpu.max", Form::Period, (1_000, 1_000_000), "max 100000"),
        order: KnobOrder::AroundQuota, status: KnobStatus::Driven, errnos: QUOTA_ERRNOS,
        systemd: Property::Converted("CPUQuotaPeriodSec"),
        doc: "Period of the hard limit; a plan writes a longer period before the quota and a shorter one after it, so that the share never exceeds both the old and the new one.",
    }
    CpuBurst {
        name: "cpu.max.burst", controller: Controller::Cpu, unit: "us",
        v1: file("cpu.cfs_burst_us", Form::Number, (0, TOP), "0"),
        v2: file("cpu.max.burst", Form::Number, (0, TOP), "0"),
        status: KnobStatus::Driven,
        errnos: &[meaning(Errno::EINVAL, "the burst is above the quota", "lower the burst")],
        doc: "Unused quota that may be saved up and spent later, at most one quota.",
    }
    CpuIdle {
        name: "cpu.idle", controller: Controller::Cpu, unit: "0 or 1",
        v1: flag("cpu.idle", "0"), v2: flag("cpu.idle", "0"),
        order: KnobOrder::Last, status: KnobStatus::Driven, errnos: IDLE_ERRNOS,
        systemd: Property::Converted("CPUWeight"),
        doc: "Makes the whole group SCHED_IDLE against its siblings (Linux 5.15 and newer); the kernel then discards the group's weight.",
    }
    CpuUclampMin {
        name: "cpu.uclamp.min", controller: Controller::Cpu, unit: "%",
        v1: opaque("cpu.uclamp.min"), v2: opaque("cpu.uclamp.min"), status: NOT_DRIVEN,
        doc: "Lower bound of the CPU utilisation that the scheduler assumes for the group's tasks when it chooses a CPU and a frequency.",
    }
    CpuUclampMax {
        name: "cpu.uclamp.max", controller: Controller::Cpu, unit: "%",
        v1: opaque("cpu.uclamp.max"), v2: opaque("cpu.uclamp.max"), status: NOT_DRIVEN,
        doc: "Upper bound of the CPU utilisation that the scheduler assumes for the group's tasks when it chooses a CPU and a frequency.",
    }
    CpuRtRuntime {
        name: "cpu.rt_runtime_us", controller: Controller::Cpu, unit: "us per rt period",
        v1: file("cpu.rt_runtime_us", Form::MinusOne, (0, 1_000_000), "0"), scope: Scope::All,
        errnos: &[meaning(Errno::EINVAL, "the sum over siblings is above the parent's", "lower the siblings")],
        doc: "Real-time budget of the group; 0 means that no task in it may be SCHED_FIFO or SCHED_RR.",
    }
    CpuRtPeriod {
        name: "cpu.rt_period_us", controller: Controller::Cpu, unit: "us",
        v1: file("cpu.rt_period_us", Form::Number, (1, 1_000_000_000), "1000000"), scope: Scope::All,
        doc: "Period of the real-time budget.",
    }
    CpuQosLevel {
        name: "cpu.qos_level", controller: Controller::Cpu, unit: "-1 offline, 0 and above online",
        v1: file("cpu.qos_level", Form::Number, (-2, 2), "0"),
        vendor: Some(Vendor { kernel: OPENEULER, needs: "CONFIG_QOS_SCHED", evidence: QOS_SCHED_RUN }),
        order: KnobOrder::Last, status: KnobStatus::Driven, errnos: QOS_ERRNOS,
        doc: "openEuler: tasks of an offline group and of its descendants become SCHED_IDLE, and a CPU that runs a task of another policy throttles the group as long as all of the group's tasks on that CPU are SCHED_IDLE; a level other than 0 cannot be changed back. Kernels have two levels (-1 and 0) or five (-2 to 2), which also multiply the weight of a group.",
    }
    CpuBvtWarpNs {
        name: "cpu.bvt_warp_ns", controller: Controller::Cpu, unit: "-1 offline, 0 normal, 2 online",
        v1: file("cpu.bvt_warp_ns", Form::Number, (-2, 3), "0"),
        v2: file("cpu.bvt_warp_ns", Form::Number, (-2, 3), "0"),
        vendor: Some(Vendor { kernel: ANOLIS, needs: "kernel.sched_group_identity_enabled = 1, where that exists", evidence: IDENTITY_RUN }),
        scope: Scope::All, order: KnobOrder::Last, status: KnobStatus::Driven, errnos: BVT_ERRNOS,
        doc: "Anolis/Alibaba Group Identity: scheduling rank of the group. A group at -1 loses wake-ups, but shares a CPU evenly with one online group of the same weight; 2 also expels offline tasks from the SMT sibling, and 3 from the CPU itself (both documented, not observed); a new child copies its parent's, a later write does not reach children.",
    }
    CpuIdentity {
        name: "cpu.identity", controller: Controller::Cpu, unit: "bits",
        v1: file("cpu.identity", Form::Number, (0, 63), "0"), v2: file("cpu.identity", Form::Number, (0, 63), "0"),
        vendor: Some(Vendor { kernel: ANOLIS, needs: "kernel.sched_group_identity_enabled = 1, where that exists", evidence: IDENTITY_RUN }),
        scope: Scope::All,
        doc: "Anolis/Alibaba Group Identity: the flags that cpu.bvt_warp_ns stands for (54 for 3, 22 for 2, 18 for 1, 9 for -1); it can also be written directly, which cpu.bvt_warp_ns does not show; commensal leaves a group with other flags to the program that set them.",
    }
    CpuPriority {
        name: "cpu.priority", controller: Controller::Cpu, unit: "-1 offline, 0 normal, 1 online",
        v1: file("cpu.priority", Form::Number, (-1, 1), "0"),
        v2: file("cpu.priority", Form::Number, (-1, 1), "0"),
        vendor: Some(Vendor { kernel: ANOLIS_66, needs: "nothing else that is known", evidence: PRIORITY_READ }),
        scope: Scope::All, status: KnobStatus::DriverToCome("not written: it is not known what a child inherits and what the kernel refuses"),
        doc: "Class of the group among its siblings on Anolis 6.6, which has this file and a cpu.identity of -1 to 1 in place of cpu.bvt_warp_ns.",
    }
    // ---- cpuset ----
    CpusetCpus {
        name: "cpuset.cpus", controller: Controller::Cpuset, unit: "CPU list",
        v1: list("cpuset.cpus"), v2: list("cpuset.cpus"), order: KnobOrder::WithinParent,
        status: KnobStatus::Driven, errnos: CPUS_ERRNOS,
        systemd: Property::Number("AllowedCPUs"),
        doc: "CPUs that the group may run on. On cgroup v1 this file must be set before a process can enter the group.",
    }
    CpusetMems {
        name: "cpuset.mems", controller: Controller::Cpuset, unit: "node list",
        v1: list("cpuset.mems"), v2: list("cpuset.mems"), order: KnobOrder::WithinParent,
        status: KnobStatus::Driven, errnos: CPUS_ERRNOS,
        systemd: Property::Number("AllowedMemoryNodes"),
        doc: "NUMA nodes whose memory the group may use. On cgroup v1 this file must be set before a process can enter the group.",
    }
    CpusetCpusExclusive {
        name: "cpuset.cpus.exclusive", controller: Controller::Cpuset, unit: "CPU list",
        v2: list("cpuset.cpus.exclusive"), order: KnobOrder::WithinParent, status: KnobStatus::Driven, errnos: EXCLUSIVE_ERRNOS,
        doc: "CPUs set aside for a partition below this group (Linux 6.7 and newer).",
    }
    CpusetPartition {
        name: "cpuset.cpus.partition", controller: Controller::Cpuset, unit: "word",
        v2: file("cpuset.cpus.partition", Form::Word(&["member", "root", "isolated"]), (0, 0), "member"),
        order: KnobOrder::Last, status: KnobStatus::Driven, errnos: PARTITION_ERRNOS,
        doc: "Makes the group a scheduling partition of its own, or one without load balancing.",
    }
    CpusetCpuExclusive {
        name: "cpuset.cpu_exclusive", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.cpu_exclusive", "0"), status: NOT_DRIVEN,
        errnos: &[meaning(Errno::EINVAL, "a sibling overlaps", "separate the siblings' CPUs")],
        doc: "v1: no sibling group may overlap this group's CPUs.",
    }
    CpusetMemExclusive {
        name: "cpuset.mem_exclusive", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.mem_exclusive", "0"), status: NOT_DRIVEN,
        doc: "v1: no sibling group may overlap this group's memory nodes.",
    }
    CpusetMemHardwall {
        name: "cpuset.mem_hardwall", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.mem_hardwall", "0"), status: NOT_DRIVEN,
        doc: "v1: kernel allocations for the group stay on its memory nodes as well.",
    }
    CpusetMemoryMigrate {
        name: "cpuset.memory_migrate", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.memory_migrate", "0"), status: NOT_DRIVEN,
        doc: "v1: whether the kernel moves the group's pages when the group's memory nodes change.",
    }
    CpusetMemoryPressureEnabled {
        name: "cpuset.memory_pressure_enabled", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.memory_pressure_enabled", "0"), scope: Scope::RootOnly,
        doc: "v1: turns on the per-group counter of direct reclaim.",
    }
    CpusetMemorySpreadPage {
        name: "cpuset.memory_spread_page", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.memory_spread_page", "0"), status: NOT_DRIVEN,
        doc: "v1: page cache of the group is spread over its memory nodes.",
    }
    CpusetMemorySpreadSlab {
        name: "cpuset.memory_spread_slab", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.memory_spread_slab", "0"), status: NOT_DRIVEN,
        doc: "v1: some slab caches of the group are spread over its memory nodes; obsolete.",
    }
    CpusetSchedLoadBalance {
        name: "cpuset.sched_load_balance", controller: Controller::Cpuset, unit: "0 or 1",
        v1: flag("cpuset.sched_load_balance", "1"), scope: Scope::All, status: NOT_DRIVEN,
        doc: "v1: whether the scheduler balances load over this group's CPUs.",
    }
    CpusetRelaxDomain {
        name: "cpuset.sched_relax_domain_level", controller: Controller::Cpuset, unit: "level",
        v1: file("cpuset.sched_relax_domain_level", Form::Number, (-1, 5), "-1"), scope: Scope::All, status: NOT_DRIVEN,
        doc: "v1: how far a wake-up or an idle CPU searches for tasks.",
    }
    // ---- memory ----
    MemoryMin {
        name: "memory.min", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.min", "0"), status: KnobStatus::Driven, errnos: MEMORY_ERRNOS,
        systemd: Property::Number("MemoryMin"),
        doc: "Memory that the kernel never reclaims from the group.",
    }
    MemoryLow {
        name: "memory.low", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.low", "0"), status: KnobStatus::Driven, errnos: MEMORY_ERRNOS,
        systemd: Property::Number("MemoryLow"),
        doc: "Memory that the kernel reclaims from the group only when no unprotected memory is left.",
    }
    MemoryHigh {
        name: "memory.high", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.high", "max"), status: KnobStatus::Driven, errnos: MEMORY_ERRNOS,
        systemd: Property::Number("MemoryHigh"),
        doc: "Memory above which the kernel slows the group down and reclaims from it, but does not kill.",
    }
    MemoryMax {
        name: "memory.max", controller: Controller::Memory, unit: "bytes",
        v1: pages1("memory.limit_in_bytes"), v2: pages2("memory.max", "max"),
        status: KnobStatus::Driven, errnos: MEMORY_ERRNOS,
        systemd: Property::Number("MemoryMax"),
        doc: "Memory hard limit; above it the kernel reclaims and then kills in the group.",
    }
    MemorySoftLimit {
        name: "memory.soft_limit", controller: Controller::Memory, unit: "bytes",
        v1: pages1("memory.soft_limit_in_bytes"), status: NOT_DRIVEN,
        errnos: MEMORY_ERRNOS,
        doc: "v1: the kernel prefers to reclaim from groups above this limit; deprecated, and refused on real-time kernels.",
    }
    MemorySwapMax {
        name: "memory.swap.max", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.swap.max", "max"), status: NOT_DRIVEN,
        doc: "Swap hard limit of the group.",
    }
    MemorySwapHigh {
        name: "memory.swap.high", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.swap.high", "max"), status: NOT_DRIVEN,
        doc: "Amount of swap above which the kernel slows down every allocation of the group.",
    }
    MemoryMemsw {
        name: "memory.memsw", controller: Controller::Memory, unit: "bytes",
        v1: pages1("memory.memsw.limit_in_bytes"), order: KnobOrder::AtLeast("memory.limit_in_bytes"), status: NOT_DRIVEN,
        errnos: MEMORY_ERRNOS,
        doc: "v1: limit of memory and swap together; never below memory.limit_in_bytes.",
    }
    MemoryZswapMax {
        name: "memory.zswap.max", controller: Controller::Memory, unit: "bytes",
        v2: pages2("memory.zswap.max", "max"), status: NOT_DRIVEN,
        doc: "Limit of compressed swap kept in memory for the group.",
    }
    MemoryZswapWriteback {
        name: "memory.zswap.writeback", controller: Controller::Memory, unit: "0 or 1",
        v2: flag("memory.zswap.writeback", "1"), status: NOT_DRIVEN,
        doc: "Whether compressed swap of the group may be written to disk.",
    }
    MemoryOomGroup {
        name: "memory.oom.group", controller: Controller::Memory, unit: "0 or 1",
        v2: flag("memory.oom.group", "0"), status: KnobStatus::Driven, errnos: &[meaning(Errno::EINVAL, "it takes 0 or 1", "use 0 or 1")],
        doc: "Whether the OOM killer kills the whole group instead of its largest process.",
    }
    MemoryReclaim {
        name: "memory.reclaim", controller: Controller::Memory, unit: "bytes",
        v2: trigger("memory.reclaim"), status: NOT_DRIVEN,
        errnos: &[meaning(Errno::EAGAIN, "less than asked could be reclaimed", "ask for less")],
        doc: "A written amount of memory is reclaimed from the group immediately.",
    }
    MemorySwappiness {
        name: "memory.swappiness", controller: Controller::Memory, unit: "0 to 200",
        v1: file("memory.swappiness", Form::Number, (0, 200), "60"), scope: Scope::All, status: NOT_DRIVEN,
        doc: "v1: how readily the kernel swaps out anonymous memory of the group.",
    }
    MemoryOomControl {
        name: "memory.oom_control", controller: Controller::Memory, unit: "text",
        v1: opaque("memory.oom_control"), status: NOT_DRIVEN,
        doc: "v1: after a write of 1, tasks that reach the limit wait instead of being killed.",
    }
    MemoryUseHierarchy {
        name: "memory.use_hierarchy", controller: Controller::Memory, unit: "0 or 1",
        v1: file("memory.use_hierarchy", Form::Number, (1, 1), "1"), scope: Scope::All, status: KnobStatus::Shown,
        doc: "v1: whether the use of children counts towards the parent; always 1 since Linux 5.11.",
    }
    MemoryMoveCharge {
        name: "memory.move_charge_at_immigrate", controller: Controller::Memory, unit: "bits",
        v1: file("memory.move_charge_at_immigrate", Form::Number, (0, 0), "0"), status: KnobStatus::Shown,
        doc: "v1: whether a task's memory is charged to the group that the task moves to; deprecated, without effect in recent kernels.",
    }
    MemoryForceEmpty {
        name: "memory.force_empty", controller: Controller::Memory, unit: "-",
        v1: trigger("memory.force_empty"), status: NOT_DRIVEN,
        doc: "v1: reclaims as much as possible from the group.",
    }
    MemoryKmemLimit {
        name: "memory.kmem.limit", controller: Controller::Memory, unit: "bytes",
        v1: pages1("memory.kmem.limit_in_bytes"), status: KnobStatus::Shown,
        doc: "v1: limit of kernel memory; deprecated; recent kernels take writes and ignore them.",
    }
    MemoryKmemTcpLimit {
        name: "memory.kmem.tcp.limit", controller: Controller::Memory, unit: "bytes",
        v1: pages1("memory.kmem.tcp.limit_in_bytes"), status: KnobStatus::Shown,
        doc: "v1: limit of TCP buffer memory; deprecated.",
    }
    MemoryQosLevel {
        name: "memory.qos_level", controller: Controller::Memory, unit: "-1 offline, 0 online",
        v1: file("memory.qos_level", Form::Number, (-1, 0), "0"),
        vendor: Some(Vendor { kernel: OPENEULER, needs: "CONFIG_MEMCG_QOS (in 6.6 CONFIG_MEMCG_OOM_PRIORITY) and vm.memcg_qos_enable = 1", evidence: MEMCG_QOS_READ }),
        status: KnobStatus::Driven, errnos: MEMORY_QOS_ERRNOS,
        doc: "openEuler: the OOM killer kills offline groups first.",
    }
    // ---- io / blkio ----
    IoReadBps {
        name: "io.max.rbps", controller: Controller::Io, unit: "bytes per s",
        v1: device1("blkio.throttle.read_bps_device"), v2: device2("io.max", "rbps"),
        status: KnobStatus::Driven, errnos: IO_ERRNOS,
        systemd: Property::PerDisk("IOReadBandwidthMax"),
        doc: "Read rate hard limit of a disk; reads served from the page cache are not limited.",
    }
    IoWriteBps {
        name: "io.max.wbps", controller: Controller::Io, unit: "bytes per s",
        v1: device1("blkio.throttle.write_bps_device"), v2: device2("io.max", "wbps"),
        status: KnobStatus::Driven, errnos: IO_ERRNOS,
        systemd: Property::PerDisk("IOWriteBandwidthMax"),
        doc: "Write rate hard limit of a disk; in v1 buffered writes are not limited, only direct ones.",
    }
    IoReadIops {
        name: "io.max.riops", controller: Controller::Io, unit: "operations per s",
        v1: device1_iops("blkio.throttle.read_iops_device"), v2: device2("io.max", "riops"),
        status: KnobStatus::Driven, errnos: IO_ERRNOS,
        systemd: Property::PerDisk("IOReadIOPSMax"),
        doc: "Hard limit on the read operations per second of a disk; one large read may count as several operations.",
    }
    IoWriteIops {
        name: "io.max.wiops", controller: Controller::Io, unit: "operations per s",
        v1: device1_iops("blkio.throttle.write_iops_device"), v2: device2("io.max", "wiops"),
        status: KnobStatus::Driven, errnos: IO_ERRNOS,
        systemd: Property::PerDisk("IOWriteIOPSMax"),
        doc: "Write operations hard limit of a disk.",
    }
    IoWeight {
        name: "io.weight", controller: Controller::Io, unit: "weight",
        v1: file("blkio.weight", Form::Number, (10, 1_000), "500"), v2: file("io.weight", Form::DefaultWeight, (1, 10_000), "default 100"),
        status: KnobStatus::Driven, errnos: IO_WEIGHT_ERRNOS,
        systemd: Property::Number("IOWeight"),
        doc: "Share of disk time among siblings; works with io.cost on v2, with the old CFQ scheduler on v1.",
    }
    IoBfqWeight {
        name: "io.bfq.weight", controller: Controller::Io, unit: "1 to 1000",
        v1: file("blkio.bfq.weight", Form::Number, (1, 1_000), "100"),
        v2: file("io.bfq.weight", Form::DefaultWeight, (1, 1_000), "default 100"),
        status: KnobStatus::Driven, errnos: BFQ_WEIGHT_ERRNOS,
        systemd: Property::Number("IOWeight"),
        doc: "Share of disk time among siblings where the disk uses the BFQ scheduler.",
    }
    IoWeightDevice {
        name: "io.weight.device", controller: Controller::Io, unit: "weight",
        v1: opaque("blkio.weight_device"), status: NOT_DRIVEN,
        doc: "v1: share of disk time among siblings for one disk, with the old CFQ scheduler.",
    }
    IoBfqWeightDevice {
        name: "io.bfq.weight.device", controller: Controller::Io, unit: "1 to 1000",
        v1: opaque("blkio.bfq.weight_device"), status: NOT_DRIVEN,
        doc: "v1: the BFQ weight for one disk.",
    }
    IoLeafWeight {
        name: "io.leaf_weight", controller: Controller::Io, unit: "weight",
        v1: opaque("blkio.leaf_weight"), status: NOT_DRIVEN,
        doc: "v1: weight of the group's own tasks against its children, with the old CFQ scheduler.",
    }
    IoLeafWeightDevice {
        name: "io.leaf_weight.device", controller: Controller::Io, unit: "weight",
        v1: opaque("blkio.leaf_weight_device"), status: NOT_DRIVEN,
        doc: "v1: the leaf weight for one disk, with the old CFQ scheduler.",
    }
    IoLatency {
        name: "io.latency", controller: Controller::Io, unit: "us",
        v2: opaque("io.latency"), status: NOT_DRIVEN,
        doc: "Latency target of the group; siblings with a looser target are throttled when it is missed.",
    }
    IoCostQos {
        name: "io.cost.qos", controller: Controller::Io, unit: "text",
        v2: file("io.cost.qos", Form::DeviceFlag("enable"), (0, 1), ""), scope: Scope::RootOnly,
        status: KnobStatus::Driven, errnos: IO_COST_ERRNOS,
        doc: "Whether cost-based I/O control, which io.weight needs, is on for a disk; the line also has its latency goals, which stay as they are.",
    }
    IoCostModel {
        name: "io.cost.model", controller: Controller::Io, unit: "text",
        v2: opaque("io.cost.model"), scope: Scope::RootOnly, status: NOT_DRIVEN,
        doc: "Cost model of a disk for io.cost: what one operation costs.",
    }
    IoPrioClass {
        name: "io.prio.class", controller: Controller::Io, unit: "word",
        v1: opaque("blkio.prio.class"), v2: opaque("io.prio.class"), status: NOT_DRIVEN,
        doc: "Overrides the I/O priority class of the group's requests.",
    }
    IoResetStats {
        name: "io.reset_stats", controller: Controller::Io, unit: "-",
        v1: trigger("blkio.reset_stats"), scope: Scope::All, status: KnobStatus::Shown,
        doc: "v1: clears the group's I/O counters.",
    }
    // ---- pids ----
    PidsMax {
        name: "pids.max", controller: Controller::Pids, unit: "tasks",
        v1: file("pids.max", Form::MaxWord, (0, 4_194_304), "max"), v2: file("pids.max", Form::MaxWord, (0, 4_194_304), "max"),
        status: KnobStatus::Driven, errnos: PIDS_ERRNOS,
        systemd: Property::Number("TasksMax"),
        doc: "Largest number of tasks; fork fails with EAGAIN above it.",
    }
    // ---- cgroup core ----
    CgroupFreeze {
        name: "cgroup.freeze", controller: Controller::Freezer, unit: "0 or 1",
        v1: file("freezer.state", Form::Words(&["THAWED", "FROZEN", "FREEZING"]), (0, 1), "THAWED"),
        v2: flag("cgroup.freeze", "0"), status: KnobStatus::Driven, errnos: FREEZE_ERRNOS,
        doc: "Stops or resumes every task of the group and below (v2: Linux 5.2 and newer).",
    }
    CgroupKill {
        name: "cgroup.kill", controller: Controller::Core, unit: "1",
        v2: trigger("cgroup.kill"), status: KnobStatus::Shown,
        doc: "Kills every process of the group and below at once (Linux 5.14 and newer).",
    }
}
