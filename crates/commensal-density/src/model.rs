//! Two bounds for what density costs, from four numbers that can be calibrated in minutes. They make a band, never an answer:
//! document 003 lies within it in its second scenario and above it in its third.
//!
//! With P cores of s threads each, a gain g of a core whose threads all compute, and n runnable vCPUs, the server does the
//! work of
//!
//! ```text
//! C(n) = f(n) · n                             n <= P
//!        f(P) · (P + (n − P) (g − 1)/(s − 1)) P < n <= T
//!        f(P) · P g                           beyond
//! ```
//! cores that run alone, where f falls from 1 to the all-core speed. Independent work loses `n / C(n) − 1` on average. Work
//! that waits for its slowest part at a barrier loses what a thread on a shared core loses: `s/g · max(1, n/T) / f − 1`. Work
//! that does nothing but copy memory ends where the bandwidth does, at that of B cores: it loses `n / min(C(n), B) − 1`. The
//! lower end of the band is the first, the upper end the worst of all.

use crate::scenario::{Scenario, Server};
use serde::Serialize;

/// What was measured of a server's cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Calibration {
    /// Work of a core with all its threads busy, in cores with one; 1 without SMT.
    pub smt_gain: f64,
    /// Speed of a core when all cores are busy, of its speed alone: frequency and shared caches.
    pub all_core: f64,
    /// Cores whose copying uses up the memory's bandwidth; `None` when all of them do not reach it.
    pub bandwidth_cores: Option<f64>,
}

/// What copying of large arrays came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Read and written by one core alone, GB/s.
    pub one_gb_s: f64,
    /// By all cores at once, GB/s.
    pub all_gb_s: f64,
    /// Cores that copied at once.
    pub cores: u32,
    /// Last-level cache that the arrays exceed several times, bytes; what the machine does not tell is assumed.
    pub cache_bytes: u64,
}

/// All cores together reach less than this share of what as many single ones would: then the memory binds.
const BINDS: f64 = 0.9;

impl Bandwidth {
    /// Cores that use it up; `None` when all of them do not.
    #[must_use]
    pub fn cores_that_use_it_up(&self) -> Option<f64> {
        let cores = self.all_gb_s / self.one_gb_s;
        (self.cores > 1 && cores < BINDS * f64::from(self.cores)).then_some(cores.max(1.0))
    }
}

impl Calibration {
    /// Cores that do not disturb each other: a gain of `smt_gain`, and nothing else.
    #[must_use]
    pub fn ideal(smt_gain: f64) -> Calibration {
        Calibration { smt_gain, all_core: 1.0, bandwidth_cores: None }
    }
}

/// What density costs, per cent of time; the two ends of the band.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Band {
    /// Of independent work that computes.
    pub mean_pct: f64,
    /// Of work that waits for its slowest part, or for memory alone where that is worse.
    pub straggler_pct: f64,
    /// Whether the upper end is that of the memory's bandwidth.
    pub memory_binds: bool,
}

/// Threads of one core.
fn threads_per_core(server: &Server) -> f64 {
    f64::from(server.threads) / f64::from(server.cores)
}

/// Speed of a core while `busy` are, of its speed alone.
fn speed(server: &Server, calibration: &Calibration, busy: f64) -> f64 {
    let cores = server.cores_left();
    let share = if cores > 1.0 { ((busy - 1.0) / (cores - 1.0)).clamp(0.0, 1.0) } else { 0.0 };
    1.0 - (1.0 - calibration.all_core) * share
}

/// Work done by `runnable` vCPUs that compute, in cores that run alone.
#[must_use]
pub fn capacity(server: &Server, calibration: &Calibration, runnable: f64) -> f64 {
    let (cores, threads) = (server.cores_left(), server.threads_left());
    let per_core = threads_per_core(server);
    let extra = if per_core > 1.0 { (calibration.smt_gain - 1.0) / (per_core - 1.0) } else { 0.0 };
    let beyond = (runnable.min(threads) - cores).max(0.0);
    speed(server, calibration, runnable) * (runnable.min(cores) + beyond * extra)
}

/// The same of vCPUs that only copy memory.
#[must_use]
pub fn memory_capacity(server: &Server, calibration: &Calibration, runnable: f64) -> f64 {
    let work = capacity(server, calibration, runnable);
    calibration.bandwidth_cores.map_or(work, |most| work.min(most))
}

/// The band for `runnable` vCPUs, against one VM of `alone` vCPU on the same server.
#[must_use]
pub fn predict(server: &Server, calibration: &Calibration, (runnable, alone): (f64, f64)) -> Band {
    let per_vcpu = |vcpu: f64| capacity(server, calibration, vcpu) / vcpu;
    let mean = per_vcpu(alone) / per_vcpu(runnable);
    let straggler = match server.scenario(runnable) {
        Scenario::Ideal => mean,
        _ => {
            let shared = threads_per_core(server) / calibration.smt_gain;
            let waiting = (runnable / server.threads_left()).max(1.0);
            (shared * waiting / speed(server, calibration, runnable) * per_vcpu(alone)).max(mean)
        }
    };
    let copying = |vcpu: f64| memory_capacity(server, calibration, vcpu) / vcpu;
    let memory = copying(alone) / copying(runnable);
    Band {
        mean_pct: (mean - 1.0) * 100.0,
        straggler_pct: (straggler.max(memory) - 1.0) * 100.0,
        memory_binds: memory > straggler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Server = Server { cores: 48, threads: 96, reserve: 0.0, node_cores: None, llc_cores: None };

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1.0, "{got}, want {want}");
    }

    /// The figures of the design for document 003: +50 % for a gain of 1.33, and +100 % in the third scenario.
    #[test]
    fn the_documents_scenarios_under_the_model() {
        let band = |vcpu, gain| predict(&SERVER, &Calibration::ideal(gain), (vcpu, 16.0));
        assert_eq!(band(16.0, 1.33), Band { mean_pct: 0.0, straggler_pct: 0.0, memory_binds: false });
        near(band(64.0, 1.25).mean_pct, 23.0);
        near(band(64.0, 1.25).straggler_pct, 60.0);
        near(band(64.0, 1.333).straggler_pct, 50.0);
        near(band(128.0, 1.333).mean_pct, 100.0);
        near(band(128.0, 1.333).straggler_pct, 100.0);
    }

    #[test]
    fn without_smt_both_bounds_are_the_ratio() {
        let server = Server { cores: 2, threads: 2, ..SERVER };
        for (runnable, want) in [(1.0, 0.0), (2.0, 0.0), (3.0, 50.0), (6.0, 200.0)] {
            let band = predict(&server, &Calibration::ideal(1.0), (runnable, 1.0));
            near(band.mean_pct, want);
            near(band.straggler_pct, want);
        }
    }

    #[test]
    fn capacity_never_falls_and_its_limits_hold() {
        let calibration = Calibration { smt_gain: 1.3, all_core: 0.9, bandwidth_cores: None };
        let mut last = 0.0;
        for vcpu in 1..200 {
            let now = capacity(&SERVER, &calibration, f64::from(vcpu));
            assert!(now >= last - 1e-9, "{vcpu}: {now} < {last}");
            last = now;
        }
        near(last, 48.0 * 1.3 * 0.9);
        let narrow = Calibration { bandwidth_cores: Some(20.0), ..calibration };
        near(memory_capacity(&SERVER, &narrow, 96.0), 20.0);
        // What computes does not feel it.
        near(capacity(&SERVER, &narrow, 200.0), last);
    }

    /// One VM of 16 copies at full speed; four of them share what 20 cores use up: 64/20 times as long.
    #[test]
    fn memory_is_the_upper_end_where_it_binds() {
        let band = |bandwidth_cores, vcpu| {
            let calibration = Calibration { smt_gain: 1.3, all_core: 1.0, bandwidth_cores };
            predict(&SERVER, &calibration, (vcpu, 16.0))
        };
        let (free, bound) = (band(None, 64.0), band(Some(20.0), 64.0));
        assert!(!free.memory_binds && bound.memory_binds);
        near(bound.straggler_pct, 220.0);
        near(bound.mean_pct, free.mean_pct);
        // 40 cores' worth is more than the shared cores lose anyway.
        assert!(!band(Some(60.0), 64.0).memory_binds);
        assert!(!band(Some(20.0), 16.0).memory_binds);
    }

    #[test]
    fn bandwidth_binds_when_all_cores_fall_behind() {
        let cores = |one_gb_s, all_gb_s, cores| {
            Bandwidth { one_gb_s, all_gb_s, cores, cache_bytes: 1 }.cores_that_use_it_up()
        };
        assert_eq!(cores(10.0, 60.0, 48), Some(6.0));
        assert_eq!(cores(10.0, 19.5, 2), None);
        assert_eq!(cores(10.0, 10.0, 1), None);
        // Two that disturb each other are no less than one.
        assert_eq!(cores(10.0, 8.0, 2), Some(1.0));
    }
}
