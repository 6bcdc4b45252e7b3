//! The values that the agent's controllers may write in addition to the values in the groups file: their range, the
//! rule, and how to disable the controller. `commensal plan` shows this list. It contains only controllers that are
//! active with these groups on this machine.

use crate::actual::ActualState;
use crate::config::{Compiled, Headroom};
use crate::control::frame::{pool, size, theta};
use crate::control::io::{FLOOR, shared};
use crate::control::memory::{FREEZE_AT, LOW, LOW_MOST, QUEUE_AT};
use crate::control::period::PERIODS_US;
use crate::control::suppress::{Part, divide, floor, is_frame};
use crate::control::weights::{OVER_OTHER, WeightInput, Weights};
use crate::cpuset::CpuSet;
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::{Class, GroupName, GroupSpec, OnExceed};
use crate::knob::{Controller, KnobId, Version};
use crate::limit::{CPU_MAX, CPU_SET, CPU_WEIGHT, FROZEN, IO_READ, IO_WEIGHT, IO_WRITE, MEMORY_MAX};
use crate::plan::Plan;
use crate::text::{Align, columns};
use crate::topology::{Device, Machine};
use crate::units::{Bytes, BytesPerS, MicroCpus, PERIOD_MAX_US, Ppm, Weight};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A value that a controller may write for a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reach {
    /// Name of the group.
    pub group: String,
    /// The controller's name in the output of `explain`.
    pub controller: &'static str,
    /// The kernel file, or another object that the controller acts on.
    pub what: String,
    /// The lowest value, in `unit`.
    pub from: f64,
    /// The highest value, in `unit`; `None` if the controller may remove the limit completely.
    pub to: Option<f64>,
    /// The value that the controller would choose now; `None` if the value depends on a measurement.
    pub now: Option<f64>,
    /// `CPUs`, `us`, `B/s`, or empty for a number on the file's own scale.
    pub unit: &'static str,
    /// When the controller writes the value and how it computes the value, as readable text.
    pub rule: String,
    /// How to disable the controller.
    pub off: String,
}

/// The inputs of the list.
#[derive(Debug, Clone, Copy)]
pub struct ReachInput<'a> {
    /// The groups, resolved against the machine.
    pub desired: &'a DesiredState,
    /// The machine's current cgroups.
    pub actual: &'a ActualState,
    /// The plan for these groups.
    pub plan: &'a Plan,
    /// The machine.
    pub machine: &'a Machine,
    /// The compiled groups files.
    pub settings: &'a Compiled,
    /// For each online group, the siblings of its cgroup that belong to no group, with their weights.
    pub beside: &'a BTreeMap<GroupName, WeightInput>,
}

struct Reaches<'a> {
    input: ReachInput<'a>,
    found: Vec<Reach>,
}

/// Lists the values that the controllers may write for these groups on this machine.
#[must_use]
pub fn reach(input: ReachInput<'_>) -> Vec<Reach> {
    let mut all = Reaches { input, found: Vec::new() };
    all.headroom();
    all.weights();
    all.disks();
    all.memory();
    let mut found = all.found;
    found.sort_by(|a, b| a.group.cmp(&b.group));
    found
}

impl<'a> Reaches<'a> {
    fn of(&self, class: Class) -> Vec<(&'a DesiredGroup, &'a GroupSpec)> {
        let spec =
            |group: &DesiredGroup| self.input.settings.groups.iter().find(|spec| spec.name == group.name);
        let groups = self.input.desired.groups.iter();
        let groups = groups.filter(|group| group.class == class && !group.members.is_empty());
        groups.filter_map(|group| Some((group, spec(group)?))).collect()
    }

    fn version(&self, controller: Controller) -> Option<Version> {
        let actual = self.input.actual;
        actual.hierarchy_of(controller).map(|index| actual.hierarchies[index].version)
    }

    /// The kernel file of a knob on this machine; `None` if the machine does not have the knob.
    fn file(&self, knob: KnobId) -> Option<&'static str> {
        let row = knob.row();
        self.version(row.controller).and_then(|version| row.file(version)).map(|file| file.name)
    }

    fn add(&mut self, group: &GroupName, what: impl Into<String>, one: Reach) {
        self.found.push(Reach { group: group.to_string(), what: what.into(), ..one });
    }

    fn headroom(&mut self) {
        let settings = self.input.settings;
        let by_target = settings.headroom == Headroom::Target;
        let has_target = settings.groups.iter().any(|spec| spec.target_wakeup_p99.is_some());
        if settings.headroom == Headroom::Off || (by_target && !has_target) {
            return;
        }
        let (cpus, core) = size(&self.input.machine.topology);
        let theta = theta(&self.input.machine.topology);
        let when = match by_target {
            true => "while an online group misses target-wakeup-p99".to_owned(),
            false => format!("{:.0} % of the CPUs minus what all other work uses", theta * 100.0),
        };
        let capped = if !by_target && has_target {
            ", and less while an online group misses target-wakeup-p99"
        } else {
            ""
        };
        let off = "`[agent] headroom = \"off\"` turns it off".to_owned();
        let offline = self.of(Class::Offline);
        let frame =
            is_frame(settings.headroom, theta, (cpus, core), self.input.plan.yields(self.input.desired));
        if frame {
            let Some(file) = self.file(KnobId::CpusetCpus) else { return };
            let pool = pool(&self.input.machine.topology, &self.input.desired.reserved());
            let sizes = || pool.iter().map(CpuSet::len);
            let Some((least, core)) = sizes().min().zip(sizes().max()) else { return };
            let (all, core) = (count(sizes().sum()), count(core));
            let most = ((theta * all / core).floor() * core).max(core);
            for (group, spec) in offline {
                let own = spec.limits.get(CPU_SET).map(|own| count(own.len()));
                let one = Reach {
                    from: own.map_or(count(least), |_| 1.0),
                    to: Some(own.unwrap_or(most)),
                    rule: format!("whole cores, {when}{capped}"),
                    ..row("frame", "CPUs", off.clone())
                };
                self.add(&group.name, file, one);
            }
            return;
        }
        let Some(file) = self.file(KnobId::CpuMax) else { return };
        let most = if by_target { cpus } else { theta * cpus };
        for (group, _) in offline {
            let written = self.written(group).map(|quota| quota.0 as f64 / 1e6);
            let one = Reach {
                // All offline groups share the floor, and one group may get any part of it, even none.
                from: 0.0,
                to: Some(written.map_or(most, |own| own.min(most))),
                rule: format!(
                    "its part of {when}{capped}; all offline groups together keep {} CPUs at least",
                    (floor(cpus) * 1e3).round() / 1e3
                ),
                ..row("suppress", "CPUs", off.clone())
            };
            self.add(&group.name, file, one);
            let Some(period) = self.file(KnobId::CpuPeriod) else { continue };
            let one = Reach {
                from: f64::from(PERIODS_US.iter().min().copied().unwrap_or_default()),
                to: Some(f64::from(PERIOD_MAX_US)),
                rule: "the period under which online work waits least, each tried where the probe works and the \
                       quota stops offline work; above 100 ms only if the quota would be below 1 ms otherwise"
                    .to_owned(),
                ..row("quota period", "us", off.clone())
            };
            self.add(
                &group.name,
                if period == file { format!("{period} (period)") } else { period.to_owned() },
                one,
            );
        }
    }

    fn written(&self, group: &DesiredGroup) -> Option<MicroCpus> {
        group.limits.get(CPU_MAX)
    }

    fn weights(&mut self) {
        let offline = !self.of(Class::Offline).is_empty();
        let file = self.file(KnobId::CpuWeight).filter(|_| self.input.settings.weights && offline);
        let Some(file) = file else { return };
        let v1 = self.version(Controller::Cpu) == Some(Version::V1);
        let number = |weight: Weight| if v1 { weight.v1_shares() as f64 } else { f64::from(weight.v2()) };
        let beside = self.input.beside;
        for (group, spec) in self.of(Class::Online) {
            let adopted = group.members.iter().any(|member| !member.own);
            let Some(input) = beside.get(&group.name).filter(|_| adopted) else { continue };
            if spec.limits.get(CPU_WEIGHT).is_some() {
                continue;
            }
            let original = input.original.unwrap_or(Weight::DEFAULT);
            let now = Weights::default().step(0, input).weight.unwrap_or(original);
            let most = Weight::new(10_000).unwrap_or(now).max(original);
            let one = Reach {
                from: number(original),
                to: Some(number(most)),
                now: Some(number(now)),
                rule: format!(
                    "its own weight x {OVER_OTHER} x (weight of the heaviest unclassified sibling / 100), while \
                     unclassified work runs beside it ({} now)",
                    input.siblings.len()
                ),
                ..row(
                    "weights",
                    "",
                    "`[agent] weights = false` or a `cpu.weight` of its own turns it off".to_owned(),
                )
            };
            self.add(&group.name, file, one);
        }
    }

    fn disks(&mut self) {
        // Only v2 hierarchies report the I/O pressure of single groups; without it the controller limits no disk.
        let online = !self.of(Class::Online).is_empty();
        if !self.input.settings.io || !online {
            return;
        }
        let shared = shared(&self.input.machine.disks, self.input.actual);
        let off = "`[agent] io = false` turns it off".to_owned();
        let together = BytesPerS(FLOOR as u64);
        let disks = &self.input.machine.disks;
        let measured = self.input.actual.hierarchies.iter().any(|one| one.version == Version::V2);
        for (group, spec) in self.of(Class::Offline) {
            for disk in disks.iter().filter(|disk| measured && !shared.contains(&disk.device)) {
                for (knob, key) in [(KnobId::IoReadBps, IO_READ), (KnobId::IoWriteBps, IO_WRITE)] {
                    let Some(file) = self.file(knob) else { continue };
                    let own = group.limits.on_disk.get(&disk.device).and_then(|own| own.get(key));
                    let own = own.map(|rate| rate.0 as f64);
                    let least = self.least_rate(group);
                    let one = Reach {
                        from: own.map_or(least, |own| own.min(least)),
                        to: own,
                        rule: format!(
                            "{} of {}: half of what is used while an online group waits for it, then slowly back; all offline \
                             groups together keep {together} at least",
                            key.key(),
                            disk.name
                        ),
                        ..row("disk", "B/s", off.clone())
                    };
                    self.add(&group.name, file, one);
                }
            }
            let of_group: BTreeSet<Device> = match group.limits.disks.as_slice() {
                [] => disks.iter().map(|disk| disk.device).collect(),
                own => own.iter().map(|disk| disk.device).collect(),
            };
            if of_group.is_empty() || !of_group.is_subset(&shared) || spec.limits.get(IO_WEIGHT).is_some() {
                continue;
            }
            let Some(file) = self.file(KnobId::IoWeight) else { continue };
            let least = f64::from(Weight::MIN.v2());
            let rule =
                "the smallest weight, because the kernel shares the group's disks by weight".to_owned();
            let one = Reach {
                from: least,
                to: Some(least),
                now: Some(least),
                rule,
                ..row("disk", "", off.clone())
            };
            self.add(&group.name, file, one);
        }
    }

    /// The lowest rate of each of the group's cgroups (bytes per second): its part of [`FLOOR`] while the group is idle
    /// and all other offline groups take what they can get.
    fn least_rate(&self, group: &DesiredGroup) -> f64 {
        let groups = self.of(Class::Offline);
        let part = |(other, _): &(&DesiredGroup, &GroupSpec)| Part {
            weight: other.limits.get(IO_WEIGHT).map_or(100.0, |weight| f64::from(weight.v2())),
            used: (other.name == group.name).then_some(0.0),
        };
        let shares = divide(FLOOR, &groups.iter().map(part).collect::<Vec<_>>());
        let own = groups.iter().zip(shares).find(|((other, _), _)| other.name == group.name);
        (own.map_or(0.0, |(_, share)| share) / count(group.members.len().max(1))).floor().max(1.0)
    }

    fn memory(&mut self) {
        let per_cent = |share: Ppm| share.0 as f64 / 1e4;
        let low = Bytes(LOW.of(self.input.machine.memory.0).min(LOW_MOST.0));
        for (group, spec) in self.of(Class::Offline) {
            if let Some(file) = self.file(KnobId::CgroupFreeze).filter(|_| !group.limits.each.has(FROZEN)) {
                let freezes =
                    spec.on_exceed == Some(OnExceed::Freeze) && group.limits.get(MEMORY_MAX).is_some();
                let own = match freezes {
                    true => format!(
                        "when its memory use reaches {} % of its memory.max, and ",
                        per_cent(FREEZE_AT)
                    ),
                    false => String::new(),
                };
                let one = Reach {
                    to: Some(1.0),
                    rule: format!("is frozen {own}while the machine has less than {low} of memory available"),
                    ..row(
                        "low memory",
                        "",
                        "it cannot be turned off, and acts on offline work only".to_owned(),
                    )
                };
                self.add(&group.name, file, one);
            }
            let limited = group.limits.get(MEMORY_MAX).is_some() && spec.on_exceed.is_some();
            if limited && spec.on_exceed != Some(OnExceed::KillGroup) && spec.admission().is_some() {
                let one = Reach {
                    to: Some(1.0),
                    rule: format!("takes no new work from {} % of its memory.max on", per_cent(QUEUE_AT)),
                    ..row("memory", "", "without memory.on-exceed it is off".to_owned())
                };
                self.add(&group.name, "queue", one);
            }
        }
    }
}

fn row(controller: &'static str, unit: &'static str, off: String) -> Reach {
    Reach {
        group: String::new(),
        controller,
        what: String::new(),
        from: 0.0,
        to: None,
        now: None,
        unit,
        rule: String::new(),
        off,
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

impl Reach {
    /// Formats the range in the direction in which the controller changes the value: `1024 -> 10240 now, up to 102400`
    /// for a weight, `no limit -> down to 1 MiB/s` for a limit.
    fn range(&self) -> String {
        let amount = |value: f64| match self.unit {
            "B/s" => BytesPerS(value as u64).to_string(),
            "" => value.to_string(),
            unit => format!("{} {unit}", (value * 1e3).round() / 1e3),
        };
        let most = self.to.map_or("no limit".to_owned(), |to| format!("up to {}", amount(to)));
        if matches!(self.unit, "CPUs" | "B/s") {
            let loosest = self.to.map_or("no limit".to_owned(), amount);
            return format!("{loosest} -> down to {}", amount(self.from));
        }
        match self.now {
            Some(now) if Some(now) == self.to => format!("-> {}", amount(now)),
            Some(now) if now > self.from => format!("{} -> {} now, {most}", amount(self.from), amount(now)),
            _ => format!("{} -> {most}", amount(self.from)),
        }
    }
}

/// Formats the list for a terminal; returns an empty string if the list is empty.
#[must_use]
pub fn text(reaches: &[Reach]) -> String {
    if reaches.is_empty() {
        return String::new();
    }
    let rows: Vec<[String; 4]> = reaches
        .iter()
        .map(|one| {
            let why = format!("# {}: {}; {}", one.controller, one.rule, one.off);
            ["  ".to_owned() + &one.group, one.what.clone(), one.range(), why]
        })
        .collect();
    format!("while `commensal agent` runs, it may also write\n{}", columns(&rows, Align::Left))
}
