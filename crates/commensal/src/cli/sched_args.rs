//! Options of `sched`.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `commensal sched`.
#[derive(Debug, Args)]
pub struct Sched {
    /// Which part.
    #[command(subcommand)]
    pub verb: SchedVerb,
}

/// `commensal sched …`.
#[derive(Debug, Subcommand)]
pub enum SchedVerb {
    /// Load the scheduler, and put the groups under it. Exit status 0 when they are, 1 when it is loaded and not all is as it
    /// was asked for, 2 when nothing was loaded. With --with it stays in the foreground: 0 when that scheduler was loaded until
    /// Ctrl-C or SIGTERM, 1 when it went before.
    Load(SchedLoad),
    /// Say what the loaded scheduler does, in its own figures, and beside them what the probe sees. Exit status 0 when it
    /// runs, 1 when it is loaded and does not do its work, 2 when nothing is loaded.
    Status(SchedStatus),
    /// Give every thread its own policy back and take the scheduler off, also after its process was killed. Exit status 1 when
    /// something stays as it is, such as the scheduler of another program.
    Unload,
}

/// `commensal sched load`.
#[derive(Debug, Args)]
pub struct SchedLoad {
    /// A groups file, or a folder of *.toml: as `apply`, unless an agent keeps its own.
    #[arg(long, short, value_name = "PATH", default_value = "/etc/commensal/groups.d")]
    pub config: PathBuf,

    /// Orders in place of groups: a file with the object that goes over the scheduler's socket.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub orders: Option<PathBuf>,

    /// For how long a thread of a core stays free after a thread that expels has left it, us.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub hold_off_us: Option<u64>,

    /// Freeze offline groups when one of their threads has waited for so long [default: 5000].
    #[arg(long, value_name = "MS")]
    pub guard_ms: Option<u64>,

    /// Have the kernel take the scheduler off when a thread has waited for so long (at most 30000) [default: 30000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=30_000))]
    pub watchdog_ms: Option<u64>,

    /// Take over from the one that is loaded, with its orders.
    #[arg(long)]
    pub replace: bool,

    /// Load another sched_ext scheduler, and stay with it until Ctrl-C or SIGTERM ends it: its program and arguments, up to the
    /// end of the line.
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["config", "orders", "hold_off_us", "guard_ms", "watchdog_ms", "replace"])]
    pub with: Vec<OsString>,
}

/// `commensal sched status`.
#[derive(Debug, Args)]
pub struct SchedStatus {
    /// How long the probe looks, such as 10s; 0s leaves it out.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "2s")]
    pub r#for: Duration,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
