//! Cost of `commensal blame`: two threads on one CPU that do nothing but switch, in pairs of runs with and without the
//! probe.

use anyhow::{Context, bail};
use commensal_blame::{Scope, Subject, WaitProbe};
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::LinuxHost;
use std::io::{Read, Write};
use std::process::Command;
use std::time::Instant;

const PAIRS: usize = 30;
/// Number of runs in each half of a pair. The fastest quartile is evaluated, because other programs and hypervisors can
/// only add time.
const RUNS: usize = 24;
/// Round trips per run; each has two context switches and two wake-ups.
const TRIPS: u32 = 1_500;
const GOAL_NS: f64 = 300.0;

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
    let service = Scope { online: vec![subject(me)?], ..Scope::default() };
    // A process that does not switch: the probe's programs run for the measured threads but do not track them.
    let mut idle = Command::new("sleep").arg("3600").spawn().context("sleep")?;
    let bystander = Scope { online: vec![subject(idle.id())?], ..Scope::default() };
    let arms = [
        ("as the service", Scope { interrupts: true, ..service.clone() }),
        ("as the service, without interrupts", service),
        ("as bystanders", Scope { interrupts: true, ..bystander }),
    ];
    let measured = arms.iter().try_for_each(|(who, scope)| measure(who, &host, scope));
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

fn measure(who: &str, host: &LinuxHost, scope: &Scope) -> anyhow::Result<()> {
    if let Err(error) = WaitProbe::attach(host, scope) {
        println!("cost of blame, {who}: not measured: {error}");
        return Ok(());
    }
    let (mut base, mut added) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // Half of the pairs run in reverse order, so that drift of the machine's speed cancels out.
        let order = if pair % 2 == 0 { [false, true] } else { [true, false] };
        let mut ns = [0.0; 2];
        for with in order {
            let probe = with.then(|| WaitProbe::attach(host, scope)).transpose()?;
            ns[usize::from(with)] = ping_pong()?;
            drop(probe);
        }
        base.push(ns[0]);
        added.push(ns[1] - ns[0]);
    }
    base.sort_by(f64::total_cmp);
    added.sort_by(f64::total_cmp);
    let at = |of: &[f64], share: f64| of[((of.len() - 1) as f64 * share).round() as usize];
    let (base, median) = (at(&base, 0.5), at(&added, 0.5));
    println!(
        "cost of blame, {who}: {median:+.0} ns per switch with its wake-up (quartiles {:+.0} to {:+.0}) on {base:.0} ns, {:+.1} %   \
         goal {GOAL_NS:.0} ns {}",
        at(&added, 0.25),
        at(&added, 0.75),
        median / base * 100.0,
        if median <= GOAL_NS { "met" } else { "MISSED" }
    );
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
