//! Converts the counters of the BPF programs to the metrics of the status.

use crate::intf::{
    CLASS_EXPELLING, CLASS_IDLE, CLASS_IRQ, CLASS_KERNEL, CLASS_OFFLINE, CLASS_ONLINE, CLASS_OTHER, CLASSES,
    Core, Cpu, Slot,
};
use commensal_core::scheduler::protocol::{self, Counters, SlotReading};

/// The BPF programs' classes in the order of the status; kernel threads and interrupts count as other.
const REPORTED: [&[u64]; protocol::CLASSES] = [
    &[CLASS_IDLE],
    &[CLASS_OTHER, CLASS_KERNEL, CLASS_IRQ],
    &[CLASS_OFFLINE],
    &[CLASS_ONLINE],
    &[CLASS_EXPELLING],
];

/// Adds the counters of a CPU. The time from the CPU's last update to `now_ns` counts for its current class.
pub fn add_cpu(sums: &mut Counters, cpu: &Cpu, now_ns: u64) {
    let mut ns = cpu.ns;
    let state = cpu.state as usize;
    if cpu.since > 0 && state < CLASSES {
        ns[state] += now_ns.saturating_sub(cpu.since);
    }
    for (sum, classes) in sums.ns.iter_mut().zip(REPORTED) {
        *sum += classes.iter().map(|class| ns[*class as usize]).sum::<u64>();
    }
    sums.room_ns += cpu.room_ns;
    sums.kicks += cpu.kicks;
    sums.refusals += cpu.refusals;
    sums.resumes += cpu.resumes;
    sums.evictions += cpu.evictions;
    sums.evict_ns += cpu.evict_ns;
    sums.evict_max_ns = sums.evict_max_ns.max(cpu.evict_max_ns);
    sums.by_ticks += cpu.by_ticks;
    sums.vacated += cpu.vacated;
    sums.let_die += cpu.let_die;
    sums.declined += cpu.starved;
}

/// Adds the counters of a core.
pub fn add_core(sums: &mut Counters, core: &Core) {
    sums.expelling_ns += core.expelling_ns;
    sums.overlap_ns += core.overlap_ns;
    sums.overlap_max_ns = sums.overlap_max_ns.max(core.overlap_max_ns);
}

/// Converts the counters of a slot.
#[must_use]
pub fn slot(slot: &Slot) -> SlotReading {
    SlotReading {
        run_ns: slot.run_ns,
        oldest_ns: slot.oldest_ns,
        waited_max_ns: slot.waited_max_ns,
        queued: slot.queued,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn classes_are_reported_in_their_order() {
        let mut cpu = Cpu::new_zeroed();
        (cpu.state, cpu.since) = (CLASS_OFFLINE as u32, 1000);
        for (class, ns) in cpu.ns.iter_mut().enumerate() {
            *ns = 10 * class as u64;
        }
        (cpu.evict_max_ns, cpu.starved) = (7, 11);
        let mut sums = Counters::default();
        add_cpu(&mut sums, &cpu, 1500);
        // Idle, other (with kernel threads and interrupts), offline, online, expelling.
        assert_eq!(sums.ns, [40, 80, 520, 10, 60]);
        assert_eq!((sums.evict_max_ns, sums.declined), (7, 11));
        let core = Core { expelling_ns: 400, overlap_ns: 20, overlap_max_ns: 9, ..Core::new_zeroed() };
        add_core(&mut sums, &core);
        assert_eq!((sums.overlap(), sums.overlap_max_ns), (Some(0.05), 9));
    }
}
