//! The scheduler's part of `bpf/intf.h` in Rust: limits, classes and structures. A test and the loader compare these
//! definitions with the type information (BTF) of the compiled object. A sibling is another hardware thread of the same
//! core. An expelling thread belongs to a group of class `CLASS_EXPELLING`. To vacate a CPU is to keep it idle so that
//! an online thread can move to it. To kick a CPU is to make it choose a thread again. The tick is the kernel's
//! periodic timer interrupt.

use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

/// Maximum number of CPUs.
pub const MOST_CPUS: usize = 1024;
/// Number of slots. Each slot holds the threads of one group with a separate weight, except the last slot: all groups
/// that get no slot of their own share it.
pub const MOST_SLOTS: usize = 256;
/// Maximum number of last-level caches that are distinguished.
pub const MOST_LLCS: usize = 16;
/// Number of hard limits; index 0 means no limit.
pub const MOST_LIMITS: usize = 64;
/// Maximum number of other hardware threads of a core.
pub const SIBLINGS: usize = 3;

/// `CLASS_OTHER`: a group that is not configured. Setting this class removes the group's entry.
pub const CLASS_OTHER: u64 = 0;
/// `CLASS_ONLINE`: a group that the scheduler does not manage, but protects from offline work.
pub const CLASS_ONLINE: u64 = 1;
/// `CLASS_OFFLINE`: a group whose threads the scheduler manages.
pub const CLASS_OFFLINE: u64 = 2;
/// `CLASS_KERNEL`: a kernel thread. Only the probe uses this class; the scheduler counts kernel threads as other.
pub const CLASS_KERNEL: u64 = 3;
/// `CLASS_IDLE`: no task.
pub const CLASS_IDLE: u64 = 4;
/// `CLASS_IRQ`: an interrupt. Only the probe uses this class; the scheduler charges interrupt time to the interrupted
/// task.
pub const CLASS_IRQ: u64 = 5;
/// `CLASS_EXPELLING`: an online group with an additional right: offline work leaves the cores that the group's threads
/// run on.
pub const CLASS_EXPELLING: u64 = 6;
/// Number of classes.
pub const CLASSES: usize = 7;

mirror! {
    /// Settings that are fixed at load time.
    pub struct Fixed = "settings" {
        /// Time slice of an offline thread (ns).
        slice_ns: u64,
        /// Time slice when many offline threads wait (ns).
        short_slice_ns: u64,
        /// Interval of the periodic maintenance (ns).
        housekeeping_ns: u64,
        /// How long a vacated CPU is kept idle for an online thread (ns).
        vacant_ns: u64,
        /// How long two online threads share a CPU before the scheduler vacates another CPU for them (ns).
        crowded_ns: u64,
        /// Number of possible CPUs.
        nr_cpus: u32,
        /// Number of last-level caches.
        nr_llcs: u32,
        /// Whether group paths in the configuration refer to cgroup v2; otherwise they refer to the v1 cpu hierarchy.
        unified: u32,
        /// For tests: offline threads are not kicked from a core, so that only the tick evicts them.
        tick_alone: u32,
    }

    /// Configuration that user space writes and the BPF programs only read.
    pub struct Orders = "orders" {
        /// Generation of the configuration; it changes with every update.
        generation: u64,
        /// Hold-off: how long a CPU stays free of offline work after an expelling thread has left its core (ns).
        hold_off_ns: u64,
    }

    /// Events reported to user space.
    pub struct Notes = "notes" {
        /// Time of the last fatal signal (ns).
        killed_at: u64,
        /// How the scheduler ended (`enum scx_exit_kind`), if the kernel has ejected it; 0 while the scheduler runs.
        kind: u64,
        /// Exit code.
        code: u64,
        /// Time of the exit (ns).
        at: u64,
        /// Reason of the exit as readable text.
        reason: [u8; 128],
        /// Message with details.
        message: [u8; 1024],
    }

    /// A slot: a group of offline threads that share one weight.
    pub struct Slot = "slot" {
        /// Whether the slot is in use.
        used: u64,
        /// Weight of the slot.
        weight: u64,
        /// Index of the slot's hard limit.
        limit: u64,
        /// Virtual time of the slot.
        vtime: u64,
        /// Virtual time of the slot's thread that ran last.
        thread_vtime: u64,
        /// CPU time used (ns).
        run_ns: u64,
        /// Longest wait so far among the threads that still wait (ns).
        oldest_ns: u64,
        /// Longest wait that has ended (ns).
        waited_max_ns: u64,
        /// Number of waiting threads.
        queued: u64,
    }

    /// A hard limit.
    pub struct Limit = "limit" {
        /// CPU time per period (ns).
        quota_ns: u64,
        /// Length of a period (ns).
        period_ns: u64,
        /// CPU time left in this period (ns).
        tokens_ns: i64,
        /// Time of the last refill (ns).
        filled_at: u64,
        /// How often a group used up the CPU time of a period.
        throttled: u64,
    }

    /// A core.
    pub struct Core = "core" {
        /// Time of the last update.
        since: u64,
        /// Time (ns) in which an expelling thread ran on the core.
        expelling_ns: u64,
        /// Part of `expelling_ns` in which an offline thread ran on another hardware thread of the core (ns).
        overlap_ns: u64,
        /// Length of the longest overlap (ns).
        overlap_max_ns: u64,
        /// Length of the current overlap (ns).
        overlap_now_ns: u64,
    }

    /// A CPU.
    pub struct Cpu = "cpu" {
        /// Other CPUs of the same core; unused entries are -1.
        sibling: [i32; SIBLINGS],
        /// First CPU of the same core.
        core: u32,
        /// Number of the last-level cache.
        llc: u32,
        /// Class of the running task.
        state: u32,
        /// Whether the CPU is about to run an offline thread.
        claim: u32,
        /// Whether the CPU has refused to run an offline thread because of a sibling, and must be kicked when no
        /// expelling thread runs on the core any more.
        expelled: u32,
        /// Time at which the class of the running task last changed.
        since: u64,
        /// Time at which a sibling requested that the offline thread on this CPU leave.
        asked_at: u64,
        /// Whether the offline thread left at the tick, not because of a kick.
        by_tick: u64,
        /// Time at which the hold-off of [`Orders`] ends.
        resume_at: u64,
        /// Time until which the CPU is kept idle.
        vacant_until: u64,
        /// Time since which two or more online threads have been queued on the CPU.
        crowded_since: u64,
        /// Time until which another CPU is being vacated for the online threads queued on this CPU.
        helped_until: u64,
        /// Number, plus one, of the CPU whose online threads this CPU is vacated for.
        room_for: u64,
        /// Whether the CPU's own queue contains threads that must be moved to other CPUs.
        flush: u64,
        /// Time by class of the running task (ns).
        ns: [u64; CLASSES],
        /// Idle time while no sibling ran an expelling thread (ns).
        room_ns: u64,
        /// Number of times that this CPU requested a sibling's offline thread to leave.
        kicks: u64,
        /// Number of times that the CPU refused an offline thread because of a sibling.
        refusals: u64,
        /// Number of times that the CPU admitted offline work again.
        resumes: u64,
        /// Number of offline threads that left because of a sibling.
        evictions: u64,
        /// Total time that these evictions took (ns).
        evict_ns: u64,
        /// Longest time that an eviction took (ns).
        evict_max_ns: u64,
        /// Number of evictions that needed the tick.
        by_ticks: u64,
        /// Number of times that the CPU was vacated for an online thread on another CPU.
        vacated: u64,
        /// Number of times that a killed or freezing thread was allowed to run.
        let_die: u64,
        /// Number of times that the CPU refused an offline thread because online threads waited on the CPU.
        starved: u64,
    }
}

/// All shared structures.
pub const LAYOUTS: [Layout; 7] =
    [Fixed::LAYOUT, Orders::LAYOUT, Notes::LAYOUT, Slot::LAYOUT, Limit::LAYOUT, Core::LAYOUT, Cpu::LAYOUT];
/// Names of the constants in C.
const NUMBERS: [(&str, u64); 8] = [
    ("CLASS_OTHER", CLASS_OTHER),
    ("CLASS_ONLINE", CLASS_ONLINE),
    ("CLASS_OFFLINE", CLASS_OFFLINE),
    ("CLASS_KERNEL", CLASS_KERNEL),
    ("CLASS_IDLE", CLASS_IDLE),
    ("CLASS_IRQ", CLASS_IRQ),
    ("CLASS_EXPELLING", CLASS_EXPELLING),
    ("CLASSES", CLASSES as u64),
];

/// Lists the differences between the structures of an object and the structures in this file.
#[must_use]
pub fn differences(btf: &Btf) -> Vec<String> {
    let mut wrong = btf.differences(&LAYOUTS);
    let numbers = NUMBERS.iter().filter(|(name, ours)| btf.number(name) != Some(*ours));
    wrong.extend(numbers.map(|(name, ours)| {
        format!("{name} is {:?} in the object, but {ours} in this program", btf.number(name))
    }));
    wrong
}
