//! What a run is made of: sides, load, arms, rounds, times, gates. Plain data, decided before the first block.
//!
//! Built in are `quickstart` and the doctor's noise check; everything else is a file ([`parse`]), of which some are
//! shipped ([`SHIPPED`]).

mod file;
pub mod metrics;
mod overrides;
mod requirements;
mod shipped;
mod sweep;

pub use file::{FileError, parse};
pub use overrides::{Overrides, objective};
pub use requirements::{Checked, Missing, check};
pub use shipped::{SHIPPED, shipped};

use crate::isolation::Isolation;
use crate::loadgen::Arrival;
use crate::record::{Arm, BlameBounds, Design, Metric, Role, Windows};
use crate::tools::Tool;
use crate::tools::work::WorkKind;
use crate::workload::antagonist::Kind;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Requests per second of the built-in service: 2 100 requests of 100 us each are a fifth of one CPU, and
/// five seconds of them give the 10 000 samples that P99 needs with five standard deviations to spare.
const RATE_PER_S: f64 = 2_100.0;

/// CPU time of one request, us.
pub const REQUEST_US: u64 = 100;

/// What the built-in service is asked for: `{count}` is what takes [`REQUEST_US`] on this machine.
pub const BUILT_IN_PATH: &str = "/cpu?cpu=1&count={count}";

/// One request is one wake-up, and to get another task off a CPU takes the kernel 5 to 10 us by any mechanism: at 10,000
/// requests per CPU-second that alone is 50 to 100 ms. Without isolation it is 400 ms (Linux 6.18, two virtual CPUs).
const BLAME: BlameBounds = BlameBounds { wait_ms_per_cpu_s: 100.0, preemption_p99_us: 100.0 };

/// An experiment: who is online, who is offline, how load is made, which arms there are.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// What it is about, in a sentence or two.
    pub about: String,
    /// Seed of the order of arms and of the request schedules.
    pub seed: u64,
    /// The plan of the run, as it is recorded.
    pub design: Design,
    /// The arms.
    pub arms: Vec<Arm>,
    /// How the isolated arms isolate, in their order.
    pub isolations: Vec<Isolation>,
    /// The service.
    pub online: Online,
    /// How load is made and read.
    pub load: Load,
    /// The batch work.
    pub offline: Offline,
    /// When the service is started anew.
    pub restart: Restart,
    /// What must be there.
    pub requires: Vec<Requirement>,
    /// Free disk space that is needed, bytes.
    pub disk_bytes: u64,
    /// Only root can run it.
    pub root: bool,
    /// The file, if it came from one.
    pub source: Option<String>,
}

/// The online side.
#[derive(Debug, Clone, PartialEq)]
pub enum Online {
    /// The HTTP service of this program.
    BuiltIn,
    /// A server that is started for the run and ended with it.
    Program(Service),
    /// A service that runs already, and goes on afterwards.
    Attached(Attached),
}

/// A service of the machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// A unit of systemd, a cgroup's path, or a container by name or identifier.
    pub to: String,
    /// Where it serves.
    pub addr: std::net::SocketAddr,
}

/// A server of somebody else's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Service {
    /// Files that are written into `{dir}` before anything starts, by name.
    pub files: BTreeMap<String, String>,
    /// Commands that are run once, before the first round, one after the other.
    pub prepare: Vec<Vec<String>>,
    /// What starts it, in the foreground.
    pub command: Vec<String>,
    /// How to know that it serves.
    pub ready: Ready,
    /// How long that may take.
    pub ready_within: Duration,
    /// Commands that are run each time once it serves.
    pub setup: Vec<Vec<String>>,
    /// What removes what a killed server leaves outside of its group, such as a container; run after each stop.
    pub cleanup: Vec<Vec<String>>,
}

/// How to know that a server serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ready {
    /// It accepts connections on `{port}`.
    #[default]
    Tcp,
    /// It answers 2xx to `GET` of this path.
    Http(String),
    /// This command succeeds.
    Command(Vec<String>),
}

/// How load is made.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// The open-loop generator of this program.
    Http {
        /// Request target.
        path: String,
        /// How many.
        rate: Rate,
        /// Connections.
        connections: usize,
        /// How requests are spread.
        arrival: Arrival,
    },
    /// A tool whose output is read. It runs once for the warm-up and once for the measurement.
    Tool {
        /// Whose output.
        tool: Tool,
        /// What starts it; `{seconds}` is how long it is to run.
        command: Vec<String>,
        /// Its standard input.
        stdin: Option<String>,
        /// The file that it writes its result to, when that is not its output.
        output: Option<String>,
        /// Requests under way at any time.
        concurrency: Option<u32>,
    },
}

/// How many requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Per second.
    PerSecond(f64),
    /// Of the most that the service sustains alone, which is looked for before the first round.
    OfKnee(f64),
}

/// The offline side.
#[derive(Debug, Clone, PartialEq)]
pub enum Offline {
    /// An antagonist of this program, one thread per CPU; an arm can name another.
    BuiltIn(Kind),
    /// A program that is started for each block with offline work.
    Program(Batch),
    /// Work that runs already and goes on afterwards: it is frozen while a block has none, and its work is its CPU time.
    Attached {
        /// A unit of systemd, a cgroup's path, or a container by name or identifier.
        to: String,
        /// CPUs that it uses with nothing beside it.
        expected_cpus: Option<f64>,
    },
}

/// Batch work of somebody else's.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Files that are written into `{dir}`, by name.
    pub files: BTreeMap<String, String>,
    /// Commands that are run once, before the first round.
    pub prepare: Vec<Vec<String>>,
    /// What starts it; it must not end by itself.
    pub command: Vec<String>,
    /// How its work is counted.
    pub work: WorkKind,
    /// CPUs that it uses with nothing beside it; what it does not reach by far in the contended arm is no contention.
    pub expected_cpus: Option<f64>,
    /// What removes what it leaves outside of its group, such as a container; run after each block.
    pub cleanup: Vec<Vec<String>>,
}

/// When the service is started anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Restart {
    /// For every block.
    Block,
    /// For every round: an instance can settle on a level of its own, and all arms of a round share one.
    #[default]
    Round,
    /// Never.
    Never,
}

/// A program that must be there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Requirement {
    /// Its name in `PATH`.
    pub program: String,
    /// The Debian package that has it.
    pub package: String,
    /// Arguments that make it print its version, which goes into the record.
    #[serde(default)]
    pub version: Vec<String>,
    /// The oldest version that will do.
    #[serde(default)]
    pub at_least: Option<String>,
}

/// What the user may choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Rounds.
    pub rounds: u32,
    /// Measured seconds per block.
    pub block_s: f64,
    /// Seed.
    pub seed: u64,
    /// Harm that still counts as none, per cent.
    pub threshold_pct: f64,
}

impl Choice {
    /// The defaults of `quickstart`: 6 rounds of 5 s blocks, about three minutes.
    pub const QUICKSTART: Choice = Choice { rounds: 6, block_s: 5.0, seed: 1, threshold_pct: 5.0 };

    /// Checks the ranges.
    ///
    /// # Errors
    /// A sentence with the option and its range.
    pub fn validate(&self) -> Result<(), String> {
        if self.rounds == 0 || u64::from(self.rounds) > crate::record::MAX_ROUNDS as u64 {
            return Err(format!("--rounds {} is not within 1 to {}", self.rounds, crate::record::MAX_ROUNDS));
        }
        if !(0.2..=3_600.0).contains(&self.block_s) {
            return Err(format!("--block {} is not within 0.2 to 3600 seconds", self.block_s));
        }
        if !(0.1..=1_000.0).contains(&self.threshold_pct) {
            return Err(format!("--threshold {} is not within 0.1 to 1000 per cent", self.threshold_pct));
        }
        Ok(())
    }
}

fn arm(name: &str, role: Role) -> Arm {
    Arm { name: name.to_owned(), role, policy: None, offline: None }
}

fn design(choice: &Choice) -> Design {
    let p99 = RATE_PER_S * choice.block_s >= 10_500.0;
    let mut percentiles = vec![Metric::P50, Metric::P90, Metric::P95];
    percentiles.extend(p99.then_some(Metric::P99));
    Design {
        rounds: choice.rounds,
        block_s: choice.block_s,
        settle_s: 0.5,
        warmup_s: 1.0,
        offered_per_s: Some(RATE_PER_S),
        threshold_pct: choice.threshold_pct,
        gates: vec![Metric::P50, Metric::P90, Metric::Qps],
        percentiles,
        blame: Some(BLAME),
        ..Design::default()
    }
}

fn built_in(name: &str, about: &str, choice: &Choice, arms: Vec<Arm>) -> Experiment {
    let isolated = arms.iter().filter(|arm| arm.role == Role::Isolated).count();
    Experiment {
        name: name.to_owned(),
        about: about.to_owned(),
        seed: choice.seed,
        design: design(choice),
        arms,
        isolations: vec![Isolation::default(); isolated],
        online: Online::BuiltIn,
        load: Load::Http {
            path: BUILT_IN_PATH.to_owned(),
            rate: Rate::PerSecond(RATE_PER_S),
            connections: 64,
            arrival: Arrival::Poisson,
        },
        offline: Offline::BuiltIn(Kind::Cpu),
        restart: Restart::Round,
        requires: Vec::new(),
        disk_bytes: 0,
        root: false,
        source: None,
    }
}

/// The main job: an HTTP service beside CPU burners, with and without isolation, and alone twice.
#[must_use]
pub fn quickstart(choice: &Choice) -> Experiment {
    let arms = vec![
        arm("baseline", Role::Baseline),
        arm("baseline2", Role::Baseline2),
        arm("contended", Role::Contended),
        arm("isolated", Role::Isolated),
    ];
    let about = "the built-in HTTP service beside CPU burners on every CPU; needs nothing but this program";
    built_in("quickstart", about, choice, arms)
}

/// The windows of `quickstart`: 100 ms hold 210 requests, and ten of them the 2,000 that P95 needs.
const WINDOWS: Windows =
    Windows { window_s: 0.1, guard_s: 0.02, per_round: 10, contended_s: 2.0, contended_every: 2 };

/// The same by short windows, within a time.
#[must_use]
pub fn quickstart_within(choice: &Choice, seconds: f64) -> Experiment {
    let mut experiment = quickstart(choice);
    experiment.arms.insert(2, arm("policy-only", Role::PolicyOnly));
    experiment.arms.insert(3, arm("warm", Role::Warm));
    // Its error is twice the median's in the same time.
    experiment.design.threshold_overrides_pct.insert(Metric::P90, 2.0 * choice.threshold_pct);
    experiment.design.by_windows(WINDOWS, &experiment.arms, seconds);
    experiment
}

/// The two identical arms alone: what the machine itself does to a measurement.
#[must_use]
pub fn noise_check(choice: &Choice) -> Experiment {
    let arms = vec![arm("baseline", Role::Baseline), arm("baseline2", Role::Baseline2)];
    built_in("doctor", "the built-in HTTP service alone, twice", choice, arms)
}

/// The service of an experiment against each of these antagonists, and with `isolated` against each under isolation as well.
#[must_use]
pub fn profile(of: &Experiment, kinds: &[Kind], isolated: bool) -> Experiment {
    let mut arms = vec![arm("baseline", Role::Baseline), arm("baseline2", Role::Baseline2)];
    for kind in kinds {
        let name = kind.to_string();
        let of = |name: String, role| Arm { offline: Some(kind.to_string()), ..arm(&name, role) };
        arms.push(of(name.clone(), Role::Contended));
        arms.extend(isolated.then(|| of(format!("{name}, isolated"), Role::Isolated)));
    }
    let isolations =
        arms.iter().filter(|arm| arm.role == Role::Isolated).map(|_| Isolation::default()).collect();
    let design = Design { sweep: None, ..of.design.clone() };
    Experiment { design, arms, isolations, offline: Offline::BuiltIn(Kind::Cpu), ..of.clone() }
}

impl Experiment {
    /// How long it will take, seconds: blocks with their settling, warm-up and draining, and restarts of the service.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        if let Some(windows) = self.design.windows {
            return f64::from(self.design.rounds) * self.design.round_s(windows, &self.arms);
        }
        let block = self.design.settle_s + self.design.warmup_s + self.design.block_s + 0.1;
        let start = if matches!(self.online, Online::BuiltIn) { 0.4 } else { 2.0 };
        let starts = match self.restart {
            Restart::Block => self.arms.len() as f64,
            Restart::Round => 1.0,
            Restart::Never => 0.0,
        };
        f64::from(self.design.rounds) * (start * starts + block * self.arms.len() as f64)
    }

    /// The files of both sides, by name.
    pub fn files(&self) -> impl Iterator<Item = (&String, &String)> {
        let online = match &self.online {
            Online::Program(service) => Some(&service.files),
            Online::BuiltIn | Online::Attached(_) => None,
        };
        let offline = match &self.offline {
            Offline::Program(batch) => Some(&batch.files),
            Offline::BuiltIn(_) | Offline::Attached { .. } => None,
        };
        online.into_iter().chain(offline).flatten()
    }

    /// Whether something besides this program is started.
    #[must_use]
    pub fn has_programs(&self) -> bool {
        !self.commands().is_empty()
    }

    /// What is started on each side besides this program, as command lines.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        let mut add =
            |side: &str, command: &[String]| commands.push(format!("{side}: {}", command.join(" ")));
        match &self.online {
            Online::Program(service) => add("online", &service.command),
            Online::Attached(attached) => add("online", &[format!("{} as it runs", attached.to)]),
            Online::BuiltIn => {}
        }
        if let Load::Tool { command, .. } = &self.load {
            add("load", command);
        }
        match &self.offline {
            Offline::Program(batch) => add("offline", &batch.command),
            Offline::Attached { to, .. } => add("offline", &[format!("{to} as it runs")]),
            Offline::BuiltIn(_) => {}
        }
        commands
    }
}
