//! The model of `run.json`, schema `commensal.lab/1`: what a run recorded, and what was concluded from it.
//!
//! The blocks are the primary data; `results` and everything after it can be recomputed from them. A missing value is
//! `None`, never 0: a machine without PSI has no PSI figures. Units are the last part of a name, or are given in the
//! documentation of fields that date from the first version. Later versions only add fields.

mod blamed;
mod block;
mod figures;
mod histogram;
mod load;
mod metric;
mod schema;
mod sweep;
mod verdict;

pub use blamed::{ArmBlame, BlameBounds, Blamed, Delays, WaitByKind};
pub use block::{Block, CpuUse, GroupPsi, Lateness, PerSide, Psi, SloSeen, Tick, Work};
pub use figures::{LoadFigures, LoadHistograms};
pub(crate) use histogram::{Counts, MAX_TOTAL};
pub use histogram::{
    HIGHEST_US, LatencyHistogram, decode_histogram, encode_histogram, new_histogram, percentile_us,
};
pub use load::MAX_ROUNDS;
pub use metric::{Metric, Named};
pub use schema::json_schema;
pub use sweep::{Sweep, SweepPoint};
pub use verdict::Verdict;

use commensal_core::windows::{Looks, Turns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name in the `schema` field of every document this version reads and writes.
pub const SCHEMA: &str = "commensal.lab/1";

/// One-sided error rate of a conclusion, shared by all interim analyses.
const ERROR: f64 = 0.05;

/// One run of the lab, as stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Always `commensal.lab/1`.
    #[schemars(extend("const" = "commensal.lab/1"))]
    pub schema: String,
    /// What recorded the run.
    pub tool: RecordedBy,
    /// Name of the experiment.
    pub experiment: String,
    /// Seed of the order of the arms and of the request schedule.
    pub seed: u64,
    /// When the run started, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub started: String,
    /// Where it ran.
    pub machine: Machine,
    /// The experiment file as it was read; `None` for a built-in experiment.
    #[serde(default)]
    pub source: Option<String>,
    /// Command lines of the programs that ran on each side.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Versions of the programs that ran.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Why cycles per instruction were not counted; `None` where they were.
    #[serde(default)]
    pub no_cpi: Option<String>,
    /// What was planned.
    pub design: Design,
    /// The arms; each block names one of them.
    #[schemars(length(min = 1))]
    pub arms: Vec<Arm>,
    /// What was measured, one entry per arm and round, in the order of measurement.
    #[schemars(length(min = 1))]
    pub blocks: Vec<Block>,
    /// Remarks of the recorder that a reader must know, such as "closed loop".
    #[serde(default)]
    pub caveats: Vec<String>,
    /// Comparisons of arms, computed from the blocks.
    #[serde(default)]
    pub results: Vec<Comparison>,
    /// Half-width of the two-sided 95 % interval between the two identical arms, in per cent, per metric. With five
    /// rounds it is the widest interval that exists, which is one of 94 %.
    #[serde(default)]
    pub noise_floor_pct: BTreeMap<Metric, f64>,
    /// The share of the harm that each isolated arm removes.
    #[serde(default)]
    pub attribution: Vec<Attribution>,
    /// The tails of the isolated arms.
    #[serde(default)]
    pub over_objective: Vec<OverObjective>,
    /// Latency by the time since the last switch, where rounds are made of short windows.
    #[serde(default)]
    pub since_switch: Vec<SinceSwitch>,
    /// Delay that the service added to the requests of each arm in a calibration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added_time: Vec<AddedTime>,
    /// How much of the offline work was done, one entry per isolated arm.
    #[serde(default)]
    pub offline: Vec<OfflineKept>,
    /// Who made online work wait, one entry per arm with offline work that the probe saw.
    #[serde(default)]
    pub blame: Vec<ArmBlame>,
    /// The conclusion; `None` while the run is being recorded.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// The conclusion about each isolated arm on its own, where the environment allows any.
    #[serde(default)]
    pub arm_verdicts: BTreeMap<String, Verdict>,
    /// Why the verdict is what it is, in whole sentences.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Remarks of the analysis besides the verdict, such as figures that are not printed and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The program that recorded the run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Tool")]
pub struct RecordedBy {
    /// Its version.
    pub version: String,
    /// Its command line, without the program name.
    pub args: Vec<String>,
}

/// The machine under test, as visible to the lab (in a container or guest, not the hardware below it).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Physical cores.
    pub cores: u32,
    /// Logical CPUs.
    pub threads: u32,
    /// Whether SMT is active; `None` when the kernel does not say.
    pub smt: Option<bool>,
    /// Hypervisor, such as `kvm`, or `none` on bare metal; `None` when unknown.
    pub virt: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Control group hierarchy: `v1`, `v2`, `hybrid`; `None` when none is mounted.
    pub cgroup: Option<String>,
    /// Main memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Digest of the fields that make two runs comparable.
    pub fingerprint: String,
}

/// What was planned before the first block.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Design {
    /// Planned rounds.
    pub rounds: u32,
    /// Planned measured part of a block, seconds.
    pub block_s: f64,
    /// Pause after starting or stopping offline work, seconds.
    pub settle_s: f64,
    /// Discarded first part of a block, seconds.
    pub warmup_s: f64,
    /// Offered load, requests per second; `None` for a closed loop.
    pub offered_per_s: Option<f64>,
    /// The most requests per second that the service sustains alone; `None` when nobody measured it.
    #[serde(default)]
    pub knee_per_s: Option<f64>,
    /// Harm up to this size, per cent, still counts as no harm.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub threshold_pct: f64,
    /// Thresholds of single metrics that differ from `threshold_pct`, per cent.
    #[serde(default)]
    pub threshold_overrides_pct: BTreeMap<Metric, f64>,
    /// The metrics that decide the verdict.
    pub gates: Vec<Metric>,
    /// The percentiles for which blocks were planned large enough; empty means every percentile that has enough
    /// requests.
    #[serde(default)]
    pub percentiles: Vec<Metric>,
    /// Limits on how long offline work may make online work wait; the defaults of `commensal blame` when absent.
    #[serde(default)]
    pub blame: Option<BlameBounds>,
    /// What made the load: `built-in` (open loop, latency from the intended start), or the name of a tool.
    #[serde(default)]
    pub load: Option<String>,
    /// Number of requests in flight when the load is a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The service level objective, if there is one.
    #[serde(default)]
    pub slo: Option<Slo>,
    /// The least share of the offline work that an isolated arm must keep, per cent of the contended arm's.
    #[serde(default)]
    pub min_offline_pct: Option<f64>,
    /// Rounds after which an interim analysis may end the run; empty means one analysis, at the end.
    #[serde(default)]
    pub looks: Vec<u32>,
    /// The short windows that make up a round; `None` when each block is one continuous measurement.
    #[serde(default)]
    pub windows: Option<Windows>,
    /// Preferred table style of the report: openeuler, alinux, plugsched or default.
    #[serde(default)]
    pub style: Option<String>,
    /// The setting that is varied between the isolated arms, when they are values of one setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// Prometheus queries that are evaluated for every block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<Query>,
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
    /// Scrape interval of the queried series, seconds.
    pub scrape_s: f64,
}

/// Short windows: the offline work runs throughout and is frozen and thawed. All windows of one arm in one round
/// together form that arm's block of the round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Windows {
    /// Measured part of a window, seconds.
    pub window_s: f64,
    /// Discarded time after each switch, seconds.
    pub guard_s: f64,
    /// Time before the next switch, seconds. Requests due in it are not counted, since they may not end before the
    /// switch.
    #[serde(default)]
    pub tail_s: f64,
    /// Number of windows of each arm in a round.
    pub per_round: u32,
    /// Measured part of the single window of a contended arm, seconds: harm without isolation takes a second or two to
    /// settle.
    pub contended_s: f64,
    /// One round in this many has contended windows.
    pub contended_every: u32,
}

impl Windows {
    /// Time of a switch besides its guard, seconds: writes to the kernel and reading counters.
    const SWITCH_S: f64 = 0.006;

    /// Longest window that a low request rate can lead to, seconds.
    const LONGEST_S: f64 = 5.0;

    /// Windows of an arm in a round. Contended arms get few: harm without isolation is large enough to show in them.
    #[must_use]
    pub fn turns(&self, role: Role) -> Turns {
        match role {
            Role::Contended => Turns { times: 1, every: self.contended_every },
            _ => Turns { times: self.per_round, every: 1 },
        }
    }

    /// Lengthens the windows until those of an arm in one round hold `requests` requests, and so does the one window of
    /// a contended arm. Arrivals are random: about one block in some thousands has fewer.
    #[must_use]
    pub fn for_load(self, rate_per_s: Option<f64>, requests: u64) -> Windows {
        const ERRORS: f64 = 3.5;
        let Some(rate) = rate_per_s else { return self };
        let takes_s = (requests as f64 + ERRORS * (requests as f64).sqrt()) / rate;
        // Rounded up to whole milliseconds, for readability.
        let each_s = (takes_s / f64::from(self.per_round.max(1)) * 1e3).ceil() / 1e3;
        let takes_s = (takes_s * 1e3).ceil() / 1e3;
        let window_s = each_s.max(self.window_s).min(Self::LONGEST_S.max(self.window_s));
        let longest_s = self.contended_s.max(2.0 * Self::LONGEST_S);
        let contended_s = takes_s.min(longest_s).max(self.contended_s).max(window_s);
        Windows { window_s, contended_s, ..self }
    }

    /// Average length of a round, seconds, with `short` arms of short windows and `contended` contended arms.
    #[must_use]
    pub fn round_s(&self, short: usize, contended: usize) -> f64 {
        let around = self.guard_s + self.tail_s + Self::SWITCH_S;
        let short = short as f64 * f64::from(self.per_round) * (self.window_s + around);
        short + contended as f64 * (self.contended_s + around) / f64::from(self.contended_every.max(1))
    }
}

/// Latency by the time since the last switch. It shows whether one window affects the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinceSwitch {
    /// The arm.
    pub arm: String,
    /// Start and end of the interval, milliseconds since the switch.
    pub ms: [u32; 2],
    /// Requests that were due in the interval.
    pub requests: u64,
    /// Their median latency, microseconds.
    pub p50_us: f64,
    /// Their 90th percentile, microseconds.
    pub p90_us: f64,
}

/// A known harm: every answer of an arm is delayed by a fraction of a latency percentile of the undelayed service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnownHarm {
    /// The arm.
    pub arm: String,
    /// Size of the delay, per cent of that percentile.
    pub pct: f64,
    /// The percentile.
    pub of: Metric,
}

/// The delays that the service added to the answers of an arm, as the service measured them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddedTime {
    /// The arm.
    pub arm: String,
    /// Configured delay per request, nanoseconds.
    pub asked_ns: u64,
    /// Requests served while the delay was on, including those in guard times.
    pub requests: u64,
    /// Sum of the delays that the service added to them, nanoseconds of wall clock.
    pub added_ns: u64,
    /// Overshoot of the delay in microseconds, with the number of such answers; all others overshot by less than one.
    pub over_us: Vec<(f64, u64)>,
}

/// Share of an isolated arm's requests that exceed a latency threshold, compared with the service alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverObjective {
    /// The isolated arm.
    pub arm: String,
    /// The arm it is compared with.
    pub vs: String,
    /// The latency threshold, microseconds: that of the objective, or the 99th percentile of the service alone.
    pub objective_us: f64,
    /// Requests over the threshold when the service runs alone, per cent.
    pub alone_pct: f64,
    /// Requests over the threshold in this arm, per cent.
    pub arm_pct: f64,
    /// Hodges-Lehmann estimate of the difference over the rounds, percentage points.
    pub difference_pct: f64,
    /// Its one-sided bounds, percentage points.
    pub one_sided: Option<[f64; 2]>,
    /// Whether steal time was not significantly higher in this arm (by 0.05 CPUs); otherwise the hypervisor may have
    /// caused the tail.
    pub steal_alike: bool,
    /// How much higher steal time was in this arm, CPUs, over the rounds; `None` where the machine does not report
    /// steal.
    #[serde(default)]
    pub steal_more: Option<f64>,
    /// FAIL when it is proven that at least 1.5 times as many requests, and 0.1 % of all, exceed the threshold; PASS
    /// when it is proven that fewer do.
    pub verdict: Verdict,
}

/// A service level objective: in every window, a percentile must stay within a latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slo {
    /// The percentile.
    pub metric: Metric,
    /// The latency, microseconds.
    pub latency_us: f64,
    /// Length of a window, seconds.
    pub window_s: f64,
}

impl Design {
    /// The threshold of one metric, per cent.
    pub fn threshold_of(&self, metric: Metric) -> f64 {
        self.threshold_overrides_pct.get(&metric).copied().unwrap_or(self.threshold_pct)
    }

    /// One-sided error rate of the conclusion after this many rounds: 5 %, divided among the interim analyses.
    #[must_use]
    pub fn level(&self, rounds: u32) -> f64 {
        Looks::new(ERROR, self.looks.clone()).level(rounds)
    }

    /// The same for one arm. Results without isolation never end a run, so interim analyses do not reduce their error
    /// rate.
    #[must_use]
    pub fn level_of(&self, role: Role, rounds: u32) -> f64 {
        if role == Role::Contended { ERROR } else { self.level(rounds) }
    }

    /// Requests that a block needs for the percentiles that decide, and for those up to P95 that are to be printed. P99
    /// is printed wherever the load is high enough for it.
    #[must_use]
    pub fn requests_wanted(&self) -> u64 {
        let of =
            |metrics: &[Metric]| metrics.iter().map(|metric| metric.requests_needed()).max().unwrap_or(0);
        of(&self.gates).max(of(&self.percentiles).min(Metric::P95.requests_needed()))
    }

    /// Length of a round of windows with these arms, seconds.
    #[must_use]
    pub fn round_s(&self, windows: Windows, arms: &[Arm]) -> f64 {
        let contended = arms.iter().filter(|arm| arm.role == Role::Contended).count();
        windows.round_s(arms.len() - contended, contended)
    }

    /// Plans as many rounds of windows as fit in `seconds`, with interim analyses before the last one.
    pub fn by_windows(&mut self, windows: Windows, arms: &[Arm], seconds: f64) {
        const LEAST: u32 = 6;
        /// Contended windows needed for a confidence interval.
        const ENOUGH: u32 = 9;
        let fit =
            |windows: Windows| (seconds / self.round_s(windows, arms)).floor().min(MAX_ROUNDS as f64) as u32;
        let mut windows = windows;
        if fit(windows) / windows.contended_every.max(1) < ENOUGH {
            windows.contended_every = 1;
        }
        self.rounds = fit(windows).max(LEAST);
        // A run that ends at an interim analysis must also state the harm without isolation: its interval takes six
        // rounds.
        let first = (LEAST - 1) * windows.contended_every + 1;
        let look = |at: &u32| (*at).max(first.min(self.rounds));
        self.looks = Looks::plan(ERROR, self.rounds).at().iter().map(look).collect();
        self.looks.dedup();
        self.windows = Some(windows);
    }

    /// The metrics that blocks of this plan may have, in the order in which they are printed.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        Metric::ALL.into_iter().chain(self.queries.iter().map(|query| query.metric)).collect()
    }

    /// Whether blocks are planned large enough for this metric.
    pub fn plans_for(&self, metric: Metric) -> bool {
        metric.quantile().is_none() || self.percentiles.is_empty() || self.percentiles.contains(&metric)
    }
}

/// What an arm is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Online work alone: the reference.
    Baseline,
    /// Online work alone once more: the gate and the noise floor.
    Baseline2,
    /// Online and offline work without isolation.
    Contended,
    /// Online and offline work under a policy: the claim.
    Isolated,
    /// Online work alone under the policy, with the offline work frozen: what the policy itself does to the service.
    PolicyOnly,
    /// Online work under the policy, beside threads of the idle class that keep every CPU from idling. An idle CPU
    /// wakes up more slowly; what the service gains from a busy neighbour must not be credited to isolation.
    Warm,
    /// Offline work alone: its maximum throughput.
    OfflineAlone,
}

/// One arm of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Arm {
    /// Its name, unique in the run.
    pub name: String,
    /// Role of the arm. A run has at most one arm per role, except for `isolated`, and for `contended`, which may have
    /// one per offline workload.
    pub role: Role,
    /// The isolation under test, in arms that have one.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// The built-in offline workload of this arm, where arms differ in it.
    #[serde(default)]
    pub offline: Option<String>,
}

/// An isolation policy as it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// The driver that applied it.
    pub driver: String,
    /// Why this driver protects less than the name suggests; `None` when it does not.
    #[serde(default)]
    pub weak: Option<String>,
    /// Every control file that the driver wrote.
    #[serde(default)]
    pub applied: Vec<Applied>,
}

/// One control file and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The control group, relative to the mount.
    pub path: String,
    /// The file in it.
    pub file: String,
    /// The value that was wanted, as the kernel would print it.
    pub want: String,
    /// The value read back; `None` when it could not be read.
    pub read: Option<String>,
}

impl Applied {
    /// Whether the kernel holds the value that was wanted.
    pub fn holds(&self) -> bool {
        self.read.as_deref().is_some_and(|read| read.trim() == self.want.trim())
    }
}

/// One metric of one arm compared with another arm.
///
/// Harm is positive when the service got worse, on every metric: `q_arm / q_vs - 1` for latency and
/// `q_vs / q_arm - 1` for throughput, in per cent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The arm.
    pub arm: String,
    /// The arm it is compared with.
    pub vs: String,
    /// The metric.
    pub metric: Metric,
    /// Hodges-Lehmann estimate of the harm, per cent.
    pub harm_pct: f64,
    /// Two-sided 95 % signed-rank interval, per cent; `None` below 6 rounds, where none exists.
    pub ci95: Option<[f64; 2]>,
    /// One-sided 95 % bounds, lower and upper, per cent; `None` below 5 rounds, where none exist.
    pub one_sided: Option<[f64; 2]>,
    /// Mean of the log-ratios, as harm in per cent.
    pub mean_pct: f64,
    /// Two-sided 95 % t interval of that mean, per cent; `None` below 2 rounds.
    pub mean_t_ci95: Option<[f64; 2]>,
    /// One-sided p-value of "the harm is at most the threshold", for Holm's correction.
    pub p_fail: f64,
    /// Two-sided p-value of "there is no difference"; `None` in records of earlier versions.
    #[serde(default)]
    pub p_equal: Option<f64>,
    /// Standard deviation of the paired log-ratios; `None` below 2 rounds.
    pub sd_log: Option<f64>,
    /// Rounds in which both arms have a value of this metric.
    pub rounds: u32,
    /// `hl-signed-rank` with the exact null distribution, `hl-signed-rank-normal` above 50 rounds.
    pub method: String,
}

/// How much of the harm an isolated arm removes: `1 - harm isolated / harm contended`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attribution {
    /// The isolated arm.
    pub arm: String,
    /// The metric.
    pub metric: Metric,
    /// Harm removed, per cent; negative when isolation makes it worse.
    pub removed_pct: f64,
    /// Two-sided 95 % interval, per cent; `None` when there are too few rounds or a pair of rounds without harm.
    pub ci95: Option<[f64; 2]>,
}

/// How much offline work an isolated arm still did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OfflineKept {
    /// The isolated arm.
    pub arm: String,
    /// Offline work in this arm over that in the contended arm, per cent.
    pub kept_vs_contended_pct: Option<f64>,
    /// Its two-sided 95 % interval, per cent.
    pub kept_vs_contended_ci95: Option<[f64; 2]>,
    /// Offline work in this arm over that of the offline work alone, per cent (medians).
    pub kept_vs_alone_pct: Option<f64>,
    /// CPU used by offline work, per cent of the CPU that the online side, other programs and the hypervisor leave.
    pub cpu_left_used_pct: Option<f64>,
    /// Effective machine utilisation, per cent; needs `knee_per_s` and an arm with offline work alone.
    pub emu_pct: Option<f64>,
}

impl Run {
    /// The first arm with this role.
    pub fn arm_with(&self, role: Role) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.role == role)
    }

    /// The service alone, with the same online settings as in isolated arms: the arm that they are compared with.
    pub fn reference(&self) -> Option<&Arm> {
        self.arm_with(Role::PolicyOnly).or_else(|| self.arm_with(Role::Baseline))
    }

    /// Rounds that have begun.
    pub fn rounds_begun(&self) -> u32 {
        self.blocks.iter().map(|block| block.round.saturating_add(1)).max().unwrap_or(0)
    }

    /// The arm in which the offline work of `arm` runs without isolation.
    pub fn contended_for(&self, arm: &Arm) -> Option<&Arm> {
        self.arms.iter().find(|other| other.role == Role::Contended && other.offline == arm.offline)
    }

    /// The blocks of one arm, usable or not.
    pub fn blocks_of<'a>(&'a self, arm: &'a str) -> impl Iterator<Item = &'a Block> {
        self.blocks.iter().filter(move |block| block.arm == arm)
    }

    /// The comparison of two arms on one metric.
    pub fn comparison(&self, arm: &str, vs: &str, metric: Metric) -> Option<&Comparison> {
        self.results.iter().find(|r| r.arm == arm && r.vs == vs && r.metric == metric)
    }
}
