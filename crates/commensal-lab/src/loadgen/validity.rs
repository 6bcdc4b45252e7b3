//! Decides from the figures of a block whether its load is valid, with reasons in words. Nothing is measured here.

use super::LoadResult;
use crate::record::{Block, LatencyHistogram, LoadFigures, Metric, decode_histogram};

/// Least share of the offered requests that must be achieved.
pub const ACHIEVED_SHARE_MIN: f64 = 0.99;
/// The generator's lateness may be this share of the baseline's latency P99 ...
pub const LATENESS_SHARE_MAX: f64 = 0.10;
/// ... or by this many microseconds, whichever is more.
pub const LATENESS_FLOOR_US: f64 = 100.0;
/// How far the share of failed requests may exceed the baseline's (0.1 percentage points).
pub const FAILED_SHARE_OVER_BASELINE_MAX: f64 = 0.001;

/// Number of standard errors by which answers in windows may fall short of requests by chance.
const ERRORS_BY_CHANCE: f64 = 4.0;
/// Maximum share of the requests that may be missing by chance. An overloaded service always has many in flight, which
/// must not excuse missing answers.
const SHARE_BY_CHANCE_MAX: f64 = 0.05;

/// Figures that the rule uses: from a load that just ended, or from a recorded block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadEvidence {
    /// Requests offered and their outcomes; a closed loop has no offered rate.
    pub load: LoadFigures,
    /// Latency P99, microseconds; 0 when unknown.
    pub latency_us_p99: f64,
    /// Lateness P99, microseconds; `None` when no request found a free connection, or nothing was due.
    pub lateness_us_p99: Option<f64>,
    /// Number of answers that may be missing by chance: requests in flight when a short window began or ended.
    pub missing_by_chance: f64,
}

impl LoadEvidence {
    /// From a load.
    #[must_use]
    pub fn of(result: &LoadResult) -> Self {
        let p99 = |histogram: &LatencyHistogram| histogram.value_at_quantile(0.99) as f64;
        Self {
            load: result.scheduled(),
            latency_us_p99: p99(&result.latency),
            lateness_us_p99: (!result.lateness.is_empty()).then(|| p99(&result.lateness)),
            missing_by_chance: 0.0,
        }
    }

    /// From a block that consists of this number of short windows, or of none.
    #[must_use]
    pub fn of_block(block: &Block, windows: u32) -> Self {
        let decoded = |text: &Option<String>| text.as_deref().and_then(|text| decode_histogram(text).ok());
        let p99 =
            decoded(&block.histograms.latency).map(|histogram| histogram.value_at_quantile(0.99) as f64);
        // By Little's law; at either end of a window this number may be in flight, more or fewer.
        let service_s = decoded(&block.histograms.service).map_or(0.0, |histogram| histogram.mean() / 1e6);
        let under_way = block.load.offered_per_s.unwrap_or(0.0) * service_s;
        let missing_by_chance = ERRORS_BY_CHANCE * (2.0 * f64::from(windows) * under_way).sqrt();
        Self {
            load: block.load,
            latency_us_p99: p99.or_else(|| block.percentiles_us.get(&Metric::P99).copied()).unwrap_or(0.0),
            lateness_us_p99: block.lateness_us.map(|lateness| lateness.p99),
            missing_by_chance,
        }
    }

    fn achieved_per_s(&self) -> f64 {
        self.load.achieved_per_s.unwrap_or(0.0)
    }
}

/// Figures of the baseline that the rule uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadBaseline {
    /// Latency P99 from intended start, in microseconds.
    pub latency_us_p99: f64,
    /// Errors and timeouts as a share of the offered requests.
    pub failed_share: f64,
}

impl LoadBaseline {
    /// From a baseline block.
    #[must_use]
    pub fn of(evidence: &LoadEvidence) -> Self {
        Self { latency_us_p99: evidence.latency_us_p99, failed_share: evidence.load.failed_share() }
    }
}

/// Why the block is INVALID; empty when it is valid. A baseline block is judged against itself.
///
/// `beside_offline`: a service that does not keep up or fails beside offline work is a result, not a fault of the
/// environment. Only the generator's lateness makes such a block invalid; errors lead to the verdict BROKEN.
#[must_use]
pub fn invalid_reasons(
    evidence: &LoadEvidence,
    baseline: &LoadBaseline,
    beside_offline: bool,
) -> Vec<String> {
    if evidence.load.offered_requests == 0 {
        return vec!["no request was due in the measured window: raise the rate or the length".to_owned()];
    }
    let mut reasons = Vec::new();
    if let Some(offered) = evidence.load.offered_per_s {
        reasons.extend(not_kept_up(evidence, offered).filter(|_| !beside_offline));
        reasons.extend(late(evidence, baseline, beside_offline));
    }
    if evidence.load.offered_per_s.is_none() && evidence.achieved_per_s() <= 0.0 && !beside_offline {
        // In a closed loop, offered and achieved load are the same.
        reasons.push("no request was answered with 2xx within the timeout".to_owned());
    }
    let failed = evidence.load.failed_share();
    let over = failed - baseline.failed_share;
    // Tolerance for rounding.
    if over > FAILED_SHARE_OVER_BASELINE_MAX + 1e-12 && !beside_offline {
        reasons.push(format!(
            "{} errors and {} timeouts are {:.2} % of the requests, {:.2} points more than in the baseline, above \
             {:.1}",
            evidence.load.errors,
            evidence.load.timeouts,
            failed * 100.0,
            over * 100.0,
            FAILED_SHARE_OVER_BASELINE_MAX * 100.0,
        ));
    }
    reasons
}

fn not_kept_up(evidence: &LoadEvidence, offered_per_s: f64) -> Option<String> {
    let achieved = evidence.achieved_per_s() / offered_per_s;
    let by_chance =
        (evidence.missing_by_chance / evidence.load.offered_requests.max(1) as f64).min(SHARE_BY_CHANCE_MAX);
    let least = ACHIEVED_SHARE_MIN.min(1.0 - by_chance);
    (achieved < least).then(|| {
        format!(
            "achieved {:.1} of {offered_per_s:.1} offered requests/s = {:.1} %, below {:.0} %: the service did not keep \
             up, or the generator lacked CPU",
            evidence.achieved_per_s(),
            achieved * 100.0,
            least * 100.0,
        )
    })
}

fn late(evidence: &LoadEvidence, baseline: &LoadBaseline, beside_offline: bool) -> Option<String> {
    let allowed_us = (baseline.latency_us_p99 * LATENESS_SHARE_MAX).max(LATENESS_FLOOR_US);
    match evidence.lateness_us_p99 {
        None if !beside_offline => Some(
            "no request found a free connection when it was due, so the generator's lateness is unknown: \
             raise the connections or lower the rate"
                .to_owned(),
        ),
        Some(lateness_us) if lateness_us > allowed_us => Some(format!(
            "the generator was late: P99 of send minus due is {lateness_us:.0} us, above {allowed_us:.0} us (10 % of \
             the latency P99 without offline work, at least 100 us): give it a CPU of its own or SCHED_FIFO"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::{ErrorKinds, SecondSeries};
    use hdrhistogram::Histogram;

    /// 10 000 requests in 10 s, all good, lateness 20 us.
    fn good() -> LoadResult {
        let histogram = |us| {
            let mut h = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("bounds");
            h.record_n(us, 10_000).expect("in range");
            h
        };
        LoadResult {
            load: LoadFigures {
                offered_per_s: Some(1_000.0),
                achieved_per_s: Some(1_000.0),
                offered_requests: 10_000,
                ..LoadFigures::default()
            },
            sent: 10_000,
            completed: 10_000,
            error_kinds: ErrorKinds::default(),
            latency: histogram(500),
            service: histogram(400),
            lateness: histogram(20),
            measured_s: 10.0,
            generator_cpu_s: 0.5,
            reconnects: 0,
            closed: None,
            cut: false,
            series: SecondSeries::default(),
        }
    }

    fn check(change: impl Fn(&mut LoadResult), baseline: LoadBaseline, words: &[&str]) {
        let mut result = good();
        change(&mut result);
        let reasons = invalid_reasons(&LoadEvidence::of(&result), &baseline, false);
        assert_eq!(reasons.len(), words.len(), "{reasons:?}");
        for (reason, word) in reasons.iter().zip(words) {
            assert!(reason.contains(word), "{reason} lacks {word}");
        }
    }

    fn lateness(result: &mut LoadResult, us: u64) {
        result.lateness.reset();
        result.lateness.record_n(us, 100).expect("in range");
    }

    // promise 47
    #[test]
    fn each_limit_from_both_sides() {
        let base = LoadBaseline { latency_us_p99: 500.0, failed_share: 0.0 };
        check(|_| (), base, &[]);
        check(|r| r.load.achieved_per_s = Some(990.0), base, &[]);
        check(|r| r.load.achieved_per_s = Some(989.0), base, &["98.9 %"]);
        check(|r| lateness(r, 100), base, &[]);
        check(|r| lateness(r, 102), base, &["102 us"]);
        let slow = LoadBaseline { latency_us_p99: 20_000.0, failed_share: 0.0 };
        check(|r| lateness(r, 1_999), slow, &[]);
        check(|r| lateness(r, 2_010), slow, &["above 2000 us"]);
        check(|r| r.lateness.reset(), base, &["unknown"]);
        // A closed loop has no due times, so nothing is late.
        check(|r| (r.lateness.reset(), r.closed = Some(4), r.load.achieved_per_s = Some(990.0)).0, base, &[]);
        check(
            |r| (r.closed, r.completed, r.load.achieved_per_s) = (Some(4), 0, Some(0.0)),
            base,
            &["no request was answered"],
        );
        check(|r| r.load.errors = 10, base, &[]);
        check(|r| r.load.errors = 11, base, &["11 errors"]);
        check(|r| (r.load.errors, r.load.timeouts) = (6, 5), base, &["5 timeouts"]);
        check(|r| r.load.errors = 60, LoadBaseline { failed_share: 0.005, ..base }, &[]);
        check(|r| r.load.errors = 61, LoadBaseline { failed_share: 0.005, ..base }, &["0.61 %"]);
    }

    #[test]
    fn several_faults_give_several_reasons_and_silence_is_not_valid() {
        let base = LoadBaseline::of(&LoadEvidence::of(&good()));
        assert_eq!(base.failed_share, 0.0);
        check(
            |r| (r.load.achieved_per_s, r.load.errors) = (Some(500.0), 5_000),
            base,
            &["50.0 %", "5000 errors"],
        );
        check(|r| r.load.offered_requests = 0, base, &["no request was due"]);
    }
}
