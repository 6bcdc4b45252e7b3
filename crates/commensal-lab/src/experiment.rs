//! What a run is made of: arms, rounds, times, load, gates. Plain data, decided before the first block.

use crate::record::{Arm, BlameBounds, Design, Metric, Role};

/// Requests per second of the built-in service: 2 100 requests of 100 us each are a fifth of one CPU, and
/// five seconds of them give the 10 000 samples that P99 needs with five standard deviations to spare.
const RATE_PER_S: f64 = 2_100.0;

/// CPU time of one request, us.
pub const REQUEST_US: u64 = 100;

/// One request is one wake-up, and to get another task off a CPU takes the kernel 5 to 10 us by any mechanism: at 10,000
/// requests per CPU-second that alone is 50 to 100 ms. Without isolation it is 400 ms (Linux 6.18, two virtual CPUs).
const BLAME: BlameBounds = BlameBounds { wait_ms_per_cpu_s: 100.0, preemption_p99_us: 100.0 };

/// An experiment with the built-in workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// Seed of the order of arms and of the request schedules.
    pub seed: u64,
    /// The plan of the run, as it is recorded.
    pub design: Design,
    /// The arms.
    pub arms: Vec<Arm>,
}

/// What the user may choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Rounds.
    pub rounds: u32,
    /// Measured seconds per block.
    pub block_s: f64,
    /// Seed.
    pub seed: u64,
    /// Harm that still counts as none, per cent.
    pub threshold_pct: f64,
}

impl Choice {
    /// The defaults of `quickstart`: 6 rounds of 5 s blocks, about three minutes.
    pub const QUICKSTART: Choice = Choice { rounds: 6, block_s: 5.0, seed: 1, threshold_pct: 5.0 };

    /// Checks the ranges.
    ///
    /// # Errors
    /// A sentence with the option and its range.
    pub fn validate(&self) -> Result<(), String> {
        if self.rounds == 0 || u64::from(self.rounds) > crate::record::MAX_ROUNDS as u64 {
            return Err(format!("--rounds {} is not within 1 to {}", self.rounds, crate::record::MAX_ROUNDS));
        }
        if !(0.2..=3_600.0).contains(&self.block_s) {
            return Err(format!("--block {} is not within 0.2 to 3600 seconds", self.block_s));
        }
        if !(0.1..=1_000.0).contains(&self.threshold_pct) {
            return Err(format!("--threshold {} is not within 0.1 to 1000 per cent", self.threshold_pct));
        }
        Ok(())
    }
}

fn arm(name: &str, role: Role) -> Arm {
    Arm { name: name.to_owned(), role, policy: None }
}

fn design(choice: &Choice) -> Design {
    let p99 = RATE_PER_S * choice.block_s >= 10_500.0;
    let mut percentiles = vec![Metric::P50, Metric::P90, Metric::P95];
    percentiles.extend(p99.then_some(Metric::P99));
    Design {
        rounds: choice.rounds,
        block_s: choice.block_s,
        settle_s: 0.5,
        warmup_s: 1.0,
        offered_per_s: Some(RATE_PER_S),
        threshold_pct: choice.threshold_pct,
        gates: vec![Metric::P50, Metric::P90, Metric::Qps],
        percentiles,
        blame: Some(BLAME),
        ..Design::default()
    }
}

/// The main job: an HTTP service beside CPU burners, with and without isolation, and alone twice.
#[must_use]
pub fn quickstart(choice: &Choice) -> Experiment {
    Experiment {
        name: "quickstart".to_owned(),
        seed: choice.seed,
        design: design(choice),
        arms: vec![
            arm("baseline", Role::Baseline),
            arm("baseline2", Role::Baseline2),
            arm("contended", Role::Contended),
            arm("isolated", Role::Isolated),
        ],
    }
}

/// The two identical arms alone: what the machine itself does to a measurement.
#[must_use]
pub fn noise_check(choice: &Choice) -> Experiment {
    Experiment {
        name: "doctor".to_owned(),
        seed: choice.seed,
        design: design(choice),
        arms: vec![arm("baseline", Role::Baseline), arm("baseline2", Role::Baseline2)],
    }
}

impl Experiment {
    /// How long it will take, seconds: blocks with their settling, warm-up and draining, and a restart of
    /// the service per round.
    #[must_use]
    pub fn duration_s(&self) -> f64 {
        let block = self.design.settle_s + self.design.warmup_s + self.design.block_s + 0.1;
        f64::from(self.design.rounds) * (0.4 + block * self.arms.len() as f64)
    }
}
