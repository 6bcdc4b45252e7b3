//! Finds the knee: the highest request rate at which a service still keeps up. A service keeps up if it achieves almost
//! the offered rate and its P99 latency stays within a limit. The search raises the rate in steps of 50 %, then
//! bisects.
//!
//! `Search` does no I/O, so that tests can run it against simulated services; [`knee`] runs its steps as short
//! open-loop loads, whose schedule does not depend on responses. The search repeats a step that fails once before the
//! failure counts: a single burst of steal time must not end the search.

use super::limits::own_limits;
use super::spec::{LoadError, LoadSpec, Mode};
use super::{ACHIEVED_SHARE_MIN, LATENESS_FLOOR_US, LATENESS_SHARE_MAX, LoadResult, run};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Factor between the rates of two steps while the service keeps up and no rate has failed yet (the ramp).
const RAMP: f64 = 1.5;
/// Factor by which the search lowers the rate while the service has not kept up with any rate.
const DESCENT: f64 = 4.0;
/// Warm-up of a step. The closed-loop load that determines the first rate is measured for twice as long.
const WARMUP: Duration = Duration::from_millis(300);
/// The first rate is this share of the rate that a closed loop achieves.
const BEGIN_SHARE: f64 = 0.125;

/// Limits of the search, and the criterion by which a service keeps up.
#[derive(Debug, Clone, PartialEq)]
pub struct KneeLimits {
    /// Length of the measured part of one step.
    pub step: Duration,
    /// First rate (requests per second); `None` derives the rate from a short closed-loop load.
    pub from_per_s: Option<f64>,
    /// Maximum rate that the search tries (requests per second).
    pub max_per_s: f64,
    /// If [`KneeLimits::p99_max_us`] is `None`, a service keeps up while its P99 is at most this many times the P99 of
    /// the first step that it kept up with.
    pub p99_factor: f64,
    /// Maximum P99 with which a service still keeps up (µs).
    pub p99_max_us: Option<f64>,
    /// Maximum number of steps, including repeated steps.
    pub max_steps: usize,
    /// The search stops when the lowest rate that failed is at most this factor above the highest rate that the service
    /// keeps up with.
    pub precision: f64,
}

impl Default for KneeLimits {
    fn default() -> Self {
        Self {
            step: Duration::from_millis(1500),
            from_per_s: None,
            max_per_s: 200_000.0,
            p99_factor: 10.0,
            p99_max_us: None,
            max_steps: 30,
            precision: 1.05,
        }
    }
}

/// One step of the search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KneePoint {
    /// Offered rate of the step (requests per second).
    pub rate_per_s: f64,
    /// Achieved rate divided by the offered rate.
    pub achieved_share: f64,
    /// P99 of the latency, counted from the due times of the requests (µs).
    pub p99_us: f64,
    /// P99 of the generator's own delay in sending requests (µs); 0 if no delay was recorded.
    pub lateness_p99_us: f64,
    /// Whether the service kept up.
    pub keeps_up: bool,
    /// Whether the generator was later than a valid measurement allows; the step may then have failed because of the
    /// generator.
    pub generator_late: bool,
    /// Whether the generator ran into a limit of its own, such as its local ports; the step may then have failed because
    /// of that limit.
    pub generator_limited: bool,
}

/// The reason why the search stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KneeEnd {
    /// The service did not keep up with the lowest rate that failed.
    Service,
    /// At the lowest rate that failed, the generator itself was late or ran into a limit of its own, so the service may
    /// sustain a higher rate.
    Generator,
    /// The service keeps up even with the maximum rate of the limits.
    MaxRate,
    /// The search reached the maximum number of steps: the knee is at least the reported rate.
    Steps,
}

/// Result of a search for the knee.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Knee {
    /// The highest rate that the service keeps up with (requests per second).
    pub per_s: f64,
    /// The reason why the search stopped.
    pub end: KneeEnd,
    /// P99 of the first step that the service kept up with (µs).
    pub low_p99_us: f64,
    /// All steps, in the order in which they were taken.
    pub points: Vec<KneePoint>,
}

/// Searches for the knee of the service in `spec`; the search replaces the rate, times and mode of `spec`. Calls `tell`
/// after every step.
///
/// # Errors
/// The errors of [`run`]; [`LoadError::NoKnee`] if the service does not keep up with any rate that was tried.
pub fn knee(
    spec: &LoadSpec,
    limits: &KneeLimits,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&KneePoint),
) -> Result<Knee, LoadError> {
    let begin = match limits.from_per_s {
        Some(rate) => rate,
        None => (closed_loop(spec, stop)? * BEGIN_SHARE).max(10.0),
    };
    let mut search = Search::new(begin, limits);
    while let Some(rate_per_s) = search.next() {
        let step = LoadSpec {
            rate_per_s,
            warmup: WARMUP,
            measure: limits.step,
            seed: spec.seed.wrapping_add(search.points.len() as u64),
            // Requests that are still without a response after twice the length of a step give no further information.
            timeout: spec.timeout.min(limits.step * 2),
            mode: Mode::Open,
            keep_partial: false,
            ..spec.clone()
        };
        let result = run(&step, stop, &mut |_| ())?;
        tell(search.tell(rate_per_s, &StepSample::of(&result)));
    }
    search.finish()
}

/// Measures the throughput of the service in a closed loop (requests per second).
fn closed_loop(spec: &LoadSpec, stop: &AtomicBool) -> Result<f64, LoadError> {
    let mode = Mode::Closed { concurrency: spec.connections.min(16) };
    let pilot = LoadSpec { mode, warmup: WARMUP, measure: WARMUP * 2, keep_partial: false, ..spec.clone() };
    Ok(run(&pilot, stop, &mut |_| ())?.load.achieved_per_s.unwrap_or_default())
}

/// The results of a step on which the search decides.
#[derive(Debug, Clone, Copy)]
struct StepSample {
    achieved_share: f64,
    p99_us: f64,
    lateness_p99_us: f64,
    limited: bool,
}

impl StepSample {
    fn of(result: &LoadResult) -> Self {
        Self {
            achieved_share: result.load.achieved_per_s.unwrap_or_default()
                / result.load.offered_per_s.unwrap_or_default().max(f64::MIN_POSITIVE),
            p99_us: result.latency.value_at_quantile(0.99) as f64,
            lateness_p99_us: result.lateness.value_at_quantile(0.99) as f64,
            limited: !own_limits(&result.error_kinds.socket_errors).is_empty(),
        }
    }
}

/// The state of a search, without clock and load generator.
#[derive(Debug)]
struct Search<'a> {
    limits: &'a KneeLimits,
    begin: f64,
    /// Highest rate that the service keeps up with; below, the lowest rate that the service does not keep up with.
    good: Option<f64>,
    bad: Option<f64>,
    /// A rate that failed once and that the search will repeat.
    suspect: Option<f64>,
    low_p99_us: Option<f64>,
    points: Vec<KneePoint>,
}

impl<'a> Search<'a> {
    fn new(begin: f64, limits: &'a KneeLimits) -> Self {
        let begin = begin.clamp(f64::MIN_POSITIVE, limits.max_per_s);
        Self { limits, begin, good: None, bad: None, suspect: None, low_p99_us: None, points: Vec::new() }
    }

    /// Returns the next rate to try; `None` if the search is finished.
    fn next(&self) -> Option<f64> {
        if self.points.len() >= self.limits.max_steps {
            return None;
        }
        if self.suspect.is_some() {
            return self.suspect;
        }
        match (self.good, self.bad) {
            (None, None) => Some(self.begin),
            (None, Some(bad)) => Some(bad / DESCENT).filter(|rate| *rate >= 1.0),
            (Some(good), None) => {
                (good < self.limits.max_per_s).then_some((good * RAMP).min(self.limits.max_per_s))
            }
            (Some(good), Some(bad)) => (bad / good > self.limits.precision).then_some((good * bad).sqrt()),
        }
    }

    fn tell(&mut self, rate_per_s: f64, seen: &StepSample) -> &KneePoint {
        let allowed_us = match (self.limits.p99_max_us, self.low_p99_us) {
            (Some(us), _) => us,
            (None, Some(low_us)) => low_us * self.limits.p99_factor,
            (None, None) => f64::INFINITY,
        };
        let keeps_up = seen.achieved_share >= ACHIEVED_SHARE_MIN && seen.p99_us <= allowed_us;
        let may_us = (seen.p99_us * LATENESS_SHARE_MAX).max(LATENESS_FLOOR_US);
        if keeps_up {
            self.good = Some(rate_per_s);
            self.suspect = None;
            // The P99 at low load is that of the first rate that the service keeps up with.
            self.low_p99_us.get_or_insert(seen.p99_us);
        } else if self.suspect == Some(rate_per_s) {
            self.bad = Some(rate_per_s);
            self.suspect = None;
        } else {
            self.suspect = Some(rate_per_s);
        }
        let at = self.points.len();
        self.points.push(KneePoint {
            rate_per_s,
            achieved_share: seen.achieved_share,
            p99_us: seen.p99_us,
            lateness_p99_us: seen.lateness_p99_us,
            keeps_up,
            generator_late: seen.lateness_p99_us > may_us,
            generator_limited: seen.limited,
        });
        &self.points[at]
    }

    fn finish(self) -> Result<Knee, LoadError> {
        let Some(per_s) = self.good else {
            let lowest_per_s = self.points.iter().map(|p| p.rate_per_s).fold(self.begin, f64::min);
            return Err(LoadError::NoKnee { lowest_per_s });
        };
        let own_fault = |bad: f64| {
            let own = |p: &KneePoint| p.generator_late || p.generator_limited;
            self.points.iter().any(|p| p.rate_per_s == bad && own(p))
        };
        let end = match self.bad {
            _ if self.next_is_open() => KneeEnd::Steps,
            Some(bad) if own_fault(bad) => KneeEnd::Generator,
            Some(_) => KneeEnd::Service,
            None => KneeEnd::MaxRate,
        };
        Ok(Knee { per_s, end, low_p99_us: self.low_p99_us.unwrap_or(0.0), points: self.points })
    }

    /// Whether the search could continue if it had more steps.
    fn next_is_open(&self) -> bool {
        match (self.good, self.bad) {
            (Some(good), Some(bad)) => bad / good > self.limits.precision,
            (Some(good), None) => good < self.limits.max_per_s,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a queue with one server of this capacity: latency grows as 1 / (1 - load) below the capacity, and with
    /// the load without limit above the capacity.
    fn service(capacity: f64, rate: f64) -> StepSample {
        let load = rate / capacity;
        let seen = |achieved_share, p99_us| {
            let (lateness_p99_us, limited) = (5.0, false);
            StepSample { achieved_share, p99_us, lateness_p99_us, limited }
        };
        if load < 1.0 { seen(1.0, 300.0 / (1.0 - load)) } else { seen(1.0 / load, 300_000.0 * load) }
    }

    fn search(
        limits: &KneeLimits,
        begin: f64,
        mut answer: impl FnMut(usize, f64) -> StepSample,
    ) -> Result<Knee, LoadError> {
        let mut search = Search::new(begin, limits);
        while let Some(rate) = search.next() {
            let seen = answer(search.points.len(), rate);
            search.tell(rate, &seen);
            assert!(search.points.len() <= limits.max_steps);
        }
        search.finish()
    }

    #[test]
    fn the_knee_is_just_below_what_the_service_can() {
        let limits = KneeLimits { max_steps: 60, ..KneeLimits::default() };
        for capacity in [20.0, 333.0, 1_000.0, 47_000.0] {
            for begin in [1.0, 10.0, 12_000.0] {
                let knee = search(&limits, begin, |_, rate| service(capacity, rate)).expect("a knee");
                // P99 is at most 10 times the value at low load up to a load of 0.9.
                let load = knee.per_s / capacity;
                assert!((0.85..1.0).contains(&load), "{capacity} from {begin}: {load}");
                assert_eq!(knee.end, KneeEnd::Service);
            }
        }
    }

    #[test]
    fn a_bound_in_microseconds_replaces_the_factor() {
        let limits = KneeLimits { p99_max_us: Some(600.0), ..KneeLimits::default() };
        let knee = search(&limits, 10.0, |_, rate| service(1_000.0, rate)).expect("a knee");
        // 300 / (1 - load) reaches 600 at a load of one half.
        assert!((475.0..=500.0).contains(&knee.per_s), "{}", knee.per_s);
    }

    #[test]
    fn one_bad_step_is_tried_again_and_two_are_believed() {
        let limits = KneeLimits::default();
        let burst = |n: usize, rate| if n % 4 == 1 { service(1.0, rate) } else { service(1_000.0, rate) };
        let knee = search(&limits, 100.0, burst).expect("a knee");
        assert!(knee.per_s > 850.0, "{}", knee.per_s);
        let bad = knee.points.iter().filter(|p| !p.keeps_up && p.rate_per_s < 800.0).count();
        assert!(bad > 0, "the bursts were met");
    }

    #[test]
    fn what_ended_the_search_is_told() {
        let end = |limits: &KneeLimits, late_above: f64| {
            let seen = |_, rate| {
                let late = rate > late_above;
                let mut seen = service(if late { 1.0 } else { 5_000.0 }, rate);
                seen.lateness_p99_us = if late { seen.p99_us / 2.0 } else { 5.0 };
                seen
            };
            search(limits, 100.0, seen).expect("a knee").end
        };
        let limits = KneeLimits::default();
        assert_eq!(end(&limits, 1e9), KneeEnd::Service);
        assert_eq!(end(&limits, 800.0), KneeEnd::Generator);
        assert_eq!(end(&KneeLimits { max_per_s: 900.0, ..limits.clone() }, 1e9), KneeEnd::MaxRate);
        assert_eq!(end(&KneeLimits { max_steps: 5, ..limits.clone() }, 1e9), KneeEnd::Steps);
        // Above 800 requests/s, the generator has no port left.
        let out_of_ports = |_, rate| {
            let limited = rate > 800.0;
            StepSample { limited, ..service(if limited { 1.0 } else { 5_000.0 }, rate) }
        };
        let knee = search(&limits, 100.0, out_of_ports).expect("a knee");
        assert_eq!(knee.end, KneeEnd::Generator);
        assert!(knee.points.iter().all(|p| p.generator_limited == (p.rate_per_s > 800.0)));
    }

    #[test]
    fn a_service_that_never_keeps_up_has_no_knee() {
        let mut tried = 0;
        let dead = |_, rate| {
            tried += 1;
            service(0.001, rate)
        };
        let error = search(&KneeLimits::default(), 1_000.0, dead).expect_err("no knee");
        assert!(matches!(error, LoadError::NoKnee { lowest_per_s } if lowest_per_s < 4.0), "{error}");
        assert!(tried <= 12, "{tried} steps");
        // If the start is above the knee, the search first lowers the rate.
        let knee = search(&KneeLimits::default(), 50_000.0, |_, rate| service(700.0, rate)).expect("a knee");
        assert!((595.0..700.0).contains(&knee.per_s), "{}", knee.per_s);
    }
}
