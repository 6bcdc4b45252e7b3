//! The scheduler's part of `bpf/intf.h` in Rust: limits, classes and structures. A test and the loader compare them
//! with the type information of the compiled object.

use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

/// Maximum number of CPUs.
pub const MOST_CPUS: usize = 1024;
/// Number of slots: groups with separate weights; the last slot is shared by all others.
pub const MOST_SLOTS: usize = 256;
/// Maximum number of last-level caches that are distinguished.
pub const MOST_LLCS: usize = 16;
/// Number of hard limits; index 0 means none.
pub const MOST_LIMITS: usize = 64;
/// Maximum number of other threads of a core.
pub const SIBLINGS: usize = 3;

/// `CLASS_*`: removes the entry of a group.
pub const CLASS_OTHER: u64 = 0;
/// Not under the scheduler, and protected from offline work.
pub const CLASS_ONLINE: u64 = 1;
/// Under the scheduler.
pub const CLASS_OFFLINE: u64 = 2;
/// A kernel thread, which the scheduler counts as other.
pub const CLASS_KERNEL: u64 = 3;
/// No task.
pub const CLASS_IDLE: u64 = 4;
/// An interrupt, whose time the scheduler counts for the task that it interrupts.
pub const CLASS_IRQ: u64 = 5;
/// Online, and offline work leaves the cores that it runs on.
pub const CLASS_EXPELLING: u64 = 6;
/// Number of classes.
pub const CLASSES: usize = 7;

mirror! {
    /// Settings that are fixed at load time.
    pub struct Fixed = "settings" {
        /// Time slice of a thread.
        slice_ns: u64,
        /// Time slice when many threads wait.
        short_slice_ns: u64,
        /// Interval of housekeeping.
        housekeeping_ns: u64,
        /// How long a CPU is kept idle.
        vacant_ns: u64,
        /// How long two online threads share a CPU before another CPU is vacated.
        crowded_ns: u64,
        /// Possible CPUs.
        nr_cpus: u32,
        /// Number of caches.
        nr_llcs: u32,
        /// Whether group paths in orders refer to cgroup v2; otherwise to the v1 cpu hierarchy.
        unified: u32,
        /// For tests: no thread is asked to leave, so that the tick has to do it.
        tick_alone: u32,
    }

    /// Orders, written by user space only.
    pub struct Orders = "orders" {
        /// Generation of the orders.
        generation: u64,
        /// Hold-off: how long a CPU stays free.
        hold_off_ns: u64,
    }

    /// Notes for user space.
    pub struct Notes = "notes" {
        /// When a fatal signal was last sent.
        killed_at: u64,
        /// Kind of exit, when the kernel has ejected the scheduler.
        kind: u64,
        /// Its exit code.
        code: u64,
        /// Time of the exit.
        at: u64,
        /// Reason in words.
        reason: [u8; 128],
        /// Message with details.
        message: [u8; 1024],
    }

    /// A group of offline threads with one weight.
    pub struct Slot = "slot" {
        /// Whether the slot is in use.
        used: u64,
        /// Weight.
        weight: u64,
        /// Index of its hard limit.
        limit: u64,
        /// Virtual time of the slot.
        vtime: u64,
        /// Virtual time of the thread that ran last.
        thread_vtime: u64,
        /// CPU time used.
        run_ns: u64,
        /// Longest current wait.
        oldest_ns: u64,
        /// Longest wait that has ended.
        waited_max_ns: u64,
        /// Number of waiting threads.
        queued: u64,
    }

    /// A hard limit.
    pub struct Limit = "limit" {
        /// CPU time per period.
        quota_ns: u64,
        /// Period.
        period_ns: u64,
        /// CPU time left in this period.
        tokens_ns: i64,
        /// When it was last refilled.
        filled_at: u64,
        /// How often it ran out.
        throttled: u64,
    }

    /// A core.
    pub struct Core = "core" {
        /// Time of the last update.
        since: u64,
        /// Time in which an expelling thread ran on the core.
        expelling_ns: u64,
        /// Time of that with an offline thread beside it.
        overlap_ns: u64,
        /// Longest such overlap.
        overlap_max_ns: u64,
        /// Length of the current overlap.
        overlap_now_ns: u64,
    }

    /// A CPU.
    pub struct Cpu = "cpu" {
        /// CPUs of the same core; -1 is none.
        sibling: [i32; SIBLINGS],
        /// First CPU of the core.
        core: u32,
        /// Number of the cache.
        llc: u32,
        /// Class of the running task.
        state: u32,
        /// Whether it is about to run an offline thread.
        claim: u32,
        /// Whether it has refused an offline thread.
        expelled: u32,
        /// When that class began to run.
        since: u64,
        /// When a sibling asked it to leave.
        asked_at: u64,
        /// Whether the tick made the thread leave.
        by_tick: u64,
        /// End of the hold-off.
        resume_at: u64,
        /// Until when the CPU is kept idle.
        vacant_until: u64,
        /// Since when several online threads share it.
        crowded_since: u64,
        /// Until when another CPU is being vacated for them.
        helped_until: u64,
        /// The CPU that it is vacated for, plus one.
        room_for: u64,
        /// Whether its queue holds threads that must move to other CPUs.
        flush: u64,
        /// Time by class.
        ns: [u64; CLASSES],
        /// Idle time that was open to offline work.
        room_ns: u64,
        /// Siblings that were asked to leave.
        kicks: u64,
        /// Offline threads refused because of a sibling.
        refusals: u64,
        /// Times that offline work was let in again.
        resumes: u64,
        /// Offline threads that were made to leave.
        evictions: u64,
        /// Total time that this took.
        evict_ns: u64,
        /// Longest such time.
        evict_max_ns: u64,
        /// Those that needed the tick.
        by_ticks: u64,
        /// Times that the CPU was vacated for an online thread.
        vacated: u64,
        /// Threads that were allowed to run to be killed or frozen.
        let_die: u64,
        /// Refusals because online threads wait.
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

/// Differences between an object's structures and these.
#[must_use]
pub fn differences(btf: &Btf) -> Vec<String> {
    let mut wrong = btf.differences(&LAYOUTS);
    let numbers = NUMBERS.iter().filter(|(name, ours)| btf.number(name) != Some(*ours));
    wrong.extend(numbers.map(|(name, ours)| format!("{name} is {:?}, and {ours} here", btf.number(name))));
    wrong
}
