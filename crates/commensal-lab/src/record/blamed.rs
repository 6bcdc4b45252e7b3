//! Measurements of the wait probe (`commensal blame`) in a block, and the conclusions from all blocks of an arm. The
//! probe records in the kernel why online threads waited for a CPU. An arm is one of the compared ways of running the
//! service; a block is one arm in one round.

use super::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of the wait probe in the measured part of one block.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Blamed {
    /// Time that online threads ran on a CPU, in seconds.
    pub run_s: f64,
    /// Time that online threads waited for a CPU, summed over threads, by what occupied the CPU during the wait.
    pub wait_s: WaitByKind,
    /// How long offline work kept a CPU after an online thread was woken on it.
    pub preemption: Delays,
    /// How long online threads waited for a CPU after a wake-up.
    pub wake_up: Delays,
    /// Share of the context switches during waits of online threads that the probe missed.
    pub missed_share: f64,
    /// Part of the waits during which a task that the probe did not see may have occupied the CPU, in seconds; `None` in
    /// records of versions that did not measure it.
    #[serde(default)]
    pub hidden_s: Option<f64>,
}

/// Waiting time in seconds, by occupant of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitByKind {
    /// Waits for programs that are neither online nor offline work.
    pub other: f64,
    /// Waits for other threads of the online work itself.
    pub peers: f64,
    /// Waits for offline work.
    pub offline: f64,
    /// Waits for kernel threads.
    pub kernel: f64,
    /// Waits for no task: the CPU was waking up from idle.
    pub nobody: f64,
    /// Waits for interrupts.
    pub interrupts: f64,
}

impl WaitByKind {
    /// Returns the sum of all kinds in seconds.
    pub fn sum(&self) -> f64 {
        self.other + self.peers + self.offline + self.kernel + self.nobody + self.interrupts
    }
}

/// Number and percentiles of a set of delays.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Delays {
    /// Number of delays.
    pub count: u64,
    /// Median in microseconds; `None` without delays.
    pub p50_us: Option<f64>,
    /// 99th percentile in microseconds; `None` if there are too few delays.
    pub p99_us: Option<f64>,
}

/// Limits on how long offline work may make online work wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlameBounds {
    /// Maximum wait caused by offline work, in milliseconds per second of online CPU time; also the maximum increase of
    /// the total wait over that of the service alone.
    pub wait_ms_per_cpu_s: f64,
    /// Maximum 99th percentile of the preemption delay, in microseconds: the time that offline work keeps a CPU after
    /// an online thread was woken on that CPU.
    pub preemption_p99_us: f64,
}

/// Conclusions from the probe's measurements for one arm with offline work. Each interval shows the uncertainty over
/// rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArmBlame {
    /// Name of the arm.
    pub arm: String,
    /// Number of rounds with measurements of the probe.
    pub rounds: u32,
    /// Wait caused by offline work, in milliseconds per second of online CPU time: Hodges-Lehmann estimate.
    pub offline_ms_per_cpu_s: f64,
    /// Two-sided 95 % interval of `offline_ms_per_cpu_s`; `None` below 6 rounds.
    pub ci95: Option<[f64; 2]>,
    /// One-sided 95 % bounds of `offline_ms_per_cpu_s`, lower and upper; `None` below 5 rounds.
    pub one_sided: Option<[f64; 2]>,
    /// Median over rounds of the 99th percentile of the preemption delay, in microseconds.
    pub preemption_p99_us: Option<f64>,
    /// One-sided bounds of the centre of the rounds' 99th percentiles, in microseconds; `None` if fewer than 5 rounds
    /// have a 99th percentile.
    #[serde(default)]
    pub preemption_p99_one_sided: Option<[f64; 2]>,
    /// Number of preemption delays in all rounds.
    pub preemptions: u64,
    /// Increase of the total wait of online work over the baseline of the same round, in milliseconds per second of
    /// online CPU time, whatever occupied the CPU: Hodges-Lehmann estimate of the paired differences.
    pub total_difference_ms_per_cpu_s: Option<f64>,
    /// Two-sided 95 % interval of `total_difference_ms_per_cpu_s`; `None` below 6 rounds.
    pub total_difference_ci95: Option<[f64; 2]>,
    /// One-sided 95 % bounds of `total_difference_ms_per_cpu_s`, lower and upper; `None` below 5 rounds.
    pub total_difference_one_sided: Option<[f64; 2]>,
    /// PASS if the measurements prove that the arm is below all limits, FAIL if they prove that it is above a limit,
    /// otherwise INCONCLUSIVE.
    pub verdict: Verdict,
    /// Reasons for the verdict.
    pub reasons: Vec<String>,
}
