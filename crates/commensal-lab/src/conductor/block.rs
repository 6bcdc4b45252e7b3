//! Runs one long block: policy on, offline work on, settle, warm up, measure, offline work off, policy off. The results
//! are differences of counters over the measured part.
//!
//! A run compares arms, that is, conditions such as the service alone, next to offline work, or isolated from offline
//! work by a policy. A block measures one arm once. To settle is to wait without measuring after offline work has
//! started.

use super::batch::{self, BatchRunner};
use super::command::memory_file;
use super::error::RunError;
use super::options::RunOptions;
use super::probe::{Probe, Snapshot, counters, fill, wait_probe};
use super::run_dir::RunDir;
use crate::error::LabError;
use crate::experiment::{Experiment, Load, Rate};
use crate::loadgen::{self, LoadError, LoadResult, LoadSpec, Phase};
use crate::prometheus::{self, QueryError};
use crate::record::{
    Applied, Arm, Block, Lateness, LoadFigures, LoadHistograms, Policy, Query, Role, encode_histogram,
    percentile_us,
};
use crate::site::{ArmPolicy, Side, Testbed, TestbedError};
use crate::tools::{self, Reading, Tool};
use commensal_core::errno::Errno;
use commensal_host::{Host, Stderr, Stdin, Stdout, precise_thread};
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// How long before a due request the generator polls without sleeping. Waking an idle virtual CPU takes almost 100 µs,
/// which is the lateness allowed in a valid block. Polling uses a fifth of one CPU, equally in every arm.
const SPIN: Duration = Duration::from_micros(100);
/// Interval between two readings of the counters.
const TICK: Duration = Duration::from_secs(1);
/// Poll interval while waiting for a program to exit.
const PAUSE: Duration = Duration::from_millis(5);
/// How much longer than its configured duration a load tool may run.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum length of a load tool's output that the run keeps (bytes).
const MOST_OUTPUT: u64 = 256 << 20;

/// Returns the load parameters of one block, or `None` if the experiment uses a load tool. If the experiment's load is
/// a fraction of the knee (the highest rate that the service sustains), the rate is `rate_per_s`.
pub(super) fn requests(
    experiment: &Experiment,
    place: &RunDir,
    (addr, seed, rate_per_s): (SocketAddr, u64, f64),
) -> Option<LoadSpec> {
    let Load::Http { path, rate, connections, arrival } = &experiment.load else { return None };
    let rate = match rate {
        Rate::PerSecond(rate) => *rate,
        Rate::OfKnee(_) => rate_per_s,
    };
    let design = &experiment.design;
    Some(LoadSpec {
        seed,
        spin: SPIN,
        warmup: Duration::from_secs_f64(design.warmup_s),
        connections: *connections,
        arrival: *arrival,
        ..LoadSpec::new(addr, place.fill(path), rate, Duration::from_secs_f64(design.block_s))
    })
}

/// What running a block needs: the machine, the cgroups, the run's directory, its options and its stop flag.
pub(super) struct Runner<'a> {
    pub host: &'a mut dyn Host,
    pub site: &'a mut Testbed,
    pub place: &'a mut RunDir,
    pub options: &'a RunOptions,
    pub stop: &'a AtomicBool,
    /// The process that stands for a hypervisor in a calibration.
    pub stand_in: Option<u32>,
}

/// A block without its offline work; the work totals before and after the measured part; and the end time of that part.
type Measured = (Block, Option<(f64, f64)>, SystemTime);

/// Result of the load part of a block.
enum Answers {
    /// Result of the built-in load generator.
    Own(Box<LoadResult>),
    /// Why the built-in load generator could not connect.
    NotConnected(LoadError),
    /// Result of a load tool, or why the tool failed.
    Tool(Result<Reading, String>),
    /// No load, because the block runs only the offline work.
    None,
}

impl Runner<'_> {
    /// Runs the block of one arm. When this function returns, with or without an error, the policy is off and the
    /// offline work has stopped.
    pub fn run(
        &mut self,
        experiment: &Experiment,
        (arm, favoured): (&mut Arm, bool),
        policy: Option<usize>,
        load: Option<&LoadSpec>,
    ) -> Result<Block, RunError> {
        self.site.favour_online(self.host, favoured)?;
        if let Some(policy) = policy {
            match self.site.isolate(self.host, policy) {
                Err(TestbedError::Scheduler(why)) => return Ok(unscheduled(&arm.name, &why)),
                done => done?,
            }
        }
        let outcome = self.with_offline(experiment, arm, policy, load);
        self.site.release(self.host)?;
        let (mut block, ended) = outcome?;
        block.arm.clone_from(&arm.name);
        if arm.role != Role::OfflineAlone {
            ask(&mut block, &experiment.design.queries, ended);
        }
        Ok(block)
    }

    fn with_offline(
        &mut self,
        experiment: &Experiment,
        arm: &mut Arm,
        policy: Option<usize>,
        load: Option<&LoadSpec>,
    ) -> Result<(Block, SystemTime), RunError> {
        let mut offline = match arm.role {
            Role::Contended | Role::Isolated | Role::OfflineAlone => {
                Some(self.batch_runner().start(experiment, arm, policy)?)
            }
            Role::Baseline | Role::Baseline2 | Role::PolicyOnly | Role::Warm => None,
        };
        let mut warm = match arm.role {
            Role::Warm => Some(self.batch_runner().warm()?),
            _ => None,
        };
        let measured = self.measure(experiment, arm.role, load, offline.as_mut());
        if let Some(policy) = policy {
            // The check is at the end of the block, so that it notices another program that reverted the policy during
            // the block.
            let child = offline.as_ref().and_then(|offline| offline.child.as_ref());
            let now = self.site.policy_now(self.host, policy, child);
            note_policy(arm, &self.site.policies[policy], &now);
        }
        let lost = self.site.scheduler_lost(self.host).map(|why| format!("{UNSCHEDULED}: {why}"));
        // The run releases the policy before it stops the offline work: on a busy machine, a killed thread in the idle
        // class may get no CPU time to exit.
        self.site.release(self.host)?;
        if let Some(child) = &mut warm {
            self.site.stop(self.host, Side::Warm, child)?;
        }
        let said = match &mut offline {
            Some(offline) => self.batch_runner().end(experiment, offline)?,
            None => None,
        };
        let (mut block, totals, ended) = measured?;
        block.notes.extend(lost);
        if let Some(offline) = &offline {
            block.work = offline.work(totals, said, block.cpu.offline, block.measure_s);
        }
        Ok((block, ended))
    }

    fn batch_runner(&mut self) -> BatchRunner<'_> {
        BatchRunner { host: self.host, site: self.site, place: self.place, options: self.options }
    }

    fn measure(
        &mut self,
        experiment: &Experiment,
        role: Role,
        load: Option<&LoadSpec>,
        mut offline: Option<&mut batch::Running>,
    ) -> Result<Measured, RunError> {
        let mut probe = Probe::new(self.stand_in);
        probe.wait_probe = self.options.blame.then(|| wait_probe(self.host, self.site).ok()).flatten();
        probe.counters = [Side::Online, Side::Offline].map(|side| counters(self.host, self.site, side).ok());
        self.sleep(experiment.design.settle_s)?;
        let (before, after, answers) = match (&experiment.load, load) {
            _ if role == Role::OfflineAlone => self.alone(experiment, &mut probe, offline.as_deref())?,
            (Load::Http { .. }, Some(spec)) => self.own(spec, &mut probe, offline.as_deref())?,
            (load, _) => self.tool(experiment, load, &mut probe, offline.as_deref())?,
        };
        let ended = SystemTime::now() - after.at.elapsed();
        let mut block = fill(&before, &after);
        match answers {
            Answers::Own(load) => {
                block.series = probe.series(&load.ticks());
                block.slo = experiment.design.slo.map(|slo| load.slo(&slo));
                own_answers(&mut block, &load).map_err(RunError::latencies)?;
                let client = block.cpu.client;
                block.series.iter_mut().for_each(|tick| tick.cpu.client = client);
            }
            Answers::NotConnected(error) => {
                block.series = probe.series(&[]);
                if let LoadError::Connect { source, .. } = &error
                    && let Some(number) = source.raw_os_error()
                {
                    block.socket_errors.add(Errno(number));
                }
                tool_answers(&mut block, Err(error.to_string()), experiment.design.concurrency)
                    .map_err(RunError::latencies)?;
            }
            Answers::Tool(answers) => {
                block.series = probe.series(&[]);
                tool_answers(&mut block, answers, experiment.design.concurrency)
                    .map_err(RunError::latencies)?;
            }
            Answers::None => block.series = probe.series(&[]),
        }
        if role == Role::Warm {
            // The warm threads, which keep CPUs from idling, are part of the run, so their CPU time counts as the
            // client's.
            let own = block.cpu.client.unwrap_or(0.0) + after.warm_cpus(&before).unwrap_or(0.0);
            block.cpu.client = Some(own);
            block.series.iter_mut().for_each(|tick| tick.cpu.client = Some(own));
        }
        if let Some(offline) = offline.as_mut() {
            block.notes.extend(offline.ended(self.host, self.site)?);
        }
        Ok((block, before.total.zip(after.total), ended))
    }

    /// Waits for `seconds`; returns an error early if the user stops the run.
    fn sleep(&mut self, seconds: f64) -> Result<(), RunError> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            self.not_stopped()?;
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
        }
        Ok(())
    }

    fn not_stopped(&self) -> Result<(), RunError> {
        if self.stop.load(Ordering::Relaxed) { Err(RunError::stopped()) } else { Ok(()) }
    }

    fn alone(
        &mut self,
        experiment: &Experiment,
        probe: &mut Probe,
        offline: Option<&batch::Running>,
    ) -> Result<(Snapshot, Snapshot, Answers), RunError> {
        self.sleep(experiment.design.warmup_s)?;
        let total = || offline.and_then(batch::Running::total);
        let before = probe.take(self.host, self.site, total());
        probe.tick(self.host, self.site);
        let mut left = experiment.design.block_s;
        while left > 0.0 {
            self.sleep(left.min(TICK.as_secs_f64()))?;
            left -= TICK.as_secs_f64();
            probe.tick(self.host, self.site);
            self.site.follow(self.host)?;
        }
        Ok((before, probe.take(self.host, self.site, total()), Answers::None))
    }

    /// Runs the built-in generator in a separate thread, while this thread reads the counters.
    fn own(
        &mut self,
        spec: &LoadSpec,
        probe: &mut Probe,
        offline: Option<&batch::Running>,
    ) -> Result<(Snapshot, Snapshot, Answers), RunError> {
        let (send, phases) = mpsc::channel();
        let stop = self.stop;
        let (mut before, mut after, mut next) = (None, None, Instant::now() + TICK);
        let mut refused = None;
        let result = std::thread::scope(|scope| {
            let generator = scope.spawn(move || {
                // A failure needs no handling, because the record already notes that real-time priority is not
                // permitted.
                let _ = precise_thread();
                loadgen::run(spec, stop, &mut |phase| {
                    let _ = send.send(phase);
                })
            });
            loop {
                let total = || offline.and_then(batch::Running::total);
                match phases.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok(Phase::MeasureStart) => {
                        before = Some(probe.take(self.host, self.site, total()));
                        probe.tick(self.host, self.site);
                        next = Instant::now() + TICK;
                    }
                    Ok(Phase::MeasureEnd) => {
                        after = Some(probe.take(self.host, self.site, total()));
                        probe.tick(self.host, self.site);
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        next += TICK;
                        if before.is_some() && after.is_none() {
                            probe.tick(self.host, self.site);
                        }
                        // The error is returned after the generator has finished.
                        refused = refused.take().or(self.site.follow(self.host).err());
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            generator.join()
        });
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let load = match result.unwrap_or(Err(LoadError::Stopped)) {
            Ok(load) => load,
            // The service died before its first request, or the generator ran into a limit of its own. That is a result of
            // the block, so the run continues.
            Err(error @ LoadError::Connect { .. }) => {
                let before = probe.take(self.host, self.site, None);
                self.sleep(TICK.as_secs_f64())?;
                let after = probe.take(self.host, self.site, None);
                return Ok((before, after, Answers::NotConnected(error)));
            }
            Err(other) => return Err(RunError::load(other)),
        };
        let (Some(before), Some(after)) = (before, after) else { return Err(RunError::stopped()) };
        Ok((before, after, Answers::Own(Box::new(load))))
    }

    fn tool(
        &mut self,
        experiment: &Experiment,
        load: &Load,
        probe: &mut Probe,
        offline: Option<&batch::Running>,
    ) -> Result<(Snapshot, Snapshot, Answers), RunError> {
        let design = &experiment.design;
        if design.warmup_s > 0.0 {
            // The run ignores output and errors of the warm-up; an error will recur in the measurement.
            let _ = self.run_tool(load, design.warmup_s, None)?;
        }
        let total = || offline.and_then(batch::Running::total);
        let before = probe.take(self.host, self.site, total());
        probe.tick(self.host, self.site);
        let said = self.run_tool(load, design.block_s, Some(probe))?;
        let after = probe.take(self.host, self.site, total());
        probe.tick(self.host, self.site);
        let seconds = (after.at - before.at).as_secs_f64();
        let reading = match (said, load) {
            (Ok(text), Load::Tool { tool, concurrency, .. }) => {
                let reading = tools::parse(*tool, &text, *concurrency).map_err(|error| {
                    RunError::Other(LabError::of("the load tool's output cannot be read", &error))
                })?;
                Ok(reading.over(seconds))
            }
            (Err(why), _) => Err(why),
            (Ok(_), Load::Http { .. }) => Err("the service has no address".to_owned()),
        };
        Ok((before, after, Answers::Tool(reading)))
    }

    /// Runs the load tool once; returns the text that the tool printed or wrote to its file, or why the tool failed.
    fn run_tool(
        &mut self,
        load: &Load,
        seconds: f64,
        mut probe: Option<&mut Probe>,
    ) -> Result<Result<String, String>, RunError> {
        let Load::Tool { command, stdin, output, tool, .. } = load else { return Ok(Ok(String::new())) };
        self.place.set("seconds", format!("{}", seconds.ceil()));
        let output = output.as_ref().map(|path| PathBuf::from(self.place.fill(path)));
        if let Some(path) = &output {
            self.host.state_remove(path)?;
        }
        let mut spec = self.place.command(command);
        if let Some(text) = stdin {
            spec.stdin = Stdin::Fd(memory_file(&self.place.fill(text))?);
        }
        spec.stdout = Stdout::Pipe;
        // Some tools print their results to standard error, so the run reads both streams.
        spec.stderr = Stderr::Stdout;
        let mut child = self.site.start(self.host, Side::Client, None, spec)?;
        let reader = child.stdout.take().map(|pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        let (mut next, deadline) =
            (Instant::now() + TICK, Instant::now() + Duration::from_secs_f64(seconds * 2.0) + PATIENCE);
        let exit = loop {
            if let Some(exit) = child.try_wait()? {
                break Some(exit);
            }
            if self.stop.load(Ordering::Relaxed) || Instant::now() > deadline {
                break None;
            }
            if Instant::now() >= next {
                next += TICK;
                if let Some(probe) = probe.as_mut() {
                    probe.tick(self.host, self.site);
                }
                self.site.follow(self.host)?;
            }
            std::thread::sleep(PAUSE);
        };
        self.site.stop(self.host, Side::Client, &mut child)?;
        let said = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        self.not_stopped()?;
        Ok(result(exit.map(|exit| exit.status()), *tool, said, output.map(|path| self.host.read_file(&path))))
    }
}

/// Queries Prometheus for the measured part of a block, after the offline work has stopped. If a query fails, only this
/// block lacks the value of that query.
fn ask(block: &mut Block, queries: &[Query], ended: SystemTime) {
    for query in queries {
        match answer(query, block.measure_s, ended) {
            Ok(value) => block.queried.extend(value.map(|value| (query.metric, value))),
            Err(error) => block.notes.push(format!("{} has no value: {error}", query.metric.label())),
        }
    }
}

fn answer(query: &Query, window_s: f64, at: SystemTime) -> Result<Option<f64>, QueryError> {
    let text = query.query.replace("$window", &format!("{}ms", (window_s * 1e3).round().max(1.0)));
    let url = query.url.parse().map_err(|why| QueryError {
        url: query.url.clone(),
        query: text.clone(),
        why,
        way_out: "mend url",
    })?;
    prometheus::ask(&url, &text, at)
}

/// Evaluates each query once before the first block, so that the user learns of a wrong query immediately instead of
/// after an hour.
pub(super) fn try_queries(queries: &[Query], window_s: f64) -> Result<(), QueryError> {
    queries.iter().try_for_each(|query| answer(query, window_s, SystemTime::now()).map(|_| ()))
}

/// Returns the output of a load tool if the tool succeeded; `file` is the content of the tool's result file, if the
/// tool writes one.
fn result(
    status: Option<i32>,
    tool: Tool,
    said: String,
    file: Option<commensal_host::Result<String>>,
) -> Result<String, String> {
    let words = || {
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        last.into_iter().rev().collect::<Vec<_>>().join(" | ")
    };
    match (status, file) {
        (Some(0), None) => Ok(said),
        (Some(0), Some(Ok(text))) => Ok(text),
        (Some(0), Some(Err(error))) => Err(format!("{tool} wrote no result: {error}: {}", words())),
        (Some(status), _) => Err(format!("{tool} exited with status {status}: {}", words())),
        (None, _) => Err(format!("{tool} did not exit in time: {}", words())),
    }
}

fn own_answers(block: &mut Block, result: &LoadResult) -> Result<(), LabError> {
    let quantile = |q| percentile_us(&result.lateness, q).unwrap_or(0.0);
    let lateness = Lateness { p50: quantile(0.5), p99: quantile(0.99) };
    block.measure_s = result.measured_s;
    block.cpu.client = Some(result.generator_cpu_s / result.measured_s.max(1e-9));
    block.load = result.scheduled();
    block.socket_errors = result.error_kinds.socket_errors.clone();
    block.lateness_us = (!result.lateness.is_empty()).then_some(lateness);
    block.histograms = LoadHistograms::of(&result.latency, &result.service, &result.lateness)?;
    block.mean_us = (!result.latency.is_empty()).then(|| result.latency.mean());
    Ok(())
}

fn tool_answers(
    block: &mut Block,
    answers: Result<Reading, String>,
    concurrency: Option<u32>,
) -> Result<(), LabError> {
    block.concurrency = concurrency;
    match answers {
        Ok(reading) => {
            block.load = LoadFigures {
                achieved_per_s: Some(reading.per_s),
                offered_requests: reading.requests,
                errors: reading.errors,
                ..LoadFigures::default()
            };
            block.histograms.latency = reading.histogram.as_ref().map(encode_histogram).transpose()?;
            block.percentiles_us = reading.percentiles_us;
            block.mean_us = reading.mean_us;
            block.notes.extend(reading.notes);
        }
        Err(why) => {
            // The service answered no request. The block records this as one failed request.
            block.load = LoadFigures {
                achieved_per_s: Some(0.0),
                offered_requests: 1,
                errors: 1,
                ..LoadFigures::default()
            };
            block.notes.push(why);
        }
    }
    Ok(())
}

/// Prefix of the note that a block gets if the arm's scheduler was not loaded.
pub(super) const UNSCHEDULED: &str = "the scheduler of the arm was not in force";

/// Creates the record of a block that could not run, with the reason. The block does not count as a failure of the
/// service.
fn unscheduled(arm: &str, why: &str) -> Block {
    let notes = vec![format!("{UNSCHEDULED}: {why}")];
    Block { arm: arm.to_owned(), notes, ..Block::default() }
}

/// Records the values read back for each control file of an arm's policy. A wrong value from an earlier round stays
/// recorded.
pub(super) fn note_policy(arm: &mut Arm, policy: &ArmPolicy, applied: &[commensal_reconcile::Applied]) {
    let entry = |one: &commensal_reconcile::Applied| Applied {
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
    let (driver, weak) = (policy.driver.clone(), policy.weak.clone());
    arm.policy = Some(Policy { driver, weak, applied: now });
}
