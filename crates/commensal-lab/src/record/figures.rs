//! Load statistics: the values that the load generator, the load generator's report and a block of a run have in
//! common. A block is the measurement of one arm in one round.
//!
//! The JSON keys are the keys of a block in `run.json`; a report renames three of them (`loadgen::report`).

use super::{LatencyHistogram, encode_histogram};
use crate::error::LabError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests offered to the service in the measured part, and their results.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadFigures {
    /// Offered load in requests per second: the actual rate of the schedule, not the nominal rate. `None` in a closed
    /// loop, and when no online work ran.
    #[serde(rename = "offered", default)]
    pub offered_per_s: Option<f64>,
    /// Achieved load in requests per second: requests that were due in the measured part and got a 2xx response before
    /// its end. Later responses do not count, so that an overloaded service does not seem to keep up. `None` when no
    /// online work ran.
    #[serde(rename = "achieved", default)]
    pub achieved_per_s: Option<f64>,
    /// Number of requests that were due in the measured part, successful or not. In a closed loop, which has no due
    /// times, the requests that were sent in the measured part.
    #[serde(rename = "requests", default)]
    pub offered_requests: u64,
    /// Number of requests that failed for another reason than a time-out.
    #[serde(default)]
    pub errors: u64,
    /// Number of requests that timed out. The latency histogram counts each of them as a latency equal to the timeout.
    #[serde(default)]
    pub timeouts: u64,
}

impl LoadFigures {
    /// Returns the number of failed requests: errors and time-outs.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.saturating_add(self.timeouts)
    }

    /// Returns the failed requests as a share of all requests.
    #[must_use]
    pub fn failed_share(&self) -> f64 {
        self.failed() as f64 / self.offered_requests.max(1) as f64
    }
}

/// Distributions in microseconds, each encoded as HdrHistogram V2 without compression, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadHistograms {
    /// Latency from the intended start of a request.
    #[serde(rename = "hist", default)]
    pub latency: Option<String>,
    /// Latency from the actual sending of a request.
    #[serde(rename = "service_hist", default)]
    pub service: Option<String>,
    /// How late a request was sent although a connection was free.
    #[serde(rename = "lateness_hist", default)]
    pub lateness: Option<String>,
}

impl LoadHistograms {
    /// Encodes the three histograms.
    ///
    /// # Errors
    /// See [`encode_histogram`].
    pub fn of(
        latency: &LatencyHistogram,
        service: &LatencyHistogram,
        lateness: &LatencyHistogram,
    ) -> Result<Self, LabError> {
        Ok(Self {
            latency: Some(encode_histogram(latency)?),
            service: Some(encode_histogram(service)?),
            lateness: Some(encode_histogram(lateness)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Run;
    use serde_json::Value;

    /// A run recorded by an older version, in which each block stored these fields itself.
    const EARLIER: &str = include_str!("../../../../fixtures/runs/quickstart-6-rounds.json");

    #[test]
    fn an_earlier_record_keeps_its_figures_and_their_keys() {
        let run = Run::from_json(EARLIER.as_bytes()).unwrap();
        let (earlier, now): (Value, Value) =
            (serde_json::from_str(EARLIER).unwrap(), serde_json::to_value(&run).unwrap());
        let keys = [
            "offered",
            "achieved",
            "requests",
            "errors",
            "timeouts",
            "hist",
            "service_hist",
            "lateness_hist",
        ];
        let (earlier, now) = (earlier["blocks"].as_array().unwrap(), now["blocks"].as_array().unwrap());
        assert!(earlier.len() == now.len() && now.len() > 6);
        for ((earlier, now), block) in earlier.iter().zip(now).zip(&run.blocks) {
            for key in keys {
                assert_eq!(earlier[key], now[key], "{key} of {}", block.arm);
            }
            let load = block.load;
            assert_eq!(load.offered_per_s, earlier["offered"].as_f64());
            assert_eq!(load.achieved_per_s, earlier["achieved"].as_f64());
            assert_eq!(Some(load.offered_requests), earlier["requests"].as_u64());
            assert!(now.get("load").is_none() && now.get("histograms").is_none());
        }
    }
}
