//! Noise clean against the same without it, in one run; the backstop by itself.

use super::bench::{Group, Loaded, Spinner, can_load, cpus, measure, offline, online};
use std::time::Duration;

const BLOCK: Duration = Duration::from_secs(4);
/// Offline time on the sibling of a busy expelling thread, of that thread's; the goal is 0.02.
const MOST_OVERLAP: f64 = 0.05;
/// What online work keeps of its CPU; the goal is 0.98.
const LEAST_ONLINE: f64 = 0.95;
/// Without expelling the sibling is busy: else the comparison says nothing.
const LEAST_BASELINE: f64 = 0.5;

fn all() -> String {
    format!("0-{}", cpus() - 1)
}

/// One online thread on CPU 0, one offline one that may run on its sibling only, and others everywhere.
#[test]
fn orders_reach_threads_that_run() {
    if !can_load("deep::noise::orders_reach_threads_that_run") {
        return;
    }
    let (web, batch, beside) = (Group::new("web"), Group::offline("batch"), Group::offline("beside"));
    let _online = web.spin("0");
    let alone = measure(&[&web], BLOCK)[0];
    let _beside = beside.spin("1");
    let _others: Vec<Spinner> = (0..cpus()).map(|_| batch.spin(&all())).collect();
    let groups = |expel| [online(&web, expel), offline(&batch), offline(&beside)];
    let loaded = Loaded::new(&groups(false));
    let baseline = measure(&[&web, &beside, &batch], BLOCK);
    assert!(loaded.order(&groups(true)).status.success());
    let before = loaded.status();
    let expelled = measure(&[&web, &beside, &batch], BLOCK);
    let after = loaded.status();
    let of = |name: &str| {
        let read = |status: &serde_json::Value| status["counters"][name].as_f64().unwrap();
        read(&after) - read(&before)
    };
    let (evictions, by_ticks) = (of("evictions"), of("by_ticks"));
    let own = of("overlap_ns") / of("expelling_ns");
    println!(
        "noise: alone {alone:.2} s, without expel {baseline:.2?}, with expel {expelled:.2?} s (online, beside, others)"
    );
    println!(
        "noise: overlap by the scheduler's own count {own:.4}, evictions {evictions}, of them by the tick {by_ticks}"
    );
    assert!(baseline[1] / baseline[0] >= LEAST_BASELINE, "{baseline:?}");
    assert!(expelled[1] / expelled[0] <= MOST_OVERLAP, "{expelled:?}");
    assert!(own <= MOST_OVERLAP, "{own}");
    assert!(expelled[0] / alone >= LEAST_ONLINE, "{expelled:?} of {alone}");
    // The other cores still work.
    let free = f64::from(cpus() - 2) * BLOCK.as_secs_f64();
    assert!(expelled[2] / free >= 0.8, "{expelled:?} of {free}");
    let threads = batch.threads().len() + beside.threads().len();
    assert!(after["mode"] == "running" && after["threads"] == threads, "{threads} {after}");
}

/// The expelling thread comes and goes: each time offline work leaves at once and comes back.
#[test]
fn it_leaves_at_once_and_comes_back() {
    if !can_load("deep::noise::it_leaves_at_once_and_comes_back") {
        return;
    }
    let (web, beside) = (Group::new("web"), Group::offline("beside"));
    let _beside = beside.spin("1");
    let loaded = Loaded::new(&[online(&web, true), offline(&beside)]);
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let online = web.spin("0");
        let during = measure(&[&beside], Duration::from_secs(1))[0];
        drop(online);
        let after = measure(&[&beside], Duration::from_secs(1))[0];
        rounds.push((during, after));
    }
    // An emulated CPU that stands still for a while does not leave meanwhile.
    let good = rounds.iter().filter(|(during, after)| *after >= 0.5 && *during <= 0.3).count();
    assert!(good >= 3, "beside it and after it: {rounds:?}");
    let (evictions, by_ticks) = (loaded.count("evictions"), loaded.count("by_ticks"));
    println!(
        "noise: {evictions} evictions, {by_ticks} by the tick, longest {} ns",
        loaded.count("evict_max_ns")
    );
    assert!(evictions >= 5.0 && by_ticks <= evictions / 2.0, "{evictions}, {by_ticks}");
}

/// With nobody asked to leave the tick does it: the backstop works, and is counted apart.
#[test]
fn the_tick_is_the_backstop() {
    if !can_load("deep::noise::the_tick_is_the_backstop") {
        return;
    }
    let (web, beside) = (Group::new("web"), Group::offline("beside"));
    let _beside = beside.spin("1");
    let loaded = Loaded::with(&["--tick-alone"], &[online(&web, true), offline(&beside)]);
    let _online = web.spin("0");
    let got = measure(&[&web, &beside], Duration::from_secs(2));
    let (evictions, by_ticks) = (loaded.count("evictions"), loaded.count("by_ticks"));
    println!("noise: by the tick alone {got:.3?} s, {by_ticks} of {evictions} evictions");
    assert!(got[1] / got[0] <= 0.2, "{got:?}");
    assert!(by_ticks >= 1.0, "{by_ticks} of {evictions}");
}

/// An online thread that sleeps for a moment: with a hold-off its sibling stays free meanwhile, without one it is used.
#[test]
fn a_hold_off_keeps_the_core_free_for_a_while() {
    if !can_load("deep::noise::a_hold_off_keeps_the_core_free_for_a_while") {
        return;
    }
    let (web, beside) = (Group::new("web"), Group::offline("beside"));
    let _beside = beside.spin("1");
    let groups = [online(&web, true), offline(&beside)];
    let loaded = Loaded::new(&groups);
    let _pulse = web.start("pulse", "0");
    let without = measure(&[&web, &beside], BLOCK);
    assert!(loaded.hold_off(Duration::from_millis(300), &groups).status.success());
    let with = measure(&[&web, &beside], BLOCK);
    println!("noise: online and its sibling {without:.2?} s without a hold-off, {with:.2?} s with one");
    // Half of the time is the sibling's; with the hold-off nothing is.
    assert!(without[1] / BLOCK.as_secs_f64() >= 0.2, "{without:?}");
    assert!(with[1] <= without[1] / 4.0, "{without:?}, {with:?}");
    assert!(loaded.order(&groups).status.success());
    let again = measure(&[&web, &beside], BLOCK);
    assert!(again[1] >= without[1] / 2.0, "{without:?}, {again:?}");
}
