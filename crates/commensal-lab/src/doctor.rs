//! Estimates whether this machine can support the wanted verdict, and how long that takes: runs only the experiment's
//! two identical arms, for about a minute where it has short windows.

use crate::analysis::{Samples, compare};
use crate::experiment::Experiment;
use crate::record::Verdict;
use crate::record::{Metric, Run};
use crate::stats::rounds_needed;
use serde::Serialize;

/// Maximum practical number of rounds with long blocks.
const MAX_ROUNDS: u32 = 60;
/// Maximum practical duration of a run with short windows, seconds.
const MAX_S: f64 = 1_800.0;
/// Minimum number of rounds for an interval.
const LEAST_ROUNDS: u32 = 6;
/// Safety factor on the estimated spread: a few rounds give only a rough estimate.
const SPARE: f64 = 1.25;

/// The answer for one gate metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateReach {
    /// The metric.
    pub metric: Metric,
    /// Standard deviation of the log-ratio of two identical blocks.
    pub sd_log: Option<f64>,
    /// Rounds for the wanted threshold; `None` when unknown or beyond any practical number.
    pub rounds: Option<u32>,
}

/// The complete answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Wanted threshold, per cent.
    pub threshold_pct: f64,
    /// One entry per gate metric.
    pub gates: Vec<GateReach>,
    /// Number of blocks that broke a validity rule, and total number of blocks.
    pub invalid_blocks: (usize, usize),
    /// Reasons of the invalid blocks, each once.
    pub invalid_reasons: Vec<String>,
    /// CPU use of other programs, and steal, medians in CPUs.
    pub other_cpus: Option<f64>,
    /// See `other_cpus`.
    pub steal_cpus: Option<f64>,
    /// Number of rounds that the whole verdict needs; `None` when this machine cannot support it now.
    pub rounds: Option<u32>,
    /// Duration of the experiment with that number of rounds, seconds.
    pub duration_s: Option<f64>,
    /// The experiment's default number of rounds.
    pub default_rounds: u32,
    /// Smallest threshold that this number could decide, per cent.
    pub threshold_with_default_rounds_pct: Option<f64>,
    /// Whether the experiment uses short windows: then its duration is configurable, otherwise its rounds.
    pub by_windows: bool,
}

/// Evaluates a finished check for the experiment `of`.
#[must_use]
pub fn judge(run: &Run, of: &Experiment) -> Report {
    let (samples, _) = Samples::of(run);
    let findings = compare(&run.arms, &run.design, &samples);
    let threshold_pct = of.design.threshold_pct;
    let most = match of.design.windows {
        Some(windows) => (MAX_S / of.design.round_s(windows, &of.arms)) as u32,
        None => MAX_ROUNDS,
    };
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
        longer.duration_s()
    };
    // Gates may have thresholds of their own: the overall one is scaled by the factor that the worst gate needs.
    let reach = |gate: &GateReach| {
        Some(decidable_pct(gate.sd_log?, of.design.rounds) / of.design.threshold_of(gate.metric))
    };
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
        default_rounds: of.design.rounds,
        threshold_with_default_rounds_pct: worst.map(|ratio| ratio * threshold_pct),
        by_windows: of.design.windows.is_some(),
    }
}

/// The margin that this number of rounds can decide: the formula of `rounds_needed`, solved for it.
fn decidable_pct(sd_log: f64, rounds: u32) -> f64 {
    ((1.645 + 0.84) * sd_log * SPARE / f64::from(rounds).sqrt()).exp_m1() * 100.0
}

impl Report {
    /// PASS when the machine can support the verdict, INVALID when not.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.rounds.is_some() { Verdict::Pass } else { Verdict::Invalid }
    }

    /// The answer in words.
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
                    false => format!("--rounds {rounds}, about {}", minutes(seconds)),
                };
                line(format!("YES  a {threshold} % threshold can be decided here now: {how}"));
            }
            _ => line(format!("NO   a {threshold} % threshold cannot be decided here now")),
        }
        for gate in &self.gates {
            let spread =
                gate.sd_log.map_or("unknown".to_owned(), |sd| format!("{:.1} %", sd.exp_m1() * 100.0));
            let rounds = gate
                .rounds
                .map_or("more rounds than are practical".to_owned(), |rounds| format!("{rounds} rounds"));
            line(format!(
                "     {:<4} two identical blocks differ by {spread} (sd): {rounds}",
                gate.metric.label()
            ));
        }
        let (bad, all) = self.invalid_blocks;
        line(format!("     {bad} of {all} blocks broke a validity rule"));
        for reason in &self.invalid_reasons {
            line(format!("       {reason}"));
        }
        let cpus = |value: Option<f64>| value.map_or("unknown".to_owned(), |cpus| format!("{cpus:.2} CPUs"));
        line(format!(
            "     outside the experiment: {} busy (the load generator included), {} taken by the hypervisor",
            cpus(self.other_cpus),
            cpus(self.steal_cpus)
        ));
        if let (None, Some(threshold)) = (self.rounds, self.threshold_with_default_rounds_pct) {
            line(format!(
                "     the experiment's own {} rounds could decide a threshold of {threshold:.0} %",
                self.default_rounds
            ));
        }
        text
    }
}

fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
