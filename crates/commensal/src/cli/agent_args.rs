//! Options of `agent`, of the commands to a running agent, and of `guard`.

use super::values;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `commensal agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agent {
    /// Command to the running agent; without one, an agent is started.
    #[command(subcommand)]
    pub order: Option<AgentOrder>,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Interval between two ticks (passes of the agent's loop).
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = tick)]
    pub interval: Duration,

    /// Timeout for the agent's keep-alives: after this time without one, the guard kills the agent and sets the safe
    /// state.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = lease)]
    pub lease: Duration,

    /// Run without a guard: if the agent dies, everything stays as it is until `commensal restore`.
    #[arg(long)]
    pub no_guard: bool,

    /// Do not load the probe (BPF): the causes of waits are then unknown, and decisions use run delay and pressure.
    #[arg(long)]
    pub no_probe: bool,

    /// What to leave in force when the agent stops: the safe state (offline work held back, no limit on online work),
    /// everything unchanged, or the original values.
    #[arg(long, value_name = "STATE", default_value = "safe")]
    pub on_exit: OnExit,

    /// Replace the running agent, which exits without changing anything.
    #[arg(long)]
    pub replace: bool,

    /// Also serve metrics over TCP at this address (read-only).
    #[arg(long, value_name = "ADDR")]
    pub metrics_listen: Option<SocketAddr>,

    /// Let members of this group read the agent's state (`status`, `top`, `explain`, metrics), but not change anything,
    /// through /run/commensal/control.sock: a name of /etc/group, or a GID [default: commensal, for root's agent
    /// without --state-dir, if that group exists].
    #[arg(long, value_name = "GROUP")]
    pub share_with: Option<String>,
}

/// `commensal agent …`: commands to the running agent.
#[derive(Debug, Subcommand)]
pub enum AgentOrder {
    /// Reload the groups files now and apply them.
    ///
    /// Example: commensal agent reload
    ///
    /// If they have errors, the errors are printed and the previous groups stay in force.
    ///
    /// Exit status 0: the groups are in force; 2: they have errors.
    Reload,
    /// Write nothing until `resume`: limits stay as they are, and the agent only observes.
    ///
    /// Example: commensal agent pause
    Pause,
    /// Resume writing.
    ///
    /// Example: commensal agent resume
    Resume,
    /// Measure the effect of isolation on the running machine.
    ///
    /// Example: commensal agent canary --for 5m
    ///
    /// Removes isolation from the offline groups for short windows in random order, and compares how long online groups
    /// wait for a CPU. The canary ends as soon as the effect is significant.
    ///
    /// Exit status 0: online groups wait longer without isolation; 1: they wait longer with it; 3: no significant
    /// difference.
    Canary(Canary),
}

/// `commensal agent canary`.
#[derive(Debug, Args)]
pub struct Canary {
    /// Duration, at most 1h.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = values::span)]
    pub r#for: Duration,

    /// Length of a window. Windows come in pairs, one with isolation and one without.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::span)]
    pub window: Duration,

    /// Time at the beginning of each window to leave out of the evaluation [default: a fifth of the window].
    #[arg(long, value_name = "TIME", value_parser = values::span)]
    pub settle: Option<Duration>,

    /// Maximum share of the time that runs without isolation, in per cent.
    #[arg(long, value_name = "PER CENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub off: u32,

    /// Seed for the random order of the windows [default: taken from the clock].
    #[arg(long)]
    pub seed: Option<u64>,

    /// Abort a window without isolation when an online group waits for offline work for longer than this, in ms per
    /// second of the group's CPU time. The canary stops after three such windows.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub max_blamed: u32,

    /// Also abort the window when the group's run delay exceeds this multiple of its run delay with isolation, and 200
    /// ms per second.
    #[arg(long, value_name = "FACTOR", default_value_t = 20)]
    pub max_run_delay: u32,

    /// Run for the whole duration even if the effect is significant earlier.
    #[arg(long)]
    pub whole: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// State that an agent leaves behind.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OnExit {
    /// The safe state.
    Safe,
    /// Everything unchanged.
    Keep,
    /// Original values.
    Restore,
}

/// `commensal guard`.
#[derive(Debug, Args)]
pub struct Guard {
    /// Exit when the first agent has exited, or when the process that started the guard exits before an agent has
    /// connected. Exit status 1: some values of the safe state could not be set or read.
    #[arg(long)]
    pub once: bool,

    /// PID of the process that started the guard, in case that process has already exited [default: the guard's
    /// parent].
    #[arg(long, value_name = "PID", requires = "once")]
    pub starter: Option<u32>,
}

fn tick(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(50)..=Duration::from_secs(60);
    values::span_within(text, bounds, "a tick is 50ms to 60s long")
}

fn lease(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(200)..=Duration::from_secs(3_600);
    values::span_within(text, bounds, "a lease is 200ms to 1h long")
}
