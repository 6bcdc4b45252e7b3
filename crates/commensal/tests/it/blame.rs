//! The probe on the running kernel: who had the CPU while threads waited, in worlds that a test makes for it.

mod agreement;
mod conservation;
mod program;
mod scenarios;
mod subjects;

use crate::support::{Alone, alone, can_write_cgroups};
use commensal_blame::figures::Kind;
use commensal_blame::{BlameError, Figures, Scope, Subject, WaitProbe};
use commensal_core::knob::{Controller, Version};
use commensal_host::LinuxHost;
use commensal_sensors::mounts;
use commensal_testkit::{Signal, signal, threads, until};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long killed processes may take to leave their group.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// One process that never sleeps.
const HOG: &str = "while :; do :; done";

/// Groups with processes in them; all is gone in the end.
struct Scene {
    test: &'static str,
    top: PathBuf,
    unified: bool,
    running: Vec<Child>,
    _alone: Alone,
}

impl Scene {
    /// `None` where groups cannot be made or the probe cannot work, which it prints.
    fn new(test: &'static str) -> Option<Scene> {
        let alone = alone();
        // Asked once: an emulated CPU takes seconds for it.
        static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
        let obstacle =
            OBSTACLE.get_or_init(|| match WaitProbe::attach(&LinuxHost::new(), &Scope::default()) {
                Ok(_) => None,
                // Anything else that it says is a failure.
                Err(why @ (BlameError::TooOld(_) | BlameError::NoBtf | BlameError::Forbidden(_))) => {
                    Some(why.to_string())
                }
                Err(error) => panic!("{error}"),
            });
        if let Some(why) = obstacle {
            println!("skipped: {test}: {why}");
            return None;
        }
        if !can_write_cgroups(test) {
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
        let unified = cpu.version == Version::V2;
        let top = Path::new(&cpu.mount).join(format!("commensal-test-{}-{test}", std::process::id()));
        std::fs::create_dir(&top).unwrap();
        let scene = Scene { test, top, unified, running: Vec::new(), _alone: alone };
        if unified {
            scene.set("", "cgroup.subtree_control", "+cpu");
        }
        Some(scene)
    }

    /// One whose groups have all the weight that there is on the CPU that is given: the rest of the machine hardly counts
    /// there. They must stay on it, or this very test would get no CPU time either.
    fn on_one_cpu(test: &'static str) -> Option<(Scene, u32)> {
        let scene = Scene::new(test)?;
        match scene.unified {
            true => scene.set("", "cpu.weight", "10000"),
            false => scene.set("", "cpu.shares", "262144"),
        }
        // Interrupts prefer the first.
        let cpus = commensal_sensors::machine::machine(&LinuxHost::new()).unwrap().topology.all();
        let last = cpus.iter().last().unwrap();
        Some((scene, last))
    }

    fn dir(&self, group: &str) -> PathBuf {
        self.top.join(group)
    }

    /// Makes a group, and gives its number.
    fn group(&self, name: &str) -> Subject {
        let dir = self.dir(name);
        if !dir.exists() {
            std::fs::create_dir(&dir).unwrap();
        }
        Subject::Cgroup(std::fs::metadata(&dir).unwrap().ino())
    }

    fn set(&self, group: &str, file: &str, value: &str) {
        let path = self.dir(group).join(file);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{} {value}: {error}", path.display()));
    }

    /// Starts a shell script in a group, on one CPU if one is given.
    fn start(&mut self, group: &str, cpu: Option<u32>, script: &str) -> u32 {
        let procs = self.dir(group).join("cgroup.procs");
        let pin = cpu.map_or_else(String::new, |cpu| format!("taskset -pc {cpu} $$ >/dev/null && "));
        // Whatever a script starts must be gone with it: its own process group is killed.
        let script = format!("echo $$ >{} && {pin} {script}", procs.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.running.push(child);
        until(format_args!("the command has entered {}", procs.display()), || {
            std::fs::read_to_string(&procs).unwrap().lines().any(|line| line == pid.to_string())
        });
        pid
    }

    /// A service: threads that wake up at random times.
    fn pulse(&mut self, group: &str, cpu: Option<u32>, args: &str) -> u32 {
        let script = format!("exec {} workload pulse {args}", env!("CARGO_BIN_EXE_commensal"));
        let pid = self.start(group, cpu, &script);
        // Past its calibration.
        until("the pulse begins", || threads(pid) >= 2);
        pid
    }

    fn scope(&self, online: &[Subject], offline: &[Subject]) -> Scope {
        Scope {
            online: online.to_vec(),
            offline: offline.to_vec(),
            unified: self.unified,
            verify: true,
            interrupts: true,
            commands: true,
            room: None,
        }
    }

    fn probe(&self, online: &[Subject], offline: &[Subject]) -> WaitProbe {
        WaitProbe::attach(&LinuxHost::new(), &self.scope(online, offline)).unwrap()
    }

    /// Ends everything and takes the groups away.
    fn clear(&mut self) {
        self.end_all();
        for entry in std::fs::read_dir(&self.top).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            self.remove(entry.path().to_str().unwrap());
        }
    }

    /// Takes away a group whose processes were killed.
    fn remove(&self, group: &str) {
        let dir = self.dir(group);
        until(format_args!("{} is gone", dir.display()), || removed(&dir));
    }

    /// Whether groups have this file.
    fn has(&self, file: &str) -> bool {
        self.dir(file).exists()
    }

    /// Kills everything in the groups, and waits until it is gone.
    fn end_all(&mut self) {
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            let pids: Vec<String> = members(&self.top);
            for pid in &pids {
                signal(pid.parse().unwrap(), Signal::KILL);
            }
            for child in &mut self.running {
                let _ = child.try_wait();
            }
            if pids.is_empty() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for mut child in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.end_all();
        let deadline = Instant::now() + END_PATIENCE;
        while !removed(&self.top) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Processes below a folder of cgroups.
fn members(dir: &Path) -> Vec<String> {
    let mut pids: Vec<String> = std::fs::read_to_string(dir.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            pids.extend(members(&entry.path()));
        }
    }
    pids
}

fn removed(dir: &Path) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            removed(&entry.path());
        }
    }
    std::fs::remove_dir(dir).is_ok() || !dir.exists()
}

/// What came within some time.
fn look(probe: &WaitProbe, time: Duration) -> Figures {
    let first = probe.read(&LinuxHost::new()).unwrap();
    std::thread::sleep(time);
    probe.read(&LinuxHost::new()).unwrap().since(&first)
}

/// ms of wait per second that the subjects had a CPU.
fn per_cpu_second(figures: &Figures, kind: Kind) -> f64 {
    figures.per_cpu_second(figures.wait.of(kind)).unwrap_or(f64::NAN)
}
