//! Parser for `fio --output-format=json+`, whose buckets are converted to a histogram, and for `--output-format=json`,
//! whose percentiles are used unchanged.
//!
//! Reads and writes of all jobs are counted together. Percentiles of several jobs cannot be merged. So an output
//! without buckets has percentiles only if a single job did only reads or only writes.

use super::reading::{
    ParseError, Reading, Tool, closed_loop, json_document, metric_at, number, number_json, whole, whole_json,
};
use crate::record::{LatencyHistogram, new_histogram};
use serde_json::Value;

const TOOL: Tool = Tool::Fio;
const DIRECTIONS: [&str; 2] = ["read", "write"];

/// Parses the output. The number of requests in flight is the number of jobs times the I/O depth.
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let document = json_document(TOOL, text)?;
    let missing = |expected: &str| ParseError::missing(TOOL, expected, text);
    let jobs = document.get("jobs").and_then(Value::as_array).ok_or_else(|| missing("\"jobs\""))?;
    let mut reading = Reading::default();
    let mut histogram = new_histogram().map_err(|error| missing(&error.to_string()))?;
    let (mut busy, mut buckets, mut depth, mut total_ns) = (Vec::new(), true, 0, 0.0);
    for job in jobs {
        // fio counts failures in two places: an error number that stopped the job, and a count of errors after which it
        // continued.
        let went_on = job.get("total_err").and_then(whole_json).unwrap_or(0);
        let ended = job.get("error").and_then(Value::as_i64).is_some_and(|error| error != 0);
        reading.errors = reading.errors.saturating_add(went_on.max(u64::from(ended)));
        depth = u32::saturating_add(depth, depth_of(&document, job));
        for side in DIRECTIONS.iter().filter_map(|direction| job.get(*direction)) {
            let ios = side.get("total_ios").and_then(whole_json).ok_or_else(|| missing("\"total_ios\""))?;
            if ios == 0 {
                continue;
            }
            let number =
                |key: &str| side.get(key).and_then(number_json).ok_or_else(|| missing(&format!("{key:?}")));
            reading.requests = reading.requests.saturating_add(ios);
            reading.per_s += number("iops")?;
            reading.seconds = Some(reading.seconds.unwrap_or(0.0).max(number("runtime")? / 1e3));
            let (latency, whole_time) =
                latency_of(side).ok_or_else(|| missing("\"lat_ns\" or \"clat_ns\""))?;
            let mean = side.get("lat_ns").unwrap_or(latency).get("mean").and_then(number_json);
            total_ns += mean.ok_or_else(|| missing("a mean latency"))? * ios as f64;
            buckets &= add_bins(latency, &mut histogram).map_err(|what| missing(&what))?;
            busy.push((latency, whole_time));
        }
    }
    if reading.requests > 0 {
        reading.mean_us = Some(total_ns / reading.requests as f64 / 1e3);
    }
    if busy.iter().any(|(_, whole_time)| !whole_time) {
        reading.notes.push("fio: the distribution is of completion latency, which excludes the time to submit (use --lat_percentiles=1 to include it)".to_owned());
    }
    match &busy[..] {
        [] => {}
        _ if buckets => reading.histogram = Some(histogram),
        [(latency, _)] => {
            reading.percentiles_us =
                percentiles(latency).map_err(|what| missing(&what))?.into_iter().collect()
        }
        _ => {
            reading.notes.push("fio printed percentiles of several jobs, which cannot be merged; use --output-format=json+, which has buckets".to_owned())
        }
    }
    reading.notes.push(closed_loop(TOOL));
    Ok((reading, Some(depth)))
}

/// Returns the I/O depth times the number of copies of a job. With `--group_reporting`, one entry describes all copies.
fn depth_of(document: &Value, job: &Value) -> u32 {
    let option = |key: &str| {
        let of_job = job.get("job options").and_then(|options| options.get(key));
        let value = of_job.or_else(|| document.get("global options").and_then(|options| options.get(key)));
        value.and_then(Value::as_str).and_then(|text| text.parse::<u32>().ok()).unwrap_or(1)
    };
    let jobs = document.get("jobs").and_then(Value::as_array).into_iter().flatten();
    let alone = jobs.filter(|other| other.get("jobname") == job.get("jobname")).count() == 1;
    option("iodepth").saturating_mul(if alone { option("numjobs") } else { 1 })
}

/// Returns the latency to use, and whether it is the total latency: `lat_ns` if it has a distribution, otherwise
/// `clat_ns`.
fn latency_of(side: &Value) -> Option<(&Value, bool)> {
    let has = |latency: &&Value| latency.get("bins").is_some() || latency.get("percentile").is_some();
    let whole_time = side.get("lat_ns").filter(has).map(|latency| (latency, true));
    whole_time.or_else(|| side.get("clat_ns").map(|latency| (latency, false)))
}

/// Adds the buckets to the histogram. Returns false if the output has no buckets.
fn add_bins(latency: &Value, histogram: &mut LatencyHistogram) -> Result<bool, String> {
    let Some(bins) = latency.get("bins").and_then(Value::as_object) else { return Ok(false) };
    for (ns, count) in bins {
        let (Some(ns), Some(count)) = (whole(ns), whole_json(count)) else {
            return Err("buckets of nanoseconds with their counts".to_owned());
        };
        // A value in the lab's histogram represents the microsecond that starts at this value.
        histogram.saturating_record_n(ns / 1000, count);
    }
    Ok(!bins.is_empty())
}

fn percentiles(latency: &Value) -> Result<Vec<(crate::record::Metric, f64)>, String> {
    let mut found = Vec::new();
    for (percent, ns) in latency.get("percentile").and_then(Value::as_object).into_iter().flatten() {
        let (Some(percent), Some(ns)) = (number(percent), number_json(ns)) else {
            return Err("percentiles as numbers".to_owned());
        };
        found.extend(metric_at(percent).map(|metric| (metric, ns / 1e3)));
    }
    Ok(found)
}
