//! The values of a table for each arm (way of running the service), from a stored run or from a document's raw values.
//! This module contains no layout.

use crate::analysis::Samples;
use crate::format::{count, delta_pct, sentence_list, signed, signed_pct};
use crate::record::{Arm, Metric, Role, Run, decode_histogram};
use crate::report::summary::{busy, change, cpu_cell, summarise};
use crate::stats::median;
use crate::verdict::{against_baseline, service_failed};
use std::collections::BTreeMap;

/// Rounding step of changes that are computed from a document's raw values.
const DOCUMENT_STEP: f64 = 0.01;

/// Contents of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    /// A sentence above the table; empty for a document.
    pub headline: String,
    /// The arms, in the order of measurement or in the document's order. Exactly one arm is the baseline.
    pub arms: Vec<ArmFigures>,
    /// Sentences below the table.
    pub footnotes: Vec<String>,
    /// Whether absolute values are printed with as many digits as the document has, instead of at least three digits.
    pub as_given: bool,
}

/// The values of one arm.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmFigures {
    /// Name of the arm.
    pub name: String,
    /// Description of the work that runs in the arm; may be empty.
    pub what: String,
    /// Role of the arm.
    pub role: Role,
    /// Throughput in requests per second, and latencies in microseconds.
    pub values: BTreeMap<Metric, f64>,
    /// Busy share of the machine's CPUs, in per cent.
    pub cpu_pct: Option<f64>,
    /// Sum of latencies, in seconds.
    pub sum_s: Option<f64>,
    /// Number of requests.
    pub count: Option<u64>,
    /// Formatted changes from the baseline; empty for the baseline itself.
    pub changes: BTreeMap<Metric, String>,
    /// Formatted change of the busy share from the baseline.
    pub cpu_change: Option<String>,
    /// Whether the online service failed in this arm; if so, every cell shows a cross.
    pub failed: bool,
}

impl Figures {
    /// Returns the values of a concluded run. Absolute values are medians over the valid blocks; changes are paired
    /// Hodges-Lehmann estimates. `lesson` describes the error of the document whose style the table uses.
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
            "Absolute values are medians over valid blocks ({}) of {} rounds; changes are Hodges-Lehmann estimates of \
             ratios paired by round, with as many digits as the noise floor supports.",
            sentence_list(&blocks),
            count(u64::from(run.rounds_begun()))
        ));
        footnotes.extend(summary.facts.first().map(|floor| format!("{}.", capital(floor))));
        if !arms.iter().any(|arm| arm.role == Role::Contended) {
            footnotes.push(
                "No arm has offline work without isolation, so the table does not show the effect of a policy."
                    .into(),
            );
        }
        footnotes.extend(lesson.map(ToOwned::to_owned));
        Self { headline: format!("{}: {}", summary.word, summary.headline), arms, footnotes, as_given: false }
    }

    /// Returns a document's values: computes the changes from the baseline from the raw values, which come from one run
    /// per arm.
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

/// The convention that applies to all tables.
const CONVENTION: &str = "Changes are (arm − baseline) / baseline of unrounded values; those of CPU are in percentage points. A positive \
                          change means slower for a latency, and faster for QPS.";
const ONE_RUN: &str =
    "There was one run per arm and no second baseline, so the two decimals do not show the precision.";

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

/// Returns the sum of latencies in seconds and the number of requests, over the valid blocks; `None` when a block lacks
/// the sum or the number.
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
