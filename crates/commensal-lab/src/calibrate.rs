//! Checks whether verdicts are right on this machine: runs with harms of known size instead of isolation, and
//! statistics of the verdicts.
//!
//! Service, load, windows, statistics and verdict are those of `quickstart`, without offline work: in place of an
//! isolated arm the service adds a known delay to each request. One run has an arm for each harm, and each is judged
//! like the single isolated arm of a run of its own, with the same interim analyses, so that a run gives one answer per
//! harm.
//!
//! **The true harm.** Answers are delayed by `d`; the service spins for that time and measures it. A request occupies
//! its worker equally long in every arm, including those of the service alone, where the time is spent after the
//! answer. So load and queues are the same everywhere, a percentile `Q` of the latencies becomes `Q + d`, and the harm
//! is `d / Q`, with `Q` of the service alone in the same rounds. Throughput is not harmed. A service that loses its CPU
//! within `d` answers even later; it counts how often and by how much, and the truth is the percentile of the latencies
//! alone with that excess added to as many of them.

mod answer;
mod record;
mod table;

pub use answer::{Answer, BlockSample, GateAnswer, answers, seen};
pub use record::{Calibration, Done};
pub use table::{CalibrationSummary, Goal, Row, markdown, summarise, terminal};

use crate::conductor::Beside;
use crate::experiment::{Experiment, Overrides, QUICKSTART, shipped};
use crate::format::plain;
use crate::record::{Arm, KnownHarm, Metric, Role};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Default harms of a calibration.
pub const HARMS: &str = "0,3,5,10,30";
/// The harm added in runs beside a neighbour: a gross harm that must be found.
pub const GROSS: &str = "p90:30";
/// Largest harm allowed, per cent.
const MOST_PCT: f64 = 1_000.0;
/// Maximum number of harms in a run.
const MOST_HARMS: usize = 12;

/// The plan; runs of different plans are not combined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The harms, in the order of the table.
    pub harms: Vec<KnownHarm>,
    /// Time limit of a run, seconds.
    pub seconds: f64,
    /// Seed of the first run; each later one uses the next number.
    pub seed: u64,
    /// The neighbour.
    pub beside: Option<String>,
    /// Whether waits were judged as well.
    pub blame: bool,
}

/// Parses a list such as `0,3,5,10,30,p90:30`: per cent of the median, or of the percentile named.
///
/// # Errors
/// A sentence on what is wrong with the list.
pub fn harms(text: &str) -> Result<Vec<KnownHarm>, String> {
    let mut harms: Vec<KnownHarm> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let (of, number) = match word.split_once(':') {
            None => (Metric::P50, word),
            Some(("p50", number)) => (Metric::P50, number),
            Some(("p90", number)) => (Metric::P90, number),
            Some((other, _)) => {
                return Err(format!("{word}: a harm is a share of p50 or p90, not of {other}"));
            }
        };
        let pct: Option<f64> = number.parse().ok().filter(|pct| (0.0..=MOST_PCT).contains(pct));
        let pct = pct.ok_or_else(|| format!("{word:?} is not a harm of 0 to {MOST_PCT} per cent"))?;
        let harm = KnownHarm { arm: name(pct, of), pct, of };
        if harms.contains(&harm) {
            return Err(format!("{word} is named twice"));
        }
        harms.push(harm);
    }
    if harms.len() > MOST_HARMS {
        return Err(format!("{} harms are more than {MOST_HARMS}: a run has an arm for each", harms.len()));
    }
    Ok(harms)
}

/// Name of the arm for a harm.
fn name(pct: f64, of: Metric) -> String {
    let step = if pct.fract() == 0.0 { 1.0 } else { 0.1 };
    match of {
        Metric::P50 => format!("+{} %", plain(pct, step)),
        of => format!("+{} % of {}", plain(pct, step), of.label()),
    }
}

/// The quickstart experiment with a time limit.
///
/// # Errors
/// When the time limit is out of range.
fn quickstart(seed: u64, seconds: f64) -> Result<Experiment, String> {
    let within =
        Duration::try_from_secs_f64(seconds).map_err(|error| format!("--for {seconds} s: {error}"))?;
    let overrides = Overrides { seed: Some(seed), within: Some(within), ..Overrides::default() };
    let known = shipped(QUICKSTART).ok_or_else(|| format!("there is no experiment {QUICKSTART}"))?;
    let mut experiment = known.map_err(|error| error.to_string())?;
    overrides.apply(&mut experiment)?;
    Ok(experiment)
}

impl Plan {
    /// The plan for given options.
    ///
    /// # Errors
    /// A sentence on what is wrong with the harms or the time limit.
    pub fn new(
        harms_text: Option<&str>,
        seconds: f64,
        seed: u64,
        beside: Option<&Beside>,
    ) -> Result<Plan, String> {
        let usual = beside.map_or_else(|| HARMS.to_owned(), |_| format!("{HARMS},{GROSS}"));
        let harms = harms(harms_text.unwrap_or(&usual))?;
        let plan = Plan { harms, seconds, seed, beside: beside.map(ToString::to_string), blame: true };
        plan.experiment(0).map(|_| plan)
    }

    /// The experiment of a run, numbered from 0: that of `quickstart` with other arms.
    ///
    /// # Errors
    /// When a run cannot take that long.
    pub fn experiment(&self, run: u32) -> Result<Experiment, String> {
        let seed = self.seed.wrapping_add(u64::from(run));
        let mut experiment = quickstart(seed, self.seconds)?;
        "calibrate".clone_into(&mut experiment.name);
        "the built-in HTTP service alone, slower by known times".clone_into(&mut experiment.about);
        experiment.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2));
        let slower = |harm: &KnownHarm| Arm {
            name: harm.arm.clone(),
            role: Role::PolicyOnly,
            policy: None,
            offline: None,
        };
        experiment.arms.extend(self.harms.iter().map(slower));
        experiment.isolations.clear();
        if let Some(windows) = experiment.design.windows {
            experiment.design.by_windows(windows, &experiment.arms, self.seconds);
        }
        Ok(experiment)
    }

    /// The time in which `quickstart` completes as many rounds, seconds.
    ///
    /// # Errors
    /// When a run cannot take as long as planned.
    pub fn quickstart_s(&self) -> Result<f64, String> {
        let quickstart = quickstart(self.seed, self.seconds)?;
        let rounds = f64::from(self.experiment(0)?.design.rounds);
        let round_s = |windows| quickstart.design.round_s(windows, &quickstart.arms);
        Ok(quickstart.design.windows.map_or(0.0, |windows| rounds * round_s(windows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_harms() {
        let names =
            |text: &str| harms(text).map(|all| all.into_iter().map(|one| one.arm).collect::<Vec<_>>());
        assert_eq!(names(HARMS).unwrap(), ["+0 %", "+3 %", "+5 %", "+10 %", "+30 %"]);
        assert_eq!(names("p90:30, 2.5").unwrap(), ["+30 % of P90", "+2.5 %"]);
        let wrong = [
            ("", "is not a harm"),
            ("3,,5", "is not a harm"),
            ("-1", "is not a harm"),
            ("nan", "is not a harm"),
            ("1e9", "is not a harm"),
            ("p99:5", "p50 or p90, not of p99"),
            ("3,p50:3", "p50:3 is named twice"),
            ("0,1,2,3,4,5,6,7,8,9,10,11,12", "13 harms are more than 12"),
        ];
        for (text, want) in wrong {
            let said = harms(text).unwrap_err();
            assert!(said.contains(want), "{text}: {said}");
        }
    }

    #[test]
    fn a_run_is_a_quickstart_with_other_arms() {
        let plan = Plan::new(None, 90.0, 7, None).unwrap();
        let (run, quick) =
            (plan.experiment(2).unwrap(), quickstart(9, plan.quickstart_s().unwrap() + 0.01).unwrap());
        assert_eq!(run.seed, 9);
        assert_eq!(run.arms.len(), 7);
        assert!(run.duration_s() <= 90.0, "{}", run.duration_s());
        assert_eq!(run.design.rounds, quick.design.rounds);
        assert_eq!((&run.design.looks, &run.design.gates), (&quick.design.looks, &quick.design.gates));
        let of = |one: &Experiment| one.design.windows.map(|it| (it.window_s, it.guard_s, it.per_round));
        assert_eq!(of(&run), of(&quick));
        assert_eq!(run.design.threshold_overrides_pct, quick.design.threshold_overrides_pct);
        assert_eq!((run.load, run.online), (quick.load, quick.online));
        let beside = Plan::new(None, 90.0, 7, Some(&Beside::Busy(1.0))).unwrap();
        assert_eq!(beside.harms.last().map(|harm| harm.arm.as_str()), Some("+30 % of P90"));
        assert_eq!(beside.beside.as_deref(), Some("busy:1"));
        // An impossible time limit is refused, instead of silently switching to long blocks.
        for seconds in [0.5, -1.0, f64::NAN, 1e6, 1e300] {
            let said = Plan::new(None, seconds, 7, None).unwrap_err();
            assert!(said.contains("--for"), "{seconds}: {said}");
        }
    }
}
