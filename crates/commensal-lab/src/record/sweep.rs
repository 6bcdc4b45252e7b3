//! A sweep: a run whose arms differ in the value of one setting, which is a limit or the intensity of the offline work.
//! An arm is one of the ways of running the service that a run compares.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting whose values are arms of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Name of the setting, such as `cpu.max`.
    pub what: String,
    /// Unit of the values, such as `%`; empty for a plain number.
    pub unit: String,
    /// Whether the setting is the intensity of the offline work. If so, the run passes only if all values pass;
    /// otherwise the question is which values pass.
    pub ramp: bool,
    /// Values of the setting, ascending.
    pub points: Vec<SweepPoint>,
}

/// One value of the setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPoint {
    /// The value, in the unit of the sweep.
    pub at: f64,
    /// Label of the value, such as `20 %`.
    pub label: String,
    /// Name of the arm without isolation for this value; `None` if there is no such arm. At an intensity of 0, the arm
    /// has no offline work and is a baseline.
    #[serde(default)]
    pub contended: Option<String>,
    /// Name of the isolated arm for this value; `None` if there is no such arm.
    #[serde(default)]
    pub isolated: Option<String>,
}
