//! Every value that a controller decides follows from its explanation: the formula, evaluated with the inputs, gives it.

use super::properties::{Time, figure, machines, settings, steps};
use super::{derives, explained};
use commensal_core::control::frame::{Frame, FrameInput, Use, theta};
use commensal_core::control::io::{Io, IoInput, Rates};
use commensal_core::control::latency::{Latency, LatencyInput, ProbeWaits};
use commensal_core::control::memory::{Candidate, GroupInput, GroupMemory, NodeInput, NodeMemory, Process};
use commensal_core::control::period::Period;
use commensal_core::control::suppress::{Suppress, SuppressInput};
use commensal_core::control::weights::{WeightInput, Weights};
use commensal_core::cpuset::CpuSet;
use commensal_core::group::{Class, OnExceed};
use commensal_core::topology::Device;
use commensal_core::units::{Bytes, MicroCpus, Weight};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn uses() -> impl Strategy<Value = Use> {
    (figure(40.0), figure(4.0), figure(20.0), figure(4.0)).prop_map(|(busy, steal, offline, confined)| Use {
        busy,
        steal,
        offline,
        confined,
    })
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

proptest! {
    #![proptest_config(settings())]

    // promise 28
    #[test]
    fn frames_and_quotas(
        topology in machines(),
        in_force in proptest::collection::btree_set(0u32..40, 0..40),
        calls in proptest::collection::vec((steps(), uses(), figure(40.0)), 1..60),
    ) {
        let quota = MicroCpus(in_force.len() as u64 * 1_000_000);
        let (mut frame, mut suppress) = (Frame::new(in_force.into_iter().collect()), Suppress::new(Some(quota)));
        let (mut time, none) = (Time(1_000_000), CpuSet::new());
        for (by, used, cap) in calls {
            let now = time.step(by);
            let starved = by % 2 == 1;
            let input = FrameInput { topology: &topology, reserved: &none, used, cap, starved };
            let decision = frame.step(now, &input);
            let frame = decision.cpus.unwrap().len() as f64;
            prop_assert!(derives(&decision.why, frame), "{frame}: {}", decision.why);
            let (theta, cpus) = (theta(&topology), topology.threads() as f64);
            let input = SuppressInput { theta, cpus, core: 1.0, yields: true, used, cap };
            let decision = suppress.step(now, &input);
            let quota = decision.quota.unwrap();
            prop_assert!(explained(&decision.why), "{}", decision.why);
            // Rounded down to a millionth.
            let derived = decision.why.derive().unwrap();
            prop_assert_eq!((derived * 1e6 + 1e-3) as u64, quota.0, "{}", decision.why);
        }
    }

    // promise 28
    #[test]
    fn caps(
        calls in proptest::collection::vec(
            (steps(), figure(400.0), figure(900.0), figure(400.0), figure(30.0), figure(8.0), figure(8.0)),
            1..80,
        ),
    ) {
        let (mut latency, mut time) = (Latency::new(Some(8.0)), Time(1_000_000));
        for (by, blamed, p99, delay, pressure, online, offline) in calls {
            let waits = ProbeWaits { blamed_ms_per_s: blamed, preemption_p99_us: p99, preemptions: 200 };
            let input = LatencyInput {
                target_us: 100.0,
                measurable: true,
                probe: Some(waits).filter(|_| blamed.is_some()),
                online_cpus: online,
                run_delay_ms_per_s: delay,
                pressure_pct: pressure,
                offline_cpus: offline,
                cpus: 8.0,
                core: 1.0,
                floor: 0.4,
            };
            let decision = latency.step(time.step(by), &input);
            prop_assert!(derives(&decision.why, decision.cap.unwrap()), "{}", decision.why);
        }
    }

    // promise 28
    #[test]
    fn periods(calls in proptest::collection::vec((0.0..300.0f64, any::<bool>()), 60..90)) {
        let (mut period, mut now) = (Period::default(), 0);
        // Long enough for the verdict, and for the trials after it.
        for (blamed, binding) in calls.into_iter().cycle().take(2_000) {
            now += 2_000;
            let decision = period.step(now, Some(blamed), Some(binding));
            let ms = f64::from(decision.period_us) / 1e3;
            prop_assert!(derives(&decision.why, ms), "{ms}: {}", decision.why);
        }
    }

    // promise 28
    #[test]
    fn weights(
        original in proptest::option::of(1u16..10_000),
        calls in proptest::collection::vec(
            (steps(), proptest::collection::vec(proptest::option::of(1u16..10_000), 0..4), any::<bool>()),
            1..60,
        ),
    ) {
        let (mut weights, mut time) = (Weights::default(), Time(1_000_000));
        for (by, siblings, written) in calls {
            let siblings = siblings.into_iter().map(|weight| weight.and_then(Weight::new)).collect();
            let input = WeightInput {
                written: Weight::new(7).filter(|_| written),
                original: original.and_then(Weight::new),
                siblings,
            };
            let decision = weights.step(time.step(by), &input);
            let weight = decision.weight.or(input.original).unwrap_or(Weight::DEFAULT);
            prop_assert!(derives(&decision.why, f64::from(weight.v2())), "{weight}: {}", decision.why);
        }
    }

    // promise 28
    #[test]
    fn disk_rates(
        calls in proptest::collection::vec((steps(), figure(40.0), figure(1e9), figure(1e9)), 1..80),
    ) {
        let disk = Device { major: 254, minor: 0 };
        let (mut io, mut time) = (Io::default(), Time(1_000_000));
        for (by, pressure_pct, read, write) in calls {
            let offline = [(disk, Rates { read, write })].into();
            let shared = BTreeSet::new();
            let input = IoInput { measurable: true, pressure_pct, offline: &offline, online: None, shared: &shared };
            let decision = io.step(time.step(by), &input).remove(&disk).unwrap();
            for (limit, why) in [decision.read, decision.write].into_iter().zip(&decision.each) {
                prop_assert!(explained(why), "{why}");
                if let Some(limit) = limit {
                    prop_assert_eq!(why.derive().unwrap() as u64, limit.0, "{}", why);
                }
            }
        }
    }

    // promise 28
    #[test]
    fn what_memory_decides(
        calls in proptest::collection::vec((steps(), proptest::option::of(0u64..8_000), 0.0..100.0f64), 1..60),
        sizes in proptest::collection::vec(1u64..4_000, 0..6),
    ) {
        let process = |(pid, size): (u32, &u64)| Process { pid, start: 1, held: Bytes(size << 20), dying: false };
        let processes: Vec<Process> = (1u32..).zip(&sizes).map(process).collect();
        let candidates: Vec<Candidate> =
            processes.iter().map(|process| Candidate { class: Class::Offline, process: *process }).collect();
        for on_exceed in [OnExceed::Freeze, OnExceed::Queue, OnExceed::KillLargest] {
            let (mut node, mut group, mut time) = (NodeMemory::new(false), GroupMemory::default(), Time(1_000_000));
            for (by, memory, pressure) in &calls {
                let now = time.step(*by);
                let memory = memory.map(|mib| Bytes(mib << 20));
                let decision = group.step(now, &GroupInput {
                    held: memory,
                    limit: Bytes(4_000 << 20),
                    on_exceed,
                    by_kernel: false,
                    processes: Some(&processes),
                });
                prop_assert!(explained(&decision.why), "{}", decision.why);
                let told = |name: &str| {
                    decision.why.values().unwrap_or_default().iter().find(|of| of.0 == name).map(|of| of.1)
                };
                if on_exceed == OnExceed::Freeze {
                    prop_assert_eq!(told("frozen"), Some(flag(decision.frozen)), "{}", decision.why);
                }
                if memory.is_some() {
                    prop_assert_eq!(told("queue_held"), Some(flag(decision.queue)), "{}", decision.why);
                }
                prop_assert_eq!(told("kill"), decision.kill.map(|_| 1.0), "{}", decision.why);
                let decision = node.step(now, &NodeInput {
                    available: memory,
                    total: Bytes(16_000 << 20),
                    pressure_pct: Some(*pressure),
                    candidates: Some(&candidates),
                });
                prop_assert!(derives(&decision.why, flag(decision.freeze)), "{}", decision.why);
                let kill = decision.why.values().unwrap().iter().find(|of| of.0 == "kill").map(|of| of.1);
                prop_assert_eq!(kill, decision.kill.map(|_| 1.0), "{}", decision.why);
            }
        }
    }
}
