//! Verbs and options, and what their exit status means: 0 the promise holds, 1 it does not, 2 trouble; the
//! lab adds 3 inconclusive and 4 environment invalid; `run` gives the command's own status.

mod agent;
mod agent_args;
mod apply;
mod blame;
mod canary;
mod density;
mod density_args;
mod density_pin;
mod density_run;
mod doctor;
mod lab;
mod lab_calibrate;
mod lab_history;
mod lab_history_args;
mod lab_replay;
mod lab_report;
mod load;
mod oom;
mod queue;
mod restore;
mod run;
mod sched;
mod sched_args;
mod status;
mod top;
mod workload;

pub use agent_args::{Agent, AgentOrder, Canary, Guard, OnExit};
pub use density_args::{Density, DensityVerb};
pub use lab_calibrate::LabCalibrate;
pub use lab_history_args::{BaselineVerb, LabBaseline, LabHistory};
pub use sched_args::{Sched, SchedVerb};

use crate::context::Context;
use crate::output;
use anyhow::anyhow;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs batch work beside latency-critical services on the same machine without the services noticing, and
/// proves it.
#[derive(Debug, Parser)]
#[command(name = "commensal", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal].
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// First part of the names of commensal's own cgroups: NAME-online and NAME-offline.
    #[arg(long, global = true, value_name = "NAME", default_value = "commensal")]
    pub cgroup_prefix: String,

    /// Make commensal's own cgroups below this one [default: the root; as another user, or where systemd manages the
    /// tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it.
    #[arg(long, global = true, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,

    /// Print what happens in detail (to standard error).
    #[arg(long, short, global = true)]
    pub verbose: bool,

    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Say what this machine can enforce, by trying it in a scratch cgroup; what is missing and what would help.
    Doctor(Json),
    /// Show every write that `apply` would make, in order, with its reason. Changes nothing: knobs are tried in
    /// an empty scratch cgroup only.
    Plan(Groups),
    /// Make it so, once; every original value is kept in the undo journal.
    Apply(Groups),
    /// Put back every original value and remove commensal's own cgroups. Works with everything else dead.
    Restore(Json),
    /// Start a command inside a group; signals and the exit status pass through.
    Run(Run),
    /// Keep the groups in force: follow members, put back what others change, guard the machine if the agent dies. SIGHUP reads
    /// the groups again, SIGTERM ends it.
    Agent(Agent),
    /// Bring the machine into its safe state when the agent is gone or hangs (started by the agent, or as a unit of its own).
    Guard(Guard),
    /// Say what is in force: groups, limits, queues, and what is wrong. Exit status 1 when not all that was asked for is, 2
    /// without an agent.
    Status(Json),
    /// Say why each limit of a group is what it is: the rule that won, and the formula with its inputs.
    Explain(Explain),
    /// Watch the groups live; ? tells the keys.
    Top(Top),
    /// Show who runs and who waits in the admission queues, and whether one is held closed. Changes nothing.
    Queue(Groups),
    /// Say who held the CPU while a service waited for it: exactly, from inside the kernel, and without a change to the
    /// machine. Needs root (or CAP_BPF and CAP_PERFMON).
    Blame(Blame),
    /// Measure what co-location costs.
    Lab(Lab),
    /// Say how many VMs or databases fit on a server, and what it costs.
    Density(Density),
    /// Load, watch and unload the scheduler that keeps offline work off the CPU while the machine runs.
    Sched(Sched),
    /// The lab's built-in workloads (started by the lab itself).
    #[command(hide = true)]
    Workload(Workload),
}

/// Output for programs.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which groups.
#[derive(Debug, Args)]
pub struct Groups {
    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The group to start the command in.
    #[arg(long, short, value_name = "GROUP")]
    pub group: String,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Fail at once when the group's queue would make it wait.
    #[arg(long)]
    pub no_wait: bool,

    /// Wait in the group's queue for at most this long, such as 30s or 10min [default: the group's queue.timeout, which
    /// also is the most].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    pub queue_timeout: Option<Duration>,

    /// The command and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `commensal explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The group.
    pub group: String,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Print one screen as text, with every group; so does an output that is no terminal.
    #[arg(long)]
    pub once: bool,
}

/// `commensal blame`.
#[derive(Debug, Args)]
pub struct Blame {
    /// Who waited: a systemd unit, a cgroup (/path), a process by its number, a container by its name or identifier, or a
    /// group of the groups file [default: its online groups, against its offline ones].
    pub target: Vec<String>,

    /// Whose guilt to judge; named in the same ways. May be given several times.
    #[arg(long, value_name = "WHO")]
    pub against: Vec<String>,

    /// How long to look, such as 30s or 5min [default: until Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub r#for: Option<Duration>,

    /// Exit with 1 when those of --against are guilty, and with 3 when nothing can be said.
    #[arg(long)]
    pub check: bool,

    /// Wait blamed on them that is allowed, ms per second that the targets had a CPU [default: 50].
    #[arg(long, value_name = "MS", value_parser = bound)]
    pub blame_below: Option<f64>,

    /// How long they may stay on a CPU that a target was woken on, us, 99th percentile [default: 100].
    #[arg(long, value_name = "US", value_parser = bound)]
    pub preempt_below: Option<f64>,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Redraw a whole screen every second instead of adding lines.
    #[arg(long, conflicts_with = "json")]
    pub top: bool,

    /// Write a picture with a flame-like bar per waiter and culprit; - prints it.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write picture and figures as one HTML file; - prints it.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write counters in Prometheus' text format, every five seconds and at the end (for node_exporter's textfile
    /// collector); - prints them at the end.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,

    /// Leave interrupts to the tasks that they interrupt: a little cheaper.
    #[arg(long)]
    pub no_interrupts: bool,

    /// Compare every wait with the kernel's own figure.
    #[arg(long)]
    pub verify: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal lab`.
#[derive(Debug, Args)]
pub struct Lab {
    /// Which part.
    #[command(subcommand)]
    pub verb: LabVerb,
}

/// `commensal lab …`.
#[derive(Debug, Subcommand)]
pub enum LabVerb {
    /// Run an experiment: verdict, table, run.json, report.html. Exit status 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4
    /// INVALID.
    Run(Box<LabRun>),
    /// List the experiments that come with this program.
    List,
    /// Print an experiment's file, to be changed and run.
    Show(LabName),
    /// Look whether everything that an experiment needs is there. Exit status 0 when it is, 2 when not.
    Check(LabName),
    /// Run one service against each built-in antagonist, and print what each does to it. Exit status 0, or 4 when this
    /// machine cannot tell.
    Profile(LabProfile),
    /// Say within about a minute whether this machine can decide an experiment's threshold, and how long a run would take: its two
    /// identical arms alone. Exit status 0 when it can, 4 when not.
    Doctor(LabDoctor),
    /// Say how often the lab is right on this machine: runs with harms of known size in place of isolation, and a table of
    /// right, wrong and open answers. Exit status 0 when the goals hold, 1 when not.
    Calibrate(LabCalibrate),
    /// Show a recorded run again, with the verdict that its blocks support.
    Report(LabReport),
    /// Load an HTTP service on a schedule that does not wait for it, and say how long requests took since they were due.
    /// Exit status 4 when the measurement cannot be believed.
    Load(Box<LabLoad>),
    /// Compare two recorded runs of one machine and one plan, or one with a baseline.
    Diff(LabDiff),
    /// Runs that are kept under a name, to compare later ones with.
    Baseline(LabBaseline),
    /// Show how the answers of this machine moved from run to run.
    History(LabHistory),
}

/// `commensal lab load`.
#[derive(Debug, Args)]
pub struct LabLoad {
    /// What to ask for, such as http://127.0.0.1:8080/path. Only http://.
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    pub url: Option<String>,

    /// Requests per second, whatever the service does.
    #[arg(long, value_name = "N", value_parser = load::rate)]
    #[arg(required_unless_present_any = ["closed", "find_knee", "listen"])]
    pub rate: Option<f64>,

    /// Length of the measured part [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = load::time)]
    pub r#for: Option<Duration>,

    /// Load before it, of which nothing counts.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "2s")]
    pub warmup: Duration,

    /// Connections; a request that finds none free waits, and that wait counts.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,

    /// How requests are spread: poisson as from independent users, constant with equal gaps.
    #[arg(long, value_enum, default_value_t = Spacing::Poisson)]
    pub arrival: Spacing,

    /// Decides the schedule: the same seed, the same due times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// A request without an answer so long after it was due is given up, and counts with this time.
    #[arg(long, value_name = "TIME", value_parser = load::time, default_value = "5s")]
    pub timeout: Duration,

    /// Instead of a rate: N connections that send again as soon as they are answered, as most tools do. It under-states
    /// stalls.
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "find_knee"])]
    pub closed: Option<usize>,

    /// An objective, such as p99=5ms: how many windows and requests met it.
    #[arg(long, value_name = "P=TIME", value_parser = load::objective)]
    pub slo: Option<(commensal_lab::record::Metric, f64)>,

    /// Length of a window of the objective, whole seconds.
    #[arg(long, value_name = "TIME", value_parser = load::whole_seconds, default_value = "1s", requires = "slo")]
    pub window: Duration,

    /// Search the highest rate that the service keeps up with, instead of measuring at one: open-loop steps of 1.5 s.
    #[arg(long, conflicts_with_all = ["rate", "slo", "series", "hdr", "for", "from"])]
    pub find_knee: bool,

    /// Print one line per second as well.
    #[arg(long)]
    pub series: bool,

    /// Write an HdrHistogram interval log, one interval per second.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub hdr: Option<PathBuf>,

    /// Let the load come from another machine, where `commensal lab load --listen` runs.
    #[arg(long, value_name = "HOST:PORT")]
    pub from: Option<String>,

    /// Wait for the orders of `--from` and carry them out, one after the other, until Ctrl-C. Whoever reaches the port can
    /// make this machine send requests: --rate and --for bound what is accepted [default: 10000 per second, 60s].
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["from", "closed", "find_knee", "slo", "series", "hdr"])]
    pub listen: Option<SocketAddr>,

    /// Let --listen take an address that others can reach.
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// How requests are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Spacing {
    /// Exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// `commensal lab profile`.
#[derive(Debug, Args)]
pub struct LabProfile {
    /// The experiment whose service and load are taken: a name of `lab list`, or a file.
    #[arg(default_value = "quickstart")]
    pub name: String,

    /// Antagonists, in place of all: cpu,vector,l2,l3,memory,page-cache,fork,disk,network.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub against: Vec<commensal_lab::workload::antagonist::Kind>,

    /// Run each under isolation as well.
    #[arg(long)]
    pub isolated: bool,

    /// Offered loads: requests per second, or shares of the most that the service sustains alone, such as 20%,60%.
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    pub load: Vec<String>,

    /// Rounds; each runs every arm once.
    #[arg(long, default_value_t = 6)]
    pub rounds: u32,

    /// Measured seconds per block.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub block: f64,

    /// Where to write the record; with several loads, a number is added to its name.
    #[arg(long, short, value_name = "FILE", default_value = "profile.json")]
    pub out: PathBuf,
}

/// An experiment by name or file.
#[derive(Debug, Args)]
pub struct LabName {
    /// The experiment: a name of `lab list`, or a file.
    pub name: String,
}

/// `commensal lab run`.
#[derive(Debug, Args)]
pub struct LabRun {
    /// The experiment: a name of `lab list`, or a file.
    pub name: String,

    /// How long a run by short windows may take; one that is decided ends earlier [default: the experiment's].
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub within: Option<Duration>,

    /// Rounds of long blocks; each runs every arm once. Below 6 no interval exists [default: the experiment's].
    #[arg(long)]
    pub rounds: Option<u32>,

    /// Measured seconds per long block [default: the experiment's].
    #[arg(long, value_name = "SECONDS")]
    pub block: Option<f64>,

    /// Seed of the order of the arms and of the requests [default: the experiment's].
    #[arg(long)]
    pub seed: Option<u64>,

    /// Harm that still counts as none, in per cent [default: the experiment's].
    #[arg(long, value_name = "PER CENT")]
    pub threshold: Option<f64>,

    /// Offered load: requests per second, or a share of the most that the service sustains alone, such as 60%.
    #[arg(long, value_name = "RATE")]
    pub load: Option<String>,

    /// Arms, in place of the experiment's: baseline,baseline2,contended,isolated:cpu.idle,…
    #[arg(long, value_name = "ARMS", value_delimiter = ',')]
    pub arms: Option<Vec<String>>,

    /// When the service is started anew: block, round or never [default: the experiment's].
    #[arg(long, value_name = "WHEN")]
    pub restart: Option<String>,

    /// Objective, such as p99=5ms: a gate on the share of requests over that latency, and windows are counted against it.
    #[arg(long, value_name = "PERCENTILE=LATENCY")]
    pub slo: Option<String>,

    /// Length of a window of the objective.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub window: String,

    /// Least share of the offline work that an isolated arm must keep, in per cent.
    #[arg(long, value_name = "PER CENT")]
    pub min_offline: Option<f64>,

    /// One limit of the offline work, each of its values an isolated arm of one run: cpu.max=20%,50%,80%. Ends with the largest
    /// that holds; 0 when the least value does. Means may stand before it: best+cpu.max=50%,80%.
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["arms", "pilot", "ramp"])]
    pub vary: Option<String>,

    /// Threads of the built-in offline work, each number an arm without and one with isolation: 0,1,2,4. Asks for long blocks.
    #[arg(long, value_name = "THREADS", value_delimiter = ',', conflicts_with_all = ["pilot", "within"])]
    pub ramp: Option<Vec<u32>>,

    /// A gate on what Prometheus says of every block, such as 'p95 of checkout=histogram_quantile(0.95, …[$window])'; less is
    /// better, or more with higher:NAME=QUERY. Can be given several times; asks for long blocks.
    #[arg(long = "gate-query", value_name = "NAME=QUERY")]
    pub gate_queries: Vec<String>,

    /// The Prometheus that --gate-query asks [default: http://127.0.0.1:9090].
    #[arg(long, value_name = "URL", requires = "gate_queries")]
    pub prometheus: Option<String>,

    /// How often it scrapes the service [default: 15s]; a block must hold four scrapes.
    #[arg(long, value_name = "TIME", requires = "gate_queries")]
    pub scrape: Option<String>,

    /// The same as `lab doctor`: only the two identical arms, and how long a run would take.
    #[arg(long, conflicts_with_all = ["arms", "rounds", "adaptive", "resume"])]
    pub pilot: bool,

    /// Look after 8, 16 and 24 rounds, and end when it is decided; each look has a third of the error.
    #[arg(long, conflicts_with = "rounds")]
    pub adaptive: bool,

    /// Go on with an interrupted run's record; it is then the record of the whole.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,

    /// Port of the service; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,

    /// Do not look who made the service wait: an experiment about latency alone.
    #[arg(long)]
    pub no_blame: bool,

    /// The table of a document, after ours: openeuler, alinux, plugsched or default [default: the experiment's].
    #[arg(long, value_name = "NAME")]
    pub style: Option<commensal_lab::report::Style>,

    /// Where to write the record; the page with the charts goes beside it, as .html.
    #[arg(long, short, value_name = "FILE", default_value = "run.json")]
    pub out: PathBuf,

    /// Keep the record under this name too, for `lab diff --baseline`; it replaces what had the name.
    #[arg(long, value_name = "NAME", conflicts_with = "pilot")]
    pub save_baseline: Option<String>,

    /// Print the record instead of the report.
    #[arg(long)]
    pub json: bool,
}

/// `commensal lab doctor`.
#[derive(Debug, Args)]
pub struct LabDoctor {
    /// The experiment: a name of `lab list`, or a file.
    #[arg(default_value = "quickstart")]
    pub name: String,

    /// The threshold that you want to decide, in per cent [default: the experiment's].
    #[arg(long, value_name = "PER CENT")]
    pub threshold: Option<f64>,

    /// Measured seconds per long block; by long blocks even where the experiment has short windows.
    #[arg(long, value_name = "SECONDS")]
    pub block: Option<f64>,

    /// Offered load: requests per second, or a share of the most that the service sustains alone, such as 60%.
    #[arg(long, value_name = "RATE")]
    pub load: Option<String>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal lab report`.
#[derive(Debug, Args)]
pub struct LabReport {
    /// A run.json.
    pub file: PathBuf,

    /// In which form.
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,

    /// Where to write: a file, a folder for all charts, or - for standard output [default: -].
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// The table of a document, in place of ours: openeuler, alinux, plugsched or default.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["format", "json"])]
    pub style: Option<commensal_lab::report::Style>,

    /// Of the charts only this one: ratios, spectrum, timeline, cpu, waits.
    #[arg(long, value_name = "NAME")]
    pub chart: Option<String>,

    /// In JUnit, what is inconclusive or invalid has failed instead of being skipped.
    #[arg(long)]
    pub strict: bool,

    /// End with the status of the verdict, as the run itself did: 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID.
    #[arg(long)]
    pub exit_verdict: bool,

    /// Print the record with its results computed anew.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

/// `commensal lab diff`.
#[derive(Debug, Args)]
pub struct LabDiff {
    /// A run.json.
    pub a: PathBuf,

    /// Another one, in place of a baseline.
    #[arg(required_unless_present = "baseline", conflicts_with = "baseline")]
    pub b: Option<PathBuf>,

    /// Compare with this baseline, as the first of the two.
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,

    /// Compare although machine or plan differ (another kernel or cgroup version is told and compared in any case).
    #[arg(long)]
    pub force: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Forms of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For reading in a terminal.
    Terminal,
    /// For a pull request or a wiki.
    Markdown,
    /// One row per block.
    Csv,
    /// One page with charts, for a browser; it needs no network.
    Html,
    /// One testcase per gate metric of each isolated arm, for a CI server.
    Junit,
    /// The charts, each a file.
    Svg,
    /// The charts at twice their size; needs a build with the feature `png`.
    Png,
}

/// `commensal workload`.
#[derive(Debug, Args)]
pub struct Workload {
    /// Which one.
    #[command(subcommand)]
    pub verb: WorkloadVerb,
}

/// `commensal workload …`.
#[derive(Debug, Subcommand)]
pub enum WorkloadVerb {
    /// The HTTP service: /cpu?cpu=N&count=M, /metrics, /healthz.
    Http {
        /// Port on 127.0.0.1; 0 is any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Worker threads.
        #[arg(long, default_value_t = 2)]
        workers: usize,
    },
    /// The fastest HTTP service that one thread can be, with stalls.
    Responder {
        /// Port on 127.0.0.1; 0 is any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Length of a stall, ms.
        #[arg(long, default_value_t = 0)]
        stall_ms: u64,
        /// From one stall to the next, seconds.
        #[arg(long, default_value_t = 5)]
        stall_every_s: u64,
    },
    /// Threads that sleep for random times and then compute.
    Pulse {
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Mean sleep, us.
        #[arg(long, default_value_t = 4000)]
        period_us: u64,
        /// CPU time of one piece of work, us.
        #[arg(long, default_value_t = 1000)]
        work_us: u64,
        /// Of the sleeps.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How long [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Waits until standard input ends, then lets go on what a killed lab run left frozen, and removes the rest of it.
    ThawGuard,
    /// Threads that disturb in one way, and count their work in the file given as standard input.
    Antagonist {
        /// cpu, vector, l2, l3, memory, page-cache, fork, disk or network.
        kind: commensal_lab::workload::antagonist::Kind,
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Bytes of memory or file per thread [default: that of the kind].
        #[arg(long)]
        size: Option<u64>,
        /// Where the files of page-cache and disk live, without a name.
        #[arg(long, default_value = "/var/tmp")]
        dir: PathBuf,
        /// How long [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// What a cell of a density ladder does.
    Cell {
        /// A barrier over all cells after each step.
        #[arg(long)]
        barrier: bool,
        /// Bytes of each of two arrays that are copied, in place of computing.
        #[arg(long, value_name = "BYTES", conflicts_with = "barrier")]
        stream: Option<usize>,
        /// Which cell this is, from 0.
        #[arg(long, default_value_t = 0)]
        cell: u16,
        /// Worker threads.
        #[arg(long, default_value_t = 1)]
        vcpu: u32,
        /// Sessions.
        #[arg(long, default_value_t = 1)]
        sessions: u32,
        /// Chunks or steps of each session.
        #[arg(long, default_value_t = 1)]
        work: u32,
        /// After which an unanswered datagram is sent again, ms.
        #[arg(long, default_value_t = 20)]
        timeout_ms: u64,
    },
    /// CPU burners that count their work in the file given as standard input.
    Burn {
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
    },
}

/// Parses the command line, does it, and gives the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() && is_run() {
                125
            } else {
                u8::from(error.use_stderr()) * 2
            });
        }
    };
    let level = if cli.verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        // It would be told on standard error, which is what failed.
        .log_internal_errors(false)
        .init();
    // `run` leaves 1 to 124 to the command that it runs.
    let trouble = if matches!(cli.verb, Verb::Run(_)) { 125 } else { 2 };
    let done = dispatch(cli);
    let printed = output::end().map_err(|error| anyhow!("standard output cannot be written: {error}"));
    match done.and_then(|code| printed.map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("commensal: {error:#}");
            ExitCode::from(trouble)
        }
    }
}

/// What is allowed: a number that can be exceeded.
fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        Ok(_) => Err("it must be a finite number, 0 or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the command line, although it cannot be parsed, is one of `run`.
fn is_run() -> bool {
    let verbs = [
        "doctor", "plan", "apply", "restore", "run", "agent", "guard", "queue", "status", "explain", "top",
        "blame", "lab", "density", "sched", "help",
    ];
    let first = std::env::args().skip(1).find(|arg| verbs.contains(&arg.as_str()));
    first.is_some_and(|verb| verb == "run")
}

fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    if let Verb::Workload(workload) = &cli.verb
        && !matches!(workload.verb, WorkloadVerb::ThawGuard)
    {
        return workload::run(&workload.verb);
    }
    let mut context = Context::new(cli.state_dir, cli.cgroup_prefix, cli.cgroup_root.as_deref())?;
    match cli.verb {
        Verb::Doctor(options) => doctor::run(&mut context, options.json),
        Verb::Plan(options) => apply::plan(&mut context, &options),
        Verb::Apply(options) => apply::apply(&mut context, &options),
        Verb::Restore(options) => restore::run(&mut context, options.json),
        Verb::Run(options) => run::run(&mut context, &options),
        Verb::Agent(options) => match &options.order {
            None => agent::agent(&mut context, &options),
            Some(AgentOrder::Canary(options)) => canary::run(&mut context, options),
            Some(order) => agent::order(&context, order),
        },
        Verb::Workload(_) => workload::thaw_guard(&mut context),
        Verb::Guard(options) => agent::guard(&mut context, &options),
        Verb::Status(options) => status::run(&mut context, &options),
        Verb::Explain(options) => status::explain(&context, &options),
        Verb::Top(options) => top::run(&mut context, &options),
        Verb::Queue(options) => queue::show(&mut context, &options),
        Verb::Blame(options) => blame::run(&mut context, &options),
        Verb::Lab(lab) => match lab.verb {
            LabVerb::Run(options) => lab::run(&mut context, &options),
            LabVerb::List => lab::list(),
            LabVerb::Show(options) => lab::show(&context, &options),
            LabVerb::Check(options) => lab::check(&mut context, &options),
            LabVerb::Profile(options) => lab::profile(&mut context, &options),
            LabVerb::Doctor(options) => lab::doctor(&mut context, &options),
            LabVerb::Calibrate(options) => lab_calibrate::run(&mut context, &options),
            LabVerb::Report(options) => lab_report::report(&mut context, &options),
            LabVerb::Diff(options) => lab_report::diff(&mut context, &options),
            LabVerb::Baseline(options) => lab_history::baseline(&mut context, &options),
            LabVerb::History(options) => lab_history::history(&mut context, &options),
            LabVerb::Load(options) => load::run(&mut context, &options),
        },
        Verb::Density(density) => match density.verb {
            DensityVerb::Classify(options) => density::classify(&mut context, &options),
            DensityVerb::Run(options) => density_run::run(&mut context, &options),
            DensityVerb::List => density_run::list(),
            DensityVerb::Prepare(options) => density_run::prepare(&mut context, &options),
            DensityVerb::Pin(options) => density_pin::pin(&mut context, &options),
            DensityVerb::Report(options) => density::report(&mut context, &options),
            DensityVerb::Calibrate => density_run::calibrate(&mut context),
            DensityVerb::Plan(options) => density::plan(&mut context, &options),
            DensityVerb::Simulate(options) => density::simulate(&mut context, &options),
            DensityVerb::Fleet(options) => density::fleet(&mut context, &options),
        },
        Verb::Sched(sched) => sched::run(&mut context, &sched.verb),
    }
}
