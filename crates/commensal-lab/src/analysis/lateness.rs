//! Decides for which percentiles a block counts although the load generator was late, and names the cause of lateness. A
//! block is the measurement of one arm in one round; an arm is one of the compared ways of running the service.
//!
//! A generator that is late only at its P99 says nothing against the median. So lateness is compared at the percentile in
//! question, with the latency of the service alone at the same percentile. The rule is part of the design of a run and
//! uses only recorded data.

use crate::format::sentence_list;
use crate::loadgen::in_time;
use crate::record::{
    Arm, Block, CpuUse, LatencyHistogram, LatenessRule, Metric, Role, Run, decode_histogram, percentile_us,
};
use crate::stats::mean;
use std::collections::BTreeMap;

/// Steal (CPUs) from which the hypervisor is a cause of lateness.
const STOLEN_CPUS: f64 = 0.005;
/// Share of the machine's CPU time from which its CPUs count as busy. Less than all of it, since this is an average over
/// blocks: other programs that use every CPU at times leave them idle at others.
const BUSY: f64 = 0.75;

/// The latency of the service alone, with which lateness is compared.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    /// Distribution in a block of the service alone in each round; `None` if the run is judged by another rule.
    rounds: Option<BTreeMap<u32, LatencyHistogram>>,
}

impl Alone {
    pub(crate) fn of(run: &Run) -> Alone {
        if run.design.lateness == LatenessRule::WholeBlock {
            return Alone::default();
        }
        let each = (0..run.rounds_begun()).filter_map(|round| run.alone_in(round));
        Alone { rounds: Some(each.filter_map(|block| Some((block.round, latency(block)?))).collect()) }
    }

    /// Returns whether the block counts for a metric. Without a distribution of the lateness (a closed loop, or a tool of
    /// others) every block counts.
    pub(crate) fn counts(&self, block: &Block, metric: Metric) -> bool {
        let in_time = || {
            let (rounds, quantile) = (self.rounds.as_ref()?, metric.quantile()?);
            let lateness = decode_histogram(block.histograms.lateness.as_deref()?).ok()?;
            let own = || latency(block);
            let alone = rounds.get(&block.round).cloned().or_else(own)?;
            let (late, alone) = (percentile_us(&lateness, quantile)?, percentile_us(&alone, quantile)?);
            Some(in_time(quantile, late, alone))
        };
        in_time().unwrap_or(true)
    }
}

fn latency(block: &Block) -> Option<LatencyHistogram> {
    decode_histogram(block.histograms.latency.as_deref()?).ok()
}

/// Returns the blocks of an arm that do not count for a metric because the generator was late, and the number of all its
/// blocks.
pub(crate) fn late<'a>(run: &'a Run, arm: &'a str, metric: Metric) -> (Vec<&'a Block>, usize) {
    let alone = Alone::of(run);
    let all: Vec<&Block> = run.blocks_of(arm).collect();
    let late = all.iter().copied().filter(|block| !alone.counts(block, metric)).collect();
    (late, all.len())
}

/// What made the load generator late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Culprit {
    /// The hypervisor wakes virtual CPUs late that had nothing to do; it took this many CPUs.
    Hypervisor(f64),
    /// The machine's CPUs were busy.
    Machine {
        /// Share of the CPU time that was in use.
        busy: f64,
        /// CPUs that programs outside the experiment used.
        others: f64,
    },
    /// Neither: the generator itself was too slow.
    Generator,
}

impl Culprit {
    /// Names the culprit by the CPU use in these blocks on a machine with this many CPUs.
    pub(crate) fn of(blocks: &[&Block], threads: f64) -> Culprit {
        let average = |of: fn(&CpuUse) -> Option<f64>| {
            mean(&blocks.iter().filter_map(|block| of(&block.cpu)).collect::<Vec<f64>>())
        };
        let used = |cpu: &CpuUse| {
            Some(cpu.online.unwrap_or(0.0) + cpu.offline.unwrap_or(0.0) + cpu.other.unwrap_or(0.0))
        };
        let busy = average(used).unwrap_or(0.0) / threads.max(1.0);
        match average(|cpu| cpu.steal) {
            _ if busy >= BUSY => Culprit::Machine { busy, others: average(CpuUse::outside).unwrap_or(0.0) },
            Some(stolen) if stolen >= STOLEN_CPUS => Culprit::Hypervisor(stolen),
            _ => Culprit::Generator,
        }
    }

    /// Says what was the cause.
    pub(crate) fn cause(self) -> String {
        match self {
            Culprit::Hypervisor(stolen) => format!(
                "the hypervisor woke idle virtual CPUs late (it took {stolen:.2} CPUs, and CPUs of this machine were idle)"
            ),
            Culprit::Machine { busy, others } => format!(
                "{:.0} % of this machine's CPU time was in use, {others:.2} CPUs by programs outside the experiment",
                busy * 100.0
            ),
            Culprit::Generator => {
                "neither a busy machine nor the hypervisor was the cause, so the generator itself was too slow".to_owned()
            }
        }
    }

    /// Says what to do.
    pub(crate) fn way_out(self) -> &'static str {
        match self {
            Culprit::Hypervisor(_) => {
                "measure when the host of this virtual machine is less busy; its owner can let the host poll longer before a \
                 virtual CPU sleeps (kvm.halt_poll_ns), and a guest with the governor haltpoll polls by itself \
                 (cpuidle_haltpoll.guest_halt_poll_ns)"
            }
            Culprit::Machine { .. } => {
                "stop other programs, or give the service and the load generator CPUs of their own"
            }
            Culprit::Generator => {
                "lower the load (--load), or generate it on another machine: the generator could not keep its own schedule"
            }
        }
    }
}

/// Blocks in which the generator was late, with the percentiles for which they do not count.
struct LateFor<'r> {
    labels: Vec<&'static str>,
    blocks: Vec<&'r Block>,
}

/// Describes the percentiles for which blocks do not count because the generator was late, with the cause.
pub(crate) fn notes(run: &Run) -> Vec<String> {
    let online = |arm: &&Arm| arm.role != Role::OfflineAlone;
    // Percentiles for which equally many blocks do not count share a note.
    let mut by_count: BTreeMap<(usize, usize), LateFor<'_>> = BTreeMap::new();
    for metric in Metric::ALL.into_iter().filter(|metric| metric.quantile().is_some()) {
        if !run.design.gates.contains(&metric) && !run.design.percentiles.contains(&metric) {
            continue;
        }
        let (mut of, mut all) = (Vec::new(), 0);
        for arm in run.arms.iter().filter(online) {
            let (late, count) = late(run, &arm.name, metric);
            of.extend(late);
            all += count;
        }
        if !of.is_empty() {
            let entry =
                by_count.entry((of.len(), all)).or_insert_with(|| LateFor { labels: Vec::new(), blocks: of });
            entry.labels.push(metric.label());
        }
    }
    let threads = f64::from(run.machine.threads);
    let told = by_count.into_iter().map(|((late, all), LateFor { labels, blocks })| {
        format!(
            "{late} of {all} blocks do not count for {}, because the load generator was late there: {}",
            sentence_list(&labels),
            Culprit::of(&blocks, threads).cause()
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::record::{encode_histogram, new_histogram};

    fn histogram(values: &[(u64, u64)]) -> String {
        let mut histogram = new_histogram().unwrap();
        for (us, count) in values {
            histogram.record_n(*us, *count).unwrap();
        }
        encode_histogram(&histogram).unwrap()
    }

    /// A run of one round whose baseline has a median of 200 us and a P90 of 1,000 us, with this lateness.
    fn run(lateness: &[(u64, u64)]) -> Run {
        let mut run = fixture::bare_run(1);
        run.design.lateness = LatenessRule::ByPercentile;
        for block in &mut run.blocks {
            block.histograms.latency = Some(histogram(&[(200, 600), (1_000, 400)]));
            block.histograms.lateness = Some(histogram(lateness));
        }
        run
    }

    // promise 38
    #[test]
    fn lateness_counts_at_its_own_percentile() {
        let check = |lateness: &[(u64, u64)], expected: [bool; 2]| {
            let run = run(lateness);
            let alone = Alone::of(&run);
            let counts = [Metric::P50, Metric::P90].map(|metric| alone.counts(&run.blocks[0], metric));
            assert_eq!(counts, expected, "{lateness:?}");
        };
        check(&[(5, 1_000)], [true, true]);
        // Late at P99 only.
        check(&[(5, 980), (5_000, 20)], [true, true]);
        // 10 % of the latency at that percentile is allowed.
        check(&[(19, 1_000)], [true, true]);
        check(&[(5, 800), (99, 200)], [true, true]);
        check(&[(5, 800), (102, 200)], [true, false]);
        check(&[(21, 800), (102, 200)], [false, false]);
        let mut old = run(&[(5_000, 1_000)]);
        old.design.lateness = LatenessRule::WholeBlock;
        assert!(Alone::of(&old).counts(&old.blocks[0], Metric::P50), "by another rule");
    }

    #[test]
    fn idle_cpus_and_steal_are_the_hypervisors() {
        let check = |online: f64, other: f64, steal: Option<f64>, expected: Culprit| {
            let client = Some(0.1);
            let cpu = CpuUse { online: Some(online), other: Some(other), client, steal, ..CpuUse::default() };
            let block = Block { cpu, ..Block::default() };
            assert_eq!(Culprit::of(&[&block], 2.0), expected);
        };
        check(0.3, 0.1, Some(0.03), Culprit::Hypervisor(0.03));
        check(0.25, 1.5, Some(0.03), Culprit::Machine { busy: 0.875, others: 1.4 });
        check(0.3, 0.1, Some(0.004), Culprit::Generator);
        check(0.3, 0.1, None, Culprit::Generator);
    }

    #[test]
    fn a_note_says_for_which_percentiles_blocks_do_not_count() {
        assert!(notes(&run(&[(5, 1_000)])).is_empty());
        let notes = notes(&run(&[(5, 800), (102, 200)]));
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].starts_with("4 of 4 blocks do not count for P90, because the load generator was late"),
            "{notes:?}"
        );
    }
}
