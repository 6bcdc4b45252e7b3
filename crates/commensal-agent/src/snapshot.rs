//! The agent's state and actions as plain data: made once per tick, shown by the control socket, `/metrics`, `status`,
//! `top` and `explain`. A missing value is `None`, never 0.

use crate::canary;
use commensal_core::control::formula::evaluate;
pub use commensal_reconcile::Drift;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Format of the snapshot; changes when older readers would misunderstand it.
pub const SCHEMA: &str = "commensal-agent/1";

/// The agent's whole state at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub version: String,
    /// PID of the agent.
    pub pid: u32,
    /// When it was made, RFC 3339.
    pub at: String,
    /// Seconds since the agent started, on a monotonic clock.
    pub uptime_s: f64,
    /// Ticks so far.
    pub ticks: u64,
    /// Configured length of a tick, ms.
    pub interval_ms: u64,
    /// Duration of the last tick, ms.
    pub tick_ms: f64,
    /// Whether the agent is paused by `pause`: it measures but writes nothing.
    pub paused: bool,
    /// The canary that runs: isolation is off for short windows.
    pub canary: Option<canary::Shown>,
    /// Report of the running or the last canary; served under a separate path.
    #[serde(skip)]
    pub canary_report: Option<Arc<canary::Report>>,
    /// The configuration in force.
    pub config: Config,
    /// The guard and its lease, which cover the agent's death.
    pub lease: Option<Lease>,
    /// The machine.
    pub machine: Machine,
    /// Its groups, by name.
    pub groups: Vec<Group>,
    /// The controllers.
    pub controllers: Vec<Controller>,
    /// Requests that cannot be met.
    pub unmet: Vec<Unmet>,
    /// Knobs that another program also writes.
    pub drift: Vec<Drift>,
    /// The last writes and decisions, newest last.
    pub actions: Arc<Vec<Action>>,
    /// The agent's own resource use.
    pub cost: Cost,
    /// Current problems, in whole sentences; empty when all is well.
    pub problems: Vec<String>,
}

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// File or directory.
    pub path: String,
    /// How many configurations were put in force, from 1.
    pub generation: u64,
    /// When the current one was put in force, RFC 3339.
    pub loaded: String,
    /// Why a newer configuration is not in force.
    pub error: Option<String>,
}

/// The agent's lease, which the guard watches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// How long after the agent's last sign of life the guard acts, ms.
    pub time_ms: u64,
    /// PID of the guard; `None` when there is none.
    pub guard_pid: Option<u32>,
}

/// Current state of the machine. CPU figures are CPUs over the last tick.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Logical CPUs.
    pub cpus: u32,
    /// Busy CPUs, whatever the use.
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
    /// Memory available without swapping, bytes.
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

/// Current state of one group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// `online` or `offline`.
    pub class: String,
    /// The mechanism that makes it yield or protects it, such as `cpu.idle`.
    pub mechanism: Option<String>,
    /// Its members.
    pub members: Arc<Vec<Member>>,
    /// CPUs used.
    pub cpus: Option<f64>,
    /// Memory held, bytes.
    pub memory_bytes: Option<u64>,
    /// Hard limit of memory, bytes.
    pub memory_max_bytes: Option<u64>,
    /// Bytes read from disks per second.
    pub read_per_s: Option<f64>,
    /// Bytes written to disks per second.
    pub write_per_s: Option<f64>,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Time that its threads waited for a CPU, ms per second.
    pub run_delay_ms_per_s: Option<f64>,
    /// Part of that blamed on offline work, ms per second of the threads' CPU time; only for online groups, with the
    /// probe.
    pub blamed_ms_per_cpu_s: Option<f64>,
    /// 99th percentile of the time that it took to get offline work off a CPU, us; only for online groups, with the
    /// probe.
    pub preemption_p99_us: Option<f64>,
    /// Share of the quota's periods in which the group was throttled, per cent.
    pub throttled_pct: Option<f64>,
    /// Processes that the kernel's OOM killer killed.
    pub oom_kills: Option<u64>,
    /// Pressure.
    pub pressure: Pressure,
    /// Limits in force, and why.
    pub limits: Arc<Vec<Limit>>,
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
    /// Whether commensal created it.
    pub own: bool,
    /// The match that found it, such as `container web`.
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
    /// The explanation of the value.
    pub why: Explanation,
}

/// Why a value is what it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The rule that applied, in words.
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
    /// The input's name in the formula.
    pub name: String,
    /// The input's value.
    pub value: f64,
    /// The input's unit.
    pub unit: String,
}

/// Current state of an admission queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Number of running members.
    pub running: u32,
    /// Number of waiting members.
    pub waiting: u32,
    /// Maximum number of running members; `None` is unlimited.
    pub max_concurrency: Option<u32>,
    /// Maximum number of waiting members; `None` is unlimited.
    pub max_size: Option<u32>,
    /// Why no member is admitted now, if the limit on running members is not the reason.
    pub held: Option<String>,
}

/// State of a controller.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Controller {
    /// Name, such as `frame` or `suppress`.
    pub name: String,
    /// The group, if it does not decide for the whole machine.
    pub group: Option<String>,
    /// Why it is off; `None` when it decides.
    pub off: Option<String>,
    /// Its decision, with a unit.
    pub value: Option<String>,
    /// The explanation of the decision.
    pub why: Explanation,
}

/// A request that cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unmet {
    /// The group that asked.
    pub group: String,
    /// The request.
    pub what: String,
    /// Why it cannot be met.
    pub because: String,
    /// What to do about it.
    pub try_this: String,
}

impl Snapshot {
    /// Serialises renamed keys under their old names as well, for one release.
    #[must_use]
    pub fn with_old_names(&self) -> WithOldNames<'_> {
        WithOldNames { snapshot: self, troubles: &self.problems }
    }
}

/// A snapshot as served to clients.
#[derive(Debug, Serialize)]
pub struct WithOldNames<'s> {
    #[serde(flatten)]
    snapshot: &'s Snapshot,
    /// The old name of `problems`, until the next release.
    troubles: &'s [String],
}

/// A write or a decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Action {
    /// When, RFC 3339.
    pub at: String,
    /// The group, if it does not concern the whole machine.
    pub group: Option<String>,
    /// The cgroup and file, or another object of the action.
    pub what: String,
    /// Old value.
    pub old: Option<String>,
    /// New value.
    pub new: Option<String>,
    /// The reason.
    pub why: String,
    /// The decision behind it, with its formula and inputs; none where what the user wrote was put in force, or taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Explanation>,
}

/// The agent's own resource use since its start.
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
    /// Lines that the audit log lost.
    pub audit_lost: u64,
}
