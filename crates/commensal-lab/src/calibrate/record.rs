//! The record of a calibration: its plan and every finished run. The whole file is rewritten after each run, so that an
//! interrupted calibration can be continued.

use super::{Answer, BlockSample, Plan, answers, seen};
use crate::error::LabError;
use crate::record::{Machine, RecordedBy, Run};
use crate::stats::{mean, median};
use serde::{Deserialize, Serialize};

/// The name in the `schema` field.
pub const SCHEMA: &str = "commensal.calibration/1";

/// A calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Always `commensal.calibration/1`.
    pub schema: String,
    /// What recorded it.
    pub tool: RecordedBy,
    /// The machine; `None` before the first run.
    pub machine: Option<Machine>,
    /// What was planned.
    pub plan: Plan,
    /// The runs.
    pub runs: Vec<Done>,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Its seed.
    pub seed: u64,
    /// When it started, RFC 3339.
    pub started: String,
    /// Rounds.
    pub rounds: u32,
    /// Requests per second offered.
    pub offered_per_s: Option<f64>,
    /// Median of the service alone, microseconds: its median over the rounds.
    pub alone_us: Option<f64>,
    /// CPUs used on average by programs that are not part of the calibration; a neighbour is one of them.
    pub foreign_cpus: Option<f64>,
    /// CPUs stolen by the hypervisor, on average.
    pub steal_cpus: Option<f64>,
    /// One answer per harm.
    pub answers: Vec<Answer>,
    /// Every block.
    pub blocks: Vec<BlockSample>,
    /// Remarks of the recorder.
    pub caveats: Vec<String>,
}

impl Done {
    /// The result of a run; histograms are only stored for the first one, so that its figures can be recomputed.
    fn of(run: &Run, plan: &Plan, first: bool) -> Done {
        let average = |of: fn(&crate::record::Block) -> Option<f64>| {
            mean(&run.blocks.iter().filter_map(of).collect::<Vec<f64>>())
        };
        let blocks = seen(run, first);
        let alone: Vec<f64> =
            blocks.iter().filter(|block| block.arm == "baseline").filter_map(|block| block.p50_us).collect();
        Done {
            seed: run.seed,
            started: run.started.clone(),
            rounds: run.rounds_begun(),
            offered_per_s: run.design.offered_per_s,
            alone_us: median(&alone),
            foreign_cpus: average(|block| {
                Some((block.cpu.other? - block.cpu.client.unwrap_or(0.0)).max(0.0))
            }),
            steal_cpus: average(|block| block.cpu.steal),
            answers: answers(run, &plan.harms),
            blocks,
            caveats: run.caveats.clone(),
        }
    }
}

fn other_form(error: &serde_json::Error) -> LabError {
    LabError::new(format!("it does not read as a calibration of schema {SCHEMA}: {error}"))
}

/// The error for a calibration that was made with another plan or by another version.
fn another(differs: &str) -> LabError {
    LabError::new(format!("it is of another calibration: {differs}; name another file, or ask for the same"))
}

impl Calibration {
    /// A record without runs.
    #[must_use]
    pub fn new(plan: Plan, tool: RecordedBy) -> Calibration {
        Calibration { schema: SCHEMA.to_owned(), tool, machine: None, plan, runs: Vec::new() }
    }

    /// Parses a record.
    ///
    /// # Errors
    /// When the text is not a record.
    pub fn from_json(text: &str) -> Result<Calibration, LabError> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| other_form(&error))?;
        let schema = value.get("schema").and_then(serde_json::Value::as_str).unwrap_or_default();
        if schema != SCHEMA {
            return Err(LabError::new(format!(
                "it has schema {schema:?}, and this version reads {SCHEMA:?}"
            )));
        }
        serde_json::from_value(value).map_err(|error| other_form(&error))
    }

    /// The record as text.
    ///
    /// # Errors
    /// Never, for a record of this program.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(commensal_core::text::json(self)? + "\n")
    }

    /// Whether runs of this plan by this version may be added.
    ///
    /// # Errors
    /// The differences.
    pub fn may_go_on(&self, plan: &Plan, tool: &RecordedBy) -> Result<(), LabError> {
        let mine = &self.plan;
        let names =
            |plan: &Plan| plan.harms.iter().map(|harm| harm.arm.clone()).collect::<Vec<String>>().join(", ");
        let beside = |plan: &Plan| plan.beside.clone().unwrap_or_else(|| "nothing".to_owned());
        let differs = if mine.harms != plan.harms {
            format!("its harms are {}, and {} are asked for", names(mine), names(plan))
        } else if (mine.seconds - plan.seconds).abs() > 1e-9 {
            format!("its runs take {} s, and {} s are asked for", mine.seconds, plan.seconds)
        } else if mine.seed != plan.seed {
            format!("its seed is {}, and {} is asked for", mine.seed, plan.seed)
        } else if mine.beside != plan.beside {
            format!("its runs were beside {}, and {} is asked for", beside(mine), beside(plan))
        } else if mine.blame != plan.blame {
            "the waits were judged in one and are not in the other".to_owned()
        } else if self.tool.version != tool.version {
            format!("version {} made it, and this is {}", self.tool.version, tool.version)
        } else {
            return Ok(());
        };
        Err(another(&differs))
    }

    /// Adds a finished run.
    ///
    /// # Errors
    /// When the run is from another machine.
    pub fn add(&mut self, run: &Run) -> Result<&Done, LabError> {
        let here = self.machine.get_or_insert_with(|| run.machine.clone());
        if here.fingerprint != run.machine.fingerprint {
            let (there, here) = (format!("{}, {}", here.cpu, here.kernel), &run.machine);
            return Err(another(&format!(
                "its machine is {there}, and this is {}, {}",
                here.cpu, here.kernel
            )));
        }
        let done = Done::of(run, &self.plan, self.runs.is_empty());
        self.runs.push(done);
        Ok(&self.runs[self.runs.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conductor::Beside;

    fn tool(version: &str) -> RecordedBy {
        RecordedBy { version: version.to_owned(), args: Vec::new() }
    }

    #[test]
    fn a_record_goes_on_with_the_same_plan_only() {
        let plan = Plan::new(None, 90.0, 1, None).unwrap();
        let record = Calibration::new(plan.clone(), tool("1"));
        let again = Calibration::from_json(&record.to_json().unwrap()).unwrap();
        assert_eq!(again, record);
        assert!(again.may_go_on(&plan, &tool("1")).is_ok());
        let check = |other: Plan, version: &str, want: &str| {
            let said = again.may_go_on(&other, &tool(version)).unwrap_err().to_string();
            assert!(said.contains(want), "{said}");
        };
        check(Plan::new(Some("0,3"), 90.0, 1, None).unwrap(), "1", "+0 %, +3 % are asked for");
        check(Plan { seconds: 60.0, ..plan.clone() }, "1", "take 90 s, and 60 s");
        check(Plan { seed: 2, ..plan.clone() }, "1", "seed is 1, and 2");
        let beside = Plan { beside: Some(Beside::Busy(0.5).to_string()), ..plan.clone() };
        check(beside, "1", "beside nothing, and busy:0.5");
        check(Plan { blame: false, ..plan.clone() }, "1", "waits were judged");
        check(plan.clone(), "2", "version 1 made it, and this is 2");
    }

    #[test]
    fn what_is_no_record_is_told() {
        let said = |text: &str| Calibration::from_json(text).unwrap_err().to_string();
        assert!(said("{").contains("does not read as a calibration"), "{}", said("{"));
        assert!(said("{}").contains("schema \"\""));
        assert!(said("[1]").contains("schema \"\""));
        assert!(said(r#"{"schema":"commensal.lab/1"}"#).contains("\"commensal.lab/1\""));
        assert!(said(r#"{"schema":"commensal.calibration/1"}"#).contains("missing field"));
    }
}
