//! Extracts the samples for the statistics: one value per arm, round and metric, from the valid blocks. An arm is one
//! of the compared ways of running the service; a block is the measurement of one arm in one round.

use super::lateness::Alone;
use crate::format::count;
use crate::record::{Arm, Block, LatenessRule, Metric, Role, Run, decode_histogram, percentile_us};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// The metric values of a run's usable blocks. Arms are given by their index in the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples {
    arms: Vec<BTreeMap<u32, BTreeMap<Metric, f64>>>,
    /// Steal of each block in CPUs, by arm and round; empty if steal does not decide which pairs count.
    stolen: Vec<BTreeMap<u32, f64>>,
    /// Largest difference in steal (CPUs) of two blocks that are alike.
    alike_cpus: f64,
}

/// Difference in steal of two blocks, as a part of the machine's CPUs, above which the hypervisor treated them unlike.
const UNLIKE: f64 = 0.05;

/// Whether the online service crashed in this block, or answered none of its requests.
pub fn online_failed(block: &Block) -> bool {
    block.online_crashed
        || (block.load.offered_requests > 0 && block.load.achieved_per_s.is_some_and(|qps| qps <= 0.0))
}

impl Samples {
    /// Creates an empty collection for `n_arms` arms.
    pub fn empty(n_arms: usize) -> Self {
        Self { arms: vec![BTreeMap::new(); n_arms], ..Self::default() }
    }

    /// Stores one value: microseconds for a percentile, requests per second for throughput, or the result of a
    /// Prometheus query in the query's unit.
    ///
    /// Does nothing if the arm does not exist, or if the value has no logarithm because it is not positive and finite.
    pub fn set(&mut self, arm: usize, round: u32, metric: Metric, value: f64) {
        let rounds = self.arms.get_mut(arm).filter(|_| value.is_finite() && value > 0.0);
        if let Some(rounds) = rounds {
            rounds.entry(round).or_default().insert(metric, value);
        }
    }

    /// Returns the value of one metric in one block.
    pub fn get(&self, arm: usize, round: u32, metric: Metric) -> Option<f64> {
        self.arms.get(arm)?.get(&round)?.get(&metric).copied()
    }

    /// Returns whether the hypervisor took about as much from two arms' blocks of a round; true where that is unknown.
    pub fn alike(&self, arm: usize, vs: usize, round: u32) -> bool {
        let of = |arm: usize| self.stolen.get(arm)?.get(&round).copied();
        of(arm).zip(of(vs)).is_none_or(|(one, other)| (one - other).abs() <= self.alike_cpus)
    }

    /// Returns the rounds in which an arm has values, in ascending order.
    pub fn rounds(&self, arm: usize) -> impl Iterator<Item = u32> + '_ {
        self.arms.get(arm).into_iter().flat_map(|rounds| rounds.keys().copied())
    }

    /// Returns the number of rounds that have begun.
    pub fn begun(&self) -> u32 {
        self.arms
            .iter()
            .filter_map(|rounds| rounds.keys().last())
            .max()
            .map_or(0, |last| last.saturating_add(1))
    }

    /// Returns the number of rounds up to the last one in which both arms have values.
    pub fn shared(&self, arm: usize, vs: usize) -> u32 {
        let of = |arm: usize| self.arms.get(arm).and_then(|rounds| rounds.keys().last().copied());
        of(arm).zip(of(vs)).map_or(0, |(one, other)| one.min(other).saturating_add(1))
    }

    /// Returns all values of one metric in one arm, in the order of the rounds.
    pub fn values(&self, arm: usize, metric: Metric) -> Vec<f64> {
        self.rounds(arm).filter_map(|round| self.get(arm, round, metric)).collect()
    }

    /// Extracts the values from the valid blocks of a run. Also returns a note for each percentile or query that lacks
    /// values.
    ///
    /// A histogram that cannot be decoded counts as missing. Runs that [`Run::from_json`] has read contain no such
    /// histogram, because it rejects such records.
    pub fn of(run: &Run) -> (Self, Vec<String>) {
        let mut samples = Self::empty(run.arms.len());
        let mut sizes = Vec::new();
        let alone = Alone::of(run);
        if run.design.lateness == LatenessRule::ByPercentile {
            let of = |arm: &Arm| -> BTreeMap<u32, f64> {
                let each = run.blocks_of(&arm.name);
                each.filter_map(|block| Some((block.round, block.cpu.steal?))).collect()
            };
            samples.stolen = run.arms.iter().map(of).collect();
            samples.alike_cpus = UNLIKE * f64::from(run.machine.threads);
        }
        for block in run.blocks.iter().filter(|block| block.valid && !online_failed(block)) {
            let Some(arm) = run.arms.iter().position(|arm| arm.name == block.arm) else { continue };
            if run.arms[arm].role == Role::OfflineAlone {
                continue;
            }
            if let Some(qps) = block.load.achieved_per_s {
                samples.set(arm, block.round, Metric::Qps, qps);
            }
            for (metric, value) in &block.queried {
                samples.set(arm, block.round, *metric, *value);
            }
            let histogram = block.histograms.latency.as_deref().and_then(|text| decode_histogram(text).ok());
            if histogram.is_none() && block.percentiles_us.is_empty() {
                continue;
            }
            let size = histogram.as_ref().map_or(block.load.offered_requests, Histogram::len);
            sizes.push(size);
            for metric in Metric::ALL {
                let enough = run.design.plans_for(metric) && size >= metric.requests_needed();
                let counts = enough && alone.counts(block, metric);
                let value = metric.quantile().filter(|_| counts).and_then(|q| match &histogram {
                    Some(histogram) => percentile_us(histogram, q),
                    None => block.percentiles_us.get(&metric).copied(),
                });
                if let Some(us) = value {
                    samples.set(arm, block.round, metric, us);
                }
            }
        }
        let mut notes = omitted(run, &sizes);
        notes.extend(super::lateness::notes(run));
        notes.extend(unanswered(run));
        (samples, notes)
    }
}

/// Returns a sentence for each Prometheus query whose value is missing, or has no logarithm, in some valid blocks.
fn unanswered(run: &Run) -> Vec<String> {
    let online = |arm: &str| run.arms.iter().any(|one| one.name == arm && one.role != Role::OfflineAlone);
    let blocks: Vec<&Block> = run.blocks.iter().filter(|block| block.valid && online(&block.arm)).collect();
    let mut notes = Vec::new();
    for query in &run.design.queries {
        let label = query.metric.label();
        let values: Vec<f64> =
            blocks.iter().filter_map(|block| block.queried.get(&query.metric).copied()).collect();
        let (none, low) = (blocks.len() - values.len(), values.iter().filter(|value| **value <= 0.0).count());
        if none > 0 {
            notes.push(format!("{label} has no value in {none} of {} blocks", blocks.len()));
        }
        if low > 0 {
            notes.push(format!(
                "{label} is 0 or less in {low} of {} blocks, and these do not count: arms are compared by ratios, which need \
                 positive values",
                blocks.len()
            ));
        }
    }
    notes
}

/// Returns a sentence for each percentile that is missing from some or all blocks. `sizes` has the number of requests
/// of each block.
fn omitted(run: &Run, sizes: &[u64]) -> Vec<String> {
    let shown = [Metric::P50, Metric::P90, Metric::P95, Metric::P99];
    let expected = |m: &Metric| {
        m.quantile().is_some()
            && (shown.contains(m) || run.design.gates.contains(m) || run.design.percentiles.contains(m))
    };
    let Some(largest) = sizes.iter().max() else {
        return vec!["no block has a latency histogram, so no percentile is printed".to_owned()];
    };
    let mut notes = Vec::new();
    for metric in Metric::ALL.into_iter().filter(expected) {
        let (label, needed) = (metric.label(), metric.requests_needed());
        let short = sizes.iter().filter(|&&n| n < needed).count();
        if !run.design.plans_for(metric) {
            notes.push(format!(
                "{label} is not printed: by the plan, blocks have too few requests for {label}"
            ));
        } else if short == sizes.len() {
            notes.push(format!(
                "{label} is not printed: the largest block has {} requests, and {label} needs {}",
                count(*largest),
                count(needed)
            ));
        } else if short > 0 {
            notes.push(format!(
                "{label} is missing in {short} of {} blocks, which have fewer than the {} requests that {label} needs",
                sizes.len(),
                count(needed)
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::record::{encode_histogram, new_histogram};

    fn with_requests(n: u64) -> Run {
        let mut run = fixture::small_run();
        let mut h = new_histogram().unwrap();
        h.saturating_record_n(500, n);
        for block in &mut run.blocks {
            block.histograms.latency = Some(encode_histogram(&h).unwrap());
        }
        run
    }

    fn check(requests: u64, expect: &[Metric]) {
        let (samples, _) = Samples::of(&with_requests(requests));
        let got: Vec<Metric> = Metric::ALL.into_iter().filter(|m| samples.get(0, 0, *m).is_some()).collect();
        assert_eq!(got, expect, "{requests} requests");
    }

    #[test]
    fn percentiles_need_a_hundred_requests_beyond_them() {
        use Metric::{P50, P75, P90, P95, P99, P999, Qps};
        check(199, &[Qps]);
        check(200, &[Qps, P50]);
        check(999, &[Qps, P50, P75]);
        check(1_000, &[Qps, P50, P75, P90]);
        check(2_000, &[Qps, P50, P75, P90, P95]);
        check(9_999, &[Qps, P50, P75, P90, P95]);
        check(10_000, &[Qps, P50, P75, P90, P95, P99]);
        check(100_000, &[Qps, P50, P75, P90, P95, P99, P999]);
    }

    #[test]
    fn what_is_not_printed_is_said() {
        let (_, notes) = Samples::of(&with_requests(4_100));
        assert_eq!(notes, ["P99 is not printed: the largest block has 4 100 requests, and P99 needs 10 000"]);
        let mut run = with_requests(4_100);
        run.design.percentiles = vec![Metric::P50, Metric::P90];
        let (samples, notes) = Samples::of(&run);
        assert_eq!(samples.get(0, 0, Metric::P95), None);
        assert!(notes.iter().any(|n| n.contains("P95 is not printed: by the plan, blocks have too few")));
        let mut run = with_requests(4_100);
        run.blocks[0].histograms.latency = with_requests(150).blocks[0].histograms.latency.clone();
        let (_, notes) = Samples::of(&run);
        assert!(notes.iter().any(|n| n.contains("P50 is missing in 1 of 24 blocks")), "{notes:?}");
    }

    #[test]
    fn unusable_blocks_give_no_values() {
        let mut run = with_requests(1_000);
        run.blocks[0].valid = false;
        run.blocks[4].online_crashed = true;
        run.blocks[8].load.achieved_per_s = Some(0.0);
        let (samples, _) = Samples::of(&run);
        let rounds: usize = (0..4).map(|arm| samples.rounds(arm).count()).sum();
        assert_eq!(rounds, 21);
    }
}
