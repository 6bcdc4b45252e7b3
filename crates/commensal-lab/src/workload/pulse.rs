//! Threads that sleep for a random time and then compute for a while: a minimal latency-critical workload.
//!
//! The length of each sleep is random, uniform between half a period and one and a half periods. With a fixed period,
//! wake-ups would synchronize with the timer tick, and the workload would measure the position within a tick instead of
//! the scheduler.

use super::cpu::{burn, calibrate};
use super::{no_threads, refuse};
use crate::error::LabError;
use crate::rng::Rng;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Maximum number of threads.
pub const MAX_THREADS: usize = 20_000;

/// Parameters of the workload.
#[derive(Debug, Clone, Copy)]
pub struct PulseOptions {
    /// Number of threads, 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Mean time between the end of one piece of work and the next wake-up.
    pub period: Duration,
    /// CPU time of one piece of work.
    pub work: Duration,
    /// Seed of the random sleeps.
    pub seed: u64,
    /// Time after which the workload stops by itself; `None` if it runs until the process dies.
    pub duration: Option<Duration>,
}

/// Runs until the duration is over or the process dies; returns the number of pieces of work done.
///
/// # Errors
/// If an option is invalid, or a thread cannot start.
pub fn run(options: PulseOptions) -> Result<u64, LabError> {
    let threads = options.threads;
    if !(1..=MAX_THREADS).contains(&threads) {
        let reason = "the number of threads must be 1 to 20,000";
        return Err(refuse("threads", threads as u64, reason));
    }
    let iterations = calibrate(options.work);
    let until = options.duration.map(|duration| Instant::now() + duration);
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(threads);
        for thread in 0..threads {
            let mut rng = Rng::new(options.seed.wrapping_add(thread as u64));
            let work = move || {
                let mut done = 0u64;
                while until.is_none_or(|end| Instant::now() < end) {
                    std::thread::sleep(options.period.mul_f64(0.5 + rng.unit_f64()));
                    black_box(burn(iterations));
                    done += 1;
                }
                done
            };
            // Stacks are small, because there may be thousands of threads.
            let builder = std::thread::Builder::new().name(format!("pulse-{thread}")).stack_size(64 << 10);
            match builder.spawn_scoped(scope, work) {
                Ok(handle) => handles.push(handle),
                // Nothing joins threads that run until the process dies, so an error must stop all of them.
                Err(error) if until.is_none() => {
                    eprintln!("commensal: {}", no_threads(threads, &error));
                    std::process::exit(2);
                }
                Err(error) => return Err(no_threads(threads, &error)),
            }
        }
        Ok(handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: PulseOptions = PulseOptions {
        threads: 3,
        period: Duration::from_millis(2),
        work: Duration::from_micros(50),
        seed: 1,
        duration: Some(Duration::from_millis(300)),
    };

    #[test]
    fn no_threads_are_refused() {
        let refused = run(PulseOptions { threads: 0, ..OPTIONS }).unwrap_err().to_string();
        assert!(refused.starts_with("threads = 0: "), "{refused}");
    }

    mod measure {
        use super::*;

        #[test]
        fn pulses_come_and_end() {
            assert!(run(OPTIONS).expect("pulses") >= 3);
        }
    }
}
