//! Reading and writing `run.json`, with the checks on which the rest of the crate relies.
//!
//! Works on bytes that the caller has read: no file is opened here. No input makes it panic.

use super::{Design, HistogramError, Metric, Role, Run, SCHEMA, decode_histogram};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The most rounds a document may hold. The Walsh averages grow with the square of the rounds.
pub const MAX_ROUNDS: usize = 2_000;

/// Why a document is not a run.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not JSON, or a field is missing or of the wrong type.
    #[error("run.json does not read as a run of schema {SCHEMA}: {0}")]
    Json(#[from] serde_json::Error),
    /// It is a document of another kind or version.
    #[error("run.json has schema {found:?} but this version reads {SCHEMA:?}")]
    Schema {
        /// The name in the document; empty when there is none.
        found: String,
    },
    /// The document has no blocks.
    #[error("run.json has no blocks: the run was stopped before the first block was stored")]
    NoBlocks,
    /// A block names an arm that is not declared.
    #[error("block {block} names arm {arm:?}, which is not among the arms of the run ({known})")]
    UnknownArm {
        /// Index of the block.
        block: usize,
        /// The name in the block.
        arm: String,
        /// The names of the arms of the run.
        known: String,
    },
    /// Two arms have the same name, or the same role although only one arm may have it.
    #[error("arm {arm:?} is declared twice, or its role {role:?} is")]
    DuplicateArm {
        /// The name of the second one.
        arm: String,
        /// Its role.
        role: Role,
    },
    /// One arm has two blocks in one round.
    #[error("arm {arm:?} has more than one block in round {round}")]
    DuplicateBlock {
        /// The arm.
        arm: String,
        /// The round.
        round: u32,
    },
    /// A histogram cannot be decoded.
    #[error("block {block} (arm {arm:?}, round {round}): field {field} does not decode")]
    Histogram {
        /// Index of the block.
        block: usize,
        /// The arm.
        arm: String,
        /// The round.
        round: u32,
        /// The field of the block.
        field: &'static str,
        /// What is wrong with it.
        source: HistogramError,
    },
    /// A number is outside its range.
    #[error("{field} is {value}, which is outside {range}")]
    Range {
        /// The field.
        field: String,
        /// Its value.
        value: f64,
        /// The range that is allowed.
        range: &'static str,
    },
    /// The document has more rounds than the analysis supports.
    #[error("run.json has blocks in {found} rounds, at most {MAX_ROUNDS} are analysed")]
    TooManyRounds {
        /// The rounds in the document.
        found: usize,
    },
}

/// The field that is read before all others.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    schema: serde_json::Value,
}

impl Run {
    /// Reads a run and checks it.
    ///
    /// # Errors
    /// The first mistake that is found; see [`RecordError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, RecordError> {
        let header: Header = serde_json::from_slice(bytes)?;
        match header.schema.as_str() {
            Some(SCHEMA) => {}
            found => return Err(RecordError::Schema { found: found.unwrap_or_default().to_owned() }),
        }
        let run: Self = serde_json::from_slice(bytes)?;
        run.validate()?;
        Ok(run)
    }

    /// Writes the run as indented JSON with a final newline.
    ///
    /// # Errors
    /// Only when the serialiser fails, which it does for no value of this type.
    pub fn to_json(&self) -> Result<String, RecordError> {
        let mut text = commensal_core::text::json_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Checks what the types cannot: names that refer to each other, ranges, histograms.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn validate(&self) -> Result<(), RecordError> {
        if self.schema != SCHEMA {
            return Err(RecordError::Schema { found: self.schema.clone() });
        }
        if self.blocks.is_empty() {
            return Err(RecordError::NoBlocks);
        }
        self.check_arms()?;
        check_design(&self.design)?;
        let rounds: BTreeSet<u32> = self.blocks.iter().map(|b| b.round).collect();
        if rounds.len() > MAX_ROUNDS {
            return Err(RecordError::TooManyRounds { found: rounds.len() });
        }
        self.check_blocks()
    }

    fn check_arms(&self) -> Result<(), RecordError> {
        for (i, arm) in self.arms.iter().enumerate() {
            let twice = |other: &super::Arm| {
                let same = other.role == arm.role && other.offline == arm.offline;
                other.name == arm.name || (same && arm.role != Role::Isolated)
            };
            if self.arms[..i].iter().any(twice) {
                return Err(RecordError::DuplicateArm { arm: arm.name.clone(), role: arm.role });
            }
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<(), RecordError> {
        let names: BTreeSet<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        let mut seen = BTreeSet::new();
        for (index, block) in self.blocks.iter().enumerate() {
            if !names.contains(block.arm.as_str()) {
                let known = self.arms.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(RecordError::UnknownArm { block: index, arm: block.arm.clone(), known });
            }
            if !seen.insert((block.arm.as_str(), block.round)) {
                return Err(RecordError::DuplicateBlock { arm: block.arm.clone(), round: block.round });
            }
            let histograms = [
                ("hist", &block.histograms.latency),
                ("service_hist", &block.histograms.service),
                ("lateness_hist", &block.histograms.lateness),
            ];
            for (field, text) in histograms {
                if let Some(Err(source)) = text.as_deref().map(decode_histogram) {
                    let (arm, round) = (block.arm.clone(), block.round);
                    return Err(RecordError::Histogram { block: index, arm, round, field, source });
                }
            }
        }
        Ok(())
    }
}

fn check_design(design: &Design) -> Result<(), RecordError> {
    let thresholds = std::iter::once(("design.threshold_pct".to_owned(), design.threshold_pct)).chain(
        design.threshold_overrides_pct.iter().map(|(metric, value)| {
            (format!("design.threshold_overrides_pct for {}", metric.label()), *value)
        }),
    );
    for (field, value) in thresholds {
        if !(value > 0.0 && value <= 1_000.0) {
            return Err(RecordError::Range { field, value, range: "0 to 1000 %, 0 excluded" });
        }
    }
    for (index, query) in design.queries.iter().enumerate() {
        let twice = design.queries[..index].iter().any(|other| other.metric == query.metric);
        if twice || !matches!(query.metric, Metric::Query(_)) {
            let field = format!("design.queries ({})", query.metric.label());
            return Err(RecordError::Range { field, value: f64::NAN, range: "names of their own" });
        }
    }
    if let Some(other) = design.percentiles.iter().find(|metric| metric.quantile().is_none()) {
        let field = format!("design.percentiles ({})", other.label());
        return Err(RecordError::Range { field, value: f64::NAN, range: "the percentiles" });
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
            "has schema \"commensal.lab/2\" but this version reads",
        );
        check(|r| r.blocks.clear(), "has no blocks");
        check(|r| r.blocks[3].arm = "other".into(), "block 3 names arm \"other\"");
        check(|r| r.blocks[3].round = 1, "more than one block in round");
        check(|r| r.arms[1].name = "baseline".into(), "declared twice");
        check(|r| r.arms[1].role = Role::Baseline, "declared twice");
        check(|r| r.blocks[0].histograms.latency = Some("HIST".into()), "field hist does not decode");
        check(|r| r.blocks[0].histograms.lateness = Some("%".into()), "field lateness_hist does not decode");
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
            assert!(matches!(err, RecordError::Schema { .. }), "{err}");
        }
        for text in ["", "[", "null", "3", "\u{0}"] {
            assert!(matches!(Run::from_json(text.as_bytes()).unwrap_err(), RecordError::Json(_)), "{text}");
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
                // What loads must also analyse and print.
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
