//! A run with short windows: the arms (conditions such as the service alone or isolated from offline work) alternate
//! within milliseconds. One service and one load generator run throughout, the conductor freezes and thaws the offline
//! work, and each round contains the windows of all arms in random order.
//!
//! ```text
//! round   alone │ isolated │ policy only │ warm │ alone again │ isolated │ … │ contended, long
//!         └ switch, guard, MEASURE ┘
//! ```
//! A switch changes from one arm to the next: it freezes or thaws, and sets the policy (the settings that isolate the
//! service). All windows of one arm in one round together form the arm's block. Consecutive windows of 100 ms find the
//! machine in similar states, whereas blocks of seconds do not; short windows reduce the error of a median to a sixth
//! (`docs/decisions/0040`).
//!
//! A request counts in the window in which it was due, with its whole latency, even if its response came after the next
//! switch. Two kinds of requests do not count. The first are requests that were due in the guard time after a switch.
//! The second are requests that were due in the tail, the time just before the next switch, because they may not finish
//! before the switch.

mod settle;

use super::batch::{self, BatchRunner};
use super::error::RunError;
use super::options::Event;
use super::probe::{Probe, Snapshot, blamed, fill, wait_probe};
use super::slowing::Slowing;
use super::{Chosen, Conductor, after, block, favoured, service, slowing, validity};
use crate::analysis::stretch::rest;
use crate::error::LabError;
use crate::loadgen::{self, Gathered, LoadError, Outcome, Sample, Trace};
use crate::record::{
    Arm, Block, LatencyHistogram, Lateness, LoadHistograms, Role, Run, SinceSwitch, Windows, new_histogram,
    percentile_us,
};
use crate::site::Side;
use crate::tools::work::WorkKind;
use commensal_blame::Figures;
use commensal_core::text::rough_time;
use commensal_core::windows::{Schedule, Turns, stretch::Next};
use commensal_host::{Child, precise_thread};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Lower bucket boundaries (ms) of a table that shows latency by the time since the last switch.
const EDGES_MS: [u32; 10] = [0, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];
/// How long to wait for outstanding requests at the end of a round; afterwards, the round is evaluated without them.
const SETTLE: Duration = Duration::from_secs(6);
/// How long the offline work runs under the policy before the first freeze.
const FIRST: Duration = Duration::from_millis(700);
/// Number of crashes of the service after which the run stops. Fewer crashes could not distinguish a service that
/// crashes by itself from a service that crashes because of isolation.
const DEATHS: u32 = 4;
/// Poll interval while waiting for an event.
const PAUSE: Duration = Duration::from_millis(2);

/// One completed window.
struct Window {
    arm: usize,
    /// Time of the switch before the window, in ns since the schedule began.
    switched_ns: u64,
    from_ns: u64,
    to_ns: u64,
    /// Counters of the window, without its requests.
    counted: Block,
    blame: Option<Figures>,
    work: Option<f64>,
}

/// The processes that the run freezes and thaws: the offline work, and the warm threads, which keep CPUs from idling.
struct Frozen {
    offline: Option<batch::Running>,
    warm: Option<Child>,
}

impl Conductor<'_> {
    /// Runs all rounds, with one service and one load generator.
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
        // The run stops the generator when the rounds are finished.
        spec.measure = Duration::from_secs(24 * 3600);
        spec.warmup = Duration::ZERO;
        spec.keep_partial = true;
        let mut work = Frozen { offline: None, warm: None };
        let slowing = Slowing::begin(
            &self.options.harms,
            &run.arms,
            (addr, self.site.survey.machine.topology.threads()),
        )?;
        let outcome = self.begin(run, chosen, &mut work).and_then(|()| {
            let (trace, over) = (Arc::new(Trace::default()), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let generator = scope.spawn(|| {
                    // A failure needs no handling, because the record already notes that real-time priority is not
                    // permitted.
                    let _ = precise_thread();
                    loadgen::run_traced(&spec, &trace, &over, &mut |_| ())
                });
                let mut rounds = Rounds {
                    probe: Probe::new(self.stand_in),
                    conductor: self,
                    trace: &trace,
                    windows,
                    begun: Instant::now(),
                    since_replan: 0,
                    too_long: 0,
                    since: BTreeMap::new(),
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

    /// Starts the offline work and the warm threads. The policy is on before their first instruction.
    fn begin(&mut self, run: &Run, chosen: &[Chosen], work: &mut Frozen) -> Result<(), RunError> {
        let experiment = self.experiment;
        self.site.favour_online(self.host, true)?;
        let policy = chosen.iter().find_map(|(_, policy)| *policy);
        if let Some(policy) = policy {
            self.site.isolate(self.host, policy)?;
        }
        let with = |role: Role| run.arms.iter().find(|arm| arm.role == role);
        let mut runner =
            BatchRunner { host: self.host, site: self.site, place: &self.place, options: self.options };
        if let Some(arm) = with(Role::Isolated).or_else(|| with(Role::Contended)) {
            work.offline = Some(runner.start(experiment, arm, policy)?);
        }
        if with(Role::Warm).is_some() {
            work.warm = Some(runner.warm()?);
        }
        self.sleep(FIRST)
    }

    /// Stops the offline work and the warm threads: thaws both and switches the policy off first, so that the processes
    /// can exit.
    fn finish(&mut self, work: &mut Frozen) -> Result<(), RunError> {
        let warm = self.site.pause(self.host, Side::Warm, false);
        let offline = self.site.pause(self.host, Side::Offline, false);
        let released = self.site.release(self.host);
        // The function stops every process, even if stopping another one fails.
        let stopped = match &mut work.warm {
            Some(child) => self.site.stop(self.host, Side::Warm, child),
            None => Ok(()),
        };
        let ended = match &mut work.offline {
            Some(offline) => {
                let experiment = self.experiment;
                let mut runner = BatchRunner {
                    host: self.host,
                    site: self.site,
                    place: &self.place,
                    options: self.options,
                };
                runner.end(experiment, offline).map(|_| ())
            }
            None => Ok(()),
        };
        let alone = self.site.favour_online(self.host, false);
        warm.and(offline).and(released).and(stopped).and(alone)?;
        ended
    }

    /// Waits for `time`; returns an error early if the user stops the run.
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

/// Numbers of rounds after which the run checks whether its windows are long enough; by then, the latency table holds
/// thousands of requests.
const LOOK_ROUNDS: [u32; 2] = [2, 4];

/// Prefix of the note that blocks get if the windows would have to be too long for the run's time limit.
pub(super) const TOO_LONG: &str = "the windows that this load needs do not fit into the time limit";

/// Result of the check whether the windows are long enough.
enum Replan {
    /// The windows are long enough.
    Kept,
    /// Earlier rounds do not count: either the windows are longer from now on, or the run repeats the measurement with
    /// the current windows.
    Changed,
    /// The windows would have to be too long; the text says why, and what to do.
    TooLong(String),
}

/// Limit for longer windows. The run may then take at most this many times its time limit, or this many times its
/// duration with the current windows; the longer of the two applies.
const OVERRUN: f64 = 2.0;
/// How often the run repeats the measurement after a check finds that the windows would have to be too long.
const AGAIN: u32 = 1;

/// State of the rounds while the load runs.
struct Rounds<'a, 'c> {
    conductor: &'a mut Conductor<'c>,
    trace: &'a Trace,
    windows: Windows,
    /// When the rounds began.
    begun: Instant,
    /// Number of rounds since the last change of the windows, or since the last repetition.
    since_replan: u32,
    /// Number of checks that found that the windows would have to be too long.
    too_long: u32,
    /// Latency by arm and by bucket of the time since the switch.
    since: BTreeMap<(usize, usize), LatencyHistogram>,
    probe: Probe,
    /// The known delays that arms add to responses in a calibration.
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
        if !self.begin(run, load_ended)? {
            return Ok(());
        }
        let mut deaths = 0;
        let seed = self.conductor.experiment.seed;
        // A continued run starts after its last complete round. The number of rounds and the windows may change during
        // the run.
        let mut next = run.rounds_begun();
        let Some(mut measured) = stretch_of(run, next) else { return Ok(()) };
        while next < run.design.rounds {
            let round = next;
            next += 1;
            let none = Turns { times: 0, every: 1 };
            let turns = |arm: usize| {
                if measured.contains(&arm) { self.windows.turns(run.arms[arm].role) } else { none }
            };
            let schedule = Schedule::new(seed, chosen.iter().map(|(arm, _)| turns(*arm)).collect());
            let (left_s, left) = rest(run, (round, &measured), self.windows);
            (self.conductor.tell)(Event::Block {
                done: run.blocks.len(),
                total: run.blocks.len() + left,
                round: round + 1,
                left: Some(Duration::try_from_secs_f64(left_s).unwrap_or_default()),
            });
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
                    // The crash counts against the arm of this window.
                    crashed = Some(arm);
                    break;
                }
            }
            let gathered = self.gathered(&windows)?;
            self.record(run, round, (&windows, &gathered), work, crashed)?;
            run.since_switch = self.table(run);
            if crashed.is_none() && self.slowing.is_none() {
                match self.replan(run, round) {
                    Replan::Kept => {}
                    Replan::Changed => continue,
                    Replan::TooLong(why) => {
                        run.blocks.iter_mut().for_each(|block| block.notes.push(why.clone()));
                        (0..=round).for_each(|round| validity::judge_round(run, round));
                        (self.conductor.tell)(Event::Recorded(run));
                        break;
                    }
                }
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
            match after(run, round + 1) {
                Some(Next::End) => break,
                Some(Next::Measure(arms)) => measured = arms,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits until the load runs and its warm-up is over. Returns whether it runs: if it has ended, the result of the load
    /// generator contains the reason.
    fn begin(&mut self, run: &mut Run, load_ended: &dyn Fn() -> bool) -> Result<bool, RunError> {
        let conductor = &mut *self.conductor;
        if conductor.options.blame {
            self.probe.wait_probe = wait_probe(conductor.host, conductor.site).ok();
        }
        while self.trace.began().is_none() {
            if load_ended() {
                return Ok(false);
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
        Ok(true)
    }

    /// Restarts a service that has crashed, without offline work, and waits for the outcomes of requests that were sent
    /// without a running service. Returns whether the service is ready.
    fn again(&mut self, run: &mut Run, service: &mut Option<service::Running>) -> Result<bool, RunError> {
        self.switch(Role::Baseline, false, None)?;
        self.conductor.end(service)?;
        match self.conductor.start(service) {
            Ok(_) => {}
            Err(RunError::Service(why)) => {
                run.caveats.push(format!("the service crashed and could not be restarted: {why}"));
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

    /// Switches to the arm that has this role: freezes, then changes the policy, then thaws.
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
        // Requests that were due in the window get time to finish before the switch.
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

    /// Records whether the arm's policy is still in force after a window.
    fn note_policy(&mut self, arm: &mut Arm, policy: usize, work: &Frozen) {
        let Conductor { host, site, .. } = &mut *self.conductor;
        let child = work.offline.as_ref().and_then(|offline| offline.child.as_ref());
        let now = site.policy_now(*host, policy, child);
        block::note_policy(arm, &site.policies[policy], &now);
    }

    /// Returns the requests of a round, after the last request due in the round has an outcome or after a time limit.
    fn gathered(&mut self, windows: &[Window]) -> Result<Gathered, RunError> {
        let end_ns = windows.iter().map(|window| window.to_ns).max().unwrap_or(0);
        let patience = Instant::now() + SETTLE;
        while self.trace.settled_ns() < end_ns && Instant::now() < patience {
            self.conductor.sleep(PAUSE)?;
        }
        Ok(self.trace.take())
    }

    /// Creates one block for each arm from the arm's windows of this round.
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
            // If the service crashed in another arm's window, requests in flight at that moment count against that arm
            // only.
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
                    // For a program that reports its work only on exit, the block uses CPU time as work.
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

    /// Checks the table of latency by time since the switch. Lengthens the guard time or the windows if an arm settles
    /// only after the guard time, or if requests are slow relative to the windows, and then discards earlier rounds.
    fn replan(&mut self, run: &mut Run, round: u32) -> Replan {
        self.since_replan += 1;
        if !LOOK_ROUNDS.contains(&self.since_replan) {
            return Replan::Kept;
        }
        let settling = |arm: usize| {
            let role = run.arms[arm].role;
            let buckets = (0..EDGES_MS.len()).filter_map(|bucket| {
                Some((f64::from(EDGES_MS[bucket]) / 1e3, self.since.get(&(arm, bucket))?))
            });
            // Contended arms do not decide: their windows have a different length, and the arms take seconds to settle.
            settle::ArmSample {
                decides: role != Role::Contended,
                alone: role == Role::Baseline,
                buckets: buckets.collect(),
            }
        };
        let seen: Vec<settle::ArmSample<'_>> = (0..run.arms.len()).map(settling).collect();
        let Some((windows, why)) = settle::lengthened(self.windows, &seen) else { return Replan::Kept };
        let Ok(short) = &self.conductor.experiment.short else { return Replan::Kept };
        // The number of rounds includes the discarded rounds.
        let shift = round + 1;
        let spent_s = self.begun.elapsed().as_secs_f64();
        self.since_replan = 0;
        let (least_s, now_s) =
            (run.design.least_s(windows, &run.arms), run.design.least_s(self.windows, &run.arms));
        let does_not_fit = least_s > OVERRUN * short.within_s.max(now_s);
        if does_not_fit {
            self.too_long += 1;
            if self.too_long > AGAIN {
                return Replan::TooLong(format!(
                    "{TOO_LONG}: {why}. With such windows, a run takes at least {}, but --for allows {}: lower the load (--load), \
                     or increase --for",
                    rough_time(least_s),
                    rough_time(short.within_s)
                ));
            }
            // The run measures again, because another program may have disturbed the machine.
            self.since.clear();
        } else {
            self.windows = windows;
        }
        let repeated = if does_not_fit { " and were repeated" } else { "" };
        run.caveats.push(format!("the first {shift} rounds do not count{repeated}: {why}"));
        run.blocks.clear();
        let left_s = (short.within_s - spent_s).max(short.within_s / 2.0);
        run.design.with_windows(self.windows, &run.arms, left_s);
        run.design.rounds += shift;
        run.design.looks.iter_mut().for_each(|look| *look += shift);
        Replan::Changed
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

/// Returns the arms that a run measures after this many rounds; `None` if its last interim analysis has ended it.
fn stretch_of(run: &Run, rounds: u32) -> Option<Vec<usize>> {
    let all = (0..run.arms.len()).collect();
    let last = run.design.looks.iter().rev().find(|look| **look <= rounds);
    match last.and_then(|look| after(run, *look)) {
        Some(Next::End) => None,
        Some(Next::Measure(arms)) => Some(arms),
        None => Some(all),
    }
}

/// Combines the counters of several windows, without requests. Rates are averaged with the window lengths as weights;
/// totals are summed.
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
    // The generator, this thread and the warm threads count as the client.
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

/// Adds the outcomes of the requests that were due in these windows. Throughput is the offered rate times the number of
/// requests answered within the windows, divided by the number due. The schedule is random, and this division removes
/// its variation, which is not an effect of the arm.
fn requests(
    block: &mut Block,
    windows: &[&Window],
    (gathered, answered_only): (&Gathered, bool),
    rate_per_s: f64,
) -> Result<(), LabError> {
    let (mut latency, mut service, mut lateness) = (new_histogram()?, new_histogram()?, new_histogram()?);
    let within = |ns: u64| windows.iter().any(|window| (window.from_ns..window.to_ns).contains(&ns));
    // A request counts in the window in which it was due, with its whole latency, even if its response came later.
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
    if !answered_only {
        let errors = gathered.socket_errors.iter().filter(|(at_ns, _)| within(*at_ns));
        errors.for_each(|(_, errno)| block.socket_errors.add(*errno));
        let resent = gathered.resent.iter().filter(|due_ns| within(**due_ns)).count();
        block.load.resent = resent as u64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::errno::Errno;

    #[test]
    fn errors_of_sockets_and_second_tries_count_in_their_window() {
        let window = Window {
            arm: 0,
            switched_ns: 0,
            from_ns: 10,
            to_ns: 20,
            counted: Block::default(),
            blame: None,
            work: None,
        };
        let gathered = Gathered {
            resent: vec![9, 10, 19, 20],
            socket_errors: [9, 10, 19, 20].map(|at_ns| (at_ns, Errno::EMFILE)).to_vec(),
            ..Gathered::default()
        };
        for (answered_only, count) in [(false, 2), (true, 0)] {
            let mut block = Block::default();
            requests(&mut block, &[&window], (&gathered, answered_only), 100.0).unwrap();
            assert_eq!(
                (block.load.resent, block.socket_errors.count(Errno::EMFILE)),
                (count, count),
                "{answered_only}"
            );
        }
    }
}
