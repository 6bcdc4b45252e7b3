//! Latency histograms in a run: 1 us to 1 h with 3 significant digits, stored as HdrHistogram V2 in base64.
//!
//! The decoder does not trust its input. The header must be the one this module writes, so a file cannot cause a large
//! allocation or contain a compressed payload, and the counts are checked before the library reads them.

use crate::error::LabError;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

/// Counts of latencies, in microseconds.
pub type LatencyHistogram = Histogram<u64>;

/// Highest latency of the histogram's range, microseconds (1 h). Longer ones are counted as this.
pub const HIGHEST_US: u64 = 3_600_000_000;
/// Lowest latency of the histogram's range, microseconds.
const LOWEST_US: u64 = 1;
/// Significant decimal digits.
const DIGITS: u8 = 3;
/// First four bytes of the V2 encoding without compression.
const V2_COOKIE: u32 = 0x1c84_9313;
/// Bytes before the counts.
const HEADER_BYTES: usize = 40;
/// The largest total that stays exact in an f64.
pub(crate) const MAX_TOTAL: u64 = 1 << 53;

/// The bytes are not a histogram of this kind.
fn corrupt(why: &str) -> LabError {
    LabError::new(format!("histogram is corrupt: {why}"))
}

fn refused(error: &dyn std::fmt::Display) -> LabError {
    LabError::new(format!("histogram library refused: {error}"))
}

/// An empty histogram for latencies in microseconds. Record with `saturating_record`.
///
/// # Errors
/// Only if the library refuses the fixed bounds.
pub fn new_histogram() -> Result<LatencyHistogram, LabError> {
    Histogram::new_with_bounds(LOWEST_US, HIGHEST_US, DIGITS).map_err(|error| refused(&error))
}

/// The base64 text of a histogram.
///
/// # Errors
/// When the histogram was not made by [`new_histogram`], or holds counts that the format cannot.
pub fn encode_histogram(histogram: &LatencyHistogram) -> Result<String, LabError> {
    if (histogram.low(), histogram.high(), histogram.sigfig()) != (LOWEST_US, HIGHEST_US, DIGITS) {
        return Err(corrupt("bounds are not 1 us to 1 h with 3 digits"));
    }
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).map_err(|error| refused(&error))?;
    Ok(STANDARD.encode(bytes))
}

/// The histogram behind a base64 text.
///
/// # Errors
/// When the text is not what [`encode_histogram`] writes. It never panics and never allocates more than one
/// histogram plus the text.
pub fn decode_histogram(text: &str) -> Result<LatencyHistogram, LabError> {
    let bytes = STANDARD.decode(text).map_err(|error| LabError::of("histogram is not base64", &error))?;
    let empty = new_histogram()?;
    check(&bytes, empty.distinct_values())?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|error| refused(&error))
}

/// Checks for a V2 header of ours followed by counts that fit.
fn check(bytes: &[u8], buckets: usize) -> Result<(), LabError> {
    let u32_at = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let u64_at = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    if u32_at(0) != Some(V2_COOKIE) {
        return Err(corrupt("it does not start like HdrHistogram V2 without compression"));
    }
    let payload = bytes.get(HEADER_BYTES..).ok_or_else(|| corrupt("the header is cut short"))?;
    if u32_at(4).and_then(|n| usize::try_from(n).ok()) != Some(payload.len()) {
        return Err(corrupt("the length in the header is not that of the counts"));
    }
    let bounds = (u32_at(8), u32_at(12), u64_at(16), u64_at(24), u64_at(32).map(f64::from_bits));
    if bounds != (Some(0), Some(u32::from(DIGITS)), Some(LOWEST_US), Some(HIGHEST_US), Some(1.0)) {
        return Err(corrupt("bounds are not 1 us to 1 h with 3 digits"));
    }
    check_counts(payload, buckets)
}

/// Checks the counts before the library reads them.
fn check_counts(payload: &[u8], buckets: usize) -> Result<(), LabError> {
    let (mut counts, mut total) = (Counts::new(payload), 0_u64);
    for item in &mut counts {
        let (_, count) = item.ok_or_else(|| corrupt("a count is cut short"))?;
        total = total.saturating_add(count);
        if total > MAX_TOTAL {
            return Err(corrupt("it holds more requests than can be counted exactly"));
        }
    }
    // Skipped empty buckets count as well, since the library allocates them.
    match counts.index > buckets as u64 {
        true => Err(corrupt("it has more buckets than its bounds allow")),
        false => Ok(()),
    }
}

/// Walks ZigZag LEB128 counts, the payload of HdrHistogram V2: bucket and count of each that is not empty. A negative number
/// skips that many empty buckets. Yields `None` once when cut short.
#[derive(Debug)]
pub(crate) struct Counts<'a> {
    rest: &'a [u8],
    /// The bucket after the last one that was walked.
    index: u64,
}

impl<'a> Counts<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest, index: 0 }
    }

    fn next_number(&mut self) -> Option<i64> {
        let mut zigzag = 0_u64;
        for used in 0..9 {
            let byte = *self.rest.get(used)?;
            // The ninth byte carries all of its eight bits.
            let bits = if used == 8 { byte } else { byte & 0x7f };
            zigzag |= u64::from(bits) << (7 * used);
            if used == 8 || byte & 0x80 == 0 {
                self.rest = &self.rest[used + 1..];
                break;
            }
        }
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }
}

impl Iterator for Counts<'_> {
    type Item = Option<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let Some(number) = self.next_number() else {
                self.rest = &[];
                return Some(None);
            };
            if number < 0 {
                self.index = self.index.saturating_add(number.unsigned_abs());
            } else {
                let index = self.index;
                self.index = self.index.saturating_add(1);
                if number > 0 {
                    return Some(Some((index, number.unsigned_abs())));
                }
            }
        }
        None
    }
}

/// The latency at a quantile in 0..=1, microseconds: nearest rank, then linear inside the bucket of that rank.
///
/// A bucket is 1 us wide up to 2 ms, which is 2 % of a latency of 50 us. Without the position inside the bucket
/// a change of half a microsecond would read as none or as twice its size. `None` when nothing was recorded.
pub fn percentile_us(histogram: &LatencyHistogram, quantile: f64) -> Option<f64> {
    if histogram.is_empty() || !(0.0..=1.0).contains(&quantile) {
        return None;
    }
    let rank = (quantile * histogram.len() as f64).ceil().max(1.0);
    let mut below = 0.0;
    for step in histogram.iter_recorded() {
        let count = step.count_at_value() as f64;
        if below + count >= rank {
            let value = step.value_iterated_to();
            let width = histogram.equivalent_range(value) as f64;
            return Some(histogram.lowest_equivalent(value) as f64 + width * (rank - below - 0.5) / count);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn sample(n: u64) -> LatencyHistogram {
        let mut rng = Rng::new(3);
        let mut h = new_histogram().unwrap();
        for _ in 0..n {
            h.saturating_record((rng.exponential(900.0)) as u64);
        }
        h
    }

    #[test]
    fn a_histogram_survives_the_round_trip() {
        for h in [sample(0), sample(1), sample(20_000)] {
            let text = encode_histogram(&h).unwrap();
            assert_eq!(decode_histogram(&text).unwrap(), h);
        }
        let mut extreme = new_histogram().unwrap();
        extreme.saturating_record(0);
        extreme.saturating_record(u64::MAX);
        let back = decode_histogram(&encode_histogram(&extreme).unwrap()).unwrap();
        assert_eq!(back.len(), 2);
        assert!(encode_histogram(&extreme).unwrap().starts_with("HISTEwAA"));
    }

    #[test]
    fn foreign_bounds_are_refused() {
        let other = Histogram::<u64>::new_with_bounds(1, 1_000_000, 3).unwrap();
        assert!(encode_histogram(&other).is_err());
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&other, &mut bytes).unwrap();
        let err = decode_histogram(&STANDARD.encode(bytes)).unwrap_err();
        assert!(err.to_string().contains("bounds"), "{err}");
    }

    // promise 44
    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        assert!(decode_histogram("not base64!").unwrap_err().to_string().contains("not base64"));
        assert!(decode_histogram("").is_err());
        let good = STANDARD.decode(encode_histogram(&sample(500)).unwrap()).unwrap();
        for cut in 0..good.len() {
            assert!(decode_histogram(&STANDARD.encode(&good[..cut])).is_err(), "cut at {cut}");
        }
        let mut rng = Rng::new(11);
        for _ in 0..3_000 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.u64().to_be_bytes()[0];
            }
            if let Ok(h) = decode_histogram(&STANDARD.encode(&bytes)) {
                assert!(h.is_empty() || percentile_us(&h, 0.99).is_some());
            }
        }
    }

    #[test]
    fn counts_that_would_overflow_are_refused() {
        let mut bytes = STANDARD.decode(encode_histogram(&new_histogram().unwrap()).unwrap()).unwrap();
        bytes.truncate(HEADER_BYTES);
        for number in [[0xff_u8; 9].as_slice(), &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            let mut wild = bytes.clone();
            for _ in 0..3 {
                wild.extend_from_slice(number);
            }
            wild[4..8].copy_from_slice(&27_u32.to_be_bytes());
            assert!(decode_histogram(&STANDARD.encode(&wild)).is_err());
        }
    }

    #[test]
    fn percentiles_are_linear_inside_a_bucket() {
        let mut h = new_histogram().unwrap();
        assert_eq!(percentile_us(&h, 0.5), None);
        h.saturating_record_n(30, 100);
        // Rank 50 of 100 in the bucket [30, 31).
        assert!((percentile_us(&h, 0.5).unwrap() - 30.495).abs() < 1e-9);
        h.saturating_record_n(50, 100);
        assert!((percentile_us(&h, 0.75).unwrap() - 50.495).abs() < 1e-9);
        assert_eq!(percentile_us(&h, 1.5), None);
        assert_eq!(percentile_us(&h, f64::NAN), None);
    }

    #[test]
    fn percentiles_agree_with_the_library_to_one_bucket() {
        let h = sample(20_000);
        for q in [0.5, 0.75, 0.9, 0.95, 0.99, 0.999] {
            let library = h.value_at_quantile(q);
            let ours = percentile_us(&h, q).unwrap();
            assert!(ours >= h.lowest_equivalent(library) as f64, "{q}: {ours} {library}");
            assert!(ours <= library as f64 + 1.0, "{q}: {ours} {library}");
        }
    }
}
