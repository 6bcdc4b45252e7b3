//! Options of `commensal lab`.

use super::lab_history_args::{LabBaseline, LabHistory};
use super::values;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// `commensal lab`.
#[derive(Debug, Args)]
pub struct Lab {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: LabVerb,
}

/// `commensal lab …`.
#[derive(Debug, Subcommand)]
pub enum LabVerb {
    /// Run an experiment, and print a verdict and a table.
    ///
    /// Example: commensal lab run quickstart
    ///
    /// Writes a record (run.json) and a page with charts (run.html).
    ///
    /// Exit status 0: PASS; 1: FAIL or BROKEN; 3: INCONCLUSIVE; 4: INVALID.
    Run(Box<LabRun>),
    /// List the experiments that come with this program.
    ///
    /// Example: commensal lab list
    List,
    /// Print the definition (TOML) of an experiment, as a template for your own.
    ///
    /// Example: commensal lab show quickstart
    Show(LabName),
    /// Check whether everything that an experiment needs is installed.
    ///
    /// Example: commensal lab check nginx-vs-ffmpeg
    ///
    /// Exit status 0: it is; 2: it is not.
    Check(LabName),
    /// Run one service against each built-in antagonist, and print the effect of each.
    ///
    /// Example: commensal lab profile --against memory,disk
    ///
    /// Exit status 0: the effects are shown; 4: this machine is too noisy to decide.
    Profile(LabProfile),
    /// Report whether this machine can decide an experiment's threshold, and how long a run would take.
    ///
    /// Example: commensal lab doctor quickstart
    ///
    /// Takes about a minute. Only the two identical arms are run.
    ///
    /// Exit status 0: it can; 4: it cannot.
    Doctor(LabDoctor),
    /// Measure how often the lab's verdicts are right on this machine.
    ///
    /// Example: commensal lab calibrate
    ///
    /// Makes runs with injected delays of known size instead of isolation, and prints a table of right, wrong and
    /// inconclusive verdicts.
    ///
    /// Exit status 0: the goals are met; 1: they are not.
    Calibrate(LabCalibrate),
    /// Show a recorded run again, with the verdict recomputed from its blocks.
    ///
    /// Example: commensal lab report run.json --format html --out run.html
    Report(LabReport),
    /// Send requests to an HTTP service on a fixed schedule (open loop), and report latencies.
    ///
    /// Example: commensal lab load http://127.0.0.1:8080/ --rate 2000
    ///
    /// Latencies are measured from the time at which each request was due.
    ///
    /// Exit status 0: the measurement is valid; 4: it is invalid.
    Load(Box<LabLoad>),
    /// Compare two recorded runs of the same machine and plan, or a recorded run with a baseline.
    ///
    /// Example: commensal lab diff before.json after.json
    Diff(LabDiff),
    /// Manage baselines: recorded runs, stored under a name to compare later runs with.
    ///
    /// Example: commensal lab baseline list
    Baseline(LabBaseline),
    /// Show how the results on this machine changed from run to run.
    ///
    /// Example: commensal lab history quickstart
    History(LabHistory),
}

/// `commensal lab load`.
#[derive(Debug, Args)]
pub struct LabLoad {
    /// URL to request, such as http://127.0.0.1:8080/path. Only http://.
    pub url: String,

    /// Requests per second, independent of how fast the service responds.
    #[arg(long, value_name = "N", value_parser = values::rate)]
    #[arg(required_unless_present_any = ["closed", "find_knee"])]
    pub rate: Option<f64>,

    /// Length of the measured part [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub r#for: Option<Duration>,

    /// Length of the load before the measured part; not evaluated.
    #[arg(long, value_name = "TIME", value_parser = values::span, default_value = "2s")]
    pub warmup: Duration,

    /// Number of connections. A request that finds all of them busy waits, and that wait is part of its latency.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,

    /// Distribution of the arrivals: poisson (as from independent users) or constant (equal gaps).
    #[arg(long, value_enum, default_value_t = Spacing::Poisson)]
    pub arrival: Spacing,

    /// Seed of the schedule: the same seed gives the same due times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// A request without a response this long after its due time is abandoned, and counts with this time as its
    /// latency.
    #[arg(long, value_name = "TIME", value_parser = values::time, default_value = "5s")]
    pub timeout: Duration,

    /// Instead of a rate: N connections that each send the next request as soon as the response has arrived (closed
    /// loop), as most tools do. This understates the effect of stalls.
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "find_knee"])]
    pub closed: Option<usize>,

    /// Latency objective, such as p99=5ms: report how many windows and requests met it.
    #[arg(long, value_name = "P=TIME", value_parser = values::objective)]
    pub slo: Option<(commensal_lab::record::Metric, f64)>,

    /// Length of a window of the objective, in whole seconds.
    #[arg(long, value_name = "TIME", value_parser = values::whole_seconds, default_value = "1s", requires = "slo")]
    pub window: Duration,

    /// Instead of measuring at one rate, search for the highest rate that the service sustains, in open-loop steps of
    /// 1.5 s each.
    #[arg(long, conflicts_with_all = ["rate", "slo", "series", "hdr", "for", "from"])]
    pub find_knee: bool,

    /// Also print one line per second.
    #[arg(long)]
    pub series: bool,

    /// Write an HdrHistogram interval log, one interval per second.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,

    /// Generate the load on another machine, by `ssh HOST commensal lab load`: the same version must be installed
    /// there, and ssh must log in without a prompt.
    #[arg(long, value_name = "USER@HOST", value_parser = values::ssh_host)]
    pub from: Option<String>,

    /// Stop the measured part, and report it, when standard input ends. --from passes this option to the other machine.
    #[arg(long, conflicts_with = "from")]
    pub until_eof: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Distribution of the arrivals.
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
    /// The experiment whose service and load are used: a name of `lab list`, or a file.
    #[arg(default_value = "quickstart")]
    pub name: String,

    /// Antagonists, instead of all: cpu,vector,l2,l3,memory,page-cache,fork,disk,network.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub against: Vec<commensal_lab::workload::antagonist::Kind>,

    /// Also run each antagonist under isolation.
    #[arg(long)]
    pub isolated: bool,

    /// Offered loads: requests per second, or shares of the highest rate that the service sustains alone, such as
    /// 20%,60%.
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    pub load: Vec<String>,

    /// Number of rounds; each runs every arm once.
    #[arg(long, default_value_t = 6)]
    pub rounds: u32,

    /// Measured part of a block, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub block: f64,

    /// File for the record; with several loads, a number is added to the file name.
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

    /// Time of a run with short windows; it stops earlier once it is decided, and takes up to half as long again where that
    /// is likely to decide what is still open [default: the experiment's].
    #[arg(long = "for", value_name = "TIME", value_parser = values::span)]
    pub within: Option<Duration>,

    /// Number of rounds of long blocks; each runs every arm once. Fewer than 6 give no confidence interval [default:
    /// the experiment's].
    #[arg(long)]
    pub rounds: Option<u32>,

    /// Measured part of a long block, in seconds [default: the experiment's].
    #[arg(long, value_name = "SECONDS")]
    pub block: Option<f64>,

    /// Seed for the order of the arms and for the requests [default: the experiment's].
    #[arg(long)]
    pub seed: Option<u64>,

    /// Largest harm that still counts as no harm, in per cent [default: the experiment's].
    #[arg(long, value_name = "PER CENT")]
    pub threshold: Option<f64>,

    /// Offered load: requests per second, or a share of the highest rate that the service sustains alone, such as 60%.
    #[arg(long, value_name = "RATE")]
    pub load: Option<String>,

    /// Arms, instead of the experiment's: baseline,baseline2,contended,isolated:cpu.idle,…
    #[arg(long, value_name = "ARMS", value_delimiter = ',')]
    pub arms: Option<Vec<String>>,

    /// When the service is restarted: block, round or never [default: the experiment's].
    #[arg(long, value_name = "WHEN")]
    pub restart: Option<String>,

    /// Latency objective, such as p99=5ms: adds a gate on the share of requests over that latency, and reports how many
    /// windows met it.
    #[arg(long, value_name = "PERCENTILE=LATENCY")]
    pub slo: Option<String>,

    /// Length of a window of the objective.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub window: String,

    /// Minimum share of the offline work that an isolated arm must keep, in per cent.
    #[arg(long, value_name = "PER CENT")]
    pub min_offline: Option<f64>,

    /// Try several values of one limit of the offline work in one run, each as an isolated arm: cpu.max=20%,50%,80%.
    /// Reports the largest value that passes; exit status 0 when the lowest one passes. Mechanisms may be prefixed:
    /// best+cpu.max=50%,80%.
    #[arg(long, value_name = "KEY=VALUES", conflicts_with_all = ["arms", "pilot", "ramp"])]
    pub vary: Option<String>,

    /// Numbers of threads of the built-in offline work, such as 0,1,2,4: each adds an arm without and an arm with
    /// isolation. Requires long blocks.
    #[arg(long, value_name = "THREADS", value_delimiter = ',', conflicts_with_all = ["pilot", "within"])]
    pub ramp: Option<Vec<u32>>,

    /// Add a gate on the result of a Prometheus query for every block, such as 'p95 of
    /// checkout=histogram_quantile(0.95, …[$window])'. Lower values are better; higher:NAME=QUERY reverses that. Can be
    /// given several times; requires long blocks.
    #[arg(long = "gate-query", value_name = "NAME=QUERY")]
    pub gate_queries: Vec<String>,

    /// The Prometheus server for --gate-query [default: http://127.0.0.1:9090].
    #[arg(long, value_name = "URL", requires = "gate_queries")]
    pub prometheus: Option<String>,

    /// Scrape interval of that server [default: 15s]; a block must contain four scrapes.
    #[arg(long, value_name = "TIME", requires = "gate_queries")]
    pub scrape: Option<String>,

    /// Like `lab doctor`: run only the two identical arms, and report how long a run would take.
    #[arg(long, conflicts_with_all = ["arms", "rounds", "adaptive", "resume"])]
    pub pilot: bool,

    /// Run interim analyses after 8, 16 and 24 rounds, and stop at the first that decides; each has a third of the
    /// error rate.
    #[arg(long, conflicts_with = "rounds")]
    pub adaptive: bool,

    /// Continue the record of an interrupted run; it then contains both parts.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,

    /// Port of the service; 0 picks any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,

    /// Do not measure what made the service wait; measure its latency only.
    #[arg(long)]
    pub no_blame: bool,

    /// Also print the table in the style of a document: openeuler, alinux, plugsched or default [default: the
    /// experiment's].
    #[arg(long, value_name = "NAME")]
    pub style: Option<commensal_lab::report::Style>,

    /// File for the record; the page with the charts is written next to it, with the extension .html.
    #[arg(long, short, value_name = "FILE", default_value = "run.json")]
    pub out: PathBuf,

    /// Also store the record under this name, for `lab diff --baseline`; replaces an existing one.
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

    /// The threshold to decide, in per cent [default: the experiment's].
    #[arg(long, value_name = "PER CENT")]
    pub threshold: Option<f64>,

    /// Measured part of a long block, in seconds; uses long blocks even if the experiment has short windows.
    #[arg(long, value_name = "SECONDS")]
    pub block: Option<f64>,

    /// Offered load: requests per second, or a share of the highest rate that the service sustains alone, such as 60%.
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

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,

    /// Where to write: a file, a folder for all charts, or - for standard output [default: -].
    #[arg(long, short, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// Print only the table, in the style of a document: openeuler, alinux, plugsched or default.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["format", "json"])]
    pub style: Option<commensal_lab::report::Style>,

    /// Draw only this chart: ratios, spectrum, timeline, cpu or waits.
    #[arg(long, value_name = "NAME")]
    pub chart: Option<String>,

    /// In JUnit, report inconclusive or invalid as failed instead of skipped.
    #[arg(long)]
    pub strict: bool,

    /// Exit with the status of the verdict, like the run itself: 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID.
    #[arg(long)]
    pub exit_verdict: bool,

    /// Apply the rules of this version to an older record, instead of those under which it was made.
    #[arg(long)]
    pub by_new_rules: bool,

    /// Print the record with its results recomputed.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

/// `commensal lab diff`.
#[derive(Debug, Args)]
pub struct LabDiff {
    /// A run.json.
    pub a: PathBuf,

    /// A second run.json, instead of a baseline.
    #[arg(required_unless_present = "baseline", conflicts_with = "baseline")]
    pub b: Option<PathBuf>,

    /// Compare with this baseline, as the first of the two runs.
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,

    /// Compare even if machine or plan differ (another kernel or cgroup version is reported and never prevents a
    /// comparison).
    #[arg(long)]
    pub force: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Report formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for a terminal.
    Terminal,
    /// Markdown, for a pull request or a wiki.
    Markdown,
    /// One row per block.
    Csv,
    /// One page with charts, for a browser; it needs no network.
    Html,
    /// One testcase per gate metric of each isolated arm, for a CI server.
    Junit,
    /// The charts, one file each.
    Svg,
}

/// `commensal lab calibrate`.
#[derive(Debug, Args)]
pub struct LabCalibrate {
    /// Total number of runs, including those already in the record; each gives a verdict for every harm.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,

    /// Time limit of a run; at least six rounds are run.
    #[arg(long = "for", value_name = "TIME", value_parser = values::time, default_value = "90s")]
    pub within: Duration,

    /// Seed of the first run; each later one uses the next number.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Harms to inject: the delay of each request, in per cent of the median latency of the service alone, or, as in
    /// p90:30, of its P90 [default: 0,3,5,10,30; with --beside also p90:30].
    #[arg(long, value_name = "LIST")]
    pub harm: Option<String>,

    /// What runs beside: busy:CPUS, such as busy:0.5; steal:MS, a stand-in for a hypervisor that takes this time per
    /// second from CPUs that idle, such as steal:30; or a shell command, which is restarted whenever it exits.
    #[arg(long, value_name = "NEIGHBOUR")]
    pub beside: Option<commensal_lab::conductor::Neighbour>,

    /// Do not measure what made the service wait.
    #[arg(long)]
    pub no_blame: bool,

    /// File for the record. An existing record is continued.
    #[arg(long, short, value_name = "FILE", default_value = "calibration.json")]
    pub out: PathBuf,

    /// Print the tables as Markdown.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print the counts as JSON.
    #[arg(long)]
    pub json: bool,
}
