//! Parser for HdrHistogram logs, versions 1.2 and 1.3, which have lines of `tag, start, length, max, histogram`.
//!
//! The histograms are in format V2. They are compressed (their base64 starts with `HISTFAAA`), as all known writers
//! produce them, or uncompressed (`HISTEw`). This module decodes them itself, because the HdrHistogram library trusts
//! lengths and bounds in the file. Each value is counted in the bucket of the lab's histogram that contains the middle
//! of the value's original bucket.

use super::reading::{ParseError, Reading, TimeUnit, Tool, number};
use crate::record::{Counts, LatencyHistogram, MAX_TOTAL, new_histogram};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::read::ZlibDecoder;
use std::io::Read as _;

/// Identifier (cookie) at the start of an uncompressed histogram, without the four bits that give the word size.
const PLAIN: u32 = 0x1c84_9303;
/// Identifier (cookie) at the start of a compressed histogram, without the four bits that give the word size.
const COMPRESSED: u32 = 0x1c84_9304;
/// The four bits of a cookie that give the word size.
const WORD_SIZE: u32 = 0xf0;
/// Length of the header, in bytes; the counts follow the header.
const HEADER: usize = 40;
/// Maximum size of one histogram in bytes. Even a histogram with 5 digits over the whole range of u64 is smaller.
const MAX_BYTES: u64 = 64 << 20;

/// Parses a log and adds up all its intervals. The returned number of requests in flight is always `None`, because the
/// log does not contain it.
pub fn parse(text: &str, unit: TimeUnit) -> Result<(Reading, Option<u32>), ParseError> {
    let tool = Tool::HdrLog(unit);
    let missing = |expected: &str| ParseError::missing(tool, expected, text);
    let mut histogram = new_histogram().map_err(|error| missing(&error.to_string()))?;
    let (mut intervals, mut span) = (0_u64, None::<(f64, f64)>);
    for (index, line) in text.lines().enumerate() {
        let wrong = |expected: &str| ParseError::at(tool, expected, index, line);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with('"') {
            continue;
        }
        let line =
            if line.starts_with("Tag=") { line.split_once(',').map_or("", |(_, rest)| rest) } else { line };
        let cells: Vec<&str> = line.split(',').collect();
        let [start, length, _max, coded] = cells[..] else {
            return Err(wrong("an interval: start, length, max and histogram"));
        };
        let (Some(start), Some(length)) = (number(start), number(length)) else {
            return Err(wrong("start and length of the interval in seconds"));
        };
        add(coded.trim(), unit, &mut histogram).map_err(|what| wrong(&what))?;
        intervals += 1;
        let end = start + length;
        span = Some(span.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
    }
    if intervals == 0 {
        return Err(missing("an interval: start, length, max and histogram"));
    }
    let seconds = span.map(|(first, last)| last - first).filter(|seconds| *seconds > 0.0);
    let requests = histogram.len();
    let per_s = seconds.map_or(0.0, |seconds| requests as f64 / seconds);
    let histogram = Some(histogram).filter(|histogram| !histogram.is_empty());
    Ok((Reading { requests, seconds, per_s, histogram, ..Reading::default() }, None))
}

/// Decodes a histogram and adds its counts to `into`.
pub(super) fn add(coded: &str, unit: TimeUnit, into: &mut LatencyHistogram) -> Result<(), String> {
    let bytes = STANDARD.decode(coded).map_err(|_| "a histogram in base64".to_owned())?;
    let plain = match u32_at(&bytes, 0).map(|cookie| cookie & !WORD_SIZE) {
        Some(PLAIN) => bytes,
        Some(COMPRESSED) => inflate(&bytes)?,
        _ => return Err("a histogram of HdrHistogram V2 (HISTFAAA… or HISTEw…)".to_owned()),
    };
    let whole = || "a complete histogram of HdrHistogram V2".to_owned();
    if u32_at(&plain, 0).map(|cookie| cookie & !WORD_SIZE) != Some(PLAIN) {
        return Err(whole());
    }
    let length = u32_at(&plain, 4).map(|length| length as usize).ok_or_else(whole)?;
    let counts = plain.get(HEADER..).and_then(|rest| rest.get(..length)).ok_or_else(whole)?;
    let digits = u32_at(&plain, 12).filter(|digits| (1..=5).contains(digits)).ok_or_else(whole)?;
    let lowest = u64_at(&plain, 16).filter(|lowest| *lowest >= 1).ok_or_else(whole)?;
    if u32_at(&plain, 8) != Some(0) {
        return Err("a histogram whose buckets start at 0".to_owned());
    }
    let buckets = Buckets::new(digits, lowest);
    // The loop decodes one count at a time, because a small compressed text may contain very many counts.
    for item in Counts::new(counts) {
        let (index, count) = item.ok_or_else(whole)?;
        let middle = buckets.middle(index).ok_or_else(whole)?;
        let us = middle * unit.in_us();
        if into.len().saturating_add(count) > MAX_TOTAL {
            return Err("a number of requests that can be counted exactly".to_owned());
        }
        into.saturating_record_n(us as u64, count);
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Decompresses a histogram. Returns an error if the result exceeds the maximum size of a histogram.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let rest = bytes.get(8..).unwrap_or_default();
    ZlibDecoder::new(rest)
        .take(MAX_BYTES)
        .read_to_end(&mut plain)
        .map_err(|error| format!("a histogram that can be decompressed ({error})"))?;
    Ok(plain)
}

/// Bucket boundaries: linear up to `2 * 10^digits` units; above that, each power of two is divided into the same number
/// of steps.
struct Buckets {
    /// log2 of the number of steps per power of two.
    half: u32,
    /// log2 of the smallest value that can be distinguished.
    unit: u32,
}

impl Buckets {
    fn new(digits: u32, lowest: u64) -> Self {
        let steps = 2 * 10_u64.pow(digits);
        Self { half: steps.next_power_of_two().ilog2() - 1, unit: lowest.ilog2() }
    }

    /// Returns the middle of a bucket; `None` beyond 64 bits.
    fn middle(&self, index: u64) -> Option<f64> {
        let steps = 1_u64 << self.half;
        let (power, step) = match index >> self.half {
            0 => (0, index),
            n => (u32::try_from(n - 1).ok()?, (index & (steps - 1)) + steps),
        };
        if power + self.unit + self.half > 63 {
            return None;
        }
        let width = f64::from(power + self.unit).exp2();
        // A bucket of width 1 has one value; a wider one is represented by its middle.
        Some(step as f64 * width + if width > 1.0 { width / 2.0 } else { 0.0 })
    }
}
