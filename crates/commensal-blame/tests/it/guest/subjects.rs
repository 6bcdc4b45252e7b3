//! Who is who on siblings of a core, and while CPUs go and come.

use crate::measure::world::{HOG, PULSE, Pulse, Scene, look, per_cpu_second};
use commensal_blame::Figures;
use commensal_blame::figures::Kind;
use commensal_host::LinuxHost;
use commensal_testkit::{Signal, cpu_time, field_of_stat, signal, stopped_by, until};
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(1500);

/// CPUs of a core that has several; prints the skip otherwise.
fn core_of_two(test: &str) -> Option<Vec<u32>> {
    let topology = commensal_sensors::machine::machine(&LinuxHost::new()).unwrap().topology;
    let threads = |cpu: u32| -> Vec<u32> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(path).unwrap_or_default();
        list.trim()
            .parse::<commensal_core::cpuset::CpuSet>()
            .map(|set| set.iter().collect())
            .unwrap_or_default()
    };
    let core = topology.all().iter().map(threads).filter(|cpus| cpus.len() > 1).last();
    if core.is_none() {
        println!("skipped: {test}: no core of this machine has two threads");
    }
    core
}

// promises 31, 32
#[test]
fn work_on_a_sibling_overlaps() {
    let test = "work_on_a_sibling_overlaps";
    let Some(mut scene) = Scene::new(test) else { return };
    let Some(siblings) = core_of_two(test) else { return };
    let topology = commensal_sensors::machine::machine(&LinuxHost::new()).unwrap().topology;
    let alone = topology.all().iter().find(|cpu| !siblings.contains(cpu));
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    let hog = scene.start("etl", Some(siblings[0]), HOG);
    scene.pulse("web", Some(siblings[1]), Pulse { period_us: 3_000, work_us: 2_000, ..PULSE });
    let probe = scene.probe(&[web], &[etl]);
    let overlap = |figures: &Figures| figures.counters.overlap_ns as f64 / figures.counters.run_ns as f64;
    let beside = look(&probe, LOOK);
    println!("{test}: {:.3} of its CPU time beside the hog on its core", overlap(&beside));
    assert!((0.5..=1.05).contains(&overlap(&beside)), "{:?}", beside.counters);
    assert!(per_cpu_second(&beside, Kind::Offline) < 500.0, "a sibling is no queue: {beside:?}");
    // Nobody asks the hog to leave, so it is there when the pulse comes and when it goes.
    assert!(beside.counters.stayed > 0, "{:?}", beside.counters);
    assert_eq!(beside.evict_delay.count(), beside.counters.evictions);
    let Some(alone) = alone else { return };
    let moved =
        std::process::Command::new("taskset").args(["-pc", &alone.to_string(), &hog.to_string()]).output();
    assert!(moved.unwrap().status.success());
    until("it runs there", || field_of_stat(hog, 39) == Some(alone.to_string()));
    let apart = look(&probe, LOOK);
    assert!(
        overlap(&apart) < overlap(&beside) / 2.0,
        "{:.3} on another core: {:?}",
        overlap(&apart),
        apart.counters
    );
}

/// Lets a process go on, and waits until it has had its CPU.
fn go_on(pid: u32) {
    let before = cpu_time(pid);
    signal(pid, Signal::CONT);
    until("it has had its CPU", || cpu_time(pid) > before);
}

/// Stops a process, and waits until it has left its CPU.
fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    until("it has left its CPU", || stopped_by(pid));
}

/// A service that comes beside offline work, which goes, and comes again; then the service goes first.
// promise 32
#[test]
fn who_leaves_a_sibling_first_is_told_apart() {
    const ROUNDS: u64 = 10;
    /// Of what must be: a kernel thread may have the service's CPU for the moment in which the work comes or goes, and a
    /// kernel may hide a switch.
    const MOST: u64 = 8;
    let test = "who_leaves_a_sibling_first_is_told_apart";
    let Some(mut scene) = Scene::new(test) else { return };
    let Some(siblings) = core_of_two(test) else { return };
    let (of_web, of_etl) = (scene.group("web"), scene.group("etl"));
    let web = scene.start("web", Some(siblings[1]), HOG);
    let etl = scene.start("etl", Some(siblings[0]), HOG);
    let probe = scene.probe(&[of_web], &[of_etl]);
    stop(web);
    let first = probe.read(&LinuxHost::new()).unwrap();
    let mut together = Vec::new();
    for _ in 0..ROUNDS {
        // The service comes second, the work leaves: an eviction.
        let began = Instant::now();
        go_on(web);
        let beside = Instant::now();
        // How long they are there together, which the probe has to find.
        std::thread::sleep(Duration::from_millis(50));
        let surely = beside.elapsed();
        stop(etl);
        together.push((surely, began.elapsed()));
        // The work comes second: an intrusion. Who came first leaves, so nobody has stayed.
        go_on(etl);
        stop(web);
    }
    let evicted = probe.read(&LinuxHost::new()).unwrap().since(&first);
    for _ in 0..ROUNDS {
        // The service comes second and leaves first: the work has stayed.
        go_on(web);
        stop(web);
    }
    let all = probe.read(&LinuxHost::new()).unwrap().since(&first);
    stop(web);
    stop(etl);
    go_on(web);
    let before = probe.read(&LinuxHost::new()).unwrap();
    for _ in 0..ROUNDS {
        // The work comes second and leaves first: it was neither evicted nor has it stayed.
        go_on(etl);
        stop(etl);
    }
    let gone = probe.read(&LinuxHost::new()).unwrap().since(&before);
    let of = |figures: &Figures| {
        [figures.counters.evictions, figures.counters.intrusions, figures.counters.stayed]
    };
    println!(
        "{test}: evictions, intrusions, stayed: {:?}, then {:?}, at last {:?}",
        of(&evicted),
        of(&all),
        of(&gone)
    );
    let (neither, came) = (gone.counters.stayed.max(gone.counters.evictions), gone.counters.intrusions);
    assert!(came >= MOST && neither * 2 <= came, "{:?}", gone.counters);
    let counters = evicted.counters;
    assert!(counters.evictions >= MOST && counters.intrusions >= MOST, "{counters:?}");
    assert!(all.counters.stayed >= counters.stayed + MOST, "{:?}", all.counters);
    assert_eq!(evicted.evict_delay.count(), counters.evictions);
    // The longest is as long as they were there together; a slot is right within 7 %.
    let longest = evicted.evict_delay.quantile(1.0).unwrap();
    let surely = together.iter().map(|(surely, _)| surely.as_nanos() as f64).fold(f64::MAX, f64::min);
    let at_most = together.iter().map(|(_, whole)| whole.as_nanos() as f64).fold(0.0, f64::max);
    println!("{test}: the longest took {longest:.0} ns, they were together {surely:.0} to {at_most:.0} ns");
    assert!((surely * 0.93..=at_most * 1.07).contains(&longest), "{longest}");
    // Each of these is a stretch in which both had the core.
    let overlap = counters.overlap_ns as f64;
    assert!(evicted.evict_delay.sum_ns() <= overlap * 1.07, "{overlap}");
}

/// Only in a guest: on a machine of somebody's the work there would have to move.
// promise 31
#[test]
fn cpus_go_and_come() {
    let test = "cpus_go_and_come";
    if std::env::var_os("COMMENSAL_VM").is_none() {
        println!("skipped: {test}: takes a CPU away, which is done in guests only");
        return;
    }
    let Some(mut scene) = Scene::new(test) else { return };
    let Some(cpu) =
        commensal_sensors::machine::machine(&LinuxHost::new()).unwrap().topology.all().iter().last()
    else {
        return;
    };
    let switch = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    if !Path::new(&switch).exists() {
        println!("skipped: {test}: this kernel cannot take a CPU away");
        return;
    }
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    for _ in 0..4 {
        scene.start("etl", None, HOG);
    }
    scene.pulse("web", None, Pulse { threads: 8, period_us: 1_000, ..PULSE });
    let probe = scene.probe(&[web], &[etl]);
    for on in ["0", "1", "0", "1"] {
        std::fs::write(&switch, on).unwrap();
        // Work goes on without it and with it.
        std::thread::sleep(Duration::from_millis(300));
    }
    scene.end_all();
    let figures = probe.read(&LinuxHost::new()).unwrap();
    assert!(figures.counters.waits > 0);
    let share = figures.counters.unexplained_ns as f64 / figures.wait.sum() as f64;
    assert!(share < 0.05, "{:.2} % of the wait is unexplained: {figures:?}", share * 100.0);
}
