//! Runs the controllers (control loops that decide limits): collects their inputs, merges their decisions, and applies
//! them to the desired state. If a controller panics, the agent disables it and reports the panic; the others continue.
//!
//! The frame is the set of CPUs that offline groups may use. A quota limits the CPU time of offline groups. While the
//! queue of a group is held, the group admits no commands.

mod disks;
#[cfg(test)]
mod reasons;
mod starvation;
#[cfg(test)]
mod tests;
mod weights;

use crate::sense::{GroupRates, Sample};
use crate::snapshot;
use crate::starvation::Starved;
use commensal_core::actual::CgroupPath;
use commensal_core::config::Headroom;
use commensal_core::control::Explanation;
use commensal_core::control::frame::{Frame, FrameInput, Use, size, theta};
use commensal_core::control::io::Io;
use commensal_core::control::latency::{LEAST_CPUS, Latency, LatencyInput, ProbeWaits};
use commensal_core::control::memory::{
    Candidate, GroupInput, GroupMemory, NodeInput, NodeMemory, Process, Victim,
};
use commensal_core::control::period::{DEFAULT_US, Period};
use commensal_core::control::suppress::{Part, Suppress, SuppressInput, divide, floor, is_frame};
use commensal_core::control::weights::{WeightInput, Weights};
use commensal_core::cpuset::CpuSet;
use commensal_core::desired::{DesiredGroup, DesiredState, Limits, limits};
use commensal_core::group::{Class, GroupName, GroupSpec, OnExceed};
use commensal_core::knob::KnobId;
use commensal_core::limit::{
    CPU_MAX, CPU_SET, CPU_WEIGHT, FROZEN, IO_READ, IO_WEIGHT, IO_WRITE, Limit, LimitSet, MEMORY_MAX, On,
};
use commensal_core::topology::{Device, Machine};
use commensal_core::units::{Bytes, MicroCpus, Weight};
use commensal_reconcile::Change;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A limit above this share of the machine's CPUs counts as no limit.
const ALL: f64 = 0.99;

/// The input of the controllers: what the agent knows at a tick.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// Milliseconds on a monotonic clock.
    pub now_ms: u64,
    /// The machine.
    pub machine: &'a Machine,
    /// The settings that the user wrote.
    pub settings: Settings<'a>,
    /// The result of the last round (plan and apply).
    pub in_force: InForce<'a>,
    /// Measurements since the last tick, and functions that measure on demand.
    pub measured: Measurements<'a>,
}

/// The settings of the groups files.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    /// The setting `[agent] headroom`.
    pub headroom: Headroom,
    /// The setting `[agent] io`.
    pub io: bool,
    /// The groups as the user wrote them.
    pub specs: &'a [GroupSpec],
}

/// The groups and the machine as of the last round.
#[derive(Clone, Copy)]
pub struct InForce<'a> {
    /// The groups as resolved in the last round.
    pub desired: &'a DesiredState,
    /// Whether the class of every offline group is enforced on all its members.
    pub yields: bool,
    /// Values that a controller chose in the last round and that this machine cannot apply, with the reason.
    pub declined: &'a BTreeMap<(GroupName, KnobId), String>,
    /// Siblings of online groups and their weights; `None` if weights are not managed.
    pub beside: Option<&'a BTreeMap<GroupName, WeightInput>>,
    /// Disks whose time the kernel divides by weight.
    pub shared: &'a BTreeSet<Device>,
}

/// Measurements since the last tick, and functions that measure on demand.
#[derive(Clone, Copy)]
pub struct Measurements<'a> {
    /// CPU, memory and disk use since the last tick.
    pub sample: &'a Sample,
    /// The probe's measurements since the last tick; `None` if there is no probe.
    pub probe: Option<ProbeWaits>,
    /// The offline groups that starve: their tasks want a CPU and get none.
    pub starved: &'a BTreeMap<GroupName, Starved>,
    /// Run delay of online groups, if it was read between two ticks (ms per second).
    pub run_delay_ms_per_s: Option<f64>,
    /// Memory available without swapping.
    pub available: Option<Bytes>,
    /// Returns the memory of a group that cannot be reclaimed; `None` if unknown.
    pub held: &'a dyn Fn(&DesiredGroup) -> Option<Bytes>,
    /// Lists the processes of a group. Expensive; called only when a victim must be chosen.
    pub list: &'a dyn Fn(&DesiredGroup) -> Vec<Process>,
}

impl<'a> Observation<'a> {
    /// The groups of a class.
    fn groups(&self, class: Class) -> impl Iterator<Item = &'a DesiredGroup> + use<'a> {
        self.in_force.desired.groups.iter().filter(move |group| group.class == class)
    }

    /// The groups of a class, each with its spec. The desired groups are usually in the same order as the specs.
    fn with_specs(
        &self,
        class: Class,
    ) -> impl Iterator<Item = (&'a DesiredGroup, Option<&'a GroupSpec>)> + use<'a> {
        let specs = self.settings.specs;
        let of = move |(index, group): (usize, &'a DesiredGroup)| {
            let same = |spec: &&GroupSpec| spec.name == group.name;
            (group, specs.get(index).filter(same).or_else(|| specs.iter().find(same)))
        };
        let groups = self.in_force.desired.groups.iter().enumerate();
        groups.filter(move |(_, group)| group.class == class).map(of)
    }

    /// Resource use of a group since the last tick.
    fn rates(&self, group: &DesiredGroup) -> Option<&'a GroupRates> {
        self.measured.sample.groups.get(group.name.as_str()).map(AsRef::as_ref)
    }
}

/// The settings that result from the controllers' decisions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wants {
    /// CPUs that offline groups may use.
    pub cpu_set: Option<CpuSet>,
    /// Quotas of offline groups; each cgroup of the group gets this quota.
    pub quotas: BTreeMap<GroupName, MicroCpus>,
    /// Period of the quotas (us); `None` leaves the period unchanged.
    pub period: Option<u32>,
    /// Weights of online groups.
    pub weights: BTreeMap<GroupName, Weight>,
    /// Disk rates of offline groups; each cgroup of the group gets these rates.
    pub disks: BTreeMap<GroupName, BTreeMap<Device, LimitSet<Limit>>>,
    /// Groups that must get the smallest share of disk time.
    pub least_disk: BTreeSet<GroupName>,
    /// Groups that must be frozen.
    pub frozen: BTreeSet<GroupName>,
}

/// A decision to kill a process.
#[derive(Debug, Clone)]
pub struct Kill {
    /// The group whose memory limit is the reason; `None` if the machine is short of memory.
    pub group: Option<GroupName>,
    /// The process to kill.
    pub victim: Victim,
    /// The explanation of the decision.
    pub why: Arc<Explanation>,
}

impl Kill {
    /// The action for the audit log. `ended` describes the outcome.
    pub fn action(&self, ended: String, at: &str) -> snapshot::Action {
        let why = match self.group {
            Some(_) => "its group is at its memory limit, and nobody holds more of it",
            None => "the machine is short of memory, and nobody offline holds more of it",
        };
        snapshot::Action {
            at: at.to_owned(),
            group: self.group.as_ref().map(ToString::to_string),
            what: format!("process {}", self.victim.pid),
            old: Some(format!("holds {}", self.victim.held)),
            new: Some(ended),
            why: format!("{why}; {}", self.why.rule),
            reason: Some(explained(&self.why)),
        }
    }
}

/// The explanation of each limit, or of its removal, by group and key of the limit.
pub type Reasons = BTreeMap<(GroupName, Cow<'static, str>), Arc<Explanation>>;

/// The merged decisions of all controllers.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// The settings that the decisions require.
    pub wants: Wants,
    /// Groups whose queues are held, with the explanation.
    pub held: BTreeMap<GroupName, Arc<Explanation>>,
    /// Groups whose queues a controller manages and does not hold now, with the explanation.
    pub opened: BTreeMap<GroupName, Arc<Explanation>>,
    /// The processes to kill.
    pub kill: Vec<Kill>,
    /// The explanation of each limit, or of its removal, by group and key.
    pub why: Reasons,
    /// The state of each controller, for the snapshot.
    pub shown: Vec<snapshot::Controller>,
    /// The parent cgroup of the offline groups that commensal created.
    pub parent: Option<CgroupPath>,
}

impl Decided {
    /// Applies the decisions to the desired state. Never relaxes a limit that the user wrote.
    pub fn adjust(&self, desired: &mut DesiredState) {
        let wants = &self.wants;
        if let Some(frame) = &wants.cpu_set {
            desired.keep_offline_to(frame);
        }
        for group in &mut desired.groups {
            let limits = &mut group.limits;
            if let Some(quota) = wants.quotas.get(&group.name) {
                let quota = (*quota).max(MicroCpus::LEAST_QUOTA);
                let quota = limits.get(CPU_MAX).map_or(quota, |written| written.min(quota));
                limits.set(CPU_MAX, quota);
                limits.cpu_period = wants.period.map(|us| quota.period_us(us));
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

impl Decided {
    /// Converts a change to an action for the audit log, with the decision that caused it.
    pub fn action(&self, change: Change, at: &str) -> snapshot::Action {
        let Change { group, what, old, new, mut why, setting } = change;
        let of_parent = |parent: &CgroupPath| {
            what.strip_prefix(parent.as_str()).is_some_and(|rest| rest.starts_with(' '))
        };
        // The parent of the offline groups that commensal created gets the setting that these groups have in common.
        let ours = group.is_none() && self.parent.as_ref().is_some_and(of_parent);
        let known = setting.filter(|_| group.is_some() || ours);
        let reason = known.and_then(|setting| self.reason(group.as_deref(), setting));
        if let Some(reason) = reason {
            why = format!("{why}; {}", reason.rule);
        }
        let reason = reason.map(explained);
        snapshot::Action { at: at.to_owned(), group, what, old, new, why, reason }
    }

    /// The decision that caused a setting of a group, or of the parent of offline groups.
    fn reason(&self, group: Option<&str>, (knob, device): (KnobId, Option<Device>)) -> Option<&Explanation> {
        let key = key_of(knob, device)?;
        let of = |(name, what): &(GroupName, Cow<'static, str>)| {
            *what == key && group.map_or(knob == KnobId::CpusetCpus, |group| name.as_str() == group)
        };
        self.why.iter().find(|(about, _)| of(about)).map(|(_, why)| why.as_ref())
    }

    /// The audit-log actions for queues whose state has changed since `before` (the queues held then).
    pub fn queues(&self, before: &BTreeSet<GroupName>, at: &str) -> Vec<snapshot::Action> {
        let action = |name: &GroupName, new: &str, why: &str, reason: Option<&Arc<Explanation>>| {
            let old = if new == "held" { "open" } else { "held" };
            snapshot::Action {
                at: at.to_owned(),
                group: Some(name.to_string()),
                what: "queue".to_owned(),
                old: Some(old.to_owned()),
                new: Some(new.to_owned()),
                why: reason.map_or(why, |reason| &reason.rule).to_owned(),
                reason: reason.map(|reason| explained(reason)),
            }
        };
        let held = self.held.iter().filter(|(name, _)| !before.contains(*name));
        let held = held.map(|(name, why)| action(name, "held", "", Some(why)));
        let opened = before.iter().filter(|name| !self.held.contains_key(*name)).map(|name| {
            let why = self.opened.get(name);
            action(name, "open", "no controller holds it any more", why)
        });
        held.chain(opened).collect()
    }
}

/// The limits that the user wrote, converted to the units of this machine.
fn written(seen: &Observation<'_>, spec: Option<&GroupSpec>) -> Option<Limits> {
    let spec = spec.filter(|spec| !spec.limits.is_empty())?;
    Some(limits(spec, seen.machine))
}

/// The key of a setting in [`Decided::why`].
fn key_of(knob: KnobId, device: Option<Device>) -> Option<Cow<'static, str>> {
    let on_disk = |key: &str| device.map(|device| Cow::from(format!("{key} on {device}")));
    match knob {
        KnobId::CpusetCpus => Some(CPU_SET.key().into()),
        KnobId::CpuMax => Some(CPU_MAX.key().into()),
        KnobId::CpuPeriod => Some(knob.to_string().into()),
        KnobId::CpuWeight => Some(CPU_WEIGHT.key().into()),
        KnobId::IoReadBps => on_disk(IO_READ.key()),
        KnobId::IoWriteBps => on_disk(IO_WRITE.key()),
        KnobId::IoWeight | KnobId::IoBfqWeight => Some(IO_WEIGHT.key().into()),
        KnobId::CgroupFreeze => Some(FROZEN.key().into()),
        _ => None,
    }
}

/// The controllers and their state.
#[derive(Debug)]
pub struct Controllers {
    frame: Frame,
    suppress: Suppress,
    latency: Latency,
    period: Period,
    groups: BTreeMap<GroupName, GroupMemory>,
    node: NodeMemory,
    /// The groups that starved at the last tick.
    starving: BTreeSet<GroupName>,
    /// Whether the controller `node` had frozen offline work at the last tick.
    node_froze: bool,
    weights: BTreeMap<GroupName, Weights>,
    io: Io,
    /// Whether the disk pressure of an online group was ever readable.
    io_measurable: bool,
    /// When an online group last used each disk (ms).
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
            starving: BTreeSet::new(),
            node_froze: false,
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

/// Converts an explanation to plain data for a snapshot.
pub fn explained(why: &Explanation) -> snapshot::Explanation {
    let input = |input: &commensal_core::control::Input| snapshot::Input {
        name: input.name.to_owned(),
        value: input.value,
        unit: input.unit.to_owned(),
    };
    snapshot::Explanation {
        rule: why.rule.clone(),
        formula: why.formula.clone().into_owned(),
        inputs: why.inputs.iter().map(input).collect(),
    }
}

impl Controllers {
    /// Runs all controllers.
    pub fn decide(&mut self, seen: &Observation<'_>) -> Decided {
        let mut decided =
            Decided { parent: Some(seen.in_force.desired.offline_parent.clone()), ..Decided::default() };
        let cap = self.ask("latency", &mut decided, |all, decided| all.latency(seen, decided)).flatten();
        self.ask("headroom", &mut decided, |all, decided| all.headroom(seen, cap, decided));
        self.ask("weights", &mut decided, |all, decided| all.weights(seen, decided));
        self.ask("disks", &mut decided, |all, decided| all.disks(seen, decided));
        self.ask("memory", &mut decided, |all, decided| all.memory(seen, decided));
        self.ask("low memory", &mut decided, |all, decided| all.low_memory(seen, decided));
        self.ask("starvation", &mut decided, |all, decided| all.starvation(seen, decided));
        for (name, why) in &self.broken {
            decided.shown.push(snapshot::Controller {
                name: (*name).to_owned(),
                off: Some(why.clone()),
                ..snapshot::Controller::default()
            });
        }
        decided
    }

    /// Runs one controller, unless it has panicked before.
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
                // Discards the incomplete decision.
                *decided = before;
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let text = text.unwrap_or_else(|| "it panicked".to_owned());
                self.broken.insert(
                    name,
                    format!("off until the agent is restarted, because of a bug in this controller: {text}"),
                );
                None
            }
        }
    }

    fn latency(&mut self, seen: &Observation<'_>, decided: &mut Decided) -> Option<f64> {
        let targets = seen.settings.specs.iter().filter_map(|spec| spec.target_wakeup_p99);
        let target = targets.min()?;
        let (cpus, core) = size(&seen.machine.topology);
        let sum = |class: Class, pick: fn(&GroupRates) -> Option<f64>| {
            seen.groups(class).try_fold(0.0, |sum, group| Some(sum + seen.rates(group).and_then(pick)?))
        };
        let pressure = seen.groups(Class::Online).filter_map(|group| seen.rates(group)?.pressure_pct[0]);
        let between = seen.measured.run_delay_ms_per_s;
        let run_delay = between.or_else(|| sum(Class::Online, |rates| rates.run_delay_ms_per_s));
        let pressure_pct = pressure.reduce(f64::max);
        let input = LatencyInput {
            target_us: target.0 as f64,
            measurable: seen.measured.probe.is_some() || run_delay.is_some() || pressure_pct.is_some(),
            probe: seen.measured.probe,
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

    /// Limits offline work to whole cores or by a quota. `cap` is the number of CPUs that the latency controller
    /// allows.
    fn headroom(&mut self, seen: &Observation<'_>, cap: Option<f64>, decided: &mut Decided) {
        let (cpus, core) = size(&seen.machine.topology);
        let capped = cap.filter(|cap| *cap < cpus * ALL);
        let theta = theta(&seen.machine.topology);
        if seen.settings.headroom == Headroom::Off
            || (seen.settings.headroom == Headroom::Target && capped.is_none())
        {
            return;
        }
        let by_frame = is_frame(seen.settings.headroom, theta, (cpus, core), seen.in_force.yields);
        // With `target`, only the cap limits offline work.
        let used = match seen.settings.headroom {
            Headroom::Target => Use { busy: Some(0.0), offline: Some(0.0), ..Use::default() },
            _ => used(seen),
        };
        match by_frame {
            true => {
                let reserved = seen.in_force.desired.reserved();
                let input = FrameInput {
                    topology: &seen.machine.topology,
                    reserved: &reserved,
                    used,
                    cap: capped,
                    starved: !seen.measured.starved.is_empty(),
                };
                let decision = self.frame.step(seen.now_ms, &input);
                let value = decision.cpus.as_ref().map(|cpus| format!("CPUs {cpus}"));
                decided.shown.push(shown("frame", None, value, &decision.why));
                if let Some(frame) = &decision.cpus {
                    framed(seen, frame, decision.why, decided);
                }
                decided.wants.cpu_set = decision.cpus;
            }
            false => {
                let theta = if seen.settings.headroom == Headroom::Target { 1.0 } else { theta };
                let input =
                    SuppressInput { theta, cpus, core, yields: seen.in_force.yields, used, cap: capped };
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

    /// Chooses the period of the quotas with the shortest wait of online work.
    fn period(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let rates = |class: Class| seen.groups(class).filter_map(|group| seen.rates(group));
        let online: Option<f64> = rates(Class::Online).map(|rates| rates.cpus).sum();
        let blamed = seen.measured.probe.and_then(|waits| waits.blamed_ms_per_s);
        let blamed_ms = blamed.zip(online).map(|(ms, cpus)| ms / cpus.max(LEAST_CPUS));
        let throttled: Vec<f64> =
            rates(Class::Offline).filter_map(|rates| rates.throttled_ms_per_s).collect();
        let binding = (!throttled.is_empty()).then(|| throttled.iter().any(|ms| *ms > 0.0));
        let decision = self.period.step(seen.now_ms, blamed_ms, binding);
        let value = format!("{} ms", f64::from(decision.period_us) / 1e3);
        decided.shown.push(shown("quota period", None, Some(value), &decision.why));
        // Without a controller's decision, a group has the kernel's default period.
        let tried = decision.trial || decision.period_us != DEFAULT_US;
        decided.wants.period = tried.then_some(decision.period_us);
        let why = Arc::new(decision.why);
        for (group, quota) in &decided.wants.quotas {
            let why = match quota.period_us(decision.period_us) {
                us if us == decision.period_us => Arc::clone(&why),
                us => Arc::new(
                    Explanation::new(
                        "a longer one: with the chosen period the quota would be below the kernel's minimum",
                        "period = own",
                    )
                    .with("own", f64::from(us) / 1e3, "ms")
                    .with("chosen", f64::from(decision.period_us) / 1e3, "ms"),
                ),
            };
            decided.why.insert((group.clone(), KnobId::CpuPeriod.to_string().into()), why);
        }
    }

    fn memory(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        if !self.groups.is_empty() {
            self.groups
                .retain(|name, _| seen.in_force.desired.groups.iter().any(|group| group.name == *name));
        }
        // If an online group exceeds its limit, the kernel acts without a controller.
        for (group, spec) in seen.with_specs(Class::Offline) {
            let wanted = spec.and_then(|spec| spec.on_exceed);
            let (Some(limit), Some(on_exceed)) = (group.limits.get(MEMORY_MAX), wanted) else { continue };
            // `kill-group` needs no controller: the kernel itself kills the whole group (`memory.oom.group`).
            if matches!(on_exceed, OnExceed::KillGroup) {
                continue;
            }
            let input = GroupInput {
                held: (seen.measured.held)(group),
                limit,
                on_exceed,
                by_kernel: group.members.len() == 1,
                processes: None,
            };
            let memory = self.groups.entry(group.name.clone()).or_default();
            let mut decision = memory.step(seen.now_ms, &input);
            if decision.list {
                let processes = (seen.measured.list)(group);
                decision = memory.step(seen.now_ms, &GroupInput { processes: Some(&processes), ..input });
            }
            let why = Arc::new(decision.why);
            let queues = if decision.queue { &mut decided.held } else { &mut decided.opened };
            queues.insert(group.name.clone(), Arc::clone(&why));
            if decision.frozen {
                decided.wants.frozen.insert(group.name.clone());
            }
            if on_exceed == OnExceed::Freeze {
                decided.why.insert((group.name.clone(), FROZEN.key().into()), Arc::clone(&why));
            }
            decided.kill.extend(decision.kill.map(|victim| {
                let (group, why) = (Some(group.name.clone()), Arc::clone(&why));
                Kill { group, victim, why }
            }));
            let value = match (decision.frozen, decision.queue) {
                (true, _) => "frozen",
                (false, true) => "takes no new work",
                (false, false) => "free",
            };
            decided.shown.push(shown("memory", Some(&group.name), Some(value.to_owned()), &why));
        }
    }

    fn low_memory(&mut self, seen: &Observation<'_>, decided: &mut Decided) {
        let input = NodeInput {
            available: seen.measured.available,
            total: seen.machine.memory,
            pressure_pct: seen.measured.sample.machine.pressure_pct[1],
            candidates: None,
        };
        let mut decision = self.node.step(seen.now_ms, &input);
        if decision.list {
            let of = |group: &DesiredGroup| {
                let class = group.class;
                (seen.measured.list)(group).into_iter().map(move |process| Candidate { class, process })
            };
            let candidates: Vec<Candidate> = seen.groups(Class::Offline).flat_map(of).collect();
            decision = self.node.step(seen.now_ms, &NodeInput { candidates: Some(&candidates), ..input });
        }
        let why = Arc::new(decision.why);
        for group in seen.groups(Class::Offline) {
            let key = (group.name.clone(), FROZEN.key().into());
            let thaws = self.node_froze && !decided.wants.frozen.contains(&group.name);
            if decision.freeze || thaws {
                decided.why.insert(key, Arc::clone(&why));
            } else {
                decided.why.entry(key).or_insert_with(|| Arc::clone(&why));
            }
            if decision.freeze {
                decided.wants.frozen.insert(group.name.clone());
            }
        }
        self.node_froze = decision.freeze;
        let kill = |victim| Kill { group: None, victim, why: Arc::clone(&why) };
        decided.kill.extend(decision.kill.map(kill));
        let value = if decision.freeze { "offline work is frozen" } else { "free" };
        decided.shown.push(shown("low memory", None, Some(value.to_owned()), &why));
    }
}

fn used(seen: &Observation<'_>) -> Use {
    let cpus = |group: &DesiredGroup| seen.rates(group).and_then(|rates| rates.cpus);
    let offline = seen.groups(Class::Offline);
    let confined = seen.groups(Class::Online).filter(|group| group.has_reserved_cpus());
    Use {
        busy: seen.measured.sample.machine.busy,
        steal: seen.measured.sample.machine.steal,
        offline: offline.map(&cpus).sum(),
        confined: confined.map(&cpus).sum(),
    }
}

/// Explains the CPUs of every offline group: the frame, or the part of the frame that the user's own CPU set contains.
fn framed(seen: &Observation<'_>, frame: &CpuSet, why: Explanation, decided: &mut Decided) {
    let all = Arc::new(why);
    for (group, spec) in seen.with_specs(Class::Offline) {
        let own = written(seen, spec).and_then(|limits| limits.get(CPU_SET));
        let why = own.map_or_else(
            || Arc::clone(&all),
            |own| {
                let count = |set: &CpuSet| f64::from(u32::try_from(set.len()).unwrap_or(u32::MAX));
                let common = own.intersection(frame);
                let mut why = all.as_ref().clone();
                why.rule += match common.is_empty() {
                    true => "; the frame contains no CPU of the group's cpu.set, which stays as written",
                    false => "; of these CPUs, the group gets those in its cpu.set",
                };
                let why = why.with("written", count(&own), "CPUs").with("common", count(&common), "CPUs");
                Arc::new(why.then(if common.is_empty() {
                    "cpus_here = written"
                } else {
                    "cpus_here = common"
                }))
            },
        );
        decided.why.insert((group.name.clone(), CPU_SET.key().into()), why);
    }
}

/// Divides the quota of offline work among the offline groups, and each group's share among its cgroups.
fn divided(seen: &Observation<'_>, quota: MicroCpus, why: &Explanation, decided: &mut Decided) {
    let (groups, specs): (Vec<&DesiredGroup>, Vec<_>) = seen.with_specs(Class::Offline).unzip();
    let part = |group: &&DesiredGroup| Part {
        weight: group.limits.get(CPU_WEIGHT).map_or(100.0, |weight| f64::from(weight.v2())),
        used: seen.rates(group).and_then(|rates| rates.cpus),
    };
    let parts: Vec<Part> = groups.iter().map(part).collect();
    for ((group, spec), share) in groups.iter().zip(specs).zip(divide(quota.0 as f64 / 1e6, &parts)) {
        let cgroups = f64::from(u32::try_from(group.members.len().max(1)).unwrap_or(u32::MAX));
        let each = MicroCpus((share / cgroups * 1e6) as u64);
        let own = spec.and_then(|spec| spec.limits.get(CPU_MAX));
        let own = own.map(|own| own.on(seen.machine.topology.threads()));
        let cpus = |quota: MicroCpus| quota.0 as f64 / 1e6;
        let part = share / cpus(quota).max(f64::MIN_POSITIVE);
        let why = match own {
            Some(_) => why.clone().then("quota = min(allowed * part / cgroups, written)"),
            None => why.clone().then("quota = allowed * part / cgroups"),
        };
        let why = why
            .with("part", part, "")
            .with("cgroups", cgroups, "")
            .maybe("written", own.map(cpus), "CPUs")
            .with("quota", cpus(own.map_or(each, |own| own.min(each))), "CPUs");
        decided.wants.quotas.insert(group.name.clone(), each);
        decided.why.insert((group.name.clone(), CPU_MAX.key().into()), Arc::new(why));
    }
}
