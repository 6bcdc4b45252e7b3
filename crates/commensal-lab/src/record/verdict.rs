//! The verdict of a run. A run compares arms (ways of running the online service) on gates, which are the metrics that
//! determine the verdict.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verdict on the claim that isolation keeps the online service within the thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The measurements prove that all gates (the metrics that determine the verdict) stay within their thresholds.
    Pass,
    /// The measurements prove that at least one gate exceeds its threshold.
    Fail,
    /// The measurements do not decide the claim.
    Inconclusive,
    /// The environment check failed, so the measurements prove nothing.
    Invalid,
    /// The online service crashed or failed requests under isolation.
    Broken,
}

impl Verdict {
    /// Returns the exit status of the process for this verdict.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail | Self::Broken => 1,
            Self::Inconclusive => 3,
            Self::Invalid => 4,
        }
    }

    /// Returns the verdict as printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Invalid => "INVALID",
            Self::Broken => "BROKEN",
        }
    }

    /// Returns the severity of the verdict. The most severe verdict of all arms is the verdict of the run.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Inconclusive => 1,
            Self::Fail => 2,
            Self::Broken => 3,
            Self::Invalid => 4,
        }
    }
}
