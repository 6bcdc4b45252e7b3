//! The figures of a table: per arm, from a stored run or from a document's raw numbers. No layout.

use crate::analysis::Samples;
use crate::format::{count, delta_pct, sentence_list, signed, signed_pct};
use crate::record::{Arm, Metric, Role, Run, decode_histogram};
use crate::report::summary::{busy, change, cpu_cell, summarise};
use crate::stats::median;
use crate::verdict::{against_baseline, service_failed};
use std::collections::BTreeMap;

/// Rounding step of changes computed from a document's raw numbers.
const DOCUMENT_STEP: f64 = 0.01;

/// Contents of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    /// A sentence above the table; empty for a document.
    pub headline: String,
    /// The arms in the order of measurement or of the document; exactly one is the baseline.
    pub arms: Vec<ArmFigures>,
    /// Sentences below the table.
    pub footnotes: Vec<String>,
    /// Whether absolute figures are printed with their original digits instead of at least three.
    pub as_given: bool,
}

/// One arm.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmFigures {
    /// Its name.
    pub name: String,
    /// Description of what runs in it; may be empty.
    pub what: String,
    /// Role of the arm.
    pub role: Role,
    /// Throughput in requests per second, and latencies in microseconds.
    pub values: BTreeMap<Metric, f64>,
    /// Busy share of the machine, per cent.
    pub cpu_pct: Option<f64>,
    /// Sum of latencies, seconds.
    pub sum_s: Option<f64>,
    /// Number of requests.
    pub count: Option<u64>,
    /// Formatted changes against the baseline; empty for the baseline.
    pub changes: BTreeMap<Metric, String>,
    /// Formatted change of the busy share.
    pub cpu_change: Option<String>,
    /// Whether the online service failed: every cell is a cross.
    pub failed: bool,
}

impl Figures {
    /// The figures of a concluded run: absolute ones are medians over the valid blocks, changes are the paired
    /// Hodges-Lehmann estimates. `lesson` describes the error in the document of this style.
    #[must_use]
    pub fn of_run(run: &Run, lesson: Option<&str>) -> Self {
        let (samples, _) = Samples::of(run);
        let shown =
            |(_, arm): &(usize, &Arm)| matches!(arm.role, Role::Baseline | Role::Contended | Role::Isolated);
        let arms: Vec<ArmFigures> = run
            .arms
            .iter()
            .enumerate()
            .filter(shown)
            .map(|(index, arm)| of_arm(run, &samples, index, arm))
            .collect();
        let summary = summarise(run);
        let blocks: Vec<String> = run
            .arms
            .iter()
            .map(|arm| {
                format!("{} {}", arm.name, run.blocks_of(&arm.name).filter(|block| block.valid).count())
            })
            .collect();
        let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
        let mut footnotes = vec![CONVENTION.to_owned()];
        footnotes.push(format!(
            "Absolute figures are medians over valid blocks ({}) of {} rounds; changes are Hodges-Lehmann estimates of \
             ratios paired by round, with the digits that the noise floor supports.",
            sentence_list(&blocks),
            count(u64::from(run.design.rounds))
        ));
        footnotes.extend(summary.facts.first().map(|floor| format!("{}.", capital(floor))));
        if !arms.iter().any(|arm| arm.role == Role::Contended) {
            footnotes.push(
                "No arm shows the offline work without isolation: nothing here is the merit of a policy."
                    .into(),
            );
        }
        footnotes.extend(lesson.map(ToOwned::to_owned));
        Self { headline: format!("{}: {}", summary.word, summary.headline), arms, footnotes, as_given: false }
    }

    /// Figures from raw numbers, one run per arm: fills in the changes against the baseline.
    #[must_use]
    pub fn of_numbers(mut arms: Vec<ArmFigures>, footnotes: &[&str]) -> Self {
        let base = arms.iter().find(|arm| arm.role == Role::Baseline).cloned();
        for arm in arms.iter_mut().filter(|arm| arm.role != Role::Baseline) {
            let Some(base) = &base else { continue };
            let both = arm
                .values
                .iter()
                .filter_map(|(metric, value)| Some((*metric, *value, *base.values.get(metric)?)));
            arm.changes = both.map(|(metric, arm, base)| (metric, change_of(arm, base))).collect();
            arm.cpu_change = arm
                .cpu_pct
                .zip(base.cpu_pct)
                .map(|(arm, base)| format!("{} pp", signed(arm - base, DOCUMENT_STEP)));
        }
        let mut all = vec![CONVENTION.to_owned(), ONE_RUN.to_owned()];
        all.extend(footnotes.iter().map(|&note| note.to_owned()));
        Self { headline: String::new(), arms, footnotes: all, as_given: true }
    }
}

/// The convention of all tables.
const CONVENTION: &str = "Changes are (arm − baseline) / baseline of unrounded values; CPU in percentage points. Positive \
                          is more: slower for a latency, faster for QPS.";
const ONE_RUN: &str =
    "One run per arm and no second baseline: the two decimals are arithmetic, not precision.";

fn change_of(arm: f64, base: f64) -> String {
    signed_pct(delta_pct(arm, base), DOCUMENT_STEP)
}

fn of_arm(run: &Run, samples: &Samples, index: usize, arm: &Arm) -> ArmFigures {
    let value = |metric: Metric| Some((metric, median(&samples.values(index, metric))?));
    let changes = Metric::ALL.into_iter().filter_map(|metric| {
        let result = against_baseline(run, &arm.name, metric)?;
        Some((metric, change(run, result)))
    });
    let shares: Vec<f64> = busy(run, arm).into_iter().map(|(_, pct)| pct).collect();
    let is_base = arm.role == Role::Baseline;
    let (sum_s, count) = totals(run, arm).map_or((None, None), |(sum, count)| (Some(sum), Some(count)));
    ArmFigures {
        name: arm.name.clone(),
        what: what(arm),
        role: arm.role,
        values: Metric::ALL.into_iter().filter_map(value).collect(),
        cpu_pct: median(&shares),
        sum_s,
        count,
        changes: if is_base { BTreeMap::new() } else { changes.collect() },
        cpu_change: (!is_base).then(|| cpu_cell(run, arm)).flatten(),
        failed: service_failed(run, arm),
    }
}

fn what(arm: &Arm) -> String {
    match (arm.role, &arm.policy) {
        (Role::Baseline, _) => "online alone".to_owned(),
        (Role::Isolated, Some(policy)) => format!("with offline work, {}", policy.driver),
        (Role::Isolated, None) => "with offline work, isolated".to_owned(),
        _ => "with offline work, no isolation".to_owned(),
    }
}

/// Sum of latencies in seconds and number of requests over the valid blocks; `None` when a block lacks either.
fn totals(run: &Run, arm: &Arm) -> Option<(f64, u64)> {
    let mut totals = None;
    for block in run.blocks_of(&arm.name).filter(|block| block.valid) {
        let histogram = block.histograms.latency.as_deref().and_then(|text| decode_histogram(text).ok());
        let (mean_us, requests) = match histogram.filter(|histogram| !histogram.is_empty()) {
            Some(histogram) => (histogram.mean(), histogram.len()),
            None => (block.mean_us?, block.load.offered_requests),
        };
        let (sum, count) = totals.unwrap_or((0.0, 0));
        totals = Some((sum + mean_us * requests as f64 / 1e6, count + requests));
    }
    totals
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
