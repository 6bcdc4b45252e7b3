//! Predicts how much slower work gets when more VMs share a server. The model needs four numbers, which can be measured
//! in minutes. The prediction is a band from a lower to an upper end, not a single value. Arenadata's measurements are
//! within the band in the article's second scenario, and above the band in the third.
//!
//! Let P be the number of cores, T the number of threads, s the number of threads per core, g the throughput gain of a
//! core when all its threads compute, and n the number of runnable vCPUs. Then the server does as much work as C(n)
//! cores that each run alone:
//!
//! ```text
//! C(n) = f(n) · n                             n <= P
//!        f(P) · (P + (n − P) (g − 1)/(s − 1)) P < n <= T
//!        f(P) · P g                           n > T
//! ```
//! The factor f falls from 1, when one core is busy, to the all-core speed, when all cores are busy. The loss of work
//! is the increase of its time, as a fraction. Independent work loses `n / C(n) − 1` on average. Work that waits at a
//! barrier for its slowest part loses as much as a thread on a shared core: `s/g · max(1, n/T) / f − 1`. Work that only
//! copies memory is limited by the memory bandwidth, which B cores exhaust; this work loses `n / min(C(n), B) − 1`. The
//! lower end of the band is the loss of independent work. The upper end is the largest of the three losses.
//!
//! A VM runs as many vCPUs as its sessions keep busy: `b = min(vCPU, sessions · threads of a query)`. So with few
//! sessions, even a full server has idle cores. The model derives the number of threads per query from the times of one
//! placement of VMs ([`threads_of_a_query`]): these times stay constant up to `vCPU / threads` sessions, and grow in
//! proportion to the sessions beyond. With this number, and without any fitting, the lower end of the band differs from
//! Arenadata's measurements by 3 % in the median (`docs/decisions/0057`).

use crate::scenario::{Scenario, Server};
use serde::Serialize;

/// Measured properties of a server's cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Calibration {
    /// Throughput of a core when all its threads are busy, relative to that of one busy thread; 1 without SMT.
    pub smt_gain: f64,
    /// Speed of a core when all cores are busy, relative to its speed when it is the only busy core. The speed is below
    /// 1, because of lower frequency and shared caches.
    pub all_core: f64,
    /// Number of copying cores that exhaust the memory bandwidth; `None` when all cores together do not exhaust the
    /// bandwidth.
    pub bandwidth_cores: Option<f64>,
}

/// Measured bandwidth of copying large arrays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Bandwidth of one core alone, counting bytes read and written (GB/s).
    pub one_gb_s: f64,
    /// Bandwidth of all cores together (GB/s).
    pub all_gb_s: f64,
    /// Number of cores that copied simultaneously.
    pub cores: u32,
    /// Size of the last-level cache in bytes, or a default value if the size is unknown. The arrays are several times
    /// as large.
    pub cache_bytes: u64,
}

/// Memory bandwidth is the bottleneck if the bandwidth of all cores together is less than this share of the number of
/// cores times the bandwidth of one core.
const BINDS: f64 = 0.9;

impl Bandwidth {
    /// Returns the number of cores that exhaust the bandwidth; `None` when all cores together do not exhaust the
    /// bandwidth.
    #[must_use]
    pub fn cores_that_use_it_up(&self) -> Option<f64> {
        let cores = self.all_gb_s / self.one_gb_s;
        (self.cores > 1 && cores < BINDS * f64::from(self.cores)).then_some(cores.max(1.0))
    }
}

impl Calibration {
    /// Returns the calibration of cores that do not slow each other: the threads of a core together gain `smt_gain`,
    /// and nothing else has an effect.
    #[must_use]
    pub fn ideal(smt_gain: f64) -> Calibration {
        Calibration { smt_gain, all_core: 1.0, bandwidth_cores: None }
    }
}

/// Predicted increase of the work's time, in per cent, as a band.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Band {
    /// Lower end: the increase for independent, compute-bound work.
    pub mean_pct: f64,
    /// Upper end: the increase for work that waits for its slowest part, or the increase for memory-bound work if that
    /// is larger.
    pub straggler_pct: f64,
    /// Whether the memory bandwidth determines the upper end.
    pub memory_binds: bool,
}

/// Returns the number of threads per core.
fn threads_per_core(server: &Server) -> f64 {
    f64::from(server.threads) / f64::from(server.cores)
}

/// Returns the speed of a core while `busy` cores are busy, relative to its speed when it is the only busy core.
fn speed(server: &Server, calibration: &Calibration, busy: f64) -> f64 {
    let cores = server.cores_left();
    let share = if cores > 1.0 { ((busy - 1.0) / (cores - 1.0)).clamp(0.0, 1.0) } else { 0.0 };
    1.0 - (1.0 - calibration.all_core) * share
}

/// Returns the work done by `runnable` compute-bound vCPUs, in units of the work of a core that runs alone.
#[must_use]
pub fn capacity(server: &Server, calibration: &Calibration, runnable: f64) -> f64 {
    let (cores, threads) = (server.cores_left(), server.threads_left());
    let per_core = threads_per_core(server);
    let extra = if per_core > 1.0 { (calibration.smt_gain - 1.0) / (per_core - 1.0) } else { 0.0 };
    let beyond = (runnable.min(threads) - cores).max(0.0);
    speed(server, calibration, runnable) * (runnable.min(cores) + beyond * extra)
}

/// Returns the work done by `runnable` vCPUs that only copy memory, in units of the work of a core that runs alone.
#[must_use]
pub fn memory_capacity(server: &Server, calibration: &Calibration, runnable: f64) -> f64 {
    let work = capacity(server, calibration, runnable);
    calibration.bandwidth_cores.map_or(work, |most| work.min(most))
}

/// Number of rungs (measurements with increasing numbers of sessions) from which the threads of a query are derived.
/// After all vCPUs are busy, rungs with more sessions add no information.
const TELLING: usize = 5;
/// Differences between spreads (of logarithms) below this value are rounding errors.
const ALIKE: f64 = 1e-9;

/// Estimates the number of threads that one session keeps busy in a VM with `vcpu` vCPUs. The input is the (sessions,
/// seconds) pairs of one placement, in ascending order. Returns the number for which the times are closest to
/// proportional to `sessions / min(vcpu, sessions · threads)`; of equally good numbers, the largest. Returns `None` for
/// fewer than two pairs.
#[must_use]
pub fn threads_of_a_query(rungs: &[(u32, f64)], vcpu: u32) -> Option<u32> {
    let rungs = &rungs[..rungs.len().min(TELLING)];
    let spread = |threads: &u32| {
        let log = |(sessions, seconds): &(u32, f64)| {
            (seconds * busy_vcpus(vcpu, *threads, *sessions) / f64::from(*sessions)).ln()
        };
        let logs: Vec<f64> = rungs.iter().map(log).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
    };
    if rungs.len() < 2 {
        return None;
    }
    let spreads: Vec<f64> = (1..=vcpu).map(|threads| spread(&threads)).collect();
    let least = spreads.iter().copied().fold(f64::INFINITY, f64::min);
    // If no rung keeps all vCPUs busy, or every rung does, several numbers fit equally well. The largest of them is the
    // most pessimistic.
    let like = |index: &usize| spreads[*index] <= least + ALIKE;
    (0..spreads.len()).rev().find(like).and_then(|index| u32::try_from(index + 1).ok())
}

/// Returns the number of vCPUs of a VM that its sessions keep busy.
#[must_use]
pub fn busy_vcpus(vcpu: u32, threads_of_a_query: u32, sessions: u32) -> f64 {
    f64::from(vcpu).min(f64::from(threads_of_a_query) * f64::from(sessions))
}

/// Predicts the band for `runnable` vCPUs on a server, relative to one VM with `alone` busy vCPUs on an equal server.
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

    /// The model gives the expected values for Arenadata's article: +50 % for a gain of 1.33, and +100 % in the third
    /// scenario.
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

    /// Predicts Arenadata's measurements without fitting. A gain of 1.3 and an all-core speed of 0.75 are usual for
    /// such a server; the threads of a query are derived from scenario 1.
    #[test]
    fn document_003_by_arithmetic() {
        let ladder = crate::document::arenadata();
        let calibration = Calibration { smt_gain: 1.3, all_core: 0.75, bandwidth_cores: None };
        let seconds = |test: &str, sessions: u32, placement: &str| {
            ladder.rung(test, sessions, placement).and_then(|rung| rung.summary().mean_s)
        };
        let table = crate::table::table(&ladder);
        let (mut errors, mut threads) = (Vec::new(), Vec::new());
        for test in &ladder.tests {
            let steps = ladder.concurrencies(&test.name);
            let first: Vec<(u32, f64)> =
                steps.iter().filter_map(|step| Some((*step, seconds(&test.name, *step, "S1")?))).collect();
            let of_query = threads_of_a_query(&first, ladder.vcpu).unwrap();
            threads.push(of_query);
            for (step, alone) in first {
                let busy = busy_vcpus(ladder.vcpu, of_query, step);
                let row = table.rows.iter().find(|row| row.test == test.name && row.concurrency == step);
                for (placement, cell) in ladder.placements.iter().zip(&row.unwrap().cells).skip(1) {
                    let Some(measured) = seconds(&test.name, step, &placement.name) else { continue };
                    let runnable = busy * f64::from(placement.per_server());
                    let band = predict(&placement.server, &calibration, (runnable, busy));
                    let expected = alone * (1.0 + band.mean_pct / 100.0);
                    let error = (expected / measured - 1.0) * 100.0;
                    let odd = cell.flags.contains(&crate::table::Flag::NonMonotone);
                    println!(
                        "{} at {step} in {}: measured {measured:.0} s, expected {expected:.0} s, {error:+.1} %{}",
                        test.name,
                        placement.name,
                        if odd { ", not monotone" } else { "" }
                    );
                    errors.extend((!odd).then_some(error.abs()));
                }
            }
        }
        // The article says that each VM has 6 segments; the prediction did not use this fact.
        assert_eq!(threads, [6, 9]);
        let (median, worst) =
            (commensal_lab::stats::median(&errors).unwrap(), errors.iter().copied().fold(0.0, f64::max));
        println!("median {median:.1} %, worst {worst:.1} % of {}", errors.len());
        assert!(errors.len() == 24 && median < 5.0 && worst < 15.0, "{median} {worst}");
    }

    #[test]
    fn threads_follow_from_where_times_begin_to_grow() {
        let times = |threads: u32, vcpu: u32| {
            let one =
                |sessions: u32| (sessions, 10.0 * f64::from(sessions) / busy_vcpus(vcpu, threads, sessions));
            [1, 2, 3, 5, 8].map(one)
        };
        for threads in [2, 3, 6, 16] {
            assert_eq!(threads_of_a_query(&times(threads, 16), 16), Some(threads));
        }
        assert_eq!(threads_of_a_query(&times(3, 16)[..1], 16), None);
        // With one or two threads per session, up to eight sessions never wait for each other, so both numbers explain
        // the times.
        assert_eq!(threads_of_a_query(&times(1, 16), 16), Some(2));
        // If no rung has idle vCPUs, the number of threads cannot be determined. This does not matter, because the VM
        // is then full.
        let full = threads_of_a_query(&times(16, 16)[1..], 16).unwrap();
        assert_eq!(busy_vcpus(16, full, 2), 16.0);
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
        // Compute-bound work is not affected.
        near(capacity(&SERVER, &narrow, 200.0), last);
    }

    /// One VM with 16 vCPUs copies memory at full speed. Four such VMs share the bandwidth of 20 cores, so they take
    /// 64/20 times as long.
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
        // If 60 cores exhaust the bandwidth, sharing cores costs more than sharing the bandwidth.
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
        // Even if two cores together have a lower bandwidth than one alone, the result is at least one core.
        assert_eq!(cores(10.0, 8.0, 2), Some(1.0));
    }
}
