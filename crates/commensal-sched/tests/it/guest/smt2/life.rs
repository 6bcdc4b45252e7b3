//! Loading, unloading and replacing; threads with something of their own, and threads that come and go meanwhile.

use crate::guest::world::{
    EXT, Group, Loaded, Spinner, all, can_load, measure, nice, offline, online, policy, shown, state, until,
};
use commensal_testkit::throughout;
use std::process::Command;
use std::time::Duration;

/// Loads one after the other.
const LOADS: usize = 3;
/// What the threads of a killed loader get at least of a CPU: nobody else wants it.
const LEAST_WITHOUT_LOADER: f64 = 0.5;

/// Policy, nice value and CPUs of a thread.
type Own = (Option<i32>, Option<i32>, String);

/// A thread with a policy of its own, one with a nice value, one with another policy and an affinity of its own.
struct Peculiar {
    // Work goes before its group.
    works: [Spinner; 3],
    before: [Own; 3],
    batch: Group,
}

impl Peculiar {
    fn new() -> Peculiar {
        let batch = Group::offline("batch");
        let works = [(); 3].map(|()| batch.spin(&all()));
        let change = |program: &str, args: &[&str], work: &Spinner| {
            let done = Command::new(program).args(args).arg(work.tid().to_string()).output().unwrap();
            assert!(done.status.success(), "{}", shown(&done));
        };
        change("chrt", &["-b", "-p", "0"], &works[0]);
        change("renice", &["-n", "7", "-p"], &works[1]);
        change("chrt", &["-i", "-p", "0"], &works[2]);
        change("taskset", &["-cp", "2"], &works[2]);
        let before = own(&works);
        assert_eq!(before.each_ref().map(|(policy, _, _)| *policy), [Some(3), Some(0), Some(5)]);
        assert_eq!(before[1].1, Some(7));
        Peculiar { works, before, batch }
    }

    fn policies(&self) -> [Option<i32>; 3] {
        self.works.each_ref().map(|work| policy(work.tid()))
    }

    /// They are under the scheduler, with all else as it was.
    fn is_switched(&self) {
        until("all are under it", || self.policies() == [Some(EXT); 3]);
        let rest = |own: &[Own; 3]| own.clone().map(|(_, nice, cpus)| (nice, cpus));
        assert_eq!(rest(&own(&self.works)), rest(&self.before));
    }
}

fn own(works: &[Spinner; 3]) -> [Own; 3] {
    let allowed = |tid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    };
    works.each_ref().map(|work| {
        let tid = work.tid();
        (policy(tid), nice(tid), allowed(tid))
    })
}

/// Again and again, with a thread of another group that moves in and out.
// promise 52
#[test]
fn every_thread_gets_its_own_back() {
    if !can_load("guest::smt2::life::every_thread_gets_its_own_back") {
        return;
    }
    let peculiar = Peculiar::new();
    let other = Group::new("other");
    let work = other.spin(&all());
    let stranger = work.tid();
    until("it is there", || other.threads().contains(&stranger));
    for load in 0..LOADS {
        let mut loaded = Loaded::new(&[offline(&peculiar.batch)]);
        assert_eq!(state(), "enabled");
        peculiar.is_switched();
        assert_eq!(policy(stranger), Some(0));
        peculiar.batch.write("cgroup.procs", &stranger.to_string());
        until("who moves in is switched", || policy(stranger) == Some(EXT));
        other.write("cgroup.procs", &stranger.to_string());
        until("who moves out is switched back", || policy(stranger) == Some(0));
        loaded.unload();
        assert_eq!(own(&peculiar.works), peculiar.before, "load {load}");
    }
}

// promise 52
#[test]
fn what_a_killed_loader_leaves_can_be_undone() {
    if !can_load("guest::smt2::life::what_a_killed_loader_leaves_can_be_undone") {
        return;
    }
    let peculiar = Peculiar::new();
    let mut loaded = Loaded::new(&[offline(&peculiar.batch)]);
    peculiar.is_switched();
    // A sane machine: no scheduler, and threads that run as any other.
    loaded.kill();
    assert_eq!(peculiar.policies(), [Some(EXT); 3]);
    let got = measure(&[&peculiar.batch], Duration::from_secs(1))[0];
    println!("life: threads of a killed loader had {got:.2} CPUs");
    assert!(got > LEAST_WITHOUT_LOADER, "{got}");
    let done = loaded.put_back();
    assert!(done.status.success(), "{}", shown(&done));
    assert_eq!(own(&peculiar.works), peculiar.before);
    assert!(shown(&loaded.put_back()).contains("there is nothing to restore"));
}

#[test]
fn another_process_takes_over() {
    if !can_load("guest::smt2::life::another_process_takes_over") {
        return;
    }
    let batch = Group::new("batch");
    let work = batch.spin(&all());
    let tid = work.tid();
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let before = loaded.status()["pid"].clone();
    loaded.replace();
    let status = loaded.status();
    println!("life: without a scheduler for {} ms", status["upgrade_gap_ms"]);
    assert_ne!(status["pid"], before);
    assert_eq!((policy(tid), state().as_str()), (Some(EXT), "enabled"));
    loaded.unload();
    assert_eq!((policy(tid), nice(tid)), (Some(0), Some(0)));
}

/// Threads that come, leave for another group, and start others, while it is loaded.
// promise 52
#[test]
fn threads_come_and_go() {
    if !can_load("guest::smt2::life::threads_come_and_go") {
        return;
    }
    let (batch, other) = (Group::offline("batch"), Group::new("other"));
    let mut loaded = Loaded::new(&[offline(&batch)]);
    let work = other.spin(&all());
    let tid = work.tid();
    until("it is there", || other.threads().contains(&tid));
    assert_eq!(policy(tid), Some(0));
    batch.write("cgroup.procs", &tid.to_string());
    until("it comes under the scheduler", || policy(tid) == Some(EXT));
    let inner = batch.child("inner");
    inner.write("cgroup.procs", &tid.to_string());
    throughout(Duration::from_millis(500), "it is let go", || policy(tid) == Some(EXT));
    other.write("cgroup.procs", &tid.to_string());
    until("it is let go", || policy(tid) == Some(0));
    // What it starts is under it from the first moment.
    let _forks = batch.start("fork", &all());
    // More than the two of its own.
    until("it starts others", || batch.threads().len() > 2);
    for tid in batch.threads() {
        assert!([None, Some(EXT), Some(0)].contains(&policy(tid)), "{tid}");
    }
    until("all are under it", || {
        let threads = batch.threads();
        threads.iter().all(|tid| policy(*tid).is_none_or(|policy| policy == EXT))
    });
    // Somebody else's orders for it: not ours any more.
    assert!(loaded.order(&[])["ok"] == true);
    until("nobody is", || batch.threads().iter().all(|tid| policy(*tid) != Some(EXT)));
    loaded.unload();
}

/// While work goes on.
#[test]
fn it_is_loaded_and_unloaded_many_times() {
    if !can_load("guest::smt2::life::it_is_loaded_and_unloaded_many_times") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::offline("batch"));
    let works =
        [batch.spin(&all()), batch.start("fork", &all()), batch.start("threads 20", &all()), web.spin("0")];
    for cycle in 0..LOADS {
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
