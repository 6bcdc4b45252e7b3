//! The offline side of a run: starts the offline (batch) work, measures how much work it does, and stops it.
//!
//! A run compares arms, that is, conditions such as the service alone or next to offline work; a block measures one arm
//! once. An isolated arm has a policy: settings that make offline work yield to the service. An antagonist is a
//! built-in program that stresses one resource. A run can start its offline work, or attach to work that already runs.

use super::command::run_command;
use super::error::RunError;
use super::options::RunOptions;
use super::run_dir::RunDir;
use crate::experiment::{Batch, Experiment, Offline};
use crate::record::{Arm, Work};
use crate::site::{Side, Testbed};
use crate::tools::work::{WorkKind, WorkReader};
use crate::workload::antagonist::{self, Kind};
use crate::workload::burn::{CHUNK_ITERATIONS, WorkCounter};
use commensal_host::{Child, Host, Signal, SpawnSpec, Stderr, Stdin, Stdout};
use commensal_reconcile::{lift, lower, members};
use rustix::fd::OwnedFd;
use std::io::Read;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a program gets to print its results after the run has sent a stop signal.
const GRACE: Duration = Duration::from_secs(3);

/// Prefix of the note that a block gets if the offline work exits early.
pub(super) const ENDED: &str = "the offline work ended";

/// Offline work that is running.
pub(super) struct Running {
    /// The process of the work; `None` for work that the run is attached to.
    pub child: Option<Child>,
    work: Counter,
    expected_cpus: Option<f64>,
    log: Option<Arc<OwnedFd>>,
}

/// Source from which the run measures the amount of offline work.
enum Counter {
    /// The counter file of a built-in antagonist.
    Antagonist(WorkCounter, Kind),
    /// The output of a program; a thread reads it while the program runs.
    Output { reader: Arc<Mutex<WorkReader>>, kind: WorkKind, thread: Option<JoinHandle<()>> },
    /// The CPU time of the work.
    Cpu,
}

/// Starts and stops offline work.
pub(super) struct BatchRunner<'a> {
    pub host: &'a mut dyn Host,
    pub site: &'a mut Testbed,
    pub place: &'a RunDir,
    pub options: &'a RunOptions,
}

impl BatchRunner<'_> {
    /// Runs the experiment's preparation commands for the offline work once, before the first block. Freezes work that
    /// the run is attached to.
    pub fn prepare(&mut self, experiment: &Experiment, stop: &AtomicBool) -> Result<(), RunError> {
        let batch = match &experiment.offline {
            Offline::Program(batch) => batch,
            Offline::Attached { .. } => return Ok(self.site.pause(self.host, Side::Offline, true)?),
            Offline::BuiltIn(_) => return Ok(()),
        };
        for command in &batch.prepare {
            run_command(self.host, self.site, self.place, Side::Client, command, stop)?;
        }
        Ok(())
    }

    /// Starts the offline work of an arm, or thaws work that the run is attached to; `policy` is the index of the arm's
    /// policy, if the arm has one.
    pub fn start(
        &mut self,
        experiment: &Experiment,
        arm: &Arm,
        policy: Option<usize>,
    ) -> Result<Running, RunError> {
        let named = arm.offline.as_ref().and_then(|name| antagonist::of_arm(name));
        match (&experiment.offline, named) {
            (_, Some((kind, threads))) => self.antagonist(kind, threads, policy),
            (Offline::BuiltIn(kind), None) => self.antagonist(*kind, None, policy),
            (Offline::Program(batch), None) => self.program(batch, policy),
            (Offline::Attached { expected_cpus, .. }, None) => {
                self.site.pause(self.host, Side::Offline, false)?;
                Ok(Running { child: None, work: Counter::Cpu, expected_cpus: *expected_cpus, log: None })
            }
        }
    }

    /// Starts the warm threads, which keep every CPU from idling. The threads are in the idle scheduling class while a
    /// policy is on.
    pub fn warm(&mut self) -> Result<Child, RunError> {
        let threads = self.site.survey.machine.topology.threads();
        let spec = SpawnSpec::new(&self.options.program).arg("workload").arg("burn");
        let mut spec = spec.arg("--threads").arg(threads.to_string());
        // The program requires a work counter, but the run does not use the counter's value.
        spec.stdin = Stdin::Fd(Arc::new(
            WorkCounter::new(threads)
                .and_then(|counter| counter.fd().try_clone_to_owned())
                .map_err(RunError::counter)?,
        ));
        Ok(self.site.start(self.host, Side::Warm, None, spec)?)
    }

    /// Starts a built-in antagonist with `threads` threads; `None` starts one thread per CPU, so that no CPU is idle.
    fn antagonist(
        &mut self,
        kind: Kind,
        threads: Option<usize>,
        policy: Option<usize>,
    ) -> Result<Running, RunError> {
        let threads = threads.unwrap_or_else(|| self.site.survey.machine.topology.threads());
        let counter = WorkCounter::new(threads).map_err(RunError::counter)?;
        let fd = counter.fd().try_clone_to_owned().map_err(RunError::counter)?;
        let mut spec = SpawnSpec::new(&self.options.program).arg("workload");
        spec = match kind {
            Kind::Cpu => spec.arg("burn"),
            // These antagonists create unnamed files in the run's own directory.
            kind => spec.arg("antagonist").arg(kind.to_string()).arg("--dir").arg(self.place.dir.as_os_str()),
        };
        spec = spec.arg("--threads").arg(threads.to_string());
        spec.stdin = Stdin::Fd(Arc::new(fd));
        let child = self.site.start(self.host, Side::Offline, policy, spec)?;
        // The expected CPU use of other antagonists is unknown, because they wait for a device or for other processes.
        let computes = matches!(kind, Kind::Cpu | Kind::Vector | Kind::L2 | Kind::L3 | Kind::Memory);
        let expected_cpus = computes.then_some(threads as f64);
        let child = Some(child);
        Ok(Running { child, work: Counter::Antagonist(counter, kind), expected_cpus, log: None })
    }

    fn program(&mut self, batch: &Batch, policy: Option<usize>) -> Result<Running, RunError> {
        self.clean(batch)?;
        let mut spec = self.place.command(&batch.command);
        spec.stdout = Stdout::Pipe;
        let log = super::command::log()?;
        // stress-ng prints its results together with its messages on standard error.
        spec.stderr = if batch.work == WorkKind::StressNg { Stderr::Stdout } else { Stderr::Fd(log.clone()) };
        let mut child = self.site.start(self.host, Side::Offline, policy, spec)?;
        let reader = Arc::new(Mutex::new(WorkReader::new(batch.work)));
        let thread = child.stdout.take().map(|mut output| {
            let reader = Arc::clone(&reader);
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = output.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..read]);
                    reader.lock().unwrap_or_else(PoisonError::into_inner).feed(&text);
                }
            })
        });
        let work = Counter::Output { reader, kind: batch.work, thread };
        Ok(Running { child: Some(child), work, expected_cpus: batch.expected_cpus, log: Some(log) })
    }

    /// Stops the offline work, or freezes work that the run is attached to. Returns the rate of work if the program
    /// reports the rate only on exit. Work that the run started leaves no process in its cgroup.
    pub fn end(&mut self, experiment: &Experiment, running: &mut Running) -> Result<Option<f64>, RunError> {
        let Some(child) = &mut running.child else {
            self.site.pause(self.host, Side::Offline, true)?;
            return Ok(None);
        };
        if let Counter::Output { kind: WorkKind::StressNg, .. } = &running.work {
            // stress-ng prints its results only when SIGINT interrupts it, and cannot handle the signal while the
            // kernel gives it no CPU (`cpu.qos_level` below 0). The run moves it to a higher level until it exits.
            let lifted = lift(self.host, &child.process).ok().flatten();
            let _ = self.host.signal(&child.process, Signal::INT);
            let deadline = Instant::now() + GRACE;
            while child.try_wait()?.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(lifted) = lifted {
                lower(self.host, &lifted);
            }
        }
        self.site.stop(self.host, Side::Offline, child)?;
        if let Offline::Program(batch) = &experiment.offline {
            self.clean(batch)?;
        }
        Ok(running.work.said())
    }

    fn clean(&mut self, batch: &Batch) -> Result<(), RunError> {
        let never = AtomicBool::new(false);
        for command in &batch.cleanup {
            match run_command(self.host, self.site, self.place, Side::Client, command, &never) {
                Ok(()) | Err(RunError::Command { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

impl Counter {
    /// Returns the units of work done so far; `None` if the source has no such count.
    fn total(&self) -> Option<f64> {
        match self {
            Counter::Antagonist(counter, _) => counter.read().ok().map(|chunks| chunks as f64),
            Counter::Output { reader, .. } => reader.lock().unwrap_or_else(PoisonError::into_inner).total(),
            Counter::Cpu => None,
        }
    }

    /// Returns the rate that stress-ng printed when it exited; `None` for other work.
    fn said(&mut self) -> Option<f64> {
        let Counter::Output { reader, thread, kind: WorkKind::StressNg } = self else { return None };
        if let Some(thread) = thread.take() {
            // The read ends, because all processes that could hold the other end of the pipe are dead.
            let _ = thread.join();
        }
        reader.lock().unwrap_or_else(PoisonError::into_inner).per_s()
    }
}

impl Running {
    /// Returns the units of work done so far; `None` if they are unknown until the program exits.
    pub fn total(&self) -> Option<f64> {
        self.work.total()
    }

    /// Returns the work of a block in units per second. The rate comes from the two `totals` (before, after), from
    /// `said` (the rate that the program printed when it exited), or from the CPU time in `cpus`.
    pub fn work(
        &self,
        totals: Option<(f64, f64)>,
        said: Option<f64>,
        cpus: Option<f64>,
        seconds: f64,
    ) -> Work {
        let between = totals.map(|(before, after)| (after - before).max(0.0) / seconds);
        let (offline, unit) = match &self.work {
            Counter::Antagonist(_, Kind::Cpu) => {
                (between, format!("chunks of {CHUNK_ITERATIONS} iterations"))
            }
            Counter::Antagonist(_, kind) => (between, kind.unit().to_owned()),
            Counter::Cpu | Counter::Output { kind: WorkKind::CpuSeconds, .. } => {
                (cpus, WorkKind::CpuSeconds.unit().to_owned())
            }
            Counter::Output { kind, .. } => (said.or(between), kind.unit().to_owned()),
        };
        Work { offline, unit: offline.map(|_| unit), expected_cpus: self.expected_cpus }
    }

    /// Returns a message with exit status and last output if the program exited before the run stopped it. For work
    /// that the run is attached to, returns a message if the work's cgroup is empty.
    pub fn ended(&mut self, host: &mut dyn Host, site: &Testbed) -> Result<Option<String>, RunError> {
        let Some(child) = &mut self.child else {
            let pids = site.group(Side::Offline).any().map(|dir| members::pids(host, dir));
            return Ok(pids
                .is_some_and(|pids| pids.is_ok_and(|pids| pids.is_empty()))
                .then(|| format!("{ENDED}: its cgroup is empty")));
        };
        let said = || self.log.as_ref().map(super::command::tail).unwrap_or_default();
        Ok(child.try_wait()?.map(|exit| format!("{ENDED} with status {}{}", exit.status(), said())))
    }
}
