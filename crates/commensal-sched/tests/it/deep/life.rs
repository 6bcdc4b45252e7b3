//! Threads with something of their own, threads that come and go, and loading while work goes on.

use super::bench::{
    EXT, Group, Loaded, Spinner, Still, can_load, cpus, offline, online, policy, shown, state, until,
};
use std::process::Command;
use std::time::Duration;

fn all() -> String {
    format!("0-{}", cpus() - 1)
}

/// A thread with a policy of its own, one with a nice value and an affinity of its own, and one that started others.
#[test]
fn every_thread_gets_its_own_back() {
    if !can_load("deep::life::every_thread_gets_its_own_back") {
        return;
    }
    let batch = Group::offline("batch");
    let works: Vec<Spinner> = (0..3).map(|_| batch.spin(&all())).collect();
    let [one, two, three] = [0, 1, 2].map(|index| works[index].0.id());
    until("three", || batch.threads().len() >= 3);
    let change = |program: &str, args: &[&str], pid: u32| {
        let done = Command::new(program).args(args).arg(pid.to_string()).output().unwrap();
        assert!(done.status.success(), "{}", shown(&done));
    };
    change("chrt", &["-b", "-p", "0"], one);
    change("renice", &["-n", "7", "-p"], two);
    change("chrt", &["-i", "-p", "0"], three);
    change("taskset", &["-cp", "2"], three);
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let nice =
        |pid: u32| stat(pid).rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
    let allowed = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    };
    let look = || [one, two, three].map(|pid| (policy(pid), nice(pid), allowed(pid)));
    let before = look();
    assert_eq!(before.clone().map(|(policy, _, _)| policy), [Some(3), Some(0), Some(5)]);
    for killed in [false, true] {
        let mut loaded = Loaded::new(&[offline(&batch)]);
        until("all are under it", || [one, two, three].map(policy) == [Some(EXT); 3]);
        assert_eq!(
            look().map(|(_, nice, cpus)| (nice, cpus)),
            before.clone().map(|(_, nice, cpus)| (nice, cpus))
        );
        if killed {
            let mut child = loaded.take();
            let still = Still::new();
            child.kill().unwrap();
            child.wait().unwrap();
            // A sane machine: no scheduler, and threads that run as any other.
            until("the kernel lets go", || state() == "disabled");
            drop(still);
            assert_eq!([one, two, three].map(policy), [Some(EXT); 3]);
            let used = batch.used();
            until("they go on", || batch.used() > used);
            let done = loaded.run("unload", &[]);
            assert!(done.status.success(), "{}", shown(&done));
            assert!(shown(&loaded.run("unload", &[])).contains("nothing is to be put back"));
        } else {
            loaded.unload();
        }
        assert_eq!(look(), before, "killed: {killed}");
    }
}

/// Threads that come, leave for another group, and start others, while it is loaded.
#[test]
fn threads_come_and_go() {
    if !can_load("deep::life::threads_come_and_go") {
        return;
    }
    let (batch, other) = (Group::offline("batch"), Group::new("other"));
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let work = other.spin(&all());
    let pid = work.0.id();
    until("it is there", || other.threads().contains(&pid));
    assert_eq!(policy(pid), Some(0));
    batch.write("cgroup.procs", &pid.to_string());
    until("it comes under the scheduler", || policy(pid) == Some(EXT));
    let inner = batch.child("inner");
    inner.write("cgroup.procs", &pid.to_string());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(policy(pid), Some(EXT));
    other.write("cgroup.procs", &pid.to_string());
    until("it is let go", || policy(pid) == Some(0));
    // What it starts is under it from the first moment.
    let forks = batch.start("fork", &all());
    until("it starts others", || batch.threads().iter().any(|tid| *tid != forks.0.id()));
    for tid in batch.threads() {
        assert!([None, Some(EXT), Some(0)].contains(&policy(tid)), "{tid}");
    }
    until("all are under it", || {
        let threads = batch.threads();
        threads.iter().all(|tid| policy(*tid).is_none_or(|policy| policy == EXT))
    });
    // Somebody else's orders for it: not ours any more.
    assert!(loaded.order(&[]).status.success());
    until("nobody is", || batch.threads().iter().all(|tid| policy(*tid) != Some(EXT)));
    loaded.unload();
}

#[test]
fn it_is_loaded_and_unloaded_many_times() {
    if !can_load("deep::life::it_is_loaded_and_unloaded_many_times") {
        return;
    }
    let count = 3;
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let works =
        [batch.spin(&all()), batch.start("fork", &all()), batch.start("threads 20", &all()), web.spin("0")];
    for cycle in 0..count {
        let mut loaded = Loaded::roughly(&[online(&web, cycle % 2 == 0), offline(&batch)]);
        let used = batch.used();
        until("offline work goes on", || batch.used() > used + 0.05);
        assert!(loaded.status()["ejected"].is_null(), "{}", loaded.said());
        loaded.unload();
        until("all have their own policy", || batch.threads().iter().all(|tid| policy(*tid) != Some(EXT)));
    }
    for mut work in works {
        assert!(work.0.try_wait().unwrap().is_none(), "work ended");
    }
}
