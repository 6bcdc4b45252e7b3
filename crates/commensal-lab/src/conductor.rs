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
use crate::loadgen::{LoadBaseline, LoadError, LoadResult, invalid_reasons};
use crate::record::{self, Block, Machine, Role, Run, Tool};
use crate::site::{self, Side, Site, SiteError};
use crate::workload::cpu::calibrate;
use commensal_core::knob::Version;
use commensal_host::{Child, Host, SpawnSpec, Stdout};
use commensal_sensors::{machine, mounts};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

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
    #[error("stopped before the end; everything that the run made has been removed")]
    Stopped,
    /// Something of the run could not be removed.
    #[error("the run could not remove all that it made: {0}; `commensal restore` will try again")]
    Left(String),
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
    /// Port of the service; 0 is any free one.
    pub port: u16,
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
}

/// Runs an experiment to its end and concludes.
///
/// # Errors
/// When it could not be carried out or was stopped. Whatever happens, what it made on the machine is removed
/// before this returns, and what could not be is in the error.
pub fn run(
    host: &mut dyn Host,
    experiment: &Experiment,
    conduct: &Conduct,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Run, LabError> {
    let mut site = site::open(host, conduct.state_dir.clone())?;
    tell(Event::Ready(&site));
    let result = rounds(host, experiment, conduct, &mut site, stop, tell);
    let left = site.close(host)?;
    let mut run = result?;
    if !left.is_empty() {
        return Err(LabError::Left(left.join("; ")));
    }
    analysis::conclude(&mut run);
    Ok(run)
}

fn rounds(
    host: &mut dyn Host,
    experiment: &Experiment,
    conduct: &Conduct,
    site: &mut Site,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Run, LabError> {
    let mut run = record(host, experiment, conduct, site);
    let precise = commensal_host::precise_thread();
    if let Err(error) = &precise {
        run.caveats
            .push(format!("the load generator is not real-time ({error}), so it can be late under load"));
    }
    let count = calibrate(Duration::from_micros(REQUEST_US));
    let roles: Vec<Role> = experiment.arms.iter().map(|arm| arm.role).collect();
    let at = |role| roles.iter().position(|other| *other == role);
    let pair = at(Role::Baseline).zip(at(Role::Baseline2));
    let rounds = usize::try_from(experiment.design.rounds).unwrap_or(usize::MAX);
    let order = design::order(experiment.seed, rounds, roles.len(), pair);
    let total = order.iter().map(Vec::len).sum();
    let mut done = 0;
    for (round, arms) in (0..).zip(&order) {
        let mut service = start_service(host, site, conduct)?;
        let mut results: Vec<(Block, LoadResult)> = Vec::new();
        let outcome: Result<(), LabError> = (0..).zip(arms).try_for_each(|(pos, arm)| {
            tell(Event::Block { done, total, round: round + 1 });
            done += 1;
            let seed =
                experiment.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round) * 64 + u64::from(pos));
            let spec = block::load(experiment, service.addr, count, seed);
            let mut block = block::Runner { host, site, conduct, stop };
            let (mut recorded, load) = block.run(experiment, *arm, &spec, &mut run)?;
            recorded.round = round;
            recorded.pos = pos;
            recorded.online_crashed = service.child.try_wait()?.is_some();
            results.push((recorded, load));
            Ok(())
        });
        let stopped = site.stop(host, Side::Online, &mut service.child);
        outcome?;
        stopped?;
        judge_round(&roles, experiment, &mut results);
        run.blocks.extend(results.into_iter().map(|(block, _)| block));
        tell(Event::Round(&run));
        if stop.load(Ordering::Relaxed) {
            return Err(LabError::Stopped);
        }
    }
    Ok(run)
}

/// A block is judged against the baseline of its own round: the rules were fixed before the run.
fn judge_round(roles: &[Role], experiment: &Experiment, results: &mut [(Block, LoadResult)]) {
    let is_baseline = |block: &Block| {
        experiment.arms.iter().zip(roles).any(|(arm, role)| arm.name == block.arm && *role == Role::Baseline)
    };
    let baseline =
        results.iter().find(|(block, _)| is_baseline(block)).map(|(_, load)| LoadBaseline::of(load));
    for (block, load) in results {
        let reasons = invalid_reasons(load, &baseline.unwrap_or_else(|| LoadBaseline::of(load)));
        block.valid = reasons.is_empty();
        block.invalid_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    }
}

/// A run before its first block.
fn record(host: &dyn Host, experiment: &Experiment, conduct: &Conduct, site: &Site) -> Run {
    let mut caveats: Vec<String> =
        site.means.unmet.iter().map(|unmet| format!("not enforced here: {unmet}")).collect();
    caveats.extend(site.means.weak.clone());
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
        blocks: Vec::new(),
        caveats,
        results: Vec::new(),
        noise_floor_pct: std::collections::BTreeMap::new(),
        attribution: Vec::new(),
        offline: Vec::new(),
        verdict: None,
        reasons: Vec::new(),
        notes: Vec::new(),
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
        Some(addr) => Ok(Service { child, addr }),
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

/// The version of the hierarchy that has the cpu controller, for a report.
#[must_use]
pub fn cpu_version(site: &Site) -> Option<Version> {
    let cpu = commensal_core::knob::Controller::Cpu;
    site.hierarchies
        .iter()
        .find(|hierarchy| hierarchy.controllers.contains(&cpu))
        .map(|hierarchy| hierarchy.version)
}
