//! The measurements of one block: one arm in one round. An arm is one of the compared ways of running the online
//! service, for example alone or next to offline work; a round measures every arm once.

use super::{Blamed, LoadFigures, LoadHistograms, Metric, SocketErrors};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One arm in one round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// Number of the round, from 0.
    pub round: u32,
    /// Position of the block in the round, from 0.
    pub pos: u32,
    /// Name of the arm.
    pub arm: String,
    /// Whether the block may be used. Only reasons that were defined before the run make a block invalid.
    pub valid: bool,
    /// Why the block may not be used; `None` if it is valid.
    #[serde(default)]
    pub invalid_reason: Option<String>,
    /// Length of the measured part, in seconds.
    pub measure_s: f64,
    /// Requests offered to the service, and their results.
    #[serde(flatten)]
    pub load: LoadFigures,
    /// How often the load generator could not connect, send or receive; empty for a load tool, which does not report
    /// it.
    #[serde(default, skip_serializing_if = "SocketErrors::is_empty")]
    pub socket_errors: SocketErrors,
    /// Whether the online service crashed in this block.
    #[serde(default)]
    pub online_crashed: bool,
    /// How late the load generator sent requests, in microseconds.
    #[serde(default)]
    pub lateness_us: Option<Lateness>,
    /// Distributions of latency and of the load generator's lateness.
    #[serde(flatten)]
    pub histograms: LoadHistograms,
    /// Mean CPU use.
    #[serde(default)]
    pub cpu: CpuUse,
    /// Time that threads of each side were runnable but waited for a CPU (run delay), summed over threads, in seconds.
    #[serde(default)]
    pub run_delay_s: PerSide,
    /// What occupied the CPU while online threads waited for it; `None` when no probe ran.
    #[serde(default)]
    pub blame: Option<Blamed>,
    /// Time that each side was throttled by a quota, in seconds.
    #[serde(default)]
    pub throttled_s: PerSide,
    /// Pressure (PSI) of the machine; `None` when the kernel has no PSI.
    #[serde(default)]
    pub psi: Option<Psi>,
    /// Pressure (PSI) of each side's group; `None` when the kernel has no PSI for groups.
    #[serde(default)]
    pub group_psi: Option<GroupPsi>,
    /// Cycles per instruction of each side; `None` where no performance counter is available.
    #[serde(default)]
    pub cpi: PerSide,
    /// Throughput of the offline work.
    #[serde(default)]
    pub work: Work,
    /// Start of the measured part, in seconds since the start of the run.
    #[serde(default)]
    pub at_s: Option<f64>,
    /// Percentiles in microseconds as printed by a load tool that prints no distribution; used in place of a histogram.
    #[serde(default)]
    pub percentiles_us: BTreeMap<Metric, f64>,
    /// Results of the Prometheus queries for this block. Queries that did not return exactly one number are missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queried: BTreeMap<Metric, f64>,
    /// Mean latency in microseconds.
    #[serde(default)]
    pub mean_us: Option<f64>,
    /// Number of requests in flight; only for a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// Measurements for each second of the measured part.
    #[serde(default)]
    pub series: Vec<Tick>,
    /// How well the service met its objective; `None` if the run has no objective.
    #[serde(default)]
    pub slo: Option<SloSeen>,
    /// Notes on the values of this block that were corrected, with the reasons.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One second of a block (the last one may be shorter).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tick {
    /// End of this second, in seconds since the measured part began.
    pub t_s: f64,
    /// Responses per second; `None` when the load generator keeps no series.
    #[serde(default)]
    pub qps: Option<f64>,
    /// Median latency of the requests that were due in this second, in microseconds.
    #[serde(default)]
    pub p50_us: Option<f64>,
    /// 99th percentile of latency of the requests that were due in this second, in microseconds.
    #[serde(default)]
    pub p99_us: Option<f64>,
    /// Mean CPU use in this second.
    #[serde(default)]
    pub cpu: CpuUse,
}

/// How well a service level objective was met.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SloSeen {
    /// Number of windows that contain requests.
    pub windows: u32,
    /// Number of these windows in which the percentile met the objective.
    pub met: u32,
    /// Share of the requests that took no longer than the objective's latency, in per cent.
    pub requests_met_pct: f64,
    /// Longest sequence of windows that missed the objective, in seconds.
    pub longest_miss_s: f64,
    /// Percentile in the worst window, in microseconds.
    pub worst_us: f64,
}

/// Pressure (PSI) of each side's group.
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
    /// Median in microseconds.
    pub p50: f64,
    /// 99th percentile in microseconds.
    pub p99: f64,
}

/// Mean CPU use over the measured part, in CPUs: 1.0 means that one logical CPU was busy all the time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CpuUse {
    /// CPU use of the online side, in CPUs.
    #[serde(default)]
    pub online: Option<f64>,
    /// CPU use of the offline side, in CPUs.
    #[serde(default)]
    pub offline: Option<f64>,
    /// CPU use of the load generator if it runs as a separate program, in CPUs; also counted in `other`.
    #[serde(default)]
    pub client: Option<f64>,
    /// CPU use of everything else on the machine, including the load generator, in CPUs.
    #[serde(default)]
    pub other: Option<f64>,
    /// Steal time, in CPUs: time during which the hypervisor ran other guests instead. It does not count as busy.
    #[serde(default)]
    pub steal: Option<f64>,
}

impl CpuUse {
    /// CPU use of programs outside the experiment, in CPUs; the load generator is not one of them.
    pub(crate) fn outside(&self) -> Option<f64> {
        Some((self.other? - self.client.unwrap_or(0.0)).max(0.0))
    }
}

/// A value for each side.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PerSide {
    /// The online side.
    #[serde(default)]
    pub online: Option<f64>,
    /// The offline side.
    #[serde(default)]
    pub offline: Option<f64>,
}

/// Pressure (PSI): share of the measured part in which some task was stalled, in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Psi {
    /// Stalls for lack of a CPU, in per cent.
    #[serde(default)]
    pub cpu_some_pct: Option<f64>,
    /// Stalls for lack of memory, in per cent.
    #[serde(default)]
    pub memory_some_pct: Option<f64>,
    /// Stalls on I/O, in per cent.
    #[serde(default)]
    pub io_some_pct: Option<f64>,
}

/// Work done in the measured part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Offline work, in units per second; `None` when no offline work ran or it reports no count.
    #[serde(default)]
    pub offline: Option<f64>,
    /// Name of the unit, such as `bogo-ops`.
    #[serde(default)]
    pub unit: Option<String>,
    /// CPUs that the offline work uses when it runs alone. If the offline work uses fewer CPUs in the contended arm,
    /// the block is invalid.
    #[serde(default)]
    pub expected_cpus: Option<f64>,
}
