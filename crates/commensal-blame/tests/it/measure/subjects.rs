//! Who is who: the nearest group counts, also after a move; culprits have their own group's number; processes, several services at
//! once.

use super::world::{HOG, PULSE, Pulse, Scene, look};
use commensal_blame::figures::{Culprit, Kind};
use commensal_blame::{BlameError, Figures, Scope, Subject, Thread, WaitProbe};
use commensal_core::member::ProcessId;
use commensal_host::{LinuxHost, Source, Waker};
use commensal_testkit::{Signal, field_of_stat, signal, time_slices, until, until_every};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(1500);
/// Time between two looks at the sums.
const PAUSE: Duration = Duration::from_millis(100);
/// Of a wait behind a hog that shares a CPU, the hog's part at least; ticks and kernel threads have the rest.
const MOST: f64 = 0.7;

fn process(pid: u32) -> Subject {
    let start_ticks = field_of_stat(pid, 22).unwrap().parse().unwrap();
    Subject::Processes(vec![ProcessId { pid, start_ticks }])
}

/// Share of the wait behind tasks of this kind that the group is blamed for: of offline ones those that were named alone, of others
/// all that had the CPU. Where wake-ups preempt, most of a wait is the interrupt.
fn share(figures: &Figures, kind: Kind, group: &Subject) -> f64 {
    let sum = |wanted: &dyn Fn(&Culprit) -> bool| -> u64 {
        figures.culprits.iter().filter(|(one, _)| wanted(one)).map(|(_, ns)| ns).sum()
    };
    let id = group.cgroups()[0];
    let all = if kind == Kind::Offline { figures.wait.of(kind) } else { behind_tasks(figures) };
    sum(&|one| one.kind == kind && one.cgroup == Some(id)) as f64 / all.max(1) as f64
}

fn behind_tasks(figures: &Figures) -> u64 {
    Kind::OF_CGROUPS.iter().map(|kind| figures.wait.of(*kind)).sum()
}

// promise 31
#[test]
fn the_nearest_group_counts() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("the_nearest_group_counts") else { return };
    let shop = scene.group("shop");
    if scene.unified {
        scene.set("shop", "cgroup.subtree_control", "+cpu");
    }
    let batch = scene.group("shop/batch");
    scene.group("shop/web");
    if scene.unified {
        scene.set("shop/batch", "cgroup.subtree_control", "+cpu");
    }
    let deep = scene.group("shop/batch/deep");
    scene.start("shop/batch/deep", Some(cpu), HOG);
    scene.pulse("shop/web", Some(cpu), PULSE);
    // The service's own group, and inside of it a group of offline work.
    let probe = scene.probe(&[shop], &[batch]);
    let figures = look(&probe, LOOK);
    assert!(share(&figures, Kind::Offline, &deep) > MOST, "{figures:?}");
    assert!(figures.counters.run_ns > 0);
}

/// Two probes at the same time, one of which tells culprits apart by target: it blames each target for what the other one
/// blames the target's cgroups for, those below included.
// promise 31
#[test]
fn culprits_by_target_are_those_by_cgroup() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("culprits_by_target_are_those_by_cgroup") else { return };
    let [web, api, etl, report] = ["web", "api", "etl", "report"].map(|name| scene.group(name));
    if scene.unified {
        scene.set("etl", "cgroup.subtree_control", "+cpu");
    }
    let below = scene.group("etl/below");
    scene.group("none");
    for group in ["etl/below", "report", "none", "api"] {
        scene.start(group, Some(cpu), HOG);
    }
    scene.pulse("web", Some(cpu), PULSE);
    let online = [web.clone(), Subject::Cgroups([api.cgroups(), &[u64::MAX]].concat())];
    let offline = [report.clone(), etl];
    let scope = scene.scope(&online, &offline);
    let by_target = Scope { by_target: true, commands: false, ..scope.clone() };
    let attach = |scope: &Scope| WaitProbe::attach(&LinuxHost::new(), scope).unwrap();
    let (one, other) = (attach(&scope), attach(&by_target));
    let [first, first_of_other] = [&one, &other].map(|probe| probe.read(&LinuxHost::new()).unwrap());
    std::thread::sleep(LOOK);
    let now = [&one, &other].map(|probe| probe.read(&LinuxHost::new()).unwrap());
    let (figures, of_other) = (now[0].since(&first), now[1].since(&first_of_other));
    let sum = |figures: &Figures, kind: Kind, of: &dyn Fn(u64) -> bool| -> f64 {
        let wanted = |one: &&Culprit| one.subject == 0 && one.kind == kind && one.cgroup.is_some_and(of);
        let all = figures.culprits.iter().filter(|(one, _)| wanted(one));
        all.map(|(_, ns)| *ns as f64 / 1e6).sum()
    };
    for (kind, index, groups) in [
        (Kind::Offline, 0, vec![report.cgroups()[0]]),
        (Kind::Offline, 1, vec![below.cgroups()[0]]),
        (Kind::Online, 0, vec![web.cgroups()[0]]),
        (Kind::Online, 1, vec![api.cgroups()[0]]),
    ] {
        let (here, there) = (
            sum(&figures, kind, &|cgroup| groups.contains(&cgroup)),
            sum(&of_other, kind, &|target| target == index),
        );
        // The two are read some milliseconds apart.
        assert!((here - there).abs() <= 0.1 * here.max(there) + 20.0, "{kind:?} {index}: {here} {there}");
        let share = there / of_other.time_ns as f64 * 1e6;
        assert!(share > 0.02 || kind == Kind::Online, "{kind:?} {index}: {of_other:?}");
    }
    let rest = sum(&of_other, Kind::Other, &|target| target == 0);
    assert!((rest - sum(&figures, Kind::Other, &|_| true)).abs() <= 0.1 * rest + 20.0, "{of_other:?}");
    // As many as there are kinds and targets, however many cgroups there are.
    assert!(of_other.culprits.keys().all(|one| one.cgroup.is_none_or(|target| target < 2)), "{of_other:?}");
}

/// A wait that is too long wakes the reader, once in a window; one that is not, or work that is nobody's, does not.
// promise 22
#[test]
fn waits_that_are_too_long_wake_the_reader() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("waits_that_are_too_long_wake_the_reader") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.group("none");
    scene.start("none", Some(cpu), HOG);
    scene.pulse("web", Some(cpu), PULSE);
    let mut probe = scene.probe(&[web], std::slice::from_ref(&etl));
    let waker = Waker::new().unwrap();
    let wakes = |probe: &WaitProbe| {
        waker.wait(&[Source::readable(probe.alarms())], Duration::from_secs(1)).unwrap() == [true]
    };
    let window = Duration::from_millis(30);
    let much = Some(Duration::from_millis(2));
    probe.set_alarm(much, window).unwrap();
    assert!(!wakes(&probe), "no offline work");
    let began = Instant::now();
    let hog = scene.start("etl", Some(cpu), HOG);
    assert!(wakes(&probe), "it waits for offline work");
    let alarm = probe.take_alarm().unwrap();
    assert!((2_000.0 / 30.0..20_000.0).contains(&alarm.blamed_ms_per_s), "{alarm:?}");
    // Both clocks are the kernel's monotonic one.
    assert!(alarm.age > Duration::ZERO && alarm.age < began.elapsed(), "{alarm:?}");
    // Not more often than there are windows.
    let began = Instant::now();
    let mut told = 0;
    while began.elapsed() < Duration::from_secs(1) {
        told += u32::from(wakes(&probe));
        while probe.take_alarm().is_some() {}
    }
    assert!((5..=34).contains(&told), "{told} alarms in {:?}", began.elapsed());
    // More than can be: never.
    probe.set_alarm(Some(Duration::from_secs(10)), window).unwrap();
    while probe.take_alarm().is_some() {}
    assert!(!wakes(&probe) && probe.take_alarm().is_none(), "below the bound");
    probe.set_alarm(None, window).unwrap();
    assert!(!wakes(&probe), "nobody asked for one");
    probe.set_alarm(much, window).unwrap();
    assert!(wakes(&probe));
    assert!(signal(hog, Signal::STOP));
    while probe.take_alarm().is_some() {}
    // The window in which it was stopped may still tell.
    std::thread::sleep(window);
    while probe.take_alarm().is_some() {}
    assert!(!wakes(&probe), "the hog stands still");
}

// promise 31
#[test]
fn a_move_counts_from_the_next_switch_on() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("a_move_counts_from_the_next_switch_on") else { return };
    let (web, etl, none) = (scene.group("web"), scene.group("etl"), scene.group("none"));
    let hog = scene.start("none", Some(cpu), HOG);
    scene.pulse("web", Some(cpu), PULSE);
    let probe = scene.probe(&[web], std::slice::from_ref(&etl));
    let before = look(&probe, LOOK);
    let slices = time_slices(hog);
    scene.enter("etl", hog);
    until("it has got the CPU again", || time_slices(hog) > slices);
    let after = look(&probe, LOOK);
    // Against each other alone: what else runs on this CPU is blamed as well.
    let by = |figures: &Figures, group: &Subject| -> u64 {
        let id = Some(group.cgroups()[0]);
        figures.culprits.iter().filter(|(one, _)| one.cgroup == id).map(|(_, ns)| ns).sum()
    };
    assert!(by(&before, &none) > 0 && before.wait.of(Kind::Offline) == 0, "{before:?}");
    assert!(by(&after, &etl) > 10 * by(&after, &none), "{after:?}");
    assert!(share(&after, Kind::Offline, &etl) > MOST, "{after:?}");
}

// promise 31
#[test]
fn a_process_is_a_subject_too() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("a_process_is_a_subject_too") else { return };
    let all = scene.group("all");
    let hog = scene.start("all", Some(cpu), HOG);
    let other = scene.start("all", Some(cpu), HOG);
    let pid = scene.pulse("all", Some(cpu), Pulse { threads: 2, ..PULSE });
    let probe = scene.probe(&[process(pid)], &[process(hog)]);
    let figures = look(&probe, LOOK);
    let threads = probe.threads().unwrap();
    assert!(!threads.is_empty() && threads.iter().all(|one| one.pid == pid), "{threads:?}");
    let offline = figures.wait.of(Kind::Offline) as f64 / behind_tasks(&figures) as f64;
    // Two hogs of the same kind: each had about half of the CPU.
    assert!((0.15..0.8).contains(&offline), "{offline:.2} is {hog}'s, the rest mostly {other}'s");
    assert!(share(&figures, Kind::Other, &all) > 0.15, "{figures:?}");
}

/// A master that only waits, its workers, and those that are started later; one of them is a target of its own.
// promise 31
#[test]
fn a_process_is_named_with_its_descendants() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("a_process_is_named_with_its_descendants") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    scene.group("all");
    // The last one becomes another program.
    let script = format!(
        "sh -c '{HOG}' & sh -c '{HOG}' & echo $! >{}; until [ -e {} ]; do sleep 0.1; done
         sh -c 'exec dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null' & wait",
        file("own"),
        file("go")
    );
    std::fs::write(file("master"), script).unwrap();
    let master = scene.start("all", Some(cpu), &format!("exec sh {}", file("master")));
    let stranger = scene.start("all", Some(cpu), HOG);
    let own = || std::fs::read_to_string(file("own")).ok()?.trim().parse::<u32>().ok();
    until("both workers run", || own().is_some());
    let own = own().unwrap();
    let mut probe = scene.probe(&[process(master), process(own)], &[process(stranger)]);
    let early = look(&probe, LOOK);
    assert!(early.subjects.iter().all(|one| one.run_ns > 0), "{early:?}");
    std::fs::write(file("go"), "").unwrap();
    let is = |one: &Thread, name: &str| {
        std::fs::read_to_string(format!("/proc/{}/comm", one.pid)).is_ok_and(|comm| comm.trim() == name)
    };
    until("the new one is seen", || {
        probe.threads().unwrap().iter().any(|one| one.subject == 0 && is(one, "dd"))
    });
    let threads = probe.threads().unwrap();
    assert!(threads.iter().filter(|one| one.subject == 1).all(|one| one.pid == own), "{threads:?}");
    assert!(threads.iter().all(|one| one.pid != stranger), "{threads:?}");
    assert_eq!((probe.ended(0), probe.ended(1)), (None, None));
    assert!(signal(own, Signal::KILL));
    until("it has ended", || probe.ended(1).is_some());
    assert_eq!(probe.ended(0), None);
    scene.end_all();
    until("all have ended", || probe.ended(0).is_some());
    assert!(probe.ended(0) > probe.ended(1));
    probe.stop(&LinuxHost::new()).unwrap();
    let gone = ProcessId { pid: own, start_ticks: 1 };
    let me = process(std::process::id());
    let refused =
        WaitProbe::attach(&LinuxHost::new(), &scene.scope(&[me, Subject::Processes(vec![gone])], &[]));
    assert!(matches!(refused, Err(BlameError::Ended(id)) if id == gone), "{refused:?}");
}

// promise 31
#[test]
fn services_are_told_apart() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("services_are_told_apart") else { return };
    let (one, two, etl) = (scene.group("one"), scene.group("two"), scene.group("etl"));
    scene.pulse("one", Some(cpu), Pulse { period_us: 3_000, ..PULSE });
    scene.pulse("two", Some(cpu), Pulse { threads: 3, period_us: 3_000, seed: 9, ..PULSE });
    let probe = scene.probe(&[one.clone(), two.clone()], &[etl]);
    let figures = look(&probe, LOOK);
    assert!(figures.subjects.iter().all(|one| one.run_ns > 0 && one.waits > 0), "{figures:?}");
    // Three wait for each other and for the one; the one waits for the three.
    let by = |subject: u32, group: &Subject| {
        let culprit = Culprit { subject, kind: Kind::Online, cgroup: Some(group.cgroups()[0]) };
        figures.culprits.get(&culprit).copied().unwrap_or(0)
    };
    assert!(by(0, &two) > 0 && by(1, &one) > 0 && by(1, &two) > 0, "{figures:?}");
    assert_eq!(by(0, &one), 0, "a single thread cannot wait for itself");
}

// promise 31
#[test]
fn culprits_that_find_no_room() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("culprits_that_find_no_room") else { return };
    let web = scene.group("web");
    for name in ["a", "b", "c"] {
        scene.group(name);
        scene.start(name, Some(cpu), HOG);
    }
    scene.pulse("web", Some(cpu), PULSE);
    let scope = Scope { max_culprits: Some(1), ..scene.scope(&[web], &[]) };
    let probe = WaitProbe::attach(&LinuxHost::new(), &scope).unwrap();
    until_every(PAUSE, "the map is full", || probe.read(&LinuxHost::new()).unwrap().counters.full_ns > 0);
    // One that waits nearly all the time, so that its wait goes on when the probe stops.
    let mut late =
        WaitProbe::attach(&LinuxHost::new(), &Scope { online: vec![scene.group("d")], ..scope.clone() })
            .unwrap();
    scene.start("d", Some(cpu), HOG);
    std::thread::sleep(LOOK);
    late.stop(&LinuxHost::new()).unwrap();
    let figures = late.read(&LinuxHost::new()).unwrap();
    let named: u64 = figures.culprits.values().sum();
    assert_eq!(named + figures.counters.full_ns, behind_tasks(&figures), "nothing that goes on is lost");
    drop(late);
    scene.end_all();
    let figures = probe.read(&LinuxHost::new()).unwrap();
    // One has a place, and another may be the last that was blamed on its CPU.
    assert!((1..=2).contains(&figures.culprits.len()), "{:?}", figures.culprits);
    assert!(figures.counters.full > 0 && figures.counters.full_ns > 0, "{figures:?}");
    let named: u64 = figures.culprits.values().sum();
    assert_eq!(named + figures.counters.full_ns, behind_tasks(&figures), "nothing is lost");
}

/// Two processes that hand a byte to and fro have the CPU in turns of microseconds: many more in one wait than the probe remembers. Those
/// of one culprit count as one as long as no other wait begins between them; when many do, the oldest have no name.
// promise 31
#[test]
fn more_turns_than_it_remembers() {
    /// Twice as many as the probe remembers.
    const TURNS: u64 = 2 * 512;
    let test = "more_turns_than_it_remembers";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let (web, pair, mate, chat) =
        (scene.group("web"), scene.group("pair"), scene.group("mate"), scene.group("chat"));
    let (weight, least) = if scene.unified { ("cpu.weight", "1") } else { ("cpu.shares", "2") };
    scene.set("web", weight, least);
    let fifo = tempfile::tempdir().unwrap();
    let (a, b) = (fifo.path().join("a"), fifo.path().join("b"));
    for path in [&a, &b] {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let (a, b) = (a.display(), b.display());
    scene.start("pair", Some(cpu), &format!("exec 3<>{a} 4<>{b}; while read -r _ <&3; do echo >&4; done"));
    scene.start(
        "mate",
        Some(cpu),
        &format!("exec 3<>{a} 4<>{b}; echo >&3; while read -r _ <&4; do echo >&3; done"),
    );
    scene.start("web", Some(cpu), HOG);
    let probe = scene.probe(&[web, chat], &[pair.clone(), mate.clone()]);
    let unnamed = |figures: &Figures| -> u64 {
        figures.culprits.iter().filter(|(one, _)| one.cgroup.is_none()).map(|(_, ns)| ns).sum()
    };
    let begin = probe.read(&LinuxHost::new()).unwrap();
    let mut named = begin.clone();
    until_every(PAUSE, "a wait of many turns", || {
        named = probe.read(&LinuxHost::new()).unwrap().since(&begin);
        named.counters.relevant > TURNS * (named.counters.waits + 1)
    });
    println!(
        "{test}: {} turns in {} waits; {} of {} ns have no name",
        named.counters.relevant,
        named.counters.waits,
        unnamed(&named),
        named.wait.sum()
    );
    assert!(unnamed(&named) as f64 <= 0.01 * named.wait.sum() as f64, "{named:?}");
    let shares = [&pair, &mate].map(|group| share(&named, Kind::Offline, group));
    assert!(shares.iter().all(|share| *share > 0.1) && shares.iter().sum::<f64>() > 0.98, "{shares:?}");
    // Its waits begin all the time.
    scene.pulse("chat", Some(cpu), Pulse { period_us: 200, work_us: 1, ..PULSE });
    let before = unnamed(&probe.read(&LinuxHost::new()).unwrap());
    until_every(PAUSE, "a turn has no name", || unnamed(&probe.read(&LinuxHost::new()).unwrap()) > before);
    scene.end_all();
    let figures = probe.read(&LinuxHost::new()).unwrap();
    println!("{test}: then {} of {} ns", unnamed(&figures), figures.wait.sum());
    let all: u64 = figures.culprits.values().sum();
    assert_eq!(all + figures.counters.full_ns, behind_tasks(&figures), "{figures:?}");
}
