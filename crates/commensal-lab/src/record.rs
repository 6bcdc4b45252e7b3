//! The data model of `run.json`, schema `commensal.lab/1`: what a run measured, and what was concluded from the
//! measurements.
//!
//! A run compares *arms*: ways of running the online service, for example alone, next to offline work, or next to
//! offline work under an isolation policy. A *round* measures every arm once, in random order; a *block* is the
//! measurement of one arm in one round. With *short windows*, a block consists of many windows, between which the run
//! switches arms within milliseconds. *Harm* states by how much a metric is worse in one arm than in another arm,
//! usually the arm with the service alone. A *gate* is a metric whose harm determines the verdict.
//!
//! The blocks are the primary data; `results` and all later fields can be recomputed from the blocks. A missing value
//! is `None`, never 0: a run on a machine without PSI has no PSI values. Most field names end with their unit; for the
//! other fields, which are older, the documentation gives the unit. Later versions only add fields.

mod blamed;
mod block;
mod figures;
mod histogram;
mod load;
mod metric;
mod schema;
mod sweep;
mod verdict;
mod windows;

pub use blamed::{ArmBlame, BlameBounds, Blamed, Delays, WaitByKind};
pub use block::{Block, CpuUse, GroupPsi, Lateness, PerSide, Psi, SloSeen, Tick, Work};
pub use figures::{LoadFigures, LoadHistograms, SocketErrors};
pub(crate) use histogram::{Counts, MAX_TOTAL};
pub use histogram::{
    HIGHEST_US, LatencyHistogram, decode_histogram, encode_histogram, new_histogram, percentile_us,
};
pub use load::MAX_ROUNDS;
pub use metric::{Metric, Named};
pub use schema::json_schema;
pub use sweep::{Sweep, SweepPoint};
pub use verdict::Verdict;
pub use windows::{Allotted, LEAST_ROUNDS, Windows};

use commensal_core::windows::Looks;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value of the `schema` field in every document that this version reads and writes.
pub const SCHEMA: &str = "commensal.lab/1";

/// One-sided error rate of a conclusion, divided among all interim analyses.
const ERROR: f64 = 0.05;

/// One run of the lab, as stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Always `commensal.lab/1`.
    #[schemars(extend("const" = "commensal.lab/1"))]
    pub schema: String,
    /// The program that recorded the run.
    pub tool: RecordedBy,
    /// Name of the experiment.
    pub experiment: String,
    /// Seed of the random order of the arms and of the request schedule.
    pub seed: u64,
    /// When the run started (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub started: String,
    /// The machine on which the run was made.
    pub machine: Machine,
    /// Text of the experiment file; `None` for a built-in experiment.
    #[serde(default)]
    pub source: Option<String>,
    /// Command lines of the programs that ran on each side.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Versions of the programs that ran.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Why cycles per instruction were not counted; `None` if they were counted.
    #[serde(default)]
    pub no_cpi: Option<String>,
    /// The plan of the run.
    pub design: Design,
    /// The arms; each block names one of them.
    #[schemars(length(min = 1))]
    pub arms: Vec<Arm>,
    /// The measurements, one entry per arm and round, in the order of measurement.
    #[schemars(length(min = 1))]
    pub blocks: Vec<Block>,
    /// Remarks about the recording that a reader must know, such as "closed loop".
    #[serde(default)]
    pub caveats: Vec<String>,
    /// What kept the run from a part of the machine, in whole sentences: an inherited cpuset, quota or nice value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limited: Vec<String>,
    /// Comparisons of arms, computed from the blocks.
    #[serde(default)]
    pub results: Vec<Comparison>,
    /// Half-width of the two-sided 95 % interval between the two identical arms in per cent, by metric. With five
    /// rounds no 95 % interval exists, and the widest possible one (94 %) is used.
    #[serde(default)]
    pub noise_floor_pct: BTreeMap<Metric, f64>,
    /// Share of the harm that each isolated arm removes.
    #[serde(default)]
    pub attribution: Vec<Attribution>,
    /// Share of requests over a latency threshold in each isolated arm, compared with the service alone.
    #[serde(default)]
    pub over_objective: Vec<OverObjective>,
    /// Latency by the time since the last switch between arms; empty unless rounds consist of short windows.
    #[serde(default)]
    pub since_switch: Vec<SinceSwitch>,
    /// Delays that the service added to the requests of each arm; only in a calibration, where the service harms itself
    /// by a known amount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added_time: Vec<AddedTime>,
    /// Share of the offline work that each isolated arm still did.
    #[serde(default)]
    pub offline: Vec<OfflineKept>,
    /// Waits of online work by cause, one entry per arm with offline work for which the wait probe has measurements.
    #[serde(default)]
    pub blame: Vec<ArmBlame>,
    /// The verdict of the run; `None` while the run is being recorded.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// The verdict on each isolated arm; empty if the run was not fit for judging its arms.
    #[serde(default)]
    pub arm_verdicts: BTreeMap<String, Verdict>,
    /// Reasons of the verdict, in whole sentences.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Remarks of the analysis that do not affect the verdict, such as which values are not printed and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The program that recorded a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Tool")]
pub struct RecordedBy {
    /// Version of the program.
    pub version: String,
    /// Command line without the name of the program.
    pub args: Vec<String>,
}

/// The machine under test, as visible to the lab: in a container or a guest, not the hardware below it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Number of physical cores.
    pub cores: u32,
    /// Number of logical CPUs.
    pub threads: u32,
    /// Whether SMT is active; `None` when the kernel does not report it.
    pub smt: Option<bool>,
    /// Hypervisor, such as `kvm`, or `none` on bare metal; `None` when unknown.
    pub virt: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Cgroup hierarchy: `v1`, `v2` or `hybrid`; `None` when none is mounted.
    pub cgroup: Option<String>,
    /// Size of main memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Digest of the fields that must be equal for two runs to be comparable.
    pub fingerprint: String,
}

/// The plan of a run, made before the first block.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Design {
    /// Planned number of rounds.
    pub rounds: u32,
    /// Planned length of the measured part of a block, in seconds.
    pub block_s: f64,
    /// Pause after offline work starts or stops, in seconds.
    pub settle_s: f64,
    /// Length of the first part of a block, which is discarded, in seconds.
    pub warmup_s: f64,
    /// Offered load in requests per second; `None` for a closed loop.
    pub offered_per_s: Option<f64>,
    /// Highest request rate per second that the service sustains alone; `None` if the rate was not measured.
    #[serde(default)]
    pub knee_per_s: Option<f64>,
    /// General threshold, in per cent: a harm up to this size counts as no harm.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub threshold_pct: f64,
    /// Thresholds of metrics whose threshold differs from `threshold_pct`, in per cent.
    #[serde(default)]
    pub threshold_overrides_pct: BTreeMap<Metric, f64>,
    /// The gates: metrics that determine the verdict.
    pub gates: Vec<Metric>,
    /// Percentiles for which the blocks were planned to be large enough. An empty list means every percentile for which
    /// a block has enough requests.
    #[serde(default)]
    pub percentiles: Vec<Metric>,
    /// Limits on how long offline work may make online work wait; `None` means the defaults of `commensal blame`.
    #[serde(default)]
    pub blame: Option<BlameBounds>,
    /// The load generator: `built-in` (open loop, latency from the intended start), or the name of a tool.
    #[serde(default)]
    pub load: Option<String>,
    /// Number of requests in flight; only for a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The service level objective; `None` if there is none.
    #[serde(default)]
    pub slo: Option<Slo>,
    /// Minimum share of the offline work that an isolated arm must keep, in per cent of the contended arm's work.
    #[serde(default)]
    pub min_offline_pct: Option<f64>,
    /// Numbers of rounds after which an interim analysis may end the run; empty means a single analysis, at the end.
    #[serde(default)]
    pub looks: Vec<u32>,
    /// One-sided error rate of the analysis after each number of rounds in `looks`, from the joint distribution of all
    /// analyses; the last one is the planned end. Empty in runs with long blocks and in records of earlier versions, whose
    /// analyses share the error as if they were independent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<f64>,
    /// The time of a run that leaves out arms after an interim analysis; `None` if every round measures every arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allotted: Option<Allotted>,
    /// The short windows of which rounds consist; `None` when each block is one continuous measurement.
    #[serde(default)]
    pub windows: Option<Windows>,
    /// What the lateness of the load generator decides. Records of versions without this field were made, and are
    /// judged, by the rule `whole_block`.
    #[serde(default)]
    pub lateness: LatenessRule,
    /// Preferred table style of the report: openeuler, alinux, plugsched or default.
    #[serde(default)]
    pub style: Option<String>,
    /// The setting in whose value the arms differ; `None` if they do not differ in the value of one setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// Prometheus queries that are evaluated for every block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<Query>,
}

/// What the lateness of the load generator decides about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatenessRule {
    /// The P99 of the lateness decides about the block as a whole.
    #[default]
    WholeBlock,
    /// The lateness at a percentile decides whether the block counts for that percentile.
    ByPercentile,
}

/// A Prometheus query that is evaluated for every block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Query {
    /// Name of the result, and whether higher or lower is better.
    pub metric: Metric,
    /// The query; `$window` stands for the measured part of the block.
    pub query: String,
    /// URL of the Prometheus server.
    pub url: String,
    /// Scrape interval of the queried series, in seconds.
    pub scrape_s: f64,
}

/// Latency by the time since the last switch, which shows whether one window affects the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinceSwitch {
    /// Name of the arm.
    pub arm: String,
    /// Start and end of the interval, in milliseconds since the switch.
    pub ms: [u32; 2],
    /// Number of requests that were due in the interval.
    pub requests: u64,
    /// Median latency of these requests, in microseconds.
    pub p50_us: f64,
    /// 90th percentile of latency of these requests, in microseconds.
    pub p90_us: f64,
}

/// A harm of known size: every response of an arm is delayed by a fraction of a latency percentile of the undelayed
/// service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnownHarm {
    /// Name of the arm.
    pub arm: String,
    /// Size of the delay in per cent of that percentile.
    pub pct: f64,
    /// The latency percentile.
    pub of: Metric,
}

/// Delays that the service added to its responses in one arm, as measured by the service itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddedTime {
    /// Name of the arm.
    pub arm: String,
    /// Configured delay per request, in nanoseconds.
    pub asked_ns: u64,
    /// Number of requests served while the delay was configured, including those in guard times.
    pub requests: u64,
    /// Sum of the delays added to these requests, in nanoseconds of wall-clock time.
    pub added_ns: u64,
    /// Overshoots of the configured delay in microseconds, each with its number of responses. All other responses
    /// overshot by less than one microsecond.
    pub over_us: Vec<(f64, u64)>,
}

/// Share of an isolated arm's requests that take longer than a latency threshold, compared with the service alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverObjective {
    /// Name of the isolated arm.
    pub arm: String,
    /// Name of the arm with which the arm is compared.
    pub vs: String,
    /// Latency threshold in microseconds: the latency limit of the run's objective, or without an objective the 99th
    /// percentile of the service alone.
    pub objective_us: f64,
    /// Requests over the threshold when the service runs alone, in per cent.
    pub alone_pct: f64,
    /// Requests over the threshold in this arm, in per cent.
    pub arm_pct: f64,
    /// Hodges-Lehmann estimate of the difference over the rounds, in percentage points.
    pub difference_pct: f64,
    /// One-sided bounds of the difference, in percentage points.
    pub one_sided: Option<[f64; 2]>,
    /// False if the steal time of this arm was significantly higher, by more than 0.05 CPUs: the hypervisor may then
    /// have caused the difference. Otherwise true.
    pub steal_alike: bool,
    /// Additional steal time of this arm over the rounds, in CPUs; `None` where the machine does not report steal.
    #[serde(default)]
    pub steal_more: Option<f64>,
    /// FAIL when the share over the threshold is proven to increase by at least the allowed amount, which is half of
    /// `alone_pct` but at least 0.1 percentage points; PASS when the increase is proven to be smaller; otherwise
    /// INCONCLUSIVE.
    pub verdict: Verdict,
}

/// A service level objective: in every window, a latency percentile must not exceed a limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slo {
    /// The percentile.
    pub metric: Metric,
    /// The limit, in microseconds.
    pub latency_us: f64,
    /// Length of a window, in seconds.
    pub window_s: f64,
}

impl Design {
    /// Returns the threshold of a metric in per cent.
    pub fn threshold_of(&self, metric: Metric) -> f64 {
        self.threshold_overrides_pct.get(&metric).copied().unwrap_or(self.threshold_pct)
    }

    /// Returns the one-sided error rate of a conclusion after this many rounds: 5 %, divided among the interim
    /// analyses.
    #[must_use]
    pub fn level(&self, rounds: u32) -> f64 {
        let look = self.looks.iter().position(|look| rounds <= *look);
        match look.and_then(|look| self.levels.get(look)).or(self.levels.last()) {
            Some(level) => *level,
            None => Looks::new(ERROR, self.looks.clone()).level(rounds),
        }
    }

    /// Returns the one-sided error rate of a conclusion about an arm with this role. Results without isolation never
    /// end a run, so interim analyses do not reduce the error rate of contended arms.
    #[must_use]
    pub fn level_of(&self, role: Role, rounds: u32) -> f64 {
        if role == Role::Contended { ERROR } else { self.level(rounds) }
    }

    /// Returns the number of requests that a block needs for all gate percentiles, and for those printed percentiles
    /// that are at most P95. P99 is printed whenever the load is high enough for P99.
    #[must_use]
    pub fn requests_wanted(&self) -> u64 {
        let of =
            |metrics: &[Metric]| metrics.iter().map(|metric| metric.requests_needed()).max().unwrap_or(0);
        of(&self.gates).max(of(&self.percentiles).min(Metric::P95.requests_needed()))
    }

    /// Returns the metrics that blocks of this plan may have, in printing order.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        Metric::ALL.into_iter().chain(self.queries.iter().map(|query| query.metric)).collect()
    }

    /// Returns whether blocks are planned to be large enough for this metric.
    pub fn plans_for(&self, metric: Metric) -> bool {
        metric.quantile().is_none() || self.percentiles.is_empty() || self.percentiles.contains(&metric)
    }
}

/// Purpose of an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Online work alone, as the reference.
    Baseline,
    /// Online work alone once more. The comparison with `baseline` shows whether identical arms give equal results, and
    /// measures the noise floor.
    Baseline2,
    /// Online and offline work without isolation.
    Contended,
    /// Online and offline work under an isolation policy. The verdict is about these arms.
    Isolated,
    /// Online work alone under the policy, with the offline work frozen. This arm shows the effect of the policy itself
    /// on the service.
    PolicyOnly,
    /// Online work under the policy, together with SCHED_IDLE threads that keep every CPU busy. An idle CPU wakes up
    /// slowly, so a service may be faster next to a busy neighbour. The comparison with this arm does not credit that
    /// gain to isolation.
    Warm,
    /// Offline work alone. This arm shows the maximum throughput of the offline work.
    OfflineAlone,
}

/// One arm of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Arm {
    /// Name of the arm, unique in the run.
    pub name: String,
    /// Purpose of the arm. A run has at most one arm per role, with two exceptions: several arms may be `isolated`, and
    /// there may be one `contended` arm per offline workload.
    pub role: Role,
    /// The isolation under test; `None` for arms without isolation.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// The built-in offline workload of this arm; `None` if all arms have the same one.
    #[serde(default)]
    pub offline: Option<String>,
}

/// An isolation policy as it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Name of the driver that applied the policy.
    pub driver: String,
    /// Why the driver protects less than its name suggests; `None` if the driver keeps that promise.
    #[serde(default)]
    pub weak: Option<String>,
    /// All control files that the driver wrote.
    #[serde(default)]
    pub applied: Vec<Applied>,
}

/// A control file with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The cgroup, relative to the mount point.
    pub path: String,
    /// Name of the file in the cgroup.
    pub file: String,
    /// The value to be set, in the kernel's notation.
    pub want: String,
    /// The value that was read back; `None` when the file could not be read.
    pub read: Option<String>,
}

impl Applied {
    /// Returns whether the kernel reported the value that was to be set.
    pub fn holds(&self) -> bool {
        self.read.as_deref().is_some_and(|read| read.trim() == self.want.trim())
    }
}

/// Comparison of one metric between two arms.
///
/// Harm is positive when the service got worse, for every metric. With `q_arm` and `q_vs` as the metric's values in the
/// two arms, the harm in per cent is `q_arm / q_vs - 1` for latency and `q_vs / q_arm - 1` for throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Name of the arm.
    pub arm: String,
    /// Name of the arm with which the arm is compared.
    pub vs: String,
    /// The metric.
    pub metric: Metric,
    /// Hodges-Lehmann estimate of the harm in per cent.
    pub harm_pct: f64,
    /// Two-sided 95 % signed-rank interval of the harm in per cent; `None` below 6 rounds, from which no such interval
    /// can be computed. For an isolated arm in a run with `levels`, it holds at all interim analyses together.
    pub ci95: Option<[f64; 2]>,
    /// One-sided 95 % bounds of the harm in per cent, lower and upper; `None` below 5 rounds, from which no such bounds
    /// can be computed.
    pub one_sided: Option<[f64; 2]>,
    /// One-sided error rate of `one_sided` at the last interim analysis that had new rounds of both arms; `None` in records
    /// of earlier versions.
    #[serde(default)]
    pub level: Option<f64>,
    /// Mean of the log-ratios, converted to harm in per cent.
    pub mean_pct: f64,
    /// Two-sided 95 % t interval of `mean_pct` in per cent; `None` below 2 rounds.
    pub mean_t_ci95: Option<[f64; 2]>,
    /// One-sided p-value of the hypothesis that the harm is at most the threshold; input for Holm's correction.
    pub p_fail: f64,
    /// Two-sided p-value of the hypothesis that there is no difference; `None` in records of earlier versions.
    #[serde(default)]
    pub p_equal: Option<f64>,
    /// Standard deviation of the paired log-ratios; `None` below 2 rounds.
    pub sd_log: Option<f64>,
    /// Number of rounds in which both arms have a value of this metric.
    pub rounds: u32,
    /// `hl-signed-rank` (exact null distribution), or `hl-signed-rank-normal` above 50 rounds.
    pub method: String,
}

/// Share of the harm that an isolated arm removes: `1 - harm isolated / harm contended`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attribution {
    /// Name of the isolated arm.
    pub arm: String,
    /// The metric.
    pub metric: Metric,
    /// Harm removed in per cent; negative when isolation increases the harm.
    pub removed_pct: f64,
    /// Two-sided 95 % interval in per cent; `None` when there are too few rounds, or when a pair of rounds has no harm
    /// without isolation.
    pub ci95: Option<[f64; 2]>,
}

/// Share of the offline work that an isolated arm still did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OfflineKept {
    /// Name of the isolated arm.
    pub arm: String,
    /// Offline work in this arm, in per cent of the offline work in the contended arm.
    pub kept_vs_contended_pct: Option<f64>,
    /// Two-sided 95 % interval of `kept_vs_contended_pct`, in per cent.
    pub kept_vs_contended_ci95: Option<[f64; 2]>,
    /// Offline work in this arm, in per cent of the offline work when it runs alone (medians).
    pub kept_vs_alone_pct: Option<f64>,
    /// CPU use of the offline work, in per cent of the CPU time left by the online side, other programs and the
    /// hypervisor.
    pub cpu_left_used_pct: Option<f64>,
    /// Effective machine utilisation in per cent: the online load as a share of its maximum plus the offline work as a
    /// share of its maximum. Requires `knee_per_s` and an arm with offline work alone.
    pub emu_pct: Option<f64>,
}

impl Run {
    /// Returns the first arm with this role.
    pub fn arm_with(&self, role: Role) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.role == role)
    }

    /// Returns the arm with which isolated arms are compared: the service alone under the same online settings if the
    /// run has an arm for this, otherwise the baseline.
    pub fn reference(&self) -> Option<&Arm> {
        self.arm_with(Role::PolicyOnly).or_else(|| self.arm_with(Role::Baseline))
    }

    /// Returns the number of rounds that have begun.
    pub fn rounds_begun(&self) -> u32 {
        self.blocks.iter().map(|block| block.round.saturating_add(1)).max().unwrap_or(0)
    }

    /// Returns the number of rounds up to the last one in which all of these arms were measured. Records of earlier
    /// versions are judged by all rounds that have begun.
    pub fn measured_rounds(&self, arms: &[&str]) -> u32 {
        let of =
            |arm: &&str| self.blocks_of(arm).map(|block| block.round.saturating_add(1)).max().unwrap_or(0);
        let shared = arms.iter().map(of).min();
        shared.filter(|_| !self.design.levels.is_empty()).unwrap_or_else(|| self.rounds_begun())
    }

    /// Returns the contended arm (without isolation) with the same offline work as `arm`.
    pub fn contended_for(&self, arm: &Arm) -> Option<&Arm> {
        self.arms.iter().find(|other| other.role == Role::Contended && other.offline == arm.offline)
    }

    /// Returns a block of the service alone in this round: of the baseline if the round measured it, otherwise of another
    /// such arm, so that a round without the baseline is judged as well.
    pub fn alone_in(&self, round: u32) -> Option<&Block> {
        let of = |role: Role| {
            let arm = self.arm_with(role)?;
            self.blocks.iter().find(|block| block.round == round && block.arm == arm.name)
        };
        [Role::Baseline, Role::Baseline2, Role::PolicyOnly, Role::Warm].into_iter().find_map(of)
    }

    /// Returns all blocks of an arm, valid or not.
    pub fn blocks_of<'a>(&'a self, arm: &'a str) -> impl Iterator<Item = &'a Block> {
        self.blocks.iter().filter(move |block| block.arm == arm)
    }

    /// Returns the comparison of two arms on one metric.
    pub fn comparison(&self, arm: &str, vs: &str, metric: Metric) -> Option<&Comparison> {
        self.results.iter().find(|r| r.arm == arm && r.vs == vs && r.metric == metric)
    }
}
