//! The verdict of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verdict on the claim "isolation keeps the online service within the threshold".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Every gate metric is proven to stay within the threshold.
    Pass,
    /// Some gate metric is proven to exceed it.
    Fail,
    /// The rounds do not decide it.
    Inconclusive,
    /// The environment check failed, so the measurements are no evidence.
    Invalid,
    /// The online service crashed or failed requests under isolation.
    Broken,
}

impl Verdict {
    /// The exit status of the process for this verdict.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail | Self::Broken => 1,
            Self::Inconclusive => 3,
            Self::Invalid => 4,
        }
    }

    /// The word as printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Invalid => "INVALID",
            Self::Broken => "BROKEN",
        }
    }

    /// Severity among the arms of one run: the worst arm decides.
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
