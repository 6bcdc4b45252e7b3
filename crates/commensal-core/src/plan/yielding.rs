//! Class: which cgroup must yield or come first, and by which mechanism.

use super::draft::{Draft, Setting};
use crate::actual::{CgroupPath, CgroupRef};
use crate::class::{Mechanism, offline_mechanism};
use crate::desired::{DesiredGroup, Member};
use crate::group::Class;
use crate::knob::{Controller, KnobId, Value, Version};
use crate::limit::CPU_WEIGHT;
use crate::vendor::BVT_ONLINE;
use std::collections::BTreeMap;

/// Weight of the parent of commensal's online groups: `cpu.idle` shields online work from offline work but not from
/// third parties, which even gain from it (measured x1.4 to x3.3), so online groups get ten times the share of
/// unclassified work.
const ONLINE_WEIGHT: i64 = 1000;

impl Draft<'_> {
    /// Makes the group yield, at the level where the scheduler compares it with the online side.
    pub(super) fn offline(&mut self, group: &DesiredGroup, member: &Member) {
        if member.own {
            let parent = self.desired.offline_parent.clone();
            self.base_against_the_rest(group, &parent);
            return self.yield_at(group, &parent);
        }
        // openEuler's kernel throttles offline groups wherever they are (check_qos_cfs_rq, kernel/sched/fair.c), and the
        // scheduler's class is below the others, whichever group a thread is in.
        if self.anywhere(&member.path) {
            self.without_scheduler(group, &member.path);
            return self.yield_at(group, &member.path);
        }
        let mut met = false;
        for (entity, online) in self.entities(&member.path) {
            if entity == member.path {
                met = true;
                continue;
            }
            if self.is_claimed_offline(&entity) {
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

    fn is_claimed_offline(&self, entity: &CgroupPath) -> bool {
        self.desired.groups.iter().any(|other| {
            other.class == Class::Offline && other.members.iter().any(|member| member.path == *entity)
        })
    }

    /// Notes what is lost when the scheduler is not loaded: the mechanism underneath only works relative to siblings.
    fn without_scheduler(&mut self, group: &DesiredGroup, path: &CgroupPath) {
        if !self.scheduled {
            return;
        }
        let entities = self.entities(path).into_iter();
        let open: Vec<_> =
            entities.filter(|(entity, _)| entity != path && !self.is_claimed_offline(entity)).collect();
        for (entity, online) in open {
            self.notes.push(format!(
                "group {}: {path} yields to {online} only while the scheduler is loaded: without it the kernel compares \
                 {entity}, and no offline group claims that",
                group.name
            ));
        }
    }

    /// Whether the mechanism for a group works independently of its position in the tree.
    fn anywhere(&self, path: &CgroupPath) -> bool {
        let cpu =
            self.actual.hierarchy_of(Controller::Cpu).map(|index| self.actual.hierarchies[index].version);
        let mechanism =
            cpu.map(|version| offline_mechanism(self.caps, version, path, false, self.identity.as_deref()));
        matches!(mechanism, Some(Mechanism::QosLevel | Mechanism::SchedExt(_)))
    }

    /// Below a delegated group, class applies among commensal's groups only; against the rest of the machine the
    /// delegated group is compared as a whole, and its manager sets its weight.
    fn base_against_the_rest(&mut self, group: &DesiredGroup, parent: &CgroupPath) {
        for (entity, online) in self.entities(parent) {
            let idle = self.actual.hierarchy_of(Controller::Cpu).is_some_and(|hierarchy| {
                let found = self.actual.cgroups.get(&CgroupRef { hierarchy, path: entity.clone() });
                let value = found.and_then(|found| found.values.get(&(KnobId::CpuIdle, None)));
                value == Some(&Value::Number(1))
            });
            if entity == *parent || idle {
                continue;
            }
            if self.scheduled {
                self.notes.push(format!(
                    "group {}: it yields to {online} only while the scheduler is loaded: without it the kernel compares \
                     {entity}, which is not ours",
                    group.name
                ));
                continue;
            }
            let what = format!("class offline of group {} against {online}", group.name);
            let because = format!("the kernel compares {entity} with {online}, and {entity} is not ours");
            let try_this = super::systemd::yielding(&entity);
            self.unmet(group, what, because, &try_this);
        }
    }

    /// The groups on the path to `path` that the scheduler compares with online ones: for each online member the child
    /// of the common ancestor; without any, the topmost group, compared with everything else.
    fn entities(&self, path: &CgroupPath) -> BTreeMap<CgroupPath, String> {
        let online = self.desired.groups.iter().filter(|group| group.class == Class::Online);
        let members = online.flat_map(|group| group.members.iter());
        // There are many members and few depths.
        let against: BTreeMap<usize, &CgroupPath> =
            members.filter_map(|member| Some((path.depth_against(&member.path)?, &member.path))).collect();
        let mut entities: BTreeMap<CgroupPath, String> = against
            .into_values()
            .filter_map(|online| Some((path.entity_against(online)?, online.to_string())))
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
        let already = self.idle_by_others(&CgroupRef { hierarchy, path: path.clone() });
        let identity = self.identity.as_deref();
        let mechanism = match already {
            true if self.scheduled => Mechanism::SchedExt(Box::new(Mechanism::CpuIdle)),
            true => Mechanism::CpuIdle,
            false => offline_mechanism(self.caps, version, path, group.takeover || own, identity),
        };
        match (&mechanism, mechanism.written()) {
            (Mechanism::SchedExt(_), Mechanism::Nothing(because)) => {
                self.notes.push(only_scheduler(group, path, because));
            }
            (_, Mechanism::Nothing(because)) => {
                self.unmet(group, "class offline".to_owned(), because.clone(), "see `commensal doctor`");
            }
            _ => {}
        }
        let place = CgroupRef { hierarchy, path: path.clone() };
        let managed = self.actual.managed_by(&place).filter(|_| !group.takeover && !already && !own);
        if let Some(unit) = managed {
            let setting = Setting::new(KnobId::CpuIdle, Value::Number(1), String::new());
            let because = super::systemd::because(&unit);
            let try_this = self.through_systemd(&unit, &place, &setting);
            if self.scheduled {
                self.notes.push(format!("{}; try: {try_this}", only_scheduler(group, path, &because)));
                let mechanism = Mechanism::SchedExt(Box::new(Mechanism::Nothing(because)));
                self.mechanisms.insert((group.name.clone(), place), mechanism);
                return;
            }
            return self.unmet(group, format!("class offline of {path}"), because, &try_this);
        }
        let mut why = "class offline yields to everything beside it".to_owned();
        if let Mechanism::MinWeight(because) = mechanism.written() {
            why = "class offline yields, by the smallest weight".to_owned();
            self.notes.push(format!(
                "group {}: {path} gets the smallest weight, not cpu.idle: {because}",
                group.name
            ));
        }
        if mechanism == Mechanism::QosLevel && !own && self.irreversible() {
            self.notes.push(format!(
                "group {}: {path} cannot be made online again on this kernel; `commensal restore` moves its members to \
                 a fresh group of the same name",
                group.name
            ));
        }
        if let Some((knob, value)) = mechanism.setting(version).filter(|_| !group.exposed) {
            let below = mechanism == Mechanism::GroupIdentity;
            for path in self.with_below(hierarchy, path, below) {
                self.want(group, &path, own, Setting::new(knob, value.clone(), why.clone()));
            }
        }
        if mechanism == Mechanism::QosLevel && !group.exposed {
            self.memory_yields(group, path, own);
        }
        self.mechanisms.insert((group.name.clone(), place), mechanism);
    }

    /// The group and, if requested, the groups that are or will be below it: a child copies its parent's identity only
    /// when it is created.
    fn with_below(&self, hierarchy: usize, path: &CgroupPath, below: bool) -> Vec<CgroupPath> {
        let place = CgroupRef { hierarchy, path: path.clone() };
        let mut paths = vec![path.clone()];
        if below {
            paths.extend(self.actual.below(&place).map(|(place, _)| place.path.clone()));
            let made = self.creates.keys().filter(|made| made.hierarchy == hierarchy && made.path != *path);
            paths.extend(made.filter(|made| path.contains(&made.path)).map(|made| made.path.clone()));
        }
        paths
    }

    pub(super) fn online(&mut self, group: &DesiredGroup, member: &Member) {
        self.identity_online(group, member);
        self.not_offline_by_others(group, member);
        if member.own {
            let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
            let value = match self.actual.hierarchies[hierarchy].version {
                Version::V1 => Value::Number(ONLINE_WEIGHT * 1024 / 100),
                Version::V2 => Value::Number(ONLINE_WEIGHT),
            };
            let parent = self.desired.online_parent.clone();
            let why = "class online has ten times the weight of unclassified work".to_owned();
            self.want(group, &parent, true, Setting::new(KnobId::CpuWeight, value, why));
        } else if !group.limits.each.has(CPU_WEIGHT) {
            let note = format!(
                "group {}: {} keeps its weight against unclassified work; cpu.weight would raise it",
                group.name, member.path
            );
            self.notes.push(note);
        }
    }

    /// Group Identity: online groups come first, and offline tasks leave their SMT siblings.
    fn identity_online(&mut self, group: &DesiredGroup, member: &Member) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        let version = self.actual.hierarchies[hierarchy].version;
        if self.identity.is_some() || self.caps.obstacle(KnobId::CpuBvtWarpNs, version).is_some() {
            return;
        }
        let path = if member.own { self.desired.online_parent.clone() } else { member.path.clone() };
        let why = "class online: Group Identity puts it first, also against SMT siblings".to_owned();
        // Offline groups inside stay offline.
        let members = self
            .desired
            .groups
            .iter()
            .filter(|other| other.class == Class::Offline)
            .flat_map(|other| &other.members);
        let offline: Vec<CgroupPath> = members.map(|member| member.path.clone()).collect();
        let mut paths = self.with_below(hierarchy, &path, true);
        paths.retain(|path| !offline.iter().any(|offline| offline.contains(path)));
        for path in paths {
            let value = Value::Number(BVT_ONLINE);
            self.want(group, &path, member.own, Setting::new(KnobId::CpuBvtWarpNs, value, why.clone()));
        }
    }

    /// Restores an online group that another program made offline by `cpu.qos_level`, where the kernel allows it.
    fn not_offline_by_others(&mut self, group: &DesiredGroup, member: &Member) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        let place = CgroupRef { hierarchy, path: member.path.clone() };
        let level =
            self.actual.cgroups.get(&place).and_then(|found| found.values.get(&(KnobId::CpuQosLevel, None)));
        let ours = self.actual.ours.originals.contains_key(&(place.clone(), KnobId::CpuQosLevel, None));
        if ours || !matches!(level, Some(Value::Number(..=-1))) {
            return;
        }
        if self.irreversible() {
            let because = format!(
                "{} has cpu.qos_level -1, set by somebody else, and this kernel has no way back",
                member.path
            );
            let try_this = "restart the service in a new cgroup";
            return self.unmet(group, "class online".to_owned(), because, try_this);
        }
        let why = "class online: was offline".to_owned();
        let setting = Setting::new(KnobId::CpuQosLevel, Value::Number(0), why);
        self.want(group, &member.path, member.own, setting);
    }

    /// Whether another program made the group idle: its weight cannot be written, and it yields already.
    pub(super) fn idle_by_others(&self, place: &CgroupRef) -> bool {
        let idle =
            self.actual.cgroups.get(place).and_then(|found| found.values.get(&(KnobId::CpuIdle, None)));
        let ours = self.actual.ours.created.contains(place)
            || self.actual.ours.originals.contains_key(&(place.clone(), KnobId::CpuIdle, None));
        idle == Some(&Value::Number(1)) && !ours
    }

    pub(super) fn wants_idle(&self, place: &CgroupRef) -> bool {
        let want = self.wants.get(&(place.clone(), KnobId::CpuIdle, None));
        want.is_some_and(|want| want.value == Value::Number(1))
    }
}

fn only_scheduler(group: &DesiredGroup, path: &CgroupPath, because: &str) -> String {
    format!("group {}: {path} yields only while the scheduler is loaded: {because}", group.name)
}
