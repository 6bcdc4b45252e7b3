//! Limits on the running kernel: each does what its name says, through the program, with processes that really eat memory and fork.

pub(crate) mod memory;
mod tasks;

use crate::support::{Program, can_write_cgroups};
use commensal_core::actual::{CgroupPath, Hierarchy};
use commensal_core::knob::{Controller, Version};
use commensal_core::observe::GroupUse;
use commensal_core::topology::Machine;
use commensal_host::LinuxHost;
use commensal_sensors::usage::GroupDirs;
use commensal_sensors::{machine, mounts};
use commensal_testkit::{Signal, cpu_time, holds_within, line, signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A loop of the shell: one process that never sleeps.
pub(crate) const BURN: &str = "while :; do :; done";
/// How long a killed command may take to be gone. Only a frozen or an uninterruptible one takes longer than a moment.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// The program with a groups file.
pub(crate) struct Scene {
    pub(crate) program: Program,
    hierarchies: Vec<Hierarchy>,
}

impl Scene {
    /// `None` where groups cannot be made, which it prints.
    pub(crate) fn new(test: &str) -> Option<Scene> {
        if !can_write_cgroups(test) {
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        // Test names have more letters than a cgroup's name needs.
        let short: String = test.split('_').filter_map(|word| word.chars().next()).collect();
        Some(Scene { program: Program::new(&short), hierarchies })
    }

    pub(crate) fn machine(&self) -> Machine {
        machine::machine(&LinuxHost::new()).unwrap()
    }

    /// Which cgroup version limits by `controller`, if any does.
    pub(crate) fn version(&self, controller: Controller) -> Option<Version> {
        let found = self.hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&controller));
        found.map(|hierarchy| hierarchy.version)
    }

    /// `commensal run` of a shell script, which leaves no process behind when it is killed: one that starts another
    /// becomes it, by `exec`, or waits for it.
    pub(crate) fn command(&self, group: &str, groups: &Path, script: &str) -> Command {
        let config = groups.to_str().unwrap();
        self.program.command(&["run", "-g", group, "-c", config, "--", "sh", "-c", script])
    }

    /// Starts a script in the group, and waits until it runs.
    pub(crate) fn start(&self, group: &str, groups: &Path, script: &str) -> Running {
        let script = format!("echo $$; {script}");
        let mut child = self.command(group, groups, &script).stdout(Stdio::piped()).spawn().unwrap();
        let said = line(child.stdout.as_mut().unwrap());
        let pid = said.parse();
        let running = Running { child, pid: pid.clone().unwrap_or_default() };
        assert!(pid.is_ok(), "the command in group {group} did not begin: {said:?}");
        running
    }

    /// What a plan says that this machine cannot do of these groups, if anything: what, and why.
    pub(crate) fn unmet(&self, groups: &Path) -> Option<String> {
        let plan = self.program.run(&["plan", "-c", groups.to_str().unwrap(), "--json"]);
        let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let first = plan["unmet"].as_array().unwrap().first()?;
        Some(format!("{}: {}", text(&first["what"]), text(&first["because"])))
    }

    /// Where the hierarchy is that limits by `controller`; the test has seen that there is one.
    pub(crate) fn mount(&self, controller: Controller) -> PathBuf {
        let found = self.hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&controller));
        PathBuf::from(&found.unwrap().mount)
    }

    /// A file of one of our own groups.
    pub(crate) fn file(&self, controller: Controller, group: &str, name: &str) -> PathBuf {
        self.mount(controller).join(format!("{}-{group}", self.program.prefix)).join(name)
    }

    /// What a group (`online/web`) has used.
    pub(crate) fn used(&self, group: &str) -> GroupUse {
        let mut host = LinuxHost::new();
        let path = CgroupPath::new(&format!("/{}-{group}", self.program.prefix));
        let dirs = GroupDirs::open(&mut host, &self.hierarchies, &path);
        let used = dirs.read(&mut host);
        dirs.close(&mut host);
        used
    }
}

/// A command in a group. It is killed in the end, whatever becomes of the test.
pub(crate) struct Running {
    child: Child,
    /// Of the command itself, not of the program that started it.
    pub(crate) pid: u32,
}

impl Running {
    /// CPU time so far, ns.
    pub(crate) fn cpu_ns(&self) -> u64 {
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
