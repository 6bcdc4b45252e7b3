//! The agent's knowledge of groups below level 0 (`cpu.qos_level` of openEuler's kernel) and of frozen groups, and the
//! messages about them. A group starves if its tasks want a CPU and get none.

use crate::policy_watch::{Escape, Handled};
use crate::sense::Meters;
use crate::snapshot::{self, Action};
use crate::starvation::{Starvation, Starved};
use commensal_core::actual::{CgroupPath, CgroupRef};
use commensal_core::group::{Class, GroupName};
use commensal_core::knob::{Controller, KnobId};
use commensal_core::text::visible;
use commensal_core::units::MicroCpus;
use commensal_host::Host;
use commensal_reconcile::Planned;
use commensal_sensors::level::{FILE, level};
use std::collections::BTreeMap;

/// The state of groups below level 0, and of frozen groups.
#[derive(Debug, Default)]
pub struct Levels {
    /// Offline groups with a cgroup below level 0, each with these cgroups, as of the last round.
    pub low: Vec<(GroupName, Vec<CgroupPath>)>,
    /// When these groups were last checked (ms).
    pub looked_ms: Option<u64>,
    /// Finds the groups whose threads want a CPU and do not run.
    pub starvation: Starvation,
    /// The groups that starve, as of the last tick.
    pub starved: BTreeMap<GroupName, Starved>,
    /// Frozen groups of cgroup v1. The value is the time (ms, and as text) since which some tasks have not stopped, if
    /// any.
    pub freezing: BTreeMap<GroupName, Option<(u64, String)>>,
}

impl Levels {
    /// Finds the cgroups below level 0 after a round.
    pub fn follow(&mut self, host: &mut dyn Host, meters: &Meters, planned: &Planned) {
        let actual = &planned.actual;
        let cpu = actual.hierarchy_of(Controller::Cpu);
        // The round has read every member, but it may have written a level since.
        let has_level = |path: &CgroupPath| {
            let place = cpu.map(|hierarchy| CgroupRef { hierarchy, path: path.clone() });
            let found = place.and_then(|place| actual.cgroups.get(&place));
            found.is_some_and(|found| found.values.get(&(KnobId::CpuQosLevel, None)).is_some())
        };
        let mut is_low = |path: &CgroupPath| {
            if !has_level(path) {
                return false;
            }
            let Some(dir) = meters.dir_v1(path, Controller::Cpu) else { return false };
            level(host, dir).ok().flatten().is_some_and(|level| level < 0)
        };
        let offline = planned.desired.groups.iter().filter(|group| group.class == Class::Offline);
        let low = offline.filter_map(|group| {
            let paths = group.members.iter().map(|member| &member.path);
            let paths: Vec<CgroupPath> = paths.filter(|path| is_low(path)).cloned().collect();
            (!paths.is_empty()).then(|| (group.name.clone(), paths))
        });
        self.low = low.collect();
    }

    /// Fills the state of these groups into the snapshot.
    pub fn show(&self, now_ms: u64, groups: &mut [snapshot::Group]) {
        let seconds = |since_ms: u64| now_ms.saturating_sub(since_ms) as f64 / 1e3;
        for group in groups {
            if self.low.iter().any(|(name, _)| name.as_str() == group.name) {
                let starved = self.starved.iter().find(|(name, _)| name.as_str() == group.name);
                group.starved_since = starved.map(|(_, starved)| starved.since.clone());
                group.starved_s = Some(starved.map_or(0.0, |(_, starved)| seconds(starved.since_ms)));
            }
            let frozen = self.freezing.iter().find(|(name, _)| name.as_str() == group.name);
            if let Some((_, freezing)) = frozen {
                group.freezing_since = freezing.as_ref().map(|(_, since)| since.clone());
                group.freezing_s = Some(freezing.as_ref().map_or(0.0, |(since_ms, _)| seconds(*since_ms)));
                group.frozen &= freezing.is_none();
            }
        }
    }
}

/// Describes a process by PID, program and user.
fn who(escape: &Escape) -> String {
    let user = escape.uid.map_or_else(|| "of an unknown user".to_owned(), |uid| format!("of user {uid}"));
    format!("process {} ({}) {user}", escape.pid, visible(&escape.name))
}

/// Returns the problem about a process that was not set back to `SCHED_IDLE`; `None` if it was.
pub fn problem(escape: &Escape) -> Option<String> {
    let Escape { group, policy, .. } = escape;
    let who = who(escape);
    let harm = format!(
        "{who} in group {group} has changed its scheduling policy to {policy} and takes CPU time from online work"
    );
    match &escape.done {
        Handled::SetBack { .. } => None,
        Handled::Waits { times, left_ms } => Some(format!(
            "{harm}; it has been set back {times} times before, and is set back again in {} s",
            left_ms.div_ceil(1_000)
        )),
        Handled::Paused => Some(format!("{harm}; it is not set back while the agent is paused")),
        Handled::Refused(error) => Some(format!("{harm}; it cannot be set back: {error}")),
    }
}

const WHY: &str =
    "below level 0 (cpu.qos_level) a task that leaves SCHED_IDLE takes CPU time from online work";

/// Returns the action for the audit log about a process that was set back to `SCHED_IDLE`.
pub fn set_back(escape: &Escape, at: &str) -> Action {
    let count = match escape.done {
        Handled::SetBack { threads, times } => {
            format!("; threads: {threads}, number of times so far: {times}")
        }
        _ => String::new(),
    };
    Action {
        at: at.to_owned(),
        group: Some(escape.group.to_string()),
        what: who(escape),
        old: Some(escape.policy.to_string()),
        new: Some("SCHED_IDLE".to_owned()),
        why: format!("{WHY}{count}"),
        reason: None,
    }
}

/// Returns the action for further processes of a group that were set back in the same tick.
pub fn many_set_back(group: &GroupName, count: usize, at: &str) -> Action {
    Action {
        at: at.to_owned(),
        group: Some(group.to_string()),
        what: format!("{count} more processes"),
        old: None,
        new: Some("SCHED_IDLE".to_owned()),
        why: WHY.to_owned(),
        reason: None,
    }
}

/// Returns the action for a group that gets its minimum share.
pub fn shares(group: &GroupName, share: MicroCpus, since: &str, at: &str) -> Action {
    let quota = MicroCpus(share.0.saturating_mul(2));
    Action {
        at: at.to_owned(),
        group: Some(group.to_string()),
        what: "members".to_owned(),
        old: Some(format!("{FILE} below 0")),
        new: Some(format!("level 0 in every other tick, with a quota of {quota}")),
        why: format!("the group has starved since {since}, and its cpu.min-share is {share}"),
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::config::parse;
    use commensal_core::errno::Errno;
    use commensal_core::process::{SCHED_FIFO, Scheduling};
    use commensal_host::HostError;
    use commensal_host::fake::{FakeHost, VendorKernel};
    use commensal_reconcile::{Instance, PlanRequest, Reconciler};
    use std::path::Path;

    const GROUPS: &str = "[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\n\
        [group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web\" }]\n";

    fn name(text: &str) -> GroupName {
        GroupName::new(text).unwrap()
    }

    #[test]
    fn only_offline_groups_below_level_0_are_looked_at() {
        for levels_here in [true, false] {
            let fake = FakeHost::v1(4, 1 << 30);
            if levels_here {
                fake.vendor_kernel(VendorKernel::OPENEULER);
            }
            let mut host = fake.another();
            for root in ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "freezer"] {
                let root = host.open(&Path::new("/sys/fs/cgroup").join(root)).unwrap();
                host.mkdir(root, "batch").unwrap();
                host.mkdir(root, "web").unwrap();
            }
            let mut reconciler = Reconciler::new(Instance::new(Path::new("/state")), &mut host).unwrap();
            let specs = parse("groups.toml", GROUPS).unwrap();
            let round = reconciler.round(&mut host, 0, &PlanRequest::all(&specs)).unwrap();
            let Planned { actual, desired, .. } = &round.planned;
            let mut meters = Meters::default();
            meters.follow(&mut host, &actual.hierarchies, desired);
            let mut levels = Levels::default();
            levels.follow(&mut host, &meters, &round.planned);
            let low = vec![(name("etl"), vec![CgroupPath::new("/batch")])];
            assert_eq!(levels.low, if levels_here { low } else { Vec::new() });
            let mut groups: Vec<snapshot::Group> = ["etl", "web"]
                .map(|name| snapshot::Group { name: name.to_owned(), frozen: true, ..Default::default() })
                .into();
            levels.show(1_000, &mut groups);
            assert_eq!(groups[0].starved_s, levels_here.then_some(0.0));
            assert_eq!((groups[1].starved_s, groups[1].freezing_s), (None, None));
            let starved = Starved { since_ms: 1_000, since: "then".to_owned(), threads: 1 };
            levels.starved.insert(name("etl"), starved);
            levels.freezing.insert(name("etl"), Some((2_000, "later".to_owned())));
            levels.freezing.insert(name("web"), None);
            levels.show(4_000, &mut groups);
            assert_eq!(groups[0].starved_s, levels_here.then_some(3.0));
            assert_eq!(groups[0].starved_since.is_some(), levels_here);
            assert_eq!(
                (groups[0].freezing_since.as_deref(), groups[0].freezing_s),
                (Some("later"), Some(2.0))
            );
            assert_eq!((groups[0].frozen, groups[1].frozen), (false, true));
            assert_eq!((groups[1].freezing_since.as_deref(), groups[1].freezing_s), (None, Some(0.0)));
        }
    }

    /// The message about a process that is not set back names its user and the reason.
    // promise 3
    #[test]
    fn who_is_not_set_back_is_named() {
        let refused = HostError {
            operation: "set the scheduling policy of",
            object: "thread 7".to_owned(),
            value: None,
            errno: Errno::EPERM,
        };
        for (done, text) in [
            (Handled::SetBack { threads: 1, times: 1 }, None),
            (
                Handled::Waits { times: 5, left_ms: 15_500 },
                Some("set back 5 times before, and is set back again in 16 s"),
            ),
            (Handled::Paused, Some("while the agent is paused")),
            (Handled::Refused(refused), Some("cannot be set back: ")),
        ] {
            let escape = Escape {
                group: name("etl"),
                pid: 7,
                name: "a\nb".to_owned(),
                uid: Some(1_000),
                policy: Scheduling::real_time(SCHED_FIFO, 10),
                done,
            };
            let told = problem(&escape);
            assert_eq!(told.is_some(), text.is_some());
            let (told, text) = (told.unwrap_or_default(), text.unwrap_or_default());
            assert!(told.contains(text), "{told}");
            let who = "process 7 (a\\nb) of user 1000 in group etl has changed its scheduling policy to SCHED_FIFO 10";
            assert!(told.is_empty() || told.starts_with(who), "{told}");
        }
    }
}
