//! Can this machine support the verdict you want, and how long would it take? The two identical arms alone,
//! for about a minute.

use crate::analysis::{Samples, compare};
use crate::experiment::{Choice, Experiment, noise_check};
use crate::record::{Metric, Run};
use crate::stats::rounds_needed;
use crate::verdict::Verdict;
use serde::Serialize;

/// Rounds of the check: with 5 s blocks about a minute.
const ROUNDS: u32 = 4;
/// More rounds than this is not a practical answer.
const MAX_ROUNDS: u32 = 60;
/// Spare on the estimated spread: four rounds know it only roughly.
const SPARE: f64 = 1.25;

/// The answer for one gate metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gate {
    /// The metric.
    pub metric: Metric,
    /// Standard deviation of the log-ratio of two identical blocks.
    pub sd_log: Option<f64>,
    /// Rounds for the wanted threshold; `None` when unknown or beyond any practical number.
    pub rounds: Option<u32>,
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Wanted threshold, per cent.
    pub threshold_pct: f64,
    /// By gate metric.
    pub gates: Vec<Gate>,
    /// Blocks that broke a validity rule, and how many there were.
    pub invalid_blocks: (usize, usize),
    /// Reasons of the invalid blocks, each once.
    pub invalid_reasons: Vec<String>,
    /// CPU that nobody's group used, and CPU taken by the hypervisor, medians in CPUs.
    pub other_cpus: Option<f64>,
    /// See `other_cpus`.
    pub steal_cpus: Option<f64>,
    /// Rounds that the whole verdict needs; `None` when this machine cannot give it now.
    pub rounds: Option<u32>,
    /// How long the experiment with so many rounds takes, seconds.
    pub duration_s: Option<f64>,
    /// Smallest threshold that 6 rounds of it could decide, per cent.
    pub threshold_with_default_rounds_pct: Option<f64>,
}

/// The experiment of the check.
#[must_use]
pub fn experiment(choice: &Choice) -> Experiment {
    noise_check(&Choice { rounds: ROUNDS, ..*choice })
}

/// Judges a finished check; `of` is the experiment that it is for.
#[must_use]
pub fn judge(run: &Run, of: &Experiment) -> Report {
    let (samples, _) = Samples::of(run);
    let findings = compare(&run.arms, &run.design, &samples);
    let threshold_pct = of.design.threshold_pct;
    let margin = (threshold_pct / 100.0).ln_1p();
    let gate = |metric: &Metric| {
        let result = findings.results.iter().find(|result| result.metric == *metric);
        let sd_log = result.and_then(|result| result.sd_log);
        let rounds =
            sd_log.and_then(|sd| rounds_needed(sd * SPARE, margin)).map(|k| k.max(Choice::QUICKSTART.rounds));
        Gate { metric: *metric, sd_log, rounds: rounds.filter(|rounds| *rounds <= MAX_ROUNDS) }
    };
    let gates: Vec<Gate> = run.design.gates.iter().map(gate).collect();
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
    let worst = gates.iter().map(|gate| gate.sd_log).collect::<Option<Vec<f64>>>();
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
        threshold_with_default_rounds_pct: worst.map(default_threshold_pct),
    }
}

/// The margin at which `rounds_needed` gives the default number of rounds: its formula solved for it.
fn default_threshold_pct(sd_log: f64) -> f64 {
    let rounds = f64::from(Choice::QUICKSTART.rounds);
    ((1.645 + 0.84) * sd_log * SPARE / rounds.sqrt()).exp_m1() * 100.0
}

impl Report {
    /// PASS when the machine can do it, INVALID when not.
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
            (Some(rounds), Some(seconds)) => line(format!(
                "YES  a {threshold} % threshold can be decided here now: --rounds {rounds}, about {}",
                minutes(seconds)
            )),
            _ => line(format!("NO   a {threshold} % threshold cannot be decided here now")),
        }
        for gate in &self.gates {
            let spread =
                gate.sd_log.map_or("unknown".to_owned(), |sd| format!("{:.1} %", sd.exp_m1() * 100.0));
            let rounds = gate
                .rounds
                .map_or(format!("more than {MAX_ROUNDS} rounds"), |rounds| format!("{rounds} rounds"));
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
                "     the default {} rounds could decide a threshold of {threshold:.0} %",
                Choice::QUICKSTART.rounds
            ));
        }
        text
    }
}

fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
