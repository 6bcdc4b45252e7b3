//! More cores: offline work finds the ones that nobody expels from.

use crate::support::{World, counter, lacks_guest};
use serde_json::json;
use std::time::Duration;

const MOST_OVERLAP: f64 = 0.05;

#[test]
fn offline_work_moves_to_the_cores_that_are_left() {
    if lacks_guest("wide::offline_work_moves_to_the_cores_that_are_left") {
        return;
    }
    let mut world = World::new();
    let (online, offline) = (world.group("online"), world.group("offline"));
    world.spin(online, 1, Some(0));
    world.spin(online, 1, Some(2));
    world.spin(offline, 8, None);
    let groups =
        [(online, json!({ "class": "online", "expel": true })), (offline, json!({ "class": "offline" }))];
    let orders = world.orders(&groups);
    world.load(&orders, &[]);
    std::thread::sleep(Duration::from_secs(1));
    let first = world.status();
    let shares = world.shares(&[online, offline], Duration::from_secs(4));
    let last = world.status();
    let difference = |name: &str| counter(&last, name) - counter(&first, name);
    let (overlap, expelling) = (difference("overlap_ns"), difference("expelling_ns"));
    println!("online {:.3}, offline {:.3}, overlap {:.4}", shares[0], shares[1], overlap / expelling);
    assert!(overlap / expelling <= MOST_OVERLAP, "{overlap} of {expelling}");
    assert!(shares[0] > 1.8, "{shares:?}");
    // Two cores of four are left to it.
    assert!(shares[1] > 2.5, "{shares:?}");
    world.unload();
}
