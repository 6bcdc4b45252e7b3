//! What the probe (`commensal blame`) saw in a block, and what follows from all blocks of an arm.

use super::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the probe saw in the measured part of one block.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Blamed {
    /// Time that online threads had a CPU, seconds.
    pub run_s: f64,
    /// Time that online threads waited for a CPU, summed over threads, by who had it meanwhile.
    pub wait_s: WaitByKind,
    /// How long offline work stayed on a CPU that an online thread was woken on.
    pub preemption: Delays,
    /// How long online threads waited after a wake-up.
    pub wake_up: Delays,
    /// Of the context switches while an online thread waited, the share that was hidden from the probe.
    pub missed_share: f64,
}

/// Seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitByKind {
    /// Work of neither side.
    pub other: f64,
    /// Online work itself.
    pub peers: f64,
    /// Offline work.
    pub offline: f64,
    /// Kernel threads.
    pub kernel: f64,
    /// Nobody: the CPU woke up.
    pub nobody: f64,
    /// Interrupts.
    pub interrupts: f64,
}

impl WaitByKind {
    /// All of it, seconds.
    pub fn sum(&self) -> f64 {
        self.other + self.peers + self.offline + self.kernel + self.nobody + self.interrupts
    }
}

/// A distribution of delays.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Delays {
    /// How many.
    pub count: u64,
    /// Median, microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile, microseconds.
    pub p99_us: Option<f64>,
}

/// What offline work may do to the waits of online work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlameBounds {
    /// Wait blamed on it per second that online work had a CPU, milliseconds; also how much longer online work may wait in
    /// total than alone.
    pub wait_ms_per_cpu_s: f64,
    /// 99th percentile of its stay on a CPU that online work was woken on, microseconds.
    pub preemption_p99_us: f64,
}

/// One arm with offline work, by the probe. Intervals are over rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArmBlame {
    /// The arm.
    pub arm: String,
    /// Rounds in which the probe saw it.
    pub rounds: u32,
    /// Wait blamed on offline work, milliseconds per second that online work had a CPU: Hodges-Lehmann estimate.
    pub offline_ms_per_cpu_s: f64,
    /// Its two-sided 95 % interval; `None` below 6 rounds.
    pub ci95: Option<[f64; 2]>,
    /// Its one-sided 95 % bounds, lower and upper; `None` below 5 rounds.
    pub one_sided: Option<[f64; 2]>,
    /// Median over rounds of the 99th percentile of the preemption delay, microseconds.
    pub preemption_p99_us: Option<f64>,
    /// One-sided bounds of its centre over the rounds, microseconds; `None` below 5 rounds that have one.
    #[serde(default)]
    pub preemption_p99_one_sided: Option<[f64; 2]>,
    /// Preemption delays in all rounds.
    pub preemptions: u64,
    /// How much longer online work waited than in the baseline of the same round, whoever had the CPU, milliseconds per
    /// second that it had one: Hodges-Lehmann estimate of the paired differences.
    pub total_difference_ms_per_cpu_s: Option<f64>,
    /// Its two-sided 95 % interval; `None` below 6 rounds.
    pub total_difference_ci95: Option<[f64; 2]>,
    /// Its one-sided 95 % bounds, lower and upper; `None` below 5 rounds.
    pub total_difference_one_sided: Option<[f64; 2]>,
    /// PASS below the bounds, FAIL above one of them, INCONCLUSIVE where the rounds do not say.
    pub verdict: Verdict,
    /// Why.
    pub reasons: Vec<String>,
}
