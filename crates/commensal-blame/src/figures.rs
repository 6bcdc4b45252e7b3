//! The probe's counters, and what their sums mean. Times are nanoseconds; nothing is rounded here.

use crate::Histogram;
use commensal_core::mirror;
use std::collections::BTreeMap;

/// The activity of a CPU while a thread waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A task that is neither online nor offline here.
    Other,
    /// A task of an online target: a peer.
    Online,
    /// A task of offline work, whose share is counted separately.
    Offline,
    /// A kernel thread.
    Kernel,
    /// Nothing: the CPU was waking up, or the waiting group was throttled.
    Idle,
    /// An interrupt, as far as the kernel has events for it.
    Interrupt,
}

impl Kind {
    /// All kinds, in the order of the BPF program.
    pub const ALL: [Kind; 6] =
        [Kind::Other, Kind::Online, Kind::Offline, Kind::Kernel, Kind::Idle, Kind::Interrupt];

    /// The kind's name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Other => "other",
            Kind::Online => "peers",
            Kind::Offline => "offline",
            Kind::Kernel => "kernel",
            Kind::Idle => "nobody",
            Kind::Interrupt => "interrupts",
        }
    }
}

/// Time by [`Kind`], ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByKind(pub [u64; 6]);

impl ByKind {
    /// Time of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    /// Time of all kinds.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Time caused by others: all kinds except peers and idle.
    #[must_use]
    pub fn by_others(&self) -> u64 {
        [Kind::Other, Kind::Offline, Kind::Kernel, Kind::Interrupt].iter().map(|kind| self.of(*kind)).sum()
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &ByKind) {
        for (sum, ns) in self.0.iter_mut().zip(other.0) {
            *sum += ns;
        }
    }

    fn since(&self, earlier: &ByKind) -> ByKind {
        ByKind(std::array::from_fn(|kind| self.0[kind].saturating_sub(earlier.0[kind])))
    }
}

/// The task that held the CPU during a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// Index of the target that waited.
    pub subject: u32,
    /// Kind of the task: other, online or offline.
    pub kind: Kind,
    /// Cgroup of the task; `None` when more tasks took turns during one wait than the probe distinguishes.
    pub cgroup: Option<u64>,
}

/// Processes of one name and user that held the CPU, of those that are neither online nor offline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command {
    /// Index of the subject that waited.
    pub subject: u32,
    /// Their cgroup.
    pub cgroup: u64,
    /// Their name.
    pub name: String,
    /// Their user's number.
    pub uid: u32,
}

/// One subject's sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Time on a CPU.
    pub run_ns: u64,
    /// Number of waits that ended.
    pub waits: u64,
    /// Time waited, by what held the CPU.
    pub wait: ByKind,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Plain counts and times, each since the probe was attached.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds other counters.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)*
            }

fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }

        mirror! {
            /// Counters of the BPF program on one CPU.
            pub struct Totals = "totals" {
                /// Waits by what held the CPU, ns.
                wait: [u64; Kind::ALL.len()],
                $($(#[$doc])* $name: u64,)*
            }
        }

        impl From<&Totals> for Counters {
            fn from(totals: &Totals) -> Counters {
                Counters { $($name: totals.$name),* }
            }
        }
    };
}

counters! {
    /// Wait that no kind accounts for, ns.
    unexplained_ns,
    /// Time of the targets' threads on a CPU, ns.
    run_ns,
    /// Number of waits that ended.
    waits,
    /// Wake-ups.
    wakes,
    /// Times that a thread was preempted: it left the CPU while still runnable.
    preempted,
    /// Migrations.
    migrations,
    /// Migrations of waiting threads.
    migrations_waiting,
    /// Wake-ups that queued behind another task while an offline task had another CPU (an upper bound: affinity is not
    /// considered).
    displaced,
    /// Time of these waits, ns.
    displaced_ns,
    /// Times that a thread was queued on a CPU while an offline task had it.
    inversions,
    /// Duration of these inversions, ns: per CPU, however many threads waited.
    inversion_ns,
    /// Inversions that ended because the waiting thread moved to another CPU.
    inversions_escaped,
    /// Time in which offline work ran on an SMT sibling of a target's thread, ns.
    overlap_ns,
    /// Times that offline work left an SMT sibling after a target's thread had come.
    evictions,
    /// Times that offline work was on an SMT sibling when a target's thread came, and still there when the thread left.
    stayed,
    /// Times that offline work came onto an SMT sibling of a running target's thread.
    intrusions,
    /// Context switches on the machine.
    switches,
    /// Wake-ups on the machine.
    wakeups,
    /// Threads that got a CPU without a recorded start of the wait.
    no_start,
    /// Waits, runs and sleeps whose end was not reported to the probe.
    lost,
    /// Time of those, ns.
    lost_ns,
    /// Threads without storage, because memory could not be allocated.
    no_storage,
    /// Repeated reads of a CPU's state that was being written.
    retries,
    /// Context switches that were not reported to tracers.
    missed,
    /// Context switches on CPUs where a target's thread was queued: the ones that the figures depend on.
    relevant,
    /// Those of them that were not reported.
    relevant_missed,
    /// Blamed waits that did not fit into the map of culprits.
    full,
    /// Time of those waits, ns.
    full_ns,
    /// Threads that exited.
    gone,
    /// CPU time of those threads, ns.
    gone_run_ns,
    /// Wait of those threads, ns.
    gone_wait_ns,
    /// Waits that were compared with the kernel's figure (only with `verify`).
    checked,
    /// Sum of those waits as measured by the probe, ns.
    checked_ns,
    /// Sum of those waits in the kernel (`sched_info.run_delay`), ns.
    kernel_ns,
    /// Waits that the kernel counted as 0, because it reads a clock that was not updated.
    kernel_zero,
    /// Sum of those waits as measured by the probe, ns.
    kernel_zero_ns,
    /// Compared waits that differ by more than 20 us.
    apart,
}

/// All figures of the probe, since it was attached or between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Time of the reading (CLOCK_MONOTONIC), or length of the interval, ns.
    pub time_ns: u64,
    /// Waits of all targets.
    pub wait: ByKind,
    /// Counts and times of all targets.
    pub counters: Counters,
    /// Delay from wake-up to running.
    pub wake_delay: Histogram,
    /// Delay from a wake-up on a CPU with an offline task until that task has left.
    pub preempt_delay: Histogram,
    /// Delay from a target's thread coming onto an SMT sibling of offline work until that work has left
    /// ([`Counters::evictions`]).
    pub evict_delay: Histogram,
    /// Sums by target, in the order of the scope.
    pub subjects: Vec<TargetStats>,
    /// Time by culprit: adds up to the waits for tasks, together with [`Counters::full_ns`].
    pub culprits: BTreeMap<Culprit, u64>,
    /// The same time of cgroups that are nobody's here, by command, where it was asked for. A part of it: who could not be asked
    /// for a name any more is not here, nor whoever came when too many were at work.
    pub commands: BTreeMap<Command, u64>,
    /// What the CPUs did all the time.
    pub cpu: ByKind,
    /// Runs of the probe's programs that the kernel skipped, because one was already running on that CPU.
    pub skipped: u64,
}

impl Figures {
    /// The difference from an earlier reading of the same probe.
    #[must_use]
    pub fn since(&self, earlier: &Figures) -> Figures {
        let subjects = self.subjects.iter().enumerate().map(|(index, now)| {
            let then = earlier.subjects.get(index).copied().unwrap_or_default();
            TargetStats {
                run_ns: now.run_ns.saturating_sub(then.run_ns),
                waits: now.waits.saturating_sub(then.waits),
                wait: now.wait.since(&then.wait),
            }
        });
        let culprits = self.culprits.iter().filter_map(|(culprit, now)| {
            let came = now.saturating_sub(earlier.culprits.get(culprit).copied().unwrap_or(0));
            (came > 0).then_some((*culprit, came))
        });
        let commands = self.commands.iter().filter_map(|(command, now)| {
            let came = now.saturating_sub(earlier.commands.get(command).copied().unwrap_or(0));
            (came > 0).then(|| (command.clone(), came))
        });
        Figures {
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
            wait: self.wait.since(&earlier.wait),
            counters: self.counters.since(&earlier.counters),
            wake_delay: self.wake_delay.since(&earlier.wake_delay),
            preempt_delay: self.preempt_delay.since(&earlier.preempt_delay),
            evict_delay: self.evict_delay.since(&earlier.evict_delay),
            subjects: subjects.collect(),
            culprits: culprits.collect(),
            commands: commands.collect(),
            cpu: self.cpu.since(&earlier.cpu),
            skipped: self.skipped.saturating_sub(earlier.skipped),
        }
    }

    /// Adds the sums over all targets of another interval, for windows that belong together.
    pub fn add(&mut self, other: &Figures) {
        self.time_ns += other.time_ns;
        for (sum, ns) in self.wait.0.iter_mut().zip(other.wait.0) {
            *sum += ns;
        }
        self.counters.add(&other.counters);
        self.wake_delay.add(&other.wake_delay);
        self.preempt_delay.add(&other.preempt_delay);
        self.evict_delay.add(&other.evict_delay);
        self.skipped += other.skipped;
    }

    /// Wait of a kind per second of the targets' CPU time, ms; `None` without CPU time.
    #[must_use]
    pub fn per_cpu_second(&self, wait_ns: u64) -> Option<f64> {
        let run = self.counters.run_ns;
        (run > 0).then(|| wait_ns as f64 / run as f64 * 1e3)
    }

    /// Share of the relevant context switches that were not reported to the probe. Above half a per cent no verdict is
    /// given.
    #[must_use]
    pub fn missed_share(&self) -> f64 {
        match self.counters.relevant {
            0 => 0.0,
            switches => (self.counters.relevant_missed + self.skipped) as f64 / switches as f64,
        }
    }
}

/// One thread of a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread ID.
    pub tid: u32,
    /// Process ID.
    pub pid: u32,
    /// Index of its target.
    pub subject: u32,
    /// Its current state.
    pub state: ThreadState,
    /// Waits by what held the CPU, ns.
    pub wait: ByKind,
    /// Time of the waits that ended, ns.
    pub waited_ns: u64,
    /// Number of waits that ended.
    pub waits: u64,
    /// CPU time, up to the last time that the thread left a CPU, ns.
    pub run_ns: u64,
    /// Time asleep, up to the last wake-up, ns.
    pub slept_ns: u64,
    /// Time that is running, waiting or sleeping, but was not reported to the probe, ns.
    pub lost_ns: u64,
    /// Start of the sums (CLOCK_MONOTONIC), ns.
    pub seen_ns: u64,
    /// Time of this reading, ns.
    pub now_ns: u64,
    /// When the current state began, ns.
    pub began_ns: u64,
}

/// State of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadState {
    /// The thread sleeps.
    #[default]
    Asleep,
    /// The thread waits in a run queue.
    Waiting,
    /// The thread has a CPU.
    Running,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_of_readings() {
        let culprit = Culprit { subject: 0, kind: Kind::Other, cgroup: Some(7) };
        let mut then = Figures { time_ns: 10, wait: ByKind([1, 2, 3, 4, 5, 6]), ..Figures::default() };
        then.culprits.insert(culprit, 5);
        then.counters.run_ns = 1_000;
        let mut now = then.clone();
        now.time_ns = 30;
        now.wait.0[0] += 100;
        now.counters.run_ns += 1_000_000;
        now.culprits.insert(Culprit { cgroup: None, ..culprit }, 9);
        now.subjects.push(TargetStats { run_ns: 4, ..TargetStats::default() });
        let came = now.since(&then);
        assert_eq!((came.time_ns, came.wait.sum(), came.wait.by_others()), (20, 100, 100));
        assert_eq!(came.culprits.len(), 1, "what did not grow is left out");
        assert_eq!(came.subjects[0].run_ns, 4);
        assert_eq!(came.per_cpu_second(2_000_000), Some(2_000.0));
        assert_eq!(Figures::default().per_cpu_second(1), None);
    }
}
