//! More cores: offline work finds the ones that nobody expels from.

use crate::guest::world::{Group, Loaded, all, can_load_in, cpus, grown, measure, offline, online, settle};
use std::time::Duration;

const BLOCK: Duration = Duration::from_secs(4);
const MOST_OVERLAP: f64 = 0.05;

#[test]
fn offline_work_moves_to_the_cores_that_are_left() {
    if !can_load_in("sched-wide", "guest::wide::offline_work_moves_to_the_cores_that_are_left") {
        return;
    }
    assert_eq!(all(), "0-7", "the guest's CPUs are not what they should be");
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _online = ["0", "2"].map(|cpu| web.spin(cpu));
    let _offline = batch.spinners(cpus());
    let mut loaded = Loaded::new(&[online(&web, true), offline(&batch)]);
    settle();
    let first = loaded.status();
    let got = measure(&[&web, &batch], BLOCK);
    let last = loaded.status();
    let [online, offline] = [0, 1].map(|group| got[group] / BLOCK.as_secs_f64());
    let overlap = grown(&first, &last, "overlap_ns") / grown(&first, &last, "expelling_ns");
    println!("wide: online {online:.3} CPUs, offline {offline:.3}, overlap {overlap:.4}");
    assert!(overlap <= MOST_OVERLAP, "{overlap}");
    assert!(online > 1.8, "{got:?}");
    // Two cores of four are left to it.
    assert!(offline > 2.5, "{got:?}");
    loaded.unload();
}
