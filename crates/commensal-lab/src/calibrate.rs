//! Calibration: tests whether the lab's verdicts are right on this machine. A calibration replaces isolation by delays
//! of known size, and evaluates the verdicts of many runs statistically.
//!
//! A calibration has the service, load, windows, statistics and verdict rules of the experiment `quickstart`, but no
//! offline work and no isolation. Instead, the service adds a known delay to its responses. A run has one arm
//! (condition) for each delay. The calibration judges each arm like the only isolated arm of a separate run, with the
//! same interim analyses, so that a run gives one result per arm.
//!
//! **The true harm.** Harm is the relative worsening of a metric. The service delays each response by `d`: it spins for
//! that time and measures how long it really spun. A request occupies its worker equally long in every arm; in arms
//! without a delay, the service spins after the response. Load and queues are therefore equal in every arm. If a
//! latency percentile of the service alone is `Q`, the delay makes it `Q + d`. The harm is `d / Q`, with `Q` from the
//! same rounds. The delay does not reduce throughput. If the service loses its CPU during the delay, the response is
//! even later; the service counts how often that happens and by how much. The true harm then also includes this excess.

mod answer;
mod record;
mod table;

pub use answer::{Answer, BlockSample, GateAnswer, answers, seen};
pub use record::{Calibration, Done};
pub use table::{CalibrationSummary, Goal, Row, markdown, summarise, terminal};

use crate::conductor::Neighbour;
use crate::experiment::{Experiment, Overrides, QUICKSTART, shipped};
use crate::format::plain;
use crate::record::{Arm, KnownHarm, Metric, Role};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Default harms of a calibration, in per cent of the median latency.
pub const HARMS: &str = "0,3,5,10,30";
/// An additional harm in calibrations next to a neighbour (a process outside the experiment); it is so large that every
/// verdict must detect it.
pub const GROSS: &str = "p90:30";
/// Maximum size of a harm (per cent).
const MOST_PCT: f64 = 1_000.0;
/// Maximum number of harms in one run.
const MOST_HARMS: usize = 12;

/// The plan of a calibration. A calibration combines only the results of runs with equal plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The harms, in the order of the results table.
    pub harms: Vec<KnownHarm>,
    /// Time limit of a run (seconds).
    pub seconds: f64,
    /// Seed of the first run; each later run uses the next number.
    pub seed: u64,
    /// Description of the neighbour, a process outside the experiment; `None` if there is no neighbour.
    pub beside: Option<String>,
    /// Whether the calibration also judges how long threads waited for a CPU.
    pub blame: bool,
}

/// Parses a list of harms such as `0,3,5,10,30,p90:30`. A number alone is in per cent of the median latency; `p90:`
/// before a number names another percentile.
///
/// # Errors
/// A message that says what is wrong with the list.
pub fn harms(text: &str) -> Result<Vec<KnownHarm>, String> {
    let mut harms: Vec<KnownHarm> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let (of, number) = match word.split_once(':') {
            None => (Metric::P50, word),
            Some(("p50", number)) => (Metric::P50, number),
            Some(("p90", number)) => (Metric::P90, number),
            Some((other, _)) => {
                return Err(format!("{word}: a harm must be relative to p50 or p90, not to {other}"));
            }
        };
        let pct: Option<f64> = number.parse().ok().filter(|pct| (0.0..=MOST_PCT).contains(pct));
        let pct = pct.ok_or_else(|| format!("{word:?} is not a harm of 0 to {MOST_PCT} per cent"))?;
        let harm = KnownHarm { arm: name(pct, of), pct, of };
        if harms.contains(&harm) {
            return Err(format!("{word} is listed twice"));
        }
        harms.push(harm);
    }
    if harms.len() > MOST_HARMS {
        return Err(format!(
            "{} harms are too many: a run has an arm for each, at most {MOST_HARMS}",
            harms.len()
        ));
    }
    Ok(harms)
}

/// Returns the name of the arm that has this harm.
fn name(pct: f64, of: Metric) -> String {
    let step = if pct.fract() == 0.0 { 1.0 } else { 0.1 };
    match of {
        Metric::P50 => format!("+{} %", plain(pct, step)),
        of => format!("+{} % of {}", plain(pct, step), of.label()),
    }
}

/// Returns the experiment `quickstart` with this seed and time limit.
///
/// # Errors
/// If the time limit is out of range.
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
    /// Creates a plan from command-line options.
    ///
    /// # Errors
    /// A message that says what is wrong with the harms or the time limit.
    pub fn new(
        harms_text: Option<&str>,
        seconds: f64,
        seed: u64,
        beside: Option<&Neighbour>,
    ) -> Result<Plan, String> {
        let usual = beside.map_or_else(|| HARMS.to_owned(), |_| format!("{HARMS},{GROSS}"));
        let harms = harms(harms_text.unwrap_or(&usual))?;
        let plan = Plan { harms, seconds, seed, beside: beside.map(ToString::to_string), blame: true };
        plan.experiment(0).map(|_| plan)
    }

    /// Returns the experiment of one run: `quickstart` with other arms. `run` counts from 0.
    ///
    /// # Errors
    /// If the time limit is out of range.
    pub fn experiment(&self, run: u32) -> Result<Experiment, String> {
        let seed = self.seed.wrapping_add(u64::from(run));
        let mut experiment = quickstart(seed, self.seconds)?;
        "calibrate".clone_into(&mut experiment.name);
        "the built-in HTTP service alone, with responses delayed by known times"
            .clone_into(&mut experiment.about);
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
            experiment.design.by_full_rounds(windows, &experiment.arms, self.seconds);
        }
        Ok(experiment)
    }

    /// Returns the time limit with which the experiment `quickstart` plans as many rounds as a run of this plan (seconds).
    ///
    /// # Errors
    /// If the time limit is out of range.
    pub fn quickstart_s(&self) -> Result<f64, String> {
        let quickstart = quickstart(self.seed, self.seconds)?;
        let design = self.experiment(0)?.design;
        let budget_s = |windows| quickstart.design.budget_for(design.rounds, windows, &quickstart.arms);
        Ok(design.windows.map_or(0.0, budget_s))
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
            ("p99:5", "p50 or p90, not to p99"),
            ("3,p50:3", "p50:3 is listed twice"),
            ("0,1,2,3,4,5,6,7,8,9,10,11,12", "13 harms are too many"),
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
        let beside = Plan::new(None, 90.0, 7, Some(&Neighbour::Busy(1.0))).unwrap();
        assert_eq!(beside.harms.last().map(|harm| harm.arm.as_str()), Some("+30 % of P90"));
        assert_eq!(beside.beside.as_deref(), Some("busy:1"));
        // An invalid time limit is an error; it must not cause long blocks instead of short windows.
        for seconds in [0.5, -1.0, f64::NAN, 1e6, 1e300] {
            let said = Plan::new(None, seconds, 7, None).unwrap_err();
            assert!(said.contains("--for"), "{seconds}: {said}");
        }
    }
}
