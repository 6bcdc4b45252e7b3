//! Limits that need several knobs: CPU sets with their partitions, and disk shares.

use super::draft::{Draft, Setting};
use super::wants::whole_set;
use crate::actual::{CgroupPath, CgroupRef};
use crate::cpuset::CpuSet;
use crate::desired::{DesiredGroup, Limits, Member};
use crate::group::Partition;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::limit::{CPU_PARTITION, IO_COST};
use crate::topology::Device;
use crate::units::Weight;

impl Draft<'_> {
    /// `cpu.set`. In v1, commensal's groups on the path also need CPUs and memory nodes before a process can enter
    /// them.
    pub(super) fn cpuset(&mut self, group: &DesiredGroup, member: &Member, set: CpuSet) {
        let hierarchy = self.actual.hierarchy_of(Controller::Cpuset);
        let v1 = hierarchy.filter(|index| self.actual.hierarchies[*index].version == Version::V1);
        if let Some(hierarchy) = v1.filter(|_| member.own)
            && !self.usable_v1_cpuset(group, member, hierarchy)
        {
            return;
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

    /// Gives CPUs and memory nodes to the v1 cpusets of commensal's own above the member, and nodes to the member, without
    /// which no process can enter it. Returns `false` if the cgroup below which all of them are has none to give.
    fn usable_v1_cpuset(&mut self, group: &DesiredGroup, member: &Member, hierarchy: usize) -> bool {
        let whole = |knob| whole_set(self.desired, self.actual, hierarchy, knob);
        let sets = [KnobId::CpusetCpus, KnobId::CpusetMems].map(|knob| (knob, whole(knob)));
        if sets.iter().any(|(_, set)| set.is_empty()) {
            let what = (KnobId::CpusetCpus, "cpu.set".to_owned());
            let base = &self.actual.tenancy.base;
            let because =
                format!("{base} has no CPUs or no memory nodes, so cgroup v1 gives none to groups below it");
            let try_this = "write those that it may use to its cpuset.cpus and cpuset.mems";
            self.report.unmet_knob(group, what, because, try_this);
            return false;
        }
        let parent = member.path.parent();
        for path in member.path.ancestors() {
            let place = CgroupRef { hierarchy, path };
            let made = !self.actual.cgroups.contains_key(&place) || self.actual.ours.created.contains(&place);
            if made || Some(&place.path) == parent.as_ref() {
                for (knob, set) in &sets {
                    let why = "the parent must allow what its groups use".to_owned();
                    self.want(group, &place.path, true, Setting::new(*knob, Value::List(set.clone()), why));
                }
            }
        }
        let [_, (knob, nodes)] = sets;
        let why = "cgroup v1 lets no process in before memory nodes are set".to_owned();
        self.want(group, &member.path, true, Setting::new(knob, Value::List(nodes), why));
        true
    }

    /// `cpu.partition` (v2): makes the CPUs exclusive to the group. Since Linux 6.7 a group can be a partition although
    /// its parent is not a partition (a remote partition, cgroup-v2.rst, "cpuset.cpus.exclusive"). For this, all
    /// ancestors of the group must have the CPUs in their exclusive sets.
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
                let try_this = "claim it, or use a group that commensal creates, with `commensal run`";
                return self.report.unmet(group, "cpu.partition".to_owned(), because, try_this);
            }
            if let Some(obstacle) = self.caps.obstacle(KnobId::CpusetCpusExclusive, version) {
                let because = format!(
                    "{above} above it is no partition, and CPUs cannot be reserved there: {obstacle}"
                );
                let try_this = "match a cgroup below the root, or use Linux 6.7 or newer";
                return self.report.unmet(group, "cpu.partition".to_owned(), because, try_this);
            }
            // The parent's exclusive set is the union of its groups' exclusive sets.
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

    /// The exclusive CPUs that are wanted so far. If none are wanted and this plan covers only some of the groups, the
    /// exclusive CPUs in force.
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

    /// Records a wanted value in place of the value that was wanted before.
    fn replace(&mut self, group: &DesiredGroup, path: &CgroupPath, own: bool, setting: Setting) {
        if let Some(hierarchy) = self.actual.hierarchy_of(setting.knob.row().controller) {
            let place = CgroupRef { hierarchy, path: path.clone() };
            self.wants.remove(&(place, setting.knob, setting.device));
        }
        self.want(group, path, own, setting);
    }

    /// Whether any group turns on cost-based control (`io.cost`) of the disk.
    fn cost_comes(&self, device: Device) -> bool {
        let asks = |limits: &Limits| {
            limits.each.has(IO_COST) && limits.disks.iter().any(|disk| disk.device == device)
        };
        self.desired.groups.iter().any(|group| asks(&group.limits))
    }

    /// `io.weight`: by io.cost (v2), by BFQ on disks that use it, or by the CFQ scheduler of old kernels (v1).
    pub(super) fn disk_share(&mut self, group: &DesiredGroup, member: &Member, weight: Weight) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Io) else {
            let because = "no cgroup hierarchy has the io controller".to_owned();
            let what = (KnobId::IoWeight, "io.weight".to_owned());
            return self.report.unmet_knob(group, what, because, "mount or enable the controller");
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
                        "disk {} ({}) ignores weights: its scheduler is {}{}",
                        disk.name,
                        disk.device,
                        disk.scheduler.as_deref().unwrap_or("not told"),
                        if version == Version::V2 { ", and io.cost is off there" } else { "" }
                    );
                    let try_this = match version {
                        Version::V2 => {
                            "add io.cost = true, which turns cost-based control of that disk on for all its users"
                        }
                        Version::V1 => "use the BFQ scheduler for that disk, or io.read and io.write",
                    };
                    let what = (KnobId::IoWeight, format!("io.weight on {}", disk.name));
                    self.report.unmet_knob(group, what, because, try_this);
                }
            }
        }
        if works {
            let number = match version {
                Version::V2 => i64::from(weight.v2()),
                // CFQ's scale is 10 to 1000 with the default 500.
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
