//! From groups to wanted knob values: which hierarchy, which file, which number, and what is missing.

use super::Unmet;
use crate::actual::{ActualState, Capabilities, CgroupPath, Place};
use crate::class::{Mechanism, offline_mechanism};
use crate::desired::{DesiredGroup, DesiredState, Member};
use crate::group::{Class, GroupName};
use crate::knob::{Controller, KnobId, Status, Value, Version};
use crate::topology::Device;
use crate::units::{Bytes, MicroCpus};
use std::collections::{BTreeMap, BTreeSet};

/// Weight of the parent of our own online groups: `cpu.idle` shields online work from offline work but
/// not from third parties, which even gain from it (measured x1.4 to x3.3), so online groups get ten
/// times the share of unclassified work.
const ONLINE_WEIGHT: i64 = 1000;

/// Shortest quota that the kernel takes, per period (`min_cfs_quota_period`, kernel/sched/core.c).
const QUOTA_MIN_US: u64 = 1_000;

/// Period of a new group, us.
const PERIOD_US: u64 = 100_000;

/// A wanted value and its reason.
#[derive(Debug, Clone)]
pub(super) struct Want {
    pub value: Value,
    pub why: String,
    /// Who asked; nobody, when something goes back to what it was.
    pub group: Option<GroupName>,
}

/// Everything wanted so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    desired: &'a DesiredState,
    pub actual: &'a ActualState,
    caps: &'a Capabilities,
    pub creates: BTreeMap<Place, String>,
    pub enables: BTreeMap<(Place, Controller), String>,
    pub wants: BTreeMap<(Place, KnobId, Option<Device>), Want>,
    pub removes: BTreeSet<Place>,
    pub unmet: Vec<Unmet>,
    pub notes: Vec<String>,
    pub mechanisms: BTreeMap<(GroupName, Place), Mechanism>,
}

/// One thing to set on one path, before the hierarchy is known.
struct Setting {
    knob: KnobId,
    device: Option<Device>,
    value: Value,
    why: String,
}

impl Setting {
    fn new(knob: KnobId, value: Value, why: String) -> Setting {
        Setting { knob, device: None, value, why }
    }
}

impl<'a> Draft<'a> {
    pub fn new(desired: &'a DesiredState, actual: &'a ActualState, caps: &'a Capabilities) -> Draft<'a> {
        Draft {
            desired,
            actual,
            caps,
            creates: BTreeMap::new(),
            enables: BTreeMap::new(),
            wants: BTreeMap::new(),
            removes: BTreeSet::new(),
            unmet: Vec::new(),
            notes: Vec::new(),
            mechanisms: BTreeMap::new(),
        }
    }

    pub fn collect(&mut self) {
        let desired = self.desired;
        for group in &desired.groups {
            for member in &group.members {
                if member.own {
                    self.own_group(group, &member.path);
                }
                match group.class {
                    Class::Offline => self.offline(group, member),
                    Class::Online => self.online(group, member),
                }
                self.limits(group, member);
            }
        }
        self.leftovers();
    }

    fn unmet(&mut self, group: &DesiredGroup, what: String, because: String, try_this: &str) {
        self.unmet.push(Unmet { group: group.name.clone(), what, because, try_this: try_this.to_owned() });
    }

    /// A want that had to be dropped; one that nobody asked for is a note.
    pub fn unmet_for(&mut self, want: &Want, what: String, because: String, try_this: &str) {
        match &want.group {
            Some(group) => {
                self.unmet.push(Unmet { group: group.clone(), what, because, try_this: try_this.to_owned() });
            }
            None => self.notes.push(format!("{what} stays as it is: {because}")),
        }
    }

    /// Our own group exists in every hierarchy that accounts or limits, so that usage can be read and
    /// limits added later without moving processes. cpuset only on demand: in v1 it must be filled in.
    fn own_group(&mut self, group: &DesiredGroup, path: &CgroupPath) {
        let actual = self.actual;
        for (index, hierarchy) in actual.hierarchies.iter().enumerate() {
            use Controller::{Cpu, Cpuacct, Io, Memory, Pids};
            if [Cpu, Cpuacct, Memory, Io, Pids].iter().any(|c| hierarchy.controllers.contains(c)) {
                self.create(&Place { hierarchy: index, path: path.clone() }, group);
            }
        }
    }

    fn create(&mut self, place: &Place, group: &DesiredGroup) {
        for path in place.path.ancestors().into_iter().chain([place.path.clone()]) {
            let step = Place { hierarchy: place.hierarchy, path };
            if !self.actual.cgroups.contains_key(&step) {
                let why = match step.path == place.path {
                    true => format!("group {}", group.name),
                    false => format!("parent of our {} groups", group.class),
                };
                self.creates.entry(step).or_insert(why);
            }
        }
    }

    /// Makes the group yield, at the level where the scheduler compares it with the online side.
    fn offline(&mut self, group: &DesiredGroup, member: &Member) {
        if member.own {
            let parent = self.desired.offline_parent.clone();
            return self.yield_at(group, &parent);
        }
        let mut met = false;
        for (entity, online) in self.entities(&member.path) {
            if entity == member.path {
                met = true;
                continue;
            }
            let claimed = self.desired.groups.iter().any(|other| {
                other.class == Class::Offline && other.members.iter().any(|member| member.path == entity)
            });
            if claimed {
                continue;
            }
            let what = format!("class offline of {} against {online}", member.path);
            let because = format!(
                "the kernel compares {entity} with {online} at their common parent, and no offline group claims {entity}"
            );
            let own = &self.desired.offline_parent;
            let try_this = format!(
                "claim it with match = [{{ cgroup = \"{entity}\" }}] if everything in it is offline, or start the members \
                 below {own} (for containers: --cgroup-parent)"
            );
            self.unmet(group, what, because, &try_this);
        }
        if met {
            self.yield_at(group, &member.path);
        }
    }

    /// The groups on the way to `path` that are compared with something online: for each online member
    /// the child of the common ancestor; without any, the one at the top, against everything else.
    fn entities(&self, path: &CgroupPath) -> BTreeMap<CgroupPath, String> {
        let online = self.desired.groups.iter().filter(|group| group.class == Class::Online);
        let members = online.flat_map(|group| group.members.iter());
        let mut entities: BTreeMap<CgroupPath, String> = members
            .filter_map(|member| Some((path.entity_against(&member.path)?, member.path.to_string())))
            .collect();
        if entities.is_empty() {
            let top = path.parts().next().map(|part| CgroupPath::root().child(part));
            entities.extend(top.map(|top| (top, "everything outside".to_owned())));
        }
        entities
    }

    fn yield_at(&mut self, group: &DesiredGroup, path: &CgroupPath) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else {
            let because = "no cgroup hierarchy has the cpu controller".to_owned();
            return self.unmet(
                group,
                "class offline".to_owned(),
                because,
                "mount or enable the cpu controller",
            );
        };
        let version = self.actual.hierarchies[hierarchy].version;
        let own = *path == self.desired.offline_parent;
        let already = self.idle_by_others(&Place { hierarchy, path: path.clone() });
        let mechanism = match already {
            true => Mechanism::CpuIdle,
            false => offline_mechanism(self.caps, version, path, group.takeover || own),
        };
        if let Mechanism::Nothing(because) = &mechanism {
            self.unmet(group, "class offline".to_owned(), because.clone(), "see `commensal doctor`");
        }
        let mut why = "class offline yields to everything beside it".to_owned();
        if let Mechanism::MinWeight(because) = &mechanism {
            why = "class offline yields, by the smallest weight".to_owned();
            self.notes.push(format!(
                "group {}: {path} gets the smallest weight, not cpu.idle: {because}",
                group.name
            ));
        }
        if let Some((knob, value)) = mechanism.setting(version) {
            self.want(group, path, own, Setting::new(knob, value, why));
        }
        let place = Place { hierarchy, path: path.clone() };
        self.mechanisms.insert((group.name.clone(), place), mechanism);
    }

    fn online(&mut self, group: &DesiredGroup, member: &Member) {
        if member.own {
            let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
            let value = match self.actual.hierarchies[hierarchy].version {
                Version::V1 => Value::Number(ONLINE_WEIGHT * 1024 / 100),
                Version::V2 => Value::Number(ONLINE_WEIGHT),
            };
            let parent = self.desired.online_parent.clone();
            let why = "class online has ten times the weight of unclassified work".to_owned();
            self.want(group, &parent, true, Setting::new(KnobId::CpuWeight, value, why));
        } else if group.limits.cpu_weight.is_none() {
            let note = format!(
                "group {}: {} keeps its weight against unclassified work; cpu.weight would raise it",
                group.name, member.path
            );
            self.notes.push(note);
        }
    }

    fn limits(&mut self, group: &DesiredGroup, member: &Member) {
        for setting in self.limit_settings(group, member) {
            self.want(group, &member.path, member.own, setting);
        }
        if let Some(set) = &group.limits.cpu_set {
            self.cpuset(group, member, set.clone());
        }
    }

    fn limit_settings(&mut self, group: &DesiredGroup, member: &Member) -> Vec<Setting> {
        let limits = &group.limits;
        let mut list = Vec::new();
        if let Some(weight) = limits.cpu_weight {
            let cpu = self.actual.hierarchy_of(Controller::Cpu).unwrap_or_default();
            let place = Place { hierarchy: cpu, path: member.path.clone() };
            let yields = self.mechanisms.contains_key(&(group.name.clone(), place));
            if yields {
                let because = format!("class offline already sets the weight of {}", member.path);
                self.unmet(
                    group,
                    "cpu.weight".to_owned(),
                    because,
                    "leave cpu.weight out, or put the group below a parent that yields",
                );
            } else {
                let v1 = self.cpu_version() == Some(Version::V1);
                let number = if v1 {
                    i64::try_from(weight.v1_shares()).unwrap_or(i64::MAX)
                } else {
                    i64::from(weight.v2())
                };
                let why = format!("cpu.weight = {weight}");
                list.push(Setting::new(KnobId::CpuWeight, Value::Number(number), why));
            }
        }
        if let Some(amount) = limits.cpu_max {
            list.push(self.quota(group, &member.path, amount));
        }
        let memory = [
            (KnobId::MemoryMin, limits.memory_min),
            (KnobId::MemoryLow, limits.memory_low),
            (KnobId::MemoryHigh, limits.memory_high),
            (KnobId::MemoryMax, limits.memory_max),
        ];
        for (knob, size) in memory {
            list.extend(size.map(|size: Bytes| {
                let value = Value::Number(i64::try_from(size.0).unwrap_or(i64::MAX));
                Setting::new(knob, value, format!("{knob} = {size}"))
            }));
        }
        if limits.memory_kill_group {
            let why = "memory.on-exceed = kill-group".to_owned();
            list.push(Setting::new(KnobId::MemoryOomGroup, Value::Number(1), why));
        }
        for (device, disk) in &limits.io {
            let rates = [
                (KnobId::IoReadBps, disk.read.map(|rate| (rate.0, rate.to_string()))),
                (KnobId::IoWriteBps, disk.write.map(|rate| (rate.0, rate.to_string()))),
                (KnobId::IoReadIops, disk.read_iops.map(|rate| (rate.0, rate.to_string()))),
                (KnobId::IoWriteIops, disk.write_iops.map(|rate| (rate.0, rate.to_string()))),
            ];
            for (knob, rate) in rates {
                list.extend(rate.map(|(rate, shown)| Setting {
                    knob,
                    device: Some(*device),
                    value: Value::Number(i64::try_from(rate).unwrap_or(i64::MAX)),
                    why: format!("{knob} = {shown} on {device}"),
                }));
            }
        }
        if let Some(tasks) = limits.pids_max {
            list.push(Setting::new(
                KnobId::PidsMax,
                Value::Number(i64::from(tasks)),
                format!("pids.max = {tasks}"),
            ));
        }
        list
    }

    fn cpu_version(&self) -> Option<Version> {
        self.actual.hierarchy_of(Controller::Cpu).map(|index| self.actual.hierarchies[index].version)
    }

    /// quota = CPUs x period, with the period as found: writing both has no safe order on v1.
    fn quota(&mut self, group: &DesiredGroup, path: &CgroupPath, amount: MicroCpus) -> Setting {
        let place = self
            .actual
            .hierarchy_of(Controller::Cpu)
            .map(|hierarchy| Place { hierarchy, path: path.clone() });
        let found =
            place.and_then(|place| self.actual.cgroups.get(&place)?.values.get(&(KnobId::CpuPeriod, None)));
        let period_us = match found {
            Some(Value::Number(period)) => u64::try_from(*period).unwrap_or(PERIOD_US),
            _ => PERIOD_US,
        };
        let exact = (u128::from(amount.0) * u128::from(period_us) / 1_000_000) as u64;
        let quota_us = exact.max(QUOTA_MIN_US);
        if quota_us != exact {
            let gets = MicroCpus(quota_us * 1_000_000 / period_us.max(1));
            let note = format!(
                "group {}: cpu.max = {amount} is below the kernel's smallest quota and becomes {gets}",
                group.name
            );
            self.notes.push(note);
        }
        let why = format!("cpu.max = {amount}: {quota_us} us of every {period_us} us");
        Setting::new(KnobId::CpuMax, Value::Number(i64::try_from(quota_us).unwrap_or(i64::MAX)), why)
    }

    /// v1 needs memory nodes and CPUs in every own group on the way before a process can enter.
    fn cpuset(&mut self, group: &DesiredGroup, member: &Member, set: crate::cpuset::CpuSet) {
        let v1 =
            self.actual.hierarchy_of(Controller::Cpuset).map(|index| self.actual.hierarchies[index].version)
                == Some(Version::V1);
        if v1 && member.own {
            let (cpus, mems) = (self.desired.cpus.clone(), self.desired.mems.clone());
            if let Some(parent) = member.path.parent() {
                let why = "the parent must allow what its groups use".to_owned();
                self.want(
                    group,
                    &parent,
                    true,
                    Setting::new(KnobId::CpusetCpus, Value::List(cpus), why.clone()),
                );
                self.want(
                    group,
                    &parent,
                    true,
                    Setting::new(KnobId::CpusetMems, Value::List(mems.clone()), why),
                );
            }
            let why = "cgroup v1 lets no process in before memory nodes are set".to_owned();
            self.want(group, &member.path, true, Setting::new(KnobId::CpusetMems, Value::List(mems), why));
        }
        let why = format!("cpu.set = {set}");
        self.want(group, &member.path, member.own, Setting::new(KnobId::CpusetCpus, Value::List(set), why));
    }

    /// One wanted value, if this machine can have it at all.
    fn want(&mut self, group: &DesiredGroup, path: &CgroupPath, own: bool, setting: Setting) {
        let Setting { knob, device, value, why } = setting;
        let row = knob.row();
        let what = match device {
            Some(device) => format!("{knob} on {device}"),
            None => knob.to_string(),
        };
        let Some(hierarchy) = self.actual.hierarchy_of(row.controller) else {
            let because = format!("no cgroup hierarchy has the {} controller", row.controller);
            return self.unmet(group, what, because, "mount or enable the controller");
        };
        let version = self.actual.hierarchies[hierarchy].version;
        if let Some(obstacle) = self.caps.obstacle(knob, version) {
            return self.unmet(group, what, obstacle, "see `commensal doctor` for what this machine offers");
        }
        let Some(file) = row.file(version) else { return };
        if !file.accepts(&value) {
            let because =
                format!("{value} is outside the kernel's range {} to {}", file.range.0, file.range.1);
            return self.unmet(group, what, because, "choose a value in that range");
        }
        let place = Place { hierarchy, path: path.clone() };
        if own {
            self.create(&place, group);
        } else if !self.actual.cgroups.contains_key(&place) {
            let because = format!(
                "{path} does not exist in the {} hierarchy",
                self.actual.hierarchies[hierarchy].label()
            );
            return self.unmet(
                group,
                what,
                because,
                "create it there, or use a group of our own with `commensal run`",
            );
        }
        if version == Version::V2 && !self.enable(group, &place, row.controller, &what) {
            return;
        }
        if knob == KnobId::CpuWeight && self.idle_by_others(&place) {
            let because = format!(
                "cpu.idle is 1 on {path}, set by somebody else, and the kernel refuses a weight there"
            );
            return self.unmet(group, what, because, "clear cpu.idle, or make the group offline");
        }
        let value = file.normalise(&value);
        self.wants.entry((place, knob, device)).or_insert(Want {
            value,
            why: format!("{}: {why}", group.name),
            group: Some(group.name.clone()),
        });
    }

    /// v2: the controller must be enabled in every group above. Only the root and our own parents are
    /// changed for that.
    fn enable(&mut self, group: &DesiredGroup, place: &Place, controller: Controller, what: &str) -> bool {
        for above in place.path.ancestors() {
            let parent = Place { hierarchy: place.hierarchy, path: above };
            let enabled =
                self.actual.cgroups.get(&parent).is_some_and(|found| found.subtree.contains(&controller));
            if enabled {
                continue;
            }
            let ours = [&self.desired.offline_parent, &self.desired.online_parent].contains(&&parent.path);
            if parent.path.depth() > 0 && !ours {
                let because = format!(
                    "{} does not enable the {controller} controller for its children, and no group claims it",
                    parent.path
                );
                let try_this = format!("enable it there: echo +{controller} > cgroup.subtree_control");
                self.unmet(group, what.to_owned(), because, &try_this);
                return false;
            }
            self.enables
                .entry((parent, controller))
                .or_insert_with(|| format!("group {} needs {what}", group.name));
        }
        true
    }

    /// What an earlier plan set and nobody wants any more goes back; empty groups of ours go away.
    fn leftovers(&mut self) {
        let actual = self.actual;
        for ((place, knob, device), original) in &actual.ours.originals {
            let key = (place.clone(), *knob, *device);
            // The weight comes back when the group is no longer idle; before, the kernel refuses it.
            let forgotten = *knob == KnobId::CpuWeight && self.wants_idle(place);
            if actual.cgroups.contains_key(place) && !self.wants.contains_key(&key) && !forgotten {
                let why = "no longer wanted: put back what was there before".to_owned();
                self.wants.insert(key, Want { value: original.clone(), why, group: None });
            }
        }
        let own = self.own_paths();
        for place in &actual.ours.created {
            let Some(found) = actual.cgroups.get(place) else { continue };
            if own.contains(&place.path) {
                self.reset(place, found);
            } else if actual.below(place).any(|(below, found)| {
                // Groups that somebody made inside ours are theirs.
                found.populated || !actual.ours.created.contains(below)
            }) {
                self.notes.push(format!(
                    "{} is no longer wanted but is in use below; left alone",
                    actual.show(place)
                ));
            } else if found.populated {
                self.notes.push(format!(
                    "{} is no longer wanted but has processes; left alone",
                    actual.show(place)
                ));
            } else {
                self.removes.insert(place.clone());
            }
        }
    }

    /// Whether the group is idle and not because of us: its weight cannot be written, and it yields already.
    fn idle_by_others(&self, place: &Place) -> bool {
        let idle =
            self.actual.cgroups.get(place).and_then(|found| found.values.get(&(KnobId::CpuIdle, None)));
        let ours = self.actual.ours.created.contains(place)
            || self.actual.ours.originals.contains_key(&(place.clone(), KnobId::CpuIdle, None));
        idle == Some(&Value::Number(1)) && !ours
    }

    fn wants_idle(&self, place: &Place) -> bool {
        let want = self.wants.get(&(place.clone(), KnobId::CpuIdle, None));
        want.is_some_and(|want| want.value == Value::Number(1))
    }

    /// Paths of our own members and of everything above them.
    fn own_paths(&self) -> BTreeSet<CgroupPath> {
        let members = self.desired.groups.iter().flat_map(|group| &group.members).filter(|member| member.own);
        members.flat_map(|member| member.path.ancestors().into_iter().chain([member.path.clone()])).collect()
    }

    /// Driven knobs of our own group that no longer have a wanted value return to the kernel's default.
    fn reset(&mut self, place: &Place, found: &crate::actual::Cgroup) {
        let version = self.actual.hierarchies[place.hierarchy].version;
        for ((knob, device), value) in &found.values {
            let row = knob.row();
            let key = (place.clone(), *knob, *device);
            let (Status::Driven, Some(file), false) =
                (row.status, row.file(version), self.wants.contains_key(&key))
            else {
                continue;
            };
            let default = match (row.controller, version) {
                // An empty v1 cpuset cannot hold processes: the widest set is its "no limit".
                (Controller::Cpuset, Version::V1) if *knob == KnobId::CpusetCpus => {
                    Value::List(self.desired.cpus.clone())
                }
                (Controller::Cpuset, Version::V1) => Value::List(self.desired.mems.clone()),
                _ if device.is_some() => Value::NoLimit,
                _ => file.parse(file.default, None).unwrap_or(Value::NoLimit),
            };
            // While the group is idle the kernel shows a weight that cannot be written.
            let idle = self.wants_idle(place);
            if *value != default && !(idle && *knob == KnobId::CpuWeight) {
                let why = "no longer wanted: the kernel's default".to_owned();
                self.wants.insert(key, Want { value: default, why, group: None });
            }
        }
    }
}
