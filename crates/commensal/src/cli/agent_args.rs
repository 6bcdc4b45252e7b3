//! Options of `agent`, of the orders to a running agent, and of `guard`.

use super::values;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `commensal agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agent {
    /// Order to the running agent; without one, an agent is started.
    #[command(subcommand)]
    pub order: Option<AgentOrder>,

    /// A groups file, or a folder of *.toml.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Length of a tick.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = tick)]
    pub interval: Duration,

    /// How long the agent may send no sign of life before the guard ends it and sets the safe state.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = lease)]
    pub lease: Duration,

    /// Run without a guard: if the agent dies, everything stays as it is until `commensal restore`.
    #[arg(long)]
    pub no_guard: bool,

    /// Do not load the probe (BPF): the causes of waits are then unknown, and decisions use run delay and pressure.
    #[arg(long, alias = "no-judge")]
    pub no_probe: bool,

    /// State to leave behind: the safe state (offline work held back, no limit on online work), everything unchanged,
    /// or the original values.
    #[arg(long, value_name = "STATE", default_value = "safe")]
    pub on_exit: OnExit,

    /// Replace the running agent, which ends without changing anything.
    #[arg(long)]
    pub takeover: bool,

    /// Also serve metrics over TCP at this address, read only.
    #[arg(long, value_name = "ADDR")]
    pub metrics_listen: Option<SocketAddr>,

    /// Let the users of this group look (`status`, `top`, `explain`, metrics) and give no orders, at /run/commensal/control.sock: a
    /// group of /etc/group, or a number [default: commensal, for root's agent without --state-dir, where there is such a group].
    #[arg(long, value_name = "GROUP")]
    pub share_with: Option<String>,
}

/// `commensal agent …`: orders to the running agent.
#[derive(Debug, Subcommand)]
pub enum AgentOrder {
    /// Read the groups again now, and apply them. Exit status 2 with the mistakes when the old ones stay in force.
    Reload,
    /// Write nothing until `resume`: limits stay as they are, and the agent only observes.
    Pause,
    /// Resume writing.
    Resume,
    /// Prove the effect of isolation on this machine: remove it from the offline groups for short windows in random
    /// order, and compare the waits of online groups. It ends as soon as the effect is significant. Exit status 0:
    /// online groups wait longer without isolation; 1: they wait longer with it; 3: neither is significant.
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

    /// Time at the beginning of each window that is discarded [default: a fifth of it].
    #[arg(long, value_name = "TIME", value_parser = values::span)]
    pub settle: Option<Duration>,

    /// Maximum share of the time without isolation, per cent.
    #[arg(long, value_name = "PER CENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub off: u32,

    /// Seed of the order [default: taken from the clock].
    #[arg(long)]
    pub seed: Option<u64>,

    /// End a window without isolation when an online group waits longer for offline work than this, in ms per second of
    /// its CPU time. Three such windows end the canary.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub max_blamed: u32,

    /// … or when its run delay exceeds this multiple of the one with isolation (and 200 ms per second).
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
    /// End when the first agent has ended, or when the process that started the guard ends before an agent has
    /// connected.
    #[arg(long)]
    pub once: bool,

    /// Pid of the process that started it, in case it has ended already [default: its parent].
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
