//! What the scheduler's half of `bpf/intf.h` says, in Rust: limits, classes and structures. A test, and the loader, compare them
//! with what the compiled object says of itself.

use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

/// Most CPUs.
pub const MOST_CPUS: usize = 1024;
/// Groups that are weighed apart; the last one takes all others.
pub const MOST_SLOTS: usize = 256;
/// Last-level caches that are told apart.
pub const MOST_LLCS: usize = 16;
/// Hard limits; 0 is none.
pub const MOST_LIMITS: usize = 64;
/// Other threads of a core.
pub const SIBLINGS: usize = 3;

/// `CLASS_*`: an entry of this class is taken away.
pub const CLASS_OTHER: u64 = 0;
/// Not under the scheduler, and not to be hurt.
pub const CLASS_ONLINE: u64 = 1;
/// Under it.
pub const CLASS_OFFLINE: u64 = 2;
/// A kernel thread, which the scheduler counts as other.
pub const CLASS_KERNEL: u64 = 3;
/// Nobody.
pub const CLASS_IDLE: u64 = 4;
/// An interrupt, which the scheduler counts as what it interrupts.
pub const CLASS_IRQ: u64 = 5;
/// Online, and offline work leaves its cores.
pub const CLASS_EXPELLING: u64 = 6;
/// How many there are.
pub const CLASSES: usize = 7;

mirror! {
    /// Fixed when it is loaded.
    pub struct Fixed = "settings" {
        /// How long a thread runs.
        slice_ns: u64,
        /// How long where many wait.
        short_slice_ns: u64,
        /// Between two looks.
        housekeeping_ns: u64,
        /// How long a CPU is kept idle.
        vacant_ns: u64,
        /// How long two online threads share a CPU before another is vacated.
        crowded_ns: u64,
        /// Possible CPUs.
        nr_cpus: u32,
        /// Caches.
        nr_llcs: u32,
        /// Whether group paths in orders refer to cgroup v2; otherwise to the v1 cpu hierarchy.
        unified: u32,
        /// No thread is asked to leave.
        tick_alone: u32,
    }

    /// What user space alone writes.
    pub struct Orders = "orders" {
        /// Of the orders.
        generation: u64,
        /// How long a CPU stays free.
        hold_off_ns: u64,
    }

    /// For user space to read.
    pub struct Notes = "notes" {
        /// A fatal signal was sent.
        killed_at: u64,
        /// Why the kernel has taken it off.
        kind: u64,
        /// Its number.
        code: u64,
        /// When.
        at: u64,
        /// In words.
        reason: [u8; 128],
        /// In more words.
        message: [u8; 1024],
    }

    /// A group of offline threads that is weighed against the others.
    pub struct Slot = "slot" {
        /// In use.
        used: u64,
        /// Share.
        weight: u64,
        /// Its limit.
        limit: u64,
        /// Its clock.
        vtime: u64,
        /// Of the thread that ran last.
        thread_vtime: u64,
        /// CPU time.
        run_ns: u64,
        /// Longest wait now.
        oldest_ns: u64,
        /// Longest wait that ended.
        waited_max_ns: u64,
        /// Threads that wait.
        queued: u64,
    }

    /// A hard limit.
    pub struct Limit = "limit" {
        /// CPU time per period.
        quota_ns: u64,
        /// Period.
        period_ns: u64,
        /// What is left.
        tokens_ns: i64,
        /// When it was filled.
        filled_at: u64,
        /// Times that it ran dry.
        throttled: u64,
    }

    /// A core.
    pub struct Core = "core" {
        /// When it was looked at.
        since: u64,
        /// An expelling thread ran on it.
        expelling_ns: u64,
        /// And an offline one beside it.
        overlap_ns: u64,
        /// Longest.
        overlap_max_ns: u64,
        /// Of this stretch.
        overlap_now_ns: u64,
    }

    /// A CPU.
    pub struct Cpu = "cpu" {
        /// CPUs of the same core; -1 is none.
        sibling: [i32; SIBLINGS],
        /// First CPU of its core.
        core: u32,
        /// Its cache.
        llc: u32,
        /// Class of what runs.
        state: u32,
        /// About to run an offline thread.
        claim: u32,
        /// Has refused one.
        expelled: u32,
        /// Of the state.
        since: u64,
        /// A sibling wants it to leave.
        asked_at: u64,
        /// The tick has made it leave.
        by_tick: u64,
        /// Hold-off.
        resume_at: u64,
        /// Kept idle.
        vacant_until: u64,
        /// Online threads share it.
        crowded_since: u64,
        /// Another is being vacated for them.
        helped_until: u64,
        /// For which CPU, plus one.
        room_for: u64,
        /// Its queue holds threads that are out of the way.
        flush: u64,
        /// Time by class.
        ns: [u64; CLASSES],
        /// Idle while offline work might have run.
        room_ns: u64,
        /// Siblings asked to leave.
        kicks: u64,
        /// Refused because of a sibling.
        refusals: u64,
        /// Let in again.
        resumes: u64,
        /// Offline threads that left.
        evictions: u64,
        /// How long that took.
        evict_ns: u64,
        /// At most.
        evict_max_ns: u64,
        /// By the tick.
        by_ticks: u64,
        /// For an online thread.
        vacated: u64,
        /// Let through to die or freeze.
        let_die: u64,
        /// Refused because online threads wait.
        starved: u64,
    }
}

/// All that are shared.
pub const LAYOUTS: [Layout; 7] =
    [Fixed::LAYOUT, Orders::LAYOUT, Notes::LAYOUT, Slot::LAYOUT, Limit::LAYOUT, Core::LAYOUT, Cpu::LAYOUT];
/// Names of the numbers in C.
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

/// What of an object is not as user space has it.
#[must_use]
pub fn differences(btf: &Btf) -> Vec<String> {
    let mut wrong = btf.differences(&LAYOUTS);
    let numbers = NUMBERS.iter().filter(|(name, ours)| btf.number(name) != Some(*ours));
    wrong.extend(numbers.map(|(name, ours)| format!("{name} is {:?}, and {ours} here", btf.number(name))));
    wrong
}
