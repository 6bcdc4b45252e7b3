//! Parser for `redis-benchmark --csv` with one test (version 6.2 and later, which print latencies).

use super::reading::{ParseError, Reading, Tool, closed_loop, number};
use crate::record::Metric;

const TOOL: Tool = Tool::RedisBenchmark;
const TITLES: &str = "the title line \"test\",\"rps\",\"avg_latency_ms\",… of version 6.2 or later";

/// Parses the output, which contains neither the number of requests nor the number of requests in flight.
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with('"'));
    let missing = |expected: &str| ParseError::missing(TOOL, expected, text);
    let (index, titles) = lines.next().ok_or_else(|| missing(TITLES))?;
    let titles_of = cells(titles);
    let column = |title: &str| titles_of.iter().position(|cell| *cell == title);
    let Some(rate) = column("rps") else { return Err(ParseError::at(TOOL, TITLES, index, titles)) };
    let (index, line) = lines.next().ok_or_else(|| missing("a line of values after the titles"))?;
    if let Some((index, line)) = lines.next() {
        return Err(ParseError::at(TOOL, "the values of a single test (choose one with -t)", index, line));
    }
    let row = cells(line);
    if row.len() != titles_of.len() {
        return Err(ParseError::at(TOOL, format!("{} values", titles_of.len()), index, line));
    }
    let figure = |column: usize| {
        number(row[column])
            .ok_or_else(|| ParseError::at(TOOL, format!("a number as {}", titles_of[column]), index, line))
    };
    let mut reading = Reading { per_s: figure(rate)?, ..Reading::default() };
    if let Some(column) = column("avg_latency_ms") {
        reading.mean_us = Some(figure(column)? * 1e3);
    }
    let percentiles =
        [(Metric::P50, "p50_latency_ms"), (Metric::P95, "p95_latency_ms"), (Metric::P99, "p99_latency_ms")];
    for (metric, title) in percentiles {
        if let Some(column) = column(title) {
            reading.percentiles_us.insert(metric, figure(column)? * 1e3);
        }
    }
    reading.notes.push(closed_loop(TOOL));
    Ok((reading, None))
}

/// Splits a line whose cells are all in quotes.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('"').split("\",\"").collect()
}
