//! What takes minutes: for the long tier.

use crate::guest::world::{EXT, Group, Loaded, all, can_load, offline, online, policy, state, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// So many, or what the variable says.
const LOADS: (&str, usize) = ("COMMENSAL_LOADS", 100);
const STRESS: &str = "/usr/bin/stress-ng";

/// What others use against schedulers: threads that spin, move between CPUs, fork, wake each other and change their policy.
fn stress(group: &Group) -> Child {
    let script = format!("echo $$ > {}/cgroup.procs && exec {STRESS} \"$@\"", group.path.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "stress-ng", "--oomable", "--no-rand-seed", "--metrics"]);
    for stressor in ["--cpu", "--affinity", "--fork", "--futex", "--switch"] {
        command.args([stressor, "1"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

// promise 52
#[test]
fn a_hundred_loads_lose_nothing() {
    const NAME: &str = "guest::long::a_hundred_loads_lose_nothing";
    if !can_load(NAME) {
        return;
    }
    if !Path::new(STRESS).exists() {
        println!("skipped: {NAME}: no stress-ng");
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let spinner = batch.spin(&all());
    let online_work = web.spin("0");
    let loads = std::env::var(LOADS.0).ok().and_then(|count| count.parse().ok()).unwrap_or(LOADS.1);
    let mut stress = stress(&batch);
    until("work is there", || batch.threads().len() > 10);
    let began = Instant::now();
    for cycle in 1..=loads {
        let mut loaded = Loaded::roughly(&[online(&web, cycle % 2 == 0), offline(&batch)]);
        let used = batch.used();
        until("offline work goes on", || batch.used() > used + 0.02);
        let status = loaded.status();
        assert!(status["ejected"].is_null() && status["reloads"] == 0, "cycle {cycle}: {status}");
        loaded.unload();
        assert_eq!(state(), "disabled");
        assert!(stress.try_wait().unwrap().is_none(), "cycle {cycle}: stress-ng ended");
        until("all have their own policy", || {
            batch.threads().iter().all(|tid| policy(*tid) != Some(EXT)) && policy(spinner.tid()) == Some(0)
        });
        if cycle % 10 == 0 {
            println!(
                "long: {cycle} loads after {:.0} s, {} threads",
                began.elapsed().as_secs_f64(),
                batch.threads().len()
            );
        }
    }
    // Nobody is left to starve beside it. It is asked to end, and says whether anything went wrong in any of its children.
    drop(online_work);
    drop(spinner);
    let ended = Command::new("kill").args(["-TERM", &stress.id().to_string()]).status().unwrap();
    assert!(ended.success());
    let output = stress.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(!said.contains("fail:") && !said.contains("killed by signal 9"), "{said}");
}
