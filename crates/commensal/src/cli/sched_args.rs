//! Options of `sched`.

use super::values;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `commensal sched`.
#[derive(Debug, Args)]
pub struct Sched {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: SchedVerb,
}

/// `commensal sched …`.
#[derive(Debug, Subcommand)]
pub enum SchedVerb {
    /// Load the scheduler, and assign the groups to it.
    ///
    /// Example: commensal sched load -c groups.toml
    ///
    /// With --with, the command stays in the foreground until the scheduler is unloaded.
    ///
    /// Exit status 0: done; 1: the scheduler is loaded, but not everything requested is in force; 2: no scheduler was
    /// loaded. With --with, 0: the scheduler stayed loaded until Ctrl-C or SIGTERM; 1: it was unloaded earlier.
    Load(SchedLoad),
    /// Show the counters of the loaded scheduler, and next to them those of the probe.
    ///
    /// Example: commensal sched status --for 5s
    ///
    /// Exit status 0: the scheduler works; 1: it is loaded but does not work; 2: none is loaded.
    Status(SchedStatus),
    /// Restore the original policy of every thread and unload the scheduler.
    ///
    /// Example: commensal sched unload
    ///
    /// Also works after the process of the scheduler was killed.
    ///
    /// Exit status 0: done; 1: something cannot be undone, such as the scheduler of another program.
    Unload,
}

/// `commensal sched load`.
#[derive(Debug, Args)]
pub struct SchedLoad {
    /// A groups file, or a folder of *.toml: used as by `apply`, unless a running agent has its own groups.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// File with the orders (a JSON object as sent over the scheduler's socket), used instead of groups.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub orders: Option<PathBuf>,

    /// Hold-off in us: how long offline work stays off a core's other hardware threads after an expelling online thread
    /// has left the core.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub hold_off_us: Option<u64>,

    /// Freeze offline groups when one of their threads has waited this long [default: 5000].
    #[arg(long, value_name = "MS")]
    pub guard_ms: Option<u64>,

    /// Let the kernel unload the scheduler when a thread has waited this long (at most 30000) [default: 30000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=30_000))]
    pub watchdog_ms: Option<u64>,

    /// Replace the loaded scheduler, and keep its orders.
    #[arg(long)]
    pub replace: bool,

    /// Load a third-party sched_ext scheduler: its program and arguments, up to the end of the command line. Stays in
    /// the foreground until Ctrl-C or SIGTERM.
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["config", "orders", "hold_off_us", "guard_ms", "watchdog_ms", "replace"])]
    pub with: Vec<OsString>,
}

/// `commensal sched status`.
#[derive(Debug, Args)]
pub struct SchedStatus {
    /// How long the probe measures, such as 10s; 0s skips it.
    #[arg(long, value_name = "TIME", value_parser = values::span, default_value = "2s")]
    pub r#for: Duration,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
