//! The run itself: rounds of blocks in random order, each recorded as it ends.
//!
//! ```text
//! round ─ start the service ─┬─ block: [offline starts] settle, warm up, MEASURE, [offline ends] ─┐
//!                            └────────────────── one per arm, in random order ────────────────────┘
//! ```
//! The service is restarted each round, because an instance can settle on a level of its own; all arms of a
//! round share one. In the isolated arm the policy is on before the first offline instruction runs.

mod block;

use crate::analysis;
use crate::design;
use crate::experiment::{Experiment, REQUEST_US};
use crate::loadgen::{LoadBaseline, LoadError, LoadResult, invalid_reasons, wait_ready};
use crate::record::{self, Block, Machine, Role, Run, Tool};
use crate::site::{self, Side, Site, SiteError};
use crate::workload::cpu::calibrate;
use commensal_host::{Child, Host, SpawnSpec, Stdout};
use commensal_sensors::{machine, mounts};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// How long the service may take to listen.
const READY: Duration = Duration::from_secs(10);

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Its place on the machine could not be made or kept.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The load could not be made.
    #[error("the load generator failed")]
    Load(#[source] LoadError),
    /// The service did not come up.
    #[error("the online service did not start: {0}")]
    Service(String),
    /// The offline work could not be counted.
    #[error("the offline work cannot be counted")]
    Counter(#[source] std::io::Error),
    /// The user asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

impl From<commensal_host::HostError> for LabError {
    fn from(error: commensal_host::HostError) -> LabError {
        LabError::Site(SiteError::Host(error))
    }
}

/// How a run is done on this machine.
#[derive(Debug, Clone)]
pub struct Conduct {
    /// This program: its hidden verbs are the built-in workloads.
    pub program: PathBuf,
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// Name of the scratch group in which knobs are tried before the run.
    pub probe_name: String,
    /// Below which cgroup the run's groups go, if the user insists.
    pub cgroup_root: Option<commensal_core::actual::CgroupPath>,
    /// Port of the service; 0 is any free one.
    pub port: u16,
    /// Whether the judge is to look.
    pub blame: bool,
    /// Command line, for the record.
    pub args: Vec<String>,
    /// Version, for the record.
    pub version: String,
}

/// What happens, for a progress display and for saving as it goes.
#[derive(Debug)]
pub enum Event<'a> {
    /// The place is made: what it is and what was cleaned up.
    Ready(&'a Site),
    /// A block begins.
    Block {
        /// Blocks done.
        done: usize,
        /// Blocks in all.
        total: usize,
        /// Round from 1.
        round: u32,
    },
    /// A round is recorded.
    Round(&'a Run),
    /// The run is over, however it ended; what it made and could not remove, which `commensal restore` will
    /// try again.
    Closed(&'a [String]),
}

/// Runs an experiment to its end and concludes.
///
/// # Errors
/// When it could not be carried out or was stopped. Whatever happens, what it made on the machine is removed
/// before this returns; the rounds finished by then were told as [`Event::Round`].
pub fn run(
    host: &mut dyn Host,
    experiment: &Experiment,
    conduct: &Conduct,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Run, LabError> {
    let mut site =
        site::open(host, conduct.state_dir.clone(), &conduct.probe_name, conduct.cgroup_root.as_ref())?;
    tell(Event::Ready(&site));
    let result = Conductor { host, experiment, conduct, site: &mut site, stop, tell }.rounds();
    let left = site.close(host)?;
    tell(Event::Closed(&left));
    let mut run = result?;
    analysis::conclude(&mut run);
    Ok(run)
}

struct Conductor<'a> {
    host: &'a mut dyn Host,
    experiment: &'a Experiment,
    conduct: &'a Conduct,
    site: &'a mut Site,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event<'_>),
}

impl Conductor<'_> {
    fn rounds(&mut self) -> Result<Run, LabError> {
        let experiment = self.experiment;
        let mut run = record(self.host, experiment, self.conduct, self.site);
        if let Err(error) = commensal_host::precise_thread() {
            let caveat =
                format!("the load generator is not real-time ({error}), so it can be late under load");
            run.caveats.push(caveat);
        }
        let count = calibrate(Duration::from_micros(REQUEST_US));
        let at = |role| experiment.arms.iter().position(|arm| arm.role == role);
        let pair = at(Role::Baseline).zip(at(Role::Baseline2));
        let rounds = usize::try_from(experiment.design.rounds).unwrap_or(usize::MAX);
        let order = design::order(experiment.seed, rounds, experiment.arms.len(), pair);
        for (round, arms) in (0..).zip(&order) {
            let mut service = start_service(self.host, self.site, self.conduct)?;
            let outcome = self.one_round(round, arms, count, &mut service, &mut run);
            let stopped = self.site.stop(self.host, Side::Online, &mut service.child);
            let mut results = outcome?;
            stopped?;
            judge_round(experiment, &mut results);
            run.blocks.extend(results.into_iter().map(|(block, _)| block));
            (self.tell)(Event::Round(&run));
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Stopped);
            }
        }
        Ok(run)
    }

    fn one_round(
        &mut self,
        round: u32,
        arms: &[usize],
        count: u64,
        service: &mut Service,
        run: &mut Run,
    ) -> Result<Vec<(Block, LoadResult)>, LabError> {
        let experiment = self.experiment;
        let in_a_round = experiment.arms.len();
        let total = in_a_round * usize::try_from(experiment.design.rounds).unwrap_or(usize::MAX);
        // Every arm of a round meets the very same requests.
        let seed = experiment.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round));
        let mut results = Vec::with_capacity(arms.len());
        for (pos, arm) in (0..).zip(arms) {
            let done = run.blocks.len() + results.len();
            (self.tell)(Event::Block { done, total, round: round + 1 });
            let spec = block::load(experiment, service.addr, count, seed);
            let mut runner =
                block::Runner { host: self.host, site: self.site, conduct: self.conduct, stop: self.stop };
            let (mut recorded, load) = runner.run(experiment, *arm, &spec, run)?;
            recorded.round = round;
            recorded.pos = pos;
            recorded.online_crashed = service.child.try_wait()?.is_some();
            if recorded.online_crashed {
                // The other arms of the round get an instance of their own.
                self.site.stop(self.host, Side::Online, &mut service.child)?;
                *service = start_service(self.host, self.site, self.conduct)?;
            }
            results.push((recorded, load));
        }
        Ok(results)
    }
}

/// A block is judged against the baseline of its own round: the rules were fixed before the run.
fn judge_round(experiment: &Experiment, results: &mut [(Block, LoadResult)]) {
    let role = |block: &Block| {
        let arm = experiment.arms.iter().find(|arm| arm.name == block.arm);
        arm.map_or(Role::Baseline, |arm| arm.role)
    };
    let baseline = results.iter().find(|(block, _)| role(block) == Role::Baseline);
    let baseline = baseline.map(|(_, load)| LoadBaseline::of(load));
    for (block, load) in results {
        let beside_offline = !matches!(role(block), Role::Baseline | Role::Baseline2);
        let baseline = baseline.unwrap_or_else(|| LoadBaseline::of(load));
        let reasons = invalid_reasons(load, &baseline, beside_offline);
        block.valid = reasons.is_empty();
        block.invalid_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    }
}

/// A run before its first block.
fn record(host: &dyn Host, experiment: &Experiment, conduct: &Conduct, site: &Site) -> Run {
    let mut caveats: Vec<String> =
        site.means.unmet.iter().map(|unmet| format!("not enforced here: {unmet}")).collect();
    caveats.extend(site.means.weak.clone());
    if conduct.blame
        && let Err(why) = block::judge(host, site)
    {
        caveats.push(format!("who made the service wait is not known: {why}"));
    }
    if mounts::layout(&site.hierarchies) == mounts::Layout::None {
        caveats.push("no cgroup is mounted: CPU use of the two sides is not known".to_owned());
    }
    Run {
        schema: record::SCHEMA.to_owned(),
        tool: Tool { version: conduct.version.clone(), args: conduct.args.clone() },
        experiment: experiment.name.clone(),
        seed: experiment.seed,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        machine: describe(host, site),
        design: experiment.design.clone(),
        arms: experiment.arms.clone(),
        caveats,
        ..Run::default()
    }
}

fn describe(host: &dyn Host, site: &Site) -> Machine {
    let identity = machine::identity(host);
    let topology = &site.machine.topology;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let cgroup = match mounts::layout(&site.hierarchies) {
        mounts::Layout::V1 => Some("v1"),
        mounts::Layout::V2 => Some("v2"),
        mounts::Layout::Hybrid => Some("hybrid"),
        mounts::Layout::None => None,
    };
    let mut machine = Machine {
        cpu: identity.cpu.unwrap_or_else(|| "unknown".to_owned()),
        cores: number(topology.cores()),
        threads: number(topology.threads()),
        smt: Some(topology.smt()),
        virt: identity.virtualised.map(|virtualised| if virtualised { "virtual" } else { "none" }.to_owned()),
        kernel: identity.kernel,
        cgroup: cgroup.map(str::to_owned),
        memory_bytes: Some(site.machine.memory.0),
        fingerprint: String::new(),
    };
    let text = serde_json::to_string(&machine).unwrap_or_default();
    let digest = Sha256::digest(text.as_bytes());
    machine.fingerprint =
        format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    machine
}

struct Service {
    child: Child,
    addr: SocketAddr,
}

/// Starts the built-in HTTP service and waits for its "listening" line.
fn start_service(host: &mut dyn Host, site: &Site, conduct: &Conduct) -> Result<Service, LabError> {
    let workers = site.machine.topology.threads().clamp(1, 8);
    let mut spec = SpawnSpec::new(&conduct.program)
        .arg("workload")
        .arg("http")
        .arg("--port")
        .arg(conduct.port.to_string())
        .arg("--workers")
        .arg(workers.to_string());
    spec.stdout = Stdout::Pipe;
    let mut child = site.start(host, Side::Online, false, spec)?;
    let (send, receive) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = send.send(line);
        });
    }
    let line = receive.recv_timeout(READY).unwrap_or_default();
    match line.trim().strip_prefix("listening ").and_then(|addr| addr.parse().ok()) {
        Some(addr) => match wait_ready(addr, "/healthz", Instant::now() + READY) {
            Ok(()) => Ok(Service { child, addr }),
            Err(error) => {
                site.stop(host, Side::Online, &mut child)?;
                Err(LabError::Service(error.to_string()))
            }
        },
        None => {
            let ended = child.try_wait()?;
            site.stop(host, Side::Online, &mut child)?;
            Err(LabError::Service(match ended {
                Some(exit) => format!("it ended with status {} (its message is above)", exit.status()),
                None => format!("it did not listen within {} s", READY.as_secs()),
            }))
        }
    }
}
