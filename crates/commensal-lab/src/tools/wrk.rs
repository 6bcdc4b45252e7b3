//! Parser for `wrk --latency` 4.x, and for wrk2, which prints more percentiles.
//!
//! Before it prints its results, wrk 4 adds samples that it did not measure. For each latency above twice the mean time
//! per request of a connection, wrk adds that latency minus one such time, minus two such times, and so on. So the
//! printed mean and percentiles are not those of the requests. Little's law (requests in flight = throughput × latency)
//! shows by how much they differ.

use super::reading::{ParseError, Reading, Tool, closed_loop, littles_law, metric_at, number, whole};

/// Parses the output. The returned number of requests in flight is the number of connections.
pub fn parse(text: &str) -> Result<(Reading, Option<u32>), ParseError> {
    let mut reading = Reading::default();
    let (mut rate, mut connections, mut requests) = (None, None, None);
    let (mut percentiles, mut scheduled) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let wrong = |expected: &str| ParseError::at(Tool::Wrk, expected, index, line);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Latency", "Distribution", ..] => {
                percentiles = true;
                scheduled = line.contains("HdrHistogram");
            }
            ["Latency", mean, ..] => {
                reading.mean_us =
                    Some(duration_us(mean).ok_or_else(|| wrong("a mean latency with its unit"))?);
            }
            [_, "threads", "and", n, "connections"] => connections = n.parse().ok(),
            [percent, latency] if percentiles && percent.ends_with('%') => {
                let percent = number(percent.trim_end_matches('%')).filter(|p| *p <= 100.0);
                let us = duration_us(latency);
                let (Some(percent), Some(us)) = (percent, us) else {
                    return Err(wrong("a percentile with its latency, such as 99% 1.05ms"));
                };
                reading.percentiles_us.extend(metric_at(percent).map(|metric| (metric, us)));
            }
            [n, "requests", "in", time, ..] => {
                percentiles = false;
                requests = Some(whole(n).ok_or_else(|| wrong("a number of requests"))?);
                let time = time.trim_end_matches(',');
                reading.seconds = Some(duration_us(time).ok_or_else(|| wrong("a time with its unit"))? / 1e6);
            }
            ["Socket", "errors:", ..] => {
                reading.errors += socket_errors(line).ok_or_else(|| wrong("four counts"))?
            }
            ["Non-2xx", "or", "3xx", "responses:", n] => {
                reading.errors += whole(n).ok_or_else(|| wrong("a number of responses"))?;
            }
            ["Requests/sec:", n] => {
                rate = Some(number(n).ok_or_else(|| wrong("a number after Requests/sec:"))?)
            }
            _ => {}
        }
    }
    let missing = |expected: &str| ParseError::missing(Tool::Wrk, expected, text);
    reading.requests = requests.ok_or_else(|| missing("a line \"N requests in TIME\""))?;
    reading.per_s = rate.ok_or_else(|| missing("a line \"Requests/sec: N\""))?;
    // A socket error is a request without a response, which wrk does not count among its requests.
    reading.requests = reading.requests.max(reading.errors);
    if let (Some(connections), Some(mean), true) = (connections, reading.mean_us, reading.per_s > 0.0)
        && littles_law(connections, reading.per_s, mean).is_err()
    {
        let note = "wrk adds samples for requests that it did not send during a stall, so not all of its latencies were measured";
        reading.notes.push(note.to_owned());
    }
    if reading.percentiles_us.is_empty() {
        reading.notes.push("wrk printed no percentiles: start it with --latency".to_owned());
    }
    if scheduled {
        reading.notes.push("wrk2 at a fixed rate: latency counts from the scheduled start".to_owned());
        return Ok((reading, None));
    }
    reading.notes.push(closed_loop(Tool::Wrk));
    Ok((reading, connections))
}

/// Returns the sum of `connect N, read N, write N, timeout N`.
fn socket_errors(line: &str) -> Option<u64> {
    let counts = line.split_once(':')?.1.split(',');
    counts.map(|part| part.split_whitespace().nth(1).and_then(whole)).sum()
}

/// Parses a time such as `123.45us`, `1.05ms`, `2.10s`, `1.00m` or `1.00h`; returns microseconds.
fn duration_us(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    number(digits).map(|value| value * factor)
}
