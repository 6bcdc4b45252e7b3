//! Measures resource use of the groups and the machine since the last sample, as rates of counters. Counter files stay
//! open between two samples.

use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::control::io::Rates;
use commensal_core::control::memory::Process;
use commensal_core::desired::{DesiredGroup, DesiredState};
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::{DiskUse, GroupUse, MachineCpu, Pressures};
use commensal_core::topology::Device;
use commensal_core::units::Bytes;
use commensal_host::{Dir, Host};
use commensal_sensors::run_delay::RunDelay;
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{machine, pressure};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

mod above;

use above::Above;

/// Maximum number of cgroups whose counters are all read in one sample. If there are more cgroups, they take turns,
/// because reading a thousand cgroups would take 100 ms. A rate is then the average since the cgroup's last turn.
const IN_FULL: usize = 16;
/// Maximum number of idle cgroups whose CPU time is read in one sample. Active cgroups are read in every sample, and idle ones
/// are not read while a cgroup above them tells that they are idle.
const IDLE: usize = 64;
/// Number of cgroups that are read in one sample although a cgroup above them tells that they are idle: another cgroup may
/// have the path of one of them.
const SELDOM: usize = 1;

/// Resource use of one group since the last sample, summed over its cgroups; `None` if one of them could not be read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupRates {
    /// CPUs used.
    pub cpus: Option<f64>,
    /// Current memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes read per second.
    pub read_per_s: Option<f64>,
    /// Bytes written per second.
    pub write_per_s: Option<f64>,
    /// Rates by disk, without disks that the group has not used yet.
    pub disks: Option<BTreeMap<Device, Rates>>,
    /// Current number of tasks.
    pub tasks: Option<u64>,
    /// Time that the group's threads waited for a CPU (ms per second).
    pub run_delay_ms_per_s: Option<f64>,
    /// Time that the quota throttled the group (ms per second).
    pub throttled_ms_per_s: Option<f64>,
    /// Share of the quota's periods in which a cgroup of the group was throttled (per cent); the highest of its
    /// cgroups. `None` if there is no quota.
    pub throttled_pct: Option<f64>,
    /// Number of processes that the OOM killer has killed since the cgroups were created.
    pub oom_kills: Option<u64>,
    /// Share of the time in which some task waited for CPU, memory or disks (per cent); each is the highest of the
    /// group's cgroups.
    pub pressure_pct: [Option<f64>; 3],
}

/// Resource use of the machine since the last sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MachineRates {
    /// Busy CPUs, used by groups or not.
    pub busy: Option<f64>,
    /// CPUs that the hypervisor took (steal).
    pub steal: Option<f64>,
    /// Share of the time in which some task waited for CPU, memory or disks (per cent).
    pub pressure_pct: [Option<f64>; 3],
}

/// One sample of all groups and the machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Time since the previous sample (s); 0 for the first one.
    pub seconds: f64,
    /// Resource use of the machine.
    pub machine: MachineRates,
    /// Resource use of the groups, by name.
    pub groups: BTreeMap<String, Arc<GroupRates>>,
}

/// How many of a group's cgroups are read completely in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchPrecision {
    /// Only the cgroups whose turn it is.
    InTurn,
    /// The cgroups whose turn it is, and all active cgroups.
    AtWork,
    /// All cgroups, because even threads that do not run may wait for a CPU.
    All,
}

#[derive(Debug)]
struct Meter {
    dirs: GroupDirs,
    delay: RunDelay,
    /// Position of the cgroup in the rotation.
    turn: usize,
    cpu: Option<(u64, u64)>,
    /// The last complete reading: its time (ms), the counters, and the run delay (us).
    last: Option<(u64, GroupUse, Option<u64>)>,
    /// CPU time at the last complete reading (us).
    cpu_by_then: Option<u64>,
    /// Rates that samples report until the next reading.
    rates: GroupRates,
}

/// Counters of all cgroups as of the last sample.
#[derive(Debug, Default)]
pub struct Meters {
    members: HashMap<CgroupPath, Box<Meter>>,
    machine: Option<(MachineCpu, Pressures)>,
    last_ms: Option<u64>,
    looks: usize,
    opened: usize,
    /// The cgroups above several members.
    above: Above,
    /// Last reported rates of each group.
    told: HashMap<String, Arc<GroupRates>>,
    /// For each member of each group, in the order of the desired state given to [`Meters::follow`]. In a compact form,
    /// because each sample goes through all members and reads few of them.
    turns: Vec<Vec<Turn>>,
}

/// When a member is read.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// Position of the cgroup in the rotation.
    number: usize,
    /// Whether the cgroup is active, or may be; then it is read in every sample.
    at_work: bool,
    /// The cgroup above it that tells whether it is idle.
    above: Option<usize>,
}

impl Meters {
    /// Takes a sample of the cgroups given to [`Meters::follow`]. `now_ms` is on a monotonic clock. `closely` returns
    /// how completely a group must be read.
    pub fn look(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        hierarchies: &[Hierarchy],
        desired: &DesiredState,
        closely: &dyn Fn(&DesiredGroup) -> WatchPrecision,
    ) -> Sample {
        let seconds = self.last_ms.map_or(0.0, |last| now_ms.saturating_sub(last) as f64 / 1e3);
        self.last_ms = Some(now_ms);
        self.looks = self.looks.wrapping_add(1);
        let (looks, count) = (self.looks, self.members.len());
        let due = |turn: usize, at_a_time: usize| {
            let turns = count.div_ceil(at_a_time).max(1);
            // Neighbours in the rotation are mostly members of one group, whose sum is then computed once.
            turn / at_a_time % turns == looks % turns
        };
        self.above.look(host, now_ms);
        let mut groups = BTreeMap::new();
        for (index, group) in desired.groups.iter().enumerate() {
            let closely = closely(group);
            let mut looked = false;
            for (nth, member) in group.members.iter().enumerate() {
                let mut turn = self.turns.get_mut(index).and_then(|turns| turns.get_mut(nth));
                let above = turn.as_deref().and_then(|turn| turn.above);
                let (idle, same_memory) = above.map_or((false, false), |above| self.above.is_idle(above));
                let is_not_due = |turn: &Turn| {
                    let in_full = due(turn.number, if idle && same_memory { SELDOM } else { IN_FULL });
                    !(turn.at_work || in_full || (due(turn.number, IDLE) && !idle))
                };
                if closely != WatchPrecision::All && turn.as_deref().is_some_and(is_not_due) {
                    continue;
                }
                let Some(meter) = self.members.get_mut(&member.path) else { continue };
                let known = meter.cpu.is_some();
                if let (Some((read_ms, _)), Some(above)) = (&mut meter.cpu, above) {
                    *read_ms = self.above.unchanged_until(above, *read_ms);
                }
                meter.look(host, now_ms, closely, &due);
                looked = true;
                if known && meter.cpu.is_none() {
                    // The cgroup was removed, or another cgroup has its path.
                    meter.open_again(host, hierarchies, &member.path);
                }
                turn.iter_mut().for_each(|turn| turn.at_work = meter.is_at_work());
            }
            let name = group.name.as_str();
            let rates = match self.told.get(name).filter(|_| !looked) {
                Some(told) => Arc::clone(told),
                None => {
                    let meters = group.members.iter().filter_map(|member| self.members.get(&member.path));
                    let each = meters.map(|meter| meter.rates.clone());
                    let sum = Arc::new(each.reduce(|sum, one| add(sum, &one)).unwrap_or_default());
                    self.told.insert(name.to_owned(), Arc::clone(&sum));
                    sum
                }
            };
            groups.insert(name.to_owned(), rates);
        }
        Sample { seconds, machine: self.machine(host, seconds), groups }
    }

    /// Total time that the threads of a cgroup have waited for a CPU (us); `None` if it cannot be read.
    pub fn run_delay_us(&mut self, host: &mut dyn Host, path: &CgroupPath) -> Option<u64> {
        let meter = self.members.get_mut(path)?;
        meter.delay.read(host, meter.dirs.any()?)
    }

    /// Memory of a cgroup that cannot be reclaimed (bytes).
    pub fn held(&self, host: &mut dyn Host, path: &CgroupPath) -> Option<u64> {
        self.members.get(path)?.dirs.held_bytes(host)
    }

    /// The processes in and below a cgroup, each with the memory that killing the process would free: anonymous and
    /// shared memory (`status` in proc(5)).
    pub fn processes(&self, host: &mut dyn Host, path: &CgroupPath) -> Vec<Process> {
        let Some(dir) = self.members.get(path).and_then(|meter| meter.dirs.any()) else { return Vec::new() };
        let mut pids = Vec::new();
        below(host, dir, &mut pids);
        pids.into_iter().filter_map(|pid| process(host, pid)).collect()
    }

    /// Directory of the cgroup in the v1 hierarchy of the controller.
    pub fn dir_v1(&self, path: &CgroupPath, controller: Controller) -> Option<Dir> {
        let (version, dir) = self.members.get(path)?.dirs.of(controller)?;
        (version == Version::V1).then_some(dir)
    }

    /// Directory of the cgroup in the v1 freezer hierarchy, if the process is in it.
    pub fn freezer(&self, host: &mut dyn Host, path: &CgroupPath, pid: u32) -> Option<Dir> {
        let dir = self.dir_v1(path, Controller::Freezer)?;
        let mut pids = Vec::new();
        below(host, dir, &mut pids);
        pids.contains(&pid).then_some(dir)
    }

    /// Opens counters of new cgroups and closes those of removed ones.
    pub fn follow(&mut self, host: &mut dyn Host, hierarchies: &[Hierarchy], desired: &DesiredState) {
        let wanted: BTreeSet<&CgroupPath> =
            desired.groups.iter().flat_map(|group| &group.members).map(|member| &member.path).collect();
        let gone: Vec<CgroupPath> =
            self.members.keys().filter(|path| !wanted.contains(path)).cloned().collect();
        self.told.clear();
        for path in gone {
            if let Some(meter) = self.members.remove(&path) {
                meter.dirs.close(host);
            }
        }
        self.above.follow(host, hierarchies, &wanted);
        for path in wanted {
            if let Some(meter) = self.members.get_mut(path) {
                if meter.cpu.is_none() {
                    meter.open_again(host, hierarchies, path);
                }
                continue;
            }
            let dirs = GroupDirs::open(host, hierarchies, path);
            if dirs.any().is_some() {
                self.opened = self.opened.wrapping_add(1);
                self.members.insert(path.clone(), Box::new(Meter::new(dirs, self.opened)));
            }
        }
        let turn = |path: &CgroupPath| match self.members.get(path) {
            Some(meter) => {
                Turn { number: meter.turn, at_work: meter.is_at_work(), above: self.above.nearest(path) }
            }
            None => Turn { number: 0, at_work: false, above: None },
        };
        let of_group = |group: &DesiredGroup| group.members.iter().map(|one| turn(&one.path)).collect();
        self.turns = desired.groups.iter().map(of_group).collect();
    }

    fn machine(&mut self, host: &mut dyn Host, seconds: f64) -> MachineRates {
        let now = machine::cpu_time(host).map(|cpu| (cpu, pressure::machine(host)));
        let before = std::mem::replace(&mut self.machine, now);
        let (Some((cpu, psi)), Some((cpu_before, psi_before))) = (now, before) else {
            return MachineRates::default();
        };
        let passed = cpu.since(&cpu_before);
        let rate = |us: u64| (seconds > 0.0).then(|| us as f64 / 1e6 / seconds);
        MachineRates {
            busy: rate(passed.busy_us()),
            steal: passed.steal_us.and_then(rate),
            pressure_pct: pressures(&psi, &psi_before, seconds),
        }
    }
}

fn pressures(now: &Pressures, before: &Pressures, seconds: f64) -> [Option<f64>; 3] {
    let pct = |now: Option<commensal_core::observe::Pressure>,
               before: Option<commensal_core::observe::Pressure>| {
        let us = now?.some_us.saturating_sub(before?.some_us);
        (seconds > 0.0).then(|| us as f64 / 1e4 / seconds)
    };
    [pct(now.cpu, before.cpu), pct(now.memory, before.memory), pct(now.io, before.io)]
}

fn add(sum: GroupRates, one: &GroupRates) -> GroupRates {
    let plus = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    let count = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
    let most = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, other) => one.or(other),
    };
    let index = |i: usize| most(sum.pressure_pct[i], one.pressure_pct[i]);
    GroupRates {
        cpus: plus(sum.cpus, one.cpus),
        memory_bytes: count(sum.memory_bytes, one.memory_bytes),
        read_per_s: plus(sum.read_per_s, one.read_per_s),
        write_per_s: plus(sum.write_per_s, one.write_per_s),
        disks: together(sum.disks, one.disks.as_ref()),
        tasks: count(sum.tasks, one.tasks),
        run_delay_ms_per_s: plus(sum.run_delay_ms_per_s, one.run_delay_ms_per_s),
        throttled_ms_per_s: plus(sum.throttled_ms_per_s, one.throttled_ms_per_s),
        throttled_pct: most(sum.throttled_pct, one.throttled_pct),
        oom_kills: count(sum.oom_kills, one.oom_kills),
        pressure_pct: [index(0), index(1), index(2)],
    }
}

fn together(
    sum: Option<BTreeMap<Device, Rates>>,
    one: Option<&BTreeMap<Device, Rates>>,
) -> Option<BTreeMap<Device, Rates>> {
    let mut sum = sum?;
    for (device, rates) in one? {
        let disk = sum.entry(*device).or_insert(Rates { read: Some(0.0), write: Some(0.0) });
        let plus = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        *disk = Rates { read: plus(disk.read, rates.read), write: plus(disk.write, rates.write) };
    }
    Some(sum)
}

impl Meter {
    fn new(dirs: GroupDirs, turn: usize) -> Meter {
        let (delay, rates) = (RunDelay::default(), GroupRates::default());
        Meter { dirs, delay, turn, cpu: None, last: None, cpu_by_then: None, rates }
    }

    fn open_again(&mut self, host: &mut dyn Host, hierarchies: &[Hierarchy], path: &CgroupPath) {
        let dirs = GroupDirs::open(host, hierarchies, path);
        std::mem::replace(self, Meter::new(dirs, self.turn)).dirs.close(host);
    }

    /// Whether the cgroup has used CPU time lately. If its CPU time is unknown, it may be active.
    fn is_at_work(&self) -> bool {
        self.rates.cpus.is_none_or(|cpus| cpus > 0.0)
    }

    /// Reads the CPU time of the cgroup, and the other counters if they are due. `due(turn, n)` is true if it is the
    /// cgroup's turn when `n` cgroups are read per sample.
    fn look(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        closely: WatchPrecision,
        due: &dyn Fn(usize, usize) -> bool,
    ) {
        let in_full = match closely {
            WatchPrecision::All => true,
            WatchPrecision::AtWork if self.is_at_work() => true,
            _ => self.last.is_none() || due(self.turn, IN_FULL),
        };
        let cpu_us = self.dirs.cpu_us(host);
        let before = std::mem::replace(&mut self.cpu, cpu_us.map(|us| (now_ms, us)));
        self.rates.cpus = before.zip(cpu_us).and_then(|((then_ms, then), now)| {
            let ms = now_ms.checked_sub(then_ms).filter(|ms| *ms > 0)?;
            Some(now.saturating_sub(then) as f64 / 1e3 / ms as f64)
        });
        if in_full {
            self.rates = GroupRates { cpus: self.rates.cpus, ..self.others(host, now_ms, closely) };
        }
    }

    /// Reads all counters except the CPU time, and computes the rates. A cgroup that did not run since the last reading
    /// did no I/O either, but the kernel may have reclaimed some of its memory. With [`WatchPrecision::All`] the run
    /// delay is read in any case, because threads may wait without running.
    fn others(&mut self, host: &mut dyn Host, now_ms: u64, closely: WatchPrecision) -> GroupRates {
        let cpu_us = self.cpu.map(|(_, us)| us);
        let idle = std::mem::replace(&mut self.cpu_by_then, cpu_us) == cpu_us
            && cpu_us.is_some()
            && closely != WatchPrecision::All;
        let now = match &self.last {
            Some((_, last, _)) if idle => {
                GroupUse { memory_bytes: self.dirs.memory_bytes(host), ..last.clone() }
            }
            _ => self.dirs.others(host),
        };
        let delay_us = match &self.last {
            Some((_, _, last)) if idle => *last,
            _ => self.dirs.any().and_then(|dir| self.delay.read(host, dir)),
        };
        let before = self.last.replace((now_ms, now.clone(), delay_us));
        let mut rates = GroupRates {
            memory_bytes: now.memory_bytes,
            tasks: now.tasks,
            oom_kills: now.oom_kills,
            ..GroupRates::default()
        };
        let Some((then_ms, before, delay_before)) = before.filter(|(then_ms, ..)| now_ms > *then_ms) else {
            return rates;
        };
        let seconds = (now_ms - then_ms) as f64 / 1e3;
        let rate =
            |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?) as f64 / seconds);
        let moved = |use_: &GroupUse, write: bool| {
            let io = use_.io.as_ref()?;
            Some(io.values().map(|disk| if write { disk.write_bytes } else { disk.read_bytes }).sum())
        };
        rates.read_per_s = rate(moved(&now, false), moved(&before, false));
        rates.write_per_s = rate(moved(&now, true), moved(&before, true));
        rates.disks = disks(&now, &before, seconds);
        rates.run_delay_ms_per_s = rate(delay_us, delay_before).map(|us| us / 1e3);
        rates.throttled_ms_per_s = rate(now.throttled_us, before.throttled_us).map(|us| us / 1e3);
        rates.throttled_pct = throttled_pct(&now, &before);
        rates.pressure_pct = pressures(&now.pressure, &before.pressure, seconds);
        rates
    }
}

/// Share of throttled periods (per cent). The kernel counts only periods in which a task was runnable.
fn throttled_pct(now: &GroupUse, before: &GroupUse) -> Option<f64> {
    let periods = now.nr_periods.filter(|periods| *periods > 0)?;
    let passed = periods.saturating_sub(before.nr_periods?);
    let throttled = now.nr_throttled?.saturating_sub(before.nr_throttled?);
    Some(if passed == 0 { 0.0 } else { (throttled as f64 / passed as f64 * 100.0).min(100.0) })
}

/// Computes the rates of each disk. The kernel lists a disk from its first request on, so the counters of a newly
/// listed disk start at 0.
fn disks(now: &GroupUse, before: &GroupUse, seconds: f64) -> Option<BTreeMap<Device, Rates>> {
    let before = before.io.as_ref()?;
    let of = |(device, now): (&Device, &DiskUse)| {
        let then = before.get(device).copied().unwrap_or_default();
        let rate = |now: u64, then: u64| Some(now.saturating_sub(then) as f64 / seconds);
        let rates = Rates {
            read: rate(now.read_bytes, then.read_bytes),
            write: rate(now.write_bytes, then.write_bytes),
        };
        (*device, rates)
    };
    Some(now.io.as_ref()?.iter().map(of).collect())
}

fn below(host: &mut dyn Host, dir: Dir, pids: &mut Vec<u32>) {
    let text = host.read(dir, "cgroup.procs").unwrap_or_default();
    pids.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    for name in host.children(dir).unwrap_or_default() {
        if let Ok(child) = host.open_child(dir, &name) {
            below(host, child, pids);
            host.close(child);
        }
    }
}

fn process(host: &mut dyn Host, pid: u32) -> Option<Process> {
    /// The bit of SIGKILL in a signal mask.
    const KILL: u64 = 1 << 8;
    let start = host.process(pid).ok()?.start_ticks;
    let status = host.read_file(Path::new(&format!("/proc/{pid}/status"))).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let kib = |name: &str| field(name)?.split_whitespace().next()?.parse::<u64>().ok();
    let mask = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let killed =
        ["SigPnd:", "ShdPnd:"].into_iter().any(|name| mask(name).is_some_and(|mask| mask & KILL != 0));
    let ended = field("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    let held = Bytes(1024 * (kib("RssAnon:").unwrap_or(0) + kib("RssShmem:").unwrap_or(0)));
    Some(Process { pid, start, held, dying: killed || ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::config::parse;
    use commensal_host::fake::FakeHost;
    use commensal_reconcile::{Instance, PlanRequest};

    // promise 63
    #[test]
    fn run_delay_is_missing_where_the_kernel_does_not_count_it() {
        let fake = FakeHost::v2(2, 1 << 30);
        let mut host = fake.another();
        let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
        host.mkdir(root, "web").unwrap();
        let pid = fake.add_process(&["/sys/fs/cgroup/web"]);
        let specs = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web\" }]\n";
        let specs = parse("groups.toml", specs).unwrap();
        let instance = Instance::new(Path::new("/state"));
        let survey = instance.survey(&mut host).unwrap();
        let planned = instance.plan(&mut host, &survey, &PlanRequest::all(&specs)).unwrap();
        let (hierarchies, desired) = (planned.actual.hierarchies, planned.desired);
        let second_sample = |host: &mut FakeHost| {
            let mut meters = Meters::default();
            meters.follow(host, &hierarchies, &desired);
            let mut look = |ms| meters.look(host, ms, &hierarchies, &desired, &|_| WatchPrecision::All);
            look(1_000);
            look(2_000).groups["web"].clone()
        };
        fake.set_file(format!("/proc/{pid}/task/{pid}/comm"), "web\n");
        let rates = second_sample(&mut host);
        assert!(rates.cpus.is_some(), "{rates:?}");
        assert_eq!(rates.run_delay_ms_per_s, None);
        fake.set_file(format!("/proc/{pid}/task/{pid}/schedstat"), "9000000 5000000 2\n");
        assert_eq!(second_sample(&mut host).run_delay_ms_per_s, Some(0.0));
    }
}
