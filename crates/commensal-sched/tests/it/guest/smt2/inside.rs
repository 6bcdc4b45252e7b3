//! Inside the offline class: nested weights that change, hard limits, affinity, CPUs that go, cgroups that come and go, many threads.

use crate::guest::world::{
    EXT, Group, Loaded, Spinner, all, can_load, cpus, measure, offline, pin, policy, settle, until,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BLOCK: Duration = Duration::from_secs(4);
/// Of threads that are sent about.
const TORTURE: Duration = Duration::from_secs(8);

fn weighed(group: &Group, weight: u64) -> Value {
    json!({ "cgroup": group.name(), "class": "offline", "weight": weight })
}

/// 300 to 100, and inside the second one 3 to 1 again, flattened.
// promise 53
#[test]
fn groups_share_by_weight() {
    if !can_load("guest::smt2::inside::groups_share_by_weight") {
        return;
    }
    let (heavy, light) = (Group::offline("heavy"), Group::offline("light"));
    let (first, second) = (light.child("first"), light.child("second"));
    light.write("cgroup.subtree_control", "+cpu");
    first.write("cpu.weight", "300");
    let _works: Vec<Spinner> =
        [&heavy, &first, &second].into_iter().flat_map(|group| group.spinners(cpus())).collect();
    let loaded = Loaded::new(&[weighed(&heavy, 300), weighed(&light, 100)]);
    let got = measure(&[&heavy, &light, &first, &second], Duration::from_secs(6));
    println!("inside: weights 300:100 and 300:100 below, CPU time {got:.2?}");
    let (outer, inner) = (got[0] / got[1], got[2] / got[3]);
    assert!((2.2..4.0).contains(&outer) && (2.0..4.5).contains(&inner), "{outer} {inner}");
    let free = 6.0 * f64::from(cpus());
    assert!((got[0] + got[1]) / free >= 0.8, "{got:?} of {free}");
    // A weight that changes is followed, and so is an order.
    second.write("cpu.weight", "900");
    assert!(loaded.order(&[weighed(&heavy, 100), weighed(&light, 100)])["ok"] == true);
    settle();
    let got = measure(&[&heavy, &light, &first, &second], Duration::from_secs(6));
    println!("inside: weights 100:100 and 300:900 below, CPU time {got:.2?}");
    let (outer, inner) = (got[0] / got[1], got[3] / got[2]);
    assert!((0.7..1.4).contains(&outer) && (2.0..4.5).contains(&inner), "{outer} {inner}");
}

/// Half a CPU for the one that is heavy, the rest for the other.
// promise 53
#[test]
fn a_hard_limit_holds() {
    if !can_load("guest::smt2::inside::a_hard_limit_holds") {
        return;
    }
    let (heavy, light) = (Group::new("heavy"), Group::new("light"));
    let _works = [&heavy, &light].map(|group| group.spinners(cpus()));
    let mut loaded = Loaded::new(&[weighed(&heavy, 300), weighed(&light, 100)]);
    let mut limited = weighed(&heavy, 300);
    limited["limit"] = json!({ "quota_us": 50_000, "period_us": 100_000 });
    assert!(loaded.order(&[limited, weighed(&light, 100)])["ok"] == true);
    let got: Vec<f64> =
        measure(&[&heavy, &light], BLOCK).iter().map(|used| used / BLOCK.as_secs_f64()).collect();
    println!("inside: limit of 0.5: {:.3} CPUs, the other group {:.3}", got[0], got[1]);
    assert!((0.35..0.65).contains(&got[0]) && got[1] > 2.0, "{got:?}");
    loaded.unload();
}

/// One had a CPU to itself for long, then another one comes: they share it from then on, and neither waits for what the other
/// has had.
// promise 53
#[test]
fn who_comes_late_is_no_creditor() {
    if !can_load("guest::smt2::inside::who_comes_late_is_no_creditor") {
        return;
    }
    let (early, late) = (Group::offline("early"), Group::offline("late"));
    let mut loaded = Loaded::new(&[offline(&early), offline(&late)]);
    let _first = early.spin("2");
    // It has had the CPU for long.
    std::thread::sleep(BLOCK);
    // Of another group, and of its own.
    for group in [&late, &early] {
        let second = group.spin("2");
        let (before, began) = (second.used(), Instant::now());
        std::thread::sleep(BLOCK);
        let share = (second.used() - before) / began.elapsed().as_secs_f64();
        println!("inside: who comes late has {share:.3} of the CPU");
        assert!((0.3..0.7).contains(&share), "{share}");
    }
    loaded.unload();
}

/// Threads are sent from CPU to CPU, and CPUs go and come, while others start and end, and a cgroup after the other is made
/// and removed.
// promises 52, 53
#[test]
fn affinity_hotplug_and_churn() {
    if !can_load("guest::smt2::inside::affinity_hotplug_and_churn") {
        return;
    }
    let batch = Group::offline("batch");
    let works = batch.spinners(cpus() * 2);
    let tids: Vec<u32> = works.iter().map(Spinner::tid).collect();
    let forks = batch.start("fork", &all());
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let round = torture(&batch, &tids);
    let runs = || {
        let status = loaded.status();
        assert!(status["ejected"].is_null() && status["mode"] == "running", "{status}");
        status
    };
    println!("inside: {round} rounds of torture, {} threads", runs()["threads"]);
    until("all are under it", || {
        tids.iter().all(|tid| policy(*tid) == Some(EXT))
            && batch.threads().iter().all(|tid| policy(*tid).is_none_or(|policy| policy == EXT))
    });
    let get = |cpus: &[usize]| {
        tids.iter().for_each(|tid| pin(Some(*tid), cpus).unwrap());
        let time = Duration::from_secs(3);
        measure(&[&batch], time)[0] / time.as_secs_f64()
    };
    let every: Vec<usize> = (0..cpus() as usize).collect();
    let got = get(&every);
    assert!(got / f64::from(cpus()) > 0.8, "{got}");
    // On one CPU: that one is theirs.
    drop(forks);
    let on_one = get(&[2]);
    println!("inside: {got:.2} CPUs after it, and {on_one:.3} where all may run on one only");
    assert!(on_one > 0.9, "{on_one}");
    runs();
    loaded.unload();
}

/// A whole core goes, with threads that are bound to it: the kernel sends them elsewhere, and they run there.
// promise 53
#[test]
fn a_core_goes_with_threads_that_are_bound_to_it() {
    if !can_load("guest::smt2::inside::a_core_goes_with_threads_that_are_bound_to_it") {
        return;
    }
    let batch = Group::offline("batch");
    let last = cpus() as usize - 1;
    let works: Vec<Spinner> = (0..cpus()).map(|_| batch.spin(&format!("{}-{last}", last - 1))).collect();
    let mut loaded = Loaded::new(&[offline(&batch)]);
    until("all are under it", || works.iter().all(|work| policy(work.tid()) == Some(EXT)));
    let switch = |cpu: usize, on: &str| {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), on).unwrap();
    };
    let began = Instant::now();
    switch(last, "0");
    switch(last - 1, "0");
    let took = began.elapsed();
    let before: Vec<f64> = works.iter().map(Spinner::used).collect();
    std::thread::sleep(BLOCK);
    let got: Vec<f64> = works.iter().zip(before).map(|(work, then)| work.used() - then).collect();
    let status = loaded.status();
    switch(last - 1, "1");
    switch(last, "1");
    println!(
        "inside: a core was gone after {:.1} s, its threads had {got:.2?} s elsewhere",
        took.as_secs_f64()
    );
    assert!(got.iter().all(|one| *one > 0.0), "{got:?}");
    assert!(status["ejected"].is_null() && status["mode"] == "running" && status["freezes"] == 0, "{status}");
    loaded.unload();
}

/// Rounds of it.
fn torture(batch: &Group, tids: &[u32]) -> u32 {
    let (count, last) = (cpus() as usize, cpus() - 1);
    let every: Vec<usize> = (0..count).collect();
    let hotplug = |on: &str| {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{last}/online"), on).unwrap();
    };
    let began = Instant::now();
    let mut round: u32 = 0;
    while began.elapsed() < TORTURE {
        for (index, tid) in tids.iter().enumerate() {
            // Also on the one that goes: who is bound to it has to leave it first.
            let one = [(round as usize * 7 + index) % count];
            let _ = pin(Some(*tid), if round.is_multiple_of(3) { &every } else { &one });
        }
        match round % 12 {
            3 => hotplug("0"),
            9 => hotplug("1"),
            _ => {}
        }
        let tid = tids[round as usize % tids.len()].to_string();
        let inner = batch.child(&format!("inner{round}"));
        inner.write("cgroup.procs", &tid);
        if round.is_multiple_of(3) {
            // Long enough for the scheduler's process to see the group.
            std::thread::sleep(Duration::from_millis(150));
        }
        batch.write("cgroup.procs", &tid);
        let path = inner.path.clone();
        drop(inner);
        assert!(!path.exists(), "{} was not removed", path.display());
        round += 1;
    }
    hotplug("1");
    round
}

/// Ten thousand threads of one process, all of which come under it and get out again; a status meanwhile is answered.
// promise 52
#[test]
fn ten_thousand_threads() {
    const THREADS: usize = 10_000;
    if !can_load("guest::smt2::inside::ten_thousand_threads") {
        return;
    }
    let _ = std::fs::write("/proc/sys/kernel/pid_max", "65536");
    let batch = Group::offline("batch");
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let other = Group::new("other");
    let work = other.start(&format!("threads {THREADS}"), &all());
    until("all have started", || other.threads().len() >= THREADS);
    batch.write("cgroup.procs", &work.0.id().to_string());
    let (mut asked, began) = (0, Instant::now());
    until("all are under it", || {
        asked += 1;
        let status = loaded.status();
        assert!(status["ejected"].is_null(), "{status}");
        status["threads"].as_u64() >= Some(THREADS as u64)
    });
    let took = began.elapsed().as_secs_f64();
    println!("inside: {THREADS} threads in {took:.1} s, {asked} statuses answered meanwhile");
    let tids = batch.threads();
    assert!(tids.iter().all(|tid| policy(*tid) == Some(EXT)));
    loaded.unload();
    assert!(tids.iter().all(|tid| policy(*tid).is_none_or(|policy| policy == 0)));
}
