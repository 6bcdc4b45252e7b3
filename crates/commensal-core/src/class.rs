//! Chooses the mechanism by which the kernel prefers online (latency-critical) groups to offline (batch) groups: the
//! best one that the machine and the group allow.
//!
//! A group has the class online or offline. An offline group yields if it gets only the CPU time that online groups
//! leave. The kernel enforces this order among sibling cgroups. `nice` and `SCHED_IDLE` on the tasks of a group protect
//! only other tasks of the same group. In a measurement, online and SCHED_IDLE offline tasks ran in a shared autogroup
//! (the task group that the kernel makes per session), and the P90 latency of the online service rose by 382 %. So
//! commensal uses these two settings only as the last resort and reports them as weak.

use crate::actual::{Capabilities, CgroupPath, SCHED_EXT, SCHEDULER};
use crate::cpuset::CpuSet;
use crate::knob::{KnobId, Value, Version};
use crate::vendor::{BVT_OFFLINE, QOS_OFFLINE};

/// The mechanism that makes a group yield to online groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mechanism {
    /// `cpu.qos_level` = -1, on openEuler's kernel.
    QosLevel,
    /// The sched_ext scheduler: offline threads run only when no other thread wants the CPU, whatever group they are
    /// in. The inner mechanism makes them yield while no scheduler is loaded.
    SchedExt(Box<Mechanism>),
    /// Group Identity of Anolis and Alibaba kernels: `cpu.bvt_warp_ns` is -1 for offline groups and 2 for online
    /// groups. By itself Group Identity decides only which task runs after a wake-up. The kernel still compares the
    /// virtual run times of an offline and an online group, so the inner mechanism must make the offline group's weight
    /// small (docs/decisions/0069).
    GroupIdentity(Box<Mechanism>),
    /// `cpu.idle` = 1: the scheduler treats the group like a `SCHED_IDLE` task among its siblings.
    CpuIdle,
    /// The smallest weight (`cpu.weight` 1, `cpu.shares` 2). The text is the reason why no better mechanism is
    /// possible.
    MinWeight(String),
    /// No mechanism, because no cgroup can be written. The text is the reason.
    Nothing(String),
}

impl Mechanism {
    /// The knobs (kernel settings of a cgroup) that the mechanism writes, with their values; empty if the mechanism
    /// writes no knobs.
    #[must_use]
    pub fn settings(&self, version: Version) -> Vec<(KnobId, Value)> {
        match (self, version) {
            (Mechanism::QosLevel, _) => vec![(KnobId::CpuQosLevel, Value::Number(QOS_OFFLINE))],
            (Mechanism::SchedExt(underneath), version) => underneath.settings(version),
            (Mechanism::GroupIdentity(underneath), version) => {
                let mut settings = vec![(KnobId::CpuBvtWarpNs, Value::Number(BVT_OFFLINE))];
                settings.extend(underneath.settings(version));
                settings
            }
            (Mechanism::CpuIdle, _) => vec![(KnobId::CpuIdle, Value::Number(1))],
            (Mechanism::MinWeight(_), Version::V1) => vec![(KnobId::CpuWeight, Value::Number(2))],
            (Mechanism::MinWeight(_), Version::V2) => vec![(KnobId::CpuWeight, Value::Number(1))],
            (Mechanism::Nothing(_), _) => Vec::new(),
        }
    }

    /// The mechanism's name, as shown to users.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Mechanism::GroupIdentity(_) => "Group Identity",
            Mechanism::QosLevel => "cpu.qos_level",
            Mechanism::SchedExt(_) => SCHEDULER,
            Mechanism::CpuIdle => "cpu.idle",
            Mechanism::MinWeight(_) => "smallest weight",
            Mechanism::Nothing(_) => "none",
        }
    }

    /// The mechanism's name, followed by that of an inner mechanism: `sched_ext scheduler, cpu.idle underneath`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Mechanism::SchedExt(underneath) | Mechanism::GroupIdentity(underneath) => {
                match underneath.as_ref() {
                    Mechanism::Nothing(_) => format!("{}, nothing underneath", self.name()),
                    other => format!("{}, {} underneath", self.name(), other.name()),
                }
            }
            other => other.name().to_owned(),
        }
    }

    /// The mechanism that sets the weight: the inner mechanism of the sched_ext scheduler or of Group Identity,
    /// otherwise this mechanism.
    #[must_use]
    pub fn underneath(&self) -> &Mechanism {
        match self {
            Mechanism::SchedExt(underneath) | Mechanism::GroupIdentity(underneath) => underneath,
            other => other,
        }
    }
}

/// A rung of the ladder, which is the list of all mechanisms from best to worst: one mechanism, and whether it can be
/// used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// Name shown to users, as [`Mechanism::name`] returns it.
    pub name: &'static str,
    /// The knob that the mechanism writes; `None` for the sched_ext scheduler.
    pub knob: Option<KnobId>,
    /// Why the mechanism cannot be used here; `None` if it can.
    pub obstacle: Option<String>,
}

/// The ladder: all mechanisms, best first. The order comes from measurements of an offline and an online process that
/// ran on the same CPU and both used all the CPU time that they got (docs/decisions/0069). `identity` is the reason, if
/// any, why the current state of the machine rules out Group Identity.
#[must_use]
pub fn ladder(caps: &Capabilities, version: Version, identity: Option<&str>) -> Vec<Rung> {
    let knob = |name: &'static str, knob: KnobId| Rung {
        name,
        knob: Some(knob),
        obstacle: caps.obstacle(knob, version),
    };
    let mut ranked = knob("Group Identity", KnobId::CpuBvtWarpNs);
    ranked.obstacle = ranked.obstacle.or_else(|| identity.map(str::to_owned));
    // The obstacle is that the kernel cannot load a scheduler or, if it can, that none of commensal's is loaded.
    let sched_ext = caps.feature_obstacle(SCHED_EXT).or_else(|| caps.feature_obstacle(SCHEDULER));
    vec![
        knob("cpu.qos_level", KnobId::CpuQosLevel),
        Rung { name: SCHEDULER, knob: None, obstacle: sched_ext },
        ranked,
        knob("cpu.idle", KnobId::CpuIdle),
        knob("smallest weight", KnobId::CpuWeight),
    ]
}

/// The other program, if any, that writes the weight of the cgroup. While `cpu.idle` is 1, a write of the weight fails
/// with EINVAL, and the previous weight is lost (systemd 252 even clears `cpu.idle` to write the weight). So commensal
/// uses `cpu.idle` only where no other program writes the weight.
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

/// Returns the best mechanism for an offline group at `path` in a cpu hierarchy of `version`.
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
    // The level does not change the weight, so another writer of the weight does not matter.
    if obstacle(KnobId::CpuQosLevel).is_none() {
        return Mechanism::QosLevel;
    }
    let scheduled = rungs.iter().any(|rung| rung.name == SCHEDULER && rung.obstacle.is_none());
    let weighed = by_weight(path, takeover, &obstacle);
    match (scheduled, obstacle(KnobId::CpuBvtWarpNs)) {
        (true, _) => Mechanism::SchedExt(Box::new(weighed)),
        (false, None) => Mechanism::GroupIdentity(Box::new(weighed)),
        (false, Some(_)) => weighed,
    }
}

/// Returns the best mechanism that a mainline kernel has.
fn by_weight(path: &CgroupPath, takeover: bool, obstacle: &dyn Fn(KnobId) -> Option<String>) -> Mechanism {
    let writer = weight_writer(path).filter(|_| !takeover);
    let no_idle = match (writer, obstacle(KnobId::CpuIdle)) {
        (Some(writer), _) => {
            format!(
                "{writer} writes the weight here, and with cpu.idle its writes fail or clear cpu.idle; takeover = true uses cpu.idle nevertheless"
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

/// Scheduling policy for a process that commensal starts where it cannot write cgroups: the settings that an
/// unprivileged user may change for their own processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPolicy {
    /// Whether the process gets `SCHED_IDLE` and nice 19.
    pub idle: bool,
    /// CPUs that the process may use; `None` for all.
    pub cpus: Option<CpuSet>,
    /// Why the policy protects other work only weakly, as readable text; `None` if no policy is needed.
    pub weak: Option<String>,
}

/// Returns the policy for tasks of an offline group when commensal cannot write cgroups because of `obstacle`.
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
        let smallest = (KnobId::CpuWeight, Value::Number(2));
        assert_eq!(weight.settings(Version::V1), std::slice::from_ref(&smallest));
        // Group Identity shares a CPU evenly by itself, so the mechanism includes a weight.
        caps.knobs.insert((KnobId::CpuBvtWarpNs, Version::V1), Support::Yes);
        let ranked = best(&caps, Version::V1, &docker, false);
        assert_eq!(ranked.describe(), "Group Identity, smallest weight underneath");
        let rank = (KnobId::CpuBvtWarpNs, Value::Number(-1));
        assert_eq!(ranked.settings(Version::V1), [rank, smallest.clone()]);
        let refused =
            offline_mechanism(&caps, Version::V1, &docker, false, Some("core scheduling is in use"));
        assert_eq!(refused.settings(Version::V1), [smallest]);
        caps.knobs.insert((KnobId::CpuQosLevel, Version::V1), Support::Yes);
        assert_eq!(best(&caps, Version::V1, &docker, false), Mechanism::QosLevel);
        caps.knobs.clear();
        assert!(best(&caps, Version::V1, &own, false).settings(Version::V1).is_empty());
    }

    #[test]
    fn cpu_idle_is_underneath_group_identity_where_nobody_else_writes_the_weight() {
        let mut caps = Capabilities::everything();
        caps.knobs.insert((KnobId::CpuBvtWarpNs, Version::V1), Support::Yes);
        let best = |caps: &Capabilities, path: &str| {
            offline_mechanism(caps, Version::V1, &CgroupPath::new(path), false, None).describe()
        };
        assert_eq!(best(&caps, "/etl"), "Group Identity, cpu.idle underneath");
        assert_eq!(best(&caps, "/docker/x"), "Group Identity, smallest weight underneath");
        let no = || Support::No { because: "no file".to_owned() };
        for knob in [KnobId::CpuIdle, KnobId::CpuWeight] {
            caps.knobs.insert((knob, Version::V1), no());
        }
        assert_eq!(best(&caps, "/etl"), "Group Identity, nothing underneath");
    }

    #[test]
    fn the_ladder_says_why_not() {
        let rungs = ladder(&Capabilities::everything(), Version::V1, None);
        let names: Vec<_> = rungs.iter().map(|rung| rung.name).collect();
        assert_eq!(
            names,
            ["cpu.qos_level", "sched_ext scheduler", "Group Identity", "cpu.idle", "smallest weight"]
        );
        assert_eq!(rungs[2].obstacle.as_deref(), Some("this is not a kernel of Anolis/Alibaba"));
        assert!(rungs[1].obstacle.is_some() && rungs[3].obstacle.is_none());
    }

    #[test]
    fn the_scheduler_is_above_what_is_underneath() {
        let mut caps = Capabilities::everything();
        let best = |caps: &Capabilities, path: &str| {
            offline_mechanism(caps, Version::V2, &CgroupPath::new(path), false, None)
        };
        let obstacle = |caps: &Capabilities| ladder(caps, Version::V2, None)[1].obstacle.clone();
        let no = |because: &str| Support::No { because: because.to_owned() };
        caps.features.insert(SCHED_EXT, no("too old"));
        caps.features.insert(SCHEDULER, Support::Yes);
        assert_eq!((obstacle(&caps).as_deref(), best(&caps, "/etl")), (Some("too old"), Mechanism::CpuIdle));
        caps.features.insert(SCHED_EXT, Support::Yes);
        assert_eq!(obstacle(&caps), None);
        let etl = best(&caps, "/etl");
        assert_eq!(etl.describe(), "sched_ext scheduler, cpu.idle underneath");
        assert_eq!(etl.settings(Version::V2), Mechanism::CpuIdle.settings(Version::V2));
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
        // No cgroup can be written, but the sched_ext scheduler still schedules the threads.
        caps.knobs.clear();
        assert_eq!(best(&caps, "/etl").describe(), "sched_ext scheduler, nothing underneath");
    }
}
