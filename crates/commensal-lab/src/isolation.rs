//! The isolation of an arm: the best available mechanism, or named mechanisms, so that they can be ranked side by side.
//!
//! A named arm is planned as if the machine had no other mechanism: the others are removed from its capabilities before
//! the plan is made, so everything else works as in any plan.

use commensal_core::actual::{Capabilities, SCHEDULER, Support};
use commensal_core::class::{Mechanism, ladder};
use commensal_core::config;
use commensal_core::control::frame::least;
use commensal_core::cpuset::CpuSet;
use commensal_core::group::{Class, GroupSpec};
use commensal_core::knob::{KnobId, Version};
use commensal_core::limit::{self, CPU_MAX, CPU_SET, IO_READ, IO_WRITE, LimitSet, Written};
use commensal_core::plan::Plan;
use commensal_core::topology::Machine;
use commensal_core::units::{BytesPerS, CpuAmount};

/// One named mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedMechanism {
    /// `cpu.bvt_warp_ns`.
    GroupIdentity,
    /// `cpu.qos_level`.
    QosLevel,
    /// The scheduler that commensal loads.
    SchedExt,
    /// A third-party sched_ext scheduler: its program and arguments. It runs while the arm's policy is on.
    Scheduler(Vec<String>),
    /// `cpu.idle`.
    CpuIdle,
    /// The smallest weight.
    MinWeight,
    /// `SCHED_IDLE` on the tasks.
    SchedIdle,
    /// nice 19 on the tasks.
    Nice,
    /// Offline work on this many of the machine's last cores, online work on the others; half of them when 0.
    CpuSplit(usize),
    /// The moving frame: offline work gets as many whole cores as online work leaves free.
    Frame,
    /// A CPU quota.
    Quota(CpuAmount),
    /// A limit on what offline work reads from and writes to each disk.
    Disk(BytesPerS),
    /// Another limit of the offline group, by its key in a groups file.
    Limit(String, LimitSet<Written>),
}

/// Limits of the offline group that an arm may have, by their keys in a groups file. (`cpu.max` is the quota.)
pub fn limits() -> impl Iterator<Item = &'static str> {
    limit::LIMITS.iter().filter(|row| row.holds_back_plainly()).map(|row| row.key)
}

/// The names allowed in an experiment's list of arms.
const NAMES: &str = "best, bvt, qos_level, sched_ext, cpu.idle, weight, sched-idle, nice, cpuset, cpuset=CORES, frame, quota=20% (or cpu.max=20%), io=10MiB/s, memory.max=1GiB and other limits of a groups file, scheduler=PROGRAM";
/// Reason stated when a named arm lacks the other mechanisms.
pub const WITHOUT: &str = "this arm does without";
/// Default amount of [`NamedMechanism::Quota`].
const QUOTA: &str = "20 %";

impl NamedMechanism {
    fn parse(text: &str) -> Result<NamedMechanism, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let mechanism = match (name, value) {
            ("bvt", None) => NamedMechanism::GroupIdentity,
            ("qos_level", None) => NamedMechanism::QosLevel,
            ("sched_ext", None) => NamedMechanism::SchedExt,
            ("cpu.idle", None) => NamedMechanism::CpuIdle,
            ("weight", None) => NamedMechanism::MinWeight,
            ("sched-idle", None) => NamedMechanism::SchedIdle,
            ("nice", None) => NamedMechanism::Nice,
            ("frame", None) => NamedMechanism::Frame,
            ("cpuset", None) => NamedMechanism::CpuSplit(0),
            ("cpuset", Some(cores)) => match cores.parse() {
                Ok(cores @ 1..=4096) => NamedMechanism::CpuSplit(cores),
                _ => return Err(format!("cpuset={cores}: a number of cores from 1 is needed")),
            },
            ("io", Some(rate)) => {
                NamedMechanism::Disk(rate.parse().map_err(|why| format!("io={rate}: {why}"))?)
            }
            ("scheduler", Some(command)) => match command.split_whitespace().map(str::to_owned).collect() {
                words if Vec::is_empty(&words) => return Err("scheduler=: a program is needed".to_owned()),
                words => NamedMechanism::Scheduler(words),
            },
            ("cpu.max", Some(amount)) => NamedMechanism::Quota(quota(name, amount)?),
            (key, Some(value)) if limits().any(|known| known == key) => {
                NamedMechanism::Limit(key.to_owned(), limited(key, value)?)
            }
            ("quota", amount) => NamedMechanism::Quota(quota(name, amount.unwrap_or(QUOTA))?),
            _ => return Err(format!("no mechanism of isolation is called {text:?}; there are {NAMES}")),
        };
        Ok(mechanism)
    }

    /// The knob that makes groups yield, if the mechanism is one.
    fn class_knob(&self) -> Option<KnobId> {
        match self {
            NamedMechanism::GroupIdentity => Some(KnobId::CpuBvtWarpNs),
            NamedMechanism::QosLevel => Some(KnobId::CpuQosLevel),
            NamedMechanism::CpuIdle => Some(KnobId::CpuIdle),
            NamedMechanism::MinWeight => Some(KnobId::CpuWeight),
            NamedMechanism::SchedExt
            | NamedMechanism::Scheduler(_)
            | NamedMechanism::SchedIdle
            | NamedMechanism::Nice
            | NamedMechanism::CpuSplit(_)
            | NamedMechanism::Frame
            | NamedMechanism::Quota(_)
            | NamedMechanism::Limit(..)
            | NamedMechanism::Disk(_) => None,
        }
    }

    /// Name of the mechanism in the ranking of class mechanisms.
    fn rung(&self) -> Option<&'static str> {
        match self {
            NamedMechanism::GroupIdentity => Some("Group Identity"),
            NamedMechanism::QosLevel => Some("cpu.qos_level"),
            NamedMechanism::SchedExt => Some(SCHEDULER),
            NamedMechanism::CpuIdle => Some("cpu.idle"),
            NamedMechanism::MinWeight => Some("smallest weight"),
            NamedMechanism::Scheduler(_)
            | NamedMechanism::SchedIdle
            | NamedMechanism::Nice
            | NamedMechanism::CpuSplit(_)
            | NamedMechanism::Frame
            | NamedMechanism::Quota(_)
            | NamedMechanism::Limit(..)
            | NamedMechanism::Disk(_) => None,
        }
    }

    /// Whether it is a class mechanism, of which only one can be used at a time.
    fn is_class(&self) -> bool {
        self.rung().is_some() || matches!(self, NamedMechanism::Scheduler(_))
    }
}

/// Parses an amount as in a groups file: `20 %` of the machine, `1.5 cores`.
fn quota(name: &str, text: &str) -> Result<CpuAmount, String> {
    text.parse::<CpuAmount>().map_err(|why| format!("{name}={text}: {why}"))
}

/// Parses a limit of an offline group as in a groups file.
fn limited(key: &str, value: &str) -> Result<LimitSet<Written>, String> {
    let value = value.trim();
    let quoted = match value.parse::<u64>() {
        Ok(number) => number.to_string(),
        // JSON escapes strings like TOML.
        Err(_) => serde_json::Value::String(value.to_owned()).to_string(),
    };
    let text = format!("[group.batch]\nclass = \"offline\"\n{key} = {quoted}\n");
    let groups = config::parse("arm", &text).map_err(|errors| {
        let words: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        format!("{key}={value}: {}", words.join("; "))
    })?;
    groups
        .into_iter()
        .next()
        .map(|group| group.limits)
        .ok_or_else(|| format!("{key}={value}: a value is needed"))
}

/// The isolation of one arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// Whether the plan uses the best available mechanism.
    pub best: bool,
    /// The named mechanisms, which are used together.
    pub named: Vec<NamedMechanism>,
}

impl Default for Isolation {
    fn default() -> Isolation {
        Isolation { best: true, named: Vec::new() }
    }
}

impl Isolation {
    /// Parses the part after `isolated:`, such as `cpu.idle` or `cpu.idle+sched-idle`.
    ///
    /// # Errors
    /// A sentence with the unknown name and the allowed ones.
    pub fn parse(text: &str) -> Result<Isolation, String> {
        let parts = || text.split('+').map(str::trim);
        let best = parts().any(|part| part == "best");
        let named: Vec<NamedMechanism> =
            parts().filter(|part| *part != "best").map(NamedMechanism::parse).collect::<Result<_, _>>()?;
        let classes = named.iter().filter(|mechanism| mechanism.is_class()).count();
        if classes + usize::from(best) > 1 {
            return Err(format!(
                "{text}: a group yields by one mechanism; name one of best, bvt, qos_level, sched_ext, cpu.idle, weight, scheduler=PROGRAM"
            ));
        }
        Ok(Isolation { best, named })
    }

    /// Description in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let word = |mechanism: &NamedMechanism| match mechanism {
            NamedMechanism::SchedIdle => "SCHED_IDLE on tasks".to_owned(),
            NamedMechanism::Nice => "nice 19 on tasks".to_owned(),
            NamedMechanism::CpuSplit(_) => "cpuset split".to_owned(),
            NamedMechanism::Frame => "moving big frame".to_owned(),
            NamedMechanism::Scheduler(command) => format!("scheduler {}", command.join(" ")),
            NamedMechanism::Quota(amount) => format!("quota of {amount}"),
            NamedMechanism::Disk(rate) => format!("{rate} from and to disk"),
            NamedMechanism::Limit(key, _) => format!("a limit of {key}"),
            other => other.rung().unwrap_or_default().to_owned(),
        };
        self.named.iter().map(word).collect::<Vec<_>>().join(" + ")
    }

    /// Why the isolation cannot be switched on and off within milliseconds; `None` when it can.
    #[must_use]
    pub fn carries_over(&self) -> Option<String> {
        self.named.iter().find_map(|mechanism| {
            let why = match mechanism {
                NamedMechanism::SchedIdle | NamedMechanism::Nice => "tasks have it from their start",
                NamedMechanism::Frame => "its controller takes seconds to find its place",
                NamedMechanism::Scheduler(_) => "a scheduler takes seconds to be loaded",
                NamedMechanism::Disk(_) => "the page cache remembers what was read and written",
                NamedMechanism::Limit(..) => "what it limits changes slowly",
                NamedMechanism::GroupIdentity
                | NamedMechanism::QosLevel
                | NamedMechanism::SchedExt
                | NamedMechanism::CpuIdle
                | NamedMechanism::MinWeight
                | NamedMechanism::CpuSplit(_)
                | NamedMechanism::Quota(_) => return None,
            };
            let only = Isolation { best: false, named: vec![mechanism.clone()] };
            Some(format!("{} cannot be switched on and off for short windows: {why}", only.describe()))
        })
    }

    /// Whether it has a quota.
    #[must_use]
    pub fn has_quota(&self) -> bool {
        self.named.iter().any(|mechanism| matches!(mechanism, NamedMechanism::Quota(_)))
    }

    fn has(&self, mechanism: &NamedMechanism) -> bool {
        self.named.contains(mechanism)
    }

    /// Program and arguments of a third-party scheduler.
    #[must_use]
    pub fn scheduler(&self) -> Option<&[String]> {
        self.named.iter().find_map(|mechanism| match mechanism {
            NamedMechanism::Scheduler(command) => Some(command.as_slice()),
            _ => None,
        })
    }

    /// Whether offline tasks are `SCHED_IDLE`.
    #[must_use]
    pub fn idle_tasks(&self) -> bool {
        self.has(&NamedMechanism::SchedIdle)
    }

    /// The nice level of offline tasks.
    #[must_use]
    pub fn nice(&self) -> Option<i32> {
        self.has(&NamedMechanism::Nice).then_some(19)
    }

    /// No mechanism at all: the state while no policy is on.
    #[must_use]
    pub fn none() -> Isolation {
        Isolation { best: false, named: Vec::new() }
    }

    /// Prepares the specs of the groups so that [`Isolation::limit`] can be switched on and off: in cgroup v1 a cpuset
    /// accepts no task before it has CPUs.
    pub fn make_room(&self, specs: &mut [GroupSpec], machine: &Machine) {
        let splits = self
            .named
            .iter()
            .any(|mechanism| matches!(mechanism, NamedMechanism::CpuSplit(_) | NamedMechanism::Frame));
        for spec in specs.iter_mut().filter(|_| splits) {
            spec.limits.set(CPU_SET, machine.topology.all());
        }
    }

    /// Adds this isolation's limits to the specs of the groups.
    pub fn limit(&self, specs: &mut [GroupSpec], machine: &Machine) {
        for mechanism in &self.named {
            let split = match mechanism {
                NamedMechanism::CpuSplit(cores) => split(machine, *cores),
                // The frame starts at its minimum, and online work may run everywhere.
                NamedMechanism::Frame => split(machine, 1).and_then(|_| {
                    let all = machine.topology.all();
                    Some((all.clone(), least(&machine.topology, &all)?))
                }),
                NamedMechanism::Quota(amount) => {
                    specs
                        .iter_mut()
                        .filter(|spec| spec.class == Class::Offline)
                        .for_each(|spec| spec.limits.set(CPU_MAX, *amount));
                    continue;
                }
                NamedMechanism::Limit(_, limits) => {
                    let offline = specs.iter_mut().filter(|spec| spec.class == Class::Offline);
                    offline.for_each(|spec| spec.limits.extend(limits.clone()));
                    continue;
                }
                NamedMechanism::Disk(rate) => {
                    specs.iter_mut().filter(|spec| spec.class == Class::Offline).for_each(|spec| {
                        spec.limits.set(IO_READ, *rate);
                        spec.limits.set(IO_WRITE, *rate);
                    });
                    continue;
                }
                _ => continue,
            };
            let Some((online, offline)) = split else { continue };
            for spec in specs.iter_mut() {
                let set = if spec.class == Class::Online { online.clone() } else { offline.clone() };
                spec.limits.set(CPU_SET, set);
            }
        }
    }

    /// The capabilities that the plan of this arm may use.
    #[must_use]
    pub fn restrict(&self, caps: &Capabilities) -> Capabilities {
        let mut caps = caps.clone();
        if self.best {
            return caps;
        }
        let mut wanted: Vec<KnobId> =
            self.named.iter().filter_map(|mechanism| mechanism.class_knob()).collect();
        if self.has_scheduler() {
            // What lies beneath the scheduler applies when it is gone, and has no effect on its threads.
            wanted.extend([KnobId::CpuIdle, KnobId::CpuWeight]);
        }
        let classes = [KnobId::CpuBvtWarpNs, KnobId::CpuQosLevel, KnobId::CpuIdle, KnobId::CpuWeight];
        for knob in classes.into_iter().filter(|knob| !wanted.contains(knob)) {
            // The class also gives online work weight over third parties, with every mechanism that makes groups yield.
            if knob == KnobId::CpuWeight && !wanted.is_empty() {
                continue;
            }
            for version in [Version::V1, Version::V2] {
                let because = WITHOUT.to_owned();
                caps.knobs.insert((knob, version), Support::No { because });
            }
        }
        if !self.has_scheduler() {
            caps.features.insert(SCHEDULER, Support::No { because: WITHOUT.to_owned() });
        }
        caps
    }

    /// Whether groups may yield by the scheduler.
    #[must_use]
    pub fn has_scheduler(&self) -> bool {
        self.best || self.has(&NamedMechanism::SchedExt)
    }

    /// Why this arm is impossible here; `None` when it is possible. `caps` are the machine's capabilities, `plan` is
    /// the arm's plan.
    #[must_use]
    pub fn obstacle(
        &self,
        caps: &Capabilities,
        version: Version,
        plan: &Plan,
        machine: &Machine,
    ) -> Option<String> {
        for mechanism in &self.named {
            if let Some(rung) = mechanism.rung() {
                let found = plan.mechanisms.values().any(|mechanism: &Mechanism| mechanism.name() == rung);
                let rungs = ladder(caps, version, None);
                let known = rungs.iter().find(|one| one.name == rung).and_then(|one| one.obstacle.clone());
                if !found {
                    let unmet = plan.unmet.iter().find(|unmet| unmet.what.starts_with("class offline"));
                    let why = known.or_else(|| unmet.map(|unmet| unmet.because.clone()));
                    return Some(why.unwrap_or_else(|| format!("{rung} is not what the plan takes here")));
                }
            }
            let key = match mechanism {
                NamedMechanism::CpuSplit(cores) if split(machine, *cores).is_none() => {
                    return Some(format!(
                        "this machine has {} cores, too few to split",
                        machine.topology.cores()
                    ));
                }
                NamedMechanism::Frame if split(machine, 1).is_none() => {
                    return Some(
                        "this machine has one core, which is the least that a frame leaves".to_owned(),
                    );
                }
                NamedMechanism::CpuSplit(_) | NamedMechanism::Frame => "cpu.set",
                NamedMechanism::Quota(_) => "cpu.max",
                NamedMechanism::Disk(_) => "io.",
                NamedMechanism::Limit(key, _) if key.starts_with("io.") => "io.",
                NamedMechanism::Limit(key, _) => key,
                _ => continue,
            };
            if let Some(unmet) = plan.unmet.iter().find(|unmet| unmet.what.starts_with(key)) {
                return Some(unmet.because.clone());
            }
        }
        None
    }
}

/// Splits the CPUs into an online and an offline part: the last cores are offline. `None` where one part would be
/// empty.
fn split(machine: &Machine, cores: usize) -> Option<(CpuSet, CpuSet)> {
    let mut by_core: Vec<CpuSet> = Vec::new();
    let topology = &machine.topology;
    for cpu in &topology.cpus {
        if !by_core.contains(&cpu.siblings) {
            by_core.push(cpu.siblings.clone());
        }
    }
    let offline = if cores == 0 { by_core.len() / 2 } else { cores };
    if offline == 0 || offline >= by_core.len() {
        return None;
    }
    let rest = by_core.len() - offline;
    let all = |sets: &[CpuSet]| sets.iter().fold(CpuSet::new(), |all, one| all.union(one));
    Some((all(&by_core[..rest]), all(&by_core[rest..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::units::Bytes;

    #[test]
    fn names_are_mechanisms() {
        let parse = |text| Isolation::parse(text).map(|isolation| isolation.named);
        assert_eq!(Isolation::parse("best"), Ok(Isolation::default()));
        assert!(
            Isolation::parse("best+quota=80%")
                .is_ok_and(|isolation| isolation.best && isolation.named.len() == 1)
        );
        assert_eq!(parse("cpu.idle"), Ok(vec![NamedMechanism::CpuIdle]));
        assert_eq!(
            parse("cpu.idle+sched-idle"),
            Ok(vec![NamedMechanism::CpuIdle, NamedMechanism::SchedIdle])
        );
        assert_eq!(parse("cpuset=3"), Ok(vec![NamedMechanism::CpuSplit(3)]));
        assert_eq!(parse("cpu.idle+frame"), Ok(vec![NamedMechanism::CpuIdle, NamedMechanism::Frame]));
        assert_eq!(parse("quota"), parse("quota=20%"));
        assert!(Isolation::parse("quota=1.5 cores").is_ok());
        assert_eq!(parse("cpu.max=20%"), parse("quota"));
        for limit in [
            "memory.max=1GiB",
            "memory.high=10%",
            "io.read=10 MiB/s",
            "io.write-iops=100 iops",
            "pids.max=50",
        ] {
            assert!(
                matches!(parse(limit).as_deref(), Ok([NamedMechanism::Limit(..)])),
                "{limit}: {:?}",
                parse(limit)
            );
        }
        let other = Isolation::parse("scheduler=scx_layered  --run-example+quota=80%").unwrap();
        assert_eq!(other.scheduler().unwrap(), ["scx_layered", "--run-example"]);
        assert_eq!(other.describe(), "scheduler scx_layered --run-example + quota of 80 % of the machine");
        assert!(!other.has_scheduler() && Isolation::parse("sched_ext").unwrap().has_scheduler());
        assert!(Isolation::default().has_scheduler() && !Isolation::none().has_scheduler());
        for wrong in [
            "",
            "idle",
            "cpuset=0",
            "cpuset=x",
            "quota=",
            "quota=-1%",
            "cpu.idle+weight",
            "best+weight",
            "nice=5",
            "cpu.idle+",
            "memory.max=much",
            "memory.max",
            "pids.max=0",
            "memory.max=\"1GiB\"\nclass = 1",
            "scheduler",
            "scheduler= ",
            "scheduler=scx_simple+cpu.idle",
            "scheduler=scx_simple+sched_ext",
            "best+scheduler=scx_simple",
        ] {
            assert!(Isolation::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Isolation::parse("idle").unwrap_err().contains("cpu.idle, weight"));
    }

    #[test]
    fn cores_are_split_whole() {
        let machine = Machine::simple(4, Bytes(1 << 30));
        let (online, offline) = split(&machine, 0).unwrap();
        assert_eq!((online.to_string().as_str(), offline.to_string().as_str()), ("0-1", "2-3"));
        let (online, offline) = split(&machine, 1).unwrap();
        assert_eq!((online.len(), offline.to_string().as_str()), (3, "3"));
        assert_eq!(split(&machine, 4), None);
        assert_eq!(split(&Machine::simple(1, Bytes(1 << 30)), 0), None);
    }

    // promise 46
    #[test]
    fn other_mechanisms_are_taken_off_the_machine() {
        let caps = Capabilities::everything();
        let other = Isolation::parse("scheduler=scx_simple").unwrap().restrict(&caps);
        for knob in [KnobId::CpuIdle, KnobId::CpuWeight] {
            assert!(other.obstacle(knob, Version::V2).is_some());
        }
        let weight = Isolation::parse("weight").unwrap().restrict(&caps);
        assert!(weight.obstacle(KnobId::CpuIdle, Version::V1).is_some());
        assert!(weight.obstacle(KnobId::CpuWeight, Version::V1).is_none());
        let nice = Isolation::parse("nice").unwrap().restrict(&caps);
        assert!(nice.obstacle(KnobId::CpuWeight, Version::V2).is_some());
        let idle = Isolation::parse("cpu.idle").unwrap().restrict(&caps);
        assert!(idle.obstacle(KnobId::CpuIdle, Version::V1).is_none());
        assert!(idle.obstacle(KnobId::CpuWeight, Version::V1).is_none());
    }
}
