//! Whoever is killed dies, also where nothing of its class gets a CPU; and nothing stays frozen.

use super::bench::{Group, Loaded, Spinner, can_load, cpus, offline, online, policy, state, until};
use std::time::Duration;

fn all() -> String {
    format!("0-{}", cpus() - 1)
}

/// On a CPU whose sibling expels, and on one that online work has for itself.
#[test]
fn whoever_is_killed_dies() {
    if !can_load("deep::guard::whoever_is_killed_dies") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let mut beside = batch.spin("1");
    let mut behind = batch.spin("0");
    let groups = [online(&web, true), offline(&batch)];
    let loaded = Loaded::with(&["--no-guard"], &groups);
    let _online = web.spin("0");
    std::thread::sleep(Duration::from_secs(1));
    beside.0.kill().unwrap();
    behind.0.kill().unwrap();
    until("both are gone", || {
        beside.0.try_wait().unwrap().is_some() && behind.0.try_wait().unwrap().is_some()
    });
    println!("guard: {} were let through", loaded.count("let_die"));
    assert!(loaded.status()["ejected"].is_null());
}

/// A group that nobody orders any more goes on at once, and one that somebody else had frozen is left so.
#[test]
fn only_its_own_freezing_is_undone() {
    if !can_load("deep::guard::only_its_own_freezing_is_undone") {
        return;
    }
    let (web, batch, other) = (Group::new("web"), Group::offline("batch"), Group::offline("other"));
    let (_work, _still) = (batch.spin(&all()), other.spin(&all()));
    other.write("cgroup.freeze", "1");
    let groups = [online(&web, false), offline(&batch), offline(&other)];
    let loaded = Loaded::with(&["--guard-ms", "1000"], &groups);
    let busy: Vec<Spinner> = (0..cpus()).map(|cpu| web.spin(&cpu.to_string())).collect();
    until("the group is frozen", || batch.read("cgroup.freeze").starts_with('1'));
    assert_eq!(loaded.status()["mode"], "frozen");
    assert!(loaded.order(&[online(&web, false), offline(&other)]).status.success());
    assert!(batch.read("cgroup.freeze").starts_with('0'), "it has left the orders");
    drop(busy);
    until("there is room again", || loaded.status()["mode"] == "running");
    assert!(other.read("cgroup.freeze").starts_with('1'), "somebody else's freezing");
}

/// Online work that takes everything for ever, and no guard: the kernel takes the scheduler off again and again.
#[test]
fn after_three_reloads_it_stays_off() {
    if !can_load("deep::guard::after_three_reloads_it_stays_off") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let work = batch.spin(&all());
    let mut loaded =
        Loaded::with(&["--no-guard", "--watchdog-ms", "1500"], &[online(&web, false), offline(&batch)]);
    let busy: Vec<Spinner> = (0..cpus()).map(|cpu| web.spin(&cpu.to_string())).collect();
    until("it is given up", || loaded.status()["mode"] == "given-up");
    let status = loaded.status();
    println!("guard: {} reloads, {}", status["reloads"], status["ejected"]);
    assert_eq!(status["reloads"], 3, "{status}");
    assert_eq!(state(), "disabled");
    // Threads are as any other again, and stay so.
    until("threads have their own policy", || policy(work.0.id()) == Some(0));
    drop(busy);
    let used = batch.used();
    until("they go on", || batch.used() > used + 0.2);
    assert_eq!((loaded.status()["mode"].as_str(), state().as_str()), (Some("given-up"), "disabled"));
    loaded.unload();
}

/// Unloaded and killed while groups are frozen: neither leaves them so.
#[test]
fn nothing_stays_frozen() {
    if !can_load("deep::guard::nothing_stays_frozen") {
        return;
    }
    for killed in [false, true] {
        let (web, batch) = (Group::new("web"), Group::offline("batch"));
        let work = batch.spin(&all());
        let groups = [online(&web, false), offline(&batch)];
        let mut loaded = Loaded::with(&["--guard-ms", "1000"], &groups);
        let _busy: Vec<Spinner> = (0..cpus()).map(|cpu| web.spin(&cpu.to_string())).collect();
        until("groups are frozen", || batch.read("cgroup.freeze").starts_with('1'));
        if killed {
            let mut child = loaded.take();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(loaded.run("unload", &[]).status.success());
        } else {
            loaded.unload();
        }
        assert!(batch.read("cgroup.freeze").starts_with('0'), "killed: {killed}");
        assert_eq!(policy(work.0.id()), Some(0));
    }
}
