//! Converts the loop's state to a snapshot.

use crate::controllers::{Decided, Reasons, explained};
use crate::sense::{GroupRates, Sample};
use crate::snapshot::{self, Snapshot};
use crate::wait_parts::WaitParts;
use commensal_core::desired::{DesiredGroup, Limits};
use commensal_core::group::Class;
use commensal_core::knob::KnobId;
use commensal_core::limit::MEMORY_MAX;
use commensal_core::process::Stat;
use commensal_core::topology::Machine;
use commensal_host::Host;
use commensal_reconcile::Planned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Clock ticks per second in the kernel's interfaces to user space, on every architecture (`USER_HZ`).
const USER_HZ: f64 = 100.0;

/// The parts of snapshots that change only with a round (plan and apply), or with the controllers' explanations.
#[derive(Debug, Default)]
pub struct Fixed {
    groups: BTreeMap<String, FixedGroup>,
    explained: ExplainedLimits,
}

/// The part of a group's snapshot that changes only with a round.
#[derive(Debug, Clone, Default)]
struct FixedGroup {
    members: Arc<Vec<snapshot::Member>>,
    mechanism: Option<String>,
    limits: Arc<Vec<snapshot::Limit>>,
}

/// Limits with the controllers' explanations, which most ticks leave as they are.
#[derive(Debug, Default)]
struct ExplainedLimits {
    /// The explanations that `limits` contains, by group and key.
    why: Reasons,
    /// The limits of the groups with explanations, by group name.
    limits: BTreeMap<String, Arc<Vec<snapshot::Limit>>>,
}

/// Computes the parts of snapshots that change only with a round.
pub fn fixed(planned: &Planned) -> Fixed {
    let member = |member: &commensal_core::desired::Member| snapshot::Member {
        path: member.path.as_str().to_owned(),
        own: member.own,
        found_by: match member.own {
            true => "made by commensal".to_owned(),
            false => member.found_by.clone(),
        },
    };
    let of = |group: &DesiredGroup| {
        let members = Arc::new(group.members.iter().map(member).collect());
        let limits = Arc::new(limits(&group.limits));
        (group.name.to_string(), FixedGroup { members, mechanism: mechanism(group, planned), limits })
    };
    Fixed { groups: planned.desired.groups.iter().map(of).collect(), explained: ExplainedLimits::default() }
}

/// Makes a snapshot of the machine and its groups; the caller fills in the fields about the agent itself.
pub fn of(machine: &Machine, planned: Option<&Planned>, fixed: &Fixed, sample: &Sample) -> Snapshot {
    let mut shown = Snapshot::default();
    let rates = &sample.machine;
    let sum = |class: Class| {
        let groups = planned.map(|planned| planned.desired.groups.as_slice()).unwrap_or_default();
        let mut used = groups
            .iter()
            .filter(|group| group.class == class)
            .map(|group| sample.groups.get(group.name.as_str()).and_then(|rates| rates.cpus));
        used.try_fold(0.0, |sum, cpus| Some(sum + cpus?))
    };
    let (online, offline) = (sum(Class::Online), sum(Class::Offline));
    let other = rates.busy.zip(online).zip(offline).map(|((busy, online), offline)| busy - online - offline);
    shown.machine = snapshot::Machine {
        cpus: u32::try_from(machine.topology.threads()).unwrap_or(u32::MAX),
        busy: rates.busy,
        online,
        offline,
        other: other.map(|other| other.max(0.0)),
        steal: rates.steal,
        memory_bytes: machine.memory.0,
        memory_available_bytes: None,
        pressure: pressure(rates.pressure_pct),
    };
    let Some(planned) = planned else { return shown };
    for group in &planned.desired.groups {
        let rates = sample.groups.get(group.name.as_str()).cloned().unwrap_or_default();
        let fixed = fixed.groups.get(group.name.as_str()).cloned().unwrap_or_default();
        shown.groups.push(one(group, fixed, &rates));
    }
    let unmet = |unmet: &commensal_core::plan::Unmet| snapshot::Unmet {
        group: unmet.group.to_string(),
        what: unmet.what.clone(),
        because: unmet.because.clone(),
        try_this: unmet.try_this.clone(),
    };
    shown.unmet = planned.plan.unmet.iter().map(unmet).collect();
    shown
}

fn one(group: &DesiredGroup, fixed: FixedGroup, rates: &GroupRates) -> snapshot::Group {
    snapshot::Group {
        name: group.name.to_string(),
        class: group.class.to_string(),
        mechanism: fixed.mechanism,
        members: fixed.members,
        cpus: rates.cpus,
        memory_bytes: rates.memory_bytes,
        memory_max_bytes: group.limits.get(MEMORY_MAX).map(|bytes| bytes.0),
        read_per_s: rates.read_per_s,
        write_per_s: rates.write_per_s,
        tasks: rates.tasks,
        run_delay_ms_per_s: rates.run_delay_ms_per_s,
        throttled_pct: rates.throttled_pct,
        oom_kills: rates.oom_kills,
        pressure: pressure(rates.pressure_pct),
        limits: fixed.limits,
        frozen: group.limits.frozen(),
        // Filled in later with data of the probe and the queue.
        blamed_ms_per_cpu_s: None,
        waits: Vec::new(),
        held_back: Vec::new(),
        preemption_p99_us: None,
        queue: None,
        freezing_since: None,
        freezing_s: None,
        starved_since: None,
        starved_s: None,
    }
}

/// The mechanisms that make a group's members yield or protect them, without duplicates.
fn mechanism(group: &DesiredGroup, planned: &Planned) -> Option<String> {
    let of = planned.plan.mechanisms.iter().filter(|((name, _), _)| *name == group.name);
    let names: BTreeSet<String> = of.map(|(_, mechanism)| mechanism.describe()).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
}

fn pressure([cpu_pct, memory_pct, io_pct]: [Option<f64>; 3]) -> snapshot::Pressure {
    snapshot::Pressure { cpu_pct, memory_pct, io_pct }
}

/// The limits that the user wrote. Explanations of the controllers' decisions are added later.
fn limits(limits: &Limits) -> Vec<snapshot::Limit> {
    let why = snapshot::Explanation { rule: "written in the groups file".to_owned(), ..Default::default() };
    let one = |key: String, value: String| snapshot::Limit { key, value, why: why.clone() };
    let mut list: Vec<snapshot::Limit> =
        limits.each.iter().map(|(row, limit)| one(row.key.to_owned(), limit.to_string())).collect();
    list.extend(limits.cpu_period.map(|us| {
        let ms = f64::from(us) / 1e3;
        one(KnobId::CpuPeriod.to_string(), format!("{ms} ms"))
    }));
    for (device, limits) in &limits.on_disk {
        list.extend(
            limits.iter().map(|(row, limit)| one(format!("{} on {device}", row.key), limit.to_string())),
        );
    }
    list
}

/// Adds the controllers' explanations to the limits that they decided.
pub fn explain(groups: &mut [snapshot::Group], decided: &Decided, fixed: &mut Fixed) {
    let kept = &mut fixed.explained;
    if kept.why != decided.why {
        kept.why.clone_from(&decided.why);
        kept.limits.clear();
        for ((name, key), why) in &decided.why {
            let Some(group) = fixed.groups.get(name.as_str()) else { continue };
            // Most groups have an explanation of a limit that they do not have now.
            if !group.limits.iter().any(|limit| limit.key == *key) {
                continue;
            }
            let limits = kept.limits.entry(name.to_string()).or_insert_with(|| Arc::clone(&group.limits));
            for limit in Arc::make_mut(limits).iter_mut().filter(|limit| limit.key == *key) {
                limit.why = explained(why);
            }
        }
    }
    for group in groups {
        if let Some(limits) = kept.limits.get(&group.name) {
            group.limits = Arc::clone(limits);
        }
    }
}

/// Adds the probe's measurements to the groups.
pub fn waits(groups: &mut [snapshot::Group], preemption_p99_us: Option<f64>, parts: &WaitParts) {
    for group in groups {
        let Some(shown) = parts.shown(&group.name) else { continue };
        group.blamed_ms_per_cpu_s = shown.blamed_ms_per_cpu_s;
        group.waits.clone_from(&shown.parts);
        group.held_back = parts.held_back(&group.name);
        group.preemption_p99_us = preemption_p99_us;
    }
}

/// The agent's own resource use: fields 14 and 15 of `stat`, and `VmRSS` of `status` (proc(5)).
pub fn cost(host: &dyn Host) -> snapshot::Cost {
    let stat = host.read_file(Path::new("/proc/self/stat")).unwrap_or_default();
    let stat = Stat::parse(&stat);
    let field = |number: usize| stat.as_ref()?.number::<f64>(number);
    let status = host.read_file(Path::new("/proc/self/status")).unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = rss.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    snapshot::Cost {
        cpu_s: field(14).zip(field(15)).map(|(user, system)| (user + system) / USER_HZ),
        rss_bytes: kib.map(|kib| kib * 1024),
        ..snapshot::Cost::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::control::Explanation;
    use commensal_core::group::GroupName;

    /// The explanations in a snapshot are those of the same tick, whatever earlier ticks have left.
    #[test]
    fn explanations_follow_the_decisions_of_each_tick() {
        let written = || snapshot::Explanation { rule: "written".to_owned(), ..Default::default() };
        let limit =
            |key: &str| snapshot::Limit { key: key.to_owned(), value: "1".to_owned(), why: written() };
        let limits = Arc::new(vec![limit("cpu.max"), limit("cpu.weight")]);
        let group = |name: &str| {
            (name.to_owned(), FixedGroup { limits: Arc::clone(&limits), ..FixedGroup::default() })
        };
        let mut fixed = Fixed { groups: ["etl", "web"].map(group).into(), ..Fixed::default() };
        let mut tick = |decisions: &[(&str, &str, &str)]| {
            let why = decisions.iter().map(|(name, key, rule)| {
                (
                    (GroupName::new(name).unwrap(), (*key).to_owned().into()),
                    Arc::new(Explanation::new(*rule, "")),
                )
            });
            let decided = Decided { why: why.collect(), ..Decided::default() };
            let new = |name: &str| snapshot::Group {
                name: name.to_owned(),
                limits: Arc::clone(&fixed.groups[name].limits),
                ..snapshot::Group::default()
            };
            let mut shown = ["etl", "web"].map(new);
            explain(&mut shown, &decided, &mut fixed);
            shown.map(|group| group.limits.iter().map(|one| one.why.rule.clone()).collect::<Vec<_>>())
        };
        for _ in 0..2 {
            let shown = tick(&[("etl", "cpu.max", "a"), ("gone", "cpu.max", "b")]);
            assert_eq!(shown, [["a", "written"], ["written", "written"]]);
        }
        assert_eq!(tick(&[("etl", "cpu.max", "c")]), [["c", "written"], ["written", "written"]]);
        assert_eq!(tick(&[("web", "cpu.weight", "d")]), [["written", "written"], ["written", "d"]]);
        assert_eq!(tick(&[]), [["written", "written"], ["written", "written"]]);
    }
}
