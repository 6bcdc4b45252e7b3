//! The options of the program, by subcommand; larger subcommands have a file of their own.

use super::agent_args::{Agent, Guard};
use super::density_args::Density;
use super::lab_args::Lab;
use super::sched_args::Sched;
use super::values;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The whole of what a user does, in order.
const EXAMPLE: &str = "\
Example:
  commensal doctor                          what this machine can enforce
  commensal plan    -c groups.toml          what would be written, and why
  commensal apply   -c groups.toml          put it in force once
  commensal run     -c groups.toml -g etl -- make -j8
  commensal status                          what is in force
  commensal restore                         put everything back";

/// Heading of the options that every command takes, which are the last.
const EVERY: &str = "Options of every command";

/// Runs batch work beside latency-critical services on the same machine without the services noticing, and
/// proves it.
#[derive(Debug, Parser)]
#[command(name = "commensal", version, propagate_version = true, max_term_width = 100, before_help = EXAMPLE)]
pub struct Cli {
    /// Directory of the undo journal [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal].
    #[arg(long, global = true, help_heading = EVERY, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Prefix of the names of commensal's own cgroups: NAME-online and NAME-offline.
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME", default_value = "commensal")]
    pub cgroup_prefix: String,

    /// Create commensal's own cgroups below this one, in every cgroup hierarchy [default: the root; as another user, or where systemd manages the
    /// tree, the cgroup that was delegated to this process]. `/` forces the root although systemd manages it.
    #[arg(long, global = true, help_heading = EVERY, value_name = "CGROUP")]
    pub cgroup_root: Option<PathBuf>,

    /// Manage cgroups although another commensal instance, with another state directory, manages cgroups on this
    /// machine. The groups of that instance are not touched.
    #[arg(long, global = true, help_heading = EVERY)]
    pub beside_others: bool,
    /// Continue although users other than root (or this user) could have written the state directory, a file in it or a
    /// groups file.
    #[arg(long, global = true, help_heading = EVERY)]
    pub insecure_permissions: bool,

    /// The subcommand.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Report what this machine can enforce, what is missing, and how to get it.
    ///
    /// Example: commensal doctor
    ///
    /// Every setting is tried in a scratch cgroup. Changes nothing else.
    ///
    /// Exit status 1: only weak mechanisms can hold back offline work.
    Doctor(Doctor),
    /// Propose a groups file for this machine, with a reason for each line.
    ///
    /// Example: commensal init --write groups.toml
    ///
    /// Looks at all processes twice within a second: which services look online, and which work looks offline. Without
    /// --write, changes nothing.
    ///
    /// Exit status 0: there is a proposal; 1: nothing looks online or offline.
    Init(Init),
    /// Show every write that `apply` would make, in order, with its reason.
    ///
    /// Example: commensal plan -c groups.toml
    ///
    /// Changes nothing: knobs are tested only in an empty scratch cgroup.
    ///
    /// Exit status 0: there is nothing to do; 1: there are steps to do, or a setting is unmet.
    Plan(Groups),
    /// Put the groups in force once.
    ///
    /// Example: commensal apply -c groups.toml
    ///
    /// Every original value is recorded in the undo journal before the first write to it.
    ///
    /// Exit status 0: everything requested is in force; 1: a setting is unmet, or a process could not be moved and
    /// stays in its cgroup; 2: a step was refused, and the steps before it were reverted (the message names what could
    /// not be).
    Apply(Groups),
    /// Restore every original value and remove commensal's own cgroups.
    ///
    /// Example: commensal restore
    ///
    /// Needs no running agent or guard, and repeats safely.
    ///
    /// Exit status 0: everything is restored; 1: something stays because it is in use; 2: something could not be
    /// restored.
    #[command(alias = "undo")]
    Restore(Json),
    /// Check groups files and experiments on any machine, and print their schema for editors.
    ///
    /// Example: commensal config check groups.toml
    Config(Config),
    /// Inspect the undo journals.
    ///
    /// Example: commensal journal check
    ///
    /// Changes nothing and takes no lock.
    Journal(Journal),
    /// Start a command inside a group; signals and the exit status pass through.
    ///
    /// Example: commensal run -g etl -c groups.toml -- make -j8
    ///
    /// Waits in the queue of the group, if it has one. With a running agent, the limits of the agent apply.
    ///
    /// Exit status: that of the command; 128+n if signal n ended it; 125: commensal itself failed; 126: the command
    /// cannot be run; 127: the command does not exist.
    Run(Run),
    /// Keep the groups in force until SIGTERM, or give an order to the running agent.
    ///
    /// Example: commensal agent -c /etc/commensal/groups.d
    ///
    /// Follows the members of groups, reverts changes by other programs, and keeps the machine safe if the agent dies.
    /// SIGHUP reloads the groups.
    Agent(Agent),
    /// Bring the machine into its safe state when the agent has exited or hangs.
    ///
    /// Example: commensal guard
    ///
    /// The agent starts one of its own unless a guard runs as a service.
    Guard(Guard),
    /// Show what is in force: groups, limits, queues, and problems.
    ///
    /// Example: commensal status
    ///
    /// Without an agent, reads back what the last agent or `apply` has put in force.
    ///
    /// Exit status 0: everything requested is in force; 1: something is not, or there is a problem; 2: nothing is
    /// known, because there is no agent and nothing was applied, or the agent does not respond.
    Status(Status),
    /// Explain each limit of a group: the rule that determined it, and the formula with its inputs.
    ///
    /// Example: commensal explain etl
    ///
    /// Needs a running agent.
    Explain(Explain),
    /// Watch the groups live; ? shows the keys.
    ///
    /// Example: commensal top
    ///
    /// Needs a running agent.
    Top(Top),
    /// Show running and waiting commands in the admission queues.
    ///
    /// Example: commensal queue -c groups.toml
    ///
    /// Also says whether a queue is kept closed. Changes nothing.
    Queue(Groups),
    /// Report what occupied the CPU while a service waited for it.
    ///
    /// Example: commensal blame nginx.service --against etl.slice --for 30s
    ///
    /// Every wait is measured, inside the kernel (BPF), and nothing on the machine is changed. Needs root (or CAP_BPF
    /// and CAP_PERFMON).
    ///
    /// Exit status with --check, 0: within budget; 1: over budget; 3: the data is not sufficient to decide.
    Blame(Blame),
    /// Measure the cost of co-location.
    ///
    /// Example: commensal lab run quickstart
    Lab(Lab),
    /// Report how many VMs or databases fit on a server, and how much they slow each other down.
    ///
    /// Example: commensal density classify 4x16
    Density(Density),
    /// Load, monitor and unload commensal's sched_ext scheduler for offline work, without a reboot.
    ///
    /// Example: commensal sched load -c groups.toml
    Sched(Sched),
    /// Print a completion script for a shell.
    ///
    /// Example: commensal completions bash >/usr/share/bash-completion/completions/commensal
    Completions {
        /// The shell for which to print the script.
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

/// `commensal status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Print only what is requested and not in force, a line each, for alerts. Exit status 1 exactly when there is
    /// something; other problems do not count.
    #[arg(long)]
    pub check: bool,

    /// Without an agent, compare the machine with these groups instead of those that were applied last: a groups file,
    /// or a folder of *.toml.
    #[arg(long, short, value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Print JSON.
    #[arg(long, conflicts_with = "check")]
    pub json: bool,
}

/// `commensal doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,

    /// Test the facts about the kernel on which plans rely, each in scratch cgroups, and print which of them hold: the
    /// values that files accept, return and refuse, and the CPU time that two busy processes on one CPU get with each
    /// available mechanism. Takes up to a minute, and keeps one CPU busy with the smallest weight. Changes no settings
    /// of other programs; only a vendor's switch (Group Identity) is turned on during the test, unless that would clear
    /// a value of another program. Exit status 0: all facts hold; 1: some do not hold; 2: none could be tested.
    #[arg(long)]
    pub prove: bool,
}

/// `commensal config`.
#[derive(Debug, Args)]
pub struct Config {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: ConfigVerb,
}

/// `commensal config …`.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Report every mistake in groups files, experiments and density ladders, with line and column.
    ///
    /// Example: commensal config check groups.toml
    ///
    /// Does not look at the machine; `commensal plan` also checks whether the limits fit it.
    ///
    /// Exit status 0: there are no mistakes; 1: there are mistakes; 2: a file could not be read.
    Check(ConfigCheck),
    /// Print the JSON Schema of groups files, for editors.
    ///
    /// Example: commensal config schema
    Schema,
}

/// `commensal config check`.
#[derive(Debug, Args)]
pub struct ConfigCheck {
    /// Files, each checked by itself. What a file describes is recognized by its keys. The groups files (*.toml) of a
    /// folder are checked as one configuration.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Write the proposal to this new file instead of printing it. A file that exists is never overwritten.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
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
    /// List every journal in the state directory, with its damage.
    ///
    /// Example: commensal journal check
    ///
    /// Shows owner, boot, number of records, and damaged lines with the reason.
    ///
    /// Exit status 0: the journals are intact; 2: a journal is damaged.
    Check(Json),
    /// Show what `restore` would restore from each journal, a line per record.
    ///
    /// Example: commensal journal show
    ///
    /// With --json, each line is JSON.
    ///
    /// Exit status 0: the journals are intact; 2: a journal is damaged.
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
    /// Name of the group to start the command in.
    #[arg(long, short, value_name = "GROUP")]
    pub group: String,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Fail immediately instead of waiting in the group's queue.
    #[arg(long)]
    pub no_wait: bool,

    /// Wait in the group's queue for at most this long, such as 30s or 10min [default and maximum: the group's
    /// queue.timeout].
    #[arg(long, value_name = "TIME", value_parser = values::span, conflicts_with = "no_wait")]
    pub queue_timeout: Option<Duration>,

    /// The command and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `commensal explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the group.
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
    /// Targets whose waits are measured. A target is a systemd unit, a cgroup (its name or /path), a process (its name or
    /// PID) with its descendants, a container (its name or ID), or a group of the groups file. If a name stands for
    /// several things, put the kind before it: unit:, cgroup:, process:, container: or group: [default: the online groups
    /// of the groups file, against its offline groups].
    pub target: Vec<String>,

    /// Target to hold responsible: its share of the waits is compared with a budget. WHO has the same forms as a
    /// target. May be given several times.
    #[arg(long, value_name = "WHO")]
    pub against: Vec<String>,

    /// How long to measure, such as 30s or 5min [default: until Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub r#for: Option<Duration>,

    /// Exit with status 1 when the targets of --against are over budget, and with 3 when the data is not sufficient to
    /// decide.
    #[arg(long)]
    pub check: bool,

    /// Budget for the waits that the targets of --against cause, in ms per second of the waiting targets' CPU time
    /// [default: 50].
    #[arg(long, value_name = "MS", value_parser = values::bound)]
    pub blame_below: Option<f64>,

    /// Budget for how long the targets of --against keep a CPU on which a waiting target was woken: 99th percentile in
    /// us [default: 100].
    #[arg(long, value_name = "US", value_parser = values::bound)]
    pub preempt_below: Option<f64>,

    /// A groups file, or a folder of *.toml [default: that of the running agent, or /etc/commensal/groups.d].
    #[arg(long, short, value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Redraw a whole screen every second instead of adding lines.
    #[arg(long, conflicts_with = "json")]
    pub top: bool,

    /// Write an SVG chart, similar to a flame graph, with a bar for each waiting target and each cause of its waits; -
    /// prints the chart.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write the chart and the measured values as one HTML file; - prints the file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write counters in Prometheus' text format, every five seconds and at the end (for node_exporter's textfile
    /// collector); - prints them at the end.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,

    /// Charge the time of interrupts to the tasks that they interrupt, which is slightly cheaper.
    #[arg(long)]
    pub no_interrupts: bool,

    /// Compare every measured wait with the kernel's own measurement (run delay).
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
        /// Port on 127.0.0.1; 0 picks any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Worker threads.
        #[arg(long, default_value_t = 2)]
        workers: usize,
    },
    /// A minimal single-threaded HTTP service, as fast as possible, with stalls.
    Responder {
        /// Port on 127.0.0.1; 0 picks any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Length of a stall in ms.
        #[arg(long, default_value_t = 0)]
        stall_ms: u64,
        /// Interval between stalls in seconds.
        #[arg(long, default_value_t = 5)]
        stall_every_s: u64,
    },
    /// Threads that sleep for random times and then compute.
    Pulse {
        /// Number of threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Mean sleep time in us.
        #[arg(long, default_value_t = 4000)]
        period_us: u64,
        /// CPU time of one piece of work in us.
        #[arg(long, default_value_t = 1000)]
        work_us: u64,
        /// Seed for the sleep times.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Duration [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Takes CPU time from CPUs that idle, as a hypervisor does that wakes them late.
    Steal {
        /// Time per second to take from all CPUs together, in ms.
        #[arg(long, default_value_t = 30)]
        ms_per_s: u64,
        /// Seed for the gaps and bursts.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Waits for the end of standard input; then thaws the cgroups that a killed lab run left frozen, and removes
    /// everything that the run left behind.
    ThawGuard,
    /// Threads that stress one resource, and count their work in the file given as standard input.
    Antagonist {
        /// cpu, vector, l2, l3, memory, page-cache, fork, disk or network.
        kind: commensal_lab::workload::antagonist::Kind,
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Bytes of memory or file per thread [default: depends on the kind].
        #[arg(long)]
        size: Option<u64>,
        /// Folder for the unnamed files of page-cache and disk.
        #[arg(long, default_value = "/var/tmp")]
        dir: PathBuf,
        /// Duration [default: until killed].
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// The workload of one cell of a density ladder.
    Cell {
        /// Whether all cells wait for each other at a barrier after each step.
        #[arg(long)]
        barrier: bool,
        /// Copy between two arrays of this size (in bytes, each) instead of computing.
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
        /// Delay in ms after which a datagram without a reply is resent.
        #[arg(long, default_value_t = 20)]
        timeout_ms: u64,
    },
    /// CPU burners that count their work in the file given as standard input.
    Burn {
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Exits by a handler when SIGTERM arrives, as a service does that saves its state first.
        #[arg(long)]
        handle_sigterm: bool,
    },
}
