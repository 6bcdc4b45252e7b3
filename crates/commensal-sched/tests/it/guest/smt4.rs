//! Cores of four threads: all three siblings leave.

use crate::guest::world::{Group, Loaded, Spinner, can_load_in, cpus, measure, offline, online};
use std::time::Duration;

const BLOCK: Duration = Duration::from_secs(4);
/// Offline time on the three siblings, of the expelling thread's.
const MOST_OVERLAP: f64 = 0.05;
/// The same without expelling, of all three.
const LEAST_BASELINE: f64 = 1.5;

// promise 53
#[test]
fn all_three_siblings_leave() {
    if !can_load_in("sched-smt4", "guest::smt4::all_three_siblings_leave") {
        return;
    }
    let list = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").unwrap();
    assert_eq!(list.trim(), "0-3", "the guest's CPUs are not what they should be");
    let (web, batch, beside) = (Group::new("web"), Group::offline("batch"), Group::offline("beside"));
    let _online = web.spin("0");
    let _beside: Vec<Spinner> = (0..3).map(|_| beside.spin("1-3")).collect();
    let _others: Vec<Spinner> = (4..cpus()).map(|_| batch.spin("4-7")).collect();
    let groups = |expel| [online(&web, expel), offline(&batch), offline(&beside)];
    let loaded = Loaded::new(&groups(false));
    let baseline = measure(&[&web, &beside, &batch], BLOCK);
    assert!(loaded.order(&groups(true))["ok"] == true);
    let expelled = measure(&[&web, &beside, &batch], BLOCK);
    println!(
        "smt4: without expel {baseline:.2?}, with expel {expelled:.2?} s (online, its siblings, the other core)"
    );
    assert!(baseline[1] / baseline[0] >= LEAST_BASELINE, "{baseline:?}");
    assert!(expelled[1] / expelled[0] <= MOST_OVERLAP, "{expelled:?}");
    assert!(expelled[0] / baseline[0] >= 0.9, "{expelled:?} of {baseline:?}");
    // Without those three the others have no less.
    assert!(expelled[2] / baseline[2] >= 0.8, "{expelled:?} of {baseline:?}");
    // Who was kept out comes back.
    assert!(loaded.order(&groups(false))["ok"] == true);
    let back = measure(&[&web, &beside], BLOCK);
    assert!(back[1] / back[0] >= LEAST_BASELINE, "{back:?}");
}
