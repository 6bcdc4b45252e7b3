//! Load figures: the values that the generator, its report and a block of a run have in common.
//!
//! The keys are those of a block in `run.json`; a report renames three of them (`loadgen::report`).

use super::{LatencyHistogram, encode_histogram};
use crate::error::LabError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests offered to the service in the measured part, and their outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadFigures {
    /// Offered load, requests per second: the actual rate of the schedule, not the nominal one. `None` in a block of a
    /// closed loop or without online work.
    #[serde(rename = "offered", default)]
    pub offered_per_s: Option<f64>,
    /// Answered load, requests per second: requests due in the measured part and answered with 2xx before its end, so
    /// that an overloaded service does not seem to keep up. `None` when no online work ran.
    #[serde(rename = "achieved", default)]
    pub achieved_per_s: Option<f64>,
    /// Requests due in the measured part, whatever their outcome; in a closed loop, requests sent in it.
    #[serde(rename = "requests", default)]
    pub offered_requests: u64,
    /// Requests that failed otherwise than by time-out.
    #[serde(default)]
    pub errors: u64,
    /// Requests given up after the time-out; they enter the latency histogram at the time-out.
    #[serde(default)]
    pub timeouts: u64,
}

impl LoadFigures {
    /// Errors and time-outs.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.saturating_add(self.timeouts)
    }

    /// Failed requests as a share of all.
    #[must_use]
    pub fn failed_share(&self) -> f64 {
        self.failed() as f64 / self.offered_requests.max(1) as f64
    }
}

/// The distributions, microseconds: HdrHistogram V2, not compressed, base64.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadHistograms {
    /// Latency from the intended start.
    #[serde(rename = "hist", default)]
    pub latency: Option<String>,
    /// Latency from the actual send.
    #[serde(rename = "service_hist", default)]
    pub service: Option<String>,
    /// Lateness of sends on free connections.
    #[serde(rename = "lateness_hist", default)]
    pub lateness: Option<String>,
}

impl LoadHistograms {
    /// Encodes all three.
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

    /// A run from a version in which each block stored these fields itself.
    const EARLIER: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/measurements/quickstart-6-rounds.json"
    ));

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
