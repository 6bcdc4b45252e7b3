//! One block: offline work on, settle, warm up, measure, offline work off; and what was counted meanwhile.

use super::{Conduct, LabError};
use crate::experiment::Experiment;
use crate::loadgen::{self, LoadError, LoadResult, LoadSpec, Phase};
use crate::record::{
    Applied, Arm, Blamed, Block, CpuUse, Delays, Lateness, PerSide, Policy, Psi, Role, Run, WaitByKind, Work,
    encode_histogram,
};
use crate::site::{Side, Site};
use crate::workload::burn::{CHUNK_ITERATIONS, WorkCounter};
use commensal_blame::{Figures, Judge, Kind, NoJudge, Scope, Subject};
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::{GroupUse, MachineCpu, Pressures};
use commensal_host::{Child, Host, SpawnSpec, Stdin, Stdout};
use commensal_sensors::run_delay::RunDelay;
use commensal_sensors::usage::foreign_cpu_us;
use commensal_sensors::{machine, pressure};
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the generator polls before a request is due: waking an idle virtual CPU takes most of 100 us, which
/// is the lateness that a valid block may have. It costs a fifth of one CPU, the same in every arm.
const SPIN: Duration = Duration::from_micros(100);

/// The requests of one block.
pub(super) fn load(experiment: &Experiment, addr: SocketAddr, count: u64, seed: u64) -> LoadSpec {
    let design = &experiment.design;
    let rate = design.offered_per_s.unwrap_or(1.0);
    let measure = Duration::from_secs_f64(design.block_s);
    LoadSpec {
        seed,
        spin: SPIN,
        warmup: Duration::from_secs_f64(design.warmup_s),
        ..LoadSpec::new(addr, format!("/cpu?cpu=1&count={count}"), rate, measure)
    }
}

/// What a block needs.
pub(super) struct Runner<'a> {
    pub host: &'a mut dyn Host,
    pub site: &'a mut Site,
    pub conduct: &'a Conduct,
    pub stop: &'a AtomicBool,
}

struct Offline {
    child: Child,
    counter: WorkCounter,
}

impl Runner<'_> {
    /// Runs the block of one arm. The policy is off and the offline work gone when this returns, also on error.
    pub fn run(
        &mut self,
        experiment: &Experiment,
        arm: usize,
        spec: &LoadSpec,
        run: &mut Run,
    ) -> Result<(Block, LoadResult), LabError> {
        let role = experiment.arms[arm].role;
        let isolated = role == Role::Isolated;
        if isolated {
            self.site.isolate(self.host)?;
        }
        let outcome = self.with_offline(experiment, role, spec, &mut run.arms[arm]);
        if isolated {
            self.site.release(self.host)?;
        }
        let (mut block, load) = outcome?;
        block.arm.clone_from(&experiment.arms[arm].name);
        Ok((block, load))
    }

    fn with_offline(
        &mut self,
        experiment: &Experiment,
        role: Role,
        spec: &LoadSpec,
        arm: &mut Arm,
    ) -> Result<(Block, LoadResult), LabError> {
        let mut offline = match role {
            Role::Contended | Role::Isolated | Role::OfflineAlone => {
                Some(self.start_burners(role == Role::Isolated)?)
            }
            Role::Baseline | Role::Baseline2 => None,
        };
        let measured = self.measure(experiment, spec, offline.as_ref());
        if role == Role::Isolated {
            // At the end of the block: a policy that somebody undid meanwhile was not in force.
            let child = offline.as_ref().map(|offline| &offline.child);
            note_policy(arm, self.site, &self.site.policy_now(self.host, child));
        }
        if let Some(offline) = &mut offline {
            self.site.stop(self.host, Side::Offline, &mut offline.child)?;
        }
        measured
    }

    /// As many burner threads as CPUs: nothing is left over.
    fn start_burners(&mut self, isolated: bool) -> Result<Offline, LabError> {
        let threads = self.site.machine.topology.threads();
        let counter = WorkCounter::new(threads).map_err(LabError::Counter)?;
        let fd = counter.fd().try_clone_to_owned().map_err(LabError::Counter)?;
        let mut spec = SpawnSpec::new(&self.conduct.program)
            .arg("workload")
            .arg("burn")
            .arg("--threads")
            .arg(threads.to_string());
        spec.stdin = Stdin::Fd(Arc::new(fd));
        spec.stdout = Stdout::Inherit;
        let child = self.site.start(self.host, Side::Offline, isolated, spec)?;
        Ok(Offline { child, counter })
    }

    fn measure(
        &mut self,
        experiment: &Experiment,
        spec: &LoadSpec,
        offline: Option<&Offline>,
    ) -> Result<(Block, LoadResult), LabError> {
        let judge = self.conduct.blame.then(|| judge(self.host, self.site).ok()).flatten();
        self.settle(Duration::from_secs_f64(experiment.design.settle_s))?;
        let mut probe = Probe { judge, ..Probe::default() };
        let mut snapshots: Vec<Snapshot> = Vec::with_capacity(2);
        let (host, site, stop) = (&mut *self.host, &*self.site, self.stop);
        let mut on_phase = |phase: Phase| match phase {
            Phase::MeasureStart | Phase::MeasureEnd => snapshots.push(probe.take(host, site, offline)),
        };
        let load = loadgen::run(spec, stop, &mut on_phase).map_err(|error| match error {
            LoadError::Stopped => LabError::Stopped,
            other => LabError::Load(other),
        })?;
        let [before, after] = snapshots.as_slice() else { return Err(LabError::Stopped) };
        Ok((fill(&load, before, after), load))
    }

    fn settle(&self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Stopped);
            }
            std::thread::sleep((end - Instant::now()).min(Duration::from_millis(20)));
        }
        Ok(())
    }
}

/// Keeps for each knob what it read; a value that was wrong in any round stays on record.
fn note_policy(arm: &mut Arm, site: &Site, applied: &[commensal_drivers::Applied]) {
    let entry = |one: &commensal_drivers::Applied| Applied {
        path: one.place.clone(),
        file: one.file.to_owned(),
        want: one.want.clone(),
        read: Some(one.read.clone()),
    };
    let before = arm.policy.take().map(|policy| policy.applied).unwrap_or_default();
    let mut now: Vec<Applied> = applied.iter().map(entry).collect();
    for one in &mut now {
        let wrong = before.iter().find(|old| old.path == one.path && old.file == one.file && !old.holds());
        if let Some(wrong) = wrong {
            one.clone_from(wrong);
        }
    }
    let (driver, weak) = (site.means.driver.clone(), site.means.weak.clone());
    arm.policy = Some(Policy { driver, weak, applied: now });
}

/// Sources that remember threads between two snapshots.
#[derive(Default)]
struct Probe {
    online_delay: RunDelay,
    offline_delay: RunDelay,
    judge: Option<Judge>,
}

/// Counters at one moment; a source that is missing is `None`.
struct Snapshot {
    at: Instant,
    machine: Option<MachineCpu>,
    online: GroupUse,
    offline: GroupUse,
    online_delay_us: Option<u64>,
    offline_delay_us: Option<u64>,
    pressure: Pressures,
    chunks: Option<u64>,
    blame: Option<Figures>,
}

/// Who looks at the waits of the online side of this run.
pub(super) fn judge(host: &dyn Host, site: &Site) -> Result<Judge, NoJudge> {
    // Where no hierarchy has the CPU controller, threads belong to their group of the unified one.
    let of = |side| {
        let dirs = site.group(side);
        let cpu = dirs.of(Controller::Cpu).map(|(version, dir)| (version == Version::V2, dir));
        cpu.or_else(|| dirs.any().map(|dir| (true, dir)))
    };
    let sides = of(Side::Online).zip(of(Side::Offline));
    let Some(((unified, online), (_, offline))) = sides else {
        let because = "the two sides have no groups of their own".to_owned();
        return Err(NoJudge::Refused { what: "tell online from offline work", because });
    };
    let scope = Scope {
        online: vec![Subject::Cgroup(online.inode)],
        offline: vec![Subject::Cgroup(offline.inode)],
        unified,
        interrupts: true,
        ..Scope::default()
    };
    Judge::attach(host, &scope)
}

fn blamed(after: &Figures, before: &Figures) -> Blamed {
    let came = after.since(before);
    let seconds = |kind| came.wait.of(kind) as f64 / 1e9;
    let delays = |of: &commensal_blame::Histogram| Delays {
        count: of.count(),
        p50_us: of.quantile(0.5).map(|ns| ns / 1e3),
        p99_us: of.quantile(0.99).map(|ns| ns / 1e3),
    };
    Blamed {
        run_s: came.counters.run_ns as f64 / 1e9,
        wait_s: WaitByKind {
            other: seconds(Kind::Other),
            peers: seconds(Kind::Online),
            offline: seconds(Kind::Offline),
            kernel: seconds(Kind::Kernel),
            nobody: seconds(Kind::Idle),
            interrupts: seconds(Kind::Interrupt),
        },
        preemption: delays(&came.preempt_delay),
        wake_up: delays(&came.wake_delay),
        missed_share: came.missed_share(),
    }
}

impl Probe {
    fn take(&mut self, host: &mut dyn Host, site: &Site, offline: Option<&Offline>) -> Snapshot {
        let (online_dir, offline_dir) = (site.group(Side::Online).any(), site.group(Side::Offline).any());
        Snapshot {
            at: Instant::now(),
            chunks: offline.and_then(|offline| offline.counter.read().ok()),
            machine: machine::cpu_time(host),
            online: site.group(Side::Online).read(host),
            offline: site.group(Side::Offline).read(host),
            online_delay_us: online_dir.and_then(|dir| self.online_delay.read(host, dir)),
            offline_delay_us: offline_dir.and_then(|dir| self.offline_delay.read(host, dir)),
            pressure: pressure::machine(host),
            blame: self.judge.as_ref().and_then(|judge| judge.totals().ok()),
        }
    }
}

/// Turns two snapshots and a load result into a block.
fn fill(load: &LoadResult, before: &Snapshot, after: &Snapshot) -> Block {
    let seconds = (after.at - before.at).as_secs_f64();
    let delta = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?) as f64 / 1e6);
    let rate = |now, then| delta(now, then).map(|spent| spent / seconds);
    let machine = after.machine.zip(before.machine).map(|(now, then)| now.since(&then));
    let online = rate(after.online.cpu_us, before.online.cpu_us);
    let offline = rate(after.offline.cpu_us, before.offline.cpu_us);
    let used = |now: &GroupUse, then: &GroupUse| Some(now.cpu_us?.saturating_sub(then.cpu_us?));
    let groups_us = [used(&after.online, &before.online), used(&after.offline, &before.offline)];
    let foreign = machine.and_then(|machine| foreign_cpu_us(&machine, &groups_us));
    let other = foreign.map(|us| us as f64 / 1e6 / seconds);
    let some_pct = |now: Option<commensal_core::observe::Pressure>,
                    then: Option<commensal_core::observe::Pressure>| {
        rate(now.map(|p| p.some_us), then.map(|p| p.some_us)).map(|share| share * 100.0)
    };
    let psi = Psi {
        cpu_some_pct: some_pct(after.pressure.cpu, before.pressure.cpu),
        memory_some_pct: some_pct(after.pressure.memory, before.pressure.memory),
        io_some_pct: some_pct(after.pressure.io, before.pressure.io),
    };
    let quantile = |histogram: &Histogram<u64>, q| histogram.value_at_quantile(q) as f64;
    let lateness = Lateness { p50: quantile(&load.lateness, 0.5), p99: quantile(&load.lateness, 0.99) };
    let work = after.chunks.zip(before.chunks).map(|(now, then)| now.saturating_sub(then) as f64 / seconds);
    Block {
        valid: true,
        measure_s: load.measured_s,
        offered: Some(load.offered_per_s),
        achieved: Some(load.achieved_per_s),
        requests: load.offered,
        errors: load.errors,
        timeouts: load.timeouts,
        lateness_us: (!load.lateness.is_empty()).then_some(lateness),
        hist: encode_histogram(&load.latency).ok(),
        service_hist: encode_histogram(&load.service).ok(),
        lateness_hist: encode_histogram(&load.lateness).ok(),
        cpu: CpuUse {
            online,
            offline,
            other,
            steal: machine.and_then(|machine| machine.steal_us).map(|steal| steal as f64 / 1e6 / seconds),
        },
        run_delay_s: PerSide {
            online: delta(after.online_delay_us, before.online_delay_us),
            offline: delta(after.offline_delay_us, before.offline_delay_us),
        },
        blame: after.blame.as_ref().zip(before.blame.as_ref()).map(|(after, before)| blamed(after, before)),
        throttled_s: PerSide {
            online: delta(after.online.throttled_us, before.online.throttled_us),
            offline: delta(after.offline.throttled_us, before.offline.throttled_us),
        },
        psi: (psi != Psi::default()).then_some(psi),
        work: Work {
            offline: work,
            unit: work.map(|_| format!("chunks of {CHUNK_ITERATIONS} iterations")),
            ..Work::default()
        },
        ..Block::default()
    }
}
