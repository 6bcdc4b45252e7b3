//! Synthetic runs for tests: a machine with 2 CPUs, four arms (the conditions of a run), and known harms (relative
//! worsening of a metric). A run is concluded when its results are computed from its blocks.

use crate::analysis::{Samples, conclude_from};
use crate::record::{
    Applied, Arm, Block, CpuUse, Design, Lateness, LatenessRule, LoadFigures, Machine, Metric, PerSide,
    Policy, Psi, RecordedBy, Role, Run, SCHEMA, Work, encode_histogram, new_histogram,
};
use crate::rng::Rng;

/// Returns the baseline, the second baseline, the contended arm and the isolated arm, in this order.
pub fn arms() -> Vec<Arm> {
    let plain = |name: &str, role| Arm { name: name.into(), role, policy: None, offline: None };
    let applied = Applied {
        path: "/commensal/offline".into(),
        file: "cpu.idle".into(),
        want: "1".into(),
        read: Some("1\n".into()),
    };
    let policy = Policy { driver: "cpu.idle".into(), weak: None, applied: vec![applied] };
    vec![
        plain("baseline", Role::Baseline),
        plain("baseline2", Role::Baseline2),
        plain("contended", Role::Contended),
        Arm { name: "isolated".into(), role: Role::Isolated, policy: Some(policy), offline: None },
    ]
}

/// Returns a design with the gates P50, P90 and QPS, and a threshold of 5 %.
pub fn design(rounds: u32) -> Design {
    Design {
        rounds,
        block_s: 20.0,
        settle_s: 3.0,
        warmup_s: 2.0,
        offered_per_s: Some(400.0),
        threshold_pct: 5.0,
        gates: vec![Metric::P50, Metric::P90, Metric::Qps],
        ..Design::default()
    }
}

/// Returns a run whose blocks have no histograms.
pub fn bare_run(rounds: u32) -> Run {
    let arms = arms();
    let order = commensal_core::windows::blocks(42, rounds as usize, arms.len(), Some((0, 1)));
    let mut blocks = Vec::new();
    for (round, order) in (0..).zip(order) {
        for (pos, arm) in (0..).zip(order) {
            blocks.push(block(round, pos, &arms[arm]));
        }
    }
    Run {
        schema: SCHEMA.into(),
        tool: RecordedBy { version: "0.1.0".into(), args: vec!["lab".into(), "run".into()] },
        experiment: "http-vs-stress-ng".into(),
        seed: 42,
        started: "2026-11-21T10:00:00Z".into(),
        machine: Machine {
            cpu: "AMD EPYC".into(),
            cores: 2,
            threads: 2,
            smt: Some(false),
            virt: Some("kvm".into()),
            kernel: "6.18.0".into(),
            cgroup: Some("v1".into()),
            memory_bytes: Some(8 << 30),
            fingerprint: "sha256:00".into(),
        },
        design: design(rounds),
        arms,
        blocks,
        ..Run::default()
    }
}

fn block(round: u32, pos: u32, arm: &Arm) -> Block {
    let (offline_cpu, work) = match arm.role {
        Role::Contended => (Some(1.5), Some(1_000.0)),
        Role::Isolated => (Some(1.4), Some(810.0)),
        _ => (Some(0.0), None),
    };
    Block {
        round,
        pos,
        arm: arm.name.clone(),
        valid: true,
        measure_s: 20.0,
        load: LoadFigures {
            offered_per_s: Some(400.0),
            achieved_per_s: Some(400.0),
            offered_requests: 8_000,
            ..LoadFigures::default()
        },
        lateness_us: Some(Lateness { p50: 4.0, p99: 61.0 }),
        cpu: CpuUse {
            online: Some(0.3),
            offline: offline_cpu,
            other: Some(0.05),
            steal: Some(0.0),
            client: None,
        },
        run_delay_s: PerSide { online: Some(0.004), offline: None },
        psi: Some(Psi { cpu_some_pct: Some(12.5), ..Psi::default() }),
        work: Work { offline: work, unit: Some("bogo-ops".into()), ..Work::default() },
        ..Block::default()
    }
}

/// Returns a run of six rounds with histograms of 1000 requests. Latency is 50 % higher in the contended arm and 1 %
/// higher in the isolated arm.
pub fn small_run() -> Run {
    let mut run = bare_run(6);
    let mut rng = Rng::new(1);
    for block in &mut run.blocks {
        let harm = match block.arm.as_str() {
            "contended" => 1.5,
            "isolated" => 1.01,
            _ => 1.0,
        };
        let noise = (0.002 * rng.normal()).exp();
        let mut h = new_histogram().unwrap();
        for i in 0..1_000 {
            // The sample is stratified (log-normal), so that there is little noise within the block.
            let z = (f64::from(i) + rng.unit_f64()) / 1_000.0 * 4.0 - 2.0;
            h.saturating_record((500.0 * harm * noise * (0.5 * z).exp()) as u64);
        }
        block.histograms.latency = Some(encode_histogram(&h).unwrap());
        block.load.achieved_per_s = Some((400.0 / harm * 10.0).round() / 10.0);
    }
    run
}

/// Returns a run of twelve rounds on a machine whose hypervisor wakes idle virtual CPUs late, with this harm to the latency
/// of the isolated arm (as a fraction). In the arms that let their CPUs idle, one request of fifty is sent and answered 2 ms
/// late, and the hypervisor takes 0.04 CPUs; on busy CPUs all requests are in time and a tenth faster.
pub fn beside_a_hypervisor(harm: f64) -> Run {
    let mut run = bare_run(12);
    run.design.lateness = LatenessRule::ByPercentile;
    for (name, role) in [("policy-only", Role::PolicyOnly), ("warm", Role::Warm)] {
        run.arms.push(Arm { name: name.into(), role, policy: None, offline: None });
        let one = run.arms.last().unwrap();
        let more: Vec<Block> = (0..12).map(|round| block(round, run.arms.len() as u32, one)).collect();
        run.blocks.extend(more);
    }
    let mut rng = Rng::new(3);
    for block in &mut run.blocks {
        let (factor, idles) = match block.arm.as_str() {
            "contended" => (2.0, false),
            "isolated" => (0.9 * (1.0 + harm), false),
            "warm" => (0.9, false),
            _ => (1.0, true),
        };
        let noise = (0.005 * rng.normal()).exp();
        let (mut latency, mut lateness) = (new_histogram().unwrap(), new_histogram().unwrap());
        for i in 0..2_000 {
            let z = (f64::from(i) + rng.unit_f64()) / 2_000.0 * 4.0 - 2.0;
            let late = if idles && i % 50 == 0 { 2_000.0 } else { 3.0 };
            lateness.saturating_record(late as u64);
            latency.saturating_record((200.0 * factor * noise * (0.5 * z).exp() + late) as u64);
        }
        block.histograms.latency = Some(encode_histogram(&latency).unwrap());
        block.histograms.lateness = Some(encode_histogram(&lateness).unwrap());
        let at = |quantile: f64| lateness.value_at_quantile(quantile) as f64;
        block.lateness_us = Some(Lateness { p50: at(0.5), p99: at(0.99) });
        block.load.offered_requests = 2_000;
        block.cpu.steal = Some(if idles { 0.04 } else { 0.004 });
    }
    run
}

/// Returns a concluded run with known harms in the second baseline, the contended and the isolated arm, as fractions.
/// `sd` is the standard deviation of a block's value on the log scale.
pub fn concluded(rounds: u32, harms: [f64; 3], sd: f64) -> Run {
    let mut run = bare_run(rounds);
    let samples = simulate(&mut Rng::new(17), rounds, harms, (sd, 0.0), &run.design.gates);
    conclude_from(&mut run, &samples, Vec::new());
    run
}

/// Returns a concluded run of twelve rounds with two isolated arms, `isolated` and `isolated:quota=80%`; `harms` are
/// their latency harms as fractions.
pub fn two_isolated(harms: [f64; 2]) -> Run {
    let mut run = bare_run(12);
    run.arms.push(Arm {
        name: "isolated:quota=80%".into(),
        role: Role::Isolated,
        policy: None,
        offline: None,
    });
    let (mut rng, mut samples) = (Rng::new(23), Samples::empty(5));
    let four = simulate(&mut rng, 12, [0.0, 0.5, 0.0], (0.005, 0.0), &run.design.gates);
    for (arm, round) in (0..5_usize).flat_map(|arm| (0..12).map(move |round| (arm, round))) {
        for metric in run.design.gates.clone() {
            let harm = arm.checked_sub(3).map_or(0.0, |isolated| harms[isolated]);
            let harm = if metric.more_is_better() { 0.0 } else { harm };
            let value = four.get(arm.min(3), round, metric).unwrap_or_default();
            samples.set(arm, round, metric, value * (1.0 + harm));
        }
    }
    conclude_from(&mut run, &samples, Vec::new());
    run
}

/// Simulates a value of each metric for every block of the four arms. With probability `bursts`, a value is worse by up
/// to 65 %.
pub fn simulate(
    rng: &mut Rng,
    rounds: u32,
    harms: [f64; 3],
    (sd, bursts): (f64, f64),
    metrics: &[Metric],
) -> Samples {
    let mut samples = Samples::empty(4);
    for round in 0..rounds {
        for (arm, harm) in [0.0, harms[0], harms[1], harms[2]].into_iter().enumerate() {
            for &metric in metrics {
                let mut log = (1.0 + harm).ln() + sd * rng.normal();
                if rng.unit_f64() < bursts {
                    log += 0.5 * rng.unit_f64();
                }
                let value = if metric.more_is_better() { 400.0 * (-log).exp() } else { 500.0 * log.exp() };
                samples.set(arm, round, metric, value);
            }
        }
    }
    samples
}
