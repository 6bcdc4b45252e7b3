//! What kept the targets from a CPU, in sentences: somebody else, or their own limit, and what to do about it.

use super::text::time;
use super::{GENERATOR, OWN_PEERS, Report, Row, UNNAMED};
use crate::figures::{ByKind, Figures, Kind};
use crate::surroundings::{Freeze, Limit, Surroundings};
use commensal_core::actual::CgroupPath;
use commensal_core::text::visible;
use commensal_sensors::freezer::Frozen;
use serde::Serialize;

/// Minimum share of the wait, or of the measurement, from which something is a cause.
const CAUSE: f64 = 0.1;
/// Minimum share of the measurement for which a CPU that the targets may not use must be idle.
const UNUSED: f64 = 0.5;
/// Minimum share of the measurement that the hypervisor must take.
const STOLEN: f64 = 0.01;
/// Part of the time that counts as all of it: looks are short, and not exact.
const ALL: f64 = 0.9;
const FROZEN: &str = "frozen";
const AFFINITY: &str = "affinity";
const OWN_LIMIT: &str = "own-limit";
const PARENT_LIMIT: &str = "parent-limit";
const LIMITS: [&str; 2] = [OWN_LIMIT, PARENT_LIMIT];
/// Largest number of causes.
const CAUSES: usize = 3;
const MS: f64 = 1e6;

/// Something that kept the targets from a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    /// `own-limit`, `parent-limit` (of a cgroup above the targets), `frozen`, `affinity`, `steal`, or a kind of culprit.
    pub cause: &'static str,
    /// How long it did (ms). A limit counts each CPU, and a wait each thread.
    pub ms: f64,
    /// What kept them, and for how long.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Cause {
    /// The cause as a line for people.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}; {}", self.what, self.advice)
    }
}

impl Report {
    /// Adds the causes. `figures` are those of the report, and `around` came in the same time.
    pub fn explain(&mut self, figures: &Figures, around: &Surroundings) {
        let (frozen, others): (Vec<Cause>, Vec<Cause>) =
            besides(figures, &figures.wait, around).into_iter().partition(|cause| cause.cause == FROZEN);
        // Whoever has the CPU while a limit keeps the targets from it does not keep them from it.
        let limits = others.iter().filter(|cause| LIMITS.contains(&cause.cause));
        let limited_ms = limits.map(|cause| cause.ms).fold(0.0, f64::max);
        let beyond = (self.wait_ms - limited_ms).max(0.0) / self.wait_ms.max(f64::MIN_POSITIVE);
        let culprits = self.culprits.iter().filter_map(behind);
        let mut causes: Vec<(f64, Cause)> = others.into_iter().map(|cause| (cause.ms, cause)).collect();
        causes.extend(culprits.map(|cause| (cause.ms * beyond, cause)));
        causes.retain(|(ms, cause)| *ms > 0.0 && (*ms >= CAUSE * self.wait_ms || cause.cause == AFFINITY));
        // Load that this program generates is no program that the service lives with, however long it takes.
        let rank = |cause: &Cause| cause.cause == GENERATOR;
        causes.sort_by(|(a_ms, a), (b_ms, b)| rank(a).cmp(&rank(b)).then(b_ms.total_cmp(a_ms)));
        causes.truncate(CAUSES);
        // A frozen thread waits for no CPU, so it has no place in this order.
        self.causes = frozen.into_iter().chain(causes.into_iter().map(|(_, cause)| cause)).collect();
    }
}

/// What kept a target from a CPU besides those who had the CPU meanwhile: limits, freezers, an affinity, and the
/// hypervisor. `figures` came in the same time as `around`, and `wait` is that of the target.
#[must_use]
pub fn besides(figures: &Figures, wait: &ByKind, around: &Surroundings) -> Vec<Cause> {
    let length_ms = figures.time_ns as f64 / MS;
    let mut causes: Vec<Cause> =
        around.limits.iter().map(|(path, limit)| throttled(path, limit, length_ms)).collect();
    causes.retain(|cause| cause.ms > 0.0);
    causes.extend(unused(figures, wait, around));
    let steal_ms = around.steal_us.unwrap_or(0) as f64 / 1e3;
    if steal_ms >= STOLEN * length_ms {
        causes.push(Cause {
            cause: "steal",
            ms: steal_ms,
            what: format!("the hypervisor took {} from the CPUs (steal)", time(steal_ms)),
            advice: "that time counts for whoever had the CPU; ask for CPUs that are not shared".to_owned(),
        });
    }
    causes.extend(around.frozen.iter().map(|(frozen, freeze)| is_frozen(frozen, *freeze, length_ms)));
    causes
}

fn is_frozen(frozen: &Frozen, freeze: Freeze, length_ms: f64) -> Cause {
    let ms = freeze.time.map_or(length_ms, |time| time.as_secs_f64() * 1e3);
    let whole = ms >= ALL * length_ms;
    let length = if whole { String::new() } else { format!(" for {ms:.0} ms of {length_ms:.0}") };
    let path = visible(frozen.path.as_str());
    let (what, advice) = match freeze.still {
        true => (
            format!("{path} is frozen{length}, so its threads neither run nor wait"),
            format!("write {} to its {}", frozen.thawed, frozen.file),
        ),
        false => (
            format!("{path} was frozen{length}, and its threads neither ran nor waited then"),
            format!("find out who writes its {}", frozen.file),
        ),
    };
    Cause { cause: FROZEN, ms, what, advice }
}

/// Whether CPUs were idle that a target may not use, while it waited for others.
fn unused(figures: &Figures, wait: &ByKind, around: &Surroundings) -> Option<Cause> {
    let allowed = &around.allowed;
    let waited = (wait.sum() - wait.of(Kind::Idle)) as f64 / MS;
    let idle = |cpu: u32| {
        let ns = figures.idle_ns.get(cpu as usize).copied().unwrap_or(0);
        ns as f64 / figures.time_ns.max(1) as f64
    };
    let all = 0..figures.idle_ns.len() as u32;
    let free = all
        .filter(|cpu| !allowed.contains(*cpu) && idle(*cpu) >= UNUSED)
        .max_by(|a, b| idle(*a).total_cmp(&idle(*b)))?;
    if allowed.is_empty() || waited < CAUSE * figures.time_ns as f64 / MS {
        return None;
    }
    Some(Cause {
        cause: AFFINITY,
        ms: waited.min(figures.idle_ns[free as usize] as f64 / MS),
        what: format!(
            "its threads may use CPU {allowed} only, and CPU {free} was idle for {:.0} % of the time",
            idle(free) * 100.0
        ),
        advice: "let them use it (taskset, cpuset.cpus)".to_owned(),
    })
}

/// A limit that throttled the target.
fn throttled(path: &CgroupPath, limit: &Limit, length_ms: f64) -> Cause {
    let ms = limit.cpu.throttled_us as f64 / 1e3;
    let (path, file) = (visible(path.as_str()), limit.cpu.file);
    let (cause, whose) = match limit.above {
        true => (PARENT_LIMIT, "the limit of a cgroup above it"),
        false => (OWN_LIMIT, "its own limit"),
    };
    Cause {
        cause,
        ms,
        what: format!(
            "{whose}: {ms:.0} ms of {length_ms:.0} were throttled by {file} of {path} ({} of {})",
            time(limit.cpu.quota_us as f64 / 1e3),
            time(limit.cpu.period_us as f64 / 1e3)
        ),
        advice: format!("raise {file}, or use fewer threads"),
    }
}

const HOLD_BACK: &str = "`commensal apply` or an agent holds offline groups back";
const LESS_OF_IT: &str =
    "it is held back: what is left are the moments until it leaves a CPU; a limit (cpu.max) lessens them";

/// Whether a cgroup is below commensal's own for offline work.
fn is_held_back(path: &str) -> bool {
    path.split('/').any(|name| name.starts_with("commensal-") && name.ends_with("-offline"))
}

/// The cause that a culprit is. A wait that ends by waking up an idle CPU has none, and the targets' own peers are one.
fn behind(row: &Row) -> Option<Cause> {
    let name = row.label();
    let of = |kind: Kind| row.kind == kind.name();
    let (what, advice) = if of(Kind::RealTime) {
        (
            format!("real-time tasks of {}", visible(&row.name)),
            "give them a normal policy (chrt -o 0 -p PID) or CPUs of their own".to_owned(),
        )
    } else if of(Kind::Offline) {
        (
            format!("offline work of {}", visible(&row.name)),
            if is_held_back(&row.name) { LESS_OF_IT } else { HOLD_BACK }.to_owned(),
        )
    } else if of(Kind::Online) {
        let who = if row.name == OWN_PEERS { "its own other threads".to_owned() } else { name };
        (who, "it needs more CPUs, or fewer threads".to_owned())
    } else if of(Kind::Kernel) {
        ("kernel threads".to_owned(), "they work for somebody: look at disks and network (top -H)".to_owned())
    } else if of(Kind::Interrupt) {
        (
            "interrupts and softirqs".to_owned(),
            "move them to other CPUs (/proc/irq/N/smp_affinity), or the service".to_owned(),
        )
    } else if of(Kind::Idle) {
        return None;
    } else if row.kind == GENERATOR {
        (name, "it is part of the measurement: start it on another machine, or on CPUs of its own".to_owned())
    } else {
        if row.name == UNNAMED {
            return Some(Cause {
                cause: "other",
                ms: row.ms,
                what: format!("behind {UNNAMED}: {}", time(row.ms)),
                advice: "a look of a second or two (--for 2s) keeps more of them apart".to_owned(),
            });
        }
        // A command with most of the time says more than a cgroup that is no service, such as the root.
        let mostly = row.commands.first().filter(|one| one.command.is_some() && one.ms > row.ms / 2.0);
        let mostly = mostly.map_or(String::new(), |one| format!(", mostly {}", one.label()));
        let advice = "put it in an offline group, or the waiting one in an online group";
        (name + &mostly, advice.to_owned())
    };
    let share = row.share * 100.0;
    let what = format!("behind {what}: {} ({share:.0} % of the wait)", time(row.ms));
    let cause = if of(Kind::Other) { "other" } else { row.kind };
    Some(Cause { cause, ms: row.ms, what, advice })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Culprit;
    use crate::{Bounds, Labels};
    use commensal_core::cpuset::CpuSet;
    use commensal_sensors::usage::CpuLimit;
    use std::time::Duration;

    /// A look of one second in which a thread waited for 800 ms, behind this kind of work.
    fn causes(kind: Kind, around: &Surroundings) -> Vec<Cause> {
        let mut wait = ByKind::default();
        wait.0[kind as usize] = 800_000_000;
        let mut figures = Figures { time_ns: 1_000_000_000, wait, ..Figures::default() };
        figures.idle_ns = vec![0, 900_000_000];
        figures.counters.run_ns = 1_000_000;
        if Kind::OF_CGROUPS.contains(&kind) {
            figures.culprits.insert(Culprit { subject: 0, kind, cgroup: Some(7) }, 800_000_000);
        }
        let mut report = Report::new(&figures, &Labels::default(), Bounds::default(), &|_| "/etl".to_owned());
        report.explain(&figures, around);
        let text = report.text();
        assert!(report.causes.iter().all(|cause| text.contains(&cause.text())), "{text}");
        report.causes
    }

    #[test]
    fn offline_work_below_commensals_cgroup_is_held_back() {
        for (path, held) in [
            ("/commensal-offline/backup", true),
            ("/a/commensal-two-offline", true),
            ("/", false),
            ("/etl", false),
            ("/commensal-online/web", false),
            ("/not-commensal-offline", false),
        ] {
            assert_eq!(is_held_back(path), held, "{path}");
        }
    }

    #[test]
    fn each_cause_has_a_name_and_an_advice() {
        let limited = |throttled_ms: u64, above: bool| {
            let cpu = CpuLimit {
                file: "cpu.max",
                quota_us: 20_000,
                period_us: 100_000,
                throttled_us: throttled_ms * 1_000,
            };
            let limits = [(CgroupPath::new("/web"), Limit { cpu, above })].into();
            Surroundings { limits, ..Surroundings::default() }
        };
        let none = Surroundings::default();
        let frozen = Frozen {
            mount: "/sys/fs/cgroup".to_owned(),
            path: CgroupPath::new("/web"),
            file: "cgroup.freeze",
            thawed: "0",
        };
        let freeze = |still: bool, ms: Option<u64>| {
            let freeze = Freeze { still, time: ms.map(Duration::from_millis) };
            Surroundings { frozen: [(frozen.clone(), freeze)].into(), ..none.clone() }
        };
        let both: CpuSet = "0-1".parse().unwrap();
        let one: CpuSet = "0".parse().unwrap();
        for (kind, around, wanted, words) in [
            (Kind::Other, none.clone(), "other", "behind /etl: 800.0 ms (100 % of the wait)"),
            (Kind::RealTime, none.clone(), "real-time", "behind real-time tasks of /etl: 800.0 ms"),
            (Kind::Offline, none.clone(), "offline", "offline work of /etl"),
            (Kind::Online, none.clone(), "peers", "its own other threads"),
            (Kind::Kernel, none.clone(), "kernel", "kernel threads"),
            (Kind::Interrupt, none.clone(), "interrupts", "interrupts and softirqs"),
            (Kind::Other, limited(79, false), "other", "behind /etl"),
            (
                Kind::Idle,
                limited(812, false),
                "own-limit",
                "its own limit: 812 ms of 1000 were throttled by cpu.max of /web (20.0 ms of 100.0 ms)",
            ),
            (Kind::Other, limited(812, false), "own-limit", "its own limit"),
            (Kind::Other, limited(420, false), "own-limit", "its own limit: 420 ms"),
            (Kind::Other, limited(380, false), "other", "behind /etl: 800.0 ms"),
            (
                Kind::Other,
                limited(812, true),
                "parent-limit",
                "the limit of a cgroup above it: 812 ms of 1000",
            ),
            (
                Kind::Other,
                freeze(true, None),
                "frozen",
                "/web is frozen, so its threads neither run nor wait; write 0 to its cgroup.freeze",
            ),
            (Kind::Other, freeze(true, Some(950)), "frozen", "/web is frozen, so"),
            (Kind::Other, freeze(true, Some(400)), "frozen", "/web is frozen for 400 ms of 1000, so"),
            (
                Kind::Other,
                freeze(false, Some(400)),
                "frozen",
                "/web was frozen for 400 ms of 1000, and its threads neither ran nor waited then; find out who writes its \
                 cgroup.freeze",
            ),
            (Kind::Other, freeze(false, None), "frozen", "/web was frozen, and"),
            (Kind::Other, Surroundings { steal_us: Some(900_000), ..none.clone() }, "steal", "took 900.0 ms"),
            (Kind::Other, Surroundings { allowed: both, ..none.clone() }, "other", "behind /etl"),
        ] {
            let causes = causes(kind, &around);
            assert_eq!(causes[0].cause, wanted, "{causes:?}");
            assert!(causes[0].text().contains(words), "{words}: {causes:?}");
        }
        let throttled = causes(Kind::Other, &limited(790, false));
        assert_eq!(throttled.len(), 1, "others had the CPU because of the limit: {throttled:?}");
        let pinned = causes(Kind::Other, &Surroundings { allowed: one, ..none.clone() });
        let affinity = pinned.iter().find(|cause| cause.cause == "affinity").unwrap();
        assert!(affinity.what.contains("may use CPU 0 only, and CPU 1 was idle for 90 %"), "{affinity:?}");
        assert!(causes(Kind::Idle, &none).is_empty(), "an idle CPU that wakes up");
    }
}
