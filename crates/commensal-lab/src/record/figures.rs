//! Load statistics: the values that the load generator, the load generator's report and a block of a run have in
//! common. A block is the measurement of one arm in one round.
//!
//! The JSON keys are the keys of a block in `run.json`; a report renames three of them (`loadgen::report`).

use super::{LatencyHistogram, encode_histogram};
use crate::error::LabError;
use commensal_core::errno::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// Number of requests that were sent a second time, on a new connection, because the server had ended their kept
    /// connection before the first byte of the response (RFC 9112, section 9.3.1). Each of them also counts by the
    /// outcome of its second try. Always 0 for a load tool, which does not report it.
    #[serde(default)]
    pub resent: u64,
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

/// How often the load generator could not connect, send or receive, by the name of the error number (errno(3)), such as
/// `ECONNREFUSED`.
///
/// The generator repeats an attempt to open a connection until it succeeds, so one request may see several of these
/// errors. Counts the measured part and the wait for its last responses, but not the warm-up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SocketErrors(BTreeMap<String, u64>);

impl SocketErrors {
    /// Counts one error.
    pub fn add(&mut self, errno: Errno) {
        let count = self.0.entry(errno.to_string()).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns how often this error occurred.
    #[must_use]
    pub fn count(&self, errno: Errno) -> u64 {
        self.0.get(&errno.to_string()).copied().unwrap_or_default()
    }

    /// Whether no error occurred.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the name and the count of each error that occurred, in the order of the names.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
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
    use super::SocketErrors;
    use crate::record::{Block, Run};
    use commensal_core::errno::Errno;
    use serde_json::{Value, json};

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
            // The earlier version did not count these.
            assert!(load.resent == 0 && block.socket_errors.is_empty() && now.get("socket_errors").is_none());
        }
    }

    #[test]
    fn socket_errors_are_counted_by_name_and_missing_without_any() {
        let mut errors = SocketErrors::default();
        assert!(errors.is_empty());
        for errno in [Errno::EADDRNOTAVAIL, Errno::EMFILE, Errno::EADDRNOTAVAIL, Errno(4_000)] {
            errors.add(errno);
        }
        assert_eq!((errors.count(Errno::EADDRNOTAVAIL), errors.count(Errno::ENFILE)), (2, 0));
        assert_eq!(
            errors.counts().collect::<Vec<_>>(),
            [("EADDRNOTAVAIL", 2), ("EMFILE", 1), ("errno 4000", 1)]
        );
        let block = Block { socket_errors: errors, ..Block::default() };
        let value = serde_json::to_value(&block).unwrap();
        assert_eq!(value["socket_errors"], json!({"EADDRNOTAVAIL": 2, "EMFILE": 1, "errno 4000": 1}));
        assert_eq!(serde_json::from_value::<Block>(value).unwrap(), block);
        let none = serde_json::to_value(Block::default()).unwrap();
        assert!(none.get("socket_errors").is_none());
        assert_eq!(serde_json::from_value::<Block>(none).unwrap(), Block::default());
    }
}
