//! Changes to an experiment by command-line options.
//!
//! An arm is one condition that an experiment compares; a block measures one arm once, and a round measures every arm
//! once. A run has either long blocks of seconds each, or short windows, in which arms alternate within milliseconds.

use super::file::{Named, arms};
use super::values::{latency, percent, percentile, window};
use super::{Experiment, Load, Rate, Restart, metrics, sweep};
use crate::isolation::Isolation;
use crate::record::{MAX_ROUNDS, Metric, Slo};
use std::time::Duration;

/// Numbers of rounds after which an adaptive run has an interim analysis, which can end the run.
const LOOKS: [u32; 3] = [8, 16, 24];

/// The changes that the command line requests; `None` keeps the value of the experiment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Number of rounds.
    pub rounds: Option<u32>,
    /// Length of the measured part of a block (seconds).
    pub block_s: Option<f64>,
    /// Seed of the run's random order and request schedules.
    pub seed: Option<u64>,
    /// Largest harm (relative worsening) that still counts as no harm (per cent).
    pub threshold_pct: Option<f64>,
    /// Request rate: requests per second, or a share of the highest rate that the service sustains, such as `60%`.
    pub load: Option<String>,
    /// Names of the arms.
    pub arms: Option<Vec<String>>,
    /// When the run restarts the service: `block`, `round` or `never`.
    pub restart: Option<String>,
    /// A service level objective such as `p99=5ms`, and the length of its windows.
    pub slo: Option<(String, String)>,
    /// Minimum offline work under isolation, as a share of the offline work without isolation (per cent).
    pub min_offline_pct: Option<f64>,
    /// Whether the run has interim analyses, each of which can end the run early.
    pub adaptive: bool,
    /// Time limit of the run; requires short windows.
    pub within: Option<Duration>,
    /// A limit of the offline work with several values, such as `cpu.max=20%,50%`; each value becomes one isolated arm.
    pub vary: Option<String>,
    /// Numbers of threads of the built-in offline work; each number becomes an arm.
    pub ramp: Option<Vec<u32>>,
    /// Prometheus queries that the run evaluates for every block, as `NAME=QUERY`.
    pub gate_queries: Vec<String>,
    /// URL of the Prometheus server.
    pub prometheus: Option<String>,
    /// Scrape interval of the Prometheus server.
    pub scrape: Option<String>,
}

/// Additional time for each value after the first in a run that compares several values of a setting (seconds).
const MORE_S: f64 = 60.0;

impl Overrides {
    /// Returns the first option given that requires long blocks.
    fn long(&self) -> Option<&'static str> {
        [
            ("--rounds", self.rounds.is_some()),
            ("--block", self.block_s.is_some()),
            ("--adaptive", self.adaptive),
            ("--restart", self.restart.is_some()),
            ("--gate-query", !self.gate_queries.is_empty()),
        ]
        .into_iter()
        .find_map(|(option, given)| given.then_some(option))
    }

    /// Applies the changes to an experiment, and chooses short windows or long blocks. The choice is short windows if
    /// the experiment has a plan for them and no option requires long blocks.
    ///
    /// # Errors
    /// A message that names the option and the allowed values.
    pub fn apply(&self, experiment: &mut Experiment) -> Result<(), String> {
        let design = &mut experiment.design;
        design.rounds = self.rounds.unwrap_or(design.rounds);
        design.block_s = self.block_s.unwrap_or(design.block_s);
        let given = self.threshold_pct.unwrap_or(design.threshold_pct);
        // Thresholds of single metrics change by the same factor as the general threshold.
        let ratio = given / design.threshold_pct;
        design.threshold_overrides_pct.values_mut().for_each(|pct| *pct *= ratio);
        design.threshold_pct = given;
        ranges(design.rounds, design.block_s, design.threshold_pct)?;
        experiment.seed = self.seed.unwrap_or(experiment.seed);
        let design = &mut experiment.design;
        if let Some(pct) = self.min_offline_pct {
            if !(pct > 0.0 && pct <= 100.0) {
                return Err(format!("--min-offline {pct}: give a share above 0 and up to 100 per cent"));
            }
            design.min_offline_pct = Some(pct);
        }
        if let Some((text, window)) = &self.slo {
            design.slo = Some(slo(text, window)?);
        }
        if let Some(names) = &self.arms {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let Named { arms, isolations, wrong } = arms(&names);
            if !wrong.is_empty() {
                let wrong: Vec<String> = wrong.into_iter().map(|(_, why)| why).collect();
                return Err(format!("--arms: {}", wrong.join("; ")));
            }
            (experiment.arms, experiment.isolations) = (arms, isolations);
            // Isolation mechanisms on the command line can require long blocks even if the mechanisms in the file do
            // not.
            if let (Ok(_), Some(why)) =
                (&experiment.short, experiment.isolations.iter().find_map(Isolation::carries_over))
            {
                experiment.short = Err(why);
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
                other => return Err(format!("--restart {other}: the choices are block, round and never")),
            };
        }
        if let Some(text) = &self.load {
            self.rate(text, experiment)?;
        }
        let (url, every) = (self.prometheus.as_deref(), self.scrape.as_deref());
        metrics::of_flags(
            &self.gate_queries,
            url.unwrap_or(metrics::URL),
            every.unwrap_or(metrics::SCRAPE),
            &mut experiment.design,
        )?;
        self.rounds(experiment)?;
        self.ways(experiment)?;
        experiment.unasked().map_or(Ok(()), Err)
    }

    /// Chooses short windows or long blocks.
    fn ways(&self, experiment: &mut Experiment) -> Result<(), String> {
        match (&experiment.short, self.long(), self.within) {
            (Err(why), _, Some(_)) => Err(format!(
                "--for: {} is measured in long blocks, so --rounds and --block determine its duration: {why}",
                experiment.name
            )),
            (Ok(_), Some(option), Some(_)) => {
                Err(format!("--for limits a run with short windows, but {option} requires long blocks"))
            }
            (Ok(short), None, within) => {
                let values = experiment.design.sweep.as_ref().map_or(1, |sweep| sweep.points.len());
                let default_s = short.within_s + MORE_S * values.saturating_sub(1) as f64;
                let within_s = within.map_or(default_s, |within| within.as_secs_f64());
                if !(1.0..=86_400.0).contains(&within_s) {
                    return Err(format!("--for {within_s} s: give 1 s to 1 day"));
                }
                experiment.by_windows(within_s);
                Ok(())
            }
            (Ok(_), Some(_), None) if self.arms.is_none() => {
                let (rounds, looks) = (experiment.design.rounds, experiment.design.looks.clone());
                *experiment = experiment.by_long_blocks();
                (experiment.design.rounds, experiment.design.looks) = (rounds, looks);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn rate(&self, text: &str, experiment: &mut Experiment) -> Result<(), String> {
        let Load::Http { rate, .. } = &mut experiment.load else {
            return Err("--load sets the rate of the built-in generator, which this experiment does not use"
                .to_owned());
        };
        *rate = match (text.parse::<f64>(), percent(text)) {
            (Ok(number), _) if number > 0.0 && number <= 1e6 => Rate::PerSecond(number),
            (Err(_), Ok(pct)) if pct <= 100.0 => Rate::OfKnee(pct / 100.0),
            _ => {
                return Err(format!(
                    "--load {text}: give a rate up to 1000000 requests/s, or a share of the knee up to 100%"
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
        if self.adaptive {
            let most = LOOKS[LOOKS.len() - 1];
            if self.rounds.is_some_and(|rounds| rounds != most) || most as usize > MAX_ROUNDS {
                return Err(format!(
                    "--adaptive determines the number of rounds itself (at most {most}); omit --rounds"
                ));
            }
            experiment.design.rounds = most;
            experiment.design.looks = LOOKS.to_vec();
        }
        Ok(())
    }
}

/// Checks that these command-line values are in range.
fn ranges(rounds: u32, block_s: f64, threshold_pct: f64) -> Result<(), String> {
    if rounds == 0 || u64::from(rounds) > MAX_ROUNDS as u64 {
        return Err(format!("--rounds {rounds} is not within 1 to {MAX_ROUNDS}"));
    }
    if !(0.2..=3_600.0).contains(&block_s) {
        return Err(format!("--block {block_s} is not within 0.2 to 3600 seconds"));
    }
    if !(0.1..=1_000.0).contains(&threshold_pct) {
        return Err(format!("--threshold {threshold_pct} is not within 0.1 to 1000 per cent"));
    }
    Ok(())
}

/// Parses a service level objective such as `p99=5ms`, and the length of the windows in which it must hold.
fn slo(text: &str, length: &str) -> Result<Slo, String> {
    let (metric, latency_us) = objective(text).map_err(|why| format!("--slo {text}: {why}"))?;
    let window_s = window(length).map_err(|why| format!("--window {length}: {why}"))?;
    Ok(Slo { metric, latency_us, window_s })
}

/// Parses a service level objective such as `p99=5ms`; returns the percentile and its latency in microseconds.
///
/// # Errors
/// A message about the allowed form or the allowed values.
pub fn objective(text: &str) -> Result<(Metric, f64), String> {
    let (name, bound) = text.split_once('=').ok_or("write an objective like p99=5ms")?;
    Ok((percentile(name)?, latency(bound)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{QUICKSTART, shipped};
    use crate::record::Role;

    fn changed(overrides: &Overrides) -> Result<Experiment, String> {
        let mut experiment = shipped(QUICKSTART).unwrap().unwrap();
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
        let check = changed(&Overrides::default()).unwrap().check_of_machine();
        assert_eq!((check.arms.len(), check.isolations.len()), (2, 0));
        assert!(check.design.windows.is_some() && check.duration_s() < 61.0);
        let check =
            changed(&Overrides { block_s: Some(1.0), ..Overrides::default() }).unwrap().check_of_machine();
        assert_eq!((check.design.windows, check.design.rounds), (None, 4));
        let thresholds =
            changed(&Overrides { threshold_pct: Some(2.0), ..Overrides::default() }).unwrap().design;
        assert_eq!((thresholds.threshold_of(Metric::P50), thresholds.threshold_of(Metric::P90)), (2.0, 4.0));
        let adaptive = changed(&Overrides { adaptive: true, ..Overrides::default() }).unwrap();
        assert_eq!((adaptive.design.rounds, adaptive.design.looks), (24, vec![8, 16, 24]));
    }

    /// Lists combinations of options: which combinations require long blocks, and the resulting plan.
    // promise 38
    #[test]
    fn the_way_follows_the_options() {
        let none = Overrides::default();
        let for_10 = Some(Duration::from_secs(10));
        let short = |overrides: &Overrides| changed(overrides).unwrap();
        for within in [None, for_10] {
            let arms = Some(
                ["baseline", "baseline2", "isolated:cpu.idle", "offline-alone"].map(str::to_owned).to_vec(),
            );
            for arms in [None, arms] {
                let experiment = short(&Overrides { within, arms, ..none.clone() });
                assert!(experiment.design.windows.is_some());
                assert!(experiment.arms.iter().all(|arm| arm.role != Role::OfflineAlone));
            }
        }
        let long = [
            Overrides { rounds: Some(6), ..none.clone() },
            Overrides { block_s: Some(1.0), ..none.clone() },
            Overrides { adaptive: true, ..none.clone() },
            Overrides { restart: Some("round".to_owned()), ..none.clone() },
            Overrides {
                arms: Some(["baseline", "baseline2", "isolated:nice"].map(str::to_owned).to_vec()),
                ..none
            },
        ];
        for overrides in long {
            let experiment = changed(&overrides).unwrap();
            assert_eq!(experiment.design.windows, None, "{overrides:?}");
            assert!(experiment.arms.iter().all(|arm| arm.role != Role::Warm), "{overrides:?}");
            let error = changed(&Overrides { within: for_10, ..overrides }).unwrap_err();
            assert!(error.contains("long blocks"), "{error}");
        }
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
