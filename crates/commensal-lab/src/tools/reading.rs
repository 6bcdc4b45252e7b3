//! The measurements that a load tool printed, and the functions that all parsers share.

use crate::record::{LatencyHistogram, Metric, percentile_us};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Longest plausible latency in microseconds (11 days). A larger value means that the output is corrupt.
pub(super) const MAX_US: f64 = 1e12;

/// Highest plausible number of requests, and of requests per second.
pub(super) const MAX_COUNT: f64 = 1e15;

/// Largest accepted difference between a mean latency and the mean that Little's law gives (requests in flight /
/// throughput), as a fraction of the mean.
pub const LITTLES_LAW_BOUND: f64 = 0.05;

/// Maximum number of characters of a line that an error quotes.
pub(super) const SHOWN: usize = 120;

/// Unit of times in an output that does not name the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeUnit {
    /// Nanoseconds.
    #[default]
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
}

impl TimeUnit {
    /// Returns the number of microseconds per unit.
    pub(super) fn in_us(self) -> f64 {
        match self {
            Self::Ns => 1e-3,
            Self::Us => 1.0,
            Self::Ms => 1e3,
        }
    }
}

/// A program whose output can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `clickhouse-benchmark`: the file of `--json` (versions until 2023) or the text on standard error.
    ClickhouseBenchmark,
    /// `wrk --latency`, or wrk2.
    Wrk,
    /// `pgbench`: its summary, the lines of `--log`, or both.
    Pgbench,
    /// `redis-benchmark --csv` with one test.
    RedisBenchmark,
    /// `fio --output-format=json+` (or `json`).
    Fio,
    /// One JSON object per line: `{"latency_us": 123}`, or a summary with `qps`, `p50_us`, `p99_us`, `requests`.
    JsonLines,
    /// An HdrHistogram log, with the unit of its values.
    HdrLog(TimeUnit),
}

impl Tool {
    /// Names accepted by [`Tool::from_str`], with the tools.
    pub const NAMES: [(&'static str, Self); 9] = [
        ("clickhouse-benchmark", Self::ClickhouseBenchmark),
        ("wrk", Self::Wrk),
        ("pgbench", Self::Pgbench),
        ("redis-benchmark", Self::RedisBenchmark),
        ("fio", Self::Fio),
        ("json-lines", Self::JsonLines),
        ("hdr-log", Self::HdrLog(TimeUnit::Ns)),
        ("hdr-log:us", Self::HdrLog(TimeUnit::Us)),
        ("hdr-log:ms", Self::HdrLog(TimeUnit::Ms)),
    ];
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, tool)| tool == self).map_or("tool", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Tool {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, tool)| *tool);
        let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
        found.ok_or_else(|| format!("no tool {name:?}; the choices are {}", names.join(", ")))
    }
}

/// The measurements of a tool.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// Number of requests that were answered or counted as errors; 0 when the tool does not report this number (see
    /// [`Reading::over`]).
    pub requests: u64,
    /// Number of those requests that failed.
    pub errors: u64,
    /// Duration of the measurement in seconds; `None` when the tool does not report the duration.
    pub seconds: Option<f64>,
    /// Requests per second, corrected where a note says so; 0 when the tool does not report the rate (see
    /// [`Reading::over`]).
    pub per_s: f64,
    /// Mean latency in microseconds, as reported by the tool or computed from the histogram.
    pub mean_us: Option<f64>,
    /// Percentiles of latency in microseconds, as reported by the tool or computed from the histogram.
    pub percentiles_us: BTreeMap<Metric, f64>,
    /// Distribution of latency in microseconds; `None` when the tool reports no distribution.
    pub histogram: Option<LatencyHistogram>,
    /// Remarks that a reader of the measurements must know, in whole sentences.
    pub notes: Vec<String>,
}

impl Reading {
    /// Computes the rate or the number of requests, whichever the tool did not report, for a measurement of `seconds`.
    #[must_use]
    pub fn over(mut self, seconds: f64) -> Self {
        if seconds.is_finite() && seconds > 0.0 {
            if self.per_s == 0.0 {
                self.per_s = self.requests as f64 / seconds;
            } else if self.requests == 0 {
                self.requests = (self.per_s * seconds).round() as u64;
            }
            self.seconds = self.seconds.or(Some(seconds));
        }
        self
    }

    /// Computes mean and percentiles from the histogram, unless the tool reported them.
    pub(super) fn read_histogram(&mut self) {
        let Some(histogram) = self.histogram.as_ref().filter(|histogram| !histogram.is_empty()) else {
            return;
        };
        for metric in Metric::ALL {
            if let Some(us) = metric.quantile().and_then(|q| percentile_us(histogram, q)) {
                self.percentiles_us.entry(metric).or_insert(us);
            }
        }
        self.mean_us = self.mean_us.or_else(|| Some(histogram.mean()));
    }
}

/// The error for an output that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The tool whose output was expected.
    pub tool: Tool,
    /// Description of what was expected.
    pub expected: String,
    /// The first line that does not match and its number from 1; `None` when the output is empty.
    pub line: Option<(usize, String)>,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "output of {}: expected {}", self.tool, self.expected)?;
        match &self.line {
            Some((number, line)) => write!(f, "; line {number} is {line:?}"),
            None => f.write_str("; the output is empty"),
        }
    }
}

impl std::error::Error for ParseError {}

impl ParseError {
    /// Creates an error at a line; `index` counts from 0.
    pub(super) fn at(tool: Tool, expected: impl Into<String>, index: usize, line: &str) -> Self {
        let line = line.trim().chars().take(SHOWN).collect();
        Self { tool, expected: expected.into(), line: Some((index + 1, line)) }
    }

    /// Creates an error for something that the whole text lacks. The error quotes the first line that is not blank.
    pub(super) fn missing(tool: Tool, expected: impl Into<String>, text: &str) -> Self {
        let first = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty());
        match first {
            Some((index, line)) => Self::at(tool, expected, index, line),
            None => Self { tool, expected: expected.into(), line: None },
        }
    }
}

/// Checks that throughput and mean latency of a closed loop are consistent.
/// Little's law requires `concurrency / per_s = mean`.
///
/// # Errors
/// Returns a message when they differ by more than 5 % of the mean.
pub fn littles_law(concurrency: u32, per_s: f64, mean_us: f64) -> Result<(), String> {
    let by_law = f64::from(concurrency) / per_s * 1e6;
    let off = (by_law - mean_us).abs() / mean_us;
    if off <= LITTLES_LAW_BOUND {
        return Ok(());
    }
    Err(format!(
        "the results violate Little's law: with {concurrency} requests in flight at {} per second, a request takes {}, but the \
         mean latency is {} (a difference of 5 % is allowed)",
        crate::format::three_digits(per_s),
        crate::format::latency(by_law),
        crate::format::latency(mean_us)
    ))
}

/// Returns the note that every closed loop gets.
pub(super) fn closed_loop(tool: Tool) -> String {
    format!("{tool} is a closed loop: it sends no requests during a stall, so latencies understate stalls")
}

/// Parses a number that is finite and not negative.
pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// Parses a non-negative integer up to [`MAX_COUNT`].
pub(super) fn whole(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|value| *value <= MAX_COUNT as u64)
}

/// Returns a count from a JSON number, which some tools print as a float.
pub(super) fn whole_json(value: &serde_json::Value) -> Option<u64> {
    let float =
        || value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..=MAX_COUNT).contains(v)).map(|v| v as u64);
    value.as_u64().or_else(float).filter(|value| *value <= MAX_COUNT as u64)
}

/// Returns a JSON number that is finite and not negative.
pub(super) fn number_json(value: &serde_json::Value) -> Option<f64> {
    value.as_f64().filter(|value| value.is_finite() && *value >= 0.0)
}

/// Returns the metric for a percentile; `None` if the lab does not compare this percentile.
pub(super) fn metric_at(percent: f64) -> Option<Metric> {
    Metric::ALL
        .into_iter()
        .find(|metric| metric.quantile().is_some_and(|q| (q * 100.0 - percent).abs() < 1e-6))
}

/// Parses the JSON document in a text that may have other lines before it.
pub(super) fn json_document(tool: Tool, text: &str) -> Result<serde_json::Value, ParseError> {
    let mut lines = text.lines().enumerate();
    let Some((first, _)) = lines.find(|(_, line)| line.trim_start().starts_with('{')) else {
        return Err(ParseError::missing(tool, "a JSON document", text));
    };
    let start = text.split_inclusive('\n').take(first).map(str::len).sum();
    let mut documents = serde_json::Deserializer::from_str(&text[start..]).into_iter();
    match documents.next() {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let index = first + error.line().saturating_sub(1);
            let line = text.lines().nth(index).unwrap_or_default();
            Err(ParseError::at(tool, format!("a whole JSON document ({error})"), index, line))
        }
        None => Err(ParseError::missing(tool, "a JSON document", text)),
    }
}
