//! The definition of a run: sides, load, arms, rounds, times, gates. Plain data, fixed before the first block.
//!
//! Each experiment is a file ([`parse`]); some are shipped ([`SHIPPED`]), `quickstart` first.

mod base;
mod file;
pub mod metrics;
mod overrides;
mod requirements;
mod shipped;
mod short;
mod sweep;
mod values;

pub use base::FileReader;
pub use file::{KEYS, parse, read};
pub use overrides::{Overrides, objective};
pub use requirements::{Checked, Missing, check};
pub use shipped::{QUICKSTART, SHIPPED, shipped};
pub use values::FileError;

use crate::isolation::Isolation;
use crate::loadgen::Arrival;
use crate::record::{Arm, Design, Role, Windows};
use crate::tools::Tool;
use crate::tools::work::WorkKind;
use crate::workload::antagonist::Kind;
use std::collections::BTreeMap;
use std::time::Duration;

/// Default request rate of the built-in service, per second: 2 100 requests of 100 us each are a fifth of one CPU.
const RATE_PER_S: f64 = 2_100.0;

/// CPU time of one request, us.
pub const REQUEST_US: u64 = 100;

/// Request target of the built-in service: `{count}` is replaced by the iterations that take [`REQUEST_US`] on this
/// machine.
pub const BUILT_IN_PATH: &str = "/cpu?cpu=1&count={count}";

/// An experiment: the online service, the offline work, the load and the arms.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// Description in a sentence or two.
    pub about: String,
    /// Seed of the order of arms and of the request schedules.
    pub seed: u64,
    /// The plan of the run, as it is recorded: with long blocks, until [`Experiment::by_windows`] is called.
    pub design: Design,
    /// The plan with short windows, or why there is none.
    pub short: Result<Short, String>,
    /// The arms.
    pub arms: Vec<Arm>,
    /// Arms that the plan has no time for, and why.
    pub left_out: Vec<String>,
    /// Mechanisms of the isolated arms, in the order of the arms.
    pub isolations: Vec<Isolation>,
    /// The service.
    pub online: Online,
    /// How load is generated and its result read.
    pub load: Load,
    /// The batch work.
    pub offline: Offline,
    /// When the service is restarted.
    pub restart: Restart,
    /// Programs that must be installed.
    pub requires: Vec<Requirement>,
    /// Free disk space that is needed, bytes.
    pub disk_bytes: u64,
    /// Whether the experiment needs root.
    pub root: bool,
    /// The text of the experiment file, if any, with the files that it is based on as comments.
    pub source: Option<String>,
}

/// The online side.
#[derive(Debug, Clone, PartialEq)]
pub enum Online {
    /// The HTTP service of this program.
    BuiltIn,
    /// A server that the run starts and stops.
    Program(Service),
    /// A service that already runs and continues afterwards.
    Attached(Attached),
}

/// A service that already runs on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// A systemd unit, a cgroup path, or the name or identifier of a container.
    pub to: String,
    /// Address on which it serves.
    pub addr: std::net::SocketAddr,
}

/// A third-party server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Service {
    /// Files that are written into `{dir}` before anything starts, by name.
    pub files: BTreeMap<String, String>,
    /// Commands that are run once, one after the other, before the first round.
    pub prepare: Vec<Vec<String>>,
    /// Command line that starts it in the foreground.
    pub command: Vec<String>,
    /// How to detect that it is ready.
    pub ready: Ready,
    /// Timeout for becoming ready.
    pub ready_within: Duration,
    /// Commands that are run after each start, once it is ready.
    pub setup: Vec<Vec<String>>,
    /// Commands that remove what a killed server leaves outside its cgroup, such as a container; run after each stop.
    pub cleanup: Vec<Vec<String>>,
}

/// How to detect that a server is ready.
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

/// How load is generated.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// The open-loop generator of this program.
    Http {
        /// Request target.
        path: String,
        /// Request rate.
        rate: Rate,
        /// Number of connections.
        connections: usize,
        /// Distribution of the arrivals.
        arrival: Arrival,
    },
    /// A tool whose output is parsed. It runs once for the warm-up and once for the measurement.
    Tool {
        /// The tool, which decides how the output is parsed.
        tool: Tool,
        /// Its command line; `{seconds}` is replaced by the duration.
        command: Vec<String>,
        /// Its standard input.
        stdin: Option<String>,
        /// The file that it writes its result to, when that is not standard output.
        output: Option<String>,
        /// Number of requests in flight.
        concurrency: Option<u32>,
    },
}

/// Request rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Requests per second.
    PerSecond(f64),
    /// Fraction of the highest rate that the service sustains alone, which is measured before the first round.
    OfKnee(f64),
}

/// The offline side.
#[derive(Debug, Clone, PartialEq)]
pub enum Offline {
    /// An antagonist of this program, one thread per CPU; an arm can name another.
    BuiltIn(Kind),
    /// A program that is started for each block with offline work.
    Program(Batch),
    /// Work that already runs and continues afterwards. It is frozen in blocks without offline work; its CPU time is
    /// its work.
    Attached {
        /// A systemd unit, a cgroup path, or the name or identifier of a container.
        to: String,
        /// CPUs that it uses when it runs alone.
        expected_cpus: Option<f64>,
    },
}

/// Third-party batch work.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Files that are written into `{dir}`, by name.
    pub files: BTreeMap<String, String>,
    /// Commands that are run once, before the first round.
    pub prepare: Vec<Vec<String>>,
    /// Its command line; it must not end by itself.
    pub command: Vec<String>,
    /// How its work is counted.
    pub work: WorkKind,
    /// CPUs that it uses when it runs alone. If it stays far below that in the contended arm, there is no contention.
    pub expected_cpus: Option<f64>,
    /// Commands that remove what it leaves outside its cgroup, such as a container; run after each block.
    pub cleanup: Vec<Vec<String>>,
}

/// When the service is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// For every block.
    Block,
    /// Once per round: instances can differ in performance, and all arms of a round then share one.
    #[default]
    Round,
    /// Never.
    Never,
}

/// A program that must be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Its name in `PATH`.
    pub program: String,
    /// The Debian package that contains it.
    pub package: String,
    /// Arguments that make it print its version, which goes into the record.
    pub version: Vec<String>,
    /// The oldest version that is accepted.
    pub at_least: Option<String>,
}

/// The plan of a run with short windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Short {
    /// The windows; they are lengthened as far as the load requires.
    pub windows: Windows,
    /// Time limit of the run, seconds.
    pub within_s: f64,
    /// Rounds of the same experiment with long blocks.
    pub long_rounds: u32,
}

impl Default for Short {
    /// 100 ms hold 210 requests at 2,100 per second, and ten of them the 2,000 that P95 needs.
    fn default() -> Short {
        let windows = Windows {
            window_s: 0.1,
            guard_s: 0.02,
            tail_s: 0.0,
            per_round: 10,
            contended_s: 2.0,
            contended_every: 2,
        };
        Short { windows, within_s: 170.0, long_rounds: 6 }
    }
}

/// The service of an experiment against each of these antagonists, and with `isolated` also against each one under
/// isolation.
#[must_use]
pub fn profile(of: &Experiment, kinds: &[Kind], isolated: bool) -> Experiment {
    let arm = |name: &str, role| Arm { name: name.to_owned(), role, policy: None, offline: None };
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
    Experiment { design, arms, isolations, offline: Offline::BuiltIn(Kind::Cpu), ..of.by_long_blocks() }
}

impl Short {
    /// Windows as long as the load and the isolation mechanisms require.
    #[must_use]
    pub fn windows_for(&self, design: &Design, isolations: &[Isolation]) -> Windows {
        // A quota's period is 100 ms, and a thawed group can spend a whole quota at once.
        const OF_QUOTA: (f64, f64, u32) = (0.5, 0.2, 4);
        let mut windows = self.windows;
        let quota = isolations.iter().any(Isolation::has_quota);
        if quota {
            windows.per_round = windows.per_round.min(OF_QUOTA.2);
            windows.guard_s = windows.guard_s.max(OF_QUOTA.1);
            windows.window_s = windows.window_s.max(OF_QUOTA.0);
        }
        windows.for_load(design.offered_per_s, design.requests_wanted())
    }
}

/// For the check of the machine: rounds with long blocks, and the time of the variant with short windows, seconds.
const CHECK: (u32, f64) = (4, 60.0);

impl Experiment {
    /// Plans short windows that end within a time limit, where the experiment has a plan for them.
    pub fn by_windows(&mut self, within_s: f64) {
        let Ok(short) = &mut self.short else { return };
        short.within_s = within_s;
        let short = *short;
        // Offline work alone has no requests, and the load goes on all the time.
        self.arms.retain(|arm| arm.role != Role::OfflineAlone);
        // The file asks for short windows: mechanisms that act slowly are only measured with its long blocks.
        let mut isolations = std::mem::take(&mut self.isolations).into_iter();
        let (mut arms, mut left_out) = (Vec::new(), Vec::new());
        for arm in std::mem::take(&mut self.arms) {
            let isolation = if arm.role == Role::Isolated { isolations.next() } else { None };
            match isolation.as_ref().and_then(Isolation::carries_over) {
                Some(why) => left_out
                    .push(format!("arm {} is left out: {why}; --rounds has it, by long blocks", arm.name)),
                None => {
                    self.isolations.extend(isolation);
                    arms.push(arm);
                }
            }
        }
        self.arms = arms;
        self.left_out.extend(left_out);
        let windows = short.windows_for(&self.design, &self.isolations);
        self.design.by_windows(windows, &self.arms, within_s);
    }

    /// The same with long blocks, without the arms that only short windows have time for.
    #[must_use]
    pub fn by_long_blocks(&self) -> Experiment {
        let mut long = self.clone();
        if let Ok(short) = &self.short {
            long.design.rounds = short.long_rounds;
        }
        long.design.looks.clear();
        long.design.windows = None;
        long.arms.retain(|arm| !matches!(arm.role, Role::PolicyOnly | Role::Warm));
        long
    }

    /// The two identical arms alone: how much the machine itself disturbs this measurement.
    #[must_use]
    pub fn check_of_machine(&self) -> Experiment {
        let mut check = self.clone();
        check.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2));
        check.isolations.clear();
        check.design.sweep = None;
        if check.design.windows.is_some() {
            check.by_windows(CHECK.1);
        } else {
            check.design.rounds = CHECK.0;
        }
        check.design.looks.clear();
        check
    }

    /// Expected duration, seconds: blocks with settling, warm-up and draining, and restarts of the service.
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

    /// Whether any program besides this one is started.
    #[must_use]
    pub fn has_programs(&self) -> bool {
        !self.commands().is_empty()
    }

    /// Command lines of the programs that are started on each side besides this one.
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
