//! Online work that leaves nothing: the guard is before the kernel's watchdog, the watchdog is survived, whoever is killed
//! dies all the same, and nothing stays frozen.

use crate::guest::world::{
    Group, Loaded, PATIENCE, Still, all, can_load, offline, online, policy, settle, state, until, within,
};

fn frozen(group: &Group) -> bool {
    group.read("cgroup.events").contains("frozen 1")
}

// promise 54
#[test]
fn saturation_freezes_offline_groups_until_there_is_room() {
    if !can_load("guest::smt2::guard::saturation_freezes_offline_groups_until_there_is_room") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _works = batch.spinners(2);
    let mut loaded = Loaded::with(&["--guard-ms", "2000"], &[online(&web, false), offline(&batch)]);
    let busy = web.everywhere();
    until("the offline group is frozen", || frozen(&batch));
    let status = loaded.status();
    assert!(status["ejected"].is_null() && status["reloads"] == 0, "{status}");
    drop(busy);
    until("the offline group goes on", || !frozen(&batch));
    assert_eq!(loaded.status()["mode"], "running");
    loaded.unload();
}

// promise 54
#[test]
fn an_ejected_scheduler_is_told_and_loaded_again() {
    if !can_load("guest::smt2::guard::an_ejected_scheduler_is_told_and_loaded_again") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _works = batch.spinners(2);
    let options = ["--watchdog-ms", "2000", "--no-guard"];
    let mut loaded = Loaded::with(&options, &[online(&web, false), offline(&batch)]);
    let busy = web.everywhere();
    until("the kernel takes the scheduler off", || !loaded.status()["ejected"].is_null());
    println!("guard: {}", loaded.status()["ejected"]);
    drop(busy);
    until("it is loaded again", || {
        let status = loaded.status();
        status["mode"] == "running" && status["reloads"].as_u64() >= Some(1)
    });
    loaded.unload();
}

/// On a CPU whose sibling expels, and on one that online work has for itself.
// promise 54
#[test]
fn whoever_is_killed_dies() {
    if !can_load("guest::smt2::guard::whoever_is_killed_dies") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let mut beside = batch.spin("1");
    let mut behind = batch.spin("0");
    let groups = [online(&web, true), offline(&batch)];
    let loaded = Loaded::with(&["--no-guard"], &groups);
    let _online = web.spin("0");
    settle();
    beside.0.kill().unwrap();
    behind.0.kill().unwrap();
    until("both are gone", || {
        beside.0.try_wait().unwrap().is_some() && behind.0.try_wait().unwrap().is_some()
    });
    println!("guard: {} were let through", loaded.count("let_die"));
    assert!(loaded.status()["ejected"].is_null());
}

/// A group that nobody orders any more goes on at once, and one that somebody else had frozen is left so.
// promise 54
#[test]
fn only_its_own_freezing_is_undone() {
    if !can_load("guest::smt2::guard::only_its_own_freezing_is_undone") {
        return;
    }
    let (web, batch, other) = (Group::new("web"), Group::offline("batch"), Group::offline("other"));
    let (_work, _frozen) = (batch.spin(&all()), other.spin(&all()));
    other.write("cgroup.freeze", "1");
    let groups = [online(&web, false), offline(&batch), offline(&other)];
    let loaded = Loaded::with(&["--guard-ms", "1000"], &groups);
    let busy = web.everywhere();
    until("the group is frozen", || batch.read("cgroup.freeze").starts_with('1'));
    assert_eq!(loaded.status()["mode"], "frozen");
    assert!(loaded.order(&[online(&web, false), offline(&other)])["ok"] == true);
    assert!(batch.read("cgroup.freeze").starts_with('0'), "it has left the orders");
    drop(busy);
    until("there is room again", || loaded.status()["mode"] == "running");
    assert!(other.read("cgroup.freeze").starts_with('1'), "somebody else's freezing");
}

/// Online work that takes everything for ever, and no guard: the kernel takes the scheduler off again and again.
// promise 54
#[test]
fn after_three_reloads_it_stays_off() {
    if !can_load("guest::smt2::guard::after_three_reloads_it_stays_off") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let work = batch.spin(&all());
    let mut loaded =
        Loaded::with(&["--no-guard", "--watchdog-ms", "1500"], &[online(&web, false), offline(&batch)]);
    let busy = web.everywhere();
    // It is loaded four times beside work that never rests, and waits 21 s in between.
    within(PATIENCE * 4, "it is given up", || loaded.status()["mode"] == "given-up");
    let status = loaded.status();
    println!("guard: {} reloads, {}", status["reloads"], status["ejected"]);
    assert_eq!(status["reloads"], 3, "{status}");
    assert_eq!(state(), "disabled");
    // Threads are as any other again, and stay so.
    until("threads have their own policy", || policy(work.tid()) == Some(0));
    drop(busy);
    let used = batch.used();
    until("they go on", || batch.used() > used + 0.2);
    assert_eq!((loaded.status()["mode"].as_str(), state().as_str()), (Some("given-up"), "disabled"));
    loaded.unload();
}

/// Unloaded and killed while groups are frozen: neither leaves them so.
// promise 54
#[test]
fn nothing_stays_frozen() {
    if !can_load("guest::smt2::guard::nothing_stays_frozen") {
        return;
    }
    for killed in [false, true] {
        let (web, batch) = (Group::new("web"), Group::offline("batch"));
        let work = batch.spin(&all());
        let groups = [online(&web, false), offline(&batch)];
        let mut loaded = Loaded::with(&["--guard-ms", "1000"], &groups);
        let _busy = web.everywhere();
        until("groups are frozen", || batch.read("cgroup.freeze").starts_with('1'));
        if killed {
            let _still = Still::new();
            let mut child = loaded.take();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(loaded.put_back().status.success());
        } else {
            loaded.unload();
        }
        assert!(batch.read("cgroup.freeze").starts_with('0'), "killed: {killed}");
        assert_eq!(policy(work.tid()), Some(0));
    }
}
