//! Defects of peers that were about control (research: colocation-peers 2.1), as tests that this code does not have them.

use super::topology;
use commensal_core::control::frame::{Frame, FrameInput, Use};
use commensal_core::control::memory::{GroupInput, GroupMemory, Process};
use commensal_core::control::regulator::{GROWTH_CORES_PER_S, Params, Range, Regulator};
use commensal_core::control::suppress::{Suppress, SuppressInput, floor};
use commensal_core::cpuset::CpuSet;
use commensal_core::group::OnExceed;
use commensal_core::units::{Bytes, MicroCpus};

const GIB: u64 = 1 << 30;

/// Defect 1, koordlet: a victim's bytes were multiplied by 1000 as CPUs are, so that eviction stopped after one.
#[test]
fn a_victim_counts_for_what_it_holds() {
    let processes: Vec<Process> =
        (1..=8).map(|pid| Process { pid, start: 1, held: Bytes(GIB), dying: false }).collect();
    let mut memory = GroupMemory::default();
    let input = GroupInput {
        held: Some(Bytes(8 * GIB)),
        limit: Bytes(4 * GIB),
        on_exceed: OnExceed::KillLargest,
        by_kernel: false,
        processes: Some(&processes),
    };
    let killed = (0..20).filter(|_| memory.step(0, &input).kill.is_some()).count();
    assert_eq!(killed, 5, "8 GiB - 5 GiB is the first below 4 GiB");
}

/// Defect 2, crane: the floor was compared as a percentage and assigned as a factor: throttling two cores to at
/// least 10 % of them gave twenty.
#[test]
fn throttling_never_gives_more_than_there_was() {
    for cpus in [1.0, 2.0, 4.0, 6.0, 96.0] {
        let in_force = cpus * 0.5;
        let mut suppress = Suppress::new(Some(MicroCpus((in_force * 1e6) as u64)));
        for (second, others) in (0..).zip([0.4 * cpus, 0.6 * cpus, 0.9 * cpus, cpus, 3.0 * cpus]) {
            let used = Use { busy: Some(others), offline: Some(0.0), ..Use::default() };
            let input = SuppressInput { theta: 0.8, cpus, core: 1.0, yields: true, used, cap: None };
            let quota = suppress.step(second * 1_000, &input).quota.unwrap().0 as f64 / 1e6;
            assert!(quota <= in_force.max(floor(cpus)) + 1e-6, "{quota} of {cpus} CPUs at {others}");
            assert!(floor(cpus) <= 0.1 * cpus.max(1.0) + 1e-9, "a floor is a small part: {}", floor(cpus));
        }
    }
}

/// Defect 5, rubik: "nothing was needed" was taken for "evicted", and the cool-down looked away for 20 s.
#[test]
fn looking_without_acting_costs_no_time() {
    let processes = [Process { pid: 1, start: 1, held: Bytes(2 * GIB), dying: false }];
    let mut memory = GroupMemory::default();
    let input = |held| GroupInput {
        held: Some(Bytes(held)),
        limit: Bytes(GIB),
        on_exceed: OnExceed::KillLargest,
        by_kernel: false,
        processes: Some(&processes),
    };
    for now in (0..10_000).step_by(50) {
        assert_eq!(memory.step(now, &input(GIB / 2)).kill, None);
    }
    assert!(memory.step(10_000, &input(2 * GIB)).kill.is_some(), "at the very next look");

    let topology = topology(1, 8, 1);
    let mut frame = Frame::new("0-3".parse().unwrap());
    let mut size = |now, others: f64| {
        let none = CpuSet::new();
        let used = Use { busy: Some(others), offline: Some(0.0), ..Use::default() };
        let input = FrameInput { topology: &topology, reserved: &none, used, cap: None, starved: false };
        frame.step(now, &input).cpus.unwrap().len()
    };
    for now in (0..10_000).step_by(50) {
        assert_eq!(size(now, 2.4), 4);
    }
    assert_eq!(size(10_000, 5.4), 1);
}

/// Defect 6, volcano-agent: growth was 10 % of the last quota in whole numbers. From a few thousandths of a CPU it never came
/// back, from ten it took a quarter of an hour, and from exactly nothing it jumped to everything.
#[test]
fn growth_is_the_same_from_any_low_point_and_never_a_jump() {
    let params = Params::cpus(20.0, 1.0);
    let range = Range { floor: 0.0, ceiling: 20.0 };
    let rate = params.growth_per_s;
    assert!(rate >= GROWTH_CORES_PER_S);
    for start in [0.0, 0.001, 0.005, 0.009, 0.010, 1.0] {
        let mut regulator = Regulator::new(params, start);
        let mut seconds = 0;
        regulator.step(0, Some(20.0), range);
        while regulator.value() < 19.7 {
            seconds += 1;
            let before = regulator.value();
            regulator.step(seconds * 1_000, Some(20.0), range);
            assert!(regulator.value() - before <= rate + 1e-9, "a jump from {before}");
            assert!(seconds < 100, "stuck at {} from {start}", regulator.value());
        }
        assert!(seconds <= (20.0 / rate) as u64 + 1, "{seconds} s from {start}");
    }
}
