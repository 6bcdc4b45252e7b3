//! Use of the groups and the machine since the last sample: rates from counters on open descriptors.

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

/// Maximum number of cgroups whose counters are all read in one sample. More cgroups take turns: reading a thousand
/// would take 100 ms. A rate is then the average since the cgroup's last turn.
const IN_FULL: usize = 16;
/// The same limit for the CPU time of cgroups that used none lately; an active cgroup is read in every sample.
const IDLE: usize = 64;

/// Use of one group in a time span. Sums over its cgroups; `None` where one of them could not be read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupRates {
    /// CPUs.
    pub cpus: Option<f64>,
    /// Memory held now, bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes read per second.
    pub read_per_s: Option<f64>,
    /// Bytes written per second.
    pub write_per_s: Option<f64>,
    /// Rates by disk; without disks on which the group did nothing yet.
    pub disks: Option<BTreeMap<Device, Rates>>,
    /// Current number of tasks.
    pub tasks: Option<u64>,
    /// Time that its threads waited for a CPU, ms per second.
    pub run_delay_ms_per_s: Option<f64>,
    /// Time that the quota throttled the group, ms per second.
    pub throttled_ms_per_s: Option<f64>,
    /// Share of the quota's periods in which the group was throttled, per cent; of the cgroup with the largest share.
    /// `None` without a quota.
    pub throttled_pct: Option<f64>,
    /// Processes that the OOM killer killed, since the cgroups were created.
    pub oom_kills: Option<u64>,
    /// Share of the time in which some task waited, per cent: CPU, memory, disks. The largest of its cgroups.
    pub pressure_pct: [Option<f64>; 3],
}

/// Use of the machine in a time span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MachineRates {
    /// Busy CPUs, whatever the use.
    pub busy: Option<f64>,
    /// CPUs taken by the hypervisor.
    pub steal: Option<f64>,
    /// Share of the time in which some task waited, per cent: CPU, memory, disks.
    pub pressure_pct: [Option<f64>; 3],
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Time since the previous sample, s; 0 at the first.
    pub seconds: f64,
    /// The machine.
    pub machine: MachineRates,
    /// The groups by name.
    pub groups: BTreeMap<String, GroupRates>,
}

/// How completely a group must be read in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchPrecision {
    /// Only the cgroups whose turn it is.
    InTurn,
    /// Also all active cgroups.
    AtWork,
    /// All cgroups: starving threads wait without running.
    All,
}

#[derive(Debug)]
struct Meter {
    dirs: GroupDirs,
    delay: RunDelay,
    /// Position in the rotation.
    turn: usize,
    cpu: Option<(u64, u64)>,
    /// The last complete reading: its time, the counters, and the CPU time at that moment.
    last: Option<(u64, GroupUse, Option<u64>)>,
    cpu_by_then: Option<u64>,
    /// Rates reported until the next turn.
    rates: GroupRates,
}

/// Counters as of the last sample.
#[derive(Debug, Default)]
pub struct Meters {
    members: HashMap<CgroupPath, Meter>,
    machine: Option<(MachineCpu, Pressures)>,
    last_ms: Option<u64>,
    looks: usize,
    opened: usize,
    /// Last reported rates of each group.
    told: HashMap<String, GroupRates>,
}

impl Meters {
    /// Samples the cgroups given to [`Meters::follow`]. `now_ms` is on a monotonic clock; `closely` says how completely
    /// a group must be read.
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
            turn % turns == looks % turns
        };
        let mut groups = BTreeMap::new();
        for group in &desired.groups {
            let closely = closely(group);
            let mut looked = false;
            for member in &group.members {
                let Some(meter) = self.members.get_mut(&member.path) else { continue };
                let known = meter.cpu.is_some();
                looked |= meter.look(host, now_ms, closely, &due);
                if known && meter.cpu.is_none() {
                    // The cgroup was removed, or replaced.
                    meter.open_again(host, hierarchies, &member.path);
                }
            }
            let name = group.name.as_str();
            let rates = match self.told.get(name).filter(|_| !looked) {
                Some(told) => told.clone(),
                None => {
                    let meters = group.members.iter().filter_map(|member| self.members.get(&member.path));
                    let each = meters.map(|meter| meter.rates.clone());
                    let sum = each.reduce(|sum, one| add(sum, &one)).unwrap_or_default();
                    self.told.insert(name.to_owned(), sum.clone());
                    sum
                }
            };
            groups.insert(name.to_owned(), rates);
        }
        Sample { seconds, machine: self.machine(host, seconds), groups }
    }

    /// Time that the threads of a cgroup have waited for a CPU so far, us.
    pub fn run_delay_us(&mut self, host: &mut dyn Host, path: &CgroupPath) -> Option<u64> {
        let meter = self.members.get_mut(path)?;
        meter.delay.read(host, meter.dirs.any()?)
    }

    /// Memory of a cgroup that cannot be reclaimed.
    pub fn held(&self, host: &mut dyn Host, path: &CgroupPath) -> Option<u64> {
        self.members.get(path)?.dirs.held_bytes(host)
    }

    /// The processes in and below a cgroup, with the memory that killing each would free: anonymous and shared memory
    /// (proc(5), `status`).
    pub fn processes(&self, host: &mut dyn Host, path: &CgroupPath) -> Vec<Process> {
        let Some(dir) = self.members.get(path).and_then(|meter| meter.dirs.any()) else { return Vec::new() };
        let mut pids = Vec::new();
        below(host, dir, &mut pids);
        pids.into_iter().filter_map(|pid| process(host, pid)).collect()
    }

    /// The directory of this cgroup in cgroup v1's freezer hierarchy, if the process is in it.
    pub fn freezer(&self, host: &mut dyn Host, path: &CgroupPath, pid: u32) -> Option<Dir> {
        let found = self.members.get(path)?.dirs.of(Controller::Freezer)?;
        let (Version::V1, dir) = found else { return None };
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
                self.members.insert(path.clone(), Meter::new(dirs, self.opened));
            }
        }
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

    /// Reads the counters that are `due`: the rotation allows a limited number per sample. Returns whether anything was
    /// read.
    fn look(
        &mut self,
        host: &mut dyn Host,
        now_ms: u64,
        closely: WatchPrecision,
        due: &dyn Fn(usize, usize) -> bool,
    ) -> bool {
        // If the CPU time is unknown, the cgroup may be active.
        let at_work = self.rates.cpus.is_none_or(|cpus| cpus > 0.0);
        let in_full = match closely {
            WatchPrecision::All => true,
            WatchPrecision::AtWork if at_work => true,
            _ => self.last.is_none() || due(self.turn, IN_FULL),
        };
        if !(in_full || at_work || due(self.turn, IDLE)) {
            return false;
        }
        let cpu_us = self.dirs.cpu_us(host);
        let before = std::mem::replace(&mut self.cpu, cpu_us.map(|us| (now_ms, us)));
        self.rates.cpus = before.zip(cpu_us).and_then(|((then_ms, then), now)| {
            let ms = now_ms.checked_sub(then_ms).filter(|ms| *ms > 0)?;
            Some(now.saturating_sub(then) as f64 / 1e3 / ms as f64)
        });
        if in_full {
            self.rates = GroupRates { cpus: self.rates.cpus, ..self.others(host, now_ms, closely) };
        }
        true
    }

    /// All counters except the CPU time. A cgroup that did not run since the last reading did no I/O either, but its
    /// memory may have been reclaimed. Starving threads wait without running.
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

/// Share of throttled periods; the kernel counts only periods in which a task wanted to run.
fn throttled_pct(now: &GroupUse, before: &GroupUse) -> Option<f64> {
    let periods = now.nr_periods.filter(|periods| *periods > 0)?;
    let passed = periods.saturating_sub(before.nr_periods?);
    let throttled = now.nr_throttled?.saturating_sub(before.nr_throttled?);
    Some(if passed == 0 { 0.0 } else { (throttled as f64 / passed as f64 * 100.0).min(100.0) })
}

/// Disk rates. A disk that was absent before counts from 0: the kernel lists a disk from its first request on.
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
    /// SIGKILL's bit in a signal mask.
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
