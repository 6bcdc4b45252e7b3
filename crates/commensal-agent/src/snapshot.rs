//! The agent's state and actions as plain data. The agent makes a snapshot once per tick; the control socket,
//! `/metrics`, `status`, `top` and `explain` show it. An unknown value is `None`, never 0.

use crate::canary;
use commensal_core::control::formula::evaluate;
pub use commensal_reconcile::Drift;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Name of the snapshot's format. It changes when older readers would misunderstand the format.
pub const SCHEMA: &str = "commensal-agent/1";

/// The agent's complete state at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The value of [`SCHEMA`].
    pub schema: String,
    /// Version of the agent's program.
    pub version: String,
    /// PID of the agent.
    pub pid: u32,
    /// Time at which the snapshot was made (RFC 3339).
    pub at: String,
    /// Seconds since the agent started, by a monotonic clock.
    pub uptime_s: f64,
    /// Number of ticks so far.
    pub ticks: u64,
    /// Configured interval between ticks (ms).
    pub interval_ms: u64,
    /// Duration of the last tick (ms).
    pub tick_ms: f64,
    /// Whether the agent is paused: it measures but writes nothing.
    pub paused: bool,
    /// The running canary, if there is one.
    pub canary: Option<canary::Shown>,
    /// Report of the running or the last canary. The control socket serves it at a separate path.
    #[serde(skip)]
    pub canary_report: Option<Arc<canary::Report>>,
    /// The configuration in force.
    pub config: Config,
    /// The agent's lease and guard; `None` if the agent runs without a guard.
    pub lease: Option<Lease>,
    /// The last time that the guard or an exiting agent put the machine into its safe state; `None` if that has never
    /// happened.
    pub safe_state: Option<Arc<LastSafeState>>,
    /// Why it is not known who has the CPU while online groups wait: the probe cannot be loaded. `None` if it is loaded,
    /// or is not wanted.
    pub no_probe: Option<String>,
    /// State of the machine.
    pub machine: Machine,
    /// State of the groups.
    pub groups: Vec<Group>,
    /// State of the controllers.
    pub controllers: Vec<Controller>,
    /// Requested settings that cannot be applied.
    pub unmet: Vec<Unmet>,
    /// Knobs that another program also writes.
    pub drift: Vec<Drift>,
    /// The last writes and decisions, newest last.
    pub actions: Arc<Vec<Action>>,
    /// The agent's own resource use.
    pub cost: Cost,
    /// The agent's reactions to alarms of the probe.
    pub reactions: Reactions,
    /// Time since all settings were read back together (s); `None` before that. Since then, changed ones are read.
    pub read_back_s: Option<f64>,
    /// Current problems, in whole sentences; empty if there are none.
    pub problems: Vec<String>,
    /// Those of the problems because of which something requested is not in force, or may not be.
    pub failed: Vec<String>,
}

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Groups file, or directory of groups files.
    pub path: String,
    /// Number of configurations that were put in force so far.
    pub generation: u64,
    /// Time at which the current configuration was put in force (RFC 3339).
    pub loaded: String,
    /// Why the agent rejected a newer configuration; `None` if it rejected none.
    pub error: Option<String>,
}

/// The agent's lease with the guard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// Time after the agent's last keep-alive at which the guard acts (ms).
    pub time_ms: u64,
    /// PID of the guard; `None` if there is no guard now.
    pub guard_pid: Option<u32>,
}

/// The result of the last time that the safe state was set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastSafeState {
    /// Time at which the safe state was set (RFC 3339).
    pub at: String,
    /// How the agent ended, as readable text.
    pub why: String,
    /// Time that setting the safe state took (ms).
    pub took_ms: u64,
    /// Number of values that are as the safe state requires, including those that needed no write.
    pub held: usize,
    /// Number of values that could not be written or read.
    pub failures: usize,
    /// Messages about the first failures.
    pub failed: Vec<String>,
}

/// Current state of the machine. Uses of CPU are in CPUs, averaged over the last tick.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Number of logical CPUs.
    pub cpus: u32,
    /// Busy CPUs, used by groups or not.
    pub busy: Option<f64>,
    /// CPUs used by online groups.
    pub online: Option<f64>,
    /// CPUs used by offline groups.
    pub offline: Option<f64>,
    /// CPUs used outside of all groups.
    pub other: Option<f64>,
    /// CPUs that the hypervisor took (steal).
    pub steal: Option<f64>,
    /// Size of the main memory (bytes).
    pub memory_bytes: u64,
    /// Memory available without swapping, in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Pressure of the machine.
    pub pressure: Pressure,
}

/// Share of the last tick in which some task waited (per cent).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// Waiting for a CPU.
    pub cpu_pct: Option<f64>,
    /// Waiting for memory.
    pub memory_pct: Option<f64>,
    /// Waiting for a disk.
    pub io_pct: Option<f64>,
}

/// Current state of one group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// `online` or `offline`.
    pub class: String,
    /// The mechanism that makes the group yield or protects it, such as `cpu.idle`.
    pub mechanism: Option<String>,
    /// The group's members.
    pub members: Arc<Vec<Member>>,
    /// CPUs that the group used.
    pub cpus: Option<f64>,
    /// Current memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Hard limit of the memory in bytes.
    pub memory_max_bytes: Option<u64>,
    /// Bytes read from disks per second.
    pub read_per_s: Option<f64>,
    /// Bytes written to disks per second.
    pub write_per_s: Option<f64>,
    /// Number of tasks.
    pub tasks: Option<u64>,
    /// Time that the group's threads waited for a CPU (ms per second).
    pub run_delay_ms_per_s: Option<f64>,
    /// Wait for offline work per second of the group's CPU time (ms). Only for online groups, and only with the probe.
    pub blamed_ms_per_cpu_s: Option<f64>,
    /// The parts of the time that the group's threads waited for a CPU, largest first: who had it meanwhile. Only for
    /// online groups, and only with the probe.
    pub waits: Vec<WaitPart>,
    /// What else held the group back. Only for online groups, and only with the probe.
    pub held_back: Vec<HeldBack>,
    /// 99th percentile of the delay from the wake-up of an online thread until offline work left the CPU (us), over all
    /// online groups. Only for online groups, and only with the probe.
    pub preemption_p99_us: Option<f64>,
    /// Share of the quota's periods in which the group was throttled (per cent).
    pub throttled_pct: Option<f64>,
    /// Number of processes that the kernel's OOM killer has killed.
    pub oom_kills: Option<u64>,
    /// Pressure of the group.
    pub pressure: Pressure,
    /// Limits in force, with explanations.
    pub limits: Arc<Vec<Limit>>,
    /// The group's admission queue, if it has one.
    pub queue: Option<Queue>,
    /// Whether the agent has frozen the group, and all its tasks have stopped.
    pub frozen: bool,
    /// Since when a frozen group of cgroup v1 has been `FREEZING`: some of its tasks have not stopped (RFC 3339).
    pub freezing_since: Option<String>,
    /// How long a frozen group has been `FREEZING` (s); 0 if all tasks have stopped, `None` if the group is not frozen.
    pub freezing_s: Option<f64>,
    /// Since when the group starves (RFC 3339). A group starves if its tasks want a CPU and get none, because the group
    /// is below level 0 (`cpu.qos_level`) and online work is busy.
    pub starved_since: Option<String>,
    /// How long the group has starved (s); 0 if it does not starve, `None` if no cgroup of the group is below level 0.
    pub starved_s: Option<f64>,
}

/// A part of a group's waits for a CPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitPart {
    /// Who had the CPU: `other` (work of no group), `real-time`, `peers` (online work, the group's own included),
    /// `offline`, `kernel`, `interrupts`, or `nobody` (the CPU woke up from idle, or a limit throttled the group).
    pub kind: String,
    /// The group whose work it was, if it was that of a group.
    pub group: Option<String>,
    /// Time that the threads waited meanwhile (ms per second), over the last tick if a group has a latency target, otherwise
    /// over the last 10 s.
    pub ms_per_s: f64,
    /// The same since the agent started (s).
    pub total_s: f64,
}

/// Something besides those who had the CPU that held a group back. This time is contained in the waits, or the threads
/// did not wait meanwhile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldBack {
    /// `own-limit`, `parent-limit` (of a cgroup above the group's), `frozen`, `affinity` or `steal`.
    pub kind: String,
    /// How long it did since the agent started (s). A limit counts each CPU.
    pub total_s: f64,
    /// What held the group back at the last look, and what to do about it; `None` if nothing of this kind did.
    pub now: Option<String>,
}

/// A cgroup that belongs to a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// Path of the cgroup.
    pub path: String,
    /// Whether commensal created the cgroup.
    pub own: bool,
    /// The match that found the cgroup, such as `container web`.
    pub found_by: String,
}

/// A limit in force.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Key in the groups file, such as `cpu.max`.
    pub key: String,
    /// The value, with its unit.
    pub value: String,
    /// The explanation of the value.
    pub why: Explanation,
}

/// The explanation of a value.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The rule that applied, as readable text.
    pub rule: String,
    /// The formula, with the names of its inputs; empty if the user wrote the value.
    pub formula: String,
    /// The inputs of the formula.
    pub inputs: Vec<Input>,
}

impl Explanation {
    /// Evaluates the formula with its inputs; the result is the decision. `None` if there is no formula.
    #[must_use]
    pub fn derive(&self) -> Option<f64> {
        let inputs: Vec<(&str, f64)> =
            self.inputs.iter().map(|input| (input.name.as_str(), input.value)).collect();
        Some(evaluate(&self.formula, &inputs)?.last()?.1)
    }
}

/// A number that influenced a decision.
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
    /// Number of running commands.
    pub running: u32,
    /// Number of waiting commands.
    pub waiting: u32,
    /// Maximum number of running commands; `None` means unlimited.
    pub max_concurrency: Option<u32>,
    /// Maximum number of waiting commands; `None` means unlimited.
    pub max_size: Option<u32>,
    /// Why no command is admitted now, unless the reason is the limit on running commands.
    pub held: Option<String>,
}

/// State of a controller.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Controller {
    /// Name, such as `frame` or `suppress`.
    pub name: String,
    /// The group for which the controller decides; `None` for the whole machine.
    pub group: Option<String>,
    /// Why the controller is off; `None` while it is active.
    pub off: Option<String>,
    /// The controller's decision, with its unit.
    pub value: Option<String>,
    /// The explanation of the decision.
    pub why: Explanation,
}

/// A requested setting that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unmet {
    /// The group whose setting it is.
    pub group: String,
    /// The requested setting.
    pub what: String,
    /// Why the setting cannot be applied.
    pub because: String,
    /// A suggested remedy.
    pub try_this: String,
}

/// A write or a decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Action {
    /// Time of the action (RFC 3339).
    pub at: String,
    /// The group; `None` if the action concerns the whole machine.
    pub group: Option<String>,
    /// The cgroup and its file, or another object of the action.
    pub what: String,
    /// Old value.
    pub old: Option<String>,
    /// New value.
    pub new: Option<String>,
    /// The reason, as readable text.
    pub why: String,
    /// The decision that caused the action, with its formula and inputs; `None` if the action applied or undid a
    /// setting of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Explanation>,
}

/// How soon the agent has reacted to alarms of the probe: from the moment at which the kernel raised the alarm until the
/// agent's writes were in force. Alarms on which no controller acted do not count.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reactions {
    /// Number of reactions since the agent started.
    pub count: u64,
    /// Sum of their durations (ms).
    pub total_ms: f64,
    /// Duration of the longest one (ms).
    pub longest_ms: f64,
}

impl Reactions {
    pub(crate) fn add(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        self.count += 1;
        self.total_ms += ms;
        self.longest_ms = self.longest_ms.max(ms);
    }
}

/// The agent's own resource use since it started.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// CPU time (s).
    pub cpu_s: Option<f64>,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
    /// Number of writes to kernel files.
    pub writes: u64,
    /// Number of ticks that overran the configured interval.
    pub late_ticks: u64,
    /// Number of lines that the audit log lost.
    pub audit_lost: u64,
}
