//! What is refused, with the machine unchanged.

use crate::support::{World, lacks_guest, state};
use serde_json::json;
use std::os::unix::process::CommandExt;

#[test]
fn what_cannot_be_loaded_is_refused_with_the_way_out() {
    if lacks_guest("quick::refusals::what_cannot_be_loaded_is_refused_with_the_way_out") {
        return;
    }
    let mut world = World::new();
    let offline = world.group("offline");
    let nobody = world.command(&["check"]).uid(65534).output().unwrap();
    let said = String::from_utf8_lossy(&nobody.stdout).into_owned();
    assert!(!nobody.status.success() && said.contains("takes root"), "{said}");
    let orders = world.orders(&[(offline, json!({ "class": "offline" }))]);
    world.load(&orders, &[]);
    // Another one, with a state directory of its own.
    let other = World::new();
    let (status, said) = other.run(&["load"]);
    assert!(status == 2 && said.contains("another sched_ext scheduler"), "{said}");
    // An order with a class that nobody knows changes nothing.
    let wrong = world.orders(&[(offline, json!({ "class": "between" }))]);
    let (status, said) = world.run(&["order", wrong.to_str().unwrap()]);
    assert!(status == 2 && said.contains("unknown variant `between`"), "{said}");
    assert_eq!(world.status()["generation"], 1);
    world.unload();
    let (status, said) = world.run(&["status"]);
    assert!(status == 2 && said.contains("no scheduler of commensal"), "{said}");
}

#[cfg(feature = "bpf")]
#[test]
fn the_programs_refuse_a_class_that_they_do_not_know() {
    use commensal_sched::loader::{Scheduler, Settings};
    if lacks_guest("quick::refusals::the_programs_refuse_a_class_that_they_do_not_know") {
        return;
    }
    let settings = Settings { watchdog: std::time::Duration::from_secs(30), ..Settings::default() };
    let scheduler = Scheduler::load(&settings, &[]).unwrap();
    scheduler.set_group(1, "/a", 2, 0).unwrap();
    for class in [0, 5, 1 << 40] {
        let refused = scheduler.set_group(1, "/a", class, 0).unwrap_err().to_string();
        assert!(refused.contains("does not know"), "{refused}");
    }
    assert_eq!(state(), "disabled");
}

#[test]
fn the_verifier_looks_at_no_more_than_before() {
    if lacks_guest("quick::refusals::the_verifier_looks_at_no_more_than_before") {
        return;
    }
    let world = World::new();
    let baseline = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(baseline.path(), include_str!("../../verifier.txt")).unwrap();
    // The figures are one kernel's: older verifiers look at some programs more often.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut args = vec!["check", "--verify"];
    if release.starts_with("7.") {
        args.extend(["--baseline", baseline.path().to_str().unwrap()]);
    }
    let (status, said) = world.run(&args);
    println!("{said}");
    assert_eq!(status, 0, "{said}");
    assert_eq!(state(), "disabled");
}
