//! A run with short windows: one service and one load generator for the whole run, offline work that runs throughout
//! and is frozen and thawed, and in each round the windows of every arm in random order.
//!
//! ```text
//! round   alone │ isolated │ policy only │ warm │ alone again │ isolated │ … │ contended, long
//!         └ switch, guard, MEASURE ┘
//! ```
//! All windows of one arm in one round form that round's block. Windows of 100 ms that follow each other see the
//! machine in the same state, while blocks of seconds see different states: the error of a median falls to a sixth
//! (`docs/decisions/0040`).
//!
//! A request belongs to the window in which it was due, with its whole latency, even if it ended after the next switch.
//! Requests due in the guard after a switch, or in the tail before one, are not counted.

mod settle;

use super::batch::{self, BatchRunner};
use super::error::RunError;
use super::options::Event;
use super::probe::{Probe, Snapshot, blamed, fill, wait_probe};
use super::slowing::Slowing;
use super::{Chosen, Conductor, block, decided, favoured, service, slowing, validity};
use crate::error::LabError;
use crate::loadgen::{self, Gathered, LoadError, Outcome, Sample, Trace};
use crate::record::{
    Arm, Block, LatencyHistogram, Lateness, LoadHistograms, Role, Run, SinceSwitch, Windows, new_histogram,
    percentile_us,
};
use crate::site::Side;
use crate::tools::work::WorkKind;
use commensal_blame::Figures;
use commensal_core::windows::Schedule;
use commensal_host::{Child, precise_thread};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bucket boundaries of the table of latency by time since the switch, ms.
const EDGES_MS: [u32; 10] = [0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];
/// How long to wait for requests of a round to end before the round is evaluated without them.
const SETTLE: Duration = Duration::from_secs(6);
/// How long offline work runs before it is frozen for the first time, under the policy.
const FIRST: Duration = Duration::from_millis(700);
/// Number of deaths of the service after which the run ends: enough to tell a service that dies by itself from one that
/// isolation kills.
const DEATHS: u32 = 4;
/// Poll interval while waiting for an event.
const PAUSE: Duration = Duration::from_millis(2);

/// One completed window.
struct Window {
    arm: usize,
    /// Times of the switch and of the measured part, ns since the schedule began.
    switched_ns: u64,
    from_ns: u64,
    to_ns: u64,
    /// Counters of the window, without requests.
    counted: Block,
    blame: Option<Figures>,
    work: Option<f64>,
}

/// The offline work and the threads that keep CPUs from idling, which the run freezes and thaws.
struct Frozen {
    offline: Option<batch::Running>,
    warm: Option<Child>,
}

impl Conductor<'_> {
    /// Runs all rounds.
    pub(super) fn by_windows(
        &mut self,
        run: &mut Run,
        chosen: &[Chosen],
        service: &mut Option<service::Running>,
        windows: Windows,
    ) -> Result<(), RunError> {
        let experiment = self.experiment;
        let addr = self.start(service)?.addr;
        // The load generator keeps using this port, so a restarted service must listen on it, too.
        self.port = addr.port();
        let spec = block::requests(experiment, &self.place, (addr, experiment.seed, self.rate_per_s));
        let Some(mut spec) = spec else {
            return Err(RunError::new("short windows need the built-in load generator"));
        };
        // The generator is stopped when the rounds are over.
        spec.measure = Duration::from_secs(24 * 3600);
        spec.warmup = Duration::ZERO;
        spec.keep_partial = true;
        let mut work = Frozen { offline: None, warm: None };
        let slowing =
            Slowing::begin(&self.conduct.harms, &run.arms, (addr, self.site.machine.topology.threads()))?;
        let outcome = self.begin(run, chosen, &mut work).and_then(|()| {
            let (trace, over) = (Arc::new(Trace::default()), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let generator = scope.spawn(|| {
                    // If this is not permitted, the record already says so.
                    let _ = precise_thread();
                    loadgen::run_traced(&spec, &trace, &over, &mut |_| ())
                });
                let mut rounds = Rounds {
                    conductor: self,
                    trace: &trace,
                    windows,
                    since_replan: 0,
                    since: BTreeMap::new(),
                    probe: Probe::default(),
                    slowing,
                };
                let rounds = rounds.all(run, chosen, (&mut work, service), &|| generator.is_finished());
                over.store(true, Ordering::Relaxed);
                let ended = generator.join().unwrap_or(Err(LoadError::Stopped));
                rounds.and(ended.map(|_| ()).map_err(RunError::load))
            })
        });
        let ended = self.finish(&mut work);
        outcome.and(ended)
    }

    /// Starts the work that is frozen and thawed, with the policy on before its first instruction.
    fn begin(&mut self, run: &Run, chosen: &[Chosen], work: &mut Frozen) -> Result<(), RunError> {
        let experiment = self.experiment;
        self.site.favour_online(self.host, true)?;
        let policy = chosen.iter().find_map(|(_, policy)| *policy);
        if let Some(policy) = policy {
            self.site.isolate(self.host, policy)?;
        }
        let with = |role: Role| run.arms.iter().find(|arm| arm.role == role);
        let mut foreman =
            BatchRunner { host: self.host, site: self.site, place: &self.place, conduct: self.conduct };
        if let Some(arm) = with(Role::Isolated).or_else(|| with(Role::Contended)) {
            work.offline = Some(foreman.start(experiment, arm, policy)?);
        }
        if with(Role::Warm).is_some() {
            work.warm = Some(foreman.warm()?);
        }
        self.sleep(FIRST)
    }

    /// Ends that work, thawed and without its scheduling class, so that it can die.
    fn finish(&mut self, work: &mut Frozen) -> Result<(), RunError> {
        let warm = self.site.pause(self.host, Side::Warm, false);
        let offline = self.site.pause(self.host, Side::Offline, false);
        let released = self.site.release(self.host);
        // Every process is stopped, even if stopping another one failed.
        let stopped = match &mut work.warm {
            Some(child) => self.site.stop(self.host, Side::Warm, child),
            None => Ok(()),
        };
        let ended = match &mut work.offline {
            Some(offline) => {
                let experiment = self.experiment;
                let mut foreman = BatchRunner {
                    host: self.host,
                    site: self.site,
                    place: &self.place,
                    conduct: self.conduct,
                };
                foreman.end(experiment, offline).map(|_| ())
            }
            None => Ok(()),
        };
        let alone = self.site.favour_online(self.host, false);
        warm.and(offline).and(released).and(stopped).and(alone)?;
        ended
    }

    /// Waits, and ends early when asked to stop.
    fn sleep(&self, time: Duration) -> Result<(), RunError> {
        let end = Instant::now() + time;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RunError::stopped());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

/// Rounds after which the table by time since the switch is checked; by then it holds thousands of requests.
const LOOK_ROUNDS: [u32; 2] = [2, 4];

/// State of a run's rounds while the load goes on.
struct Rounds<'a, 'c> {
    conductor: &'a mut Conductor<'c>,
    trace: &'a Trace,
    windows: Windows,
    /// Rounds since guard and windows last changed length.
    since_replan: u32,
    /// Latency by arm and time since the switch.
    since: BTreeMap<(usize, usize), LatencyHistogram>,
    probe: Probe,
    /// The configured delays, in a calibration.
    slowing: Option<Slowing>,
}

impl Rounds<'_, '_> {
    fn all(
        &mut self,
        run: &mut Run,
        chosen: &[Chosen],
        (work, service): (&mut Frozen, &mut Option<service::Running>),
        load_ended: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        let conductor = &mut *self.conductor;
        if conductor.conduct.blame {
            self.probe.wait_probe = wait_probe(conductor.host, conductor.site).ok();
        }
        while self.trace.began().is_none() {
            if load_ended() {
                // The generator's error tells the reason.
                return Ok(());
            }
            conductor.sleep(PAUSE)?;
        }
        conductor.sleep(Duration::from_secs_f64(conductor.experiment.design.warmup_s))?;
        if let Some(slowing) = &mut self.slowing {
            let mut less = Vec::new();
            for _ in 0..2 {
                let _ = self.trace.take();
                conductor.sleep(slowing::PILOT)?;
                less = slowing.plan(&self.trace.take().samples)?;
            }
            run.caveats.extend(less);
        }
        let total = run.design.rounds as usize;
        let mut deaths = 0;
        let seed = self.conductor.experiment.seed;
        // A continued run has complete rounds. Number of rounds and windows may change on the way.
        let mut next = run.rounds_begun();
        while next < run.design.rounds {
            let round = next;
            next += 1;
            let turns = chosen.iter().map(|(arm, _)| self.windows.turns(run.arms[*arm].role)).collect();
            let schedule = Schedule::new(seed, turns);
            (self.conductor.tell)(Event::Block { done: round as usize, total, round: round + 1 });
            let (mut windows, mut crashed) = (Vec::new(), None);
            for turn in schedule.cycle(round) {
                let (arm, policy) = chosen[turn];
                windows.push(self.window(run, (arm, policy), work)?);
                if let Some(policy) = policy.filter(|_| run.arms[arm].role == Role::Isolated) {
                    self.note_policy(&mut run.arms[arm], policy, work);
                }
                if load_ended() {
                    return Ok(());
                }
                let gone = match service.as_mut() {
                    Some(service) => service.gone(self.conductor.host, self.conductor.site)?,
                    None => false,
                };
                if gone {
                    // The service crashed in the window of this arm.
                    crashed = Some(arm);
                    break;
                }
            }
            let gathered = self.gathered(&windows)?;
            self.record(run, round, (&windows, &gathered), work, crashed)?;
            run.since_switch = self.table(run);
            if crashed.is_none() && self.slowing.is_none() && self.replan(run, round) {
                continue;
            }
            run.added_time = self.slowing.as_ref().map(Slowing::added).unwrap_or_default();
            validity::judge_round(run, round);
            (self.conductor.tell)(Event::Recorded(run));
            if crashed.is_some() {
                deaths += 1;
                if deaths == DEATHS || !self.again(run, service)? {
                    return self.conductor.end(service);
                }
            }
            if decided(run, round + 1) {
                break;
            }
        }
        Ok(())
    }

    /// Restarts a service that has died, alone, and waits until the requests that found no server have ended; returns
    /// whether it serves.
    fn again(&mut self, run: &mut Run, service: &mut Option<service::Running>) -> Result<bool, RunError> {
        self.switch(Role::Baseline, false, None)?;
        self.conductor.end(service)?;
        match self.conductor.start(service) {
            Ok(_) => {}
            Err(RunError::Service(why)) => {
                run.caveats.push(format!("the service died, and did not start again: {why}"));
                return Ok(false);
            }
            Err(other) => return Err(other),
        }
        let since = self.trace.began().map_or(Duration::ZERO, |began| began.elapsed());
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let patience = Instant::now() + SETTLE;
        while self.trace.settled_ns() < since_ns && Instant::now() < patience {
            self.conductor.sleep(PAUSE)?;
        }
        self.conductor.sleep(Duration::from_secs_f64(self.conductor.experiment.design.warmup_s))?;
        drop(self.trace.take());
        Ok(true)
    }

    /// Switches to an arm: first freezes, then changes the policy, then thaws.
    fn switch(&mut self, role: Role, favoured: bool, policy: Option<usize>) -> Result<(), RunError> {
        let Conductor { host, site, .. } = &mut *self.conductor;
        let offline = matches!(role, Role::Contended | Role::Isolated);
        let warm = role == Role::Warm;
        if !offline {
            site.pause(*host, Side::Offline, true)?;
        }
        if !warm {
            site.pause(*host, Side::Warm, true)?;
        }
        if site.isolated() != policy {
            site.release(*host)?;
        }
        site.favour_online(*host, favoured)?;
        if let Some(policy) = policy.filter(|policy| site.isolated() != Some(*policy)) {
            site.isolate(*host, policy)?;
        }
        if offline {
            site.pause(*host, Side::Offline, false)?;
        }
        if warm {
            site.pause(*host, Side::Warm, false)?;
        }
        Ok(())
    }

    fn window(&mut self, run: &Run, (arm, policy): Chosen, work: &Frozen) -> Result<Window, RunError> {
        let role = run.arms[arm].role;
        self.switch(role, favoured(run, role), policy)?;
        if let Some(slowing) = &mut self.slowing {
            slowing.switch(arm)?;
        }
        let began = self.trace.began().unwrap_or_else(Instant::now);
        let since = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let switched_ns = since();
        self.conductor.sleep(Duration::from_secs_f64(self.windows.guard_s))?;
        let from_ns = since();
        let before = self.look(work);
        let length = if role == Role::Contended { self.windows.contended_s } else { self.windows.window_s };
        let looked_ns = since() - from_ns;
        self.conductor
            .sleep(Duration::from_secs_f64(length).saturating_sub(Duration::from_nanos(looked_ns)))?;
        let to_ns = since();
        let after = self.look(work);
        // Requests due in the window may end before the switch.
        self.conductor.sleep(Duration::from_secs_f64(self.windows.tail_s))?;
        let blame =
            after.blame.as_ref().zip(before.blame.as_ref()).map(|(after, before)| after.since(before));
        let mut counted = fill(&before, &after);
        let own = after.own.saturating_sub(before.own).as_secs_f64() / counted.measure_s.max(1e-9);
        counted.cpu.client = Some(own + after.warm_cpus(&before).unwrap_or(0.0));
        let work = after.total.zip(before.total).map(|(after, before)| (after - before).max(0.0));
        Ok(Window { arm, switched_ns, from_ns, to_ns, counted, blame, work })
    }

    fn look(&mut self, work: &Frozen) -> Snapshot {
        let total = work.offline.as_ref().and_then(batch::Running::total);
        self.probe.take(self.conductor.host, self.conductor.site, total)
    }

    /// Checks whether the policy of the completed window is still in force.
    fn note_policy(&mut self, arm: &mut Arm, policy: usize, work: &Frozen) {
        let Conductor { host, site, .. } = &mut *self.conductor;
        let child = work.offline.as_ref().and_then(|offline| offline.child.as_ref());
        let now = site.policy_now(*host, policy, child);
        block::note_policy(arm, &site.policies[policy], &now);
    }

    /// The requests of a round, once the last one due in it has ended.
    fn gathered(&mut self, windows: &[Window]) -> Result<Gathered, RunError> {
        let end_ns = windows.iter().map(|window| window.to_ns).max().unwrap_or(0);
        let patience = Instant::now() + SETTLE;
        while self.trace.settled_ns() < end_ns && Instant::now() < patience {
            self.conductor.sleep(PAUSE)?;
        }
        Ok(self.trace.take())
    }

    /// Makes a block from each arm's windows.
    fn record(
        &mut self,
        run: &mut Run,
        round: u32,
        (windows, gathered): (&[Window], &Gathered),
        work: &mut Frozen,
        crashed: Option<usize>,
    ) -> Result<(), RunError> {
        self.since_switch(windows, &gathered.samples);
        for (pos, arm) in (0..).zip(0..run.arms.len()) {
            let its: Vec<&Window> = windows.iter().filter(|window| window.arm == arm).collect();
            if its.is_empty() {
                continue;
            }
            let mut block = pooled(&its);
            // Requests in flight when the service died in another arm's window are attributed to that arm.
            let answered_only = crashed.is_some_and(|crashed| crashed != arm);
            requests(&mut block, &its, (gathered, answered_only), self.conductor.rate_per_s)
                .map_err(RunError::latencies)?;
            if matches!(run.arms[arm].role, Role::Contended | Role::Isolated)
                && let Some(offline) = &mut work.offline
            {
                let total = its.iter().map(|window| window.work).sum::<Option<f64>>();
                block.work =
                    offline.work(total.map(|total| (0.0, total)), None, block.cpu.offline, block.measure_s);
                if block.work.offline.is_none() {
                    // A program that reports its work only at its end is measured by its CPU time.
                    (block.work.offline, block.work.unit) = (
                        block.cpu.offline,
                        block.cpu.offline.map(|_| WorkKind::CpuSeconds.unit().to_owned()),
                    );
                }
                let (host, site) = (&mut *self.conductor.host, &*self.conductor.site);
                block.notes.extend(offline.ended(host, site).ok().flatten());
            }
            block.arm.clone_from(&run.arms[arm].name);
            (block.round, block.pos, block.online_crashed) = (round, pos, crashed == Some(arm));
            block.at_s = its.first().map(|window| window.from_ns as f64 / 1e9);
            run.blocks.push(block);
        }
        Ok(())
    }

    /// Lengthens guard and windows when the table by time since the switch shows that an arm has not settled within the
    /// guard, or that requests take long for these windows. Earlier rounds then do not count. Returns whether it
    /// changed them.
    fn replan(&mut self, run: &mut Run, round: u32) -> bool {
        self.since_replan += 1;
        if !LOOK_ROUNDS.contains(&self.since_replan) {
            return false;
        }
        let settling = |arm: usize| {
            let role = run.arms[arm].role;
            let buckets = (0..EDGES_MS.len()).filter_map(|bucket| {
                Some((f64::from(EDGES_MS[bucket]) / 1e3, self.since.get(&(arm, bucket))?))
            });
            // Contended arms have windows of their own length, and take seconds to settle.
            settle::ArmSample {
                decides: role != Role::Contended,
                alone: role == Role::Baseline,
                buckets: buckets.collect(),
            }
        };
        let seen: Vec<settle::ArmSample<'_>> = (0..run.arms.len()).map(settling).collect();
        let Some((windows, why)) = settle::lengthened(self.windows, &seen) else { return false };
        let Ok(short) = &self.conductor.experiment.short else { return false };
        let spent = f64::from(run.rounds_begun()) * run.design.round_s(self.windows, &run.arms);
        run.design.by_windows(windows, &run.arms, (short.within_s - spent).max(short.within_s / 2.0));
        // Round numbers count from the first round of the run.
        let shift = round + 1;
        run.design.rounds += shift;
        run.design.looks.iter_mut().for_each(|look| *look += shift);
        run.blocks.clear();
        run.caveats.push(format!("the first {shift} rounds do not count: {why}"));
        self.windows = windows;
        self.since_replan = 0;
        true
    }

    fn since_switch(&mut self, windows: &[Window], samples: &[Sample]) {
        for sample in samples.iter().filter(|sample| sample.outcome != Outcome::Failed) {
            let within = |window: &&Window| (window.switched_ns..window.to_ns).contains(&sample.due_ns);
            let Some(window) = windows.iter().find(within) else { continue };
            let ms = (sample.due_ns - window.switched_ns) / 1_000_000;
            let bucket = EDGES_MS.iter().rposition(|edge| u64::from(*edge) <= ms).unwrap_or(0);
            let Ok(fresh) = new_histogram() else { continue };
            let histogram = self.since.entry((window.arm, bucket)).or_insert(fresh);
            histogram.saturating_record(sample.latency_us.max(1));
        }
    }

    fn table(&self, run: &Run) -> Vec<SinceSwitch> {
        let row = |(&(arm, bucket), histogram): (&(usize, usize), &LatencyHistogram)| {
            Some(SinceSwitch {
                arm: run.arms[arm].name.clone(),
                ms: [EDGES_MS[bucket], *EDGES_MS.get(bucket + 1).unwrap_or(&u32::MAX)],
                requests: histogram.len(),
                p50_us: percentile_us(histogram, 0.5)?,
                p90_us: percentile_us(histogram, 0.9)?,
            })
        };
        self.since.iter().filter_map(row).collect()
    }
}

/// Combines the counters of several windows, without requests: rates weighted by length, and sums.
fn pooled(windows: &[&Window]) -> Block {
    let seconds: f64 = windows.iter().map(|window| window.counted.measure_s).sum();
    let mean = |of: fn(&Block) -> Option<f64>| {
        let sum: Option<f64> =
            windows.iter().map(|window| Some(of(&window.counted)? * window.counted.measure_s)).sum();
        sum.map(|sum| sum / seconds.max(1e-9))
    };
    let sum = |of: fn(&Block) -> Option<f64>| windows.iter().map(|window| of(&window.counted)).sum();
    let mut block = Block { valid: true, measure_s: seconds, ..Block::default() };
    block.cpu.online = mean(|block| block.cpu.online);
    block.cpu.offline = mean(|block| block.cpu.offline);
    block.cpu.other = mean(|block| block.cpu.other);
    block.cpu.steal = mean(|block| block.cpu.steal);
    // The generator and this thread count as the client; so do the warm threads, where they run.
    block.cpu.client = mean(|block| block.cpu.client);
    block.run_delay_s.online = sum(|block| block.run_delay_s.online);
    block.run_delay_s.offline = sum(|block| block.run_delay_s.offline);
    block.throttled_s.online = sum(|block| block.throttled_s.online);
    block.throttled_s.offline = sum(|block| block.throttled_s.offline);
    let mut figures = Figures::default();
    let seen: Vec<&Figures> = windows.iter().filter_map(|window| window.blame.as_ref()).collect();
    seen.iter().for_each(|one| figures.add(one));
    block.blame = (!seen.is_empty() && seen.len() == windows.len()).then(|| blamed(&figures));
    block
}

/// Outcomes of the requests that were due in these windows. Throughput is the number answered within the windows, as a
/// share of the number due: the schedule is random, and its variation is not an effect.
fn requests(
    block: &mut Block,
    windows: &[&Window],
    (gathered, answered_only): (&Gathered, bool),
    rate_per_s: f64,
) -> Result<(), LabError> {
    let (mut latency, mut service, mut lateness) = (new_histogram()?, new_histogram()?, new_histogram()?);
    let within = |ns: u64| windows.iter().any(|window| (window.from_ns..window.to_ns).contains(&ns));
    // A request counts in the window in which it was due, with its whole latency, whenever it ended.
    let mut answered = 0_u64;
    for sample in &gathered.samples {
        if sample.outcome == Outcome::Answered && within(sample.due_ns + sample.latency_us * 1_000) {
            answered += 1;
        }
        if !within(sample.due_ns) || (answered_only && sample.outcome != Outcome::Answered) {
            continue;
        }
        block.load.offered_requests += 1;
        match sample.outcome {
            Outcome::Answered => {}
            Outcome::TimedOut => block.load.timeouts += 1,
            Outcome::Failed => {
                block.load.errors += 1;
                continue;
            }
        }
        latency.saturating_record(sample.latency_us.max(1));
        if let Some(us) = sample.service_us {
            service.saturating_record(us.max(1));
        }
    }
    for (due_ns, us) in gathered.lateness.iter().filter(|(due_ns, _)| within(*due_ns)) {
        let _ = due_ns;
        lateness.saturating_record((*us).max(1));
    }
    let quantile = |q| percentile_us(&lateness, q).unwrap_or(0.0);
    block.load.offered_per_s = Some(rate_per_s);
    block.load.achieved_per_s =
        Some(rate_per_s * answered as f64 / block.load.offered_requests.max(1) as f64);
    block.lateness_us = (!lateness.is_empty()).then(|| Lateness { p50: quantile(0.5), p99: quantile(0.99) });
    block.mean_us = (!latency.is_empty()).then(|| latency.mean());
    block.histograms = LoadHistograms::of(&latency, &service, &lateness)?;
    Ok(())
}
