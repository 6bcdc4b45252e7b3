//! Arms that are values of one setting: a varied limit, or the intensity of the offline work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting whose values are arms of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Name of the setting, such as `cpu.max`.
    pub what: String,
    /// The unit of its values, such as `%`; empty for a plain number.
    pub unit: String,
    /// Whether it is the intensity of the offline work: the claim is then about all values, otherwise about the largest
    /// that holds.
    pub ramp: bool,
    /// Its values, ascending.
    pub points: Vec<SweepPoint>,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPoint {
    /// The value, in the unit of the sweep.
    pub at: f64,
    /// Its label, such as `20 %`.
    pub label: String,
    /// The arm without isolation for this value, if any. Without offline work that is a baseline.
    #[serde(default)]
    pub contended: Option<String>,
    /// The isolated arm for this value, if any.
    #[serde(default)]
    pub isolated: Option<String>,
}
