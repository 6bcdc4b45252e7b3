//! CPU: the quota of one group, and the shares of two.

use super::{Window, window};
use crate::limits::{BURN, Running, Scene};
use commensal_testkit::alone;
use std::time::Duration;

const QUOTA_CPUS: f64 = 0.2;
const QUOTA_US: f64 = 20_000.0;
/// Of the quota. The kernel takes CPU time from a quota in slices and at ticks of up to 4 ms and the window cuts a
/// period at each end; nothing else can make it more.
const QUOTA_AT_MOST: f64 = 1.3;
/// Of the quota, in each period in which the group was throttled. What a group is throttled for it has had, save what
/// another CPU kept of its slice; a busy machine does not lower this, it only throttles less often.
const QUOTA_AT_LEAST: f64 = 0.6;
/// Periods that end throttled, of the twenty in the window. On a busy machine an offline group never gets as far: it
/// yields to everything else. Then only the upper bound says something.
const THROTTLED_AT_LEAST: u64 = 4;
/// A burner without a quota has five times as much on an idle CPU. With one competitor there it has half of that.
const CONTROL_AT_LEAST: f64 = 2.0;

// promise 6
#[test]
fn a_quota_holds() {
    let test = "a_quota_holds";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    let cpus = scene.machine().topology.all();
    let (Some(first), Some(last)) = (cpus.iter().next(), cpus.iter().last()) else { return };
    if first == last {
        println!("skipped: {test}: this machine has one CPU, and the control needs another");
        return;
    }
    let groups = scene.program.groups(
        "[group.limited]\nclass = \"offline\"\ncpu.max = \"0.2 cores\"\n[group.free]\nclass = \"online\"\n",
    );
    // On CPUs of their own: an offline group yields to whatever else is on its CPU.
    let limited = scene.start("limited", &groups, &pinned(first));
    let control = scene.start("free", &groups, &pinned(last));
    let Window { before, after, at_least, at_most } =
        window(Duration::from_secs(2), || (scene.used("offline/limited"), control.cpu_ns()));
    drop((limited, control));
    let used_us = (after.0.cpu_us.unwrap() - before.0.cpu_us.unwrap()) as f64;
    let throttled = after.0.nr_throttled.unwrap() - before.0.nr_throttled.unwrap();
    let share = used_us / 1e6 / at_most;
    let control = (after.1 - before.1) as f64 / 1e9 / at_most;
    println!(
        "{test}: {share:.3} of {QUOTA_CPUS} CPUs, throttled {throttled} times in {at_least:.2} to {at_most:.2} s; \
         control {control:.3}"
    );
    assert!(share <= QUOTA_CPUS * QUOTA_AT_MOST, "{share:.3} CPUs");
    if throttled < THROTTLED_AT_LEAST {
        println!(
            "skipped: {test}: this machine is too busy: its quota stopped the group {throttled} times, at {share:.3} CPUs"
        );
        return;
    }
    assert!(
        used_us >= throttled as f64 * QUOTA_US * QUOTA_AT_LEAST,
        "{used_us} us in {throttled} throttled periods"
    );
    assert!(control >= share * CONTROL_AT_LEAST, "limited {share:.3} CPUs, control {control:.3}");
}

/// Ten to one by weight. Other work on the CPU takes from both; ticks, wake-ups and the scheduler's slices shift a few
/// per cent, which count most on the small side.
const WEIGHT_RATIO: std::ops::RangeInclusive<f64> = 5.0..=20.0;

// promise 6
#[test]
fn weights_divide_a_cpu() {
    let test = "weights_divide_a_cpu";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    let groups = scene.program.groups(
        "[group.heavy]\nclass = \"online\"\ncpu.weight = 1000\n[group.light]\nclass = \"online\"\ncpu.weight = 100\n",
    );
    let cpu = scene.machine().topology.all().iter().last().unwrap();
    let both = ["heavy", "light"].map(|group| scene.start(group, &groups, &pinned(cpu)));
    let Window { before, after, at_most, .. } =
        window(Duration::from_secs(3), || both.each_ref().map(Running::cpu_ns));
    drop(both);
    let used = [0, 1].map(|index| (after[index] - before[index]) as f64 / 1e9 / at_most);
    let ratio = used[0] / used[1];
    println!("{test}: {:.3} : {:.3} CPUs = {ratio:.2}", used[0], used[1]);
    assert!(WEIGHT_RATIO.contains(&ratio), "{:.3} : {:.3} CPUs = {ratio:.2}", used[0], used[1]);
}

/// A burner on one CPU.
fn pinned(cpu: u32) -> String {
    format!("taskset -pc {cpu} $$ >/dev/null; {BURN}")
}
