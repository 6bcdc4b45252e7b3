//! What the agent knows and did, as plain data: made once per tick, shown by the control socket, `/metrics`, `status`, `top`
//! and `explain`. Missing is `None`, never 0.

use crate::canary;
use commensal_core::control::formula::evaluate;
pub use commensal_reconcile::Drift;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Format of the snapshot; changes when a reader would misunderstand.
pub const SCHEMA: &str = "commensal-agent/1";

/// Everything, at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub version: String,
    /// Process number of the agent.
    pub pid: u32,
    /// When it was made, RFC 3339.
    pub at: String,
    /// Seconds since the agent started, on a clock that nobody sets.
    pub uptime_s: f64,
    /// Ticks so far.
    pub ticks: u64,
    /// What a tick is meant to take, ms.
    pub interval_ms: u64,
    /// What the last tick took, ms.
    pub tick_ms: f64,
    /// Whether it only looks: somebody said `pause`.
    pub paused: bool,
    /// The canary that runs: isolation is off for short windows.
    pub canary: Option<canary::Shown>,
    /// Everything about it, or about the one before; asked for apart.
    #[serde(skip)]
    pub canary_report: Option<Arc<canary::Report>>,
    /// The configuration in force.
    pub config: Config,
    /// Who looks after the machine if the agent dies.
    pub lease: Option<Lease>,
    /// The machine.
    pub machine: Machine,
    /// Its groups, by name.
    pub groups: Vec<Group>,
    /// What decides.
    pub controllers: Vec<Controller>,
    /// What was asked for and cannot be had.
    pub unmet: Vec<Unmet>,
    /// Knobs that somebody else writes.
    pub drift: Vec<Drift>,
    /// The last writes and decisions, newest last.
    pub actions: Arc<Vec<Action>>,
    /// What the agent itself costs.
    pub cost: Cost,
    /// What is wrong now, in whole sentences; empty when all is well.
    pub problems: Vec<String>,
}

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// File or folder.
    pub path: String,
    /// How often one was taken into force, from 1.
    pub generation: u64,
    /// When that was, RFC 3339.
    pub loaded: String,
    /// Why a newer one is not in force.
    pub error: Option<String>,
}

/// The lease on what is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// How long after the agent's last sign of life the guard acts, ms.
    pub time_ms: u64,
    /// The guard's process; `None` when it is not there.
    pub guard_pid: Option<u32>,
}

/// The machine now. CPU figures are CPUs over the last tick.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Logical CPUs.
    pub cpus: u32,
    /// Busy with anything.
    pub busy: Option<f64>,
    /// Used by online groups.
    pub online: Option<f64>,
    /// Used by offline groups.
    pub offline: Option<f64>,
    /// Used by no group.
    pub other: Option<f64>,
    /// Taken by the hypervisor.
    pub steal: Option<f64>,
    /// Main memory, bytes.
    pub memory_bytes: u64,
    /// Memory that can be had without swapping, bytes.
    pub memory_available_bytes: Option<u64>,
    /// Pressure.
    pub pressure: Pressure,
}

/// Share of the last tick in which some task waited, per cent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// For a CPU.
    pub cpu_pct: Option<f64>,
    /// For memory.
    pub memory_pct: Option<f64>,
    /// For a disk.
    pub io_pct: Option<f64>,
}

/// One group now.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// `online` or `offline`.
    pub class: String,
    /// What makes it yield or protects it, such as `cpu.idle`.
    pub mechanism: Option<String>,
    /// Its members.
    pub members: Arc<Vec<Member>>,
    /// CPUs that it used.
    pub cpus: Option<f64>,
    /// Memory that it holds, bytes.
    pub memory_bytes: Option<u64>,
    /// Its hard limit, bytes.
    pub memory_max_bytes: Option<u64>,
    /// Bytes read from disks per second.
    pub read_per_s: Option<f64>,
    /// Bytes written to disks per second.
    pub write_per_s: Option<f64>,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Time that its threads waited for a CPU, ms per second.
    pub run_delay_ms_per_s: Option<f64>,
    /// Of that, what is blamed on offline work, ms per second that they had a CPU; only online groups, only with the probe.
    pub blamed_ms_per_cpu_s: Option<f64>,
    /// 99th percentile of the time that it took to get offline work off a CPU, us; likewise.
    pub preemption_p99_us: Option<f64>,
    /// Share of its periods in which the quota stopped it, per cent.
    pub throttled_pct: Option<f64>,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Pressure.
    pub pressure: Pressure,
    /// What is in force, and why.
    pub limits: Vec<Limit>,
    /// Its admission queue.
    pub queue: Option<Queue>,
    /// Whether the agent has frozen it.
    pub frozen: bool,
}

/// A cgroup of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// Its path.
    pub path: String,
    /// Made by commensal.
    pub own: bool,
    /// What it was found by, such as `container web`.
    pub found_by: String,
}

/// A limit in force.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Key of the groups file, such as `cpu.max`.
    pub key: String,
    /// Its value, with a unit.
    pub value: String,
    /// Why it is that.
    pub why: Explanation,
}

/// Why a number is what it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The rule that won, in words.
    pub rule: String,
    /// The formula, in the names of its inputs; empty when the value was written by the user.
    pub formula: String,
    /// The inputs.
    pub inputs: Vec<Input>,
}

impl Explanation {
    /// What the formula gives with its inputs: the decision. `None` without a formula.
    #[must_use]
    pub fn derive(&self) -> Option<f64> {
        let inputs: Vec<(&str, f64)> =
            self.inputs.iter().map(|input| (input.name.as_str(), input.value)).collect();
        Some(evaluate(&self.formula, &inputs)?.last()?.1)
    }
}

/// A number that went into a decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Input {
    /// Its name in the formula.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// An admission queue now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Members that run.
    pub running: u32,
    /// Members that wait.
    pub waiting: u32,
    /// How many may run; `None` is without a bound.
    pub max_concurrency: Option<u32>,
    /// How many may wait; `None` is without a bound.
    pub max_size: Option<u32>,
    /// Why nobody is admitted now, if it is not the number that runs.
    pub held: Option<String>,
}

/// Something that decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Controller {
    /// Such as `frame` or `suppress`.
    pub name: String,
    /// Whose, if not the machine's.
    pub group: Option<String>,
    /// Whether it decides, and if not, why.
    pub off: Option<String>,
    /// What it decided, with a unit.
    pub value: Option<String>,
    /// Why.
    pub why: Explanation,
}

/// What was asked for and cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unmet {
    /// Whose.
    pub group: String,
    /// What.
    pub what: String,
    /// Why not.
    pub because: String,
    /// The way out.
    pub try_this: String,
}

impl Snapshot {
    /// With renamed keys under their old names as well, for one release.
    #[must_use]
    pub fn with_old_names(&self) -> WithOldNames<'_> {
        WithOldNames { snapshot: self, troubles: &self.problems }
    }
}

/// A snapshot as others get it.
#[derive(Debug, Serialize)]
pub struct WithOldNames<'s> {
    #[serde(flatten)]
    snapshot: &'s Snapshot,
    /// Until the next release the name of `problems`.
    troubles: &'s [String],
}

/// A write or a decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Action {
    /// When, RFC 3339.
    pub at: String,
    /// Whose, if not the machine's.
    pub group: Option<String>,
    /// The cgroup and file, or what else was acted upon.
    pub what: String,
    /// What it was.
    pub old: Option<String>,
    /// What it is now.
    pub new: Option<String>,
    /// Why.
    pub why: String,
    /// The decision behind it, with its formula and inputs; none where what the user wrote was put in force, or taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Explanation>,
}

/// What the agent itself costs, since its start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// CPU time, s.
    pub cpu_s: Option<f64>,
    /// Memory, bytes.
    pub rss_bytes: Option<u64>,
    /// Kernel files written.
    pub writes: u64,
    /// Ticks that overran the configured interval.
    pub late_ticks: u64,
    /// Lines that the audit log could not take.
    pub audit_lost: u64,
}
