//! The word that a run ends with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run says about the claim "isolation keeps the online service within the threshold".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Every gate metric is proven to stay within the threshold.
    Pass,
    /// Some gate metric is proven to leave it.
    Fail,
    /// The rounds do not decide it.
    Inconclusive,
    /// The environment failed its own check: whatever was measured is no evidence.
    Invalid,
    /// The online service crashed or failed requests under isolation.
    Broken,
}

impl Verdict {
    /// The exit status of the process that reached it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail | Self::Broken => 1,
            Self::Inconclusive => 3,
            Self::Invalid => 4,
        }
    }

    /// The word in print.
    pub fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Invalid => "INVALID",
            Self::Broken => "BROKEN",
        }
    }

    /// How bad it is among the arms of one run: the worst arm decides.
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
