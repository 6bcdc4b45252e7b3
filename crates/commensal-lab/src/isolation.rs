//! The isolation of an arm (a condition of a run): either the best mechanism that the machine has, or named mechanisms,
//! so that one run can compare several.
//!
//! A mechanism is a kernel feature that makes offline (batch) work yield to online (latency-critical) work, or limits
//! offline work. A class mechanism makes a whole cgroup yield, for example `cpu.idle`. To plan an arm with named
//! mechanisms, this module removes all other class mechanisms from the description of the machine's capabilities; the
//! planning code itself is unchanged.

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
    /// The control file `cpu.bvt_warp_ns`.
    GroupIdentity,
    /// The control file `cpu.qos_level`.
    QosLevel,
    /// The sched_ext scheduler that commensal loads.
    SchedExt,
    /// A third-party sched_ext scheduler, given as program and arguments. The program runs while the isolation is on.
    Scheduler(Vec<String>),
    /// The control file `cpu.idle`.
    CpuIdle,
    /// The smallest CPU weight.
    MinWeight,
    /// The scheduling policy `SCHED_IDLE` on the offline tasks.
    SchedIdle,
    /// Nice level 19 on the offline tasks.
    Nice,
    /// A fixed split of the CPUs: the last N cores for offline work, the others for online work; 0 means half of the
    /// cores.
    CpuSplit(usize),
    /// The moving frame: a changing set of whole cores for offline work, as many as online work leaves free.
    Frame,
    /// A CPU quota of the offline work.
    Quota(CpuAmount),
    /// A limit on the bytes per second that offline work reads from and writes to each disk.
    Disk(BytesPerS),
    /// Another limit of the offline group, given by its key in a groups file.
    Limit(String, LimitSet<Written>),
}

/// Returns the limits that an arm may set on offline work, by their keys in a groups file (commensal's configuration).
/// The limit `cpu.max` is [`NamedMechanism::Quota`] instead.
pub fn limits() -> impl Iterator<Item = &'static str> {
    limit::LIMITS.iter().filter(|row| row.holds_back_plainly()).map(|row| row.key)
}

/// The mechanism names that a list of arms may contain; error messages show this list.
const NAMES: &str = "best, bvt, qos_level, sched_ext, cpu.idle, weight, sched-idle, nice, cpuset, cpuset=CORES, frame, quota=20% (or cpu.max=20%), io=10MiB/s, memory.max=1GiB and other limits of a groups file, scheduler=PROGRAM";
/// Reason that plans give for mechanisms that this module removed because the arm does not name them.
pub const WITHOUT: &str = "this arm does not use it";
/// Default value of [`NamedMechanism::Quota`].
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
                _ => return Err(format!("cpuset={cores}: give a number of cores, 1 to 4096")),
            },
            ("io", Some(rate)) => {
                NamedMechanism::Disk(rate.parse().map_err(|why| format!("io={rate}: {why}"))?)
            }
            ("scheduler", Some(command)) => match command.split_whitespace().map(str::to_owned).collect() {
                words if Vec::is_empty(&words) => return Err("scheduler=: the program is missing".to_owned()),
                words => NamedMechanism::Scheduler(words),
            },
            ("cpu.max", Some(amount)) => NamedMechanism::Quota(quota(name, amount)?),
            (key, Some(value)) if limits().any(|known| known == key) => {
                NamedMechanism::Limit(key.to_owned(), limited(key, value)?)
            }
            ("quota", amount) => NamedMechanism::Quota(quota(name, amount.unwrap_or(QUOTA))?),
            _ => return Err(format!("no isolation mechanism is called {text:?}; the choices are {NAMES}")),
        };
        Ok(mechanism)
    }

    /// Returns the control file by which this mechanism makes a cgroup yield; `None` if the mechanism has no such file.
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

    /// Returns the name that plans use for this class mechanism; `None` if plans do not choose it as a class mechanism.
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

    /// Whether this is a class mechanism; an arm can name at most one.
    fn is_class(&self) -> bool {
        self.rung().is_some() || matches!(self, NamedMechanism::Scheduler(_))
    }
}

/// Parses a CPU amount as a groups file contains it: `20 %` (of the machine) or `1.5 cores`.
fn quota(name: &str, text: &str) -> Result<CpuAmount, String> {
    text.parse::<CpuAmount>().map_err(|why| format!("{name}={text}: {why}"))
}

/// Parses a limit of offline work as a groups file contains it.
fn limited(key: &str, value: &str) -> Result<LimitSet<Written>, String> {
    let value = value.trim();
    let quoted = match value.parse::<u64>() {
        Ok(number) => number.to_string(),
        // JSON and TOML escape strings in the same way.
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
        .ok_or_else(|| format!("{key}={value}: the value is missing"))
}

/// The isolation of one arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// Whether the arm uses the best mechanism that the machine has.
    pub best: bool,
    /// The named mechanisms, which the arm uses together.
    pub named: Vec<NamedMechanism>,
}

impl Default for Isolation {
    fn default() -> Isolation {
        Isolation { best: true, named: Vec::new() }
    }
}

impl Isolation {
    /// Parses the part of an arm's name after `isolated:`, such as `cpu.idle` or `cpu.idle+sched-idle`.
    ///
    /// # Errors
    /// A message with the invalid name or value, or with the class mechanisms if the text names several.
    pub fn parse(text: &str) -> Result<Isolation, String> {
        let parts = || text.split('+').map(str::trim);
        let best = parts().any(|part| part == "best");
        let named: Vec<NamedMechanism> =
            parts().filter(|part| *part != "best").map(NamedMechanism::parse).collect::<Result<_, _>>()?;
        let classes = named.iter().filter(|mechanism| mechanism.is_class()).count();
        if classes + usize::from(best) > 1 {
            return Err(format!(
                "{text}: only one mechanism can make a group yield; name one of best, bvt, qos_level, sched_ext, cpu.idle, weight, scheduler=PROGRAM"
            ));
        }
        Ok(Isolation { best, named })
    }

    /// Describes the named mechanisms as readable text.
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

    /// Returns why a run cannot switch the isolation on and off within milliseconds; `None` if a run can.
    #[must_use]
    pub fn carries_over(&self) -> Option<String> {
        self.named.iter().find_map(|mechanism| {
            let why = match mechanism {
                NamedMechanism::SchedIdle | NamedMechanism::Nice => {
                    "the run sets it when it starts the tasks"
                }
                NamedMechanism::Frame => "its controller takes seconds to adapt",
                NamedMechanism::Scheduler(_) => "loading a scheduler takes seconds",
                NamedMechanism::Disk(_) => {
                    "the page cache keeps data that was read and written before the switch"
                }
                NamedMechanism::Limit(..) => "the limited resource changes only slowly",
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

    /// Whether the isolation contains a CPU quota.
    #[must_use]
    pub fn has_quota(&self) -> bool {
        self.named.iter().any(|mechanism| matches!(mechanism, NamedMechanism::Quota(_)))
    }

    fn has(&self, mechanism: &NamedMechanism) -> bool {
        self.named.contains(mechanism)
    }

    /// Returns program and arguments of the third-party scheduler; `None` if the isolation has no such scheduler.
    #[must_use]
    pub fn scheduler(&self) -> Option<&[String]> {
        self.named.iter().find_map(|mechanism| match mechanism {
            NamedMechanism::Scheduler(command) => Some(command.as_slice()),
            _ => None,
        })
    }

    /// Whether the isolation starts offline tasks with `SCHED_IDLE`.
    #[must_use]
    pub fn idle_tasks(&self) -> bool {
        self.has(&NamedMechanism::SchedIdle)
    }

    /// Returns the nice level of offline tasks; `None` if the isolation does not change it.
    #[must_use]
    pub fn nice(&self) -> Option<i32> {
        self.has(&NamedMechanism::Nice).then_some(19)
    }

    /// Returns an isolation without any mechanism, for arms without isolation.
    #[must_use]
    pub fn none() -> Isolation {
        Isolation { best: false, named: Vec::new() }
    }

    /// Gives every group a cpuset of all CPUs, if this isolation restricts CPU sets. [`Isolation::limit`] can then
    /// change the set later: a cgroup v1 cpuset accepts no tasks while its `cpuset.cpus` is empty.
    pub fn make_room(&self, specs: &mut [GroupSpec], machine: &Machine) {
        let splits = self
            .named
            .iter()
            .any(|mechanism| matches!(mechanism, NamedMechanism::CpuSplit(_) | NamedMechanism::Frame));
        for spec in specs.iter_mut().filter(|_| splits) {
            spec.limits.set(CPU_SET, machine.topology.all());
        }
    }

    /// Adds this isolation's limits to the specifications of the groups.
    pub fn limit(&self, specs: &mut [GroupSpec], machine: &Machine) {
        for mechanism in &self.named {
            let split = match mechanism {
                NamedMechanism::CpuSplit(cores) => split(machine, *cores),
                // At the start, the frame has its minimum size, and online work may use all CPUs.
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

    /// Returns the machine's capabilities, reduced to the capabilities that the plan of this arm may use.
    #[must_use]
    pub fn restrict(&self, caps: &Capabilities) -> Capabilities {
        let mut caps = caps.clone();
        if self.best {
            return caps;
        }
        let mut wanted: Vec<KnobId> =
            self.named.iter().filter_map(|mechanism| mechanism.class_knob()).collect();
        // Group Identity also needs a small weight. With the sched_ext scheduler, `cpu.idle` and the weight take effect
        // only after the scheduler is unloaded; they do not affect threads that the scheduler runs.
        if self.has_scheduler() || self.has(&NamedMechanism::GroupIdentity) {
            wanted.extend([KnobId::CpuIdle, KnobId::CpuWeight]);
        }
        let classes = [KnobId::CpuBvtWarpNs, KnobId::CpuQosLevel, KnobId::CpuIdle, KnobId::CpuWeight];
        for knob in classes.into_iter().filter(|knob| !wanted.contains(knob)) {
            // Every class mechanism also raises the weight of online groups over that of other programs, so the weight
            // stays available.
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

    /// Whether the plan may use commensal's sched_ext scheduler.
    #[must_use]
    pub fn has_scheduler(&self) -> bool {
        self.best || self.has(&NamedMechanism::SchedExt)
    }

    /// Returns why this machine cannot run this arm; `None` if it can. `caps` are the machine's capabilities, `plan` is
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
                    return Some(why.unwrap_or_else(|| {
                        format!("the plan uses another mechanism than {rung} on this machine")
                    }));
                }
            }
            let key = match mechanism {
                NamedMechanism::CpuSplit(cores) if split(machine, *cores).is_none() => {
                    return Some(format!(
                        "this machine has {} cores, which are too few to split",
                        machine.topology.cores()
                    ));
                }
                NamedMechanism::Frame if split(machine, 1).is_none() => {
                    return Some(
                        "this machine has one core, and a frame leaves at least one core to other work"
                            .to_owned(),
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

/// Splits the CPUs into an online and an offline part, in this order. The last `cores` cores are offline (0: half of
/// the cores). Returns `None` if one part would be empty.
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

    // promise 37
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
