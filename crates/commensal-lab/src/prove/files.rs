//! Tests facts about vendors' control files. Each trial performs a fact's operations in a new cgroup, and compares the
//! kernel's answers with the expected ones.

use super::bench::{Bench, Groups, How, errno};
use super::report::{Found, Tried};
use commensal_core::facts::{FILES, FileFact, HoldsOn, Kernel, Op, policy_name};
use commensal_core::knob::{Controller, KnobId, Version};
use commensal_core::process::Stat;
use commensal_host::{Child, Dir};
use std::path::Path;

/// Tests the facts about this kernel for which `wanted` returns true. With an `obstacle`, tests none and reports the
/// obstacle as the reason.
pub(super) fn try_all(
    bench: &mut Bench<'_>,
    kernel: &Kernel,
    wanted: &dyn Fn(HoldsOn) -> bool,
    obstacle: Option<&str>,
) -> Vec<Tried> {
    let facts = FILES.iter().filter(|fact| fact.on.holds(kernel) && wanted(fact.on));
    facts.map(|fact| one(bench, fact, obstacle)).collect()
}

fn one(bench: &mut Bench<'_>, fact: &FileFact, obstacle: Option<&str>) -> Tried {
    let obstacle = obstacle.map(str::to_owned).or_else(|| bench.over());
    let answers = match obstacle {
        Some(because) => Err(because),
        None => answers(bench, fact),
    };
    let says = fact.says.to_owned();
    match answers {
        Ok(found) => Tried::compared(says, fact.evidence, fact.expected(), found),
        Err(because) => Tried {
            fact: says,
            evidence: fact.evidence,
            expected: fact.expected(),
            found: Found::NotTried(because),
        },
    }
}

/// Performs the operations of a fact; returns the kernel's answers.
fn answers(bench: &mut Bench<'_>, fact: &FileFact) -> Result<String, String> {
    let hierarchy = bench.hierarchy(Controller::Cpu)?;
    let mut groups = bench.make(hierarchy, Controller::Cpu, &[])?;
    let mut children = Vec::new();
    let answers = operations(bench, fact.ops, hierarchy.1, &mut groups, &mut children);
    bench.clear(groups, children);
    answers.map(|answers| answers.join(", "))
}

fn operations(
    bench: &mut Bench<'_>,
    ops: &[Op],
    version: Version,
    groups: &mut Groups,
    children: &mut Vec<Child>,
) -> Result<Vec<String>, String> {
    let mut dir = groups.dirs[0];
    let mut answers = Vec::new();
    for op in ops {
        match op {
            Op::Write(knob, text, _) => answers.push(write(bench, dir, (version, *knob), text)),
            Op::Read(knob, _) => answers.push(read(bench, dir, (version, *knob))),
            Op::Child => dir = bench.add_child(groups, "child")?,
            Op::Start => {
                children.push(bench.start(vec![dir], How { pinned: true, ..How::default() })?);
            }
            Op::SetPolicy(policy) => bench.set_policy(started(children)?, *policy)?,
            Op::Enter => bench.enter(started(children)?, dir)?,
            Op::Leave => bench.enter(started(children)?, groups.dirs[0])?,
            Op::Policy(_) => {
                let pid = children.last().map_or(0, |child| child.process.pid);
                let stat = bench.host.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
                let policy = Stat::parse(&stat).and_then(|stat| stat.policy());
                answers.push(policy.map_or_else(|| "unknown".to_owned(), policy_name));
            }
        }
    }
    Ok(answers)
}

fn started(children: &[Child]) -> Result<&Child, String> {
    children.last().ok_or_else(|| "no process was started".to_owned())
}

fn write(bench: &mut Bench<'_>, dir: Dir, (version, knob): (Version, KnobId), text: &str) -> String {
    let Some(file) = knob.row().file(version) else { return "no file".to_owned() };
    match bench.host.write(dir, file.name, text) {
        Ok(()) => read(bench, dir, (version, knob)),
        Err(error) => errno(&error),
    }
}

fn read(bench: &mut Bench<'_>, dir: Dir, (version, knob): (Version, KnobId)) -> String {
    let Some(file) = knob.row().file(version) else { return "no file".to_owned() };
    match bench.host.read(dir, file.name) {
        Ok(text) => text.trim().to_owned(),
        Err(error) => errno(&error),
    }
}
