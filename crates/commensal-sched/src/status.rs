//! What the scheduler does, in numbers: as JSON for programs, as text for people.

use crate::counters::{Counters, SlotReading};
use crate::order::Standing;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What is in force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On its way.
    #[default]
    Starting,
    /// The scheduler has the offline threads.
    Running,
    /// Offline groups are frozen, since online work leaves them nothing.
    Frozen,
    /// The kernel has taken it off; the fallback holds, and it will be loaded again.
    Ejected,
    /// The kernel has taken it off and it stays off; the fallback holds.
    GivenUp,
}

/// All that is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// True.
    pub ok: bool,
    /// Process of the daemon.
    pub pid: u32,
    /// What is in force.
    pub mode: Mode,
    /// Number of the orders in force.
    pub generation: u64,
    /// Seconds since the scheduler was loaded.
    pub loaded_s: u64,
    /// Threads under the scheduler.
    pub threads: usize,
    /// Real-time threads of offline groups, which it leaves alone.
    pub realtime: usize,
    /// Threads whose policy somebody else had changed and that were brought back.
    pub drifted: u64,
    /// Time without a scheduler when this one took over from another, ms.
    pub upgrade_gap_ms: Option<f64>,
    /// How often offline groups were frozen.
    pub freezes: u64,
    /// How often it was loaded again after an ejection.
    pub reloads: u64,
    /// Why the kernel took it off last.
    pub ejected: Option<String>,
    /// What is refused or missing now.
    pub problems: Vec<String>,
    /// The orders, as they came, by owner.
    pub orders: Standing,
    /// Each offline group.
    pub groups: Vec<GroupStatus>,
    /// Of the machine since the scheduler was loaded.
    pub counters: Counters,
}

/// An offline group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its directory.
    pub cgroup: String,
    /// Whether it is there.
    pub found: bool,
    /// Threads in and below it.
    pub threads: usize,
    /// Cgroups in it that are weighed apart.
    pub slots: usize,
    /// Share of the offline CPU time, of 1.
    pub share: f64,
    /// Whether `cpu.idle` holds it down when the scheduler is gone.
    pub fallback: bool,
    /// Sums over its slots.
    #[serde(flatten)]
    pub reading: SlotReading,
}

/// For people.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut out = String::new();
    let mode = match status.mode {
        Mode::Starting => "starting",
        Mode::Running => "running",
        Mode::Frozen => "offline groups are frozen: online work leaves them nothing",
        Mode::Ejected => "taken off by the kernel, to be loaded again; the fallback holds",
        Mode::GivenUp => "taken off by the kernel for good; the fallback holds",
    };
    let _ = writeln!(
        out,
        "scheduler   {mode}, for {} s; {} threads, orders {}",
        status.loaded_s, status.threads, status.generation
    );
    let c = &status.counters;
    let s = |ns: u64| ns as f64 / 1e9;
    let _ = writeln!(
        out,
        "CPU time    offline {:.1} s, online {:.1} s, expelling {:.1} s, other {:.1} s, idle {:.1} s",
        s(c.ns[2]),
        s(c.ns[3]),
        s(c.ns[4]),
        s(c.ns[1]),
        s(c.ns[0])
    );
    match c.overlap() {
        Some(share) => {
            let us = |ns: u64| ns as f64 / 1e3;
            let mean = if c.evictions > 0 { us(c.evict_ns) / c.evictions as f64 } else { 0.0 };
            let _ = writeln!(
                out,
                "noise       offline beside expelling threads {:.2} % of their time (longest {:.0} us)\n\
                 evictions   {} ({} by the tick), mean {mean:.0} us, longest {:.0} us; {} refused, {} resumed",
                share * 100.0,
                us(c.overlap_max_ns),
                c.evictions,
                c.by_ticks,
                us(c.evict_max_ns),
                c.refusals,
                c.resumes
            );
        }
        None => out.push_str("noise       no thread of an expelling group has run\n"),
    }
    let _ = writeln!(
        out,
        "made way    {} CPUs vacated for waiting online threads, {} offers of the kernel declined; {} freezes, {} reloads",
        c.vacated, c.declined, status.freezes, status.reloads
    );
    if let Some(ejected) = &status.ejected {
        let _ = writeln!(out, "ejected     {ejected}");
    }
    for group in &status.groups {
        let missing = if group.found { "" } else { " (not there)" };
        let under = if group.fallback { "cpu.idle underneath" } else { "nothing underneath" };
        let _ = writeln!(
            out,
            "group       {}{missing}: {:.1} % of offline time, {} threads ({} wait), {:.1} s run, longest wait {:.0} ms, {under}",
            group.cgroup,
            group.share * 100.0,
            group.threads,
            group.reading.queued,
            s(group.reading.run_ns),
            group.reading.waited_max_ns.max(group.reading.oldest_ns) as f64 / 1e6
        );
    }
    for problem in &status.problems {
        let _ = writeln!(out, "problem     {problem}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_for_people_has_the_numbers() {
        let mut status = Status { ok: true, mode: Mode::Running, threads: 4, ..Status::default() };
        assert!(text(&status).contains("no thread of an expelling group"));
        status.counters.expelling_ns = 1_000_000_000;
        status.counters.overlap_ns = 7_000_000;
        (status.counters.evictions, status.counters.by_ticks) = (10, 1);
        status.counters.evict_ns = 500_000;
        status.groups.push(GroupStatus {
            cgroup: "/g".to_owned(),
            found: true,
            share: 0.25,
            ..GroupStatus::default()
        });
        let shown = text(&status);
        for part in
            ["0.70 %", "10 (1 by the tick), mean 50 us", "/g: 25.0 % of offline time", "nothing underneath"]
        {
            assert!(shown.contains(part), "{shown}");
        }
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    }
}
