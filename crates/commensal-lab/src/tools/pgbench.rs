//! Parser for `pgbench`: its summary, the lines of `--log` (without `--aggregate-interval`), or both in one text.

use super::reading::{ParseError, Reading, Tool, closed_loop, number, whole};
use crate::record::{LatencyHistogram, new_histogram};

const TOOL: Tool = Tool::Pgbench;
/// Highest plausible client number in the first column of a log line. With `--aggregate-interval`, the first column is
/// a time in seconds instead, which is larger; such lines are rejected.
const MAX_CLIENT: u64 = 1_000_000;

/// Parses the output. The returned number of requests in flight is the number of clients.
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let mut reading = Reading::default();
    let (mut rate, mut clients, mut requests) = (None, None, None);
    let (mut logged, mut scheduled) = (Logged::default(), false);
    for (index, line) in text.lines().enumerate() {
        let wrong = |expected: &str| ParseError::at(TOOL, expected, index, line);
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            logged.line(line).map_err(|expected| wrong(&expected))?;
            continue;
        }
        let Some((key, value)) = line.split_once([':', '=']).map(|(key, value)| (key.trim(), value.trim()))
        else {
            continue;
        };
        let first = value.split([' ', '/']).next().unwrap_or_default();
        let ms = || {
            number(first)
                .filter(|_| value.ends_with(" ms"))
                .map(|ms| ms * 1e3)
                .ok_or_else(|| wrong("a time in ms"))
        };
        match key {
            "number of clients" => clients = first.parse().ok(),
            "duration" => reading.seconds = number(first),
            "number of transactions actually processed" => {
                requests = Some(whole(first).ok_or_else(|| wrong("a number of transactions"))?);
            }
            "number of failed transactions" => {
                reading.errors = whole(first).ok_or_else(|| wrong("a number of transactions"))?;
            }
            "latency average" => reading.mean_us = Some(ms()?),
            "rate limit schedule lag" => scheduled = true,
            // Old versions print the rate twice. The second rate excludes the time for connecting.
            "tps" => rate = Some(number(first).ok_or_else(|| wrong("a number after tps ="))?),
            _ => {}
        }
    }
    if rate.is_none() && logged.requests == 0 {
        return Err(ParseError::missing(TOOL, "a line \"tps = N\" or lines of --log", text));
    }
    // The number after "actually processed" does not include failed transactions.
    reading.requests = requests.map_or(logged.requests + logged.errors, |n| n + reading.errors);
    reading.errors = reading.errors.max(logged.errors);
    reading.seconds = reading.seconds.or_else(|| logged.seconds());
    reading.per_s = match (rate, reading.seconds) {
        (Some(rate), _) => rate,
        (None, Some(seconds)) if seconds > 0.0 => logged.requests as f64 / seconds,
        _ => 0.0,
    };
    reading.histogram = logged.histogram;
    if reading.histogram.is_none() {
        reading.notes.push("pgbench has percentiles only with --log".to_owned());
    }
    if scheduled {
        reading.notes.push("pgbench at a fixed rate: latency counts from the scheduled start".to_owned());
        return Ok((reading, None));
    }
    reading.notes.push(closed_loop(TOOL));
    Ok((reading, clients))
}

/// Totals over the lines of the log.
#[derive(Default)]
struct Logged {
    histogram: Option<LatencyHistogram>,
    requests: u64,
    errors: u64,
    /// Start of the earliest and end of the latest transaction, in seconds.
    span: Option<(f64, f64)>,
}

impl Logged {
    /// Parses a line with the columns client, transaction, time (µs), script, end (whole seconds) and end (microseconds
    /// of that second). More columns may follow.
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [client, _, time, _, seconds, us, ..] = words[..] else {
            return Err("a line of --log with six columns".to_owned());
        };
        if whole(client).is_none_or(|client| client > MAX_CLIENT) {
            return Err(
                "a line of --log that begins with a client number (--aggregate-interval must not be used)"
                    .to_owned(),
            );
        }
        if matches!(
            time,
            "failed"
                | "skipped"
                | "serialization"
                | "deadlock"
                | "serialization_failure"
                | "deadlock_failure"
        ) {
            self.errors += 1;
            return Ok(());
        }
        let numbers = (whole(time), number(seconds), number(us));
        let (Some(time), Some(seconds), Some(us)) = numbers else {
            return Err("a time in us in column 3 and a date in columns 5 and 6".to_owned());
        };
        if self.histogram.is_none() {
            self.histogram = Some(new_histogram().map_err(|error| error.to_string())?);
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(time);
        }
        self.requests += 1;
        let end = seconds + us / 1e6;
        let start = end - time as f64 / 1e6;
        self.span = Some(self.span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
        Ok(())
    }

    fn seconds(&self) -> Option<f64> {
        self.span.map(|(start, end)| end - start).filter(|seconds| *seconds > 0.0)
    }
}
