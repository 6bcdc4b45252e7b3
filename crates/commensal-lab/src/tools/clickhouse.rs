//! Parser for `clickhouse-benchmark`: the JSON of old versions, and the text output of all versions.
//!
//! For years, the JSON output divided the number of queries by the *summed* time of all queries. So with `c` queries in
//! flight it printed the throughput divided by `c`. The text output divides the summed time by `c` first, which is
//! correct. Little's law (requests in flight = throughput × latency) shows whether a printed throughput is the correct
//! one or the one divided by `c`.

use super::reading::{
    ParseError, Reading, Tool, closed_loop, json_document, metric_at, number, number_json, whole, whole_json,
};
use crate::format::{latency, three_digits};
use serde_json::Value;

const TOOL: Tool = Tool::ClickhouseBenchmark;
/// Tolerance for a mean that is computed from percentiles, as a fraction of the mean that Little's law gives. The
/// tolerance is wide because the latencies below the lowest and above the highest percentile are unknown.
const ESTIMATE_BOUND: f64 = 0.15;

/// Parses the output. The returned number of requests in flight is always `None`, because the output does not contain
/// it.
pub fn parse(text: &str, concurrency: Option<u32>) -> Result<(Reading, Option<u32>), ParseError> {
    let is_json = text.lines().any(|line| line.trim_start().starts_with('{'));
    let (mut reading, curve) = if is_json { of_json(text)? } else { of_text(text)? };
    hold_to_law(&mut reading, &curve, concurrency.filter(|c| *c > 0));
    reading.notes.push(closed_loop(TOOL));
    Ok((reading, None))
}

/// Percentiles of latency as (per cent, microseconds) pairs, ascending.
type Curve = Vec<(f64, f64)>;

/// Parses the JSON output. The keys `statistics` and `query_time_percentiles` are either at the top level or in an
/// object named after the server.
fn of_json(text: &str) -> Result<(Reading, Curve), ParseError> {
    let document = json_document(TOOL, text)?;
    let missing = |expected: &str| ParseError::missing(TOOL, expected, text);
    let statistics = one(&document, "statistics").ok_or_else(|| missing("\"statistics\" of one server"))?;
    let qps = statistics.get("QPS").and_then(number_json);
    let percentiles = one(&document, "query_time_percentiles")
        .and_then(Value::as_object)
        .ok_or_else(|| missing("\"query_time_percentiles\" of one server"))?;
    let mut curve = Curve::new();
    for (percent, seconds) in percentiles {
        let point = (number(percent).filter(|p| *p <= 100.0), number_json(seconds));
        let (Some(percent), Some(seconds)) = point else {
            return Err(missing("percentiles as numbers"));
        };
        curve.push((percent, seconds * 1e6));
    }
    let count = |keys: [&str; 2]| keys.iter().find_map(|key| statistics.get(*key)).and_then(whole_json);
    let reading = Reading {
        requests: count(["num_queries", "queries"]).unwrap_or(0),
        errors: count(["num_errors", "errors"]).unwrap_or(0),
        per_s: qps.ok_or_else(|| missing("\"QPS\" as a number"))?,
        ..Reading::default()
    };
    Ok(with_percentiles((reading, curve)))
}

/// Returns the value of a key at the top level. If the key is missing there, searches the objects one level below, of
/// which only one may have the key.
fn one<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    if let Some(value) = document.get(key) {
        return Some(value);
    }
    let mut below = document.as_object()?.values().filter_map(|value| value.get(key));
    below.next().filter(|_| below.next().is_none())
}

/// Parses the last report in the text. Each earlier report covers only one interval.
fn of_text(text: &str) -> Result<(Reading, Curve), ParseError> {
    let mut found = None;
    let mut curve = Curve::new();
    let mut executed = None;
    for (index, line) in text.lines().enumerate() {
        let wrong = |expected: &str| ParseError::at(TOOL, expected, index, line);
        if let Some(rest) = line.strip_prefix("Queries executed: ") {
            executed = rest.split([' ', '.']).next().and_then(whole);
        } else if let Some(at) = line.find("QPS: ").filter(|_| !line.contains("result QPS")) {
            let qps = line[at + 5..].split(',').next().and_then(number);
            let qps = qps.ok_or_else(|| wrong("a number after QPS:"))?;
            let named = |name: &str| {
                let rest = line.find(name).map(|at| line[at + name.len()..].trim_start_matches([':', ' ']));
                rest.and_then(|rest| rest.split(',').next()).and_then(whole)
            };
            found = Some(Reading {
                requests: named("queries").or(executed).unwrap_or(0),
                errors: named("errors").unwrap_or(0),
                per_s: qps,
                ..Reading::default()
            });
            curve.clear();
        } else if let Some((percent, rest)) = line.split_once('%').filter(|_| found.is_some()) {
            let Some(percent) = number(percent).filter(|p| *p <= 100.0) else { continue };
            let words: Vec<&str> = rest.split_whitespace().collect();
            let [seconds, "sec."] = words[..] else {
                return Err(wrong("one column of latencies in sec. (one server)"));
            };
            let seconds = number(seconds).ok_or_else(|| wrong("a latency in sec."))?;
            curve.push((percent, seconds * 1e6));
        }
    }
    let reading = found.ok_or_else(|| ParseError::missing(TOOL, "a line with \"QPS: N\"", text))?;
    if curve.is_empty() {
        return Err(ParseError::missing(TOOL, "percentiles after the line with QPS", text));
    }
    Ok(with_percentiles((reading, curve)))
}

fn with_percentiles((mut reading, mut curve): (Reading, Curve)) -> (Reading, Curve) {
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    reading.percentiles_us =
        curve.iter().filter_map(|(percent, us)| Some((metric_at(*percent)?, *us))).collect();
    (reading, curve)
}

/// Computes the mean latency from percentiles. The curve is assumed to be linear between percentiles, and constant
/// below the first and above the last. Returns `None` when the percentiles do not cover the middle of the distribution.
fn mean_of(curve: &Curve) -> Option<f64> {
    let (first, last) = (curve.first()?, curve.last()?);
    if first.0 > 50.0 || last.0 < 90.0 {
        return None;
    }
    let between: f64 = curve.windows(2).map(|w| (w[1].0 - w[0].0) * (w[0].1 + w[1].1) / 2.0).sum();
    Some((first.0 * first.1 + between + (100.0 - last.0) * last.1) / 100.0).filter(|mean| *mean > 0.0)
}

/// Checks the throughput with Little's law. Corrects the known error of old versions, and adds a note.
fn hold_to_law(reading: &mut Reading, curve: &Curve, concurrency: Option<u32>) {
    let Some(mean) = mean_of(curve).filter(|_| reading.per_s > 0.0) else { return };
    let off = |c: f64, per_s: f64| (c / per_s * 1e6 - mean).abs() / mean;
    let reported = reading.per_s;
    let Some(concurrency) = concurrency else {
        if off(1.0, reported) <= ESTIMATE_BOUND {
            reading.notes.push(format!(
                "QPS {} equals one query per mean latency: if several queries were in flight, this is a known error of old \
                 versions, and the actual QPS is as many times higher as there were queries in flight",
                three_digits(reported)
            ));
        }
        return;
    };
    let c = f64::from(concurrency);
    if off(c, reported) <= ESTIMATE_BOUND {
        return;
    }
    let corrected = reported * c;
    let seen = format!(
        "at QPS {} with {concurrency} queries in flight, a query would take {}, but the percentiles give a mean of about {}",
        three_digits(reported),
        latency(c / reported * 1e6),
        latency(mean)
    );
    if off(c, corrected) <= ESTIMATE_BOUND {
        reading.per_s = corrected;
        reading.notes.push(format!(
            "{seen}: the tool divided by the summed time of all queries; QPS was corrected to {} (reported × {concurrency}), \
             which agrees with Little's law within 15 %",
            three_digits(corrected)
        ));
    } else {
        reading.notes.push(format!("{seen}: this violates Little's law, and no correction is known"));
    }
}
