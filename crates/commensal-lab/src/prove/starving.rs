//! Tests facts about a process that starves below level 0 (`cpu.qos_level` of openEuler's kernel): a process at level 0
//! keeps the only CPU that it may use busy.

use super::bench::{Bench, Groups, How, has_exited};
use super::report::{Found, Tried};
use commensal_core::facts::{Amount, Kernel, StarvingFact};
use commensal_core::knob::{Controller, KnobId, Version};
use commensal_core::process::{SCHED_NORMAL, Stat};
use commensal_core::vendor::{QOS_OFFLINE, QOS_PERIOD};
use commensal_host::{Child, Dir, Host, Signal};
use std::path::Path;
use std::time::Duration;

/// Time between a change and its effect on a busy CPU.
const SETTLE: Duration = Duration::from_millis(200);
/// Time after which a process that has not acted counts as one that does not act.
const NOT_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for a process that gets CPU time to act: beside other programs it gets little, at the smallest weight.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of samples of a process in overload, and the time between them.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(100);
/// The longest overload period for which a trial waits.
const LONGEST_PERIOD: Duration = Duration::from_secs(6);

/// Tests all facts about a starving process; none on a kernel without levels.
pub(super) fn try_all(bench: &mut Bench<'_>, kernel: &Kernel) -> Vec<Tried> {
    let facts = StarvingFact::ALL.into_iter().filter(|_| kernel.levels.is_some());
    facts.map(|fact| one(bench, fact)).collect()
}

fn one(bench: &mut Bench<'_>, fact: StarvingFact) -> Tried {
    let found = bench.over().map_or_else(|| in_groups(bench, fact), Err);
    Tried {
        fact: fact.says().to_owned(),
        evidence: StarvingFact::EVIDENCE,
        expected: fact.expected().to_owned(),
        found: found.unwrap_or_else(Found::NotTried),
    }
}

fn in_groups(bench: &mut Bench<'_>, fact: StarvingFact) -> Result<Found, String> {
    let cpu = bench.hierarchy(Controller::Cpu)?;
    let freezer = match fact {
        StarvingFact::Freezer => Some(bench.hierarchy(Controller::Freezer)?),
        _ => None,
    };
    if freezer.is_some_and(|(index, version)| index == cpu.0 || version != Version::V1) {
        return Err("the freezer is not in a v1 hierarchy of its own".to_owned());
    }
    let groups = bench.make(cpu, Controller::Cpu, &["offline".to_owned(), "online".to_owned()])?;
    let frozen = freezer.map(|freezer| bench.make(freezer, Controller::Freezer, &[])).transpose();
    let mut children = Vec::new();
    let found = frozen.as_ref().map_err(Clone::clone).and_then(|frozen| {
        let freezer = frozen.as_ref().map(|frozen| frozen.dirs[0]);
        let found = starve(bench, &groups, freezer, &mut children)
            .and_then(|online| outcome(bench, fact, &mut children, (online, freezer)));
        // A frozen process does not exit, not even on SIGKILL.
        freezer.into_iter().for_each(|dir| drop(freeze(bench, dir, "THAWED")));
        found
    });
    bench.clear(groups, children);
    frozen.into_iter().flatten().for_each(|frozen| bench.clear(frozen, Vec::new()));
    found
}

/// Makes a process starve, the first of `children`, beside another one; returns the cgroup of the other one.
fn starve(
    bench: &mut Bench<'_>,
    groups: &Groups,
    freezer: Option<Dir>,
    children: &mut Vec<Child>,
) -> Result<Dir, String> {
    let [top, offline, online] = groups.dirs[..] else { return Err("a cgroup is missing".to_owned()) };
    let pinned = How { pinned: true, ..How::default() };
    let inside = [offline].into_iter().chain(freezer).collect();
    children.push(bench.start(inside, How { handles_sigterm: true, ..pinned })?);
    children.push(bench.start(vec![online], pinned)?);
    let pid = children[0].process.pid;
    if !bench.until(PATIENCE, |host| handles(host, pid, Signal::TERM)) {
        return Err("a new process got too little CPU time to start".to_owned());
    }
    bench.set(top, Version::V1, KnobId::CpuWeight, Amount::SmallestWeight.number(Version::V1))?;
    bench.set(offline, Version::V1, KnobId::CpuQosLevel, QOS_OFFLINE)?;
    bench.pause(SETTLE);
    let before = bench.ran(&children[0]);
    bench.pause(SETTLE);
    let ran = bench.ran(&children[0]).saturating_sub(before);
    match ran > SETTLE / 20 {
        true => Err(format!("the process does not starve: it ran for {} ms of 200 ms", ran.as_millis())),
        false => Ok(online),
    }
}

/// Finds out what the starving process does.
fn outcome(
    bench: &mut Bench<'_>,
    fact: StarvingFact,
    children: &mut [Child],
    (online, freezer): (Dir, Option<Dir>),
) -> Result<Found, String> {
    let child = &mut children[0];
    let found = match (fact, freezer) {
        (StarvingFact::Handler, _) => {
            signal(bench, child, Signal::TERM)?;
            if bench.until(NOT_WITHIN, |_| has_exited(child)) {
                "exits".to_owned()
            } else {
                lift(bench, child, online)?;
                let exits = bench.until(PATIENCE, |_| has_exited(child));
                format!("runs on, then {}", if exits { "exits" } else { "runs on" })
            }
        }
        (StarvingFact::Kill, _) => {
            signal(bench, child, Signal::KILL)?;
            if bench.until(PATIENCE, |_| has_exited(child)) { "exits" } else { "runs on" }.to_owned()
        }
        (StarvingFact::Freezer, Some(dir)) => {
            freeze(bench, dir, "FROZEN")?;
            bench.pause(SETTLE);
            let first = state(bench.host, dir);
            lift(bench, child, online)?;
            bench.until(PATIENCE, |host| state(host, dir) == "FROZEN");
            format!("{first}, then {}", state(bench.host, dir))
        }
        (StarvingFact::Freezer, None) => return Err("there is no freezer".to_owned()),
        (StarvingFact::Overload, _) => return overload(bench, child),
    };
    let agrees = found == fact.expected();
    Ok(if agrees { Found::Agrees(found) } else { Found::Differs(found) })
}

/// Waits for the overload period, in which the CPU is never idle; then samples the process.
fn overload(bench: &mut Bench<'_>, child: &Child) -> Result<Found, String> {
    let text = bench.host.read_file(Path::new(QOS_PERIOD)).map_err(|error| error.to_string())?;
    let period =
        text.trim().parse().map(Duration::from_millis).map_err(|_| format!("{QOS_PERIOD}: {text}"))?;
    if period > LONGEST_PERIOD {
        return Err(format!("the overload period is {} s", period.as_secs()));
    }
    bench.pause(period + SETTLE);
    let (before, since) = (bench.counters(child), bench.host.boot_time());
    let mut is_in_state_d = false;
    for _ in 0..LOOKS {
        bench.pause(LOOK);
        is_in_state_d |=
            bench.threads(child).iter().any(|tid| letter(bench.host, *tid).as_deref() == Some("D"));
    }
    let (after, took) = (bench.counters(child), bench.host.boot_time().saturating_sub(since));
    let percent = |ns: u64| 100.0 * ns as f64 / (took.as_nanos() as f64).max(1.0);
    let ran = percent(after.run_ns.saturating_sub(before.run_ns));
    let delay = percent(after.delay_ns.saturating_sub(before.delay_ns));
    let state = if is_in_state_d { "state D" } else { "not in state D" };
    let text = format!("{state}, {ran:.2} % of a CPU, {delay:.1} % run delay");
    Ok(match StarvingFact::agrees(is_in_state_d, ran, delay) {
        true => Found::Agrees(text),
        false => Found::Differs(text),
    })
}

/// Moves a process to a cgroup at level 0, and gives it the normal policy, which it has lost.
fn lift(bench: &mut Bench<'_>, child: &Child, to: Dir) -> Result<(), String> {
    bench.enter(child, to)?;
    // A failure is ignored: the process may handle a signal as soon as it is there, and exit.
    let _ = bench.set_policy(child, SCHED_NORMAL);
    Ok(())
}

fn signal(bench: &mut Bench<'_>, child: &Child, signal: Signal) -> Result<(), String> {
    bench.host.signal(&child.process, signal).map_err(|error| error.to_string())
}

/// Whether a process has a handler for this signal (`SigCgt` in proc(5)).
fn handles(host: &dyn Host, pid: u32, signal: Signal) -> bool {
    let status = host.read_file(Path::new(&format!("/proc/{pid}/status"))).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.0 - 1) & 1 == 1)
}

/// The state of a thread, as the letter of proc(5).
fn letter(host: &dyn Host, tid: u32) -> Option<String> {
    let text = host.read_file(Path::new(&format!("/proc/{tid}/stat"))).ok()?;
    Stat::parse(&text)?.text(3).map(str::to_owned)
}

fn freezer_file() -> &'static str {
    KnobId::CgroupFreeze.row().file(Version::V1).map_or("freezer.state", |file| file.name)
}

/// Requests a state of the v1 freezer.
fn freeze(bench: &mut Bench<'_>, dir: Dir, to: &str) -> Result<(), String> {
    bench.host.write(dir, freezer_file(), to).map_err(|error| error.to_string())
}

/// The state that the v1 freezer reports.
fn state(host: &mut dyn Host, dir: Dir) -> String {
    host.read(dir, freezer_file()).map_or_else(|error| error.errno.to_string(), |text| text.trim().to_owned())
}
