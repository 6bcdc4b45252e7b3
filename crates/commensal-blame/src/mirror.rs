//! Structures of `bpf/intf.h` that the probe's BPF program and user space share.

use crate::figures::{ByKind, Kind, Totals};
use crate::histogram::SLOTS;
use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

const KINDS: usize = Kind::ALL.len();
/// Maximum number of other threads of a core that are distinguished.
pub const SIBLINGS: usize = 3;
/// Bytes of a process's name, with its end (`TASK_COMM_LEN`).
pub const COMM: usize = 16;
/// `enum state`.
pub const ASLEEP: u32 = 1;
/// `enum state`.
pub const RUNNING: u32 = 2;

mirror! {
    /// Settings, written by user space only.
    pub struct Control = "control" {
        /// 1 while the probe counts.
        enabled: u32,
        /// Generation of the classes.
        generation: u32,
        /// Wait of online work for offline work within a window that wakes the reader, ns; 0 for never.
        alarm_ns: u64,
        /// Length of the window, ns.
        window_ns: u64,
    }

    /// What wakes the reader.
    pub struct Alarm = "alarm" {
        /// Begin of the window, ns.
        from_ns: u64,
        /// End of the window so far, ns.
        to_ns: u64,
        /// Wait in it, ns.
        blamed_ns: u64,
    }

    /// Key of the map of culprits.
    pub struct CulpritKey = "culprit" {
        /// Cgroup of the task that held the CPU; all ones when more tasks took turns than the probe distinguishes.
        cgroup: u64,
        /// Index of the target that waited.
        target: u32,
        /// [`Kind`] of the task.
        kind: u32,
    }

    /// State and counters of a CPU.
    pub struct CpuState = "cpu_state" {
        /// Time by kind.
        ns: [u64; KINDS],
        /// Start of the time that is not in `ns` yet; 0 while it is being written.
        since: u64,
        /// Kind of that time.
        kind: u32,
        /// Kind of the task on it.
        tenant: u32,
        /// Cgroup of the task on it.
        cgroup: u64,
        /// When that task got the CPU.
        tenure: u64,
        /// Time of interrupts since then.
        in_irq: u64,
        /// Number of tenures written to the ring.
        head: u64,
        /// Number of targets' threads queued here.
        waiters: i32,
        /// Nesting depth of interrupts.
        irq_depth: u32,
        /// Since when a target's thread is queued while offline work has the CPU.
        inversion: u64,
        /// Whether that began with a wake-up.
        by_wakeup: u32,
        /// PID of the task on it.
        pid: i32,
        /// CPUs of the same core; -1 is none.
        sibling: [i32; SIBLINGS],
        /// Class of the task on it.
        class: u32,
        /// Offline time of the siblings when a target's thread came onto this CPU.
        sibling_was: [u64; SIBLINGS],
        /// Since when a target's thread has the CPU.
        online: u64,
        /// Since when offline work has the CPU.
        offline: u64,
        /// The culprit that was blamed last.
        last: CulpritKey,
        /// Time blamed on it that is not in the map of culprits yet.
        pending: u64,
        /// Time of the last wake-up, by the run queue's clock.
        wakeup: u64,
        /// CLOCK_MONOTONIC minus the run queue's clock.
        ahead: u64,
        /// When that difference was measured.
        compared: u64,
        /// Process of the task on it; 0 unless it is nobody's here.
        tgid: u32,
        /// Process blamed last; likewise.
        last_tgid: u32,
    }

    /// Key of the map of processes.
    pub struct CommandKey = "command" {
        /// Whose task held the CPU.
        cgroup: u64,
        /// Index of the subject that waited.
        target: u32,
        /// Its process.
        tgid: u32,
    }

    /// A process that has ended.
    pub struct CommandName = "command_name" {
        /// Its name, ended by a 0.
        comm: [u8; COMM],
        /// Its user.
        uid: u32,
    }

    /// Histograms of a CPU.
    pub struct Delays = "delays" {
        /// Delay from wake-up to running.
        wake: [u64; SLOTS],
        /// Delay from a wake-up on a CPU with offline work until that work has left.
        preempt: [u64; SLOTS],
        /// Delay from arriving beside offline work on a core until that work has left.
        evict: [u64; SLOTS],
    }

    /// Sums of a target.
    pub struct Target = "target" {
        /// Time on a CPU.
        run_ns: u64,
        /// Number of waits that ended.
        waits: u64,
        /// Wait by what held the CPU.
        wait: [u64; KINDS],
    }

    /// A thread, as returned by the kernel's task iterator.
    pub struct ThreadReading = "thread_reading" {
        /// Thread ID.
        pid: u32,
        /// Process ID.
        tgid: u32,
        /// Index of its target.
        target: u32,
        /// State, of `enum state`.
        state: u32,
        /// Waits by kind.
        wait: [u64; KINDS],
        /// Time of the waits that ended.
        waited_ns: u64,
        /// Number of waits that ended.
        waits: u64,
        /// CPU time.
        run_ns: u64,
        /// Time asleep.
        slept_ns: u64,
        /// Time whose end was not reported.
        lost_ns: u64,
        /// Start of the sums.
        seen_ns: u64,
        /// Time of this reading.
        now_ns: u64,
        /// When the current state began.
        began_ns: u64,
    }
}

/// All that are shared.
pub const LAYOUTS: [Layout; 9] = [
    Control::LAYOUT,
    CulpritKey::LAYOUT,
    CpuState::LAYOUT,
    Totals::LAYOUT,
    Delays::LAYOUT,
    Target::LAYOUT,
    ThreadReading::LAYOUT,
    CommandKey::LAYOUT,
    CommandName::LAYOUT,
];
/// Names of the constants in C.
const NUMBERS: [(&str, u64); 8] = [
    ("CLASS_OTHER", Kind::Other as u64),
    ("CLASS_ONLINE", Kind::Online as u64),
    ("CLASS_OFFLINE", Kind::Offline as u64),
    ("CLASS_KERNEL", Kind::Kernel as u64),
    ("CLASS_IDLE", Kind::Idle as u64),
    ("CLASS_IRQ", Kind::Interrupt as u64),
    ("ASLEEP", ASLEEP as u64),
    ("RUNNING", RUNNING as u64),
];

/// Differences between an object's structures and these.
#[must_use]
pub fn differences(btf: &Btf) -> Vec<String> {
    let mut wrong = btf.differences(&LAYOUTS);
    let numbers = NUMBERS.iter().filter(|(name, ours)| btf.number(name) != Some(*ours));
    wrong.extend(numbers.map(|(name, ours)| format!("{name} is {:?}, and {ours} here", btf.number(name))));
    wrong
}

impl From<[u64; KINDS]> for ByKind {
    fn from(ns: [u64; KINDS]) -> ByKind {
        ByKind(ns)
    }
}
