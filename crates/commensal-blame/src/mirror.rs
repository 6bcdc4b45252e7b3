//! Structures of `bpf/intf.h` that the probe's program and this reader share.

use crate::figures::{ByKind, Kind, Totals};
use crate::histogram::SLOTS;
use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

const KINDS: usize = Kind::ALL.len();
/// Other threads of a core that are told apart.
pub const SIBLINGS: usize = 3;
/// Bytes of a process's name, with its end (`TASK_COMM_LEN`).
pub const COMM: usize = 16;
/// `enum state`.
pub const ASLEEP: u32 = 1;
/// `enum state`.
pub const RUNNING: u32 = 2;

mirror! {
    /// What user space alone writes.
    pub struct Control = "control" {
        /// 1 while it counts.
        enabled: u32,
        /// Of the classes.
        generation: u32,
    }

    /// Key of the map of culprits.
    pub struct CulpritKey = "culprit" {
        /// Whose task held the CPU; all ones when more took turns than the probe tells apart.
        cgroup: u64,
        /// Index of the subject that waited.
        target: u32,
        /// [`Kind`].
        kind: u32,
    }

    /// What a CPU does and has done.
    pub struct CpuState = "cpu_state" {
        /// Time by kind.
        ns: [u64; KINDS],
        /// Start of what is not in `ns` yet; 0 while it is written.
        since: u64,
        /// What it does since then.
        kind: u32,
        /// Kind of the task on it.
        tenant: u32,
        /// Of that task.
        cgroup: u64,
        /// Its start.
        tenure: u64,
        /// Interrupts since.
        in_irq: u64,
        /// Tenures put into the ring.
        head: u64,
        /// Threads of interest that are queued here.
        waiters: i32,
        /// Interrupts, one in another.
        irq_depth: u32,
        /// Since when one is queued while offline work has it.
        inversion: u64,
        /// That began with a wake-up.
        by_wakeup: u32,
        /// Of the task on it.
        pid: i32,
        /// CPUs of the same core; -1 is none.
        sibling: [i32; SIBLINGS],
        /// Of the task on it.
        class: u32,
        /// Their offline time when a subject came here.
        sibling_was: [u64; SIBLINGS],
        /// Since when a subject has it.
        online: u64,
        /// Since when offline work has it.
        offline: u64,
        /// Blamed last.
        last: CulpritKey,
        /// With what is not in the map of culprits yet.
        pending: u64,
        /// Of the last wake-up, by the run queue's clock.
        wakeup: u64,
        /// CLOCK_MONOTONIC less that clock.
        ahead: u64,
        /// When that was found.
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
        /// Wake-up to running.
        wake: [u64; SLOTS],
        /// Wake-up on a CPU that offline work has, to that gone.
        preempt: [u64; SLOTS],
        /// Beside offline work on a core, to that gone.
        evict: [u64; SLOTS],
    }

    /// Sums of a subject.
    pub struct Target = "target" {
        /// Time on a CPU.
        run_ns: u64,
        /// Waits that ended.
        waits: u64,
        /// By what held the CPU.
        wait: [u64; KINDS],
    }

    /// A thread, as the kernel's list has it.
    pub struct ThreadReading = "thread_reading" {
        /// Its number.
        pid: u32,
        /// Its process.
        tgid: u32,
        /// Index of its subject.
        target: u32,
        /// `enum state`.
        state: u32,
        /// Waits by kind.
        wait: [u64; KINDS],
        /// Waits that ended.
        waited_ns: u64,
        /// How many.
        waits: u64,
        /// On a CPU.
        run_ns: u64,
        /// Asleep.
        slept_ns: u64,
        /// Nobody told.
        lost_ns: u64,
        /// Since when.
        seen_ns: u64,
        /// Of this reading.
        now_ns: u64,
        /// Of its state.
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
/// Names of the numbers in C.
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

/// What of an object is not as this reader has it.
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
