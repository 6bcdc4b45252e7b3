//! The record of a calibration: the plan and every finished run. The program rewrites the whole file after each run, so
//! that a later command can continue an interrupted calibration.

use super::{Answer, BlockSample, Plan, answers, seen};
use crate::error::LabError;
use crate::record::{Machine, RecordedBy, Run};
use crate::stats::{mean, median};
use serde::{Deserialize, Serialize};

/// Value of the `schema` field.
pub const SCHEMA: &str = "commensal.calibration/1";

/// The record of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Name of the schema; always `SCHEMA`.
    pub schema: String,
    /// The program that made the record.
    pub tool: RecordedBy,
    /// The machine on which the calibration runs; `None` before the first run.
    pub machine: Option<Machine>,
    /// The plan of the calibration.
    pub plan: Plan,
    /// The finished runs.
    pub runs: Vec<Done>,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Seed of the run.
    pub seed: u64,
    /// Start time of the run (RFC 3339).
    pub started: String,
    /// Number of rounds.
    pub rounds: u32,
    /// Offered load in requests per second.
    pub offered_per_s: Option<f64>,
    /// Median latency of the service alone (µs): the median over the rounds.
    pub alone_us: Option<f64>,
    /// Average number of CPUs used by programs that are not part of the calibration, including the neighbour program if
    /// the calibration has such a program.
    pub foreign_cpus: Option<f64>,
    /// Average steal time (CPUs).
    pub steal_cpus: Option<f64>,
    /// One result per harm.
    pub answers: Vec<Answer>,
    /// All blocks.
    pub blocks: Vec<BlockSample>,
    /// Caveats of the run.
    pub caveats: Vec<String>,
}

impl Done {
    /// Creates the result of a run. Only the first run of a calibration stores its histograms, from which its results
    /// can be recomputed.
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
            foreign_cpus: average(|block| block.cpu.outside()),
            steal_cpus: average(|block| block.cpu.steal),
            answers: answers(run, &plan.harms),
            blocks,
            caveats: run.caveats.clone(),
        }
    }
}

fn other_form(error: &serde_json::Error) -> LabError {
    LabError::new(format!("the file is not a calibration of schema {SCHEMA}: {error}"))
}

/// Creates the error for a calibration that another plan, machine or version made.
fn another(differs: &str) -> LabError {
    LabError::new(format!(
        "the file has another calibration: {differs}; name another file, or use the same options"
    ))
}

impl Calibration {
    /// Creates a record without runs.
    #[must_use]
    pub fn new(plan: Plan, tool: RecordedBy) -> Calibration {
        Calibration { schema: SCHEMA.to_owned(), tool, machine: None, plan, runs: Vec::new() }
    }

    /// Parses a record.
    ///
    /// # Errors
    /// If the text is not a record of this schema.
    pub fn from_json(text: &str) -> Result<Calibration, LabError> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| other_form(&error))?;
        let schema = value.get("schema").and_then(serde_json::Value::as_str).unwrap_or_default();
        if schema != SCHEMA {
            return Err(LabError::new(format!(
                "the file has schema {schema:?}, but this version reads {SCHEMA:?}"
            )));
        }
        serde_json::from_value(value).map_err(|error| other_form(&error))
    }

    /// Formats the record as JSON.
    ///
    /// # Errors
    /// Returns an error if the record cannot be serialised, which does not happen for records of this program.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(commensal_core::text::json(self)? + "\n")
    }

    /// Checks whether runs of this plan by this version may be added.
    ///
    /// # Errors
    /// A message with the first difference.
    pub fn may_go_on(&self, plan: &Plan, tool: &RecordedBy) -> Result<(), LabError> {
        let mine = &self.plan;
        let names =
            |plan: &Plan| plan.harms.iter().map(|harm| harm.arm.clone()).collect::<Vec<String>>().join(", ");
        let beside = |plan: &Plan| plan.beside.clone().unwrap_or_else(|| "none".to_owned());
        let differs = if mine.harms != plan.harms {
            format!("its harms are {}, but the options request {}", names(mine), names(plan))
        } else if (mine.seconds - plan.seconds).abs() > 1e-9 {
            format!("its runs take {} s, but the options request {} s", mine.seconds, plan.seconds)
        } else if mine.seed != plan.seed {
            format!("its seed is {}, but the options request {}", mine.seed, plan.seed)
        } else if mine.beside != plan.beside {
            format!(
                "its background load (--beside) was {}, but the options request {}",
                beside(mine),
                beside(plan)
            )
        } else if mine.blame != plan.blame {
            "only one of the two calibrations judges how long threads wait for a CPU (--no-blame)".to_owned()
        } else if self.tool.version != tool.version {
            format!("it was recorded by version {}, but this is version {}", self.tool.version, tool.version)
        } else {
            return Ok(());
        };
        Err(another(&differs))
    }

    /// Adds a finished run.
    ///
    /// # Errors
    /// If the run is from another machine.
    pub fn add(&mut self, run: &Run) -> Result<&Done, LabError> {
        let here = self.machine.get_or_insert_with(|| run.machine.clone());
        if here.fingerprint != run.machine.fingerprint {
            let (there, here) = (format!("{}, {}", here.cpu, here.kernel), &run.machine);
            return Err(another(&format!(
                "its machine is {there}, but this machine is {}, {}",
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
    use crate::conductor::Neighbour;

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
        check(Plan::new(Some("0,3"), 90.0, 1, None).unwrap(), "1", "but the options request +0 %, +3 %");
        check(Plan { seconds: 60.0, ..plan.clone() }, "1", "take 90 s, but the options request 60 s");
        check(Plan { seed: 2, ..plan.clone() }, "1", "seed is 1, but the options request 2");
        let beside = Plan { beside: Some(Neighbour::Busy(0.5).to_string()), ..plan.clone() };
        check(beside, "1", "background load (--beside) was none, but the options request busy:0.5");
        check(Plan { blame: false, ..plan.clone() }, "1", "judges how long threads wait");
        check(plan.clone(), "2", "it was recorded by version 1, but this is version 2");
    }

    #[test]
    fn what_is_no_record_is_told() {
        let said = |text: &str| Calibration::from_json(text).unwrap_err().to_string();
        assert!(said("{").contains("is not a calibration"), "{}", said("{"));
        assert!(said("{}").contains("schema \"\""));
        assert!(said("[1]").contains("schema \"\""));
        assert!(said(r#"{"schema":"commensal.lab/1"}"#).contains("\"commensal.lab/1\""));
        assert!(said(r#"{"schema":"commensal.calibration/1"}"#).contains("missing field"));
    }
}
