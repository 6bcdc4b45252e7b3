//! Verbs and options, and what their exit status means: 0 the promise holds, 1 it does not, 2 trouble; the
//! lab adds 3 inconclusive and 4 environment invalid; `run` gives the command's own status.

mod apply;
mod blame;
mod doctor;
mod lab;
mod oom;
mod restore;
mod run;
mod workload;

use crate::context::Context;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

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
    /// Say who held the CPU while a service waited for it: exactly, from inside the kernel, and without a change to the
    /// machine. Needs root (or CAP_BPF and CAP_PERFMON).
    Blame(Blame),
    /// Measure what co-location costs.
    Lab(Lab),
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

    /// The command and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
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
    pub r#for: Option<std::time::Duration>,

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
    /// Run an experiment: verdict, table, run.json. Exit status 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID.
    Run(LabRun),
    /// Say within about a minute whether this machine can decide a threshold, and how long a run would take.
    Doctor(LabDoctor),
    /// Show a recorded run again, with the verdict that its blocks support.
    Report(LabReport),
}

/// `commensal lab run`.
#[derive(Debug, Args)]
pub struct LabRun {
    /// The experiment: quickstart.
    pub name: String,

    /// Rounds; each runs every arm once. Below 6 no interval exists.
    #[arg(long, default_value_t = 6)]
    pub rounds: u32,

    /// Measured seconds per block.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub block: f64,

    /// Seed of the order of the arms and of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Harm that still counts as none, in per cent.
    #[arg(long, value_name = "PER CENT", default_value_t = 5.0)]
    pub threshold: f64,

    /// Port of the built-in service; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,

    /// Do not look who made the service wait: an experiment about latency alone.
    #[arg(long)]
    pub no_blame: bool,

    /// Where to write the record.
    #[arg(long, short, value_name = "FILE", default_value = "run.json")]
    pub out: PathBuf,

    /// Print the record instead of the report.
    #[arg(long)]
    pub json: bool,
}

/// `commensal lab doctor`.
#[derive(Debug, Args)]
pub struct LabDoctor {
    /// The threshold that you want to decide, in per cent.
    #[arg(long, value_name = "PER CENT", default_value_t = 5.0)]
    pub threshold: f64,

    /// Measured seconds per block.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub block: f64,

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

    /// Print the record with its results computed anew.
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
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).without_time().init();
    // `run` leaves 1 to 124 to the command that it runs.
    let trouble = if matches!(cli.verb, Verb::Run(_)) { 125 } else { 2 };
    match dispatch(cli) {
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
    let verbs = ["doctor", "plan", "apply", "restore", "run", "blame", "lab", "help"];
    let first = std::env::args().skip(1).find(|arg| verbs.contains(&arg.as_str()));
    first.is_some_and(|verb| verb == "run")
}

fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    if let Verb::Workload(workload) = cli.verb {
        return workload::run(&workload.verb);
    }
    let mut context = Context::new(cli.state_dir, cli.cgroup_prefix, cli.cgroup_root.as_deref())?;
    match cli.verb {
        Verb::Doctor(options) => doctor::run(&mut context, options.json),
        Verb::Plan(options) => apply::plan(&mut context, &options),
        Verb::Apply(options) => apply::apply(&mut context, &options),
        Verb::Restore(options) => restore::run(&mut context, options.json),
        Verb::Run(options) => run::run(&mut context, &options),
        Verb::Blame(options) => blame::run(&mut context, &options),
        Verb::Lab(lab) => match lab.verb {
            LabVerb::Run(options) => lab::run(&mut context, &options),
            LabVerb::Doctor(options) => lab::doctor(&mut context, &options),
            LabVerb::Report(options) => lab::report(&context, &options),
        },
        Verb::Workload(_) => unreachable!("handled above"),
    }
}
