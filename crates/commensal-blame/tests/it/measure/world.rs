//! Helpers: groups with processes in them, a service among these, and the probe.

use commensal_blame::figures::Kind;
use commensal_blame::{BlameError, Figures, Scope, Subject, WaitProbe};
use commensal_core::knob::{Controller, Version};
use commensal_core::rng::Rng;
use commensal_host::LinuxHost;
use commensal_sensors::{machine, mounts, survey};
use commensal_testkit::{Alone, Groups, alone};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// One process that never sleeps.
pub const HOG: &str = "while :; do :; done";

/// The groups of a test, while no other test measures.
pub struct Scene {
    pub test: &'static str,
    groups: Groups,
    _alone: Alone,
}

impl Deref for Scene {
    type Target = Groups;

    fn deref(&self) -> &Groups {
        &self.groups
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}

impl Scene {
    /// `None` where groups cannot be made or the probe cannot work, which it prints.
    pub fn new(test: &'static str) -> Option<Scene> {
        let alone = alone();
        if let Some(why) = obstacle(test) {
            println!("skipped: {test}: {why}");
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
        let groups = Groups::new(Path::new(&cpu.mount), cpu.version == Version::V2, test);
        Some(Scene { test, groups, _alone: alone })
    }

    /// A scene whose groups outweigh the rest of the machine on the CPU that is returned, and must stay on it.
    pub fn on_one_cpu(test: &'static str) -> Option<(Scene, u32)> {
        let scene = Scene::new(test)?;
        scene.outweigh_the_machine();
        // Interrupts prefer the first CPU.
        let last = machine::machine(&LinuxHost::new()).unwrap().topology.all().iter().last().unwrap();
        Some((scene, last))
    }

    /// Makes a group, as a subject of the probe.
    pub fn group(&self, name: &str) -> Subject {
        Subject::Cgroups(vec![self.groups.make(name)])
    }

    /// Starts a service in a group, and waits until it works.
    pub fn pulse(&mut self, group: &str, cpu: Option<u32>, pulse: Pulse) -> u32 {
        let Pulse { threads, period_us, work_us, seed } = pulse;
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "exec env {WORK}='{threads} {period_us} {work_us} {seed}' '{}' --exact measure::world::work --nocapture \
             --test-threads=2",
            own.display()
        );
        // And one that waits for them.
        self.groups.start_threads(group, cpu, &script, threads + 1)
    }

    pub fn scope(&self, online: &[Subject], offline: &[Subject]) -> Scope {
        Scope {
            online: online.to_vec(),
            offline: offline.to_vec(),
            unified: self.unified,
            verify: true,
            interrupts: true,
            commands: true,
            by_target: false,
            max_culprits: None,
        }
    }

    pub fn probe(&self, online: &[Subject], offline: &[Subject]) -> WaitProbe {
        WaitProbe::attach(&LinuxHost::new(), &self.scope(online, offline)).unwrap()
    }
}

/// Why the probe cannot work or groups cannot be made here; `None` if both can.
fn obstacle(test: &str) -> Option<String> {
    // Asked once: an emulated CPU takes seconds for it.
    static OF_PROBE: OnceLock<Option<String>> = OnceLock::new();
    let of_probe = OF_PROBE.get_or_init(|| match WaitProbe::attach(&LinuxHost::new(), &Scope::default()) {
        Ok(_) => None,
        // Anything else that it says is a failure.
        Err(why @ (BlameError::TooOld(_) | BlameError::NoBtf | BlameError::Forbidden(_))) => {
            Some(why.to_string())
        }
        Err(error) => panic!("{error}"),
    });
    if of_probe.is_some() {
        return of_probe.clone();
    }
    let scratch = format!("commensal-probe-{}-{test}", std::process::id());
    let found = survey(&mut LinuxHost::new(), &scratch, None).unwrap();
    found.caps.cgroup_obstacle.as_ref().or(found.tenancy.obstacle.as_ref()).cloned()
}

/// What came within some time.
pub fn look(probe: &WaitProbe, time: Duration) -> Figures {
    let first = probe.read(&LinuxHost::new()).unwrap();
    std::thread::sleep(time);
    probe.read(&LinuxHost::new()).unwrap().since(&first)
}

/// ms of wait per second that the subjects had a CPU.
pub fn per_cpu_second(figures: &Figures, kind: Kind) -> f64 {
    figures.per_cpu_second(figures.wait.of(kind)).unwrap_or(f64::NAN)
}

/// A service: threads that sleep for random times and then compute.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    pub threads: usize,
    /// Mean time between the end of one piece of work and the next wake-up.
    pub period_us: u64,
    /// CPU time of one piece of work on an otherwise idle core.
    pub work_us: u64,
    pub seed: u64,
}

/// One thread that needs a fifth of a CPU.
pub const PULSE: Pulse = Pulse { threads: 1, period_us: 4_000, work_us: 1_000, seed: 1 };

/// Variable that turns the helper test below into a service.
const WORK: &str = "COMMENSAL_BLAME_WORK";

/// What the service's process does: this program, started with the variable set.
#[test]
fn work() {
    let Ok(text) = std::env::var(WORK) else { return };
    let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    let [threads, period_us, work_us, seed] = numbers[..] else { panic!("{text:?} is no service") };
    let (period, steps) = (Duration::from_micros(period_us), calibrated(Duration::from_micros(work_us)));
    for thread in 0..threads {
        let mut rng = Rng::new(seed.wrapping_add(thread));
        let pulse = move || loop {
            // A fixed period would follow the timer tick.
            std::thread::sleep(period.mul_f64(0.5 + rng.unit_f64()));
            compute(steps);
        };
        // Stacks are small, because there may be thousands of them.
        std::thread::Builder::new().stack_size(64 << 10).spawn(pulse).unwrap();
    }
    loop {
        std::thread::park();
    }
}

/// One chain of dependent operations without a look at the clock, which may be the kernel's.
fn compute(steps: u64) {
    let mut number = 1u64;
    for step in 0..black_box(steps) {
        number = number.wrapping_mul(31).wrapping_add(step);
    }
    black_box(number);
}

/// Steps that take so much CPU time. The fastest of several tries counts, because a busy machine only adds time.
fn calibrated(work: Duration) -> u64 {
    const STEPS: u64 = 200_000;
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let tries = (0..15).map(|_| {
        let before = used();
        compute(STEPS);
        used() - before
    });
    let fastest = tries.fold(f64::MAX, f64::min).max(1e-9);
    (work.as_secs_f64() / fastest * STEPS as f64).max(1.0) as u64
}
