//! The unit of CPU work: a fixed integer loop that touches no memory, and its calibration in time.
//!
//! The loop is one dependency chain, so it measures scheduling and frequency, not caches. It holds neither
//! threads nor counters; `http` and `burn` do.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Start value of the chain: any odd constant does, zero would stay zero.
const START: u64 = 0x9E37_79B9_7F4A_7C15;

/// A calibration probe is at least this long, so that the clock's own cost vanishes in it.
const PROBE: Duration = Duration::from_micros(500);

/// Number of probes. The fastest one counts: interrupts, steal and low frequency only add time.
const TRIES: u32 = 15;

/// Does `iterations` steps of a fixed xorshift chain and returns its end value, which depends on every step.
#[must_use]
pub fn burn(iterations: u64) -> u64 {
    let mut x = START;
    for i in 0..black_box(iterations) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x = x.wrapping_add(i);
    }
    black_box(x)
}

/// The iteration count whose [`burn`] takes about `target` of CPU time on this machine, at least 1.
///
/// Takes some 10 ms. The fastest of several probes is used, so noise cannot inflate the time per step (the count would
/// be too small); CPU time rather than wall time is read, so waiting does not count either.
#[must_use]
pub fn calibrate(target: Duration) -> u64 {
    let mut probe = 1_000u64;
    while cpu_time_of(probe) < PROBE && probe < u64::MAX / 2 {
        probe *= 2;
    }
    let fastest = (0..TRIES).map(|_| cpu_time_of(probe)).min().unwrap_or(PROBE).max(Duration::from_nanos(1));
    let count = target.as_secs_f64() / fastest.as_secs_f64() * probe as f64;
    (count.round() as u64).max(1)
}

fn cpu_time_of(iterations: u64) -> Duration {
    let before = thread_cpu_time();
    black_box(burn(iterations));
    thread_cpu_time().saturating_sub(before)
}

/// CPU time the calling thread has used since it began.
pub(crate) fn thread_cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    // A thread's clock starts at zero and never runs backwards, so neither cast loses anything.
    Duration::new(t.tv_sec.max(0) as u64, t.tv_nsec.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_changes_the_result() {
        let seen: std::collections::HashSet<u64> = (0..1_000).map(burn).collect();
        assert_eq!(seen.len(), 1_000);
        assert_eq!(burn(1_000), burn(1_000));
    }

    #[test]
    fn calibration_scales_with_the_target_and_hits_it_within_a_factor_of_three() {
        let short = calibrate(Duration::from_micros(100));
        let long = calibrate(Duration::from_millis(10));
        let ratio = long as f64 / short as f64;
        assert!((30.0..300.0).contains(&ratio), "100 times the target gave {ratio} times the count");
        // The best of five, as the calibration itself does: a busy machine only adds time.
        let best = (0..5).map(|_| cpu_time_of(long)).min().expect("five tries");
        assert!(best >= Duration::from_millis(3) && best <= Duration::from_millis(30), "10 ms took {best:?}");
    }

    #[test]
    fn a_target_of_zero_is_one_step() {
        assert_eq!(calibrate(Duration::ZERO), 1);
    }
}
