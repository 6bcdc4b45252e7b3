//! Run delay: how long threads were runnable without having a CPU (`/proc/PID/task/TID/schedstat`, field 2, ns; needs
//! CONFIG_SCHED_INFO, which every distribution has). A KVM guest's steal time is exactly this counter of the vCPU
//! thread.
//!
//! It reads 0 for a wake-up that preempts at once, so it can prove bad isolation, but not good isolation.

use commensal_host::{Dir, Host};
use std::collections::BTreeMap;
use std::path::Path;

/// Sums over threads that start and exit: the last value of an exited thread stays in the sum.
#[derive(Debug, Default)]
pub struct RunDelay {
    threads: BTreeMap<u32, Schedstat>,
    ended: Schedstat,
    /// Filter by thread name; `None` counts all threads.
    counts: Option<fn(&str) -> bool>,
}

/// The kernel's counters of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Time on a CPU, ns.
    pub run_ns: u64,
    /// Time runnable without a CPU, ns.
    pub delay_ns: u64,
}

impl Schedstat {
    fn add(&mut self, other: Schedstat) {
        self.run_ns += other.run_ns;
        self.delay_ns += other.delay_ns;
    }
}

impl RunDelay {
    /// Counts only threads whose name passes the filter.
    #[must_use]
    pub fn of_named(counts: fn(&str) -> bool) -> RunDelay {
        RunDelay { counts: Some(counts), ..RunDelay::default() }
    }

    /// Reads the threads of every process in `dir` and returns the total delay so far in microseconds. `None` when the
    /// kernel does not count it, or the group is gone.
    pub fn read(&mut self, host: &mut dyn Host, dir: Dir) -> Option<u64> {
        let procs = host.read(dir, "cgroup.procs").ok()?;
        let pids: Vec<u32> = procs.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        self.of(host, &pids).map(|total| total.delay_ns / 1_000)
    }

    /// Reads the threads of these processes and returns the totals so far. `None` when the kernel does not count them.
    pub fn of(&mut self, host: &mut dyn Host, pids: &[u32]) -> Option<Schedstat> {
        let mut now = BTreeMap::new();
        for pid in pids {
            let tasks = format!("/proc/{pid}/task");
            for tid in host.list(Path::new(&tasks)).unwrap_or_default() {
                let name = |tid: &str| host.read_file(Path::new(&format!("{tasks}/{tid}/comm")));
                if self.counts.is_some_and(|counts| !name(&tid).is_ok_and(|name| counts(name.trim_end()))) {
                    continue;
                }
                let Ok(text) = host.read_file(Path::new(&format!("{tasks}/{tid}/schedstat"))) else {
                    continue;
                };
                let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
                let (run_ns, delay_ns) = (fields.next()??, fields.next()??);
                now.extend(tid.parse::<u32>().ok().map(|tid| (tid, Schedstat { run_ns, delay_ns })));
            }
        }
        for (tid, last) in &self.threads {
            // A smaller value under the same TID belongs to another thread.
            if now.get(tid).is_none_or(|stat| stat.delay_ns < last.delay_ns) {
                self.ended.add(*last);
            }
        }
        self.threads = now;
        let mut total = self.ended;
        self.threads.values().for_each(|stat| total.add(*stat));
        Some(total)
    }
}
