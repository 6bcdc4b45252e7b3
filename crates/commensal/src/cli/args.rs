//! The options of the program, verb by verb; larger verbs have a file of their own.

use super::agent_args::{Agent, Guard};
use super::density_args::Density;
use super::lab_args::Lab;
use super::sched_args::Sched;
use super::values;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
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
    #[arg(long, value_name = "TIME", value_parser = values::span, conflicts_with = "no_wait")]
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
    #[arg(long, value_name = "TIME", value_parser = values::span)]
    pub r#for: Option<Duration>,

    /// Exit with 1 when the targets of --against are over budget, and with 3 when the data does not decide.
    #[arg(long)]
    pub check: bool,

    /// Budget for the wait that they cause, ms per second of the targets' CPU time [default: 50].
    #[arg(long, value_name = "MS", value_parser = values::bound)]
    pub blame_below: Option<f64>,

    /// Budget for how long they keep a CPU on which a target was woken, us, 99th percentile [default: 100].
    #[arg(long, value_name = "US", value_parser = values::bound)]
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
