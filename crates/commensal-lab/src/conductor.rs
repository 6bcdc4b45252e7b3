//! Runs an experiment, and records each block when it finishes.
//!
//! ```text
//! round ─ start the service ─┬─ block: [offline starts] settle, warm up, MEASURE, [offline stops] ─┐
//!                            └────────────────── one per arm, in random order ─────────────────────┘
//! ```
//! An arm is one condition: the service alone, next to offline work (contended), or isolated from offline work by a
//! policy. A block measures one arm once; a round measures every arm once, in random order. By default, the conductor
//! restarts the service in each round, because instances of a service can differ in performance; all arms of a round
//! share one instance. In an isolated arm, the policy is on before the first offline instruction runs.
//!
//! A run either has long blocks, of seconds each, or short windows, in which arms alternate within milliseconds.

mod batch;
mod block;
mod command;
mod error;
mod neighbour;
mod options;
mod probe;
mod run_dir;
mod service;
mod slowing;
mod validity;
mod windows;

use crate::analysis::{self, stretch::after};
use crate::experiment::{Experiment, Load, REQUEST_US, Rate, Restart};
use crate::loadgen::{KneeEnd, KneeLimits, knee};
use crate::record::{self, Arm, Block, Machine, RecordedBy, Role, Run};
use crate::site::{self, Claim, Guard, Side, Testbed, TestbedError, Wanted};
use crate::workload::cpu::calibrate;
use batch::BatchRunner;
use commensal_core::actual::Hierarchy;
use commensal_core::topology;
use commensal_core::windows::{blocks, stretch::Next};
use commensal_host::Host;
use commensal_sensors::{machine, mounts};
pub use error::RunError;
pub use neighbour::Neighbour;
pub use options::{Event, RunOptions};
use run_dir::RunDir;
use service::{Running, ServiceRunner};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
pub use validity::by_new_rules;
pub(crate) use validity::judge_round;

/// Runs an experiment to its end and computes the verdict.
///
/// # Errors
/// If the experiment cannot run, or the user stops it. In every case, the function first removes everything that the
/// run created on the machine. [`Event::Recorded`] has reported the finished blocks.
pub fn run(
    host: &mut dyn Host,
    experiment: &Experiment,
    options: &RunOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Run, RunError> {
    let claim = Claim::take(host)?;
    let limited = commensal_reconcile::as_from_a_free_shell(host);
    block::try_queries(&experiment.design.queries, experiment.design.block_s)
        .map_err(|error| RunError::new(format!("metric: {error}")))?;
    let attached = service::attached(host, experiment)?;
    let wanted = Wanted {
        isolations: &experiment.isolations,
        attached: [attached[0].as_ref(), attached[1].as_ref()],
        freezes: experiment.design.windows.is_some(),
    };
    let mut site = site::open(
        host,
        options.state_dir.clone(),
        &options.probe_name,
        options.cgroup_root.as_ref(),
        &wanted,
    )?;
    // If an arm's effects outlast a switch by more than milliseconds, the run uses long blocks instead of short
    // windows.
    let carries_over = site.carries_over().filter(|_| experiment.design.windows.is_some());
    let long = carries_over.is_some().then(|| experiment.by_long_blocks());
    let experiment = long.as_ref().unwrap_or(experiment);
    let freezes = experiment.design.windows.is_some() || wanted.attached[Side::Offline as usize].is_some();
    let guard = match freezes.then(|| Guard::start(host, &options.program, &options.state_dir)).transpose() {
        Ok(guard) => guard,
        Err(error) => {
            site.close(host)?;
            return Err(error.into());
        }
    };
    tell(Event::Ready(&site));
    let place = RunDir::make(host, experiment, &site, &options.program, (&options.state_dir, options.port));
    let folder = options.state_dir.join("lab-files");
    let result = place.and_then(|place| {
        let rate_per_s = experiment.design.offered_per_s.unwrap_or(0.0);
        let port = options.port;
        let site = &mut site;
        let stand_in = None;
        Conductor {
            host,
            experiment,
            options,
            place,
            site,
            stop,
            tell,
            rate_per_s,
            port,
            carries_over,
            stand_in,
        }
        .whole()
    });
    let removed = host.state_remove_all(&folder);
    let left = site.close(host)?;
    // The guard (a process that thaws work if this run is killed) finds nothing to restore, and exits before this
    // program reports the end of the run.
    let watched = guard.map(Guard::end).transpose();
    tell(Event::Closed(&left));
    let mut run = result?;
    removed?;
    watched?;
    run.caveats.extend(claim.beside(host));
    run.limited = limited;
    analysis::conclude(&mut run);
    Ok(run)
}

struct Conductor<'a> {
    host: &'a mut dyn Host,
    experiment: &'a Experiment,
    options: &'a RunOptions,
    place: RunDir,
    site: &'a mut Testbed,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event<'_>),
    /// Rate of the load in requests per second.
    rate_per_s: f64,
    /// Port of the built-in service; 0 for any free port.
    port: u16,
    /// Why the run uses long blocks although the experiment plans short windows.
    carries_over: Option<String>,
    /// The process that stands for a hypervisor in a calibration; its CPU time counts as steal.
    stand_in: Option<u32>,
}

/// Index of an arm that takes part in the run, and index of the arm's policy, if it has one.
type Chosen = (usize, Option<usize>);

impl Conductor<'_> {
    fn whole(&mut self) -> Result<Run, RunError> {
        let experiment = self.experiment;
        let mut run = record(self.host, experiment, self.options, self.site);
        if let Some(why) = &self.carries_over {
            run.caveats.push(format!("the run uses long blocks instead of short windows: {why}"));
        }
        let chosen = self.choose(&mut run);
        self.place.set("count", calibrate(Duration::from_micros(REQUEST_US)).to_string());
        let begun = Instant::now();
        if let Some(earlier) = &self.options.earlier {
            go_on(&mut run, earlier)?;
        }
        self.service_runner().prepare(experiment)?;
        BatchRunner { host: self.host, site: self.site, place: &self.place, options: self.options }
            .prepare(experiment, self.stop)?;
        let beside = self.options.beside.as_ref().map(|beside| beside.process(&self.options.program));
        let hypervisor = matches!(self.options.beside, Some(Neighbour::Steal(_)));
        let start = |mut process: commensal_host::SpawnSpec| {
            if hypervisor {
                // Only the root cgroup is sure to have bandwidth for real-time priorities.
                (process.die_with_parent, process.own_process_group) = (true, true);
                return self.host.spawn(&process).map_err(TestbedError::from);
            }
            self.site.start(self.host, Side::Client, None, process)
        };
        let mut beside = beside.map(start).transpose()?;
        self.stand_in = beside.as_ref().filter(|_| hypervisor).map(|child| child.process.pid);
        let mut service = None;
        let outcome = self.find_knee(&mut run, &mut service).and_then(|()| match run.design.windows {
            Some(windows) => self.by_windows(&mut run, &chosen, &mut service, windows),
            None => self.rounds(&mut run, &chosen, &mut service, begun),
        });
        let ended = self.end(&mut service);
        let early =
            beside.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
        if early && hypervisor {
            run.caveats.push(
                "the stand-in for a hypervisor ended before the run: it needs root and real-time priority"
                    .to_owned(),
            );
        }
        let left = beside.as_mut().map(|child| self.site.stop(self.host, Side::Client, child));
        outcome?;
        ended?;
        left.transpose()?;
        note_once(&mut run);
        Ok(run)
    }

    /// Chooses the arms that this machine supports. The record notes why other arms are left out.
    fn choose(&mut self, run: &mut Run) -> Vec<Chosen> {
        let mut policies = 0..;
        let all: Vec<Chosen> = (self.experiment.arms.iter().enumerate())
            .map(|(index, arm)| (index, if arm.role == Role::Isolated { policies.next() } else { None }))
            .collect();
        let obstacle =
            |policy: Option<usize>| policy.and_then(|policy| self.site.policies[policy].obstacle.clone());
        let (possible, not): (Vec<Chosen>, Vec<Chosen>) =
            all.into_iter().partition(|(_, policy)| obstacle(*policy).is_none());
        for (arm, policy) in not {
            let (name, why) = (&self.experiment.arms[arm].name, obstacle(policy).unwrap_or_default());
            run.caveats.push(format!("arm {name} is omitted: {why}"));
        }
        run.arms = possible.iter().map(|(arm, _)| self.experiment.arms[*arm].clone()).collect();
        let first = possible.iter().find_map(|(_, policy)| *policy);
        let mut chosen = Vec::new();
        for (index, (_, policy)) in possible.into_iter().enumerate() {
            // An arm with a policy but without offline work gets the policy of the first isolated arm.
            let under = matches!(run.arms[index].role, Role::PolicyOnly | Role::Warm);
            chosen.push((index, if under { first } else { policy }));
        }
        chosen
    }

    fn service_runner(&mut self) -> ServiceRunner<'_> {
        ServiceRunner {
            host: self.host,
            site: self.site,
            place: &self.place,
            options: self.options,
            port: self.port,
            stop: self.stop,
        }
    }

    fn start<'s>(&mut self, service: &'s mut Option<Running>) -> Result<&'s mut Running, RunError> {
        if service.is_none() {
            let experiment = self.experiment;
            *service = Some(self.service_runner().start(experiment)?);
        }
        service.as_mut().ok_or_else(RunError::stopped)
    }

    fn end(&mut self, service: &mut Option<Running>) -> Result<(), RunError> {
        let experiment = self.experiment;
        match service.take() {
            Some(mut running) => self.service_runner().end(experiment, &mut running),
            None => Ok(()),
        }
    }

    /// Measures the knee, that is, the highest rate that the service sustains alone, if the load is a fraction of the
    /// knee. A continued run takes the knee from the record.
    fn find_knee(&mut self, run: &mut Run, service: &mut Option<Running>) -> Result<(), RunError> {
        let Load::Http { rate: Rate::OfKnee(share), .. } = self.experiment.load else { return Ok(()) };
        if let (Some(rate), Some(_)) = (run.design.offered_per_s, run.design.knee_per_s) {
            self.rate_per_s = rate;
            return Ok(());
        }
        let addr = self.start(service)?.addr;
        let Some(spec) = block::requests(self.experiment, &self.place, (addr, run.seed, 100.0)) else {
            return Ok(());
        };
        let found = knee(&spec, &KneeLimits::default(), self.stop, &mut |_| ()).map_err(RunError::load)?;
        // The search has overloaded the service, so the rounds start with a new instance.
        self.end(service)?;
        (self.tell)(Event::Knee(found.per_s));
        self.rate_per_s = found.per_s * share;
        if found.end != KneeEnd::Service {
            run.caveats.push(
                "the service may sustain a higher rate than the recorded knee: the search stopped early"
                    .to_owned(),
            );
        }
        run.design.knee_per_s = Some(found.per_s);
        run.design.offered_per_s = Some(self.rate_per_s);
        if let (Some(_), Ok(short)) = (run.design.windows, &self.experiment.short) {
            // The length of the windows depends on this load.
            let windows = short.windows_for(&run.design, &self.experiment.isolations);
            run.design.with_windows(windows, &run.arms, short.within_s);
        }
        Ok(())
    }

    fn rounds(
        &mut self,
        run: &mut Run,
        chosen: &[Chosen],
        service: &mut Option<Running>,
        begun: Instant,
    ) -> Result<(), RunError> {
        let experiment = self.experiment;
        let at = |role| run.arms.iter().position(|arm| arm.role == role);
        let pair = at(Role::Baseline).zip(at(Role::Baseline2));
        let rounds = usize::try_from(experiment.design.rounds).unwrap_or(usize::MAX);
        let order = blocks(experiment.seed, rounds, chosen.len(), pair);
        let total = rounds.saturating_mul(chosen.len());
        // In a continued run, the block times continue after the last block of the interrupted part.
        let before = run.blocks.iter().filter_map(|block| Some(block.at_s? + block.measure_s));
        let before = before.fold(0.0, f64::max);
        for (round, arms) in (0..).zip(&order) {
            // All arms of a round get the same requests at the same times.
            let seed = experiment.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round));
            for (pos, arm) in (0..).zip(arms) {
                let (arm, policy) = chosen[*arm];
                if run.blocks.iter().any(|block| block.round == round && block.arm == run.arms[arm].name) {
                    continue;
                }
                (self.tell)(Event::Block { done: run.blocks.len(), total, round: round + 1, left: None });
                let at_s = before + begun.elapsed().as_secs_f64();
                let mut recorded = self.one(run, (arm, policy), seed, service)?;
                (recorded.round, recorded.pos, recorded.at_s) = (round, pos, Some(at_s));
                run.blocks.push(recorded);
                judge_round(run, round);
                (self.tell)(Event::Recorded(run));
                if self.stop.load(Ordering::Relaxed) {
                    return Err(RunError::stopped());
                }
            }
            if experiment.restart != Restart::Never {
                self.end(service)?;
            }
            if after(run, round + 1) == Some(Next::End) {
                break;
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        run: &mut Run,
        (arm, policy): Chosen,
        seed: u64,
        service: &mut Option<Running>,
    ) -> Result<Block, RunError> {
        let experiment = self.experiment;
        if experiment.restart == Restart::Block {
            self.end(service)?;
        }
        let addr = self.start(service)?.addr;
        let load = block::requests(experiment, &self.place, (addr, seed, self.rate_per_s));
        let mut runner = block::Runner {
            host: self.host,
            site: self.site,
            place: &mut self.place,
            options: self.options,
            stop: self.stop,
            stand_in: self.stand_in,
        };
        let favoured = favoured(run, run.arms[arm].role);
        let mut recorded = runner.run(experiment, (&mut run.arms[arm], favoured), policy, load.as_ref())?;
        let crashed = match service.as_mut() {
            Some(service) => service.gone(self.host, self.site)?,
            None => false,
        };
        recorded.online_crashed = crashed;
        if crashed {
            // The other arms of the round get a new instance of the service.
            self.end(service)?;
        }
        Ok(recorded)
    }
}

/// Whether an arm with this role gets the online settings of the policies, such as a higher CPU weight. Arms that are
/// compared with each other need equal online settings. Contended arms never have them; policy-only, warm, isolated and
/// offline-alone arms always do. The baselines have them only if the run has no policy-only arm.
fn favoured(run: &Run, role: Role) -> bool {
    match role {
        Role::Contended => false,
        Role::Baseline | Role::Baseline2 => run.arm_with(Role::PolicyOnly).is_none(),
        Role::PolicyOnly | Role::Warm | Role::Isolated | Role::OfflineAlone => true,
    }
}

/// Continues the record of an interrupted run; returns an error if experiment, machine, design or arms differ.
fn go_on(run: &mut Run, earlier: &Run) -> Result<(), RunError> {
    let refuse = |what: &str| {
        Err(RunError::new(format!(
            "this record cannot be continued, because {what} differs; run without --resume to start a new record"
        )))
    };
    if (&earlier.experiment, &earlier.source) != (&run.experiment, &run.source) {
        return refuse("the experiment");
    }
    if earlier.machine.fingerprint != run.machine.fingerprint {
        return refuse("the machine");
    }
    // Copies values that the earlier part measured; planned values must be equal.
    let mut planned = earlier.design.clone();
    (planned.offered_per_s, planned.knee_per_s) = (run.design.offered_per_s, run.design.knee_per_s);
    if planned.windows.is_some() && run.design.windows.is_some() {
        // The length of the windows depends on the load and on the results of the first rounds.
        (planned.windows, planned.rounds) = (run.design.windows, run.design.rounds);
        planned.looks.clone_from(&run.design.looks);
        planned.levels.clone_from(&run.design.levels);
        planned.allotted = run.design.allotted;
    }
    if (earlier.seed, &planned) != (run.seed, &run.design) {
        return refuse("the design");
    }
    let names = |arms: &[Arm]| arms.iter().map(|arm| arm.name.clone()).collect::<Vec<_>>();
    if names(&earlier.arms) != names(&run.arms) {
        return refuse("the list of arms that this machine supports");
    }
    run.design = earlier.design.clone();
    run.started.clone_from(&earlier.started);
    run.arms.clone_from(&earlier.arms);
    run.blocks.clone_from(&earlier.blocks);
    let blocks = run.blocks.len();
    run.caveats.push(format!("the run was interrupted after {blocks} blocks and continued later"));
    Ok(())
}

/// If at least half of the blocks have a note, moves that note from the blocks to the run.
fn note_once(run: &mut Run) {
    let mut notes: Vec<(String, usize)> = Vec::new();
    for note in run.blocks.iter().flat_map(|block| &block.notes) {
        match notes.iter_mut().find(|(known, _)| known == note) {
            Some((_, times)) => *times += 1,
            None => notes.push((note.clone(), 1)),
        }
    }
    let every = run.blocks.len().div_ceil(2);
    for (note, _) in notes.iter().filter(|(_, times)| *times >= every) {
        run.caveats.push(note.clone());
        run.blocks.iter_mut().for_each(|block| block.notes.retain(|one| one != note));
    }
}

/// Creates the record of a run before its first block.
fn record(host: &mut dyn Host, experiment: &Experiment, options: &RunOptions, site: &Testbed) -> Run {
    let mut caveats: Vec<String> = experiment.left_out.clone();
    for (policy, arm) in
        site.policies.iter().zip(experiment.arms.iter().filter(|arm| arm.role == Role::Isolated))
    {
        caveats.extend(policy.unmet.iter().map(|unmet| format!("not enforced in arm {}: {unmet}", arm.name)));
        caveats.extend(policy.weak.clone());
    }
    caveats.dedup();
    if let Err(error) = commensal_host::precise_thread() {
        caveats.push(format!("the load generator has no real-time priority ({error}), so it may send requests late on a busy machine"));
    }
    if options.blame
        && let Err(why) = probe::wait_probe(host, site)
    {
        caveats.push(format!("the run cannot record what the service waits for: {why}"));
    }
    if mounts::layout(&site.survey.hierarchies) == mounts::Layout::None {
        caveats.push("no cgroup hierarchy is mounted, so the CPU use of the service and of the offline work is unknown".to_owned());
    }
    Run {
        schema: record::SCHEMA.to_owned(),
        tool: RecordedBy { version: options.version.clone(), args: options.args.clone() },
        experiment: experiment.name.clone(),
        seed: experiment.seed,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        machine: describe(host, &site.survey.machine, &site.survey.hierarchies),
        source: experiment.source.clone(),
        commands: experiment.commands(),
        programs: options.programs.iter().map(|(program, version)| format!("{program}: {version}")).collect(),
        no_cpi: probe::counters(host, site, Side::Online).err().map(|error| error.to_string()),
        design: experiment.design.clone(),
        arms: experiment.arms.clone(),
        caveats,
        ..Run::default()
    }
}

/// Describes the machine for the record.
#[must_use]
pub fn describe(host: &dyn Host, of: &topology::Machine, hierarchies: &[Hierarchy]) -> Machine {
    let identity = machine::identity(host);
    let topology = &of.topology;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let cgroup = match mounts::layout(hierarchies) {
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
        memory_bytes: Some(of.memory.0),
        fingerprint: String::new(),
    };
    let text = commensal_core::text::json(&machine).unwrap_or_default();
    let digest = Sha256::digest(text.as_bytes());
    machine.fingerprint =
        format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    machine
}
