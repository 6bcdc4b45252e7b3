//! Threads that sleep for a random time and then compute for a while: a minimal latency-critical workload.
//!
//! Sleeps are uniform between half and one and a half periods. A fixed period would fall into step with the timer tick,
//! and measure where in a tick it wakes up instead of what the scheduler does.

use super::cpu::{burn, calibrate};
use super::{no_threads, refuse};
use crate::error::LabError;
use crate::rng::Rng;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Maximum number of threads.
pub const MAX_THREADS: usize = 20_000;

/// Parameters.
#[derive(Debug, Clone, Copy)]
pub struct PulseOptions {
    /// Threads, 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Mean time between the end of one piece of work and the next wake-up.
    pub period: Duration,
    /// CPU time of one piece of work.
    pub work: Duration,
    /// Seed of the sleeps.
    pub seed: u64,
    /// When to stop by itself; `None` runs until killed.
    pub duration: Option<Duration>,
}

/// Pulses until killed or until the duration is over; returns the pieces of work done.
///
/// # Errors
/// On impossible options, or when a thread cannot start.
pub fn run(options: PulseOptions) -> Result<u64, LabError> {
    let threads = options.threads;
    if !(1..=MAX_THREADS).contains(&threads) {
        let reason = "a pulse has 1 to 20,000 threads";
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
            // Small stacks: thousands of them have to fit.
            let builder = std::thread::Builder::new().name(format!("pulse-{thread}")).stack_size(64 << 10);
            match builder.spawn_scoped(scope, work) {
                Ok(handle) => handles.push(handle),
                // Threads that run until killed are never joined, so an error must stop all of them.
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

    #[test]
    fn pulses_come_and_end() {
        let options = PulseOptions {
            threads: 3,
            period: Duration::from_millis(2),
            work: Duration::from_micros(50),
            seed: 1,
            duration: Some(Duration::from_millis(300)),
        };
        assert!(run(options).expect("pulses") >= 3);
        let refused = run(PulseOptions { threads: 0, ..options }).unwrap_err().to_string();
        assert!(refused.starts_with("threads = 0: "), "{refused}");
    }
}
