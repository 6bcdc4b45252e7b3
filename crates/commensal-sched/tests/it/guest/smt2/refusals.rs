//! What is refused, with the machine unchanged.

use crate::guest::world::{Group, Loaded, can_load, offline, shown, state, until};
use serde_json::json;
use std::os::unix::process::CommandExt;

// promise 52
#[test]
fn what_cannot_be_loaded_is_refused_with_the_way_out() {
    if !can_load("guest::smt2::refusals::what_cannot_be_loaded_is_refused_with_the_way_out") {
        return;
    }
    // Another one, with a state directory of its own.
    let other = Loaded::not_yet();
    let nobody = shown(&other.command("check").uid(65534).output().unwrap());
    assert!(nobody.contains("only root can load"), "{nobody}");
    assert!(!other.command("check").uid(65534).status().unwrap().success());
    let batch = Group::new("batch");
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let done = other.run("load", &[]);
    assert_eq!(done.status.code(), Some(2), "{}", shown(&done));
    assert!(shown(&done).contains("another sched_ext scheduler"), "{}", shown(&done));
    loaded.unload();
    assert!(loaded.status().is_null(), "nobody answers any more");
}

// promise 52
#[test]
fn orders_that_cannot_be_carried_out_change_nothing() {
    if !can_load("guest::smt2::refusals::orders_that_cannot_be_carried_out_change_nothing") {
        return;
    }
    let batch = Group::offline("batch");
    let _work = batch.spin("0");
    let loaded = Loaded::new(&[offline(&batch)]);
    let wrong = [
        (json!({ "cgroup": batch.name(), "class": "sideways" }), "unknown variant `sideways`"),
        (json!({ "cgroup": "batch", "class": "offline" }), ""),
        (json!({ "cgroup": batch.name(), "class": "offline", "weight": 0 }), ""),
    ];
    for (order, why) in wrong {
        let done = loaded.order(std::slice::from_ref(&order));
        assert!(done["ok"] == false && done["error"].as_str().unwrap().contains(why), "{order}: {done}");
    }
    assert_eq!(loaded.status()["generation"], 1);
    until("all its threads are told", || loaded.status()["threads"] == batch.threads().len());
    // A group that is not there yet is no error: it is followed when it comes.
    assert!(loaded.order(&[json!({ "cgroup": "/sys/fs/cgroup/nobody", "class": "offline" })])["ok"] == true);
    assert_eq!(loaded.status()["groups"][0]["found"], false);
}

// promise 52
#[test]
fn the_programs_refuse_a_class_that_they_do_not_know() {
    use commensal_sched::loader::{Scheduler, Settings};
    if !can_load("guest::smt2::refusals::the_programs_refuse_a_class_that_they_do_not_know") {
        return;
    }
    let settings = Settings { watchdog: std::time::Duration::from_secs(30), ..Settings::default() };
    let scheduler = Scheduler::load(&settings, &[]).unwrap();
    scheduler.set_group(1, "/a", 2, 0).unwrap();
    for class in [3, 4, 5, 7, 1 << 40] {
        let refused = scheduler.set_group(1, "/a", class, 0).unwrap_err().to_string();
        assert!(refused.contains("does not know"), "{refused}");
    }
    assert_eq!(state(), "disabled");
}

#[test]
fn the_verifier_looks_at_no_more_than_before() {
    if !can_load("guest::smt2::refusals::the_verifier_looks_at_no_more_than_before") {
        return;
    }
    let baseline = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(baseline.path(), include_str!("../../../verifier.txt")).unwrap();
    // The figures are one kernel's: older verifiers look at some programs more often.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut args = vec!["--verify"];
    if release.starts_with("7.") {
        args.extend(["--baseline", baseline.path().to_str().unwrap()]);
    }
    let done = Loaded::not_yet().run("check", &args);
    println!("{}", shown(&done));
    assert!(done.status.success(), "{}", shown(&done));
    assert_eq!(state(), "disabled");
}
