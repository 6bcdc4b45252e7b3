//! Tests the effect of limits on a process that computes: a CPU quota, a CPU set, and freezing.

use super::bench::{Bench, Groups, How};
use super::report::{Found, Tried};
use commensal_core::facts::{LimitFact, MAINLINE};
use commensal_core::knob::{KnobId, Value, Version};
use commensal_host::{Child, Dir};
use std::path::Path;
use std::time::Duration;

/// Measurement time of a quota: ten periods of 100 ms.
const QUOTA_TIME: Duration = Duration::from_secs(1);
/// Waiting time after the request to freeze, and then measurement time of the frozen process.
const FROZEN_TIME: Duration = Duration::from_millis(300);
/// Maximum CPU time of a frozen process during the measurement. A process may run briefly after its control file
/// reports it as frozen.
const FROZEN_AT_MOST: Duration = Duration::from_millis(5);
/// Default period of a quota, in microseconds.
const PERIOD_US: i64 = 100_000;

/// Tests every limit.
pub(super) fn try_all(bench: &mut Bench<'_>) -> Vec<Tried> {
    LimitFact::ALL.into_iter().map(|limit| one(bench, limit)).collect()
}

fn one(bench: &mut Bench<'_>, limit: LimitFact) -> Tried {
    let expected = match limit {
        LimitFact::Quota => format!("at most {} % of a CPU", LimitFact::QUOTA_AT_MOST),
        LimitFact::Cpus => format!("CPU {}", bench.cpu),
        LimitFact::Frozen => format!("at most {} ms", FROZEN_AT_MOST.as_millis()),
    };
    let found = match bench.over().map_or_else(|| in_group(bench, limit), Err) {
        Ok((true, found)) => Found::Agrees(found),
        Ok((false, found)) => Found::Differs(found),
        Err(because) => Found::NotTried(because),
    };
    Tried { fact: limit.says().to_owned(), evidence: MAINLINE, expected, found }
}

fn in_group(bench: &mut Bench<'_>, limit: LimitFact) -> Result<(bool, String), String> {
    let controller = limit.knob().row().controller;
    let hierarchy = bench.hierarchy(controller)?;
    let groups = bench.make(hierarchy, controller, &[])?;
    let mut children = Vec::new();
    let found = in_force(bench, limit, hierarchy.1, &groups, &mut children);
    if limit == LimitFact::Frozen {
        // In cgroup v1, a frozen process does not exit even on SIGKILL, so the trial thaws it first.
        let _ = bench.set(groups.dirs[0], hierarchy.1, KnobId::CgroupFreeze, 0);
    }
    bench.clear(groups, children);
    found
}

/// Returns whether the limit takes effect, and the measured value.
fn in_force(
    bench: &mut Bench<'_>,
    limit: LimitFact,
    version: Version,
    groups: &Groups,
    children: &mut Vec<Child>,
) -> Result<(bool, String), String> {
    let dir = groups.dirs[0];
    if limit == LimitFact::Cpus {
        let cpus: Value = Value::List([bench.cpu].into_iter().collect());
        let nodes: Value = Value::List(nodes(bench));
        // In cgroup v1, `cpuset.mems` and `cpuset.cpus` must both be set before a process can enter the cgroup.
        list(bench, dir, (version, KnobId::CpusetMems), &nodes)?;
        list(bench, dir, (version, KnobId::CpusetCpus), &cpus)?;
    }
    let pinned = limit == LimitFact::Quota;
    children.push(bench.start(vec![dir], How { pinned, ..How::default() })?);
    let child = &children[0];
    match limit {
        LimitFact::Quota => {
            bench.set(dir, version, KnobId::CpuMax, PERIOD_US * LimitFact::QUOTA_PERCENT / 100)?;
            let (before, since) = (bench.ran(child), bench.host.boot_time());
            bench.pause(QUOTA_TIME);
            let ran = bench.ran(child).saturating_sub(before).as_secs_f64();
            let percent = 100.0 * ran / bench.host.boot_time().saturating_sub(since).as_secs_f64().max(1e-9);
            Ok((percent <= LimitFact::QUOTA_AT_MOST, format!("{percent:.1} % of a CPU")))
        }
        LimitFact::Cpus => {
            let status = format!("/proc/{}/status", child.process.pid);
            let status = bench.host.read_file(Path::new(&status)).map_err(|error| error.to_string())?;
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let list = list.unwrap_or("unknown").trim().to_owned();
            Ok((list == bench.cpu.to_string(), format!("CPU {list}")))
        }
        LimitFact::Frozen => {
            bench.set(dir, version, KnobId::CgroupFreeze, 1)?;
            bench.pause(FROZEN_TIME);
            let before = bench.ran(child);
            bench.pause(FROZEN_TIME);
            let ran = bench.ran(child).saturating_sub(before);
            Ok((ran <= FROZEN_AT_MOST, format!("{} ms", ran.as_millis())))
        }
    }
}

fn nodes(bench: &Bench<'_>) -> commensal_core::cpuset::CpuSet {
    let nodes: commensal_core::cpuset::CpuSet = bench.survey.machine.topology.nodes().into_keys().collect();
    if nodes.is_empty() { [0].into_iter().collect() } else { nodes }
}

fn list(
    bench: &mut Bench<'_>,
    dir: Dir,
    (version, knob): (Version, KnobId),
    value: &Value,
) -> Result<(), String> {
    let file = knob.row().file(version).ok_or_else(|| format!("cgroup {version} has no {knob}"))?;
    let text = file.encode(value, None).map_err(|error| error.to_string())?;
    bench.host.write(dir, file.name, &text).map_err(|error| error.to_string())
}
