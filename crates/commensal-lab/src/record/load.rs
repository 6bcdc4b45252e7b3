//! Reads and writes `run.json`, and checks all properties on which the rest of the crate relies.
//!
//! Works on bytes that the caller has read; opens no file. No input causes a panic.

use super::{Design, ERROR, Metric, Role, Run, SCHEMA, decode_histogram};
use crate::error::LabError;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Maximum number of rounds in a document, because the number of Walsh averages grows with the square of the rounds.
pub const MAX_ROUNDS: usize = 2_000;

fn other_form(error: &serde_json::Error) -> LabError {
    LabError::new(format!("run.json is not a run of schema {SCHEMA}: {error}"))
}

/// Returns the error for a document of another kind or version. `found` is empty when the document names no schema.
fn other_schema(found: &str) -> LabError {
    LabError::new(format!("run.json has schema {found:?}, but this version reads {SCHEMA:?}"))
}

fn outside(field: &str, value: f64, range: &str) -> LabError {
    let value = if value.is_nan() { String::new() } else { format!(" {value}, which is") };
    LabError::new(format!("{field} is{value} not allowed: {range}"))
}

/// The schema field, which is parsed before all other fields.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    schema: serde_json::Value,
}

impl Run {
    /// Parses a run and checks it.
    ///
    /// # Errors
    /// Returns the first mistake in the document.
    pub fn from_json(bytes: &[u8]) -> Result<Self, LabError> {
        let header: Header = serde_json::from_slice(bytes).map_err(|error| other_form(&error))?;
        match header.schema.as_str() {
            Some(SCHEMA) => {}
            found => return Err(other_schema(found.unwrap_or_default())),
        }
        let run: Self = serde_json::from_slice(bytes).map_err(|error| other_form(&error))?;
        run.validate()?;
        Ok(run)
    }

    /// Formats the run as indented JSON with a final newline.
    ///
    /// # Errors
    /// Returns an error only if the serialiser fails, which no value of this type causes.
    pub fn to_json(&self) -> Result<String, LabError> {
        let mut text = commensal_core::text::json_pretty(self).map_err(|error| other_form(&error))?;
        text.push('\n');
        Ok(text)
    }

    /// Checks what types cannot enforce: names that refer to each other, ranges of numbers, histograms.
    ///
    /// # Errors
    /// Returns the first mistake in the document.
    pub fn validate(&self) -> Result<(), LabError> {
        if self.schema != SCHEMA {
            return Err(other_schema(&self.schema));
        }
        if self.blocks.is_empty() {
            return Err(LabError::new(
                "run.json has no blocks: the run was stopped before the first block was stored",
            ));
        }
        self.check_arms()?;
        check_design(&self.design)?;
        let rounds: BTreeSet<u32> = self.blocks.iter().map(|b| b.round).collect();
        if rounds.len() > MAX_ROUNDS {
            return Err(LabError::new(format!(
                "run.json has blocks in {} rounds, but at most {MAX_ROUNDS} rounds can be analysed",
                rounds.len()
            )));
        }
        self.check_blocks()
    }

    fn check_arms(&self) -> Result<(), LabError> {
        for (i, arm) in self.arms.iter().enumerate() {
            let twice = |other: &super::Arm| {
                let same = other.role == arm.role && other.offline == arm.offline;
                other.name == arm.name || (same && arm.role != Role::Isolated)
            };
            if self.arms[..i].iter().any(twice) {
                return Err(LabError::new(format!(
                    "arm {:?} or its role {:?} is declared twice",
                    arm.name, arm.role
                )));
            }
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<(), LabError> {
        let names: BTreeSet<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        let mut seen = BTreeSet::new();
        for (index, block) in self.blocks.iter().enumerate() {
            if !names.contains(block.arm.as_str()) {
                let known = self.arms.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(LabError::new(format!(
                    "block {index} names arm {:?}, which is not among the arms of the run ({known})",
                    block.arm
                )));
            }
            if !seen.insert((block.arm.as_str(), block.round)) {
                return Err(LabError::new(format!(
                    "arm {:?} has more than one block in round {}",
                    block.arm, block.round
                )));
            }
            let histograms = [
                ("hist", &block.histograms.latency),
                ("service_hist", &block.histograms.service),
                ("lateness_hist", &block.histograms.lateness),
            ];
            for (field, text) in histograms {
                if let Some(Err(error)) = text.as_deref().map(decode_histogram) {
                    let words = format!(
                        "block {index} (arm {:?}, round {}): field {field} cannot be decoded",
                        block.arm, block.round
                    );
                    return Err(LabError::of(words, &error));
                }
            }
        }
        Ok(())
    }
}

fn check_design(design: &Design) -> Result<(), LabError> {
    let thresholds = std::iter::once(("design.threshold_pct".to_owned(), design.threshold_pct)).chain(
        design.threshold_overrides_pct.iter().map(|(metric, value)| {
            (format!("design.threshold_overrides_pct for {}", metric.label()), *value)
        }),
    );
    for (field, value) in thresholds {
        if !(value > 0.0 && value <= 1_000.0) {
            return Err(outside(&field, value, "the value must be above 0 and at most 1000 %"));
        }
    }
    for (index, query) in design.queries.iter().enumerate() {
        let twice = design.queries[..index].iter().any(|other| other.metric == query.metric);
        if twice || !matches!(query.metric, Metric::Query(_)) {
            let field = format!("design.queries ({})", query.metric.label());
            return Err(outside(
                &field,
                f64::NAN,
                "each query needs a unique name that is not a built-in metric",
            ));
        }
    }
    let known = design.levels.is_empty() || design.levels.len() == design.looks.len();
    if !known || design.levels.iter().any(|level| !(*level > 0.0 && *level <= ERROR)) {
        return Err(outside(
            "design.levels",
            f64::NAN,
            "each of the looks needs an error rate above 0 and up to 0.05",
        ));
    }
    if let Some(other) = design.percentiles.iter().find(|metric| metric.quantile().is_none()) {
        let field = format!("design.percentiles ({})", other.label());
        return Err(outside(&field, f64::NAN, "only latency percentiles are allowed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::rng::Rng;
    use std::error::Error as _;

    fn check(change: impl Fn(&mut Run), expect: &str) {
        let mut run = fixture::small_run();
        change(&mut run);
        let err = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap_err();
        assert!(err.to_string().contains(expect), "{err}");
    }

    #[test]
    fn a_run_survives_the_round_trip() {
        let run = fixture::small_run();
        assert_eq!(Run::from_json(run.to_json().unwrap().as_bytes()).unwrap(), run);
    }

    #[test]
    fn each_defect_has_its_own_error() {
        check(
            |r| r.schema = "commensal.lab/2".into(),
            "has schema \"commensal.lab/2\", but this version reads",
        );
        check(|r| r.blocks.clear(), "has no blocks");
        check(|r| (r.design.looks, r.design.levels) = (vec![6, 12], vec![0.05]), "design.levels");
        check(|r| (r.design.looks, r.design.levels) = (vec![6], vec![0.5]), "design.levels");
        check(|r| r.blocks[3].arm = "other".into(), "block 3 names arm \"other\"");
        check(|r| r.blocks[3].round = 1, "more than one block in round");
        check(|r| r.arms[1].name = "baseline".into(), "declared twice");
        check(|r| r.arms[1].role = Role::Baseline, "declared twice");
        check(|r| r.blocks[0].histograms.latency = Some("HIST".into()), "field hist cannot be decoded");
        check(
            |r| r.blocks[0].histograms.lateness = Some("%".into()),
            "field lateness_hist cannot be decoded",
        );
        check(|r| r.design.threshold_pct = 0.0, "design.threshold_pct is 0");
        check(|r| r.design.threshold_pct = -5.0, "design.threshold_pct is -5");
        check(|r| r.design.percentiles = vec![Metric::Qps], "design.percentiles");
        let query =
            |metric| super::super::Query { metric, query: "up".into(), url: "u".into(), scrape_s: 1.0 };
        check(|r| r.design.queries = vec![query(Metric::P50)], "design.queries (P50)");
        let own = Metric::query("own", false).unwrap();
        check(|r| r.design.queries = vec![query(own); 2], "design.queries (own)");
    }

    #[test]
    fn the_source_of_a_histogram_error_is_kept() {
        let mut run = fixture::small_run();
        run.blocks[0].histograms.latency = Some("HIST".into());
        let err = run.validate().unwrap_err();
        assert!(err.source().unwrap().to_string().contains("corrupt"));
    }

    #[test]
    fn a_document_without_a_schema_says_so() {
        for text in ["{}", r#"{"schema":7}"#, r#"{"schema":"k6/1","blocks":[]}"#] {
            let err = Run::from_json(text.as_bytes()).unwrap_err();
            assert!(err.to_string().starts_with("run.json has schema "), "{err}");
        }
        for text in ["", "[", "null", "3", "\u{0}"] {
            let err = Run::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(err.starts_with("run.json is not a run"), "{text}: {err}");
        }
        assert!(Run::from_json(&[0xff, 0xfe]).is_err());
        let deep = "[".repeat(100_000);
        assert!(Run::from_json(deep.as_bytes()).is_err());
    }

    #[test]
    fn truncated_and_mutated_documents_never_panic() {
        let mut run = fixture::small_run();
        crate::analysis::conclude(&mut run);
        let text = run.to_json().unwrap();
        let bytes = text.trim_end().as_bytes();
        for cut in (0..bytes.len()).step_by(37) {
            assert!(Run::from_json(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut rng = Rng::new(5);
        let mut survived = 0;
        for _ in 0..200 {
            let mut wild = bytes.to_vec();
            for _ in 0..=rng.below(2) {
                let at = rng.below(wild.len() as u64) as usize;
                wild[at] = b"0123456789-eE.\"{}[],:ntf\xff"[rng.below(25) as usize];
            }
            if let Ok(mut run) = Run::from_json(&wild) {
                // Every document that can be read can also be analysed and printed.
                crate::analysis::conclude(&mut run);
                assert!(!crate::report::terminal(&run, false).is_empty());
                assert!(!crate::report::markdown(&run).is_empty());
                assert!(!crate::report::csv(&run).is_empty());
                survived += 1;
            }
        }
        assert!(survived > 20, "only {survived} mutants loaded");
    }
}
