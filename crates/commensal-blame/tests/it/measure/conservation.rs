//! Nothing is lost and nothing is made up: a thread runs, waits or sleeps, and nothing else; who is blamed for a wait adds
//! up to the wait. Also while processes are born and die, move between CPUs and groups, and become another program.

use super::world::{HOG, PULSE, Pulse, Scene};
use commensal_blame::figures::{ByKind, Kind};
use commensal_blame::{Command as Held, Figures, Thread, WaitProbe};
use commensal_host::LinuxHost;
use commensal_testkit::{until_every, until_still};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time between two looks at threads.
const LOOK: Duration = Duration::from_millis(100);
/// How long threads live before their lives are added up.
const LIFE: Duration = Duration::from_millis(1_500);
/// A thread is read while it goes on.
const SLACK_NS: u64 = 200_000;
/// Of the threads' time, on average: switches that this kernel told nobody.
const LOST_AT_MOST: f64 = 0.02;
/// Share of the figures that a world at full speed may lose to switches that the kernel tells nobody.
const UNEXPLAINED_AT_MOST: f64 = 0.01;
/// Of the wait for offline work: after a third party came between, the wait may go on in another group. Without moves
/// they are equal; an inversion that outlives its wait makes it 1.7.
const INVERTED_AT_MOST: f64 = 1.2;

/// Run, wait and sleep of a thread, with what it does now.
pub fn explained(thread: &Thread) -> u64 {
    thread.run_ns + thread.waited_ns + thread.slept_ns + thread.lost_ns
}

/// What is wrong with it, if anything.
fn wrong(thread: &Thread) -> Option<String> {
    let wall = thread.now_ns.saturating_sub(thread.seen_ns);
    let got = explained(thread);
    if got.abs_diff(wall) > SLACK_NS {
        return Some(format!("{got} of {wall} ns: {thread:?}"));
    }
    // Parts of a wait whose end nobody told are counted, too.
    let blamed = thread.wait.sum() > thread.waited_ns + thread.lost_ns + SLACK_NS;
    blamed.then(|| format!("more blame than wait: {thread:?}"))
}

/// Checks every thread, and gives how many.
fn threads_are_explained(probe: &WaitProbe) -> usize {
    // One that is just being written may be read half; what is really lost stays so.
    let mut threads = probe.threads().unwrap();
    for _ in 0..5 {
        if threads.iter().all(|thread| wrong(thread).is_none()) {
            break;
        }
        threads = probe.threads().unwrap();
    }
    // A single switch that was hidden weighs much in a short life, and less in a longer one; what is lost all the time stays so.
    for _ in 0..5 {
        if lost(&threads) <= LOST_AT_MOST {
            break;
        }
        std::thread::sleep(Duration::from_millis(700));
        threads = probe.threads().unwrap();
    }
    let wrong: Vec<String> = threads.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lost = lost(&threads);
    println!("{} threads, of whose time {:.3} % is lost", threads.len(), lost * 100.0);
    assert!(lost <= LOST_AT_MOST);
    threads.len()
}

/// Whether something has been done to threads for long enough: for two seconds, and until a switch that was hidden on a busy
/// machine weighs no more than it may. What every move or change loses goes on being lost meanwhile.
fn is_enough(probe: &WaitProbe, begun: Instant) -> bool {
    let since = begun.elapsed();
    since > Duration::from_secs(2)
        && (since > Duration::from_secs(30) || lost(&probe.threads().unwrap()) <= LOST_AT_MOST)
}

/// Share of the threads' time that is neither run nor wait nor sleep, on average.
fn lost(threads: &[Thread]) -> f64 {
    let share = |thread: &Thread| thread.lost_ns as f64 / (thread.now_ns - thread.seen_ns).max(1) as f64;
    threads.iter().map(share).sum::<f64>() / threads.len().max(1) as f64
}

/// Checks sums that must be equal; nothing may run meanwhile.
fn blames_add_up(figures: &Figures) {
    let subjects = figures.subjects.iter().fold(ByKind::default(), |mut sum, one| {
        for kind in Kind::ALL {
            sum.0[kind as usize] += one.wait.of(kind);
        }
        sum
    });
    assert_eq!(subjects, figures.wait, "the subjects' waits are all waits");
    let mut named = figures.counters.full_ns;
    for kind in Kind::OF_CGROUPS {
        let of_kind: u64 =
            figures.culprits.iter().filter(|(one, _)| one.kind == kind).map(|(_, ns)| ns).sum();
        assert!(of_kind <= figures.wait.of(kind), "{kind:?}: {of_kind} ns of {:?}", figures.wait);
        named += of_kind;
    }
    for (culprit, ns) in figures.culprits.iter().filter(|(one, _)| one.kind == Kind::Other) {
        let here = figures
            .commands
            .iter()
            .filter(|(one, _)| (one.subject, Some(one.cgroup)) == (culprit.subject, culprit.cgroup));
        let of_commands: u64 = here.map(|(_, ns)| ns).sum();
        assert!(of_commands <= *ns, "the commands of a group are parts of it: {of_commands} of {ns} ns");
    }
    let by_tasks: u64 = Kind::OF_CGROUPS.iter().map(|kind| figures.wait.of(*kind)).sum();
    assert_eq!(named, by_tasks, "somebody is blamed for every wait behind a task: {figures:?}");
    let share = figures.counters.unexplained_ns as f64 / figures.wait.sum().max(1) as f64;
    assert!(share <= UNEXPLAINED_AT_MOST, "{:.2} % of the wait is unexplained", share * 100.0);
}

/// Two programs of a group that is nobody's, one of which is started anew all the time: who had the CPU is told by name, also of
/// those that have ended, and adds up to the group.
// promise 31
#[test]
fn commands_add_up_to_their_group() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("commands_add_up_to_their_group") else { return };
    let web = scene.group("web");
    let desk = scene.group("desk");
    scene.start("desk", Some(cpu), "exec dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null");
    scene.start("desk", Some(cpu), "while :; do expr 1 + 1 >/dev/null; done");
    scene.pulse("web", Some(cpu), Pulse { period_us: 2_000, work_us: 500, ..PULSE });
    let mut probe = scene.probe(&[web], &[]);
    // About as often as the program does.
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(700));
        probe.gather(&LinuxHost::new()).unwrap();
    }
    probe.stop(&LinuxHost::new()).unwrap();
    let figures = probe.read(&LinuxHost::new()).unwrap();
    blames_add_up(&figures);
    let id = desk.cgroups()[0];
    let here = |name: Option<&str>| -> u64 {
        let of_name = |one: &Held| one.cgroup == id && name.is_none_or(|name| one.name == name);
        figures.commands.iter().filter(|(one, _)| of_name(one)).map(|(_, ns)| ns).sum()
    };
    let whole: u64 =
        figures.culprits.iter().filter(|(one, _)| one.cgroup == Some(id)).map(|(_, ns)| ns).sum();
    println!("{whole} ns of the group, {} of named commands: {:?}", here(None), figures.commands);
    assert!(here(Some("dd")) > 0 && here(Some("expr")) > 0, "{:?}", figures.commands);
    assert!(here(None) as f64 > 0.9 * whole as f64, "{} of {whole} ns are named", here(None));
}

/// Ends everything, and checks the sums.
fn close(scene: &mut Scene, probe: &WaitProbe) -> Figures {
    scene.end_all();
    // Who has left its group may still have to leave the CPU.
    until_still(Duration::from_millis(50), "the probe's sums", || {
        let now = probe.read(&LinuxHost::new()).unwrap();
        (now.wait, now.counters.run_ns, now.counters.gone)
    });
    let figures = probe.read(&LinuxHost::new()).unwrap();
    println!(
        "{}: {} waits, {} migrations ({} while waiting), {} ended; missed {} of {} switches, lost {}, no start {}, unexplained {} ns",
        scene.test,
        figures.counters.waits,
        figures.counters.migrations,
        figures.counters.migrations_waiting,
        figures.counters.gone,
        figures.counters.relevant_missed,
        figures.counters.relevant,
        figures.counters.lost,
        figures.counters.no_start,
        figures.counters.unexplained_ns
    );
    blames_add_up(&figures);
    assert!(figures.counters.waits > 0, "nothing happened");
    figures
}

// promise 31
#[test]
fn threads_run_wait_or_sleep() {
    let Some(mut scene) = Scene::new("threads_run_wait_or_sleep") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", None, HOG);
    scene.start("etl", None, HOG);
    let probe = scene.probe(&[web], &[etl]);
    scene.pulse("web", None, Pulse { threads: 40, period_us: 20_000, work_us: 500, ..PULSE });
    until_every(LOOK, "all threads are seen", || probe.threads().unwrap().len() >= 40);
    std::thread::sleep(LIFE);
    assert!(threads_are_explained(&probe) >= 40);
    close(&mut scene, &probe);
}

// promise 31
#[test]
fn threads_that_were_there_before() {
    let Some(mut scene) = Scene::new("threads_that_were_there_before") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", None, HOG);
    // More than there are CPUs, so some are waiting when the probe comes, and some are running.
    scene.pulse("web", None, Pulse { threads: 8, period_us: 100, work_us: 5_000, ..PULSE });
    let before = Instant::now();
    let probe = scene.probe(&[web], &[etl]);
    std::thread::sleep(LIFE);
    threads_are_explained(&probe);
    let since_ns = before.elapsed().as_nanos() as u64;
    for thread in probe.threads().unwrap() {
        assert!(thread.waited_ns <= since_ns && thread.run_ns <= since_ns, "{thread:?}");
    }
    close(&mut scene, &probe);
}

// promise 31
#[test]
fn a_fork_storm() {
    let Some(mut scene) = Scene::new("a_fork_storm") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    let probe = scene.probe(&[web], &[etl]);
    for _ in 0..2 {
        scene.start("web", None, "while :; do (:) & (:) & wait; done");
        scene.start("etl", None, "while :; do (:); done");
    }
    std::thread::sleep(LIFE);
    threads_are_explained(&probe);
    let figures = close(&mut scene, &probe);
    assert!(figures.counters.gone > 20, "{} processes ended", figures.counters.gone);
    // Everybody is gone: what they had is what all had.
    let (gone, run) = (figures.counters.gone_run_ns, figures.counters.run_ns);
    assert!(gone as f64 >= run as f64 * 0.99 && gone <= run, "{gone} of {run} ns on a CPU");
}

// promise 31
#[test]
fn other_programs() {
    let Some(mut scene) = Scene::new("other_programs") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", None, HOG);
    let probe = scene.probe(&[web], &[etl]);
    scene.start("web", None, "exec sh -c 'n=0; while :; do /bin/true; n=$((n+1)); done'");
    // One process that becomes another program again and again.
    scene.start("web", None, "again='exec sh -c \"$again\"'; export again; exec sh -c \"$again\"");
    std::thread::sleep(LIFE);
    threads_are_explained(&probe);
    close(&mut scene, &probe);
}

// promise 31
#[test]
fn other_cpus() {
    let test = "other_cpus";
    let Some(mut scene) = Scene::new(test) else { return };
    let cpus = commensal_sensors::machine::machine(&LinuxHost::new()).unwrap().topology.all();
    let cpus: Vec<u32> = cpus.iter().collect();
    if cpus.len() < 2 {
        println!("skipped: {test}: this machine has one CPU");
        return;
    }
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.start("etl", None, HOG);
    scene.start("etl", None, HOG);
    let pid = scene.pulse("web", None, Pulse { threads: 6, period_us: 500, work_us: 3_000, ..PULSE });
    let probe = scene.probe(&[web], &[etl]);
    let begun = Instant::now();
    for turn in 0.. {
        if is_enough(&probe, begun) {
            break;
        }
        let cpu = cpus[turn % cpus.len()].to_string();
        let done = Command::new("taskset").args(["-apc", &cpu, &pid.to_string()]).output().unwrap();
        assert!(done.status.success());
        std::thread::sleep(Duration::from_millis(3));
    }
    threads_are_explained(&probe);
    let figures = close(&mut scene, &probe);
    assert!(figures.counters.migrations_waiting > 0, "no wait spanned a migration");
}

// promise 31
#[test]
fn other_groups() {
    let Some(mut scene) = Scene::new("other_groups") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.group("none");
    scene.start("etl", None, HOG);
    let pid = scene.pulse("web", None, Pulse { threads: 6, period_us: 500, work_us: 2_000, ..PULSE });
    let probe = scene.probe(&[web], &[etl]);
    let begun = Instant::now();
    for group in ["none", "web", "etl", "web"].into_iter().cycle() {
        if is_enough(&probe, begun) {
            break;
        }
        scene.enter(group, pid);
        std::thread::sleep(Duration::from_millis(7));
    }
    scene.enter("web", pid);
    // What each of the six does it has begun in this group.
    let moved = probe.threads().unwrap().iter().map(|one| one.now_ns).max().unwrap_or(0);
    until_every(LOOK, "they have gone on", || {
        probe.threads().unwrap().iter().filter(|one| one.began_ns > moved).count() >= 6
    });
    threads_are_explained(&probe);
    close(&mut scene, &probe);
}

/// With one waiting thread, a CPU is inverted exactly while that thread waits for offline work.
#[test]
fn an_inversion_ends_with_its_wait() {
    let Some((mut scene, cpu)) = Scene::on_one_cpu("an_inversion_ends_with_its_wait") else { return };
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    scene.group("none");
    scene.start("etl", Some(cpu), HOG);
    let pid = scene.start("web", Some(cpu), HOG);
    let probe = scene.probe(&[web], &[etl]);
    let until = Instant::now() + Duration::from_secs(2);
    for group in ["none", "web"].into_iter().cycle() {
        if Instant::now() > until {
            break;
        }
        scene.enter(group, pid);
        std::thread::sleep(Duration::from_millis(5));
    }
    let figures = close(&mut scene, &probe);
    let waited = figures.wait.of(Kind::Offline) + figures.wait.of(Kind::Interrupt);
    let inverted = figures.counters.inversion_ns;
    println!("an_inversion_ends_with_its_wait: {inverted} ns, waited {waited} ns");
    assert!(inverted > 0 && inverted as f64 <= waited as f64 * INVERTED_AT_MOST, "{figures:?}");
}

// promise 31
#[test]
fn ten_thousand_threads() {
    let test = "ten_thousand_threads";
    let threads = 10_000;
    let Some(mut scene) = Scene::new(test) else { return };
    let limit = |path: &str| -> u64 {
        std::fs::read_to_string(Path::new(path)).unwrap_or_default().trim().parse().unwrap_or(u64::MAX)
    };
    let room = limit("/proc/sys/kernel/threads-max").min(limit("/proc/sys/kernel/pid_max"));
    if room < threads as u64 * 3 / 2 {
        println!("skipped: {test}: this machine has room for {room} threads");
        return;
    }
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    let probe = scene.probe(&[web], &[etl]);
    scene.pulse("web", None, Pulse { threads, period_us: 1_000_000, work_us: 20, ..PULSE });
    // Few looks, since each gets in the way of what it looks at (see below).
    until_every(Duration::from_millis(500), "all threads are seen", || {
        probe.threads().unwrap().len() >= threads
    });
    assert!(threads_are_explained(&probe) >= threads);
    let figures = close(&mut scene, &probe);
    // The kernel makes no storage for a task while this CPU is amid another operation on storages, such as that of the iterator
    // which reads them above (bpf_task_storage_trylock). It is counted, and the thread's next event makes one.
    let most = threads as u64 / 1_000;
    assert!(figures.counters.no_storage <= most, "{}", figures.counters.no_storage);
}
