//! One arm in one round: what was measured.

use super::{Blamed, LoadFigures, LoadHistograms, Metric};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One arm in one round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// Round, from 0.
    pub round: u32,
    /// Position in the round, from 0.
    pub pos: u32,
    /// Name of the arm.
    pub arm: String,
    /// Whether the block may be used. Only reasons that were fixed before the run make it false.
    pub valid: bool,
    /// Why the block may not be used.
    #[serde(default)]
    pub invalid_reason: Option<String>,
    /// Length of the measured part, seconds.
    pub measure_s: f64,
    /// Requests offered to the service, and their outcomes.
    #[serde(flatten)]
    pub load: LoadFigures,
    /// Whether the online service died in this block.
    #[serde(default)]
    pub online_crashed: bool,
    /// How late the load generator was, microseconds.
    #[serde(default)]
    pub lateness_us: Option<Lateness>,
    /// How long requests took, and how late they were sent.
    #[serde(flatten)]
    pub histograms: LoadHistograms,
    /// CPU use.
    #[serde(default)]
    pub cpu: CpuUse,
    /// Time spent runnable but waiting for a CPU, seconds over the threads of each side.
    #[serde(default)]
    pub run_delay_s: PerSide,
    /// Who had the CPU while online threads waited; `None` when there was no probe.
    #[serde(default)]
    pub blame: Option<Blamed>,
    /// Time spent throttled by a quota, seconds.
    #[serde(default)]
    pub throttled_s: PerSide,
    /// Pressure of the machine; `None` when the kernel has no PSI.
    #[serde(default)]
    pub psi: Option<Psi>,
    /// Pressure of each side's group; `None` where the kernel has none for groups.
    #[serde(default)]
    pub group_psi: Option<GroupPsi>,
    /// Cycles per instruction of each side; `None` without a performance counter.
    #[serde(default)]
    pub cpi: PerSide,
    /// Throughput of the offline work.
    #[serde(default)]
    pub work: Work,
    /// Start of the measured part, seconds since the start of the run.
    #[serde(default)]
    pub at_s: Option<f64>,
    /// Percentiles as a tool printed them, microseconds: in place of a histogram where a tool gives no distribution.
    #[serde(default)]
    pub percentiles_us: BTreeMap<Metric, f64>,
    /// Results of the Prometheus queries for this block, where a query returned exactly one number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queried: BTreeMap<Metric, f64>,
    /// Mean latency, microseconds.
    #[serde(default)]
    pub mean_us: Option<f64>,
    /// Number of requests in flight, in a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The measured part, second by second.
    #[serde(default)]
    pub series: Vec<Tick>,
    /// Whether the service kept its objective, where the design has one.
    #[serde(default)]
    pub slo: Option<SloSeen>,
    /// What was corrected in this block's figures, and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One second of a block (the last may be shorter).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tick {
    /// Its end, seconds since the measured part began.
    pub t_s: f64,
    /// Requests answered per second in it; `None` when the load generator keeps no series.
    #[serde(default)]
    pub qps: Option<f64>,
    /// Median latency of the requests that were due in it, microseconds.
    #[serde(default)]
    pub p50_us: Option<f64>,
    /// 99th percentile of the same, microseconds.
    #[serde(default)]
    pub p99_us: Option<f64>,
    /// CPU use in it.
    #[serde(default)]
    pub cpu: CpuUse,
}

/// How well a service level objective was kept.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SloSeen {
    /// Windows with requests in them.
    pub windows: u32,
    /// Of those, windows whose percentile met the objective.
    pub met: u32,
    /// Requests within the objective's latency, per cent.
    pub requests_met_pct: f64,
    /// Longest run of windows that missed it, seconds.
    pub longest_miss_s: f64,
    /// The worst window's percentile, microseconds.
    pub worst_us: f64,
}

/// Pressure by side.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupPsi {
    /// The online side's group.
    #[serde(default)]
    pub online: Psi,
    /// The offline side's group.
    #[serde(default)]
    pub offline: Psi,
}

/// Lateness of the load generator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lateness {
    /// Median, microseconds.
    pub p50: f64,
    /// 99th percentile, microseconds.
    pub p99: f64,
}

/// Mean CPU use over the measured part, in CPUs (1.0 is one logical CPU busy all the time).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CpuUse {
    /// The online side, CPUs.
    #[serde(default)]
    pub online: Option<f64>,
    /// The offline side, CPUs.
    #[serde(default)]
    pub offline: Option<f64>,
    /// CPU use of the load generator when it is a program of its own, CPUs; a part of `other`.
    #[serde(default)]
    pub client: Option<f64>,
    /// Everything else on the machine, the load generator included, CPUs.
    #[serde(default)]
    pub other: Option<f64>,
    /// Steal time: time that the hypervisor gave to other guests, CPUs. It is not busy time.
    #[serde(default)]
    pub steal: Option<f64>,
}

/// One value per side.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PerSide {
    /// The online side.
    #[serde(default)]
    pub online: Option<f64>,
    /// The offline side.
    #[serde(default)]
    pub offline: Option<f64>,
}

/// Share of the measured part in which some task was stalled, per cent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Psi {
    /// On a CPU, per cent.
    #[serde(default)]
    pub cpu_some_pct: Option<f64>,
    /// On memory, per cent.
    #[serde(default)]
    pub memory_some_pct: Option<f64>,
    /// On I/O, per cent.
    #[serde(default)]
    pub io_some_pct: Option<f64>,
}

/// Work done in the measured part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Offline work, units per second; `None` when no offline work ran or it reports no count.
    #[serde(default)]
    pub offline: Option<f64>,
    /// What one unit is, such as `bogo-ops`.
    #[serde(default)]
    pub unit: Option<String>,
    /// CPUs that the offline work uses when it runs alone; using less in the contended arm makes the block invalid.
    #[serde(default)]
    pub expected_cpus: Option<f64>,
}
