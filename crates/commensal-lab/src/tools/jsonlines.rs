//! Parser for a simple format for custom programs: one JSON object per line.
//!
//! ```text
//! {"latency_us": 812}
//! {"latency_us": 30000000, "error": true}
//! {"qps": 400.0, "p50_us": 490, "p99_us": 1210, "requests": 8000, "seconds": 20}
//! ```
//!
//! A line with `latency_us` describes one request. A line with `qps` or `requests` is a summary; of several summaries,
//! the last one is used. An output may contain only requests, or only a summary. The parser ignores blank lines and
//! lines that do not start with a brace. The latency of a failed request is counted, because a timeout is part of the
//! tail.

use super::reading::{ParseError, Reading, Tool, number_json, whole_json};
use crate::record::{HIGHEST_US, LatencyHistogram, Metric, new_histogram};
use serde_json::Value;

const TOOL: Tool = Tool::JsonLines;
const PERCENTILES: [(Metric, &str); 6] = [
    (Metric::P50, "p50_us"),
    (Metric::P75, "p75_us"),
    (Metric::P90, "p90_us"),
    (Metric::P95, "p95_us"),
    (Metric::P99, "p99_us"),
    (Metric::P999, "p99.9_us"),
];

/// Parses the output. The summary may contain the number of requests in flight, as `concurrency`.
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let mut histogram: Option<LatencyHistogram> = None;
    let (mut errors, mut total_us) = (0, 0.0);
    let (mut summary, mut concurrency) = (None, None);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with('{')) {
        let wrong = |expected: &str| ParseError::at(TOOL, expected, index, line);
        let object: Value = serde_json::from_str(line).map_err(|_| wrong("a JSON object on one line"))?;
        if let Some(latency) = object.get("latency_us") {
            let us = number_json(latency).filter(|us| *us <= super::reading::MAX_US);
            let us = us.ok_or_else(|| wrong("latency_us as a number of microseconds"))?;
            let failed = match object.get("error") {
                None | Some(Value::Null | Value::Bool(false)) => false,
                Some(Value::Bool(true) | Value::String(_)) => true,
                Some(_) => return Err(wrong("error as true or false")),
            };
            errors += u64::from(failed);
            total_us += us;
            if histogram.is_none() {
                histogram = Some(new_histogram().map_err(|error| wrong(&error.to_string()))?);
            }
            if let Some(histogram) = &mut histogram {
                histogram.saturating_record((us as u64).min(HIGHEST_US));
            }
        } else if object.get("qps").is_some() || object.get("requests").is_some() {
            summary = Some(summary_of(&object).map_err(|expected| wrong(&expected))?);
            concurrency = object.get("concurrency").and_then(whole_json).and_then(|c| u32::try_from(c).ok());
        } else {
            return Err(wrong("latency_us of a request, or qps or requests of a summary"));
        }
    }
    if histogram.is_none() && summary.is_none() {
        return Err(ParseError::missing(TOOL, "a line such as {\"latency_us\": 123}", text));
    }
    let mut reading = summary.unwrap_or_default();
    if let Some(histogram) = histogram {
        let seen = histogram.len();
        reading.requests = reading.requests.max(seen);
        reading.errors = reading.errors.max(errors);
        reading.mean_us = reading.mean_us.or(Some(total_us / seen as f64));
        reading.histogram = Some(histogram);
    }
    if let Some(seconds) = reading.seconds {
        reading = reading.over(seconds);
    }
    Ok((reading, concurrency))
}

fn summary_of(object: &Value) -> Result<Reading, String> {
    let figure = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => number_json(value).map(Some).ok_or_else(|| format!("{key} as a number")),
    };
    let count = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => whole_json(value).ok_or_else(|| format!("{key} as a whole number")),
    };
    let mut reading = Reading {
        requests: count("requests")?,
        errors: count("errors")?,
        seconds: figure("seconds")?.filter(|seconds| *seconds > 0.0),
        per_s: figure("qps")?.unwrap_or(0.0),
        mean_us: figure("mean_us")?,
        ..Reading::default()
    };
    for (metric, key) in PERCENTILES {
        reading.percentiles_us.extend(figure(key)?.map(|us| (metric, us)));
    }
    Ok(reading)
}
