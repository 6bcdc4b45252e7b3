//! Offline work leaves the cores of a group that expels, at once, and takes no CPU from anybody; the backstop by itself.

use crate::guest::world::{
    Group, Loaded, all, busy, can_load, counter, cpus, grown, measure, offline, online, settle, sibling,
    until,
};
use serde_json::Value;
use std::time::Duration;

/// The CPU of the online thread.
const CPU: usize = 0;
const BLOCK: Duration = Duration::from_secs(4);
/// Offline time on the sibling of a busy expelling thread, of that thread's; the goal is 0.02, an emulated CPU adds the rest.
const MOST_OVERLAP: f64 = 0.05;
/// Of the sibling's time, by the kernel's own figures: others than offline work may use it.
const MOST_TAKEN: f64 = 0.25;
/// What online work keeps of its CPU; the goal is 0.98.
const LEAST_ONLINE: f64 = 0.95;
/// Without expelling the sibling is busy: else the comparison says nothing.
const LEAST_BASELINE: f64 = 0.5;
/// What offline work has while a core expels it, CPUs: the other core has two.
const LEAST_OFFLINE: f64 = 1.0;
/// Offline threads that have to leave until enough is known.
const EVICTIONS: f64 = 20.0;
/// Of the evictions: an emulated CPU that stands still takes the interrupt after its next tick.
const MOST_BY_TICKS: f64 = 0.5;
/// Of what online threads have alone.
const LEAST_OF_ALONE: f64 = 0.90;

/// What happened while one looked.
struct Sample {
    /// CPUs in use.
    online: f64,
    offline: f64,
    /// Busy time of the sibling, of all.
    taken: f64,
    before: Value,
    after: Value,
}

impl Sample {
    fn look(loaded: &Loaded, web: &Group, batch: &Group) -> Sample {
        let before = loaded.status();
        let first = busy(sibling(CPU));
        let got = measure(&[web, batch], BLOCK);
        let last = busy(sibling(CPU));
        Sample {
            online: got[0] / BLOCK.as_secs_f64(),
            offline: got[1] / BLOCK.as_secs_f64(),
            taken: (last.0 - first.0) as f64 / (last.1 - first.1) as f64,
            before,
            after: loaded.status(),
        }
    }

    fn grown(&self, name: &str) -> f64 {
        grown(&self.before, &self.after, name)
    }

    /// Offline time beside expelling threads, of theirs; `None` while nobody expels.
    fn overlap(&self) -> Option<f64> {
        let expelling = self.grown("expelling_ns");
        (expelling > 0.0).then(|| self.grown("overlap_ns") / expelling)
    }

    fn print(&self, what: &str) {
        let Sample { online, offline, taken, .. } = self;
        let overlap = self.overlap().map_or("-".to_owned(), |share| format!("{:.2} %", share * 100.0));
        let evictions = self.grown("evictions");
        let mean = match evictions {
            0.0 => "-".to_owned(),
            count => format!("{:.0}", self.grown("evict_ns") / count / 1e3),
        };
        println!(
            "noise: {what}: online {online:.3} CPUs, offline {offline:.3}, sibling busy {taken:.3}, overlap {overlap}, \
             {evictions} evictions ({} by the tick), mean {mean} us, {} kept out",
            self.grown("by_ticks"),
            self.grown("refusals")
        );
    }
}

/// One online thread and offline ones everywhere, then more of these of all kinds.
// promise 53
#[test]
fn offline_work_leaves_the_core_of_an_expelling_thread() {
    if !can_load("guest::smt2::noise::offline_work_leaves_the_core_of_an_expelling_thread") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _online = web.spin(&CPU.to_string());
    let _offline = batch.spinners(cpus());
    let groups = |expel| [online(&web, expel), offline(&batch)];
    let mut loaded = Loaded::new(&groups(false));
    let look = |what: &str| {
        let seen = Sample::look(&loaded, &web, &batch);
        seen.print(what);
        seen
    };
    let without = look("without expel");
    assert!(without.taken > LEAST_BASELINE, "without expelling the sibling is {:.3} busy", without.taken);
    assert!(loaded.order(&groups(true))["ok"] == true);
    settle();
    let with = look("with expel");
    let more = ["fork", "pulse", "visit", "threads 50"].map(|work| batch.start(work, &all()));
    // Each process has a thread that works and one that waits for it.
    until("more work is there", || batch.threads().len() >= 2 * (cpus() as usize + 3) + 50);
    settle();
    let loads = look("expel and load");
    for (what, seen) in [("with expel", with), ("expel and load", loads)] {
        let Sample { online, offline, taken, .. } = &seen;
        let overlap = seen.overlap().unwrap();
        assert!(overlap <= MOST_OVERLAP, "{what}: overlap {overlap:.4}");
        assert!(*taken <= MOST_TAKEN, "{what}: the kernel says that the sibling is {taken:.3} busy");
        assert!(*online >= LEAST_ONLINE, "{what}: online has {online:.3} of its CPU");
        assert!(*offline > LEAST_OFFLINE, "{what}: offline has {offline:.3} of the other core's two CPUs");
    }
    for mut work in more {
        assert!(work.0.try_wait().unwrap().is_none(), "work ended");
    }
    loaded.unload();
}

/// One offline thread may run on the sibling only, and others everywhere.
// promise 53
#[test]
fn orders_reach_threads_that_run() {
    if !can_load("guest::smt2::noise::orders_reach_threads_that_run") {
        return;
    }
    let (web, batch, beside) = (Group::new("web"), Group::offline("batch"), Group::offline("beside"));
    let _online = web.spin("0");
    let alone = measure(&[&web], BLOCK)[0];
    let _beside = beside.spin("1");
    let _others = batch.spinners(cpus());
    let groups = |expel| [online(&web, expel), offline(&batch), offline(&beside)];
    let loaded = Loaded::new(&groups(false));
    // A CPU where an offline thread waits is busy to the fair class, also when that thread is kept out: every CPU is busy
    // here, and who wakes stays where it was. On CPU 0 the scheduler's own process (0.3 of 4 s,
    // as it is built for tests and on emulated CPUs) would take the online thread's time.
    loaded.keep_to(&format!("2-{}", cpus() - 1));
    let baseline = measure(&[&web, &beside, &batch], BLOCK);
    assert!(loaded.order(&groups(true))["ok"] == true);
    let (before, own_before) = (loaded.status(), loaded.used());
    let expelled = measure(&[&web, &beside, &batch], BLOCK);
    let (after, own_after) = (loaded.status(), loaded.used());
    println!("noise: the scheduler's own process had {:.2} s of CPU time", own_after - own_before);
    let of = |name: &str| grown(&before, &after, name);
    let own = of("overlap_ns") / of("expelling_ns");
    println!(
        "noise: alone {alone:.2} s, without expel {baseline:.2?}, with expel {expelled:.2?} s (online, beside, others); \
         overlap {own:.4}, {} evictions ({} by the tick)",
        of("evictions"),
        of("by_ticks")
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

/// Without a limit of its own a group has no CPU controller, and the kernel's scheduler knows nothing of it.
// promise 53
#[test]
fn a_group_without_the_cpu_controller_expels() {
    if !can_load("guest::smt2::noise::a_group_without_the_cpu_controller_expels") {
        return;
    }
    let (above, batch) = (Group::new("above"), Group::offline("batch"));
    let web = above.child("web");
    assert!(!web.path.join("cpu.weight").exists());
    let _offline = batch.spinners(cpus());
    let mut loaded = Loaded::new(&[online(&web, true), offline(&batch)]);
    let _online = web.spin(&CPU.to_string());
    let seen = Sample::look(&loaded, &web, &batch);
    seen.print("without the controller");
    assert!(seen.overlap().is_some_and(|overlap| overlap <= MOST_OVERLAP), "{:?}", seen.overlap());
    assert!(seen.grown("expelling_ns") / 1e9 >= LEAST_ONLINE * BLOCK.as_secs_f64(), "{}", seen.after);
    loaded.unload();
}

/// The expelling thread comes and goes: each time offline work leaves at once and comes back.
#[test]
fn it_leaves_at_once_and_comes_back() {
    if !can_load("guest::smt2::noise::it_leaves_at_once_and_comes_back") {
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
    assert!(evictions >= 5.0 && by_ticks <= evictions * MOST_BY_TICKS, "{evictions}, {by_ticks}");
}

/// The same in bursts, with offline threads that may go elsewhere: each time somebody has to leave.
#[test]
fn offline_threads_leave_at_once_and_not_with_the_tick() {
    if !can_load("guest::smt2::noise::offline_threads_leave_at_once_and_not_with_the_tick") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let _online = web.start("pulse 250 50", &CPU.to_string());
    let _offline = batch.spinners(cpus());
    let mut loaded = Loaded::new(&[online(&web, true), offline(&batch)]);
    until("offline threads have left often", || loaded.count("evictions") >= EVICTIONS);
    let status = loaded.status();
    let of = |name: &str| counter(&status, name);
    let (all, by_ticks) = (of("evictions"), of("by_ticks"));
    let overlap = of("overlap_ns") / of("expelling_ns");
    println!("noise: in bursts {all} evictions, {by_ticks} by the tick, overlap {overlap:.4}");
    assert!(by_ticks <= MOST_BY_TICKS * all, "{by_ticks} of {all}");
    assert!(overlap <= MOST_OVERLAP, "{overlap:.4}");
    loaded.unload();
}

/// With nobody asked to leave the tick does it: the backstop works, and is counted apart.
#[test]
fn the_tick_is_the_backstop() {
    if !can_load("guest::smt2::noise::the_tick_is_the_backstop") {
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
// promise 53
#[test]
fn a_hold_off_keeps_the_core_free_for_a_while() {
    if !can_load("guest::smt2::noise::a_hold_off_keeps_the_core_free_for_a_while") {
        return;
    }
    let (web, beside) = (Group::new("web"), Group::offline("beside"));
    let _beside = beside.spin("1");
    let groups = [online(&web, true), offline(&beside)];
    let loaded = Loaded::new(&groups);
    let _pulse = web.start("pulse", "0");
    let without = measure(&[&web, &beside], BLOCK);
    assert!(loaded.hold_off(Duration::from_millis(300), &groups)["ok"] == true);
    let with = measure(&[&web, &beside], BLOCK);
    println!("noise: online and its sibling {without:.2?} s without a hold-off, {with:.2?} s with one");
    // Half of the time is the sibling's; with the hold-off nothing is.
    assert!(without[1] / BLOCK.as_secs_f64() >= 0.2, "{without:?}");
    assert!(with[1] <= without[1] / 4.0, "{without:?}, {with:?}");
    assert!(loaded.order(&groups)["ok"] == true);
    let again = measure(&[&web, &beside], BLOCK);
    assert!(again[1] >= without[1] / 2.0, "{without:?}, {again:?}");
}

/// Offline work has the CPUs that no online thread is on, and leaves each of them when one comes.
// promise 53
#[test]
fn online_threads_do_not_queue_behind_each_other() {
    if !can_load("guest::smt2::noise::online_threads_do_not_queue_behind_each_other") {
        return;
    }
    let (web, batch) = (Group::new("web"), Group::new("batch"));
    let works = web.spinners(4);
    settle();
    let alone = measure(&[&web], BLOCK)[0];
    drop(works);
    // Offline work would be frozen before the end of it.
    let mut loaded = Loaded::with(&["--guard-ms", "15000"], &[online(&web, false), offline(&batch)]);
    let _offline = batch.spinners(4);
    settle();
    let _online = web.spinners(4);
    settle();
    let got = measure(&[&web, &batch], BLOCK);
    println!("noise: online {:.3} s beside offline work {:.3}, {alone:.3} alone", got[0], got[1]);
    assert!(got[0] >= LEAST_OF_ALONE * alone, "{:.3} of {alone:.3}", got[0]);
    loaded.unload();
}
