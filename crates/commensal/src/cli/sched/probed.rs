//! Measures with the probe, independently of the scheduler, which tasks held the CPU while online threads of the
//! scheduler's groups waited, and which tasks ran on the sibling hardware threads of their cores.

use crate::cli::blame;
use crate::context::Context;
use anyhow::Context as _;
use commensal_blame::{Figures, Histogram, Kind, Scope, Subject, WaitProbe};
use commensal_core::group::Class;
use commensal_core::scheduler::protocol::Status;
use commensal_host::Host;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Result of the probe.
#[derive(Debug)]
pub enum Probed {
    /// The probe was not requested.
    NotAsked,
    /// No online group is configured in the scheduler.
    NoSubject,
    /// The probe could not run, for this reason.
    Absent(String),
    /// The measurement.
    Seen(Box<LookSums>),
}

/// Sums over one measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct LookSums {
    /// Length of the measurement in s.
    pub seconds: f64,
    /// CPU time of online threads in s.
    pub run_s: f64,
    /// Share of `run_s` with offline work on a sibling thread of the core; `None` when no online thread ran.
    pub overlap: Option<f64>,
    /// Wait caused by offline work, in ms per second of `run_s`.
    pub blame_ms_per_s: Option<f64>,
    /// How long offline work kept a CPU on which an online thread was woken, in us: median and P99.
    pub preempt_us: Option<(f64, f64)>,
    /// Number of delays in `preempt_us`.
    pub preempts: u64,
    /// How long offline work stayed on a sibling thread after an online thread started on the core, in us: median and
    /// P99.
    pub evict_us: Option<(f64, f64)>,
    /// Number of delays in `evict_us`.
    pub evictions: u64,
}

impl LookSums {
    /// Computes the sums from the probe's counters.
    pub fn new(figures: &Figures) -> LookSums {
        let run_ns = figures.counters.run_ns as f64;
        let of_run = |ns: u64| (run_ns > 0.0).then(|| ns as f64 / run_ns);
        let quantiles = |delay: &Histogram| {
            let us = |share: f64| delay.quantile(share).map(|ns| ns / 1e3);
            us(0.5).zip(us(0.99))
        };
        LookSums {
            seconds: figures.time_ns as f64 / 1e9,
            run_s: run_ns / 1e9,
            overlap: of_run(figures.counters.overlap_ns),
            blame_ms_per_s: of_run(figures.wait.of(Kind::Offline)).map(|share| share * 1e3),
            preempt_us: quantiles(&figures.preempt_delay),
            preempts: figures.preempt_delay.count(),
            evict_us: quantiles(&figures.evict_delay),
            evictions: figures.evict_delay.count(),
        }
    }
}

impl Probed {
    /// The result as JSON.
    pub fn as_json(&self) -> Value {
        match self {
            Probed::NotAsked | Probed::NoSubject => Value::Null,
            Probed::Absent(because) => json!({ "absent": because }),
            Probed::Seen(seen) => json!({
                "seconds": seen.seconds, "online_run_s": seen.run_s, "overlap": seen.overlap,
                "blame_ms_per_cpu_s": seen.blame_ms_per_s,
                "preempts": seen.preempts, "preempt_us": as_json(seen.preempt_us),
                "evictions": seen.evictions, "evict_us": as_json(seen.evict_us),
            }),
        }
    }

    /// The result as text.
    pub fn text(&self) -> String {
        let seen = match self {
            Probed::NotAsked => return String::new(),
            Probed::NoSubject => {
                return "probe       no online group is configured in the scheduler, so there are no waits to measure\n"
                    .to_owned();
            }
            Probed::Absent(because) => return format!("probe       none: {because}\n"),
            Probed::Seen(seen) => seen,
        };
        let (Some(overlap), Some(blame)) = (seen.overlap, seen.blame_ms_per_s) else {
            return format!("probe       no online thread had a CPU in {:.1} s\n", seen.seconds);
        };
        let mut out = format!(
            "probe       in {:.1} s, of {:.2} s that online threads had a CPU: offline on the other threads of their cores {:.2} %, \
             wait blamed on offline {blame:.1} ms per CPU-second\n",
            seen.seconds,
            seen.run_s,
            overlap * 100.0
        );
        let delays = [
            ("a CPU on which an online thread was woken", seen.preempt_us, seen.preempts),
            (
                "another thread of a core on which an online thread started to run",
                seen.evict_us,
                seen.evictions,
            ),
        ];
        for (place, us, times) in delays {
            let _ = match us {
                Some((p50, p99)) => writeln!(
                    out,
                    "            offline work left {place} within {p50:.0} us (median), {p99:.0} us (P99), {times} times"
                ),
                None => writeln!(out, "            offline work was never on {place}"),
            };
        }
        out
    }
}

fn as_json(us: Option<(f64, f64)>) -> Value {
    us.map_or(Value::Null, |(p50, p99)| json!({ "p50": p50, "p99": p99 }))
}

/// Runs the probe for `time`.
pub fn look(context: &mut Context, status: &Status, time: Duration) -> Probed {
    let online = subjects(&mut context.host, status, Class::Online);
    if online.is_empty() {
        return Probed::NoSubject;
    }
    let offline = subjects(&mut context.host, status, Class::Offline);
    let unified = blame::target::look(context).ok().flatten().is_none_or(|found| found.unified);
    let scope = Scope { online, offline, unified, interrupts: true, ..Scope::default() };
    match measure(&context.host, &scope, time) {
        Ok(figures) => Probed::Seen(Box::new(LookSums::new(&figures))),
        Err(error) => Probed::Absent(format!("{error:#}")),
    }
}

fn measure(host: &dyn Host, scope: &Scope, time: Duration) -> anyhow::Result<Figures> {
    let mut probe = WaitProbe::attach(host, scope)?;
    let first = probe.beginning();
    std::thread::sleep(time);
    probe.stop(host)?;
    Ok(probe.read(host).context("cannot read the probe's figures")?.since(&first))
}

/// The existing groups of one class that the scheduler is configured for.
fn subjects(host: &mut dyn Host, status: &Status, class: Class) -> Vec<Subject> {
    let ordered = status.orders.0.values().flat_map(|orders| &orders.groups);
    let mut found = Vec::new();
    for (cgroup, _) in ordered.filter(|(_, order)| order.class == class) {
        if let Ok(dir) = host.open(Path::new(cgroup)) {
            found.push(Subject::Cgroups(vec![dir.inode]));
            host.close(dir);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_saw_is_related_to_the_time_that_online_threads_had() {
        let mut figures = Figures { time_ns: 2_000_000_000, ..Figures::default() };
        let told = |figures: &Figures| Probed::Seen(Box::new(LookSums::new(figures))).text();
        assert!(told(&figures).contains("no online thread had a CPU in 2.0 s"));
        (figures.counters.run_ns, figures.counters.overlap_ns) = (500_000_000, 5_000_000);
        figures.wait.0[Kind::Offline as usize] = 20_000_000;
        let text = told(&figures);
        assert!(text.contains("1.00 %, wait blamed on offline 40.0 ms per CPU-second"), "{text}");
        assert!(
            text.contains("offline work was never on a CPU on which an online thread was woken"),
            "{text}"
        );
        let mut counts = vec![0; 64];
        counts[20] = 3;
        figures.preempt_delay = Histogram::new(counts);
        let text = told(&figures);
        assert!(
            text.contains(", 3 times") && text.contains("offline work was never on another thread"),
            "{text}"
        );
        figures.evict_delay = figures.preempt_delay.clone();
        assert_eq!(told(&figures).matches(", 3 times").count(), 2);
    }
}
