//! Limits that need more than one knob: CPU sets with their partitions, and disk shares.

use super::draft::{Draft, Setting};
use crate::actual::{CgroupPath, CgroupRef};
use crate::cpuset::CpuSet;
use crate::desired::{DesiredGroup, Limits, Member};
use crate::group::Partition;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::limit::{CPU_PARTITION, IO_COST};
use crate::topology::Device;
use crate::units::Weight;

impl Draft<'_> {
    /// v1 requires memory nodes and CPUs in every commensal group on the path before a process can enter.
    pub(super) fn cpuset(&mut self, group: &DesiredGroup, member: &Member, set: CpuSet) {
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
        self.want(
            group,
            &member.path,
            member.own,
            Setting::new(KnobId::CpusetCpus, Value::List(set.clone()), why),
        );
        if let Some(partition) = group.limits.get(CPU_PARTITION) {
            self.partition(group, member, &set, partition);
        }
    }

    /// v2: makes the CPUs exclusive to the group. A child of a group that is not a partition itself can be one since
    /// Linux 6.7, when every group above it has the CPUs in its exclusive set (a remote partition, cgroup-v2.rst,
    /// "cpuset.cpus.exclusive").
    fn partition(&mut self, group: &DesiredGroup, member: &Member, set: &CpuSet, partition: Partition) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpuset) else { return };
        let why = format!("cpu.partition = {partition}");
        let version = self.actual.hierarchies[hierarchy].version;
        for above in member.path.ancestors().into_iter().skip(1) {
            if self.is_partition(&CgroupRef { hierarchy, path: above.clone() }) {
                continue;
            }
            let ours = [&self.desired.offline_parent, &self.desired.online_parent].contains(&&above);
            if !ours && !self.claimed(&above) {
                let because = format!("{above} above it is no partition, and no group claims it");
                let try_this = "claim it, or use a group of our own with `commensal run`";
                return self.unmet(group, "cpu.partition".to_owned(), because, try_this);
            }
            if let Some(obstacle) = self.caps.obstacle(KnobId::CpusetCpusExclusive, version) {
                let because = format!(
                    "{above} above it is no partition, and setting CPUs aside there cannot be done: {obstacle}"
                );
                let try_this = "match a cgroup below the root, or use Linux 6.7 or newer";
                return self.unmet(group, "cpu.partition".to_owned(), because, try_this);
            }
            // The parent's set is the union of its groups' sets.
            let exclusive = self.exclusive_of(&CgroupRef { hierarchy, path: above.clone() }).union(set);
            let setting = Setting::new(KnobId::CpusetCpusExclusive, Value::List(exclusive), why.clone());
            self.replace(group, &above, ours, setting);
            let setting = Setting::new(KnobId::CpusetCpusExclusive, Value::List(set.clone()), why.clone());
            self.want(group, &member.path, member.own, setting);
        }
        let value = Value::Word(partition.to_string());
        self.want(group, &member.path, member.own, Setting::new(KnobId::CpusetPartition, value, why));
    }

    fn is_partition(&self, place: &CgroupRef) -> bool {
        let wanted = self.wants.get(&(place.clone(), KnobId::CpusetPartition, None)).map(|want| &want.value);
        let found = self.actual.cgroups.get(place);
        let found =
            wanted.or_else(|| found.and_then(|found| found.values.get(&(KnobId::CpusetPartition, None))));
        matches!(found, Some(Value::Word(word)) if word == "root" || word == "isolated")
    }

    fn claimed(&self, path: &CgroupPath) -> bool {
        self.desired.groups.iter().any(|group| group.members.iter().any(|member| member.path == *path))
    }

    /// The exclusive CPUs that are wanted so far; where other groups are not part of this plan, also those in force.
    fn exclusive_of(&self, place: &CgroupRef) -> CpuSet {
        let wanted =
            self.wants.get(&(place.clone(), KnobId::CpusetCpusExclusive, None)).map(|want| &want.value);
        let found = self.actual.cgroups.get(place).filter(|_| self.desired.alone);
        let found = found.and_then(|found| found.values.get(&(KnobId::CpusetCpusExclusive, None)));
        match wanted.or(found) {
            Some(Value::List(set)) => set.clone(),
            _ => CpuSet::new(),
        }
    }

    /// Replaces a value that was wanted before.
    fn replace(&mut self, group: &DesiredGroup, path: &CgroupPath, own: bool, setting: Setting) {
        if let Some(hierarchy) = self.actual.hierarchy_of(setting.knob.row().controller) {
            let place = CgroupRef { hierarchy, path: path.clone() };
            self.wants.remove(&(place, setting.knob, setting.device));
        }
        self.want(group, path, own, setting);
    }

    /// Whether another group turns cost-based control of the disk on.
    fn cost_comes(&self, device: Device) -> bool {
        let asks = |limits: &Limits| {
            limits.each.has(IO_COST) && limits.disks.iter().any(|disk| disk.device == device)
        };
        self.desired.groups.iter().any(|group| asks(&group.limits))
    }

    /// `io.weight`: by io.cost (v2), by BFQ where a disk uses it, or by the CFQ scheduler of old kernels (v1).
    pub(super) fn disk_share(&mut self, group: &DesiredGroup, member: &Member, weight: Weight) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Io) else {
            let because = "no cgroup hierarchy has the io controller".to_owned();
            let what = (KnobId::IoWeight, "io.weight".to_owned());
            return self.unmet_knob(group, what, because, "mount or enable the controller");
        };
        let version = self.actual.hierarchies[hierarchy].version;
        let disks = group.limits.disks.clone();
        let uses = |disk: &crate::topology::Disk, name: &str| disk.scheduler.as_deref() == Some(name);
        if disks.iter().any(|disk| uses(disk, "bfq")) {
            let number = i64::from(weight.v2().min(1_000));
            let why = format!("io.weight = {weight}, by the BFQ scheduler");
            self.want(
                group,
                &member.path,
                member.own,
                Setting::new(KnobId::IoBfqWeight, Value::Number(number), why),
            );
        }
        let mut works = false;
        for disk in disks.iter().filter(|disk| !uses(disk, "bfq")) {
            let root = CgroupRef { hierarchy, path: CgroupPath::root() };
            let cost = self
                .actual
                .cgroups
                .get(&root)
                .and_then(|root| root.values.get(&(KnobId::IoCostQos, Some(disk.device))));
            match version {
                Version::V2 if group.limits.each.has(IO_COST) => {
                    works = true;
                    let why = format!("io.cost = true: io.weight needs it on {}", disk.name);
                    let setting = Setting {
                        knob: KnobId::IoCostQos,
                        device: Some(disk.device),
                        value: Value::Number(1),
                        why,
                    };
                    self.want(group, &root.path, false, setting);
                }
                Version::V2 if cost == Some(&Value::Number(1)) || self.cost_comes(disk.device) => {
                    works = true
                }
                Version::V1 if uses(disk, "cfq") => works = true,
                _ => {
                    let because = format!(
                        "nothing on {} ({}) looks at weights: its scheduler is {}{}",
                        disk.name,
                        disk.device,
                        disk.scheduler.as_deref().unwrap_or("not told"),
                        if version == Version::V2 { ", and io.cost is off there" } else { "" }
                    );
                    let try_this = match version {
                        Version::V2 => {
                            "add io.cost = true, which turns cost-based control of that disk on for everybody"
                        }
                        Version::V1 => "use the BFQ scheduler for that disk, or io.read and io.write",
                    };
                    let what = (KnobId::IoWeight, format!("io.weight on {}", disk.name));
                    self.unmet_knob(group, what, because, try_this);
                }
            }
        }
        if works {
            let number = match version {
                Version::V2 => i64::from(weight.v2()),
                // CFQ's scale is 10 to 1000 with 500 in the middle.
                Version::V1 => (i64::from(weight.v2()) * 5).clamp(10, 1_000),
            };
            let why = format!("io.weight = {weight}");
            self.want(
                group,
                &member.path,
                member.own,
                Setting::new(KnobId::IoWeight, Value::Number(number), why),
            );
        }
    }
}
