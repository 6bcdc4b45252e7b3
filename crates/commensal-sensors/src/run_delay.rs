//! Run delay: how long threads were ready to run and did not have a CPU (`/proc/PID/task/TID/schedstat`,
//! field 2, ns; needs CONFIG_SCHED_INFO, which every distribution has). KVM's guest steal is this very
//! counter of the vCPU thread.
//!
//! It reads 0 for a wake-up that preempts at once, so it is no proof of good isolation, only of bad.

use commensal_host::{Dir, Host};
use std::collections::BTreeMap;
use std::path::Path;

/// Sums run delay over threads that come and go: the last value of an ended thread stays in the sum.
#[derive(Debug, Default)]
pub struct RunDelay {
    threads: BTreeMap<u32, u64>,
    ended_ns: u64,
}

impl RunDelay {
    /// Reads the threads of every process in `dir` and gives the total so far in microseconds.
    /// `None` when the kernel does not count, or the group is gone.
    pub fn read(&mut self, host: &mut dyn Host, dir: Dir) -> Option<u64> {
        let procs = host.read(dir, "cgroup.procs").ok()?;
        let mut now = BTreeMap::new();
        for pid in procs.split_whitespace() {
            let tasks = format!("/proc/{pid}/task");
            for tid in host.list(Path::new(&tasks)).unwrap_or_default() {
                let Ok(text) = host.read_file(Path::new(&format!("{tasks}/{tid}/schedstat"))) else {
                    continue;
                };
                let delay = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok())?;
                now.extend(tid.parse::<u32>().ok().map(|tid| (tid, delay)));
            }
        }
        for (tid, last) in &self.threads {
            // A smaller value under the same number is another thread.
            if now.get(tid).is_none_or(|delay| delay < last) {
                self.ended_ns += last;
            }
        }
        self.threads = now;
        Some((self.ended_ns + self.threads.values().sum::<u64>()) / 1_000)
    }
}
