//! Settings that accompany vendors' mechanisms: machine-wide switches, memory levels, and keeping SMT siblings free.

use super::draft::{Draft, Setting};
use crate::actual::{
    ActualState, CORE_SCHED, Cgroup, CgroupPath, CgroupRef, Cookies, QOS_SMT_EXPEL, SCHED_EXT, SMT,
};
use crate::class::Mechanism;
use crate::desired::{DesiredGroup, DesiredState, Member};
use crate::group::Class;
use crate::knob::{Controller, KnobId, Value};
use crate::vendor::{QOS_OFFLINE, QosLevels, Switch, identity_flags};

/// Why Group Identity cannot be used although the kernel has it: its switch is off, and turning it on would clear the
/// identities of cgroups that belong to no workload group. `None` if it can be used.
#[must_use]
pub fn identity_obstacle(desired: Option<&DesiredState>, actual: &ActualState) -> Option<String> {
    if actual.switches.get(&Switch::GroupIdentity) != Some(&0) {
        return None;
    }
    let claimed = |path: &CgroupPath| {
        let groups = desired.iter().flat_map(|desired| &desired.groups);
        let members = groups.flat_map(|group| &group.members);
        members.into_iter().any(|member| member.path.contains(path))
    };
    let theirs = |place: &CgroupRef, found: &Cgroup| {
        let value = found.values.get(&(KnobId::CpuBvtWarpNs, None));
        let set = value.is_some_and(|value| *value != Value::Number(0));
        let stored = set && !actual.ours.created.contains(place) && !claimed(&place.path);
        stored || identity_by_others(actual, place).is_some()
    };
    let (place, _) = actual.cgroups.iter().find(|(place, found)| theirs(place, found))?;
    Some(format!(
        "{} is 0, and turning it on would clear the identity that another program has set in {}",
        Switch::GroupIdentity,
        place.path
    ))
}

/// The flags in the group's `cpu.identity` if another program has written them; they then differ from the flags that
/// belong to the group's `cpu.bvt_warp_ns`. `None` if no other program has written them, or if the kernel has no such
/// file. If commensal has set the `cpu.bvt_warp_ns` of a group, the flags count as the flags of that value, so that
/// undo never depends on [`identity_flags`].
fn identity_by_others(actual: &ActualState, place: &CgroupRef) -> Option<i64> {
    let values = &actual.cgroups.get(place)?.values;
    let value = |knob| match values.get(&(knob, None)) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let (flags, rank) = (value(KnobId::CpuIdentity)?, value(KnobId::CpuBvtWarpNs)?);
    let ours = actual.ours.created.contains(place)
        || actual.ours.originals.contains_key(&(place.clone(), KnobId::CpuBvtWarpNs, None));
    (flags != identity_flags(rank) && !(ours && rank != 0)).then_some(flags)
}

impl Draft<'_> {
    /// Whether this group has flags in `cpu.identity` that another program has written. If so, the plan leaves the
    /// group unchanged and adds a note, because a write to `cpu.bvt_warp_ns` would overwrite the flags and could not
    /// restore them.
    pub(super) fn leaves_identity(&mut self, group: &DesiredGroup, place: &CgroupRef) -> bool {
        let Some(flags) = identity_by_others(self.actual, place) else { return false };
        self.report.note(format!(
            "group {}: {} keeps its cpu.identity {flags}, which another program has set; cpu.bvt_warp_ns would overwrite it",
            group.name, place.path
        ));
        true
    }

    /// Adds the change that turns on a switch without which a wanted knob has no effect.
    pub(super) fn switch_on(&mut self, switch: Switch, group: &DesiredGroup) {
        if self.actual.switches.contains_key(&switch) {
            let why = format!("group {} needs it: without it {} has no effect", group.name, switch.knob());
            self.switches.entry(switch).or_insert((1, why));
        }
    }

    /// Restores switches that an earlier plan turned on, and removes cookies that it gave, if no group needs them any
    /// more.
    pub(super) fn leftover_switches(&mut self) {
        for (switch, original) in &self.actual.ours.switches {
            if let Some(user) = self.switch_user(*switch) {
                self.report.note(format!("{switch} stays as it is: {user} uses it"));
                continue;
            }
            if !self.switches.contains_key(switch) && self.actual.switches.contains_key(switch) {
                let why = "no longer wanted: back to the original value".to_owned();
                self.switches.insert(*switch, (*original, why));
            }
        }
        for place in &self.actual.ours.cookies {
            if self.actual.cgroups.contains_key(place) && !self.cookies.are_wanted(place) {
                let why = "no longer wanted".to_owned();
                self.cookies.changes.insert(place.clone(), (false, why));
            }
        }
    }

    /// A cgroup with a value that turning the switch off would clear; `None` if there is none.
    fn switch_user(&self, switch: Switch) -> Option<String> {
        let knob = switch.knob();
        let at_end = |place: &CgroupRef, found: &Cgroup| {
            let wanted = |path: CgroupPath| {
                let key = (CgroupRef { hierarchy: place.hierarchy, path }, knob, None);
                self.wants.get(&key).map(|want| want.value.clone())
            };
            // The kernel propagates a memory level to all descendants.
            let above = place.path.ancestors().into_iter().rev().filter(|_| switch == Switch::MemcgQos);
            let want = std::iter::once(place.path.clone()).chain(above).find_map(wanted);
            want.or_else(|| found.values.get(&(knob, None)).cloned())
        };
        let used = |(place, found): &(&CgroupRef, &Cgroup)| {
            let empty = self.actual.ours.created.contains(*place) && !found.populated;
            let flags = switch == Switch::GroupIdentity && identity_by_others(self.actual, place).is_some();
            flags || (!empty && at_end(place, found).is_some_and(|value| value != Value::Number(0)))
        };
        self.actual.cgroups.iter().find(used).map(|(place, _)| self.actual.show(place))
    }

    /// openEuler: wants `memory.qos_level`, with which the kernel kills offline groups first when memory runs out.
    pub(super) fn memory_yields(&mut self, group: &DesiredGroup, path: &CgroupPath, own: bool) {
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Memory) else { return };
        let version = self.actual.hierarchies[hierarchy].version;
        let there = own || self.actual.cgroups.contains_key(&CgroupRef { hierarchy, path: path.clone() });
        if there && self.caps.obstacle(KnobId::MemoryQosLevel, version).is_none() {
            let why = "class offline is killed first when memory runs out".to_owned();
            let value = Value::Number(QOS_OFFLINE);
            self.want(group, path, own, Setting::new(KnobId::MemoryQosLevel, value, why));
        }
    }

    /// The level for `cpu.qos-level` of an online group on openEuler's kernel with five levels; `None`, with an unmet
    /// request, if the kernel does not allow it. The kernel does not allow another change of the level, so a plan sets
    /// it only if the groups file asks for it.
    pub(super) fn online_level(
        &mut self,
        group: &DesiredGroup,
        member: &Member,
        level: u32,
    ) -> Option<Setting> {
        let hierarchy = self.actual.hierarchy_of(Controller::Cpu)?;
        let version = self.actual.hierarchies[hierarchy].version;
        let place = CgroupRef { hierarchy, path: member.path.clone() };
        let found = self.actual.cgroups.get(&place);
        let now = found.and_then(|found| found.values.get(&(KnobId::CpuQosLevel, None))).cloned();
        let ours = member.own || self.actual.ours.originals.contains_key(&(place, KnobId::CpuQosLevel, None));
        let value = Value::Number(i64::from(level));
        let free = |now: &Value| *now == Value::Number(0) || *now == value;
        let because = match (self.caps.obstacle(KnobId::CpuQosLevel, version), self.caps.qos, now) {
            (Some(obstacle), _, _) => Some(obstacle),
            (None, Some(QosLevels::Five), Some(now)) if !ours && !free(&now) => Some(format!(
                "{} has cpu.qos_level {now}, set by another program, and the kernel does not allow it to be changed again",
                member.path
            )),
            (None, Some(QosLevels::Five), _) => None,
            (None, ..) => Some("this kernel's cpu.qos_level has two levels, -1 and 0".to_owned()),
        };
        let because = because.or_else(|| {
            let offline = self.desired.groups.iter().filter(|other| other.class == Class::Offline);
            let mut members = offline.flat_map(|other| &other.members);
            let inside = members.find(|one| member.path.contains(&one.path))?;
            Some(format!(
                "the kernel gives the level to every group below {}, and {} there is offline",
                member.path, inside.path
            ))
        });
        if let Some(because) = because {
            let try_this = "leave it out: level 0 already goes before every offline group";
            self.report.unmet(group, "cpu.qos-level".to_owned(), because, try_this);
            return None;
        }
        if !member.own {
            self.report.note(format!(
                "group {}: {} cannot have another level on this kernel; `commensal restore` moves its members to a fresh \
                 group of the same name",
                group.name, member.path
            ));
        }
        Some(Setting::new(KnobId::CpuQosLevel, value, format!("cpu.qos-level = {level}")))
    }

    /// `expel`: keeps the threads of this offline group off cores that run an online thread, by the mechanism in use
    /// or, if that mechanism cannot do it, by core scheduling.
    pub(super) fn expel(&mut self, group: &DesiredGroup) {
        if !group.expel {
            return;
        }
        if let Some(because) = self.caps.feature_obstacle(SMT) {
            self.report.note(format!("group {}: expel has nothing to do: {because}", group.name));
            return;
        }
        let by = |wanted: fn(&Mechanism) -> bool| {
            self.mechanisms.iter().any(|((name, _), mechanism)| *name == group.name && wanted(mechanism))
        };
        let online = self.desired.groups.iter().any(|other| other.class == Class::Online);
        if by(|one| matches!(one, Mechanism::GroupIdentity(_))) {
            if !online {
                let because = "Group Identity keeps SMT siblings free for groups with identity 2, and no online group is declared";
                self.report.unmet(group, "expel".to_owned(), because.to_owned(), "declare the online groups");
            }
            return;
        }
        if by(|one| *one == Mechanism::QosLevel) && self.caps.feature_obstacle(QOS_SMT_EXPEL).is_none() {
            return;
        }
        if self.by_scheduler(group) {
            if !online && !self.expelling_in_force() {
                let because = "the scheduler keeps SMT siblings free for online groups, and none is declared here or in force";
                let try_this = "declare the online groups beside it, and `commensal apply` them";
                self.report.unmet(group, "expel".to_owned(), because.to_owned(), try_this);
            }
            return;
        }
        self.expel_by_cookies(group);
    }

    /// Whether the sched_ext scheduler would keep SMT siblings free of this group if it were loaded: the kernel
    /// supports it, and no better mechanism takes precedence.
    fn scheduler_could_expel(&self, group: &DesiredGroup) -> bool {
        let mut here = self.mechanisms.iter().filter(|((name, _), _)| *name == group.name).peekable();
        self.caps.feature_obstacle(SCHED_EXT).is_none()
            && here.peek().is_some()
            && here.all(|(_, one)| !matches!(one, Mechanism::GroupIdentity(_) | Mechanism::QosLevel))
    }

    /// Gives the threads of the group one core-scheduling cookie: the kernel never runs threads with different cookies
    /// on the same core.
    fn expel_by_cookies(&mut self, group: &DesiredGroup) {
        let identity_on = self.actual.switches.get(&Switch::GroupIdentity).is_some_and(|on| *on != 0)
            || self.switches.contains_key(&Switch::GroupIdentity);
        let obstacle = match identity_on {
            true => Some("Group Identity is on, and the kernel allows only one of the two".to_owned()),
            false => self.caps.feature_obstacle(CORE_SCHED),
        };
        if let Some(obstacle) = obstacle {
            let because = format!("keeping the SMT sibling free needs core scheduling here: {obstacle}");
            let try_this = match self.scheduler_could_expel(group) {
                true => {
                    "`commensal sched load`, whose scheduler expels as well, or set cpu.set to whole cores instead"
                }
                false => "set cpu.set to whole cores instead",
            };
            return self.report.unmet(group, "expel".to_owned(), because, try_this);
        }
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        self.cookies.groups.insert(group.name.clone());
        for member in &group.members {
            let place = CgroupRef { hierarchy, path: member.path.clone() };
            let found = self.actual.cgroups.get(&place).and_then(|found| found.cookies);
            let ours = member.own || self.actual.ours.cookies.contains(&place);
            match found {
                // New threads of the group inherit the cookie of the existing ones.
                None | Some(Cookies::Empty | Cookies::One) => {
                    // The cookie is still wanted and must not be removed as a leftover.
                    if ours && !member.own {
                        self.cookies.kept.insert(place);
                    }
                }
                Some(Cookies::Mixed) if !ours => {
                    let because =
                        format!("threads in {} have core-scheduling cookies of another program", member.path);
                    self.report.unmet(
                        group,
                        "expel".to_owned(),
                        because,
                        "let only one of the two programs manage them",
                    );
                }
                Some(Cookies::None | Cookies::Mixed) => {
                    let why = format!("{}: expel: its threads share a core only with each other", group.name);
                    self.cookies.changes.insert(place, (true, why));
                }
            }
        }
    }
}
