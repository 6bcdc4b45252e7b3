//! Estimates whether this machine can decide the experiment's threshold (the largest harm that still counts as no
//! harm), and how long a run needs for the decision. For this check, a run measures only the experiment's two identical
//! arms, that is, the service alone twice. The check takes about a minute if the experiment uses short windows.
//!
//! A block measures one arm once; a round measures every arm once. A gate is a metric that takes part in the verdict.

use crate::analysis::{Samples, compare};
use crate::experiment::Experiment;
use crate::record::Verdict;
use crate::record::{Metric, Run};
use crate::stats::rounds_needed;
use commensal_core::text::rough_time;
use serde::Serialize;

/// Maximum number of rounds that the check suggests for a run with long blocks.
const MAX_ROUNDS: u32 = 60;
/// Maximum duration that the check suggests for a run with short windows (seconds).
const MAX_S: f64 = 1_800.0;
/// Minimum number of rounds from which a 95 % confidence interval exists.
const LEAST_ROUNDS: u32 = 6;
/// Safety factor on the estimated spread, because a few rounds give only a rough estimate.
const SPARE: f64 = 1.25;

/// The estimate for one gate metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateReach {
    /// The gate metric.
    pub metric: Metric,
    /// Standard deviation of the log-ratio between two blocks of identical arms; `None` if unknown.
    pub sd_log: Option<f64>,
    /// Rounds needed to decide the threshold; `None` if the number is unknown or larger than the check suggests.
    pub rounds: Option<u32>,
}

/// The estimate for all gates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The threshold that a run should decide (per cent).
    pub threshold_pct: f64,
    /// One entry per gate metric.
    pub gates: Vec<GateReach>,
    /// Number of invalid blocks, and number of all blocks.
    pub invalid_blocks: (usize, usize),
    /// Reasons of the invalid blocks, without repetitions.
    pub invalid_reasons: Vec<String>,
    /// Median CPU use of other programs, including the load generator (CPUs).
    pub other_cpus: Option<f64>,
    /// Median steal time (CPUs).
    pub steal_cpus: Option<f64>,
    /// Number of rounds that is enough for all gates; `None` if this machine cannot support a verdict now.
    pub rounds: Option<u32>,
    /// Duration of the experiment with `rounds` rounds (seconds); `None` if `rounds` is `None`.
    pub duration_s: Option<f64>,
    /// The experiment's default number of rounds.
    pub default_rounds: u32,
    /// Smallest threshold that the default number of rounds could decide (per cent); `None` if unknown.
    pub threshold_with_default_rounds_pct: Option<f64>,
    /// Whether the experiment uses short windows. If so, the user sets the duration of a run; otherwise, the user sets
    /// the number of rounds.
    pub by_windows: bool,
}

/// Evaluates a finished check. `run` is the record of the check, `of` the experiment.
#[must_use]
pub fn judge(run: &Run, of: &Experiment) -> Report {
    let (samples, _) = Samples::of(run);
    let findings = compare(&run.arms, &run.design, &samples);
    let threshold_pct = of.design.threshold_pct;
    // Average length of a round of windows, and the number of rounds that the experiment plans.
    let (round_s, planned) = match of.design.windows {
        Some(windows) => {
            let (full, later) = of.design.rounds_in_budget(windows, &of.arms);
            (Some(of.duration_s() / f64::from((full + later).max(1))), full + later)
        }
        None => (None, of.design.rounds),
    };
    let most = round_s.map_or(MAX_ROUNDS, |round_s| (MAX_S / round_s) as u32);
    let gate = |metric: &Metric| {
        let result = findings.results.iter().find(|result| result.metric == *metric);
        let sd_log = result.and_then(|result| result.sd_log);
        let margin = (of.design.threshold_of(*metric) / 100.0).ln_1p();
        let rounds = sd_log.and_then(|sd| rounds_needed(sd * SPARE, margin)).map(|k| k.max(LEAST_ROUNDS));
        GateReach { metric: *metric, sd_log, rounds: rounds.filter(|rounds| *rounds <= most) }
    };
    let gates: Vec<GateReach> = run.design.gates.iter().map(gate).collect();
    let invalid: Vec<_> = run.blocks.iter().filter(|block| !block.valid).collect();
    let mut reasons: Vec<String> = invalid.iter().filter_map(|block| block.invalid_reason.clone()).collect();
    reasons.sort();
    reasons.dedup();
    let usable = invalid.len() * 5 <= run.blocks.len();
    let rounds = gates
        .iter()
        .map(|gate| gate.rounds)
        .collect::<Option<Vec<u32>>>()
        .and_then(|all| all.into_iter().max());
    let rounds = rounds.filter(|_| usable);
    let duration = |rounds| {
        let mut longer = of.clone();
        longer.design.rounds = rounds;
        round_s.map_or_else(|| longer.duration_s(), |round_s| f64::from(rounds) * round_s)
    };
    // Each gate can have its own threshold. The check therefore scales the general threshold by the largest factor that
    // any gate needs.
    let reach =
        |gate: &GateReach| Some(decidable_pct(gate.sd_log?, planned) / of.design.threshold_of(gate.metric));
    let worst = gates.iter().map(reach).collect::<Option<Vec<f64>>>();
    let worst = worst.and_then(|all| all.into_iter().reduce(f64::max)).filter(|_| usable);
    let median = |pick: fn(&crate::record::Block) -> Option<f64>| {
        let values: Option<Vec<f64>> = run.blocks.iter().map(pick).collect();
        values.and_then(|values| crate::stats::median(&values))
    };
    Report {
        threshold_pct,
        gates,
        invalid_blocks: (invalid.len(), run.blocks.len()),
        invalid_reasons: reasons,
        other_cpus: median(|block| block.cpu.other),
        steal_cpus: median(|block| block.cpu.steal),
        rounds,
        duration_s: rounds.map(duration),
        default_rounds: planned,
        threshold_with_default_rounds_pct: worst.map(|ratio| ratio * threshold_pct),
        by_windows: of.design.windows.is_some(),
    }
}

/// Returns the smallest threshold (per cent) that this number of rounds can decide. The formula is that of
/// `rounds_needed`, solved for the threshold.
fn decidable_pct(sd_log: f64, rounds: u32) -> f64 {
    ((1.645 + 0.84) * sd_log * SPARE / f64::from(rounds).sqrt()).exp_m1() * 100.0
}

impl Report {
    /// Returns PASS if this machine can support a verdict, otherwise INVALID.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.rounds.is_some() { Verdict::Pass } else { Verdict::Invalid }
    }

    /// Formats the report as readable text.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut line = |part: String| {
            text.push_str(&part);
            text.push('\n');
        };
        let threshold = self.threshold_pct;
        match (self.rounds, self.duration_s) {
            (Some(rounds), Some(seconds)) => {
                let how = match self.by_windows {
                    true => format!("--for {:.0}s, {rounds} rounds", (seconds / 10.0).ceil() * 10.0),
                    false => format!("--rounds {rounds}, about {}", rough_time(seconds)),
                };
                line(format!("YES  this machine can decide a {threshold} % threshold now: {how}"));
            }
            _ => line(format!("NO   this machine cannot decide a {threshold} % threshold now")),
        }
        for gate in &self.gates {
            let spread =
                gate.sd_log.map_or("unknown".to_owned(), |sd| format!("{:.1} %", sd.exp_m1() * 100.0));
            let rounds = gate
                .rounds
                .map_or("more rounds than are practical".to_owned(), |rounds| format!("{rounds} rounds"));
            line(format!(
                "     {:<4} two identical blocks differ by {spread} (standard deviation), which needs {rounds}",
                gate.metric.label()
            ));
        }
        let (bad, all) = self.invalid_blocks;
        line(format!("     {bad} of {all} blocks are invalid"));
        for reason in &self.invalid_reasons {
            line(format!("       {reason}"));
        }
        let cpus = |value: Option<f64>| value.map_or("unknown".to_owned(), |cpus| format!("{cpus:.2} CPUs"));
        line(format!(
            "     CPU use outside the experiment: {} by programs (including the load generator), {} by the hypervisor (steal)",
            cpus(self.other_cpus),
            cpus(self.steal_cpus)
        ));
        if let (None, Some(threshold)) = (self.rounds, self.threshold_with_default_rounds_pct) {
            line(format!(
                "     the experiment's default of {} rounds could decide a threshold of {threshold:.0} %",
                self.default_rounds
            ));
        }
        text
    }
}
