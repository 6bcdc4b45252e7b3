//! Enforces the class of groups. This module determines which cgroup of an offline (batch) group must yield, which
//! cgroup of an online (latency-critical) group must get priority, and by which mechanism. A cgroup yields if it gets
//! only the CPU time that others leave.

use super::draft::{Draft, Setting};
use crate::actual::{CPU_PRIORITY, CgroupPath, CgroupRef, Support};
use crate::class::{Mechanism, offline_mechanism};
use crate::desired::{DesiredGroup, Member};
use crate::group::{Class, of_cgroup};
use crate::knob::{Controller, KnobId, Value, Version};
use crate::limit::CPU_WEIGHT;
use crate::units::MicroCpus;
use crate::vendor::BVT_ONLINE;
use std::collections::BTreeMap;

/// Weight of the parent of commensal's online groups, ten times that of unclassified work (work that belongs to no
/// group). `cpu.idle` protects online work from offline work but not from unclassified work. With an offline group
/// present, online work even waits longer for unclassified work (measured: 1.4 to 3.3 times).
const ONLINE_WEIGHT: i64 = 1000;

impl Draft<'_> {
    /// Makes the group yield at the level of the tree at which the kernel's scheduler compares it with online groups.
    pub(super) fn offline(&mut self, group: &DesiredGroup, member: &Member) {
        if member.own {
            let parent = self.desired.offline_parent.clone();
            self.base_against_the_rest(group, &parent);
            return self.yield_at(group, &parent);
        }
        // openEuler's kernel throttles offline groups at any position in the tree (check_qos_cfs_rq,
        // kernel/sched/fair.c), and the sched_ext scheduler runs offline threads after all others, whichever group they
        // are in.
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
                "claim it with match = [{}] if everything in it is offline, or start the members below {own} (for \
                 containers: --cgroup-parent)",
                of_cgroup(entity.as_str())
            );
            self.report.unmet(group, what, because, &try_this);
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

    /// Adds a note for each online group to which this group yields only while the sched_ext scheduler is loaded: the
    /// inner mechanism works only relative to siblings.
    fn without_scheduler(&mut self, group: &DesiredGroup, path: &CgroupPath) {
        if !self.scheduler.is_best {
            return;
        }
        let entities = self.entities(path).into_iter();
        let open: Vec<_> =
            entities.filter(|(entity, _)| entity != path && !self.is_claimed_offline(entity)).collect();
        for (entity, online) in open {
            self.report.note(format!(
                "group {}: {path} yields to {online} only while the scheduler is loaded: without it the kernel compares \
                 {entity}, and no offline group claims that",
                group.name
            ));
        }
    }

    /// Whether the mechanism for a group at this path works independently of the group's position in the tree.
    fn anywhere(&self, path: &CgroupPath) -> bool {
        let cpu =
            self.actual.hierarchy_of(Controller::Cpu).map(|index| self.actual.hierarchies[index].version);
        let mechanism =
            cpu.map(|version| offline_mechanism(self.caps, version, path, false, self.identity.as_deref()));
        matches!(mechanism, Some(Mechanism::QosLevel | Mechanism::SchedExt(_)))
    }

    /// Reports where the class has no effect for groups below a delegated group. The class has an effect only among
    /// commensal's groups. The kernel compares the delegated group as a whole with the rest of the machine, and the
    /// manager of the delegated group sets its weight.
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
            if self.scheduler.is_best {
                self.report.note(format!(
                    "group {}: it yields to {online} only while the scheduler is loaded: without it the kernel compares \
                     {entity}, which does not belong to commensal",
                    group.name
                ));
                continue;
            }
            let what = format!("class offline of group {} against {online}", group.name);
            let because = format!(
                "the kernel compares {entity} with {online}, and {entity} does not belong to commensal"
            );
            let try_this = super::systemd::yielding(&entity);
            self.report.unmet(group, what, because, &try_this);
        }
    }

    /// The groups on the path to `path` that the kernel's scheduler compares with online groups, each with an online
    /// group. For each online member, this is the child of the common ancestor. Without online members, it is the
    /// topmost group, which the scheduler compares with everything else.
    fn entities(&self, path: &CgroupPath) -> BTreeMap<CgroupPath, String> {
        let online = self.desired.groups.iter().filter(|group| group.class == Class::Online);
        let members = online.flat_map(|group| group.members.iter());
        // One member per depth is sufficient: there are many members and few depths.
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
            return self.report.unmet(
                group,
                "class offline".to_owned(),
                because,
                "mount or enable the cpu controller",
            );
        };
        let version = self.actual.hierarchies[hierarchy].version;
        let own = *path == self.desired.offline_parent;
        // If the journal is lost, the parent of commensal's own groups seems to belong to another program.
        let already = !own && self.idle_by_others(&CgroupRef { hierarchy, path: path.clone() });
        let identity = self.identity.as_deref();
        let mechanism = match already {
            true if self.scheduler.is_best => Mechanism::SchedExt(Box::new(Mechanism::CpuIdle)),
            true => Mechanism::CpuIdle,
            false => offline_mechanism(self.caps, version, path, group.takeover || own, identity),
        };
        self.other_files_for_the_class(group);
        self.nothing_underneath(group, path, &mechanism);
        let place = CgroupRef { hierarchy, path: path.clone() };
        let managed = self.actual.managed_by(&place).filter(|_| !group.takeover && !already && !own);
        if let Some(unit) = managed {
            let setting = Setting::new(KnobId::CpuIdle, Value::Number(1), String::new());
            let because = super::systemd::because(&unit);
            let try_this = self.through_systemd(&unit, &place, &setting);
            if self.scheduler.is_best {
                self.report.note(format!("{}; try: {try_this}", only_scheduler(group, path, &because)));
                let mechanism = Mechanism::SchedExt(Box::new(Mechanism::Nothing(because)));
                self.mechanisms.insert((group.name.clone(), place), mechanism);
                return;
            }
            return self.report.unmet(group, format!("class offline of {path}"), because, &try_this);
        }
        let mut why = match mechanism {
            // The level has an effect on each CPU, and not among siblings.
            Mechanism::QosLevel => "class offline yields to online tasks of any group",
            _ => "class offline yields to all its siblings",
        }
        .to_owned();
        if let Mechanism::MinWeight(because) = mechanism.underneath() {
            why = "class offline yields, by the smallest weight".to_owned();
            self.report.note(format!(
                "group {}: {path} gets the smallest weight, not cpu.idle: {because}",
                group.name
            ));
        }
        let by_others = mechanism == Mechanism::QosLevel && !own && self.keeps_level_of_others(group, &place);
        if mechanism == Mechanism::QosLevel && !own && !by_others && self.irreversible() {
            self.report.note(format!(
                "group {}: {path} cannot be made online again on this kernel; `commensal restore` moves its members to \
                 a fresh group of the same name",
                group.name
            ));
        }
        let settings = if group.exposed || by_others { Vec::new() } else { mechanism.settings(version) };
        for (knob, value) in settings {
            let ranks = knob == KnobId::CpuBvtWarpNs;
            let why = if ranks { "class offline loses wake-ups to online groups" } else { why.as_str() };
            for path in self.with_below(hierarchy, path, ranks) {
                let place = CgroupRef { hierarchy, path: path.clone() };
                if !ranks || !self.leaves_identity(group, &place) {
                    self.want(group, &path, own, Setting::new(knob, value.clone(), why.to_owned()));
                }
            }
        }
        if mechanism == Mechanism::QosLevel && !group.exposed {
            self.memory_yields(group, path, own);
        }
        self.min_share(group, &mechanism);
        self.mechanisms.insert((group.name.clone(), place), mechanism);
    }

    /// Reports a group for which the scheduler has no mechanism, and a group whose mechanism has no inner mechanism
    /// that sets the weight.
    fn nothing_underneath(&mut self, group: &DesiredGroup, path: &CgroupPath, mechanism: &Mechanism) {
        let Mechanism::Nothing(because) = mechanism.underneath() else { return };
        match mechanism {
            Mechanism::SchedExt(_) => self.report.note(only_scheduler(group, path, because)),
            Mechanism::GroupIdentity(_) => self.report.note(format!(
                "group {}: {path} shares a CPU evenly with one online group: Group Identity decides wake-ups only, \
                 and the weight cannot be made small: {because}",
                group.name
            )),
            _ => {
                let what = "class offline".to_owned();
                self.report.unmet(group, what, because.clone(), "see `commensal doctor`");
            }
        }
    }

    /// Adds a note with the cost of a minimum share for online work; reports the request as unmet if the mechanism lets
    /// no group starve.
    fn min_share(&mut self, group: &DesiredGroup, mechanism: &Mechanism) {
        let Some(share) = group.min_share else { return };
        if *mechanism == Mechanism::QosLevel {
            self.report.note(format!(
                "group {}: cpu.min-share = {share}: while its work starves, the agent lifts it to level 0 in every other \
                 tick, with a quota of {}; that takes up to {share} from online work",
                group.name,
                MicroCpus(share.0.saturating_mul(2))
            ));
            return;
        }
        let because = format!(
            "offline work yields by {} here and does not starve; only groups below level 0 (cpu.qos_level) can",
            mechanism.describe()
        );
        self.report.unmet(group, "cpu.min-share".to_owned(), because, "remove the key");
    }

    /// The level other than 0 that another program has set for the group or an ancestor; `None` if there is none.
    fn level_of_others(&self, place: &CgroupRef) -> Option<i64> {
        let found = self.actual.cgroups.get(place)?.values.get(&(KnobId::CpuQosLevel, None));
        let Some(Value::Number(level)) = found.filter(|level| **level != Value::Number(0)) else {
            return None;
        };
        let ours = place.path.ancestors().into_iter().chain([place.path.clone()]).any(|path| {
            let at = CgroupRef { hierarchy: place.hierarchy, path };
            self.actual.ours.created.contains(&at)
                || self.actual.ours.originals.contains_key(&(at, KnobId::CpuQosLevel, None))
        });
        (!ours).then_some(*level)
    }

    /// Reports a level that another program has set, and leaves it unchanged, because the kernel does not allow the
    /// change: no kernel raises a level below 0, and a kernel with five levels changes only level 0. Returns whether
    /// another program has set a level.
    fn keeps_level_of_others(&mut self, group: &DesiredGroup, place: &CgroupRef) -> bool {
        let Some(level) = self.level_of_others(place) else { return false };
        let found = format!("{} has cpu.qos_level {level}, set by another program", place.path);
        if level < 0 {
            self.report.note(format!(
                "group {}: {found}: it yields already, and neither a plan nor `commensal restore` changes that",
                group.name
            ));
        } else {
            let because = format!("{found}, and this kernel changes no level but 0");
            let try_this = "start its members in a new group";
            self.report.unmet(group, "class offline".to_owned(), because, try_this);
        }
        true
    }

    /// Adds a note if the kernel has files for the class of a group that commensal cannot use.
    fn other_files_for_the_class(&mut self, group: &DesiredGroup) {
        if let Some(Support::No { because }) = self.caps.features.get(CPU_PRIORITY) {
            self.report.note(format!("group {}: {because}", group.name));
        }
    }

    /// The group and, if `below`, all existing and planned groups below it, because a child copies its parent's
    /// identity only when it is created.
    fn with_below(&self, hierarchy: usize, path: &CgroupPath, below: bool) -> Vec<CgroupPath> {
        let place = CgroupRef { hierarchy, path: path.clone() };
        let mut paths = vec![path.clone()];
        if below {
            paths.extend(self.actual.below(&place).map(|(place, _)| place.path.clone()));
            let made = self
                .structure
                .creates
                .keys()
                .filter(|made| made.hierarchy == hierarchy && made.path != *path);
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
            self.report.note(note);
        }
    }

    /// With Group Identity, gives online groups the identity with high priority: the kernel then moves offline tasks
    /// off the SMT siblings of the CPUs on which online tasks run.
    fn identity_online(&mut self, group: &DesiredGroup, member: &Member) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        let version = self.actual.hierarchies[hierarchy].version;
        let obstacle = self.identity.is_some() || self.caps.obstacle(KnobId::CpuBvtWarpNs, version).is_some();
        if obstacle || self.scheduler.is_best {
            return;
        }
        let path = if member.own { self.desired.online_parent.clone() } else { member.path.clone() };
        let why = "class online wins wake-ups against offline groups, also on SMT siblings".to_owned();
        // Offline groups inside the online group stay offline.
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
            let place = CgroupRef { hierarchy, path: path.clone() };
            if !self.leaves_identity(group, &place) {
                let value = Value::Number(BVT_ONLINE);
                self.want(group, &path, member.own, Setting::new(KnobId::CpuBvtWarpNs, value, why.clone()));
            }
        }
    }

    /// Makes a group online again that another program made offline by `cpu.qos_level`, if the kernel allows it.
    fn not_offline_by_others(&mut self, group: &DesiredGroup, member: &Member) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        let place = CgroupRef { hierarchy, path: member.path.clone() };
        let Some(level @ ..=-1) = self.level_of_others(&place) else { return };
        if self.irreversible() {
            let because = format!(
                "{} has cpu.qos_level {level}, set by another program, and this kernel does not allow it to be changed back",
                member.path
            );
            let try_this = "restart the service in a new cgroup";
            return self.report.unmet(group, "class online".to_owned(), because, try_this);
        }
        let why = "class online: was offline".to_owned();
        let setting = Setting::new(KnobId::CpuQosLevel, Value::Number(0), why);
        self.want(group, &member.path, member.own, setting);
    }

    /// Whether another program set `cpu.idle` of the group. Then the group's weight cannot be written, and the group
    /// yields already.
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
