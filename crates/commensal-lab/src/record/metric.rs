//! The metrics on which arms are compared: throughput, percentiles of latency, and results of Prometheus queries. An
//! arm is one of the ways of running the service that a run compares.
//!
//! An experiment names the result of each of its queries. Names are kept for the lifetime of the program, so that a
//! metric is a small value that can be copied.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A metric on which arms are compared. It has one value per block, which is the measurement of one arm in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Throughput in requests answered per second; more is better.
    Qps,
    /// Median latency.
    P50,
    /// 75th percentile of latency.
    P75,
    /// 90th percentile of latency.
    P90,
    /// 95th percentile of latency.
    P95,
    /// 99th percentile of latency.
    P99,
    /// 99.9th percentile of latency.
    P999,
    /// The result of a Prometheus query of the experiment.
    Query(Named),
}

/// A metric with a name given by the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    name: &'static str,
    more_is_better: bool,
}

/// Maximum length of a name in characters; reports use the name as the title of a column.
const LONGEST: usize = 60;
/// Maximum number of different names in all records that one process reads.
const MOST: usize = 4_096;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Metric {
    /// The built-in metrics, which every block may have, in the order in which they are printed.
    pub const ALL: [Self; 7] = [Self::Qps, Self::P50, Self::P75, Self::P90, Self::P95, Self::P99, Self::P999];

    /// Returns the metric for a query that has this name in the experiment.
    ///
    /// # Errors
    /// Returns a message when the name is empty, too long, not printable, or the name of a built-in metric, or when
    /// there are too many names.
    pub fn query(name: &str, more_is_better: bool) -> Result<Self, String> {
        let name = name.trim();
        if name.is_empty() || name.chars().count() > LONGEST || name.chars().any(char::is_control) {
            return Err(format!("the name must have 1 to {LONGEST} printable characters"));
        }
        if Self::ALL.iter().any(|metric| metric.label().eq_ignore_ascii_case(name)) {
            return Err("this is the name of a built-in metric; choose another name".to_owned());
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = names.get(name).copied();
        let name = match kept {
            Some(name) => name,
            None if names.len() >= MOST => {
                return Err(format!("there are more than {MOST} different metric names"));
            }
            None => {
                let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
                names.insert(name);
                name
            }
        };
        Ok(Self::Query(Named { name, more_is_better }))
    }

    /// Returns the share of requests at or below the percentile; `None` for metrics that are not latency percentiles.
    pub fn quantile(self) -> Option<f64> {
        match self {
            Self::Qps | Self::Query(_) => None,
            Self::P50 => Some(0.5),
            Self::P75 => Some(0.75),
            Self::P90 => Some(0.9),
            Self::P95 => Some(0.95),
            Self::P99 => Some(0.99),
            Self::P999 => Some(0.999),
        }
    }

    /// Returns the number of requests that a block needs for this metric: `100 / (1 - p)`, so that 100 requests lie
    /// beyond the percentile; 0 for metrics that are not percentiles.
    pub fn requests_needed(self) -> u64 {
        match self {
            Self::Qps | Self::Query(_) => 0,
            Self::P50 => 200,
            Self::P75 => 400,
            Self::P90 => 1_000,
            Self::P95 => 2_000,
            Self::P99 => 10_000,
            Self::P999 => 100_000,
        }
    }

    /// Returns whether a larger value is better.
    pub fn more_is_better(self) -> bool {
        match self {
            Self::Qps => true,
            Self::Query(named) => named.more_is_better,
            _ => false,
        }
    }

    /// Returns the name as printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Qps => "QPS",
            Self::P50 => "P50",
            Self::P75 => "P75",
            Self::P90 => "P90",
            Self::P95 => "P95",
            Self::P99 => "P99",
            Self::P999 => "P99.9",
            Self::Query(named) => named.name,
        }
    }
}

/// Serialized as `p99` and the like for built-in metrics, and as `lower:NAME` or `higher:NAME` for queries; the prefix
/// says whether lower or higher values are better.
impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Query(Named { name, more_is_better: true }) => {
                to.collect_str(&format_args!("higher:{name}"))
            }
            Self::Query(Named { name, .. }) => to.collect_str(&format_args!("lower:{name}")),
            known => to.collect_str(&known.label().to_ascii_lowercase()),
        }
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(from)?;
        let named = match text.split_once(':') {
            Some(("higher", name)) => Some((name, true)),
            Some(("lower", name)) => Some((name, false)),
            _ => None,
        };
        let known = |text: &str| Self::ALL.into_iter().find(|one| one.label().to_ascii_lowercase() == text);
        match named {
            Some((name, more)) => Self::query(name, more)
                .map_err(|why| serde::de::Error::custom(format!("metric {text:?}: {why}"))),
            None => {
                known(&text).ok_or_else(|| serde::de::Error::custom(format!("no metric is called {text:?}")))
            }
        }
    }
}

impl JsonSchema for Metric {
    fn schema_name() -> Cow<'static, str> {
        "Metric".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A metric on which arms are compared; it has one value per block: requests answered per second, a \
                            percentile of latency, or the result of a Prometheus query (with a prefix that says whether \
                            lower or higher values are better).",
            "type": "string",
            "anyOf": [
                { "enum": ["qps", "p50", "p75", "p90", "p95", "p99", "p99.9"] },
                { "pattern": "^(lower|higher):.{1,60}$" }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_round_trip() {
        let own = |name, more| Metric::query(name, more).unwrap();
        for (metric, text) in [
            (Metric::Qps, "qps"),
            (Metric::P999, "p99.9"),
            (own("p95 of checkout", false), "lower:p95 of checkout"),
            (own("hits: all", true), "higher:hits: all"),
        ] {
            let json = serde_json::to_string(&metric).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Metric>(&json).unwrap(), metric);
        }
        // A metric can also be the key of a map.
        let map = std::collections::BTreeMap::from([(own("x", false), 1.5), (Metric::P50, 2.0)]);
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(json, "{\"p50\":2.0,\"lower:x\":1.5}");
        assert_eq!(serde_json::from_str::<std::collections::BTreeMap<Metric, f64>>(&json).unwrap(), map);
        assert!(own("x", true) != own("x", false) && own("x", true).more_is_better());
    }

    #[test]
    fn what_is_no_name() {
        for wrong in ["", "  ", "p99", "QPS", "a\nb", &"x".repeat(61)] {
            assert!(Metric::query(wrong, false).is_err(), "{wrong:?}");
            let json = serde_json::to_string(&format!("lower:{wrong}")).unwrap();
            assert!(serde_json::from_str::<Metric>(&json).is_err(), "{json}");
        }
        for wrong in ["\"P50\"", "\"p42\"", "\"upper:x\"", "1", "null"] {
            assert!(serde_json::from_str::<Metric>(wrong).is_err(), "{wrong}");
        }
    }
}
