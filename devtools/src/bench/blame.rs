//! Cost of the probe: two threads on one CPU that do nothing but switch, in pairs of runs with and without the probe, as
//! `commensal blame` and as the agent load it. Either the two threads are the target, or somebody else is.

use anyhow::{Context, bail};
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::LinuxHost;
use std::io::{Read, Write};
use std::process::Command;
use std::time::Instant;

const PAIRS: usize = 20;
/// Number of runs in each half of a pair. The fastest quartile is evaluated, because other programs and hypervisors can
/// only add time.
const RUNS: usize = 24;
/// Round trips per run; each has two context switches and two wake-ups.
const TRIPS: u32 = 1_500;
/// Goals for the switches of a target, and of everybody else (ns).
const GOALS_NS: [f64; 2] = [300.0, 100.0];

/// Measures and prints the cost.
pub fn run() -> anyhow::Result<()> {
    let host = LinuxHost::new();
    let machine = commensal_sensors::machine::machine(&host)?;
    let last = machine.topology.all().iter().last().unwrap_or(0);
    let me = std::process::id();
    // The setting also applies to threads that are started later.
    let pinned = Command::new("taskset").args(["-a", "-pc", &last.to_string(), &me.to_string()]).output();
    if !pinned.context("taskset")?.status.success() {
        bail!("taskset cannot pin this process to CPU {last}");
    }
    // A process that does not switch: the probe's programs run for the measured threads but do not track them.
    let mut idle = Command::new("sleep").arg("3600").spawn().context("sleep")?;
    let asleep = subject(idle.id());
    let measured = asleep.and_then(|asleep| {
        let blame = Scope { interrupts: true, commands: true, ..Scope::default() };
        let agent = Scope { interrupts: true, by_target: true, ..Scope::default() };
        for (who, scope) in [("blame", blame), ("the agent", agent)] {
            for (whose, target, goal_ns) in
                [("target's", subject(me)?, GOALS_NS[0]), ("others'", asleep.clone(), GOALS_NS[1])]
            {
                let scope = Scope { online: vec![target], ..scope.clone() };
                measure(&format!("{who}, the {whose} switches"), &host, (&scope, true), Some(goal_ns))?;
            }
        }
        let idle = Scope { online: vec![asleep], interrupts: true, ..Scope::default() };
        measure("attached, and not counting", &host, (&idle, false), None)
    });
    idle.kill()?;
    idle.wait()?;
    measured
}

/// The process with this PID, as a target of the probe.
fn subject(pid: u32) -> anyhow::Result<Subject> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let start_ticks = Stat::parse(&stat).and_then(|stat| stat.start_ticks()).context("/proc/PID/stat")?;
    Ok(Subject::Processes(vec![ProcessId { pid, start_ticks }]))
}

/// `counts` says whether the attached programs count, or return at once.
fn measure(
    who: &str,
    host: &LinuxHost,
    (scope, counts): (&Scope, bool),
    goal_ns: Option<f64>,
) -> anyhow::Result<()> {
    if let Err(error) = WaitProbe::attach(host, scope) {
        println!("{who}: not measured: {error}");
        return Ok(());
    }
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        // Half of the pairs run in reverse order, so that drift of the machine's speed cancels out.
        let order = if pair % 2 == 0 { [false, true] } else { [true, false] };
        let mut ns = [0.0; 2];
        for with in order {
            let mut probe = with.then(|| WaitProbe::attach(host, scope)).transpose()?;
            if let Some(probe) = probe.as_mut().filter(|_| !counts) {
                probe.stop(host)?;
            }
            ns[usize::from(with)] = ping_pong()?;
            drop(probe);
        }
        pairs.push(ns);
    }
    let sorted = |of: &dyn Fn(&[f64; 2]) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let at = |of: &[f64], share: f64| of[((of.len() - 1) as f64 * share).round() as usize];
    let (base, added) = (sorted(&|[without, _]| *without), sorted(&|[without, with]| with - without));
    let (base, median) = (at(&base, 0.5), at(&added, 0.5));
    let goal = goal_ns.map_or(String::new(), |goal| {
        format!("   goal {goal:.0} ns {}", if median <= goal { "met" } else { "MISSED" })
    });
    println!(
        "{who}: {median:+.0} ns per switch with its wake-up (quartiles {:+.0} to {:+.0}) on {base:.0} ns, {:+.1} %{goal}",
        at(&added, 0.25),
        at(&added, 0.75),
        median / base * 100.0,
    );
    let raw = pairs.iter().map(|[without, with]| format!("{without:.0} {with:.0}"));
    println!("  pairs without and with it: {}", raw.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Passes a byte back and forth between two threads; returns the time per switch in ns.
fn ping_pong() -> anyhow::Result<f64> {
    let (mut here, mut there_to_here) = std::io::pipe()?;
    let (mut there, mut here_to_there) = std::io::pipe()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut byte = [0];
        while there.read(&mut byte)? == 1 {
            there_to_here.write_all(&byte)?;
        }
        Ok(())
    });
    let mut runs = Vec::new();
    let mut byte = [1];
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..TRIPS {
            here_to_there.write_all(&byte)?;
            here.read_exact(&mut byte)?;
        }
        runs.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TRIPS));
    }
    drop(here_to_there);
    if !matches!(echo.join(), Ok(Ok(()))) {
        bail!("the other side of the ping-pong ended early");
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[RUNS / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_goes_to_and_fro() {
        assert!(ping_pong().unwrap() > 0.0);
    }
}
