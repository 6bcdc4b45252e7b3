//! How "offline yields to online" is done: the best mechanism this machine and this group allow.
//!
//! Class is a property of a group, relative to its siblings. `nice` and `SCHED_IDLE` on tasks inside a group protect
//! only the other tasks of that group (measured: P90 +382 % with SCHED_IDLE in a shared autogroup), so they are the
//! last resort and are called weak.

use crate::actual::{Capabilities, CgroupPath, SCHED_EXT, SCHEDULER};
use crate::cpuset::CpuSet;
use crate::knob::{KnobId, Value, Version};
use crate::vendor::{BVT_OFFLINE, QOS_OFFLINE};

/// The mechanism that makes a group yield.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mechanism {
    /// Anolis/Alibaba Group Identity: `cpu.bvt_warp_ns` -1, online groups 2.
    GroupIdentity,
    /// openEuler: `cpu.qos_level` -1.
    QosLevel,
    /// The sched_ext scheduler: offline threads run when no thread of another class wants the CPU, whatever group they
    /// are in. The inner mechanism holds them back when the scheduler is not loaded.
    SchedExt(Box<Mechanism>),
    /// `cpu.idle` = 1: the group is `SCHED_IDLE` against its siblings.
    CpuIdle,
    /// The smallest weight (`cpu.weight` 1, `cpu.shares` 2), for the stated reason.
    MinWeight(String),
    /// Groups cannot be written at all, for the stated reason.
    Nothing(String),
}

impl Mechanism {
    /// The knob, and the value to write to it.
    #[must_use]
    pub fn setting(&self, version: Version) -> Option<(KnobId, Value)> {
        match (self, version) {
            (Mechanism::GroupIdentity, _) => Some((KnobId::CpuBvtWarpNs, Value::Number(BVT_OFFLINE))),
            (Mechanism::QosLevel, _) => Some((KnobId::CpuQosLevel, Value::Number(QOS_OFFLINE))),
            (Mechanism::SchedExt(underneath), version) => underneath.setting(version),
            (Mechanism::CpuIdle, _) => Some((KnobId::CpuIdle, Value::Number(1))),
            (Mechanism::MinWeight(_), Version::V1) => Some((KnobId::CpuWeight, Value::Number(2))),
            (Mechanism::MinWeight(_), Version::V2) => Some((KnobId::CpuWeight, Value::Number(1))),
            (Mechanism::Nothing(_), _) => None,
        }
    }

    /// The mechanism's name, as shown to users.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Mechanism::GroupIdentity => "Group Identity",
            Mechanism::QosLevel => "cpu.qos_level",
            Mechanism::SchedExt(_) => SCHEDULER,
            Mechanism::CpuIdle => "cpu.idle",
            Mechanism::MinWeight(_) => "smallest weight",
            Mechanism::Nothing(_) => "none",
        }
    }

    /// The name, with the mechanism underneath: `sched_ext scheduler, cpu.idle underneath`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Mechanism::SchedExt(underneath) => match underneath.as_ref() {
                Mechanism::Nothing(_) => format!("{}, nothing underneath", self.name()),
                other => format!("{}, {} underneath", self.name(), other.name()),
            },
            other => other.name().to_owned(),
        }
    }

    /// The mechanism whose knob is written: for the scheduler, the one underneath.
    #[must_use]
    pub fn written(&self) -> &Mechanism {
        match self {
            Mechanism::SchedExt(underneath) => underneath,
            other => other,
        }
    }
}

/// One mechanism that makes offline work yield, best first, and why it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// Name shown to users, as [`Mechanism::name`].
    pub name: &'static str,
    /// The knob that the mechanism writes; `None` for a scheduler.
    pub knob: Option<KnobId>,
    /// Why it cannot be used here; `None` when it can.
    pub obstacle: Option<String>,
}

/// Every mechanism, best first (the order and its evidence: DESIGN 4). `identity` is a reason against Group Identity
/// that depends on the current state of the machine.
#[must_use]
pub fn ladder(caps: &Capabilities, version: Version, identity: Option<&str>) -> Vec<Rung> {
    let knob = |name: &'static str, knob: KnobId| Rung {
        name,
        knob: Some(knob),
        obstacle: caps.obstacle(knob, version),
    };
    let mut first = knob("Group Identity", KnobId::CpuBvtWarpNs);
    first.obstacle = first.obstacle.or_else(|| identity.map(str::to_owned));
    // First why the kernel cannot load a scheduler; if it can, whether one is loaded.
    let sched_ext = caps.feature_obstacle(SCHED_EXT).or_else(|| caps.feature_obstacle(SCHEDULER));
    vec![
        first,
        knob("cpu.qos_level", KnobId::CpuQosLevel),
        Rung { name: SCHEDULER, knob: None, obstacle: sched_ext },
        knob("cpu.idle", KnobId::CpuIdle),
        knob("smallest weight", KnobId::CpuWeight),
    ]
}

/// Which other program writes the weight of a group. `cpu.idle` makes such a write fail with EINVAL and discards the
/// old value (and systemd 252 clears `cpu.idle` to write the weight), so it is used only where there is no such
/// program.
#[must_use]
pub fn weight_writer(path: &CgroupPath) -> Option<&'static str> {
    let container = ["docker", "kubepods", "containerd", "crio", "libpod", "lxc"];
    let unit = [".service", ".scope", ".slice"];
    if path.parts().any(|part| container.iter().any(|name| part.contains(name))) {
        Some("the container manager")
    } else if path.parts().any(|part| unit.iter().any(|suffix| part.ends_with(suffix))) {
        Some("systemd")
    } else {
        None
    }
}

/// The best mechanism for an offline group at `path` in a cpu hierarchy of `version`.
#[must_use]
pub fn offline_mechanism(
    caps: &Capabilities,
    version: Version,
    path: &CgroupPath,
    takeover: bool,
    identity: Option<&str>,
) -> Mechanism {
    let rungs = ladder(caps, version, identity);
    let obstacle = |knob: KnobId| {
        let rung = rungs.iter().find(|rung| rung.knob == Some(knob));
        rung.map_or_else(|| Some("not on the ladder".to_owned()), |rung| rung.obstacle.clone())
    };
    // Vendors' knobs do not touch the weight, so another writer of the weight does not matter.
    if obstacle(KnobId::CpuBvtWarpNs).is_none() {
        return Mechanism::GroupIdentity;
    }
    if obstacle(KnobId::CpuQosLevel).is_none() {
        return Mechanism::QosLevel;
    }
    let scheduled = rungs.iter().any(|rung| rung.name == SCHEDULER && rung.obstacle.is_none());
    let weighed = by_weight(path, takeover, &obstacle);
    if scheduled { Mechanism::SchedExt(Box::new(weighed)) } else { weighed }
}

/// The best of the mechanisms that every kernel has.
fn by_weight(path: &CgroupPath, takeover: bool, obstacle: &dyn Fn(KnobId) -> Option<String>) -> Mechanism {
    let writer = weight_writer(path).filter(|_| !takeover);
    let no_idle = match (writer, obstacle(KnobId::CpuIdle)) {
        (Some(writer), _) => {
            format!(
                "{writer} writes the weight here: with cpu.idle its writes fail, or undo it; takeover = true would use it"
            )
        }
        (None, Some(obstacle)) => format!("cpu.idle cannot be used: {obstacle}"),
        (None, None) => return Mechanism::CpuIdle,
    };
    match obstacle(KnobId::CpuWeight) {
        None => Mechanism::MinWeight(no_idle),
        Some(obstacle) => Mechanism::Nothing(format!("{no_idle}; cpu.weight cannot be used: {obstacle}")),
    }
}

/// How a process is started when cgroups cannot be written: what an unprivileged user may do to their processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPolicy {
    /// `SCHED_IDLE` and nice 19.
    pub idle: bool,
    /// CPUs it may use.
    pub cpus: Option<CpuSet>,
    /// Why this is weak, in words; `None` when no policy is needed.
    pub weak: Option<String>,
}

/// The policy for tasks of an offline group when cgroups cannot be written because of `obstacle`.
#[must_use]
pub fn offline_task_policy(obstacle: &str, cpus: Option<CpuSet>) -> TaskPolicy {
    let weak = format!(
        "{obstacle}; using SCHED_IDLE, nice 19{} on the tasks instead. This is weak: the kernel compares groups before \
         tasks, so work in another session or container does not profit from it, and memory and I/O are not limited",
        if cpus.is_some() { " and CPU affinity" } else { "" }
    );
    TaskPolicy { idle: true, cpus, weak: Some(weak) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actual::Support;

    #[test]
    fn picks_the_best_that_is_allowed() {
        let mut caps = Capabilities::everything();
        let own = CgroupPath::new("/commensal-offline");
        let docker = CgroupPath::new("/docker/abc");
        let best = |caps: &Capabilities, version, path, takeover| {
            offline_mechanism(caps, version, path, takeover, None)
        };
        assert_eq!(best(&caps, Version::V1, &own, false), Mechanism::CpuIdle);
        assert_eq!(best(&caps, Version::V2, &docker, false).name(), "smallest weight");
        assert_eq!(best(&caps, Version::V2, &docker, true), Mechanism::CpuIdle);
        caps.knobs
            .insert((KnobId::CpuIdle, Version::V1), Support::No { because: "no file cpu.idle".to_owned() });
        let weight = best(&caps, Version::V1, &own, false);
        assert_eq!(weight.setting(Version::V1), Some((KnobId::CpuWeight, Value::Number(2))));
        caps.knobs.insert((KnobId::CpuQosLevel, Version::V1), Support::Yes);
        assert_eq!(best(&caps, Version::V1, &docker, false), Mechanism::QosLevel);
        caps.knobs.insert((KnobId::CpuBvtWarpNs, Version::V1), Support::Yes);
        assert_eq!(best(&caps, Version::V1, &docker, false), Mechanism::GroupIdentity);
        let refused =
            offline_mechanism(&caps, Version::V1, &docker, false, Some("core scheduling is in use"));
        assert_eq!(refused, Mechanism::QosLevel);
        caps.knobs.clear();
        assert_eq!(best(&caps, Version::V1, &own, false).setting(Version::V1), None);
    }

    #[test]
    fn the_ladder_says_why_not() {
        let rungs = ladder(&Capabilities::everything(), Version::V1, None);
        let names: Vec<_> = rungs.iter().map(|rung| rung.name).collect();
        assert_eq!(
            names,
            ["Group Identity", "cpu.qos_level", "sched_ext scheduler", "cpu.idle", "smallest weight"]
        );
        assert_eq!(rungs[0].obstacle.as_deref(), Some("not a kernel of Anolis/Alibaba"));
        assert!(rungs[2].obstacle.is_some() && rungs[3].obstacle.is_none());
    }

    #[test]
    fn the_scheduler_is_above_what_is_underneath() {
        let mut caps = Capabilities::everything();
        let best = |caps: &Capabilities, path: &str| {
            offline_mechanism(caps, Version::V2, &CgroupPath::new(path), false, None)
        };
        let obstacle = |caps: &Capabilities| ladder(caps, Version::V2, None)[2].obstacle.clone();
        let no = |because: &str| Support::No { because: because.to_owned() };
        caps.features.insert(SCHED_EXT, no("too old"));
        caps.features.insert(SCHEDULER, Support::Yes);
        assert_eq!((obstacle(&caps).as_deref(), best(&caps, "/etl")), (Some("too old"), Mechanism::CpuIdle));
        caps.features.insert(SCHED_EXT, Support::Yes);
        assert_eq!(obstacle(&caps), None);
        let etl = best(&caps, "/etl");
        assert_eq!(etl.describe(), "sched_ext scheduler, cpu.idle underneath");
        assert_eq!(etl.setting(Version::V2), Mechanism::CpuIdle.setting(Version::V2));
        let docker = best(&caps, "/docker/x");
        assert_eq!(docker.describe(), "sched_ext scheduler, smallest weight underneath");
        assert_eq!(docker.name(), "sched_ext scheduler");
        caps.features.insert(SCHEDULER, no("not loaded"));
        assert_eq!(
            (obstacle(&caps).as_deref(), best(&caps, "/etl")),
            (Some("not loaded"), Mechanism::CpuIdle)
        );
        caps.features.insert(SCHEDULER, Support::Yes);
        caps.knobs.insert((KnobId::CpuQosLevel, Version::V1), Support::Yes);
        let vendor = offline_mechanism(&caps, Version::V1, &CgroupPath::new("/etl"), false, None);
        assert_eq!(vendor, Mechanism::QosLevel);
        // No cgroup can be written, but the scheduler still schedules the threads.
        caps.knobs.clear();
        assert_eq!(best(&caps, "/etl").describe(), "sched_ext scheduler, nothing underneath");
    }
}
