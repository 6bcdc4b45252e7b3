//! Converts groups to the knob values that they want, each with its hierarchy, file and number, and records which
//! requests cannot be met. A knob is a kernel setting of a cgroup.

use super::draft::{Draft, Setting, Want};
use crate::actual::{ActualState, CgroupPath, CgroupRef, Manager};
use crate::cpuset::CpuSet;
use crate::desired::{DesiredGroup, DesiredState, Member};
use crate::group::Class;
use crate::knob::{Controller, File, KnobId, KnobStatus, Value, Version};
use crate::limit::{CPU_MAX, CPU_QOS_LEVEL, CPU_SET, CPU_WEIGHT, IO_WEIGHT, Write};
use crate::topology::Device;
use crate::units::{MicroCpus, PERIOD_MAX_US, PERIOD_US, QUOTA_MIN_US, Weight};
use crate::vendor::Switch;
use std::collections::BTreeSet;

impl Draft<'_> {
    pub fn collect(&mut self) {
        let desired = self.desired;
        for group in &desired.groups {
            for member in &group.members {
                let cpu = self.actual.hierarchy_of(Controller::Cpu);
                if member.own
                    && cpu.is_none_or(|cpu| !self.actual.own_possible(cpu))
                    && self.actual.tenancy.obstacle.is_some()
                {
                    continue;
                }
                if member.own {
                    self.own_group(group, &member.path);
                }
                match group.class {
                    Class::Offline => self.offline(group, member),
                    Class::Online => self.online(group, member),
                }
                self.limits(group, member);
                self.order(group, member);
            }
            self.expel(group);
            self.move_in(group);
        }
        self.move_back();
        self.leftovers();
        self.leave_frozen();
        self.bring_home();
    }

    /// Creates the group in every hierarchy that accounts or limits, so that usage can be read and limits can be added
    /// later without moving processes. Groups of cpuset are created only on demand, because in v1 they must be given
    /// CPUs and memory nodes first.
    fn own_group(&mut self, group: &DesiredGroup, path: &CgroupPath) {
        let actual = self.actual;
        for (index, hierarchy) in actual.hierarchies.iter().enumerate() {
            use Controller::{Cpu, Cpuacct, Freezer, Io, Memory, Pids};
            let wanted =
                [Cpu, Cpuacct, Memory, Io, Pids, Freezer].iter().any(|c| hierarchy.controllers.contains(c));
            if wanted && actual.own_possible(index) {
                self.create(&CgroupRef { hierarchy: index, path: path.clone() }, group);
            }
        }
    }

    fn create(&mut self, place: &CgroupRef, group: &DesiredGroup) {
        for path in place.path.ancestors().into_iter().chain([place.path.clone()]) {
            let step = CgroupRef { hierarchy: place.hierarchy, path };
            if !self.actual.cgroups.contains_key(&step) {
                let why = match step.path == place.path {
                    true => format!("group {}", group.name),
                    false => format!("parent of commensal's {} groups", group.class),
                };
                self.structure.creates.entry(step).or_insert(why);
            }
        }
    }

    fn limits(&mut self, group: &DesiredGroup, member: &Member) {
        for setting in self.limit_settings(group, member) {
            self.want(group, &member.path, member.own, setting);
        }
        if let Some(set) = group.limits.get(CPU_SET) {
            self.cpuset(group, member, set);
        }
        if let Some(weight) = group.limits.get(IO_WEIGHT) {
            self.disk_share(group, member, weight);
        }
    }

    fn limit_settings(&mut self, group: &DesiredGroup, member: &Member) -> Vec<Setting> {
        let limits = &group.limits;
        let mut list = Vec::new();
        if let Some(weight) = limits.get(CPU_WEIGHT) {
            list.extend(self.soft_limit(group, member, weight));
        }
        if let Some(level) = limits.get(CPU_QOS_LEVEL) {
            list.extend(self.online_level(group, member, level));
        }
        if let Some(amount) = limits.get(CPU_MAX) {
            list.extend(self.quota(group, member, amount));
        }
        for (row, limit) in limits.each.iter() {
            if let Write::Plain(knob) = row.write {
                list.push(Setting::new(knob, limit.value(), format!("{} = {limit}", row.key)));
            }
        }
        if limits.kill_group {
            let why = "memory.on-exceed = kill-group".to_owned();
            list.push(Setting::new(KnobId::MemoryOomGroup, Value::Number(1), why));
        }
        for (device, on_disk) in &limits.on_disk {
            for (row, limit) in on_disk.iter() {
                if let Write::PerDisk(knob) = row.write {
                    let why = format!("{} = {limit} on {device}", row.key);
                    list.push(Setting { knob, device: Some(*device), value: limit.value(), why });
                }
            }
        }
        list
    }

    /// The setting of `cpu.weight`; `None` if the class already sets the weight of this cgroup.
    fn soft_limit(&mut self, group: &DesiredGroup, member: &Member, weight: Weight) -> Option<Setting> {
        let cpu = self.actual.hierarchy_of(Controller::Cpu).unwrap_or_default();
        let place = CgroupRef { hierarchy: cpu, path: member.path.clone() };
        if !self.yields_at(group, &place) {
            let number = match self.cpu_version() {
                Some(Version::V1) => i64::try_from(weight.v1_shares()).unwrap_or(i64::MAX),
                _ => i64::from(weight.v2()),
            };
            let why = format!("cpu.weight = {weight}");
            return Some(Setting::new(KnobId::CpuWeight, Value::Number(number), why));
        }
        if self.by_scheduler(group) {
            self.report.note(format!(
                "group {}: the scheduler applies cpu.weight = {weight} to {}; while it is not loaded, class offline sets the weight there",
                group.name, member.path
            ));
            return None;
        }
        let because = format!("class offline already sets the weight of {}", member.path);
        let try_this = "leave cpu.weight out, or put the group below a parent that yields";
        self.report.unmet(group, "cpu.weight".to_owned(), because, try_this);
        None
    }

    /// How to make the setting through systemd, as readable text.
    pub fn through_systemd(&self, unit: &CgroupPath, place: &CgroupRef, setting: &Setting) -> String {
        let found =
            self.actual.cgroups.get(place).and_then(|found| found.values.get(&(KnobId::CpuPeriod, None)));
        let period_us = match found {
            Some(Value::Number(period)) => *period,
            _ => i64::from(PERIOD_US),
        };
        super::systemd::instead(unit, &place.path, setting, period_us, &self.desired.disk_names)
    }

    fn cpu_version(&self) -> Option<Version> {
        self.actual.hierarchy_of(Controller::Cpu).map(|index| self.actual.hierarchies[index].version)
    }

    /// The quota of `cpu.max`, and its period if that must be changed: by the agent, or because with the period that the
    /// cgroup has the quota would be below the kernel's minimum.
    fn quota(&mut self, group: &DesiredGroup, member: &Member, amount: MicroCpus) -> Vec<Setting> {
        let has = self.usual_period_us(group, member);
        let period_us = amount.period_us(has);
        let quota_us = amount.quota_us(period_us);
        let gets = MicroCpus(quota_us * 1_000_000 / u64::from(period_us.max(1)));
        if gets > amount {
            let because = format!(
                "the kernel's smallest quota is {QUOTA_MIN_US} us of every {PERIOD_MAX_US} us, so the group gets {gets}"
            );
            self.report.unmet(
                group,
                format!("cpu.max = {amount}"),
                because,
                "choose at least 0.001 cores, or stop the group with frozen = true",
            );
        }
        let why = format!("cpu.max = {amount}: {quota_us} us of every {period_us} us");
        let value = Value::Number(i64::try_from(quota_us).unwrap_or(i64::MAX));
        let mut settings = vec![Setting::new(KnobId::CpuMax, value, why)];
        if group.limits.cpu_period.is_some() || period_us != has {
            let why = match period_us > has {
                true => format!(
                    "the quota's period is {period_us} us: the kernel takes no quota below {QUOTA_MIN_US} us"
                ),
                false => format!("the quota's period is {period_us} us"),
            };
            settings.push(Setting::new(KnobId::CpuPeriod, Value::Number(i64::from(period_us)), why));
        }
        settings
    }

    /// The quota period (us) unless the amount needs a longer one: the one that the agent has chosen, otherwise the one
    /// that the cgroup has without commensal.
    pub fn usual_period_us(&self, group: &DesiredGroup, member: &Member) -> u32 {
        let place = self
            .actual
            .hierarchy_of(Controller::Cpu)
            .map(|hierarchy| CgroupRef { hierarchy, path: member.path.clone() });
        // If commensal set a period that is no longer wanted, the same plan restores the original one.
        let found = place.and_then(|place| {
            let ours = self.actual.ours.originals.get(&(place.clone(), KnobId::CpuPeriod, None));
            ours.or_else(|| self.actual.cgroups.get(&place)?.values.get(&(KnobId::CpuPeriod, None)))
        });
        match (group.limits.cpu_period, found) {
            (Some(wanted), _) => wanted,
            // A group that commensal created returns to the default of a new group.
            (None, _) if member.own => PERIOD_US,
            (None, Some(Value::Number(period))) => u32::try_from(*period).unwrap_or(PERIOD_US),
            _ => PERIOD_US,
        }
    }

    /// Adds a wanted value, or reports why this machine cannot have it.
    pub fn want(&mut self, group: &DesiredGroup, path: &CgroupPath, own: bool, setting: Setting) {
        let Setting { knob, device, value, why } = setting;
        let row = knob.row();
        let what = match device {
            Some(device) => format!("{knob} on {device}"),
            None => knob.to_string(),
        };
        let Some(hierarchy) = self.actual.hierarchy_of(row.controller) else {
            let because = format!("no cgroup hierarchy has the {} controller", row.controller);
            return self.report.unmet_knob(group, (knob, what), because, "mount or enable the controller");
        };
        let version = self.actual.hierarchies[hierarchy].version;
        if let Some(obstacle) = self.caps.obstacle(knob, version) {
            return self.report.unmet_knob(
                group,
                (knob, what),
                obstacle,
                "see `commensal doctor` for what this machine offers",
            );
        }
        let Some(file) = row.file(version) else { return };
        if !file.accepts(&value) {
            let because =
                format!("{value} is outside the kernel's range {} to {}", file.range.0, file.range.1);
            return self.report.unmet_knob(group, (knob, what), because, "choose a value in that range");
        }
        let place = CgroupRef { hierarchy, path: path.clone() };
        if own && self.desired.kept.contains(&place) {
            return;
        }
        if !self.exists(group, &place, own, (knob, &what)) {
            return;
        }
        if let Some(unit) = self.actual.managed_by(&place).filter(|_| !group.takeover && !own) {
            let found = self.actual.cgroups.get(&place).and_then(|found| found.values.get(&(knob, device)));
            if found.is_some_and(|found| file.holds(found, &value)) {
                return;
            }
            let because = super::systemd::because(&unit);
            let setting = Setting { knob, device, value, why };
            let try_this = self.through_systemd(&unit, &place, &setting);
            return self.report.unmet_knob(group, (knob, format!("{what} of {path}")), because, &try_this);
        }
        if self.actual.confined && !self.actual.tenancy.base.contains(path) {
            let because = format!("this user can write only below {}", self.actual.tenancy.base);
            return self.report.unmet_knob(
                group,
                (knob, format!("{what} of {path}")),
                because,
                "ask root to write it",
            );
        }
        if !row.controller.built_in(version) && !self.enable(group, &place, (knob, &what)) {
            return;
        }
        if let Some(switch) = Switch::of(knob) {
            self.switch_on(switch, group);
        }
        if knob == KnobId::CgroupFreeze
            && self.actual.here.iter().any(|here| here.hierarchy == hierarchy && path.contains(&here.path))
        {
            let because = format!("commensal itself runs in {path} and would be frozen with it");
            return self.report.unmet_knob(group, (knob, what), because, "start commensal outside the group");
        }
        if knob == KnobId::CpuWeight && self.idle_by_others(&place) {
            let because = format!(
                "cpu.idle is 1 on {path}, set by another program, and the kernel refuses a weight there"
            );
            return self.report.unmet_knob(
                group,
                (knob, what),
                because,
                "clear cpu.idle, or make the group offline",
            );
        }
        let value = file.normalise(&value);
        self.wants.entry((place, knob, device)).or_insert(Want {
            value,
            why: format!("{}: {why}", group.name),
            group: Some(group.name.clone()),
        });
    }

    /// Whether the cgroup exists or can be created; reports the request as unmet if not.
    fn exists(
        &mut self,
        group: &DesiredGroup,
        place: &CgroupRef,
        own: bool,
        (knob, what): (KnobId, &str),
    ) -> bool {
        let what = (knob, what.to_owned());
        if own && !self.actual.own_possible(place.hierarchy) {
            let because = self.actual.tenancy.obstacle.clone().unwrap_or_default();
            self.report.unmet_knob(group, what, because, super::DELEGATE);
            return false;
        }
        if own {
            self.create(place, group);
        } else if !self.actual.cgroups.contains_key(place) {
            let label = self.actual.hierarchies[place.hierarchy].label();
            let because = format!("{} does not exist in the {label} hierarchy", place.path);
            let try_this = "create it there, or use a group that commensal creates, with `commensal run`";
            self.report.unmet_knob(group, what, because, try_this);
            return false;
        }
        true
    }

    /// On v2, enables the controller in all ancestors of the group. Only the base group (usually the root) and
    /// commensal's parent groups may be changed: if another ancestor lacks the controller, or systemd manages the
    /// ancestor, the request is reported as unmet and the result is false.
    fn enable(&mut self, group: &DesiredGroup, place: &CgroupRef, (knob, what): (KnobId, &str)) -> bool {
        let controller = knob.row().controller;
        for above in place.path.ancestors() {
            let parent = CgroupRef { hierarchy: place.hierarchy, path: above };
            let enabled =
                self.actual.cgroups.get(&parent).is_some_and(|found| found.subtree.contains(&controller));
            if enabled {
                continue;
            }
            let ours = [&self.desired.offline_parent, &self.desired.online_parent, &self.actual.tenancy.base];
            let managed =
                self.actual.managed_by(&parent).is_some() && !self.actual.own_possible(parent.hierarchy);
            if !ours.contains(&&parent.path) || (managed && !group.takeover) {
                let because = format!(
                    "{} does not enable the {controller} controller for its children, and no group claims it",
                    parent.path
                );
                let unit = place.path.unit().filter(|_| self.actual.tenancy.manager == Manager::Systemd);
                let try_this = match unit {
                    Some(unit) => super::systemd::enabling(&unit, controller),
                    None => format!("enable it there: echo +{controller} > cgroup.subtree_control"),
                };
                self.report.unmet_knob(group, (knob, what.to_owned()), because, &try_this);
                return false;
            }
            self.structure
                .enables
                .entry((parent, controller))
                .or_insert_with(|| format!("group {} needs {what}", group.name));
        }
        true
    }

    /// Restores values that an earlier plan set and no group wants any more, and removes empty groups that commensal
    /// created.
    fn leftovers(&mut self) {
        let actual = self.actual;
        if self.desired.alone {
            let members = self.desired.groups.iter().flat_map(|group| &group.members);
            let own: BTreeSet<&CgroupPath> =
                members.filter(|member| member.own).map(|member| &member.path).collect();
            let kept = &self.desired.kept;
            let made = actual.ours.created.iter().filter(|place| !kept.contains(place));
            for place in made.filter(|place| own.contains(&place.path)) {
                if let Some(found) = actual.cgroups.get(place) {
                    self.reset(place, found);
                }
            }
            return;
        }
        for ((place, knob, device), original) in &actual.ours.originals {
            let key = (place.clone(), *knob, *device);
            // The weight is restored once `cpu.idle` is no longer 1; until then the kernel refuses the write.
            let forgotten = *knob == KnobId::CpuWeight && self.wants_idle(place);
            // A parent group that keeps its value imposes it on this group.
            if self.imposed(place, *knob) {
                continue;
            }
            if !self.wants.contains_key(&key)
                && let Some((above, level)) = self.level_above(place, *knob)
            {
                self.report.note(format!(
                    "{} keeps its cpu.qos_level: {} above it has level {level}, and so has every group in it",
                    actual.show(place),
                    above.path
                ));
                continue;
            }
            if *knob == KnobId::CpuBvtWarpNs && !self.wants.contains_key(&key) {
                self.identity_below(place, original);
            }
            // The group may belong to a container that a group matches, so no group is released while no container
            // engine responds.
            if actual.engines.obstacle.is_some() && !self.wants.contains_key(&key) {
                self.report.note(format!(
                    "{} keeps its values: no container engine responds, so it is not known whether a group matches it",
                    actual.show(place)
                ));
                continue;
            }
            if actual.cgroups.contains_key(place) && !self.wants.contains_key(&key) && !forgotten {
                let why = "no longer wanted: back to the original value".to_owned();
                self.wants.insert(key, Want { value: original.clone(), why, group: None });
            }
        }
        self.leftover_switches();
        let own = self.own_paths();
        for place in &actual.ours.created {
            let Some(found) = actual.cgroups.get(place) else { continue };
            if own.contains(&place.path) {
                self.reset(place, found);
            } else if actual.below(place).any(|(below, found)| {
                // Groups that another program created inside commensal's belong to that program.
                found.populated || !actual.ours.created.contains(below)
            }) {
                self.report.note(format!(
                    "{} is no longer wanted, but cgroups below it are in use, so it stays",
                    actual.show(place)
                ));
            } else if found.populated {
                self.thaw(place, found);
                self.report.note(format!(
                    "{} is no longer wanted, but has processes, so it stays",
                    actual.show(place)
                ));
            } else {
                self.structure.removes.insert(place.clone());
            }
        }
    }

    /// Whether an ancestor keeps this knob at a value other than the kernel's default, if the knob applies to all
    /// descendants.
    fn imposed(&self, place: &CgroupRef, knob: KnobId) -> bool {
        let comes_down = matches!(knob, KnobId::CpuQosLevel | KnobId::MemoryQosLevel | KnobId::CgroupFreeze);
        comes_down
            && place.path.ancestors().into_iter().any(|path| {
                let above = (CgroupRef { hierarchy: place.hierarchy, path }, knob, None);
                self.wants.get(&above).is_some_and(|want| want.value != Value::Number(0))
            })
    }

    /// The nearest group above with a level other than 0 that this plan does not change, and its level; `None` for
    /// other knobs than `cpu.qos_level`.
    fn level_above(&self, place: &CgroupRef, knob: KnobId) -> Option<(CgroupRef, i64)> {
        let above = place.path.ancestors().into_iter().rev().filter(|_| knob == KnobId::CpuQosLevel);
        above.map(|path| CgroupRef { hierarchy: place.hierarchy, path }).find_map(|above| {
            let found = self.actual.cgroups.get(&above)?.values.get(&(knob, None))?;
            let Value::Number(level @ (..=-1 | 1..)) = found else { return None };
            let stays = !self.wants.contains_key(&(above.clone(), knob, None));
            stays.then_some((above, *level))
        })
    }

    /// Restores the identity of groups that were created later and have copied the identity that is now restored.
    fn identity_below(&mut self, place: &CgroupRef, original: &Value) {
        let key = |place: &CgroupRef| (place.clone(), KnobId::CpuBvtWarpNs, None);
        let value = |found: &crate::actual::Cgroup| found.values.get(&(KnobId::CpuBvtWarpNs, None)).cloned();
        let Some(now) = self.actual.cgroups.get(place).and_then(value).filter(|now| now != original) else {
            return;
        };
        let copied: Vec<CgroupRef> = self
            .actual
            .below(place)
            .filter(|(below, found)| {
                let known = self.actual.ours.originals.contains_key(&key(below))
                    || self.actual.ours.created.contains(*below);
                !known && value(found).as_ref() == Some(&now)
            })
            .map(|(below, _)| below.clone())
            .collect();
        for below in copied {
            let why = "copied from a group above that no longer has it".to_owned();
            self.wants.entry(key(&below)).or_insert(Want { value: original.clone(), why, group: None });
        }
    }

    /// Thaws a group that commensal created and that the plan does not remove because it contains processes: no group
    /// of the user controls it any more, so it must not stay frozen.
    fn thaw(&mut self, place: &CgroupRef, found: &crate::actual::Cgroup) {
        if found.values.get(&(KnobId::CgroupFreeze, None)) == Some(&Value::Number(1)) {
            let why = "no longer wanted: its processes continue".to_owned();
            let key = (place.clone(), KnobId::CgroupFreeze, None);
            self.wants.entry(key).or_insert(Want { value: Value::Number(0), why, group: None });
        }
    }

    /// Paths of the cgroups that commensal creates for the groups, and of their ancestors.
    fn own_paths(&self) -> BTreeSet<CgroupPath> {
        let members = self.desired.groups.iter().flat_map(|group| &group.members).filter(|member| member.own);
        let members =
            members.flat_map(|member| member.path.ancestors().into_iter().chain([member.path.clone()]));
        members.chain([self.desired.aside.clone()]).collect()
    }

    /// Resets the knobs of a group that commensal created to the kernel's default, if they are driven and no value is
    /// wanted.
    fn reset(&mut self, place: &CgroupRef, found: &crate::actual::Cgroup) {
        let version = self.actual.hierarchies[place.hierarchy].version;
        for ((knob, device), value) in found.values.iter() {
            let row = knob.row();
            let key = (place.clone(), *knob, *device);
            let (KnobStatus::Driven, Some(file), false) =
                (row.status, row.file(version), self.wants.contains_key(&key))
            else {
                continue;
            };
            let default = own_default(self.desired, self.actual, (place, *knob, file), *device);
            // A vendor's level is inherited from an ancestor, and stays while that ancestor has it.
            let from_above = row.vendor.is_some()
                && place.path.ancestors().into_iter().any(|path| {
                    let above = (CgroupRef { hierarchy: place.hierarchy, path }, *knob, *device);
                    self.wants.get(&above).is_some_and(|want| want.value == *value)
                });
            if from_above {
                continue;
            }
            // While `cpu.idle` is 1, the kernel shows a weight that cannot be written.
            let idle = self.wants_idle(place);
            if *value != default && !(idle && *knob == KnobId::CpuWeight) {
                let why = "no longer wanted: the kernel's default".to_owned();
                self.wants.insert(key, Want { value: default, why, group: None });
            }
        }
    }
}

/// The default value of a knob in a group that commensal created.
pub(super) fn own_default(
    desired: &DesiredState,
    actual: &ActualState,
    (place, knob, file): (&CgroupRef, KnobId, &File),
    device: Option<Device>,
) -> Value {
    let version = actual.hierarchies.get(place.hierarchy).map(|one| one.version);
    match knob.row().controller {
        // A v1 cpuset without CPUs or nodes accepts no processes, so "no limit" is the full set.
        Controller::Cpuset if version == Some(Version::V1) => {
            Value::List(whole_set(desired, actual, place.hierarchy, knob))
        }
        _ if device.is_some() => Value::NoLimit,
        _ => file.parse(file.default, None).unwrap_or(Value::NoLimit),
    }
}

/// All CPUs or memory nodes that a cpuset of commensal's own can have in a v1 hierarchy: those of the machine, or of the
/// cgroup below which commensal creates its groups.
pub(super) fn whole_set(
    desired: &DesiredState,
    actual: &ActualState,
    hierarchy: usize,
    knob: KnobId,
) -> CpuSet {
    let all = if knob == KnobId::CpusetCpus { &desired.cpus } else { &desired.mems };
    let base = &actual.tenancy.base;
    let above = std::iter::once(base.clone()).chain(base.ancestors().into_iter().rev());
    let mut above = above.filter(|path| path.depth() > 0).map(|path| CgroupRef { hierarchy, path });
    let given =
        above.find(|place| actual.cgroups.contains_key(place) && !actual.ours.created.contains(place));
    match given.and_then(|place| actual.cgroups.get(&place)?.values.get(&(knob, None))) {
        Some(Value::List(given)) => given.intersection(all),
        _ => all.clone(),
    }
}
