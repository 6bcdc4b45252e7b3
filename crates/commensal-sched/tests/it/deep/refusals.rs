//! Orders that are refused, with the machine unchanged.

use super::bench::{Group, Loaded, can_load, offline, shown};
use serde_json::json;

#[test]
fn orders_that_cannot_be_carried_out_change_nothing() {
    if !can_load("deep::refusals::orders_that_cannot_be_carried_out_change_nothing") {
        return;
    }
    let batch = Group::offline("batch");
    let _work = batch.spin("0");
    let loaded = Loaded::new(&[offline(&batch)]);
    let wrong = [
        json!({ "cgroup": batch.name(), "class": "sideways" }),
        json!({ "cgroup": "batch", "class": "offline" }),
        json!({ "cgroup": batch.name(), "class": "offline", "weight": 0 }),
    ];
    for order in wrong {
        let done = loaded.order(std::slice::from_ref(&order));
        assert_eq!(done.status.code(), Some(2), "{order}: {}", shown(&done));
    }
    assert_eq!(loaded.status()["generation"], 1);
    assert_eq!(loaded.status()["threads"], batch.threads().len());
    // A group that is not there yet is no error: it is followed when it comes.
    assert!(
        loaded.order(&[json!({ "cgroup": "/sys/fs/cgroup/nobody", "class": "offline" })]).status.success()
    );
    assert_eq!(loaded.status()["groups"][0]["found"], false);
}
