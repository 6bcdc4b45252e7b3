//! Structures of `bpf/intf.h` that the probe's BPF program and user space share.
//!
//! A target is an online cgroup or process whose waits for a CPU the probe measures. A culprit is a task that held the
//! CPU during a wait. A tenure is the time from when a task gets a CPU until it leaves that CPU. A kind is what held
//! the CPU: see [`Kind`].

use crate::figures::{ByKind, Kind, Totals};
use crate::histogram::SLOTS;
use commensal_core::btf::{Btf, Layout};
use commensal_core::mirror;

const KINDS: usize = Kind::ALL.len();
/// Maximum number of SMT siblings of a CPU that the probe distinguishes.
pub const SIBLINGS: usize = 3;
/// Size of a process's name with the terminating 0 (`TASK_COMM_LEN`).
pub const COMM: usize = 16;
/// State of a thread that sleeps (`enum state` of the BPF program).
pub const ASLEEP: u32 = 1;
/// State of a thread that has a CPU (`enum state` of the BPF program).
pub const RUNNING: u32 = 2;
/// Order to start counting (`enum order` of the BPF program).
pub const START: u32 = 1;
/// Order to stop counting (`enum order` of the BPF program).
pub const STOP: u32 = 2;

mirror! {
    /// Settings. User space writes them, and so does the task iterator that starts and stops the counting.
    pub struct Control = "control" {
        /// 1 while the probe counts, otherwise 0.
        enabled: u32,
        /// Generation of the classes (online, offline, neither). A thread that cached its class in another generation
        /// looks the class up again.
        generation: u32,
        /// Threshold of the alarm: the wait for offline work within one window that raises the alarm (ns). 0 disables
        /// the alarm.
        alarm_ns: u64,
        /// Length of the alarm's window (ns).
        window_ns: u64,
        /// Time at which counting started for the current generation (ns).
        from_ns: u64,
        /// Time at which counting stopped (ns).
        until_ns: u64,
        /// What the walk is to do: [`START`], [`STOP`], or nothing (0).
        order: u32,
        /// 1 once the walk has seen all tasks since `from_ns`.
        primed: u32,
    }

    /// An alarm, as sent to user space.
    pub struct Alarm = "alarm" {
        /// Start of the window (ns).
        from_ns: u64,
        /// End of the window so far (ns).
        to_ns: u64,
        /// Wait for offline work in the window (ns).
        blamed_ns: u64,
    }

    /// Key of the map of culprits.
    pub struct CulpritKey = "culprit" {
        /// Cgroup of the task that held the CPU; all ones if more tasks took turns than the probe can distinguish.
        cgroup: u64,
        /// Index of the target that waited.
        target: u32,
        /// [`Kind`] of the task.
        kind: u32,
    }

    /// State and counters of a CPU.
    pub struct CpuState = "cpu_state" {
        /// Time by kind (ns).
        ns: [u64; KINDS],
        /// Start of the time that is not in `ns` yet; 0 while `ns` is being written, and before the first switch.
        since: u64,
        /// Kind of the activity since `since`.
        kind: u32,
        /// Kind of the task on the CPU; it does not change during an interrupt.
        tenant: u32,
        /// Generation in which the task on the CPU got its class. With another one, nothing has happened on this CPU since
        /// counting started.
        generation: u32,
        /// Generation of the following values, which count only until something happens on this CPU.
        first_generation: u32,
        /// Class of the task that had the CPU when counting started.
        first_class: u32,
        /// Process of this task; 0 unless its kind is [`Kind::Other`].
        first_tgid: u32,
        /// Cgroup of this task.
        first_cgroup: u64,
        /// Time by kind when counting started (ns).
        base: [u64; KINDS],
        /// Cgroup of the task on the CPU.
        cgroup: u64,
        /// Time at which the task on the CPU got it.
        tenure: u64,
        /// Duration of interrupts since `tenure` (ns).
        in_irq: u64,
        /// Number of tenures that the CPU has written to its ring buffer so far.
        head: u64,
        /// End of the last tenure that the ring buffer would keep.
        kept: u64,
        /// Number of targets' threads that are queued on this CPU.
        waiters: i32,
        /// Nesting depth of interrupts.
        irq_depth: u32,
        /// Start of the current inversion: a target's thread is queued on this CPU while offline work runs there. 0 if
        /// there is no inversion.
        inversion: u64,
        /// Whether the inversion began with a wake-up.
        by_wakeup: u32,
        /// PID of the task on the CPU, to detect context switches that the kernel did not report.
        pid: i32,
        /// SMT siblings of this CPU; -1 means none.
        sibling: [i32; SIBLINGS],
        /// Class of the task on the CPU.
        class: u32,
        /// For each sibling, the CPU time of offline work there (ns) when a target's thread started on this CPU, plus
        /// one; 0 if no target's thread runs here.
        sibling_was: [u64; SIBLINGS],
        /// Time since which a target's thread has the CPU, on CPUs with siblings; otherwise 0.
        online: u64,
        /// Time since which offline work has the CPU, on CPUs with siblings; otherwise 0.
        offline: u64,
        /// The culprit of the last wait on this CPU.
        last: CulpritKey,
        /// Time of the culprit in `last` that the map of culprits does not contain yet (ns).
        pending: u64,
        /// Time of the last wake-up, by the clock of the run queue.
        wakeup: u64,
        /// Difference between CLOCK_MONOTONIC and the clock of the run queue (ns), at the time `compared`.
        ahead: u64,
        /// Time at which `ahead` was measured, by the clock of the run queue.
        compared: u64,
        /// Process of the task on the CPU; 0 unless the kind of the task is [`Kind::Other`].
        tgid: u32,
        /// Process of the culprit in `last`; 0 unless its kind is [`Kind::Other`].
        last_tgid: u32,
        /// The kernel's own number of context switches on this CPU when it reported the last one; 0 if unknown.
        switches: u64,
        /// Time at which a target's thread was queued on this CPU last (ns).
        queued: u64,
        /// Time since which threads of targets have been queued on this CPU without a break (ns).
        waiting_since: u64,
        /// Time at which a wake-up first found this CPU idle although the kernel had not reported that switch (ns).
        found_idle: u64,
    }

    /// Key of the map of commands: a process that held the CPU, and the target that waited.
    pub struct CommandKey = "command" {
        /// Cgroup of the task that held the CPU.
        cgroup: u64,
        /// Index of the target that waited.
        target: u32,
        /// Process of the task that held the CPU.
        tgid: u32,
    }

    /// Name and user of a process, recorded when the process exits.
    pub struct CommandName = "command_name" {
        /// Name of the process, terminated by a 0.
        comm: [u8; COMM],
        /// UID of the process.
        uid: u32,
    }

    /// Histograms of a CPU.
    pub struct Delays = "delays" {
        /// Delay from wake-up to running.
        wake: [u64; SLOTS],
        /// Delay from a wake-up on a CPU where offline work runs until the offline work has left the CPU.
        preempt: [u64; SLOTS],
        /// Delay from the start of an online thread on a core where offline work runs on an SMT sibling until the
        /// offline work has left the sibling.
        evict: [u64; SLOTS],
    }

    /// Sums of one target on one CPU.
    pub struct Target = "target" {
        /// Time on a CPU (ns).
        run_ns: u64,
        /// Number of waits that have ended.
        waits: u64,
        /// Time waited, by what held the CPU (ns).
        wait: [u64; KINDS],
    }

    /// A process that is a target, by its PID in the PID namespace of this process.
    pub struct ProcessClass = "process" {
        /// Class of the target, with its index.
        class: u32,
        /// 1 once one of its threads has been marked.
        found: u32,
    }

    /// The living threads of a target that is a process.
    pub struct Life = "life" {
        /// Number of living threads of the process and its descendants.
        threads: i64,
        /// Time at which the last of them ended (ns); 0 if it has not.
        ended_ns: u64,
    }

    /// A thread, as returned by the kernel's task iterator.
    pub struct ThreadReading = "thread_reading" {
        /// Thread ID.
        pid: u32,
        /// Process ID.
        tgid: u32,
        /// Index of the thread's target.
        target: u32,
        /// State of the thread: a value of `enum state`.
        state: u32,
        /// Time waited, by what held the CPU (ns), with the wait that the thread is in.
        wait: [u64; KINDS],
        /// Duration of the waits (ns), with the wait that the thread is in.
        waited_ns: u64,
        /// Number of waits, with the wait that the thread is in.
        waits: u64,
        /// CPU time until now (ns).
        run_ns: u64,
        /// Time asleep until now (ns).
        slept_ns: u64,
        /// Duration of runs, waits and sleeps whose end the kernel did not report, if it has no account of them either (ns).
        lost_ns: u64,
        /// Time at which the sums start (ns).
        seen_ns: u64,
        /// Time of this reading (ns).
        now_ns: u64,
        /// Time at which the current state began (ns).
        began_ns: u64,
        /// Parts of the wait that the thread is in which no other sum contains yet (ns).
        open: [u64; KINDS],
        /// CPU time in the state that the thread is in, which no other sum contains yet (ns).
        open_run_ns: u64,
    }

    /// Key of the map of culprits of waits that go on.
    pub struct OpenCulprit = "open_culprit" {
        /// The culprit.
        who: CulpritKey,
        /// Process of the culprit; 0 unless its kind is [`Kind::Other`].
        tgid: u32,
        /// Unused.
        padding: u32,
    }
}

/// Layouts of all shared structures.
pub const LAYOUTS: [Layout; 12] = [
    Control::LAYOUT,
    CulpritKey::LAYOUT,
    CpuState::LAYOUT,
    Totals::LAYOUT,
    Delays::LAYOUT,
    Target::LAYOUT,
    ThreadReading::LAYOUT,
    CommandKey::LAYOUT,
    CommandName::LAYOUT,
    ProcessClass::LAYOUT,
    Life::LAYOUT,
    OpenCulprit::LAYOUT,
];
/// Constants of `bpf/intf.h`, with their values in Rust.
const NUMBERS: [(&str, u64); 11] = [
    ("CLASS_OTHER", Kind::Other as u64),
    ("CLASS_ONLINE", Kind::Online as u64),
    ("CLASS_OFFLINE", Kind::Offline as u64),
    ("CLASS_KERNEL", Kind::Kernel as u64),
    ("CLASS_IDLE", Kind::Idle as u64),
    ("CLASS_IRQ", Kind::Interrupt as u64),
    ("CLASS_REALTIME", Kind::RealTime as u64),
    ("ASLEEP", ASLEEP as u64),
    ("RUNNING", RUNNING as u64),
    ("START", START as u64),
    ("STOP", STOP as u64),
];

/// Compares the structures and constants of the BPF object with those in Rust; returns one message per difference.
#[must_use]
pub fn differences(btf: &Btf) -> Vec<String> {
    let mut wrong = btf.differences(&LAYOUTS);
    let numbers = NUMBERS.iter().filter(|(name, ours)| btf.number(name) != Some(*ours));
    wrong.extend(numbers.map(|(name, ours)| {
        format!("{name} is {:?} in the BPF object, but {ours} in this program", btf.number(name))
    }));
    wrong
}

impl From<[u64; KINDS]> for ByKind {
    fn from(ns: [u64; KINDS]) -> ByKind {
        ByKind(ns)
    }
}
