//! What holds for every machine, load and clock.

use super::{explained, topology};
use commensal_core::control::LONGEST_STEP_MS;
use commensal_core::control::frame::{Frame, FrameInput, Use, headroom, pool, theta};
use commensal_core::control::latency::{Latency, LatencyInput, ProbeWaits};
use commensal_core::control::memory::{
    Candidate, GroupInput, GroupMemory, NodeInput, NodeMemory, PENDING_MS, Process,
};
use commensal_core::control::regulator::{Move, Params, Range, Regulator};
use commensal_core::control::suppress::{Part, Suppress, SuppressInput, divide, floor};
use commensal_core::cpuset::CpuSet;
use commensal_core::group::{Class, OnExceed};
use commensal_core::topology::Topology;
use commensal_core::units::Bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(super) fn settings() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 192 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Time between calls, ms: mostly ticks, sometimes a jump ahead or back.
pub(super) fn steps() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0i64..1_500, 1 => -100_000i64..0, 1 => 0i64..100_000_000]
}

/// CPUs, missing at times, and sometimes nonsense.
pub(super) fn figure(most: f64) -> impl Strategy<Value = Option<f64>> {
    prop_oneof![8 => (0.0..most).prop_map(Some), 1 => Just(None), 1 => Just(Some(f64::NAN))]
}

/// A clock that the test sets as it likes.
pub(super) struct Time(pub(super) u64);

impl Time {
    pub(super) fn step(&mut self, by: i64) -> u64 {
        self.0 = self.0.saturating_add_signed(by);
        self.0
    }
}

pub(super) fn machines() -> impl Strategy<Value = Topology> {
    (1u32..=2, 1u32..=10, 1u32..=2).prop_map(|(nodes, cores, threads)| topology(nodes, cores, threads))
}

/// Every core is in it as a whole or not at all.
fn whole_cores(topology: &Topology, cpus: &CpuSet) -> bool {
    topology.cpus.iter().all(|cpu| {
        let inside = cpu.siblings.iter().filter(|sibling| cpus.contains(*sibling)).count();
        inside == 0 || inside == cpu.siblings.len()
    })
}

proptest! {
    #![proptest_config(settings())]

    // promise 22
    #[test]
    fn the_regulator_shrinks_at_once_grows_at_most_at_its_rate_and_keeps_its_range(
        machine in 1u32..128,
        start in 0.0..200.0f64,
        calls in proptest::collection::vec((steps(), figure(150.0), 0.0..4.0f64, 0.0..128.0f64), 1..80),
    ) {
        let params = Params::cpus(f64::from(machine), 1.0);
        let (mut regulator, mut time) = (Regulator::new(params, start), Time(1_000_000));
        let mut last = None;
        for (by, target, floor, ceiling) in calls {
            let now = time.step(by);
            let before = regulator.value();
            let moved = regulator.step(now, target, Range { floor, ceiling });
            let value = regulator.value();
            prop_assert!(value >= floor, "{value} below the floor {floor}");
            prop_assert!(value <= ceiling.max(floor), "{value} above {ceiling}");
            if let Some(target) = target.filter(|target| target.is_finite()) {
                prop_assert!(value <= target.max(floor), "{value} above the target {target}: {moved:?}");
            }
            let passed = last.map_or(0, |last| now.saturating_sub(last)).min(LONGEST_STEP_MS);
            let most = before.max(floor) + params.growth_per_s * passed as f64 / 1e3;
            prop_assert!(value <= most + 1e-9, "from {before} to {value} in {passed} ms");
            last = Some(now);
        }
    }

    #[test]
    fn the_regulator_settles_on_a_steady_target(
        machine in 1u32..128,
        start in 0.0..200.0f64,
        target in 0.0..150.0f64,
    ) {
        let params = Params::cpus(f64::from(machine), 1.0);
        let (mut regulator, range) = (Regulator::new(params, start), Range { floor: 0.5, ceiling: 128.0 });
        for second in 0..200 {
            regulator.step(second * 1_000, Some(target), range);
        }
        let goal = target.clamp(0.5, 128.0);
        let settled = regulator.value();
        prop_assert!(settled <= goal && goal - settled <= params.dead_zone, "{settled} for {goal}");
        for second in 200..260 {
            prop_assert_eq!(regulator.step(second * 1_000, Some(target), range), Move::Steady);
        }
    }

    // promise 22
    #[test]
    fn the_frame_is_whole_free_cores_within_the_headroom_and_at_least_one(
        topology in machines(),
        reserved in proptest::collection::btree_set(0u32..40, 0..6),
        in_force in proptest::collection::btree_set(0u32..40, 0..40),
        calls in proptest::collection::vec((steps(), figure(40.0), figure(20.0), figure(40.0)), 1..40),
    ) {
        let reserved: CpuSet = reserved.into_iter().collect();
        let free = pool(&topology, &reserved);
        let (mut frame, mut time) = (Frame::new(in_force.into_iter().collect()), Time(1_000_000));
        for (by, busy, offline, cap) in calls {
            let used = Use { busy, offline, ..Use::default() };
            let input = FrameInput { topology: &topology, reserved: &reserved, used, cap, starved: false };
            let decision = frame.step(time.step(by), &input);
            prop_assert!(explained(&decision.why), "{:?}", decision.why);
            let Some(cpus) = decision.cpus else {
                prop_assert!(free.is_empty());
                continue;
            };
            prop_assert!(whole_cores(&topology, &cpus), "{cpus}");
            prop_assert!(cpus.iter().all(|cpu| topology.all().contains(cpu) && !reserved.contains(cpu)), "{cpus}");
            let one = free[0].len();
            prop_assert!(cpus.len() >= one);
            let whole = (free.len() * one) as f64;
            let measured = busy.is_some_and(f64::is_finite) && offline.is_some_and(f64::is_finite);
            if let Some(headroom) = headroom(theta(&topology), whole, used).filter(|_| measured) {
                let cap = cap.filter(|cap| cap.is_finite()).unwrap_or(f64::MAX);
                let most = headroom.min(cap).max(one as f64);
                prop_assert!(cpus.len() as f64 <= most + 1e-6, "{cpus} in headroom of {most}");
            }
        }
    }

    #[test]
    fn the_frame_keeps_its_cores_and_is_spread_over_nodes(
        topology in machines(),
        others in proptest::collection::vec(0.0..20.0f64, 1..60),
    ) {
        let (mut frame, mut before) = (Frame::new(CpuSet::new()), CpuSet::new());
        for (second, others) in (0u64..).zip(others) {
            let used = Use { busy: Some(others), offline: Some(0.0), ..Use::default() };
            let none = CpuSet::new();
            let input = FrameInput { topology: &topology, reserved: &none, used, cap: None, starved: false };
            let cpus = frame.step(second * 1_000, &input).cpus.unwrap();
            prop_assert!(before.is_subset(&cpus) || cpus.is_subset(&before), "{before} became {cpus}");
            let in_nodes = topology.nodes().into_values().map(|node| {
                node.iter().filter(|cpu| cpus.contains(*cpu)).count()
            });
            let (least, most) = in_nodes.fold((usize::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
            let core = topology.cpus[0].siblings.len();
            prop_assert!(most - least <= core, "{least} to {most} CPUs of a node in {cpus}");
            before = cpus;
        }
    }

    // promise 22
    #[test]
    fn more_online_use_never_means_a_larger_frame_or_quota(
        topology in machines(),
        history in proptest::collection::vec(0.0..20.0f64, 0..20),
        less in 0.0..20.0f64,
        more in 0.0..20.0f64,
    ) {
        let (mut frame, mut suppress) = (Frame::new(CpuSet::new()), Suppress::new(None));
        let cpus = topology.threads() as f64;
        let none = CpuSet::new();
        let mut now = 0;
        let used = |others: f64| Use { busy: Some(others), offline: Some(0.0), ..Use::default() };
        let frame_of = |frame: &mut Frame, now, others| {
            let input = FrameInput { topology: &topology, reserved: &none, used: used(others), cap: None, starved: false };
            frame.step(now, &input).cpus.unwrap().len()
        };
        let quota_of = |suppress: &mut Suppress, now, others| {
            let (theta, core) = (theta(&topology), 1.0);
            let input = SuppressInput { theta, cpus, core, yields: true, used: used(others), cap: None };
            suppress.step(now, &input).quota.unwrap()
        };
        for others in history {
            now += 1_000;
            frame_of(&mut frame, now, others);
            let quota = quota_of(&mut suppress, now, others);
            prop_assert!(quota.0 as f64 / 1e6 <= (theta(&topology) * cpus - others).max(floor(cpus)) + 1e-6);
            prop_assert!(quota.0 as f64 / 1e6 >= floor(cpus) - 1e-6);
        }
        now += 1_000;
        let (less, more) = (less.min(more), less.max(more));
        let frames = [less, more].map(|others| frame_of(&mut frame.clone(), now, others));
        prop_assert!(frames[0] >= frames[1], "{frames:?} CPUs at {less} and {more}");
        let quotas = [less, more].map(|others| quota_of(&mut suppress.clone(), now, others));
        prop_assert!(quotas[0] >= quotas[1], "{quotas:?} at {less} and {more}");
    }

    #[test]
    fn a_divided_quota_is_all_given_and_never_more(
        total in 0.1..64.0f64,
        parts in proptest::collection::vec((0.0..100.0f64, figure(20.0)), 1..12),
    ) {
        let parts: Vec<Part> = parts.into_iter().map(|(weight, used)| Part { weight, used }).collect();
        let given = divide(total, &parts);
        let sum: f64 = given.iter().sum();
        prop_assert!((sum - total).abs() < 1e-6 * total.max(1.0), "{sum} of {total}: {given:?}");
        prop_assert!(given.iter().all(|cpus| *cpus >= 0.0), "{given:?}");
    }

    #[test]
    fn the_cap_is_in_its_range_and_never_rises_while_online_work_suffers(
        calls in proptest::collection::vec((steps(), figure(400.0), figure(8.0), figure(8.0)), 1..80),
    ) {
        let (mut latency, mut time) = (Latency::new(Some(8.0)), Time(1_000_000));
        let mut before = 8.0;
        for (by, blamed, online, offline) in calls {
            let input = LatencyInput {
                target_us: 100.0,
                measurable: true,
                probe: Some(ProbeWaits { blamed_ms_per_s: blamed, ..ProbeWaits::default() }),
                online_cpus: online,
                run_delay_ms_per_s: None,
                pressure_pct: None,
                offline_cpus: offline,
                cpus: 8.0,
                core: 1.0,
                floor: 0.4,
            };
            let decision = latency.step(time.step(by), &input);
            let cap = decision.cap.unwrap();
            prop_assert!(explained(&decision.why), "{:?}", decision.why);
            prop_assert!((0.4..=8.0).contains(&cap), "{cap}");
            if decision.severity.is_none_or(|severity| severity > 0.7) {
                prop_assert!(cap <= before, "from {before} to {cap}: {}", decision.why);
            }
            before = cap;
        }
    }

    // promise 24
    #[test]
    fn no_group_loses_more_processes_than_its_limit_needs(
        sizes in proptest::collection::vec(1u64..4_000, 1..20),
        limit in 1u64..20_000,
    ) {
        let mib = |amount: u64| Bytes(amount << 20);
        let mut processes: Vec<Process> = (1u32..)
            .zip(&sizes)
            .map(|(pid, size)| Process { pid, start: 1, held: mib(*size), dying: false })
            .collect();
        let (mut memory, mut killed) = (GroupMemory::default(), Vec::new());
        // Nobody dies while the pending time lasts, then all do.
        for now in (0..PENDING_MS).step_by(50) {
            let held = Some(Bytes(processes.iter().map(|process| process.held.0).sum()));
            let on_exceed = OnExceed::KillLargest;
            let limit = mib(limit);
            let input = GroupInput { held, limit, on_exceed, by_kernel: false, processes: Some(&processes) };
            killed.extend(memory.step(now, &input).kill);
        }
        let pids: BTreeSet<u32> = killed.iter().map(|victim| victim.pid).collect();
        prop_assert_eq!(pids.len(), killed.len(), "nobody dies twice");
        let freed: u64 = killed.iter().map(|victim| victim.held.0).sum();
        let total: u64 = sizes.iter().sum();
        prop_assert!(mib(total).0 - freed < mib(limit).0, "not enough: {killed:?}");
        if let Some(last) = killed.last() {
            let without = mib(total).0 - (freed - last.held.0);
            prop_assert!(without >= mib(limit).0, "one too many: {killed:?}");
        }
        processes.retain(|process| !pids.contains(&process.pid));
        let largest_left = processes.iter().map(|process| process.held).max();
        prop_assert!(killed.iter().all(|victim| largest_left.is_none_or(|left| left <= victim.held)));
    }

    // promise 24
    #[test]
    fn low_memory_of_the_machine_never_kills_online_work(
        calls in proptest::collection::vec((steps(), proptest::option::of(0u64..16_000), 0.0..100.0f64), 1..60),
        kinds in proptest::collection::vec((any::<bool>(), 1u64..4_000, any::<bool>()), 0..12),
    ) {
        let one = |(pid, (online, size, dying)): (u32, &(bool, u64, bool))| Candidate {
            class: if *online { Class::Online } else { Class::Offline },
            process: Process { pid, start: 1, held: Bytes(size << 20), dying: *dying },
        };
        let candidates: Vec<Candidate> = (1u32..).zip(&kinds).map(one).collect();
        let (mut memory, mut time) = (NodeMemory::new(false), Time(1_000_000));
        for (by, available, pressure) in calls {
            let input = NodeInput {
                available: available.map(|mib| Bytes(mib << 20)),
                total: Bytes(16_000 << 20),
                pressure_pct: Some(pressure),
                candidates: Some(&candidates),
            };
            let decision = memory.step(time.step(by), &input);
            prop_assert!(explained(&decision.why), "{:?}", decision.why);
            if let Some(victim) = decision.kill {
                let of = candidates.iter().find(|one| one.process.pid == victim.pid).unwrap();
                prop_assert_eq!(of.class, Class::Offline);
                prop_assert!(decision.freeze, "freezing comes first");
                prop_assert!(available.is_some(), "nobody is killed unseen");
            }
        }
    }
}
