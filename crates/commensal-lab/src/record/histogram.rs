//! Latency histograms of a run: 1 µs to 1 h with 3 significant digits, stored as HdrHistogram V2 in base64.
//!
//! The decoder does not trust its input. It accepts only the header that this module writes, so that a file cannot
//! cause a large allocation or contain a compressed payload. It checks the counts before the HdrHistogram library reads
//! them.

use crate::error::LabError;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

/// A histogram of latencies, in microseconds.
pub type LatencyHistogram = Histogram<u64>;

/// Highest latency of the histogram's range in microseconds (1 h). Longer latencies count as this value.
pub const HIGHEST_US: u64 = 3_600_000_000;
/// Lowest latency of the histogram's range, in microseconds.
const LOWEST_US: u64 = 1;
/// Significant decimal digits.
const DIGITS: u8 = 3;
/// First four bytes of the V2 encoding without compression.
const V2_COOKIE: u32 = 0x1c84_9313;
/// Length of the header before the counts, in bytes.
const HEADER_BYTES: usize = 40;
/// Largest total count that an f64 represents exactly.
pub(crate) const MAX_TOTAL: u64 = 1 << 53;

/// Returns the error for bytes that are not a histogram of this kind.
fn corrupt(why: &str) -> LabError {
    LabError::new(format!("histogram is corrupt: {why}"))
}

fn refused(error: &dyn std::fmt::Display) -> LabError {
    LabError::new(format!("the histogram library returned an error: {error}"))
}

/// Creates an empty histogram for latencies in microseconds. Add values with `saturating_record`.
///
/// # Errors
/// Returns an error only if the library refuses the fixed bounds.
pub fn new_histogram() -> Result<LatencyHistogram, LabError> {
    Histogram::new_with_bounds(LOWEST_US, HIGHEST_US, DIGITS).map_err(|error| refused(&error))
}

/// Encodes a histogram in base64.
///
/// # Errors
/// Returns an error when the histogram was not created by [`new_histogram`], or contains counts that the format cannot
/// represent.
pub fn encode_histogram(histogram: &LatencyHistogram) -> Result<String, LabError> {
    if (histogram.low(), histogram.high(), histogram.sigfig()) != (LOWEST_US, HIGHEST_US, DIGITS) {
        return Err(corrupt("bounds are not 1 us to 1 h with 3 digits"));
    }
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).map_err(|error| refused(&error))?;
    Ok(STANDARD.encode(bytes))
}

/// Decodes a histogram from base64.
///
/// # Errors
/// Returns an error for everything that [`encode_histogram`] does not write. Never panics, and never allocates more
/// than one histogram and the decoded bytes.
pub fn decode_histogram(text: &str) -> Result<LatencyHistogram, LabError> {
    let bytes = STANDARD.decode(text).map_err(|error| LabError::of("histogram is not base64", &error))?;
    let empty = new_histogram()?;
    check(&bytes, empty.distinct_values())?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|error| refused(&error))
}

/// Checks that the bytes have a V2 header as written by this module, followed by counts that fit.
fn check(bytes: &[u8], buckets: usize) -> Result<(), LabError> {
    let u32_at = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let u64_at = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    if u32_at(0) != Some(V2_COOKIE) {
        return Err(corrupt("it does not have the header of an uncompressed HdrHistogram V2"));
    }
    let payload = bytes.get(HEADER_BYTES..).ok_or_else(|| corrupt("the header is truncated"))?;
    if u32_at(4).and_then(|n| usize::try_from(n).ok()) != Some(payload.len()) {
        return Err(corrupt("the length in the header differs from the length of the counts"));
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
        let (_, count) = item.ok_or_else(|| corrupt("a count is truncated"))?;
        total = total.saturating_add(count);
        if total > MAX_TOTAL {
            return Err(corrupt("it has more requests than can be counted exactly"));
        }
    }
    // Empty buckets that the payload skips also count, because the library allocates them.
    match counts.index > buckets as u64 {
        true => Err(corrupt("it has more buckets than its bounds allow")),
        false => Ok(()),
    }
}

/// Iterates over the payload of HdrHistogram V2, which consists of ZigZag LEB128 numbers. Yields the bucket and the
/// count of each bucket that is not empty. A negative number skips that many empty buckets. Yields `None` once when the
/// payload is truncated.
#[derive(Debug)]
pub(crate) struct Counts<'a> {
    rest: &'a [u8],
    /// Index of the next bucket.
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
            // The ninth byte contributes all of its eight bits.
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

/// Returns the latency at a quantile (0 to 1) in microseconds. Finds the bucket that contains the nearest rank, and
/// interpolates linearly within that bucket. Returns `None` when the histogram is empty.
///
/// A bucket is 1 µs wide up to 2 ms; this is 2 % of a latency of 50 µs. Without interpolation, a change by half a
/// microsecond would appear as no change or as a change of twice its size.
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

    // promise 36
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
        // Rank 50 of 100 is in the bucket [30, 31).
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
