//! Parsers for the output of other programs. Each parser converts text to a [`Reading`], or an error. The parsers start
//! no program and read no file.
//!
//! The parsers do not trust the output of a load generator. Numbers must be finite and within bounds, percentiles must
//! ascend, and a closed loop must obey Little's law (requests in flight = throughput × latency). A value that violates
//! this causes an error or a note. No input causes a panic.

mod clickhouse;
mod fio;
mod hdrlog;
mod jsonlines;
mod pgbench;
mod reading;
mod redis;
#[cfg(test)]
mod tests;
pub mod work;
mod wrk;

use crate::format::count;
pub use reading::{LITTLES_LAW_BOUND, ParseError, Reading, TimeUnit, Tool, littles_law};
use reading::{MAX_COUNT, MAX_US};

/// Parses the output of a tool. `concurrency` is the number of requests in flight; with `None`, the parser uses the
/// number that the tool prints.
///
/// # Errors
/// Returns an error when the text is not a complete output of this tool, or contains impossible numbers.
pub fn parse(tool: Tool, text: &str, concurrency: Option<u32>) -> Result<Reading, ParseError> {
    let (mut reading, own) = match tool {
        Tool::ClickhouseBenchmark => clickhouse::parse(text, concurrency)?,
        Tool::Wrk => wrk::parse(text)?,
        Tool::Pgbench => pgbench::parse(text)?,
        Tool::RedisBenchmark => redis::parse(text)?,
        Tool::Fio => fio::parse(text)?,
        Tool::JsonLines => jsonlines::parse(text)?,
        Tool::HdrLog(unit) => hdrlog::parse(text, unit)?,
    };
    reading.read_histogram();
    believe(tool, text, &mut reading)?;
    let concurrency = concurrency.or(own).filter(|c| *c > 0);
    // The parser for clickhouse-benchmark has already checked Little's law.
    if let (Some(concurrency), Some(mean)) =
        (concurrency.filter(|_| tool != Tool::ClickhouseBenchmark), reading.mean_us)
        && reading.per_s > 0.0
        && let Err(note) = littles_law(concurrency, reading.per_s, mean)
    {
        reading.notes.push(note);
    }
    Ok(reading)
}

/// Rejects impossible numbers. Removes a mean or percentiles of zero, which tools print when they measured nothing.
fn believe(tool: Tool, text: &str, reading: &mut Reading) -> Result<(), ParseError> {
    let within = |value: f64, most: f64| value.is_finite() && (0.0..=most).contains(&value);
    let sane = within(reading.per_s, MAX_COUNT)
        && within(reading.requests as f64, MAX_COUNT)
        && within(reading.errors as f64, MAX_COUNT)
        && reading.seconds.is_none_or(|s| within(s, MAX_US / 1e6))
        && reading.mean_us.is_none_or(|us| within(us, MAX_US))
        && reading.percentiles_us.values().all(|us| within(*us, MAX_US));
    if !sane {
        return Err(ParseError::missing(tool, "numbers in a plausible range", text));
    }
    if !reading.percentiles_us.values().is_sorted() {
        return Err(ParseError::missing(tool, "percentiles in ascending order", text));
    }
    reading.percentiles_us.retain(|_, us| *us > 0.0);
    reading.mean_us = reading.mean_us.filter(|us| *us > 0.0);
    if reading.requests > 0 && reading.errors > 0 {
        let (errors, requests) = (count(reading.errors), count(reading.requests));
        reading.notes.push(format!("{errors} of {requests} requests failed"));
    }
    Ok(())
}
