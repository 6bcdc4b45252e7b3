//! Resource usage of a server, second by second: from the kernel's accounting of its processes, and from the server's
//! own tables.

use super::server::family;
use super::{Bucket, GROUP};
use crate::client::{Client, ClientError, Row};
use commensal_host::{Host, LinuxHost};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval at which the memory of the server's processes is sampled. The server's tables are queried only once per
/// window, because each query costs CPU: ten per second used 2 % of two CPUs.
const LOOK: Duration = Duration::from_millis(100);

/// Minimum length of a window; rates are averages over the actual length.
const WINDOW: Duration = Duration::from_secs(1);

const MIB: f64 = 1_048_576.0;

/// Measurements of one window of about a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// CPU time of the threads of the server and its workers, in percent of the machine.
    pub cpu_percent: f64,
    /// MiB per second returned by read system calls of the server and its workers (`rchar`, which includes reads from
    /// the page cache).
    pub read_mib: f64,
    /// MiB per second that the S3 store sent.
    pub sent_mib: f64,
    /// `CPU_USAGE_PERCENT` of the group at the end of the window.
    pub told_cpu_percent: f64,
    /// `LOCAL_SCAN_BYTES_PER_SECOND` of the group at the end of the window, in MiB.
    pub told_local_mib: f64,
    /// `REMOTE_SCAN_BYTES_PER_SECOND` of the group at the end of the window, in MiB.
    pub told_remote_mib: f64,
}

/// All measurements of a row.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// The windows, one per second.
    pub windows: Vec<Window>,
    /// `MEMORY_PEAK_BYTES` of the group at the end.
    pub told_peak: u64,
    /// Peak of the sampled memory of the server and its workers, in bytes.
    pub rss_peak: u64,
    /// Number of queries that the server cancelled because of memory.
    pub killed: u64,
    /// `CPU_LIMIT_BY` of the group at the end: `kernel` or `tokens`.
    pub limit_by: String,
    /// `WORKER` of the group at the end.
    pub worker: String,
}

impl Watched {
    /// Returns mean, minimum and maximum of a value over the windows; `None` without a window.
    #[must_use]
    pub fn spread(&self, of: fn(&Window) -> f64) -> Option<(f64, f64, f64)> {
        let values: Vec<f64> = self.windows.iter().map(of).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().reduce(f64::min)?;
        Some((mean, least, values.iter().copied().fold(least, f64::max)))
    }

    /// Returns the mean of a value over the windows; `None` without a window.
    #[must_use]
    pub fn mean(&self, of: fn(&Window) -> f64) -> Option<f64> {
        self.spread(of).map(|(mean, ..)| mean)
    }
}

/// Counters. The difference between two readings gives the values of a window.
#[derive(Debug, Clone)]
struct Totals {
    at: Instant,
    threads_ns: BTreeMap<String, u64>,
    read: u64,
    sent: u64,
}

/// Samples a server.
#[derive(Debug)]
pub struct Watch<'a> {
    process: u32,
    host: LinuxHost,
    client: Client,
    bucket: &'a Bucket,
    cpus: f64,
}

impl<'a> Watch<'a> {
    /// Creates a sampler for the process `pid`, which queries the server's tables through `client`.
    #[must_use]
    pub fn new(pid: u32, client: Client, bucket: &'a Bucket) -> Watch<'a> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Watch { process: pid, host: LinuxHost::new(), client, bucket, cpus }
    }

    /// Samples for this time, or until `ended` returns true.
    ///
    /// # Errors
    /// The server does not respond.
    pub fn during(&mut self, time: Duration, ended: &dyn Fn() -> bool) -> Result<Watched, ClientError> {
        let begun = Instant::now();
        let mut seen = Watched::default();
        let mut before = self.totals();
        while begun.elapsed() < time && !ended() {
            std::thread::sleep(LOOK);
            seen.rss_peak = seen.rss_peak.max(self.rss());
            if before.at.elapsed() >= WINDOW {
                let told = self.told()?;
                (seen.limit_by, seen.worker) = (told.limit_by.clone(), told.worker.clone());
                let now = self.totals();
                seen.windows.push(window(&before, &now, self.cpus, &told));
                before = now;
            }
        }
        // The server counts these values since its start, so they include the time before the first sample.
        (seen.told_peak, seen.killed) = self.told().map(|told| (told.peak, told.killed))?;
        Ok(seen)
    }

    fn text(&self, pid: u32, file: &str) -> String {
        self.host.read_file(Path::new(&format!("/proc/{pid}/{file}"))).unwrap_or_default()
    }

    fn totals(&self) -> Totals {
        let family = family(&self.host, self.process);
        let threads_ns = threads(&self.host, &family);
        let at = Instant::now();
        let read = family.into_iter().map(|pid| field(&self.text(pid, "io"), "rchar:")).sum();
        Totals { at, threads_ns, read, sent: self.bucket.sent() }
    }

    fn rss(&self) -> u64 {
        let processes = family(&self.host, self.process);
        let kib: u64 = processes.into_iter().map(|pid| field(&self.text(pid, "status"), "VmRSS:")).sum();
        kib << 10
    }

    fn told(&mut self) -> Result<Told, ClientError> {
        let rows = self.client.fetch(&format!(
            "select memory_peak_bytes, killed_queries, cpu_usage_percent, \
             local_scan_bytes_per_second, remote_scan_bytes_per_second, cpu_limit_by, worker \
             from information_schema.workload_group_resource_usage where name = '{GROUP}'"
        ))?;
        rows.first().and_then(Told::of).ok_or(ClientError::Protocol("the group is not listed"))
    }
}

/// Returns the CPU time of each thread of these processes, in nanoseconds (`schedstat`).
fn threads(host: &LinuxHost, processes: &[u32]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for pid in processes {
        let folder = format!("/proc/{pid}/task");
        for thread in host.list(Path::new(&folder)).unwrap_or_default() {
            let text = host.read_file(Path::new(&format!("{folder}/{thread}/schedstat")));
            let time = text.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
            all.extend(time.map(|time: u64| (thread, time)));
        }
    }
    all
}

/// Returns the CPU time of these processes, in nanoseconds, without threads that have exited.
pub fn cpu_ns(host: &LinuxHost, processes: &[u32]) -> u64 {
    threads(host, processes).values().sum()
}

/// Values from the server's table `workload_group_resource_usage`.
#[derive(Debug, Clone)]
struct Told {
    peak: u64,
    killed: u64,
    cpu_percent: f64,
    local: f64,
    remote: f64,
    limit_by: String,
    worker: String,
}

impl Told {
    fn of(row: &Row) -> Option<Told> {
        let cell = |at: usize| row.get(at)?.as_deref()?.parse::<f64>().ok();
        let whole = |at: usize| cell(at).map(|value| value as u64);
        let text = |at: usize| row.get(at).and_then(|cell| cell.as_deref()).unwrap_or_default().to_owned();
        Some(Told {
            peak: whole(0)?,
            killed: whole(1)?,
            cpu_percent: cell(2)?,
            local: cell(3)?,
            remote: cell(4)?,
            limit_by: text(5),
            worker: text(6),
        })
    }
}

/// Returns the number after a key at the start of a line; 0 if it is missing.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn window(before: &Totals, now: &Totals, cpus: f64, told: &Told) -> Window {
    let seconds = (now.at - before.at).as_secs_f64();
    // The CPU time that a thread has used since the last sample is lost when the thread exits; that is less than the
    // time of one window.
    let cpu_ns: u64 = now
        .threads_ns
        .iter()
        .map(|(thread, ns)| ns.saturating_sub(before.threads_ns.get(thread).copied().unwrap_or(0)))
        .sum();
    let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / MIB / seconds;
    Window {
        cpu_percent: cpu_ns as f64 / 1e9 / seconds / cpus * 100.0,
        read_mib: per_second(now.read, before.read),
        sent_mib: per_second(now.sent, before.sent),
        told_cpu_percent: told.cpu_percent,
        told_local_mib: told.local / MIB,
        told_remote_mib: told.remote / MIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_differences() {
        let at = Instant::now();
        let totals = |after_ms, threads: &[(&str, u64)], read, sent| Totals {
            at: at + Duration::from_millis(after_ms),
            threads_ns: threads.iter().map(|(name, ns)| ((*name).to_owned(), *ns)).collect(),
            read,
            sent,
        };
        let before = totals(0, &[("1", 5_000_000_000), ("2", 1)], 0, 10);
        let now = totals(2_000, &[("1", 6_000_000_000), ("3", 1_000_000_000)], 4 << 20, 10);
        let told = Told {
            peak: 2,
            killed: 3,
            cpu_percent: 49.0,
            local: 2.0 * MIB,
            remote: 0.0,
            limit_by: String::new(),
            worker: String::new(),
        };
        let got = window(&before, &now, 2.0, &told);
        assert_eq!((got.cpu_percent, got.read_mib, got.sent_mib), (50.0, 2.0, 0.0));
        let seen = Watched { windows: vec![Window::default(), got], ..Watched::default() };
        assert_eq!(seen.spread(|window| window.read_mib), Some((1.0, 0.0, 2.0)));
        assert_eq!(Watched::default().mean(|window| window.read_mib), None);
        assert_eq!(field("a: 1\nVmRSS:\t  12 kB\n", "VmRSS:"), 12);
    }
}
