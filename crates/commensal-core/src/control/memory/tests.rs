//! Tests of [`super`].

use super::*;
use crate::control::MISSING_HOLD_MS;

const GIB: u64 = 1 << 30;

fn gib(amount: f64) -> Bytes {
    Bytes((amount * GIB as f64) as u64)
}

fn process(pid: u32, held: f64) -> Process {
    Process { pid, start: u64::from(pid) * 10, held: gib(held), dying: false }
}

fn group<'a>(held: f64, on_exceed: OnExceed, processes: Option<&'a [Process]>) -> GroupInput<'a> {
    GroupInput { held: Some(gib(held)), limit: gib(10.0), on_exceed, by_kernel: false, processes }
}

/// The decision as letters: q for queue, f for frozen, k for kill, l for list.
fn letters(decision: &GroupDecision) -> String {
    let mut letters = String::new();
    letters.extend(decision.queue.then_some('q'));
    letters.extend(decision.frozen.then_some('f'));
    letters.extend(decision.kill.map(|_| 'k'));
    letters.extend(decision.list.then_some('l'));
    letters
}

#[test]
fn queue_freeze_and_kill_at_their_levels_with_hysteresis() {
    let check = |on_exceed, expect: &[(f64, &str)]| {
        let mut memory = GroupMemory::default();
        let processes = [process(1, 5.0), process(2, 4.0)];
        for (second, (held, letters_expected)) in (0..).zip(expect) {
            let decision = memory.step(second * 1_000, &group(*held, on_exceed, Some(&processes)));
            assert_eq!(
                letters(&decision),
                *letters_expected,
                "{on_exceed:?} at {held} GiB: {}",
                decision.why
            );
        }
    };
    let up_and_down = [8.9, 9.0, 9.5, 9.0, 8.9, 8.6, 8.5, 8.4];
    let with = |letters: [&'static str; 8]| up_and_down.into_iter().zip(letters).collect::<Vec<_>>();
    check(OnExceed::Freeze, &with(["", "q", "qf", "qf", "q", "q", "q", ""]));
    check(OnExceed::Queue, &with(["", "q", "q", "q", "q", "q", "q", ""]));
    check(OnExceed::KillLargest, &with(["", "q", "q", "q", "q", "q", "q", ""]));
    check(OnExceed::KillLargest, &[(9.99, "q"), (10.0, "qk"), (10.0, "q")]);
    check(OnExceed::KillGroup, &[(10.0, "q")]);
}

// promise 46
#[test]
fn exactly_one_victim_when_one_is_enough() {
    let mut memory = GroupMemory::default();
    let mut processes = vec![process(1, 2.0), process(2, 6.0), process(3, 2.5)];
    let decision = memory.step(0, &group(10.5, OnExceed::KillLargest, None));
    assert_eq!(letters(&decision), "ql", "the list is asked for only now");
    let victim = memory.step(0, &group(10.5, OnExceed::KillLargest, Some(&processes))).kill.unwrap();
    assert_eq!((victim.pid, victim.held), (2, gib(6.0)));
    // The victim dies slowly, and the other processes even grow a little.
    for (step, left) in (1u32..4).zip([6.0, 4.0, 1.0]) {
        processes[1].held = gib(left);
        processes[0].held = gib(2.0 + 0.1 * f64::from(step));
        let held = left + 4.5 + 0.1 * f64::from(step);
        let decision =
            memory.step(u64::from(step) * 1_000, &group(held, OnExceed::KillLargest, Some(&processes)));
        assert_eq!(decision.kill, None, "{}", decision.why);
    }
}

#[test]
fn as_many_as_are_needed_by_real_bytes_and_a_stuck_one_only_once() {
    let mut memory = GroupMemory::default();
    let processes: Vec<Process> = (1..=5).map(|pid| process(pid, 1.0)).collect();
    // 12.5 held, 10 allowed: two kills are not enough, three are.
    let mut killed = Vec::new();
    for _ in 0..10 {
        killed.extend(memory.step(0, &group(12.5, OnExceed::KillLargest, Some(&processes))).kill);
    }
    assert_eq!(
        killed.iter().map(|victim| victim.pid).collect::<Vec<_>>(),
        [5, 4, 3],
        "the youngest of equals"
    );
    // None of the victims dies: after a while their memory no longer counts as free, and other processes are killed,
    // none twice.
    for second in 1..20 {
        killed
            .extend(memory.step(second * 1_000, &group(12.5, OnExceed::KillLargest, Some(&processes))).kill);
    }
    assert_eq!(killed.iter().map(|victim| victim.pid).collect::<Vec<_>>(), [5, 4, 3, 2, 1]);
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut memory = GroupMemory::default();
    let first = [process(7, 11.0)];
    assert!(memory.step(0, &group(11.0, OnExceed::KillLargest, Some(&first))).kill.is_some());
    let second = [Process { start: 99_999, ..first[0] }];
    let victim = memory.step(1_000, &group(11.0, OnExceed::KillLargest, Some(&second))).kill.unwrap();
    assert_eq!(victim.start, 99_999);
}

#[test]
fn one_that_dies_already_counts_and_the_kernels_limit_is_the_kernels() {
    let mut memory = GroupMemory::default();
    let processes = [Process { dying: true, ..process(1, 3.0) }, process(2, 8.0)];
    let decision = memory.step(0, &group(11.0, OnExceed::KillLargest, Some(&processes)));
    assert_eq!(decision.kill, None, "{}", decision.why);
    let kernel = GroupInput { by_kernel: true, ..group(14.0, OnExceed::KillLargest, Some(&processes)) };
    let decision = memory.step(1_000, &kernel);
    assert_eq!(decision.kill, None);
    assert!(decision.why.rule.contains("kernel"), "{}", decision.why);
}

#[test]
fn unseen_memory_closes_the_queue_and_kills_nobody() {
    let mut memory = GroupMemory::default();
    let processes = [process(1, 50.0)];
    memory.step(0, &group(1.0, OnExceed::KillLargest, Some(&processes)));
    let unseen = GroupInput { held: None, ..group(0.0, OnExceed::KillLargest, Some(&processes)) };
    let seen: Vec<String> = (1..7).map(|second| letters(&memory.step(second * 1_000, &unseen))).collect();
    assert_eq!(seen, ["", "", "", "", "q", "q"]);
}

#[test]
fn a_frozen_group_is_reported_when_it_stays_so() {
    let mut memory = GroupMemory::default();
    let stuck: Vec<bool> = (0..=61)
        .map(|second| memory.step(second * 1_000, &group(9.7, OnExceed::Freeze, None)).stuck)
        .collect();
    assert_eq!(stuck.iter().position(|stuck| *stuck), Some(60));
}

fn node(available: f64, candidates: Option<&[Candidate]>) -> NodeInput<'_> {
    NodeInput { available: Some(gib(available)), total: gib(16.0), pressure_pct: None, candidates }
}

fn candidates() -> Vec<Candidate> {
    let one = |class, pid, held| Candidate { class, process: process(pid, held) };
    vec![
        one(Class::Online, 1, 9.0),
        one(Class::Offline, 2, 1.0),
        one(Class::Offline, 3, 2.0),
        one(Class::Online, 4, 0.5),
    ]
}

#[test]
fn low_memory_freezes_offline_work_first_and_then_kills_its_largest() {
    let (mut memory, all) = (NodeMemory::new(false), candidates());
    assert!(!memory.step(0, &node(2.0, None)).freeze);
    let decision = memory.step(1_000, &node(0.5, Some(&all)));
    assert!(decision.freeze && decision.kill.is_none(), "{}", decision.why);
    let victim = memory.step(2_000, &node(0.5, Some(&all))).kill.unwrap();
    assert_eq!(victim.pid, 3);
    assert_eq!(memory.step(3_000, &node(0.5, Some(&all))).kill, None, "its 2 GiB are pending");
    // The victim dies, and that frees enough: after the hold, offline work continues.
    let rest: Vec<Candidate> = all.iter().filter(|one| one.process.pid != 3).copied().collect();
    let freezes: Vec<bool> =
        (4..14).map(|second| memory.step(second * 1_000, &node(2.5, Some(&rest))).freeze).collect();
    assert_eq!(freezes.iter().position(|frozen| !frozen), Some(7));
}

#[test]
fn when_only_online_work_is_left_nobody_is_killed() {
    let mut memory = NodeMemory::new(false);
    let online: Vec<Candidate> = candidates().into_iter().filter(|one| one.class == Class::Online).collect();
    for second in 0..200 {
        let decision = memory.step(second * 1_000, &node(0.01, Some(&online)));
        assert_eq!(decision.kill, None);
    }
}

#[test]
fn a_relapse_freezes_for_longer_and_long_freezing_costs_one_process() {
    let (mut memory, mut now) = (NodeMemory::new(false), 0);
    let mut frozen_for = |memory: &mut NodeMemory| {
        let mut seconds = 0;
        memory.step(now, &node(1.0, None));
        loop {
            now += 1_000;
            seconds += 1;
            if !memory.step(now, &node(8.0, None)).freeze {
                now += 1_000;
                return seconds;
            }
        }
    };
    assert_eq!([(); 4].map(|()| frozen_for(&mut memory)), [10, 20, 30, 30]);
    let (mut memory, all) = (NodeMemory::new(false), candidates());
    let killed: Vec<u64> = (0..=70)
        .filter(|second| memory.step(second * 1_000, &node(1.2, Some(&all))).kill.is_some())
        .collect();
    assert_eq!(killed, [60]);
}

#[test]
fn pressure_counts_only_when_it_lasts_and_unseen_memory_freezes_but_never_kills() {
    let mut memory = NodeMemory::new(false);
    let pressed = NodeInput { pressure_pct: Some(80.0), ..node(8.0, None) };
    let frozen: Vec<bool> = (0..=10).map(|second| memory.step(second * 1_000, &pressed).freeze).collect();
    assert_eq!(frozen.iter().position(|frozen| *frozen), Some(10));
    let (mut memory, all) = (NodeMemory::new(false), candidates());
    memory.step(0, &node(8.0, Some(&all)));
    for second in 1..100 {
        let decision = memory.step(second * 1_000, &NodeInput { available: None, ..node(0.0, Some(&all)) });
        assert_eq!((decision.freeze, decision.kill), (second * 1_000 >= MISSING_HOLD_MS, None));
    }
}
