//! Run delay: the time that threads were runnable without having a CPU (`/proc/PID/task/TID/schedstat`, field 2, in ns;
//! needs CONFIG_SCHED_INFO, which every distribution enables). The steal time of a KVM guest is this counter of the
//! vCPU thread.
//!
//! A thread that preempts another one immediately when it wakes up has no run delay, so run delay can prove bad
//! isolation, but not good isolation. On a kernel that does not count run delay, the result is `None`, never 0: 0 would
//! mean that no thread had to wait.

use commensal_core::actual::Support;
use commensal_host::{Dir, Host};
use std::collections::BTreeMap;
use std::path::Path;

/// Sums of the counters over threads that start and exit: the last value of an exited thread stays in the sum.
#[derive(Debug, Default)]
pub struct RunDelay {
    threads: BTreeMap<u32, Schedstat>,
    ended: Schedstat,
    /// Filter by thread name; `None` counts all threads.
    counts: Option<fn(&str) -> bool>,
    /// Whether the kernel is known to count run delay.
    counted: bool,
}

/// The kernel's counters of a thread, or sums of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedstat {
    /// Time on a CPU (ns).
    pub run_ns: u64,
    /// Time runnable without a CPU (ns).
    pub delay_ns: u64,
}

/// Counters of this process. It has used a CPU, so its CPU time is 0 only if the kernel does not count.
const OWN: &str = "/proc/self/schedstat";

/// Whether the kernel counts run delay.
///
/// Without CONFIG_SCHED_INFO there is no `schedstat` file. Linux before 5.14 without CONFIG_SCHEDSTATS stops counting
/// with `nodelayacct` on its command line; every file then contains `0 0 0` (`sched_info_on` in kernel/sched/stats.h,
/// `proc_pid_schedstat` in fs/proc/base.c).
#[must_use]
pub fn support(host: &dyn Host) -> Support {
    let because = match host.read_file(Path::new(OWN)) {
        Ok(text) if parse(&text).is_some_and(|own| own.run_ns > 0) => return Support::Yes,
        Ok(_) => "delay accounting is off (`nodelayacct` on the kernel command line)",
        Err(_) => "CONFIG_SCHED_INFO is off",
    };
    Support::No { because: because.to_owned() }
}

fn parse(schedstat: &str) -> Option<Schedstat> {
    let mut fields = schedstat.split_whitespace().map(|field| field.parse::<u64>().ok());
    Some(Schedstat { run_ns: fields.next()??, delay_ns: fields.next()?? })
}

impl Schedstat {
    /// Reads the counters of a process's first thread; `None` if it has exited or the kernel does not count.
    pub fn of(host: &dyn Host, pid: u32) -> Option<Schedstat> {
        parse(&host.read_file(Path::new(&format!("/proc/{pid}/schedstat"))).ok()?)
    }

    fn add(&mut self, other: Schedstat) {
        self.run_ns += other.run_ns;
        self.delay_ns += other.delay_ns;
    }
}

impl RunDelay {
    /// Creates a sum over the threads whose name passes the filter.
    #[must_use]
    pub fn of_named(counts: fn(&str) -> bool) -> RunDelay {
        RunDelay { counts: Some(counts), ..RunDelay::default() }
    }

    /// Reads the threads of every process in `dir` and returns the total delay so far, in microseconds. `None` if the
    /// group no longer exists, a counter cannot be parsed or the kernel does not count; a thread whose counters cannot
    /// be read is left out.
    pub fn read(&mut self, host: &mut dyn Host, dir: Dir) -> Option<u64> {
        let procs = host.read(dir, "cgroup.procs").ok()?;
        let pids: Vec<u32> = procs.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        self.of(host, &pids).map(|total| total.delay_ns / 1_000)
    }

    /// Reads the threads of these processes and returns the totals so far. `None` if a counter cannot be parsed or the
    /// kernel does not count; a thread whose counters cannot be read is left out.
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
                let stat = parse(&text)?;
                now.extend(tid.parse::<u32>().ok().map(|tid| (tid, stat)));
            }
        }
        // A thread that has run proves that the kernel counts; if there is no such thread, the counters of this process
        // decide.
        if !self.counted {
            let ran = now.values().any(|stat| stat.run_ns > 0);
            self.counted = ran || matches!(support(host), Support::Yes);
        }
        if !self.counted {
            return None;
        }
        for (tid, last) in &self.threads {
            // A smaller value for the same TID belongs to another thread, which reused the TID.
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
