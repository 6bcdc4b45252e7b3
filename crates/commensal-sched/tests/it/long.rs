//! What takes minutes: for the long tier.

use crate::support::{World, lacks_guest, policy, state, wait_for};
use serde_json::json;

const LOADS: usize = 100;

#[test]
fn a_hundred_loads_lose_nothing() {
    if lacks_guest("long::a_hundred_loads_lose_nothing") {
        return;
    }
    let mut world = World::new();
    let offline = world.group("offline");
    let pids = world.spin(offline, 6, None);
    world.start(offline, "while :; do (:) & wait; done", None);
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    for _ in 0..LOADS {
        world.load(&orders, &[]);
        world.unload();
    }
    wait_for("all have their own policy", || pids.iter().all(|pid| policy(*pid) == (0, 0)));
    assert_eq!(state(), "disabled");
}
