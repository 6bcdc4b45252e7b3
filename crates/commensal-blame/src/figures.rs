//! What the probe counted, and what the sums mean. Times are nanoseconds; nothing is rounded here.

use crate::Histogram;
use commensal_core::mirror;
use std::collections::BTreeMap;

/// What a CPU did while somebody waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A task that is neither online nor offline here.
    Other,
    /// A task of those that are looked at: a peer.
    Online,
    /// A task of offline work, whose share is counted apart.
    Offline,
    /// A kernel thread.
    Kernel,
    /// Nothing: the CPU woke up, or the waiting group was throttled.
    Idle,
    /// An interrupt, as far as the kernel has events for it.
    Interrupt,
}

impl Kind {
    /// In the order of the BPF program.
    pub const ALL: [Kind; 6] =
        [Kind::Other, Kind::Online, Kind::Offline, Kind::Kernel, Kind::Idle, Kind::Interrupt];

    /// For programs.
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
    /// Of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    /// Of all.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Caused by others: neither by peers nor by nobody.
    #[must_use]
    pub fn by_others(&self) -> u64 {
        [Kind::Other, Kind::Offline, Kind::Kernel, Kind::Interrupt].iter().map(|kind| self.of(*kind)).sum()
    }

    /// Both together.
    pub fn add(&mut self, other: &ByKind) {
        for (sum, ns) in self.0.iter_mut().zip(other.0) {
            *sum += ns;
        }
    }

    fn since(&self, earlier: &ByKind) -> ByKind {
        ByKind(std::array::from_fn(|kind| self.0[kind].saturating_sub(earlier.0[kind])))
    }
}

/// Whose task held the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// Index of the subject that waited.
    pub subject: u32,
    /// What held it: other, online or offline.
    pub kind: Kind,
    /// Its cgroup; `None` when more tasks took turns during one wait than the probe tells apart.
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
    /// Waits that ended.
    pub waits: u64,
    /// Time waited, by what held the CPU.
    pub wait: ByKind,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Plain counts and times, each since the probe came.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Both together.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)*
            }

fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }

        mirror! {
            /// What the BPF program counts on one CPU.
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
    /// Time of the subjects on a CPU, ns.
    run_ns,
    /// Waits that ended.
    waits,
    /// Wake-ups.
    wakes,
    /// Times that a thread left the CPU while it could have gone on.
    preempted,
    /// Migrations.
    migrations,
    /// Of those, while waiting.
    migrations_waiting,
    /// Wake-ups that queued behind something else while an offline task had another CPU (an upper bound: affinity is not
    /// looked at).
    displaced,
    /// Their waits, ns.
    displaced_ns,
    /// Times that a thread was queued on a CPU while an offline task had it.
    inversions,
    /// How long, ns: per CPU, however many waited.
    inversion_ns,
    /// Of those, ended because the waiting thread went to another CPU.
    inversions_escaped,
    /// Offline work on an SMT sibling while a subject ran, ns.
    overlap_ns,
    /// SMT siblings that offline work left while a subject that had come later was there.
    evictions,
    /// SMT siblings that had offline work when a subject came, and still had it when it left.
    stayed,
    /// Times that offline work came onto an SMT sibling of a running subject.
    intrusions,
    /// Context switches of the machine.
    switches,
    /// Wake-ups of the machine.
    wakeups,
    /// Threads that came onto a CPU without a wait that the probe saw begin.
    no_start,
    /// Waits, runs and sleeps whose end nobody told.
    lost,
    /// Their time, ns.
    lost_ns,
    /// Threads that no memory could be had for.
    no_storage,
    /// Second looks at a CPU that was just being written.
    retries,
    /// Switches that no tracer was told of.
    missed,
    /// Switches on CPUs where a subject's thread was queued: the ones that figures are made of.
    relevant,
    /// Of those, hidden.
    relevant_missed,
    /// Blames that found no room in the list of culprits.
    full,
    /// Their time, ns.
    full_ns,
    /// Threads that ended.
    gone,
    /// Their time on a CPU, ns.
    gone_run_ns,
    /// Their wait, ns.
    gone_wait_ns,
    /// Waits that the kernel counted as well (only when comparing).
    checked,
    /// Their sum here, ns.
    checked_ns,
    /// Their sum in the kernel (`sched_info.run_delay`), ns.
    kernel_ns,
    /// Waits that the kernel counted as 0: it reads a clock that it did not update.
    kernel_zero,
    /// Their sum here, ns.
    kernel_zero_ns,
    /// Compared waits that are more than 20 us apart.
    apart,
}

/// Everything the probe knows, since it came or between two readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// When it was read (CLOCK_MONOTONIC), or how long it lasted, ns.
    pub time_ns: u64,
    /// Waits of all subjects.
    pub wait: ByKind,
    /// Counts and times of all subjects.
    pub counters: Counters,
    /// Wake-up to running.
    pub wake_delay: Histogram,
    /// Wake-up on a CPU that an offline task has, to that task gone.
    pub preempt_delay: Histogram,
    /// A subject came onto an SMT sibling of offline work, to that work gone ([`Counters::evictions`]).
    pub evict_delay: Histogram,
    /// By subject, in the order of the scope.
    pub subjects: Vec<TargetStats>,
    /// Who held the CPU: adds up to the task kinds of the waits, with [`Counters::full_ns`].
    pub culprits: BTreeMap<Culprit, u64>,
    /// The same time of cgroups that are nobody's here, by command, where it was asked for. A part of it: who could not be asked
    /// for a name any more is not here, nor whoever came when too many were at work.
    pub commands: BTreeMap<Command, u64>,
    /// What the CPUs did all the time.
    pub cpu: ByKind,
    /// Runs of the probe's programs that the kernel left out, because one was already at work there.
    pub skipped: u64,
}

impl Figures {
    /// What came since an earlier reading of the same probe.
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

    /// Adds the sums over all subjects of another difference of readings: of windows that belong together.
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

    /// Wait of a kind per second that the subjects had a CPU, ms; `None` when they had none.
    #[must_use]
    pub fn per_cpu_second(&self, wait_ns: u64) -> Option<f64> {
        let run = self.counters.run_ns;
        (run > 0).then(|| wait_ns as f64 / run as f64 * 1e3)
    }

    /// Share of the switches while somebody waited that the probe was not told of. Above half a per cent no verdict is given.
    #[must_use]
    pub fn missed_share(&self) -> f64 {
        match self.counters.relevant {
            0 => 0.0,
            switches => (self.counters.relevant_missed + self.skipped) as f64 / switches as f64,
        }
    }
}

/// One thread of a subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Index of its subject.
    pub subject: u32,
    /// What it does now.
    pub state: ThreadState,
    /// Waits by what held the CPU, ns.
    pub wait: ByKind,
    /// Waits that ended, ns.
    pub waited_ns: u64,
    /// How many.
    pub waits: u64,
    /// On a CPU, up to the last time that it left one, ns.
    pub run_ns: u64,
    /// Asleep, up to the last wake-up, ns.
    pub slept_ns: u64,
    /// One of them, and nobody told the probe which, ns.
    pub lost_ns: u64,
    /// Since when the sums count (CLOCK_MONOTONIC), ns.
    pub seen_ns: u64,
    /// Of this reading, ns.
    pub now_ns: u64,
    /// Since when it does what it does now, ns.
    pub began_ns: u64,
}

/// What a thread does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadState {
    /// It sleeps.
    #[default]
    Asleep,
    /// It is queued.
    Waiting,
    /// It has a CPU.
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
