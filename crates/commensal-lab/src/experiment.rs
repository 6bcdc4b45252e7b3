//! The definition of an experiment: the service (online side), the batch work (offline side), the load, the arms, the
//! rounds and the metrics. The definition is plain data and does not change after the first block.
//!
//! An arm is one condition that the experiment compares: the service alone, next to offline work (contended), or with
//! isolation from offline work (isolated). A block measures one arm once; a round measures every arm once. A run has
//! either long blocks of seconds each, or short windows, in which arms alternate within milliseconds.
//!
//! A file defines an experiment ([`parse`]). The program contains some experiments ([`SHIPPED`]), of which `quickstart`
//! is the default.

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

/// Default request rate of the built-in service: 2 100 requests/s with 100 µs of CPU time each use about a fifth of one
/// CPU.
const RATE_PER_S: f64 = 2_100.0;

/// CPU time of one request to the built-in service (µs).
pub const REQUEST_US: u64 = 100;

/// Request target of the built-in service. A run replaces `{count}` by the number of iterations that take
/// [`REQUEST_US`] of CPU time on this machine.
pub const BUILT_IN_PATH: &str = "/cpu?cpu=1&count={count}";

/// An experiment: the online service, the offline work, the load and the arms.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Name of the experiment.
    pub name: String,
    /// Description in one or two sentences.
    pub about: String,
    /// Seed for the random order of the arms and for the request schedules.
    pub seed: u64,
    /// The design, as the record of a run contains it. Until the first call of [`Experiment::by_windows`], it is a
    /// design with long blocks.
    pub design: Design,
    /// The plan with short windows, or the reason why the experiment needs long blocks.
    pub short: Result<Short, String>,
    /// The arms.
    pub arms: Vec<Arm>,
    /// Messages about arms that the experiment omits because short windows cannot measure them.
    pub left_out: Vec<String>,
    /// Isolations of the isolated arms, in the order of the arms.
    pub isolations: Vec<Isolation>,
    /// The online service.
    pub online: Online,
    /// How load is generated.
    pub load: Load,
    /// The offline batch work.
    pub offline: Offline,
    /// How often a run restarts the service.
    pub restart: Restart,
    /// Programs that the experiment needs on the machine.
    pub requires: Vec<Requirement>,
    /// Free disk space needed (bytes).
    pub disk_bytes: u64,
    /// Whether the experiment needs root.
    pub root: bool,
    /// Text of the experiment file, followed by the files on which it is based as comments; `None` if there is no file.
    pub source: Option<String>,
}

/// The online side.
#[derive(Debug, Clone, PartialEq)]
pub enum Online {
    /// This program's HTTP service.
    BuiltIn,
    /// A server that the run starts and stops.
    Program(Service),
    /// A service that already runs, and that the run does not stop.
    Attached(Attached),
}

/// A service that already runs on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// A systemd unit, a cgroup path, or the name or ID of a container.
    pub to: String,
    /// Address on which the service listens.
    pub addr: std::net::SocketAddr,
}

/// A third-party server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Service {
    /// Files that the run writes into `{dir}` before it starts any program: name and content.
    pub files: BTreeMap<String, String>,
    /// Commands that the run executes once, in this order, before the first round.
    pub prepare: Vec<Vec<String>>,
    /// Command line that starts the server in the foreground.
    pub command: Vec<String>,
    /// How to detect that the server is ready.
    pub ready: Ready,
    /// Maximum time from the start of the server until it is ready.
    pub ready_within: Duration,
    /// Commands that the run executes after each start, once the server is ready.
    pub setup: Vec<Vec<String>>,
    /// Commands that remove what a killed server leaves outside its cgroup, such as a container. The run executes them
    /// before each start and after each stop.
    pub cleanup: Vec<Vec<String>>,
}

/// How a run detects that a server is ready.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Ready {
    /// The server accepts connections on `{port}`.
    #[default]
    Tcp,
    /// The server responds to `GET` of this path with status 2xx.
    Http(String),
    /// The command has exited with status 0.
    Command(Vec<String>),
}

/// How load is generated.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// This program's open-loop generator.
    Http {
        /// Request target.
        path: String,
        /// Request rate.
        rate: Rate,
        /// Number of connections.
        connections: usize,
        /// Distribution of the gaps between requests.
        arrival: Arrival,
    },
    /// An external load tool, whose output the run parses. The tool runs once for the warm-up and once for the
    /// measurement.
    Tool {
        /// The kind of tool, which determines how the run parses the output.
        tool: Tool,
        /// Command line of the tool; the run replaces `{seconds}` by the duration.
        command: Vec<String>,
        /// Text for the tool's standard input.
        stdin: Option<String>,
        /// Path of the file to which the tool writes its result; `None` if the tool prints the result.
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
    /// Fraction of the highest rate that the service sustains alone; the run measures that rate before the first round.
    OfKnee(f64),
}

/// The offline side.
#[derive(Debug, Clone, PartialEq)]
pub enum Offline {
    /// A built-in program that stresses one resource, with one thread per CPU; an arm can name another kind.
    BuiltIn(Kind),
    /// A program that the run starts for each block with offline work.
    Program(Batch),
    /// Work that already runs, and that the run does not stop. The run freezes the work in blocks without offline work,
    /// and measures its progress by its CPU time.
    Attached {
        /// A systemd unit, a cgroup path, or the name or ID of a container.
        to: String,
        /// Number of CPUs that the work uses when it runs alone.
        expected_cpus: Option<f64>,
    },
}

/// Third-party batch work.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Files that the run writes into `{dir}` before it starts any program: name and content.
    pub files: BTreeMap<String, String>,
    /// Commands that the run executes once, in this order, before the first round.
    pub prepare: Vec<Vec<String>>,
    /// Command line of the work, which must not exit by itself.
    pub command: Vec<String>,
    /// How the run measures the progress of the work.
    pub work: WorkKind,
    /// Number of CPUs that the work uses when it runs alone. A contended block in which the work uses far fewer CPUs is
    /// invalid.
    pub expected_cpus: Option<f64>,
    /// Commands that remove what the work leaves outside its cgroup, such as a container. The run executes them before
    /// and after each block.
    pub cleanup: Vec<Vec<String>>,
}

/// How often a run restarts the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// The run restarts the service before every block.
    Block,
    /// The run restarts the service once per round. Instances of a service can differ in performance, so all arms of a
    /// round share one instance.
    #[default]
    Round,
    /// The run does not restart the service.
    Never,
}

/// A program that the experiment needs on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Name of the program in `PATH`.
    pub program: String,
    /// Debian package that contains the program.
    pub package: String,
    /// Arguments with which the program prints its version, for the record.
    pub version: Vec<String>,
    /// Minimum version; `None` if any version is good enough.
    pub at_least: Option<String>,
}

/// The plan of a run with short windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Short {
    /// The initial windows; the run lengthens them if the load requires longer windows.
    pub windows: Windows,
    /// Time limit of the run (seconds).
    pub within_s: f64,
    /// Number of rounds if the run uses long blocks instead.
    pub long_rounds: u32,
}

impl Default for Short {
    /// At 2,100 requests/s, a window of 100 ms contains 210 requests, and ten windows contain more than the 2,000 that
    /// P95 needs.
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

/// Creates an experiment that runs the service of `of` next to each of these built-in kinds of offline work; with
/// `isolated`, each kind also has an arm with isolation.
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
    /// Returns windows that are as long as the load and the isolation mechanisms require.
    #[must_use]
    pub fn windows_for(&self, design: &Design, isolations: &[Isolation]) -> Windows {
        // The kernel's quota period is 100 ms, and a thawed group can immediately spend the quota of a whole period.
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

/// Size of the check whether this machine can decide an experiment: the number of rounds if the check uses long blocks,
/// and its time limit in seconds if it uses short windows.
const CHECK: (u32, f64) = (4, 60.0);

impl Experiment {
    /// Changes the experiment to short windows that fit into a time limit; does nothing if the experiment needs long
    /// blocks.
    pub fn by_windows(&mut self, within_s: f64) {
        let Ok(short) = &mut self.short else { return };
        short.within_s = within_s;
        let short = *short;
        // An arm with offline work alone has no requests, but in a run with short windows the load never pauses.
        self.arms.retain(|arm| arm.role != Role::OfflineAlone);
        // Arms with mechanisms that act slowly are left out, because only long blocks can measure them.
        let mut isolations = std::mem::take(&mut self.isolations).into_iter();
        let (mut arms, mut left_out) = (Vec::new(), Vec::new());
        for arm in std::mem::take(&mut self.arms) {
            let isolation = if arm.role == Role::Isolated { isolations.next() } else { None };
            match isolation.as_ref().and_then(Isolation::carries_over) {
                Some(why) => left_out.push(format!(
                    "arm {} is omitted: {why}; --rounds measures it with long blocks",
                    arm.name
                )),
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

    /// Returns the experiment with long blocks. The result lacks the policy-only arms (isolation without offline work)
    /// and the warm arms (CPUs kept from idling), because only runs with short windows have time for them.
    #[must_use]
    pub fn by_long_blocks(&self) -> Experiment {
        let mut long = self.clone();
        if let Ok(short) = &self.short {
            long.design.rounds = short.long_rounds;
        }
        long.design.without_looks();
        long.design.windows = None;
        long.arms.retain(|arm| !matches!(arm.role, Role::PolicyOnly | Role::Warm));
        long
    }

    /// Returns the experiment with only its two identical arms, which measure how much the machine itself disturbs a
    /// measurement.
    #[must_use]
    pub fn check_of_machine(&self) -> Experiment {
        let mut check = self.clone();
        check.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2));
        check.isolations.clear();
        check.design.sweep = None;
        if check.design.windows.is_some() {
            check.by_windows(CHECK.1);
            if let Some(windows) = check.design.windows {
                check.design.by_full_rounds(windows, &check.arms, CHECK.1);
            }
        } else {
            check.design.rounds = CHECK.0;
        }
        check.design.without_looks();
        check
    }

    /// Returns the expected duration in seconds. With long blocks, this includes settling, warm-up, draining and starts
    /// of the service.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        if let Some(windows) = self.design.windows {
            return self.design.windows_s(windows, &self.arms);
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

    /// Returns the files of both sides: names and contents.
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

    /// Whether the experiment uses any program other than commensal itself.
    #[must_use]
    pub fn has_programs(&self) -> bool {
        !self.commands().is_empty()
    }

    /// Returns the command lines of all programs other than commensal itself, each after the name of its side
    /// (`online`, `load` or `offline`).
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        let mut add =
            |side: &str, command: &[String]| commands.push(format!("{side}: {}", command.join(" ")));
        match &self.online {
            Online::Program(service) => add("online", &service.command),
            Online::Attached(attached) => add("online", &[format!("{} (already running)", attached.to)]),
            Online::BuiltIn => {}
        }
        if let Load::Tool { command, .. } = &self.load {
            add("load", command);
        }
        match &self.offline {
            Offline::Program(batch) => add("offline", &batch.command),
            Offline::Attached { to, .. } => add("offline", &[format!("{to} (already running)")]),
            Offline::BuiltIn(_) => {}
        }
        commands
    }
}
