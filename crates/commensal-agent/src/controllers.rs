//! Runs the controllers: collects their inputs, merges their decisions, and applies them to the desired state. A
//! controller that panics is switched off and reported; the others go on.

mod disks;
#[cfg(test)]
mod tests;
mod weights;

use crate::sense::Sample;
use crate::snapshot;
use commensal_core::config::Headroom;
use commensal_core::control::Explanation;
use commensal_core::control::frame::{Frame, FrameInput, Use, theta};
use commensal_core::control::io::Io;
use commensal_core::control::latency::{Judged, LEAST_CPUS, Latency, LatencyInput};
use commensal_core::control::memory::{
    Candidate, GroupInput, GroupMemory, NodeInput, NodeMemory, Process, Victim,
};
use commensal_core::control::period::{DEFAULT_US, Period, fitting};
use commensal_core::control::suppress::{Actuator, Part, Suppress, SuppressInput, actuator, divide, floor};
use commensal_core::control::weights::{WeightInput, Weights};
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::{DesiredGroup, DesiredState};
use commensal_core::group::{Class, GroupName, GroupSpec, OnExceed};
use commensal_core::knob::KnobId;
use commensal_core::limit::{
    CPU_MAX, CPU_PARTITION, CPU_SET, CPU_WEIGHT, FROZEN, IO_READ, IO_WEIGHT, IO_WRITE, Limit, LimitSet,
    MEMORY_MAX, On,
};
use commensal_core::topology::{Device, Machine};
use commensal_core::units::{Bytes, MicroCpus, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A cap above this share of the machine is no cap.
const ALL: f64 = 0.99;

/// The loop's state when it asks for decisions.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// Milliseconds on a monotonic clock.
    pub now_ms: u64,
    /// `[agent] headroom`.
    pub headroom: Headroom,
    /// `[agent] io`.
    pub io: bool,
    /// The groups as written.
    pub specs: &'a [GroupSpec],
    /// The groups as resolved at the last round.
    pub desired: &'a DesiredState,
    /// Whether every offline group yields by its class.
    pub yields: bool,
    /// The machine.
    pub machine: &'a Machine,
    /// Use since the last tick.
    pub sample: &'a Sample,
    /// The probe's measurements since the last tick; `None` where it does not run.
    pub judged: Option<Judged>,
    /// Run delay of online groups between two ticks, if it was read, ms per second.
    pub run_delay_ms_per_s: Option<f64>,
    /// Siblings of online groups; `None` when weights are not managed.
    pub beside: Option<&'a BTreeMap<GroupName, WeightInput>>,
    /// Values that a controller chose at the last round and this machine cannot have, with the reason.
    pub declined: &'a BTreeMap<(GroupName, KnobId), String>,
    /// Disks that the kernel shares by weight.
    pub shared: &'a BTreeSet<Device>,
    /// Memory available without swapping.
    pub available: Option<Bytes>,
    /// Memory of a group that cannot be reclaimed.
    pub held: &'a dyn Fn(&DesiredGroup) -> Option<Bytes>,
    /// Lists the processes of a group, which is expensive: called only when a victim must be chosen.
    pub list: &'a dyn Fn(&DesiredGroup) -> Vec<Process>,
}

/// Settings that the decisions require.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wants {
    /// CPUs of offline groups.
    pub cpu_set: Option<CpuSet>,
    /// Quotas of offline groups, for each of their cgroups.
    pub quotas: BTreeMap<GroupName, MicroCpus>,
    /// Period of these quotas, us; `None` keeps the current one.
    pub period: Option<u32>,
    /// Weights of online groups.
    pub weights: BTreeMap<GroupName, Weight>,
    /// Disk rates of offline groups, for each of their cgroups.
    pub disks: BTreeMap<GroupName, BTreeMap<Device, LimitSet<Limit>>>,
    /// Groups that must get the smallest share of disk time.
    pub least_disk: BTreeSet<GroupName>,
    /// Groups that must be frozen.
    pub frozen: BTreeSet<GroupName>,
}

/// The decisions of all controllers.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// The required settings.
    pub wants: Wants,
    /// Groups that admit no new work, and why.
    pub held: BTreeMap<GroupName, String>,
    /// Processes to kill; with the group, if it exceeded its own limit.
    pub kill: Vec<(Option<GroupName>, Victim)>,
    /// The explanation of each limit, by group and key.
    pub why: BTreeMap<(GroupName, String), Explanation>,
    /// Every controller's state, for display.
    pub shown: Vec<snapshot::Controller>,
}

impl Decided {
    /// Applies the decisions to the desired state. Limits that the user wrote are never widened.
    pub fn adjust(&self, desired: &mut DesiredState) {
        let wants = &self.wants;
        if let Some(frame) = &wants.cpu_set {
            desired.keep_offline_to(frame);
        }
        for group in &mut desired.groups {
            let limits = &mut group.limits;
            if let Some(quota) = wants.quotas.get(&group.name) {
                let quota = limits.get(CPU_MAX).map_or(*quota, |written| written.min(*quota));
                limits.set(CPU_MAX, quota);
                limits.cpu_period = wants.period.map(|us| fitting(quota, us));
            }
            if let (None, Some(weight)) = (limits.get(CPU_WEIGHT), wants.weights.get(&group.name)) {
                limits.set(CPU_WEIGHT, *weight);
                group.chosen.insert(KnobId::CpuWeight);
            }
            for (device, rates) in wants.disks.get(&group.name).into_iter().flatten() {
                let disk = limits.on_disk.entry(*device).or_default();
                for key in [IO_READ, IO_WRITE] {
                    if let Some(now) = rates.get(key) {
                        disk.set(key, disk.get(key).map_or(now, |written| written.min(now)));
                    }
                }
            }
            if !limits.each.has(IO_WEIGHT) && wants.least_disk.contains(&group.name) {
                limits.set(IO_WEIGHT, Weight::MIN);
                group.chosen.extend([KnobId::IoWeight, KnobId::IoBfqWeight]);
            }
            if wants.frozen.contains(&group.name) {
                limits.set(FROZEN, On);
            }
        }
    }
}

/// The controllers.
#[derive(Debug)]
pub struct Controllers {
    frame: Frame,
    suppress: Suppress,
    latency: Latency,
    period: Period,
    groups: BTreeMap<GroupName, GroupMemory>,
    node: NodeMemory,
    weights: BTreeMap<GroupName, Weights>,
    io: Io,
    /// Whether the pressure of an online group was ever readable.
    io_measurable: bool,
    /// When an online group last used a disk, ms.
    online_disks: BTreeMap<Device, u64>,
    /// Controllers that panicked, with their panic messages.
    broken: BTreeMap<&'static str, String>,
}

impl Default for Controllers {
    fn default() -> Controllers {
        Controllers {
            frame: Frame::new(CpuSet::new()),
            suppress: Suppress::new(None),
            latency: Latency::new(None),
            period: Period::default(),
            groups: BTreeMap::new(),
            node: NodeMemory::new(false),
            weights: BTreeMap::new(),
            io: Io::default(),
            io_measurable: false,
            online_disks: BTreeMap::new(),
            broken: BTreeMap::new(),
        }
    }
}

fn shown(
    name: &str,
    group: Option<&GroupName>,
    value: Option<String>,
    why: &Explanation,
) -> snapshot::Controller {
    let group = group.map(ToString::to_string);
    snapshot::Controller { name: name.to_owned(), group, off: None, value, why: explained(why) }
}

/// The explanation as plain data for a snapshot.
pub fn explained(why: &Explanation) -> snapshot::Explanation {
    let input = |input: &commensal_core::control::Input| snapshot::Input {
        name: input.name.to_owned(),
        value: input.value,
        unit: input.unit.to_owned(),
    };
    snapshot::Explanation {
        rule: why.rule.clone(),
        formula: why.formula.to_owned(),
        inputs: why.inputs.iter().map(input).collect(),
    }
}

impl Controllers {
    /// Asks all controllers.
    pub fn decide(&mut self, seen: &Observation<'_>) -> Decided {
        let mut decided = Decided::default();
        let cap = self.ask("latency", &mut decided, |all, decided| all.latency(seen, decided)).flatten();
        self.ask("headroom", &mut decided, |all, decided| all.headroom(seen, cap, decided));
        self.ask("weights", &mut decided, |all, decided| all.weights(seen, decided));
        self.ask("disks", &mut decided, |all, decided| all.disks(seen, decided));
        self.ask("memory", &mut decided, |all, decided| all.memory(seen, decided));
        self.ask("low memory", &mut decided, |all, decided| all.low_memory(seen, decided));
        for (name, why) in &self.broken {
            decided.shown.push(snapshot::Controller {
                name: (*name).to_owned(),
                off: Some(why.clone()),
                ..snapshot::Controller::default()
            });
        }
        decided
    }

    /// Asks one controller, unless it panicked before.
    fn ask<T>(
        &mut self,
        name: &'static str,
        decided: &mut Decided,
        controller: impl FnOnce(&mut Controllers, &mut Decided) -> T,
    ) -> Option<T> {
        if self.broken.contains_key(name) {
            return None;
        }
        let before = decided.clone();
        match catch_unwind(AssertUnwindSafe(|| controller(self, decided))) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                // Discards the half-made decision.
                *decided = before;
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let text = text.unwrap_or_else(|| "it panicked".to_owned());
                self.broken.insert(
                    name,
                    format!("off until the agent starts again, because of a mistake in it: {text}"),
                );
                None
            }
        }
    }

    fn latency(&mut self, seen: &Observation<'_>, decided: &mut Decided) -> Option<f64> {
        let targets = seen.specs.iter().filter_map(|spec| spec.target_wakeup_p99);
        let target = targets.min()?;
        let (cpus, core) = size(seen.machine);
        let of = |class: Class| seen.desired.groups.iter().filter(move |group| group.class == class);
        let rates = |group: &DesiredGroup| seen.sample.groups.get(group.name.as_str());
        let sum = |class: Class, pick: fn(&crate::sense::GroupRates) -> Option<f64>| {
            of(class).try_fold(0.0, |sum, group| Some(sum + rates(group).and_then(pick)?))
        };
        let pressure = of(Class::Online).filter_map(|group| rates(group)?.pressure_pct[0]);
        let between = seen.run_delay_ms_per_s;
        let run_delay = between.or_else(|| sum(Class::Online, |rates| rates.run_delay_ms_per_s));
        let pressure_pct = pressure.reduce(f64::max);
        let input = LatencyInput {
            target_us: target.0 as f64,
            measurable: seen.judged.is_some() || run_delay.is_some() || pressure_pct.is_some(),
            judged: seen.judged,
            online_cpus: sum(Class::Online, |rates| rates.cpus),
            run_delay_ms_per_s: run_delay,
            pressure_pct,
            offline_cpus: sum(Class::Offline, |rates| rates.cpus),
            cpus,
            core,
            floor: floor(cpus),
        };
        let decision = self.latency.step(seen.now_ms, &input);
        let value = decision.cap.map(|cap| format!("at most {cap:.2} CPUs of offline work"));
        decided.shown.push(shown("latency", None, value, &decision.why));
        decision.cap
    }

    /// Limits offline work by whole cores or by a quota.
    fn headroom(&mut self, seen: &Observation<'_>, cap: Option<f64>, decided: &mut Decided) {
        let (cpus, core) = size(seen.machine);
        let capped = cap.filter(|cap| *cap < cpus * ALL);
        let theta = theta(&seen.machine.topology);
        let by = match seen.headroom {
            Headroom::Off => return,
            Headroom::Target if capped.is_none() => return,
            Headroom::Target | Headroom::Auto => actuator(theta, cpus, core, seen.yields),
            Headroom::Frame => {
                Actuator::Frame(Explanation::new("headroom = \"frame\" in the groups file", ""))
            }
            Headroom::Quota => {
                Actuator::Quota(Explanation::new("headroom = \"quota\" in the groups file", ""))
            }
        };
        // When `headroom` sets no limit, only the cap applies.
        let used = match seen.headroom {
            Headroom::Target => Use { busy: Some(0.0), offline: Some(0.0), ..Use::default() },
            _ => used(seen),
        };
        match by {
            Actuator::Frame(_) => {
                let reserved = reserved(seen.desired);
                let input =
                    FrameInput { topology: &seen.machine.topology, reserved: &reserved, used, cap: capped };
                let decision = self.frame.step(seen.now_ms, &input);
                let value = decision.cpus.as_ref().map(|cpus| format!("CPUs {cpus}"));
                decided.shown.push(shown("frame", None, value, &decision.why));
                for group in seen.desired.groups.iter().filter(|group| group.class == Class::Offline) {
                    decided.why.insert((group.name.clone(), "cpu.set".to_owned()), decision.why.clone());
                }
                decided.wants.cpu_set = decision.cpus;
            }
            Actuator::Quota(_) => {
                let theta = if seen.headroom == Headroom::Target { 1.0 } else { theta };
                let input = SuppressInput { theta, cpus, core, yields: seen.yields, used, cap: capped };
                let decision = self.suppress.step(seen.now_ms, &input);
                let value = decision.quota.map(|quota| quota.to_string());
                decided.shown.push(shown("suppress", None, value, &decision.why));
                if let Some(quota) = decision.quota {
                    divided(seen, quota, &decision.why, decided);
                    self.period(seen, decided);
                }
            }
        }
    }

    /// Chooses the quota's period with the shortest waits of online work.
    fn period(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let rates = |class: Class| {
            let groups = seen.desired.groups.iter().filter(move |group| group.class == class);
            groups.filter_map(|group| seen.sample.groups.get(group.name.as_str()))
        };
        let online: Option<f64> = rates(Class::Online).map(|rates| rates.cpus).sum();
        let blamed = seen.judged.and_then(|judged| judged.blamed_ms_per_s);
        let blamed_ms = blamed.zip(online).map(|(ms, cpus)| ms / cpus.max(LEAST_CPUS));
        let throttled: Vec<f64> =
            rates(Class::Offline).filter_map(|rates| rates.throttled_ms_per_s).collect();
        let binding = (!throttled.is_empty()).then(|| throttled.iter().any(|ms| *ms > 0.0));
        let decision = self.period.step(seen.now_ms, blamed_ms, binding);
        let value = format!("{} ms", f64::from(decision.period_us) / 1e3);
        decided.shown.push(shown("quota period", None, Some(value), &decision.why));
        // The kernel's default is what a group has already.
        let tried = decision.trial || decision.period_us != DEFAULT_US;
        decided.wants.period = tried.then_some(decision.period_us);
    }

    fn memory(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        self.groups.retain(|name, _| seen.desired.groups.iter().any(|group| group.name == *name));
        for group in &seen.desired.groups {
            let spec = seen.specs.iter().find(|spec| spec.name == group.name);
            let wish = spec.and_then(|spec| spec.on_exceed);
            let (Some(limit), Some(on_exceed)) = (group.limits.get(MEMORY_MAX), wish) else { continue };
            // The kernel handles these cases itself.
            if group.class == Class::Online || matches!(on_exceed, OnExceed::KillGroup) {
                continue;
            }
            let input = GroupInput {
                held: (seen.held)(group),
                limit,
                on_exceed,
                by_kernel: group.members.len() == 1,
                processes: None,
            };
            let memory = self.groups.entry(group.name.clone()).or_default();
            let mut decision = memory.step(seen.now_ms, &input);
            if decision.list {
                let processes = (seen.list)(group);
                decision = memory.step(seen.now_ms, &GroupInput { processes: Some(&processes), ..input });
            }
            if decision.queue {
                decided.held.insert(group.name.clone(), decision.why.rule.clone());
            }
            if decision.frozen {
                decided.wants.frozen.insert(group.name.clone());
                decided.why.insert((group.name.clone(), "frozen".to_owned()), decision.why.clone());
            }
            decided.kill.extend(decision.kill.map(|victim| (Some(group.name.clone()), victim)));
            let value = match (decision.frozen, decision.queue) {
                (true, _) => "frozen",
                (false, true) => "takes no new work",
                (false, false) => "free",
            };
            decided.shown.push(shown("memory", Some(&group.name), Some(value.to_owned()), &decision.why));
        }
    }

    fn low_memory(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let input = NodeInput {
            available: seen.available,
            total: seen.machine.memory,
            pressure_pct: seen.sample.machine.pressure_pct[1],
            candidates: None,
        };
        let mut decision = self.node.step(seen.now_ms, &input);
        if decision.list {
            let of = |group: &DesiredGroup| {
                let class = group.class;
                (seen.list)(group).into_iter().map(move |process| Candidate { class, process })
            };
            let offline = seen.desired.groups.iter().filter(|group| group.class == Class::Offline);
            let candidates: Vec<Candidate> = offline.flat_map(of).collect();
            decision = self.node.step(seen.now_ms, &NodeInput { candidates: Some(&candidates), ..input });
        }
        if decision.freeze {
            for group in seen.desired.groups.iter().filter(|group| group.class == Class::Offline) {
                decided.wants.frozen.insert(group.name.clone());
                decided.why.insert((group.name.clone(), "frozen".to_owned()), decision.why.clone());
            }
        }
        decided.kill.extend(decision.kill.map(|victim| (None, victim)));
        let value = if decision.freeze { "offline work is frozen" } else { "free" };
        decided.shown.push(shown("low memory", None, Some(value.to_owned()), &decision.why));
    }
}

/// Number of logical CPUs of the machine, and of a core.
fn size(machine: &Machine) -> (f64, f64) {
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let (threads, cores) = (count(machine.topology.threads()), count(machine.topology.cores()));
    (threads, threads / cores.max(1.0))
}

fn used(seen: &Observation<'_>) -> Use {
    let groups = || seen.desired.groups.iter();
    let cpus =
        |group: &DesiredGroup| seen.sample.groups.get(group.name.as_str()).and_then(|rates| rates.cpus);
    let offline = groups().filter(|group| group.class == Class::Offline);
    let confined = groups().filter(|group| group.class == Class::Online && confined(group));
    Use {
        busy: seen.sample.machine.busy,
        steal: seen.sample.machine.steal,
        offline: offline.map(&cpus).sum(),
        confined: confined.map(&cpus).sum(),
    }
}

/// Whether an online group has reserved CPUs.
fn confined(group: &DesiredGroup) -> bool {
    group.limits.each.has(CPU_SET) && group.limits.each.has(CPU_PARTITION)
}

fn reserved(desired: &DesiredState) -> CpuSet {
    let own = desired.groups.iter().filter(|group| group.class == Class::Online && confined(group));
    own.filter_map(|group| group.limits.get(CPU_SET)).fold(CpuSet::new(), |all, one| all.union(&one))
}

/// Divides the offline side's quota among its groups; a group's share is for each of its cgroups.
fn divided(seen: &Observation<'_>, quota: MicroCpus, why: &Explanation, decided: &mut Decided) {
    let groups: Vec<&DesiredGroup> =
        seen.desired.groups.iter().filter(|group| group.class == Class::Offline).collect();
    let part = |group: &&DesiredGroup| Part {
        weight: group.limits.get(CPU_WEIGHT).map_or(100.0, |weight| f64::from(weight.v2())),
        used: seen.sample.groups.get(group.name.as_str()).and_then(|rates| rates.cpus),
    };
    let parts: Vec<Part> = groups.iter().map(part).collect();
    for (group, share) in groups.iter().zip(divide(quota.0 as f64 / 1e6, &parts)) {
        let each = share / f64::from(u32::try_from(group.members.len().max(1)).unwrap_or(u32::MAX));
        decided.wants.quotas.insert(group.name.clone(), MicroCpus((each * 1e6) as u64));
        decided.why.insert((group.name.clone(), "cpu.max".to_owned()), why.clone());
    }
}
