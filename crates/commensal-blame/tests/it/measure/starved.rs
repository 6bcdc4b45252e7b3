//! What is under way when a look begins or ends: waits, runs and sleeps that nothing interrupts.

use super::conservation::explained;
use super::world::{HOG, PULSE, Scene};
use commensal_blame::figures::{ByKind, Culprit, Kind, ThreadState};
use commensal_blame::{Bounds, Figures, Subject, Verdict, WaitProbe};
use commensal_host::LinuxHost;
use commensal_testkit::{field_of_stat, until};
use std::time::{Duration, Instant};

/// Of the length of a look, for every thread.
const APART: f64 = 0.001;
/// Of a starved thread's time, its waits at least.
const STARVED: f64 = 0.9;
const LOOKS: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(10)];
/// How old the kernel's own account of a running thread may be: some ticks.
const TICKS: Duration = Duration::from_millis(12);
/// A wait for a few threads that take turns.
const ONE_WAIT: Duration = Duration::from_millis(60);

/// A starved service: one hog that has nearly no weight, beside one that has nearly all.
fn starve(scene: &mut Scene, cpu: u32) -> [Subject; 2] {
    let (web, etl) = (scene.group("web"), scene.group("etl"));
    let (weight, least, most) =
        if scene.unified { ("cpu.weight", "1", "10000") } else { ("cpu.shares", "2", "262144") };
    scene.set("web", weight, least);
    scene.set("etl", weight, most);
    scene.start("web", Some(cpu), HOG);
    // From whatever priority this test has: the least is -20.
    let hog = scene.start("etl", Some(cpu), &format!("exec nice -n -39 sh -c '{HOG}'"));
    until("it has its priority", || field_of_stat(hog, 19).as_deref() == Some("-20"));
    [web, etl]
}

/// The look's own length, between those that this test measures.
fn look(scene: &Scene, targets: &[Subject; 2], time: Duration) -> (WaitProbe, Figures) {
    let [web, etl] = targets;
    let whole = Instant::now();
    let mut probe = scene.probe(std::slice::from_ref(web), std::slice::from_ref(etl));
    let within = Instant::now();
    std::thread::sleep(time);
    let within = within.elapsed();
    probe.stop(&LinuxHost::new()).unwrap();
    let figures = probe.read(&LinuxHost::new()).unwrap().since(&probe.beginning());
    let length = Duration::from_nanos(figures.time_ns);
    assert!(within <= length && length <= whole.elapsed(), "{within:?} {length:?} {:?}", whole.elapsed());
    (probe, figures)
}

/// On a CPU, waiting and asleep are the whole look: of threads that starve, that have a CPU of their own, that sleep, and of a service.
// promise 31
#[test]
fn every_thread_is_explained_from_the_start() {
    let test = "every_thread_is_explained_from_the_start";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let targets = starve(&mut scene, cpu);
    scene.start("web", Some(0), HOG);
    let sleeper = scene.start("web", None, "exec sleep 600");
    let is_sleep =
        || std::fs::read_to_string(format!("/proc/{sleeper}/comm")).is_ok_and(|name| name == "sleep\n");
    until("it sleeps", || is_sleep() && field_of_stat(sleeper, 3).as_deref() == Some("S"));
    scene.pulse("web", Some(0), PULSE);
    for time in LOOKS {
        let (probe, figures) = look(&scene, &targets, time);
        let threads = probe.threads().unwrap();
        for one in &threads {
            let apart = explained(one).abs_diff(figures.time_ns) as f64 / figures.time_ns as f64;
            assert!(apart <= APART, "{time:?}: {:.3} % of the look: {one:?}", apart * 100.0);
            let parts = one.wait.sum().abs_diff(one.waited_ns) as f64 / figures.time_ns as f64;
            assert!(parts <= APART, "{time:?}: parts of the wait: {one:?}");
            assert_eq!(one.lost_ns, 0, "the kernel has an account of it: {one:?}");
        }
        let of = |pid: u32| threads.iter().find(|one| one.pid == pid);
        assert!(threads.len() >= 5, "{threads:?}");
        assert!(of(sleeper).is_some_and(|one| one.state == ThreadState::Asleep), "{threads:?}");
        let sums = threads.iter().fold(ByKind::default(), |mut sums, one| {
            sums.add(&one.wait);
            sums
        });
        assert_eq!(sums, figures.wait, "the threads' waits are all waits");
        let run: u64 = threads.iter().map(|one| one.run_ns).sum();
        let apart = run.abs_diff(figures.counters.run_ns) as f64 / figures.time_ns as f64;
        assert!(apart <= APART, "{run} ns of {figures:?}");
    }
}

/// What the threads of the kernel's own account have run and waited for (ns), by number.
fn account(threads: &[u32]) -> Vec<[u64; 2]> {
    let of = |tid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{tid}/schedstat")).unwrap();
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    threads.iter().map(of).collect()
}

/// What each thread has run and waited for is what the kernel has counted: more than between two readings within the look, and less
/// than between two around it.
// promise 31
#[test]
fn the_kernels_own_account_agrees() {
    let test = "the_kernels_own_account_agrees";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let targets = [scene.group("web"), scene.group("etl")];
    let first = Some(0).filter(|first| *first != cpu).unwrap_or(cpu);
    scene.start("etl", Some(cpu), HOG);
    // Two that share a CPU with each other and with offline work, and one that shares its with whatever else there is.
    let hogs: Vec<u32> =
        [cpu, cpu, first].into_iter().map(|cpu| scene.start("web", Some(cpu), HOG)).collect();
    for time in LOOKS {
        let before = account(&hogs);
        let mut probe = scene.probe(&targets[..1], &targets[1..]);
        let from = account(&hogs);
        std::thread::sleep(time);
        let to = account(&hogs);
        probe.stop(&LinuxHost::new()).unwrap();
        let after = account(&hogs);
        let figures = probe.read(&LinuxHost::new()).unwrap().since(&probe.beginning());
        let threads = probe.threads().unwrap();
        let slack = (TICKS + time.mul_f64(APART)).as_nanos() as u64;
        for (index, hog) in hogs.iter().enumerate() {
            let one = threads.iter().find(|one| one.pid == *hog).unwrap();
            for (what, ours, of) in [("run", one.run_ns, 0_usize), ("wait", one.waited_ns, 1)] {
                let within = to[index][of] - from[index][of];
                let around = after[index][of] - before[index][of];
                println!(
                    "{test}: {time:?}: {what} {:.3} ms, by the kernel {:.3} to {:.3} ms",
                    ours as f64 / 1e6,
                    within as f64 / 1e6,
                    around as f64 / 1e6
                );
                // The kernel adds a wait when it ends: one that goes on at a reading is in the next.
                let slack = slack + of as u64 * ONE_WAIT.as_nanos() as u64;
                let of_wait = if of == 1 { one.now_ns - one.began_ns } else { 0 };
                assert!(ours + slack >= within && ours <= around + slack + of_wait, "{what}: {one:?}");
            }
        }
        println!("{test}: {time:?}: {:?}", figures.counters);
    }
}

/// The starved thread does not get a CPU during the look: `blame` finds its whole wait all the same, and names the hog.
// promise 31
#[test]
fn a_starved_service_waits_all_the_time() {
    let test = "a_starved_service_waits_all_the_time";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let targets = starve(&mut scene, cpu);
    let etl = targets[1].cgroups()[0];
    for time in LOOKS {
        let (_, figures) = look(&scene, &targets, time);
        let share = |ns: u64| ns as f64 / figures.time_ns as f64;
        let culprit = Culprit { subject: 0, kind: Kind::Offline, cgroup: Some(etl) };
        let named = figures.culprits.get(&culprit).copied().unwrap_or(0);
        println!(
            "{test}: {time:?}: waits {:.4} of the time, {:.4} behind the hog by name, {} ns on a CPU, {:?}",
            share(figures.wait.sum()),
            share(named),
            figures.counters.run_ns,
            Verdict::of(&figures, Bounds::default())
        );
        assert!(share(figures.wait.sum()) > STARVED, "{figures:?}");
        assert!(share(named) > STARVED, "{figures:?}");
        let verdict = Verdict::of(&figures, Bounds::default());
        assert_eq!(verdict.words(), "over budget", "{verdict:?}");
    }
}

/// Whoever reads now and then, as the agent and the lab do, sees a wait before it ends; also after the targets have changed.
// promise 31
#[test]
fn a_wait_is_seen_while_it_goes_on() {
    let test = "a_wait_is_seen_while_it_goes_on";
    let Some((mut scene, cpu)) = Scene::on_one_cpu(test) else { return };
    let [web, etl] = starve(&mut scene, cpu);
    let nobody = scene.group("nobody");
    let mut probe = scene.probe(std::slice::from_ref(&nobody), std::slice::from_ref(&etl));
    let check = |probe: &WaitProbe, index: usize| {
        let mut before = probe.totals().unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(300));
            let now = probe.totals().unwrap();
            let came = now.since(&before);
            let share = came.subjects[index].wait.of(Kind::Offline) as f64 / came.time_ns as f64;
            assert!((STARVED..=1.01).contains(&share), "{share:.3} of the time: {came:?}");
            before = now;
        }
    };
    let scope = |online: &[Subject]| scene.scope(online, std::slice::from_ref(&etl));
    assert!(probe.follow(&scope(&[nobody.clone(), web.clone()])).unwrap());
    check(&probe, 1);
    // The same group with another number.
    assert!(probe.follow(&scope(&[web, nobody])).unwrap());
    check(&probe, 0);
}
