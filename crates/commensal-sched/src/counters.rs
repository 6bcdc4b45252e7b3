//! What the programs in the kernel have counted, as numbers with names.

use crate::intf::{CPU_NS, CPU_STATE_AT, CPU_WORDS_AT, half, word};
use commensal_core::scheduler::protocol::{CLASSES, Counters, SlotReading};

/// Adds a `struct cpu`; `now` closes what goes on.
pub fn add_cpu(sums: &mut Counters, bytes: &[u8], now_ns: u64) {
    let state = half(bytes, CPU_STATE_AT) as usize;
    let at = |index: usize| word(bytes, CPU_WORDS_AT, index);
    for (class, sum) in sums.ns.iter_mut().enumerate() {
        *sum += at(CPU_NS + class);
    }
    let since = at(0);
    if since > 0 && state < CLASSES {
        sums.ns[state] += now_ns.saturating_sub(since);
    }
    let mut next = (CPU_NS + CLASSES..).map(at);
    let mut take = || next.next().unwrap_or(0);
    sums.room_ns += take();
    sums.kicks += take();
    sums.refusals += take();
    sums.resumes += take();
    sums.evictions += take();
    sums.evict_ns += take();
    sums.evict_max_ns = sums.evict_max_ns.max(take());
    sums.by_ticks += take();
    sums.vacated += take();
    sums.let_die += take();
    sums.declined += take();
}

/// Adds a `struct core`.
pub fn add_core(sums: &mut Counters, bytes: &[u8]) {
    sums.expelling_ns += word(bytes, 0, 1);
    sums.overlap_ns += word(bytes, 0, 2);
    sums.overlap_max_ns = sums.overlap_max_ns.max(word(bytes, 0, 3));
}

/// From a `struct slot`.
#[must_use]
pub fn slot(bytes: &[u8]) -> SlotReading {
    let at = |index: usize| word(bytes, 0, index);
    SlotReading { run_ns: at(5), oldest_ns: at(6), waited_max_ns: at(7), queued: at(8) }
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
        add_cpu(&mut sums, &cpu, 1500);
        assert_eq!(sums.ns, [0, 10, 520, 30, 40]);
        assert_eq!(
            (sums.room_ns, sums.kicks, sums.evict_max_ns, sums.by_ticks, sums.declined),
            (1, 2, 7, 8, 11)
        );
        let mut core = vec![0; CORE];
        put_word(&mut core, 0, 1, 400);
        put_word(&mut core, 0, 2, 20);
        put_word(&mut core, 0, 3, 9);
        add_core(&mut sums, &core);
        assert_eq!((sums.overlap(), sums.overlap_max_ns), (Some(0.05), 9));
        assert_eq!(sums.room_permille(&Counters::default()), 1000 / 600);
        let mut bytes = vec![0; SLOT];
        put_word(&mut bytes, 0, 5, 77);
        put_word(&mut bytes, 0, 8, 3);
        assert_eq!((slot(&bytes).run_ns, slot(&bytes).queued), (77, 3));
    }
}
