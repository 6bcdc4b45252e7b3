//! The counters of a block, such as CPU time and pressure. A block measures one condition of an experiment once; its
//! results are the differences between the counters at its start and at its end.
//!
//! The online side is the service, the offline side the batch work, and the client side the load generator. Warm
//! threads keep every CPU from idling. The wait probe is a BPF program that measures which other programs the online
//! side waited for.

use crate::record::{Blamed, Block, CpuUse, Delays, GroupPsi, PerSide, Psi, Tick, WaitByKind};
use crate::site::{Side, Testbed};
use commensal_blame::{BlameError, Figures, Kind, Scope, Subject, WaitProbe};
use commensal_core::errno::Errno;
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::{GroupUse, MachineCpu, Pressure, Pressures};
use commensal_core::process::Stat;
use commensal_host::{Counters, Event, Host, HostError};
use commensal_sensors::run_delay::RunDelay;
use commensal_sensors::usage::foreign_cpu_us;
use commensal_sensors::{machine, pressure};
use std::path::Path;
use std::time::{Duration, Instant};

/// Field of `/proc/PID/stat` with the CPU time in the kernel, in clock ticks.
const SYSTEM_TICKS: usize = 15;

/// The counter sources, and the time series of the current block.
#[derive(Default)]
pub(super) struct Probe {
    online_delay: RunDelay,
    offline_delay: RunDelay,
    /// The wait probe, if the run uses the probe.
    pub wait_probe: Option<WaitProbe>,
    /// Cycles and instructions of the online and the offline side, if the machine has such hardware counters.
    pub counters: [Option<Counters>; 2],
    /// The process that stands for a hypervisor, if there is one.
    stand_in: Option<u32>,
    ticks: Vec<Tick>,
    last: Option<Cheap>,
    began: Option<Instant>,
}

/// Counters at one moment; a field is `None` if the machine lacks its source.
pub(super) struct Snapshot {
    pub at: Instant,
    machine: Option<MachineCpu>,
    online: GroupUse,
    offline: GroupUse,
    client: GroupUse,
    /// CPU time of the process that stands for a hypervisor.
    stand_in_us: Option<u64>,
    warm_us: Option<u64>,
    /// CPU time of this process, which generates the load.
    pub own: Duration,
    online_delay_us: Option<u64>,
    offline_delay_us: Option<u64>,
    pressure: Pressures,
    /// Total units of offline work until this moment.
    pub total: Option<f64>,
    pub blame: Option<Figures>,
    /// Cycles and instructions of the online and the offline side, in this order.
    counted: [Option<(u64, u64)>; 2],
}

/// Counters for the time series, which the run reads every second.
#[derive(Clone, Copy)]
struct Cheap {
    at: Instant,
    machine: Option<MachineCpu>,
    sides: [Option<u64>; 3],
}

/// Attaches the wait probe to the online and the offline cgroup of this run.
pub(super) fn wait_probe(host: &dyn Host, site: &Testbed) -> Result<WaitProbe, BlameError> {
    // If no hierarchy has the CPU controller, the probe uses the threads' cgroup in the unified hierarchy.
    let of = |side| {
        let dirs = site.group(side);
        let cpu = dirs.of(Controller::Cpu).map(|(version, dir)| (version == Version::V2, dir));
        cpu.or_else(|| dirs.any().map(|dir| (true, dir)))
    };
    let sides = of(Side::Online).zip(of(Side::Offline));
    let Some(((unified, online), (_, offline))) = sides else {
        let because = "the service and the offline work have no cgroups of their own".to_owned();
        return Err(BlameError::Refused { what: "distinguish online from offline work", because });
    };
    let scope = Scope {
        online: vec![Subject::Cgroups(vec![online.inode])],
        offline: vec![Subject::Cgroups(vec![offline.inode])],
        unified,
        interrupts: true,
        ..Scope::default()
    };
    WaitProbe::attach(host, &scope)
}

/// Starts counting the cycles and instructions of one side.
pub(super) fn counters(host: &mut dyn Host, site: &Testbed, side: Side) -> Result<Counters, HostError> {
    let mut refused = HostError {
        operation: "count",
        object: "the CPU cycles of a side without cgroups".to_owned(),
        value: None,
        errno: Errno::ENOENT,
    };
    for dir in site.group(side).all() {
        match host.count(dir, &site.survey.machine.topology.all(), &[Event::Cycles, Event::Instructions]) {
            Ok(counters) => return Ok(counters),
            // This hierarchy may lack the perf_event controller, so the loop tries the next one.
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

impl Snapshot {
    /// Returns the average number of CPUs used by the warm threads since an earlier snapshot.
    pub fn warm_cpus(&self, before: &Snapshot) -> Option<f64> {
        let us = self.warm_us?.saturating_sub(before.warm_us?);
        Some(us as f64 / 1e6 / (self.at - before.at).as_secs_f64().max(1e-9))
    }
}

/// Returns the CPU time of all threads of another process (µs).
fn process_us(host: &dyn Host, pid: u32) -> Option<u64> {
    let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    let stat = Stat::parse(&text)?;
    let ticks = stat.user_ticks()? + stat.number::<u64>(SYSTEM_TICKS)?;
    Some(ticks * 1_000_000 / rustix::param::clock_ticks_per_second())
}

/// Returns the CPU time of all threads of this process.
fn process_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

impl Probe {
    /// Creates a probe that counts the CPU time of this process, if there is one, as steal.
    pub fn new(stand_in: Option<u32>) -> Probe {
        Probe { stand_in, ..Probe::default() }
    }

    /// Reads all counters, at the start or at the end of the measured part; `total` is the offline work done so far.
    pub fn take(&mut self, host: &mut dyn Host, site: &Testbed, total: Option<f64>) -> Snapshot {
        let (online_dir, offline_dir) = (site.group(Side::Online).any(), site.group(Side::Offline).any());
        Snapshot {
            at: Instant::now(),
            total,
            machine: machine::cpu_time(host),
            online: site.group(Side::Online).read(host),
            offline: site.group(Side::Offline).read(host),
            client: site.group(Side::Client).read(host),
            stand_in_us: self.stand_in.and_then(|pid| process_us(host, pid)),
            warm_us: site.group(Side::Warm).cpu_us(host),
            own: process_cpu_time(),
            online_delay_us: online_dir.and_then(|dir| self.online_delay.read(host, dir)),
            offline_delay_us: offline_dir.and_then(|dir| self.offline_delay.read(host, dir)),
            pressure: pressure::machine(host),
            blame: self.wait_probe.as_ref().and_then(|probe| probe.totals().ok()),
            counted: self.counters.each_mut().map(|one| match one.as_mut()?.read().ok()?[..] {
                [cycles, instructions] => Some((cycles, instructions)),
                _ => None,
            }),
        }
    }

    /// Adds an entry to the time series for the time since the last call; the first call only starts the series.
    pub fn tick(&mut self, host: &mut dyn Host, site: &Testbed) {
        let sides = [Side::Online, Side::Offline, Side::Client].map(|side| site.group(side).cpu_us(host));
        let now = Cheap { at: Instant::now(), machine: machine::cpu_time(host), sides };
        let began = *self.began.get_or_insert(now.at);
        if let Some(then) = self.last.replace(now) {
            let seconds = (now.at - then.at).as_secs_f64();
            // Less than 0.1 s gives no useful rate, and could cause a division by zero.
            if seconds < 0.1 {
                return;
            }
            let used = |side: usize| Some(now.sides[side]?.saturating_sub(then.sides[side]?));
            let passed = now.machine.zip(then.machine).map(|(now, then)| now.since(&then));
            let cpu = cpu_use(passed, [used(0), used(1), used(2)], seconds);
            self.ticks.push(Tick { t_s: (now.at - began).as_secs_f64(), cpu, ..Tick::default() });
        }
    }

    /// Takes the time series so far, and adds the values of `load`, which has an entry for each second, too.
    pub fn series(&mut self, load: &[Tick]) -> Vec<Tick> {
        let mut ticks = std::mem::take(&mut self.ticks);
        (self.last, self.began) = (None, None);
        for (tick, of_load) in ticks.iter_mut().zip(load) {
            (tick.qps, tick.p50_us, tick.p99_us) = (of_load.qps, of_load.p50_us, of_load.p99_us);
        }
        ticks
    }
}

/// Computes the CPU use in CPUs. `passed` is the CPU time of the whole machine; `used_us` is the CPU time of the
/// online, offline and client side, in this order (µs).
fn cpu_use(passed: Option<MachineCpu>, used_us: [Option<u64>; 3], seconds: f64) -> CpuUse {
    let rate = |us: Option<u64>| us.map(|us| us as f64 / 1e6 / seconds);
    let other = passed.and_then(|passed| foreign_cpu_us(&passed, &used_us[..2]));
    CpuUse {
        online: rate(used_us[0]),
        offline: rate(used_us[1]),
        client: rate(used_us[2]),
        other: rate(other),
        steal: rate(passed.and_then(|passed| passed.steal_us)),
    }
}

/// Creates a block from the differences of two snapshots. The caller adds the results of the requests and the offline
/// work.
pub(super) fn fill(before: &Snapshot, after: &Snapshot) -> Block {
    let seconds = (after.at - before.at).as_secs_f64();
    let delta = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?) as f64 / 1e6);
    let used = |now: &GroupUse, then: &GroupUse| Some(now.cpu_us?.saturating_sub(then.cpu_us?));
    let used_us = [
        used(&after.online, &before.online),
        used(&after.offline, &before.offline),
        used(&after.client, &before.client),
    ];
    let passed = after.machine.zip(before.machine).map(|(now, then)| now.since(&then));
    let cpi = |side: usize| {
        let ((cycles, instructions), then) = (after.counted[side]?, before.counted[side]?);
        let came = (cycles.saturating_sub(then.0), instructions.saturating_sub(then.1));
        (came.1 > 0).then(|| came.0 as f64 / came.1 as f64)
    };
    let mut cpu = cpu_use(passed, used_us, seconds);
    if let Some(taken) = delta(after.stand_in_us, before.stand_in_us).map(|s| s / seconds) {
        cpu.steal = Some(cpu.steal.unwrap_or(0.0) + taken);
        cpu.other = cpu.other.map(|other| (other - taken).max(0.0));
    }
    let machine_psi = psi(&after.pressure, &before.pressure, seconds);
    let groups = GroupPsi {
        online: psi(&after.online.pressure, &before.online.pressure, seconds),
        offline: psi(&after.offline.pressure, &before.offline.pressure, seconds),
    };
    Block {
        valid: true,
        measure_s: seconds,
        cpu,
        run_delay_s: PerSide {
            online: delta(after.online_delay_us, before.online_delay_us),
            offline: delta(after.offline_delay_us, before.offline_delay_us),
        },
        blame: after
            .blame
            .as_ref()
            .zip(before.blame.as_ref())
            .map(|(after, before)| blamed(&after.since(before))),
        throttled_s: PerSide {
            online: delta(after.online.throttled_us, before.online.throttled_us),
            offline: delta(after.offline.throttled_us, before.offline.throttled_us),
        },
        psi: (machine_psi != Psi::default()).then_some(machine_psi),
        cpi: PerSide { online: cpi(0), offline: cpi(1) },
        group_psi: (groups != GroupPsi::default()).then_some(groups),
        ..Block::default()
    }
}

fn psi(now: &Pressures, then: &Pressures, seconds: f64) -> Psi {
    let some_pct = |now: Option<Pressure>, then: Option<Pressure>| {
        Some(now?.some_us.saturating_sub(then?.some_us) as f64 / 1e6 / seconds * 100.0)
    };
    Psi {
        cpu_some_pct: some_pct(now.cpu, then.cpu),
        memory_some_pct: some_pct(now.memory, then.memory),
        io_some_pct: some_pct(now.io, then.io),
    }
}

pub(super) fn blamed(came: &Figures) -> Blamed {
    let seconds = |kind| came.wait.of(kind) as f64 / 1e9;
    let delays = |of: &commensal_blame::Histogram| Delays {
        count: of.count(),
        p50_us: of.quantile(0.5).map(|ns| ns / 1e3),
        p99_us: of.quantile(0.99).map(|ns| ns / 1e3),
    };
    Blamed {
        run_s: came.counters.run_ns as f64 / 1e9,
        wait_s: WaitByKind {
            other: seconds(Kind::Other) + seconds(Kind::RealTime),
            peers: seconds(Kind::Online),
            offline: seconds(Kind::Offline),
            kernel: seconds(Kind::Kernel),
            nobody: seconds(Kind::Idle),
            interrupts: seconds(Kind::Interrupt),
        },
        preemption: delays(&came.preempt_delay),
        wake_up: delays(&came.wake_delay),
        missed_share: came.missed_share(),
        hidden_s: Some(came.counters.hidden_ns as f64 / 1e9),
    }
}
