//! The offline side of one block: starts the work, counts it, and ends it.

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
use commensal_reconcile::members;
use rustix::fd::OwnedFd;
use std::io::Read;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a program may take to print its results at the end.
const GRACE: Duration = Duration::from_secs(3);

/// Prefix of the note recorded when the batch workload exits early.
pub(super) const ENDED: &str = "the offline work ended";

/// Running batch work.
pub(super) struct Running {
    /// The process; `None` if the run is attached to existing work.
    pub child: Option<Child>,
    work: Counter,
    expected_cpus: Option<f64>,
    log: Option<Arc<OwnedFd>>,
}

/// How the work is counted.
enum Counter {
    /// By the counter of a built-in antagonist.
    Antagonist(WorkCounter, Kind),
    /// From the program's output.
    Output { reader: Arc<Mutex<WorkReader>>, kind: WorkKind, thread: Option<JoinHandle<()>> },
    /// By CPU time.
    Cpu,
}

/// Starts and ends batch work.
pub(super) struct BatchRunner<'a> {
    pub host: &'a mut dyn Host,
    pub site: &'a mut Testbed,
    pub place: &'a RunDir,
    pub conduct: &'a RunOptions,
}

impl BatchRunner<'_> {
    /// Runs the preparation commands, once before the first block.
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

    /// Starts the batch work; `policy` is that of an isolated arm.
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

    /// Starts the threads that keep every CPU from idling; they are in the idle class while a policy is on.
    pub fn warm(&mut self) -> Result<Child, RunError> {
        let threads = self.site.machine.topology.threads();
        let spec = SpawnSpec::new(&self.conduct.program).arg("workload").arg("burn");
        let mut spec = spec.arg("--threads").arg(threads.to_string());
        // A counter file for the work, which is ignored.
        spec.stdin = Stdin::Fd(Arc::new(
            WorkCounter::new(threads)
                .and_then(|counter| counter.fd().try_clone_to_owned())
                .map_err(RunError::counter)?,
        ));
        Ok(self.site.start(self.host, Side::Warm, None, spec)?)
    }

    /// Starts a built-in antagonist with this number of threads, by default one per CPU, so that no CPU is idle.
    fn antagonist(
        &mut self,
        kind: Kind,
        threads: Option<usize>,
        policy: Option<usize>,
    ) -> Result<Running, RunError> {
        let threads = threads.unwrap_or_else(|| self.site.machine.topology.threads());
        let counter = WorkCounter::new(threads).map_err(RunError::counter)?;
        let fd = counter.fd().try_clone_to_owned().map_err(RunError::counter)?;
        let mut spec = SpawnSpec::new(&self.conduct.program).arg("workload");
        spec = match kind {
            Kind::Cpu => spec.arg("burn"),
            // Unnamed files, in the run's own folder.
            kind => spec.arg("antagonist").arg(kind.to_string()).arg("--dir").arg(self.place.dir.as_os_str()),
        };
        spec = spec.arg("--threads").arg(threads.to_string());
        spec.stdin = Stdin::Fd(Arc::new(fd));
        let child = self.site.start(self.host, Side::Offline, policy, spec)?;
        // Kinds that wait for a device or for other processes use a varying amount of CPU.
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
        // stress-ng prints its figures among its messages.
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

    /// Ends the batch work, and returns the rate if the program reports it only at the end. No process is left in its
    /// cgroup.
    pub fn end(&mut self, experiment: &Experiment, running: &mut Running) -> Result<Option<f64>, RunError> {
        let Some(child) = &mut running.child else {
            self.site.pause(self.host, Side::Offline, true)?;
            return Ok(None);
        };
        if let Counter::Output { kind: WorkKind::StressNg, .. } = &running.work {
            // It prints its figures only when it is asked to end.
            let _ = self.host.signal(&child.process, Signal::INT);
            let deadline = Instant::now() + GRACE;
            while child.try_wait()?.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
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
    /// Work so far.
    fn total(&self) -> Option<f64> {
        match self {
            Counter::Antagonist(counter, _) => counter.read().ok().map(|chunks| chunks as f64),
            Counter::Output { reader, .. } => reader.lock().unwrap_or_else(PoisonError::into_inner).total(),
            Counter::Cpu => None,
        }
    }

    /// The rate that a program printed at its end.
    fn said(&mut self) -> Option<f64> {
        let Counter::Output { reader, thread, kind: WorkKind::StressNg } = self else { return None };
        if let Some(thread) = thread.take() {
            // Everything that could have the other end of the pipe is dead.
            let _ = thread.join();
        }
        reader.lock().unwrap_or_else(PoisonError::into_inner).per_s()
    }
}

impl Running {
    /// Work so far; `None` when it is known only at the end.
    pub fn total(&self) -> Option<f64> {
        self.work.total()
    }

    /// The work of a block: the difference of two totals, the rate that the program printed at its end, or its CPU
    /// time.
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

    /// How the program ended before it was asked to, with its last output.
    pub fn ended(&mut self, host: &mut dyn Host, site: &Testbed) -> Result<Option<String>, RunError> {
        let Some(child) = &mut self.child else {
            let pids = site.group(Side::Offline).any().map(|dir| members::pids(host, dir));
            return Ok(pids
                .is_some_and(|pids| pids.is_ok_and(|pids| pids.is_empty()))
                .then(|| format!("{ENDED}: its group is empty")));
        };
        let said = || self.log.as_ref().map(super::command::tail).unwrap_or_default();
        Ok(child.try_wait()?.map(|exit| format!("{ENDED} with status {}{}", exit.status(), said())))
    }
}
