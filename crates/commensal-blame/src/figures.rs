//! The probe's counters and their meaning. Times are exact, in nanoseconds.
//!
//! A target is a cgroup or process whose threads the probe observes. It is online (the probe measures its waits) or
//! offline (the probe counts separately the waits that it causes). A wait begins when a thread of an online target is
//! ready to run, and ends when the thread gets a CPU. A culprit is the task that held the CPU during the wait.

use crate::Histogram;
use commensal_core::mirror;
use std::collections::BTreeMap;

/// The activity of a CPU while a thread waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A user-space task that is neither online nor offline.
    Other,
    /// A task of an online target: a peer of the waiting thread.
    Online,
    /// A task of an offline target.
    Offline,
    /// A kernel thread.
    Kernel,
    /// No task held the CPU: the CPU was waking up from idle, or the waiting group was throttled.
    Idle,
    /// An interrupt handler, as far as the kernel has tracepoints for that interrupt.
    Interrupt,
    /// A user-space task that is neither online nor offline, with a real-time or deadline policy.
    RealTime,
}

impl Kind {
    /// All kinds, in the order that the BPF program uses.
    pub const ALL: [Kind; 7] =
        [Kind::Other, Kind::Online, Kind::Offline, Kind::Kernel, Kind::Idle, Kind::Interrupt, Kind::RealTime];
    /// The kinds whose tasks are told apart by cgroup.
    pub const OF_CGROUPS: [Kind; 4] = [Kind::Other, Kind::Online, Kind::Offline, Kind::RealTime];

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
            Kind::RealTime => "real-time",
        }
    }
}

/// Time by [`Kind`] (ns).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByKind(pub [u64; Kind::ALL.len()]);

impl ByKind {
    /// Time of one kind (ns).
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    /// Time of all kinds (ns).
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Time of all kinds except online tasks and idle (ns): the wait caused by others.
    #[must_use]
    pub fn by_others(&self) -> u64 {
        self.sum() - self.of(Kind::Online) - self.of(Kind::Idle)
    }

    /// Adds the times of `other`, kind by kind.
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
    /// Kind of the task: one of [`Kind::OF_CGROUPS`].
    pub kind: Kind,
    /// Cgroup of the task, or with [`Scope::by_target`](crate::Scope::by_target) the index of its target among the
    /// online or offline ones, and 0 if it belongs to none. `None` if more tasks took turns during one wait than the probe
    /// can distinguish.
    pub cgroup: Option<u64>,
}

/// Processes with the same name and user that held the CPU. They are neither online nor offline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command {
    /// Index of the target that waited.
    pub subject: u32,
    /// Cgroup of the processes (cgroup ID).
    pub cgroup: u64,
    /// Name of the processes.
    pub name: String,
    /// UID of the processes.
    pub uid: u32,
}

/// Sums of one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Time on a CPU (ns).
    pub run_ns: u64,
    /// Number of waits, with those that go on.
    pub waits: u64,
    /// Time waited, by what held the CPU (ns).
    pub wait: ByKind,
}

impl TargetStats {
    /// Adds the sums of `other`.
    pub fn add(&mut self, other: &TargetStats) {
        self.run_ns += other.run_ns;
        self.waits += other.waits;
        self.wait.add(&other.wait);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters and times, each since the probe was attached.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds the values of `other`, counter by counter.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)*
            }

fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }

        mirror! {
            /// Counters that the BPF program keeps for one CPU.
            pub struct Totals = "totals" {
                /// Time waited, by what held the CPU (ns).
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
    /// Time waited that is attributed to no kind (ns).
    unexplained_ns,
    /// Time of the targets' threads on a CPU (ns).
    run_ns,
    /// Number of waits, with those that go on.
    waits,
    /// Number of wake-ups of the online targets' threads.
    wakes,
    /// Number of preemptions: a thread left the CPU while it was runnable.
    preempted,
    /// Number of times that a thread of an online target moved to another CPU.
    migrations,
    /// Number of times that a thread of an online target moved to another CPU while it waited.
    migrations_waiting,
    /// Number of wake-ups after which a thread of an online target queued behind another task while an offline task ran
    /// on another CPU. This is an upper bound, because the probe does not consider CPU affinity.
    displaced,
    /// Time that threads waited after the wake-ups that [`Counters::displaced`] counts (ns).
    displaced_ns,
    /// Number of inversions: a target's thread was queued on a CPU while an offline task ran there.
    inversions,
    /// Duration of inversions (ns), summed over the CPUs. If several threads wait on one CPU, their common time counts
    /// once.
    inversion_ns,
    /// Number of inversions that ended because the waiting thread moved to another CPU.
    inversions_escaped,
    /// Time in which offline work ran on an SMT sibling of a target's thread (ns).
    overlap_ns,
    /// Number of times that offline work left an SMT sibling after an online target's thread had started on the core's
    /// other hardware thread.
    evictions,
    /// Number of times that offline work was on an SMT sibling when a target's thread started, and was still there when
    /// the thread left.
    stayed,
    /// Number of times that offline work started on an SMT sibling of a running target's thread.
    intrusions,
    /// Number of context switches on the machine.
    switches,
    /// Number of wake-ups on the machine.
    wakeups,
    /// Number of times that a thread got a CPU without a recorded start of its wait.
    no_start,
    /// Number of waits, runs and sleeps whose end the kernel did not report to the probe.
    lost,
    /// Duration of the waits, runs and sleeps whose end the kernel did not report (ns). What the threads did meanwhile is
    /// taken from the kernel's own account of them.
    lost_ns,
    /// Number of events of threads without task storage (BPF memory per thread), because the kernel could not allocate it.
    no_storage,
    /// Number of times that a program read the state of a CPU again, because that CPU was writing it.
    retries,
    /// Number of context switches that the kernel did not report to tracers such as the probe.
    missed,
    /// Number of relevant context switches: those on CPUs where a target's thread was queued.
    relevant,
    /// Number of relevant context switches that the kernel did not report to tracers.
    relevant_missed,
    /// Part of the waits during which a task that the kernel did not report may have held the CPU (ns). This is the largest
    /// error of any figure about who held it.
    hidden_ns,
    /// The part of `hidden_ns` that is counted as a wait for offline work (ns).
    hidden_offline_ns,
    /// Number of waits whose culprit did not fit into the map of culprits.
    full,
    /// Duration of the waits whose culprit did not fit into the map of culprits (ns).
    full_ns,
    /// Number of threads that exited.
    gone,
    /// CPU time of threads that exited (ns).
    gone_run_ns,
    /// Time waited by threads that exited (ns).
    gone_wait_ns,
    /// Number of waits for which the probe compared its measurement with the kernel's (only with `verify`).
    checked,
    /// Sum of the compared waits as measured by the probe (ns).
    checked_ns,
    /// Sum of the compared waits as measured by the kernel (`sched_info.run_delay`, ns).
    kernel_ns,
    /// Number of compared waits that the kernel counted as 0, because it read a clock that had not been updated.
    kernel_zero,
    /// Sum of the waits that the kernel counted as 0, as measured by the probe (ns).
    kernel_zero_ns,
    /// Number of compared waits for which the two measurements differ by more than 20 us.
    apart,
}

/// All measurements of the probe, since it was attached or between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Time of the reading (CLOCK_MONOTONIC), or length of the interval (ns).
    pub time_ns: u64,
    /// Waits of all targets, by what held the CPU.
    pub wait: ByKind,
    /// Counters of all targets.
    pub counters: Counters,
    /// Delays from the wake-up of an online target's thread until the thread ran.
    pub wake_delay: Histogram,
    /// Delays from the wake-up of an online target's thread on a CPU that runs an offline task until this task left the
    /// CPU.
    pub preempt_delay: Histogram,
    /// Delays from the start of an online target's thread on a core where offline work runs on an SMT sibling until the
    /// offline work left the sibling ([`Counters::evictions`]).
    pub evict_delay: Histogram,
    /// Sums by online target, in the order of [`Scope::online`](crate::Scope::online).
    pub subjects: Vec<TargetStats>,
    /// Time waited (ns) by culprit. Together with [`Counters::full_ns`] it adds up to the time waited for tasks of all
    /// kinds.
    pub culprits: BTreeMap<Culprit, u64>,
    /// Time waited (ns) by command, for cgroups that are neither online nor offline; only with
    /// [`Scope::commands`](crate::Scope::commands). The sum can be less than the time of these cgroups, because two
    /// things are missing: processes that exited before their name was read, and commands beyond the maximum number.
    pub commands: BTreeMap<Command, u64>,
    /// Time of the CPUs by kind (ns), including the time in which no thread waited.
    pub cpu: ByKind,
    /// Time for which each CPU was idle (ns), by number.
    pub idle_ns: Vec<u64>,
    /// Number of runs of the probe's programs that the kernel skipped, because a program was already running on that
    /// CPU.
    pub skipped: u64,
}

impl Figures {
    /// Returns the difference from `earlier`, a reading of the same probe.
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
        let idle =
            |(cpu, now): (usize, &u64)| now.saturating_sub(earlier.idle_ns.get(cpu).copied().unwrap_or(0));
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
            idle_ns: self.idle_ns.iter().enumerate().map(idle).collect(),
            skipped: self.skipped.saturating_sub(earlier.skipped),
        }
    }

    /// Adds the sums over all targets of another interval. Sums by target, culprit and command are not added.
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

    /// Converts a wait to ms per second of the online targets' CPU time; `None` if they had no CPU time.
    #[must_use]
    pub fn per_cpu_second(&self, wait_ns: u64) -> Option<f64> {
        let run = self.counters.run_ns;
        (run > 0).then(|| wait_ns as f64 / run as f64 * 1e3)
    }

    /// Share of the relevant context switches that the kernel did not report to the probe.
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
    /// Index of the thread's target.
    pub subject: u32,
    /// The thread's current state.
    pub state: ThreadState,
    /// Time waited, by what held the CPU (ns).
    pub wait: ByKind,
    /// Duration of the waits, with the one that the thread is in (ns).
    pub waited_ns: u64,
    /// Number of waits, with the one that the thread is in.
    pub waits: u64,
    /// CPU time until now (ns).
    pub run_ns: u64,
    /// Time asleep until now (ns).
    pub slept_ns: u64,
    /// Duration of runs, waits and sleeps whose end the kernel did not report to the probe, on a kernel that keeps no account
    /// of its threads either (ns).
    pub lost_ns: u64,
    /// Time at which the sums start (CLOCK_MONOTONIC, ns).
    pub seen_ns: u64,
    /// Time of this reading (ns).
    pub now_ns: u64,
    /// Time at which the current state began (ns).
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
        let mut then = Figures { time_ns: 10, wait: ByKind([1, 2, 3, 4, 5, 6, 0]), ..Figures::default() };
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
