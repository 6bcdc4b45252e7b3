//! Stands for a hypervisor that wakes idle virtual CPUs late, on a machine without one: on every CPU a thread sleeps for a
//! random time and, if the CPU is idle then, takes it from everything else for some milliseconds. On a CPU that runs
//! anything, the thread does nothing, as a hypervisor takes hardly any time from a virtual CPU that does not halt.
//!
//! The thread finds out by itself whether its CPU is idle: it waits in the idle class, and wakes up in time only there.
//! It takes the CPU by the highest real-time priority, above the load generator's.

use super::refuse;
use crate::error::LabError;
use crate::rng::Rng;
use commensal_core::process::{SCHED_FIFO, SCHED_IDLE, Scheduling};
use commensal_host::Host;
use std::hint::spin_loop;
use std::path::Path;
use std::time::{Duration, Instant};

/// Mean length of a burst. On a virtual machine with 12 to 30 ms of steal per second, late requests were late by 0.4 to 3 ms.
const MEAN: Duration = Duration::from_micros(2_000);
/// Longest burst.
const LONGEST: Duration = Duration::from_millis(8);
/// Lateness of a wake-up in the idle class up to which the CPU was idle: a timer and a wake-up of a sleeping CPU.
const IDLE: Duration = Duration::from_micros(300);
/// Highest real-time priority.
const PRIORITY: u32 = 99;
/// Largest time per second that can be taken from all CPUs together.
pub const MAX_MS_PER_S: u64 = 500;

/// Takes `ms_per_s` of idle CPU time per second from all CPUs together, until the process is killed. `host` returns the door
/// to the machine for each thread.
///
/// # Errors
/// If the amount is out of range, or the machine gives no real-time priority, which needs root and a cgroup with real-time
/// bandwidth.
pub fn run(ms_per_s: u64, seed: u64, host: &(dyn Fn() -> Box<dyn Host> + Sync)) -> Result<(), LabError> {
    if !(1..=MAX_MS_PER_S).contains(&ms_per_s) {
        return Err(refuse("ms-per-s", ms_per_s, "it must be 1 to 500"));
    }
    let online = host().read_file(Path::new("/sys/devices/system/cpu/online"))?;
    let cpus: Vec<u32> =
        online.trim().parse::<commensal_core::cpuset::CpuSet>().unwrap_or_default().iter().collect();
    let gap = MEAN.mul_f64(1e3 * cpus.len() as f64 / ms_per_s as f64);
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|cpu| {
                scope.spawn(move || of_cpu(*cpu, gap, Rng::new(seed.wrapping_add(u64::from(*cpu))), host))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn of_cpu(
    cpu: u32,
    gap: Duration,
    mut rng: Rng,
    host: &(dyn Fn() -> Box<dyn Host> + Sync),
) -> Result<(), LabError> {
    let mut host = host();
    let tid = rustix::thread::gettid().as_raw_pid().unsigned_abs();
    let idle = Scheduling { policy: SCHED_IDLE, ..Scheduling::default() };
    let first = Scheduling { policy: SCHED_FIFO, priority: PRIORITY, ..Scheduling::default() };
    host.set_affinity(tid, &[cpu].into_iter().collect())?;
    host.set_scheduling(tid, &idle)?;
    loop {
        let due = Instant::now() + exponential(gap, &mut rng);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if due.elapsed() > IDLE {
            continue;
        }
        host.set_scheduling(tid, &first)?;
        let end = Instant::now() + exponential(MEAN, &mut rng).min(LONGEST);
        while Instant::now() < end {
            spin_loop();
        }
        host.set_scheduling(tid, &idle)?;
    }
}

/// Returns a random time with this mean, as between independent events.
fn exponential(mean: Duration, rng: &mut Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.unit_f64()).max(1e-9).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_mean_and_no_end() {
        let mut rng = Rng::new(7);
        let all: Vec<Duration> = (0..20_000).map(|_| exponential(MEAN, &mut rng)).collect();
        let mean = all.iter().sum::<Duration>() / 20_000;
        assert!((mean.as_secs_f64() / MEAN.as_secs_f64() - 1.0).abs() < 0.05, "{mean:?}");
        assert!(all.iter().any(|one| *one > 4 * MEAN));
    }

    #[test]
    fn amounts_out_of_range_are_refused() {
        let host = || -> Box<dyn Host> { Box::new(commensal_host::fake::FakeHost::v2(2, 1 << 30)) };
        for wrong in [0, 501] {
            assert!(run(wrong, 1, &host).unwrap_err().to_string().starts_with("ms-per-s = "), "{wrong}");
        }
    }
}
