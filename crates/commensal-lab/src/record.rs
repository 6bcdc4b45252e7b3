//! The model of `run.json`, schema `commensal.lab/1`: what a run recorded, and what was concluded from it.
//!
//! The blocks are the truth; `results` and everything after them can be computed again from the blocks. Missing
//! is `None`, never 0: a machine without PSI has no PSI. Units are last in the names, or in the documentation of
//! the fields that a block has had since the first version. Later versions only add fields.

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
    HIGHEST_US, HistogramError, LatencyHistogram, decode_histogram, encode_histogram, new_histogram,
    percentile_us,
};
pub use load::{MAX_ROUNDS, RecordError};
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

/// How often a conclusion is wrong, on one side, over all looks.
const ERROR: f64 = 0.05;

/// One run of the lab, as stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Always `commensal.lab/1`.
    #[schemars(extend("const" = "commensal.lab/1"))]
    pub schema: String,
    /// What recorded the run.
    pub tool: Tool,
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
    /// What ran on each side, as command lines.
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
    /// Half-width of the two-sided 95 % interval between the two identical arms, in per cent, per metric; of five rounds, of
    /// their widest interval, which is one of 94 %.
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
    /// What the service added to the requests of each arm, by order of a calibration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added_time: Vec<AddedTime>,
    /// What became of the offline work, one entry per isolated arm.
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
    /// What the analysis has to say besides the verdict: what is not printed and why, what was found.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The program that recorded the run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Its version.
    pub version: String,
    /// Its command line, without the program name.
    pub args: Vec<String>,
}

/// The machine under test, as seen from where the lab ran.
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
    /// The harm that is still called none, per cent.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub threshold_pct: f64,
    /// Thresholds of single metrics that differ from `threshold_pct`, per cent.
    #[serde(default)]
    pub threshold_overrides_pct: BTreeMap<Metric, f64>,
    /// The metrics that decide the verdict.
    pub gates: Vec<Metric>,
    /// The percentiles for which blocks were planned large enough; empty means all that turn out to be.
    #[serde(default)]
    pub percentiles: Vec<Metric>,
    /// What offline work may do to the waits of online work; those of `commensal blame` when absent.
    #[serde(default)]
    pub blame: Option<BlameBounds>,
    /// What made the load: `built-in` (open loop, latency from the intended start), or the name of a tool.
    #[serde(default)]
    pub load: Option<String>,
    /// Requests under way at any time, when the load is a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The service level objective, if there is one.
    #[serde(default)]
    pub slo: Option<Slo>,
    /// The least share of the offline work that an isolated arm must keep, per cent of the contended arm's.
    #[serde(default)]
    pub min_offline_pct: Option<f64>,
    /// Rounds after which the run looks whether it is decided; empty means once, at the end.
    #[serde(default)]
    pub looks: Vec<u32>,
    /// The short windows that a round is made of, where it is; `None` where a block is one stretch of time.
    #[serde(default)]
    pub windows: Option<Windows>,
    /// The table style that fits: openeuler, alinux, plugsched or default.
    #[serde(default)]
    pub style: Option<String>,
    /// What differs from isolated arm to isolated arm, where arms are values of one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// What Prometheus is asked about every block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<Query>,
}

/// A question to Prometheus about every block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Query {
    /// What its answer is called, and which way is better.
    pub metric: Metric,
    /// The query; `$window` stands for the measured part of the block.
    pub query: String,
    /// The server.
    pub url: String,
    /// How often the server scrapes what the query reads, seconds.
    pub scrape_s: f64,
}

/// Short windows: the offline work lives all along and is frozen and thawed, and what the windows of one arm in one round
/// saw together is that round's block.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Windows {
    /// Measured part of a window, seconds.
    pub window_s: f64,
    /// Discarded after each switch, seconds.
    pub guard_s: f64,
    /// Before the next switch, seconds: a request that is due so late counts nowhere, since it may not end before the switch.
    #[serde(default)]
    pub tail_s: f64,
    /// Windows of each arm in a round.
    pub per_round: u32,
    /// Measured part of the one window of a contended arm, seconds: harm without isolation takes a second or two to settle.
    pub contended_s: f64,
    /// Rounds from one with contended windows to the next.
    pub contended_every: u32,
}

impl Windows {
    /// What a switch takes beside its guard, seconds: writes to the kernel, and counters that are read.
    const SWITCH_S: f64 = 0.006;

    /// Longest window that a rate may ask for, seconds.
    const LONGEST_S: f64 = 5.0;

    /// The turns of an arm: harm without isolation is gross, so few windows show it.
    #[must_use]
    pub fn turns(&self, role: Role) -> Turns {
        match role {
            Role::Contended => Turns { times: 1, every: self.contended_every },
            _ => Turns { times: self.per_round, every: 1 },
        }
    }

    /// As long as it takes for the windows of an arm in a round to hold so many requests, and for the one window of a contended
    /// arm. Requests come at random: one arm and round in some thousands has fewer.
    #[must_use]
    pub fn for_load(self, rate_per_s: Option<f64>, requests: u64) -> Windows {
        const ERRORS: f64 = 3.5;
        let Some(rate) = rate_per_s else { return self };
        let takes_s = (requests as f64 + ERRORS * (requests as f64).sqrt()) / rate;
        // In whole milliseconds, as people read it.
        let each_s = (takes_s / f64::from(self.per_round.max(1)) * 1e3).ceil() / 1e3;
        let takes_s = (takes_s * 1e3).ceil() / 1e3;
        let window_s = each_s.max(self.window_s).min(Self::LONGEST_S.max(self.window_s));
        let longest_s = self.contended_s.max(2.0 * Self::LONGEST_S);
        let contended_s = takes_s.min(longest_s).max(self.contended_s).max(window_s);
        Windows { window_s, contended_s, ..self }
    }

    /// How long a round takes on average, seconds, with so many arms of short windows and so many contended ones.
    #[must_use]
    pub fn round_s(&self, short: usize, contended: usize) -> f64 {
        let around = self.guard_s + self.tail_s + Self::SWITCH_S;
        let short = short as f64 * f64::from(self.per_round) * (self.window_s + around);
        short + contended as f64 * (self.contended_s + around) / f64::from(self.contended_every.max(1))
    }
}

/// Latency by the time since the last switch: the check for what one window carries over into the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinceSwitch {
    /// The arm.
    pub arm: String,
    /// Milliseconds since the switch, from and to.
    pub ms: [u32; 2],
    /// Requests that were due then.
    pub requests: u64,
    /// Their median latency, microseconds.
    pub p50_us: f64,
    /// Their 90th percentile, microseconds.
    pub p90_us: f64,
}

/// A known harm: every answer of an arm is delayed by a share of a latency percentile that the service has without delays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnownHarm {
    /// The arm.
    pub arm: String,
    /// The share, per cent.
    pub pct: f64,
    /// Of which percentile.
    pub of: Metric,
}

/// By how much the service made the answers of an arm come later, by its own count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AddedTime {
    /// The arm.
    pub arm: String,
    /// What it was told to add to each request, nanoseconds.
    pub asked_ns: u64,
    /// Requests that it served while the arm was on, in guards as well.
    pub requests: u64,
    /// What it added to all of them, nanoseconds by the clock.
    pub added_ns: u64,
    /// By how much answers came later than asked, microseconds, and how many did; the others came within one.
    pub over_us: Vec<(f64, u64)>,
}

/// The share of an isolated arm's requests over a latency, against the service alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverObjective {
    /// The isolated arm.
    pub arm: String,
    /// The arm it is compared with.
    pub vs: String,
    /// The latency, microseconds: the objective's, or the 99th percentile of the service alone.
    pub objective_us: f64,
    /// Requests over it alone, per cent.
    pub alone_pct: f64,
    /// Requests over it in this arm, per cent.
    pub arm_pct: f64,
    /// Hodges-Lehmann estimate of the difference over the rounds, percentage points.
    pub difference_pct: f64,
    /// Its one-sided bounds, percentage points.
    pub one_sided: Option<[f64; 2]>,
    /// Whether the hypervisor took no more from this arm, significantly and by 0.05 CPUs: else the tail may be its doing.
    pub steal_alike: bool,
    /// How much more it took from this arm, CPUs, over the rounds; `None` where the machine does not tell.
    #[serde(default)]
    pub steal_more: Option<f64>,
    /// FAIL when half as many again, and 0.1 % of the requests, are proven to be over it; PASS when fewer are.
    pub verdict: Verdict,
}

/// A service level objective: a percentile of every window within a latency.
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

    /// The error that the conclusion after so many rounds may make on one side: 5 %, shared by the looks.
    #[must_use]
    pub fn level(&self, rounds: u32) -> f64 {
        Looks::new(ERROR, self.looks.clone()).level(rounds)
    }

    /// The same of one arm. What is found without isolation never ends a run, so looks do not share its error.
    #[must_use]
    pub fn level_of(&self, role: Role, rounds: u32) -> f64 {
        if role == Role::Contended { ERROR } else { self.level(rounds) }
    }

    /// The requests that a block needs for the percentiles that decide, and for those that are to be printed up to P95: P99 is
    /// printed where the load is high enough for it anyway.
    #[must_use]
    pub fn requests_wanted(&self) -> u64 {
        let of =
            |metrics: &[Metric]| metrics.iter().map(|metric| metric.requests_needed()).max().unwrap_or(0);
        of(&self.gates).max(of(&self.percentiles).min(Metric::P95.requests_needed()))
    }

    /// How long a round of windows takes with these arms, seconds.
    #[must_use]
    pub fn round_s(&self, windows: Windows, arms: &[Arm]) -> f64 {
        let contended = arms.iter().filter(|arm| arm.role == Role::Contended).count();
        windows.round_s(arms.len() - contended, contended)
    }

    /// Plans rounds of windows that end within a time, with looks before the last one.
    pub fn by_windows(&mut self, windows: Windows, arms: &[Arm], seconds: f64) {
        const LEAST: u32 = 6;
        /// Contended windows that are wanted for an interval.
        const ENOUGH: u32 = 9;
        let fit =
            |windows: Windows| (seconds / self.round_s(windows, arms)).floor().min(MAX_ROUNDS as f64) as u32;
        let mut windows = windows;
        if fit(windows) / windows.contended_every.max(1) < ENOUGH {
            windows.contended_every = 1;
        }
        self.rounds = fit(windows).max(LEAST);
        // A run that ends at a look is to say what harm is without isolation, too: an interval takes six of its rounds.
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

    /// Whether the plan makes room for this metric.
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
    /// Online work under the policy, beside threads of the idle class that keep every CPU from idling: an idle CPU wakes up
    /// more slowly, and what a busy neighbour gains for the service is no merit of isolation.
    Warm,
    /// Offline work alone: what it can do at most.
    OfflineAlone,
}

/// One arm of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Arm {
    /// Its name, unique in the run.
    pub name: String,
    /// What it is for. A run has at most one arm of each role except `isolated`, and of `contended` one for each offline work.
    pub role: Role,
    /// The isolation under test, in arms that have one.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// The built-in offline work of this arm, where arms differ in it.
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
    /// Every control file it wrote.
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
    /// Rounds in which both arms gave this metric.
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

/// What became of the offline work in an isolated arm.
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
    /// CPU used by offline work over the CPU that the online side, the rest and the hypervisor leave, per cent.
    pub cpu_left_used_pct: Option<f64>,
    /// Effective machine utilisation, per cent; needs `knee_per_s` and an arm with offline work alone.
    pub emu_pct: Option<f64>,
}

impl Run {
    /// The first arm with this role.
    pub fn arm_with(&self, role: Role) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.role == role)
    }

    /// The service alone with the online side that isolated arms have: what they are compared with.
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
