//! Arms that are values of one thing: a limit that is varied, or how hard the offline work pushes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing whose values are arms of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// The thing, such as `cpu.max`.
    pub what: String,
    /// The unit of its values, such as `%`; empty for a plain number.
    pub unit: String,
    /// Whether it is how hard the offline work pushes: the claim is then about all values, else about the largest that holds.
    pub ramp: bool,
    /// Its values, ascending.
    pub points: Vec<SweepPoint>,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPoint {
    /// The value, in the unit of the sweep.
    pub at: f64,
    /// How it is written, such as `20 %`.
    pub label: String,
    /// The arm without isolation that has it, if one does. Without any offline work that is a baseline.
    #[serde(default)]
    pub contended: Option<String>,
    /// The isolated arm that has it, if one does.
    #[serde(default)]
    pub isolated: Option<String>,
}
