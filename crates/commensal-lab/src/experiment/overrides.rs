//! What the command line changes of an experiment.

use super::file::{arms, latency, percent, percentile, window};
use super::{Choice, Experiment, Load, Rate, Restart, metrics, sweep};
use crate::record::{MAX_ROUNDS, Metric, Role, Slo};
use std::time::Duration;

/// Rounds of a pilot.
const PILOT: u32 = 4;
/// Rounds after which an adaptive run looks.
const LOOKS: [u32; 3] = [8, 16, 24];

/// Changes; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Rounds.
    pub rounds: Option<u32>,
    /// Measured seconds per block.
    pub block_s: Option<f64>,
    /// Seed.
    pub seed: Option<u64>,
    /// Harm that still counts as none, per cent.
    pub threshold_pct: Option<f64>,
    /// Requests per second, or a share of the knee such as `60%`.
    pub load: Option<String>,
    /// Arms by name.
    pub arms: Option<Vec<String>>,
    /// `block`, `round` or `never`.
    pub restart: Option<String>,
    /// Objective such as `p99=5ms`, and the length of its windows.
    pub slo: Option<(String, String)>,
    /// Least share of the offline work that is kept, per cent.
    pub min_offline_pct: Option<f64>,
    /// The two identical arms alone.
    pub pilot: bool,
    /// Several looks.
    pub adaptive: bool,
    /// How long the run may take, where it is by short windows.
    pub within: Option<Duration>,
    /// One limit whose values are the isolated arms: `cpu.max=20%,50%`.
    pub vary: Option<String>,
    /// Threads of the built-in antagonist, each number an arm.
    pub ramp: Option<Vec<u32>>,
    /// What to ask Prometheus about every block: `NAME=QUERY`.
    pub gate_queries: Vec<String>,
    /// Where it is.
    pub prometheus: Option<String>,
    /// How often it scrapes.
    pub scrape: Option<String>,
}

/// What `quickstart` may take.
const WITHIN: Duration = Duration::from_secs(170);
/// What each further value of a sweep may take.
const MORE: Duration = Duration::from_secs(60);

impl Overrides {
    /// The choices that a built-in experiment knows; `default` where nothing is given.
    ///
    /// # Errors
    /// A sentence with the option and its range.
    pub fn choice(&self, default: Choice) -> Result<Choice, String> {
        let choice = Choice {
            rounds: self.rounds.unwrap_or(default.rounds),
            block_s: self.block_s.unwrap_or(default.block_s),
            seed: self.seed.unwrap_or(default.seed),
            threshold_pct: self.threshold_pct.unwrap_or(default.threshold_pct),
        };
        choice.validate().map(|()| choice)
    }

    /// The time for a run by short windows, seconds; `None` for one by long blocks, which whoever names rounds or blocks asks for.
    #[must_use]
    pub fn budget_s(&self) -> Option<f64> {
        let long = self.rounds.is_some()
            || self.block_s.is_some()
            || self.adaptive
            || self.pilot
            || self.arms.is_some()
            || self.restart.is_some()
            || self.ramp.is_some()
            || !self.gate_queries.is_empty();
        (self.within.is_some() || !long).then(|| self.within.unwrap_or(WITHIN).as_secs_f64())
    }

    /// Changes an experiment.
    ///
    /// # Errors
    /// A sentence with the option and what is possible.
    pub fn apply(&self, experiment: &mut Experiment) -> Result<(), String> {
        let design = &mut experiment.design;
        let given = Choice {
            rounds: design.rounds,
            block_s: design.block_s,
            seed: experiment.seed,
            threshold_pct: design.threshold_pct,
        };
        let choice = self.choice(given)?;
        design.rounds = choice.rounds;
        design.block_s = choice.block_s;
        design.threshold_pct = choice.threshold_pct;
        experiment.seed = choice.seed;
        if let Some(pct) = self.min_offline_pct {
            if !(pct > 0.0 && pct <= 100.0) {
                return Err(format!("--min-offline {pct} is not above 0 and at most 100"));
            }
            design.min_offline_pct = Some(pct);
        }
        if let Some((text, window)) = &self.slo {
            design.slo = Some(slo(text, window)?);
        }
        if let Some(names) = &self.arms {
            let mut wrong = Vec::new();
            (experiment.arms, experiment.isolations) = arms(names, &mut wrong);
            if !wrong.is_empty() {
                return Err(format!("--arms: {}", wrong.join("; ")));
            }
        }
        if let Some(text) = &self.vary {
            sweep::vary(experiment, text).map_err(|why| format!("--vary {text}: {why}"))?;
        }
        if let Some(threads) = &self.ramp {
            sweep::ramp(experiment, threads).map_err(|why| format!("--ramp: {why}"))?;
        }
        if let Some(restart) = &self.restart {
            experiment.restart = match restart.as_str() {
                "block" => Restart::Block,
                "round" => Restart::Round,
                "never" => Restart::Never,
                other => return Err(format!("--restart {other}: there are block, round and never")),
            };
        }
        if let Some(text) = &self.load {
            self.rate(text, experiment)?;
        }
        if let Some(windows) = experiment.design.windows {
            let windows = windows.for_rate(experiment.design.offered_per_s);
            let values = experiment.design.sweep.as_ref().map_or(1, |sweep| sweep.points.len());
            let default = WITHIN + MORE.saturating_mul(u32::try_from(values.saturating_sub(1)).unwrap_or(0));
            let seconds = self.within.unwrap_or(default).as_secs_f64();
            experiment.design.by_windows(windows, &experiment.arms, seconds);
        }
        let (url, every) = (self.prometheus.as_deref(), self.scrape.as_deref());
        metrics::of_flags(
            &self.gate_queries,
            url.unwrap_or(metrics::URL),
            every.unwrap_or(metrics::SCRAPE),
            &mut experiment.design,
        )?;
        self.rounds(experiment)?;
        match experiment.unasked() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    fn rate(&self, text: &str, experiment: &mut Experiment) -> Result<(), String> {
        let Load::Http { rate, .. } = &mut experiment.load else {
            return Err(
                "--load sets the rate of the built-in generator, and this experiment's load is a tool's"
                    .to_owned(),
            );
        };
        *rate = match (text.parse::<f64>(), percent(text)) {
            (Ok(number), _) if number > 0.0 && number <= 1e6 => Rate::PerSecond(number),
            (Err(_), Ok(pct)) if pct <= 100.0 => Rate::OfKnee(pct / 100.0),
            _ => {
                return Err(format!(
                    "--load {text}: requests per second up to 1000000, or a share up to 100%"
                ));
            }
        };
        experiment.design.offered_per_s = match rate {
            Rate::PerSecond(rate) => Some(*rate),
            Rate::OfKnee(_) => None,
        };
        Ok(())
    }

    fn rounds(&self, experiment: &mut Experiment) -> Result<(), String> {
        if self.pilot {
            experiment.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2));
            experiment.isolations.clear();
            experiment.design.sweep = None;
            experiment.design.rounds = PILOT;
        }
        if self.adaptive {
            let most = LOOKS[LOOKS.len() - 1];
            if self.rounds.is_some_and(|rounds| rounds != most) || most as usize > MAX_ROUNDS {
                return Err(format!("--adaptive has its own rounds, at most {most}"));
            }
            experiment.design.rounds = most;
            experiment.design.looks = LOOKS.to_vec();
        }
        Ok(())
    }
}

/// `p99=5ms` and the length of its windows.
fn slo(text: &str, length: &str) -> Result<Slo, String> {
    let (metric, latency_us) = objective(text).map_err(|why| format!("--slo {text}: {why}"))?;
    let window_s = window(length).map_err(|why| format!("--window {length}: {why}"))?;
    Ok(Slo { metric, latency_us, window_s })
}

/// Reads an objective such as `p99=5ms`: the percentile, and its latency in microseconds.
///
/// # Errors
/// A sentence that says what is possible.
pub fn objective(text: &str) -> Result<(Metric, f64), String> {
    let (name, bound) = text.split_once('=').ok_or("an objective is such as p99=5ms")?;
    Ok((percentile(name)?, latency(bound)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::quickstart;

    fn changed(overrides: &Overrides) -> Result<Experiment, String> {
        let mut experiment = quickstart(&Choice::QUICKSTART);
        overrides.apply(&mut experiment).map(|()| experiment)
    }

    #[test]
    fn each_change() {
        let all = Overrides {
            rounds: Some(9),
            load: Some("60%".to_owned()),
            arms: Some(["baseline", "baseline2", "isolated:nice"].map(str::to_owned).to_vec()),
            restart: Some("never".to_owned()),
            slo: Some(("P99=500us".to_owned(), "2s".to_owned())),
            min_offline_pct: Some(30.0),
            ..Overrides::default()
        };
        let experiment = changed(&all).unwrap();
        assert_eq!((experiment.design.rounds, experiment.restart), (9, Restart::Never));
        assert!(matches!(experiment.load, Load::Http { rate: Rate::OfKnee(_), .. }));
        assert_eq!((experiment.arms.len(), experiment.isolations.len()), (3, 1));
        assert_eq!(
            experiment.design.slo,
            Some(Slo { metric: Metric::P99, latency_us: 500.0, window_s: 2.0 })
        );
        let pilot = changed(&Overrides { pilot: true, ..Overrides::default() }).unwrap();
        assert_eq!((pilot.arms.len(), pilot.isolations.len(), pilot.design.rounds), (2, 0, 4));
        let adaptive = changed(&Overrides { adaptive: true, ..Overrides::default() }).unwrap();
        assert_eq!((adaptive.design.rounds, adaptive.design.looks), (24, vec![8, 16, 24]));
    }

    #[test]
    fn what_is_refused() {
        let none = Overrides::default();
        let check = |overrides: Overrides, word: &str| {
            let error = changed(&overrides).unwrap_err();
            assert!(error.contains(word), "{error}");
        };
        check(Overrides { rounds: Some(0), ..none.clone() }, "--rounds 0");
        check(Overrides { load: Some("0".to_owned()), ..none.clone() }, "--load 0");
        check(Overrides { load: Some("120%".to_owned()), ..none.clone() }, "--load 120%");
        check(Overrides { arms: Some(vec!["baseline".to_owned()]), ..none.clone() }, "baseline2 is missing");
        check(Overrides { restart: Some("daily".to_owned()), ..none.clone() }, "block, round and never");
        check(Overrides { slo: Some(("5ms".to_owned(), "1s".to_owned())), ..none.clone() }, "p99=5ms");
        check(
            Overrides { slo: Some(("qps=5ms".to_owned(), "1s".to_owned())), ..none.clone() },
            "a percentile",
        );
        check(Overrides { slo: Some(("p99=5ms".to_owned(), "0s".to_owned())), ..none.clone() }, "--window");
        check(Overrides { min_offline_pct: Some(f64::NAN), ..none }, "--min-offline");
    }
}
