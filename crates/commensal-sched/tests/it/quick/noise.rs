//! Offline work leaves the cores of a group that expels, and takes no CPU from anybody.

use crate::support::{World, busy, counter, lacks_guest, sibling, wait_for};
use serde_json::json;
use std::time::Duration;

/// The CPU of the online thread.
const CPU: usize = 0;
const WHILE: Duration = Duration::from_secs(4);
/// Of the online thread's time (the goal is 2 %; the emulated CPU adds the rest).
const MOST_OVERLAP: f64 = 0.05;
/// Of the sibling's time, by the kernel's own figures: others than offline work may use it.
const MOST_TAKEN: f64 = 0.25;
/// Of the CPU (the goal is 98 %).
const LEAST_ONLINE: f64 = 0.95;
/// Offline threads that have to leave until enough is known.
const EVICTIONS: f64 = 20.0;
/// Of the evictions: an emulated CPU that stands still takes the interrupt after its next tick.
const MOST_BY_TICKS: f64 = 0.5;
/// Of what online threads have alone.
const LEAST_OF_ALONE: f64 = 0.90;

#[test]
fn offline_work_leaves_the_core_of_an_expelling_thread() {
    if lacks_guest("quick::noise::offline_work_leaves_the_core_of_an_expelling_thread") {
        return;
    }
    let mut world = World::new();
    let (online, offline) = (world.group("online"), world.group("offline"));
    world.spin(online, 1, Some(CPU));
    world.spin(offline, 4, None);
    let beside = |expel: bool| {
        [(online, json!({ "class": "online", "expel": expel })), (offline, json!({ "class": "offline" }))]
    };
    let orders = world.orders(&beside(false));
    world.load(&orders, &[]);
    let measure = |world: &World| {
        let first = world.status();
        let before = busy(sibling(CPU));
        let shares = world.shares(&[online, offline], WHILE);
        let after = busy(sibling(CPU));
        let last = world.status();
        let taken = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        let difference = |name: &str| counter(&last, name) - counter(&first, name);
        let figures = ["overlap_ns", "expelling_ns", "evictions", "by_ticks"].map(difference);
        println!("online {:.3}, offline {:.3}, sibling busy {taken:.3}, {figures:?}", shares[0], shares[1]);
        (shares, taken, figures)
    };
    let (_, taken, _) = measure(&world);
    assert!(taken > 0.5, "without expelling the sibling is {taken:.3} busy");
    world.order(&beside(true));
    std::thread::sleep(Duration::from_millis(500));
    let (shares, taken, [overlap, expelling, _, _]) = measure(&world);
    assert!(expelling > 0.0 && overlap / expelling <= MOST_OVERLAP, "{overlap} of {expelling}");
    assert!(taken <= MOST_TAKEN, "the kernel says that the sibling is {taken:.3} busy");
    assert!(shares[0] >= LEAST_ONLINE, "online has {:.3} of its CPU", shares[0]);
    assert!(shares[1] > 1.0, "offline work has {:.3} of the other core's two CPUs", shares[1]);
    world.unload();
}

/// An online thread that comes and goes: each time somebody has to leave.
#[test]
fn offline_threads_leave_at_once_and_not_with_the_tick() {
    if lacks_guest("quick::noise::offline_threads_leave_at_once_and_not_with_the_tick") {
        return;
    }
    let mut world = World::new();
    let (online, offline) = (world.group("online"), world.group("offline"));
    world.start(
        online,
        "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05; done",
        Some(CPU),
    );
    world.spin(offline, 4, None);
    let groups =
        [(online, json!({ "class": "online", "expel": true })), (offline, json!({ "class": "offline" }))];
    let orders = world.orders(&groups);
    world.load(&orders, &[]);
    wait_for("offline threads have left often", || counter(&world.status(), "evictions") >= EVICTIONS);
    let status = world.status();
    let (all, by_ticks) = (counter(&status, "evictions"), counter(&status, "by_ticks"));
    let overlap = counter(&status, "overlap_ns") / counter(&status, "expelling_ns");
    println!("{by_ticks} of {all} evictions by the tick, overlap {overlap:.4}");
    assert!(by_ticks <= MOST_BY_TICKS * all, "{by_ticks} of {all}");
    assert!(overlap <= MOST_OVERLAP, "{overlap:.4}");
    world.unload();
}

#[test]
fn online_threads_do_not_queue_behind_each_other() {
    if lacks_guest("quick::noise::online_threads_do_not_queue_behind_each_other") {
        return;
    }
    let mut world = World::new();
    let (online, offline) = (world.group("online"), world.group("offline"));
    world.spin(online, 4, None);
    std::thread::sleep(Duration::from_secs(1));
    let alone = world.shares(&[online], WHILE)[0];
    world.end(online);
    let orders =
        world.orders(&[(online, json!({ "class": "online" })), (offline, json!({ "class": "offline" }))]);
    // Offline work would be frozen before the end of it.
    world.load(&orders, &["--guard-ms", "15000"]);
    world.spin(offline, 4, None);
    std::thread::sleep(Duration::from_secs(1));
    world.spin(online, 4, None);
    std::thread::sleep(Duration::from_secs(1));
    let beside = world.shares(&[online, offline], WHILE);
    println!("online {:.3} beside offline work {:.3}, {alone:.3} alone", beside[0], beside[1]);
    assert!(beside[0] >= LEAST_OF_ALONE * alone, "{:.3} of {alone:.3}", beside[0]);
    world.unload();
}
