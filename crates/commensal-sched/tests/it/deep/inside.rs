//! Inside the offline class: nested weights that change, affinity, CPUs that go, cgroups that come and go, many threads.

use super::bench::{EXT, Group, Loaded, Spinner, can_load, cpus, measure, offline, policy, until};
use serde_json::json;
use std::process::Command;
use std::time::{Duration, Instant};

fn all() -> String {
    format!("0-{}", cpus() - 1)
}

fn spinners(group: &Group, count: u32) -> Vec<Spinner> {
    (0..count).map(|_| group.spin(&all())).collect()
}

/// 300 to 100, and inside the second one 3 to 1 again, flattened.
#[test]
fn groups_share_by_weight() {
    if !can_load("deep::inside::groups_share_by_weight") {
        return;
    }
    let (heavy, light) = (Group::offline("heavy"), Group::offline("light"));
    let (first, second) = (light.child("first"), light.child("second"));
    light.write("cgroup.subtree_control", "+cpu");
    first.write("cpu.weight", "300");
    let _works: Vec<Spinner> =
        [&heavy, &first, &second].into_iter().flat_map(|group| spinners(group, cpus())).collect();
    let order =
        |group: &Group, weight: u64| json!({ "cgroup": group.name(), "class": "offline", "weight": weight });
    let loaded = Loaded::new(&[order(&heavy, 300), order(&light, 100)]);
    let got = measure(&[&heavy, &light, &first, &second], Duration::from_secs(6));
    println!("inside: weights 300:100 and 300:100 below, CPU time {got:.2?}");
    let (outer, inner) = (got[0] / got[1], got[2] / got[3]);
    assert!((2.2..4.0).contains(&outer) && (2.0..4.5).contains(&inner), "{outer} {inner}");
    let free = 6.0 * f64::from(cpus());
    assert!((got[0] + got[1]) / free >= 0.8, "{got:?} of {free}");
    // A weight that changes is followed, and so is an order.
    second.write("cpu.weight", "900");
    assert!(loaded.order(&[order(&heavy, 100), order(&light, 100)]).status.success());
    std::thread::sleep(Duration::from_secs(1));
    let got = measure(&[&heavy, &light, &first, &second], Duration::from_secs(6));
    println!("inside: weights 100:100 and 300:900 below, CPU time {got:.2?}");
    let (outer, inner) = (got[0] / got[1], got[3] / got[2]);
    assert!((0.7..1.4).contains(&outer) && (2.0..4.5).contains(&inner), "{outer} {inner}");
}

/// Threads are sent from CPU to CPU, and CPUs go and come, while a cgroup after the other is made and removed.
#[test]
fn affinity_hotplug_and_churn() {
    if !can_load("deep::inside::affinity_hotplug_and_churn") {
        return;
    }
    let batch = Group::offline("batch");
    let works = spinners(&batch, cpus() * 2);
    let loaded = Loaded::new(&[offline(&batch)]);
    let last = cpus() - 1;
    let hotplug = |on: &str| {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{last}/online"), on).unwrap();
    };
    let began = Instant::now();
    let mut round: u32 = 0;
    while began.elapsed() < Duration::from_secs(8) {
        let pid = works[round as usize % works.len()].0.id().to_string();
        let cpu = (round * 7 % cpus()).to_string();
        // An empty set is refused while the CPU is away.
        let _ = Command::new("taskset").args(["-cp", &cpu, &pid]).output().unwrap();
        match round % 12 {
            3 => hotplug("0"),
            9 => hotplug("1"),
            _ => {}
        }
        let inner = batch.child(&format!("inner{round}"));
        inner.write("cgroup.procs", &pid);
        if round.is_multiple_of(3) {
            std::thread::sleep(Duration::from_millis(150));
        }
        batch.write("cgroup.procs", &pid);
        round += 1;
    }
    hotplug("1");
    let status = loaded.status();
    println!("inside: {round} rounds of torture, {} threads", status["threads"]);
    assert!(status["ejected"].is_null() && status["mode"] == "running", "{status}");
    until("all are under it", || works.iter().all(|work| policy(work.0.id()) == Some(EXT)));
    for work in &works {
        let _ = Command::new("taskset").args(["-cp", &all(), &work.0.id().to_string()]).output().unwrap();
    }
    let got = measure(&[&batch], Duration::from_secs(3))[0];
    assert!(got / (3.0 * f64::from(cpus())) > 0.8, "{got}");
}

/// Ten thousand threads of one process, all of which come under it and get out again; a status meanwhile is answered.
#[test]
fn ten_thousand_threads() {
    const THREADS: usize = 10_000;
    if !can_load("deep::inside::ten_thousand_threads") {
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
