//! The data model of a recorded ladder, schema `commensal.density/1`. A ladder is a series of measurements with more
//! and more concurrent sessions. A placement is a number of VMs on a number of servers; a rung is one test at one
//! concurrency in one placement; an attempt is one measurement of a rung. The attempts are the primary data: the table,
//! the plan and all charts are computed from them. A missing value is `None`, never 0.

use crate::error::DensityError;
use crate::scenario::Server;
use commensal_lab::record::{Machine, RecordedBy};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The value of the `schema` field in every ladder that this version reads and writes.
pub const SCHEMA: &str = "commensal.density/1";

/// Measurements of tests at increasing concurrency, in every placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ladder {
    /// Always `commensal.density/1`.
    #[schemars(extend("const" = "commensal.density/1"))]
    pub schema: String,
    /// Name of the ladder.
    pub name: String,
    /// The program that recorded the ladder; `None` for numbers copied from a document.
    #[serde(default)]
    pub tool: Option<RecordedBy>,
    /// When the run started (RFC 3339).
    #[serde(default)]
    pub started: Option<String>,
    /// Seed of the random order.
    #[serde(default)]
    pub seed: u64,
    /// Planned number of attempts per rung.
    pub repeats: u32,
    /// The machine; `None` for numbers copied from a document.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Text of the experiment file.
    #[serde(default)]
    pub source: Option<String>,
    /// Number of vCPUs of a VM.
    pub vcpu: u32,
    /// The placements; the first one is the reference for the others.
    #[schemars(length(min = 1))]
    pub placements: Vec<Placement>,
    /// The tests, in the order of the table.
    #[schemars(length(min = 1))]
    pub tests: Vec<Test>,
    /// The measurements: one entry per test, concurrency and placement.
    pub rungs: Vec<Rung>,
    /// Digest of the result of each unit of work, by test and unit. The results of later attempts are compared with
    /// these.
    #[serde(default)]
    pub results: BTreeMap<String, String>,
    /// Remarks that a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A number of VMs on a number of servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Name of the placement, such as `S1`.
    pub name: String,
    /// Total number of VMs.
    pub vms: u32,
    /// Number of servers, each with the same number of VMs.
    pub servers: u32,
    /// Hardware of one server.
    pub server: Server,
    /// Whether each VM is pinned to whole cores of its own.
    #[serde(default)]
    pub pinned: bool,
}

impl Placement {
    /// VMs on one server.
    #[must_use]
    pub fn per_server(&self) -> u32 {
        self.vms / self.servers.max(1)
    }
}

/// A test: the work that every session performs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Test {
    /// Name of the test, such as `Lite`.
    pub name: String,
    /// Number of units of work per session.
    pub work: f64,
    /// Unit of work, such as `queries`.
    pub unit: String,
    /// Whether all VMs work together on every unit, as in an MPP database. If so, the placement as a whole has
    /// `concurrency` sessions; otherwise each VM has `concurrency` sessions of its own.
    #[serde(default)]
    pub spanning: bool,
}

/// One test at one concurrency in one placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rung {
    /// Name of the test.
    pub test: String,
    /// Number of concurrent sessions.
    pub concurrency: u32,
    /// Name of the placement.
    pub placement: String,
    /// All attempts, in the order of measurement.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Published values, for a ladder without attempts.
    #[serde(default)]
    pub published: Option<Published>,
    /// Why the rung was skipped; `None` if the rung was not skipped.
    #[serde(default)]
    pub skipped: Option<String>,
}

/// Published values of a rung whose single attempts are not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// Mean time of the completed attempts, in seconds.
    pub mean_s: Option<f64>,
    /// Number of completed attempts.
    pub completed: u32,
    /// Number of attempts.
    pub attempted: u32,
    /// Number of warnings, as published. Documents do not always say whether this number is a sum or a mean.
    #[serde(default)]
    pub warnings: Option<f64>,
}

/// One attempt at one rung.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Number of the repeat, from 0. Attempts with the same number are compared between placements.
    pub repeat: u32,
    /// Start of the attempt, in seconds since the start of the run.
    #[serde(default)]
    pub at_s: f64,
    /// Time from the start of the first session to the end of the last one, in seconds; `None` when the attempt failed.
    pub seconds: Option<f64>,
    /// Why the attempt failed, with evidence; `None` if the attempt did not fail.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Numbers of warnings by name. Warnings that cannot be counted on this machine are missing.
    #[serde(default)]
    pub warnings: BTreeMap<String, u64>,
    /// Kernel counters during the attempt, by name: dropped datagrams, throttled periods, and OOM kills.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// CPU use of all VMs, in per cent of their vCPU time.
    #[serde(default)]
    pub usage_pct: Option<f64>,
    /// Steal of all VMs, in per cent of their vCPU time, measured by the host: the run delay of the VMs' threads
    /// relative to wall time.
    #[serde(default)]
    pub steal_pct: Option<f64>,
    /// Steal of all VMs, in per cent of their vCPU time, as counted by the guests' kernels; only for real VMs.
    #[serde(default)]
    pub guest_steal_pct: Option<f64>,
    /// CPU time of threads that lived too briefly to be sampled, in per cent of all CPU time. `steal_pct` does not
    /// include the steal of these threads.
    #[serde(default)]
    pub unseen_pct: Option<f64>,
    /// Steal of the machine that runs the VMs, in per cent of that machine's CPU time.
    #[serde(default)]
    pub outer_steal_pct: Option<f64>,
    /// Time until the last session of each VM finished, in seconds; shows the spread between VMs.
    #[serde(default)]
    pub vm_seconds: Vec<f64>,
    /// CPU use and steal, one entry per second.
    #[serde(default)]
    pub series: Vec<Tick>,
}

/// One second of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tick {
    /// End of this second, in seconds since the attempt started.
    pub t_s: f64,
    /// CPU use of all VMs, in per cent of their vCPU time.
    pub usage_pct: Option<f64>,
    /// Steal of all VMs, in per cent of their vCPU time.
    pub steal_pct: Option<f64>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// Description of the failure, with measured values.
    pub reason: String,
    /// Last lines of the programs' output, and counters; may be empty.
    #[serde(default)]
    pub evidence: Vec<String>,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The attempt timed out.
    TimedOut,
    /// The kernel's OOM killer killed a process of a VM, or the VM's program reported that it ran out of memory.
    OutOfMemory,
    /// The process of a VM exited early.
    Ended,
    /// A unit of work failed.
    Query,
    /// The result of a unit of work differs from the first recorded result of this unit.
    WrongResult,
    /// Steal exceeded the limit.
    Steal,
}

fn other_form(error: &serde_json::Error) -> DensityError {
    DensityError::new(format!("the file is not a recorded ladder: {error}"))
}

impl Ladder {
    /// Parses a ladder.
    ///
    /// # Errors
    /// Returns an error when the text is not JSON of this form and schema, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Ladder, DensityError> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| other_form(&error))?;
        let found = value.get("schema").and_then(serde_json::Value::as_str).unwrap_or_default();
        if found != SCHEMA {
            return Err(DensityError::new(format!(
                "the file has schema {found:?}, but this version reads {SCHEMA:?}"
            )));
        }
        let ladder: Ladder = serde_json::from_value(value).map_err(|error| other_form(&error))?;
        ladder.check()?;
        Ok(ladder)
    }

    /// Formats the ladder as JSON.
    ///
    /// # Errors
    /// No ladder causes an error: a number that is not finite is written as `null`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        commensal_core::text::json_pretty(self)
    }

    fn check(&self) -> Result<(), DensityError> {
        let wrong = |what: String| Err(DensityError::new(format!("the record is inconsistent: {what}")));
        if self.placements.is_empty() || self.tests.is_empty() {
            return wrong("it has no placement, or no test".to_owned());
        }
        for placement in &self.placements {
            let Placement { name, vms, servers, .. } = placement;
            if *vms == 0 || *servers == 0 || !vms.is_multiple_of(*servers) {
                return wrong(format!(
                    "{vms} VMs of placement {name} cannot be distributed equally to {servers} servers"
                ));
            }
            if let Err(error) = placement.server.check() {
                return wrong(format!("placement {name}: {error}"));
            }
        }
        if let Some(test) = self.tests.iter().find(|test| test.work.is_nan() || test.work <= 0.0) {
            return wrong(format!("test {} has no work", test.name));
        }
        let mut seen = BTreeSet::new();
        for rung in &self.rungs {
            let Rung { test, concurrency, placement, .. } = rung;
            if *concurrency == 0 || !seen.insert((test, concurrency, placement)) {
                return wrong(format!(
                    "{test} at {concurrency} in {placement} occurs twice, or has no sessions"
                ));
            }
            if self.test(test).is_none() || self.placement(placement).is_none() {
                return wrong(format!(
                    "{test} in {placement}: the record has no such test, or no such placement"
                ));
            }
            let times = rung.attempts.iter().filter_map(|attempt| attempt.seconds);
            let published = rung.published.iter().filter_map(|published| published.mean_s);
            if times.chain(published).any(|seconds| !(seconds > 0.0 && seconds.is_finite())) {
                return wrong(format!(
                    "{test} at {concurrency} in {placement} has a time that is not positive"
                ));
            }
        }
        Ok(())
    }

    /// Returns the test with this name.
    #[must_use]
    pub fn test(&self, name: &str) -> Option<&Test> {
        self.tests.iter().find(|test| test.name == name)
    }

    /// Returns the placement with this name.
    #[must_use]
    pub fn placement(&self, name: &str) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.name == name)
    }

    /// Returns the rung of a test at a concurrency in a placement; `None` if the rung was neither measured nor skipped.
    #[must_use]
    pub fn rung(&self, test: &str, concurrency: u32, placement: &str) -> Option<&Rung> {
        self.rungs
            .iter()
            .find(|rung| rung.test == test && rung.concurrency == concurrency && rung.placement == placement)
    }

    /// Returns the concurrencies of a test, ascending.
    #[must_use]
    pub fn concurrencies(&self, test: &str) -> Vec<u32> {
        let all: BTreeSet<u32> =
            self.rungs.iter().filter(|rung| rung.test == test).map(|rung| rung.concurrency).collect();
        all.into_iter().collect()
    }
}

/// Summary of the attempts of a rung.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Summary {
    /// Mean time of the completed attempts, in seconds.
    pub mean_s: Option<f64>,
    /// Number of completed attempts.
    pub completed: u32,
    /// Number of attempts.
    pub attempted: u32,
    /// Shortest and longest time in seconds; `None` if only the mean is known.
    pub range_s: Option<(f64, f64)>,
    /// Number of warnings in all attempts; `None` if warnings were not counted.
    pub warnings: Option<f64>,
}

impl Rung {
    /// Summarizes the attempts of the rung.
    #[must_use]
    pub fn summary(&self) -> Summary {
        if let Some(published) = &self.published {
            let Published { mean_s, completed, attempted, warnings } = *published;
            return Summary { mean_s, completed, attempted, range_s: None, warnings };
        }
        let times: Vec<f64> = self.attempts.iter().filter_map(|attempt| attempt.seconds).collect();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let counted: Vec<u64> =
            self.attempts.iter().flat_map(|attempt| attempt.warnings.values().copied()).collect();
        let range = times.iter().fold(None, |range: Option<(f64, f64)>, &time| {
            Some(range.map_or((time, time), |(least, most)| (least.min(time), most.max(time))))
        });
        Summary {
            mean_s: commensal_lab::stats::mean(&times),
            completed: number(times.len()),
            attempted: number(self.attempts.len()),
            range_s: range,
            warnings: (!counted.is_empty()).then(|| counted.iter().sum::<u64>() as f64),
        }
    }
}

/// Identifier of this version of the schema. It is only a name: nothing can be fetched from it.
const ID: &str = "urn:commensal:density:1";

/// Returns the JSON Schema (draft 2020-12) of a recorded ladder, indented, with a final newline.
#[must_use]
pub fn json_schema() -> String {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Ladder>();
    schema.insert("$id".to_owned(), ID.into());
    schema.insert("title".to_owned(), "A ladder of the commensal density study".into());
    let mut text = format!("{:#}", schema.as_value());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{ARENADATA, arenadata};

    #[test]
    fn a_ladder_is_valid_by_its_schema_and_comes_back_whole() {
        let schema: serde_json::Value = serde_json::from_str(&json_schema()).unwrap();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let mut ladder = arenadata();
        let tick = Tick { t_s: 1.0, usage_pct: Some(1.0), steal_pct: None };
        let failure =
            Failure { kind: FailureKind::TimedOut, reason: "slow".to_owned(), evidence: Vec::new() };
        ladder.rungs[0].attempts =
            vec![Attempt { failure: Some(failure), series: vec![tick], ..Attempt::default() }];
        for text in [ARENADATA.to_owned(), ladder.to_json().unwrap()] {
            let value = serde_json::from_str(&text).unwrap();
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}");
        }
        assert_eq!(Ladder::from_json(&ladder.to_json().unwrap()).unwrap(), ladder);
    }

    #[test]
    fn records_that_contradict_themselves_are_refused() {
        let check = |change: &dyn Fn(&mut Ladder), want: &str| {
            let mut ladder = arenadata();
            change(&mut ladder);
            let error = Ladder::from_json(&ladder.to_json().unwrap()).unwrap_err().to_string();
            assert!(error.contains(want), "{want}: {error}");
        };
        check(&|ladder| ladder.placements[1].servers = 3, "cannot be distributed equally to 3 servers");
        check(&|ladder| ladder.placements[0].server.cores = 0, "0 cores and 96 threads");
        check(&|ladder| ladder.tests[0].work = 0.0, "has no work");
        check(&|ladder| ladder.rungs[1].placement = "S1".to_owned(), "occurs twice");
        check(&|ladder| ladder.rungs[1].placement = "S9".to_owned(), "no such test, or no such placement");
        check(&|ladder| ladder.rungs[0].published.as_mut().unwrap().mean_s = Some(-1.0), "is not positive");
        check(&|ladder| ladder.tests.clear(), "no placement, or no test");
        for (text, want) in [("[]", "the file has schema"), ("{", "the file is not a recorded ladder")] {
            let error = Ladder::from_json(text).unwrap_err().to_string();
            assert!(error.contains(want), "{want}: {error}");
        }
    }
}
