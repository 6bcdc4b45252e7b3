//! The metrics that arms are compared on: throughput, percentiles of latency, and results of Prometheus queries.
//!
//! The result of a query has the name that the experiment gives it. Names are stored for the lifetime of the program,
//! so that a metric is a small value that can be copied.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// One number per block that arms are compared on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Requests answered per second; more is better.
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

/// A named metric of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    name: &'static str,
    more_is_better: bool,
}

/// Maximum length of a name, in characters: it is the title of a column.
const LONGEST: usize = 60;
/// Maximum number of names, over all records that one process reads.
const MOST: usize = 4_096;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Metric {
    /// The metrics that every block may have, in the order in which they are printed.
    pub const ALL: [Self; 7] = [Self::Qps, Self::P50, Self::P75, Self::P90, Self::P95, Self::P99, Self::P999];

    /// A metric with this name.
    ///
    /// # Errors
    /// A sentence, when the name is empty, too long, not printable, or that of a built-in metric.
    pub fn query(name: &str, more_is_better: bool) -> Result<Self, String> {
        let name = name.trim();
        if name.is_empty() || name.chars().count() > LONGEST || name.chars().any(char::is_control) {
            return Err(format!("a name of 1 to {LONGEST} printable characters is needed"));
        }
        if Self::ALL.iter().any(|metric| metric.label().eq_ignore_ascii_case(name)) {
            return Err("that is what the lab measures by itself; another name is needed".to_owned());
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = names.get(name).copied();
        let name = match kept {
            Some(name) => name,
            None if names.len() >= MOST => return Err(format!("more than {MOST} names of metrics")),
            None => {
                let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
                names.insert(name);
                name
            }
        };
        Ok(Self::Query(Named { name, more_is_better }))
    }

    /// The share of requests at or below the percentile; `None` for metrics that are not latency percentiles.
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

    /// The requests a block needs before this metric is read from it: `100 / (1 - p)`, so that 100 requests lie
    /// beyond the percentile. 0 for what is no percentile.
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

    /// Whether a larger value is better.
    pub fn more_is_better(self) -> bool {
        match self {
            Self::Qps => true,
            Self::Query(named) => named.more_is_better,
            _ => false,
        }
    }

    /// The name as printed.
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

/// `p99` and the like for built-in metrics; `lower:NAME` or `higher:NAME`, by which is better, for others.
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
            "description": "One number per block that arms are compared on: requests answered per second, a percentile of \
                            latency, or what Prometheus answers to a query, by its name and by what is better.",
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
        // Also as a key of a map.
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
