//! The simulator against a recorded ladder: fitted on a few rungs, judged on all others.
//!
//! What a query needs (`width`, `work_s`) comes from the first placement alone. What sharing costs (`smt_gain`, `all_core`) comes
//! from one rung of each other placement, [`Options::rung`]. Every other rung is a prediction.

use super::{Cluster, Limits, Physics, Profile, SimulateError, Vm, World, run};
use crate::record::{Ladder, Placement};
use crate::table::{Flag, table};
use commensal_lab::stats::median;
use serde::Serialize;

/// Barriers per query: assumed, since no document tells.
const STAGES: u32 = 8;
/// Spread of work between queries, and between the VMs of one stage: assumed.
const SPREAD: f64 = 0.6;
const SKEW: f64 = 0.1;
/// Queries of a session while fitting; predictions have as many as the test.
const FEW: u32 = 12;
/// Sessions beyond which only a part of their queries is simulated.
const FULL: u32 = 32;
/// Rungs of the first placement that are fitted on.
const ENOUGH: usize = 5;

/// What is fitted on.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Test and concurrency whose rungs in the later placements tell what sharing costs.
    pub rung: (&'a str, u32),
    /// Seed.
    pub seed: u64,
}

/// How well a ladder is predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// What sharing costs.
    pub physics: Physics,
    /// By test.
    pub profiles: Vec<(String, Profile)>,
    /// Every rung with a time.
    pub rungs: Vec<Predicted>,
    /// Median of the absolute errors over rungs that were not fitted on and can be believed, per cent.
    pub median_error_pct: Option<f64>,
    /// The same over all rungs that were not fitted on.
    pub median_error_all_pct: Option<f64>,
}

/// One rung.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// Its test.
    pub test: String,
    /// Its concurrency.
    pub concurrency: u32,
    /// Its placement.
    pub placement: String,
    /// Measured, s; `None` where it failed.
    pub measured_s: Option<f64>,
    /// Simulated, s.
    pub simulated_s: f64,
    /// (simulated − measured) / measured, per cent.
    pub error_pct: Option<f64>,
    /// Whether it was fitted on.
    pub fitted: bool,
    /// Whether the table says that it cannot be believed.
    pub contaminated: bool,
    /// Simulated steal, per cent of vCPU time.
    pub steal_pct: f64,
    /// Simulated retries per 1000 exchanges.
    pub retries_per_1000: f64,
}

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The ladder lacks what is fitted on.
    #[error("the ladder cannot be fitted: {0}")]
    Missing(String),
    /// It could not be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// The world of one rung.
#[must_use]
pub fn world(
    ladder: &Ladder,
    placement: &Placement,
    (profile, spanning): (Profile, bool),
    (sessions, queries): (u32, u32),
    physics: Physics,
) -> World {
    let per_server = placement.per_server().max(1) as usize;
    let vms: Vec<Vm> =
        (0..placement.vms as usize).map(|vm| Vm { server: vm / per_server, vcpu: ladder.vcpu }).collect();
    let cluster = |vms: Vec<usize>| Cluster { vms, sessions, queries, profile };
    let clusters = if spanning {
        vec![cluster((0..vms.len()).collect())]
    } else {
        (0..vms.len()).map(|vm| cluster(vec![vm])).collect()
    };
    World {
        servers: vec![placement.server.clone(); placement.servers as usize],
        vms,
        pinned: placement.pinned,
        clusters,
        physics,
    }
}

struct Fitter<'l> {
    ladder: &'l Ladder,
    options: Options<'l>,
}

/// Fits and predicts.
///
/// # Errors
/// When the rungs to fit on have no times.
pub fn fit(ladder: &Ladder, options: Options<'_>) -> Result<Fit, FitError> {
    let fitter = Fitter { ladder, options };
    // Where the reference runs, cores have the speed that all others are compared with.
    let first = ladder.placements.first().ok_or_else(|| FitError::Missing("no placement".to_owned()))?;
    let busy = f64::from(first.per_server() * ladder.vcpu) / f64::from(first.server.cores);
    let plain = Physics { full_speed: busy.min(0.99), ..Physics::default() };
    let mut profiles = Vec::new();
    for test in &ladder.tests {
        profiles.push((test.name.clone(), fitter.profile(first, &test.name, plain)?));
    }
    let physics = fitter.physics(&profiles, plain)?;
    let rungs = fitter.predict(&profiles, physics)?;
    let errors = |all: bool| {
        let of = rungs.iter().filter(|rung| !rung.fitted && (all || !rung.contaminated));
        median(&of.filter_map(|rung| rung.error_pct.map(f64::abs)).collect::<Vec<_>>())
    };
    let (median_error_pct, median_error_all_pct) = (errors(false), errors(true));
    Ok(Fit { physics, profiles, rungs, median_error_pct, median_error_all_pct })
}

impl Fitter<'_> {
    fn measured(&self, test: &str, concurrency: u32, placement: &str) -> Option<f64> {
        self.ladder.rung(test, concurrency, placement)?.summary().mean_s
    }

    /// Seconds of one rung, with `queries` per session.
    fn seconds(
        &self,
        placement: &Placement,
        test: &str,
        profile: Profile,
        (sessions, queries): (u32, u32),
        physics: Physics,
    ) -> Result<super::Outcome, SimulateError> {
        let spanning = self.ladder.test(test).is_some_and(|test| test.spanning);
        let world = world(self.ladder, placement, (profile, spanning), (sessions, queries), physics);
        run(&world, self.options.seed, Limits::default())
    }

    /// What a query of a test needs, from the first placement: the width that gives the ladder its form, then the work that
    /// gives it its size, since times are proportional to work.
    fn profile(&self, first: &Placement, test: &str, physics: Physics) -> Result<Profile, FitError> {
        let work = self.ladder.test(test).map_or(1.0, |test| test.work);
        let mut rungs: Vec<(u32, f64)> = self
            .ladder
            .concurrencies(test)
            .into_iter()
            .filter_map(|step| Some((step, self.measured(test, step, &first.name)?)))
            .collect();
        // Where a closed system is full, more sessions say nothing new.
        rungs.truncate(ENOUGH);
        if rungs.is_empty() {
            return Err(FitError::Missing(format!("{test} has no time in {}", first.name)));
        }
        let mut best: Option<(f64, Profile)> = None;
        for width in 1..=self.ladder.vcpu {
            let unit = Profile { width, work_s: 1.0, stages: STAGES, spread: SPREAD, skew: SKEW };
            let mut logs = Vec::new();
            for (step, seconds) in &rungs {
                let queries = FEW;
                let outcome = self.seconds(first, test, unit, (*step, queries), physics)?;
                let simulated =
                    outcome.seconds.iter().copied().fold(0.0, f64::max) / f64::from(queries) * work;
                logs.push((seconds / simulated).ln());
            }
            let scale = logs.iter().sum::<f64>() / logs.len() as f64;
            let error: f64 = logs.iter().map(|log| (log - scale).powi(2)).sum();
            if best.is_none_or(|(least, _)| error < least) {
                best = Some((error, Profile { work_s: scale.exp(), ..unit }));
            }
        }
        best.map(|(_, profile)| profile).ok_or_else(|| FitError::Missing(format!("{test} has no VM")))
    }

    /// What sharing costs, from one rung of each later placement: coarse steps, then fine ones around the best.
    fn physics(&self, profiles: &[(String, Profile)], plain: Physics) -> Result<Physics, FitError> {
        let (test, step) = self.options.rung;
        let profile = profiles.iter().find(|(name, _)| name == test).map(|(_, profile)| *profile);
        let profile = profile.ok_or_else(|| FitError::Missing(format!("there is no test {test}")))?;
        let later: Vec<(&Placement, f64)> = (self.ladder.placements.iter().skip(1))
            .filter_map(|placement| Some((placement, self.measured(test, step, &placement.name)?)))
            .collect();
        if later.is_empty() {
            return Err(FitError::Missing(format!("{test} at {step} has no time in a later placement")));
        }
        let work = self.ladder.test(test).map_or(1.0, |test| test.work);
        let error = |physics: Physics| -> Result<f64, SimulateError> {
            let mut sum = 0.0;
            for (placement, seconds) in &later {
                let outcome = self.seconds(placement, test, profile, (step, FEW), physics)?;
                let simulated = outcome.seconds.iter().copied().fold(0.0, f64::max) / f64::from(FEW) * work;
                sum += (simulated / seconds).ln().powi(2);
            }
            Ok(sum)
        };
        let smt = later.iter().any(|(placement, _)| placement.server.threads > placement.server.cores);
        let mut best = (f64::INFINITY, plain);
        let mut around = (if smt { 1.3 } else { 1.0 }, 0.8);
        for (reach, steps) in [(0.3, 4), (0.08, 3), (0.02, 3)] {
            for gain in spread(around.0, if smt { reach } else { 0.0 }, steps) {
                for all_core in spread(around.1, reach, steps).filter(|speed| *speed <= 1.0) {
                    let physics = Physics { smt_gain: gain.max(1.0), all_core, ..plain };
                    let off = error(physics)?;
                    if off < best.0 {
                        best = (off, physics);
                    }
                }
            }
            around = (best.1.smt_gain, best.1.all_core);
        }
        Ok(best.1)
    }

    fn predict(&self, profiles: &[(String, Profile)], physics: Physics) -> Result<Vec<Predicted>, FitError> {
        let table = table(self.ladder);
        let mut rungs = Vec::new();
        for row in &table.rows {
            let Some((_, profile)) = profiles.iter().find(|(name, _)| *name == row.test) else { continue };
            let work = self.ladder.test(&row.test).map_or(1.0, |test| test.work);
            // A system that is full does the same work per hour with more sessions: a part of each is enough.
            let part = f64::from(FULL) / f64::from(row.concurrency.max(FULL));
            let queries = ((work * part).round() as u32).max(1);
            let scale = work / f64::from(queries);
            for (index, (placement, cell)) in self.ladder.placements.iter().zip(&row.cells).enumerate() {
                let outcome =
                    self.seconds(placement, &row.test, *profile, (row.concurrency, queries), physics)?;
                let simulated_s = outcome.seconds.iter().copied().fold(0.0, f64::max) * scale;
                let fitted = index == 0 || self.options.rung == (row.test.as_str(), row.concurrency);
                rungs.push(Predicted {
                    test: row.test.clone(),
                    concurrency: row.concurrency,
                    placement: placement.name.clone(),
                    measured_s: cell.mean_s,
                    simulated_s,
                    error_pct: cell.mean_s.map(|measured| (simulated_s - measured) / measured * 100.0),
                    fitted,
                    contaminated: cell.flags.contains(&Flag::NonMonotone),
                    steal_pct: outcome.steal_pct,
                    retries_per_1000: outcome.retries_per_1000,
                });
            }
        }
        Ok(rungs)
    }
}

/// `2 steps + 1` values around a middle; the middle alone when there is no reach.
fn spread(middle: f64, reach: f64, steps: i32) -> impl Iterator<Item = f64> {
    let steps = if reach > 0.0 { steps } else { 0 };
    (-steps..=steps).map(move |step| middle + reach * f64::from(step) / f64::from(steps.max(1)))
}

impl Fit {
    /// The error table, and where the model fails.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut lines = vec![
            [
                "Test",
                "Concurrency",
                "placement",
                "measured",
                "simulated",
                "error",
                "steal",
                "retries/1000",
                "",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for rung in &self.rungs {
            let note = match (rung.fitted, rung.contaminated, rung.measured_s) {
                (true, ..) => "fitted",
                (_, true, _) => "not monotone",
                (.., None) => "failed",
                _ => "",
            };
            lines.push(vec![
                rung.test.clone(),
                rung.concurrency.to_string(),
                rung.placement.clone(),
                rung.measured_s.map_or("x".to_owned(), crate::table::print::time),
                crate::table::print::time(rung.simulated_s),
                rung.error_pct.map_or("-".to_owned(), crate::table::print::signed_change),
                format!("{:.0}%", rung.steal_pct),
                format!("{:.0}", rung.retries_per_1000),
                note.to_owned(),
            ]);
        }
        let mut out = crate::table::print::aligned(&lines);
        let Physics { smt_gain, all_core, .. } = self.physics;
        out.push_str(&format!("fitted: SMT gain {smt_gain:.2}, all-core speed {all_core:.2}"));
        for (test, profile) in &self.profiles {
            out.push_str(&format!("; {test}: {} threads of {:.2} s", profile.width, profile.work_s));
        }
        out.push('\n');
        let pct = |value: Option<f64>| value.map_or("unknown".to_owned(), |value| format!("{value:.1} %"));
        out.push_str(&format!(
            "median error of rungs that were not fitted on: {} where the ladder is monotone, {} of all\n",
            pct(self.median_error_pct),
            pct(self.median_error_all_pct)
        ));
        out
    }

    /// Where the model fails: rungs that were not fitted on and are off by more than `pct`.
    #[must_use]
    pub fn failures(&self, pct: f64) -> Vec<&Predicted> {
        let off = |rung: &&Predicted| !rung.fitted && rung.error_pct.is_none_or(|error| error.abs() > pct);
        self.rungs.iter().filter(off).collect()
    }
}
