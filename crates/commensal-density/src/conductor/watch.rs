//! Reads the counters of an attempt (one measurement of all cells) at its start, every second, and at its end.

use crate::cells::Cells;
use crate::experiment::{Backend, Cell, Pattern};
use crate::pin::vcpu_of_thread;
use crate::record::Tick;
use commensal_core::observe::MachineCpu;
use commensal_host::Host;
use commensal_reconcile::members;
use commensal_sensors::machine;
use commensal_sensors::run_delay::RunDelay;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// CPU time and run delay of all cells so far (ns). The run delay of a VM's threads counts as the VM's steal.
#[derive(Debug, Clone, Copy)]
struct Sum {
    at: Instant,
    run_ns: u64,
    delay_ns: u64,
    /// CPU time from the cgroups' counters (ns), which includes threads that have exited; `None` if the kernel lacks
    /// these counters.
    used_ns: Option<u64>,
}

/// Samples the counters of an attempt.
#[derive(Debug)]
pub(super) struct Watch {
    delays: Vec<RunDelay>,
    /// Number of vCPUs of all cells.
    vcpus: f64,
    /// Whether the samples cover all threads of a cell. For a VM, they cover the vCPU threads only.
    all: bool,
    first: Option<Sum>,
    last: Option<Sum>,
    machine: Option<MachineCpu>,
    counters: BTreeMap<String, u64>,
    logs: BTreeMap<String, u64>,
    /// CPU use and steal, one entry per second.
    pub series: Vec<Tick>,
}

/// Results computed from the counters of an attempt.
#[derive(Debug, Default)]
pub(super) struct CellSample {
    pub usage_pct: Option<f64>,
    pub steal_pct: Option<f64>,
    pub unseen_pct: Option<f64>,
    pub outer_steal_pct: Option<f64>,
    pub counters: BTreeMap<String, u64>,
    pub warnings: BTreeMap<String, u64>,
    pub series: Vec<Tick>,
}

impl Watch {
    pub fn begin(host: &mut dyn Host, cells: &Cells, cell: &Cell, patterns: &[Pattern]) -> Watch {
        let all = cell.backend == Backend::Group;
        let delays = || match all {
            true => RunDelay::default(),
            false => RunDelay::of_named(|name| vcpu_of_thread(name).is_some()),
        };
        let mut watch = Watch {
            delays: cells.groups.iter().map(|_| delays()).collect(),
            vcpus: cells.groups.len() as f64 * f64::from(cell.vcpu),
            all,
            first: None,
            last: None,
            machine: machine::cpu_time(host),
            counters: counters(host, cells),
            logs: warnings(host, patterns),
            series: Vec::new(),
        };
        // The cgroups are new, so OOM kills before the first sample also belong to this attempt.
        watch.counters.remove(super::attempt::KILLED);
        watch.first = watch.sum(host, cells);
        watch.last = watch.first;
        watch
    }

    fn sum(&mut self, host: &mut dyn Host, cells: &Cells) -> Option<Sum> {
        let mut sum = Sum { at: Instant::now(), run_ns: 0, delay_ns: 0, used_ns: Some(0) };
        for (group, delays) in cells.groups.iter().zip(&mut self.delays) {
            let pids = members::pids(host, group.any()?).ok()?;
            let stat = delays.of(host, &pids)?;
            sum.run_ns += stat.run_ns;
            sum.delay_ns += stat.delay_ns;
            let used = group.cpu_us(host).filter(|_| self.all);
            sum.used_ns = sum.used_ns.zip(used).map(|(sum, us)| sum + us * 1_000);
        }
        Some(sum)
    }

    /// Returns CPU time and steal between two samples, in per cent of the cells' vCPU time.
    fn pct(&self, from: Sum, to: Sum) -> Option<(f64, f64)> {
        let wall_ns = (to.at - from.at).as_nanos() as f64 * self.vcpus;
        let pct = |from: u64, to: u64| to.saturating_sub(from) as f64 / wall_ns * 100.0;
        (wall_ns > 0.0).then(|| (pct(from.run_ns, to.run_ns), pct(from.delay_ns, to.delay_ns)))
    }

    /// Returns the CPU time of threads that started and exited between two samples, in per cent of all CPU time. No
    /// sample contains these threads.
    fn unseen_pct(from: Sum, to: Sum) -> Option<f64> {
        let used = to.used_ns?.saturating_sub(from.used_ns?) as f64;
        let seen = to.run_ns.saturating_sub(from.run_ns) as f64;
        (used > 0.0).then(|| ((used - seen) / used * 100.0).max(0.0))
    }

    /// Adds an entry to the series; called once per second.
    pub fn tick(&mut self, host: &mut dyn Host, cells: &Cells) {
        let now = self.sum(host, cells);
        if let (Some(first), Some(last), Some(now)) = (self.first, self.last, now) {
            let pct = self.pct(last, now);
            self.series.push(Tick {
                t_s: (now.at - first.at).as_secs_f64(),
                usage_pct: pct.map(|(usage, _)| usage),
                steal_pct: pct.map(|(_, steal)| steal),
            });
        }
        self.last = now.or(self.last);
    }

    pub fn end(mut self, host: &mut dyn Host, cells: &Cells, patterns: &[Pattern]) -> CellSample {
        let now = self.sum(host, cells);
        let pct = self.first.zip(now).and_then(|(first, now)| self.pct(first, now));
        let passed = machine::cpu_time(host).zip(self.machine).map(|(now, then)| now.since(&then));
        let outer = passed.and_then(|passed| {
            let whole = passed.busy_us() + passed.idle_us + passed.steal_us?;
            (whole > 0).then(|| passed.steal_us.unwrap_or(0) as f64 / whole as f64 * 100.0)
        });
        let since = |now: BTreeMap<String, u64>, then: &BTreeMap<String, u64>| -> BTreeMap<String, u64> {
            now.into_iter()
                .map(|(name, count)| {
                    let before = then.get(&name).copied().unwrap_or(0);
                    (name, count.saturating_sub(before))
                })
                .collect()
        };
        CellSample {
            usage_pct: pct.map(|(usage, _)| usage),
            steal_pct: pct.map(|(_, steal)| steal),
            unseen_pct: self.first.zip(now).and_then(|(first, now)| Watch::unseen_pct(first, now)),
            outer_steal_pct: outer,
            counters: since(counters(host, cells), &self.counters),
            warnings: since(warnings(host, patterns), &self.logs),
            series: std::mem::take(&mut self.series),
        }
    }
}

/// Returns the number of OOM kills in and below these cgroups since the cgroups were created; `None` if the kernel lacks
/// this counter.
pub(super) fn killed(host: &mut dyn Host, cells: &Cells) -> Option<u64> {
    let kills: Vec<u64> = cells.groups.iter().filter_map(|group| group.out_of_memory(host).kills).collect();
    (!kills.is_empty()).then(|| kills.iter().sum())
}

/// Returns kernel counters by name: datagrams dropped for lack of buffer space (`/proc/net/snmp`), throttled periods,
/// OOM kills.
fn counters(host: &mut dyn Host, cells: &Cells) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let snmp = host.read_file(Path::new("/proc/net/snmp")).unwrap_or_default();
    counters.extend(udp_dropped(&snmp).map(|count| ("udp-rcvbuf-errors".to_owned(), count)));
    let throttled: Vec<u64> =
        cells.groups.iter().filter_map(|group| group.others(host).nr_throttled).collect();
    if !throttled.is_empty() {
        counters.insert("throttled-periods".to_owned(), throttled.iter().sum());
    }
    counters.extend(killed(host, cells).map(|count| (super::attempt::KILLED.to_owned(), count)));
    counters
}

/// Returns `RcvbufErrors` from `/proc/net/snmp`. Of the two lines that start with `Udp:`, the first has the names and
/// the second has the values.
fn udp_dropped(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Udp:"));
    let place = lines.next()?.split_whitespace().position(|name| name == "RcvbufErrors")?;
    lines.next()?.split_whitespace().nth(place)?.parse().ok()
}

/// Maximum size of a log file in bytes. Of a larger file, the host returns only the beginning, which contains no new
/// lines.
const LONGEST_LOG: usize = 16 << 20;

/// Counts the log lines that are warnings, by name of the warning. If a log file cannot be read completely, its
/// warnings are missing from the result, rather than 0.
fn warnings(host: &dyn Host, patterns: &[Pattern]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for pattern in patterns {
        let Ok(text) = host.read_file(Path::new(&pattern.file)) else { continue };
        if text.len() >= LONGEST_LOG {
            continue;
        }
        let count = text.lines().filter(|line| pattern.is_in(line)).count();
        *counts.entry(pattern.name.clone()).or_insert(0) += count as u64;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_datagrams_are_found_by_name() {
        let text = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 1 2 3 4 5\nUdpLite: InDatagrams\n";
        assert_eq!(udp_dropped(text), Some(5));
        assert_eq!(udp_dropped("Udp: InDatagrams\nUdp: 1\n"), None);
        assert_eq!(udp_dropped(""), None);
    }
}
