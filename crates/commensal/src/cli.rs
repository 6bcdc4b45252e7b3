//! Commands and options, and their exit status: 0 the check holds, 1 it does not, 2 trouble; the lab adds 3
//! inconclusive and 4 environment invalid; `run` returns the command's own status.

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
mod journal;
mod lab;
mod lab_args;
mod lab_calibrate;
mod lab_history;
mod lab_history_args;
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
pub use lab_args::{
    Format, Lab, LabDiff, LabDoctor, LabLoad, LabName, LabProfile, LabReport, LabRun, LabVerb, Spacing,
};
pub use lab_calibrate::LabCalibrate;
pub use lab_history_args::{BaselineVerb, LabBaseline, LabHistory};
pub use sched_args::{Sched, SchedVerb};

use crate::context::Context;
use crate::output;
use anyhow::anyhow;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs batch work beside latency-critical services on the same machine without the services noticing, and
/// proves it.
#[derive(Debug, Parser)]
#[command(name = "commensal", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Directory of the undo journal [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal].
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Prefix of the names of commensal's own cgroups: NAME-online and NAME-offline.
    #[arg(long, global = true, value_name = "NAME", default_value = "commensal")]
    pub cgroup_prefix: String,

    /// Create commensal's own cgroups below this one [default: the root; as another user, or where systemd manages the
    /// tree, the cgroup that was delegated to this process]. `/` forces the root although systemd manages it.
    #[arg(long, global = true, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,

    /// Work on cgroups although another commensal with another state directory manages some on this machine. Its groups
    /// are not touched.
    #[arg(long, global = true)]
    pub beside_others: bool,
    /// Continue although users other than root (or this user) could have written the state directory, a file in it or a
    /// groups file.
    #[arg(long, global = true)]
    pub insecure_permissions: bool,

    /// Deprecated and without effect; the next release removes it.
    #[arg(long, short, global = true, hide = true)]
    pub verbose: bool,

    /// The subcommand.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Report what this machine can enforce, by trying it in a scratch cgroup; also what is missing and how to get it.
    Doctor(Json),
    /// Show every write that `apply` would make, in order, with its reason. Changes nothing: knobs are tried in
    /// an empty scratch cgroup only.
    Plan(Groups),
    /// Put the groups in force, once; every original value is kept in the undo journal.
    Apply(Groups),
    /// Put back every original value and remove commensal's own cgroups. Needs no running agent or guard.
    Restore(Json),
    /// Inspect the undo journals. Changes nothing and takes no lock.
    Journal(Journal),
    /// Start a command inside a group; signals and the exit status pass through.
    Run(Run),
    /// Keep the groups in force: follow members, revert changes by others, guard the machine if the agent dies. SIGHUP
    /// reads the groups again, SIGTERM ends it.
    Agent(Agent),
    /// Bring the machine into its safe state when the agent is gone or hangs (started by the agent, or as a unit of its own).
    Guard(Guard),
    /// Show what is in force: groups, limits, queues, and problems. Exit status 1 when not everything requested is in
    /// force, 2 without an agent.
    Status(Json),
    /// Explain the value of each limit of a group: the rule that won, and the formula with its inputs.
    Explain(Explain),
    /// Watch the groups live; ? shows the keys.
    Top(Top),
    /// Show running and waiting commands in the admission queues, and whether a queue is held closed. Changes nothing.
    Queue(Groups),
    /// Report what held the CPU while a service waited for it: exactly, measured inside the kernel, without changing
    /// the machine. Needs root (or CAP_BPF and CAP_PERFMON).
    Blame(Blame),
    /// Measure the cost of co-location.
    Lab(Lab),
    /// Report how many VMs or databases fit on a server, and at what cost.
    Density(Density),
    /// Load, watch and unload the scheduler that keeps offline work off the CPU while the machine runs.
    Sched(Sched),
    /// Print a completion script for a shell, such as for `source <(commensal completions bash)`.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// The lab's built-in workloads (started by the lab itself).
    #[command(hide = true)]
    Workload(Workload),
}

/// Output format.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal journal`.
#[derive(Debug, Args)]
pub struct Journal {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: JournalVerb,
}

/// `commensal journal …`.
#[derive(Debug, Subcommand)]
pub enum JournalVerb {
    /// List every journal in the state directory: its owner, boot, number of records, and damaged lines with the
    /// reason. Exit status 2 when one is damaged.
    Check(Json),
    /// Show what `restore` would put back from each journal, a line for each record (with --json a line of JSON). Exit
    /// status 2 when one is damaged.
    Show(Json),
}

/// The groups to use.
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

    /// Fail at once instead of waiting in the group's queue.
    #[arg(long)]
    pub no_wait: bool,

    /// Wait in the group's queue for at most this long, such as 30s or 10min [default and maximum: the group's
    /// queue.timeout].
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
    /// Print one screen as text, with every group; also the default when the output is not a terminal.
    #[arg(long)]
    pub once: bool,
}

/// `commensal blame`.
#[derive(Debug, Args)]
pub struct Blame {
    /// What waited: a systemd unit, a cgroup (/path), a process by its number, a container by its name or identifier,
    /// or a group of the groups file [default: its online groups, against its offline ones].
    pub target: Vec<String>,

    /// Targets whose share of the waits has a budget; named in the same ways. May be given several times.
    #[arg(long, value_name = "WHO")]
    pub against: Vec<String>,

    /// How long to measure, such as 30s or 5min [default: until Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub r#for: Option<Duration>,

    /// Exit with 1 when the targets of --against are over budget, and with 3 when the data does not decide.
    #[arg(long)]
    pub check: bool,

    /// Budget for the wait that they cause, ms per second of the targets' CPU time [default: 50].
    #[arg(long, value_name = "MS", value_parser = bound)]
    pub blame_below: Option<f64>,

    /// Budget for how long they keep a CPU on which a target was woken, us, 99th percentile [default: 100].
    #[arg(long, value_name = "US", value_parser = bound)]
    pub preempt_below: Option<f64>,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Redraw a whole screen every second instead of adding lines.
    #[arg(long, conflicts_with = "json")]
    pub top: bool,

    /// Write an SVG chart with a flame-like bar per waiter and culprit; - prints it.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write chart and figures as one HTML file; - prints it.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write counters in Prometheus' text format, every five seconds and at the end (for node_exporter's textfile
    /// collector); - prints them at the end.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,

    /// Attribute interrupts to the tasks that they interrupt: a little cheaper.
    #[arg(long)]
    pub no_interrupts: bool,

    /// Compare every wait with the kernel's own figure.
    #[arg(long)]
    pub verify: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal workload`.
#[derive(Debug, Args)]
pub struct Workload {
    /// The workload.
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
    /// A minimal single-threaded HTTP service, as fast as possible, with stalls.
    Responder {
        /// Port on 127.0.0.1; 0 is any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Length of a stall, ms.
        #[arg(long, default_value_t = 0)]
        stall_ms: u64,
        /// Interval between stalls, seconds.
        #[arg(long, default_value_t = 5)]
        stall_every_s: u64,
    },
    /// Threads that sleep for random times and then compute.
    Pulse {
        /// Number of threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Mean sleep, us.
        #[arg(long, default_value_t = 4000)]
        period_us: u64,
        /// CPU time of one piece of work, us.
        #[arg(long, default_value_t = 1000)]
        work_us: u64,
        /// Seed of the sleeps.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Duration [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Waits until standard input ends, then thaws what a killed lab run left frozen, and removes its remains.
    ThawGuard,
    /// Threads that stress one resource, and count their work in the file given as standard input.
    Antagonist {
        /// cpu, vector, l2, l3, memory, page-cache, fork, disk or network.
        kind: commensal_lab::workload::antagonist::Kind,
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Bytes of memory or file per thread [default: that of the kind].
        #[arg(long)]
        size: Option<u64>,
        /// Folder for the unnamed files of page-cache and disk.
        #[arg(long, default_value = "/var/tmp")]
        dir: PathBuf,
        /// Duration [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// The work of a cell of a density ladder.
    Cell {
        /// Whether there is a barrier over all cells after each step.
        #[arg(long)]
        barrier: bool,
        /// Size in bytes of each of two arrays that are copied, instead of computing.
        #[arg(long, value_name = "BYTES", conflicts_with = "barrier")]
        stream: Option<usize>,
        /// Index of this cell, from 0.
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
        /// Delay after which an unanswered datagram is resent, ms.
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

/// Parses the command line, runs the command, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            match error.use_stderr() {
                // It quotes what it does not understand.
                true => eprint!("{}", error.render()),
                false => drop(error.print()),
            }
            return ExitCode::from(if error.use_stderr() && is_run() {
                125
            } else {
                u8::from(error.use_stderr()) * 2
            });
        }
    };
    // `run` reserves 1 to 124 for the command that it runs.
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

/// Parses a limit: a non-negative finite number.
fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        Ok(_) => Err("it must be a finite number, 0 or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the command line, although it cannot be parsed, calls `run`.
fn is_run() -> bool {
    let verbs = [
        "doctor",
        "plan",
        "apply",
        "restore",
        "journal",
        "run",
        "agent",
        "guard",
        "queue",
        "status",
        "explain",
        "top",
        "blame",
        "lab",
        "density",
        "sched",
        "completions",
        "help",
    ];
    let first = std::env::args().skip(1).find(|arg| verbs.contains(&arg.as_str()));
    first.is_some_and(|verb| verb == "run")
}

/// The completion script for a shell.
///
/// # Errors
/// Never in practice: the text is UTF-8.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "commensal", &mut text);
    Ok(String::from_utf8(text)?)
}

fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    if let Verb::Workload(workload) = &cli.verb
        && !matches!(workload.verb, WorkloadVerb::ThawGuard)
    {
        return workload::run(&workload.verb);
    }
    if let Verb::Completions { shell } = cli.verb {
        output::paint(&completions(shell)?);
        return Ok(0);
    }
    let mut context = Context::new(cli.state_dir, cli.cgroup_prefix, cli.cgroup_root.as_deref())?;
    context.beside_others = cli.beside_others;
    if cli.insecure_permissions {
        eprintln!(
            "commensal: --insecure-permissions: whoever can write groups files or {} has a say in what is done here",
            context.state_dir.display()
        );
    } else {
        context.host.guard_state(&context.state_dir);
    }
    match cli.verb {
        Verb::Doctor(options) => doctor::run(&mut context, options.json),
        Verb::Plan(options) => apply::plan(&mut context, &options),
        Verb::Apply(options) => apply::apply(&mut context, &options),
        Verb::Restore(options) => restore::run(&mut context, options.json),
        Verb::Journal(journal) => journal::run(&mut context, &journal.verb),
        Verb::Run(options) => run::run(&mut context, &options),
        Verb::Agent(options) => match &options.order {
            None => agent::agent(&mut context, &options),
            Some(AgentOrder::Canary(options)) => canary::run(&mut context, options),
            Some(order) => agent::order(&context, order),
        },
        Verb::Completions { .. } => Ok(0),
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
        },
        Verb::Sched(sched) => sched::run(&mut context, &sched.verb),
    }
}
