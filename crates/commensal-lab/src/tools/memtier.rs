//! `memtier_benchmark --json-out-file`.
//!
//! Debian has no package of it: this was written from its documentation and from public discussions of its output,
//! and its test input is made by hand. Totals are of all commands; their histogram, where there is one, is an
//! HdrHistogram of microseconds.

use super::{
    ParseError, Reading, TimeUnit, Tool, closed_loop, hdrlog, json_document, metric_at, number, number_json,
    whole_json,
};
use crate::record::new_histogram;
use serde_json::Value;

const TOOL: Tool = Tool::Memtier;

/// The reading, and threads times connections as concurrency (without pipelining).
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let document = json_document(TOOL, text)?;
    let missing = |expected: &str| ParseError::missing(TOOL, expected, text);
    let totals =
        document.pointer("/ALL STATS/Totals").ok_or_else(|| missing("\"ALL STATS\" with \"Totals\""))?;
    let rate =
        totals.get("Ops/sec").and_then(number_json).ok_or_else(|| missing("\"Ops/sec\" of the totals"))?;
    let mut reading = Reading { per_s: rate, ..Reading::default() };
    reading.errors = totals.get("Connection Errors").and_then(whole_json).unwrap_or(0);
    let ms = document.pointer("/ALL STATS/Runtime/Total duration").and_then(number_json);
    reading.seconds = ms.map(|ms| ms / 1e3).filter(|seconds| *seconds > 0.0);
    let counted = totals.get("Count").and_then(whole_json);
    reading.requests = counted.or_else(|| Some((rate * reading.seconds?).round() as u64)).unwrap_or(0);
    let mean = ["Average Latency", "Latency"].iter().find_map(|key| totals.get(*key)).and_then(number_json);
    reading.mean_us = mean.map(|ms| ms * 1e3);
    let percentiles = totals.get("Percentile Latencies");
    for (key, value) in percentiles.and_then(Value::as_object).into_iter().flatten() {
        let Some(metric) = key.strip_prefix('p').and_then(number).and_then(metric_at) else { continue };
        let ms = number_json(value).ok_or_else(|| missing(&format!("a number as {key}")))?;
        reading.percentiles_us.insert(metric, ms * 1e3);
    }
    let coded = percentiles.and_then(|p| p.pointer("/Histogram log format/Compressed Histogram"));
    if let Some(coded) = coded.and_then(Value::as_str) {
        let mut histogram = new_histogram().map_err(|error| missing(&error.to_string()))?;
        hdrlog::add(coded, TimeUnit::Us, &mut histogram).map_err(|what| missing(&what))?;
        reading.histogram = Some(histogram).filter(|histogram| !histogram.is_empty());
    }
    reading.notes.push(closed_loop(TOOL));
    Ok((reading, concurrency(&document)))
}

/// Connections, unless commands are sent ahead of the answers.
fn concurrency(document: &Value) -> Option<u32> {
    let pipeline = document.pointer("/configuration/pipeline").and_then(Value::as_u64).unwrap_or(1);
    let threads =
        document.pointer("/run information/Threads count").or(document.pointer("/run information/Threads"));
    let connections = document.pointer("/run information/Connections per thread")?.as_u64()?;
    let under_way = threads?.as_u64()?.checked_mul(connections)?.checked_mul(pipeline)?;
    u32::try_from(under_way).ok()
}
