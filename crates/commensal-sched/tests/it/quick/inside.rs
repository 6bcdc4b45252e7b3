//! Among offline groups: weights, hard limits, affinity, groups that come and go.

use crate::support::{World, lacks_guest, pin, wait_for};
use serde_json::json;
use std::time::Duration;

const WHILE: Duration = Duration::from_secs(4);

#[test]
fn weights_and_hard_limits_hold() {
    if lacks_guest("quick::inside::weights_and_hard_limits_hold") {
        return;
    }
    let mut world = World::new();
    let (light, heavy) = (world.group("light"), world.group("heavy"));
    world.spin(light, 4, None);
    world.spin(heavy, 4, None);
    let offline = |weight: u64| json!({ "class": "offline", "weight": weight });
    let orders = world.orders(&[(light, offline(100)), (heavy, offline(300))]);
    world.load(&orders, &[]);
    let shares = world.shares(&[light, heavy], WHILE);
    let ratio = shares[1] / shares[0];
    println!("weights 100 and 300: {:.3} and {:.3} CPUs, a ratio of {ratio:.2}", shares[0], shares[1]);
    assert!((2.0..4.5).contains(&ratio), "{shares:?}");
    // Half a CPU for the heavy one.
    let limited =
        json!({ "class": "offline", "weight": 300, "limit": { "quota_us": 50_000, "period_us": 100_000 } });
    world.order(&[(light, offline(100)), (heavy, limited)]);
    let shares = world.shares(&[light, heavy], WHILE);
    println!("limit of 0.5: {:.3} CPUs, the other group {:.3}", shares[1], shares[0]);
    assert!((0.35..0.65).contains(&shares[1]) && shares[0] > 2.0, "{shares:?}");
    world.unload();
}

#[test]
fn affinity_and_groups_may_change_at_any_time() {
    if lacks_guest("quick::inside::affinity_and_groups_may_change_at_any_time") {
        return;
    }
    let mut world = World::new();
    let offline = world.group("offline");
    let pids = world.spin(offline, 6, None);
    // Children come and go all the time.
    world.start(offline, "while :; do (:) & wait; done", None);
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    world.load(&orders, &[]);
    for round in 0..40 {
        for (index, pid) in pids.iter().enumerate() {
            let first = (round + index) % 4;
            pin(
                *pid,
                if round % 3 == 0 { &[0, 1, 2, 3] } else { std::slice::from_ref(&[0, 1, 2, 3][first]) },
            );
        }
        let inner = world.path(offline).join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("cgroup.procs"), pids[round % 6].to_string()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        std::fs::write(world.path(offline).join("cgroup.procs"), pids[round % 6].to_string()).unwrap();
        wait_for("the inner group is empty", || std::fs::remove_dir(&inner).is_ok());
    }
    pids.iter().for_each(|pid| pin(*pid, &[2]));
    let on_one = world.shares(&[offline], Duration::from_secs(2))[0];
    let status = world.status();
    assert!(status["mode"] == "running" && status["ejected"].is_null(), "{status}");
    // The six share a CPU; the shell with children has others.
    println!("six threads on one CPU and a shell: {on_one:.3} CPUs");
    assert!(on_one > 0.9, "{on_one:.3}");
    world.unload();
}
