//! Measurements of the wait probe (`commensal blame`) in a block, and conclusions from all blocks of an arm.

use super::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of the probe in the measured part of one block.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Blamed {
    /// Time that online threads had a CPU, seconds.
    pub run_s: f64,
    /// Time that online threads waited for a CPU, summed over threads, by what occupied the CPU meanwhile.
    pub wait_s: WaitByKind,
    /// How long offline work kept a CPU on which an online thread was woken.
    pub preemption: Delays,
    /// How long online threads waited after a wake-up.
    pub wake_up: Delays,
    /// Share of the context switches, while an online thread waited, that the probe did not see.
    pub missed_share: f64,
}

/// Waiting time by occupant of the CPU, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitByKind {
    /// Programs of neither side.
    pub other: f64,
    /// Online work itself.
    pub peers: f64,
    /// Offline work.
    pub offline: f64,
    /// Kernel threads.
    pub kernel: f64,
    /// No task: the CPU was waking from idle.
    pub nobody: f64,
    /// Interrupts.
    pub interrupts: f64,
}

impl WaitByKind {
    /// The sum, seconds.
    pub fn sum(&self) -> f64 {
        self.other + self.peers + self.offline + self.kernel + self.nobody + self.interrupts
    }
}

/// A distribution of delays.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Delays {
    /// Number of delays.
    pub count: u64,
    /// Median, microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile, microseconds.
    pub p99_us: Option<f64>,
}

/// Limits on how long offline work may make online work wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlameBounds {
    /// Maximum wait caused by offline work, milliseconds per second of online CPU time; also the maximum increase of
    /// the total wait over that of the service alone.
    pub wait_ms_per_cpu_s: f64,
    /// Maximum 99th percentile of the time that offline work keeps a CPU on which online work was woken, microseconds.
    pub preemption_p99_us: f64,
}

/// The probe's results for one arm with offline work. Intervals are over rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArmBlame {
    /// The arm.
    pub arm: String,
    /// Rounds with data of the probe.
    pub rounds: u32,
    /// Wait caused by offline work, milliseconds per second of online CPU time: Hodges-Lehmann estimate.
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
    /// Number of preemption delays in all rounds.
    pub preemptions: u64,
    /// Increase of the total wait of online work over the baseline of the same round, whatever occupied the CPU,
    /// milliseconds per second of online CPU time: Hodges-Lehmann estimate of the paired differences.
    pub total_difference_ms_per_cpu_s: Option<f64>,
    /// Its two-sided 95 % interval; `None` below 6 rounds.
    pub total_difference_ci95: Option<[f64; 2]>,
    /// Its one-sided 95 % bounds, lower and upper; `None` below 5 rounds.
    pub total_difference_one_sided: Option<[f64; 2]>,
    /// PASS below the limits, FAIL above one of them, INCONCLUSIVE when the rounds do not decide.
    pub verdict: Verdict,
    /// Reasons of the verdict.
    pub reasons: Vec<String>,
}
