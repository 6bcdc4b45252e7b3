//! Loading, unloading, and what becomes of threads when the loader or the scheduler dies.

use crate::support::{SCHED_EXT, World, lacks_guest, policy, state, wait_for};
use serde_json::json;
use std::process::Command;

const NORMAL: u32 = 0;
const NICE: i32 = 5;
/// Loads one after the other.
const LOADS: usize = 3;

fn renice(pid: u32) {
    let status = Command::new("renice").args(["-n", &NICE.to_string(), "-p", &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn threads_are_switched_and_get_their_own_back() {
    if lacks_guest("quick::life::threads_are_switched_and_get_their_own_back") {
        return;
    }
    let mut world = World::new();
    let (offline, other) = (world.group("offline"), world.group("other"));
    let pids = world.spin(offline, 2, None);
    let stranger = world.spin(other, 1, None)[0];
    renice(pids[0]);
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    for _ in 0..LOADS {
        world.load(&orders, &[]);
        assert_eq!(state(), "enabled");
        assert_eq!(pids.iter().map(|pid| policy(*pid).0).collect::<Vec<_>>(), [SCHED_EXT, SCHED_EXT]);
        assert_eq!(policy(stranger).0, NORMAL);
        // Who moves in comes under it, and who moves out goes.
        std::fs::write(world.path(offline).join("cgroup.procs"), stranger.to_string()).unwrap();
        wait_for("a thread that moved in is switched", || policy(stranger).0 == SCHED_EXT);
        std::fs::write(world.path(other).join("cgroup.procs"), stranger.to_string()).unwrap();
        wait_for("a thread that moved out is switched back", || policy(stranger).0 == NORMAL);
        world.unload();
        assert_eq!([policy(pids[0]), policy(pids[1])], [(NORMAL, NICE), (NORMAL, 0)]);
    }
}

#[test]
fn what_a_killed_loader_leaves_can_be_undone() {
    if lacks_guest("quick::life::what_a_killed_loader_leaves_can_be_undone") {
        return;
    }
    let mut world = World::new();
    let offline = world.group("offline");
    let pid = world.spin(offline, 1, None)[0];
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    world.load(&orders, &[]);
    world.kill_loader();
    assert!(
        world.shares(&[offline], std::time::Duration::from_secs(1))[0] > 0.5,
        "its threads are the fair class's"
    );
    world.unload();
    assert_eq!(policy(pid), (NORMAL, 0));
}

#[test]
fn another_process_takes_over() {
    if lacks_guest("quick::life::another_process_takes_over") {
        return;
    }
    let mut world = World::new();
    let offline = world.group("offline");
    let pid = world.spin(offline, 1, None)[0];
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    world.load(&orders, &[]);
    let before = world.status()["pid"].clone();
    world.load(&orders, &["--replace"]);
    let status = world.status();
    println!("without a scheduler for {} ms", status["upgrade_gap_ms"]);
    assert_ne!(status["pid"], before);
    assert_eq!((policy(pid).0, state().as_str()), (SCHED_EXT, "enabled"));
    world.unload();
    assert_eq!(policy(pid), (NORMAL, 0));
}
