//! Online work that leaves nothing: the guard is before the kernel's watchdog, and the watchdog is survived.

use crate::support::{World, lacks_guest, wait_for};
use serde_json::json;

/// Online threads on every CPU, and offline ones that get nothing.
fn saturated() -> (World, usize, usize) {
    let mut world = World::new();
    let (online, offline) = (world.group("online"), world.group("offline"));
    world.spin(offline, 2, None);
    (world, online, offline)
}

fn fill(world: &mut World, online: usize) {
    for cpu in 0..std::thread::available_parallelism().unwrap().get() {
        world.spin(online, 1, Some(cpu));
    }
}

fn frozen(world: &World, group: usize) -> bool {
    std::fs::read_to_string(world.path(group).join("cgroup.events")).unwrap().contains("frozen 1")
}

#[test]
fn saturation_freezes_offline_groups_until_there_is_room() {
    if lacks_guest("quick::guard::saturation_freezes_offline_groups_until_there_is_room") {
        return;
    }
    let (mut world, online, offline) = saturated();
    let orders =
        world.orders(&[(online, json!({ "class": "online" })), (offline, json!({ "class": "offline" }))]);
    world.load(&orders, &["--guard-ms", "2000"]);
    fill(&mut world, online);
    wait_for("the offline group is frozen", || frozen(&world, offline));
    let status = world.status();
    assert!(status["ejected"].is_null() && status["reloads"] == 0, "{status}");
    world.end(online);
    wait_for("the offline group goes on", || !frozen(&world, offline));
    assert_eq!(world.status()["mode"], "running");
    world.unload();
}

#[test]
fn an_ejected_scheduler_is_told_and_loaded_again() {
    if lacks_guest("quick::guard::an_ejected_scheduler_is_told_and_loaded_again") {
        return;
    }
    let (mut world, online, offline) = saturated();
    let orders =
        world.orders(&[(online, json!({ "class": "online" })), (offline, json!({ "class": "offline" }))]);
    world.load(&orders, &["--watchdog-ms", "2000", "--no-guard"]);
    fill(&mut world, online);
    wait_for("the kernel takes the scheduler off", || !world.status()["ejected"].is_null());
    println!("{}", world.status()["ejected"]);
    world.end(online);
    wait_for("it is loaded again", || {
        let status = world.status();
        status["mode"] == "running" && status["reloads"].as_u64().unwrap() >= 1
    });
    world.unload();
}
