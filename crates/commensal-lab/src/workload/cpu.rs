//! The unit of CPU work: a fixed integer loop that accesses no memory, and a calibration of the loop's duration.
//!
//! Each step of the loop depends on the previous step, so its speed depends on scheduling and CPU frequency, not on
//! caches. Threads and counters are in the modules `http` and `burn`.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Start value of the loop. Any odd constant works; with zero, every later value would be zero.
const START: u64 = 0x9E37_79B9_7F4A_7C15;

/// Minimum CPU time of one probe of the calibration; the cost of reading the clock is then negligible.
const PROBE: Duration = Duration::from_micros(500);

/// Number of probes. The calibration uses the fastest probe, because interrupts, steal and a low frequency can only add
/// time.
const TRIES: u32 = 15;

/// Performs `iterations` steps of a fixed xorshift chain and returns the last value, which depends on every step.
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

/// Returns the number of iterations for which [`burn`] takes about `target` of CPU time on this machine, at least 1.
///
/// The calibration takes about 10 ms. It uses the fastest of several probes, because a disturbed probe would give too
/// small a number. It measures CPU time instead of wall-clock time, so that waiting does not count.
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

/// Returns the CPU time that the calling thread has used since it started.
pub(crate) fn thread_cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    // A thread's clock starts at zero and never runs backwards, so neither cast loses a value.
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
    fn a_target_of_zero_is_one_step() {
        assert_eq!(calibrate(Duration::ZERO), 1);
    }

    mod measure {
        use super::*;

        #[test]
        fn calibration_scales_with_the_target_and_hits_it_within_a_factor_of_three() {
            let short = calibrate(Duration::from_micros(100));
            let long = calibrate(Duration::from_millis(10));
            let ratio = long as f64 / short as f64;
            assert!((30.0..300.0).contains(&ratio), "100 times the target gave {ratio} times the count");
            // The test uses the fastest of five probes, because a busy machine can only add time.
            let best = (0..5).map(|_| cpu_time_of(long)).min().expect("five tries");
            assert!(
                best >= Duration::from_millis(3) && best <= Duration::from_millis(30),
                "10 ms took {best:?}"
            );
        }
    }
}
