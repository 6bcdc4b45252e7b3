//! One attempt: creates the cells (each stands for a VM) and starts a program in each of them. All programs start their
//! work at the same moment. At the end, the attempt removes everything, whether it succeeded or not.

use super::watch::{CellSample, Watch, killed};
use super::{RunOptions, stopped};
use crate::cells::{Cells, Field};
use crate::engines;
use crate::error::DensityError;
use crate::experiment::{Accel, Backend, Experiment, Kind, Load};
use crate::pin::vcpu_threads;
use crate::protocol::{Said, line};
use crate::record::{Attempt, Failure, FailureKind};
use crate::vm::Guest;
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_host::{Child, Host, SpawnSpec, Stderr, Stdin, Stdout};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Name under which the record stores the number of OOM kills.
pub(super) const KILLED: &str = "oom-kills";
/// Timeout for a program to become ready, which includes loading data (engines) or booting (guests).
const READY: Duration = Duration::from_secs(240);
/// Timeout for the programs to exit after the request to exit.
const GRACE: Duration = Duration::from_secs(5);
/// Interval at which the conductor checks the programs.
const LOOK: Duration = Duration::from_millis(20);
/// Interval between two entries of the series.
const TICK: Duration = Duration::from_secs(1);
/// Tolerated difference between the steal that the guests count and the run delay that the host counts: this many
/// percentage points, or a fifth of the larger value. The guests and the host read their counters at slightly different
/// moments.
const STEAL_APART: f64 = 3.0;
/// If the samples miss more than this share of the CPU time (in per cent), a note says that the recorded steal is too
/// low.
const UNSEEN: f64 = 5.0;
/// Number of a program's last output lines that are kept as evidence.
const EVIDENCE: usize = 8;

/// Parameters of an attempt.
pub(super) struct Trial<'a> {
    pub experiment: &'a Experiment,
    pub options: &'a RunOptions,
    pub field: &'a Field,
    /// Boot files of the VMs; `None` when cells are not VMs.
    pub guest: Option<&'a Guest>,
    /// Time limit, and a text that explains the limit.
    pub limit: (Duration, String),
    pub stop: &'a AtomicBool,
}

/// Result of an attempt.
pub(super) struct Tried {
    pub attempt: Attempt,
    pub notes: Vec<String>,
    /// Cells that the attempt could not remove.
    pub left: Vec<String>,
}

/// The programs of an attempt.
struct Crew {
    children: Vec<Child>,
    /// Standard inputs of the programs. A program exits when its input is closed.
    inputs: Vec<PipeWriter>,
    said: Receiver<(usize, Said)>,
    ports: Vec<Option<u16>>,
    ready: Vec<bool>,
    done_s: Vec<Option<f64>>,
    stolen_s: Vec<Option<f64>>,
    warnings: BTreeMap<String, u64>,
    results: Vec<(String, String)>,
    last_words: Vec<Vec<String>>,
    failure: Option<Failure>,
}

impl Trial<'_> {
    pub fn attempt(
        &self,
        host: &mut dyn Host,
        (load, concurrency): (&Load, u32),
        placement: (u32, bool),
        known: &mut BTreeMap<String, String>,
    ) -> Result<Tried, DensityError> {
        let cells = self.field.cells(host, &self.experiment.cell_of(load), placement)?;
        let mut notes: Vec<String> =
            cells.unmet.iter().map(|unmet| format!("not enforced: {unmet}")).collect();
        let outcome = self.within(host, &cells, (load, concurrency), known);
        if let Ok(attempt) = &outcome {
            notes.extend(self.remarks(&load.name, attempt));
        }
        // The cells are removed even if the attempt failed.
        let left = self.field.clear(host, cells)?;
        // Remove the spill files of database engines that were killed.
        host.state_remove_all(&engines::scratch(&self.options.data_dir))?;
        Ok(Tried { attempt: outcome?, notes, left })
    }

    fn within(
        &self,
        host: &mut dyn Host,
        cells: &Cells,
        (load, concurrency): (&Load, u32),
        known: &mut BTreeMap<String, String>,
    ) -> Result<Attempt, DensityError> {
        let mut crew = self.start(host, cells, (load, concurrency))?;
        let ready = |crew: &Crew| crew.ready.iter().all(|ready| *ready);
        self.wait(&mut crew, READY, "the programs were not ready", &ready, &mut |_| ())?;
        if crew.failure.is_some() {
            crew.out_of_memory(killed(host, cells));
            return Ok(Attempt { failure: crew.failure, ..Attempt::default() });
        }
        self.pin(host, cells, &crew)?;
        let (cell, patterns) = (&self.experiment.cell, &self.experiment.warnings);
        let mut watch = Watch::begin(host, cells, cell, patterns);
        let begun = Instant::now();
        crew.go();
        let mut next = begun + TICK;
        let done = |crew: &Crew| crew.done_s.iter().all(Option::is_some);
        let (limit, why) = &self.limit;
        self.wait(&mut crew, *limit, &format!("the cells had not finished{why}"), &done, &mut |_| {
            if Instant::now() >= next {
                watch.tick(host, cells);
                next += TICK;
            }
        })?;
        let wall_s = begun.elapsed().as_secs_f64();
        let seen = watch.end(host, cells, patterns);
        crew.judge(&seen, &load.name, known, self.experiment.limits.max_steal_pct);
        crew.end(self.guest.is_some());
        let vcpus = f64::from(cell.vcpu) * cells.groups.len() as f64;
        Ok(crew.attempt((wall_s, vcpus), seen))
    }

    /// Pins each vCPU thread of pinned VMs to its CPU.
    fn pin(&self, host: &mut dyn Host, cells: &Cells, crew: &Crew) -> Result<(), DensityError> {
        if self.guest.is_none() {
            return Ok(());
        }
        for (pinned, child) in cells.pins.iter().zip(&crew.children) {
            // If a process has exited meanwhile, its exit status reports this later.
            for (vcpu, tid) in vcpu_threads(host, child.process.pid).unwrap_or_default() {
                let Some(cpu) = pinned.vcpus.get(vcpu as usize) else { continue };
                let one: CpuSet = [*cpu].into_iter().collect();
                match host.set_affinity(tid, &one) {
                    Err(error) if error.errno == Errno::ESRCH => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }

    /// Returns the notes on an attempt that a reader of the record must know.
    fn remarks(&self, load: &str, attempt: &Attempt) -> Vec<String> {
        let mut notes = Vec::new();
        let emulated = matches!(&self.experiment.cell.backend, Backend::Qemu(vm) if vm.accel == Accel::Tcg);
        if emulated {
            notes.push(
                "the VMs' CPUs are emulated: the run shows that all parts work, but times and steal mean nothing"
                    .to_owned(),
            );
        } else if let Some((host, guest)) = attempt.steal_pct.zip(attempt.guest_steal_pct)
            && (host - guest).abs() > STEAL_APART.max(host.max(guest) / 5.0)
        {
            notes.push(format!("{load}: the steal that the guests counted differs from the run delay of their vCPU threads (guest_steal_pct and \
                 steal_pct in the record)"));
        }
        if attempt.unseen_pct.is_some_and(|unseen| unseen > UNSEEN) {
            notes.push(format!("{load}: threads started and exited between two samples, so the recorded steal is too low (unseen_pct in the \
                 record)"));
        }
        notes
    }

    fn start(
        &self,
        host: &mut dyn Host,
        cells: &Cells,
        (load, concurrency): (&Load, u32),
    ) -> Result<Crew, DensityError> {
        let (tell, said) = channel();
        let count = cells.groups.len();
        let mut crew = Crew {
            children: Vec::with_capacity(count),
            inputs: Vec::with_capacity(count),
            said,
            ports: vec![None; count],
            ready: vec![false; count],
            done_s: vec![None; count],
            stolen_s: vec![None; count],
            warnings: BTreeMap::new(),
            results: Vec::new(),
            last_words: vec![Vec::new(); count],
            failure: None,
        };
        for cell in 0..count {
            let (input, ours) = std::io::pipe()
                .map_err(|error| DensityError::of("no pipe to a cell could be created", &error))?;
            let mut spec = self.command(load, concurrency, cell);
            spec.stdin = Stdin::Fd(Arc::new(input.into()));
            spec.stdout = Stdout::Pipe;
            spec.stderr = Stderr::Stdout;
            let mut child = cells.start(host, cell, spec)?;
            if let Some(output) = child.stdout.take() {
                let tell = tell.clone();
                std::thread::spawn(move || listen(BufReader::new(output), cell, &tell));
            }
            crew.children.push(child);
            crew.inputs.push(ours);
        }
        Ok(crew)
    }

    fn command(&self, load: &Load, concurrency: u32, cell: usize) -> SpawnSpec {
        let vcpu = self.experiment.cell.vcpu;
        let mut spec = match &load.kind {
            Kind::Program(command) => {
                let mut spec = SpawnSpec::new(&command[0]);
                spec.args = command[1..].iter().map(Into::into).collect();
                return spec
                    .arg(cell.to_string())
                    .arg(vcpu.to_string())
                    .arg(concurrency.to_string())
                    .arg(load.work.to_string());
            }
            Kind::Duckdb(tpcds) | Kind::Postgres(tpcds) => {
                let engine = if matches!(load.kind, Kind::Duckdb(_)) { "duckdb" } else { "postgres" };
                let cell = self.experiment.cell_of(load);
                return engines::cell(&self.options.data_dir, engine, *tpcds, (&cell, concurrency));
            }
            Kind::Spin | Kind::Mpp | Kind::Stream(_) => {
                if let Some(guest) = self.guest {
                    return guest.cell(&self.experiment.cell_of(load), concurrency, load.work);
                }
                SpawnSpec::new(&self.options.program).arg("workload").arg("cell")
            }
        };
        if load.kind == Kind::Mpp {
            spec = spec.arg("--barrier");
        }
        if let Kind::Stream(bytes) = &load.kind {
            spec = spec.arg("--stream").arg(bytes.0.to_string());
        }
        let mut option = |name: &str, value: String| spec.args.extend([name.into(), value.into()]);
        option("--cell", cell.to_string());
        option("--vcpu", vcpu.to_string());
        option("--sessions", concurrency.to_string());
        option("--work", load.work.to_string());
        spec
    }

    /// Processes messages from the programs until `enough` returns true, a program fails, or the timeout `patience`
    /// expires. An expired timeout is recorded as a failure. Calls `meanwhile` repeatedly while it
    /// waits.
    fn wait(
        &self,
        crew: &mut Crew,
        patience: Duration,
        late: &str,
        enough: &dyn Fn(&Crew) -> bool,
        meanwhile: &mut dyn FnMut(&Crew),
    ) -> Result<(), DensityError> {
        let deadline = Instant::now() + patience;
        while !enough(crew) && crew.failure.is_none() {
            match crew.said.recv_timeout(LOOK) {
                Ok((cell, said)) => crew.hear(cell, said),
                Err(RecvTimeoutError::Timeout) => {}
                // All programs have closed their outputs; the code below handles their exits.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
            meanwhile(crew);
            if self.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            if crew.failure.is_none() && !enough(crew) {
                crew.look_after()?;
                if Instant::now() > deadline {
                    let reason = format!("{late} after {:.0} s", patience.as_secs_f64());
                    crew.fail(FailureKind::TimedOut, reason, None);
                }
            }
        }
        Ok(())
    }
}

/// Parses the lines of a program's output, and sends them to the conductor through `tell`.
fn listen(output: impl BufRead, cell: usize, tell: &Sender<(usize, Said)>) {
    for text in output.split(b'\n').map_while(Result::ok) {
        if tell.send((cell, line(&String::from_utf8_lossy(&text)))).is_err() {
            return;
        }
    }
}

impl Crew {
    fn hear(&mut self, cell: usize, said: Said) {
        match said {
            Said::Port(port) => self.ports[cell] = Some(port),
            Said::Ready => self.ready[cell] = true,
            Said::Warn(name, count) => *self.warnings.entry(name).or_insert(0) += count,
            Said::Result(key, digest) => self.results.push((key, digest)),
            Said::Done(seconds) => self.done_s[cell] = Some(seconds),
            Said::Steal(seconds) => self.stolen_s[cell] = Some(seconds),
            Said::Fail(what) => {
                let reason = format!("cell {}: {what}", cell + 1);
                let memory = what.to_lowercase().contains("out of memory");
                let kind = if memory { FailureKind::OutOfMemory } else { FailureKind::Query };
                self.fail(kind, reason, Some(cell));
            }
            Said::Other(text) => {
                let words = &mut self.last_words[cell];
                if words.len() == EVIDENCE {
                    words.remove(0);
                }
                words.push(text);
            }
        }
    }

    /// Records a failure. Only the first failure is kept, because later failures are consequences of the first.
    fn fail(&mut self, kind: FailureKind, reason: String, cell: Option<usize>) {
        if self.failure.is_some() {
            return;
        }
        let of = |(index, words): (usize, &Vec<String>)| {
            words.iter().map(move |text| format!("cell {}: {text}", index + 1)).collect::<Vec<_>>()
        };
        let words =
            self.last_words.iter().enumerate().filter(|(index, _)| cell.is_none_or(|cell| cell == *index));
        let mut evidence: Vec<String> = words.flat_map(of).collect();
        let done = self.done_s.iter().filter(|done| done.is_some()).count();
        evidence.push(format!("{done} of {} cells had finished", self.done_s.len()));
        self.failure = Some(Failure { kind, reason, evidence });
    }

    /// Records a failure if a program has exited early.
    fn look_after(&mut self) -> Result<(), DensityError> {
        for cell in 0..self.children.len() {
            let Some(exit) = self.children[cell].try_wait()? else { continue };
            // The last output of the program may still be in transit.
            while let Ok((from, said)) = self.said.recv_timeout(LOOK) {
                self.hear(from, said);
            }
            let reason = format!("the program of cell {} ended with status {}", cell + 1, exit.status());
            self.fail(FailureKind::Ended, reason, Some(cell));
        }
        Ok(())
    }

    fn go(&mut self) {
        let ports: Vec<String> = self.ports.iter().flatten().map(u16::to_string).collect();
        let line = format!("go {}\n", ports.join(" "));
        for input in &mut self.inputs {
            // If a program has exited meanwhile, its exit status reports this later.
            let _ = input.write_all(line.as_bytes());
        }
    }

    /// If the kernel killed a process for lack of memory, records this as the failure, in place of any other failure.
    fn out_of_memory(&mut self, kills: Option<u64>) {
        if kills.is_some_and(|kills| kills > 0) {
            let before = self.failure.take().map(|failure| failure.reason);
            let told = before.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let reason = format!("a cell reached its memory limit, and the kernel killed its program{told}");
            self.fail(FailureKind::OutOfMemory, reason, None);
        }
    }

    /// Checks for failures that appear only in the counters, or only when cells or attempts are compared.
    fn judge(
        &mut self,
        seen: &CellSample,
        test: &str,
        known: &mut BTreeMap<String, String>,
        max_steal: Option<f64>,
    ) {
        self.out_of_memory(seen.counters.get(KILLED).copied());
        let results = std::mem::take(&mut self.results);
        for (key, digest) in results {
            let name = format!("{test} {key}");
            match known.get(&name) {
                Some(first) if *first != digest => {
                    let reason = format!(
                        "the result of {key} differs from its first result (digest {digest} instead of {first})"
                    );
                    self.fail(FailureKind::WrongResult, reason, None);
                }
                Some(_) => {}
                None => {
                    known.insert(name, digest);
                }
            }
        }
        if let (Some(most), Some(steal)) = (max_steal, seen.steal_pct)
            && steal > most
        {
            self.fail(FailureKind::Steal, format!("steal was {steal:.1} %; the limit is {most} %"), None);
        }
    }

    /// Asks the programs to exit. Programs that do not exit are killed later, together with their cgroups. A guest
    /// cannot detect the end of input on its serial line, so the request to a guest is a line (`end`).
    fn end(&mut self, serial: bool) {
        for input in self.inputs.iter_mut().filter(|_| serial) {
            let _ = input.write_all(b"end\n");
        }
        self.inputs.clear();
        let deadline = Instant::now() + GRACE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn attempt(self, (wall_s, vcpus): (f64, f64), seen: CellSample) -> Attempt {
        let stolen: Option<Vec<f64>> = self.stolen_s.iter().copied().collect();
        let mut warnings = seen.warnings;
        for (name, count) in self.warnings {
            *warnings.entry(name).or_insert(0) += count;
        }
        Attempt {
            seconds: self.failure.is_none().then_some(wall_s),
            failure: self.failure,
            warnings,
            counters: seen.counters,
            usage_pct: seen.usage_pct,
            steal_pct: seen.steal_pct,
            guest_steal_pct: stolen.map(|stolen| stolen.iter().sum::<f64>() / (wall_s * vcpus) * 100.0),
            unseen_pct: seen.unseen_pct,
            outer_steal_pct: seen.outer_steal_pct,
            vm_seconds: self.done_s.into_iter().flatten().collect(),
            series: seen.series,
            ..Attempt::default()
        }
    }
}
