//! Settings that vendors' knobs depend on: machine-wide switches, memory that yields too, and free SMT siblings.

use super::draft::{Draft, Setting};
use crate::actual::{
    ActualState, CORE_SCHED, Cgroup, CgroupPath, CgroupRef, Cookies, QOS_SMT_EXPEL, SCHED_EXT, SMT,
};
use crate::class::Mechanism;
use crate::desired::{DesiredGroup, DesiredState};
use crate::group::Class;
use crate::knob::{Controller, KnobId, Value};
use crate::vendor::{QOS_OFFLINE, Switch};

/// Why Group Identity is not used although the kernel has it: it is off, and turning it on would clear values that are
/// stored in groups that belong to no workload group.
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
        set && !actual.ours.created.contains(place) && !claimed(&place.path)
    };
    let (place, _) = actual.cgroups.iter().find(|(place, found)| theirs(place, found))?;
    Some(format!(
        "{} is 0, and turning it on would clear the identity that somebody has set in {}",
        Switch::GroupIdentity,
        place.path
    ))
}

impl Draft<'_> {
    /// Turns on a switch without which a wanted knob has no effect.
    pub(super) fn switch_on(&mut self, switch: Switch, group: &DesiredGroup) {
        if self.actual.switches.contains_key(&switch) {
            let why = format!("group {} needs it: without it {} does nothing", group.name, switch.knob());
            self.switches.entry(switch).or_insert((1, why));
        }
    }

    /// Turns off switches that an earlier plan turned on and no group needs any more.
    pub(super) fn leftover_switches(&mut self) {
        for (switch, original) in &self.actual.ours.switches {
            if let Some(user) = self.switch_user(*switch) {
                self.notes.push(format!("{switch} stays as it is: {user} uses it"));
                continue;
            }
            if !self.switches.contains_key(switch) && self.actual.switches.contains_key(switch) {
                let why = "no longer wanted: put back what was there before".to_owned();
                self.switches.insert(*switch, (*original, why));
            }
        }
        for place in &self.actual.ours.cookies {
            let wanted = self.cookies.contains_key(place) || self.kept_cookies.contains(place);
            if self.actual.cgroups.contains_key(place) && !wanted {
                let why = "no longer wanted".to_owned();
                self.cookies.insert(place.clone(), (false, why));
            }
        }
    }

    /// A group with a value that turning the switch off would clear.
    fn switch_user(&self, switch: Switch) -> Option<String> {
        let knob = switch.knob();
        let at_end = |place: &CgroupRef, found: &Cgroup| {
            let wanted = |path: CgroupPath| {
                let key = (CgroupRef { hierarchy: place.hierarchy, path }, knob, None);
                self.wants.get(&key).map(|want| want.value.clone())
            };
            // The kernel propagates a memory level to the groups below.
            let above = place.path.ancestors().into_iter().rev().filter(|_| switch == Switch::MemcgQos);
            let want = std::iter::once(place.path.clone()).chain(above).find_map(wanted);
            want.or_else(|| found.values.get(&(knob, None)).cloned())
        };
        let used = |(place, found): &(&CgroupRef, &Cgroup)| {
            let empty = self.actual.ours.created.contains(*place) && !found.populated;
            !empty && at_end(place, found).is_some_and(|value| value != Value::Number(0))
        };
        self.actual.cgroups.iter().find(used).map(|(place, _)| self.actual.show(place))
    }

    /// openEuler: when memory runs out, offline groups are killed first, where the kernel supports it.
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

    /// `expel`: no thread of this offline group runs on a core whose sibling runs an online one.
    pub(super) fn expel(&mut self, group: &DesiredGroup) {
        if !group.expel {
            return;
        }
        if let Some(because) = self.caps.feature_obstacle(SMT) {
            self.notes.push(format!("group {}: expel has nothing to do: {because}", group.name));
            return;
        }
        let by = |wanted: Mechanism| {
            self.mechanisms.iter().any(|((name, _), mechanism)| *name == group.name && *mechanism == wanted)
        };
        let online = self.desired.groups.iter().any(|other| other.class == Class::Online);
        if by(Mechanism::GroupIdentity) {
            if !online {
                let because =
                    "Group Identity expels for groups with identity 2, and no online group is declared";
                self.unmet(group, "expel".to_owned(), because.to_owned(), "declare the online groups");
            }
            return;
        }
        if by(Mechanism::QosLevel) && self.caps.feature_obstacle(QOS_SMT_EXPEL).is_none() {
            return;
        }
        if self.by_scheduler(group) {
            if !online && !self.expelling_in_force() {
                let because = "the scheduler expels for online groups, and none is declared here or in force";
                let try_this = "declare the online groups beside it, and `commensal apply` them";
                self.unmet(group, "expel".to_owned(), because.to_owned(), try_this);
            }
            return;
        }
        self.expel_by_cookies(group);
    }

    /// Whether the scheduler would keep siblings free of this group if it were loaded: the kernel supports it, and no
    /// better mechanism is used instead.
    fn scheduler_could_expel(&self, group: &DesiredGroup) -> bool {
        let mut here = self.mechanisms.iter().filter(|((name, _), _)| *name == group.name).peekable();
        self.caps.feature_obstacle(SCHED_EXT).is_none()
            && here.peek().is_some()
            && here.all(|(_, one)| !matches!(one, Mechanism::GroupIdentity | Mechanism::QosLevel))
    }

    /// Gives the group one core-scheduling cookie: the kernel never runs two threads with different cookies on one
    /// core.
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
            return self.unmet(group, "expel".to_owned(), because, try_this);
        }
        let Some(hierarchy) = self.actual.hierarchy_of(Controller::Cpu) else { return };
        self.cookie_groups.insert(group.name.clone());
        for member in &group.members {
            let place = CgroupRef { hierarchy, path: member.path.clone() };
            let found = self.actual.cgroups.get(&place).and_then(|found| found.cookies);
            let ours = member.own || self.actual.ours.cookies.contains(&place);
            match found {
                // Threads that start in the group get the cookie of the existing ones.
                None | Some(Cookies::Empty | Cookies::One) => {
                    // The cookie is still wanted, so it is not a leftover.
                    if ours && !member.own {
                        self.kept_cookies.insert(place);
                    }
                }
                Some(Cookies::Mixed) if !ours => {
                    let because =
                        format!("threads in {} have core-scheduling cookies of somebody else", member.path);
                    self.unmet(group, "expel".to_owned(), because, "let one of the two manage them");
                }
                Some(Cookies::None | Cookies::Mixed) => {
                    let why = format!("{}: expel: its threads share a core only with each other", group.name);
                    self.cookies.insert(place, (true, why));
                }
            }
        }
    }
}
