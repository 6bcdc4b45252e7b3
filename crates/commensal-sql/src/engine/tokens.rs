//! CPU token bucket of a group: CPU time is charged after use, and a group that has used more than its rate allows (is
//! in debt) waits. The bucket reads no clock; callers pass the times.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Burst: CPU time that a group may use without waiting after an idle time. The burst is two scheduling slices, so that
/// a short query is not delayed.
pub const BURST: Duration = Duration::from_millis(10);

/// Value of `rate` for "no limit".
const UNLIMITED: u64 = 0;

/// The token bucket of a group. Times are nanoseconds of one monotonic clock.
#[derive(Debug, Default)]
pub struct Tokens {
    /// Rate in millionths of a CPU; 0 means no limit.
    rate: AtomicU64,
    /// Time at which the rate will have paid for everything charged so far.
    paid_ns: AtomicU64,
    charged_ns: AtomicU64,
    throttled_ns: AtomicU64,
}

impl Tokens {
    /// Sets the limit in millionths of a CPU. An existing debt is rescaled to the new rate.
    pub fn set_rate(&self, micro_cpus: Option<u64>, now_ns: u64) {
        let rate = micro_cpus.map_or(UNLIMITED, |rate| rate.max(1));
        let old = self.rate.swap(rate, Relaxed);
        let debt = self.paid_ns.load(Relaxed).saturating_sub(now_ns);
        let rescaled = match (old, rate) {
            (_, UNLIMITED) | (UNLIMITED, _) => 0,
            (old, new) => {
                u64::try_from(u128::from(debt) * u128::from(old) / u128::from(new)).unwrap_or(u64::MAX)
            }
        };
        self.paid_ns.store(now_ns.saturating_add(rescaled), Relaxed);
    }

    /// Returns how long a task must wait before it may run; `None` if it may run now.
    #[must_use]
    pub fn wait(&self, now_ns: u64) -> Option<Duration> {
        if self.rate.load(Relaxed) == UNLIMITED {
            return None;
        }
        let debt = self.paid_ns.load(Relaxed).saturating_sub(now_ns);
        (debt > 0).then(|| Duration::from_nanos(debt))
    }

    /// Charges used CPU time.
    pub fn charge(&self, now_ns: u64, cpu_ns: u64) {
        self.charged_ns.fetch_add(cpu_ns, Relaxed);
        let rate = self.rate.load(Relaxed);
        if rate == UNLIMITED {
            return;
        }
        let cost = u64::try_from(u128::from(cpu_ns) * 1_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let burst = BURST.as_nanos() as u64;
        let earliest = now_ns.saturating_sub(burst);
        let _ =
            self.paid_ns.fetch_update(Relaxed, Relaxed, |paid| Some(paid.max(earliest).saturating_add(cost)));
    }

    /// Returns the CPU time charged so far, in nanoseconds.
    #[must_use]
    pub fn charged_ns(&self) -> u64 {
        self.charged_ns.load(Relaxed)
    }

    /// Adds to the waiting time of tasks.
    pub fn waited(&self, ns: u64) {
        self.throttled_ns.fetch_add(ns, Relaxed);
    }

    /// Returns the total time that tasks have waited because of debt so far, in nanoseconds.
    #[must_use]
    pub fn throttled_ns(&self) -> u64 {
        self.throttled_ns.load(Relaxed)
    }
}

/// Returns the nanoseconds since the first call in this process.
#[must_use]
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of the calling thread so far.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the CPU time that tasks get in the interval, in thousandths of a CPU, if each of `tasks` tasks polls for
    /// `poll_ms` whenever the bucket lets it run.
    fn simulate(tokens: &Tokens, tasks: usize, poll_ms: u64, from_s: u64, to_s: u64) -> u64 {
        let (mut now, end) = (from_s * 1_000 * MS, to_s * 1_000 * MS);
        let mut used = 0;
        while now < end {
            if let Some(wait) = tokens.wait(now) {
                now += wait.as_nanos() as u64;
                continue;
            }
            // All tasks wake up at the same time.
            for _ in 0..tasks {
                tokens.charge(now + poll_ms * MS, poll_ms * MS);
                used += poll_ms * MS;
            }
            now += poll_ms * MS;
        }
        used * 1_000 / ((to_s - from_s) * 1_000 * MS)
    }

    #[test]
    fn the_average_holds_whatever_a_poll_takes() {
        for (rate, tasks, poll_ms) in [(200_000, 1, 1), (200_000, 2, 5), (200_000, 8, 20), (1_500_000, 2, 3)]
        {
            let tokens = Tokens::default();
            tokens.set_rate(Some(rate), 0);
            let got = simulate(&tokens, tasks, poll_ms, 0, 60);
            let want = rate / 1_000;
            assert!(got.abs_diff(want) * 100 <= want * 2, "{rate} {tasks} {poll_ms}: {got} of {want}");
        }
    }

    #[test]
    fn a_new_rate_counts_at_once() {
        let tokens = Tokens::default();
        tokens.set_rate(Some(1_000), 0);
        tokens.charge(0, 1_000 * MS);
        assert!(tokens.wait(0) > Some(Duration::from_secs(900)));
        tokens.set_rate(Some(1_000_000), 0);
        assert!(tokens.wait(0) <= Some(Duration::from_secs(1)));
        tokens.set_rate(None, 0);
        assert_eq!(tokens.wait(0), None);
        assert_eq!(tokens.charged_ns(), 1_000 * MS);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let tokens = Tokens::default();
        tokens.set_rate(Some(100_000), 0);
        let hour = 3_600_000 * MS;
        tokens.charge(hour, 10 * MS);
        let wait = tokens.wait(hour).unwrap();
        assert!(wait >= Duration::from_millis(90), "{wait:?}");
    }
}
