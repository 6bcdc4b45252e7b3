//! The data of a run for the charts. The blocks are decoded once, for all charts. A block is the measurement of one arm
//! (way of running the service) in one round.

use crate::analysis::{Samples, online_failed};
use crate::record::{Block, LatencyHistogram, Metric, Role, Run, decode_histogram, percentile_us};
use std::collections::BTreeMap;

/// A run with decoded histograms.
#[derive(Debug)]
pub struct DecodedRun<'a> {
    /// The run.
    pub run: &'a Run,
    /// The values that the analysis compares between arms.
    pub samples: Samples,
    /// Percentiles in microseconds of each block, valid or not, in the order of the record.
    pub latency_us: Vec<BTreeMap<Metric, f64>>,
    /// Latencies of all requests in the valid blocks of each arm; `None` for an arm without histograms.
    pub merged: Vec<Option<LatencyHistogram>>,
}

impl<'a> DecodedRun<'a> {
    /// Decodes the blocks of a run.
    pub fn of(run: &'a Run) -> Self {
        let mut merged = vec![None; run.arms.len()];
        let mut latency_us = Vec::with_capacity(run.blocks.len());
        for block in &run.blocks {
            let histogram = block.histograms.latency.as_deref().and_then(|text| decode_histogram(text).ok());
            latency_us.push(percentiles(run, block, histogram.as_ref()));
            let arm = run.arms.iter().position(|arm| arm.name == block.arm);
            let usable = block.valid && !online_failed(block);
            if let (Some(histogram), Some(arm), true) = (histogram, arm, usable) {
                add(&mut merged[arm], histogram);
            }
        }
        Self { run, samples: Samples::of(run).0, latency_us, merged }
    }

    /// Returns the number of an arm's colour.
    pub fn colour(&self, arm: &str) -> usize {
        let Some(at) = self.run.arms.iter().position(|other| other.name == arm) else { return 0 };
        match self.run.arms[at].role {
            Role::Baseline => 0,
            Role::Baseline2 => 1,
            Role::Contended => 2,
            Role::PolicyOnly => 1,
            Role::Warm => 6,
            Role::OfflineAlone => 7,
            Role::Isolated => {
                let before = self.run.arms[..at].iter().filter(|other| other.role == Role::Isolated);
                3 + before.count() % 4
            }
        }
    }

    /// Formats the label of a block, such as `round 3, isolated`.
    pub fn place(&self, block: &Block) -> String {
        format!("round {}, {}", block.round.saturating_add(1), super::canvas::fitted(&block.arm, 130.0))
    }

    /// Returns whether offline work ran in a block.
    pub fn has_offline(&self, block: &Block) -> bool {
        let role = self.run.arms.iter().find(|arm| arm.name == block.arm).map(|arm| arm.role);
        matches!(role, Some(Role::Contended | Role::Isolated | Role::OfflineAlone))
    }

    /// Returns the highest percentile up to P99 that is known for at least half of the blocks that have percentiles.
    pub fn tail(&self) -> Option<Metric> {
        let blocks = self.latency_us.iter().filter(|values| !values.is_empty()).count();
        let known =
            |metric: &Metric| self.latency_us.iter().filter(|values| values.contains_key(metric)).count();
        let metrics = [Metric::P99, Metric::P95, Metric::P90, Metric::P75, Metric::P50];
        metrics.into_iter().find(|metric| blocks > 0 && known(metric) * 2 >= blocks)
    }
}

fn add(into: &mut Option<LatencyHistogram>, histogram: LatencyHistogram) {
    match into {
        // Adding cannot fail, because both histograms have the fixed bounds of the record.
        Some(sum) => drop(sum.add(&histogram)),
        None => *into = Some(histogram),
    }
}

/// Returns the percentiles of a block, as the analysis does: only percentiles that are part of the plan, and for which
/// the block has enough requests.
fn percentiles(run: &Run, block: &Block, histogram: Option<&LatencyHistogram>) -> BTreeMap<Metric, f64> {
    let size = histogram.map_or(block.load.offered_requests, |histogram| histogram.len());
    let value = |metric: Metric| {
        let quantile = metric.quantile()?;
        let enough = run.design.plans_for(metric) && size >= metric.requests_needed();
        let us = match histogram.filter(|_| enough) {
            Some(histogram) => percentile_us(histogram, quantile),
            None if histogram.is_none() && enough => block.percentiles_us.get(&metric).copied(),
            None => None,
        };
        us.filter(|us| us.is_finite() && *us > 0.0).map(|us| (metric, us))
    };
    Metric::ALL.into_iter().filter_map(value).collect()
}
