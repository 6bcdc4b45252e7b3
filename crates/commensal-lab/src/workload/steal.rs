//! Stands for a hypervisor that wakes idle virtual CPUs late, on a machine without one: at random times, if all CPUs are idle
//! then, it takes all of them from everything else for some milliseconds. While anything runs, it does nothing, as a
//! hypervisor takes hardly any time from virtual CPUs that do not halt.
//!
//! It takes the CPUs by the highest real-time priority, above the load generator's, and all at once: on one CPU alone, the
//! kernel would move the generator to another.

use super::refuse;
use crate::error::LabError;
use crate::rng::Rng;
use commensal_core::cpuset::CpuSet;
use commensal_core::process::{SCHED_FIFO, Scheduling};
use commensal_host::Host;
use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Mean length of a burst. On a virtual machine with 12 to 30 ms of steal per second, late requests were late by 0.4 to 3 ms.
const MEAN: Duration = Duration::from_micros(2_000);
/// Longest burst.
const LONGEST: Duration = Duration::from_millis(8);
/// Highest real-time priority.
const PRIORITY: u32 = 99;
/// Largest time per second that can be taken from all CPUs together.
pub const MAX_MS_PER_S: u64 = 500;

/// Takes at most `ms_per_s` of CPU time per second from all CPUs together, while they are idle, until the process is killed.
/// `host` returns the door to the machine for each thread.
///
/// # Errors
/// If the amount is out of range, or the machine gives no real-time priority, which needs root and a cgroup with real-time
/// bandwidth.
pub fn run(ms_per_s: u64, seed: u64, host: &(dyn Fn() -> Box<dyn Host> + Sync)) -> Result<(), LabError> {
    if !(1..=MAX_MS_PER_S).contains(&ms_per_s) {
        return Err(refuse("ms-per-s", ms_per_s, "it must be 1 to 500"));
    }
    let mut own = host();
    let online = own.read_file(Path::new("/sys/devices/system/cpu/online"))?;
    let cpus: Vec<u32> = online.trim().parse::<CpuSet>().unwrap_or_default().iter().collect();
    let gap = MEAN.mul_f64(1e3 * cpus.len() as f64 / ms_per_s as f64);
    let (begun, end_ns) = (Instant::now(), AtomicU64::new(0));
    first_in_line(own.as_mut(), None)?;
    let spin = |cpu: u32| -> Result<(), LabError> {
        first_in_line(host().as_mut(), Some(cpu))?;
        loop {
            std::thread::park();
            while (begun.elapsed().as_nanos() as u64) < end_ns.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
    };
    std::thread::scope(|scope| {
        let spinners: Vec<_> = cpus.iter().map(|cpu| scope.spawn(|| spin(*cpu))).collect();
        let mut rng = Rng::new(seed);
        loop {
            std::thread::sleep(exponential(gap, &mut rng));
            if let Some(ended) = spinners.iter().position(|spinner| spinner.is_finished()) {
                // The process ends with its error; the other spinners end with the process.
                eprintln!("commensal: cannot take CPU {}: no real-time priority", cpus[ended]);
                std::process::exit(2);
            }
            if running(own.as_ref()).is_some_and(|running| running <= 1) {
                let end = begun.elapsed() + exponential(MEAN, &mut rng).min(LONGEST);
                end_ns.store(end.as_nanos() as u64, Ordering::Relaxed);
                spinners.iter().for_each(|spinner| spinner.thread().unpark());
            }
        }
    })
}

/// Gives this thread the highest real-time priority, and this CPU.
fn first_in_line(host: &mut dyn Host, cpu: Option<u32>) -> Result<(), LabError> {
    let tid = rustix::thread::gettid().as_raw_pid().unsigned_abs();
    if let Some(cpu) = cpu {
        host.set_affinity(tid, &[cpu].into_iter().collect())?;
    }
    let first = Scheduling { policy: SCHED_FIFO, priority: PRIORITY, ..Scheduling::default() };
    Ok(host.set_scheduling(tid, &first)?)
}

/// Returns the number of threads that run or are ready to run on this machine, this one included.
fn running(host: &dyn Host) -> Option<u64> {
    let stat = host.read_file(Path::new("/proc/stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("procs_running ")?.trim().parse().ok())
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
