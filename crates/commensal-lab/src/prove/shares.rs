//! Tests facts about CPU time. In each trial, processes in sibling cgroups compete for one CPU. They form two sides,
//! whose settings differ.

use super::bench::{Bench, Groups, How, has_exited};
use super::report::{Found, Tried};
use commensal_core::facts::{Amount, HoldsOn, Kernel, SHARES, ShareFact, ShareSide, Tasks};
use commensal_core::knob::{Controller, KnobId, Version};
use commensal_core::process::SCHED_NORMAL;
use commensal_host::{Child, Dir};
use std::time::Duration;

/// Time between the start of the processes and the measurement.
const SETTLE: Duration = Duration::from_millis(200);
/// Interval between two samples.
const LOOK: Duration = Duration::from_millis(100);
/// Total CPU time of both sides after which the measurement ends.
const ENOUGH: Duration = Duration::from_millis(1500);
/// Maximum number of samples. After the last one, the trial has a result only if both sides together used at least
/// [`LEAST`].
const LOOKS: u32 = 40;
const LEAST: Duration = Duration::from_millis(300);

/// Tests the facts about this kernel for which `wanted` returns true. With an `obstacle`, tests none and reports the
/// obstacle as the reason.
pub(super) fn try_all(
    bench: &mut Bench<'_>,
    kernel: &Kernel,
    wanted: &dyn Fn(HoldsOn) -> bool,
    obstacle: Option<&str>,
) -> Vec<Tried> {
    let version = bench.hierarchy(Controller::Cpu).map_or(Version::V2, |(_, version)| version);
    let caps = &bench.survey.caps;
    let facts = SHARES.iter().filter(|fact| {
        let lacks = |knob: KnobId| caps.obstacle(knob, version).is_some();
        fact.on.holds(kernel) && wanted(fact.on) && !fact.knobs().any(lacks)
    });
    let facts: Vec<&ShareFact> = facts.collect();
    facts.into_iter().map(|fact| one(bench, fact, obstacle)).collect()
}

fn one(bench: &mut Bench<'_>, fact: &ShareFact, obstacle: Option<&str>) -> Tried {
    let obstacle = obstacle.map(str::to_owned).or_else(|| bench.over());
    let found = match obstacle {
        Some(because) => Found::NotTried(because),
        None => match percent(bench, fact) {
            Ok(Part::Measured(percent)) if fact.agrees(percent) => Found::Agrees(format!("{percent:.1} %")),
            Ok(Part::Measured(percent)) => Found::Differs(format!("{percent:.1} %")),
            Ok(Part::Refused(answer)) => Found::Differs(answer),
            Err(because) => Found::NotTried(because),
        },
    };
    let (says, evidence) = (fact.says.to_owned(), fact.evidence);
    Tried { fact: says, evidence, expected: fact.expected(), found }
}

/// The result of a measurement of two sides that share a CPU.
enum Part {
    /// Share of the CPU time that the first side got, in per cent.
    Measured(f64),
    /// The kernel's answer to a setting, if it refused the setting.
    Refused(String),
}

fn percent(bench: &mut Bench<'_>, fact: &ShareFact) -> Result<Part, String> {
    let hierarchy = bench.hierarchy(Controller::Cpu)?;
    let first = (0..fact.first.groups).map(|number| format!("first{number}"));
    let names: Vec<String> =
        first.chain((0..fact.other.groups).map(|number| format!("other{number}"))).collect();
    let groups = bench.make(hierarchy, Controller::Cpu, &names)?;
    let mut children = Vec::new();
    let part = compete(bench, fact, hierarchy.1, &groups, &mut children);
    bench.clear(groups, children);
    part
}

fn compete(
    bench: &mut Bench<'_>,
    fact: &ShareFact,
    version: Version,
    groups: &Groups,
    children: &mut Vec<Child>,
) -> Result<Part, String> {
    let mut sides: Vec<(ShareSide, Dir)> = Vec::new();
    for (number, dir) in groups.dirs[1..].iter().enumerate() {
        sides.push((if number < fact.first.groups { fact.first } else { fact.other }, *dir));
    }
    // The processes start before the settings are written: with the smallest weight beside busy programs, or in a
    // throttled cgroup, a new process would hardly reach its program.
    for (side, dir) in &sides {
        let how = How { pinned: true, idle: side.tasks == Tasks::Idle, ..How::default() };
        children.push(bench.start(vec![*dir], how)?);
    }
    // Both sides together get the smallest weight, so that the trial hardly slows other programs on this CPU.
    let smallest = Amount::SmallestWeight.number(version);
    bench.set(groups.dirs[0], version, KnobId::CpuWeight, smallest)?;
    for (side, dir) in &sides {
        for (knob, amount) in side.settings {
            if let Err(answer) = bench.set(*dir, version, *knob, amount.number(version)) {
                return Ok(Part::Refused(answer));
            }
        }
    }
    for ((side, _), child) in sides.iter().zip(children.iter()) {
        if side.tasks == Tasks::SetNormal {
            bench.set_policy(child, SCHED_NORMAL)?;
        }
    }
    bench.pause(SETTLE);
    measure(bench, children, fact.first.groups)
}

/// Lets the processes compete until they have used enough CPU time together; returns the share of the first side.
fn measure(bench: &mut Bench<'_>, children: &mut [Child], first: usize) -> Result<Part, String> {
    let before: Vec<Duration> = children.iter().map(|child| bench.ran(child)).collect();
    let mut used = Vec::new();
    for _ in 0..LOOKS {
        bench.pause(LOOK);
        used = children
            .iter()
            .zip(&before)
            .map(|(child, before)| bench.ran(child).saturating_sub(*before))
            .collect();
        if used.iter().sum::<Duration>() >= ENOUGH {
            break;
        }
    }
    if children.iter_mut().any(has_exited) {
        return Err("a process that should compute has exited".to_owned());
    }
    let all: Duration = used.iter().sum();
    if all < LEAST {
        return Err(format!(
            "other work kept CPU {} busy: the trial got only {} ms of CPU time in 4 s",
            bench.cpu,
            all.as_millis()
        ));
    }
    let part: Duration = used[..first].iter().sum();
    Ok(Part::Measured(100.0 * part.as_secs_f64() / all.as_secs_f64()))
}
