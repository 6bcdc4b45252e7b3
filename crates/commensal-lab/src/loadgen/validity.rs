//! Decides from recorded values whether a load is valid, and states the reasons as sentences. This module measures
//! nothing.
//!
//! A block is one measurement of a run under one condition; the baseline is the service alone. Lateness is the delay
//! that the load generator itself adds. A long block has one measured part; a block can also consist of many short
//! windows.

use super::LoadResult;
use super::limits::{listed, own_limits, unreachable};
use crate::record::{Block, LatencyHistogram, LoadFigures, Metric, SocketErrors, decode_histogram};

/// Minimum share of the offered rate that the service must achieve.
pub const ACHIEVED_SHARE_MIN: f64 = 0.99;
/// Maximum P99 of the lateness, as a share of the baseline's latency P99. A lateness up to [`LATENESS_FLOOR_US`] is
/// always allowed.
pub const LATENESS_SHARE_MAX: f64 = 0.10;
/// Lateness P99 that is always allowed (µs).
pub const LATENESS_FLOOR_US: f64 = 100.0;
/// Lateness at a lower percentile that is always allowed (µs). A timer and a wake-up take some microseconds.
const LATENESS_FLOOR_BELOW_P99_US: f64 = 20.0;
/// Maximum by which the share of failed requests may exceed the share in the baseline (0.1 percentage points).
pub const FAILED_SHARE_OVER_BASELINE_MAX: f64 = 0.001;

/// Beginning of the reason for a late generator, by which older records are read.
pub const LATE: &str = "the generator was late";
/// Beginning of the reason for too few answers, by which older records are read.
pub const NOT_KEPT_UP: &str = "the service achieved";

/// Steal (CPUs) from which a reason names the hypervisor as the cause of lateness. If a hypervisor takes 0.05 of two
/// CPUs, each CPU is unavailable for 2.5 % of the time, which can delay more than the 1 % of the requests above P99.
const STOLEN_CPUS: f64 = 0.05;

/// CPU use of programs outside the experiment (CPUs) from which a reason names them as a cause of missing answers.
const OUTSIDE_CPUS: f64 = 0.25;

/// Allowed shortfall of responses in short windows that is due to chance, in standard errors.
const ERRORS_BY_CHANCE: f64 = 4.0;
/// Maximum share of the requests that may be missing by chance. An overloaded service always has many requests in
/// flight, which must not excuse missing responses.
const SHARE_BY_CHANCE_MAX: f64 = 0.05;

/// The values that decide about validity, from a finished load or from a recorded block.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadEvidence {
    /// Requests offered and their outcomes; a closed loop has no offered rate.
    pub load: LoadFigures,
    /// Latency P99 (µs); 0 if unknown.
    pub latency_us_p99: f64,
    /// Lateness P99 (µs); `None` if no lateness was recorded, as in a closed loop.
    pub lateness_us_p99: Option<f64>,
    /// Number of responses that may be missing by chance, because their requests were in flight when a short window
    /// started or ended.
    pub missing_by_chance: f64,
    /// Average number of CPUs that the hypervisor took from this machine (steal); `None` if unknown.
    pub stolen_cpus: Option<f64>,
    /// Average number of CPUs that programs outside the experiment used; `None` if unknown.
    pub outside_cpus: Option<f64>,
    /// How often the generator could not connect, send or receive.
    pub socket_errors: SocketErrors,
}

impl LoadEvidence {
    /// Takes the values from the result of a load.
    #[must_use]
    pub fn of(result: &LoadResult) -> Self {
        let p99 = |histogram: &LatencyHistogram| histogram.value_at_quantile(0.99) as f64;
        Self {
            load: result.scheduled(),
            latency_us_p99: p99(&result.latency),
            lateness_us_p99: (!result.lateness.is_empty()).then(|| p99(&result.lateness)),
            missing_by_chance: 0.0,
            stolen_cpus: None,
            outside_cpus: None,
            socket_errors: result.error_kinds.socket_errors.clone(),
        }
    }

    /// Takes the values from a recorded block that consists of `windows` short windows; `windows` is 0 for a long
    /// block.
    #[must_use]
    pub fn of_block(block: &Block, windows: u32) -> Self {
        let decoded = |text: &Option<String>| text.as_deref().and_then(|text| decode_histogram(text).ok());
        let p99 =
            decoded(&block.histograms.latency).map(|histogram| histogram.value_at_quantile(0.99) as f64);
        // The mean number of requests in flight follows from Little's law; at either end of a window, the actual number
        // varies around that mean.
        let service_s = decoded(&block.histograms.service).map_or(0.0, |histogram| histogram.mean() / 1e6);
        let under_way = block.load.offered_per_s.unwrap_or(0.0) * service_s;
        let missing_by_chance = ERRORS_BY_CHANCE * (2.0 * f64::from(windows) * under_way).sqrt();
        Self {
            load: block.load,
            latency_us_p99: p99.or_else(|| block.percentiles_us.get(&Metric::P99).copied()).unwrap_or(0.0),
            lateness_us_p99: block.lateness_us.map(|lateness| lateness.p99),
            missing_by_chance,
            stolen_cpus: block.cpu.steal,
            outside_cpus: block.cpu.outside(),
            socket_errors: block.socket_errors.clone(),
        }
    }

    /// Leaves the lateness out, for a rule by which it does not decide about the block as a whole.
    #[must_use]
    pub fn without_lateness(self) -> Self {
        Self { lateness_us_p99: self.lateness_us_p99.map(|_| 0.0), ..self }
    }

    fn achieved_per_s(&self) -> f64 {
        self.load.achieved_per_s.unwrap_or(0.0)
    }
}

/// The values of the baseline with which a block is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadBaseline {
    /// Latency P99, counted from the intended start (µs).
    pub latency_us_p99: f64,
    /// Errors and timeouts as a share of the offered requests.
    pub failed_share: f64,
}

impl LoadBaseline {
    /// Takes the values from a block of the baseline.
    #[must_use]
    pub fn of(evidence: &LoadEvidence) -> Self {
        Self { latency_us_p99: evidence.latency_us_p99, failed_share: evidence.load.failed_share() }
    }
}

/// Returns why the block is invalid; the list is empty if the block is valid. A block of the baseline is compared with
/// itself.
///
/// Set `beside_offline` for a block with offline work. If the service in that block does not keep up, or fails
/// requests, this is an effect of the offline work and not a fault of the measurement. Only the generator's lateness
/// and its own limits make a block with offline work invalid.
///
/// A limit of the generator itself, such as its local ports, makes every block invalid. What else is missing from that
/// block may be due to that limit, so no reason then blames the service.
#[must_use]
pub fn invalid_reasons(
    evidence: &LoadEvidence,
    baseline: &LoadBaseline,
    beside_offline: bool,
) -> Vec<String> {
    let mut reasons = own_limits(&evidence.socket_errors);
    let requires_responses = reasons.is_empty() && !beside_offline;
    if evidence.load.offered_requests == 0 {
        if reasons.is_empty() {
            reasons.push(
                "no request was due in the measured window: raise the rate or lengthen the window".to_owned(),
            );
        }
        return reasons;
    }
    if let Some(offered) = evidence.load.offered_per_s {
        reasons.extend(not_kept_up(evidence, offered).filter(|_| requires_responses));
        reasons.extend(late(evidence, baseline, requires_responses));
    }
    if evidence.load.offered_per_s.is_none() && evidence.achieved_per_s() <= 0.0 && requires_responses {
        // A closed loop has no offered rate, so the achieved rate is compared with 0.
        reasons.push("no request was answered with 2xx within the timeout".to_owned());
    }
    let failed = evidence.load.failed_share();
    let over = failed - baseline.failed_share;
    // The tolerance 1e-12 is for rounding errors.
    if over > FAILED_SHARE_OVER_BASELINE_MAX + 1e-12 && requires_responses {
        reasons.push(format!(
            "{} errors and {} timeouts are {:.2} % of the requests, {:.2} percentage points more than in the baseline; the \
             limit is {:.1}",
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
    let errors = listed(&evidence.socket_errors);
    let cause = if unreachable(&evidence.socket_errors) {
        format!("the service could not be reached at times, or ended connections: {errors}")
    } else if errors.is_empty() {
        match evidence.outside_cpus.filter(|cpus| *cpus >= OUTSIDE_CPUS) {
            Some(cpus) => format!(
                "programs outside the experiment used {cpus:.2} CPUs meanwhile, so the service or the generator may have got too \
                 little CPU time"
            ),
            None => "either the service did not keep up, or the generator got too little CPU time".to_owned(),
        }
    } else {
        format!(
            "either the service did not keep up, or the generator got too little CPU time, or the cause is one of these \
             socket errors: {errors}"
        )
    };
    (achieved < least).then(|| {
        format!(
            "{NOT_KEPT_UP} {:.1} of {offered_per_s:.1} offered requests/s ({:.1} %), but {:.0} % is required: {cause}",
            evidence.achieved_per_s(),
            achieved * 100.0,
            least * 100.0,
        )
    })
}

fn late(evidence: &LoadEvidence, baseline: &LoadBaseline, requires_lateness: bool) -> Option<String> {
    let allowed_us = (baseline.latency_us_p99 * LATENESS_SHARE_MAX).max(LATENESS_FLOOR_US);
    match evidence.lateness_us_p99 {
        None if requires_lateness => Some(
            "no request found a free connection when it was due, so the generator's lateness is unknown: \
             use more connections or a lower rate"
                .to_owned(),
        ),
        Some(lateness_us) if lateness_us > allowed_us => Some(format!(
            "{LATE}: the P99 of its delay in sending is {lateness_us:.0} us, but at most {allowed_us:.0} us is \
             allowed (10 % of the latency P99 without offline work, or 100 us if that is more): {}",
            remedy(evidence.stolen_cpus)
        )),
        _ => None,
    }
}

/// Returns whether a block counts for a latency percentile: whether the generator's lateness at that percentile is small
/// against the latency of the service alone at that percentile (both in µs).
#[must_use]
pub fn in_time(quantile: f64, lateness_us: f64, alone_us: f64) -> bool {
    let floor = if quantile < 0.99 { LATENESS_FLOOR_BELOW_P99_US } else { LATENESS_FLOOR_US };
    lateness_us <= (alone_us * LATENESS_SHARE_MAX).max(floor)
}

/// Returns advice against a generator's lateness.
fn remedy(stolen_cpus: Option<f64>) -> String {
    match stolen_cpus.filter(|stolen| *stolen >= STOLEN_CPUS) {
        Some(stolen) => format!(
            "steal time was {stolen:.2} CPUs; measure when the host of this virtual machine is less busy, or on a machine with \
             CPUs of its own"
        ),
        None => "give the generator a CPU of its own, or SCHED_FIFO".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::{ErrorKinds, SecondSeries};
    use commensal_core::errno::Errno;
    use hdrhistogram::Histogram;

    /// A result of 10 000 successful requests in 10 s, with a lateness of 20 µs.
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

    #[test]
    fn lateness_names_the_hypervisor_only_if_it_took_time() {
        let mut late = good();
        lateness(&mut late, 900);
        let base = LoadBaseline { latency_us_p99: 500.0, failed_share: 0.0 };
        let own = "give the generator a CPU of its own";
        for (stolen_cpus, want) in [
            (None, own),
            (Some(0.0), own),
            (Some(0.04), own),
            (Some(0.05), "was 0.05"),
            (Some(0.49), "was 0.49"),
        ] {
            let evidence = LoadEvidence { stolen_cpus, ..LoadEvidence::of(&late) };
            let said = invalid_reasons(&evidence, &base, false).join("");
            assert!(said.contains(want) && (want == own || !said.contains(own)), "{stolen_cpus:?}: {said}");
            // Steal without lateness does not make a load invalid.
            let evidence = LoadEvidence { stolen_cpus, ..LoadEvidence::of(&good()) };
            assert!(invalid_reasons(&evidence, &base, false).is_empty());
        }
    }

    // promise 38
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
        check(|r| lateness(r, 2_010), slow, &["at most 2000 us"]);
        check(|r| r.lateness.reset(), base, &["unknown"]);
        // A closed loop has no due times, so there is no lateness.
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

    /// Returns the reasons of an overloaded result with these socket errors, in an open and in a closed loop, with and
    /// without offline work.
    fn reasons_after(errors: &[(Errno, u64)], beside_offline: bool) -> [Vec<String>; 2] {
        let mut result = good();
        for (errno, count) in errors {
            (0..*count).for_each(|_| result.error_kinds.socket_errors.add(*errno));
        }
        (result.load.achieved_per_s, result.load.timeouts) = (Some(500.0), 5_000);
        let base = LoadBaseline::of(&LoadEvidence::of(&good()));
        let open = invalid_reasons(&LoadEvidence::of(&result), &base, beside_offline);
        result.lateness.reset();
        (result.closed, result.load.achieved_per_s) = (Some(4), Some(0.0));
        [open, invalid_reasons(&LoadEvidence::of(&result), &base, beside_offline)]
    }

    #[test]
    fn a_limit_of_the_generator_is_never_blamed_on_the_service() {
        for (errno, words) in [
            (Errno::EADDRNOTAVAIL, ["ran out of local ports (EADDRNOTAVAIL", "net.ipv4.ip_local_port_range"]),
            (Errno::EMFILE, ["ran out of file descriptors (EMFILE", "ulimit -n"]),
            (Errno::ENFILE, ["ran out of open files (ENFILE", "fs.file-max"]),
            (Errno::ENOBUFS, ["had no buffers for the load generator's sockets (ENOBUFS", "free memory"]),
            (Errno::ENOMEM, ["had no memory for the load generator's sockets (ENOMEM", "free memory"]),
        ] {
            for (count, often) in [(412, "412 times)"), (1, "once)")] {
                for beside_offline in [false, true] {
                    for reasons in reasons_after(&[(errno, count)], beside_offline) {
                        assert_eq!(reasons.len(), 1, "{reasons:?}");
                        assert!(words.iter().all(|word| reasons[0].contains(word)), "{reasons:?}");
                        assert!(reasons[0].contains(often), "{reasons:?}");
                        assert!(!reasons[0].contains("keep up"), "{reasons:?}");
                    }
                }
            }
            // A load during which no request could be sent has no other reason either.
            let mut none = good();
            none.error_kinds.socket_errors.add(errno);
            none.load.offered_requests = 0;
            let evidence = LoadEvidence::of(&none);
            let reasons = invalid_reasons(&evidence, &LoadBaseline::of(&evidence), false);
            assert!(reasons.len() == 1 && reasons[0].contains(words[0]), "{reasons:?}");
        }
    }

    #[test]
    fn several_limits_and_lateness_each_have_a_reason() {
        let [open, _] = reasons_after(&[(Errno::EMFILE, 2), (Errno::EADDRNOTAVAIL, 3)], false);
        assert_eq!(open.len(), 2, "{open:?}");
        assert!(
            open[0].contains("EADDRNOTAVAIL, 3 times") && open[1].contains("EMFILE, 2 times"),
            "{open:?}"
        );
        let mut late = good();
        lateness(&mut late, 900);
        late.error_kinds.socket_errors.add(Errno::EMFILE);
        let evidence = LoadEvidence::of(&late);
        let reasons = invalid_reasons(&evidence, &LoadBaseline::of(&evidence), false);
        assert!(reasons.len() == 2 && reasons[1].contains("was late"), "{reasons:?}");
    }

    #[test]
    fn other_socket_errors_are_named_as_the_cause_or_as_a_possible_one() {
        for (errno, cause, reached) in [
            (Errno::ECONNREFUSED, "nothing listens", false),
            (Errno::ECONNRESET, "the server reset", true),
            (Errno::EPIPE, "the server had closed", true),
            (Errno::EHOSTUNREACH, "no route to the host", false),
            (Errno::ENETUNREACH, "no route to the network", false),
            (Errno::ETIMEDOUT, "does not respond", false),
            (Errno::EACCES, "a firewall", false),
            (Errno::EPERM, "a firewall", false),
        ] {
            let [open, closed] = reasons_after(&[(errno, 12)], false);
            let named = format!("{errno} (12 times: ");
            assert!(open[0].contains("did not keep up") == reached && open[0].contains(&named), "{open:?}");
            assert!(open[0].contains(cause), "{open:?}");
            assert!(closed[0].contains("no request was answered"), "{closed:?}");
            // Next to offline work they are an effect of that work.
            let [beside, _] = reasons_after(&[(errno, 12)], true);
            assert!(beside.is_empty(), "{beside:?}");
        }
        // They do not make a load invalid that achieved what was offered.
        check(
            |r| r.error_kinds.socket_errors.add(Errno::ECONNREFUSED),
            LoadBaseline::of(&LoadEvidence::of(&good())),
            &[],
        );
    }
}
