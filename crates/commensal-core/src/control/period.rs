//! The period of the offline quota, chosen by its measured effect on online work: a controller that tries each period,
//! keeps the best one, and repeats the trials rarely.
//!
//! The kernel refills a CPU quota once per period. With the same quota share, a short period made online threads wait
//! longer (Linux 6.18, 20 % of a CPU: 262 ms of blamed wait per CPU-second at 10 ms, 132 ms at 100 ms). The reason is
//! that every refill allows another burst, and nothing preempts the burst. A long period stops offline work, with the
//! locks and the memory that it holds, for longer.

use super::explain::Explanation;
use super::{Clock, sound};
use crate::units::PERIOD_US;

/// The periods (us) in the order of the trials. The longest is the kernel's default of 100 ms: a longer period would
/// stop a group for noticeable times.
pub const PERIODS_US: [u32; 4] = [100_000, 50_000, 20_000, 10_000];
/// Names under which an explanation lists the mean blamed wait for each of [`PERIODS_US`].
const MEANS: [&str; PERIODS_US.len()] = ["at_100ms", "at_50ms", "at_20ms", "at_10ms"];
/// The period (us) in force until there are measurements: the kernel's default, which was also the best period in
/// measurements (Linux 6.18).
pub const DEFAULT_US: u32 = PERIOD_US;
/// Length of a trial (ms): a hundred of the longest periods.
pub const TRIAL_MS: u64 = 10_000;
/// Time (ms) after a change of the period that is not measured: ten of the longest periods. In this time the throttling
/// of the old period ends.
pub const SETTLE_MS: u64 = 1_000;
/// Time (ms) between two series of trials; a series takes 44 s, about 1 % of this hour.
pub const AGAIN_MS: u64 = 3_600_000;
/// Share by which a period must be better to replace the best one so far: results of the same period differed by up to
/// a tenth between rounds (128 to 147 ms).
pub const MARGIN: f64 = 0.15;

/// The period that must be in force, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct PeriodDecision {
    /// The quota period that must be in force (us).
    pub period_us: u32,
    /// Whether the period is in force for a trial.
    pub trial: bool,
    /// The explanation.
    pub why: Explanation,
}

/// Measurements of a trial: the time-weighted sum of the blamed wait, and the time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct TrialSum {
    sum: f64,
    ms: u64,
}

impl TrialSum {
    fn mean(self) -> Option<f64> {
        (self.ms > 0).then(|| self.sum / self.ms as f64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TrialState {
    /// The period at `index` in [`PERIODS_US`] is in force for a trial.
    Trying { index: usize, settle_ms: u64 },
    /// The best period is in force for at least another `left_ms`.
    Kept { left_ms: u64 },
}

/// The controller of the quota period.
#[derive(Debug, Clone)]
pub struct Period {
    clock: Clock,
    state: TrialState,
    best: usize,
    /// The best period before the last series of trials.
    former: usize,
    seen: [TrialSum; PERIODS_US.len()],
}

impl Default for Period {
    fn default() -> Period {
        Period {
            clock: Clock::default(),
            state: TrialState::Trying { index: 0, settle_ms: SETTLE_MS },
            best: 0,
            former: 0,
            seen: [TrialSum::default(); PERIODS_US.len()],
        }
    }
}

impl Period {
    /// Decides which period must be in force. `blamed_ms` is the wait (ms per CPU-second) of online work that is blamed
    /// on offline work since the last call. `binding` states whether the quota throttled offline work in that time.
    /// Time without a measurement or without throttling does not count towards a trial, because a quota that throttles
    /// nothing shows nothing about its period. Without the probe, the default period stays in force.
    pub fn step(&mut self, now_ms: u64, blamed_ms: Option<f64>, binding: Option<bool>) -> PeriodDecision {
        let passed_ms = self.clock.step(now_ms);
        let measured = sound(blamed_ms).filter(|_| binding == Some(true));
        match &mut self.state {
            TrialState::Kept { left_ms } => {
                *left_ms = left_ms.saturating_sub(passed_ms);
                if *left_ms == 0 && measured.is_some() {
                    self.seen = [TrialSum::default(); PERIODS_US.len()];
                    self.state = TrialState::Trying { index: 0, settle_ms: SETTLE_MS };
                }
            }
            TrialState::Trying { index, settle_ms } => {
                if let Some(blamed_ms) = measured {
                    if *settle_ms > 0 {
                        *settle_ms = settle_ms.saturating_sub(passed_ms);
                    } else {
                        let weighted = blamed_ms * passed_ms as f64;
                        self.seen[*index].sum += weighted;
                        self.seen[*index].ms += passed_ms;
                    }
                    if self.seen[*index].ms >= TRIAL_MS {
                        let index = *index;
                        self.state = self.next(index);
                    }
                } else {
                    *settle_ms = SETTLE_MS;
                }
            }
        }
        self.decision(measured)
    }

    /// Ends the trial of `index`: begins the next one, or chooses the best period.
    fn next(&mut self, index: usize) -> TrialState {
        if index + 1 < PERIODS_US.len() {
            return TrialState::Trying { index: index + 1, settle_ms: SETTLE_MS };
        }
        let mean = |index: usize| self.seen[index].mean().unwrap_or(f64::INFINITY);
        let lowest = (0..PERIODS_US.len()).min_by(|a, b| mean(*a).total_cmp(&mean(*b))).unwrap_or(self.best);
        self.former = self.best;
        if mean(lowest) < mean(self.best) * (1.0 - MARGIN) {
            self.best = lowest;
        }
        TrialState::Kept { left_ms: AGAIN_MS }
    }

    fn decision(&self, measured: Option<f64>) -> PeriodDecision {
        let (index, trial, rule) = match self.state {
            // There is nothing to measure, so the best known period is in force.
            TrialState::Trying { .. } if measured.is_none() => (
                self.best,
                false,
                "no period is tried while the probe has no data or the quota throttles no group",
            ),
            TrialState::Trying { index, .. } => (index, true, "this period is being tried"),
            TrialState::Kept { .. } => {
                (self.best, false, "the period under which online work waited least for offline work")
            }
        };
        let ms = |index: usize| f64::from(PERIODS_US[index]) / 1e3;
        let formula = match self.state {
            TrialState::Trying { .. } if trial => "period = tried".to_owned(),
            TrialState::Trying { .. } => "period = best".to_owned(),
            // The previous best period has the advantage of the margin and comes first, so it stays if another one is
            // only equally good.
            TrialState::Kept { .. } => {
                let others = (0..PERIODS_US.len()).filter(|index| *index != self.former);
                let others: String =
                    others.map(|index| format!(", {}, {}", MEANS[index], ms(index))).collect();
                format!("period = least({} * (1 - margin), {}{others})", MEANS[self.former], ms(self.former))
            }
        };
        let mut why = Explanation::new(rule, formula)
            .maybe("tried", trial.then_some(ms(index)), "ms")
            .with("best", ms(self.best), "ms")
            .with("margin", MARGIN, "");
        for (name, seen) in MEANS.into_iter().zip(self.seen) {
            why = why.maybe(name, seen.mean(), "ms/CPU-s");
        }
        PeriodDecision { period_us: PERIODS_US[index], trial, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `seconds` on a machine where `wait` is the effect of a period; returns the period in force at the end.
    fn run(period: &mut Period, now: &mut u64, seconds: u64, wait: impl Fn(u32) -> Option<f64>) -> u32 {
        let mut in_force = DEFAULT_US;
        for _ in 0..seconds {
            *now += 1_000;
            in_force = period.step(*now, wait(in_force), Some(true)).period_us;
        }
        in_force
    }

    #[test]
    fn keeps_the_best_and_looks_again_rarely() {
        let short_is_worse = |us: u32| Some(1_000_000.0 / f64::from(us) + 100.0);
        let long_is_worse = |us: u32| Some(f64::from(us) / 1_000.0);
        let (mut period, mut now) = (Period::default(), 0);
        assert_eq!(run(&mut period, &mut now, 60, short_is_worse), 100_000);
        assert!(!period.step(now, Some(1.0), Some(true)).trial);
        // The machine changes. For an hour there is no trial; then the trials find the new best period.
        assert_eq!(run(&mut period, &mut now, 1_800, long_is_worse), 100_000);
        assert_eq!(run(&mut period, &mut now, 1_900, long_is_worse), 10_000);
    }

    #[test]
    fn a_small_advantage_is_noise() {
        let mut now = 0;
        let nearly = |us: u32| Some(if us == 20_000 { 130.0 } else { 140.0 });
        assert_eq!(run(&mut Period::default(), &mut now, 60, nearly), DEFAULT_US);
    }

    #[test]
    fn nothing_is_tried_without_the_probe_or_without_throttling() {
        let (mut period, mut now) = (Period::default(), 0);
        assert_eq!(run(&mut period, &mut now, 600, |_| None), DEFAULT_US);
        for _ in 0..600 {
            now += 1_000;
            for binding in [Some(false), None] {
                let decision = period.step(now, Some(300.0), binding);
                assert_eq!((decision.period_us, decision.trial), (DEFAULT_US, false));
            }
        }
    }
}
