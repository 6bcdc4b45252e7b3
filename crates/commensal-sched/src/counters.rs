//! What the programs in the kernel have counted, as numbers with names.

use crate::intf::{CLASSES, CPU_NS, CPU_STATE_AT, CPU_WORDS_AT, half, word};
use serde::{Deserialize, Serialize};

/// Sums over the machine since the scheduler was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time of all CPUs by what had them: idle, other, offline, online, expelling; ns.
    pub ns: [u64; CLASSES],
    /// Idle time of CPUs on whose core nobody expels, ns.
    pub room_ns: u64,
    /// Time in which an expelling thread ran on a core, summed over cores, ns.
    pub expelling_ns: u64,
    /// … and an offline one beside it.
    pub overlap_ns: u64,
    /// The longest such stretch.
    pub overlap_max_ns: u64,
    /// Offline threads asked to leave at once.
    pub kicks: u64,
    /// Times that an offline thread was not let in beside an expelling one.
    pub refusals: u64,
    /// CPUs woken because the expelling thread had left.
    pub resumes: u64,
    /// Offline threads that left because an expelling one came.
    pub evictions: u64,
    /// How long that took, summed.
    pub evict_ns: u64,
    /// The longest.
    pub evict_max_ns: u64,
    /// Of the evictions those that took the tick, which is the backstop.
    pub by_ticks: u64,
    /// CPUs left idle so that an online thread that waited elsewhere is pulled there.
    pub vacated: u64,
    /// Threads that were being killed or frozen and were let through.
    pub let_die: u64,
    /// Times that the kernel's deadline server offered a CPU that others wait for, and was refused.
    pub declined: u64,
}

impl Counters {
    /// Adds a `struct cpu`; `now` closes what goes on.
    pub fn add_cpu(&mut self, bytes: &[u8], now_ns: u64) {
        let state = half(bytes, CPU_STATE_AT) as usize;
        let at = |index: usize| word(bytes, CPU_WORDS_AT, index);
        for (class, sum) in self.ns.iter_mut().enumerate() {
            *sum += at(CPU_NS + class);
        }
        let since = at(0);
        if since > 0 && state < CLASSES {
            self.ns[state] += now_ns.saturating_sub(since);
        }
        let mut next = (CPU_NS + CLASSES..).map(at);
        let mut take = || next.next().unwrap_or(0);
        self.room_ns += take();
        self.kicks += take();
        self.refusals += take();
        self.resumes += take();
        self.evictions += take();
        self.evict_ns += take();
        self.evict_max_ns = self.evict_max_ns.max(take());
        self.by_ticks += take();
        self.vacated += take();
        self.let_die += take();
        self.declined += take();
    }

    /// Adds a `struct core`.
    pub fn add_core(&mut self, bytes: &[u8]) {
        self.expelling_ns += word(bytes, 0, 1);
        self.overlap_ns += word(bytes, 0, 2);
        self.overlap_max_ns = self.overlap_max_ns.max(word(bytes, 0, 3));
    }

    /// Share of the expelling time in which offline work ran beside it; `None` when nobody expelled.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        (self.expelling_ns > 0).then(|| self.overlap_ns as f64 / self.expelling_ns as f64)
    }

    /// Idle time open to offline work since `before`, of all CPUs' time, in 1/1000.
    #[must_use]
    pub fn room_permille(&self, before: &Counters) -> u64 {
        let all: u64 = self.ns.iter().sum::<u64>().saturating_sub(before.ns.iter().sum());
        (self.room_ns.saturating_sub(before.room_ns) * 1000).checked_div(all).unwrap_or(0)
    }
}

/// A slot: a group of threads that is weighed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReading {
    /// CPU time, ns.
    pub run_ns: u64,
    /// Longest wait among those who wait, ns; a sample of a tenth of a second ago.
    pub oldest_ns: u64,
    /// Longest wait that ended, ns.
    pub waited_max_ns: u64,
    /// Threads that wait; the same sample.
    pub queued: u64,
}

impl SlotReading {
    /// From a `struct slot`.
    #[must_use]
    pub fn read(bytes: &[u8]) -> SlotReading {
        let at = |index: usize| word(bytes, 0, index);
        SlotReading { run_ns: at(5), oldest_ns: at(6), waited_max_ns: at(7), queued: at(8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intf::{CORE, CPU, SLOT, put_word};

    #[test]
    fn numbers_stand_where_the_header_has_them() {
        let mut cpu = vec![0; CPU];
        cpu[CPU_STATE_AT] = 2;
        put_word(&mut cpu, CPU_WORDS_AT, 0, 1000);
        for class in 0..CLASSES {
            put_word(&mut cpu, CPU_WORDS_AT, CPU_NS + class, 10 * class as u64);
        }
        for (index, value) in (1..=11).enumerate() {
            put_word(&mut cpu, CPU_WORDS_AT, CPU_NS + CLASSES + index, value);
        }
        let mut sums = Counters::default();
        sums.add_cpu(&cpu, 1500);
        assert_eq!(sums.ns, [0, 10, 520, 30, 40]);
        assert_eq!(
            (sums.room_ns, sums.kicks, sums.evict_max_ns, sums.by_ticks, sums.declined),
            (1, 2, 7, 8, 11)
        );
        let mut core = vec![0; CORE];
        put_word(&mut core, 0, 1, 400);
        put_word(&mut core, 0, 2, 20);
        put_word(&mut core, 0, 3, 9);
        sums.add_core(&core);
        assert_eq!((sums.overlap(), sums.overlap_max_ns), (Some(0.05), 9));
        assert_eq!(Counters::default().overlap(), None);
        assert_eq!(sums.room_permille(&Counters::default()), 1000 / 600);
        let mut slot = vec![0; SLOT];
        put_word(&mut slot, 0, 5, 77);
        put_word(&mut slot, 0, 8, 3);
        assert_eq!((SlotReading::read(&slot).run_ns, SlotReading::read(&slot).queued), (77, 3));
    }
}
