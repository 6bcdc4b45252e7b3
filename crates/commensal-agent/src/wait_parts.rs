//! The parts of each online group's waits, summed since the agent started: who had the CPU meanwhile, and what else kept
//! the group's threads from one.

use crate::snapshot::{HeldBack, WaitPart};
use commensal_blame::report::besides;
use commensal_blame::{Figures, Kind, Surroundings};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_host::{Host, below};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Minimum time over which rates are averaged (ms). An alarm starts ticks that are shorter.
const LEAST_MS: u64 = 500;
/// Minimum time between two readings of what the probe does not see (ms).
const AROUND_MS: u64 = 10_000;
/// These readings use at most this fraction (1 in 5,000) of a CPU.
const SHARE: u32 = 5_000;
/// Number of processes of a group whose freezer and affinity are read.
const PROCESSES: usize = 4;

/// The names of the probe's targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The online groups, with their cgroups.
    pub online: Vec<(String, BTreeSet<CgroupPath>)>,
    /// The offline groups.
    pub offline: Vec<String>,
}

impl Names {
    /// Whether targets have the same indices as `other`.
    fn is_like(&self, other: &Names) -> bool {
        let groups = |names: &Names| names.online.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        self.offline == other.offline && groups(self) == groups(other)
    }
}

/// A kind of work, and the group whose work it is.
type Part = (Kind, Option<String>);

/// Sums of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sums {
    run_ns: u64,
    /// Time waited, by part (ns).
    parts: BTreeMap<Part, u64>,
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.run_ns += other.run_ns;
        for (part, ns) in &other.parts {
            *self.parts.entry(part.clone()).or_default() += ns;
        }
    }
}

/// What a snapshot shows of one group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShownWaits {
    /// Wait for offline work per second of the group's CPU time (ms).
    pub blamed_ms_per_cpu_s: Option<f64>,
    /// The parts of the waits, largest first.
    pub parts: Vec<WaitPart>,
}

/// The parts of the waits of all online groups.
#[derive(Debug, Default)]
pub struct WaitParts {
    names: Names,
    /// The probe's figures when its targets got these names.
    start: Figures,
    /// The probe's last figures.
    last: Figures,
    /// Sums of earlier probes, and of targets with other names.
    ended: BTreeMap<String, Sums>,
    /// The sums with which the rates of `shown` begin, and their time (ms).
    since: Option<(u64, BTreeMap<String, Sums>)>,
    shown: BTreeMap<String, ShownWaits>,
    around: Around,
}

impl WaitParts {
    /// Gives the probe's targets these names, from its figures `start` on.
    pub fn begin(&mut self, names: &Names, start: Figures) {
        self.last.clone_from(&start);
        self.ended = self.sums();
        if !self.names.is_like(names) {
            self.around.before = None;
        }
        self.names.clone_from(names);
        self.start = start;
    }

    /// Ends with a probe that is gone: nothing is known about the time until the next one begins.
    pub fn end(&mut self) {
        self.ended = self.sums();
        (self.start, self.last) = (Figures::default(), Figures::default());
        (self.since, self.around.before) = (None, None);
        self.shown.clear();
    }

    /// Updates the sums and rates with the probe's latest figures.
    pub fn take_in(&mut self, now_ms: u64, figures: &Figures) {
        self.last.clone_from(figures);
        let sums = self.sums();
        let Some((then_ms, then)) = &self.since else {
            self.since = Some((now_ms, sums));
            return;
        };
        let ms = now_ms.saturating_sub(*then_ms);
        if ms < LEAST_MS {
            return;
        }
        let none = Sums::default();
        let shown = sums
            .iter()
            .map(|(name, now)| (name.clone(), shown(now, then.get(name).unwrap_or(&none), ms as f64 / 1e3)));
        self.shown = shown.collect();
        self.since = Some((now_ms, sums));
    }

    /// Reads what the probe does not see, if it is time to. `figures` are those that were last taken in.
    pub fn look_around(&mut self, host: &mut dyn Host, now_ms: u64, hierarchies: &[Hierarchy]) {
        self.around.look(host, now_ms, hierarchies, &self.names, &self.last);
    }

    /// The parts of a group's waits; `None` if it is not known who had the CPU.
    pub fn shown(&self, group: &str) -> Option<&ShownWaits> {
        self.shown.get(group)
    }

    /// What else held a group back.
    pub fn held_back(&self, group: &str) -> Vec<HeldBack> {
        let told = self.around.told.get(group);
        let sums = self.around.sums.get(group).into_iter().flatten();
        let one = |(kind, ms): (&&'static str, &f64)| HeldBack {
            kind: (*kind).to_owned(),
            total_s: ms / 1e3,
            now: told.and_then(|told| told.get(kind)).cloned(),
        };
        sums.map(one).collect()
    }

    /// Sums by group since the agent started.
    fn sums(&self) -> BTreeMap<String, Sums> {
        let came = self.last.since(&self.start);
        let mut sums = self.ended.clone();
        for (index, (name, _)) in self.names.online.iter().enumerate() {
            let Some(subject) = came.subjects.get(index) else { continue };
            let mut own = Sums { run_ns: subject.run_ns, ..Sums::default() };
            let without_group = Kind::ALL.into_iter().filter(|kind| !Kind::OF_CGROUPS.contains(kind));
            own.parts.extend(without_group.map(|kind| ((kind, None), subject.wait.of(kind))));
            sums.entry(name.clone()).or_default().add(&own);
        }
        for (culprit, ns) in &came.culprits {
            let Some((name, _)) = self.names.online.get(culprit.subject as usize) else { continue };
            let index = culprit.cgroup.and_then(|index| usize::try_from(index).ok());
            let group = match culprit.kind {
                Kind::Online => index.and_then(|index| self.names.online.get(index)).map(|(name, _)| name),
                Kind::Offline => index.and_then(|index| self.names.offline.get(index)),
                _ => None,
            };
            let part = (culprit.kind, group.cloned());
            *sums.entry(name.clone()).or_default().parts.entry(part).or_default() += ns;
        }
        sums
    }
}

/// The rates from `then` to `now`, `seconds` apart.
fn shown(now: &Sums, then: &Sums, seconds: f64) -> ShownWaits {
    let came =
        |part: &Part, ns: u64| ns.saturating_sub(then.parts.get(part).copied().unwrap_or(0)) as f64 / 1e6;
    let run_s = now.run_ns.saturating_sub(then.run_ns) as f64 / 1e9;
    let offline = now.parts.iter().filter(|((kind, _), _)| *kind == Kind::Offline);
    let blamed_ms: f64 = offline.map(|(part, ns)| came(part, *ns)).sum();
    let one = |(part, ns): (&Part, &u64)| WaitPart {
        kind: part.0.name().to_owned(),
        group: part.1.clone(),
        ms_per_s: came(part, *ns) / seconds,
        total_s: *ns as f64 / 1e9,
    };
    let mut parts: Vec<WaitPart> = now.parts.iter().filter(|(_, ns)| **ns > 0).map(one).collect();
    parts.sort_by(|a, b| b.ms_per_s.total_cmp(&a.ms_per_s));
    ShownWaits { blamed_ms_per_cpu_s: (run_s > 0.0).then(|| blamed_ms / run_s), parts }
}

/// What the probe does not see: limits, freezers, affinities, and the hypervisor.
#[derive(Debug, Default)]
struct Around {
    due_ms: u64,
    /// The last reading, and the probe's figures at that time.
    before: Option<(Figures, BTreeMap<String, Surroundings>)>,
    /// Sums by group and kind since the agent started (ms).
    sums: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// What held a group back at the last reading, by group and kind.
    told: BTreeMap<String, BTreeMap<&'static str, String>>,
}

impl Around {
    fn look(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        hierarchies: &[Hierarchy],
        names: &Names,
        figures: &Figures,
    ) {
        if now_ms < self.due_ms {
            return;
        }
        let began = Instant::now();
        let read = names.online.iter().map(|(name, own)| {
            let pids = processes(host, hierarchies, own);
            (name.clone(), Surroundings::of(host, hierarchies, own, &pids))
        });
        let now: BTreeMap<String, Surroundings> = read.collect();
        self.told.clear();
        if let Some((then, before)) = &self.before {
            let came = figures.since(then);
            for (index, (name, _)) in names.online.iter().enumerate() {
                let around = now.get(name).zip(before.get(name)).map(|(now, before)| now.since(before));
                let Some((around, subject)) = around.zip(came.subjects.get(index)) else { continue };
                for cause in besides(&came, &subject.wait, &around) {
                    let sums = self.sums.entry(name.clone()).or_default();
                    *sums.entry(cause.cause).or_default() += cause.ms;
                    self.told.entry(name.clone()).or_default().entry(cause.cause).or_insert(cause.text());
                }
            }
        }
        self.before = Some((figures.clone(), now));
        let pause = began.elapsed().saturating_mul(SHARE).max(Duration::from_millis(AROUND_MS));
        self.due_ms = now_ms.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
    }
}

/// Some processes of these cgroups.
fn processes(host: &dyn Host, hierarchies: &[Hierarchy], own: &BTreeSet<CgroupPath>) -> Vec<u32> {
    let mut pids = Vec::new();
    let Some(hierarchy) = Hierarchy::of_threads(hierarchies) else { return pids };
    for path in own {
        if pids.len() >= PROCESSES {
            break;
        }
        let file = below(Path::new(&hierarchy.mount), path.as_str()).join("cgroup.procs");
        let procs = host.read_file(&file).unwrap_or_default();
        pids.extend(procs.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    pids.truncate(PROCESSES);
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_blame::Culprit;
    use commensal_testkit::Dice;

    fn names(online: &[&str], offline: &[&str]) -> Names {
        let online = online.iter().map(|name| ((*name).to_owned(), BTreeSet::new()));
        Names { online: online.collect(), offline: offline.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// Waits, in an order at random with new names for the targets and new probes: the sums by group, kind and culprit are
    /// those of an account that is kept by name.
    // promise 31
    #[test]
    fn sums_are_by_name_whatever_the_targets_are_called() {
        let all = [
            names(&["web"], &[]),
            names(&["web", "db"], &["etl"]),
            names(&["db", "web"], &["report", "etl"]),
            names(&["api", "db", "web"], &["etl", "report"]),
        ];
        for seed in 0..40 {
            let mut dice = Dice::new(seed);
            let (mut parts, mut account) = (WaitParts::default(), BTreeMap::<(String, Part), u64>::new());
            let (mut probe, mut now) = (Figures::default(), &all[0]);
            parts.begin(now, probe.clone());
            for step in 0..300_u64 {
                match dice.below(12) {
                    0 => {
                        now = &all[dice.below(all.len())];
                        parts.begin(now, probe.clone());
                    }
                    1 => {
                        parts.take_in(step * 100, &probe);
                        parts.end();
                        probe = Figures::default();
                        parts.begin(now, probe.clone());
                    }
                    _ => {}
                }
                let kind = Kind::ALL[dice.below(Kind::ALL.len())];
                let subject = dice.below(now.online.len());
                let groups: Vec<String> = match kind {
                    Kind::Online => now.online.iter().map(|(name, _)| name.clone()).collect(),
                    Kind::Offline => now.offline.clone(),
                    _ => Vec::new(),
                };
                let index = dice.below(groups.len().max(1));
                let ns = 1 + dice.below(1_000_000) as u64;
                probe.subjects.resize_with(probe.subjects.len().max(subject + 1), Default::default);
                probe.subjects[subject].wait.0[kind as usize] += ns;
                if Kind::OF_CGROUPS.contains(&kind) {
                    let culprit = Culprit { subject: subject as u32, kind, cgroup: Some(index as u64) };
                    *probe.culprits.entry(culprit).or_default() += ns;
                }
                let part = (kind, groups.get(index).cloned());
                *account.entry((now.online[subject].0.clone(), part)).or_default() += ns;
                parts.take_in(step * 100, &probe);
                let sums = parts.sums().into_iter().flat_map(|(name, sums)| {
                    sums.parts.into_iter().map(move |(part, ns)| ((name.clone(), part), ns))
                });
                let sums: BTreeMap<(String, Part), u64> = sums.filter(|(_, ns)| *ns > 0).collect();
                assert_eq!(sums, account, "seed {seed}, step {step}");
                let told = parts.shown.values().flat_map(|shown| &shown.parts);
                assert!(told.clone().all(|part| part.ms_per_s >= 0.0), "{told:?}");
            }
        }
    }

    /// Rates are those of half a second at least, however close together the readings are.
    #[test]
    fn rates_are_no_averages_of_an_instant() {
        let mut parts = WaitParts::default();
        let mut probe = Figures { subjects: vec![Default::default()], ..Figures::default() };
        parts.begin(&names(&["web"], &["etl"]), probe.clone());
        parts.take_in(0, &probe);
        for ms in 1..=2_000_u64 {
            // Half of the time on a CPU, and a quarter of it behind offline work.
            probe.subjects[0].run_ns += 500_000;
            probe.subjects[0].wait.0[Kind::Offline as usize] += 250_000;
            let culprit = Culprit { subject: 0, kind: Kind::Offline, cgroup: Some(0) };
            *probe.culprits.entry(culprit).or_default() += 250_000;
            parts.take_in(ms, &probe);
            let Some(shown) = parts.shown("web") else {
                assert!(ms < LEAST_MS);
                continue;
            };
            assert!((shown.blamed_ms_per_cpu_s.unwrap() - 500.0).abs() < 1e-6, "{ms}: {shown:?}");
            let [part] = shown.parts.as_slice() else { panic!("{shown:?}") };
            assert_eq!((part.kind.as_str(), part.group.as_deref()), ("offline", Some("etl")));
            assert!((part.ms_per_s - 250.0).abs() < 1e-6, "{ms}: {shown:?}");
        }
    }
}
