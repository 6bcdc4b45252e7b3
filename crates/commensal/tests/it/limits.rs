//! Limits on the running kernel: each does what its name says, through the program, with processes that really burn,
//! eat, read, write and fork. Bounds are wide, because the machine may be busy and the kernel may run in an
//! emulator: what is asserted is a direction, a ratio, or a share with room on both sides.

mod cpu;
mod disk;
mod memory;
mod tasks;

use crate::support::{Program, can_write_cgroups};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::GroupUse;
use commensal_core::topology::Machine;
use commensal_host::LinuxHost;
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{machine, mounts};
use commensal_testkit::{Alone, Signal, alone, cpu_time, holds_within, line, signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a killed command may take to be gone. Only a frozen or an uninterruptible one takes longer than a moment.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// The program with a groups file, and nobody else measuring.
struct Scene {
    program: Program,
    hierarchies: Vec<Hierarchy>,
    _alone: Alone,
}

impl Scene {
    /// `None` where groups cannot be made, which it prints.
    fn new(test: &str) -> Option<Scene> {
        let alone = alone();
        if !can_write_cgroups(test) {
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        // Test names have more letters than a cgroup's name needs.
        let short: String = test.split('_').filter_map(|word| word.chars().next()).collect();
        Some(Scene { program: Program::new(&short), hierarchies, _alone: alone })
    }

    fn machine(&self) -> Machine {
        machine::machine(&LinuxHost::new()).unwrap()
    }

    /// Which cgroup version limits by `controller`, if any does.
    fn version(&self, controller: Controller) -> Option<Version> {
        let found = self.hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&controller));
        found.map(|hierarchy| hierarchy.version)
    }

    /// `commensal run` of a shell script, which leaves no process behind when it is killed: one that starts another
    /// becomes it, by `exec`, or waits for it.
    fn command(&self, group: &str, groups: &Path, script: &str) -> Command {
        let config = groups.to_str().unwrap();
        self.program.command(&["run", "-g", group, "-c", config, "--", "sh", "-c", script])
    }

    /// Starts a script in the group, and waits until it runs.
    fn start(&self, group: &str, groups: &Path, script: &str) -> Running {
        let script = format!("echo $$; {script}");
        let mut child = self.command(group, groups, &script).stdout(Stdio::piped()).spawn().unwrap();
        let said = line(child.stdout.as_mut().unwrap());
        let pid = said.parse();
        let running = Running { child, pid: pid.clone().unwrap_or_default() };
        assert!(pid.is_ok(), "the command in group {group} did not begin: {said:?}");
        running
    }

    /// What a plan says that this machine cannot do of these groups, if anything: what, and why.
    fn unmet(&self, groups: &Path) -> Option<String> {
        let plan = self.program.run(&["plan", "-c", groups.to_str().unwrap(), "--json"]);
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let first = plan["unmet"].as_array().unwrap().first()?;
        Some(format!("{}: {}", text(&first["what"]), text(&first["because"])))
    }

    /// Where the hierarchy is that limits by `controller`; the test has seen that there is one.
    fn mount(&self, controller: Controller) -> PathBuf {
        let found = self.hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&controller));
        PathBuf::from(&found.unwrap().mount)
    }

    /// A file of one of our own groups.
    fn file(&self, controller: Controller, group: &str, name: &str) -> PathBuf {
        self.mount(controller).join(format!("{}-{group}", self.program.prefix)).join(name)
    }

    /// What a group (`online/web`) has used.
    fn used(&self, group: &str) -> GroupUse {
        let mut host = LinuxHost::new();
        let path = CgroupPath::new(&format!("/{}-{group}", self.program.prefix));
        let dirs = GroupDirs::open(&mut host, &self.hierarchies, &path);
        let used = dirs.read(&mut host);
        dirs.close(&mut host);
        used
    }
}

/// A command in a group. It is killed in the end, whatever becomes of the test.
struct Running {
    child: Child,
    /// Of the command itself, not of the program that started it.
    pid: u32,
}

impl Running {
    /// CPU time so far, ns.
    fn cpu_ns(&self) -> u64 {
        cpu_time(self.pid).unwrap().as_nanos() as u64
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // As long as its parent runs, the number is the command's.
        if self.pid > 0 && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            signal(self.pid, Signal::KILL);
        }
        holds_within(END_PATIENCE, || !self.child.try_wait().is_ok_and(|status| status.is_none()));
    }
}

/// What was read before and after some time, and what lay between, s: at least without the time of the two readings, at
/// most with it. A busy host stops a guest for as long as half a second, which may be in the middle of a reading.
struct Window<T> {
    before: T,
    after: T,
    at_least: f64,
    at_most: f64,
}

fn window<T>(length: Duration, mut read: impl FnMut() -> T) -> Window<T> {
    let outer = Instant::now();
    let before = read();
    let inner = Instant::now();
    std::thread::sleep(length);
    let at_least = inner.elapsed().as_secs_f64();
    let after = read();
    Window { before, after, at_least, at_most: outer.elapsed().as_secs_f64() }
}
